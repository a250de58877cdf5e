//! Upper limits on what a seed draws, for a smaller run that still fails.

use std::fmt;

/// Upper limits on what a seed draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Lives before the last one, which end by a crash or cleanly.
    pub lives: u32,
    /// Actions of the administrator in a life.
    pub actions: u32,
    /// Clients that are connected at a time.
    pub clients: u32,
    /// Requests of a client.
    pub requests: u32,
}

impl Bounds {
    /// No limits.
    pub const NONE: Bounds = Bounds { lives: u32::MAX, actions: u32::MAX, clients: u32::MAX, requests: u32::MAX };

    pub(crate) const NAMES: [&str; 4] = ["lives", "actions", "clients", "requests"];
    /// The smallest useful value of each limit, in the order of the fields.
    pub(crate) const LEAST: [u32; 4] = [0, 0, 1, 1];
    /// The largest value to try for each limit, in the order of the fields: no seed draws more.
    pub(crate) const MOST: [u32; 4] = [12, 16, 5, 120];

    pub(crate) fn at(&mut self, which: usize) -> &mut u32 {
        match which {
            0 => &mut self.lives,
            1 => &mut self.actions,
            2 => &mut self.clients,
            _ => &mut self.requests,
        }
    }

    /// Parses limits as they are written on the command line: `lives=2,requests=5`.
    ///
    /// # Errors
    /// A message that says what is wrong with the text.
    pub fn parse(text: &str) -> Result<Bounds, String> {
        let mut bounds = Bounds::NONE;
        for part in text.split(',') {
            let wrong =
                || format!("--bounds knows no {part:?}, for example --bounds lives=2,actions=3,clients=1,requests=5");
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let which = Bounds::NAMES.iter().position(|known| *known == name).ok_or_else(wrong)?;
            *bounds.at(which) = value.parse().ok().filter(|v| *v >= Bounds::LEAST[which]).ok_or_else(wrong)?;
        }
        Ok(bounds)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = *self;
        let mut comma = "";
        for (which, name) in Bounds::NAMES.into_iter().enumerate() {
            let value = *all.at(which);
            if value != u32::MAX {
                write!(f, "{comma}{name}={value}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_parse_as_they_are_printed() {
        let bounds = Bounds { lives: 2, requests: 7, ..Bounds::NONE };
        assert_eq!(bounds.to_string(), "lives=2,requests=7");
        assert_eq!(Bounds::parse("lives=2,requests=7"), Ok(bounds));
        assert!(Bounds::parse("lives=2,books=7").unwrap_err().contains("books"));
        assert!(Bounds::parse("requests=0").is_err());
    }
}

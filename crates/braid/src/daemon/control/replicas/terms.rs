//! On which terms a controller connects to a replica: what stands in the export's name behind the `?`.

use braid_engine::replica::Caller;
use std::str::FromStr;
use uuid::Uuid;

/// Longest terms that are looked at, in bytes.
const TERMS_BYTES_MAX: usize = 512;

/// The terms: `epoch=E&controller=UUID&boot=UUID&session=S&lane=L&attempt=N`, each of them once, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Whose connection it is.
    pub caller: Caller,
    /// The boot of the node under which the controller believes the replica.
    pub boot: Uuid,
}

const NAMES: [&str; 6] = ["epoch", "controller", "boot", "session", "lane", "attempt"];

/// What terms say, by their names: each of them once, in any order, and no others.
///
/// # Errors
/// Which of them is missing, is there twice, or is not known.
pub fn values<'a, const COUNT: usize>(text: &'a str, names: &[&str; COUNT]) -> Result<[&'a str; COUNT], String> {
    if text.len() > TERMS_BYTES_MAX {
        return Err("the terms are too long".to_owned());
    }
    let mut found: [Option<&str>; COUNT] = [None; COUNT];
    for part in text.split('&') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let shown: String = name.chars().take(40).collect();
        let at =
            names.iter().position(|known| *known == name).ok_or_else(|| format!("the term {shown:?} is not known"))?;
        if found[at].replace(value).is_some() {
            return Err(format!("the term {name} stands there twice"));
        }
    }
    let mut values = [""; COUNT];
    for ((value, found), name) in values.iter_mut().zip(found).zip(names) {
        *value = found.ok_or_else(|| format!("the term {name} is missing"))?;
    }
    Ok(values)
}

impl FromStr for Terms {
    type Err = String;

    fn from_str(text: &str) -> Result<Terms, String> {
        let values = values(text, &NAMES)?;
        let number = |at: usize| values[at].parse::<u64>().map_err(|_| format!("the term {} is no number", NAMES[at]));
        let uuid = |at: usize| Uuid::try_parse(values[at]).map_err(|_| format!("the term {} is no UUID", NAMES[at]));
        let lane = number(4)?;
        let caller = Caller {
            epoch: number(0)?,
            controller: uuid(1)?,
            session: number(3)?,
            lane: u16::try_from(lane).map_err(|_| format!("there is no lane {lane}"))?,
            attempt: number(5)?,
        };
        Ok(Terms { caller, boot: uuid(2)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLLER: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
    const BOOT: &str = "11121314-1516-1718-191a-1b1c1d1e1f20";

    #[test]
    fn terms_are_read_and_each_that_is_missing_or_wrong_is_named() {
        let all = format!("epoch=3&controller={CONTROLLER}&boot={BOOT}&session=4&lane=5&attempt=6");
        let terms: Terms = all.parse().expect("they are right");
        let controller = Uuid::try_parse(CONTROLLER).expect("it is one");
        assert_eq!(terms.caller, Caller { epoch: 3, controller, session: 4, lane: 5, attempt: 6 });
        assert_eq!(terms.boot.to_string(), BOOT);
        let mut parts: Vec<&str> = all.split('&').collect();
        parts.reverse();
        assert_eq!(parts.join("&").parse(), Ok(terms));
        for name in NAMES {
            let without: Vec<&str> = all.split('&').filter(|part| !part.starts_with(name)).collect();
            assert_eq!(without.join("&").parse::<Terms>(), Err(format!("the term {name} is missing")));
            let twice = format!("{all}&{name}=1");
            assert_eq!(twice.parse::<Terms>(), Err(format!("the term {name} stands there twice")));
        }
        let refused = |text: String, words: &str| {
            let error = text.parse::<Terms>().expect_err(words);
            assert!(error.contains(words), "{error}");
        };
        refused(String::new(), "not known");
        refused(format!("{all}&more=1"), "\"more\" is not known");
        refused(all.replace("epoch=3", "epoch=-3"), "epoch is no number");
        refused(all.replace("lane=5", "lane=65536"), "no lane 65536");
        refused(all.replace(BOOT, "x"), "boot is no UUID");
        refused("x".repeat(10_000), "too long");
    }
}

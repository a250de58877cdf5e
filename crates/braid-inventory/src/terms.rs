//! Terms on which a controller connects to a replica: the part of the export's name behind the `?`.

use braid_engine::replica::ConnectionOrigin;
use std::str::FromStr;
use uuid::Uuid;

/// Maximum length of terms, in bytes.
const TERMS_BYTES_MAX: usize = 512;

/// The terms of one connection, each of them once, in any order:
/// `epoch=E&controller=UUID&boot=UUID&session=S&connection=C&attempt=N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The controller's connection.
    pub caller: ConnectionOrigin,
    /// The boot id under which the controller knows the replica.
    pub boot: Uuid,
}

/// The names of the terms, in the order in which the parser takes them.
const NAMES: [&str; 6] = ["epoch", "controller", "boot", "session", "connection", "attempt"];

/// Parses terms by their names: each of them once, in any order, and no others. Returns their values, in the order of
/// `names`.
///
/// # Errors
/// A term is missing, appears twice, or is unknown.
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
        let connection = number(4)?;
        let caller = ConnectionOrigin {
            epoch: number(0)?,
            controller: uuid(1)?,
            session: number(3)?,
            connection: u16::try_from(connection).map_err(|_| format!("there is no connection {connection}"))?,
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
    fn terms_parse_and_each_missing_or_invalid_one_is_named() {
        let all = format!("epoch=3&controller={CONTROLLER}&boot={BOOT}&session=4&connection=5&attempt=6");
        let terms: Terms = all.parse().expect("they are right");
        let controller = Uuid::try_parse(CONTROLLER).expect("it is one");
        assert_eq!(terms.caller, ConnectionOrigin { epoch: 3, controller, session: 4, connection: 5, attempt: 6 });
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
        refused(all.replace("connection=5", "connection=65536"), "no connection 65536");
        refused(all.replace(BOOT, "x"), "boot is no UUID");
        refused("x".repeat(10_000), "too long");
    }
}

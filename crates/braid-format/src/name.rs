//! Names of arrays: a letter or digit, then up to 62 of letters, digits, `.`, `_`, `-`.

use std::fmt;

use crate::NAME_BYTES_MAX;

/// A name that keeps the rules.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(String);

/// Why a text is no name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a name: {reason}")]
pub struct NameError {
    /// The text.
    pub text: String,
    /// Which rule it breaks.
    pub reason: &'static str,
}

impl Name {
    /// Checks the rules.
    pub fn new(text: &str) -> Result<Name, NameError> {
        let refuse = |reason| Err(NameError { text: text.chars().take(80).collect(), reason });
        let Some(first) = text.bytes().next() else { return refuse("it is empty") };
        if text.len() > NAME_BYTES_MAX {
            return refuse("it is longer than 63 characters");
        }
        if !first.is_ascii_alphanumeric() {
            return refuse("it must begin with a letter or a digit");
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
            return refuse("only letters, digits, '.', '_' and '-' may stand in it");
        }
        Ok(Name(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Name, NameError> {
        Name::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_rules() {
        let longest = "x".repeat(63);
        for good in ["a", "0", "fast", "a.b_c-d", "9lives", longest.as_str()] {
            assert_eq!(Name::new(good).map(|n| n.to_string()), Ok(good.to_owned()));
        }
        let too_long = "x".repeat(64);
        for bad in ["", "-a", ".a", "_a", "a b", "a/b", "a@b", "ä", "a\0", too_long.as_str()] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
    }
}

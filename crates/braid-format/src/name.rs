//! Names of arrays, pools, volumes and snapshots: a letter or digit, then up to 62 letters, digits, `.`, `_`, `-`.

use std::fmt;

use crate::NAME_BYTES_MAX;

/// A valid name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(String);

/// Why a text is not a valid name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a name: {reason}")]
pub struct NameError {
    /// The text.
    pub text: String,
    /// The rule that it breaks.
    pub reason: &'static str,
}

impl Name {
    /// Validates the text.
    pub fn new(text: &str) -> Result<Name, NameError> {
        match broken_rule(text.as_bytes()) {
            Some(reason) => Err(NameError { text: text.chars().take(80).collect(), reason }),
            None => Ok(Name(text.to_owned())),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the rule that a text breaks, if any.
pub(crate) fn broken_rule(text: &[u8]) -> Option<&'static str> {
    let Some(first) = text.first() else { return Some("it is empty") };
    if text.len() > NAME_BYTES_MAX {
        return Some("it is longer than 63 characters");
    }
    if !first.is_ascii_alphanumeric() {
        return Some("it must begin with a letter or a digit");
    }
    if !text.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Some("only letters, digits, '.', '_' and '-' may stand in it");
    }
    None
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
    fn valid_and_invalid_names() {
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

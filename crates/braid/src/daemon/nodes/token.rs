//! What a new node is told, so that it finds the one that has invited it, believes nobody else, and is let in:
//! `HOST:PORT/AUTHORITY/SECRET`, the latter two in hexadecimal digits.

use super::place::HostPort;
use braid_api::{ErrorDetail, Kind};
use std::fmt::{self, Write};

/// The port of the API, which a token always names.
const NO_PORT: u16 = 0;

/// An invitation as it is handed over.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The node that has invited.
    pub place: HostPort,
    /// The digest (SHA-256) of its authority's certificate.
    pub authority: [u8; 32],
    /// What the invitation is known by.
    pub secret: [u8; 16],
}

impl Token {
    /// Reads one.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`]; what is said does not repeat the secret.
    pub fn parse(text: &str) -> Result<Token, ErrorDetail> {
        let refused = |why: &str| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the invitation cannot be read: {why}"))
                .remedy("copy it whole, as `braid node invite` has printed it: HOST:PORT/AUTHORITY/SECRET")
        };
        let mut parts = text.trim().split('/');
        let (Some(place), Some(authority), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refused("it has not three parts"));
        };
        let place = HostPort::parse(place, NO_PORT)
            .ok()
            .filter(|place| place.port != 0)
            .ok_or_else(|| refused("it does not begin with a host and a port"))?;
        let authority = from_hex(authority).ok_or_else(|| refused("its second part has not 64 hexadecimal digits"))?;
        let secret = from_hex(secret).ok_or_else(|| refused("its third part has not 32 hexadecimal digits"))?;
        Ok(Token { place, authority, secret })
    }

    /// As it is handed over.
    pub fn reveal(&self) -> String {
        format!("{}/{}/{}", self.place, hex(&self.authority), hex(&self.secret))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret.
        f.debug_struct("Token").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// So many bytes from hexadecimal digits; none where there is anything else, or another number of them.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(value(pair[0])? * 16 + value(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_token() -> Token {
        let place = HostPort { host: "2001:db8::7".to_owned(), port: 10870 };
        Token { place, authority: [0xab; 32], secret: [0x5a; 16] }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let token = some_token();
        assert_eq!(Token::parse(&token.reveal()), Ok(token.clone()));
        assert_eq!(Token::parse(&format!(" {}\n", token.reveal().replace("5a", "5A"))), Ok(token));
    }

    #[test]
    fn no_part_of_it_is_one_and_no_secret_is_repeated() {
        let text = some_token().reveal();
        for end in 0..text.len() {
            let error = Token::parse(&text[..end]).expect_err("it is not whole");
            assert!(error.kind == Kind::InvalidArgument && !error.to_string().contains("5a5a"), "{error}");
        }
        assert!(!format!("{:?}", some_token()).contains("5a5a"));
    }

    /// Every change of one character: never a panic, and what is taken is written as it was read.
    #[test]
    fn changed_tokens_are_refused_or_mean_what_they_say() {
        let text = some_token().reveal();
        for at in 0..text.len() {
            for other in ["", "/", ":", "g", "0", "F", "]", "ß", "\0", " ", "ab/"] {
                let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                if let Ok(token) = Token::parse(&changed) {
                    assert_eq!(Token::parse(&token.reveal()), Ok(token), "{changed}");
                }
            }
        }
        for wrong in ["", "/", "//", "///", "h:1//", "h/0/0", "\u{0}/\u{0}/\u{0}"] {
            assert!(Token::parse(wrong).is_err(), "{wrong}");
        }
    }
}

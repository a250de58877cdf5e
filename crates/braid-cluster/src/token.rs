//! The invitation (token) with which a new node joins: it has the address of the inviting node, the digest of the
//! authority's certificate, which the new node verifies, and the secret that authorizes the admission. Format:
//! `HOST:PORT/AUTHORITY/SECRET`, the latter two in hexadecimal digits (64 and 32).

use super::host_port::HostPort;
use braid_api::{ErrorDetail, Kind};
use std::fmt::{self, Write};

/// Default port for parsing: a token without a port is refused.
const NO_PORT: u16 = 0;

/// An invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Address of the inviting node.
    pub address: HostPort,
    /// Digest (SHA-256) of its authority's certificate.
    pub authority: [u8; 32],
    /// Secret of the invitation.
    pub secret: [u8; 16],
}

impl Token {
    /// Parses an invitation.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`]; the message does not repeat the secret.
    pub fn parse(text: &str) -> Result<Token, ErrorDetail> {
        let refused = |why: &str| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the invitation cannot be read: {why}"))
                .remedy("copy it whole, as `braid node invite` has printed it: HOST:PORT/AUTHORITY/SECRET")
        };
        let mut parts = text.trim().split('/');
        let (Some(address), Some(authority), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refused("it has not three parts"));
        };
        let address = HostPort::parse(address, NO_PORT)
            .ok()
            .filter(|address| address.port != 0)
            .ok_or_else(|| refused("it does not begin with a host and a port"))?;
        let authority = from_hex(authority).ok_or_else(|| refused("its second part has not 64 hexadecimal digits"))?;
        let secret = from_hex(secret).ok_or_else(|| refused("its third part has not 32 hexadecimal digits"))?;
        Ok(Token { address, authority, secret })
    }

    /// Returns the invitation as text, the secret included.
    pub fn reveal(&self) -> String {
        format!("{}/{}/{}", self.address, hex(&self.authority), hex(&self.secret))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret.
        f.debug_struct("Token").field("place", &self.address).finish_non_exhaustive()
    }
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Parses `N` bytes from hexadecimal digits; `None` if there are other characters, or another number of digits.
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
        let address = HostPort { host: "2001:db8::7".to_owned(), port: 10870 };
        Token { address, authority: [0xab; 32], secret: [0x5a; 16] }
    }

    #[test]
    fn tokens_round_trip() {
        let token = some_token();
        assert_eq!(Token::parse(&token.reveal()), Ok(token.clone()));
        assert_eq!(Token::parse(&format!(" {}\n", token.reveal().replace("5a", "5A"))), Ok(token));
    }

    #[test]
    fn truncated_tokens_are_refused_without_repeating_the_secret() {
        let text = some_token().reveal();
        for end in 0..text.len() {
            let error = Token::parse(&text[..end]).expect_err("it is not whole");
            assert!(error.kind == Kind::InvalidArgument && !error.to_string().contains("5a5a"), "{error}");
        }
        assert!(!format!("{:?}", some_token()).contains("5a5a"));
    }

    /// Every change of one character is refused, or parses to a token that round-trips; nothing panics.
    #[test]
    fn changed_tokens_are_refused_or_round_trip() {
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

//! Address of a node: host and port.

use braid_api::{ErrorDetail, Kind};
use std::fmt;
use std::net::IpAddr;

/// A host and a port. An IPv6 address is written in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or IP address.
    pub host: String,
    /// Port; 0 lets a listener take any free port.
    pub port: u16,
}

impl HostPort {
    /// Parses a host with an optional port; `port` is the default.
    ///
    /// # Errors
    /// Why the text is no address.
    pub fn parse(text: &str, port: u16) -> Result<HostPort, String> {
        if text.parse::<IpAddr>().is_ok() {
            return Ok(HostPort { host: text.to_owned(), port });
        }
        let (host, after) = match text.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']').ok_or("there is a [ without its ]")?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(format!("{host:?} is no number of IPv6"));
                }
                (host, (!after.is_empty()).then_some(after))
            }
            None => match text.split_once(':') {
                Some((host, _)) => (host, Some(&text[host.len()..])),
                None => (text, None),
            },
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !text.starts_with('[') && (host.is_empty() || host.len() > 253 || !host.chars().all(fits)) {
            return Err(format!("{host:?} is neither a name nor a number"));
        }
        let port = match after.map(|after| after.strip_prefix(':')) {
            None => port,
            Some(Some(number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                number.parse().map_err(|_| "the port is a number up to 65535".to_owned())?
            }
            Some(_) => return Err("the port is a number up to 65535".to_owned()),
        };
        Ok(HostPort { host: host.to_owned(), port })
    }

    /// Parses an address at which other nodes reach this one. `port` is the default, and errors call the address
    /// `what`.
    ///
    /// # Errors
    /// The text is no address, or it is the unspecified address, to which no other node can connect.
    pub fn reachable(what: &str, text: &str, port: u16) -> Result<HostPort, ErrorDetail> {
        let refused = |why: String, remedy: &str| {
            ErrorDetail::new(Kind::InvalidArgument, format!("{what} {text:?}: {why}"))
                .with("address", text)
                .remedy(remedy)
        };
        let address = HostPort::parse(text, port).map_err(|why| {
            refused(why, "valid ones: 192.0.2.7, 192.0.2.7:10870, node1.example, [2001:db8::7]:10870")
        })?;
        if address.host.parse::<IpAddr>().is_ok_and(|number| number.is_unspecified()) {
            return Err(refused(
                "it stands for every address of this machine, and others connect to one".to_owned(),
                "name the address, or the name of this machine, that the other nodes reach it by",
            ));
        }
        Ok(address)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_invalid_ones_are_refused() {
        for (text, host, port, written) in [
            ("192.0.2.7", "192.0.2.7", 5, "192.0.2.7:5"),
            ("192.0.2.7:1", "192.0.2.7", 1, "192.0.2.7:1"),
            ("node-1.example:0", "node-1.example", 0, "node-1.example:0"),
            ("::1", "::1", 5, "[::1]:5"),
            ("[::1]", "::1", 5, "[::1]:5"),
            ("[2001:db8::7]:99", "2001:db8::7", 99, "[2001:db8::7]:99"),
        ] {
            let address = HostPort::parse(text, 5).expect(text);
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
            assert_eq!(address.to_string(), written);
            assert_eq!(HostPort::parse(written, 7), Ok(address));
        }
        for wrong in
            ["", ":5", "a b", "h:", "h:+1", "h:x", "h:70000", "[::1", "[::1]7", "[x]", "a:b:c", "h/x", "https://h"]
        {
            assert!(HostPort::parse(wrong, 5).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unspecified_addresses_are_refused() {
        for wrong in ["0.0.0.0", "0.0.0.0:10870", "::", "[::]:1"] {
            let error = HostPort::reachable("the address", wrong, 5).expect_err(wrong);
            assert!(error.message.contains("every address"), "{error}");
        }
        assert!(HostPort::reachable("the address", "127.0.0.1:0", 5).is_ok());
    }
}

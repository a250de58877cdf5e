//! Where a server is: `nbd://host[:port]/export`, `nbd+unix:///export?socket=PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::ClientError;

/// The port of NBD.
pub const PORT: u16 = 10809;

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

/// A server and one of its exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub address: Address,
    /// Which export; empty for the default one.
    pub export: String,
}

impl FromStr for Endpoint {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Endpoint, ClientError> {
        parse(text).ok_or_else(|| ClientError::Address(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Endpoint> {
    if let Some(rest) = text.strip_prefix("nbd+unix://") {
        let (path, query) = rest.split_once('?')?;
        let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="))?;
        let socket = decode(socket)?;
        let export = decode(path.strip_prefix('/').unwrap_or(path))?;
        return (!socket.is_empty()).then_some(Endpoint { address: Address::Unix(socket.into()), export });
    }
    let rest = text.strip_prefix("nbd://")?;
    let (place, export) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match place.strip_prefix('[') {
        // An IPv6 address stands in brackets.
        Some(inner) => {
            let (host, after) = inner.split_once(']')?;
            (host, after.strip_prefix(':').map_or(Ok(PORT), str::parse).ok()?)
        }
        None => match place.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (place, PORT),
        },
    };
    let host = if host.is_empty() { "localhost" } else { host };
    Some(Endpoint { address: Address::Tcp(host.to_owned(), port), export: decode(export)? })
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(path) => write!(f, "nbd+unix:///{}?socket={}", self.export, path.display()),
            Address::Tcp(host, port) if host.contains(':') => write!(f, "nbd://[{host}]:{port}/{}", self.export),
            Address::Tcp(host, port) => write!(f, "nbd://{host}:{port}/{}", self.export),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tcp = |host: &str, port, export: &str| Endpoint {
            address: Address::Tcp(host.into(), port),
            export: export.into(),
        };
        let unix = |path: &str, export: &str| Endpoint { address: Address::Unix(path.into()), export: export.into() };
        for (text, expected) in [
            ("nbd://host/disk", tcp("host", 10809, "disk")),
            ("nbd://host:1234/a%20b", tcp("host", 1234, "a b")),
            ("nbd://host", tcp("host", 10809, "")),
            ("nbd:///x", tcp("localhost", 10809, "x")),
            ("nbd://[::1]:5/x", tcp("::1", 5, "x")),
            ("nbd+unix:///disk?socket=/run/a.sock", unix("/run/a.sock", "disk")),
            ("nbd+unix://?socket=a%3fb", unix("a?b", "")),
        ] {
            let parsed: Endpoint = text.parse().unwrap();
            assert_eq!(parsed, expected, "{text}");
            if !text.contains('%') {
                assert_eq!(parsed.to_string().parse::<Endpoint>().unwrap(), expected);
            }
        }
        for text in [
            "",
            "host",
            "nbd://host:port/",
            "nbd://host:99999/",
            "nbd+unix:///disk",
            "nbd+unix:///d?socket=",
            "nbd://h/%f",
            "nbd://h/%ff",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}

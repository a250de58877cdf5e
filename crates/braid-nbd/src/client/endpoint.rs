//! NBD addresses: `nbd://host[:port]/export`, `nbd+unix:///export?socket=PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use braid_ring::REMOTE_CONNECTIONS_MAX;

use super::ClientError;

/// The default port of NBD.
pub const PORT: u16 = 10809;

/// The transport address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

/// The TLS parameters of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The name that the certificate must have, if it is not the host's (`tls-hostname`).
    pub host: Option<String>,
    /// A directory with `ca-cert.pem`, and optionally `client-cert.pem` and `client-key.pem` (`tls-certificates`).
    pub certificates: Option<PathBuf>,
    /// Whether the server's certificate is verified (`tls-verify-peer`).
    pub verify: bool,
}

impl Default for TlsOptions {
    fn default() -> TlsOptions {
        TlsOptions { host: None, certificates: None, verify: true }
    }
}

/// A server and one of its exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The server's address.
    pub address: Address,
    /// The export's name; empty for the default export.
    pub export: String,
    /// The TLS parameters; `None` without TLS.
    pub tls: Option<TlsOptions>,
    /// Connections per shard when the export is used as a disk, if specified (`connections`).
    pub connections: Option<u32>,
}

impl Endpoint {
    /// Returns the name that the server's certificate must have.
    pub fn tls_host(&self) -> &str {
        match (self.tls.as_ref().and_then(|tls| tls.host.as_deref()), &self.address) {
            (Some(host), _) => host,
            (None, Address::Tcp(host, _)) => host,
            (None, Address::Unix(_)) => "localhost",
        }
    }
}

impl FromStr for Endpoint {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Endpoint, ClientError> {
        parse(text).map_err(|why| ClientError::Address(text.to_owned(), why))
    }
}

/// Parses `nbd`, `nbds`, `nbd+unix` and `nbds+unix`. Returns whether it is TLS, whether it is a Unix socket, and the
/// rest.
fn scheme(text: &str) -> Option<(bool, bool, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let (tls, unix) = match scheme {
        "nbd" => (false, false),
        "nbds" => (true, false),
        "nbd+unix" => (false, true),
        "nbds+unix" => (true, true),
        _ => return None,
    };
    Some((tls, unix, rest))
}

fn parse(text: &str) -> Result<Endpoint, &'static str> {
    let (tls, unix, rest) =
        scheme(text).ok_or("it begins with none of nbd://, nbds://, nbd+unix:// and nbds+unix://")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut wishes = tls.then(TlsOptions::default);
    let (mut socket, mut connections) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or("a parameter without a value")?;
        let value = decode(value).ok_or("a parameter that is not percent-encoded UTF-8")?;
        match (key, &mut wishes) {
            ("socket", _) if unix && !value.is_empty() => socket = Some(value),
            ("connections", _) => match value.parse() {
                Ok(n) if (1..=REMOTE_CONNECTIONS_MAX as u32).contains(&n) => connections = Some(n),
                _ => return Err("connections is a number from 1 to 8"),
            },
            ("tls-hostname", Some(tls)) => tls.host = Some(value),
            ("tls-certificates", Some(tls)) => tls.certificates = Some(value.into()),
            ("tls-verify-peer", Some(tls)) => {
                tls.verify = match value.as_str() {
                    "0" => false,
                    "1" => true,
                    _ => return Err("tls-verify-peer is 0 or 1"),
                }
            }
            ("tls-type", Some(_)) if value == "x509" => {}
            ("tls-type", Some(_)) => return Err("tls-type must be x509"),
            _ => return Err("an unknown parameter, or one that does not apply to this scheme"),
        }
    }
    let (place, export) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode(export).ok_or("the export's name is not percent-encoded UTF-8")?;
    let address = match (unix, socket) {
        (true, Some(socket)) => Address::Unix(socket.into()),
        (true, None) => return Err("it has no socket=PATH"),
        (false, _) => tcp(place)?,
    };
    Ok(Endpoint { address, export, tls: wishes, connections })
}

fn tcp(place: &str) -> Result<Address, &'static str> {
    const BAD: &str = "its port is not from 0 to 65535";
    let (host, port) = match place.strip_prefix('[') {
        // An IPv6 address is in brackets.
        Some(inner) => {
            let (host, after) = inner.split_once(']').ok_or("it has a [ without its ]")?;
            match after.strip_prefix(':') {
                Some(port) => (host, port.parse().map_err(|_| BAD)?),
                None if after.is_empty() => (host, PORT),
                None => return Err("something other than a port is behind ]"),
            }
        }
        None => match place.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| BAD)?),
            None => (place, PORT),
        },
    };
    let host = if host.is_empty() { "localhost" } else { host };
    Ok(Address::Tcp(host.to_owned(), port))
}

/// Decodes percent-encoding.
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
        let s = if self.tls.is_some() { "s" } else { "" };
        match &self.address {
            Address::Unix(path) => write!(f, "nbd{s}+unix:///{}?socket={}", self.export, path.display()),
            Address::Tcp(host, port) if host.contains(':') => write!(f, "nbd{s}://[{host}]:{port}/{}", self.export),
            Address::Tcp(host, port) => write!(f, "nbd{s}://{host}:{port}/{}", self.export),
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
            tls: None,
            connections: None,
        };
        let unix = |path: &str, export: &str| Endpoint {
            address: Address::Unix(path.into()),
            export: export.into(),
            tls: None,
            connections: None,
        };
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
            "nbd://h/x?tls-hostname=h",
            "nbds://h/x?tls-type=psk",
            "nbds://h/x?tls-verify-peer=maybe",
            "nbds://h/x?tls-hostnam=h",
            "nbds://h/x?socket=/run/a.sock",
            "nbd://h/x?connections=0",
            "nbd://h/x?connections=9",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_with_tls() {
        let parsed: Endpoint = "nbds://host/x".parse().unwrap();
        assert_eq!((parsed.tls.clone(), parsed.tls_host()), (Some(TlsOptions::default()), "host"));
        let text = "nbds+unix:///x?socket=/a.sock&tls-hostname=h&tls-certificates=/etc/pki%2Fnbd&tls-verify-peer=0&tls-type=x509";
        let parsed: Endpoint = text.parse().unwrap();
        let tls = TlsOptions { host: Some("h".into()), certificates: Some("/etc/pki/nbd".into()), verify: false };
        assert_eq!(
            parsed,
            Endpoint {
                address: Address::Unix("/a.sock".into()),
                export: "x".into(),
                tls: Some(tls),
                connections: None
            }
        );
        assert_eq!((parsed.tls_host(), parsed.to_string().as_str()), ("h", "nbds+unix:///x?socket=/a.sock"));
        assert_eq!("nbd://h/x?connections=4".parse::<Endpoint>().unwrap().connections, Some(4));
        let parsed: Endpoint = "nbds+unix:///?socket=a".parse().unwrap();
        assert_eq!(parsed.tls_host(), "localhost");
    }
}

//! Addresses of exports: `unix:PATH` or `tcp:HOST:PORT` over NBD, `fuse:PATH` as a file, `ublk:PATH,queues=N,depth=N`
//! as a block device.

use crate::limits::{BLOCK_QUEUE_DEPTH_MAX, BLOCK_QUEUES_MAX};
use crate::{ErrorDetail, Kind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The TCP port of NBD if an address names none.
pub const NBD_PORT: u16 = 10809;

/// Longest path of a Unix socket, in bytes: what `sockaddr_un` has room for, less the zero at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

const EXAMPLE: &str =
    "right ones: unix:/run/braid/fast.sock, tcp:127.0.0.1:10809, tcp:[::1]:10809, fuse:/srv/fast.img, ublk:";

/// The folder with the stable paths of block devices.
pub const BLOCK_FOLDER: &str = "/dev/braid";

/// Requests in flight on one queue of a block device if an address names no `depth`.
pub const DEPTH_DEFAULT: u16 = 128;

/// The ASCII characters to escape: all but the unreserved ones of RFC 3986. Other bytes are always escaped.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The ASCII characters to escape in a path: slashes stay.
const RESERVED_IN_PATHS: &AsciiSet = &RESERVED.remove(b'/');

/// The address of an export.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Name or IP address of the host; an IPv6 address without brackets.
        host: String,
        /// Its port.
        port: u16,
    },
    /// The path of a file whose content is one export.
    Fuse(PathBuf),
    /// A block device of this machine.
    Ublk {
        /// Its stable path, below [`BLOCK_FOLDER`]; empty: the export's name decides it.
        path: PathBuf,
        /// Number of its queues, at most [`BLOCK_QUEUES_MAX`]; 0: one for each shard.
        queues: u16,
        /// Maximum number of requests in flight on each queue, at most [`BLOCK_QUEUE_DEPTH_MAX`].
        depth: u16,
    },
}

impl Address {
    /// Parses an address. Reads no file, and resolves no name.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`], with the reason, and examples of valid addresses as the remedy.
    pub fn parse(text: &str) -> Result<Address, ErrorDetail> {
        let refused = |reason: String| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the address {text:?} {reason}"))
                .with("address", text)
                .remedy(EXAMPLE)
        };
        if text.contains('\0') {
            return Err(refused("contains a zero byte".to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(refused("has no path".to_owned()));
            }
            return Ok(Address::Unix(PathBuf::from(path)));
        }
        if let Some(path) = text.strip_prefix("fuse:") {
            if path.is_empty() {
                return Err(refused("has no path".to_owned()));
            }
            return Ok(Address::Fuse(PathBuf::from(path)));
        }
        if let Some(rest) = text.strip_prefix("ublk:") {
            return block_device(rest).map_err(refused);
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(refused("begins with none of unix:, tcp:, fuse: and ublk:".to_owned()));
        };
        let (host, port) = split_port(rest).map_err(refused)?;
        Ok(Address::Tcp { host: host.to_owned(), port })
    }

    /// Makes the path of a socket or file absolute; other addresses stay as they are.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] when the path is too long for a socket, or has no absolute form.
    pub fn absolute(self) -> Result<Address, ErrorDetail> {
        let (Address::Unix(path) | Address::Fuse(path)) = &self else { return Ok(self) };
        let absolute = std::path::absolute(path).map_err(|error| {
            ErrorDetail::new(
                Kind::InvalidArgument,
                format!("the path {} has no absolute form: {error}", path.display()),
            )
        })?;
        if matches!(self, Address::Fuse(_)) {
            return Ok(Address::Fuse(absolute));
        }
        let bytes = absolute.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            return Err(ErrorDetail::new(
                Kind::InvalidArgument,
                format!(
                    "the path {} has {bytes} bytes, and that of a socket at most {SOCKET_PATH_BYTES_MAX}",
                    absolute.display()
                ),
            )
            .remedy("choose a shorter one, for example below /run or $XDG_RUNTIME_DIR"));
        }
        Ok(Address::Unix(absolute))
    }

    /// Returns the URI of an export at this address, as NBD clients take it; of a file, a `file:` URI; of a block
    /// device, its path. `tls`: the export accepts TLS connections only.
    pub fn uri(&self, export: &str, tls: bool) -> String {
        let s = if tls { "s" } else { "" };
        match self {
            Address::Fuse(path) => format!("file://{}", escaped_path(path)),
            Address::Ublk { path, .. } => path.display().to_string(),
            Address::Unix(path) => format!("nbd{s}+unix:///{}?socket={}", escaped(export), escaped_path(path)),
            Address::Tcp { host, port } => {
                let host = bracketed(host);
                match *port {
                    NBD_PORT => format!("nbd{s}://{host}/{}", escaped(export)),
                    port => format!("nbd{s}://{host}:{port}/{}", escaped(export)),
                }
            }
        }
    }
}

/// Parses `PATH,queues=N,depth=N`, each part of which may be absent. Returns the reason of an error as the end of a
/// sentence.
fn block_device(rest: &str) -> Result<Address, String> {
    let mut words = rest.split(',');
    let path = words.next().unwrap_or_default();
    let inside = path.strip_prefix(BLOCK_FOLDER).and_then(|name| name.strip_prefix('/'));
    if !path.is_empty() && inside.is_none_or(|name| crate::names::check_export_name(name).is_err()) {
        return Err(format!("has a path that is not {BLOCK_FOLDER}/ and the name of an export"));
    }
    let (mut queues, mut depth) = (0, DEPTH_DEFAULT);
    for word in words {
        let (what, most, to) = match word.split_once('=') {
            Some(("queues", number)) => (number, BLOCK_QUEUES_MAX, &mut queues),
            Some(("depth", number)) => (number, BLOCK_QUEUE_DEPTH_MAX, &mut depth),
            _ => return Err(format!("has {word:?}, which is neither queues= nor depth=")),
        };
        *to = match what.parse() {
            Ok(number) if (1..=most).contains(&number) => number,
            _ => return Err(format!("has {word:?}, and that is a number from 1 to {most}")),
        };
    }
    Ok(Address::Ublk { path: PathBuf::from(path), queues, depth })
}

fn split_port(rest: &str) -> Result<(&str, u16), String> {
    let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or("has a [ without its ]")?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err("has something other than a port behind ]".to_owned()),
        }
    } else {
        match rest.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => return Err("needs [ ] around an IPv6 number".to_owned()),
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        }
    };
    if host.is_empty() {
        return Err("has no host".to_owned());
    }
    if let Some(bad) = host.chars().find(|c| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#' | '@'))
    {
        return Err(format!("has {bad:?} in its host"));
    }
    let port = match port {
        None => NBD_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err("has a port that is not from 1 to 65535".to_owned()),
        },
    };
    Ok((host, port))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn escaped_path(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), RESERVED_IN_PATHS).to_string()
}

/// Escapes text as one segment of a URI's path.
pub fn escaped(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Fuse(path) => write!(f, "fuse:{}", path.display()),
            Address::Tcp { host, port } => write!(f, "tcp:{}:{port}", bracketed(host)),
            Address::Ublk { path, queues, depth } => {
                write!(f, "ublk:{}", path.display())?;
                if *queues > 0 {
                    write!(f, ",queues={queues}")?;
                }
                write!(f, ",depth={depth}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn check(text: &str, shown: &str, uri: &str) {
        let address = Address::parse(text).expect(text);
        assert_eq!(address.to_string(), shown);
        assert_eq!(Address::parse(shown).expect("what is shown is read back"), address);
        assert_eq!(address.uri("a.b", false), uri);
        assert_eq!(address.uri("a.b", true), uri.replacen("nbd", "nbds", 1));
    }

    #[test]
    fn addresses_are_read_and_shown() {
        check("unix:/run/x.sock", "unix:/run/x.sock", "nbd+unix:///a.b?socket=/run/x.sock");
        check("unix:/a b&c", "unix:/a b&c", "nbd+unix:///a.b?socket=/a%20b%26c");
        check("fuse:/srv/a b.img", "fuse:/srv/a b.img", "file:///srv/a%20b.img");
        check("tcp:127.0.0.1:10809", "tcp:127.0.0.1:10809", "nbd://127.0.0.1/a.b");
        check("tcp:localhost", "tcp:localhost:10809", "nbd://localhost/a.b");
        check("tcp:[::1]:7", "tcp:[::1]:7", "nbd://[::1]:7/a.b");
        check("tcp:[::1]", "tcp:[::1]:10809", "nbd://[::1]/a.b");
    }

    #[test]
    fn wrong_ones_are_refused_with_right_ones() {
        for wrong in [
            "",
            "/run/x",
            "unix:",
            "fuse:",
            "tcp:",
            "tcp::7",
            "tcp:h:0",
            "tcp:h:65536",
            "tcp:h:x",
            "tcp:::1:7",
            "tcp:[::1",
            "tcp:[::1]7",
            "tcp:a b:1",
            "unix:/a\0b",
            "tcp:[]:1",
            "ublk:/dev/sda",
            "ublk:/dev/braid/../sda",
            "ublk:,queues=0",
            "ublk:,depth=4097",
            "ublk:,speed=1",
        ] {
            let error = Address::parse(wrong).expect_err(wrong);
            assert_eq!(error.kind, Kind::InvalidArgument);
            assert!(error.remedy.contains("unix:/"), "{wrong}: {error}");
        }
    }

    #[test]
    fn block_devices_are_read_and_shown() {
        for (text, shown) in [
            ("ublk:", "ublk:,depth=128"),
            ("ublk:/dev/braid/tank/db,queues=2", "ublk:/dev/braid/tank/db,queues=2,depth=128"),
            ("ublk:,depth=4096", "ublk:,depth=4096"),
        ] {
            let address = Address::parse(text).expect(text);
            assert_eq!(address.to_string(), shown);
            assert_eq!(Address::parse(shown).expect("what is shown is read back"), address);
        }
    }

    #[test]
    fn every_byte_but_the_unreserved_ones_is_escaped() {
        for byte in 1..=u8::MAX {
            let is_kept = byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
            let expected = if is_kept { char::from(byte).to_string() } else { format!("%{byte:02X}") };
            assert_eq!(escaped_path(Path::new(OsStr::from_bytes(&[byte]))), expected);
        }
        assert_eq!(escaped("a/b@é %"), "a%2Fb%40%C3%A9%20%25");
        assert_eq!(escaped(""), "");
    }

    #[test]
    fn socket_paths_have_a_limit() {
        let long = format!("unix:/{}", "x".repeat(107));
        assert!(Address::parse(&long).expect("it is an address").absolute().is_err());
        let fits = format!("unix:/{}", "x".repeat(106));
        assert!(Address::parse(&fits).expect("it is an address").absolute().is_ok());
    }
}

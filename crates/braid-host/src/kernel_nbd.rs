//! The kernel's NBD client: block devices `/dev/nbdN` on exports of this machine. By its netlink interface, as its older one (ioctl, which
//! the tool `nbd-client` keeps to where it can) neither lets a device wait for a server that is gone nor gives it other connections.
//!
//! A device bears a mark (Linux 5.14) that says which export it is of: who mounts finds it by that, and the daemon gives it new connections
//! when it comes back. Everything here blocks: it is not for the runtime's own threads.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use braid_nbd::client::{Client, ClientConfig, ClientError, Endpoint, Negotiated};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, sendto, socket};
use uuid::Uuid;

/// What a mark begins with.
const MARK: &str = "braid-";
/// A request that has not been answered for so long is sent again, on another connection if there is one: in seconds. What is under
/// way when a daemon ends waits for this. It is longer than the daemon's own time limit of an I/O: what one disk delays is answered by then,
/// and is not carried out after a newer write. Requests that wait longer, for a lease or for votes, say, are sent again on a connection
/// that is new then, and the old one, closed by the kernel, takes what it had not begun with it.
const TIMEOUT_SECONDS: u64 = 35;
/// Without any connection requests wait for so long, and fail then.
const DEAD_SECONDS: u64 = 24 * 60 * 60;
/// Longest that the daemon may take for a handshake.
const HANDSHAKE_MS: u64 = 10_000;

/// The family `nbd` of generic netlink (linux/nbd-netlink.h): commands and attributes.
mod family {
    pub const NAME: &[u8] = b"nbd\0";
    pub const VERSION: u8 = 1;
    pub const CONNECT: u8 = 1;
    pub const DISCONNECT: u8 = 2;
    pub const RECONFIGURE: u8 = 3;
    pub const INDEX: u16 = 1;
    pub const SIZE_BYTES: u16 = 2;
    pub const BLOCK_BYTES: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const SERVER_FLAGS: u16 = 5;
    pub const SOCKETS: u16 = 7;
    pub const DEAD_TIMEOUT: u16 = 8;
    pub const BACKEND: u16 = 10;
    /// Within the sockets, and within one of them.
    pub const ITEM: u16 = 1;
    pub const FD: u16 = 1;
}

/// The family that knows the others, and the parts of a message (linux/genetlink.h, linux/netlink.h).
mod generic {
    pub const CONTROL: u16 = 16;
    pub const GET_FAMILY: u8 = 3;
    pub const FAMILY_ID: u16 = 1;
    pub const FAMILY_NAME: u16 = 2;
    pub const REQUEST: u16 = 1;
    pub const ACKNOWLEDGE: u16 = 4;
    pub const ERROR: u16 = 2;
    /// Of a message: its own header, and that of a generic one.
    pub const HEADER_BYTES: usize = 20;
}

/// A device that bears a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub index: u32,
    /// The export that it is of.
    pub export: Uuid,
    /// How many connections it was made with.
    pub connections: u32,
}

impl Device {
    /// The block device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/nbd{}", self.index))
    }

    /// Gives it so many connections in the place of those that are gone.
    ///
    /// # Errors
    /// The daemon cannot be reached; the kernel refuses.
    pub fn reconnect(&self, uri: &str, missing: u32) -> Result<()> {
        let kernel = Kernel::open()?;
        let (sockets, _) = open(uri, missing)?;
        let mut attributes = attribute(family::INDEX, &self.index.to_ne_bytes());
        attributes.extend(times());
        attributes.extend(attribute(family::SOCKETS, &items(&sockets)));
        attributes.extend(backend(self.export, self.connections));
        kernel.ask(family::RECONFIGURE, &attributes).map(drop)
    }

    /// Takes it from its users. What waits fails.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn disconnect(&self) -> Result<()> {
        Kernel::open()?.ask(family::DISCONNECT, &attribute(family::INDEX, &self.index.to_ne_bytes())).map(drop)
    }
}

/// Whether this kernel has an NBD client that can be used from here.
///
/// # Errors
/// [`ErrorKind::NotFound`]: it has none.
pub fn look() -> Result<()> {
    Kernel::open().map(drop)
}

/// Makes a device of an export, with so many connections (one, where the server wants no more).
///
/// # Errors
/// As [`look`]; the server cannot be reached; the kernel refuses, or has no marks ([`ErrorKind::Unsupported`]).
pub fn connect(uri: &str, export: Uuid, block_bytes: u32, connections: u32) -> Result<Device> {
    let kernel = Kernel::open()?;
    let (sockets, terms) = open(uri, connections.max(1))?;
    let mut attributes = attribute(family::SIZE_BYTES, &terms.size_bytes.to_ne_bytes());
    attributes.extend(attribute(family::BLOCK_BYTES, &u64::from(block_bytes).to_ne_bytes()));
    attributes.extend(attribute(family::SERVER_FLAGS, &u64::from(terms.flags).to_ne_bytes()));
    attributes.extend(times());
    attributes.extend(attribute(family::SOCKETS, &items(&sockets)));
    attributes.extend(backend(export, sockets.len() as u32));
    // Without a number the kernel chooses a device that is free, or makes one, and answers with its number.
    let said = kernel.ask(family::CONNECT, &attributes)?;
    let index = find(said.get(generic::HEADER_BYTES..).unwrap_or_default(), family::INDEX)
        .and_then(|data| data.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes)))
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the kernel does not say which device it is"))?;
    let device = Device { index, export, connections: sockets.len() as u32 };
    if of(export).as_ref() != Some(&device) {
        // Nobody would find it again.
        let _ = device.disconnect();
        return Err(Error::new(ErrorKind::Unsupported, "this kernel's NBD devices bear no marks (Linux 5.14)"));
    }
    Ok(device)
}

/// The device of an export, if there is one.
pub fn of(export: Uuid) -> Option<Device> {
    devices().into_iter().find(|device| device.export == export)
}

/// All devices with marks of Braid's, whichever daemon's.
pub fn devices() -> Vec<Device> {
    devices_in(Path::new("/sys/block"))
}

fn devices_in(folder: &Path) -> Vec<Device> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let device = |entry: std::fs::DirEntry| {
        let index = entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok()?;
        let (export, connections) = read_mark(std::fs::read_to_string(entry.path().join("backend")).ok()?.trim_end())?;
        Some(Device { index, export, connections })
    };
    entries.filter_map(device).collect()
}

fn mark(export: Uuid, connections: u32) -> String {
    format!("{MARK}{}-{connections}", export.simple())
}

fn read_mark(text: &str) -> Option<(Uuid, u32)> {
    let (export, connections) = text.strip_prefix(MARK)?.split_once('-')?;
    Some((Uuid::try_parse(export).ok()?, connections.parse().ok()?))
}

/// Opens connections to an export, ready for requests as the kernel makes them: with simple replies. Returns their sockets, and what the first
/// one agreed on. The kernel holds sockets of its own that it is given, so that the connections outlive the descriptors.
fn open(uri: &str, count: u32) -> Result<(Vec<OwnedFd>, Negotiated)> {
    let refused = |error: ClientError| match error {
        ClientError::Socket(error) => error,
        other => Error::other(other.to_string()),
    };
    let endpoint: Endpoint = uri.parse().map_err(refused)?;
    let config =
        ClientConfig { depth: 1, structured: false, extended: false, input_bytes: 0, timeout_ms: HANDSHAKE_MS };
    let clients: Vec<Client> =
        (0..count).map(|_| Client::connect(&endpoint, config).map_err(refused)).collect::<Result<_>>()?;
    let terms = *clients.first().ok_or(ErrorKind::InvalidInput)?.terms();
    Ok((clients.into_iter().map(Client::into_socket).collect::<Result<_>>()?, terms))
}

fn times() -> Vec<u8> {
    let mut both = attribute(family::TIMEOUT, &TIMEOUT_SECONDS.to_ne_bytes());
    both.extend(attribute(family::DEAD_TIMEOUT, &DEAD_SECONDS.to_ne_bytes()));
    both
}

fn backend(export: Uuid, connections: u32) -> Vec<u8> {
    let mut text = mark(export, connections).into_bytes();
    text.push(0);
    attribute(family::BACKEND, &text)
}

fn items(sockets: &[OwnedFd]) -> Vec<u8> {
    let one = |socket: &OwnedFd| {
        let fd = socket.as_raw_fd() as u32;
        attribute(family::ITEM, &attribute(family::FD, &fd.to_ne_bytes()))
    };
    sockets.iter().flat_map(one).collect()
}

fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut all = ((data.len() + 4) as u16).to_ne_bytes().to_vec();
    all.extend(kind.to_ne_bytes());
    all.extend(data);
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

/// The data of the first attribute of a kind.
fn find(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = *rest {
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        if kind == wanted {
            return rest.get(4..length);
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

/// A way to the kernel's NBD client.
struct Kernel {
    socket: OwnedFd,
    family: u16,
}

impl Kernel {
    fn open() -> Result<Kernel> {
        let socket = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::GENERIC))?;
        let mut kernel = Kernel { socket, family: generic::CONTROL };
        let name = attribute(generic::FAMILY_NAME, family::NAME);
        let answer = kernel.ask(generic::GET_FAMILY, &name)?;
        let found = find(answer.get(generic::HEADER_BYTES..).unwrap_or_default(), generic::FAMILY_ID);
        let id = found.and_then(|data| data.first_chunk::<2>()).ok_or(ErrorKind::InvalidData)?;
        kernel.family = u16::from_ne_bytes(*id);
        Ok(kernel)
    }

    /// Sends one message, and reads until it is acknowledged; what else was said before.
    fn ask(&self, command: u8, attributes: &[u8]) -> Result<Vec<u8>> {
        let mut message = ((generic::HEADER_BYTES + attributes.len()) as u32).to_ne_bytes().to_vec();
        message.extend(self.family.to_ne_bytes());
        message.extend((generic::REQUEST | generic::ACKNOWLEDGE).to_ne_bytes());
        // A number and a port, of which there is no need.
        message.extend([0; 8]);
        message.extend([command, family::VERSION, 0, 0]);
        message.extend(attributes);
        sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut said = Vec::new();
        loop {
            let mut buffer = [0; 8192];
            let (_, length) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let answer = &buffer[..length.min(buffer.len())];
            if answer.get(4..6) == Some(&generic::ERROR.to_ne_bytes()[..]) {
                let code = answer.get(16..20).and_then(|code| code.first_chunk::<4>());
                return match code.map_or(0, |code| i32::from_ne_bytes(*code)) {
                    0 => Ok(said),
                    code => Err(Error::from_raw_os_error(-code)),
                };
            }
            said = answer.to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written() {
        let export = Uuid::from_u128(0x1234);
        assert_eq!(read_mark(&mark(export, 4)), Some((export, 4)));
        for other in ["", "braid-", "braid-x-4", "rbd-00000000000000000000000000001234-4", &format!("braid-{export}")] {
            assert_eq!(read_mark(other), None, "{other}");
        }
    }

    #[test]
    fn devices_are_found_by_their_marks() {
        let folder = std::env::temp_dir().join(format!("braid-nbd-{}", std::process::id()));
        for (name, text) in [("nbd0", None), ("nbd1", Some("other\n")), ("nbd12", Some("")), ("sda", None)] {
            std::fs::create_dir_all(folder.join(name)).expect("a folder can be made");
            if let Some(text) = text {
                std::fs::write(folder.join(name).join("backend"), text).expect("a file can be written");
            }
        }
        let export = Uuid::from_u128(7);
        std::fs::write(folder.join("nbd12/backend"), mark(export, 2) + "\n").expect("a file can be written");
        assert_eq!(devices_in(&folder), [Device { index: 12, export, connections: 2 }]);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn attributes_are_found_again() {
        let mut all = attribute(1, b"abc");
        all.extend(attribute(2, b"defg"));
        assert_eq!(all.len(), 16);
        assert_eq!((find(&all, 1), find(&all, 2), find(&all, 3)), (Some(&b"abc"[..]), Some(&b"defg"[..]), None));
        assert_eq!(find(&all[..13], 2), None, "one that is cut off");
        assert_eq!(find(&[0; 8], 5), None);
    }
}

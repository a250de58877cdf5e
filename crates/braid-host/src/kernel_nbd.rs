//! The kernel's NBD client: block devices `/dev/nbdN` on exports of this machine. This module uses the client's netlink interface. With
//! the older ioctl interface, which the tool `nbd-client` prefers, a device can neither wait for a server that is gone nor get new
//! connections.
//!
//! A device has a backend identifier (Linux 5.14) that names its export. The mount command finds the device by this identifier, and the
//! daemon uses it to reconnect the device after a restart. All functions of this module block: they must not run on the threads of the
//! asynchronous runtime.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use braid_nbd::client::{Client, ClientConfig, ClientError, Endpoint, Negotiated};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, sendto, socket};
use uuid::Uuid;

/// The prefix of backend identifiers.
const IDENTIFIER_PREFIX: &str = "braid-";
/// Time after which the kernel sends a request without a reply again, on another connection if there is one, in
/// seconds. Requests that are in flight when a daemon stops wait for this time.
///
/// It is longer than the daemon's own I/O timeout: within this time the daemon has replied to a request that a disk
/// delays, so the kernel does not repeat the request, and no repeated write overwrites a newer one. A request may wait
/// longer in the daemon, for a lease or for votes, for example. The kernel then closes the connection and repeats the
/// request on another one. The daemon discards the requests of a closed connection that it has not started.
const TIMEOUT_SECONDS: u64 = 35;
/// Time that requests wait without any connection before they fail, in seconds.
const DEAD_SECONDS: u64 = 24 * 60 * 60;
/// Maximum duration of a handshake with the daemon, in milliseconds.
const HANDSHAKE_MS: u64 = 10_000;

/// The generic netlink family `nbd` (linux/nbd-netlink.h): commands and attributes.
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
    /// The attribute of an item of the socket list, and the attribute of the descriptor in an item.
    pub const ITEM: u16 = 1;
    pub const FD: u16 = 1;
}

/// The control family, which resolves the others, and the parts of a message (linux/genetlink.h, linux/netlink.h).
mod generic {
    pub const CONTROL: u16 = 16;
    pub const GET_FAMILY: u8 = 3;
    pub const FAMILY_ID: u16 = 1;
    pub const FAMILY_NAME: u16 = 2;
    pub const REQUEST: u16 = 1;
    pub const ACKNOWLEDGE: u16 = 4;
    pub const ERROR: u16 = 2;
    /// Size of the netlink header and the generic netlink header of a message, in bytes.
    pub const HEADER_BYTES: usize = 20;
}

/// An NBD device with a backend identifier of Braid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdDevice {
    /// The number of the device.
    pub index: u32,
    /// The export of the device.
    pub export: Uuid,
    /// The number of connections that the device was created with.
    pub connections: u32,
}

impl NbdDevice {
    /// Returns the path of the block device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/nbd{}", self.index))
    }

    /// Opens `missing` connections to the export at `uri`, with which the kernel replaces closed connections of the
    /// device. Requests that wait for a connection then continue.
    ///
    /// # Errors
    /// The server is unreachable, or the kernel rejects the request.
    pub fn reconnect(&self, uri: &str, missing: u32) -> Result<()> {
        let netlink_socket = NbdNetlink::open()?;
        let (sockets, _) = open_connections(uri, missing)?;
        let mut attributes = attribute(family::INDEX, &self.index.to_ne_bytes());
        attributes.extend(timeout_attributes());
        attributes.extend(attribute(family::SOCKETS, &socket_list(&sockets)));
        attributes.extend(backend_attribute(self.export, self.connections));
        netlink_socket.request(family::RECONFIGURE, &attributes).map(drop)
    }

    /// Disconnects the device, even while it is in use. Pending requests fail.
    ///
    /// # Errors
    /// The kernel rejects the request.
    pub fn disconnect(&self) -> Result<()> {
        NbdNetlink::open()?.request(family::DISCONNECT, &attribute(family::INDEX, &self.index.to_ne_bytes())).map(drop)
    }
}

/// Checks that this process can use the kernel's NBD client.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the kernel has no NBD client.
pub fn check_available() -> Result<()> {
    NbdNetlink::open().map(drop)
}

/// Creates a device of the export at `uri`, with a logical block of `block_bytes` bytes and `connections` connections
/// (0 counts as 1).
///
/// # Errors
/// As [`check_available`]. The server is unreachable; the kernel rejects the request, or has no backend identifiers
/// ([`ErrorKind::Unsupported`]).
pub fn connect(uri: &str, export: Uuid, block_bytes: u32, connections: u32) -> Result<NbdDevice> {
    let netlink_socket = NbdNetlink::open()?;
    let (sockets, terms) = open_connections(uri, connections.max(1))?;
    let mut attributes = attribute(family::SIZE_BYTES, &terms.size_bytes.to_ne_bytes());
    attributes.extend(attribute(family::BLOCK_BYTES, &u64::from(block_bytes).to_ne_bytes()));
    attributes.extend(attribute(family::SERVER_FLAGS, &u64::from(terms.flags).to_ne_bytes()));
    attributes.extend(timeout_attributes());
    attributes.extend(attribute(family::SOCKETS, &socket_list(&sockets)));
    attributes.extend(backend_attribute(export, sockets.len() as u32));
    // Without a device number the kernel chooses a free device or creates one, and replies with its number.
    let reply = netlink_socket.request(family::CONNECT, &attributes)?;
    let index = find_attribute(reply.get(generic::HEADER_BYTES..).unwrap_or_default(), family::INDEX)
        .and_then(|data| data.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes)))
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the kernel did not report the number of the device"))?;
    let device = NbdDevice { index, export, connections: sockets.len() as u32 };
    if device_of_export(export).as_ref() != Some(&device) {
        // Without an identifier, neither the mount command nor a restarted daemon could find the device.
        let _ = device.disconnect();
        return Err(Error::new(
            ErrorKind::Unsupported,
            "NBD devices of this kernel have no backend identifier (Linux 5.14 or later is needed)",
        ));
    }
    Ok(device)
}

/// Returns the device of an export, if there is one.
pub fn device_of_export(export: Uuid) -> Option<NbdDevice> {
    devices().into_iter().find(|device| device.export == export)
}

/// Returns all devices with a backend identifier of Braid, of any daemon.
pub fn devices() -> Vec<NbdDevice> {
    devices_in(Path::new("/sys/block"))
}

fn devices_in(directory: &Path) -> Vec<NbdDevice> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let device = |entry: std::fs::DirEntry| {
        let index = entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok()?;
        let (export, connections) =
            decode_identifier(std::fs::read_to_string(entry.path().join("backend")).ok()?.trim_end())?;
        Some(NbdDevice { index, export, connections })
    };
    entries.filter_map(device).collect()
}

fn encode_identifier(export: Uuid, connections: u32) -> String {
    format!("{IDENTIFIER_PREFIX}{}-{connections}", export.simple())
}

fn decode_identifier(text: &str) -> Option<(Uuid, u32)> {
    let (export, connections) = text.strip_prefix(IDENTIFIER_PREFIX)?.split_once('-')?;
    Some((Uuid::try_parse(export).ok()?, connections.parse().ok()?))
}

/// Opens connections to an export, negotiated as the kernel needs them: with simple replies. Returns their sockets, and the negotiated
/// properties of the first one. The kernel keeps its own references to the sockets that it receives, so that the connections outlive
/// the descriptors.
fn open_connections(uri: &str, count: u32) -> Result<(Vec<OwnedFd>, Negotiated)> {
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

fn timeout_attributes() -> Vec<u8> {
    let mut both = attribute(family::TIMEOUT, &TIMEOUT_SECONDS.to_ne_bytes());
    both.extend(attribute(family::DEAD_TIMEOUT, &DEAD_SECONDS.to_ne_bytes()));
    both
}

fn backend_attribute(export: Uuid, connections: u32) -> Vec<u8> {
    let mut text = encode_identifier(export, connections).into_bytes();
    text.push(0);
    attribute(family::BACKEND, &text)
}

fn socket_list(sockets: &[OwnedFd]) -> Vec<u8> {
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

/// Returns the data of the first attribute of a kind.
fn find_attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = *rest {
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        if kind == wanted {
            return rest.get(4..length);
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

/// A netlink socket to the kernel's NBD client.
struct NbdNetlink {
    socket: OwnedFd,
    family: u16,
}

impl NbdNetlink {
    fn open() -> Result<NbdNetlink> {
        let socket = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::GENERIC))?;
        let mut netlink_socket = NbdNetlink { socket, family: generic::CONTROL };
        let name = attribute(generic::FAMILY_NAME, family::NAME);
        let answer = netlink_socket.request(generic::GET_FAMILY, &name)?;
        let found = find_attribute(answer.get(generic::HEADER_BYTES..).unwrap_or_default(), generic::FAMILY_ID);
        let id = found.and_then(|data| data.first_chunk::<2>()).ok_or(ErrorKind::InvalidData)?;
        netlink_socket.family = u16::from_ne_bytes(*id);
        Ok(netlink_socket)
    }

    /// Sends one message, and waits for its acknowledgement. Returns the last message that the kernel sent before the acknowledgement.
    fn request(&self, command: u8, attributes: &[u8]) -> Result<Vec<u8>> {
        let mut message = ((generic::HEADER_BYTES + attributes.len()) as u32).to_ne_bytes().to_vec();
        message.extend(self.family.to_ne_bytes());
        message.extend((generic::REQUEST | generic::ACKNOWLEDGE).to_ne_bytes());
        // The sequence number and the port, which are not needed.
        message.extend([0; 8]);
        message.extend([command, family::VERSION, 0, 0]);
        message.extend(attributes);
        sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut reply = Vec::new();
        loop {
            let mut buffer = [0; 8192];
            let (_, length) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let answer = &buffer[..length.min(buffer.len())];
            if answer.get(4..6) == Some(&generic::ERROR.to_ne_bytes()[..]) {
                let code = answer.get(16..20).and_then(|code| code.first_chunk::<4>());
                return match code.map_or(0, |code| i32::from_ne_bytes(*code)) {
                    0 => Ok(reply),
                    code => Err(Error::from_raw_os_error(-code)),
                };
            }
            reply = answer.to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_identifiers_round_trip() {
        let export = Uuid::from_u128(0x1234);
        assert_eq!(decode_identifier(&encode_identifier(export, 4)), Some((export, 4)));
        for other in ["", "braid-", "braid-x-4", "rbd-00000000000000000000000000001234-4", &format!("braid-{export}")] {
            assert_eq!(decode_identifier(other), None, "{other}");
        }
    }

    #[test]
    fn devices_are_found_by_their_backend_identifiers() {
        let directory = std::env::temp_dir().join(format!("braid-nbd-{}", std::process::id()));
        for (name, text) in [("nbd0", None), ("nbd1", Some("other\n")), ("nbd12", Some("")), ("sda", None)] {
            std::fs::create_dir_all(directory.join(name)).expect("a folder can be made");
            if let Some(text) = text {
                std::fs::write(directory.join(name).join("backend"), text).expect("a file can be written");
            }
        }
        let export = Uuid::from_u128(7);
        std::fs::write(directory.join("nbd12/backend"), encode_identifier(export, 2) + "\n")
            .expect("a file can be written");
        assert_eq!(devices_in(&directory), [NbdDevice { index: 12, export, connections: 2 }]);
        std::fs::remove_dir_all(&directory).expect("it is ours");
    }

    #[test]
    fn encoded_attributes_are_found() {
        let mut all = attribute(1, b"abc");
        all.extend(attribute(2, b"defg"));
        assert_eq!(all.len(), 16);
        assert_eq!(
            (find_attribute(&all, 1), find_attribute(&all, 2), find_attribute(&all, 3)),
            (Some(&b"abc"[..]), Some(&b"defg"[..]), None)
        );
        assert_eq!(find_attribute(&all[..13], 2), None, "a truncated attribute");
        assert_eq!(find_attribute(&[0; 8], 5), None);
    }
}

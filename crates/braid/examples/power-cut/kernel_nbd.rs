//! The kernel's NBD client by its netlink interface, which lets a device wait for a server that is gone, and gives it other
//! connections then. The tool `nbd-client` does neither.

use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, sendto, socket};

const CONNECT: u8 = 1;
const RECONFIGURE: u8 = 3;

/// Attributes of the family `nbd` (linux/nbd-netlink.h).
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_BYTES: u16 = 3;
const TIMEOUT_SECONDS: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_SECONDS: u16 = 8;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const GENERIC_CONTROL: u16 = 16;

/// A device /dev/nbdINDEX of so many connections, whose requests wait for a minute when all of them are gone.
pub fn connect(address: &str, export: &str, index: u64, connections: u64) -> Result<String> {
    give(CONNECT, address, export, index, connections)
}

/// Other connections for it, in the places of those that are gone.
pub fn reconnect(address: &str, export: &str, index: u64, connections: u64) -> Result<String> {
    give(RECONFIGURE, address, export, index, connections)
}

fn give(command: u8, address: &str, export: &str, index: u64, connections: u64) -> Result<String> {
    let opened: Vec<(TcpStream, u64, u16)> = (0..connections).map(|_| open(address, export)).collect::<Result<_>>()?;
    let &(_, size, flags) = opened.first().ok_or_else(|| Error::other("no connection is wanted"))?;
    let sockets: Vec<u8> = opened
        .iter()
        // An item, and within it the number of the file.
        .flat_map(|(stream, ..)| attribute(1, &attribute(1, &(stream.as_raw_fd() as u32).to_ne_bytes())))
        .collect();
    let mut attributes = attribute(INDEX, &(index as u32).to_ne_bytes());
    if command == CONNECT {
        attributes.extend(attribute(SIZE_BYTES, &size.to_ne_bytes()));
        attributes.extend(attribute(BLOCK_BYTES, &4096u64.to_ne_bytes()));
        attributes.extend(attribute(SERVER_FLAGS, &u64::from(flags).to_ne_bytes()));
    }
    // What was under way on a connection that is gone is sent again when its time is up.
    attributes.extend(attribute(TIMEOUT_SECONDS, &5u64.to_ne_bytes()));
    attributes.extend(attribute(DEAD_CONNECTION_SECONDS, &60u64.to_ne_bytes()));
    attributes.extend(attribute(SOCKETS, &sockets));

    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::GENERIC))?;
    let family = family(&kernel)?;
    ask(&kernel, family, command, &attributes)?;
    Ok(format!("/dev/nbd{index} has {connections} connections"))
}

fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut all = ((data.len() + 4) as u16).to_ne_bytes().to_vec();
    all.extend(kind.to_ne_bytes());
    all.extend(data);
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

/// The number that the kernel has given to the family of NBD.
fn family(kernel: &OwnedFd) -> Result<u16> {
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    let answer = ask(kernel, GENERIC_CONTROL, GET_FAMILY, &attribute(FAMILY_NAME, b"nbd\0"))?;
    let mut rest = answer.get(20..).unwrap_or_default();
    while let [a, b, c, d, ..] = *rest {
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        match rest.get(4..6) {
            Some(&[low, high]) if kind == FAMILY_ID => return Ok(u16::from_ne_bytes([low, high])),
            _ => rest = rest.get(length.next_multiple_of(4).max(4)..).unwrap_or_default(),
        }
    }
    Err(Error::other("the kernel has no NBD: modprobe nbd"))
}

/// Sends one message, and reads until it is acknowledged; what else was said before.
fn ask(kernel: &OwnedFd, family: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>> {
    const ERROR: u16 = 2;
    let mut message = ((20 + attributes.len()) as u32).to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend((REQUEST | ACKNOWLEDGE).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    sendto(kernel, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut said = Vec::new();
    loop {
        let mut buffer = [0; 8192];
        let (_, length) = recv(kernel, &mut buffer[..], RecvFlags::empty())?;
        let answer = &buffer[..length.min(buffer.len())];
        if answer.get(4..6) == Some(&ERROR.to_ne_bytes()[..]) {
            let code = answer.get(16..20).map_or(0, |code| i32::from_ne_bytes(code.try_into().expect("four bytes")));
            return if code == 0 { Ok(said) } else { Err(Error::from_raw_os_error(-code)) };
        }
        said = answer.to_vec();
    }
}

/// A connection to an export, ready for requests; its size and flags.
fn open(address: &str, export: &str) -> Result<(TcpStream, u64, u16)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    // Fixed new style without zeroes; EXPORT_NAME.
    let mut asked = 3u32.to_be_bytes().to_vec();
    asked.extend(b"IHAVEOPT");
    asked.extend(1u32.to_be_bytes());
    asked.extend((export.len() as u32).to_be_bytes());
    asked.extend(export.as_bytes());
    stream.write_all(&asked)?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    let (size, flags) = answer.split_at(8);
    Ok((
        stream,
        u64::from_be_bytes(size.try_into().expect("eight bytes")),
        u16::from_be_bytes(flags.try_into().expect("two bytes")),
    ))
}

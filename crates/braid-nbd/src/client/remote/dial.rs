//! Connecting without waiting.
//!
//! A socket that is still being connected is given to the shard as it is. NBD's server speaks first, so that the first receive ends
//! when the connection stands and has something to say, or has failed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

/// Where to connect to: an endpoint whose name was looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A socket that is connected, or about to be.
pub(super) fn begin(target: &Target) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, begun) = match target {
        Target::Unix(path) => {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            // As much as the system allows: a larger buffer saves turns between the two.
            let _ = sockopt::set_socket_send_buffer_size(&socket, 1 << 20);
            let begun = connect(&socket, &SocketAddrUnix::new(path)?);
            (socket, begun)
        }
        Target::Tcp(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            let begun = connect(&socket, address);
            (socket, begun)
        }
    };
    match begun {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

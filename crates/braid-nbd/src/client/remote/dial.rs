//! Non-blocking connect.
//!
//! A connecting socket is handed to the shard at once. An NBD server sends first, so the first receive completes when
//! the connection is established and the greeting arrives, or when the connection has failed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

/// A resolved address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Returns a socket that is connected or connecting.
pub(super) fn begin(target: &Target) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, begun) = match target {
        Target::Unix(path) => {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            // As large as the system allows: a larger buffer saves switches between client and server.
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

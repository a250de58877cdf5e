//! Detects connections to this process itself: a daemon must not use a disk that it exports itself.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::net::{AddressFamily, getpeername, getsockname, sockopt};

/// Returns whether the peer of a connected socket is this process. Returns false if that cannot be determined.
pub(super) fn is_same_process(socket: BorrowedFd<'_>) -> bool {
    if sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX) {
        return sockopt::socket_peercred(socket).is_ok_and(|peer| peer.pid == rustix::process::getpid());
    }
    let peer = getpeername(socket).ok().flatten().and_then(|found| SocketAddr::try_from(found).ok());
    let mine = getsockname(socket).ok().and_then(|found| SocketAddr::try_from(found).ok());
    let (Some(peer), Some(mine)) = (peer, mine) else { return false };
    // A local connection has two entries; the peer's has the addresses exchanged.
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let found = tables.iter().filter_map(|table| fs::read_to_string(table).ok()).find_map(|table| {
        let wide =
            table.lines().nth(1).is_some_and(|line| line.split_whitespace().nth(1).is_some_and(|a| a.len() > 13));
        let (local, remote) = (format_address(peer, wide), format_address(mine, wide));
        table.lines().find_map(|line| inode_of(line, &local, &remote))
    });
    found.is_some_and(|inode| has_socket(&inode))
}

fn inode_of(line: &str, local: &str, remote: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    (words.nth(1)? == local && words.next()? == remote).then(|| words.nth(6).map(str::to_owned))?
}

/// Formats an address as the kernel's tables do: 32-bit words in native byte order.
fn format_address(address: SocketAddr, wide: bool) -> String {
    let bytes: Vec<u8> = match address.ip() {
        IpAddr::V4(ip) if wide => ip.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) if !wide => ip.octets().to_vec(),
            _ => ip.octets().to_vec(),
        },
    };
    let words = bytes.chunks_exact(4).map(|w| format!("{:08X}", u32::from_ne_bytes([w[0], w[1], w[2], w[3]])));
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

fn has_socket(inode: &str) -> bool {
    let wanted = format!("socket:[{inode}]");
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|link| link.to_str() == Some(&wanted))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn this_process_is_recognised_at_the_other_end() {
        for place in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(place).unwrap();
            let port = listener.local_addr().unwrap().port();
            let host = if place == "127.0.0.1:0" || place == "[::]:0" { "127.0.0.1" } else { "::1" };
            let client = TcpStream::connect((host, port)).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert!(is_same_process(client.as_fd()), "{place}");
            drop(accepted);
        }
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(is_same_process(one.as_fd()));
    }

    #[test]
    fn another_process_is_not_this_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // The connection is not accepted: no process owns the other end.
        assert!(!is_same_process(client.as_fd()));
    }
}

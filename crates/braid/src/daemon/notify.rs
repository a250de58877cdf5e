//! Tells the service manager how far the daemon is (`sd_notify(3)`: one datagram to `NOTIFY_SOCKET`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Everything that could be started is.
pub const READY: &str = "READY=1";
/// The daemon is ending.
pub const STOPPING: &str = "STOPPING=1";

/// Sends `state` if a service manager asked for it.
pub fn tell(state: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty()) else { return };
    let send = || -> std::io::Result<()> {
        let bytes = place.as_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&place)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
    };
    if let Err(error) = send() {
        tracing::warn!("the service manager cannot be told {state}: {error}");
    }
}

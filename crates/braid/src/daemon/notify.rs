//! Tells the service manager how far the daemon is (`sd_notify(3)`: one datagram to `NOTIFY_SOCKET`), and leaves with it what
//! is to outlive the daemon (`FileDescriptorStoreMax=` in systemd's units).

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::ffi::OsString;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Everything that could be started is.
pub const READY: &str = "READY=1";
/// The daemon is ending.
pub const STOPPING: &str = "STOPPING=1";

/// Most descriptors in one message.
const DESCRIPTORS_MAX: usize = 64;

/// Sends `state` if a service manager asked for it.
pub fn tell(state: &str) {
    if let Err(error) = send(state, &[]) {
        tracing::warn!("the service manager cannot be told {state}: {error}");
    }
}

/// Says that the daemon is about to become another build of itself, which tells when it is ready.
pub fn tell_reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
}

/// Whether there is a service manager that may keep something.
pub fn has_manager() -> bool {
    place().is_some()
}

/// Leaves descriptors with the service manager, under a name: the next daemon gets them.
///
/// # Errors
/// What the operating system says.
pub fn keep(name: &str, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    descriptors.chunks(DESCRIPTORS_MAX).try_for_each(|some| send(&format!("FDSTORE=1\nFDNAME={name}"), some))
}

/// Has the service manager close what was kept under a name.
pub fn forget(name: &str) {
    tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
}

fn place() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty())
}

fn send(state: &str, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let Some(place) = place() else { return Ok(()) };
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(&socket, &[IoSlice::new(state.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

//! Notifies the service manager of the daemon's progress (`sd_notify(3)`: one datagram to `NOTIFY_SOCKET`), and stores
//! descriptors with it that outlive the daemon (`FileDescriptorStoreMax=` in systemd's units).

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::ffi::OsString;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The state for [`notify_state`] when everything that can be started is started.
pub const READY: &str = "READY=1";

/// The state for [`notify_state`] when the daemon is ending.
pub const STOPPING: &str = "STOPPING=1";

/// Maximum descriptors in one message.
const DESCRIPTORS_MAX: usize = 64;

/// Sends `state` if a service manager has requested notifications. A failure is only logged.
pub fn notify_state(state: &str) {
    if let Err(error) = send(state, &[]) {
        tracing::warn!("the service manager cannot be notified of {state}: {error}");
    }
}

/// Notifies the service manager that the daemon is about to execute its next build (`RELOADING=1`). The next build
/// sends [`READY`].
pub fn notify_reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
    notify_state(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
}

/// Returns whether there is a service manager, which may keep descriptors.
pub(crate) fn has_service_manager() -> bool {
    manager_socket().is_some()
}

/// Stores descriptors with the service manager under a name: the next daemon gets them. Does nothing, successfully, if
/// there is no service manager.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn store_descriptors(name: &str, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    descriptors.chunks(DESCRIPTORS_MAX).try_for_each(|some| send(&format!("FDSTORE=1\nFDNAME={name}"), some))
}

/// Has the service manager close the descriptors under a name.
pub(crate) fn remove_descriptors(name: &str) {
    notify_state(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
}

fn manager_socket() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|manager_socket| !manager_socket.is_empty())
}

fn send(state: &str, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let Some(manager_socket) = manager_socket() else { return Ok(()) };
    let address = match manager_socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&manager_socket)?,
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

//! The kernel's clocks: the time of the monotonic ones, and whether the wall clock (CLOCK_REALTIME) is synchronised.

#![allow(unsafe_code)]

use std::io;

/// How well the kernel's wall clock (CLOCK_REALTIME) is synchronised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockState {
    /// Whether a time service (NTP, PTP) keeps it synchronised.
    pub is_synchronised: bool,
    /// The largest possible error, in microseconds, as the kernel estimates it.
    pub max_error_us: u64,
}

/// Returns the state of the kernel's clock. Changes nothing.
///
/// # Errors
/// The error of the operating system: a system call filter may forbid the call.
pub fn clock_state() -> io::Result<ClockState> {
    // SAFETY: the structure has integers only, for which all zeros are valid. Zero modes read and set nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the time of the call, and nothing else refers to the structure.
    let state = unsafe { libc::adjtimex(&mut timex) };
    if state == -1 {
        return Err(io::Error::last_os_error());
    }
    let is_synchronised = state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
    Ok(ClockState { is_synchronised, max_error_us: u64::try_from(timex.maxerror).unwrap_or(0) })
}

/// Returns the time of the monotonic clock in nanoseconds.
pub(crate) fn clock_ns() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// Returns the time of the clock for leases in nanoseconds. It cannot be set, and it advances while this machine is
/// suspended, as time does for a node that waits for the lease to expire.
pub(crate) fn lease_clock_ns() -> u64 {
    read_clock(libc::CLOCK_BOOTTIME)
}

fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a local variable. The call cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_state_is_read_or_forbidden() {
        match super::clock_state() {
            Ok(state) => assert!(state.is_synchronised || state.max_error_us > 0, "{state:?}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}

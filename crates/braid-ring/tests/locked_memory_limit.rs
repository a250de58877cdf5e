//! If lockable memory is limited, part of the buffers is registered, and the status says why not all are.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)] // Capabilities and limits of this process are changed by plain system calls.

mod common;

use braid_engine::{Flags, ShardId};
use braid_ring::{DriverKind, RingConfig};
use common::{Folder, Random, TestBed};

/// Gives up the privilege to lock unlimited memory, for this thread and the threads that it starts.
fn forgo_unlimited_locking() {
    #[repr(C)]
    struct Header(u32, i32);
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let (mut header, mut sets) = (Header(VERSION_3, 0), [0u32; 6]);
    // SAFETY: version 3 reads and writes a header and two triples of words, which these are.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()), 0);
        sets[0] &= !(1 << CAP_IPC_LOCK);
        assert_eq!(libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()), 0);
    }
}

fn limit_locked_memory(bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is written to, then read from, a local variable.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit), 0);
        // Only the soft limit, and only downwards, which needs no privilege.
        assert!(bytes <= limit.rlim_max, "the hard limit is lower than the test needs");
        limit.rlim_cur = bytes;
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
    }
}

/// A single test, because the limits apply to the process.
#[test]
fn partial_or_no_registration_works() {
    let folder = Folder::new("locked");
    forgo_unlimited_locking();
    // Ascending, because the kernel dismantles the previous ring asynchronously.
    for (limit, expected) in [(64 << 10, 0), (3 << 20, 2 << 20), (6 << 20, 4 << 20)] {
        limit_locked_memory(limit);
        let mut bed = TestBed::new(&RingConfig { driver: Some(DriverKind::Uring), ..RingConfig::default() });
        let info = bed.handle.driver(ShardId(0)).clone();
        assert_eq!(info.registered_buffer_bytes, expected, "with {limit} bytes: {info:?}");
        let why = info.unregistered_reason.unwrap();
        assert!(why.contains("ulimit -l") && why.contains("65536 KiB"), "{why}");
        let (device, _) = bed.bare(&format!("file:{}{limit},size=64M", folder.path("disk")));
        let data = Random(1).bytes(24 << 20);
        bed.write(0, device, Flags::NONE, 0, &data);
        assert!(bed.read(0, device, 0, 24 << 20) == data, "larger than what is registered");
        assert!(bed.read(0, device, 4096, 8192) == data[4096..12288], "and smaller");
        bed.ring.stop();
    }
}

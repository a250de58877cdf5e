//! What a port makes of the kernel's answers, which the tests make up.
#![allow(clippy::unwrap_used)]

use braid_engine::Flags;

use super::*;
use crate::disk::OpenOptions;
use crate::driver::{DriverConfig, DriverKind, Event};
use crate::spec::DiskSpec;
use crate::wake::Wake;

const LEAF: LeafId = LeafId(0);

/// A port with one file as its disk. Nothing reaches the file, as nobody calls [`Driver::turn`].
struct Bed {
    port: Port,
    disk: Arc<Disk>,
    path: std::path::PathBuf,
    at: Buf,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let path = std::env::temp_dir().join(format!("braid-ring-port-{name}-{}", std::process::id()));
        let spec = DiskSpec::parse(&format!("file:{},size=1M", path.display())).unwrap();
        let disk = Arc::new(Disk::open(&spec, OpenOptions::default()).unwrap());
        let map = Map::new(1 << 20).unwrap();
        let wake = Arc::new(Wake::new().unwrap());
        let config = DriverConfig { depth: DEPTH, files: 1, buffers: (map.addr(), map.len()), wake };
        let (driver, _) = Driver::start(Some(DriverKind::Threads), &config).unwrap();
        let config = PortConfig { shard: ShardId(0), ios_max: 64, time_limit_ns: 1000 };
        let mut port = Port::new(driver, Arena::new(map, 0), &config).unwrap();
        port.add_leaf(LEAF, Arc::clone(&disk), Arc::new(LeafCounters::new()));
        let at = port.arena.alloc(8192).unwrap();
        Bed { port, disk, path, at }
    }

    /// Begins an I/O; its place is 0 if it is alone.
    fn begin(&mut self, op: Op, flags: Flags) {
        let len = if op == Op::Flush { 0 } else { 4096 };
        self.port.submit(&LeafIo::simple(LEAF, op, flags, 0, len, self.at, Cookie(1)));
    }

    /// The kernel answers, and so does the port.
    fn end(&mut self, place: u64, result: i32) -> Option<LeafResult> {
        self.port.on_event(Event { token: LEAF_TOKEN | place, result });
        self.port.done.pop().map(|done| done.result)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn a_failed_write_with_fua_may_have_been_a_failed_flush() {
    for (op, flags, errno, doubted) in [
        (Op::Write, Flags::FUA, libc::EIO, true),
        (Op::Write, Flags::FUA, libc::ENODEV, true),
        (Op::Write, Flags::FUA, libc::ENOSPC, false),
        (Op::Write, Flags::NONE, libc::EIO, false),
        (Op::Read, Flags::NONE, libc::EIO, false),
        (Op::Flush, Flags::NONE, libc::EIO, true),
    ] {
        let mut bed = Bed::new("fua");
        bed.begin(op, flags);
        assert!(matches!(bed.end(0, -errno), Some(Err(e)) if e.errno == errno));
        assert_eq!(bed.disk.has_failed_flush(), doubted, "{op:?} {flags:?} {errno}");
    }
}

#[test]
fn it_is_not_forgotten_because_it_was_late() {
    let mut bed = Bed::new("late");
    bed.begin(Op::Write, Flags::FUA);
    bed.port.now_ns = 1000;
    bed.port.tick();
    assert_eq!(bed.port.late, [Cookie(1)]);
    assert_eq!(bed.end(0, -libc::EIO), None);
    assert_eq!(bed.port.returned, [Cookie(1)]);
    assert!(bed.disk.has_failed_flush());
}

#[test]
fn a_flush_beside_one_that_failed_has_failed() {
    let mut bed = Bed::new("beside");
    bed.begin(Op::Flush, Flags::NONE);
    bed.begin(Op::Flush, Flags::NONE);
    bed.begin(Op::Write, Flags::NONE);
    assert!(matches!(bed.end(1, -libc::EIO), Some(Err(_))));
    assert_eq!(bed.end(0, 0), Some(Err(LeafError::of(ErrorKind::FlushFailed))));
    assert_eq!(bed.end(2, 4096), Some(Ok(())), "a write says nothing of the cache");
}

#[test]
fn only_jobs_in_the_kernel_hold_iovecs() {
    let mut bed = Bed::new("iovecs");
    let one = LeafIo::simple(LEAF, Op::Write, Flags::NONE, 0, 4096, bed.at, Cookie(1));
    let two = LeafIo { len: 8192, piece_len: 4096, first_gap: 4096, ..one };
    bed.port.submit(&two);
    assert_ne!(bed.port.entries[0].iovecs, NONE);
    assert_eq!(bed.end(0, -libc::EAGAIN), None);
    assert_eq!(bed.port.entries[0].iovecs, NONE, "waiting for a moment");
    let issued = std::mem::replace(&mut bed.port.issued, DEPTH);
    bed.port.again(0);
    assert_eq!(bed.port.entries[0].iovecs, NONE, "in line");
    bed.port.issued = issued + 1;
    // Somebody else's job ends, and this one's turn has come.
    bed.begin(Op::Flush, Flags::NONE);
    assert_eq!(bed.end(1, 0), Some(Ok(())));
    assert_ne!(bed.port.entries[0].iovecs, NONE);
    assert_eq!(bed.end(0, 8192), Some(Ok(())));
}

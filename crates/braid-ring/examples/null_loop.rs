//! CPU time per I/O through the whole path (frontend, engine, port) on null disks, and of a ring NOP for comparison.
//!
//! `cargo run --release -p braid-ring --example null_loop [DISK] [DEPTH] [MILLIONS] [DRIVER]`

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use braid_engine::{Buf, Completion, DeviceId, DeviceLayout, Flags, Node, Op, Request, ShardId};
use braid_ring::{Cx, Disk, DiskSpec, Frontend, OpenOptions, Ring, RingConfig};

struct Go {
    device: DeviceId,
    blocks: u64,
    depth: u64,
    total: u64,
    done: Sender<(u64, u64)>,
}

#[derive(Default)]
struct Load {
    go: Option<Box<Go>>,
    buf: Option<Buf>,
    started: u64,
    ended: u64,
    random: u64,
    begin_ns: u64,
}

fn cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a local variable.
    #[allow(unsafe_code)]
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Load {
    #[inline]
    fn submit(&mut self, cx: &mut Cx<'_>, tag: u64) {
        let Some(go) = &self.go else { return };
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = ((u128::from(self.random) * u128::from(go.blocks)) >> 64) as u64;
        let buf = self.buf.unwrap_or(Buf::NONE).add(tag * 4096);
        let (device, flags) = (go.device, Flags::NONE);
        self.started += 1;
        cx.submit(&Request { device, op: Op::Read, flags, offset: block * 4096, len: 4096, buf, tag })
            .expect("accepted");
    }
}

impl Frontend for Load {
    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let go = message.downcast::<Go>().expect("only Go is posted");
        let depth = go.depth;
        self.buf = cx.alloc(depth as usize * 4096);
        self.go = Some(go);
        (self.started, self.ended, self.random) = (0, 0, 1);
        self.begin_ns = cpu_ns();
        (0..depth).for_each(|tag| self.submit(cx, tag));
    }

    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        completion.result.expect("null disks do not fail");
        self.ended += 1;
        let Some(go) = &self.go else { return };
        if self.started < go.total {
            self.submit(cx, completion.tag);
        } else if self.ended == self.started {
            go.done.send((self.ended, cpu_ns() - self.begin_ns)).expect("the main thread waits");
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let name = args.get(1).map_or("null:1T", String::as_str);
    let depth: u64 = args.get(2).map_or(128, |d| d.parse().expect("a depth"));
    let millions: u64 = args.get(3).map_or(20, |d| d.parse().expect("millions of I/Os"));
    let driver = args.get(4).map(|d| d.parse().expect("io_uring, libaio or threads"));
    if driver.is_none() {
        println!("ring NOP: {:.1} ns each at depth {depth}", nop(depth as u32));
    }
    let config = RingConfig { driver, ..RingConfig::default() };
    let ring = Ring::start(&config, |_| vec![Box::new(Load::default())]).expect("a ring");
    let handle = ring.handle();
    let disk = Disk::open(&DiskSpec::parse(name).expect("a disk's name"), OpenOptions::default()).expect("a disk");
    let len = disk.size_bytes();
    let leaf = handle.add_leaf(Arc::new(disk)).expect("room");
    let device = DeviceId(0);
    let layout = DeviceLayout::new(1, 512, &Node::Leaf { leaf, start: 0, len });
    handle.publish_and_drain(device, Some(Arc::new(layout))).wait().expect("running");
    for _ in 0..3 {
        let (done, ended) = channel();
        let total = millions * 1_000_000;
        handle.post(ShardId(0), 0, Box::new(Go { device, blocks: len / 4096, depth, total, done }));
        let (ios, ns) = ended.recv().expect("an end");
        println!("{name}: {:.1} ns of CPU per I/O at depth {depth}", ns as f64 / ios as f64);
    }
    ring.stop();
}

/// CPU nanoseconds of one io_uring NOP, submitted and reaped in batches of `depth`.
fn nop(depth: u32) -> f64 {
    let count = 2_000_000;
    let begin = cpu_ns();
    braid_ring::nop_bench(depth, count).expect("an io_uring");
    (cpu_ns() - begin) as f64 / count as f64
}

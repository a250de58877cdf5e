//! A memory disk lends its memory for sends: with the right content, and the disk exists until the loan is returned.

use std::any::Any;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::open;
use braid_engine::{Completion, DeviceId, DeviceLayout, Flags, LeafId, Node, Op, Request, ShardId};
use braid_ring::{Cx, Disk, DriverKind, Frontend, Loan, Ring, RingConfig, RingHandle, SendPiece};

const LEN: u64 = 256 << 10;

/// A message from a test.
enum Command {
    /// Write this byte everywhere.
    Fill(u8),
    /// Lend this range, and send it to this socket.
    Send(u64, u64, OwnedFd),
    GiveBack,
}

struct Lender {
    device: DeviceId,
    loans: Vec<Loan>,
    results: Sender<bool>,
}

impl Frontend for Lender {
    fn io_done(&mut self, _: &mut Cx<'_>, completion: &Completion) {
        self.results.send(completion.result.is_ok()).unwrap();
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        match *message.downcast::<Command>().unwrap() {
            Command::Fill(byte) => {
                let buf = cx.alloc(LEN as usize).unwrap();
                cx.memory(buf, LEN as usize).fill(byte);
                let (device, flags) = (self.device, Flags::NONE);
                cx.submit(&Request { device, op: Op::Write, flags, offset: 0, len: LEN, buf, tag: 0 }).unwrap();
            }
            Command::Send(offset, len, fd) => {
                let Some(loan) = cx.lend(self.device, offset, len) else { return self.results.send(false).unwrap() };
                self.loans.push(loan);
                let socket = cx.add_socket(fd).unwrap();
                assert!(cx.send(socket, &[SendPiece { buf: loan.buf, len: len as u32 }], 1));
            }
            Command::GiveBack => {
                self.loans.drain(..).for_each(|loan| cx.return_loan(loan));
                self.results.send(true).unwrap();
            }
        }
    }

    fn net_done(&mut self, _: &mut Cx<'_>, _: u64, result: i32) {
        self.results.send(result > 0).unwrap();
    }
}

struct TestBed {
    ring: Ring,
    leaf: LeafId,
    results: Receiver<bool>,
}

impl TestBed {
    fn new(driver: DriverKind, disk: Arc<Disk>) -> TestBed {
        let (sender, results) = channel();
        let device = DeviceId(0);
        let config = RingConfig { driver: Some(driver), ..RingConfig::default() };
        let ring = Ring::start(&config, |_| {
            vec![Box::new(Lender { device, loans: Vec::new(), results: sender.clone() }) as Box<dyn Frontend>]
        })
        .unwrap();
        let size = disk.size_bytes();
        let leaf = ring.handle().add_leaf(disk).unwrap();
        let layout = DeviceLayout::new(1, 512, &Node::Leaf { leaf, start: 4096, len: size - 4096 });
        ring.handle().publish(device, Some(Arc::new(layout)), Box::new(|| {}));
        TestBed { ring, leaf, results }
    }

    fn handle(&self) -> RingHandle {
        self.ring.handle()
    }

    fn run(&self, command: Command) -> bool {
        self.handle().post(ShardId(0), 0, Box::new(command));
        self.results.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

#[test]
fn lent_memory_holds_written_data_and_keeps_the_disk_open() {
    for driver in [DriverKind::Uring, DriverKind::Libaio, DriverKind::Threads] {
        let bed = TestBed::new(driver, open("mem:1M"));
        assert!(bed.run(Command::Fill(7)));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; LEN as usize + 512];
            theirs.read_exact(&mut bytes).unwrap();
            bytes
        });
        assert!(bed.run(Command::Send(0, LEN + 512, ours.into())), "{driver}: it was sent");
        let bytes = reader.join().unwrap();
        assert!(bytes[..LEN as usize].iter().all(|b| *b == 7) && bytes[LEN as usize..].iter().all(|b| *b == 0));
        let stats = bed.handle().leaf_stats(bed.leaf).unwrap();
        assert_eq!((stats.reads, stats.read_bytes), (1, LEN + 512), "{driver}: it counts as a read");

        let weak = Arc::downgrade(&bed.handle().disk(bed.leaf).unwrap().medium());
        bed.handle().publish_and_drain(DeviceId(0), None).wait().unwrap();
        let removed = bed.handle().remove_leaf(bed.leaf);
        // A round trip through the shard, so that it has processed the removal.
        let (unused, _) = UnixStream::pair().unwrap();
        assert!(!bed.run(Command::Send(0, 4096, unused.into())), "{driver}: a device that is not served lends nothing");
        assert!(weak.upgrade().is_some(), "{driver}: the disk's memory is still lent");
        assert!(bed.run(Command::GiveBack));
        removed.wait().unwrap();
        bed.ring.stop();
        assert!(weak.upgrade().is_none(), "{driver}: the disk is closed");
    }
}

#[test]
fn only_plain_memory_disks_lend() {
    for (name, offset, len) in [("null:1M", 0, 4096), ("mem:1M", 1 << 20, 4096), ("mem:1M", 100, 512), ("mem:1M", 0, 0)]
    {
        let bed = TestBed::new(DriverKind::Threads, open(name));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(!bed.run(Command::Send(offset, len, ours.into())), "{name} at {offset}+{len}");
        bed.ring.stop();
    }
    let bed = TestBed::new(DriverKind::Threads, open("throttled(mem:1M,iops=100)"));
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(!bed.run(Command::Send(0, 4096, ours.into())), "a throttled disk takes its time");
    bed.ring.stop();
}

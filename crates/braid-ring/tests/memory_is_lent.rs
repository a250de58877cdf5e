//! A disk in memory lends its bytes to be sent from: the right ones, and the disk stays until they are given back.
#![allow(clippy::unwrap_used)]

mod common;

use std::any::Any;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use braid_engine::{Completion, DeviceId, DeviceLayout, Flags, LeafId, Node, Op, Request, ShardId};
use braid_ring::{Cx, Disk, DriverKind, Frontend, Loan, Ring, RingConfig, RingHandle, SendPiece};
use common::open;

const LEN: u64 = 256 << 10;

/// What a test posts.
enum Say {
    /// Write this byte everywhere.
    Fill(u8),
    /// Lend this range, and send it there.
    Send(u64, u64, OwnedFd),
    GiveBack,
}

struct Lender {
    device: DeviceId,
    loans: Vec<Loan>,
    told: Sender<bool>,
}

impl Frontend for Lender {
    fn io_done(&mut self, _: &mut Cx<'_>, completion: &Completion) {
        self.told.send(completion.result.is_ok()).unwrap();
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        match *message.downcast::<Say>().unwrap() {
            Say::Fill(byte) => {
                let buf = cx.alloc(LEN as usize).unwrap();
                cx.memory(buf, LEN as usize).fill(byte);
                let (device, flags) = (self.device, Flags::NONE);
                cx.submit(&Request { device, op: Op::Write, flags, offset: 0, len: LEN, buf, tag: 0 }).unwrap();
            }
            Say::Send(offset, len, fd) => {
                let Some(loan) = cx.lend(self.device, offset, len) else { return self.told.send(false).unwrap() };
                self.loans.push(loan);
                let socket = cx.add_socket(fd).unwrap();
                assert!(cx.send(socket, &[SendPiece { buf: loan.buf, len: len as u32 }], 1));
            }
            Say::GiveBack => {
                self.loans.drain(..).for_each(|loan| cx.give_back(loan));
                self.told.send(true).unwrap();
            }
        }
    }

    fn net_done(&mut self, _: &mut Cx<'_>, _: u64, result: i32) {
        self.told.send(result > 0).unwrap();
    }
}

struct Bed {
    ring: Ring,
    leaf: LeafId,
    told: Receiver<bool>,
}

impl Bed {
    fn new(driver: DriverKind, disk: Arc<Disk>) -> Bed {
        let (sender, told) = channel();
        let device = DeviceId(0);
        let config = RingConfig { driver: Some(driver), ..RingConfig::default() };
        let ring = Ring::start(&config, |_| {
            vec![Box::new(Lender { device, loans: Vec::new(), told: sender.clone() }) as Box<dyn Frontend>]
        })
        .unwrap();
        let size = disk.size_bytes();
        let leaf = ring.handle().add_leaf(disk).unwrap();
        let layout = DeviceLayout::new(1, 512, &Node::Leaf { leaf, start: 4096, len: size - 4096 });
        ring.handle().publish(device, Some(Arc::new(layout)), Box::new(|| {}));
        Bed { ring, leaf, told }
    }

    fn handle(&self) -> RingHandle {
        self.ring.handle()
    }

    fn say(&self, say: Say) -> bool {
        self.handle().post(ShardId(0), 0, Box::new(say));
        self.told.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

#[test]
fn what_is_lent_is_what_was_written_and_keeps_its_disk() {
    for driver in [DriverKind::Uring, DriverKind::Libaio, DriverKind::Threads] {
        let bed = Bed::new(driver, open("mem:1M"));
        assert!(bed.say(Say::Fill(7)));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; LEN as usize + 512];
            theirs.read_exact(&mut bytes).unwrap();
            bytes
        });
        assert!(bed.say(Say::Send(0, LEN + 512, ours.into())), "{driver}: it was sent");
        let bytes = reader.join().unwrap();
        assert!(bytes[..LEN as usize].iter().all(|b| *b == 7) && bytes[LEN as usize..].iter().all(|b| *b == 0));
        let stats = bed.handle().leaf_stats(bed.leaf).unwrap();
        assert_eq!((stats.reads, stats.read_bytes), (1, LEN + 512), "{driver}: it counts as a read");

        let weak = Arc::downgrade(&bed.handle().disk(bed.leaf).unwrap());
        bed.handle().publish_and_drain(DeviceId(0), None).wait().unwrap();
        let removed = bed.handle().remove_leaf(bed.leaf);
        // A round trip through the shard, so that it has seen the removal.
        let (nobody, _) = UnixStream::pair().unwrap();
        assert!(!bed.say(Say::Send(0, 4096, nobody.into())), "{driver}: nothing is lent of what is not served");
        assert!(weak.upgrade().is_some(), "{driver}: the disk's memory is still lent");
        assert!(bed.say(Say::GiveBack));
        removed.wait().unwrap();
        bed.ring.stop();
        assert!(weak.upgrade().is_none(), "{driver}: nobody holds the disk any more");
    }
}

#[test]
fn only_what_stands_in_memory_is_lent() {
    for (name, offset, len) in [("null:1M", 0, 4096), ("mem:1M", 1 << 20, 4096), ("mem:1M", 100, 512), ("mem:1M", 0, 0)]
    {
        let bed = Bed::new(DriverKind::Threads, open(name));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(!bed.say(Say::Send(offset, len, ours.into())), "{name} at {offset}+{len}");
        bed.ring.stop();
    }
    let bed = Bed::new(DriverKind::Threads, open("throttled(mem:1M,iops=100)"));
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(!bed.say(Say::Send(0, 4096, ours.into())), "a throttled disk takes its time");
    bed.ring.stop();
}

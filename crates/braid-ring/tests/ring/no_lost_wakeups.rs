//! Events late in a turn of a shard's loop, or on another shard at that time, are not lost when the shard goes to
//! sleep.

use crate::common;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use braid_engine::{Buf, Completion, DeviceId, DeviceLayout, ErrorKind, Flags, MetaIo, Node, Op, Request, ShardId};
use braid_ring::{Cx, Disk, FaultRules, Frontend, Ring, RingConfig, RingHandle};

/// An action of a [`Script`].
type Act = Box<dyn FnOnce(&mut Cx<'_>) + Send>;

/// When an action runs.
enum At {
    /// On arrival, which is before the ring looks for due work.
    Once(Act),
    /// At the end of the turn.
    End(Act),
}

/// Runs actions, and reports the tags of ended requests.
struct Script {
    ended: Sender<u64>,
    at_end: Vec<Act>,
}

impl Frontend for Script {
    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        match *message.downcast::<At>().expect("scripts get acts") {
            At::Once(act) => act(cx),
            At::End(act) => self.at_end.push(act),
        }
    }

    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        self.at_end.drain(..).for_each(|act| act(cx));
    }

    fn io_done(&mut self, _cx: &mut Cx<'_>, completion: &Completion) {
        let _ = self.ended.send(completion.tag);
    }
}

fn ring(shards: u16) -> (Ring, RingHandle, Receiver<u64>) {
    let (ended, tags) = channel();
    let config = RingConfig { shards, arena_bytes: 1 << 20, disk_timeout_ms: 20_000, ..RingConfig::default() };
    let script = |_| vec![Box::new(Script { ended: ended.clone(), at_end: vec![] }) as Box<dyn Frontend>];
    let ring = Ring::start(&config, script).expect("the ring starts");
    let handle = ring.handle();
    (ring, handle, tags)
}

fn device(handle: &RingHandle, disk: &Arc<Disk>) -> DeviceId {
    let leaf = handle.add_leaf(Arc::clone(disk)).unwrap();
    let layout = DeviceLayout::new(1, 512, &Node::Leaf { leaf, start: 0, len: disk.size_bytes() });
    handle.publish_and_drain(DeviceId(0), Some(Arc::new(layout))).wait().unwrap();
    DeviceId(0)
}

fn submit(device: DeviceId, op: Op, len: u64, tag: u64) -> Act {
    Box::new(move |cx| {
        let request = Request { device, op, flags: Flags::NONE, offset: 0, len, buf: Buf::NONE, tag };
        cx.submit(&request).expect("there is room");
    })
}

fn rules(text: &str) -> FaultRules {
    FaultRules::parse(&[text]).expect("right rules")
}

fn soon(tags: &Receiver<u64>) -> Option<u64> {
    tags.recv_timeout(Duration::from_secs(5)).ok()
}

#[test]
fn a_completion_at_the_end_of_a_turn_is_delivered() {
    let (ring, handle, tags) = ring(1);
    let device = device(&handle, &common::open("mem:1M"));
    handle.post(ShardId(0), 0, Box::new(At::End(submit(device, Op::Discard, 0, 7))));
    assert_eq!(soon(&tags), Some(7), "a request of no bytes ends at once");
    ring.stop();
}

#[test]
fn rules_changed_at_the_end_of_a_turn_release_hung_ios() {
    let (ring, handle, tags) = ring(1);
    let disk = common::open("faulty(mem:1M,hang)");
    let device = device(&handle, &disk);
    handle.post(ShardId(0), 0, Box::new(At::Once(submit(device, Op::Discard, 4096, 1))));
    assert_eq!(tags.recv_timeout(Duration::from_millis(100)).ok(), None);
    handle.post(ShardId(0), 0, Box::new(At::End(Box::new(move |_| disk.set_faults(&rules("seed=1")).unwrap()))));
    assert_eq!(soon(&tags), Some(1));
    ring.stop();
}

#[test]
fn new_rules_release_only_ios_hung_by_old_rules() {
    let (ring, handle, tags) = ring(1);
    let disk = common::open("faulty(mem:1M,hang)");
    let device = device(&handle, &disk);
    handle.post(ShardId(0), 0, Box::new(At::Once(submit(device, Op::Discard, 4096, 1))));
    assert_eq!(tags.recv_timeout(Duration::from_millis(100)).ok(), None);
    let (next, other) = (submit(device, Op::Discard, 4096, 2), Arc::clone(&disk));
    let both = move |cx: &mut Cx<'_>| {
        other.set_faults(&rules("write-hang")).unwrap();
        next(cx);
    };
    handle.post(ShardId(0), 0, Box::new(At::Once(Box::new(both))));
    assert_eq!(soon(&tags), Some(1), "the rule that held it is gone");
    assert_eq!(tags.recv_timeout(Duration::from_millis(100)).ok(), None, "the other hangs by a rule in force");
    disk.set_faults(&rules("seed=1")).unwrap();
    assert_eq!(soon(&tags), Some(2));
    ring.stop();
}

#[test]
fn a_shard_that_panics_does_not_hang_the_stop() {
    let (ring, handle, _tags) = ring(2);
    // Metadata I/O on the second disk goes through the second shard.
    handle.add_leaf(common::open("null:1M")).unwrap();
    let leaf = handle.add_leaf(common::open("faulty(mem:1M,hang)")).unwrap();
    let (meta, (reply_sender, reply)) = (handle.meta(), channel());
    std::thread::spawn(move || reply_sender.send(common::block_on(meta.read(leaf, 0, 4096))));
    assert!(reply.recv_timeout(Duration::from_millis(100)).is_err(), "the disk hangs");
    handle.post(ShardId(1), 0, Box::new(At::Once(Box::new(|_| panic!("as this test wants it")))));
    let (sender, outcome) = channel();
    std::thread::spawn(move || sender.send(std::panic::catch_unwind(AssertUnwindSafe(|| ring.stop()))));
    let gone = reply.recv_timeout(Duration::from_secs(10)).expect("the call fails");
    assert_eq!(gone.unwrap_err().kind, ErrorKind::Gone);
    let outcome = outcome.recv_timeout(Duration::from_secs(40)).expect("the stop ends");
    assert!(outcome.is_err(), "the stop propagates the panic");
    assert!(handle.device_counters(ShardId(1), DeviceId(0)).wait().is_err());
}

/// Shards become quiescent at nearly the same time; the last one must wake those that wait for it.
#[test]
fn stopped_rings_end() {
    let (sender, outcome) = channel();
    std::thread::spawn(move || {
        for round in 0..40u32 {
            ring(2 + (round % 5) as u16).0.stop();
            sender.send(round).expect("the test waits");
        }
    });
    for round in 0..40 {
        assert_eq!(outcome.recv_timeout(Duration::from_secs(60)), Ok(round), "a shard slept over the end");
    }
}

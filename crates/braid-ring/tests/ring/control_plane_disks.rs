//! The control plane's interface to disks: metadata I/O, leaf ids, draining of layouts, counters, timers.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::common::{Folder, Random, TestBed, block_on, without_other_children};
use braid_engine::{Completion, DeviceId, DeviceLayout, ErrorKind, Flags, LeafId, MetaIo, Node, Op, ShardId};
use braid_ring::{Cx, DriverKind, Frontend, Ring, RingConfig};

#[test]
fn labels_are_written_and_read() {
    let _alone = without_other_children();
    let folder = Folder::new("meta");
    for driver in DriverKind::ALL {
        let bed = TestBed::new(&RingConfig { shards: 2, driver: Some(driver), ..RingConfig::default() });
        let meta = bed.handle.meta();
        for name in
            [format!("file:{},size=8M", folder.path("disk")), "mem:8M".into(), "throttled(mem:8M,iops=9000)".into()]
        {
            let leaf = bed.leaf(&name);
            assert_eq!(meta.size_bytes(leaf), 8 << 20);
            let data = Random(1).bytes(64 << 10);
            block_on(async {
                meta.write(leaf, 4096, data.clone(), false).await.unwrap();
                meta.write(leaf, (8 << 20) - 4096, data[..4096].to_vec(), true).await.unwrap();
                meta.flush(leaf).await.unwrap();
                assert!(meta.read(leaf, 4096, 64 << 10).await.unwrap() == data);
                assert!(meta.read(leaf, (8 << 20) - 4096, 4096).await.unwrap() == data[..4096]);
                bed.handle.leaf_io(leaf, Op::WriteZeroes, Flags::NONE, 4096, 8192, &[]).await.unwrap();
                let got = meta.read(leaf, 4096, 12288).await.unwrap();
                assert!(got[..8192] == [0; 8192] && got[8192..] == data[8192..12288]);
                assert_eq!(
                    meta.read(leaf, 8 << 20, 4096).await.unwrap_err().kind,
                    ErrorKind::Invalid,
                    "beyond the end"
                );
                assert_eq!(meta.read(leaf, 0, 33 << 20).await.unwrap_err().kind, ErrorKind::Invalid, "too long");
            });
        }
        assert_eq!(block_on(meta.read(LeafId(77), 0, 4096)).unwrap_err().kind, ErrorKind::NoDevice);
        let handle = bed.handle.clone();
        bed.ring.stop();
        assert_eq!(block_on(handle.meta().read(LeafId(0), 0, 4096)).unwrap_err().kind, ErrorKind::Gone);
    }
}

#[test]
fn concurrent_metadata_ios_queue() {
    let bed = TestBed::new(&RingConfig::default());
    let leaf = bed.leaf("throttled(mem:8M,latency=1ms)");
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            let meta = bed.handle.meta();
            std::thread::spawn(move || {
                for round in 0..40 {
                    let at = (t * 40 + round) * 4096;
                    block_on(meta.write(leaf, at, vec![t as u8; 4096], false)).unwrap();
                    assert_eq!(block_on(meta.read(leaf, at, 4096)).unwrap(), vec![t as u8; 4096]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    bed.ring.stop();
}

#[test]
fn a_late_label_write_is_an_error_within_the_limit() {
    let bed = TestBed::new(&RingConfig { disk_timeout_ms: 150, ..RingConfig::default() });
    let leaf = bed.leaf("faulty(mem:1M,write-hang*1)");
    let meta = bed.handle.meta();
    let error = block_on(meta.write(leaf, 0, vec![1; 4096], false)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TimedOut);
    block_on(meta.write(leaf, 4096, vec![2; 4096], false)).unwrap();
    let error = block_on(meta.write(leaf, 0, vec![2; 8192], false)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TimedOut, "the late one might land over it");
    bed.handle.disk(leaf).unwrap().set_faults(&braid_ring::FaultRules::default()).unwrap();
    assert_eq!(block_on(meta.read(leaf, 0, 1)).map(|v| v.len()), Ok(1));
    block_on(meta.write(leaf, 0, vec![2; 8192], false)).expect("the late one is back");
    bed.ring.stop();
}

#[test]
fn leaf_ids_are_reused_only_when_free() {
    let _alone = without_other_children();
    let folder = Folder::new("numbers");
    let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    let name = format!("file:{},size=1M", folder.path("disk"));
    let (device, leaf) = bed.bare(&format!("faulty({name},write-hang)"));
    let held = bed.begin(1, device, Op::Write, Flags::NONE, 0, 4096, &[1; 4096]);
    assert!(held.recv_timeout(Duration::from_millis(50)).is_err());
    let disk = bed.handle.disk(leaf).unwrap();
    let drained = bed.handle.publish_and_drain(device, None);
    assert!(bed.handle.disk(leaf).is_some());
    let refused = bed.call(0, device, Op::Read, Flags::NONE, 0, 512, &[]).result.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoDevice, "new requests meet no device");
    let gone = bed.handle.remove_leaf(leaf);
    assert!(bed.handle.disk(leaf).is_none());
    let other = bed.leaf("mem:1M");
    assert_ne!(other, leaf, "a shard still has I/O on it");
    disk.set_faults(&braid_ring::FaultRules::default()).unwrap();
    assert!(held.recv().unwrap().result.is_ok(), "what was in flight has ended well");
    drained.wait().unwrap();
    gone.wait().unwrap();
    drop(disk);
    assert_eq!(bed.leaf(&name), leaf, "closed, unlocked, and its number free");
    bed.ring.stop();
}

#[test]
fn a_change_of_layout_drains_on_every_shard() {
    let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    let (slow, leaf) = bed.bare("faulty(mem:1M,write-delay=150ms)");
    // Disjoint writes: of two overlapping ones the second would wait, and be planned with the new layout.
    let begin = |s: u16| bed.begin(s, slow, Op::Write, Flags::NONE, u64::from(s) * 4096, 4096, &[1; 4096]);
    let waits: Vec<_> = [0, 1].map(begin).into();
    std::thread::sleep(Duration::from_millis(20));
    let layout = DeviceLayout::new(2, 512, &Node::Leaf { leaf, start: 0, len: 512 << 10 });
    let drained = bed.handle.publish_and_drain(slow, Some(Arc::new(layout)));
    let beyond = bed.call(0, slow, Op::Read, Flags::NONE, 512 << 10, 512, &[]).result.unwrap_err();
    assert_eq!(beyond.kind, ErrorKind::Invalid, "new requests see the new layout at once");
    drained.wait().unwrap();
    for wait in waits {
        assert!(wait.try_recv().expect("completed before the drain was reported").result.is_ok());
    }
    let counters = bed.handle.device_counters(ShardId(0), slow).wait().unwrap();
    assert_eq!((counters.writes, counters.write_bytes), (1, 4096));
    bed.ring.stop();
}

/// Sets timers, and reports when they fire.
struct Alarm(Sender<(u64, u64)>);

impl Frontend for Alarm {
    fn io_done(&mut self, _: &mut Cx<'_>, _: &Completion) {}
    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let in_ms = *message.downcast::<u64>().unwrap();
        assert!(cx.timer_at(cx.now_ns() + in_ms * 1_000_000, in_ms));
    }
    fn timer(&mut self, cx: &mut Cx<'_>, token: u64) {
        self.0.send((token, cx.now_ns())).unwrap();
    }
}

#[test]
fn timers_fire_on_time_on_every_driver() {
    for driver in DriverKind::ALL {
        let (sender, fired) = channel();
        let config = RingConfig { driver: Some(driver), ..RingConfig::default() };
        let ring = Ring::start(&config, |_| vec![Box::new(Alarm(sender.clone())) as Box<dyn Frontend>]).unwrap();
        let begun = std::time::Instant::now();
        [120u64, 40, 80].iter().for_each(|ms| ring.handle().post(ShardId(0), 0, Box::new(*ms)));
        for expected in [40, 80, 120] {
            let (token, _) = fired.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(token, expected);
            assert!(begun.elapsed() >= Duration::from_millis(expected), "{expected} ms after {:?}", begun.elapsed());
        }
        let (turns, sleeps) = ring.handle().turns(ShardId(0));
        assert!(turns < 30 && sleeps > 0, "{driver}: {turns} turns for three timers");
        ring.stop();
    }
}

#[test]
fn throttles_hold_against_the_wall_clock() {
    use crate::common::load::{self, Order};
    let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    for (name, len, per_second) in
        [("throttled(null:64M,iops=4000)", 4096, 4000.0), ("throttled(null:64M,bw=256M)", 64 << 10, 4096.0)]
    {
        let (device, _) = bed.bare(name);
        let order = Order { device, size: 64 << 20, len, depth: 32, total: 2000, writes: 0, probe: || {} };
        // On both shards at once: the limit applies to the disk, not to each shard.
        let begun = std::time::Instant::now();
        let loads = [0, 1].map(|s| load::begin(&bed.handle, s, 1, &order));
        loads.iter().for_each(|l| assert_eq!(l.recv().unwrap().ended, 2000));
        let took = begun.elapsed().as_secs_f64();
        let least = (4000.0 - 0.010 * per_second - 1.0) / per_second;
        assert!(took >= least, "{name}: 4,000 I/Os in {took} s are too fast");
        // A busy machine may be late, but a throttle only makes up for 10 ms at a time.
        assert!(took < 3.0 * least, "{name}: 4,000 I/Os in {took} s are far too slow");
    }
    bed.ring.stop();
}

#[test]
fn a_device_that_was_never_published_is_no_device() {
    let bed = TestBed::new(&RingConfig::default());
    for device in [DeviceId(5), DeviceId(4_000_000)] {
        let error = bed.call(0, device, Op::Read, Flags::NONE, 0, 512, &[]).result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoDevice);
    }
    bed.ring.stop();
}

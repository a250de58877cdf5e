//! A ring stops cleanly under load, stops within bounds with a hung disk, and uses no CPU when idle.

use std::time::{Duration, Instant};

use crate::common::load::{self, Order};
use crate::common::{self, Folder, TestBed};
use braid_engine::{Flags, Op, ShardId};
use braid_ring::RingConfig;

fn order(device: braid_engine::DeviceId, total: u64) -> Order {
    Order { device, size: 8 << 20, len: 4096, depth: 32, total, writes: 4, probe: || {} }
}

#[test]
fn stop_under_load_finishes_what_is_in_flight() {
    let folder = Folder::new("stop");
    let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    let names = [
        format!("file:{},size=8M", folder.path("a")),
        "mem:8M".into(),
        format!("throttled(file:{},size=8M,iops=2000)", folder.path("b")),
        "null:8M".into(),
    ];
    let mut loads = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let (device, _) = bed.bare(name);
        // A frontend runs one load at a time: two disks on each shard would need two.
        if n < 2 {
            loads.push(load::begin(&bed.handle, n as u16, 1, &order(device, u64::MAX)));
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    bed.ring.stop();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for outcome in loads {
        let outcome = outcome.recv().expect("each load got its last completion");
        assert!(outcome.ended > 100 && outcome.errors == 0, "{outcome:?}");
    }
}

#[test]
fn an_idle_ring_makes_no_turns() {
    let folder = Folder::new("idle");
    let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    let (device, _) = bed.bare(&format!("file:{},size=8M", folder.path("a")));
    bed.write(0, device, Flags::NONE, 0, &[1; 4096]);
    bed.read(1, device, 0, 4096);
    std::thread::sleep(Duration::from_millis(50));
    let turns = || [0, 1].map(|s| bed.handle.turns(ShardId(s)).0);
    let before = turns();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(turns(), before, "an idle shard sleeps in the kernel");
    assert_eq!(bed.read(0, device, 0, 4096), [1; 4096], "and wakes up for work");
    assert!(turns()[0] > before[0] && turns()[1] == before[1]);
    bed.ring.stop();
}

#[test]
fn a_hung_disk_delays_the_stop_by_its_time_limit_only() {
    let mut bed = TestBed::new(&RingConfig { shards: 2, disk_timeout_ms: 200, ..RingConfig::default() });
    let (device, _) = bed.bare("faulty(mem:1M,hang)");
    let late = bed.begin(0, device, Op::Write, Flags::NONE, 0, 4096, &[1; 4096]);
    std::thread::sleep(Duration::from_millis(20));
    let begun = Instant::now();
    bed.ring.stop();
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert!(late.recv().unwrap().buffer_busy, "it completed at its time limit");
}

#[test]
fn a_stopped_ring_refuses_calls() {
    let bed = TestBed::new(&RingConfig::default());
    let (handle, disk) = (bed.handle.clone(), common::open("mem:1M"));
    let leaf = handle.add_leaf(std::sync::Arc::clone(&disk)).unwrap();
    bed.ring.stop();
    assert_eq!(handle.add_leaf(disk).unwrap_err().kind, braid_ring::RingErrorKind::Stopped);
    handle.publish_and_drain(braid_engine::DeviceId(0), None).wait().expect("nothing is left to drain");
    handle.remove_leaf(leaf).wait().expect("no shard has it");
    assert!(handle.device_counters(ShardId(0), braid_engine::DeviceId(0)).wait().is_err());
}

#[test]
fn a_wrong_configuration_is_refused() {
    for config in [
        RingConfig { shards: 0, ..RingConfig::default() },
        RingConfig { arena_bytes: 4096, ..RingConfig::default() },
        RingConfig { pin: vec![0], shards: 2, ..RingConfig::default() },
        RingConfig { pin: vec![900], ..RingConfig::default() },
        RingConfig { disk_timeout_ms: 0, ..RingConfig::default() },
    ] {
        let error = braid_ring::Ring::start(&config, |_| vec![]).err().expect("refused");
        assert!(!error.to_string().is_empty());
    }
}

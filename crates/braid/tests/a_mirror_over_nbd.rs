//! A hanging disk of a mirror costs an NBD client time, and nothing else.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use braid_engine::{
    DeviceId, DeviceLayout, EngineIo, ErrorKind, Fault, LeafId, MemberRole, MirrorMember, MirrorNode, Node, RegionMap,
    ShardId, Uuid,
};
use braid_export::{ExportInfo, ExportTable};
use braid_geometry::{Geometry, Level, Spec};
use braid_nbd::EventQueue;
use braid_nbd::client::{Client, ClientConfig};
use braid_nbd::server::{NbdFrontend, NewConnection, ServerConfig};
use braid_ring::{Disk, DiskSpec, FaultRules, OpenOptions, Ring, RingConfig, RingEngine};

const DEVICE: DeviceId = DeviceId(0);
const SIZE: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

/// Returns a mirror of two disks in which every region was written.
fn layout(version: u32, leaves: [LeafId; 2], roles: [MemberRole; 2]) -> Option<Arc<DeviceLayout>> {
    let all = [u64::MAX; 4];
    let regions = Arc::new(RegionMap::new(ShardId(0), Uuid::from_u128(1), SIZE, 64 << 10, (&all, &all), true));
    let member = |(leaf, role)| MirrorMember { leaf, start: 0, len: SIZE, bitmap_start: 0, role, write_mostly: false };
    let members = leaves.into_iter().zip(roles).map(member).collect();
    let geometry = Geometry::plan(Spec::new(Level::Raid1), &[SIZE; 2]).unwrap();
    let node = MirrorNode { geometry, members, successors: Vec::new(), regions, parity: None, failed: false };
    Some(Arc::new(DeviceLayout::new(version, 512, &Node::Mirrored(Box::new(node)))))
}

/// Polls a future periodically: no executor is needed for that.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Drops the first member at its first fault that freezes the array. Returns how many failed reads were reported.
fn reconcile(engine: &RingEngine, leaves: [LeafId; 2]) -> u32 {
    let mut reads = 0;
    loop {
        let fault: Fault = block_on(engine.next_fault(DEVICE));
        assert_eq!((fault.role, fault.kind), (0, ErrorKind::TimedOut));
        if fault.freezes_device() {
            block_on(engine.freeze(DEVICE));
            block_on(engine.publish(DEVICE, layout(2, leaves, [MemberRole::Failed, MemberRole::InSync])));
            return reads;
        }
        reads += 1;
    }
}

#[test]
fn a_disk_of_a_mirror_that_hangs_fails_nothing() {
    let exports = Arc::new(ExportTable::new());
    let config = RingConfig { disk_timeout_ms: 300, ..RingConfig::default() };
    let ring = Ring::start(&config, |_| {
        vec![Box::new(NbdFrontend::new(exports.clone(), Arc::new(EventQueue::new()), ServerConfig::default()))]
    })
    .unwrap();
    let handle = ring.handle();
    // Slow enough that reads come from the first disk, fast enough for the time limit.
    let names = ["faulty(mem:16M,read-hang@0-1M,write-hang@2M-3M)", "throttled(mem:16M,iops=2000,bw=100M)"];
    let disks =
        names.map(|name| Arc::new(Disk::open(&DiskSpec::parse(name).unwrap(), OpenOptions::default()).unwrap()));
    let leaves = [0, 1].map(|k: usize| handle.add_leaf(disks[k].clone()).unwrap());
    handle.publish_and_drain(DEVICE, layout(1, leaves, [MemberRole::InSync; 2])).wait().unwrap();
    exports.add(ExportInfo::new("m", DEVICE, SIZE)).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let new = NewConnection { fd: theirs.into(), peer: String::new(), exports: None, address: None, tls: None };
    handle.post(ShardId(0), 0, Box::new(new));
    let mut client = Client::over_unix(ours, "m", ClientConfig::default()).unwrap();

    client.write_at(4096, &[3; 4096], false).unwrap();
    let mut buf = vec![0; 4096];
    for _ in 0..20 {
        buf.fill(0);
        client.read_at(4096, &mut buf).expect("the other disk has it");
        assert_eq!(buf, [3; 4096]);
    }
    let late = disks[0].clone();
    assert!(handle.leaf_stats(leaves[0]).unwrap().late > 0, "one was read from the disk that hangs");
    let reconciler = std::thread::spawn({
        let engine = handle.engine();
        move || reconcile(&engine, leaves)
    });
    client.write_at(2 * MIB, &[7; 4096], false).expect("it stands on the other disk");
    assert!(reconciler.join().unwrap() > 0);
    client.write_at(2 * MIB, &[8; 4096], true).unwrap();
    client.flush().unwrap();
    client.read_at(2 * MIB, &mut buf).unwrap();
    assert_eq!(buf, [8; 4096]);
    client.disconnect().unwrap();
    late.set_faults(&FaultRules::default()).unwrap();
    handle.remove_leaf(leaves[0]).wait().unwrap();
    ring.stop();
}

//! A replicated device replies while its lease lasts, on every shard, and continues when the lease is renewed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::{TestBed, block_on};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, DeviceLease, ErrorKind, IoError, MemberRole, MirrorMember, MirrorNode, Node,
    RegionMap, ShardId, Uuid,
};
use braid_geometry::{Geometry, Level, Spec};
use braid_ring::{RingConfig, RingHandle};

const MEMBER: u64 = 4 << 20;
const DEVICE: DeviceId = DeviceId(7);
const A_WHILE: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(30);

fn mirror(bed: &TestBed, lease: &Arc<DeviceLease>) -> DeviceLayout {
    let member = |_| MirrorMember {
        leaf: bed.leaf("mem:8M"),
        start: 0,
        len: MEMBER,
        bitmap_start: MEMBER,
        role: MemberRole::InSync,
        write_mostly: false,
    };
    let all = [u64::MAX];
    let bits = (&all[..], &all[..]);
    let regions = RegionMap::new(ShardId(1), Uuid::from_u128(7), MEMBER, 64 << 10, bits, true);
    let node = MirrorNode {
        geometry: Geometry::plan(Spec::new(Level::Raid1), &[MEMBER; 2]).unwrap(),
        members: [0, 1].map(member).to_vec(),
        successors: Vec::new(),
        regions: Arc::new(regions),
        parity: None,
        failed: false,
    };
    DeviceLayout::new(1, 512, &Node::Mirrored(Box::new(node))).replicated(Arc::clone(lease))
}

/// Makes a write and a read on each shard, and a flush, each on a thread of its own.
fn send_requests(handle: &RingHandle) -> Receiver<Result<(), IoError>> {
    let (sender, replies) = channel();
    for k in 0..5u64 {
        let (devices, sender) = (handle.devices(), sender.clone());
        std::thread::spawn(move || {
            let result = block_on(async {
                match k {
                    0 | 1 => devices.write(DEVICE, k * 4096, vec![7; 4096], false).await,
                    4 => devices.flush(DEVICE).await,
                    _ => devices.read(DEVICE, k * 4096, 4096).await.map(drop),
                }
            });
            let _ = sender.send(result);
        });
    }
    replies
}

#[test]
fn replies_wait_for_the_lease() {
    let bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    let lease = Arc::new(DeviceLease::new(0));
    bed.handle.publish_and_drain(DEVICE, Some(Arc::new(mirror(&bed, &lease)))).wait().unwrap();
    for _ in 0..3 {
        let replies = send_requests(&bed.handle);
        assert_eq!(replies.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout));
        let until_ns = bed.handle.now_ns() + 400_000_000;
        bed.handle.renew_lease(DEVICE, &lease, until_ns);
        for _ in 0..5 {
            replies.recv_timeout(LONG).unwrap().unwrap();
        }
        while bed.handle.now_ns() < until_ns {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let replies = send_requests(&bed.handle);
    assert_eq!(replies.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout));
    // The lease is not renewed again.
    bed.handle.publish_and_drain(DEVICE, None).wait().unwrap();
    for _ in 0..5 {
        assert_eq!(replies.recv_timeout(LONG).unwrap().unwrap_err().kind, ErrorKind::NoDevice);
    }
    bed.ring.stop();
}

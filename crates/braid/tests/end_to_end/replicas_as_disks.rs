//! A node's replica as a disk of a controller's shards, when the node's daemon dies, and when another controller takes over.

use crate::replicas_on_a_node::{FIRST, Node, SECOND, VOLUME};
use crate::support::*;
use braid_engine::{ErrorKind, Flags, LeafId, Op};
use braid_nbd::client::Endpoint;
use braid_nbd::client::remote::{Fenced, RemoteConfig, open_remote};
use braid_ring::{Disk, OpenOptions, Ring, RingConfig, RingError, RingHandle};
use std::sync::Arc;
use std::time::Duration;

fn open(node: &Node, controller: &str, epoch: u64, session: u64) -> Result<Disk, RingError> {
    let socket = node.daemon.folder.join("replicas.sock");
    let endpoint: Endpoint = format!("nbd+unix:///replica:{VOLUME}?socket={socket}").parse().expect("an address");
    let uuid = |text: &str| text.parse().expect("a UUID");
    let fenced = Fenced { epoch, controller: uuid(controller), boot: uuid(&node.boot()), session };
    // Gives a daemon that restarts on a busy machine enough time.
    let limit = Some(Duration::from_secs(20));
    let config = RemoteConfig {
        fenced: Some(fenced),
        connections: Some(2),
        reply_timeout: limit,
        ..RemoteConfig::new(endpoint)
    };
    open_remote(&config, OpenOptions::default())
}

#[track_caller]
fn refused(opened: Result<Disk, RingError>, words: &str) {
    let said = opened.map(|_| ()).expect_err(words).to_string();
    assert!(said.contains(words), "{said}");
}

/// The shards of a controller.
struct Controller {
    _ring: Ring,
    handle: RingHandle,
    runtime: tokio::runtime::Runtime,
}

impl Controller {
    fn start() -> Controller {
        let ring = Ring::start(&RingConfig { shards: 2, ..RingConfig::default() }, |_| Vec::new()).expect("a ring");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        Controller { handle: ring.handle(), _ring: ring, runtime }
    }

    fn io(&self, leaf: LeafId, op: Op, offset: u64, len: u64, data: &[u8]) -> Result<Vec<u8>, ErrorKind> {
        // As for a copy of a replica: reads skip unallocated ranges.
        let flags = if op == Op::Read { Flags::SPARSE } else { Flags::NONE };
        let done = self.handle.leaf_io(leaf, op, flags, offset, len, data);
        self.runtime.block_on(done).map_err(|error| error.kind)
    }

    fn write(&self, leaf: LeafId, offset: u64, data: &[u8]) -> Result<(), ErrorKind> {
        self.io(leaf, Op::Write, offset, data.len() as u64, data).map(drop)
    }
}

#[test]
fn a_replica_is_a_disk_until_another_controller_takes_over() {
    let mut node = Node::start();
    node.create();
    refused(open(&node, FIRST, 3, 1), "fenced");
    node.raise(3, FIRST);
    refused(open(&node, FIRST, 2, 1), "epoch 3 is answered now");
    let controller = Controller::start();
    let disk = Arc::new(open(&node, FIRST, 3, 1).expect("it is the controller's"));
    assert_eq!(disk.size_bytes(), 67 * MIB);
    let leaf = controller.handle.add_leaf(Arc::clone(&disk)).expect("room for a disk");
    let data = noise(4 * MIB, 1);
    controller.write(leaf, MIB, &data).expect("it is written");
    controller.io(leaf, Op::Flush, 0, 0, &[]).expect("it is flushed");
    let around = controller.io(leaf, Op::Read, 4 * MIB, 2 * MIB, &[]).expect("it is read");
    assert!(around[..MIB as usize] == data[3 * MIB as usize..] && around[MIB as usize..].iter().all(|byte| *byte == 0));
    // The daemon dies: requests wait, and the restarted daemon carries them out under the same boot.
    node.daemon.restart(true);
    let more = noise(MIB, 2);
    controller.write(leaf, 8 * MIB, &more).expect("it is written");
    assert!(controller.io(leaf, Op::Read, MIB, 4 * MIB, &[]).expect("it is read") == data);
    assert!(controller.io(leaf, Op::Read, 8 * MIB, MIB, &[]).expect("it is read") == more);
    assert_eq!(disk.loss_reason(), None);
    // An older session is refused. A newer one ends this one, which gets the reason and does not reconnect.
    let newer = Arc::new(open(&node, FIRST, 3, 2).expect("a newer session"));
    refused(open(&node, FIRST, 3, 1), "fenced");
    assert_eq!(controller.write(leaf, 0, &more), Err(ErrorKind::Gone));
    let why = disk.loss_reason().expect("it is lost").to_owned();
    assert!(why.starts_with("its server refuses it: ") && why.contains("fenced"), "{why}");
    // Another controller ends the session, too.
    let second = controller.handle.add_leaf(Arc::clone(&newer)).expect("room for a disk");
    assert!(controller.io(second, Op::Read, 8 * MIB, MIB, &[]).expect("it is read") == more);
    node.raise(5, SECOND);
    assert_eq!(controller.write(second, 8 * MIB, &data), Err(ErrorKind::Gone));
    assert!(
        newer.loss_reason().is_some_and(|why| why.contains("epoch 5 is answered now")),
        "{:?}",
        newer.loss_reason()
    );
    let third = Arc::new(open(&node, SECOND, 5, 1).expect("the new controller's"));
    let third = controller.handle.add_leaf(third).expect("room for a disk");
    assert!(controller.io(third, Op::Read, 8 * MIB, MIB, &[]).expect("it is read") == more);
}

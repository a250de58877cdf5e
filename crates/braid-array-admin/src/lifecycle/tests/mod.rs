//! The life cycle of arrays, on disks in memory that lose what was not made durable.
#![allow(clippy::unwrap_used)]

mod disks;
mod failing;
mod grow_sweep;
mod histories;
mod journal_disk;
mod journal_scenarios;
mod journal_sweep;
mod journal_writer;
mod mirror_sweep;
mod mirrors;
mod old_copies;
mod pool_labels;
mod scenarios;
mod sessions;
mod sweep;
mod unused_lineages;
mod voters;
mod widths;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use braid_engine::LeafId;
use braid_format::{MemberId, Name, StartPolicy, Uuid};
use braid_geometry::{Level, Spec};

use self::disks::Disks;
use super::{Array, CreateRequest, LifecycleError, create};

/// Runs a future to completion.
fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn leaves(count: u32) -> Vec<LeafId> {
    (0..count).map(LeafId).collect()
}

/// Three disks of different sizes, one of which ends within a block.
fn three_disks() -> Disks {
    Disks::new(&[(2 << 20) + 1536, 4 << 20, 3 << 20])
}

fn request(text: &str, spec: Spec, uuid: u8, leaves: Vec<LeafId>) -> CreateRequest {
    CreateRequest {
        name: name(text),
        spec,
        member_ids: (0..leaves.len() as u64).map(|i| MemberId::from_random(u64::from(uuid) << 16 | i)).collect(),
        leaves,
        uuid: Uuid::from_bytes([uuid; 16]),
        spares: Vec::new(),
        journal: None,
        write_mostly: Vec::new(),
        start_policy: StartPolicy::ByLevel,
        lineage: 77,
        session: 1,
        created_unix_s: 1_700_000_000,
        force: false,
    }
}

fn raid0(text: &str, uuid: u8, leaves: Vec<LeafId>) -> CreateRequest {
    request(text, Spec::new(Level::Raid0), uuid, leaves)
}

fn create_raid0(disks: &Disks, text: &str, uuid: u8, leaves: Vec<LeafId>) -> Result<Array, LifecycleError> {
    run(create(disks, &raid0(text, uuid, leaves)))
}

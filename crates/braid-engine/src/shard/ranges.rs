//! Ordered requests and the range table: acquires and releases ranges, and wakes requests that wait for them.

use std::collections::VecDeque;

use super::waiting::range_key;
use super::{ShardMessage, Shared, slots};
use crate::io::{DeviceId, LeafError, ShardId};
use crate::limits::STEP_ORDERED_BYTES_MAX;
use crate::overlap::{Bucket, RangeTable};

/// Distinguishes the words of the volumes' range table from those of the other one.
const OF_VOLUMES: u32 = 1 << 31;

/// Returns the table that a slot's range is in, and the mark of its words.
fn table<'a>(shared: &'a Shared, slot: &slots::Slot) -> (&'a RangeTable, u32) {
    if slot.pool == slots::NO_POOL { (&shared.ranges, 0) } else { (&shared.volume_ranges, OF_VOLUMES) }
}

/// Acquires the next part of an ordered request in the range table, after releasing the previous part.
pub(super) fn hold(
    shared: &Shared,
    woken: &mut VecDeque<(u64, Option<LeafError>)>,
    outbox: &mut VecDeque<(ShardId, ShardMessage)>,
    id: ShardId,
    slot: &mut slots::Slot,
) -> Result<(), Bucket> {
    if slot.held.0 < slot.held.1 {
        release(shared, woken, outbox, id, slot);
    }
    let (start, end) = (slot.cursor, slot.end.min(slot.cursor + STEP_ORDERED_BYTES_MAX));
    let (table, mark) = table(shared, slot);
    let mut tell = |bucket: Bucket| notify_released(shared, woken, outbox, id, Bucket(bucket.0 | mark));
    let taken = table.acquire(DeviceId(slot.device), start, end, &mut tell);
    taken.map_err(|bucket| Bucket(bucket.0 | mark))?;
    slot.held = (start, end);
    Ok(())
}

pub(super) fn release(
    shared: &Shared,
    woken: &mut VecDeque<(u64, Option<LeafError>)>,
    outbox: &mut VecDeque<(ShardId, ShardMessage)>,
    id: ShardId,
    slot: &mut slots::Slot,
) {
    let (start, end) = std::mem::take(&mut slot.held);
    let (table, mark) = table(shared, slot);
    let mut tell = |bucket: Bucket| notify_released(shared, woken, outbox, id, Bucket(bucket.0 | mark));
    table.release(DeviceId(slot.device), start, end, &mut tell);
}

#[cold]
pub(super) fn notify_released(
    shared: &Shared,
    woken: &mut VecDeque<(u64, Option<LeafError>)>,
    outbox: &mut VecDeque<(ShardId, ShardMessage)>,
    id: ShardId,
    bucket: Bucket,
) {
    woken.push_back((range_key(bucket), None));
    for shard in (0..shared.shards).map(ShardId).filter(|s| *s != id) {
        outbox.push_back((shard, ShardMessage::Released(bucket)));
    }
}

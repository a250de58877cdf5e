//! Ordered requests and the range table: holding, giving back, and telling who may go on.

use std::collections::VecDeque;

use super::waiting::range_key;
use super::{ShardMessage, Shared, slots};
use crate::io::{DeviceId, LeafError, ShardId};
use crate::limits::STEP_ORDERED_BYTES_MAX;
use crate::overlap::Bucket;

/// Takes the next part of an ordered request in the range table, giving back the part before.
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
    let mut tell = |bucket| tell_released(shared, woken, outbox, id, bucket);
    shared.ranges.acquire(DeviceId(slot.device), start, end, &mut tell)?;
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
    let mut tell = |bucket| tell_released(shared, woken, outbox, id, bucket);
    shared.ranges.release(DeviceId(slot.device), start, end, &mut tell);
}

#[cold]
pub(super) fn tell_released(
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

//! Reading a member's log ring.

use braid_format::pool::{
    BATCH_BYTES_MAX, Checkpoint, LogBatchHeader, LogEntry, batch_entries, validate_batch as open_batch,
};

use super::commit_ring::{BATCH_BLOCKS_MAX, LogRing};
use super::device::PoolDevice;
use super::open_pool::{OpenError, OpenPool, failed, fits};
use crate::io::DeviceIo;

const BLOCK: u64 = 4096;
/// Blocks of the ring that are read at a time.
const SCAN_BLOCKS: u64 = 1024;

/// Reads the longest unbroken series of batches from the ring start on.
pub(super) async fn read_ring<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    member: &PoolDevice,
    start: &Checkpoint,
) -> Result<Vec<(LogBatchHeader, Vec<LogEntry>)>, OpenError> {
    let number = member.number;
    let mut batches = Vec::new();
    let mut position = u64::from(start.position);
    let first = position;
    let mut sequence = start.sequence;
    loop {
        let begin = LogRing::next_position(position, member.ring.1);
        let offset = member.ring.0 + begin % member.ring.1 * BLOCK;
        let bytes = io.read(member.device, offset, BATCH_BYTES_MAX).await.map_err(failed(number, "read"))?;
        let Ok(header) = open_batch(&bytes) else { break };
        let of_run = header.pool_tag == start.pool_tag && header.run == start.run && header.sequence == sequence;
        // The writer never reaches the ring start in use.
        if !of_run || begin + u64::from(header.blocks) > first + member.ring.1 {
            break;
        }
        let Ok(list) = batch_entries(&bytes, &header).collect::<Result<Vec<_>, _>>() else {
            let what = format!("an entry of batch {sequence} of its ring makes no sense");
            return Err(OpenError::Damaged { member: number, what });
        };
        if let Some(entry) = list.iter().find(|entry| !fits(what, entry)) {
            let what =
                format!("batch {sequence} of its ring speaks of record {} of member {}", entry.index, entry.member);
            return Err(OpenError::Damaged { member: number, what });
        }
        position = begin + u64::from(header.blocks);
        sequence += 1;
        batches.push((header, list));
    }
    check_no_later_batch(io, member, start, sequence).await?;
    Ok(batches)
}

/// Searches the whole ring for a commit after batch `lacks`, which was not found, and fails if there is one. Such a
/// commit was begun only when the batch was durable. So the batch was not torn by a crash: it was damaged since, or the
/// newest start of the ring was. Its content is lost, and the pool must not be served as if the batch had never
/// existed.
async fn check_no_later_batch<I: DeviceIo>(
    io: &I,
    member: &PoolDevice,
    start: &Checkpoint,
    lacks: u64,
) -> Result<(), OpenError> {
    // The first batch of the commit has this sequence number. A later batch of the commit to which `lacks` belongs
    // proves nothing: the batches of one commit are in flight together.
    let later = |header: &LogBatchHeader| header.sequence.saturating_sub(header.index.into()) > lacks;
    let Some(header) = find_batch(io, member, start, later).await? else { return Ok(()) };
    let what = format!(
        "batch {lacks} of its ring is damaged, or the newest start of the ring is: commit {} came after it, and what was committed between them is lost",
        header.commit
    );
    Err(OpenError::Damaged { member: member.number, what })
}

/// Searches the whole ring of a member whose start is of an earlier session than the others' starts. Either the open
/// was interrupted before the pool served, or a newer start of this member is damaged: then the ring has commits after
/// `commit`, the last that the others' starts cover, and the check fails.
pub(super) async fn check_no_later_commit<I: DeviceIo>(
    io: &I,
    member: &PoolDevice,
    start: &Checkpoint,
    commit: u64,
) -> Result<(), OpenError> {
    let Some(header) = find_batch(io, member, start, |header| header.commit > commit).await? else { return Ok(()) };
    let what = format!(
        "the newest start of its ring is damaged: commit {} is in the ring, and nobody knows what else was",
        header.commit
    );
    Err(OpenError::Damaged { member: member.number, what })
}

/// Returns a batch of the start's run, from anywhere in the ring.
async fn find_batch<I: DeviceIo>(
    io: &I,
    member: &PoolDevice,
    start: &Checkpoint,
    wanted: impl Fn(&LogBatchHeader) -> bool,
) -> Result<Option<LogBatchHeader>, OpenError> {
    let (number, (ring, blocks)) = (member.number, member.ring);
    let of_run = |header: &LogBatchHeader| header.pool_tag == start.pool_tag && header.run == start.run;
    let found = |bytes: &[u8]| open_batch(bytes).ok().filter(of_run).filter(&wanted);
    let mut at = 0;
    while at < blocks {
        let some = SCAN_BLOCKS.min(blocks - at);
        // A batch that begins at the end of this part is read whole.
        let beyond = (BATCH_BLOCKS_MAX - 1).min(blocks - at - some);
        let bytes = io.read(member.device, ring + at * BLOCK, ((some + beyond) * BLOCK) as usize).await;
        let bytes = bytes.map_err(failed(number, "read"))?;
        if let Some(header) = (0..some).find_map(|block| found(&bytes[(block * BLOCK) as usize..])) {
            return Ok(Some(header));
        }
        at += some;
    }
    Ok(None)
}

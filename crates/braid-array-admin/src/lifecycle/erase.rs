//! Erasing labels: at the end of a delete, and by `wipe`. Only blocks that hold a label are written.

use braid_engine::{LeafId, MetaIo};
use braid_format::pool::{POOL_MAGIC, PoolHeader, PoolLabel};
use braid_format::{ArrayState, Header, LABEL_BYTES, Label, MAGIC, copy_offset, examine};

use super::disk::MemberDisk;
use super::error::LifecycleError;
use super::found::{FoundArray, targets_of};
use super::join::try_join_all;
use super::status::{ArrayStatus, Refusal};
use super::write::{LabelCopy, Target, erase_block, flush, write_labels};

/// What `wipe` did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wiped {
    /// Byte offsets of erased labels, which are zeros now.
    pub erased: Vec<u64>,
    /// Byte offsets of labels that belong to something else, such as a partition on the disk; they were not touched.
    pub left: Vec<u64>,
}

/// Zeroes both copies on each target. The copy at the end goes first, because the one at the start records its offset.
pub(super) async fn erase_targets<M: MetaIo>(io: &M, targets: &[Target]) -> Result<(), LifecycleError> {
    let erase = |target: Target| async move {
        for copy in [LabelCopy::End, LabelCopy::Start] {
            erase_block(io, target.leaf, copy.offset(&target.part)).await?;
        }
        Ok::<(), LifecycleError>(())
    };
    try_join_all(targets.iter().map(|target| erase(target.clone()))).await?;
    Ok(())
}

/// Finishes an interrupted delete.
pub(super) async fn finish_delete<M: MetaIo>(io: &M, found: &FoundArray) -> Result<(), LifecycleError> {
    let mut targets = targets_of(found);
    let remnants = found.remnants.iter().map(|(leaf, _)| *leaf);
    try_join_all(targets.iter().map(|t| t.leaf).chain(remnants.clone()).map(|leaf| flush(io, leaf))).await?;
    if let Some(newest) = &found.newest {
        // Before: some members are "deleting". After: all are. Then none can come back as active.
        write_labels(io, &mut targets, newest).await?;
    }
    erase_targets(io, &targets).await?;
    try_join_all(remnants.map(|leaf| wipe(io, leaf))).await?;
    Ok(())
}

/// Removes the labels of an array that is not started: one whose creation was interrupted, or, with `force`, one that
/// is incomplete or refused. Missing members, and disks that are no longer members, keep theirs.
///
/// # Errors
/// [`LifecycleError::NotReady`] if its status does not allow deleting it like this, or a disk's error.
pub async fn delete_found<M: MetaIo>(io: &M, found: &FoundArray, force: bool) -> Result<(), LifecycleError> {
    let allowed = match &found.status {
        ArrayStatus::Ready
        | ArrayStatus::Degraded { .. }
        | ArrayStatus::InterruptedCreate
        | ArrayStatus::InterruptedDelete => true,
        // Which of two twins is the member cannot be known: they are to be wiped one by one.
        ArrayStatus::Refused { reasons } => force && reasons.iter().all(|r| !matches!(r, Refusal::Twins { .. })),
        ArrayStatus::Incomplete { .. } | ArrayStatus::Waiting { .. } => force,
    };
    if !allowed {
        return Err(LifecycleError::NotReady { status: Box::new(found.status.clone()) });
    }
    let mut found = found.clone();
    let mut targets = targets_of(&found);
    if let Some(newest) = &mut found.newest {
        let active = |disk: &MemberDisk| disk.label.array.state == ArrayState::Active;
        let any_active =
            newest.state == ArrayState::Active || found.members.iter().any(|m| m.disk.as_ref().is_some_and(active));
        if any_active {
            try_join_all(targets.iter().map(|t| flush(io, t.leaf))).await?;
            // As in `start`: first all members get the newest label, then the next one. Not if some are still forming:
            // a crash in between would complete a create that was never acknowledged.
            if found.status != ArrayStatus::InterruptedCreate {
                write_labels(io, &mut targets, newest).await?;
            }
            newest.sequence += 1;
            newest.state = ArrayState::Deleting;
            write_labels(io, &mut targets, newest).await?;
        }
    }
    erase_targets(io, &targets).await?;
    try_join_all(found.remnants.iter().map(|(leaf, _)| wipe(io, *leaf))).await?;
    Ok(())
}

/// Removes Braid's labels, of arrays and of pools, intact or damaged, from a disk, and nothing else.
///
/// # Errors
/// A disk's error.
pub async fn wipe<M: MetaIo>(io: &M, leaf: LeafId) -> Result<Wiped, LifecycleError> {
    let size_bytes = io.size_bytes(leaf);
    let mut wiped = Wiped::default();
    let Some(last) = copy_offset(size_bytes) else { return Ok(wiped) };
    let read = |offset: u64| async move {
        let block = io.read(leaf, offset, LABEL_BYTES).await;
        block.map_err(|source| LifecycleError::Io { leaf, action: "read the label", offset, source })
    };
    let start = read(0).await?;
    let mut offsets = vec![last];
    offsets.extend(examine::recorded_copy_offset(&start, size_bytes).filter(|offset| *offset != last));
    // The start goes last, as in a delete.
    offsets.push(0);
    for offset in offsets {
        let block = if offset == 0 { start.clone() } else { read(offset).await? };
        if !block.starts_with(&MAGIC) && !block.starts_with(&POOL_MAGIC) {
            continue;
        }
        if belongs_elsewhere(&block, offset) {
            wiped.left.push(offset);
        } else {
            erase_block(io, leaf, offset).await?;
            wiped.erased.push(offset);
        }
    }
    wiped.erased.sort_unstable();
    Ok(wiped)
}

/// Whether a readable label records a location other than this one.
fn belongs_elsewhere(block: &[u8], offset: u64) -> bool {
    let header = Label::decode(block).map(|label| label.header()).ok().or_else(|| Header::decode(block));
    let of_pool = || PoolLabel::decode(block).map(|label| label.header()).ok().or_else(|| PoolHeader::decode(block));
    match header {
        Some(header) => offset != header.layout.label_start && offset != header.layout.copy_start,
        None => of_pool().is_some_and(|header| !header.layout.has_label_at(offset)),
    }
}

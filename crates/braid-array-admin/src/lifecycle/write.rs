//! Writes labels: two copies on each disk, one after the other, on all disks concurrently.

use braid_engine::{LeafId, MetaIo};
use braid_format::{ArrayPart, BLOCK_BYTES, Label, MemberId, MemberPart};

use super::error::LifecycleError;
use super::join::{join_all, try_join_all};

/// One of a disk's two copies of the label.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LabelCopy {
    /// At the start of the disk.
    Start,
    /// At its end.
    End,
}

impl LabelCopy {
    pub(super) fn other(self) -> LabelCopy {
        match self {
            LabelCopy::Start => LabelCopy::End,
            LabelCopy::End => LabelCopy::Start,
        }
    }

    pub(super) fn offset(self, member: &MemberPart) -> u64 {
        match self {
            LabelCopy::Start => member.layout.label_start,
            LabelCopy::End => member.layout.copy_start,
        }
    }
}

/// A disk that labels are written to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub leaf: LeafId,
    pub part: MemberPart,
    /// The copy that may be torn or older: it is written first, so that the other one stays valid meanwhile.
    pub doubtful: LabelCopy,
}

impl Target {
    /// Returns the label for this disk: with the number that the member table gives it.
    pub fn label(&self, array: &ArrayPart) -> Label {
        let mut member = self.part.clone();
        member.slot = number_of(array, member.id).unwrap_or(member.slot);
        Label { array: array.clone(), member }
    }
}

/// Returns the number of a member in a label's table.
pub(super) fn number_of(array: &ArrayPart, id: MemberId) -> Option<u16> {
    array.members.iter().position(|m| m.id == Some(id)).map(|place| place as u16)
}

/// Writes this label to all targets. On `Ok`, both copies are durable on all of them. After an error or a loss of
/// power, each target still has a valid copy, of this label or of the previous one.
pub(super) async fn write_labels<M: MetaIo>(
    io: &M,
    targets: &mut [Target],
    array: &ArrayPart,
) -> Result<(), LifecycleError> {
    let mut writes = Vec::with_capacity(targets.len());
    for target in targets {
        // Encoded before anything is written: a label that the format cannot hold changes no disk.
        let bytes = Label { array: array.clone(), member: target.part.clone() }.encode()?;
        writes.push((target, bytes));
    }
    try_join_all(writes.into_iter().map(|(target, bytes)| write_both(io, target, bytes.to_vec()))).await?;
    Ok(())
}

/// [`write_labels`], with a result for each target.
pub(super) async fn write_each<M: MetaIo>(
    io: &M,
    targets: &mut [&mut Target],
    array: &ArrayPart,
) -> Vec<Result<(), LifecycleError>> {
    join_all(targets.iter_mut().map(|target| async move {
        let bytes = target.label(array).encode()?;
        write_both(io, target, bytes.to_vec()).await
    }))
    .await
}

async fn write_both<M: MetaIo>(io: &M, target: &mut Target, bytes: Vec<u8>) -> Result<(), LifecycleError> {
    let first = target.doubtful;
    for copy in [first, first.other()] {
        // Set before the write begins: if the write fails, this copy is the doubtful one.
        target.doubtful = copy;
        write_block(io, target.leaf, copy.offset(&target.part), bytes.clone(), true).await?;
    }
    Ok(())
}

/// Writes one block of a label.
pub(super) async fn write_block<M: MetaIo>(
    io: &M,
    leaf: LeafId,
    offset: u64,
    bytes: Vec<u8>,
    durable: bool,
) -> Result<(), LifecycleError> {
    let result = io.write(leaf, offset, bytes, durable).await;
    result.map_err(|source| LifecycleError::Io { leaf, action: "write the label", offset, source })
}

/// Zeroes one block of a label, durably.
pub(super) async fn erase_block<M: MetaIo>(io: &M, leaf: LeafId, offset: u64) -> Result<(), LifecycleError> {
    let zeros = vec![0; BLOCK_BYTES as usize];
    let result = io.write(leaf, offset, zeros, true).await;
    result.map_err(|source| LifecycleError::Io { leaf, action: "erase the label", offset, source })
}

/// Makes all earlier writes durable.
pub(super) async fn flush<M: MetaIo>(io: &M, leaf: LeafId) -> Result<(), LifecycleError> {
    let result = io.flush(leaf).await;
    result.map_err(|source| LifecycleError::Io { leaf, action: "flush the disk", offset: 0, source })
}

//! Finds the batches to recover: reads the rings of all members in sync, or that of the disk of the journal, in large
//! pieces.

use braid_engine::{ErrorKind, LEAF_BYTES_MAX, LOGGED_BLOCKS_MAX, MetaIo};
use braid_format::BLOCK_BYTES;
use braid_format::journal::{
    BatchCopies, EntryKind, JournalBatchHeader, JournalEntry, JournalHead, RING_OFFSET_BYTES, RecoveredBatches,
    RingLocation, STRIPE_LINES_MAX, batch_crc, decode_batch, payload_crc,
};

use super::super::error::LifecycleError;
use super::super::join::try_join_all;
use super::super::write::Target;
use super::{Batch, Recovery, failed, wrong};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Maximum number of blocks read or written at once.
const PIECE_BLOCKS: u64 = LEAF_BYTES_MAX / BLOCK_BYTES;
/// Members whose rings are read concurrently: bounds the memory.
const MEMBERS_AT_ONCE: usize = 8;

/// A batch whose header has been read, but not yet its last block.
struct Open {
    header: JournalBatchHeader,
    check: u32,
    crc: u32,
    left: u32,
}

/// The content of one member's ring.
#[derive(Default)]
pub(super) struct Ring {
    whole: Vec<(JournalBatchHeader, u32)>,
    open: Vec<Open>,
    /// All headers that were read, whatever follows them.
    seen: Vec<JournalBatchHeader>,
    /// The blocks that could not be read.
    unread: Vec<u64>,
}

/// What was found.
pub(super) struct Found {
    /// The accepted batches, in order, with their entries. `None`: part of the only copy, on a disk of its own, is lost
    /// and may have been needed.
    pub batches: Option<Vec<Batch>>,
    /// Number of unreadable blocks.
    pub unread_blocks: u64,
    /// A further batch may have been acknowledged: its number, and how many members may have held it and cannot be
    /// read.
    pub doubt: Option<(u64, usize)>,
}

impl Ring {
    /// Takes the next block. `None`: it is unreadable, and no batch that contains it is complete.
    fn take(&mut self, at: u64, block: Option<&[u8; BLOCK]>, header: Option<JournalBatchHeader>) {
        let Some(bytes) = block else {
            self.unread.push(at);
            self.open.clear();
            return;
        };
        // Every header is followed to its end, even inside the extent of another one, which may be a remnant.
        let whole = &mut self.whole;
        self.open.retain_mut(|open| {
            open.crc = payload_crc(open.crc, bytes);
            open.left -= 1;
            if open.left == 0 && open.crc == open.header.payload_crc {
                whole.push((open.header, open.check));
            }
            open.left > 0
        });
        let Some(header) = header else { return };
        self.seen.push(header);
        let check = batch_crc(bytes);
        match header.blocks {
            1 => self.whole.push((header, check)),
            blocks => self.open.push(Open { header, check, crc: 0, left: blocks - 1 }),
        }
    }

    /// Whether it has no batch.
    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }

    /// Whether the batch with this number, or any batch if `None`, may be here, beginning at one of these positions,
    /// but unreadable.
    fn may_hold(&self, sequence: Option<u64>, positions: &[u64]) -> bool {
        let is_unread = |from: u64, to: u64| self.unread.iter().any(|at| (from..to).contains(at));
        let begun = |header: &&JournalBatchHeader| sequence.is_none_or(|sequence| header.sequence == sequence);
        positions.iter().any(|at| is_unread(*at, at + 1))
            || self.seen.iter().filter(begun).any(|h| is_unread(h.position, h.position + u64::from(h.blocks)))
    }
}

impl<M: MetaIo> Recovery<'_, M> {
    /// Finds the batches to recover.
    pub(super) async fn find(&self, head: &JournalHead, ring: &[&Target]) -> Result<Found, LifecycleError> {
        let mut findings = RecoveredBatches::new(head.run);
        let mut unread_blocks = 0;
        let mut torn = Vec::new();
        for members in ring.chunks(MEMBERS_AT_ONCE) {
            let rings = try_join_all(members.iter().map(|target| self.ring(target, head))).await?;
            for (target, mut ring) in members.iter().zip(rings) {
                unread_blocks += ring.unread.len() as u64;
                let whole = std::mem::take(&mut ring.whole);
                if !ring.unread.is_empty() {
                    torn.push(ring);
                }
                for (header, check) in whole {
                    let added = findings.add(&header, check, target.part.slot);
                    added.map_err(|conflict| wrong(conflict.to_string()))?;
                }
            }
        }
        let one_copy = head.ring_on != RingLocation::Members;
        if one_copy && unread_blocks > 0 {
            return Ok(Found { batches: None, unread_blocks, doubt: None });
        }
        let doubt = self.doubt(&findings, head, &torn);
        let mut batches = Vec::new();
        for copies in findings.accepted().filter_map(|sequence| findings.batch(sequence)) {
            let entries = self.entries(copies).await?;
            batches.push(Batch { copies: *copies, entries });
        }
        Ok(Found { batches: Some(batches), unread_blocks, doubt })
    }

    /// Returns the number of a further batch that may have been acknowledged and cannot be read, and how many members
    /// cannot read where it may be. An acknowledged batch is on one member more than the array tolerates losses. So
    /// there is no doubt if the slots without a member in sync, and the members that cannot read the possible
    /// locations, are together no more than the tolerated losses: one copy would have been found.
    fn doubt(&self, findings: &RecoveredBatches, head: &JournalHead, torn: &[Ring]) -> Option<(u64, usize)> {
        let accepted = findings.accepted();
        let last = accepted.clone().next_back().and_then(|last| findings.batch(last));
        let positions: Vec<u64> = match last {
            None if findings.is_empty() => vec![0],
            // Where the oldest batch would begin is unknown.
            None => (0..head.ring_blocks).collect(),
            Some(last) => {
                let behind = last.header.position + u64::from(last.header.blocks);
                // At the start of the ring if it may not fit behind the last one, unless that space is taken.
                let may_wrap = behind + LOGGED_BLOCKS_MAX + 1 > head.ring_blocks;
                let taken = accepted.clone().filter_map(|n| findings.batch(n)).any(|batch| batch.header.position == 0);
                let first = Some(0).filter(|_| may_wrap && !taken);
                first.into_iter().chain((behind < head.ring_blocks).then_some(behind)).collect()
            }
        };
        let unread = torn.iter().filter(|ring| ring.may_hold(last.map(|_| accepted.end), &positions)).count();
        let roles = self.geometry().member_data_bytes().len() as u16;
        let missing = (0..roles).filter(|role| self.holders(&self.sources, *role).next().is_none()).count();
        let is_needed = !self.array.was_clean;
        (is_needed && unread > 0 && missing + unread > self.parities()).then_some((accepted.end, unread))
    }

    pub(super) async fn ring(&self, target: &Target, head: &JournalHead) -> Result<Ring, LifecycleError> {
        let mut ring = Ring::default();
        for first in (0..head.ring_blocks).step_by(PIECE_BLOCKS as usize) {
            let count = PIECE_BLOCKS.min(head.ring_blocks - first);
            let offset = ring_offset(target, first);
            let piece = match self.io.read(target.leaf, offset, count as usize * BLOCK).await {
                Err(source) if source.kind == ErrorKind::Io => None,
                piece => Some(piece.map_err(|source| failed(target.leaf, "read the journal", offset, source))?),
            };
            for at in 0..count {
                // If the disk fails the piece: block by block.
                let block = match &piece {
                    Some(piece) => piece.as_chunks().0.get(at as usize).copied(),
                    None => match self.io.read(target.leaf, ring_offset(target, first + at), BLOCK).await {
                        Err(source) if source.kind == ErrorKind::Io => None,
                        block => {
                            let block = block.map_err(|source| {
                                failed(target.leaf, "read the journal", ring_offset(target, first + at), source)
                            })?;
                            block.first_chunk().copied()
                        }
                    },
                };
                ring.take(
                    first + at,
                    block.as_ref(),
                    block.as_ref().and_then(|block| self.header(block, first + at, head)),
                );
            }
        }
        Ok(ring)
    }

    /// Decodes the block as a header of a batch of this run at this position.
    fn header(&self, block: &[u8; BLOCK], at: u64, head: &JournalHead) -> Option<JournalBatchHeader> {
        let (header, _) = decode_batch(self.uuid(), block)?;
        let belongs =
            header.run == head.run && header.position == at && at + u64::from(header.blocks) <= head.ring_blocks;
        belongs.then_some(header)
    }

    /// Returns the entries of a batch, each of an existing stripe.
    async fn entries(&self, copies: &BatchCopies) -> Result<Vec<JournalEntry>, LifecycleError> {
        let header = self.read_part(copies, 0, 1).await?;
        let decoded = header.first_chunk().and_then(|block| decode_batch(self.uuid(), block));
        let (_, entries) = decoded.ok_or_else(|| wrong(gone(copies)))?;
        let entries: Vec<JournalEntry> = entries.collect();
        let height = (self.row_bytes / BLOCK_BYTES).min(u64::from(STRIPE_LINES_MAX));
        for entry in &entries {
            let cells = self.locate(entry.stripe).map(|location| location.stripe.data_chunks());
            let fits = cells.is_some_and(|cells| usize::from(entry.cell) + usize::from(entry.cells) <= cells)
                && u64::from(entry.first) + u64::from(entry.blocks) <= height
                && usize::from(entry.parities) <= self.parities()
                && (entry.kind == EntryKind::Mark || entry.blocks > 0);
            if !fits {
                return Err(wrong(format!(
                    "batch {} names a place that is not there: {entry:?}",
                    copies.header.sequence
                )));
            }
        }
        Ok(entries)
    }

    /// Reads some blocks of a batch, at most [`PIECE_BLOCKS`], from a member that has it.
    async fn read_part(&self, copies: &BatchCopies, first: u64, count: u64) -> Result<Vec<u8>, LifecycleError> {
        let mut last = None;
        for target in self.sources.iter().chain(&self.disk).filter(|t| copies.members >> t.part.slot & 1 == 1) {
            let offset = ring_offset(target, copies.header.position + first);
            match self.io.read(target.leaf, offset, count as usize * BLOCK).await {
                Ok(bytes) => return Ok(bytes),
                Err(source) => last = Some(failed(target.leaf, "read the journal", offset, source)),
            }
        }
        Err(last.unwrap_or_else(|| wrong(gone(copies))))
    }

    /// Reads a whole batch, including its header.
    pub(super) async fn read_batch(&self, copies: &BatchCopies) -> Result<Vec<u8>, LifecycleError> {
        let blocks = u64::from(copies.header.blocks);
        let mut batch = Vec::with_capacity(blocks as usize * BLOCK);
        for first in (0..blocks).step_by(PIECE_BLOCKS as usize) {
            batch.extend(self.read_part(copies, first, PIECE_BLOCKS.min(blocks - first)).await?);
        }
        let (header, payload) = batch.split_at(BLOCK.min(batch.len()));
        let whole = header.first_chunk().is_some_and(|header| batch_crc(header) == copies.check)
            && payload_crc(0, payload) == copies.header.payload_crc;
        if whole { Ok(batch) } else { Err(wrong(gone(copies))) }
    }

    /// Writes every batch to all disks of the ring that lack it, durably: a recovery after another crash, with other
    /// members, finds it too.
    pub(super) async fn log(&self, batches: &[Batch], ring: &[&Target]) -> Result<(), LifecycleError> {
        for Batch { copies, .. } in batches {
            let lacking: Vec<&Target> =
                ring.iter().copied().filter(|t| copies.members >> t.part.slot & 1 == 0).collect();
            if lacking.is_empty() {
                continue;
            }
            let batch = &self.read_batch(copies).await?;
            try_join_all(lacking.into_iter().map(|target| async move {
                for (piece, bytes) in (0..).zip(batch.chunks(LEAF_BYTES_MAX as usize)) {
                    let offset = ring_offset(target, copies.header.position + piece * PIECE_BLOCKS);
                    let written = self.io.write(target.leaf, offset, bytes.to_vec(), true).await;
                    written.map_err(|source| failed(target.leaf, "write the journal", offset, source))?;
                }
                Ok::<(), LifecycleError>(())
            }))
            .await?;
        }
        Ok(())
    }
}

/// Returns the byte offset of a block of the ring on a member's disk.
fn ring_offset(target: &Target, block: u64) -> u64 {
    target.part.layout.journal.start + RING_OFFSET_BYTES + block * BLOCK_BYTES
}

fn gone(copies: &BatchCopies) -> String {
    format!("batch {} was there, and is not when it is read again", copies.header.sequence)
}

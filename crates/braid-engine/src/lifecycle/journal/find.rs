//! Which batches count: the rings of all members that are in sync are read, or that of the disk of the journal, in large pieces.

use braid_format::BLOCK_BYTES;
use braid_format::journal::{
    BatchHeader, Copies, Entry, EntryKind, Findings, Head, RING_START_BYTES, ROW_BLOCKS_MAX, RingOn, batch_check,
    decode_batch, payload_crc,
};

use super::super::error::LifecycleError;
use super::super::join::try_join_all;
use super::super::planted::{Planted, planted};
use super::super::write::Target;
use super::{Batch, Recovery, failed, wrong};
use crate::io::LEAF_BYTES_MAX;
use crate::parity::LOGGED_BLOCKS_MAX;
use crate::{ErrorKind, MetaIo};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Blocks that are read or written at once.
const PIECE_BLOCKS: u64 = LEAF_BYTES_MAX / BLOCK_BYTES;
/// Members whose rings are read at the same time: that bounds the memory it takes.
const MEMBERS_AT_ONCE: usize = 8;

/// A batch of which the header was seen, and not yet the last block.
struct Open {
    header: BatchHeader,
    check: u32,
    crc: u32,
    left: u32,
}

/// What one member's ring holds.
#[derive(Default)]
pub(super) struct Ring {
    whole: Vec<(BatchHeader, u32)>,
    open: Vec<Open>,
    /// The headers that were seen, whatever follows them.
    seen: Vec<BatchHeader>,
    /// The blocks that could not be read.
    unread: Vec<u64>,
}

/// What was found.
pub(super) struct Found {
    /// The batches that count, in order, with their entries. None: of the only copy, on a disk of its own, some is lost that may
    /// have counted.
    pub batches: Option<Vec<Batch>>,
    /// How many blocks could not be read.
    pub unread_blocks: u64,
    /// There may have been one batch more that counted: its number, and how many members may have had it and cannot be read.
    pub doubt: Option<(u64, usize)>,
}

impl Ring {
    /// The next block. `None`: it could not be read, and no batch that it belongs to is whole.
    fn take(&mut self, at: u64, block: Option<&[u8; BLOCK]>, header: Option<BatchHeader>) {
        let Some(bytes) = block else {
            self.unread.push(at);
            self.open.clear();
            return;
        };
        // Every header is followed to its end, also within what another one claims: that one may be a remnant.
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
        let check = batch_check(bytes);
        match header.blocks {
            1 => self.whole.push((header, check)),
            blocks => self.open.push(Open { header, check, crc: 0, left: blocks - 1 }),
        }
    }

    /// Whether it has no batch.
    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }

    /// Whether the batch of this number, or any where that is not known, may be here, beginning at one of these places, and cannot be
    /// read.
    fn may_hold(&self, sequence: Option<u64>, places: &[u64]) -> bool {
        let is_unread = |from: u64, to: u64| self.unread.iter().any(|at| (from..to).contains(at));
        let begun = |header: &&BatchHeader| sequence.is_none_or(|sequence| header.sequence == sequence);
        places.iter().any(|at| is_unread(*at, at + 1))
            || self.seen.iter().filter(begun).any(|h| is_unread(h.position, h.position + u64::from(h.blocks)))
    }
}

impl<M: MetaIo> Recovery<'_, M> {
    /// Looks for the batches that count.
    pub(super) async fn find(&self, head: &Head, ring: &[&Target]) -> Result<Found, LifecycleError> {
        let mut findings = Findings::new(head.run);
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
                    let added = findings.add(&header, check, target.part.role);
                    added.map_err(|conflict| wrong(conflict.to_string()))?;
                }
            }
        }
        let one_copy = head.ring_on != RingOn::Members;
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

    /// Whether there may have been one batch more that counted. It stood on as many members as losses are tolerated and one more:
    /// where those that are not in sync, and those that cannot read where it would be, are fewer, somebody would have it.
    fn doubt(&self, findings: &Findings, head: &Head, torn: &[Ring]) -> Option<(u64, usize)> {
        let accepted = findings.accepted();
        let last = accepted.clone().next_back().and_then(|last| findings.batch(last));
        let places: Vec<u64> = match last {
            None if findings.is_empty() => vec![0],
            // Where the oldest one would begin is not known.
            None => (0..head.ring_blocks).collect(),
            Some(last) => {
                let behind = last.header.position + u64::from(last.header.blocks);
                // At the start of the ring where it has no room, unless that is taken.
                let may_wrap = behind + LOGGED_BLOCKS_MAX + 1 > head.ring_blocks;
                let taken = accepted.clone().filter_map(|n| findings.batch(n)).any(|batch| batch.header.position == 0);
                let first = Some(0).filter(|_| may_wrap && !taken);
                first.into_iter().chain((behind < head.ring_blocks).then_some(behind)).collect()
            }
        };
        let unread = torn.iter().filter(|ring| ring.may_hold(last.map(|_| accepted.end), &places)).count();
        let roles = self.geometry().members().len() as u16;
        let missing = (0..roles).filter(|role| self.holders(&self.sources, *role).next().is_none()).count();
        let is_needed = !self.array.was_clean;
        (is_needed && unread > 0 && missing + unread > self.parities()).then_some((accepted.end, unread))
    }

    pub(super) async fn ring(&self, target: &Target, head: &Head) -> Result<Ring, LifecycleError> {
        let mut ring = Ring::default();
        for first in (0..head.ring_blocks).step_by(PIECE_BLOCKS as usize) {
            let count = PIECE_BLOCKS.min(head.ring_blocks - first);
            let offset = place(target, first);
            let piece = match self.io.read(target.leaf, offset, count as usize * BLOCK).await {
                Err(source) if source.kind == ErrorKind::Io => None,
                piece => Some(piece.map_err(|source| failed(target.leaf, "read the journal", offset, source))?),
            };
            for at in 0..count {
                // Where the disk refuses the piece, block by block.
                let block = match &piece {
                    Some(piece) => piece.as_chunks().0.get(at as usize).copied(),
                    None => match self.io.read(target.leaf, place(target, first + at), BLOCK).await {
                        Err(source) if source.kind == ErrorKind::Io => None,
                        block => {
                            let block = block.map_err(|source| {
                                failed(target.leaf, "read the journal", place(target, first + at), source)
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

    /// The header of a batch of this run that belongs to this place, where the block is one.
    fn header(&self, block: &[u8; BLOCK], at: u64, head: &Head) -> Option<BatchHeader> {
        let (mut header, _) = decode_batch(self.uuid(), block)?;
        if planted(Planted::OldRunsCount) {
            header.run = head.run;
        }
        let belongs =
            header.run == head.run && header.position == at && at + u64::from(header.blocks) <= head.ring_blocks;
        belongs.then_some(header)
    }

    /// The entries of a batch, each of a row that is there.
    async fn entries(&self, copies: &Copies) -> Result<Vec<Entry>, LifecycleError> {
        let header = self.read_part(copies, 0, 1).await?;
        let decoded = header.first_chunk().and_then(|block| decode_batch(self.uuid(), block));
        let (_, entries) = decoded.ok_or_else(|| wrong(gone(copies)))?;
        let entries: Vec<Entry> = entries.collect();
        let height = (self.row_bytes / BLOCK_BYTES).min(u64::from(ROW_BLOCKS_MAX));
        for entry in &entries {
            let cells = self.place(entry.row).map(|place| place.stripe.data_chunks());
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

    /// Some blocks of a batch, at most a piece, from a member that has it.
    async fn read_part(&self, copies: &Copies, first: u64, count: u64) -> Result<Vec<u8>, LifecycleError> {
        let mut last = None;
        for target in self.sources.iter().chain(&self.disk).filter(|t| copies.members >> t.part.role & 1 == 1) {
            let offset = place(target, copies.header.position + first);
            match self.io.read(target.leaf, offset, count as usize * BLOCK).await {
                Ok(bytes) => return Ok(bytes),
                Err(source) => last = Some(failed(target.leaf, "read the journal", offset, source)),
            }
        }
        Err(last.unwrap_or_else(|| wrong(gone(copies))))
    }

    /// A whole batch, its header included.
    pub(super) async fn read_batch(&self, copies: &Copies) -> Result<Vec<u8>, LifecycleError> {
        let blocks = u64::from(copies.header.blocks);
        let mut batch = Vec::with_capacity(blocks as usize * BLOCK);
        for first in (0..blocks).step_by(PIECE_BLOCKS as usize) {
            batch.extend(self.read_part(copies, first, PIECE_BLOCKS.min(blocks - first)).await?);
        }
        let (header, payload) = batch.split_at(BLOCK.min(batch.len()));
        let whole = header.first_chunk().is_some_and(|header| batch_check(header) == copies.check)
            && payload_crc(0, payload) == copies.header.payload_crc;
        if whole { Ok(batch) } else { Err(wrong(gone(copies))) }
    }

    /// Writes every batch on all of the ring's disks that lack it, durably: after another crash, with other members, it is found.
    pub(super) async fn log(&self, batches: &[Batch], ring: &[&Target]) -> Result<(), LifecycleError> {
        for Batch { copies, .. } in batches {
            let lacking: Vec<&Target> =
                ring.iter().copied().filter(|t| copies.members >> t.part.role & 1 == 0).collect();
            if lacking.is_empty() {
                continue;
            }
            let batch = &self.read_batch(copies).await?;
            try_join_all(lacking.into_iter().map(|target| async move {
                for (piece, bytes) in (0..).zip(batch.chunks(LEAF_BYTES_MAX as usize)) {
                    let offset = place(target, copies.header.position + piece * PIECE_BLOCKS);
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

/// Where a block of the ring is on a member's disk.
fn place(target: &Target, block: u64) -> u64 {
    target.part.places.journal.start + RING_START_BYTES + block * BLOCK_BYTES
}

fn gone(copies: &Copies) -> String {
    format!("batch {} was there, and is not when it is read again", copies.header.sequence)
}

//! Replays entries in place, and recomputes the parity of doubtful stripes.

use std::collections::BTreeMap;

use braid_engine::{ErrorKind, MetaIo};
use braid_format::BLOCK_BYTES;
use braid_format::journal::{EntryKind, JournalEntry, LostStripe};
use braid_parity::Parity;

use super::super::error::LifecycleError;
use super::super::join::{join_all, try_join_all};
use super::super::write::Target;
use super::{Batch, Recovery, StripeLocation, StripeState, failed, wrong};

const BLOCK: usize = BLOCK_BYTES as usize;

impl<'a, M: MetaIo> Recovery<'a, M> {
    /// Writes all entries with content in place, in order. Returns how many, and how many were skipped because their
    /// stripe was marked later: either their content was durable in place before that, or the writer has broken a rule.
    pub(super) async fn replay(
        &self,
        batches: &[Batch],
        stripes: &BTreeMap<u64, StripeState>,
    ) -> Result<(u64, u64), LifecycleError> {
        let (mut replayed, mut skipped, mut number) = (0, 0, 0);
        for Batch { copies, entries } in batches {
            let bytes = match copies.header.blocks {
                1 => Vec::new(),
                _ => self.read_batch(copies).await?,
            };
            let mut payload = bytes.get(BLOCK..).unwrap_or_default();
            for entry in entries {
                let (own, rest) = payload.split_at_checked(entry.payload_blocks() as usize * BLOCK).unwrap_or_default();
                payload = rest;
                let marked = stripes.get(&entry.stripe).and_then(|state| state.marked);
                let is_data = entry.kind == EntryKind::Data;
                if is_data && marked.is_some_and(|mark| mark > number) {
                    skipped += 1;
                } else if is_data {
                    self.put(entry, own).await?;
                    replayed += 1;
                }
                number += 1;
            }
        }
        Ok((replayed, skipped))
    }

    /// Writes one entry's content to all members that are in sync or rebuilding.
    async fn put(&self, entry: &JournalEntry, payload: &[u8]) -> Result<(), LifecycleError> {
        let Some(location) = self.locate(entry.stripe) else { return Ok(()) };
        let height = usize::from(entry.blocks) * BLOCK;
        let data = (entry.cell..entry.cell + entry.cells).map(|cell| location.stripe.data(cell.into()));
        let parity = [Some(location.stripe.p()), location.stripe.q()].into_iter().flatten().take(entry.parities.into());
        let offset = location.member_offset + u64::from(entry.first) * BLOCK_BYTES;
        let cells = data.chain(parity).zip(payload.chunks_exact(height));
        try_join_all(cells.map(|(role, bytes)| self.write(role, offset, bytes))).await.map(drop)
    }

    /// Writes bytes at an offset of a slot's data area, to all holders of the slot.
    async fn write(&self, role: u16, member_offset: u64, bytes: &[u8]) -> Result<(), LifecycleError> {
        let holders: Vec<&Target> = self.holders(&self.sinks, role).collect();
        try_join_all(holders.into_iter().map(|target| async move {
            let offset = target.part.layout.data.start + member_offset;
            let written = self.io.write(target.leaf, offset, bytes.to_vec(), false).await;
            written.map_err(|source| failed(target.leaf, "write what the journal holds", offset, source))
        }))
        .await
        .map(drop)
    }

    /// Reads bytes at an offset of a slot's data area from a member in sync. `None`: no present member can read them.
    async fn read(&self, role: u16, member_offset: u64, len: usize) -> Result<Option<Vec<u8>>, LifecycleError> {
        for target in self.holders(&self.sources, role) {
            let offset = target.part.layout.data.start + member_offset;
            match self.io.read(target.leaf, offset, len).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(source) if source.kind == ErrorKind::Io => {}
                Err(source) => return Err(failed(target.leaf, "read a row", offset, source)),
            }
        }
        Ok(None)
    }

    /// Recomputes parity over these lines of a stripe. Lost data counts as zeros, and is zeroed wherever it can be
    /// written: its content is unknown, and nothing that is computed from this stripe may depend on it. Returns what is
    /// lost.
    pub(super) async fn resync(&self, row: u64, lines: u16) -> Result<Option<LostStripe>, LifecycleError> {
        let Some(location) = self.locate(row) else { return Ok(None) };
        let mut lost: Vec<u8> = Vec::new();
        for (first, count) in runs(lines) {
            lost.extend(self.resync_run(&location, first, count).await?);
        }
        lost.sort_unstable();
        lost.dedup();
        if lost.is_empty() {
            return Ok(None);
        }
        let listed = LostStripe::new(row, lines, &lost);
        let too_many = || wrong(format!("{} members with data of row {row} are lost", lost.len()));
        listed.map(Some).ok_or_else(too_many)
    }

    async fn resync_run(
        &self,
        location: &StripeLocation<'a>,
        first: u64,
        count: u64,
    ) -> Result<Vec<u8>, LifecycleError> {
        let stripe = &location.stripe;
        let (offset, len) = (location.member_offset + first * BLOCK_BYTES, (count * BLOCK_BYTES) as usize);
        let cells = join_all((0..stripe.data_chunks()).map(|cell| self.read(stripe.data(cell), offset, len))).await;
        let cells: Vec<Option<Vec<u8>>> = cells.into_iter().collect::<Result<_, _>>()?;
        let lost: Vec<u8> = (0..).zip(&cells).filter(|(_, bytes)| bytes.is_none()).map(|(cell, _)| cell).collect();
        // The parity arithmetic takes an empty block as zeros.
        let data: Vec<&[u8]> = cells.iter().map(|bytes| bytes.as_deref().unwrap_or_default()).collect();
        let (mut p, mut q) = (vec![0; len], vec![0; if stripe.q().is_some() { len } else { 0 }]);
        Parity::best().pq(&mut p, &mut q, &data);
        let zeros = vec![0; len];
        let parity = [(Some(stripe.p()), &p), (stripe.q(), &q)];
        let parity = parity.into_iter().filter_map(|(role, bytes)| Some((role?, bytes)));
        let data = lost.iter().map(|cell| (stripe.data((*cell).into()), &zeros));
        try_join_all(parity.chain(data).map(|(role, bytes)| self.write(role, offset, bytes))).await?;
        Ok(lost)
    }
}

/// Splits lines (one bit each) into runs of consecutive ones: the first line of each run, and its length in lines.
fn runs(lines: u16) -> impl Iterator<Item = (u64, u64)> {
    let mut left = u32::from(lines);
    std::iter::from_fn(move || {
        let first = left.trailing_zeros();
        let count = (left.checked_shr(first)?).trailing_ones();
        left &= !(((1u32 << count) - 1) << first);
        (count > 0).then_some((u64::from(first), u64::from(count)))
    })
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn lines_come_as_runs() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(0xffff).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(runs(0b1000_0000_0110_1101).collect::<Vec<_>>(), [(0, 1), (2, 2), (5, 2), (15, 1)]);
    }
}

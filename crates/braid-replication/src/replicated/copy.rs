//! Copies snapshots to a replica that lacks them and rejoins: oldest first, before it takes writes.
//!
//! For each snapshot the replica's data is made equal to it, and the snapshot is taken there, under the same identity
//! and name. Its content comes from the replica on this node, or from another one in sync (`sources`). For the first
//! snapshot everything that was ever written is compared, for later ones what they differ in. Equal blocks are not
//! sent, and unallocated ranges of the source are not read over the link. Where the snapshot has a long hole nothing is
//! compared: zeroes are written there, which costs a thin volume nothing.
//!
//! The replica is removed from the array before its first byte changes: it may have had later writes than the snapshot,
//! which it would never receive again. When it rejoins, even if the copy was interrupted, it is rebuilt with everything
//! in which it differs from the others.

use crate::ReplicationManager;
use crate::attached::AttachedVolume;
use crate::attached::ServedVolume;
use crate::replicated::create::head_and_tail_bytes;
use crate::replicated::outcome::{SnapshotOutcome, SnapshotState};
use crate::replicated::replica_requests::CHANGE_MAX;
use crate::replicated::sources::{MissingSnapshot, OpenSource, not_served};
use braid_api::{ErrorDetail, Kind, ReplicaChange};
use braid_array_admin::reconciler::Order;
use braid_engine::{Flags, LeafError, LeafId, Op};
use braid_export::Allocation;
use braid_export::extents::state;
use braid_format::MemberState;
use braid_inventory::OpenDisk;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

/// Bytes that are compared at a time, pieces that are written concurrently, and further pieces that are read ahead.
const PIECE_BYTES: u64 = 1 << 20;

const WRITES_CONCURRENT: usize = 8;

const READS_AHEAD: usize = 12;

/// Pieces of all volumes of a node that are in memory at a time; each takes up to four times its length.
static PIECE_PERMITS: Semaphore = Semaphore::const_new(48);

/// Bytes of a hole that are zeroed at a time.
const HOLE_BYTES: u64 = 16 << 20;

/// Runs of a piece that are written concurrently.
const RUNS_CONCURRENT: usize = 8;

/// Attempts to learn whether every write goes to a replica, and the pause between two of them.
const DELTA_TRIES: u32 = 100;

const DELTA_PAUSE: Duration = Duration::from_millis(50);

/// Granularity of the comparison, in bytes.
const BLOCK_BYTES: usize = 4096;

/// What a replica has received, or had already.
#[derive(Default)]
pub(crate) struct CopyResult {
    /// It has a snapshot, and so most of the volume's content.
    pub(crate) has_content: bool,
    /// Its data is equal to this snapshot, which was copied just now.
    equal_to: Option<EqualSnapshot>,
}

/// A snapshot that a replica's data is equal to.
struct EqualSnapshot {
    snapshot: Uuid,
    /// The replica that it was read from.
    from: u16,
    /// The regions of the volume that had been written when the copy of the first snapshot began.
    written: Vec<Range<u64>>,
}

/// Interrupts the copies of snapshots to replicas while it exists: they start again later with what still differs then.
pub(crate) struct CopyInterrupt<'a>(&'a AttachedVolume);

impl CopyInterrupt<'_> {
    /// Interrupts the copies until the guard is dropped.
    pub(crate) fn begin(attached: &AttachedVolume) -> CopyInterrupt<'_> {
        attached.copy_interrupts.fetch_add(1, Ordering::AcqRel);
        CopyInterrupt(attached)
    }
}

impl Drop for CopyInterrupt<'_> {
    fn drop(&mut self) {
        self.0.copy_interrupts.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ReplicationManager {
    /// Copies the snapshots that a replica lacks. The caller holds the lock against new snapshots until the replica
    /// takes writes.
    ///
    /// # Errors
    /// Neither the replica nor one that has the snapshots replies, or the volume is not served any more.
    pub(crate) async fn copy_snapshots(
        self: &Arc<Self>,
        serving: &ServedVolume,
        slot: u16,
        disk: &Arc<OpenDisk>,
    ) -> Result<CopyResult, ErrorDetail> {
        let volume = &serving.volume;
        let local = self.local_replica(volume.uuid);
        let listed = self.settled_snapshots_retrying(serving).await?;
        let own = self.list_one(volume, slot).await?;
        let has = |uuid: &str| own.iter().any(|one| one.uuid == uuid && one.name.is_some());
        // Snapshots older than its newest one cannot be inserted any more.
        let all = listed.snapshots();
        let newest = all.iter().rposition(|uuid| has(uuid));
        // Only these regions are compared. Elsewhere the replica may hold anything: `start_delta` has the rebuild cover
        // what is written there first from now on.
        let written = self.written_ranges(volume.uuid)?;
        let mut missing: Vec<MissingSnapshot> = Vec::new();
        for text in all.iter().skip(newest.map_or(0, |newest| newest + 1)) {
            let (SnapshotOutcome::Complete(name), Some(from)) =
                (listed.outcome(text), listed.source_of(local, slot, text))
            else {
                continue;
            };
            let Ok(uuid) = text.parse::<Uuid>() else { continue };
            // A replica that lacks that snapshot cannot tell what differs from it.
            let since = missing.last().map(|last| last.uuid);
            let since =
                since.filter(|since| matches!(listed.state_on(from, &since.to_string()), SnapshotState::Named(_)));
            missing.push(MissingSnapshot { uuid, name, from, since });
        }
        let equal_to = match missing.first() {
            Some(first) => {
                let first = match self.open_source(serving, first).await {
                    // Its node runs a version that does not offer snapshots. The replica is better without them than
                    // missing.
                    Err(error) if error.kind == Kind::InvalidArgument && local != Some(first.from) => {
                        tracing::info!("replica {} lacks snapshots: {}", disk.name, error.message);
                        return Ok(CopyResult { has_content: newest.is_some(), equal_to: None });
                    }
                    first => first?,
                };
                if let Err(error) = self.remove_from_array(volume.uuid, slot).await {
                    self.close_source(serving, first).await;
                    return Err(error);
                }
                self.copy_all(serving, slot, disk, &missing, first).await?;
                missing.last().map(|last| EqualSnapshot { snapshot: last.uuid, from: last.from, written })
            }
            None => None,
        };
        Ok(CopyResult { has_content: equal_to.is_some() || newest.is_some(), equal_to })
    }

    /// Removes a missing replica from the array: from then on it rejoins by a rebuild only, never by a delta resync.
    async fn remove_from_array(&self, volume: Uuid, slot: u16) -> Result<(), ErrorDetail> {
        let state = |manager: &ReplicationManager| {
            let tables = manager.inventory.read();
            tables.arrays.get(&volume)?.active()?.label.members.get(usize::from(slot)).map(|member| member.state)
        };
        match state(self).ok_or_else(not_served)? {
            MemberState::Empty => Ok(()),
            _ => self.arrays.give_order(volume, Order::Remove(slot)).await,
        }
    }

    /// Reports to the rebuild what a replica may lack after it was made equal to a snapshot: the writes to its source
    /// replica since then, and regions first written since then. This is looked up once every write goes to both. If
    /// that fails, all that the replica holds is compared.
    pub(crate) async fn report_delta(&self, serving: &ServedVolume, slot: u16, copied: CopyResult) {
        let Some(equal_to) = copied.equal_to else { return };
        if let Err(error) = self.start_delta(serving, slot, &equal_to).await {
            tracing::info!("all that replica {slot} has is compared: {}", error.message);
        }
    }

    async fn start_delta(
        &self,
        serving: &ServedVolume,
        slot: u16,
        equal_to: &EqualSnapshot,
    ) -> Result<(), ErrorDetail> {
        let array = serving.volume.uuid;
        let with = self.leaf_of_replica(array, equal_to.from).ok_or_else(not_served)?;
        let mut tries = 0;
        while let Err(error) = self.arrays.give_order(array, Order::BeginDelta { slot, base: with }).await {
            tries += 1;
            if tries > DELTA_TRIES {
                return Err(error);
            }
            tokio::time::sleep(DELTA_PAUSE).await;
        }
        let mut ranges = self.ranges_between(serving, equal_to.from, equal_to.snapshot, None).await?;
        let changed_bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        ranges.extend(gaps(&equal_to.written));
        self.arrays.give_order(array, Order::ApplyDelta { slot, base: with, ranges }).await?;
        tracing::info!("replica {slot} is filled with the {changed_bytes} bytes written since its newest snapshot");
        Ok(())
    }

    /// Copies the snapshots one after the other. While one is written, the next one is opened if it is on this node; an
    /// offer of another node would end before it is read.
    async fn copy_all(
        self: &Arc<Self>,
        serving: &ServedVolume,
        slot: u16,
        disk: &Arc<OpenDisk>,
        missing: &[MissingSnapshot],
        first: OpenSource,
    ) -> Result<(), ErrorDetail> {
        let mut opened = Some(first);
        for (k, one) in missing.iter().enumerate() {
            let Some(source) = opened.take() else { break };
            let next = missing.get(k + 1);
            let local = self.local_replica(serving.volume.uuid);
            let opening = async {
                match next.filter(|next| local == Some(next.from)) {
                    Some(next) => self.open_source(serving, next).await.map(Some),
                    None => Ok(None),
                }
            };
            let (made, following) = tokio::join!(self.make_equal(serving, &source, disk.leaf), opening);
            self.close_source(serving, source).await;
            let taken = match made.and_then(|()| self.check_continue(serving)) {
                Ok(()) => self.take_on_replica(serving, slot, disk, one).await,
                Err(error) => Err(ErrorDetail {
                    message: format!(
                        "snapshot {} could not be copied to replica {}: {}",
                        one.name, disk.name, error.message
                    ),
                    ..error
                }),
            };
            match (taken, following) {
                (Ok(()), Ok(None)) => {
                    if let Some(next) = next {
                        opened = Some(self.open_source(serving, next).await?);
                    }
                }
                (Ok(()), following) => opened = following?,
                (Err(error), Ok(Some(following))) => {
                    self.close_source(serving, following).await;
                    return Err(error);
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes the snapshot on the replica: its data is equal to it.
    async fn take_on_replica(
        &self,
        serving: &ServedVolume,
        slot: u16,
        disk: &OpenDisk,
        missing: &MissingSnapshot,
    ) -> Result<(), ErrorDetail> {
        let (snapshot, name) = (missing.uuid.to_string(), missing.name.clone());
        let take = ReplicaChange::Take { snapshot: snapshot.clone(), name: name.clone() };
        self.change_one(serving, slot, &take, CHANGE_MAX).await?;
        self.change_one(serving, slot, &ReplicaChange::Name { snapshot, name }, CHANGE_MAX).await?;
        let volume = &serving.volume.name;
        let message = format!("replica {} received snapshot {volume}@{}", disk.name, missing.name);
        self.inventory.events().info("snapshot_copied", message, &[("volume", volume), ("snapshot", &missing.name)]);
        Ok(())
    }

    /// Writes to a replica's data what differs from a snapshot.
    async fn make_equal(&self, serving: &ServedVolume, source: &OpenSource, leaf: LeafId) -> Result<(), ErrorDetail> {
        let size_bytes = source.size_bytes();
        let (head_bytes, _) = head_and_tail_bytes(size_bytes);
        let pieces = CopyPieces { ranges: &source.ranges, size_bytes, at: 0, allocation: source.allocation() };
        // Reads wait on the link behind the data that is in flight: reading only after the writes would leave the link
        // idle. So further pieces are read while these are written.
        let scanned = stream::iter(pieces).map(|piece| async move {
            self.check_continue(serving)?;
            self.compare_piece(serving, source, leaf, head_bytes, piece).await
        });
        let written =
            scanned.buffer_unordered(READS_AHEAD).map_ok(|diff| self.write_diff(serving, leaf, head_bytes, diff));
        written.try_buffer_unordered(WRITES_CONCURRENT).try_collect::<()>().await
    }

    /// Returns an error if the copy is to be interrupted, or if the volume is not served any more.
    fn check_continue(&self, serving: &ServedVolume) -> Result<(), ErrorDetail> {
        if serving.attached.copy_interrupts.load(Ordering::Acquire) > 0 {
            let message = "the copy is interrupted for a change of another replica, and continues afterwards";
            return Err(ErrorDetail::new(Kind::InUse, message));
        }
        let is_served =
            self.inventory.read().arrays.get(&serving.volume.uuid).is_some_and(|entry| entry.active().is_some());
        // It may be served anew by now.
        match is_served && !serving.attached.has_ended() {
            true => Ok(()),
            false => Err(not_served()),
        }
    }

    async fn write_diff(
        &self,
        serving: &ServedVolume,
        leaf: LeafId,
        head_bytes: u64,
        diff: PieceDiff,
    ) -> Result<(), ErrorDetail> {
        self.check_continue(serving)?;
        let (wanted, start) = (&diff.wanted, head_bytes + diff.start);
        let writes = diff.runs.into_iter().map(|run| {
            let (at, len) = (start + run.bytes.start, run.bytes.end - run.bytes.start);
            let (op, data) = match run.is_zero {
                true => (Op::WriteZeroes, &[][..]),
                false => (Op::Write, &wanted[run.bytes.start as usize..run.bytes.end as usize]),
            };
            self.ring.leaf_io(leaf, op, Flags::NONE, at, len, data)
        });
        stream::iter(writes)
            .buffer_unordered(RUNS_CONCURRENT)
            .try_collect::<Vec<_>>()
            .await
            .map(drop)
            .map_err(replica_error)
    }

    /// Returns what differs between a replica's data and a piece of a snapshot.
    async fn compare_piece(
        &self,
        serving: &ServedVolume,
        source: &OpenSource,
        leaf: LeafId,
        head_bytes: u64,
        piece: CopyPiece,
    ) -> Result<PieceDiff, ErrorDetail> {
        let (start, len) = (piece.bytes.start, piece.bytes.end - piece.bytes.start);
        if piece.is_hole {
            let runs = vec![DiffRun { bytes: 0..len, is_zero: true }];
            return Ok(PieceDiff { start, wanted: Vec::new(), runs, _permit: None });
        }
        // Released when the piece is written, which needs no further permit.
        let permit = PIECE_PERMITS.acquire().await.ok();
        let wanted = self.read_source(serving, source, start, len);
        let actual = self.ring.leaf_io(leaf, Op::Read, Flags::SPARSE, head_bytes + start, len, &[]);
        let (wanted, actual) = tokio::join!(wanted, actual);
        let wanted = wanted?;
        let runs = differing(&wanted, &actual.map_err(replica_error)?);
        Ok(PieceDiff { start, wanted, runs, _permit: permit })
    }
}

/// A range that is made equal at a time.
#[derive(PartialEq, Eq, Debug)]
struct CopyPiece {
    bytes: Range<u64>,
    /// The snapshot has no data in it.
    is_hole: bool,
}

/// Splits ranges into pieces, in order.
struct CopyPieces<'a> {
    ranges: &'a [Range<u64>],
    /// Size of the device; ranges beyond are left out.
    size_bytes: u64,
    /// Everything before this was returned.
    at: u64,
    allocation: Option<&'a dyn Allocation>,
}

impl Iterator for CopyPieces<'_> {
    type Item = CopyPiece;

    fn next(&mut self) -> Option<CopyPiece> {
        while let Some((range, others)) = self.ranges.split_first() {
            let (start, end) = (range.start.max(self.at), range.end.min(self.size_bytes));
            if start < end {
                let piece = CopyPiece::first_of(start..end, self.allocation);
                self.at = piece.bytes.end;
                return Some(piece);
            }
            (self.ranges, self.at) = (others, 0);
        }
        None
    }
}

impl CopyPiece {
    /// Returns the first piece of a range that is not empty, by the snapshot's allocation. Holes shorter than a piece
    /// are read with their surroundings.
    fn first_of(range: Range<u64>, allocation: Option<&dyn Allocation>) -> CopyPiece {
        let (start, mut hole_bytes) = (range.start, 0);
        let scanned = (range.end - start).min(HOLE_BYTES);
        if let Some(allocation) = allocation {
            allocation.extents(start, scanned, &mut |len, flags| {
                if flags & state::ZERO != 0 {
                    hole_bytes = len;
                }
                false
            });
        }
        let is_hole = hole_bytes >= PIECE_BYTES.min(scanned);
        let len = if is_hole { hole_bytes } else { scanned.min(PIECE_BYTES) };
        CopyPiece { bytes: start..start + len, is_hole }
    }
}

/// Returns the gaps between these ranges, which are in order.
fn gaps(ranges: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> + '_ {
    let starts = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start).chain(std::iter::once(u64::MAX));
    starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty())
}

fn replica_error(error: LeafError) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("the replica: {error}"))
}

/// A piece, and what is to be written of it.
struct PieceDiff {
    start: u64,
    /// The wanted content of the piece; empty for a hole.
    wanted: Vec<u8>,
    runs: Vec<DiffRun>,
    _permit: Option<SemaphorePermit<'static>>,
}

/// Consecutive blocks in which two buffers differ.
#[derive(PartialEq, Eq, Debug)]
struct DiffRun {
    /// Relative to the start of the piece.
    bytes: Range<u64>,
    /// The wanted content is zero: no data is sent, and nothing is allocated.
    is_zero: bool,
}

fn differing(wanted: &[u8], actual: &[u8]) -> Vec<DiffRun> {
    let mut runs: Vec<DiffRun> = Vec::new();
    for (block, (one, other)) in wanted.chunks(BLOCK_BYTES).zip(actual.chunks(BLOCK_BYTES)).enumerate() {
        if one == other {
            continue;
        }
        let start = (block * BLOCK_BYTES) as u64;
        let (end, is_zero) = (start + one.len() as u64, one.iter().all(|byte| *byte == 0));
        match runs.last_mut() {
            Some(last) if last.bytes.end == start && last.is_zero == is_zero => last.bytes.end = end,
            _ => runs.push(DiffRun { bytes: start..end, is_zero }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_between_and_around_the_ranges() {
        let of = |ranges: &[Range<u64>]| gaps(ranges).map(|range| (range.start, range.end)).collect::<Vec<_>>();
        assert_eq!(of(&[0..3, 5..9]), [(3, 5), (9, u64::MAX)]);
        assert_eq!(of(&[2..3, 3..4]), [(0, 2), (4, u64::MAX)]);
        assert_eq!(of(&[]), [(0, u64::MAX)]);
    }

    /// Holes in these ranges, data elsewhere.
    struct Holes(Vec<Range<u64>>);

    impl Allocation for Holes {
        fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
            let (mut at, end) = (offset, offset + len);
            while at < end {
                let hole = self.0.iter().find(|hole| hole.contains(&at));
                let next = self.0.iter().map(|hole| hole.start).filter(|start| *start > at).min();
                let to = hole.map(|hole| hole.end).or(next).unwrap_or(end).min(end);
                if !extent(to - at, if hole.is_some() { state::HOLE | state::ZERO } else { 0 }) {
                    return;
                }
                at = to;
            }
        }
    }

    #[test]
    fn long_holes_are_not_read() {
        const M: u64 = 1 << 20;
        let holes = Holes(vec![M..M + 4096, 3 * M..4 * M, 6 * M..200 * M]);
        let first = |range: Range<u64>| {
            let piece = CopyPiece::first_of(range, Some(&holes));
            (piece.bytes, piece.is_hole)
        };
        assert_eq!(first(0..9 * M), (0..M, false));
        // Too short to be worth a request of its own.
        assert_eq!(first(M..9 * M), (M..2 * M, false));
        assert_eq!(first(3 * M..9 * M), (3 * M..4 * M, true));
        assert_eq!(first(5 * M..5 * M + 512), (5 * M..5 * M + 512, false));
        assert_eq!(first(6 * M..300 * M), (6 * M..22 * M, true));
        assert_eq!(first(7 * M..7 * M + 512), (7 * M..7 * M + 512, true));
        assert_eq!(first(199 * M..300 * M), (199 * M..200 * M, true));
        let ranges = [0..M, 3 * M..7 * M, 300 * M..301 * M];
        let pieces = CopyPieces { ranges: &ranges, size_bytes: 300 * M + 512, at: 0, allocation: Some(&holes) };
        let all: Vec<_> = pieces.map(|piece| (piece.bytes.start, piece.bytes.end, piece.is_hole)).collect();
        let data = |start, end| (start * M, end * M, false);
        let expected = [data(0, 1), (3 * M, 4 * M, true), data(4, 5), data(5, 6), (6 * M, 7 * M, true)];
        assert_eq!(all, [&expected[..], &[(300 * M, 300 * M + 512, false)]].concat());
        // A source without allocation information is read.
        assert_eq!(CopyPiece::first_of(6 * M..300 * M, None), CopyPiece { bytes: 6 * M..7 * M, is_hole: false });
    }

    #[test]
    fn only_differing_blocks_are_written() {
        let mut actual = vec![0; 10 * BLOCK_BYTES];
        let mut wanted = actual.clone();
        assert!(differing(&wanted, &actual).is_empty());
        for at in [0, 3 * BLOCK_BYTES - 1, 3 * BLOCK_BYTES, 10 * BLOCK_BYTES - 1] {
            actual[at] = 1;
        }
        let bytes = |blocks: usize| (blocks * BLOCK_BYTES) as u64;
        let run = |first, end, is_zero| DiffRun { bytes: bytes(first)..bytes(end), is_zero };
        assert_eq!(differing(&wanted, &actual), [run(0, 1, true), run(2, 4, true), run(9, 10, true)]);
        // Blocks whose wanted content is zero are not sent.
        wanted[3 * BLOCK_BYTES + 7] = 5;
        let expected = [run(0, 1, true), run(2, 3, true), run(3, 4, false), run(9, 10, true)];
        assert_eq!(differing(&wanted, &actual), expected);
    }
}

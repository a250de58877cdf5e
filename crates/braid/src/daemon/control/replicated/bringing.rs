//! Snapshots that a replica lacks which is back: brought to it oldest first, before it takes writes.
//!
//! For each its data are made what the snapshot is, and the snapshot is taken there, under the same identity and name. What that is
//! comes from the replica of this very node, or from another one that is in sync (`sources`). Of the first one all that was ever written is compared, of the next ones what they differ
//! in; what is equal is not sent, and of what the other one has nothing of nothing is read over the link: it says so. Where the snapshot
//! holds nothing over a long way nothing is compared: zeroes are asked for there, which costs a thin volume nothing.
//!
//! The replica is taken off the table before the first byte is changed: it may have had later writes than the snapshot, which nobody
//! would give it again. What comes back afterwards, also if this is broken off, is filled with all in which it is unlike the others.

use super::super::Control;

use super::super::tables::OpenDisk;
use super::create::around;
use super::decided::{Has, Verdict};
use super::serve::Attached;
use super::snapshots::{CHANGING_MAX, Serving};
use super::sources::{Missing, Opened};
use braid_api::{ErrorDetail, Kind, ReplicaChange};
use braid_engine::keeper::Order;
use braid_engine::{Flags, LeafError, LeafId, Op};
use braid_format::MemberState;
use braid_nbd::codec::state;
use braid_nbd::export::Allocation;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

/// Bytes that are compared at a time, how many such pieces are written side by side, and how many further ones are looked at meanwhile.
const PIECE_BYTES: u64 = 1 << 20;
const PIECES: usize = 8;
const AHEAD: usize = 12;
/// Pieces of all volumes of a node that are in memory at a time, each up to four times as long as it is.
static ROOM: Semaphore = Semaphore::const_new(48);
/// Of what a snapshot holds nothing of, so much is made zeros at a time.
const HOLE_BYTES: u64 = 16 << 20;
/// Runs of a piece that are written side by side.
const RUNS: usize = 8;
/// So often it is asked whether every write goes to a replica, and so long is waited in between.
const LIKEN_TRIES: u32 = 100;
const LIKEN_PAUSE: Duration = Duration::from_millis(50);
/// What is equal is known by so many bytes.
const BLOCK_BYTES: usize = 4096;

/// What a replica has got, or had already.
#[derive(Default)]
pub(super) struct Brought {
    /// It has some snapshot, and so most of what the volume is.
    pub alike: bool,
    /// Its data are what this snapshot is, which was brought just now.
    like: Option<Like>,
}

/// A snapshot, and where a replica's data are what it is.
struct Like {
    snapshot: Uuid,
    /// The replica that it was read from.
    from: u16,
    /// What had been written of the volume, by regions, when the first snapshot was about to be brought.
    written: Vec<Range<u64>>,
}

/// Somebody waits for what is brought: it is broken off, and begins again later with what is not equal then.
pub(super) struct Waits<'a>(&'a Attached);

impl Waits<'_> {
    /// Until it is dropped.
    pub(super) fn for_what_is_brought(attached: &Attached) -> Waits<'_> {
        attached.waiting.fetch_add(1, Ordering::AcqRel);
        Waits(attached)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Control {
    /// Brings a replica the snapshots that it lacks. The caller keeps others from taking any, and lets the replica take writes before it lets go
    /// of that.
    ///
    /// # Errors
    /// The replica does not answer, nor one that has them, or the volume is served no more.
    pub(super) async fn bring_snapshots(
        self: &Arc<Self>,
        serving: &Serving,
        role: u16,
        disk: &Arc<OpenDisk>,
    ) -> Result<Brought, ErrorDetail> {
        let volume = &serving.volume;
        let near = self.near_replica(volume.uuid);
        let listed = self.listed_surely(serving).await?;
        let own = self.list_one(volume, role).await?;
        let has = |uuid: &str| own.iter().any(|one| one.uuid == uuid && one.name.is_some());
        // Older ones than it has cannot come between those.
        let all = listed.snapshots();
        let newest = all.iter().rposition(|uuid| has(uuid));
        // First written later is what has no place in a replica's data, whatever stands there.
        let written = self.written_ranges(volume.uuid)?;
        let mut missing: Vec<Missing> = Vec::new();
        for text in all.iter().skip(newest.map_or(0, |newest| newest + 1)) {
            let (Verdict::Complete(name), Some(from)) = (listed.verdict(text), listed.source_of(near, role, text))
            else {
                continue;
            };
            let Ok(uuid) = text.parse::<Uuid>() else { continue };
            // Whoever lacks that one cannot tell what differs from it.
            let since = missing.last().map(|last| last.uuid);
            let since = since.filter(|since| matches!(listed.has(from, &since.to_string()), Has::Named(_)));
            missing.push(Missing { uuid, name, from, since });
        }
        let like = match missing.first() {
            Some(first) => {
                let first = match self.open_missing(serving, first).await {
                    // Its node is of a version that does not offer them. It is better without them than out.
                    Err(error) if error.kind == Kind::InvalidArgument && near != Some(first.from) => {
                        tracing::info!("replica {} lacks snapshots: {}", disk.name, error.message);
                        return Ok(Brought { alike: newest.is_some(), like: None });
                    }
                    first => first?,
                };
                if let Err(error) = self.take_off(volume.uuid, role).await {
                    self.close_opened(serving, first).await;
                    return Err(error);
                }
                self.bring_all(serving, role, disk, &missing, first).await?;
                missing.last().map(|last| Like { snapshot: last.uuid, from: last.from, written })
            }
            None => None,
        };
        Ok(Brought { alike: like.is_some() || newest.is_some(), like })
    }

    /// A replica that is out has nothing from now on that counts, by votes.
    async fn take_off(&self, volume: Uuid, role: u16) -> Result<(), ErrorDetail> {
        let state = |control: &Control| {
            let tables = control.read();
            tables.arrays.get(&volume)?.active()?.label.members.get(usize::from(role)).map(|member| member.state)
        };
        match state(self).ok_or_else(stopped)? {
            MemberState::Empty => Ok(()),
            _ => self.give_order(volume, Order::Remove(role)).await,
        }
    }

    /// Tells whoever fills a replica what it may lack, when it has been made what a snapshot is: that is what the replica from which it was read was
    /// written since, and what was first written then. Looked up when every write goes to both. Where that does not succeed, all that
    /// it has is compared.
    pub(super) async fn tell_what_differs(&self, serving: &Serving, role: u16, brought: Brought) {
        let Some(like) = brought.like else { return };
        if let Err(error) = self.liken(serving, role, &like).await {
            tracing::info!("all that replica {role} has is compared: {}", error.message);
        }
    }

    async fn liken(&self, serving: &Serving, role: u16, like: &Like) -> Result<(), ErrorDetail> {
        let array = serving.volume.uuid;
        let with = self.leaf_of_replica(array, like.from).ok_or_else(stopped)?;
        let mut tries = 0;
        while let Err(error) = self.give_order(array, Order::BeginDelta { slot: role, base: with }).await {
            tries += 1;
            if tries > LIKEN_TRIES {
                return Err(error);
            }
            tokio::time::sleep(LIKEN_PAUSE).await;
        }
        let mut ranges = self.ranges_between(serving, like.from, like.snapshot, None).await?;
        let changed_bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        ranges.extend(outside(&like.written));
        self.give_order(array, Order::ApplyDelta { slot: role, base: with, ranges }).await?;
        tracing::info!("replica {role} is filled with the {changed_bytes} bytes written since its newest snapshot");
        Ok(())
    }

    /// One after the other; while one is written the next one of this node is opened. One of another node is not: its offer would end before it is read.
    async fn bring_all(
        self: &Arc<Self>,
        serving: &Serving,
        role: u16,
        disk: &Arc<OpenDisk>,
        missing: &[Missing],
        first: Opened,
    ) -> Result<(), ErrorDetail> {
        let mut opened = Some(first);
        for (k, one) in missing.iter().enumerate() {
            let Some(source) = opened.take() else { break };
            let next = missing.get(k + 1);
            let near = self.near_replica(serving.volume.uuid);
            let opening = async {
                match next.filter(|next| near == Some(next.from)) {
                    Some(next) => self.open_missing(serving, next).await.map(Some),
                    None => Ok(None),
                }
            };
            let (made, following) = tokio::join!(self.make_equal(serving, &source, disk.leaf), opening);
            self.close_opened(serving, source).await;
            let taken = match made.and_then(|()| self.may_go_on(serving)) {
                Ok(()) => self.take_there(serving, role, disk, one).await,
                Err(error) => Err(ErrorDetail {
                    message: format!(
                        "snapshot {} could not be brought to replica {}: {}",
                        one.name, disk.name, error.message
                    ),
                    ..error
                }),
            };
            match (taken, following) {
                (Ok(()), Ok(None)) => {
                    if let Some(next) = next {
                        opened = Some(self.open_missing(serving, next).await?);
                    }
                }
                (Ok(()), following) => opened = following?,
                (Err(error), Ok(Some(following))) => {
                    self.close_opened(serving, following).await;
                    return Err(error);
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(())
    }

    /// The replica's data are what the snapshot is: it is taken there.
    async fn take_there(
        &self,
        serving: &Serving,
        role: u16,
        disk: &OpenDisk,
        missing: &Missing,
    ) -> Result<(), ErrorDetail> {
        let (snapshot, name) = (missing.uuid.to_string(), missing.name.clone());
        let take = ReplicaChange::Take { snapshot: snapshot.clone(), name: name.clone() };
        self.change_one(serving, role, &take, CHANGING_MAX).await?;
        self.change_one(serving, role, &ReplicaChange::Name { snapshot, name }, CHANGING_MAX).await?;
        let volume = &serving.volume.name;
        let message = format!("replica {} has got snapshot {volume}@{}", disk.name, missing.name);
        self.events().info("snapshot_brought", message, &[("volume", volume), ("snapshot", &missing.name)]);
        Ok(())
    }

    /// Writes to a replica's data whatever differs there from a snapshot.
    async fn make_equal(&self, serving: &Serving, source: &Opened, leaf: LeafId) -> Result<(), ErrorDetail> {
        let size_bytes = source.size_bytes();
        let (head_bytes, _) = around(size_bytes);
        let pieces = Pieces { ranges: &source.ranges, size_bytes, at: 0, allocation: source.allocation() };
        // What is asked goes over the link behind the data that are on their way: whoever asked only when those have come would leave it
        // idle meanwhile. So further pieces are looked at while these are written.
        let looked_at = stream::iter(pieces).map(|piece| async move {
            self.may_go_on(serving)?;
            self.look_at_piece(serving, source, leaf, head_bytes, piece).await
        });
        let written =
            looked_at.buffer_unordered(AHEAD).map_ok(|unlike| self.write_unlike(serving, leaf, head_bytes, unlike));
        written.try_buffer_unordered(PIECES).try_collect::<()>().await
    }

    /// Nobody waits for this to be broken off, and the volume is served.
    fn may_go_on(&self, serving: &Serving) -> Result<(), ErrorDetail> {
        if serving.attached.waiting.load(Ordering::Acquire) > 0 {
            let message = "another replica is to go first: it goes on then";
            return Err(ErrorDetail::new(Kind::InUse, message));
        }
        let is_served = self.read().arrays.get(&serving.volume.uuid).is_some_and(|entry| entry.active().is_some());
        // It may be served anew by now.
        match is_served && !serving.attached.has_ended() {
            true => Ok(()),
            false => Err(stopped()),
        }
    }

    async fn write_unlike(
        &self,
        serving: &Serving,
        leaf: LeafId,
        head_bytes: u64,
        unlike: Unlike,
    ) -> Result<(), ErrorDetail> {
        self.may_go_on(serving)?;
        let (right, start) = (&unlike.right, head_bytes + unlike.start);
        let writes = unlike.runs.into_iter().map(|run| {
            let (at, len) = (start + run.bytes.start, run.bytes.end - run.bytes.start);
            let (op, data) = match run.is_zero {
                true => (Op::WriteZeroes, &[][..]),
                false => (Op::Write, &right[run.bytes.start as usize..run.bytes.end as usize]),
            };
            self.ring.leaf_io(leaf, op, Flags::NONE, at, len, data)
        });
        stream::iter(writes).buffer_unordered(RUNS).try_collect::<Vec<_>>().await.map(drop).map_err(there_failed)
    }

    /// In what a replica's data differ from a piece of a snapshot.
    async fn look_at_piece(
        &self,
        serving: &Serving,
        source: &Opened,
        leaf: LeafId,
        head_bytes: u64,
        piece: Piece,
    ) -> Result<Unlike, ErrorDetail> {
        let (start, len) = (piece.bytes.start, piece.bytes.end - piece.bytes.start);
        if piece.is_hole {
            let runs = vec![Run { bytes: 0..len, is_zero: true }];
            return Ok(Unlike { start, right: Vec::new(), runs, _room: None });
        }
        // Given back when it is written, which waits for no further room.
        let room = ROOM.acquire().await.ok();
        let right = self.read_opened(serving, source, start, len);
        let there = self.ring.leaf_io(leaf, Op::Read, Flags::SPARSE, head_bytes + start, len, &[]);
        let (right, there) = tokio::join!(right, there);
        let right = right?;
        let runs = differing(&right, &there.map_err(there_failed)?);
        Ok(Unlike { start, right, runs, _room: room })
    }
}

/// What is made equal at a time.
#[derive(PartialEq, Eq, Debug)]
struct Piece {
    bytes: Range<u64>,
    /// The snapshot holds nothing of it.
    is_hole: bool,
}

/// The pieces of ranges, in their order.
struct Pieces<'a> {
    ranges: &'a [Range<u64>],
    /// Of the device; what is beyond is left out.
    size_bytes: u64,
    /// What is before this has been given.
    at: u64,
    allocation: Option<&'a dyn Allocation>,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        while let Some((range, others)) = self.ranges.split_first() {
            let (start, end) = (range.start.max(self.at), range.end.min(self.size_bytes));
            if start < end {
                let piece = Piece::first_of(start..end, self.allocation);
                self.at = piece.bytes.end;
                return Some(piece);
            }
            (self.ranges, self.at) = (others, 0);
        }
        None
    }
}

impl Piece {
    /// The first piece of a range that is not empty, by what the snapshot says of its holes. Those shorter than a piece are read with what is
    /// around them.
    fn first_of(range: Range<u64>, allocation: Option<&dyn Allocation>) -> Piece {
        let (start, mut hole_bytes) = (range.start, 0);
        let looked_at = (range.end - start).min(HOLE_BYTES);
        if let Some(allocation) = allocation {
            allocation.extents(start, looked_at, &mut |len, flags| {
                if flags & state::ZERO != 0 {
                    hole_bytes = len;
                }
                false
            });
        }
        let is_hole = hole_bytes >= PIECE_BYTES.min(looked_at);
        let len = if is_hole { hole_bytes } else { looked_at.min(PIECE_BYTES) };
        Piece { bytes: start..start + len, is_hole }
    }
}

/// What is not within these, which are in order.
fn outside(ranges: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> + '_ {
    let starts = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start).chain(std::iter::once(u64::MAX));
    starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty())
}

fn there_failed(error: LeafError) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("the replica: {error}"))
}

pub(super) fn stopped() -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, "the volume is not served any more")
}

/// A piece, and what is to be written of it.
struct Unlike {
    start: u64,
    /// What the piece is to be; empty where that is a hole.
    right: Vec<u8>,
    runs: Vec<Run>,
    _room: Option<SemaphorePermit<'static>>,
}

/// Blocks in which two buffers differ, one after the other.
#[derive(PartialEq, Eq, Debug)]
struct Run {
    /// From the piece's start.
    bytes: Range<u64>,
    /// They are to be zeros: then no data are sent, and nothing is allocated for them.
    is_zero: bool,
}

fn differing(right: &[u8], there: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (block, (one, other)) in right.chunks(BLOCK_BYTES).zip(there.chunks(BLOCK_BYTES)).enumerate() {
        if one == other {
            continue;
        }
        let start = (block * BLOCK_BYTES) as u64;
        let (end, is_zero) = (start + one.len() as u64, one.iter().all(|byte| *byte == 0));
        match runs.last_mut() {
            Some(last) if last.bytes.end == start && last.is_zero == is_zero => last.bytes.end = end,
            _ => runs.push(Run { bytes: start..end, is_zero }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_of_ranges_is_between_them() {
        let of = |ranges: &[Range<u64>]| outside(ranges).map(|range| (range.start, range.end)).collect::<Vec<_>>();
        assert_eq!(of(&[0..3, 5..9]), [(3, 5), (9, u64::MAX)]);
        assert_eq!(of(&[2..3, 3..4]), [(0, 2), (4, u64::MAX)]);
        assert_eq!(of(&[]), [(0, u64::MAX)]);
    }

    /// Holes at these places, data elsewhere.
    struct HolesAt(Vec<Range<u64>>);

    impl Allocation for HolesAt {
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
        let holes = HolesAt(vec![M..M + 4096, 3 * M..4 * M, 6 * M..200 * M]);
        let first = |range: Range<u64>| {
            let piece = Piece::first_of(range, Some(&holes));
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
        let pieces = Pieces { ranges: &ranges, size_bytes: 300 * M + 512, at: 0, allocation: Some(&holes) };
        let all: Vec<_> = pieces.map(|piece| (piece.bytes.start, piece.bytes.end, piece.is_hole)).collect();
        let data = |start, end| (start * M, end * M, false);
        let expected = [data(0, 1), (3 * M, 4 * M, true), data(4, 5), data(5, 6), (6 * M, 7 * M, true)];
        assert_eq!(all, [&expected[..], &[(300 * M, 300 * M + 512, false)]].concat());
        // Whoever does not say is read.
        assert_eq!(Piece::first_of(6 * M..300 * M, None), Piece { bytes: 6 * M..7 * M, is_hole: false });
    }

    #[test]
    fn only_what_differs_is_written() {
        let mut there = vec![0; 10 * BLOCK_BYTES];
        let mut right = there.clone();
        assert!(differing(&right, &there).is_empty());
        for at in [0, 3 * BLOCK_BYTES - 1, 3 * BLOCK_BYTES, 10 * BLOCK_BYTES - 1] {
            there[at] = 1;
        }
        let bytes = |blocks: usize| (blocks * BLOCK_BYTES) as u64;
        let run = |first, end, is_zero| Run { bytes: bytes(first)..bytes(end), is_zero };
        assert_eq!(differing(&right, &there), [run(0, 1, true), run(2, 4, true), run(9, 10, true)]);
        // What is zeros there in the end is not sent.
        right[3 * BLOCK_BYTES + 7] = 5;
        let expected = [run(0, 1, true), run(2, 3, true), run(3, 4, false), run(9, 10, true)];
        assert_eq!(differing(&right, &there), expected);
    }
}

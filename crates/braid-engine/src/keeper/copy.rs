//! Copying regions from members that are in sync: to all others after a crash, and to members that are being filled.

use braid_format::MemberState;

use super::{Act, Keeper, KeeperIo, Note, SyncPart};
use crate::io::{ErrorKind, LEAF_BYTES_MAX};
use crate::lifecycle::join_all;
use crate::mirror::{MirrorMember, Role, Roles};
use crate::planted::{Planted, planted};
use crate::shard::RegionCall;

/// Regions that are made equal between two flushes.
const RESYNC_BATCH: usize = 8;
/// Regions that are copied between two notes of how far a member has come.
const CHECKPOINT_EVERY: u32 = 256;
/// Before something that could not be done is tried again.
const PAUSE_NS: u64 = 50_000_000;
/// Pieces that are copied at a time: reads from one disk while others write.
const PIECES_AT_ONCE: usize = 8;
/// After so many tries, what no member can read is left as it is: whoever reads it is told so.
const TRIES_MAX: u32 = 5;

/// What is left to copy for a member that is being filled.
pub(super) struct Fill {
    /// It gets everything that was ever written from this byte on; `None`: only what is dirty.
    full_from: Option<u64>,
    /// The regions that are left, a bit each; `None` until it takes every write.
    left: Option<Vec<u64>>,
    since_checkpoint: u32,
}

impl Fill {
    pub fn new(full_from: Option<u64>) -> Fill {
        Fill { full_from, left: None, since_checkpoint: 0 }
    }
}

impl Keeper {
    /// Makes some regions equal that a crash left dirty, those first for which somebody waits. `None`: there are none.
    pub(super) async fn resync<I: KeeperIo>(&mut self, io: &I) -> Option<Act> {
        let mut batch = Vec::new();
        let wanted = |from| self.regions.wanted.next(from).filter(|r| self.regions.unsettled.has(*r));
        let mut from = 0;
        while let Some(region) = wanted(from).filter(|_| batch.len() < RESYNC_BATCH) {
            batch.push(region);
            from = region + 1;
        }
        from = 0;
        while batch.is_empty() || !self.paused && batch.len() < RESYNC_BATCH && self.regions.wanted.count() == 0 {
            let Some(region) = self.regions.unsettled.next(from).filter(|_| !self.paused) else { break };
            batch.push(region);
            from = region + 1;
        }
        if batch.is_empty() {
            if std::mem::take(&mut self.resyncing) && self.regions.unsettled.count() == 0 {
                io.note(self.options.device, Note::Resynced);
            }
            return None;
        }
        let all = Roles(u128::MAX);
        let mut equal = Vec::new();
        for region in batch {
            let tries = self.tries.get(&region).copied().unwrap_or(0);
            match self.copy_region(io, region, all, tries).await {
                Copied::All => equal.push(region),
                Copied::Again => {}
                Copied::Unreadable => {
                    *self.tries.entry(region).or_default() += 1;
                    if tries >= TRIES_MAX {
                        equal.push(region);
                    }
                }
            }
        }
        self.tries.retain(|region, _| !equal.contains(region));
        if equal.is_empty() {
            io.sleep(PAUSE_NS).await;
            return Some(Act::Nothing);
        }
        if !planted(Planted::DirtyAnsweredUnflushed) {
            for (role, leaf) in self.serving() {
                if io.flush(leaf).await.is_err() {
                    return Some(Act::Lose(role));
                }
            }
        }
        io.call(self.options.device, self.options.home, RegionCall::Settle(equal)).await;
        Some(Act::Nothing)
    }

    /// Copies some regions for a member that is being filled. `None`: nobody is.
    pub(super) async fn fill<I: KeeperIo>(&mut self, io: &I) -> Option<Act> {
        let (&role, fill) = self.fills.iter().next()?;
        if fill.left.is_none() {
            // From when this returns every request in flight writes to the newcomer as well.
            let layout = self.layout(io);
            io.publish(self.options.device, Some(layout)).await;
            io.call(self.options.device, self.options.home, RegionCall::Rewrite).await;
            let left = self.left_for(role);
            self.fills.get_mut(&role)?.left = Some(left);
            return Some(Act::Nothing);
        }
        let Some(region) = self.next_for(role) else { return Some(Act::Promote(role)) };
        if self.regions.unsettled.has(region) {
            // It is copied to everybody by and by.
            io.sleep(PAUSE_NS).await;
            return Some(Act::Nothing);
        }
        let to = Roles::NONE.with(usize::from(role));
        let tries = self.tries.get(&region).copied().unwrap_or(0);
        let copied = self.copy_region(io, region, to, tries).await;
        if copied == Copied::Unreadable {
            *self.tries.entry(region).or_default() += 1;
        }
        if copied == Copied::Again || copied == Copied::Unreadable && tries < TRIES_MAX {
            io.sleep(PAUSE_NS).await;
            return Some(Act::Nothing);
        }
        self.tries.remove(&region);
        let position = self.regions.range(region).1;
        let fill = self.fills.get_mut(&role)?;
        if let Some(left) = &mut fill.left {
            left[region as usize / 64] &= !(1 << (region % 64));
        }
        fill.since_checkpoint += 1;
        if fill.full_from.is_some() && fill.since_checkpoint >= CHECKPOINT_EVERY {
            fill.since_checkpoint = 0;
            let ahead =
                if planted(Planted::CheckpointAhead) { u64::from(self.array.label().region_bytes) * 4 } else { 0 };
            return Some(Act::Checkpoint(role, position + ahead));
        }
        Some(Act::Nothing)
    }

    /// Which regions a member lacks that takes every write from now on.
    fn left_for(&self, role: u16) -> Vec<u64> {
        let map = &self.regions;
        let words = (map.regions() as usize).div_ceil(64);
        let from = self.fills.get(&role).and_then(|fill| fill.full_from);
        let first = from.map(|byte| map.region_of(byte));
        let word = |at: usize| {
            let dirty = map.dirty.word(at) & map.written.word(at);
            let full = match first {
                None => 0,
                Some(first) if first as usize / 64 > at => 0,
                Some(first) if first as usize / 64 == at => map.written.word(at) & (u64::MAX << (first % 64)),
                Some(_) => map.written.word(at),
            };
            if planted(Planted::CatchUpForgets) { full } else { dirty | full }
        };
        (0..words).map(word).collect()
    }

    fn next_for(&self, role: u16) -> Option<u32> {
        let left = self.fills.get(&role)?.left.as_ref()?;
        let (word, bits) = left.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    /// The members that take writes, and their disks.
    pub(super) fn serving(&self) -> Vec<(u16, crate::LeafId)> {
        let holds =
            |m: &crate::lifecycle::ArrayMember<'_>| matches!(m.state, MemberState::InSync | MemberState::Filling);
        self.array.members().filter(holds).map(|m| (m.role, m.leaf)).collect()
    }

    /// Copies a region from members that are in sync to these, each piece under its range lock, several at a time. Where
    /// that did not succeed before, block by block.
    async fn copy_region<I: KeeperIo>(&self, io: &I, region: u32, to: Roles, tries: u32) -> Copied {
        let (mut at, end) = self.regions.range(region);
        let most = if tries > 0 { u64::from(self.options.block_bytes).max(4096) } else { LEAF_BYTES_MAX };
        let members = self.members();
        let mut pieces = Vec::new();
        let mut copied = Copied::All;
        while at < end {
            let piece = self.piece(&members, at, (end - at).min(most), to);
            at += piece.len;
            if piece.sources.iter().any(|from| !piece.others(*from).is_empty()) {
                pieces.push(piece);
            }
            if pieces.len() == PIECES_AT_ONCE || at >= end {
                let results = join_all(pieces.drain(..).map(|piece| self.copy_piece(io, piece))).await;
                copied = results.into_iter().fold(copied, Copied::and);
                if copied == Copied::Again {
                    return copied;
                }
            }
        }
        copied
    }

    /// The piece at `at`, at most so long.
    fn piece(&self, members: &[MirrorMember], at: u64, len: u64, to: Roles) -> Piece {
        let mut piece = Piece { offset: at, len, sources: Vec::new(), targets: Roles::NONE };
        self.array.geometry().copies(at, &mut |place| {
            let role = usize::from(place.member);
            piece.len = piece.len.min(place.len);
            if members[role].role == Role::InSync {
                piece.sources.push(place.member);
            }
            if members[role].role != Role::Out && to.has(role) {
                piece.targets = piece.targets.with(role);
            }
        });
        piece
    }

    /// Copies a piece from the first member that can read it.
    async fn copy_piece<I: KeeperIo>(&self, io: &I, piece: Piece) -> Copied {
        for from in &piece.sources {
            let (device, to) = (self.options.device, piece.others(*from));
            let part = SyncPart { device, offset: piece.offset, len: piece.len, from: *from, to };
            match io.sync(part).await {
                Ok(()) => return Copied::All,
                // Not the source's fault: nothing can be done now, or a member has failed what was written to it.
                Err(error) if error.kind == ErrorKind::Busy => return Copied::Again,
                Err(_) => {}
            }
        }
        Copied::Unreadable
    }
}

/// A contiguous piece of the array that is to be copied.
struct Piece {
    offset: u64,
    len: u64,
    sources: Vec<u16>,
    targets: Roles,
}

impl Piece {
    fn others(&self, from: u16) -> Roles {
        Roles(self.targets.0 & !(1 << from))
    }
}

/// What came of copying.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    All,
    /// A member failed, or much is going on: later.
    Again,
    /// Some of it no member could read, or one failed to write.
    Unreadable,
}

impl Copied {
    fn and(self, other: Copied) -> Copied {
        match (self, other) {
            (Copied::Again, _) | (_, Copied::Again) => Copied::Again,
            (Copied::Unreadable, _) | (_, Copied::Unreadable) => Copied::Unreadable,
            _ => Copied::All,
        }
    }
}

//! Copies regions from members in sync: in pieces, each under its range lock, several pieces at a time.

use std::collections::VecDeque;

use braid_engine::{
    DeviceId, ErrorKind, LEAF_BYTES_MAX, LeafId, MemberRole, MemberSet, MirrorMember, SyncKind, SyncPart,
};

use super::flight::Flight;
use super::stripes::StripePiece;
use super::{Reconciler, ReconcilerIo};

/// Delay before a failed step is retried.
pub(super) const PAUSE_NS: u64 = 50_000_000;
/// Pieces in flight for regions that requests wait for.
const PIECES_AT_ONCE: usize = 8;
/// After this many attempts, blocks that no member can read are left as they are: reading them is an error.
const TRIES_MAX: u32 = 5;
/// Regions with nothing to copy that are skipped before the task yields.
const PASSED_MAX: u32 = 256;

/// What to copy.
pub(super) enum Goal {
    /// These regions to all members, first of all: requests wait for them.
    Wanted(VecDeque<u32>),
    /// These regions to all members.
    Unequal(VecDeque<u32>),
    /// What rebuilding members lack.
    Rebuild,
}

/// A region that has been copied in part.
#[derive(Clone, Copy)]
pub(super) struct PartialCopy {
    pub(super) to: MemberSet,
    /// Everything before this byte of the array has been copied.
    until: u64,
}

/// A region that is being copied.
struct RegionCopy {
    region: u32,
    to: MemberSet,
    /// Where the next piece begins, and where the region ends.
    at: u64,
    end: u64,
    /// Maximum bytes of a piece.
    most: u64,
    /// The pieces in order, from the first that is not copied on: the array offset at which each ends, and whether it
    /// is copied already. Progress is recorded up to the first piece that is not.
    pieces: VecDeque<(u64, bool)>,
    under_way: usize,
    /// Runs that no member could read: array offset and bytes.
    unreadable: Vec<(u64, u64)>,
}

/// A finished piece.
struct Ended {
    region: u32,
    end: u64,
    len: u64,
    took_ns: u64,
    copied: Copied,
    /// Sources that failed to read it before one succeeded.
    failed: MemberSet,
}

/// One run of [`Reconciler::copy`].
struct CopyRun {
    members: Vec<MirrorMember>,
    copying: Vec<RegionCopy>,
    /// The region that was begun last.
    last: Option<u32>,
    /// No further piece is begun.
    closing: bool,
    /// A piece failed.
    failed: bool,
}

impl Reconciler {
    /// Copies what `goal` names, until the labels have to change or something more urgent comes up. Returns false if a
    /// piece failed, after a delay. Dropping the future loses no progress.
    pub(super) async fn copy<I: ReconcilerIo>(&mut self, io: &I, goal: &mut Goal) -> bool {
        let mut flight = Flight::new();
        let mut run =
            CopyRun { members: self.members(), copying: Vec::new(), last: None, closing: false, failed: false };
        let limit = self.limit_of(goal);
        let map = std::sync::Arc::clone(&self.regions);
        let unsettled = map.unequal.count() > 0;
        loop {
            let urgent = matches!(goal, Goal::Wanted(_));
            let hurry = || !urgent && unsettled && map.wanted.count() > 0;
            let mut pace = super::pace::Turn { pieces: PIECES_AT_ONCE, bytes: LEAF_BYTES_MAX, slow: false };
            if !urgent && !run.closing {
                match self.pace.turn(io, self.options.device, limit, hurry).await {
                    Some(turn) => pace = turn,
                    None => run.closing = true,
                }
            }
            let begun_ns = io.now_ns();
            while !run.closing && flight.len() < pace.pieces {
                let Some((region, piece)) = self.next_piece(io, goal, &mut run, pace.bytes).await else { break };
                flight.add(copy_piece(io, self.options.device, region, piece));
            }
            if flight.is_empty() {
                break;
            }
            let (mut bytes, mut took_ns) = (0, 0);
            loop {
                let ended = flight.next().await;
                (bytes, took_ns) = (bytes + ended.len, took_ns.max(ended.took_ns));
                self.piece_ended(io, goal, &mut run, &ended);
                if !pace.slow || flight.is_empty() {
                    break;
                }
            }
            if pace.slow {
                self.pace.ended(io.now_ns(), begun_ns, took_ns, bytes, limit);
            }
        }
        if run.failed {
            io.sleep(PAUSE_NS).await;
        }
        !run.failed
    }

    /// Returns the next piece and its region; `None` when no further piece is to be begun.
    async fn next_piece<I: ReconcilerIo>(
        &mut self,
        io: &I,
        goal: &mut Goal,
        run: &mut CopyRun,
        most: u64,
    ) -> Option<(u32, Piece)> {
        let mut passed = 0;
        while !run.closing {
            if let Some(copying) = run.copying.last_mut().filter(|copying| copying.at < copying.end) {
                let mut end = copying.end;
                if matches!(goal, Goal::Rebuild) && !self.has_parity() {
                    (copying.at, end) = self.delta_run(copying.to, copying.at, copying.end);
                }
                let mut most = most.min(copying.most);
                let compare_target = match goal {
                    Goal::Rebuild if !self.has_parity() => self.compare_target(copying.to, copying.at),
                    _ => None,
                };
                if compare_target.is_some() {
                    // Both versions of a piece are in memory at a time.
                    most = most.min(LEAF_BYTES_MAX / 2);
                }
                let piece = match self.has_parity() {
                    true => Some(self.piece_of_stripe(&run.members, copying.at, most, copying.to)),
                    false if copying.at == end => None,
                    false => Some(self.piece(&run.members, copying.at, most.min(end - copying.at), copying.to)),
                };
                copying.at += piece.as_ref().map_or(0, |piece| piece.len);
                if let Some(piece) = piece.filter(Piece::has_work) {
                    let piece = Piece { compare_target, ..piece };
                    copying.pieces.push_back((copying.at, false));
                    copying.under_way += 1;
                    return Some((copying.region, piece));
                }
                if copying.at == copying.end && copying.under_way == 0 {
                    let region = copying.region;
                    self.region_ended(io, goal, run, region);
                    passed += 1;
                    if passed % PASSED_MAX == 0 {
                        io.sleep(1).await;
                    }
                }
                continue;
            }
            let next = self.next_region(goal, run.last);
            let Some((region, to)) = next else { break };
            run.last = Some(region);
            let (mut start, mut end) = self.regions.range(region);
            if self.has_parity() {
                // A stripe belongs to the region of its first byte.
                (start, end) = (self.next_stripe(start), self.next_stripe(end));
            }
            let before = self.begun.get(&region).filter(|begun| begun.to == to).map_or(start, |begun| begun.until);
            self.begun.insert(region, PartialCopy { to, until: before });
            // After a failed attempt: block by block.
            let tried = self.tries.contains_key(&region);
            let most = if tried { u64::from(self.options.block_bytes).max(4096) } else { LEAF_BYTES_MAX };
            run.copying.push(RegionCopy {
                region,
                to,
                at: before,
                end,
                most,
                pieces: VecDeque::new(),
                under_way: 0,
                unreadable: Vec::new(),
            });
            if before == end {
                self.region_ended(io, goal, run, region);
            }
        }
        run.closing = true;
        None
    }

    fn next_region(&self, goal: &mut Goal, last: Option<u32>) -> Option<(u32, MemberSet)> {
        match goal {
            Goal::Wanted(regions) | Goal::Unequal(regions) => {
                regions.pop_front().map(|region| (region, MemberSet(u128::MAX)))
            }
            Goal::Rebuild => self.next_lacking(last),
        }
    }

    fn limit_of(&self, goal: &Goal) -> u64 {
        match goal {
            Goal::Wanted(_) => 0,
            Goal::Unequal(_) => self.jobs.limit(braid_format::JobKind::Resync, None),
            Goal::Rebuild => self.rebuild_limit(),
        }
    }

    fn piece_ended<I: ReconcilerIo>(&mut self, io: &I, goal: &Goal, run: &mut CopyRun, ended: &Ended) {
        let copying =
            run.copying.iter_mut().find(|copying| copying.region == ended.region).expect("a region under way");
        copying.under_way -= 1;
        match ended.copied {
            Copied::All => {
                self.reread_later(ended.failed, ended.end - ended.len, ended.len);
                let piece = copying.pieces.iter_mut().find(|(end, _)| *end == ended.end).expect("a piece under way");
                piece.1 = true;
                while let Some((end, _)) = copying.pieces.pop_front_if(|(_, copied)| *copied) {
                    if let Some(begun) = self.begun.get_mut(&ended.region) {
                        begun.until = end;
                    }
                }
            }
            Copied::Unreadable => copying.unreadable.push((ended.end - ended.len, ended.len)),
            Copied::Again => (run.closing, run.failed) = (true, true),
        }
        if copying.at == copying.end && copying.under_way == 0 {
            self.region_ended(io, goal, run, ended.region);
        }
    }

    /// Finishes a region that has no piece in flight.
    fn region_ended<I: ReconcilerIo>(&mut self, io: &I, goal: &Goal, run: &mut CopyRun, region: u32) {
        let at = run.copying.iter().position(|copying| copying.region == region).expect("a region under way");
        let copying = run.copying.remove(at);
        if !copying.unreadable.is_empty() {
            let tries = self.tries.entry(region).or_default();
            *tries += 1;
            if *tries <= TRIES_MAX {
                (run.closing, run.failed) = (true, true);
                return;
            }
        } else if !copying.pieces.is_empty() {
            return;
        }
        self.begun.remove(&region);
        self.tries.remove(&region);
        if !copying.unreadable.is_empty() {
            let lacking = matches!(goal, Goal::Rebuild).then_some(copying.to);
            self.note_unreadable(io, region, copying.unreadable, lacking);
            if lacking.is_some() {
                return;
            }
        }
        match goal {
            Goal::Wanted(_) | Goal::Unequal(_) => drop(self.copied.insert(region)),
            Goal::Rebuild => run.closing |= self.region_rebuilt(io, region, copying.to),
        }
    }

    /// Returns the piece at `at`, at most `len` bytes long.
    fn piece(&self, members: &[MirrorMember], at: u64, len: u64, to: MemberSet) -> Piece {
        let mut piece = Piece {
            offset: at,
            len,
            sources: Vec::new(),
            targets: MemberSet::NONE,
            stripe: None,
            compare_target: None,
        };
        self.copies(at, &mut |place| {
            let role = usize::from(place.member);
            piece.len = piece.len.min(place.len);
            if members[role].role == MemberRole::InSync {
                piece.sources.push(place.member);
            }
            if members[role].role != MemberRole::Failed && to.has(role) {
                piece.targets = piece.targets.with(role);
            }
        });
        piece
    }

    /// Returns the piece of a stripe at `at`, at most `most` bytes high.
    fn piece_of_stripe(&self, members: &[MirrorMember], at: u64, most: u64, to: MemberSet) -> Piece {
        let stripe = self.stripe_piece(members, at, most);
        let lacks =
            |member: &u16| members[usize::from(*member)].role == MemberRole::Rebuilding && to.has(usize::from(*member));
        let targets = stripe.holders.iter().map(|(member, _)| *member).filter(lacks);
        let targets = targets.fold(MemberSet::NONE, |roles, member| roles.with(usize::from(member)));
        Piece { offset: at, len: stripe.len, sources: Vec::new(), targets, stripe: Some(stripe), compare_target: None }
    }
}

/// Computes a piece of a stripe for the members that lack it, without the members that fail to read it.
async fn restore_piece<I: ReconcilerIo>(
    io: &I,
    device: DeviceId,
    piece: &Piece,
    stripe: &StripePiece,
) -> (Copied, MemberSet) {
    let mut failed = MemberSet::NONE;
    loop {
        let kind = SyncKind::Rebuild { to: piece.targets, avoid: failed, data: stripe.data, cells: stripe.cells };
        let part = SyncPart { device, offset: piece.offset, len: piece.len, kind };
        let error = match io.sync(part).await {
            Ok(_) => return (Copied::All, failed),
            Err(error) if error.kind == ErrorKind::Busy => return (Copied::Again, failed),
            Err(error) => error,
        };
        let of =
            stripe.holders.iter().find(|(_, leaf)| Some(*leaf) == error.leaf).map(|(member, _)| usize::from(*member));
        match of.filter(|member| !failed.has(*member) && !piece.targets.has(*member)) {
            Some(member) => failed = failed.with(member),
            None => return (Copied::Unreadable, failed),
        }
    }
}

/// Copies a piece from the first member that can read it.
async fn copy_piece<I: ReconcilerIo>(io: &I, device: DeviceId, region: u32, piece: Piece) -> Ended {
    let begun_ns = io.now_ns();
    let (mut copied, mut failed) = (Copied::Unreadable, MemberSet::NONE);
    if let Some(stripe) = &piece.stripe {
        (copied, failed) = restore_piece(io, device, &piece, stripe).await;
    }
    for from in &piece.sources {
        let to = piece.others(*from);
        let copy = SyncKind::Copy { from: *from, to };
        let part = |kind: SyncKind| SyncPart { device, offset: piece.offset, len: piece.len, kind };
        let mut done = match piece.compare_target {
            Some((compare_target, _)) => {
                io.sync(part(SyncKind::CopyDifferences { from: *from, to: compare_target })).await
            }
            None => io.sync(part(copy)).await,
        };
        if let (Some((_, leaf)), Err(error)) = (piece.compare_target, &done)
            && error.leaf == Some(leaf)
        {
            // The target cannot be read there: write the whole piece.
            done = io.sync(part(copy)).await;
        }
        match done {
            Ok(_) => copied = Copied::All,
            // The source has not failed: too much is in flight, or a member failed a write. The piece is tried again
            // later.
            Err(error) if error.kind == ErrorKind::Busy => copied = Copied::Again,
            Err(_) => {
                failed = failed.with(usize::from(*from));
                continue;
            }
        }
        break;
    }
    let took_ns = io.now_ns().saturating_sub(begun_ns);
    Ended { region, end: piece.offset + piece.len, len: piece.len, took_ns, copied, failed }
}

/// A contiguous piece of the array to copy.
struct Piece {
    offset: u64,
    len: u64,
    sources: Vec<u16>,
    targets: MemberSet,
    /// Set at levels with parity, which have no copies.
    stripe: Option<StripePiece>,
    /// The only member that lacks the piece, if it may hold the same content already.
    compare_target: Option<(u16, LeafId)>,
}

impl Piece {
    /// Whether some member lacks the piece and another can provide it.
    fn has_work(&self) -> bool {
        match self.stripe {
            Some(_) => !self.targets.is_empty(),
            None => self.sources.iter().any(|from| !self.others(*from).is_empty()),
        }
    }

    fn others(&self, from: u16) -> MemberSet {
        MemberSet(self.targets.0 & !(1 << from))
    }
}

/// The outcome of copying a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    All,
    /// A member failed, or too much is in flight: retry later.
    Again,
    /// No member could read some of it. A failed write ends as [`Copied::Again`].
    Unreadable,
}

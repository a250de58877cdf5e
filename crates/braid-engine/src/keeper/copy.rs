//! Copying regions from members that are in sync: piece by piece, each under its range lock, several at a time.

use std::collections::VecDeque;

use super::flight::Flight;
use super::rows::RowPiece;
use super::{Keeper, KeeperIo, SyncPart};
use crate::io::{DeviceId, ErrorKind, LEAF_BYTES_MAX, LeafId};
use crate::mirror::{MirrorMember, Role, Roles};
use crate::shard::sync::SyncKind;

/// Before something that could not be done is tried again.
pub(super) const PAUSE_NS: u64 = 50_000_000;
/// Pieces at a time of what somebody waits for.
const PIECES_AT_ONCE: usize = 8;
/// After so many tries, what no member can read is left as it is: whoever reads it is told so.
const TRIES_MAX: u32 = 5;
/// Regions that are passed over, as there is nothing to copy, before others may run.
const PASSED_MAX: u32 = 256;

/// What is to be copied.
pub(super) enum Goal {
    /// These to all members, at once: somebody waits for them.
    Wanted(VecDeque<u32>),
    /// These to all members.
    Unequal(VecDeque<u32>),
    /// What members that are being filled lack.
    Lacking,
}

/// A region of which something was copied.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    pub(super) to: Roles,
    /// Everything before this byte of the array is copied.
    until: u64,
}

/// A region that is being copied.
struct Going {
    region: u32,
    to: Roles,
    /// Where the next piece begins, and where the region ends.
    at: u64,
    end: u64,
    /// Bytes of a piece at most.
    most: u64,
    /// The pieces under way and those copied before others that begin earlier: where each ends, and whether it is copied.
    pieces: VecDeque<(u64, bool)>,
    under_way: usize,
    /// What no member could read: where it begins, and bytes.
    unreadable: Vec<(u64, u64)>,
}

/// A piece that has ended.
struct Ended {
    region: u32,
    end: u64,
    len: u64,
    took_ns: u64,
    copied: Copied,
    /// Sources that could not read it, before one could.
    failed: Roles,
}

/// One run of copying.
struct Course {
    members: Vec<MirrorMember>,
    going: Vec<Going>,
    /// The region that was begun last.
    last: Option<u32>,
    /// Nothing more is begun.
    closing: bool,
    /// Something did not succeed.
    failed: bool,
}

impl Keeper {
    /// Copies what the goal says, as far as it goes without a change of labels, or until there is something more urgent.
    /// False: something did not succeed, and a while was waited. Whatever was copied is remembered if this is given up.
    pub(super) async fn copy<I: KeeperIo>(&mut self, io: &I, goal: &mut Goal) -> bool {
        let mut flight = Flight::new();
        let mut course =
            Course { members: self.members(), going: Vec::new(), last: None, closing: false, failed: false };
        let limit = self.limit_of(goal);
        let map = std::sync::Arc::clone(&self.regions);
        let unsettled = map.unsettled.count() > 0;
        loop {
            let urgent = matches!(goal, Goal::Wanted(_));
            let hurry = || !urgent && unsettled && map.wanted.count() > 0;
            let mut pace = super::pace::Turn { pieces: PIECES_AT_ONCE, bytes: LEAF_BYTES_MAX, slow: false };
            if !urgent && !course.closing {
                match self.pace.turn(io, self.options.device, limit, hurry).await {
                    Some(turn) => pace = turn,
                    None => course.closing = true,
                }
            }
            let begun_ns = io.now_ns();
            while !course.closing && flight.len() < pace.pieces {
                let Some((region, piece)) = self.next_piece(io, goal, &mut course, pace.bytes).await else { break };
                flight.add(copy_piece(io, self.options.device, region, piece));
            }
            if flight.is_empty() {
                break;
            }
            let (mut bytes, mut took_ns) = (0, 0);
            loop {
                let ended = flight.next().await;
                (bytes, took_ns) = (bytes + ended.len, took_ns.max(ended.took_ns));
                self.piece_ended(io, goal, &mut course, &ended);
                if !pace.slow || flight.is_empty() {
                    break;
                }
            }
            if pace.slow {
                self.pace.ended(io.now_ns(), begun_ns, took_ns, bytes, limit);
            }
        }
        if course.failed {
            io.sleep(PAUSE_NS).await;
        }
        !course.failed
    }

    /// The next piece, and its region; none, when nothing more is to be begun.
    async fn next_piece<I: KeeperIo>(
        &mut self,
        io: &I,
        goal: &mut Goal,
        course: &mut Course,
        most: u64,
    ) -> Option<(u32, Piece)> {
        let mut passed = 0;
        while !course.closing {
            if let Some(going) = course.going.last_mut().filter(|going| going.at < going.end) {
                let mut end = going.end;
                if matches!(goal, Goal::Lacking) && !self.has_parity() {
                    (going.at, end) = self.lacked_run(going.to, going.at, going.end);
                }
                let mut most = most.min(going.most);
                let alike = match goal {
                    Goal::Lacking if !self.has_parity() => self.alike(going.to, going.at),
                    _ => None,
                };
                if alike.is_some() {
                    // What both have is in memory at a time.
                    most = most.min(LEAF_BYTES_MAX / 2);
                }
                let piece = match self.has_parity() {
                    true => Some(self.piece_of_row(&course.members, going.at, most, going.to)),
                    false if going.at == end => None,
                    false => Some(self.piece(&course.members, going.at, most.min(end - going.at), going.to)),
                };
                going.at += piece.as_ref().map_or(0, |piece| piece.len);
                if let Some(piece) = piece.filter(Piece::has_work) {
                    let piece = Piece { alike, ..piece };
                    going.pieces.push_back((going.at, false));
                    going.under_way += 1;
                    return Some((going.region, piece));
                }
                if going.at == going.end && going.under_way == 0 {
                    let region = going.region;
                    self.region_ended(io, goal, course, region);
                    passed += 1;
                    if passed % PASSED_MAX == 0 {
                        io.sleep(1).await;
                    }
                }
                continue;
            }
            let next = self.next_region(goal, course.last);
            let Some((region, to)) = next else { break };
            course.last = Some(region);
            let (mut start, mut end) = self.regions.range(region);
            if self.has_parity() {
                // A stripe belongs to the region of its first byte.
                (start, end) = (self.next_stripe(start), self.next_stripe(end));
            }
            let before = self.begun.get(&region).filter(|begun| begun.to == to).map_or(start, |begun| begun.until);
            self.begun.insert(region, Begun { to, until: before });
            // Where it did not succeed before: block by block.
            let tried = self.tries.contains_key(&region);
            let most = if tried { u64::from(self.options.block_bytes).max(4096) } else { LEAF_BYTES_MAX };
            course.going.push(Going {
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
                self.region_ended(io, goal, course, region);
            }
        }
        course.closing = true;
        None
    }

    fn next_region(&self, goal: &mut Goal, last: Option<u32>) -> Option<(u32, Roles)> {
        match goal {
            Goal::Wanted(regions) | Goal::Unequal(regions) => {
                regions.pop_front().map(|region| (region, Roles(u128::MAX)))
            }
            Goal::Lacking => self.next_lacking(last),
        }
    }

    fn limit_of(&self, goal: &Goal) -> u64 {
        match goal {
            Goal::Wanted(_) => 0,
            Goal::Unequal(_) => self.jobs.limit(braid_format::JobKind::Resync, None),
            Goal::Lacking => self.fill_limit(),
        }
    }

    fn piece_ended<I: KeeperIo>(&mut self, io: &I, goal: &Goal, course: &mut Course, ended: &Ended) {
        let going = course.going.iter_mut().find(|going| going.region == ended.region).expect("a region under way");
        going.under_way -= 1;
        match ended.copied {
            Copied::All => {
                self.reread_later(ended.failed, ended.end - ended.len, ended.len);
                let piece = going.pieces.iter_mut().find(|(end, _)| *end == ended.end).expect("a piece under way");
                piece.1 = true;
                while let Some((end, _)) = going.pieces.pop_front_if(|(_, copied)| *copied) {
                    if let Some(begun) = self.begun.get_mut(&ended.region) {
                        begun.until = end;
                    }
                }
            }
            Copied::Unreadable => going.unreadable.push((ended.end - ended.len, ended.len)),
            Copied::Again => (course.closing, course.failed) = (true, true),
        }
        if going.at == going.end && going.under_way == 0 {
            self.region_ended(io, goal, course, ended.region);
        }
    }

    /// Nothing more of a region is under way.
    fn region_ended<I: KeeperIo>(&mut self, io: &I, goal: &Goal, course: &mut Course, region: u32) {
        let at = course.going.iter().position(|going| going.region == region).expect("a region under way");
        let going = course.going.remove(at);
        if !going.unreadable.is_empty() {
            let tries = self.tries.entry(region).or_default();
            *tries += 1;
            if *tries <= TRIES_MAX {
                (course.closing, course.failed) = (true, true);
                return;
            }
        } else if !going.pieces.is_empty() {
            return;
        }
        self.begun.remove(&region);
        self.tries.remove(&region);
        if !going.unreadable.is_empty() {
            let lacking = matches!(goal, Goal::Lacking).then_some(going.to);
            self.note_unreadable(io, region, going.unreadable, lacking);
            if lacking.is_some() {
                return;
            }
        }
        match goal {
            Goal::Wanted(_) | Goal::Unequal(_) => drop(self.copied.insert(region)),
            Goal::Lacking => course.closing |= self.filled(io, region, going.to),
        }
    }

    /// The piece at `at`, at most so long.
    fn piece(&self, members: &[MirrorMember], at: u64, len: u64, to: Roles) -> Piece {
        let mut piece = Piece { offset: at, len, sources: Vec::new(), targets: Roles::NONE, row: None, alike: None };
        self.copies(at, &mut |place| {
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

    /// The piece of a row at `at`, at most so high.
    fn piece_of_row(&self, members: &[MirrorMember], at: u64, most: u64, to: Roles) -> Piece {
        let row = self.row_piece(members, at, most);
        let lacks = |member: &u16| members[usize::from(*member)].role == Role::Filling && to.has(usize::from(*member));
        let targets = row.holders.iter().map(|(member, _)| *member).filter(lacks);
        let targets = targets.fold(Roles::NONE, |roles, member| roles.with(usize::from(member)));
        Piece { offset: at, len: row.len, sources: Vec::new(), targets, row: Some(row), alike: None }
    }
}

/// Computes a piece of a row for those that lack it, without whoever cannot read.
async fn restore_piece<I: KeeperIo>(io: &I, device: DeviceId, piece: &Piece, row: &RowPiece) -> (Copied, Roles) {
    let mut failed = Roles::NONE;
    loop {
        let kind = SyncKind::Restore { to: piece.targets, avoid: failed, data: row.data, cells: row.cells };
        let part = SyncPart { device, offset: piece.offset, len: piece.len, kind };
        let error = match io.sync(part).await {
            Ok(_) => return (Copied::All, failed),
            Err(error) if error.kind == ErrorKind::Busy => return (Copied::Again, failed),
            Err(error) => error,
        };
        let of = row.holders.iter().find(|(_, leaf)| Some(*leaf) == error.leaf).map(|(member, _)| usize::from(*member));
        match of.filter(|member| !failed.has(*member) && !piece.targets.has(*member)) {
            Some(member) => failed = failed.with(member),
            None => return (Copied::Unreadable, failed),
        }
    }
}

/// Copies a piece from the first member that can read it.
async fn copy_piece<I: KeeperIo>(io: &I, device: DeviceId, region: u32, piece: Piece) -> Ended {
    let begun_ns = io.now_ns();
    let (mut copied, mut failed) = (Copied::Unreadable, Roles::NONE);
    if let Some(row) = &piece.row {
        (copied, failed) = restore_piece(io, device, &piece, row).await;
    }
    for from in &piece.sources {
        let to = piece.others(*from);
        let copy = SyncKind::Copy { from: *from, to };
        let part = |kind: SyncKind| SyncPart { device, offset: piece.offset, len: piece.len, kind };
        let mut done = match piece.alike {
            Some((alike, _)) => io.sync(part(SyncKind::Update { from: *from, to: alike })).await,
            None => io.sync(part(copy)).await,
        };
        if let (Some((_, leaf)), Err(error)) = (piece.alike, &done)
            && error.leaf == Some(leaf)
        {
            // Whatever cannot be read there is written.
            done = io.sync(part(copy)).await;
        }
        match done {
            Ok(_) => copied = Copied::All,
            // Not the source's fault: nothing can be done now, or a member has failed what was written to it.
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

/// A contiguous piece of the array that is to be copied.
struct Piece {
    offset: u64,
    len: u64,
    sources: Vec<u16>,
    targets: Roles,
    /// At levels with parity, which have no copies.
    row: Option<RowPiece>,
    /// Who may have it already, alone of those who lack it.
    alike: Option<(u16, LeafId)>,
}

impl Piece {
    /// Whether somebody lacks it whom somebody can give it.
    fn has_work(&self) -> bool {
        match self.row {
            Some(_) => !self.targets.is_empty(),
            None => self.sources.iter().any(|from| !self.others(*from).is_empty()),
        }
    }

    fn others(&self, from: u16) -> Roles {
        Roles(self.targets.0 & !(1 << from))
    }
}

/// What came of copying a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    All,
    /// A member failed, or much is going on: later.
    Again,
    /// Some of it no member could read, or one failed to write.
    Unreadable,
}

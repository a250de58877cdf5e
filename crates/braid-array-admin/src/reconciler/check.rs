//! Scrub (`check`, `repair`): compares all copies of everything that was ever written, and repairs differences.
//!
//! Each piece is read and compared under its range lock, so that user I/O goes on. A piece to be repaired is read again
//! under the same lock as the writes that repair it. A read error is reported as a fault like any other: the block is
//! rewritten from another copy and then compared. Where that fails, the scrub goes on block by block and counts the
//! unreadable blocks.

use braid_engine::{
    COMPARE_BLOCK_BYTES, COMPARE_BYTES_MAX, Compared, ErrorKind, IoError, LEAF_BYTES_MAX, MemberRole, MirrorMember,
    SyncKind, SyncPart, mirror::copies_of,
};
use braid_format::JobKind;

use super::copy::PAUSE_NS;
use super::findings::{CheckFrom, Findings};
use super::flight::Flight;
use super::{Act, JobStage, Reconciler, ReconcilerIo};
use crate::lifecycle::LifecycleError;

/// Attempts per piece before the scrub goes block by block, and per block before the block counts as unreadable.
const TRIES_MAX: u32 = 3;

impl Check {
    /// Counts the written blocks between these array offsets as not comparable.
    fn pass(&mut self, from: u64, to: u64) {
        let from = from.max(self.passed);
        if to > from {
            self.findings.uncompared_blocks += (to - from).div_ceil(COMPARE_BLOCK_BYTES);
            self.passed = to;
        }
    }
}

/// The state of a running check.
pub(super) struct Check {
    repair: bool,
    from_data: bool,
    /// Everything before this byte of the array has been checked.
    at: u64,
    /// Differences before this byte have been counted.
    counted: u64,
    /// Uncomparable blocks before this byte have been counted.
    passed: u64,
    /// Attempts at the piece that begins at `at`.
    tries: u32,
    /// The check goes block by block up to this byte.
    blocks_until: u64,
    findings: Findings,
}

/// One piece to compare.
#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    len: u64,
    copies: u16,
    /// Set at levels with parity, which have no copies.
    stripe: Option<InStripe>,
}

/// The stripe of a piece: how many data cells and how many cells it has, and the array offset of the piece's first
/// byte.
#[derive(Clone, Copy)]
struct InStripe {
    data: u16,
    cells: u16,
    array_offset: u64,
}

impl Piece {
    /// Returns the shard's operation that compares this piece.
    fn kind(&self) -> SyncKind {
        match self.stripe {
            Some(InStripe { data, cells, .. }) => SyncKind::VerifyStripe { data, cells },
            None => SyncKind::Compare(self.copies),
        }
    }

    /// Returns the shard's operation that repairs this piece.
    fn mending(&self, from_data: bool) -> SyncKind {
        match self.stripe {
            Some(InStripe { data, cells, .. }) => SyncKind::RepairStripe { data, cells, from_data },
            None => SyncKind::Repair(self.copies),
        }
    }
}

impl Reconciler {
    /// Refuses a check or repair that could compare none of the written regions: an administrator would take its
    /// result, no differences, for proof that copies agree.
    pub(super) fn refuse_blind_check(&self) -> Result<(), LifecycleError> {
        let members = self.members();
        let written = (0..self.regions.regions()).filter(|region| self.regions.written.has(*region));
        let mut some = false;
        for region in written {
            some = true;
            if self.is_comparable(&members, self.regions.range(region)) {
                return Ok(());
            }
        }
        if !some {
            return Ok(());
        }
        let lacking = (0..self.array.slots()).filter(|role| members[usize::from(*role)].role != MemberRole::InSync);
        Err(LifecycleError::NothingToCompare { lacking: lacking.collect() })
    }

    /// Whether the first or the last of these bytes has another copy, or its parity, on members in sync.
    fn is_comparable(&self, members: &[MirrorMember], (start, end): (u64, u64)) -> bool {
        let in_sync = |member: u16| members[usize::from(member)].role == MemberRole::InSync;
        let mut copies = 0;
        [start, end - 1].into_iter().any(|at| {
            if self.has_parity() {
                let stripe = self.array.geometry().stripe_of(at);
                return stripe.is_some_and(|stripe| stripe.members.iter().all(|member| in_sync(*member)));
            }
            copies = 0;
            self.copies(at, &mut |place| copies += u32::from(in_sync(place.member)));
            copies > 1
        })
    }

    /// Begins a check or repair, or resumes one from before a restart.
    pub(super) fn begin_check<I: ReconcilerIo>(&mut self, io: &I, from: CheckFrom) -> Result<(), LifecycleError> {
        if let Some(info) = self.jobs.check() {
            let reason = "it goes over the array already; wait for it to end, or cancel it".into();
            return Err(LifecycleError::Job { number: info.number, reason });
        }
        let CheckFrom { repair, from_data, position_bytes, findings, paused, limit_bytes_per_s } = from;
        let block = u64::from(self.options.block_bytes).max(COMPARE_BLOCK_BYTES);
        let at = position_bytes / block * block;
        self.check =
            Some(Check { repair, from_data, at, counted: at, passed: at, tries: 0, blocks_until: 0, findings });
        let kind = if repair { JobKind::Repair } else { JobKind::Check };
        let stage = if paused { JobStage::Paused } else { JobStage::Running };
        self.begin_job(io, kind, None, stage, limit_bytes_per_s);
        Ok(())
    }

    pub(super) fn findings(&self, kind: JobKind) -> Option<Findings> {
        match kind {
            JobKind::Check | JobKind::Repair => self.check.as_ref().map(|check| check.findings.clone()),
            JobKind::Rebuild | JobKind::Replace => self.stuck.findings(),
            _ => None,
        }
    }

    /// Whether a repair trusts the data and recomputes parity.
    pub(super) fn repairs_from_data(&self, kind: JobKind) -> bool {
        kind == JobKind::Repair && self.check.as_ref().is_some_and(|check| check.from_data)
    }

    /// Returns the array offset before which everything has been checked.
    pub(super) fn check_position(&self) -> u64 {
        self.check.as_ref().map_or(0, |check| check.at)
    }

    /// Returns the regions checked, and the regions to check in all.
    pub(super) fn check_progress(&self) -> (u64, u64) {
        let Some(check) = &self.check else { return (0, 0) };
        let written = &self.regions.written;
        let end = self.regions.region_of(check.at);
        let (words, rest) = (end as usize / 64, end % 64);
        let before = (0..words).map(|word| u64::from(written.word(word).count_ones())).sum::<u64>();
        let last = u64::from((written.word(words) & ((1 << rest) - 1)).count_ones());
        (before + last, written.count())
    }

    /// Checks some pieces. `None`: no check is running, or it is paused.
    pub(super) async fn check<I: ReconcilerIo>(&mut self, io: &I) -> Option<Act> {
        let info = self.jobs.check().filter(|info| info.stage == JobStage::Running)?;
        let (kind, limit) = (info.kind, info.limit_bytes_per_s);
        let members = self.members();
        let map = std::sync::Arc::clone(&self.regions);
        let hurry = || map.wanted.count() > 0;
        loop {
            if self.clear_in_ns(io) == 0 {
                return Some(Act::Nothing);
            }
            let Some(turn) = self.pace.turn(io, self.options.device, limit, hurry).await else {
                return Some(Act::Nothing);
            };
            let pieces = self.pieces(&members, turn.pieces, turn.bytes);
            if pieces.is_empty() {
                return Some(self.end_check(io, kind).await);
            }
            let check = self.check.as_mut()?;
            check.tries += 1;
            let (device, begun_ns) = (self.options.device, io.now_ns());
            let mut flight = Flight::new();
            for (k, piece) in pieces.iter().enumerate() {
                let part = SyncPart { device, offset: piece.offset, len: piece.len, kind: piece.kind() };
                flight.add(async move { (k, io.sync(part).await) });
            }
            let mut results: Vec<Result<Compared, IoError>> = vec![Err(IoError::of(ErrorKind::Busy)); pieces.len()];
            while !flight.is_empty() {
                let (k, result) = flight.next().await;
                results[k] = result;
            }
            let (now, bytes) = (io.now_ns(), pieces.iter().map(|piece| piece.len).sum());
            if turn.slow {
                self.pace.ended(now, begun_ns, now - begun_ns, bytes, limit);
            }
            for (piece, result) in pieces.into_iter().zip(results) {
                match self.compared(io, piece, result).await {
                    Ok(()) => {}
                    Err(error) => {
                        if error.kind == ErrorKind::Busy {
                            io.sleep(PAUSE_NS).await;
                        }
                        return Some(Act::Nothing);
                    }
                }
            }
            self.report_job(io, kind, None, false);
        }
    }

    /// Accounts for the comparison of a piece, and repairs the piece in a repair job.
    async fn compared<I: ReconcilerIo>(
        &mut self,
        io: &I,
        piece: Piece,
        result: Result<Compared, IoError>,
    ) -> Result<(), IoError> {
        let Some(check) = &mut self.check else { return Ok(()) };
        let compared = result?;
        let differing = compared.differing;
        let end = piece.offset + piece.len;
        for block in (0..64).filter(|block| differing & (1 << block) != 0) {
            let skip = block * COMPARE_BLOCK_BYTES;
            if piece.offset + skip * u64::from(piece.stripe.map_or(1, |stripe| stripe.data)) >= check.counted {
                check.findings.differing_blocks += 1;
                // A repair that trusts the data does not blame a member by its parity.
                if let Some(role) = compared.wrong_at(block as usize).filter(|_| !check.from_data) {
                    *check.findings.wrong_blocks.entry(role).or_default() += 1;
                }
                check.findings.remember(piece.stripe.map_or(piece.offset, |stripe| stripe.array_offset) + skip);
            }
        }
        let new = end.saturating_sub(check.counted.max(piece.offset));
        check.findings.compared_blocks += new.div_ceil(COMPARE_BLOCK_BYTES);
        check.counted = check.counted.max(end);
        if differing != 0 && check.repair {
            let device = self.options.device;
            let kind = piece.mending(check.from_data);
            io.sync(SyncPart { device, offset: piece.offset, len: piece.len, kind }).await?;
        }
        if let Some(check) = &mut self.check {
            if check.repair {
                check.findings.repaired_blocks += u64::from(differing.count_ones());
            }
            (check.at, check.tries) = (end, 0);
        }
        Ok(())
    }

    /// Returns at most `most` further pieces of at most `bytes` bytes; empty at the end. After a failed attempt only
    /// one piece.
    fn pieces(&mut self, members: &[MirrorMember], most: usize, bytes: u64) -> Vec<Piece> {
        if self.has_parity() {
            return self.pieces_of_stripes(members, most, bytes);
        }
        let size = self.array.geometry().size_bytes();
        let block = u64::from(self.options.block_bytes).max(COMPARE_BLOCK_BYTES);
        let successors: Vec<_> = self.array.successors().collect();
        let Some(check) = &mut self.check else { return Vec::new() };
        let (mut at, mut pieces) = (check.at, Vec::new());
        let most = if check.tries > 0 || at < check.blocks_until { 1 } else { most };
        while at < size && pieces.len() < most {
            let region = self.regions.region_of(at);
            let end = self.regions.range(region).1;
            if !self.regions.written.has(region) || self.regions.unequal.has(region) {
                if self.regions.written.has(region) {
                    check.pass(at, end);
                }
                at = end;
                if pieces.is_empty() {
                    (check.at, check.tries) = (at, 0);
                }
                continue;
            }
            let by_block = at < check.blocks_until;
            let len = if by_block { block } else { bytes.min(COMPARE_BYTES_MAX) };
            let mut piece = Piece { offset: at, len: len.min(end - at), copies: 0, stripe: None };
            copies_of(self.array.geometry(), &successors, at, &mut |place| {
                piece.len = piece.len.min(place.len);
                piece.copies += u16::from(members[usize::from(place.member)].role == MemberRole::InSync);
            });
            let room = LEAF_BYTES_MAX / u64::from(piece.copies.max(1)) / COMPARE_BLOCK_BYTES * COMPARE_BLOCK_BYTES;
            piece.len = piece.len.min(room);
            if check.tries >= TRIES_MAX && at == check.at {
                check.tries = 0;
                if by_block {
                    check.findings.unreadable_blocks += 1;
                    check.findings.remember(at);
                    at += piece.len;
                    check.at = at;
                } else {
                    check.blocks_until = at + piece.len;
                }
                continue;
            }
            at += piece.len;
            if piece.copies > 1 {
                pieces.push(piece);
                continue;
            }
            check.pass(piece.offset, at);
            if pieces.is_empty() {
                (check.at, check.tries) = (at, 0);
            }
        }
        pieces
    }

    /// [`Reconciler::pieces`] for an array with parity.
    fn pieces_of_stripes(&mut self, members: &[MirrorMember], most: usize, bytes: u64) -> Vec<Piece> {
        let size = self.array.geometry().size_bytes();
        let Some(mut check) = self.check.take() else { return Vec::new() };
        let (mut at, mut pieces) = (check.at, Vec::new());
        let most = if check.tries > 0 || at < check.blocks_until { 1 } else { most };
        while at < size && pieces.len() < most {
            let by_block = at < check.blocks_until;
            let slice = self.stripe_piece(members, at, if by_block { COMPARE_BLOCK_BYTES } else { bytes });
            let end = at + slice.len;
            let stripe = self.array.geometry().stripe_of(at).expect("inside the array");
            let written = self.regions.written.has(self.regions.region_of_stripe(&stripe));
            if !written || !self.is_stripe_in_sync(members, &slice) {
                if written {
                    check.pass(at, end);
                }
                at = if written { end } else { self.next_stripe(at + 1) };
                if pieces.is_empty() {
                    (check.at, check.tries) = (at, 0);
                }
                continue;
            }
            if check.tries >= TRIES_MAX && at == check.at {
                check.tries = 0;
                if by_block {
                    check.findings.unreadable_blocks += 1;
                    check.findings.remember(slice.array_offset);
                    at = end;
                    check.at = at;
                } else {
                    check.blocks_until = end;
                }
                continue;
            }
            let within = InStripe { data: slice.data, cells: slice.cells, array_offset: slice.array_offset };
            pieces.push(Piece { offset: at, len: slice.len, copies: 0, stripe: Some(within) });
            at = end;
        }
        self.check = Some(check);
        pieces
    }

    /// Ends the check. What was repaired becomes durable first.
    async fn end_check<I: ReconcilerIo>(&mut self, io: &I, kind: JobKind) -> Act {
        if kind == JobKind::Repair {
            for (role, leaf) in self.serving() {
                if let Err(error) = io.flush(leaf).await {
                    self.note_failure(role, error.kind);
                    return Act::Drop(role);
                }
            }
        }
        self.end_job(io, kind, None, JobStage::Done);
        self.check = None;
        Act::Nothing
    }
}

//! Client requests to volumes: what they do, step by step, and what their reads may see.

use std::sync::Arc;

use braid_engine::Uuid;
use braid_engine::pool::{
    BlockAllocation, BlockLocation, CommitFailed, DiscardOutcome, ExtentId, OWNER_HELD, VolumeId,
};

use braid_format::pool::{AllocationPolicy, RecordKind};

use super::bugs::{Bug, is_active};
use super::in_progress::{Job, JobKind, Write};
use super::oracle::{Change, Rule};
use super::world::{BLOCK, Check, Io, Lifecycle, World};

impl World {
    pub(super) fn check_read(&mut self, volume: Uuid, start: u64, block: u64, words: &[u64]) -> Check {
        let model = &self.models[&volume];
        for (k, word) in (block..).zip(words) {
            let allowed = model.blocks[k as usize].admissible(model.until.min(self.now), Rule::Read(start));
            if !allowed.contains(word) {
                return Err(format!("block {k} of {} reads as {word:x}, not one of {allowed:x?}", model.name));
            }
        }
        Ok(())
    }

    fn is_locked(&self, volume: Uuid, block: u64, count: u64) -> bool {
        let meets = |job: &Job| job.volume == volume && block < job.block + job.count && job.block < block + count;
        self.jobs.iter().any(|job| job.locked && meets(job))
    }

    pub(super) fn begin_job(&mut self) -> Check {
        let served: Vec<Uuid> = self
            .models
            .values()
            .filter(|model| model.served.is_some() && matches!(model.lifecycle, Lifecycle::Exists))
            .map(|model| model.uuid)
            .collect();
        if served.is_empty() {
            return Ok(());
        }
        let volume = *self.rng.pick(&served);
        let model = &self.models[&volume];
        let size = model.blocks.len() as u64;
        let served = model.served.expect("just seen");
        let frozen = self.pool().is_read_only(served);
        let block = self.rng.below(size);
        let count = match self.rng.below(10) {
            0..6 => 1 + self.rng.below(4),
            6..9 => 1 + self.rng.below(70),
            _ => 1 + self.rng.below(300),
        };
        let (block, count) = match self.rng.below(8) {
            // Some requests cover whole extents.
            0 => (block / 64 * 64, count.next_multiple_of(64)),
            _ => (block, count),
        };
        let count = count.min(size - block);
        let flushes = 30 + self.parameters.flushes;
        match self.rng.below(100) {
            0..30 => self.begin_read(volume, served, block, count),
            draw if draw < flushes => {
                let commit = self.pool().request_commit();
                self.add_job(volume, served, 0, 0, JobKind::Flush { commit }, false);
                self.count("flushes");
                Ok(())
            }
            _ if frozen => self.begin_read(volume, served, block, count),
            draw if draw < flushes + 14 => {
                let around = if self.parameters.discards_held { self.before_held(served, size) } else { None };
                let (block, count) = around.map_or((block, count), |block| (block, size - block));
                self.discard(volume, served, block, count)
            }
            _ => {
                self.begin_write(volume, served, block, count.min(90));
                Ok(())
            }
        }
    }

    pub(super) fn add_job(
        &mut self,
        volume: Uuid,
        served: VolumeId,
        block: u64,
        count: u64,
        kind: JobKind,
        locked: bool,
    ) -> u64 {
        self.next_job += 1;
        let (id, start) = (self.next_job, self.now);
        self.jobs.push(Job { id, volume, served, block, count, start, kind, locked });
        id
    }

    fn begin_read(&mut self, volume: Uuid, served: VolumeId, block: u64, count: u64) -> Check {
        let job = self.add_job(volume, served, block, count, JobKind::Read { in_flight: 0 }, false);
        let pool = self.pool.as_ref().expect("open");
        let shared = Arc::clone(pool.volume(served).expect("served"));
        let records = Arc::clone(&pool.shared().records);
        let mut at = block;
        let mut all = 0;
        while at < block + count {
            match shared.map.find(&records, at, (block + count - at).min(64) as u32) {
                BlockLocation::Nothing { blocks } => {
                    self.check_read(volume, self.now, at, &vec![0; blocks as usize])?;
                    at += u64::from(blocks);
                }
                // The read fails.
                BlockLocation::At { extent: ExtentId::IN_DOUBT, blocks, .. } => {
                    self.count("reads of blocks in doubt");
                    at += u64::from(blocks);
                }
                BlockLocation::At { extent, position, blocks } => {
                    let pool = self.pool.as_ref().expect("open");
                    let offset = pool.extent_offset(extent) + u64::from(position) * BLOCK;
                    let member = usize::from(extent.member);
                    let io = Io::Read { job, member, offset, block: at, count: u64::from(blocks) };
                    self.push(io, self.parameters.slow_data / 2);
                    all += 1;
                    at += u64::from(blocks);
                }
            }
        }
        self.count("reads");
        self.jobs.last_mut().expect("just added").kind = JobKind::Read { in_flight: all };
        Ok(())
    }

    /// Returns the first block of the logical extent before the first one that a job holds.
    fn before_held(&self, served: VolumeId, size: u64) -> Option<u64> {
        let pool = self.pool.as_ref().expect("open");
        let (map, records) = (&pool.volume(served).expect("served").map, &pool.shared().records);
        let mut at = 64;
        while at < size {
            at += match map.find(records, at, 64.min(size - at) as u32) {
                BlockLocation::Nothing { blocks } => u64::from(blocks),
                BlockLocation::At { extent, blocks, .. } => {
                    if extent != ExtentId::IN_DOUBT && records.owner(extent) & OWNER_HELD != 0 {
                        return Some(at / 64 * 64 - 64);
                    }
                    u64::from(blocks)
                }
            };
        }
        None
    }

    pub(super) fn discard(&mut self, volume: Uuid, served: VolumeId, block: u64, count: u64) -> Check {
        if self.is_locked(volume, block, count) {
            return Ok(());
        }
        if self.never_snapshotted.contains(&volume) && self.is_on_closed(served, block, count) {
            // The blocks that it frees there stay reserved for the volume only on members that others may use.
            self.never_snapshotted.remove(&volume);
        }
        let mut at = block;
        while at < block + count {
            let left = block + count - at;
            let done = match self.count_changes("discard", |pool| pool.discard(served, at, left)) {
                DiscardOutcome::Done(blocks) => blocks,
                DiscardOutcome::Full(_) => {
                    self.counters.add("discard", "refused", 1);
                    break;
                }
                DiscardOutcome::LogFull => {
                    self.counters.add("discard", "waits for the tail", 1);
                    self.pool().request_commit();
                    break;
                }
                DiscardOutcome::Held => break,
            };
            let now = self.now;
            self.now += 1;
            let model = self.models.get_mut(&volume).expect("known");
            for k in at..at + done {
                let change = Change { word: 0, start: now, end: Some(now), durable: false };
                model.blocks[k as usize].0.push(change);
            }
            self.note(|| format!("discarded {at}+{done} of {volume}"), at ^ done);
            at += done;
        }
        self.count("discards");
        Ok(())
    }

    /// Returns whether some of these blocks are on a member that is being emptied.
    fn is_on_closed(&self, served: VolumeId, block: u64, count: u64) -> bool {
        let pool = self.pool.as_ref().expect("open");
        let (shared, records) = (pool.volume(served).expect("served"), &pool.shared().records);
        let mut at = block;
        while at < block + count {
            let found = shared.map.find(records, at, (block + count - at).min(64) as u32);
            match found {
                BlockLocation::At { extent, .. } if self.closed.contains(&usize::from(extent.member)) => return true,
                BlockLocation::At { blocks, .. } | BlockLocation::Nothing { blocks } => at += u64::from(blocks),
            }
        }
        false
    }

    fn begin_write(&mut self, volume: Uuid, served: VolumeId, block: u64, count: u64) {
        // An overwrite of blocks that the volume owns needs no allocation.
        let pool = self.pool.as_ref().expect("open");
        let shared = Arc::clone(pool.volume(served).expect("served"));
        let (view, records) = (Arc::clone(pool.shared()), Arc::clone(&pool.shared().records));
        let fua = self.rng.chance(100_000);
        let owner = shared.owner(&view);
        let mut pieces = Vec::new();
        let mut at = block;
        while at < block + count {
            match shared.map.find(&records, at, (block + count - at).min(64) as u32) {
                BlockLocation::At { extent, position, blocks } if records.owner(extent) == owner => {
                    pieces.push((extent, position, at, u64::from(blocks)));
                    at += u64::from(blocks);
                }
                _ => break,
            }
        }
        let own = at == block + count;
        if !own && self.is_locked(volume, block, count) {
            return;
        }
        // The mappings of these blocks are committed: durable data are enough.
        let durable = own && fua && !view.is_hot();
        let write =
            Write { in_flight: 0, reservations: Vec::new(), cursor: block, fua, commit: None, durable, failed: false };
        let id = self.add_job(volume, served, block, count, JobKind::Write(write), !own);
        let (start, writer) = (self.now, self.writer(volume));
        let model = self.models.get_mut(&volume).expect("known");
        for k in block..block + count {
            let change = Change { word: word_of(writer, id, k), start, end: None, durable: false };
            model.blocks[k as usize].0.push(change);
        }
        self.note(|| format!("job {id} writes {block}+{count} of {volume}, own {own}, fua {fua}"), id ^ block);
        self.count(match (own, durable) {
            (true, true) => "durable overwrites",
            (true, false) => "overwrites",
            _ => "first writes",
        });
        if own {
            let all = pieces.len() as u32;
            for (extent, position, at, blocks) in pieces {
                self.push_write((volume, id), extent, position, at, blocks, durable);
            }
            if let JobKind::Write(write) = &mut self.jobs.last_mut().expect("just added").kind {
                (write.in_flight, write.cursor) = (all, block + count);
            }
        }
    }

    /// Returns the writer number of a volume.
    fn writer(&self, volume: Uuid) -> u16 {
        *self.models[&volume].writers.last().expect("a volume has its own")
    }

    /// Submits a job's write to consecutive blocks of an extent.
    fn push_write(
        &mut self,
        (volume, job): (Uuid, u64),
        extent: ExtentId,
        position: u32,
        block: u64,
        count: u64,
        fua: bool,
    ) {
        let writer = self.writer(volume);
        let pool = self.pool.as_ref().expect("open");
        let offset = pool.extent_offset(extent) + u64::from(position) * BLOCK;
        let words = (block..block + count).map(|block| word_of(writer, job, block)).collect();
        let fails = self.rng.chance(self.parameters.io_fails);
        let member = usize::from(extent.member);
        self.push(Io::Write { job, member, offset, words, fua, fails }, self.parameters.slow_data);
    }

    pub(super) fn write_ended(&mut self, id: u64, fails: bool) {
        let job = self.jobs.iter_mut().find(|job| job.id == id).expect("a job whose I/O is out");
        let JobKind::Write(write) = &mut job.kind else { unreachable!("it writes") };
        write.in_flight -= 1;
        write.failed |= fails;
        if write.in_flight > 0 {
            return;
        }
        let (reservations, failed) = (std::mem::take(&mut write.reservations), write.failed);
        for reservation in reservations {
            if failed {
                self.count_changes("unplace", |pool| pool.release_allocation(&reservation));
                self.count("places given back");
            } else {
                self.count_changes("bind", |pool| pool.map_allocation(&reservation));
            }
        }
    }

    /// Advances jobs and calls as far as possible.
    pub(super) fn advance(&mut self) -> Check {
        let mut k = 0;
        while k < self.jobs.len() {
            if self.advance_job(k) { self.end_job(k) } else { k += 1 }
        }
        let mut k = 0;
        while k < self.calls.len() {
            if self.advance_call(k) { self.end_call(k) } else { k += 1 }
        }
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Advances a job. Returns whether it has ended.
    fn advance_job(&mut self, k: usize) -> bool {
        let pool = self.pool.as_mut().expect("open");
        let job = &mut self.jobs[k];
        let end = job.block + job.count;
        match &mut job.kind {
            JobKind::Read { in_flight } => *in_flight == 0,
            JobKind::Flush { commit } => pool.is_committed(*commit) != Ok(false),
            JobKind::Write(write) if write.in_flight > 0 => false,
            JobKind::Write(write) if write.failed => true,
            JobKind::Write(Write { commit: Some(commit), failed, .. }) => {
                let result = pool.is_committed(*commit);
                *failed = result.is_err();
                result != Ok(false)
            }
            JobKind::Write(write) if write.cursor == end => {
                if write.fua && !write.durable {
                    write.commit = Some(pool.request_commit());
                    return false;
                }
                true
            }
            JobKind::Write(_) => self.continue_write(k),
        }
    }

    /// Requests the next allocation of a write. Returns `true` if there is none and the write has failed.
    fn continue_write(&mut self, k: usize) -> bool {
        let (id, served, end) = (self.jobs[k].id, self.jobs[k].served, self.jobs[k].block + self.jobs[k].count);
        let JobKind::Write(write) = &self.jobs[k].kind else { unreachable!("it writes") };
        let at = write.cursor;
        let wanted = (end - at).min(64) as u32;
        let allocation = self.pool().allocate(served, at, wanted);
        self.count_allocation(&allocation, wanted);
        self.check_member(&allocation, served);
        self.check_thick(&allocation, served);
        let (extent, position, blocks, reservation) = match allocation {
            BlockAllocation::New(r) => (r.extent, r.position, r.blocks, Some(r)),
            BlockAllocation::Own { extent, position, blocks } => (extent, position, blocks, None),
            BlockAllocation::LogFull if !self.has_failed() && !self.pool().is_starved() => {
                self.pool().request_commit();
                return false;
            }
            BlockAllocation::Held => {
                self.drop_from_barriers(id);
                return false;
            }
            BlockAllocation::Full | BlockAllocation::LogFull => {
                let JobKind::Write(write) = &mut self.jobs[k].kind else { unreachable!("it writes") };
                write.failed = true;
                return true;
            }
        };
        self.note(|| format!("job {id} puts {at}+{blocks} at {extent:?}+{position}"), at);
        self.push_write((self.jobs[k].volume, id), extent, position, at, u64::from(blocks), false);
        let bound = reservation.filter(|_| is_active(Bug::EntryBeforeData));
        if let Some(reservation) = &bound {
            self.pool().map_allocation(reservation);
        }
        let JobKind::Write(write) = &mut self.jobs[k].kind else { unreachable!("it writes") };
        write.in_flight += 1;
        write.cursor += u64::from(blocks);
        write.reservations.extend(reservation.filter(|_| bound.is_none()));
        false
    }

    /// Drops a job that waits for another one from all drains: it has no allocation pending, and what its predecessor
    /// waits for must not wait for it.
    fn drop_from_barriers(&mut self, id: u64) {
        self.counters.add("place", "waits for a job", 1);
        if let Some((_, in_flight)) = &mut self.barrier {
            in_flight.retain(|other| *other != id);
        }
        for call in &mut self.calls {
            call.no_longer_waits_for(id);
        }
    }

    /// Checks that a thick volume that never had a snapshot finds space for each of its blocks, even if not at once.
    fn check_thick(&mut self, allocation: &BlockAllocation, served: VolumeId) {
        let pool = self.pool.as_ref().expect("open");
        let excused = self.missing_mask() != 0 || !self.closed_by_force.is_empty();
        if *allocation != BlockAllocation::Full || excused || pool.is_freeing_for(served) {
            return;
        }
        let model = self.models.values().find(|model| model.served == Some(served)).expect("served");
        if self.never_snapshotted.contains(&model.uuid) {
            self.violation = Some(format!("thick volume {} finds no place", model.name));
        }
        self.counters.add("place", "full beside thick volumes", u64::from(!self.never_snapshotted.is_empty()));
    }

    /// Checks that new blocks are allocated on members that their volume may use.
    fn check_member(&mut self, allocation: &BlockAllocation, served: VolumeId) {
        let BlockAllocation::New(reservation) = allocation else { return };
        let pool = self.pool.as_ref().expect("open");
        // An extent that has been begun is continued where it is, until it has been moved.
        let begun = pool.state().record(reservation.extent.into()).kind != RecordKind::Free;
        if begun || self.jobs.iter().any(|job| job.has_reservation_in(reservation.extent)) {
            return;
        }
        let owner = pool.owner_of(served).and_then(|owner| pool.state().owners.get(owner)).expect("served");
        if self.closed.contains(&usize::from(reservation.extent.member)) {
            self.violation =
                Some(format!("{} has a place on member {}, which is closed", owner.name, reservation.extent.member));
        }
        if owner.allocation == AllocationPolicy::Spread {
            return;
        }
        self.counters.add("place", "on chosen members", 1);
        if owner.on >> reservation.extent.member & 1 == 0 {
            self.violation = Some(format!("{} has a place on member {}", owner.name, reservation.extent.member));
        }
    }

    fn end_job(&mut self, k: usize) {
        let job = self.jobs.swap_remove(k);
        let now = self.now;
        self.note(|| format!("job {} has ended", job.id), job.id);
        match job.kind {
            JobKind::Read { .. } => {}
            JobKind::Flush { commit } => {
                if let Err(why) = self.pool().is_committed(commit) {
                    self.count(match why {
                        CommitFailed::Member => "flushes failed",
                        CommitFailed::NoSpace => "flushes without space",
                    });
                    return;
                }
                for model in self.models.values_mut() {
                    for change in model.blocks.iter_mut().flat_map(|block| &mut block.0) {
                        change.durable |= change.end.is_some_and(|end| end < job.start);
                    }
                }
            }
            // It is unknown what of the write happened: the write counts as still in flight.
            JobKind::Write(Write { failed: true, .. }) => self.count("writes failed"),
            JobKind::Write(Write { fua, .. }) => {
                let oldest = self.jobs.iter().map(|job| job.start).min().unwrap_or(now);
                let model = self.models.get_mut(&job.volume).expect("known");
                for block in &mut model.blocks[job.block as usize..(job.block + job.count) as usize] {
                    let own = |change: &&mut Change| change.start == job.start && change.end.is_none();
                    for change in block.0.iter_mut().filter(own) {
                        (change.end, change.durable) = (Some(now), fua);
                    }
                    block.prune(oldest);
                }
            }
        }
        self.now += 1;
    }
}

fn word_of(writer: u16, job: u64, block: u64) -> u64 {
    u64::from(writer) << 48 | job << 16 | (block & 0xfff) << 4 | 1
}

/// Returns whether a block may hold this word, given the volumes that may have written it.
pub(super) fn is_of(word: u64, writers: &[u16], block: u64) -> bool {
    word == 0 || word & 0xffff == word_of(0, 0, block) && writers.contains(&((word >> 48) as u16))
}

//! The ring on a disk of its own: whether that disk can be believed, what a start does without it, and how the ring moves while
//! the array serves.
//!
//! There is one copy of each batch then. So nothing that was promised to be durable depends on it: a flush settles what is in
//! the journal. With the disk, a crash is recovered as ever; without it, all data that was durable is in place, and only parity may
//! not fit, in regions that are dirty. With all data here parity is computed anew there. With some of it absent nobody knows which
//! rows can be trusted, and such an array is not started.
//!
//! The disk counts when it bears a head of the run that the newest head of the members names, and nothing of a later one. The disk of the journal bears the head of a new run
//! before any member does: so an old copy of it, and one that the array has gone on without, is never taken for an empty ring.

use braid_format::journal::{Head, LostRow, RingOn};
use braid_geometry::Geometry;

use super::super::array::Array;
use super::super::bitmap::load_regions;
use super::super::disk::MemberDisk;
use super::super::error::LifecycleError;
use super::super::join::{join_all, try_join_all};
use super::super::lines::{Lines, Standing};
use super::super::planted::{Planted, planted};
use super::super::scan::{FoundArray, FoundMember};
use super::super::write::Target;
use super::heads::heads_at;
use super::{JournalStart, Recovery, merged, wrong};
use crate::{LeafId, MetaIo};

/// Rows of which parity is computed anew at a time.
const ROWS_AT_ONCE: usize = 16;

/// Begins a new run of the journal of an array that serves: on its disk, where [`Array::journal_disk`] has one, else on the members.
/// Everything that was logged must be in place, durably, and nothing may be logged meanwhile. `lost`: the rows that cannot be read.
///
/// # Errors
/// A disk's: then that one is to be left out, and this called again with another `random`.
pub async fn move_ring<M: MetaIo>(
    io: &M,
    array: &Array,
    random: u64,
    lost: &[LostRow],
) -> Result<JournalStart, LifecycleError> {
    if planted(Planted::DiskDroppedFirst) {
        array.clone().forget_journal(io).await?;
    }
    let recovery = Recovery::new(io, array, false);
    let newest = recovery.newest_head().await?;
    let newest = newest.ok_or_else(|| wrong("no member bears a head of it any more".to_owned()))?;
    let head = recovery.begin(&newest.passed(), Lines::new(random).next(), lost).await?;
    Ok(JournalStart::new(head, lost.to_vec()))
}

/// Whether the heads of an array that was found say that the ring is on its members, whatever disk its label names.
pub(in crate::lifecycle) async fn is_on_members<M: MetaIo>(io: &M, found: &FoundArray) -> bool {
    newest_of_members(io, found).await.is_some_and(|newest| newest.ring_on == RingOn::Members)
}

/// Whether this disk, which the label of an array that was found names for its journal, is to be believed, or nothing of it is
/// needed: as [`Recovery::ring_of`] has it. One that cannot be read is not.
pub(in crate::lifecycle) async fn is_believed<M: MetaIo>(io: &M, found: &FoundArray, disk: &MemberDisk) -> bool {
    let (id, start) = (disk.label.member.id, disk.label.member.places.journal.start);
    let Ok(own) = heads_at(io, &found.uuid, disk.leaf, start).await else { return false };
    let of_members = newest_of_members(io, found).await;
    let heads = own.whole.iter().map(|(head, _)| head).chain(&of_members);
    let Some(newest) = heads.max_by_key(|head| head.generation) else { return true };
    match newest.ring_on {
        RingOn::Members => true,
        RingOn::Disk { id: of, .. } => of == id && own.whole.iter().any(|(head, _)| head.run == newest.run),
    }
}

async fn newest_of_members<M: MetaIo>(io: &M, found: &FoundArray) -> Option<Head> {
    let in_sync = |member: &&FoundMember| matches!(member.standing, Some(Standing::Current | Standing::Behind));
    let places = found.members.iter().filter(in_sync).filter_map(|member| {
        let disk = member.disk.as_ref()?;
        Some((disk.leaf, disk.label.member.places.journal.start))
    });
    let heads = join_all(places.map(|(leaf, start)| heads_at(io, &found.uuid, leaf, start))).await;
    let heads = heads.into_iter().flatten().flat_map(|heads| heads.whole).map(|(head, _)| head);
    heads.max_by_key(|head| head.generation)
}

impl<M: MetaIo> Recovery<'_, M> {
    /// The disks that the ring of this head is on. `None`: they are not here.
    pub(super) async fn ring_of(&self, head: &Head) -> Result<Option<Vec<&Target>>, LifecycleError> {
        let RingOn::Disk { id, .. } = head.ring_on else { return Ok(Some(self.sources.clone())) };
        let Some(disk) = self.disk.filter(|disk| disk.part.id == id) else { return Ok(None) };
        let heads = self.heads_on(disk).await?.whole;
        let mut believed = heads.iter().any(|(own, _)| own.run == head.run);
        for (ahead, _) in heads.iter().filter(|(own, _)| own.generation > head.generation) {
            // It bears the next head before any member does. A run in which something was logged is another thing: others have gone on
            // with this disk, and what it held of this run may be written over.
            believed &= self.ring(disk, ahead).await?.is_empty() || planted(Planted::DiskOfOthersBelieved);
        }
        Ok((believed || planted(Planted::DiskBelievedBlindly)).then(|| vec![disk]))
    }

    /// What remains without the ring.
    pub(super) async fn complete_without(
        &self,
        head: &Head,
        lost: Vec<LostRow>,
        run: u64,
    ) -> Result<JournalStart, LifecycleError> {
        let (mut resynced, mut now) = (0, Vec::new());
        let needs_parity = !self.array.was_clean && !planted(Planted::DiskLostUnnoticed);
        if needs_parity && !self.has_all_data() {
            return if self.force { self.begin_anew(run).await } else { Err(LifecycleError::JournalLost) };
        }
        if needs_parity {
            (resynced, now) = self.resync_dirty().await?;
            self.flush().await?;
        }
        let lost_now = now.len() as u64;
        let lost = merged(lost, now);
        let head = self.begin_somewhere(head, run, &lost).await?;
        Ok(JournalStart { resynced, lost_now, disk_lost: true, ..JournalStart::new(head, lost) })
    }

    /// Begins a new run, on the members where the disk fails only now: all that it had is in place, and must not be asked for again.
    pub(super) async fn begin_somewhere(
        &self,
        head: &Head,
        run: u64,
        lost: &[LostRow],
    ) -> Result<Head, LifecycleError> {
        let begun = self.begin(head, run, lost).await;
        let is_disk = |leaf: LeafId| self.disk.is_some_and(|disk| disk.leaf == leaf);
        match &begun {
            Err(LifecycleError::Io { leaf, .. }) if is_disk(*leaf) => {
                let (sources, sinks) = (self.sources.clone(), self.sinks.clone());
                Recovery { disk: None, sources, sinks, ..*self }.begin(head, run, lost).await
            }
            _ => begun,
        }
    }

    /// Whether each role is held by somebody in sync.
    fn has_all_data(&self) -> bool {
        (0..self.geometry().members().len() as u16).all(|role| self.holders(&self.sources, role).next().is_some())
    }

    /// Makes parity fit data in all regions that are dirty. Returns in how many rows, and which of them cannot be read.
    async fn resync_dirty(&self) -> Result<(u64, Vec<LostRow>), LifecycleError> {
        let regions = load_regions(self.io, self.array, self.force).await?;
        let region_bytes = u64::from(self.array.label.region_bytes.max(1));
        let (mut resynced, mut lost) = (0, Vec::new());
        for (word, (written, dirty)) in (0u64..).zip(regions.written.iter().zip(&regions.dirty)) {
            let unequal = written & dirty;
            for region in (0..64).filter(|bit| unequal >> bit & 1 == 1).map(|bit| word * 64 + bit) {
                let rows = self.rows_of(region * region_bytes, (region + 1) * region_bytes);
                for some in rows.chunks(ROWS_AT_ONCE) {
                    let found = try_join_all(some.iter().map(|row| self.resync(*row, self.lines_of_row()))).await?;
                    lost.extend(found.into_iter().flatten());
                    resynced += some.len() as u64;
                }
            }
        }
        Ok((resynced, lost))
    }

    /// The rows of all stripes that begin between these bytes of the array.
    fn rows_of(&self, start: u64, end: u64) -> Vec<u64> {
        let geometry: &Geometry = self.geometry();
        let rows_each = (self.array.label.spec.chunk_bytes / self.row_bytes).max(1);
        let mut rows = Vec::new();
        let mut stripe = geometry.stripe_of(start);
        while let Some(here) = stripe.filter(|stripe| stripe.array_start < end) {
            if here.array_start >= start {
                rows.extend(here.number * rows_each..(here.number + 1) * rows_each);
            }
            stripe = geometry.stripe(here.number + 1);
        }
        rows
    }
}

//! The log ring on a disk of its own: whether that disk is trusted, what a start does without it, and how the ring
//! moves while the array serves.
//!
//! Each batch has one copy then. So nothing that was guaranteed to be durable depends on it: a flush makes the
//! journal's content durable in place. With the disk, a crash is recovered as usual. Without it, all durable data is in
//! place, and only parity may not match, in dirty regions. If all data is present, parity is recomputed there. If some
//! is missing, it is unknown which stripes can be trusted, and the array is not started.
//!
//! The disk is trusted if it bears a head of the run that the members' newest head names, and nothing of a later run.
//! It bears the head of a new run before any member does: so an old copy of it, or a disk that the array has gone on
//! without, never passes for an empty ring.

use braid_engine::{LeafId, MetaIo};
use braid_format::journal::{JournalHead, LostStripe, RingLocation};
use braid_geometry::Geometry;

use super::super::array::Array;
use super::super::bitmap::load_regions;
use super::super::disk::MemberDisk;
use super::super::error::LifecycleError;
use super::super::found::{FoundArray, FoundMember};
use super::super::join::{join_all, try_join_all};
use super::super::lineage::{LineageIds, MemberStanding};
use super::super::write::Target;
use super::heads::heads_at;
use super::{JournalStart, Recovery, merged, wrong};

/// Stripes whose parity is recomputed concurrently.
const STRIPES_AT_ONCE: usize = 16;

/// Begins a new run of the journal of a serving array: on its disk if [`Array::journal_disk`] has one, else on the
/// members. Everything logged must be durable in place, and nothing may be logged meanwhile. `lost`: the lost stripes.
///
/// # Errors
/// A disk's error: drop that disk, and call this again with another `random`.
pub async fn move_ring<M: MetaIo>(
    io: &M,
    array: &Array,
    random: u64,
    lost: &[LostStripe],
) -> Result<JournalStart, LifecycleError> {
    let recovery = Recovery::new(io, array, false);
    let newest = recovery.newest_head().await?;
    let newest = newest.ok_or_else(|| wrong("no member bears a head of it any more".to_owned()))?;
    let head = recovery.begin(&newest.as_predecessor(), LineageIds::new(random).next(), lost).await?;
    Ok(JournalStart::new(head, lost.to_vec()))
}

/// Whether the heads of a found array say that the ring is on its members, whatever disk its label names.
pub(in crate::lifecycle) async fn is_on_members<M: MetaIo>(io: &M, found: &FoundArray) -> bool {
    newest_of_members(io, found).await.is_some_and(|newest| newest.ring_on == RingLocation::Members)
}

/// Whether the disk that a found array's label names for its journal is trusted, as in [`Recovery::ring_of`], or not
/// needed. An unreadable disk is not trusted.
pub(in crate::lifecycle) async fn is_trusted<M: MetaIo>(io: &M, found: &FoundArray, disk: &MemberDisk) -> bool {
    let (id, start) = (disk.label.member.id, disk.label.member.layout.journal.start);
    let Ok(own) = heads_at(io, &found.uuid, disk.leaf, start).await else { return false };
    let of_members = newest_of_members(io, found).await;
    let heads = own.whole.iter().map(|(head, _)| head).chain(&of_members);
    let Some(newest) = heads.max_by_key(|head| head.generation) else { return true };
    match newest.ring_on {
        RingLocation::Members => true,
        RingLocation::Disk { id: of, .. } => of == id && own.whole.iter().any(|(head, _)| head.run == newest.run),
    }
}

async fn newest_of_members<M: MetaIo>(io: &M, found: &FoundArray) -> Option<JournalHead> {
    let in_sync =
        |member: &&FoundMember| matches!(member.standing, Some(MemberStanding::Current | MemberStanding::Behind));
    let places = found.members.iter().filter(in_sync).filter_map(|member| {
        let disk = member.disk.as_ref()?;
        Some((disk.leaf, disk.label.member.layout.journal.start))
    });
    let heads = join_all(places.map(|(leaf, start)| heads_at(io, &found.uuid, leaf, start))).await;
    let heads = heads.into_iter().flatten().flat_map(|heads| heads.whole).map(|(head, _)| head);
    heads.max_by_key(|head| head.generation)
}

impl<M: MetaIo> Recovery<'_, M> {
    /// Returns the disks that hold the ring of this head; `None` if they are missing.
    pub(super) async fn ring_of(&self, head: &JournalHead) -> Result<Option<Vec<&Target>>, LifecycleError> {
        let RingLocation::Disk { id, .. } = head.ring_on else { return Ok(Some(self.sources.clone())) };
        let Some(disk) = self.disk.filter(|disk| disk.part.id == id) else { return Ok(None) };
        let heads = self.heads_on(disk).await?.whole;
        let mut trusted = heads.iter().any(|(own, _)| own.run == head.run);
        for (ahead, _) in heads.iter().filter(|(own, _)| own.generation > head.generation) {
            // A later head alone is no objection: this disk gets each head before the members do, and a crash may come
            // between. A later run that has batches is: another copy of the array has used this disk, and may have
            // overwritten batches of this run.
            trusted &= self.ring(disk, ahead).await?.is_empty();
        }
        Ok(trusted.then(|| vec![disk]))
    }

    /// Recovers without the ring, whose disk is missing, unreadable or not trusted: after an unclean stop, recomputes
    /// the parity of all dirty regions; then begins a new run.
    ///
    /// # Errors
    /// [`LifecycleError::JournalLost`] after an unclean stop if a slot has no member in sync, unless `force`.
    pub(super) async fn complete_without_ring(
        &self,
        head: &JournalHead,
        lost: Vec<LostStripe>,
        run: u64,
    ) -> Result<JournalStart, LifecycleError> {
        let (mut resynced, mut now) = (0, Vec::new());
        let needs_parity = !self.array.was_clean;
        if needs_parity && !self.has_all_data() {
            return if self.force { self.begin_anew(run).await } else { Err(LifecycleError::JournalLost) };
        }
        if needs_parity {
            (resynced, now) = self.resync_dirty().await?;
            self.flush().await?;
        }
        let lost_now = now.len() as u64;
        let lost = merged(lost, now);
        let head = self.begin_with_fallback(head, run, &lost).await?;
        Ok(JournalStart { resynced, newly_lost: lost_now, disk_lost: true, ..JournalStart::new(head, lost) })
    }

    /// Begins a new run. If the disk of the journal fails during this, begins the run on the members instead: what the
    /// disk held is in place already, so that the recovery must not be repeated without it.
    pub(super) async fn begin_with_fallback(
        &self,
        head: &JournalHead,
        run: u64,
        lost: &[LostStripe],
    ) -> Result<JournalHead, LifecycleError> {
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

    /// Whether every slot is held by a member in sync.
    fn has_all_data(&self) -> bool {
        (0..self.geometry().member_data_bytes().len() as u16)
            .all(|role| self.holders(&self.sources, role).next().is_some())
    }

    /// Recomputes parity in all dirty regions. Returns the number of stripes, and those that are lost.
    async fn resync_dirty(&self) -> Result<(u64, Vec<LostStripe>), LifecycleError> {
        let regions = load_regions(self.io, self.array, self.force).await?;
        let region_bytes = u64::from(self.array.label.region_bytes.max(1));
        let (mut resynced, mut lost) = (0, Vec::new());
        for (word, (written, dirty)) in (0u64..).zip(regions.written.iter().zip(&regions.dirty)) {
            let unequal = written & dirty;
            for region in (0..64).filter(|bit| unequal >> bit & 1 == 1).map(|bit| word * 64 + bit) {
                let stripes = self.stripes_between(region * region_bytes, (region + 1) * region_bytes);
                for some in stripes.chunks(STRIPES_AT_ONCE) {
                    let found = try_join_all(some.iter().map(|row| self.resync(*row, self.all_lines()))).await?;
                    lost.extend(found.into_iter().flatten());
                    resynced += some.len() as u64;
                }
            }
        }
        Ok((resynced, lost))
    }

    /// Returns the numbers of the journal's stripes in all stripes of the geometry that begin between these array
    /// offsets.
    fn stripes_between(&self, start: u64, end: u64) -> Vec<u64> {
        let geometry: &Geometry = self.geometry();
        let rows_each = (self.array.label.spec.chunk_bytes / self.row_bytes).max(1);
        let mut stripes = Vec::new();
        let mut stripe = geometry.stripe_of(start);
        while let Some(current) = stripe.filter(|stripe| stripe.array_start < end) {
            if current.array_start >= start {
                stripes.extend(current.number * rows_each..(current.number + 1) * rows_each);
            }
            stripe = geometry.stripe(current.number + 1);
        }
        stripes
    }
}

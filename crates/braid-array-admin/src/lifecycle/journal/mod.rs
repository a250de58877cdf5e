//! The journal of an array with parity: its first heads, and its recovery at a start after a crash.
//!
//! The journal's unit is a slice of a [`Stripe`] of the geometry, `row_bytes` high. This module calls such a slice a
//! stripe; its number is the field `row` of the journal's format.
//!
//! Before the array serves, every accepted batch is written to all members in sync that lack it: after another crash,
//! with other members lost, a recovery finds the same batches. Then their entries are written in place, in order. Then
//! the parity of stripes that a full-stripe write was in flight for is recomputed from their data. If a member with
//! some of that data is lost, the content is unknown: the cell is listed as unreadable, and parity is computed with
//! zeros in its place, so that the other cells of the stripe stay protected. A head of a new run ends the recovery:
//! nothing of the old run is needed then. A recovery that is interrupted at any step is repeated by the next one, with
//! the same result.
//!
//! | step | on the disks, when it is done |
//! |---|---|
//! | 1: regions | all affected regions are dirty on all members: failed members are known to lack what is changed here |
//! | 2: log | every accepted batch is on all members in sync |
//! | 3: replay, flush | its content is in place |
//! | 4: resync, flush | parity matches data, in all stripes |
//! | 5: head | a new run, and the list of lost stripes, on all members in sync or rebuilding |

mod disk;
mod find;
mod heads;
mod replay;

use std::collections::{BTreeMap, BTreeSet};

use braid_format::journal::{
    BatchCopies, EntryKind, JournalEntry, JournalHead, LostStripe, RingLocation, stripe_bytes,
};
use braid_format::{MemberState, Uuid};
use braid_geometry::{Geometry, Stripe};

pub use self::disk::move_ring;
pub(super) use self::disk::{is_on_members, is_trusted};
use self::find::Found;
use self::heads::Newest;
pub(super) use self::heads::{check_room, erase_heads, give_head, give_newest, write_first};

use super::array::Array;
use super::bitmap::mark_dirty;
use super::error::LifecycleError;
use super::join::try_join_all;
use super::lineage::LineageIds;
use super::member_table::successor_of;
use super::write::{Target, flush};
use braid_engine::lost_stripes::{cells_of, stripes_of};
use braid_engine::{ErrorKind, LeafId, MetaIo};

/// The journal's state when an array with parity begins to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalStart {
    /// The run of the batches from now on: the first has the number 1 and is at block 0 of the ring.
    pub run: u64,
    /// The generation of the head that records the run, on all members that are in sync or rebuilding.
    pub generation: u64,
    /// Size of the ring, in blocks.
    pub ring_blocks: u64,
    /// Height of a stripe of the journal, in bytes.
    pub stripe_bytes: u32,
    /// Stripes with unreadable cells, ascending.
    pub lost: Vec<LostStripe>,
    /// Batches that were accepted.
    pub batches: u64,
    /// Entries of these batches that were written in place.
    pub replayed: u64,
    /// Entries that were not written in place, because a later entry marks their stripe: their content was durable in
    /// place before the mark, or the writer has broken its rules.
    pub skipped: u64,
    /// Stripes whose parity was recomputed.
    pub resynced: u64,
    /// Stripes that this recovery found lost.
    pub newly_lost: u64,
    /// Blocks of the ring that some member could not read.
    pub unread_blocks: u64,
    /// Where the ring is.
    pub ring_on: RingLocation,
    /// The ring was on a disk that is missing, has failed or is not trusted. If the content of that disk was not
    /// recovered before, and the array was not stopped cleanly, the parity of all dirty regions was recomputed.
    pub disk_lost: bool,
}

impl Array {
    /// Records that the journal has begun a run.
    pub fn record_run(&mut self, start: &JournalStart) {
        self.run_head = Some(start.head());
    }
}

impl JournalStart {
    fn new(head: JournalHead, lost: Vec<LostStripe>) -> JournalStart {
        JournalStart {
            run: head.run,
            generation: head.generation,
            ring_blocks: head.ring_blocks,
            stripe_bytes: head.stripe_bytes,
            lost,
            batches: 0,
            replayed: 0,
            skipped: 0,
            resynced: 0,
            newly_lost: 0,
            unread_blocks: 0,
            ring_on: head.ring_on,
            disk_lost: false,
        }
    }

    /// Returns the head that records this state, and its list of lost stripes.
    pub(in crate::lifecycle) fn head(&self) -> (JournalHead, Vec<LostStripe>) {
        let JournalStart { run, generation, ring_blocks, stripe_bytes, ring_on, .. } = *self;
        (JournalHead { generation, run, ring_blocks, stripe_bytes, ring_on }, self.lost.clone())
    }

    /// Returns the smaller of the ring and of what fits on the members, in blocks.
    pub fn least_ring_blocks(&self) -> u64 {
        match self.ring_on {
            RingLocation::Members => self.ring_blocks,
            RingLocation::Disk { member_blocks, .. } => self.ring_blocks.min(member_blocks.into()),
        }
    }
}

/// Recovers the journal of a started array with parity, as described above, and begins a new run. To be called after
/// [`start`](super::start) and [`create`](super::create), before [`load_regions`](super::load_regions). A member that
/// fails meanwhile is dropped, and the recovery is repeated without it; a member without free space is not, because it
/// keeps all that it holds. `random` seeds the id of the new run.
///
/// # Errors
/// [`LifecycleError::JournalLost`] if the ring is on a missing disk, the array was not stopped cleanly, and a member is
/// missing too. [`LifecycleError::Journal`] if no member bears a head, or the content is invalid. With `force` such an
/// array starts with an empty journal, and everything ever written is marked dirty. [`LifecycleError::BitmapDamaged`]
/// as from `load_regions`, or [`LifecycleError::BeyondTolerance`].
pub async fn recover_journal<M: MetaIo>(
    io: &M,
    array: &mut Array,
    random: u64,
    force: bool,
) -> Result<JournalStart, LifecycleError> {
    let mut runs = LineageIds::new(random);
    loop {
        let run = runs.next();
        let error = match Recovery::new(io, array, force).complete(run).await {
            Ok(mut start) => {
                // If the disk of the journal failed, it did so after its content was in place: the ring is on the
                // members now.
                start.disk_lost |= start.ring_on == RingLocation::Members && array.give_up_journal().is_some();
                array.record_run(&start);
                // Now that the ring is elsewhere, the label may record that.
                array.forget_journal(io).await?;
                return Ok(start);
            }
            Err(error) => error,
        };
        if array.was_clean && matches!(error, LifecycleError::Journal { .. }) {
            // Nothing in the journal is needed. The start has removed the clean mark: set it again, so that the next
            // attempt knows that too.
            array.stop(io).await?;
            return Err(error);
        }
        if array.journal_failed(&error) {
            continue;
        }
        if is_full(&error) {
            // A member without space keeps its content and can be read. Dropping it now would lose its cells of stripes
            // that are only marked.
            return Err(error);
        }
        let failed = match &error {
            LifecycleError::Io { leaf, .. } => array.targets.iter().find(|t| t.leaf == *leaf).map(|t| t.part.slot),
            _ => None,
        };
        let Some(role) = failed else { return Err(error) };
        if let Err(beyond) = array.drop_members(io, &[role]).await {
            return Err(match beyond {
                LifecycleError::BeyondTolerance { lost, source: None } => {
                    LifecycleError::BeyondTolerance { lost, source: Some(Box::new(error)) }
                }
                other => other,
            });
        }
    }
}

/// Whether a member had no space for a write.
fn is_full(error: &LifecycleError) -> bool {
    matches!(error, LifecycleError::Io { source, .. } if source.kind == ErrorKind::NoSpace)
}

/// One attempt, with the members that are present now.
struct Recovery<'a, M> {
    io: &'a M,
    array: &'a Array,
    force: bool,
    row_bytes: u64,
    /// In sync: their content is read.
    sources: Vec<&'a Target>,
    /// In sync or rebuilding: they take every write.
    sinks: Vec<&'a Target>,
    /// The disk of the journal, if there is one and it is present.
    disk: Option<&'a Target>,
}

/// An accepted batch.
struct Batch {
    copies: BatchCopies,
    entries: Vec<JournalEntry>,
}

/// What the accepted entries say of a stripe.
#[derive(Clone, Copy, Default)]
struct StripeState {
    /// The number of the last mark, counted over all entries.
    marked: Option<usize>,
    /// Lines whose parity may not match their data once all entries are in place.
    doubtful: u16,
}

/// Where a stripe of the journal is.
struct StripeLocation<'a> {
    stripe: Stripe<'a>,
    /// Where its cells begin in the data areas of its members.
    member_offset: u64,
}

fn wrong(reason: String) -> LifecycleError {
    LifecycleError::Journal { reason }
}

impl<'a, M: MetaIo> Recovery<'a, M> {
    fn new(io: &'a M, array: &'a Array, force: bool) -> Recovery<'a, M> {
        let in_state = |states: &[MemberState]| {
            array.targets.iter().filter(|t| states.contains(&array.state(t.part.slot))).collect::<Vec<_>>()
        };
        let sources = in_state(&[MemberState::InSync]);
        let sinks = in_state(&[MemberState::InSync, MemberState::Rebuilding]);
        let height = u64::from(stripe_bytes(array.label.spec.chunk_bytes as u32));
        Recovery { io, array, force, row_bytes: height, sources, sinks, disk: array.journal.as_ref() }
    }

    fn uuid(&self) -> &Uuid {
        &self.array.label.uuid
    }

    fn geometry(&self) -> &'a Geometry {
        &self.array.geometry
    }

    fn all_lines(&self) -> u16 {
        let lines = self.row_bytes / braid_format::BLOCK_BYTES;
        ((1u32 << lines) - 1) as u16
    }

    fn parities(&self) -> usize {
        usize::from(self.array.label.spec.level.parity())
    }

    /// Runs the whole recovery, up to the head of the new run.
    async fn complete(&self, run: u64) -> Result<JournalStart, LifecycleError> {
        let (head, lost) = match self.newest_head().await {
            Ok(Some(Newest { doubt: true, .. })) if self.force => return self.begin_anew(run).await,
            Ok(Some(Newest { doubt: true, .. })) => {
                let reason = "its newest head may be where none of its members can read (try again: a disk may read at the second time)";
                return Err(wrong(reason.to_owned()));
            }
            Ok(Some(found)) => (found.head, found.lost),
            Ok(None) if self.force => return self.begin_anew(run).await,
            Ok(None) => {
                return Err(wrong("no member bears a head of it: what was being written is not known".to_owned()));
            }
            Err(error) => return Err(error),
        };
        let Some(ring) = self.ring_of(&head).await? else { return self.complete_without_ring(&head, lost, run).await };
        if let Some(disk) = self.disk {
            // What is read from the only copy may be in the disk's cache: another loss of power must not take what was
            // replayed from it.
            flush(self.io, disk.leaf).await?;
        }
        let Found { batches, unread_blocks, doubt } = match self.find(&head, &ring).await {
            Err(LifecycleError::Journal { .. }) if self.force => return self.begin_anew(run).await,
            found => found?,
        };
        let Some(batches) = batches else { return self.complete_without_ring(&head, lost, run).await };
        match doubt {
            Some((batch, members)) if !self.force => {
                return Err(LifecycleError::JournalUnreadable { batch, members });
            }
            Some(_) => drop(mark_dirty(self.io, self.array, &self.sinks, &|_| true, true).await?),
            None => {}
        }
        let stripes = self.stripe_states(&batches);
        self.mark_regions(&stripes).await?;
        self.log(&batches, &ring).await?;
        let replayed = self.replay(&batches, &stripes).await?;
        self.flush().await?;
        let still = self.without_rewritten(&lost, &batches);
        let mut now = Vec::new();
        let mut resynced = 0;
        for (row, state) in stripes.iter().filter(|(_, state)| state.doubtful != 0) {
            now.extend(self.resync(*row, state.doubtful).await?);
            resynced += 1;
        }
        self.flush().await?;
        let lost_now = now.len() as u64;
        let lost = merged(still, now);
        let head = self.begin_with_fallback(&head, run, &lost).await?;
        Ok(JournalStart {
            batches: batches.len() as u64,
            replayed: replayed.0,
            skipped: replayed.1,
            resynced,
            newly_lost: lost_now,
            unread_blocks,
            ..JournalStart::new(head, lost)
        })
    }

    /// With `force`: ignores the journal's content, and marks everything ever written as dirty, so that its parity is
    /// checked.
    async fn begin_anew(&self, run: u64) -> Result<JournalStart, LifecycleError> {
        mark_dirty(self.io, self.array, &self.sinks, &|_| true, true).await?;
        let newest = self.newest_head().await.ok().flatten();
        let (head, lost) =
            newest.map_or_else(|| (self.first_head(), Vec::new()), |found| (found.as_predecessor(), found.lost));
        let head = self.begin(&head, run, &lost).await?;
        Ok(JournalStart::new(head, lost))
    }

    /// Returns where a stripe is; `None` beyond the array's end.
    fn locate(&self, row: u64) -> Option<StripeLocation<'a>> {
        let rows_each = (self.array.label.spec.chunk_bytes / self.row_bytes).max(1);
        let stripe = self.geometry().stripe(row / rows_each)?;
        Some(StripeLocation { stripe, member_offset: stripe.member_offset + row % rows_each * self.row_bytes })
    }

    /// Returns the holders of a slot among these targets: its own member and its successor.
    fn holders<'b>(&self, of: &'b [&'a Target], role: u16) -> impl Iterator<Item = &'a Target> + use<'a, 'b, M> {
        let successor = successor_of(&self.array.label, role);
        of.iter().copied().filter(move |t| t.part.slot == role || Some(t.part.slot) == successor)
    }

    /// Returns what the entries say of each stripe that they name.
    fn stripe_states(&self, batches: &[Batch]) -> BTreeMap<u64, StripeState> {
        let mut stripes: BTreeMap<u64, StripeState> = BTreeMap::new();
        let retired = self.array.retired;
        let entries = batches.iter().flat_map(|batch| {
            let header = &batch.copies.header;
            let is_retired = retired.covers(header.run, header.sequence);
            batch.entries.iter().map(move |entry| (entry, is_retired))
        });
        for (number, (entry, is_retired)) in entries.enumerate() {
            if is_retired && entry.kind == EntryKind::Mark {
                // The stripe of a retired mark matches its parity on the members that stayed: the cells of the dropped
                // member can be computed.
                continue;
            }
            let cells = self.locate(entry.stripe).map_or(0, |location| location.stripe.data_chunks());
            let state = stripes.entry(entry.stripe).or_default();
            let parities = usize::from(entry.parities) >= self.parities();
            match entry.kind {
                EntryKind::Mark => *state = StripeState { marked: Some(number), doubtful: self.all_lines() },
                // The entry holds all cells of these lines: whatever was there before is replaced.
                EntryKind::Data if parities && usize::from(entry.cells) == cells => state.doubtful &= !entry.lines(),
                EntryKind::Data if parities => {}
                EntryKind::Data => state.doubtful |= entry.lines(),
            }
        }
        stripes
    }

    /// Marks the regions of these stripes dirty. A stripe belongs to the region in which its stripe of the geometry
    /// begins.
    async fn mark_regions(&self, stripes: &BTreeMap<u64, StripeState>) -> Result<(), LifecycleError> {
        let region_bytes = u64::from(self.array.label.region_bytes.max(1));
        let regions = stripes.keys().filter_map(|row| Some(self.locate(*row)?.stripe.array_start / region_bytes));
        let regions: BTreeSet<u64> = regions.collect();
        if regions.is_empty() {
            return Ok(());
        }
        let named = |region: u64| regions.contains(&region);
        let written = mark_dirty(self.io, self.array, &self.sinks, &named, self.force).await?;
        if written < regions.len() as u64 && !self.force {
            return Err(wrong("it names rows where nothing was ever written, by the bitmap".to_owned()));
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), LifecycleError> {
        try_join_all(self.sinks.iter().map(|target| flush(self.io, target.leaf))).await.map(drop)
    }

    /// Returns the list without what the entries have rewritten: block by block of each lost cell.
    fn without_rewritten(&self, lost: &[LostStripe], batches: &[Batch]) -> Vec<LostStripe> {
        let mut cells = cells_of(lost);
        for entry in batches.iter().flat_map(|batch| &batch.entries).filter(|entry| entry.kind == EntryKind::Data) {
            let from = cells.partition_point(|(row, ..)| *row < entry.stripe);
            let written = entry.cell..entry.cell + entry.cells;
            let of_row = cells[from..].iter_mut().take_while(|(row, ..)| *row == entry.stripe);
            of_row.filter(|(_, cell, _)| written.contains(cell)).for_each(|(.., lines)| *lines &= !entry.lines());
        }
        stripes_of(&cells)
    }
}

/// Merges both lists, ascending.
fn merged(mut still: Vec<LostStripe>, now: Vec<LostStripe>) -> Vec<LostStripe> {
    still.extend(now);
    stripes_of(&cells_of(&still))
}

/// Wraps a disk's error.
fn failed(leaf: LeafId, action: &'static str, offset: u64, source: braid_engine::LeafError) -> LifecycleError {
    LifecycleError::Io { leaf, action, offset, source }
}

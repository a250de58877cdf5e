//! The journal of an array with parity: its first heads, and what a start makes of what a crash has left in it.
//!
//! Before the array serves, every batch that counts is written on all members that are in sync and lack it: should the power go
//! again, and other members be lost, the same batches are found. Then their entries are put in place, in order; then the
//! parity of rows that were being written wholly is computed anew from their data. Where some of that data is on a member that
//! is lost, nobody knows what it was: the cell is listed as unreadable, and parity is made to fit zeros in it, so that the other
//! cells of the row stay as safe as any. A head of a new run ends the recovery: of the old run nothing is needed then. What was done up
//! to any step is done again by the next recovery, and comes out the same.
//!
//! | step | on the disks, when it is done |
//! |---|---|
//! | 1: regions | all regions that are concerned are dirty on all members: what is changed here is known to be missing on members that are out |
//! | 2: log | every batch that counts is on all members in sync |
//! | 3: replay, flush | its content is in place |
//! | 4: resync, flush | parity fits data, in all rows |
//! | 5: head | a new run, and the list of unreadable rows, on all members in sync or being filled |

mod disk;
mod find;
mod heads;
mod replay;

use std::collections::{BTreeMap, BTreeSet};

use braid_format::journal::{Copies, Entry, EntryKind, Head, LostRow, RingOn, row_bytes};
use braid_format::{MemberState, Uuid};
use braid_geometry::{Geometry, Stripe};

pub use self::disk::move_ring;
pub(super) use self::disk::{is_believed, is_on_members};
use self::find::Found;
use self::heads::Newest;
pub(super) use self::heads::{check_room, erase_heads, give_head, give_newest, write_first};

use super::array::Array;
use super::bitmap::mark_dirty;
use super::error::LifecycleError;
use super::join::try_join_all;
use super::lines::Lines;
use super::planted::{Planted, planted};
use super::replace::successor_of;
use super::write::{Target, flush};
use crate::lost_rows::{cells_of, rows_of};
use crate::{ErrorKind, LeafId, MetaIo};

/// With what an array with parity begins to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalStart {
    /// The run of the batches from now on: the first has the number 1 and stands at block 0 of the ring.
    pub run: u64,
    /// The generation of the head that says so, on all members.
    pub generation: u64,
    /// Blocks of the ring.
    pub ring_blocks: u64,
    /// The height of a row, in bytes.
    pub row_bytes: u32,
    /// Rows of which something cannot be read, ascending.
    pub lost: Vec<LostRow>,
    /// Batches that counted.
    pub batches: u64,
    /// Their entries that were put in place.
    pub replayed: u64,
    /// Entries that were not, because their row was marked later: the writer does not do that.
    pub skipped: u64,
    /// Rows of which parity was computed anew.
    pub resynced: u64,
    /// Rows that have become unreadable by this.
    pub lost_now: u64,
    /// Blocks of the ring that some member could not read.
    pub unread_blocks: u64,
    /// Where the ring is.
    pub ring_on: RingOn,
    /// The disk of the journal is lost. Where the journal held something that was not in place, parity was computed anew of all that
    /// was being written.
    pub disk_lost: bool,
}

impl JournalStart {
    fn new(head: Head, lost: Vec<LostRow>) -> JournalStart {
        JournalStart {
            run: head.run,
            generation: head.generation,
            ring_blocks: head.ring_blocks,
            row_bytes: head.row_bytes,
            lost,
            batches: 0,
            replayed: 0,
            skipped: 0,
            resynced: 0,
            lost_now: 0,
            unread_blocks: 0,
            ring_on: head.ring_on,
            disk_lost: false,
        }
    }

    /// The head that says so, and its list.
    pub(in crate::lifecycle) fn head(&self) -> (Head, Vec<LostRow>) {
        let JournalStart { run, generation, ring_blocks, row_bytes, ring_on, .. } = *self;
        (Head { generation, run, ring_blocks, row_bytes, ring_on }, self.lost.clone())
    }

    /// The smaller of the ring and of the one that the members have room for, in blocks.
    pub fn least_ring_blocks(&self) -> u64 {
        match self.ring_on {
            RingOn::Members => self.ring_blocks,
            RingOn::Disk { member_blocks, .. } => self.ring_blocks.min(member_blocks.into()),
        }
    }
}

/// Brings the journal of a started array with parity to its end, as the module says, and begins a new run. To be called after
/// [`start`](super::start) and [`create`](super::create), before [`load_regions`](super::load_regions). A member that fails
/// meanwhile is dropped, and all is done again without it; one that has no space left is not, as it has all that it had. `random` is where the new run's id comes from.
///
/// # Errors
/// [`LifecycleError::JournalLost`] where the ring is on a disk that is not here, the array was not stopped in order, and a member is
/// absent as well. [`LifecycleError::Journal`] where no member bears a head, or what counts makes no sense. With `force` such an array starts with an
/// empty journal, and all that was ever written in it is noted as dirty. [`LifecycleError::BitmapDamaged`] as from
/// `load_regions`, or [`LifecycleError::Beyond`].
pub async fn recover_journal<M: MetaIo>(
    io: &M,
    array: &mut Array,
    random: u64,
    force: bool,
) -> Result<JournalStart, LifecycleError> {
    let mut runs = Lines::new(random);
    loop {
        let run = runs.next();
        let error = match Recovery::new(io, array, force).complete(run).await {
            Ok(mut start) => {
                // It failed when everything was in place.
                start.disk_lost |= start.ring_on == RingOn::Members && array.give_up_journal().is_some();
                array.note_run(&start);
                // Now that the ring is elsewhere, the label may say so.
                array.forget_journal(io).await?;
                return Ok(start);
            }
            Err(error) => error,
        };
        if array.was_clean && matches!(error, LifecycleError::Journal { .. }) {
            // Nothing of the journal is needed then, and the next try must know that as well.
            array.stop(io).await?;
            return Err(error);
        }
        if array.journal_failed(&error) {
            continue;
        }
        if is_full(&error) && !planted(Planted::DroppedWhenFull) {
            // It has all that it had, and can be read. Dropped now, it would take with it what rows hold that are only marked.
            return Err(error);
        }
        let failed = match &error {
            LifecycleError::Io { leaf, .. } => array.targets.iter().find(|t| t.leaf == *leaf).map(|t| t.part.role),
            _ => None,
        };
        let Some(role) = failed else { return Err(error) };
        if let Err(beyond) = array.drop_members(io, &[role]).await {
            return Err(match beyond {
                LifecycleError::Beyond { lost, source: None } => {
                    LifecycleError::Beyond { lost, source: Some(Box::new(error)) }
                }
                other => other,
            });
        }
    }
}

/// Whether a member had no space for what was written to it.
fn is_full(error: &LifecycleError) -> bool {
    matches!(error, LifecycleError::Io { source, .. } if source.kind == ErrorKind::NoSpace)
}

/// One attempt, with the members that are here now.
struct Recovery<'a, M> {
    io: &'a M,
    array: &'a Array,
    force: bool,
    row_bytes: u64,
    /// In sync: what they hold counts.
    sources: Vec<&'a Target>,
    /// In sync or being filled: they take every write.
    sinks: Vec<&'a Target>,
    /// The disk of the journal, where there is one and it is here.
    disk: Option<&'a Target>,
}

/// A batch that counts.
struct Batch {
    copies: Copies,
    entries: Vec<Entry>,
}

/// What the entries that count say of a row.
#[derive(Clone, Copy, Default)]
struct Row {
    /// The number of the last mark, counted over all entries.
    marked: Option<usize>,
    /// Lines of which parity may not fit data once all entries are in place.
    doubtful: u16,
}

/// Where a row is.
struct Place<'a> {
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
            array.targets.iter().filter(|t| states.contains(&array.state(t.part.role))).collect::<Vec<_>>()
        };
        let sources = in_state(&[MemberState::InSync]);
        let sinks = in_state(&[MemberState::InSync, MemberState::Filling]);
        let row_bytes = u64::from(row_bytes(array.label.spec.chunk_bytes as u32));
        Recovery { io, array, force, row_bytes, sources, sinks, disk: array.journal.as_ref() }
    }

    fn uuid(&self) -> &Uuid {
        &self.array.label.uuid
    }

    fn geometry(&self) -> &'a Geometry {
        &self.array.geometry
    }

    fn lines_of_row(&self) -> u16 {
        let lines = self.row_bytes / braid_format::BLOCK_BYTES;
        ((1u32 << lines) - 1) as u16
    }

    fn parities(&self) -> usize {
        usize::from(self.array.label.spec.level.parity())
    }

    /// Everything, up to the head of the new run.
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
        let Some(ring) = self.ring_of(&head).await? else { return self.complete_without(&head, lost, run).await };
        if let Some(disk) = self.disk.filter(|_| !planted(Planted::DiskNotFlushed)) {
            // What is read of the only copy may be in the disk's cache: another power cut must not take what was replayed of it.
            flush(self.io, disk.leaf).await?;
        }
        let Found { batches, unread_blocks, doubt } = match self.find(&head, &ring).await {
            Err(LifecycleError::Journal { .. }) if self.force => return self.begin_anew(run).await,
            found => found?,
        };
        let Some(batches) = batches else { return self.complete_without(&head, lost, run).await };
        match doubt {
            Some((batch, members)) if !self.force => {
                return Err(LifecycleError::JournalUnread { batch, members });
            }
            Some(_) => drop(mark_dirty(self.io, self.array, &self.sinks, &|_| true, true).await?),
            None => {}
        }
        let rows = self.rows(&batches);
        self.mark_regions(&rows).await?;
        if !planted(Planted::ReplayedBeforeLogged) {
            self.log(&batches, &ring).await?;
        }
        let replayed = self.replay(&batches, &rows).await?;
        if planted(Planted::ReplayedBeforeLogged) {
            self.log(&batches, &ring).await?;
        }
        if planted(Planted::RetiredBeforeResync) {
            self.begin(&head, run, &lost).await?;
        }
        self.flush().await?;
        let mut still = self.without_rewritten(&lost, &batches);
        if planted(Planted::UnreadableForgotten) {
            still.clear();
        }
        let mut now = Vec::new();
        let mut resynced = 0;
        for (row, judged) in rows.iter().filter(|(_, judged)| judged.doubtful != 0) {
            now.extend(self.resync(*row, judged.doubtful).await?);
            resynced += 1;
        }
        if !planted(Planted::RetiredBeforeFlush) {
            self.flush().await?;
        }
        let lost_now = now.len() as u64;
        let lost = if planted(Planted::UnreadableNotListed) { still } else { merged(still, now) };
        let head = self.begin_somewhere(&head, run, &lost).await?;
        Ok(JournalStart {
            batches: batches.len() as u64,
            replayed: replayed.0,
            skipped: replayed.1,
            resynced,
            lost_now,
            unread_blocks,
            ..JournalStart::new(head, lost)
        })
    }

    /// Told to: nothing of the journal counts, and parity of all that was ever written is to be looked at.
    async fn begin_anew(&self, run: u64) -> Result<JournalStart, LifecycleError> {
        mark_dirty(self.io, self.array, &self.sinks, &|_| true, true).await?;
        let newest = self.newest_head().await.ok().flatten();
        let (head, lost) = newest.map_or_else(|| (self.first_head(), Vec::new()), |found| (found.passed(), found.lost));
        let head = self.begin(&head, run, &lost).await?;
        Ok(JournalStart::new(head, lost))
    }

    /// Where a row is; `None` beyond the array's end.
    fn place(&self, row: u64) -> Option<Place<'a>> {
        let rows_each = (self.array.label.spec.chunk_bytes / self.row_bytes).max(1);
        let stripe = self.geometry().stripe(row / rows_each)?;
        Some(Place { stripe, member_offset: stripe.member_offset + row % rows_each * self.row_bytes })
    }

    /// Those that hold a role, among these: its own member, and one that is to replace it.
    fn holders<'b>(&self, of: &'b [&'a Target], role: u16) -> impl Iterator<Item = &'a Target> + use<'a, 'b, M> {
        let successor = successor_of(&self.array.label, role);
        of.iter().copied().filter(move |t| t.part.role == role || Some(t.part.role) == successor)
    }

    /// What the entries say of each row that they name.
    fn rows(&self, batches: &[Batch]) -> BTreeMap<u64, Row> {
        let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
        let retired = self.array.retired;
        let entries = batches.iter().flat_map(|batch| {
            let header = &batch.copies.header;
            let is_retired = retired.covers(header.run, header.sequence);
            batch.entries.iter().map(move |entry| (entry, is_retired))
        });
        for (number, (entry, is_retired)) in entries.enumerate() {
            if is_retired && entry.kind == EntryKind::Mark {
                // A row that was in place when a member was dropped fits its parity: what that member had of it can be computed.
                continue;
            }
            let cells = self.place(entry.row).map_or(0, |place| place.stripe.data_chunks());
            let row = rows.entry(entry.row).or_default();
            let parities = usize::from(entry.parities) >= self.parities();
            match entry.kind {
                EntryKind::Mark => *row = Row { marked: Some(number), doubtful: self.lines_of_row() },
                // All of these lines is in the entry: whatever stood there before is replaced.
                EntryKind::Data if parities && usize::from(entry.cells) == cells => row.doubtful &= !entry.lines(),
                EntryKind::Data if parities => {}
                EntryKind::Data => row.doubtful |= entry.lines(),
            }
        }
        rows
    }

    /// A row belongs to the region in which its stripe begins.
    async fn mark_regions(&self, rows: &BTreeMap<u64, Row>) -> Result<(), LifecycleError> {
        let region_bytes = u64::from(self.array.label.region_bytes.max(1));
        let regions = rows.keys().filter_map(|row| Some(self.place(*row)?.stripe.array_start / region_bytes));
        let regions: BTreeSet<u64> = regions.collect();
        if regions.is_empty() || planted(Planted::RegionsNotMarked) {
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

    /// The list, without what the entries have written again: each block of a lost cell for itself.
    fn without_rewritten(&self, lost: &[LostRow], batches: &[Batch]) -> Vec<LostRow> {
        let mut cells = cells_of(lost);
        for entry in batches.iter().flat_map(|batch| &batch.entries).filter(|entry| entry.kind == EntryKind::Data) {
            let from = cells.partition_point(|(row, ..)| *row < entry.row);
            let written = entry.cell..entry.cell + entry.cells;
            let of_row = cells[from..].iter_mut().take_while(|(row, ..)| *row == entry.row);
            of_row.filter(|(_, cell, _)| written.contains(cell)).for_each(|(.., lines)| *lines &= !entry.lines());
        }
        rows_of(&cells)
    }
}

/// Both lists as one, ascending.
fn merged(mut still: Vec<LostRow>, now: Vec<LostRow>) -> Vec<LostRow> {
    still.extend(now);
    rows_of(&cells_of(&still))
}

/// What a disk answered, as an error that names it.
fn failed(leaf: LeafId, action: &'static str, offset: u64, source: crate::LeafError) -> LifecycleError {
    LifecycleError::Io { leaf, action, offset, source }
}

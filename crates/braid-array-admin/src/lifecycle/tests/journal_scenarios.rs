//! Recoveries of the journal that meet more than a crash: unreadable blocks, missing heads, members that are being
//! replaced.

use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;

use braid_engine::{ErrorKind, LeafError, LeafId, Marks, MetaIo};
use braid_format::journal::{
    EntryKind, HEAD_BYTES, JournalBatchHeader, JournalEntry, RING_OFFSET_BYTES, decode_head, encode_batch, head_slot,
    payload_crc,
};
use braid_format::{DiskLayout, MemberId, RetiredMarks};
use braid_geometry::{Level, Spec};

use super::disks::Disks;
use super::{leaves, name, request, run};
use crate::lifecycle::{
    Array, GrowRequest, JournalStart, LifecycleError, RebuildKind, RebuildTarget, Replacement, Retirement,
    StartOptions, create, load_regions, recover_journal, scan, start, store_regions,
};

const SIZE: u64 = 2 << 20;
const DATA: u64 = 1 << 20;
const CHUNK: u64 = 8192;

/// Disks with unreadable blocks.
struct Spoiled<'a> {
    disks: &'a Disks,
    bad: Vec<(LeafId, u64)>,
}

impl MetaIo for Spoiled<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.disks.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        let range = offset..offset + len as u64;
        if self.bad.iter().any(|(of, at)| *of == leaf && range.contains(at)) {
            return Err(LeafError::of(ErrorKind::Io));
        }
        self.disks.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.disks.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.disks.flush(leaf).await
    }
}

/// Creates a raid5 of three, all zeros and all written, and one further disk.
fn raid5() -> (Disks, Array, JournalStart) {
    let disks = Disks::new(&[SIZE; 4]);
    let spec = Spec { chunk_bytes: CHUNK, ..Spec::new(Level::Raid5) };
    let mut array = run(create(&disks, &request("p", spec, 1, leaves(3)))).unwrap();
    leaves(3).into_iter().for_each(|leaf| disks.poke(leaf, DATA, &[0; 4 * CHUNK as usize]));
    let mut regions = run(load_regions(&disks, &array, false)).unwrap();
    regions.written[0] = 1;
    run(store_regions(&disks, &array, &[0, 1, 2], &regions.written, &regions.dirty)).unwrap();
    let started = run(recover_journal(&disks, &mut array, 5, false)).unwrap();
    (disks, array, started)
}

fn journal() -> u64 {
    DiskLayout::for_device(SIZE).unwrap().journal.start
}

fn ring_block(block: u64) -> u64 {
    journal() + RING_OFFSET_BYTES + block * 4096
}

/// Returns the slots of stripe 0: data, data, parity.
fn stripe_0(array: &Array) -> (u16, u16, u16) {
    let stripe = array.geometry().stripe(0).unwrap();
    (stripe.data(0), stripe.data(1), stripe.p())
}

/// Writes the first batch of a run to these members: content for line 1 of cell 0 of stripe 0, and a mark of stripe 1.
fn log(disks: &Disks, array: &Array, started: &JournalStart, on: &[u32]) {
    log_as(1, disks, array, started, on);
}

/// [`log`], with this sequence number.
fn log_as(sequence: u64, disks: &Disks, array: &Array, started: &JournalStart, on: &[u32]) {
    let data = JournalEntry { stripe: 0, first: 1, blocks: 1, cell: 0, cells: 1, parities: 1, kind: EntryKind::Data };
    let payload = [[7; 4096], [7; 4096]].concat();
    let header = JournalBatchHeader {
        run: started.run,
        sequence,
        tail: sequence,
        position: 0,
        blocks: 3,
        entries: 2,
        payload_crc: payload_crc(0, &payload),
    };
    let mut block = [0; 4096];
    encode_batch(&array.uuid(), &header, &[data, JournalEntry::mark(1)], &mut block);
    for leaf in on {
        disks.poke(LeafId(*leaf), ring_block(0), &[&block[..], &payload].concat());
    }
    // The marked stripe is partly written.
    let stripe = array.geometry().stripe(1).unwrap();
    disks.poke(LeafId(stripe.data(0).into()), DATA + stripe.member_offset, &[9; 4096]);
}

fn block(disks: &Disks, role: u16, at: u64) -> u8 {
    let bytes = disks.peek(LeafId(role.into()), DATA + at, 4096);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn recovered(disks: &Disks, array: &Array) {
    let (cell, other, p) = stripe_0(array);
    assert_eq!([cell, other, p].map(|role| block(disks, role, 4096)), [7, 0, 7]);
    let stripe = array.geometry().stripe(1).unwrap();
    let roles = [stripe.data(0), stripe.data(1), stripe.p()];
    assert_eq!(roles.map(|role| block(disks, role, CHUNK)), [9, 0, 9]);
}

#[test]
fn a_batch_is_read_from_a_member_that_can_read_it() {
    for (bad, unread_blocks) in [(ring_block(0), 1), (ring_block(2), 1), (journal() + HEAD_BYTES as u64, 0)] {
        let (disks, mut array, started) = raid5();
        log(&disks, &array, &started, &[0, 1]);
        let spoiled = Spoiled { disks: &disks, bad: vec![(LeafId(0), bad)] };
        let again = run(recover_journal(&spoiled, &mut array, 6, false)).unwrap();
        assert_eq!((again.batches, again.replayed, again.resynced, again.unread_blocks), (1, 1, 1, unread_blocks));
        assert!(again.lost.is_empty() && array.is_whole());
        recovered(&disks, &array);
        // The batch is in the rings of all members in sync too.
        let copies = leaves(3).into_iter().map(|leaf| disks.peek(leaf, ring_block(0), 3 * 4096));
        let copies: Vec<Vec<u8>> = copies.collect();
        assert!(copies.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn an_unreadable_cell_of_a_stripe_in_flight_is_listed_and_zeroed() {
    let (disks, mut array, started) = raid5();
    log(&disks, &array, &started, &[0, 1]);
    let stripe = array.geometry().stripe(1).unwrap();
    let (role, p) = (stripe.data(0), stripe.p());
    let spoiled = Spoiled { disks: &disks, bad: vec![(LeafId(role.into()), DATA + CHUNK)] };
    let again = run(recover_journal(&spoiled, &mut array, 6, false)).unwrap();
    assert_eq!((again.lost.len(), again.newly_lost), (1, 1));
    assert_eq!((again.lost[0].stripe, again.lost[0].lines, again.lost[0].cells()), (1, 0b11, &[0][..]));
    assert_eq!([role, p].map(|role| block(&disks, role, CHUNK)), [0, 0]);
    // It stays listed, even if the disk can read it again.
    let third = run(recover_journal(&disks, &mut array, 7, false)).unwrap();
    assert_eq!((third.lost, third.newly_lost, third.generation), (again.lost, 0, again.generation + 1));
}

/// Stripe 1 is in place, with its parity, and only marked: acknowledged and not flushed.
fn mark_stripe_1_in_place(disks: &Disks, array: &Array, started: &JournalStart) -> u16 {
    log(disks, array, started, &[0, 1, 2]);
    let stripe = array.geometry().stripe(1).unwrap();
    for role in [stripe.data(0), stripe.p()] {
        disks.poke(LeafId(role.into()), DATA + stripe.member_offset, &[9; CHUNK as usize]);
    }
    stripe.data(0)
}

/// The label that records a drop retires the earlier marks: the member's cells of stripes in place are computed, by the
/// next start too, from either label.
#[test]
fn marks_that_a_drop_has_retired_do_not_count() {
    for (batch, lost) in [(1, 0), (0, 1)] {
        let (disks, mut array, started) = raid5();
        let role = mark_stripe_1_in_place(&disks, &array, &started);
        array.retired = RetiredMarks { run: started.run, batch };
        run(array.drop_members(&disks, &[role])).unwrap();
        let found = run(scan(&disks, &leaves(3)));
        let mut array = run(start(&disks, &found.arrays[0], StartOptions::new(9, 9))).unwrap();
        let again = run(recover_journal(&disks, &mut array, 9, false)).unwrap();
        assert_eq!((again.lost.len(), again.resynced), (lost, lost as u64), "retired up to {batch}");
        let p = array.geometry().stripe(1).unwrap().p();
        assert_eq!(block(&disks, p, CHUNK), if lost == 0 { 9 } else { 0 }, "what is lost is computed from it");
    }
    // Marks of another run are not retired.
    let (disks, mut array, started) = raid5();
    let role = mark_stripe_1_in_place(&disks, &array, &started);
    array.retired = RetiredMarks { run: started.run ^ 1, batch: 9 };
    run(array.drop_members(&disks, &[role])).unwrap();
    assert_eq!(run(recover_journal(&disks, &mut array, 9, false)).unwrap().lost.len(), 1);
}

/// What a change of the labels did, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Wrote(LeafId),
    Flushed(LeafId),
    RetiredMarks,
}

/// Records the steps; one disk fails all writes.
struct Recorded<'a> {
    disks: &'a Disks,
    bad: LeafId,
    /// A disk that fails only flushes.
    unflushed: Option<LeafId>,
    steps: RefCell<Vec<Step>>,
}

impl<'a> Recorded<'a> {
    fn new(disks: &'a Disks, bad: LeafId) -> Recorded<'a> {
        Recorded { disks, bad, unflushed: None, steps: RefCell::default() }
    }

    fn record(&self, leaf: LeafId, step: Step) -> Result<(), LeafError> {
        self.steps.borrow_mut().push(step);
        if leaf == self.bad { Err(LeafError::of(ErrorKind::Io)) } else { Ok(()) }
    }

    fn retired(&self) -> Vec<usize> {
        let steps = self.steps.borrow();
        (0..steps.len()).filter(|at| steps[*at] == Step::RetiredMarks).collect()
    }
}

impl MetaIo for Recorded<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.disks.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.disks.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.record(leaf, Step::Wrote(leaf))?;
        self.disks.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.record(leaf, Step::Flushed(leaf))?;
        if self.unflushed == Some(leaf) {
            return Err(LeafError::of(ErrorKind::Io));
        }
        self.disks.flush(leaf).await
    }
}

/// Changes of the labels other than a drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Rename,
    AddSpare,
    Replace(u16),
    Grow,
    JournalOn,
}

impl Change {
    async fn make<M: MetaIo>(self, io: &M, array: &mut Array) -> Result<(), LifecycleError> {
        let (leaf, id) = (LeafId(3), MemberId::from_random(0xf6));
        match self {
            Change::Rename => array.rename(io, name("q")).await,
            Change::AddSpare => array.add_spare(io, leaf, id, true).await.map(drop),
            Change::Replace(role) => {
                array.begin_replacing(io, role, Replacement::New { leaf, id, force: true }).await.map(drop)
            }
            Change::Grow => array.grow(io, &GrowRequest { new_disks: Vec::new(), force: false }).await.map(drop),
            Change::JournalOn => array.add_journal(io, leaf, id, true).await,
        }
    }

    /// Makes the change as the reconciler of a served array does, whose shards have marked up to batch 1 of this run.
    /// `failed`: disks on which a marked stripe is not in place.
    fn make_served(
        self,
        io: &Recorded<'_>,
        array: &mut Array,
        run_id: u64,
        failed: &[LeafId],
    ) -> Result<(), LifecycleError> {
        let marks = Arc::<Marks>::default();
        let retirement = Arc::new(Retirement::new(Arc::clone(&marks)));
        array.retire_through(Some(Arc::clone(&retirement)));
        let retirer = retires(&retirement, &marks, run_id, failed, io);
        let result = run(retirement.beside(self.make(io, array), retirer));
        array.retire_through(None);
        result
    }
}

async fn retires(
    retirement: &Retirement,
    marks: &Marks,
    run_id: u64,
    failed: &[LeafId],
    io: &Recorded<'_>,
) -> Infallible {
    loop {
        retirement.requested().await;
        marks.retire(run_id, 1, failed);
        io.steps.borrow_mut().push(Step::RetiredMarks);
        retirement.reply();
    }
}

/// A member that fails a label of any change is dropped as by a drop: the label without it retires the marks, and the
/// survivors have flushed after the last I/O of a marked stripe.
#[test]
fn a_label_that_fails_on_a_member_retires_the_marks() {
    for kind in 0..5 {
        let (disks, mut array, started) = raid5();
        let role = mark_stripe_1_in_place(&disks, &array, &started);
        let p = array.geometry().stripe(1).unwrap().p();
        let change = [Change::Rename, Change::AddSpare, Change::Replace(p), Change::Grow, Change::JournalOn][kind];
        if change == Change::Grow {
            leaves(3).into_iter().for_each(|leaf| disks.resize(leaf, 2 * SIZE));
        }
        let bad = LeafId(role.into());
        let io = Recorded::new(&disks, bad);
        let made = change.make_served(&io, &mut array, started.run, &[]);
        // The array that was to grow has lost a member.
        assert_eq!(made.is_ok(), change != Change::Grow, "{change:?}: {made:?}");
        assert_eq!(array.failed(), [role], "{change:?}");
        let retired = io.retired();
        assert_eq!(retired.len(), 1, "{change:?}");
        let after = io.steps.borrow()[retired[0]..].to_vec();
        for leaf in leaves(3).into_iter().filter(|leaf| *leaf != bad) {
            let first = after.iter().find(|step| [Step::Wrote(leaf), Step::Flushed(leaf)].contains(step));
            assert_eq!(first, Some(&Step::Flushed(leaf)), "{change:?}");
        }
        // Killed now, and started without that member.
        let present: Vec<LeafId> = leaves(4).into_iter().filter(|leaf| *leaf != bad).collect();
        let found = run(scan(&disks, &present));
        let mut array = run(start(&disks, &found.arrays[0], StartOptions::new(9, 9))).unwrap();
        let again = run(recover_journal(&disks, &mut array, 9, false)).unwrap();
        assert!(again.lost.is_empty(), "{change:?}: {:?}", again.lost);
        assert_eq!(block(&disks, p, CHUNK), 9, "{change:?}");
    }
}

/// A spare holds no cell of any stripe.
#[test]
fn a_label_that_fails_on_a_spare_retires_no_marks() {
    let (disks, mut array, started) = raid5();
    mark_stripe_1_in_place(&disks, &array, &started);
    run(Change::AddSpare.make(&disks, &mut array)).unwrap();
    let io = Recorded::new(&disks, LeafId(3));
    Change::Rename.make_served(&io, &mut array, started.run, &[]).unwrap();
    assert!(io.retired().is_empty() && array.is_whole() && array.spares().next().is_none());
    assert_eq!(array.retired, RetiredMarks::default());
}

/// The label fails on a spare, which holds no content; the flush before the next label loses a member that does.
#[test]
fn a_flush_that_loses_a_member_after_a_spare_was_lost_retires_the_marks() {
    let (disks, mut array, started) = raid5();
    let role = mark_stripe_1_in_place(&disks, &array, &started);
    run(Change::AddSpare.make(&disks, &mut array)).unwrap();
    let io = Recorded { unflushed: Some(LeafId(role.into())), ..Recorded::new(&disks, LeafId(3)) };
    Change::Rename.make_served(&io, &mut array, started.run, &[]).unwrap();
    assert_eq!((io.retired().len(), array.is_whole(), array.spares().count()), (1, false, 0));
    assert_ne!(array.retired, RetiredMarks::default());
}

/// A member that failed a marked stripe is dropped too. If the array does not tolerate that, no label records anything.
#[test]
fn marks_that_were_retired_for_a_label_that_was_not_written_count() {
    let (disks, mut array, started) = raid5();
    let role = mark_stripe_1_in_place(&disks, &array, &started);
    let p = array.geometry().stripe(1).unwrap().p();
    let io = Recorded::new(&disks, LeafId(role.into()));
    let made = Change::Rename.make_served(&io, &mut array, started.run, &[LeafId(p.into())]);
    let Err(LifecycleError::BeyondTolerance { lost, .. }) = made else { panic!("{made:?}") };
    assert!(lost.len() == 2 && lost.contains(&role) && lost.contains(&p), "{lost:?}");
    assert_eq!((io.retired().len(), array.retired), (1, RetiredMarks::default()));
    assert!(array.is_whole());
    // All members are present: marked stripes are computed from their data.
    let found = run(scan(&disks, &leaves(3)));
    let mut array = run(start(&disks, &found.arrays[0], StartOptions::new(9, 9))).unwrap();
    let again = run(recover_journal(&disks, &mut array, 9, false)).unwrap();
    assert!(again.lost.is_empty() && again.resynced > 0 && array.is_whole());
}

/// A member that failed a marked stripe is identified by its disk: a successor had another number before it took the
/// slot, and has the old member's number now.
#[test]
fn a_member_that_failed_a_marked_row_is_found_under_its_number_of_now() {
    let (disks, mut array, started) = raid5();
    let (replaced, other, _) = stripe_0(&array);
    let by = Replacement::New { leaf: LeafId(3), id: MemberId::from_random(0xf6), force: true };
    let successor = run(array.begin_replacing(&disks, replaced, by)).unwrap();
    run(array.promote(&disks, successor)).unwrap();
    run(array.retire(&disks, replaced)).unwrap();
    run(array.give_slot_to_successor(&disks, replaced)).unwrap();
    assert_eq!((successor, array.leaf(replaced), array.is_whole()), (3, Some(LeafId(3)), true));
    let io = Recorded::new(&disks, LeafId(other.into()));
    let (mut first, mut second) = (array.clone(), array);
    // The successor.
    let made = Change::Rename.make_served(&io, &mut first, started.run, &[LeafId(3)]);
    let Err(LifecycleError::BeyondTolerance { lost, .. }) = made else { panic!("{made:?}") };
    assert!(lost.len() == 2 && lost.contains(&replaced) && lost.contains(&other), "{lost:?}");
    // The disk that it has replaced.
    Change::Rename.make_served(&io, &mut second, started.run, &[LeafId(replaced.into())]).unwrap();
    assert_eq!(second.failed(), [other]);
}

/// An array that is stopped cleanly may have marks in its journal, from writes up to the end of the service. The next
/// start needs none of them, whichever member fails during the stop or is missing then.
#[test]
fn a_stop_retires_the_marks() {
    for case in ["absent", "dropped", "flush", "label"] {
        let (disks, mut array, started) = raid5();
        let role = mark_stripe_1_in_place(&disks, &array, &started);
        let p = array.geometry().stripe(1).unwrap().p();
        let leaf = LeafId(role.into());
        array.end_run();
        let stopped = match case {
            "absent" => run(array.stop(&disks)),
            "dropped" => run(array.drop_members(&disks, &[role])).map(drop),
            "flush" => run(array.stop(&Recorded { unflushed: Some(leaf), ..Recorded::new(&disks, LeafId(9)) })),
            _ => run(array.stop(&Full(&disks, leaf))),
        };
        assert!(stopped.is_ok(), "{case}: {stopped:?}");
        assert_eq!(array.is_whole(), case == "absent", "{case}");
        let present: Vec<LeafId> = leaves(3).into_iter().filter(|other| *other != leaf).collect();
        let found = run(scan(&disks, &present));
        let options = StartOptions { degraded: true, ..StartOptions::new(9, 9) };
        let mut array = run(start(&disks, &found.arrays[0], options)).unwrap();
        let again = run(recover_journal(&disks, &mut array, 9, false)).unwrap();
        assert!(again.lost.is_empty(), "{case}: {:?}", again.lost);
        assert_eq!(block(&disks, p, CHUNK), 9, "{case}");
    }
}

/// Disks on a full file system: one of them takes no writes.
struct Full<'a>(&'a Disks, LeafId);

impl MetaIo for Full<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.0.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.0.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        if leaf == self.1 {
            return Err(LeafError { kind: ErrorKind::NoSpace, errno: 28 });
        }
        self.0.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.0.flush(leaf).await
    }
}

/// A recovery on a full file system drops no member: the member keeps its content, and marked stripes need it.
#[test]
fn a_recovery_without_space_waits_for_some() {
    for leaf in leaves(3) {
        let (disks, mut array, started) = raid5();
        mark_stripe_1_in_place(&disks, &array, &started);
        let refused = run(recover_journal(&Full(&disks, leaf), &mut array.clone(), 9, false));
        let is_full = |error: &LifecycleError| matches!(error, LifecycleError::Io { source, .. } if source.kind == ErrorKind::NoSpace);
        assert!(refused.as_ref().is_err_and(is_full), "{refused:?}");
        let again = run(recover_journal(&disks, &mut array, 10, false)).unwrap();
        assert!(again.lost.is_empty() && array.is_whole());
    }
}

#[test]
fn without_a_head_it_starts_only_by_force() {
    let (disks, mut array, started) = raid5();
    array.was_clean = false;
    log(&disks, &array, &started, &[0, 1]);
    let mut regions = run(load_regions(&disks, &array, false)).unwrap();
    regions.dirty[0] = 0;
    run(store_regions(&disks, &array, &[0, 1, 2], &regions.written, &regions.dirty)).unwrap();
    let sequence = array.label().sequence;
    let head = disks.peek(LeafId(2), journal(), 2 * HEAD_BYTES);
    leaves(3).into_iter().for_each(|leaf| disks.poke(leaf, journal(), &[0xee; 2 * HEAD_BYTES]));
    let refused = run(recover_journal(&disks, &mut array, 6, false));
    assert!(matches!(refused, Err(LifecycleError::Journal { .. })), "{refused:?}");
    assert_eq!(array.label().sequence, sequence, "nobody is dropped for it");
    // One head is enough.
    let one = disks.clone();
    one.poke(LeafId(2), journal(), &head);
    assert_eq!(run(recover_journal(&one, &mut array.clone(), 6, false)).unwrap().batches, 1);
    let forced = run(recover_journal(&disks, &mut array, 6, true)).unwrap();
    assert_eq!((forced.generation, forced.batches, forced.ring_blocks), (1, 0, started.ring_blocks));
    assert_eq!(run(load_regions(&disks, &array, false)).unwrap().dirty[0], 1, "all that was ever written");
    assert_eq!(run(recover_journal(&disks, &mut array, 7, false)).unwrap().generation, 2);
}

#[test]
fn a_successor_gets_what_is_replayed_and_holds_the_data_once_in_sync() {
    let (disks, mut array, started) = raid5();
    let (cell, ..) = stripe_0(&array);
    let by = Replacement::New { leaf: LeafId(3), id: MemberId::from_random(0xf6), force: true };
    let successor = run(array.begin_replacing(&disks, cell, by)).unwrap();
    let head_on = |leaf: u32, generation: u64| {
        let at = journal() + head_slot(generation) * HEAD_BYTES as u64;
        decode_head(&array.uuid(), disks.peek(LeafId(leaf), at, HEAD_BYTES).first_chunk().unwrap()).map(|head| head.0)
    };
    assert_eq!((head_on(3, 1), head_on(3, 2)), (None, None));
    log(&disks, &array, &started, &[1, 2]);
    let mut again = run(recover_journal(&disks, &mut array.clone(), 6, false)).unwrap();
    recovered(&disks, &array);
    assert_eq!(block(&disks, 3, 4096), 7, "it takes every write");
    assert_eq!(head_on(3, again.generation).map(|head| head.run), Some(again.run));
    // The successor is in sync, and the old member fails while a stripe of which it holds data is marked.
    let copied = disks.peek(LeafId(cell.into()), DATA, 4 * CHUNK as usize);
    disks.poke(LeafId(3), DATA, &copied);
    run(array.promote(&disks, successor)).unwrap();
    run(array.drop_members(&disks, &[cell])).unwrap();
    log(&disks, &array, &again, &[1, 2]);
    again = run(recover_journal(&disks, &mut array, 8, false)).unwrap();
    assert_eq!((again.batches, again.resynced, again.lost.len()), (1, 1, 0));
    let (_, other, p) = stripe_0(&array);
    assert_eq!([3, other, p].map(|role| block(&disks, role, 4096)), [7, 0, 7]);
}

#[test]
fn an_entry_of_a_stripe_that_does_not_exist_is_refused() {
    let (disks, mut array, started) = raid5();
    let header = JournalBatchHeader {
        run: started.run,
        sequence: 1,
        tail: 1,
        position: 0,
        blocks: 1,
        entries: 1,
        payload_crc: 0,
    };
    let mut bytes = [0; 4096];
    for row in [array.geometry().stripes(), braid_format::limits::STRIPE_NUMBER_MAX] {
        encode_batch(&array.uuid(), &header, &[JournalEntry::mark(row)], &mut bytes);
        disks.poke(LeafId(1), ring_block(0), &bytes);
        let refused = run(recover_journal(&disks, &mut array, 6, false));
        assert!(
            refused.as_ref().is_err_and(|error| error.to_string().contains("a place that is not there")),
            "{refused:?}"
        );
    }
    // And an entry of a stripe in a region that was never written.
    encode_batch(&array.uuid(), &header, &[JournalEntry::mark(array.geometry().stripes() - 1)], &mut bytes);
    disks.poke(LeafId(1), ring_block(0), &bytes);
    let refused = run(recover_journal(&disks, &mut array, 6, false));
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("nothing was ever written")), "{refused:?}");
}

/// Blocks of the ring are unreadable on all members that may have held the last batch: a prefix of what was
/// acknowledged must not pass for all of it.
#[test]
fn an_unreadable_batch_is_not_mistaken_for_the_end_of_the_log() {
    // The unreadable ring blocks by disk, the missing member, and the doubt: a batch, and how many members may have
    // held it.
    type Case = (&'static [(u32, u64)], Option<u16>, Option<(u64, usize)>);
    let cases: [Case; 10] = [
        (&[(0, 0)], None, None),
        (&[(0, 0), (1, 0)], None, Some((1, 2))),
        // Its last block.
        (&[(0, 2), (1, 2)], None, Some((1, 2))),
        (&[(0, 0), (1, 2)], None, Some((1, 2))),
        // Where the next batch would be.
        (&[(0, 3)], None, None),
        (&[(0, 3), (2, 3)], None, Some((2, 2))),
        (&[(0, 3)], Some(2), Some((2, 1))),
        // Where no batch would be.
        (&[(0, 4), (1, 4)], Some(2), None),
        (&[(0, 0)], Some(2), None),
        // Nor at the location of a batch that is needed.
        (&[(2, 0)], Some(1), None),
    ];
    for (bad, missing, doubt) in cases {
        for (clean, force) in [(false, false), (true, false), (false, true)] {
            let what = format!("{bad:?}, without {missing:?}, clean {clean}, force {force}");
            let (disks, mut array, started) = raid5();
            log(&disks, &array, &started, &[0, 1]);
            missing.into_iter().for_each(|role| drop(run(array.drop_members(&disks, &[role])).unwrap()));
            array.was_clean = clean;
            let bad = bad.iter().map(|(leaf, block)| (LeafId(*leaf), ring_block(*block))).collect();
            let again = run(recover_journal(&Spoiled { disks: &disks, bad }, &mut array, 6, force));
            match (again, doubt) {
                (Err(LifecycleError::JournalUnreadable { batch, members }), Some(expected)) if !clean && !force => {
                    assert_eq!((batch, members), expected, "{what}");
                }
                (Ok(again), _) if doubt.is_none() || clean || force => {
                    assert_eq!(again.batches, doubt.map_or(1, |(batch, _)| batch - 1), "{what}");
                    let dirty = run(load_regions(&disks, &array, false)).unwrap().dirty[0];
                    assert!(dirty == 1 || doubt.is_none() || !force, "{what}");
                }
                (again, _) => panic!("{what}: {again:?}"),
            }
        }
    }
}

/// An older head names an older run, much of which may still be in the ring: its content was written in place long ago,
/// and has been overwritten since.
#[test]
fn an_older_head_does_not_replace_an_unreadable_one() {
    type Case = (&'static [(u32, u64)], Option<u16>, bool);
    // Heads alternate: the newest, of generation 2, is at the first location.
    let cases: [Case; 7] = [
        (&[(0, 0), (1, 0)], None, false),
        (&[(0, 0), (1, 0), (2, 0)], None, true),
        (&[(0, 1), (1, 0), (2, 0)], None, false),
        (&[(0, 1), (1, 1), (2, 1)], None, true),
        (&[(0, 0), (0, 1), (1, 1)], Some(2), true),
        (&[(0, 0), (1, 0)], Some(2), true),
        (&[(0, 0)], Some(2), false),
    ];
    for (bad, missing, doubt) in cases {
        for force in [false, true] {
            let what = format!("{bad:?}, without {missing:?}, force {force}");
            let (disks, mut array, _) = raid5();
            missing.into_iter().for_each(|role| drop(run(array.drop_members(&disks, &[role])).unwrap()));
            let bad = bad.iter().map(|(leaf, slot)| (LeafId(*leaf), journal() + slot * HEAD_BYTES as u64)).collect();
            let again = run(recover_journal(&Spoiled { disks: &disks, bad }, &mut array, 6, force));
            match again {
                Err(LifecycleError::Journal { reason }) if doubt && !force => {
                    assert!(reason.contains("newest head may be where none"), "{what}: {reason}");
                    // It was stopped cleanly, and stays so after the refusal.
                    assert!(array.label().clean, "{what}");
                }
                Ok(again) if !doubt || force => {
                    assert!(again.generation > 2, "{what}: generation {}", again.generation);
                    let dirty = run(load_regions(&disks, &array, false)).unwrap().dirty[0];
                    assert_eq!(dirty, u64::from(doubt), "{what}");
                    // A recovery that can read everything finds the head of this start.
                    let after = run(recover_journal(&disks, &mut array, 7, false)).unwrap();
                    assert_eq!(after.generation, again.generation + 1, "{what}");
                }
                again => panic!("{what}: {again:?}"),
            }
        }
    }
}

/// After the ring has moved, batch numbers continue, and the first batch of the run may have any. Only its header is
/// readable.
#[test]
fn the_first_batch_of_a_run_may_have_any_number() {
    let (disks, mut array, started) = raid5();
    log_as(5000, &disks, &array, &started, &[0, 1]);
    array.was_clean = false;
    let bad = [0, 1].map(|leaf| (LeafId(leaf), ring_block(1))).to_vec();
    let again = run(recover_journal(&Spoiled { disks: &disks, bad }, &mut array, 6, false));
    assert!(matches!(again, Err(LifecycleError::JournalUnreadable { members: 2, .. })), "{again:?}");
    let again = run(recover_journal(&disks, &mut array, 7, false)).unwrap();
    assert_eq!((again.batches, again.replayed), (1, 1));
    recovered(&disks, &array);
}

/// A member is promoted while no head is readable: it gets the head that began the run, and can be the only one left.
#[test]
fn a_promoted_member_gets_a_head_even_if_none_is_readable() {
    let (disks, mut array, started) = raid5();
    run(array.drop_members(&disks, &[2])).unwrap();
    let id = MemberId::from_random(0x42);
    run(array.begin_rebuild(&disks, 2, RebuildTarget::New { leaf: LeafId(3), id, force: true }, RebuildKind::Full))
        .unwrap();
    let heads =
        [0, 1].into_iter().flat_map(|leaf| [0, 1].map(|slot| (LeafId(leaf), journal() + slot * HEAD_BYTES as u64)));
    run(array.promote(&Spoiled { disks: &disks, bad: heads.collect() }, 2)).unwrap();
    let given: Vec<_> = [0, 1]
        .into_iter()
        .filter_map(|slot| {
            let bytes = disks.peek(LeafId(3), journal() + slot * HEAD_BYTES as u64, HEAD_BYTES);
            decode_head(&array.uuid(), bytes.first_chunk()?)
        })
        .collect();
    assert_eq!(given.len(), 1);
    assert_eq!((given[0].0.run, given[0].0.generation), (started.run, started.generation));
}

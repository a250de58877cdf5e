//! What a recovery of the journal meets besides crashes: places that cannot be read, heads that are gone, members that are being
//! replaced.

use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;

use braid_format::journal::{
    BatchHeader, Entry, EntryKind, HEAD_BYTES, RING_START_BYTES, decode_head, encode_batch, head_slot, payload_crc,
};
use braid_format::{MemberId, Places, RetiredMarks};
use braid_geometry::{Level, Spec};

use super::disks::Disks;
use super::{leaves, name, request, run};
use crate::lifecycle::{
    Array, Filling, GrowRequest, JournalStart, LifecycleError, Newcomer, Replacement, Retirement, StartOptions, create,
    load_regions, recover_journal, scan, start, store_regions,
};
use crate::{ErrorKind, LeafError, LeafId, Marks, MetaIo};

const SIZE: u64 = 2 << 20;
const DATA: u64 = 1 << 20;
const CHUNK: u64 = 8192;

/// Disks of which some blocks cannot be read.
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

/// A raid5 of three, all of it zeros and written, and one disk more.
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
    Places::for_device(SIZE).unwrap().journal.start
}

fn ring_block(block: u64) -> u64 {
    journal() + RING_START_BYTES + block * 4096
}

/// Where row 0 has its data and its parity: roles.
fn row_0(array: &Array) -> (u16, u16, u16) {
    let stripe = array.geometry().stripe(0).unwrap();
    (stripe.data(0), stripe.data(1), stripe.p())
}

/// The first batch of a run, on these members: new content for line 1 of cell 0 of row 0, and a mark of row 1.
fn log(disks: &Disks, array: &Array, started: &JournalStart, on: &[u32]) {
    log_as(1, disks, array, started, on);
}

/// The same, with this number.
fn log_as(sequence: u64, disks: &Disks, array: &Array, started: &JournalStart, on: &[u32]) {
    let data = Entry { row: 0, first: 1, blocks: 1, cell: 0, cells: 1, parities: 1, kind: EntryKind::Data };
    let payload = [[7; 4096], [7; 4096]].concat();
    let header = BatchHeader {
        run: started.run,
        sequence,
        tail: sequence,
        position: 0,
        blocks: 3,
        entries: 2,
        payload_crc: payload_crc(0, &payload),
    };
    let mut block = [0; 4096];
    encode_batch(&array.uuid(), &header, &[data, Entry::mark(1)], &mut block);
    for leaf in on {
        disks.poke(LeafId(*leaf), ring_block(0), &[&block[..], &payload].concat());
    }
    // The row that is marked has got part of what was to be written.
    let stripe = array.geometry().stripe(1).unwrap();
    disks.poke(LeafId(stripe.data(0).into()), DATA + stripe.member_offset, &[9; 4096]);
}

fn block(disks: &Disks, role: u16, at: u64) -> u8 {
    let bytes = disks.peek(LeafId(role.into()), DATA + at, 4096);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn recovered(disks: &Disks, array: &Array) {
    let (cell, other, p) = row_0(array);
    assert_eq!([cell, other, p].map(|role| block(disks, role, 4096)), [7, 0, 7]);
    let stripe = array.geometry().stripe(1).unwrap();
    let roles = [stripe.data(0), stripe.data(1), stripe.p()];
    assert_eq!(roles.map(|role| block(disks, role, CHUNK)), [9, 0, 9]);
}

#[test]
fn a_batch_is_read_from_who_can_read_it() {
    for (bad, unread_blocks) in [(ring_block(0), 1), (ring_block(2), 1), (journal() + HEAD_BYTES as u64, 0)] {
        let (disks, mut array, started) = raid5();
        log(&disks, &array, &started, &[0, 1]);
        let spoiled = Spoiled { disks: &disks, bad: vec![(LeafId(0), bad)] };
        let again = run(recover_journal(&spoiled, &mut array, 6, false)).unwrap();
        assert_eq!((again.batches, again.replayed, again.resynced, again.unread_blocks), (1, 1, 1, unread_blocks));
        assert!(again.lost.is_empty() && array.is_whole());
        recovered(&disks, &array);
        // On all that are in sync, in the ring as well.
        let copies = leaves(3).into_iter().map(|leaf| disks.peek(leaf, ring_block(0), 3 * 4096));
        let copies: Vec<Vec<u8>> = copies.collect();
        assert!(copies.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn a_cell_that_cannot_be_read_while_its_row_was_written_is_listed_and_zeros() {
    let (disks, mut array, started) = raid5();
    log(&disks, &array, &started, &[0, 1]);
    let stripe = array.geometry().stripe(1).unwrap();
    let (role, p) = (stripe.data(0), stripe.p());
    let spoiled = Spoiled { disks: &disks, bad: vec![(LeafId(role.into()), DATA + CHUNK)] };
    let again = run(recover_journal(&spoiled, &mut array, 6, false)).unwrap();
    assert_eq!((again.lost.len(), again.lost_now), (1, 1));
    assert_eq!((again.lost[0].row, again.lost[0].lines, again.lost[0].cells()), (1, 0b11, &[0][..]));
    assert_eq!([role, p].map(|role| block(&disks, role, CHUNK)), [0, 0]);
    // It stays in the list, also when the disk can read it again.
    let third = run(recover_journal(&disks, &mut array, 7, false)).unwrap();
    assert_eq!((third.lost, third.lost_now, third.generation), (again.lost, 0, again.generation + 1));
}

/// Row 1 is in place, with its parity, and only marked: what was acknowledged and not flushed.
fn mark_row_1_in_place(disks: &Disks, array: &Array, started: &JournalStart) -> u16 {
    log(disks, array, started, &[0, 1, 2]);
    let stripe = array.geometry().stripe(1).unwrap();
    for role in [stripe.data(0), stripe.p()] {
        disks.poke(LeafId(role.into()), DATA + stripe.member_offset, &[9; CHUNK as usize]);
    }
    stripe.data(0)
}

/// The label that records a drop retires the marks of before: what the member had of rows that were in place is computed, also by the
/// next start, from whichever of the labels.
#[test]
fn marks_that_a_drop_has_retired_do_not_count() {
    for (batch, lost) in [(1, 0), (0, 1)] {
        let (disks, mut array, started) = raid5();
        let role = mark_row_1_in_place(&disks, &array, &started);
        array.retired = RetiredMarks { run: started.run, batch };
        run(array.drop_members(&disks, &[role])).unwrap();
        let found = run(scan(&disks, &leaves(3)));
        let mut array = run(start(&disks, &found.arrays[0], StartOptions::new(9, 9))).unwrap();
        let again = run(recover_journal(&disks, &mut array, 9, false)).unwrap();
        assert_eq!((again.lost.len(), again.resynced), (lost, lost as u64), "retired up to {batch}");
        let p = array.geometry().stripe(1).unwrap().p();
        assert_eq!(block(&disks, p, CHUNK), if lost == 0 { 9 } else { 0 }, "what is lost is computed from it");
    }
    // Of another run nothing is retired.
    let (disks, mut array, started) = raid5();
    let role = mark_row_1_in_place(&disks, &array, &started);
    array.retired = RetiredMarks { run: started.run ^ 1, batch: 9 };
    run(array.drop_members(&disks, &[role])).unwrap();
    assert_eq!(run(recover_journal(&disks, &mut array, 9, false)).unwrap().lost.len(), 1);
}

/// What a change of the labels did, in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Wrote(LeafId),
    Flushed(LeafId),
    RetiredMarks,
}

/// Disks of which one takes no writes, and what was done.
struct Noted<'a> {
    disks: &'a Disks,
    bad: LeafId,
    /// Fails to flush alone.
    unflushed: Option<LeafId>,
    steps: RefCell<Vec<Step>>,
}

impl<'a> Noted<'a> {
    fn new(disks: &'a Disks, bad: LeafId) -> Noted<'a> {
        Noted { disks, bad, unflushed: None, steps: RefCell::default() }
    }

    fn note(&self, leaf: LeafId, step: Step) -> Result<(), LeafError> {
        self.steps.borrow_mut().push(step);
        if leaf == self.bad { Err(LeafError::of(ErrorKind::Io)) } else { Ok(()) }
    }

    fn retired(&self) -> Vec<usize> {
        let steps = self.steps.borrow();
        (0..steps.len()).filter(|at| steps[*at] == Step::RetiredMarks).collect()
    }
}

impl MetaIo for Noted<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.disks.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.disks.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.note(leaf, Step::Wrote(leaf))?;
        self.disks.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.note(leaf, Step::Flushed(leaf))?;
        if self.unflushed == Some(leaf) {
            return Err(LeafError::of(ErrorKind::Io));
        }
        self.disks.flush(leaf).await
    }
}

/// Changes of the labels that are no drop.
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
            Change::Grow => array.grow(io, &GrowRequest { newcomers: Vec::new(), force: false }).await.map(drop),
            Change::JournalOn => array.add_journal(io, leaf, id, true).await,
        }
    }

    /// Makes it as the keeper of a served array does, whose shards have marked up to batch 1 of this run. `failed`: disks on which a
    /// marked row is not in place.
    fn make_served(
        self,
        io: &Noted<'_>,
        array: &mut Array,
        run_id: u64,
        failed: &[LeafId],
    ) -> Result<(), LifecycleError> {
        let marks = Arc::<Marks>::default();
        let retirement = Arc::new(Retirement::new(Arc::clone(&marks)));
        array.retire_through(Some(Arc::clone(&retirement)));
        let keeper = retires(&retirement, &marks, run_id, failed, io);
        let result = run(retirement.beside(self.make(io, array), keeper));
        array.retire_through(None);
        result
    }
}

async fn retires(retirement: &Retirement, marks: &Marks, run_id: u64, failed: &[LeafId], io: &Noted<'_>) -> Infallible {
    loop {
        retirement.requested().await;
        marks.retire(run_id, 1, failed);
        io.steps.borrow_mut().push(Step::RetiredMarks);
        retirement.reply();
    }
}

/// A member that does not take the label of a rename is left out as by a drop: the label without it retires the marks, and the survivors
/// have flushed after the last I/O of a marked row. So it is with each change of the labels.
#[test]
fn a_label_that_fails_on_a_member_retires_the_marks() {
    for kind in 0..5 {
        let (disks, mut array, started) = raid5();
        let role = mark_row_1_in_place(&disks, &array, &started);
        let p = array.geometry().stripe(1).unwrap().p();
        let change = [Change::Rename, Change::AddSpare, Change::Replace(p), Change::Grow, Change::JournalOn][kind];
        if change == Change::Grow {
            leaves(3).into_iter().for_each(|leaf| disks.resize(leaf, 2 * SIZE));
        }
        let bad = LeafId(role.into());
        let io = Noted::new(&disks, bad);
        let made = change.make_served(&io, &mut array, started.run, &[]);
        // What was to be larger is a member less.
        assert_eq!(made.is_ok(), change != Change::Grow, "{change:?}: {made:?}");
        assert_eq!(array.out(), [role], "{change:?}");
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

/// A spare has no part of any row.
#[test]
fn a_label_that_fails_on_a_spare_retires_no_marks() {
    let (disks, mut array, started) = raid5();
    mark_row_1_in_place(&disks, &array, &started);
    run(Change::AddSpare.make(&disks, &mut array)).unwrap();
    let io = Noted::new(&disks, LeafId(3));
    Change::Rename.make_served(&io, &mut array, started.run, &[]).unwrap();
    assert!(io.retired().is_empty() && array.is_whole() && array.spares().next().is_none());
    assert_eq!(array.retired, RetiredMarks::default());
}

/// The label fails on a spare, which has none; the flush before the next label loses a member that has some.
#[test]
fn a_flush_that_loses_a_member_after_a_spare_was_lost_retires_the_marks() {
    let (disks, mut array, started) = raid5();
    let role = mark_row_1_in_place(&disks, &array, &started);
    run(Change::AddSpare.make(&disks, &mut array)).unwrap();
    let io = Noted { unflushed: Some(LeafId(role.into())), ..Noted::new(&disks, LeafId(3)) };
    Change::Rename.make_served(&io, &mut array, started.run, &[]).unwrap();
    assert_eq!((io.retired().len(), array.is_whole(), array.spares().count()), (1, false, 0));
    assert_ne!(array.retired, RetiredMarks::default());
}

/// A member that failed a marked row is left out as well. Where the array does not tolerate that, no label says anything of it.
#[test]
fn marks_that_were_retired_for_a_label_that_was_not_written_count() {
    let (disks, mut array, started) = raid5();
    let role = mark_row_1_in_place(&disks, &array, &started);
    let p = array.geometry().stripe(1).unwrap().p();
    let io = Noted::new(&disks, LeafId(role.into()));
    let made = Change::Rename.make_served(&io, &mut array, started.run, &[LeafId(p.into())]);
    let Err(LifecycleError::Beyond { lost, .. }) = made else { panic!("{made:?}") };
    assert!(lost.len() == 2 && lost.contains(&role) && lost.contains(&p), "{lost:?}");
    assert_eq!((io.retired().len(), array.retired), (1, RetiredMarks::default()));
    assert!(array.is_whole());
    // All are here: what is marked is computed from its data.
    let found = run(scan(&disks, &leaves(3)));
    let mut array = run(start(&disks, &found.arrays[0], StartOptions::new(9, 9))).unwrap();
    let again = run(recover_journal(&disks, &mut array, 9, false)).unwrap();
    assert!(again.lost.is_empty() && again.resynced > 0 && array.is_whole());
}

/// A member that failed a marked row is found by its disk. A successor has had another number before it took the place of a member, and
/// the number that the member had is the successor's now.
#[test]
fn a_member_that_failed_a_marked_row_is_found_under_its_number_of_now() {
    let (disks, mut array, started) = raid5();
    let (replaced, other, _) = row_0(&array);
    let by = Replacement::New { leaf: LeafId(3), id: MemberId::from_random(0xf6), force: true };
    let successor = run(array.begin_replacing(&disks, replaced, by)).unwrap();
    run(array.promote(&disks, successor)).unwrap();
    run(array.retire(&disks, replaced)).unwrap();
    run(array.seat_successor(&disks, replaced)).unwrap();
    assert_eq!((successor, array.leaf(replaced), array.is_whole()), (3, Some(LeafId(3)), true));
    let io = Noted::new(&disks, LeafId(other.into()));
    let (mut first, mut second) = (array.clone(), array);
    // The successor.
    let made = Change::Rename.make_served(&io, &mut first, started.run, &[LeafId(3)]);
    let Err(LifecycleError::Beyond { lost, .. }) = made else { panic!("{made:?}") };
    assert!(lost.len() == 2 && lost.contains(&replaced) && lost.contains(&other), "{lost:?}");
    // The disk that it has replaced.
    Change::Rename.make_served(&io, &mut second, started.run, &[LeafId(replaced.into())]).unwrap();
    assert_eq!(second.out(), [other]);
}

/// An array that is stopped in order may have marks in its journal, of what was written until the service ended. The next start needs
/// none of them, whichever member fails in the stop or is absent then.
#[test]
fn a_stop_retires_the_marks() {
    for case in ["absent", "dropped", "flush", "label"] {
        let (disks, mut array, started) = raid5();
        let role = mark_row_1_in_place(&disks, &array, &started);
        let p = array.geometry().stripe(1).unwrap().p();
        let leaf = LeafId(role.into());
        array.end_run();
        let stopped = match case {
            "absent" => run(array.stop(&disks)),
            "dropped" => run(array.drop_members(&disks, &[role])).map(drop),
            "flush" => run(array.stop(&Noted { unflushed: Some(leaf), ..Noted::new(&disks, LeafId(9)) })),
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

/// Disks on a file system that is full: nothing more can be written to one of them.
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

/// A recovery that meets a full file system drops nobody: the member has all that it had, and rows that are only marked need it.
#[test]
fn a_recovery_without_space_waits_for_some() {
    for leaf in leaves(3) {
        let (disks, mut array, started) = raid5();
        mark_row_1_in_place(&disks, &array, &started);
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
    // One is enough.
    let one = disks.clone();
    one.poke(LeafId(2), journal(), &head);
    assert_eq!(run(recover_journal(&one, &mut array.clone(), 6, false)).unwrap().batches, 1);
    let forced = run(recover_journal(&disks, &mut array, 6, true)).unwrap();
    assert_eq!((forced.generation, forced.batches, forced.ring_blocks), (1, 0, started.ring_blocks));
    assert_eq!(run(load_regions(&disks, &array, false)).unwrap().dirty[0], 1, "all that was ever written");
    assert_eq!(run(recover_journal(&disks, &mut array, 7, false)).unwrap().generation, 2);
}

#[test]
fn who_replaces_a_member_gets_what_is_replayed_and_holds_its_data_once_in_sync() {
    let (disks, mut array, started) = raid5();
    let (cell, ..) = row_0(&array);
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
    // It is filled, in sync, and the old one is lost while a row of which it has data is marked.
    let copied = disks.peek(LeafId(cell.into()), DATA, 4 * CHUNK as usize);
    disks.poke(LeafId(3), DATA, &copied);
    run(array.promote(&disks, successor)).unwrap();
    run(array.drop_members(&disks, &[cell])).unwrap();
    log(&disks, &array, &again, &[1, 2]);
    again = run(recover_journal(&disks, &mut array, 8, false)).unwrap();
    assert_eq!((again.batches, again.resynced, again.lost.len()), (1, 1, 0));
    let (_, other, p) = row_0(&array);
    assert_eq!([3, other, p].map(|role| block(&disks, role, 4096)), [7, 0, 7]);
}

#[test]
fn an_entry_of_a_row_that_is_not_there_is_refused() {
    let (disks, mut array, started) = raid5();
    let header =
        BatchHeader { run: started.run, sequence: 1, tail: 1, position: 0, blocks: 1, entries: 1, payload_crc: 0 };
    let mut bytes = [0; 4096];
    for row in [array.geometry().stripes(), braid_format::limits::ROW_MAX] {
        encode_batch(&array.uuid(), &header, &[Entry::mark(row)], &mut bytes);
        disks.poke(LeafId(1), ring_block(0), &bytes);
        let refused = run(recover_journal(&disks, &mut array, 6, false));
        assert!(
            refused.as_ref().is_err_and(|error| error.to_string().contains("a place that is not there")),
            "{refused:?}"
        );
    }
    // And one of a row in a region that nothing was ever written to.
    encode_batch(&array.uuid(), &header, &[Entry::mark(array.geometry().stripes() - 1)], &mut bytes);
    disks.poke(LeafId(1), ring_block(0), &bytes);
    let refused = run(recover_journal(&disks, &mut array, 6, false));
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("nothing was ever written")), "{refused:?}");
}

/// Blocks of the ring that nobody can read any more who may have had the last batch: a prefix of what was acknowledged is not taken
/// for all of it.
#[test]
fn what_nobody_can_read_is_not_taken_for_the_end() {
    // On which disks which block of the ring is bad, which member is absent, and how many may have had which batch.
    type Case = (&'static [(u32, u64)], Option<u16>, Option<(u64, usize)>);
    let cases: [Case; 10] = [
        (&[(0, 0)], None, None),
        (&[(0, 0), (1, 0)], None, Some((1, 2))),
        // Its last block.
        (&[(0, 2), (1, 2)], None, Some((1, 2))),
        (&[(0, 0), (1, 2)], None, Some((1, 2))),
        // Where the one behind it would be.
        (&[(0, 3)], None, None),
        (&[(0, 3), (2, 3)], None, Some((2, 2))),
        (&[(0, 3)], Some(2), Some((2, 1))),
        // Where it would not be.
        (&[(0, 4), (1, 4)], Some(2), None),
        (&[(0, 0)], Some(2), None),
        // Nor in the place of the one that is needed.
        (&[(2, 0)], Some(1), None),
    ];
    for (bad, absent, doubt) in cases {
        for (clean, force) in [(false, false), (true, false), (false, true)] {
            let what = format!("{bad:?}, without {absent:?}, clean {clean}, force {force}");
            let (disks, mut array, started) = raid5();
            log(&disks, &array, &started, &[0, 1]);
            absent.into_iter().for_each(|role| drop(run(array.drop_members(&disks, &[role])).unwrap()));
            array.was_clean = clean;
            let bad = bad.iter().map(|(leaf, block)| (LeafId(*leaf), ring_block(*block))).collect();
            let again = run(recover_journal(&Spoiled { disks: &disks, bad }, &mut array, 6, force));
            match (again, doubt) {
                (Err(LifecycleError::JournalUnread { batch, members }), Some(expected)) if !clean && !force => {
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

/// An older head names an older run, of which much may stand in the ring: what it says was put in place long ago, and has been
/// written over since.
#[test]
fn an_older_head_is_not_taken_for_one_that_cannot_be_read() {
    type Case = (&'static [(u32, u64)], Option<u16>, bool);
    // Heads take turns: the newest, of generation 2, is in the first place.
    let cases: [Case; 7] = [
        (&[(0, 0), (1, 0)], None, false),
        (&[(0, 0), (1, 0), (2, 0)], None, true),
        (&[(0, 1), (1, 0), (2, 0)], None, false),
        (&[(0, 1), (1, 1), (2, 1)], None, true),
        (&[(0, 0), (0, 1), (1, 1)], Some(2), true),
        (&[(0, 0), (1, 0)], Some(2), true),
        (&[(0, 0)], Some(2), false),
    ];
    for (bad, absent, doubt) in cases {
        for force in [false, true] {
            let what = format!("{bad:?}, without {absent:?}, force {force}");
            let (disks, mut array, _) = raid5();
            absent.into_iter().for_each(|role| drop(run(array.drop_members(&disks, &[role])).unwrap()));
            let bad = bad.iter().map(|(leaf, slot)| (LeafId(*leaf), journal() + slot * HEAD_BYTES as u64)).collect();
            let again = run(recover_journal(&Spoiled { disks: &disks, bad }, &mut array, 6, force));
            match again {
                Err(LifecycleError::Journal { reason }) if doubt && !force => {
                    assert!(reason.contains("newest head may be where none"), "{what}: {reason}");
                    // It was stopped in order: what is refused stays so.
                    assert!(array.label().clean, "{what}");
                }
                Ok(again) if !doubt || force => {
                    assert!(again.generation > 2, "{what}: generation {}", again.generation);
                    let dirty = run(load_regions(&disks, &array, false)).unwrap().dirty[0];
                    assert_eq!(dirty, u64::from(doubt), "{what}");
                    // Who can read all of it finds this start's.
                    let after = run(recover_journal(&disks, &mut array, 7, false)).unwrap();
                    assert_eq!(after.generation, again.generation + 1, "{what}");
                }
                again => panic!("{what}: {again:?}"),
            }
        }
    }
}

/// The ring has moved: numbers of batches go on, and the first of the run has any. Its header can be read, and no more of it.
#[test]
fn the_first_batch_of_a_run_may_have_any_number() {
    let (disks, mut array, started) = raid5();
    log_as(5000, &disks, &array, &started, &[0, 1]);
    array.was_clean = false;
    let bad = [0, 1].map(|leaf| (LeafId(leaf), ring_block(1))).to_vec();
    let again = run(recover_journal(&Spoiled { disks: &disks, bad }, &mut array, 6, false));
    assert!(matches!(again, Err(LifecycleError::JournalUnread { members: 2, .. })), "{again:?}");
    let again = run(recover_journal(&disks, &mut array, 7, false)).unwrap();
    assert_eq!((again.batches, again.replayed), (1, 1));
    recovered(&disks, &array);
}

/// A member becomes in sync while nobody can read a head: it gets the one that the run began with, and can be all that is left.
#[test]
fn who_becomes_in_sync_bears_a_head_whoever_can_read_his() {
    let (disks, mut array, started) = raid5();
    run(array.drop_members(&disks, &[2])).unwrap();
    let id = MemberId::from_random(0x42);
    run(array.begin_filling(&disks, 2, Newcomer::New { leaf: LeafId(3), id, force: true }, Filling::Full)).unwrap();
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

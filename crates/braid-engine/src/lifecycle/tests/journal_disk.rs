//! The journal on a disk of its own: the power is cut at every step of what happens to it, and once more in the recovery; then
//! the array is started with that disk and without it, with all members and without each.
//!
//! The judge knows the promises only: what is served is what was written, parity fits it, and an array refuses to start without the
//! disk only where it is needed.

use braid_format::journal::{BatchHeader, Entry, EntryKind, RING_START_BYTES, RingOn, encode_batch, payload_crc};
use braid_format::{MemberId, MemberState, Places};
use braid_geometry::{Level, Spec};

use super::disks::{Chance, Crash, Disks};
use super::{leaves, request, run};
use crate::lifecycle::planted::{Planted, plant};
use crate::lifecycle::{
    Array, CreateRequest, JournalStart, LifecycleError, StartOptions, Status, create, load_regions, move_ring,
    recover_journal, scan, start, store_regions,
};
use crate::{LeafId, MetaIo};

const SIZE: u64 = 2 << 20;
const DATA: u64 = 1 << 20;
const CHUNK: u64 = 8192;
const MEMBERS: u32 = 3;
const JOURNAL: LeafId = LeafId(3);

/// What is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// An array that was served, with a row half written: its next start.
    Start,
    /// The same where a row is about to be written: what is in the journal is in the disk's cache.
    StartCached,
    /// The same without the disk of the journal.
    StartWithout,
    /// The ring is put on the disk.
    Add,
    /// The disk has failed.
    Lose,
}

const ACTS: [Act; 5] = [Act::Start, Act::StartCached, Act::StartWithout, Act::Add, Act::Lose];

fn raid5(journal: bool) -> (Disks, Array, JournalStart) {
    let disks = Disks::new(&[SIZE; MEMBERS as usize + 1]);
    let spec = Spec { chunk_bytes: CHUNK, ..Spec::new(Level::Raid5) };
    let journal = journal.then(|| (JOURNAL, MemberId::from_random(0x99)));
    let mut array = run(create(&disks, &CreateRequest { journal, ..request("p", spec, 1, leaves(MEMBERS)) })).unwrap();
    leaves(MEMBERS).into_iter().for_each(|leaf| disks.poke(leaf, DATA, &[0; 4 * CHUNK as usize]));
    let mut regions = run(load_regions(&disks, &array, false)).unwrap();
    (regions.written[0], regions.dirty[0]) = (1, 1);
    run(store_regions(&disks, &array, &[0, 1, 2], &regions.written, &regions.dirty)).unwrap();
    let started = run(recover_journal(&disks, &mut array, 5, false)).unwrap();
    (disks, array, started)
}

/// Where row 0 has its data and its parity.
fn row_0(array: &Array) -> [LeafId; 3] {
    let stripe = array.geometry().stripe(0).unwrap();
    [stripe.data(0), stripe.data(1), stripe.p()].map(|role| LeafId(role.into()))
}

fn put(disks: &Disks, leaf: LeafId, value: u8) {
    disks.poke(leaf, DATA + 4096, &[value; 4096]);
}

/// A batch of this run, the first, on the disk of the journal: line 1 of cell 0 of row 0 gets this value.
fn log(disks: &Disks, array: &Array, run: u64, value: u8) {
    let (at, bytes) = batch(array, run, value);
    disks.poke(JOURNAL, at, &bytes);
}

fn batch(array: &Array, run: u64, value: u8) -> (u64, Vec<u8>) {
    let entry = Entry { row: 0, first: 1, blocks: 1, cell: 0, cells: 1, parities: 1, kind: EntryKind::Data };
    let payload = [value; 8192];
    let header = BatchHeader {
        run,
        sequence: 1,
        tail: 1,
        position: 0,
        blocks: 3,
        entries: 1,
        payload_crc: payload_crc(0, &payload),
    };
    let mut block = [0; 4096];
    encode_batch(&array.uuid(), &header, &[entry], &mut block);
    let at = Places::for_journal(SIZE).unwrap().journal.start + RING_START_BYTES;
    (at, [&block[..], &payload].concat())
}

/// Row 0 is being written: in the journal, and of its members one data cell.
fn tear(disks: &Disks, array: &Array, started: &JournalStart) {
    log(disks, array, started.run, 7);
    put(disks, row_0(array)[0], 7);
}

/// Starts the array of these disks and brings its journal to its end. `Ok(None)`: it waits for the disk of its journal.
fn start_of(disks: &Disks, present: &[LeafId], random: u64) -> Result<Option<(Array, JournalStart)>, String> {
    let found = run(scan(disks, present));
    let array = found.arrays.first().ok_or("it is not found")?;
    if let Status::Incomplete { missing } = &array.status {
        let waits = missing.iter().any(|missing| missing.is_journal) && array.waits_for_journal();
        return if waits { Ok(None) } else { Err(array.status.to_string()) };
    }
    let options = StartOptions { degraded: true, ..StartOptions::new(random, random) };
    let mut array = run(start(disks, array, options)).map_err(|error| format!("{}: {error}", array.status))?;
    match run(recover_journal(disks, &mut array, random, false)) {
        Ok(started) => Ok(Some((array, started))),
        Err(LifecycleError::JournalLost) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// What is served of line 1 of row 0 is one of these, and parity fits.
fn holds(disks: &Disks, array: &Array, allowed: &[u8]) -> Result<(), String> {
    let here = |leaf: LeafId| array.members().any(|m| m.leaf == leaf && m.state == MemberState::InSync);
    let cells = row_0(array).map(|leaf| here(leaf).then(|| disks.peek(leaf, DATA + 4096, 4096)));
    for at in 0..4096 {
        let (data, other) = match [0, 1, 2].map(|cell| cells[cell].as_ref().map(|bytes: &Vec<u8>| bytes[at])) {
            [Some(data), Some(other), Some(p)] if data ^ other != p => {
                return Err(format!("parity does not fit: {:?}", [data, other, p]));
            }
            [Some(data), Some(other), _] => (data, other),
            [Some(data), None, Some(p)] => (data, data ^ p),
            [None, Some(other), Some(p)] => (other ^ p, other),
            _ => return Err("two members are absent".to_owned()),
        };
        if !allowed.contains(&data) || other != 0 {
            return Err(format!("{data} and {other} are served, of {allowed:?}"));
        }
    }
    Ok(())
}

#[derive(Default, Debug)]
struct Counts {
    crashes: u32,
    starts: u32,
    waited: u32,
}

/// One act, cut at this step. `Ok(false)`: it had fewer.
fn one(act: Act, step: u64, seed: u64, counts: &mut Counts) -> Result<bool, String> {
    let mut chance = Chance(seed);
    let (disks, mut array, started) = raid5(act != Act::Add);
    let mut allowed = &[7][..];
    if matches!(act, Act::Start | Act::StartWithout) {
        tear(&disks, &array, &started);
    } else if act == Act::StartCached {
        let (at, bytes) = batch(&array, started.run, 7);
        disks.poke_cached(JOURNAL, at, &bytes);
        allowed = &[0, 7];
    } else {
        // Everything is in place, durably: only then the ring moves.
        let [data, _, p] = row_0(&array);
        [data, p].into_iter().for_each(|leaf| put(&disks, leaf, 7));
    }
    // What was under way where it belongs may be anything without a journal.
    disks.be_gentle();
    disks.cut_at(Some(step), seed);
    let random = chance.next();
    let done = match act {
        Act::Start | Act::StartCached => {
            start_of(&disks, &leaves(MEMBERS + 1), random).is_ok_and(|started| started.is_some())
        }
        Act::StartWithout => start_of(&disks, &leaves(MEMBERS), random).is_ok_and(|started| started.is_some()),
        Act::Add => {
            let added = run(array.add_journal(&disks, JOURNAL, MemberId::from_random(0x99), true));
            added.is_ok() && array.journal_disk().is_some() && run(move_ring(&disks, &array, random, &[])).is_ok()
        }
        Act::Lose => {
            array.give_up_journal();
            run(move_ring(&disks, &array, random, &[])).is_ok() && run(array.forget_journal(&disks)).is_ok()
        }
    };
    let cut = disks.steps() > step;
    disks.crash(if chance.below(3) == 0 { Crash::Kill } else { Crash::Power }, &mut chance);
    counts.crashes += 1;
    for (journal, absent) in [true, false].into_iter().flat_map(|j| (0..=MEMBERS).map(move |absent| (j, absent))) {
        let present: Vec<LeafId> = leaves(MEMBERS + 1)
            .into_iter()
            .filter(|l| l.0 != absent && *l != JOURNAL || *l == JOURNAL && journal)
            .collect();
        let again = disks.clone();
        // Once more during the recovery.
        again.cut_at(Some(chance.below(25)), chance.next());
        drop(start_of(&again, &present, chance.next()));
        again.crash(Crash::Power, &mut chance);
        let how = || format!("done {done}, with the journal {journal}, without {absent}");
        let Some((array, started)) =
            start_of(&again, &present, chance.next()).map_err(|e| format!("{}: {e}", how()))?
        else {
            counts.waited += 1;
            let needless = journal || absent == MEMBERS || done && act == Act::Lose || done && act == Act::StartWithout;
            if needless {
                return Err(format!("{}: it waits for the disk of its journal", how()));
            }
            continue;
        };
        counts.starts += 1;
        holds(&again, &array, allowed).map_err(|error| format!("{}: {error}", how()))?;
        if !journal && (started.ring_on != RingOn::Members || array.journal_role().is_some()) {
            return Err(format!("{}: its label names a disk that is not here", how()));
        }
        // The array lives on; the disk that it went on without returns with what it held, and is not believed.
        if !journal {
            let [data, _, p] = row_0(&array);
            [data, p].into_iter().for_each(|leaf| put(&again, leaf, 5));
            log(&again, &array, 5, 9);
            let back = start_of(&again, &leaves(MEMBERS + 1), chance.next()).map_err(|e| format!("{}: {e}", how()))?;
            let (array, _) = back.ok_or_else(|| format!("{}: it waits for what it has done without", how()))?;
            if absent == MEMBERS {
                holds(&again, &array, &[5]).map_err(|error| format!("{}, and back: {error}", how()))?;
            }
        }
    }
    Ok(cut)
}

fn sweep(act: Act, seeds: u64, counts: &mut Counts) -> Result<(), String> {
    for seed in 0..seeds {
        for step in 0.. {
            let told = |why: String| format!("{act:?}, step {step}, seed {seed}: {why}");
            if !one(act, step, seed * 1000 + step, counts).map_err(told)? {
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn every_step_may_be_the_last() {
    let mut counts = Counts::default();
    for act in ACTS {
        sweep(act, 6, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.crashes > 200 && counts.starts > 1000 && counts.waited > 50, "{counts:?}");
}

#[test]
fn every_planted_bug_of_the_disk_is_noticed() {
    for bug in [
        Planted::DiskHeadLast,
        Planted::DiskBelievedBlindly,
        Planted::DiskLostUnnoticed,
        Planted::DiskDroppedFirst,
        Planted::DiskNotFlushed,
        Planted::DiskOfOthersBelieved,
    ] {
        plant(Some(bug));
        let found = ACTS.into_iter().find_map(|act| sweep(act, 6, &mut Counts::default()).err());
        let found = found.or_else(|| an_old_copy_is_believed().err()).or_else(|| that_of_others_is_believed().err());
        plant(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is not noticed");
    }
}

/// An image of the disk of the journal from before the last start takes its place after a crash.
fn an_old_copy_is_believed() -> Result<(), String> {
    let (disks, array, _) = raid5(true);
    let image = disks.clone_disk(JOURNAL, SIZE);
    drop(array);
    let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), 77)?.ok_or("it waits for what is here")?;
    tear(&disks, &array, &started);
    disks.copy_disk(image, JOURNAL);
    let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), 78)?.ok_or("it waits for what is here")?;
    if !started.disk_lost {
        return Err("an old copy of the journal is taken for it".into());
    }
    holds(&disks, &array, &[7])
}

#[test]
fn an_old_copy_of_the_disk_is_not_believed() {
    an_old_copy_is_believed().unwrap();
}

/// A start that cannot do without the journal says so before it says who is out: else nobody could do without it any more.
#[test]
fn an_old_copy_beside_an_absent_member_waits_and_changes_nothing() {
    let (disks, array, _) = raid5(true);
    let image = disks.clone_disk(JOURNAL, SIZE);
    drop(array);
    let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), 77).unwrap().unwrap();
    tear(&disks, &array, &started);
    disks.copy_disk(image, JOURNAL);
    for absent in 0..MEMBERS {
        let present: Vec<LeafId> = leaves(MEMBERS + 1).into_iter().filter(|leaf| leaf.0 != absent).collect();
        assert!(start_of(&disks, &present, 78).unwrap().is_none());
        let status = run(scan(&disks, &present)).arrays[0].status.to_string();
        assert!(status.contains("which is here but: what it holds is not the journal of now"), "{status}");
    }
    let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), 79).unwrap().unwrap();
    assert!(started.disk_lost && array.members().all(|member| member.state == MemberState::InSync));
    holds(&disks, &array, &[7]).unwrap();
}

#[test]
fn without_the_disk_it_starts_where_nothing_of_it_is_needed() {
    // Stopped in order: with every member that it can be without.
    for absent in 0..=MEMBERS {
        let (disks, mut array, _) = raid5(true);
        run(array.stop(&disks)).unwrap();
        let present: Vec<LeafId> = leaves(MEMBERS).into_iter().filter(|leaf| leaf.0 != absent).collect();
        let (array, started) = start_of(&disks, &present, 9).unwrap().expect("nothing of the journal is needed");
        assert_eq!((started.ring_on, started.disk_lost, started.resynced), (RingOn::Members, true, 0));
        assert_eq!((array.journal_disk().is_none(), array.journal_role()), (true, None));
    }
    // Not stopped in order: only by force, which notes all of it as dirty.
    let (disks, array, started) = raid5(true);
    tear(&disks, &array, &started);
    let present = [LeafId(0), LeafId(1)];
    assert!(start_of(&disks, &present, 9).unwrap().is_none());
    let found = run(scan(&disks, &present));
    let text = found.arrays[0].status.to_string();
    assert!(text.contains("the disk of its journal (id 000000000099)"), "{text}");
    let options = StartOptions { force: true, degraded: true, ..StartOptions::new(10, 10) };
    let mut array = run(start(&disks, &found.arrays[0], options)).unwrap();
    let forced = run(recover_journal(&disks, &mut array, 10, true)).unwrap();
    assert_eq!((forced.ring_on, array.journal_role()), (RingOn::Members, None));
    assert_eq!(run(load_regions(&disks, &array, false)).unwrap().dirty[0], 1);
}

/// A disk that lets nothing be read of it, or nothing be written.
struct Broken<'a> {
    disks: &'a Disks,
    reads: bool,
}

impl MetaIo for Broken<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.disks.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, crate::LeafError> {
        if leaf == JOURNAL && self.reads {
            return Err(crate::LeafError::of(crate::ErrorKind::Io));
        }
        self.disks.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), crate::LeafError> {
        if leaf == JOURNAL && !self.reads {
            return Err(crate::LeafError::of(crate::ErrorKind::Io));
        }
        self.disks.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), crate::LeafError> {
        self.disks.flush(leaf).await
    }
}

#[test]
fn a_disk_that_fails_in_the_recovery_is_done_without() {
    for reads in [true, false] {
        let (disks, mut array, started) = raid5(true);
        tear(&disks, &array, &started);
        // As after a crash.
        array.was_clean = false;
        let again = run(recover_journal(&Broken { disks: &disks, reads }, &mut array, 6, false)).unwrap();
        assert!(again.disk_lost, "reads {reads}");
        holds(&disks, &array, &[7]).unwrap();
        if !reads {
            assert_eq!((again.ring_on, array.journal_role()), (RingOn::Members, None));
        }
    }
    // What it had is in place when the head of the new run fails on it: whoever is absent.
    for absent in leaves(MEMBERS) {
        let (disks, array, started) = raid5(true);
        tear(&disks, &array, &started);
        let present: Vec<LeafId> = leaves(MEMBERS + 1).into_iter().filter(|leaf| *leaf != absent).collect();
        let found = run(scan(&disks, &present));
        let options = StartOptions { degraded: true, ..StartOptions::new(9, 9) };
        let mut array = run(start(&disks, &found.arrays[0], options)).unwrap();
        let again = run(recover_journal(&Broken { disks: &disks, reads: false }, &mut array, 9, false)).unwrap();
        assert_eq!((again.disk_lost, again.ring_on, again.replayed), (true, RingOn::Members, 1));
        assert_eq!((array.journal_disk().is_none(), array.journal_role()), (true, None));
        holds(&disks, &array, &[7]).unwrap();
    }
}

/// The disk of the journal is nobody's member: not a new one, not one that returns, and it cannot be left out like one.
#[test]
fn its_disk_becomes_no_member() {
    let (disks, mut array, _) = raid5(true);
    let before = disks.peek(JOURNAL, 0, SIZE as usize);
    let refused = run(array.add_spare(&disks, JOURNAL, MemberId::from_random(0x77), true));
    assert!(matches!(refused, Err(LifecycleError::Twice { leaf: JOURNAL })), "{refused:?}");
    let refused = run(array.recognise(&disks, JOURNAL));
    assert!(refused.is_err_and(|error| error.to_string().contains("is here already")));
    assert!(run(array.drop_members(&disks, &[3])).unwrap().is_empty());
    assert_eq!((array.journal_role(), array.journal_disk().map(|disk| disk.leaf)), (Some(3), Some(JOURNAL)));
    assert!(before == disks.peek(JOURNAL, 0, SIZE as usize));
}

#[test]
fn only_arrays_with_parity_have_one_and_only_one() {
    let disks = Disks::new(&[SIZE; 5]);
    let journal = Some((JOURNAL, MemberId::from_random(0x99)));
    let refused = run(create(&disks, &CreateRequest { journal, ..super::raid0("p", 1, leaves(3)) }));
    assert!(refused.is_err_and(|error| error.to_string().contains("no journal that a disk could hold")));
    let (disks, mut array, _) = raid5(true);
    let fresh = disks.clone_disk(LeafId(0), SIZE);
    let refused = run(array.add_journal(&disks, fresh, MemberId::from_random(0x9a), true));
    assert!(refused.is_err_and(|error| error.to_string().contains("a disk already")));
    // A deletion takes its label, too.
    assert_eq!(run(array.delete(&disks)).unwrap(), Vec::<u16>::new());
    assert!(run(scan(&disks, &leaves(4))).arrays.is_empty());
}

/// What waits was cut for the ring of the members: in a smaller one it would wait for ever.
#[test]
fn a_disk_has_as_much_room_as_the_members() {
    let large = 1 << 30;
    let all = |disk| [large, large, large, disk];
    let spec = Spec { chunk_bytes: CHUNK, ..Spec::new(Level::Raid5) };
    let of = |journal| CreateRequest { journal, ..request("p", spec, 1, leaves(MEMBERS)) };
    let journal = (JOURNAL, MemberId::from_random(0x99));
    let least = Places::for_device(large).unwrap().journal.bytes;
    let (mut disk, mut refusals) = (SIZE, 0);
    loop {
        let made = run(create(&Disks::new(&all(disk)), &of(Some(journal))));
        let disks = Disks::new(&all(disk));
        let mut array = run(create(&disks, &of(None))).unwrap();
        let added = run(array.add_journal(&disks, JOURNAL, journal.1, false));
        let fits = Places::for_journal(disk).unwrap().journal.bytes >= least;
        assert_eq!((made.is_ok(), added.is_ok()), (fits, fits), "a disk of {disk} bytes: {made:?}, {added:?}");
        if fits {
            break;
        }
        assert!(
            matches!(made, Err(LifecycleError::JournalRoom { leaf: JOURNAL, needed_bytes, .. }) if needed_bytes == least)
        );
        (disk, refusals) = (disk + (1 << 20), refusals + 1);
    }
    assert!(refusals > 0);
}

/// The disk has been with others, who have gone on with it: what they have logged is not this array's, and what it held of this array may
/// be gone.
fn that_of_others_is_believed() -> Result<(), String> {
    let (disks, array, started) = raid5(true);
    tear(&disks, &array, &started);
    let others = disks.clone();
    let (theirs, at_theirs) = start_of(&others, &leaves(MEMBERS + 1), 77)?.ok_or("it waits for what is here")?;
    log(&others, &theirs, at_theirs.run, 9);
    // Its label says nothing of that: here another one is newer.
    let area = Places::for_journal(SIZE).unwrap().journal;
    disks.poke(JOURNAL, area.start, &others.peek(JOURNAL, area.start, area.bytes as usize / 4096 * 4096));
    for random in [78, 79] {
        // After the first start it is this array's again.
        let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), random)?.ok_or("it waits for what is here")?;
        if started.disk_lost != (random == 78) {
            return Err(format!("start {random}: the disk is lost: {}", started.disk_lost));
        }
        holds(&disks, &array, &[7])?;
    }
    Ok(())
}

#[test]
fn the_disk_of_others_is_not_believed() {
    that_of_others_is_believed().unwrap();
}

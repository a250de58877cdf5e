//! The journal on a disk of its own: the power is cut at every step of each procedure, and again during the recovery;
//! then the array is started with and without that disk, with all members and without each.
//!
//! The oracle checks guarantees only: what is served is what was written, parity matches it, and an array refuses to
//! start without the disk only if the disk is needed.

use braid_engine::{LeafId, MetaIo};
use braid_format::journal::{
    EntryKind, JournalBatchHeader, JournalEntry, RING_OFFSET_BYTES, RingLocation, encode_batch, payload_crc,
};
use braid_format::{DiskLayout, MemberId, MemberState};
use braid_geometry::{Level, Spec};

use super::disks::{Chance, Crash, Disks};
use super::{leaves, request, run};
use crate::lifecycle::{
    Array, ArrayStatus, CreateRequest, JournalStart, LifecycleError, StartOptions, create, load_regions, move_ring,
    recover_journal, scan, start, store_regions,
};

const SIZE: u64 = 2 << 20;
const DATA: u64 = 1 << 20;
const CHUNK: u64 = 8192;
const MEMBERS: u32 = 3;
const JOURNAL: LeafId = LeafId(3);

/// The procedure that is interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// The next start of an array that was served, with a stripe half written.
    Start,
    /// The same with a stripe about to be written: the journal's content is in the disk's cache.
    StartCached,
    /// The same without the disk of the journal.
    StartWithout,
    /// The ring moves to the disk.
    Add,
    /// The disk has failed.
    Fail,
}

const ACTS: [Act; 5] = [Act::Start, Act::StartCached, Act::StartWithout, Act::Add, Act::Fail];

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

/// Returns the disks with the data and the parity of stripe 0.
fn stripe_0(array: &Array) -> [LeafId; 3] {
    let stripe = array.geometry().stripe(0).unwrap();
    [stripe.data(0), stripe.data(1), stripe.p()].map(|role| LeafId(role.into()))
}

fn put(disks: &Disks, leaf: LeafId, value: u8) {
    disks.poke(leaf, DATA + 4096, &[value; 4096]);
}

/// Writes the first batch of this run to the disk of the journal: line 1 of cell 0 of stripe 0 gets this value.
fn log(disks: &Disks, array: &Array, run: u64, value: u8) {
    let (at, bytes) = batch(array, run, value);
    disks.poke(JOURNAL, at, &bytes);
}

fn batch(array: &Array, run: u64, value: u8) -> (u64, Vec<u8>) {
    let entry = JournalEntry { stripe: 0, first: 1, blocks: 1, cell: 0, cells: 1, parities: 1, kind: EntryKind::Data };
    let payload = [value; 8192];
    let header = JournalBatchHeader {
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
    let at = DiskLayout::for_journal(SIZE).unwrap().journal.start + RING_OFFSET_BYTES;
    (at, [&block[..], &payload].concat())
}

/// Stripe 0 is being written: it is in the journal, and one data cell is in place.
fn tear(disks: &Disks, array: &Array, started: &JournalStart) {
    log(disks, array, started.run, 7);
    put(disks, stripe_0(array)[0], 7);
}

/// Starts the array of these disks and recovers its journal. `Ok(None)`: it waits for the disk of its journal.
fn start_of(disks: &Disks, present: &[LeafId], random: u64) -> Result<Option<(Array, JournalStart)>, String> {
    let found = run(scan(disks, present));
    let array = found.arrays.first().ok_or("it is not found")?;
    if let ArrayStatus::Incomplete { missing } = &array.status {
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

/// Checks that line 1 of stripe 0 reads as one of these, and that parity matches.
fn holds(disks: &Disks, array: &Array, allowed: &[u8]) -> Result<(), String> {
    let here = |leaf: LeafId| array.members().any(|m| m.leaf == leaf && m.state == MemberState::InSync);
    let cells = stripe_0(array).map(|leaf| here(leaf).then(|| disks.peek(leaf, DATA + 4096, 4096)));
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

/// One procedure, interrupted at this step. `Ok(false)`: it had fewer steps.
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
        // Everything is durable in place: only then the ring moves.
        let [data, _, p] = stripe_0(&array);
        [data, p].into_iter().for_each(|leaf| put(&disks, leaf, 7));
    }
    // Without a journal, in-place writes in flight may leave anything.
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
        Act::Fail => {
            array.give_up_journal();
            run(move_ring(&disks, &array, random, &[])).is_ok() && run(array.forget_journal(&disks)).is_ok()
        }
    };
    let cut = disks.steps() > step;
    disks.crash(if chance.below(3) == 0 { Crash::Kill } else { Crash::Power }, &mut chance);
    counts.crashes += 1;
    for (journal, missing) in [true, false].into_iter().flat_map(|j| (0..=MEMBERS).map(move |missing| (j, missing))) {
        let present: Vec<LeafId> = leaves(MEMBERS + 1)
            .into_iter()
            .filter(|l| l.0 != missing && *l != JOURNAL || *l == JOURNAL && journal)
            .collect();
        let again = disks.clone();
        // Again during the recovery.
        again.cut_at(Some(chance.below(25)), chance.next());
        drop(start_of(&again, &present, chance.next()));
        again.crash(Crash::Power, &mut chance);
        let how = || format!("done {done}, with the journal {journal}, without {missing}");
        let Some((array, started)) =
            start_of(&again, &present, chance.next()).map_err(|e| format!("{}: {e}", how()))?
        else {
            counts.waited += 1;
            let needless =
                journal || missing == MEMBERS || done && act == Act::Fail || done && act == Act::StartWithout;
            if needless {
                return Err(format!("{}: it waits for the disk of its journal", how()));
            }
            continue;
        };
        counts.starts += 1;
        holds(&again, &array, allowed).map_err(|error| format!("{}: {error}", how()))?;
        if !journal && (started.ring_on != RingLocation::Members || array.journal_number().is_some()) {
            return Err(format!("{}: its label names a disk that is not here", how()));
        }
        // The array goes on without the disk; the disk returns with its old content, and is not trusted.
        if !journal {
            let [data, _, p] = stripe_0(&array);
            [data, p].into_iter().for_each(|leaf| put(&again, leaf, 5));
            log(&again, &array, 5, 9);
            let back = start_of(&again, &leaves(MEMBERS + 1), chance.next()).map_err(|e| format!("{}: {e}", how()))?;
            let (array, _) = back.ok_or_else(|| format!("{}: it waits for what it has done without", how()))?;
            if missing == MEMBERS {
                holds(&again, &array, &[5]).map_err(|error| format!("{}, and back: {error}", how()))?;
            }
        }
    }
    Ok(cut)
}

fn sweep(act: Act, seeds: u64, counts: &mut Counts) -> Result<(), String> {
    for seed in 0..seeds {
        for step in 0.. {
            let context = |why: String| format!("{act:?}, step {step}, seed {seed}: {why}");
            if !one(act, step, seed * 1000 + step, counts).map_err(context)? {
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

/// After a crash, an image of the journal's disk from before the last start takes its place.
fn old_copy_is_not_trusted() -> Result<(), String> {
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
fn an_old_copy_of_the_disk_is_not_trusted() {
    old_copy_is_not_trusted().unwrap();
}

/// A start that needs the journal is refused before it records a member as failed: after that, every start would need
/// the journal.
#[test]
fn an_old_copy_beside_a_missing_member_waits_and_changes_nothing() {
    let (disks, array, _) = raid5(true);
    let image = disks.clone_disk(JOURNAL, SIZE);
    drop(array);
    let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), 77).unwrap().unwrap();
    tear(&disks, &array, &started);
    disks.copy_disk(image, JOURNAL);
    for missing in 0..MEMBERS {
        let present: Vec<LeafId> = leaves(MEMBERS + 1).into_iter().filter(|leaf| leaf.0 != missing).collect();
        assert!(start_of(&disks, &present, 78).unwrap().is_none());
        let status = run(scan(&disks, &present)).arrays[0].status.to_string();
        assert!(status.contains("which is here but: what it holds is not the journal of now"), "{status}");
    }
    let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), 79).unwrap().unwrap();
    assert!(started.disk_lost && array.members().all(|member| member.state == MemberState::InSync));
    holds(&disks, &array, &[7]).unwrap();
}

#[test]
fn without_the_disk_it_starts_if_nothing_on_it_is_needed() {
    // Stopped cleanly: it starts without the disk and without any one member.
    for missing in 0..=MEMBERS {
        let (disks, mut array, _) = raid5(true);
        run(array.stop(&disks)).unwrap();
        let present: Vec<LeafId> = leaves(MEMBERS).into_iter().filter(|leaf| leaf.0 != missing).collect();
        let (array, started) = start_of(&disks, &present, 9).unwrap().expect("nothing of the journal is needed");
        assert_eq!((started.ring_on, started.disk_lost, started.resynced), (RingLocation::Members, true, 0));
        assert_eq!((array.journal_disk().is_none(), array.journal_number()), (true, None));
    }
    // Not stopped cleanly: it starts only by force, which marks everything dirty.
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
    assert_eq!((forced.ring_on, array.journal_number()), (RingLocation::Members, None));
    assert_eq!(run(load_regions(&disks, &array, false)).unwrap().dirty[0], 1);
}

/// A disk that fails all reads, or all writes.
struct Broken<'a> {
    disks: &'a Disks,
    reads: bool,
}

impl MetaIo for Broken<'_> {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.disks.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, braid_engine::LeafError> {
        if leaf == JOURNAL && self.reads {
            return Err(braid_engine::LeafError::of(braid_engine::ErrorKind::Io));
        }
        self.disks.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), braid_engine::LeafError> {
        if leaf == JOURNAL && !self.reads {
            return Err(braid_engine::LeafError::of(braid_engine::ErrorKind::Io));
        }
        self.disks.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), braid_engine::LeafError> {
        self.disks.flush(leaf).await
    }
}

#[test]
fn a_recovery_goes_on_without_a_disk_that_fails() {
    for reads in [true, false] {
        let (disks, mut array, started) = raid5(true);
        tear(&disks, &array, &started);
        // As after a crash.
        array.was_clean = false;
        let again = run(recover_journal(&Broken { disks: &disks, reads }, &mut array, 6, false)).unwrap();
        assert!(again.disk_lost, "reads {reads}");
        holds(&disks, &array, &[7]).unwrap();
        if !reads {
            assert_eq!((again.ring_on, array.journal_number()), (RingLocation::Members, None));
        }
    }
    // The disk's content is in place when the head of the new run fails on it, whichever member is missing.
    for missing in leaves(MEMBERS) {
        let (disks, array, started) = raid5(true);
        tear(&disks, &array, &started);
        let present: Vec<LeafId> = leaves(MEMBERS + 1).into_iter().filter(|leaf| *leaf != missing).collect();
        let found = run(scan(&disks, &present));
        let options = StartOptions { degraded: true, ..StartOptions::new(9, 9) };
        let mut array = run(start(&disks, &found.arrays[0], options)).unwrap();
        let again = run(recover_journal(&Broken { disks: &disks, reads: false }, &mut array, 9, false)).unwrap();
        assert_eq!((again.disk_lost, again.ring_on, again.replayed), (true, RingLocation::Members, 1));
        assert_eq!((array.journal_disk().is_none(), array.journal_number()), (true, None));
        holds(&disks, &array, &[7]).unwrap();
    }
}

/// The disk of the journal is not a member: it becomes neither a new nor a returning one, and cannot be dropped like
/// one.
#[test]
fn the_disk_of_the_journal_becomes_no_member() {
    let (disks, mut array, _) = raid5(true);
    let before = disks.peek(JOURNAL, 0, SIZE as usize);
    let refused = run(array.add_spare(&disks, JOURNAL, MemberId::from_random(0x77), true));
    assert!(matches!(refused, Err(LifecycleError::Twice { leaf: JOURNAL })), "{refused:?}");
    let refused = run(array.probe_returning(&disks, JOURNAL));
    assert!(refused.is_err_and(|error| error.to_string().contains("is here already")));
    assert!(run(array.drop_members(&disks, &[3])).unwrap().is_empty());
    assert_eq!((array.journal_number(), array.journal_disk().map(|disk| disk.leaf)), (Some(3), Some(JOURNAL)));
    assert!(before == disks.peek(JOURNAL, 0, SIZE as usize));
}

#[test]
fn only_arrays_with_parity_have_a_journal_disk_and_only_one() {
    let disks = Disks::new(&[SIZE; 5]);
    let journal = Some((JOURNAL, MemberId::from_random(0x99)));
    let refused = run(create(&disks, &CreateRequest { journal, ..super::raid0("p", 1, leaves(3)) }));
    assert!(refused.is_err_and(|error| error.to_string().contains("no journal that a disk could hold")));
    let (disks, mut array, _) = raid5(true);
    let fresh = disks.clone_disk(LeafId(0), SIZE);
    let refused = run(array.add_journal(&disks, fresh, MemberId::from_random(0x9a), true));
    assert!(refused.is_err_and(|error| error.to_string().contains("a disk already")));
    // A deletion erases its label too.
    assert_eq!(run(array.delete(&disks)).unwrap(), Vec::<u16>::new());
    assert!(run(scan(&disks, &leaves(4))).arrays.is_empty());
}

/// Waiting requests were sized for the members' ring: in a smaller ring they would wait forever.
#[test]
fn the_ring_on_a_disk_is_no_smaller_than_on_the_members() {
    let large = 1 << 30;
    let all = |disk| [large, large, large, disk];
    let spec = Spec { chunk_bytes: CHUNK, ..Spec::new(Level::Raid5) };
    let of = |journal| CreateRequest { journal, ..request("p", spec, 1, leaves(MEMBERS)) };
    let journal = (JOURNAL, MemberId::from_random(0x99));
    let least = DiskLayout::for_device(large).unwrap().journal.bytes;
    let (mut disk, mut refusals) = (SIZE, 0);
    loop {
        let made = run(create(&Disks::new(&all(disk)), &of(Some(journal))));
        let disks = Disks::new(&all(disk));
        let mut array = run(create(&disks, &of(None))).unwrap();
        let added = run(array.add_journal(&disks, JOURNAL, journal.1, false));
        let fits = DiskLayout::for_journal(disk).unwrap().journal.bytes >= least;
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

/// Another copy of the array has used the disk: the batches logged there do not belong to this array, and those of this
/// array may be overwritten.
fn disk_used_by_another_copy_is_not_trusted() -> Result<(), String> {
    let (disks, array, started) = raid5(true);
    tear(&disks, &array, &started);
    let others = disks.clone();
    let (theirs, at_theirs) = start_of(&others, &leaves(MEMBERS + 1), 77)?.ok_or("it waits for what is here")?;
    log(&others, &theirs, at_theirs.run, 9);
    // Its label does not reveal that: the label of this array is newer.
    let area = DiskLayout::for_journal(SIZE).unwrap().journal;
    disks.poke(JOURNAL, area.start, &others.peek(JOURNAL, area.start, area.bytes as usize / 4096 * 4096));
    for random in [78, 79] {
        // After the first start the disk is this array's again.
        let (array, started) = start_of(&disks, &leaves(MEMBERS + 1), random)?.ok_or("it waits for what is here")?;
        if started.disk_lost != (random == 78) {
            return Err(format!("start {random}: the disk is lost: {}", started.disk_lost));
        }
        holds(&disks, &array, &[7])?;
    }
    Ok(())
}

#[test]
fn a_disk_used_by_another_copy_of_the_array_is_not_trusted() {
    disk_used_by_another_copy_is_not_trusted().unwrap();
}

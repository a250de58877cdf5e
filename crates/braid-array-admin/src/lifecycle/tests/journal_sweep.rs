//! Cuts the power, or kills the process, at every step of a writer that uses the journal; members fail; the recovery is
//! interrupted at every step too, and other members fail. Then what is served is compared with what was written.
//!
//! The oracle checks guarantees only: durable writes are there; acknowledged writes survive a kill; no block shows what
//! was never written to it; parity matches; a cell is unreadable only if a full-stripe write, in place only, was in
//! flight for its stripe when the cell was lost; and what a failed member lacks is dirty.

use braid_engine::{LeafId, MetaIo};
use braid_format::journal::{HEAD_BYTES, JournalHead, LostStripe, RingLocation, encode_head, head_slot};
use braid_format::{DiskLayout, MemberState};
use braid_geometry::{Level, Spec};
use braid_parity::{BlockRole, Parity};

use super::disks::{Chance, Crash, Disks};
use super::journal_writer::{Block, Mutation, Seen, Writer, content, location_of, region_of};
use super::{leaves, name, request, run};
use crate::lifecycle::{
    Array, ArrayStatus, JournalStart, RebuildKind, RebuildTarget, StartOptions, create, load_regions, recover_journal,
    scan, start, store_regions,
};

const SIZE: u64 = 2 << 20;

/// Level, members, chunk.
const KINDS: [(Level, u32, u64); 6] = [
    (Level::Raid5, 3, 8192),
    (Level::Raid6, 4, 8192),
    (Level::Raid5, 4, 12288),
    (Level::Raid6, 5, 8192),
    (Level::Raid5, 3, 17 * 4096),
    (Level::Raid5, 2, 8192),
];

type Content = Vec<Vec<Vec<Block>>>;

/// An array between two runs.
#[derive(Clone)]
struct World {
    disks: Disks,
    members: u32,
    rows: Vec<u64>,
    lines: usize,
    blocks: Content,
    lost: Vec<LostStripe>,
    /// The members that had failed before the writes.
    out: Vec<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    crashes: u64,
    second_crashes: u64,
    starts: u64,
    degraded: u64,
    replayed: u64,
    resynced: u64,
    lost_now: u64,
    lost_kept: u64,
    returned: u64,
    seen: Seen,
}

impl Counts {
    fn add(&mut self, seen: &Seen) {
        self.seen.marks += seen.marks;
        self.seen.logged += seen.logged;
        self.seen.expanded += seen.expanded;
        self.seen.flushes += seen.flushes;
        self.seen.wraps += seen.wraps;
        self.seen.left_list += seen.left_list;
    }
}

/// Creates an array with a small ring and some stripes that are written, with zeros.
fn build(seed: u64) -> (World, Array, JournalStart) {
    let (level, members, chunk_bytes) = KINDS[(seed % KINDS.len() as u64) as usize];
    let disks = Disks::new(&vec![SIZE; members as usize]);
    disks.be_gentle();
    let mut array =
        run(create(&disks, &request("p", Spec { chunk_bytes, ..Spec::new(level) }, 1, leaves(members)))).unwrap();
    let lines = braid_format::journal::stripe_bytes(chunk_bytes as u32) as usize / 4096;
    let ring_blocks = 24 + seed / 6 % 3 * 8;
    for target in &mut array.targets {
        target.part.layout.journal.bytes = (64 << 10) + ring_blocks * 4096;
    }
    run(array.rename(&disks, name("q"))).unwrap();
    let head = JournalHead {
        generation: 1,
        run: 7,
        ring_blocks,
        stripe_bytes: lines as u32 * 4096,
        ring_on: RingLocation::Members,
    };
    let mut bytes = Box::new([0; HEAD_BYTES]);
    let used = encode_head(&array.uuid(), &head, &[], &mut bytes);
    let journal = DiskLayout::for_device(SIZE).unwrap().journal.start + head_slot(1) * HEAD_BYTES as u64;
    leaves(members).into_iter().for_each(|leaf| disks.poke(leaf, journal, &bytes[..used]));
    let rows_all = array.geometry().stripes() * (chunk_bytes / (lines as u64 * 4096));
    let rows = vec![0, 1, rows_all / 2, rows_all - 1];
    let mut regions = run(load_regions(&disks, &array, false)).unwrap();
    for row in &rows {
        let (data, offset, p, q) = location_of(&array, *row, lines);
        for role in data.into_iter().chain([p]).chain(q) {
            disks.poke(LeafId(role.into()), DATA + offset, &vec![0; lines * 4096]);
        }
        let region = region_of(&array, *row, lines);
        regions.written[region as usize / 64] |= 1 << (region % 64);
    }
    let roles: Vec<u16> = (0..members as u16).collect();
    run(store_regions(&disks, &array, &roles, &regions.written, &regions.dirty)).unwrap();
    let started = run(recover_journal(&disks, &mut array, seed, false)).unwrap();
    assert_eq!((started.ring_blocks, started.generation, started.batches), (ring_blocks, 2, 0));
    let blocks = Writer::zeros(&array, &rows, lines);
    (World { disks, members, rows, lines, blocks, lost: Vec::new(), out: Vec::new() }, array, started)
}

/// Where the data areas begin on these disks.
const DATA: u64 = 1 << 20;

/// Starts with these disks and recovers the journal; with `degraded` it does not wait for missing members. `Ok(None)`:
/// too few disks are present, or it waits, or members have diverged at a width where they can.
fn restart(
    disks: &Disks,
    present: &[LeafId],
    degraded: bool,
    random: u64,
) -> Result<Option<(Array, JournalStart)>, String> {
    let found = run(scan(disks, present));
    let Some(array) = found.arrays.first() else { return Ok(None) };
    match &array.status {
        ArrayStatus::Incomplete { .. } => return Ok(None),
        ArrayStatus::Waiting { .. } if !degraded => return Ok(None),
        ArrayStatus::Refused { .. }
            if array.newest.as_ref().is_some_and(|l| can_diverge(l.spec.level, l.members.len())) =>
        {
            return Ok(None);
        }
        ArrayStatus::Refused { .. } => return Err(format!("refused: {}", array.status)),
        _ => {}
    }
    let options = StartOptions { degraded: true, ..StartOptions::new(random, random) };
    let started = run(start(disks, array, options));
    let mut array = started.map_err(|error| format!("{} and not started: {error}", array.status))?;
    let started = run(recover_journal(disks, &mut array, random, false));
    started.map(|started| Some((array, started))).map_err(|error| format!("not recovered: {error}"))
}

/// Whether the array starts with so few members that the others suffice as well.
fn can_diverge(level: Level, members: usize) -> bool {
    members <= 2 * usize::from(level.parity())
}

fn is_in_sync(array: &Array, role: u16) -> bool {
    array.members().any(|m| m.number == role && m.state == MemberState::InSync)
}

/// One line of a stripe as it reads: the bytes of each cell, and of all parity, computed where missing.
struct Line {
    cells: Vec<Vec<u8>>,
    p: Vec<u8>,
    q: Vec<u8>,
}

fn line_of(world: &World, array: &Array, row: u64, line: usize) -> Result<Line, String> {
    let (data, offset, p, q) = location_of(array, row, world.lines);
    let read = |role: u16| match is_in_sync(array, role) {
        true => world.disks.peek(LeafId(role.into()), DATA + offset + line as u64 * 4096, 4096),
        false => Vec::new(),
    };
    let mut cells: Vec<Vec<u8>> = data.iter().map(|role| read(*role)).collect();
    let (p_here, q_here) = (read(p), q.map_or(Vec::new(), read));
    let mut computed: Vec<(usize, Vec<u8>)> = Vec::new();
    computed.extend((0..cells.len()).filter(|cell| cells[*cell].is_empty()).map(|cell| (cell, vec![0; 4096])));
    {
        let refs: Vec<&[u8]> = cells.iter().map(Vec::as_slice).collect();
        let mut wanted: Vec<(BlockRole, &mut [u8])> =
            computed.iter_mut().map(|(cell, out)| (BlockRole::Data(*cell), out.as_mut_slice())).collect();
        let recovered = Parity::best().recover(&refs, &p_here, &q_here, &mut wanted);
        recovered.map_err(|error| format!("row {row}: {error}"))?;
    }
    computed.into_iter().for_each(|(cell, bytes)| cells[cell] = bytes);
    let refs: Vec<&[u8]> = cells.iter().map(Vec::as_slice).collect();
    let (mut p_all, mut q_all) = (vec![0; 4096], vec![0; if q.is_some() { 4096 } else { 0 }]);
    Parity::best().pq(&mut p_all, &mut q_all, &refs);
    if !p_here.is_empty() && p_here != p_all || !q_here.is_empty() && q_here != q_all {
        return Err(format!("row {row}, line {line}: parity does not fit"));
    }
    Ok(Line { cells, p: p_all, q: q_all })
}

impl World {
    /// Checks all guarantees of an array that has just started.
    fn verify(&self, array: &Array, started: &JournalStart, power: bool) -> Result<(), String> {
        let bits = run(load_regions(&self.disks, array, false)).map_err(|error| error.to_string())?;
        for (at, row) in self.rows.iter().enumerate() {
            let roles = location_of(array, *row, self.lines).0;
            let lists = |list: &[LostStripe], cell: usize, line: usize| {
                list.iter().any(|lost| lost.stripe == *row && lost.covers(cell as u8, 1 << line))
            };
            let region = region_of(array, *row, self.lines);
            let dirty = bits.dirty[region as usize / 64] >> (region % 64) & 1 == 1;
            for line in 0..self.lines {
                let found = line_of(self, array, *row, line)?;
                for (cell, bytes) in found.cells.iter().enumerate() {
                    let block = &self.blocks[at][line][cell];
                    let here = format!("row {row}, line {line}, cell {cell}");
                    let was = lists(&self.lost, cell, line);
                    if lists(&started.lost, cell, line) {
                        if block.marked <= block.durable && !(was && block.durable == 0) {
                            return Err(format!(
                                "{here}: unreadable, and was not being marked (before {was}): {block:?}"
                            ));
                        }
                        if self.out.contains(&roles[cell]) && !was {
                            return Err(format!("{here}: a crash alone has made it unreadable"));
                        }
                        if bytes.iter().any(|byte| *byte != 0) {
                            return Err(format!("{here}: unreadable, and not zeros"));
                        }
                        continue;
                    }
                    if was && block.history.len() == 1 {
                        return Err(format!("{here}: was unreadable, and is not any more"));
                    }
                    let from = if power { block.durable } else { block.acknowledged };
                    // An unreadable block is no version that could come back.
                    let versions = &block.history[from..];
                    let whole = bytes
                        .as_chunks::<512>()
                        .0
                        .iter()
                        .all(|sector| versions.iter().any(|version| sector[..] == content(*version)[..512]));
                    if !whole {
                        let shown = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        return Err(format!("{here}: shows {shown}, not of {versions:?} (power {power}): {block:?}"));
                    }
                }
                self.verify_failed_members(array, *row, line, &found, dirty)?;
            }
        }
        Ok(())
    }

    /// A failed member that returns gets what is dirty by a delta resync; it must hold the rest.
    fn verify_failed_members(
        &self,
        array: &Array,
        row: u64,
        line: usize,
        found: &Line,
        dirty: bool,
    ) -> Result<(), String> {
        let (data, offset, p, q) = location_of(array, row, self.lines);
        let all = data.iter().copied().zip(&found.cells).chain([(p, &found.p)]).chain(q.map(|q| (q, &found.q)));
        for (role, bytes) in all.filter(|(role, _)| !dirty && !is_in_sync(array, *role)) {
            if self.disks.peek(LeafId(role.into()), DATA + offset + line as u64 * 4096, 4096) != *bytes {
                return Err(format!("row {row}, line {line}: member {role}, which is out, lacks what no bit says"));
            }
        }
        Ok(())
    }

    /// From now on the current content is what was written.
    fn settle(&mut self, array: &Array, started: &JournalStart) -> Result<(), String> {
        self.lost = started.lost.clone();
        for (at, row) in self.rows.clone().into_iter().enumerate() {
            for line in 0..self.lines {
                let found = line_of(self, array, row, line)?;
                for (cell, bytes) in found.cells.iter().enumerate() {
                    // A torn block of a write in flight would be written again by the user.
                    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    if content(version) != *bytes {
                        return Ok(());
                    }
                    self.blocks[at][line][cell] = Writer::version(version);
                }
            }
        }
        Ok(())
    }

    fn is_torn(&self, array: &Array) -> bool {
        self.rows.iter().any(|row| {
            (0..self.lines).any(|line| {
                let cells = line_of(self, array, *row, line).map_or(Vec::new(), |line| line.cells);
                cells.iter().any(|bytes| content(u64::from_le_bytes(bytes[..8].try_into().unwrap())) != *bytes)
            })
        })
    }

    /// Lets failed members return, and copies what is dirty to them.
    fn bring_back(&self, array: &mut Array, counts: &mut Counts) -> Result<(), String> {
        for role in array.failed() {
            let leaf = LeafId(role.into());
            let said = |error: crate::lifecycle::LifecycleError| format!("member {role} does not return: {error}");
            run(array.probe_returning(&self.disks, leaf)).map_err(said)?;
            run(array.begin_rebuild(&self.disks, role, RebuildTarget::Returning { leaf }, RebuildKind::FromBitmap))
                .map_err(said)?;
            let bits = run(load_regions(&self.disks, array, false)).map_err(said)?;
            for row in &self.rows {
                let region = region_of(array, *row, self.lines);
                if bits.dirty[region as usize / 64] >> (region % 64) & 1 == 0 {
                    continue;
                }
                let (data, offset, p, q) = location_of(array, *row, self.lines);
                for line in 0..self.lines {
                    let found = line_of(self, array, *row, line)?;
                    let cells = data.iter().copied().zip(&found.cells).chain([(p, &found.p)]);
                    for (_, bytes) in cells.chain(q.map(|q| (q, &found.q))).filter(|(of, _)| *of == role) {
                        let at = DATA + offset + line as u64 * 4096;
                        run(self.disks.write(leaf, at, bytes.clone(), true)).map_err(|error| error.to_string())?;
                    }
                }
            }
            run(store_regions(&self.disks, array, &[role], &bits.written, &bits.dirty)).map_err(said)?;
            run(array.promote(&self.disks, role)).map_err(said)?;
            counts.returned += 1;
        }
        Ok(())
    }

    /// Returns the members that the newest label of all disks calls in sync.
    fn in_sync(&self) -> Vec<u16> {
        let found = run(scan(&self.disks, &leaves(self.members)));
        let newest = found.arrays.first().and_then(|array| array.newest.clone());
        let state =
            |role: &u16| newest.as_ref().is_some_and(|l| l.members[usize::from(*role)].state == MemberState::InSync);
        (0..self.members as u16).filter(state).collect()
    }

    fn without(&self, lost: u32) -> Vec<LeafId> {
        leaves(self.members).into_iter().filter(|leaf| lost >> leaf.0 & 1 == 0).collect()
    }

    /// Whether the array must start without these members.
    fn tolerates(&self, lost: u32) -> bool {
        let parity = usize::from(self.level().parity());
        let out = (0..self.members).filter(|role| lost >> role & 1 == 1 || !self.in_sync().contains(&(*role as u16)));
        out.count() <= parity
    }

    fn level(&self) -> Level {
        let found = run(scan(&self.disks, &leaves(self.members)));
        found.arrays.first().and_then(|array| array.newest.as_ref().map(|label| label.spec.level)).unwrap()
    }

    /// Restarts the array without some members, interrupts that at a step, and restarts it without others.
    #[allow(clippy::too_many_arguments)]
    fn recover(
        &self,
        lost: u32,
        cut: Option<u64>,
        then: Option<u32>,
        first: Crash,
        chance: &mut Chance,
        counts: &mut Counts,
    ) -> Result<Option<(World, Array, JournalStart)>, String> {
        let world = self.clone();
        let mut power = first == Crash::Power;
        let mut lost = lost;
        if let Some(cut) = cut {
            world.disks.cut_at(Some(cut), chance.next());
            let degraded = world.tolerates(lost);
            let _ = restart(&world.disks, &world.without(lost), degraded, chance.next());
            let how = if chance.below(2) == 0 { Crash::Power } else { Crash::Kill };
            power |= how == Crash::Power;
            world.disks.crash(how, chance);
            counts.second_crashes += 1;
            lost = then.unwrap_or(lost);
        }
        let must = world.tolerates(lost);
        world.disks.cut_at(None, chance.next());
        let here = format!("cut {cut:?}, then without {lost:b}");
        let Some((array, started)) =
            restart(&world.disks, &world.without(lost), must, chance.next()).map_err(|why| format!("{here}: {why}"))?
        else {
            return if must && !can_diverge(world.level(), world.members as usize) {
                Err(format!("{here}: does not start"))
            } else {
                Ok(None)
            };
        };
        counts.starts += 1;
        counts.degraded += u64::from(!array.is_whole());
        counts.replayed += started.replayed;
        counts.resynced += started.resynced;
        counts.lost_now += started.newly_lost;
        counts.lost_kept += started.lost.len() as u64 - started.newly_lost.min(started.lost.len() as u64);
        world.verify(&array, &started, power).map_err(|why| format!("{here}: {why}"))?;
        Ok(Some((world, array, started)))
    }

    /// Returns the number of steps of a restart without these members.
    fn steps_of_restart(&self, lost: u32) -> u64 {
        let disks = self.disks.clone();
        disks.cut_at(None, 1);
        let _ = restart(&disks, &self.without(lost), true, 1);
        disks.steps()
    }

    /// Runs the writer for this many events, or until the power fails at a step.
    fn live(
        &mut self,
        array: Array,
        started: &JournalStart,
        mutation: Mutation,
        seed: u64,
        events: u64,
        cut: Option<u64>,
    ) -> Seen {
        let (rows, blocks) = (self.rows.clone(), self.blocks.clone());
        self.out = array.failed();
        let disks = self.disks.clone();
        disks.cut_at(None, seed);
        let Ok(mut writer) = Writer::new(&disks, array, started, rows, blocks, mutation, seed) else {
            return Seen::default();
        };
        disks.cut_at(cut, seed);
        for _ in 0..events {
            if writer.step().is_err() {
                break;
            }
        }
        let (blocks, lost, seen) = (writer.blocks.clone(), writer.lost.clone(), writer.seen);
        drop(writer);
        (self.disks, self.blocks, self.lost) = (disks, blocks, lost);
        seen
    }
}

/// Several runs, each of which ends at some step, with random failures; members return now and then.
fn history(seed: u64, mutation: Mutation, counts: &mut Counts) -> Result<(), String> {
    let mut chance = Chance(seed ^ 0x7e57);
    let (mut world, mut array, mut started) = build(seed);
    for life in 0..4 {
        let events = 60 + chance.below(200);
        let cut = (chance.below(4) > 0).then(|| chance.below(150));
        counts.add(&world.live(array, &started, mutation, seed << 8 | life, events, cut));
        let how = if chance.below(3) == 0 { Crash::Kill } else { Crash::Power };
        world.disks.crash(how, &mut chance);
        counts.crashes += 1;
        let pick = |chance: &mut Chance, world: &World| {
            let lost = (0..8).map(|_| chance.below(1 << world.members) as u32);
            lost.into_iter().find(|lost| world.tolerates(*lost)).unwrap_or(0)
        };
        let lost = if chance.below(4) == 0 { 0 } else { pick(&mut chance, &world) };
        let cut = (chance.below(2) == 0).then(|| chance.below(world.steps_of_restart(lost) + 1));
        let then = if chance.below(2) == 0 { Some(pick(&mut chance, &world)) } else { None };
        let here = format!("seed {seed}, life {life}, {how:?}, without {lost:b}");
        let next = world.recover(lost, cut, then, how, &mut chance, counts).map_err(|why| format!("{here}: {why}"))?;
        // Interrupted too often to start: this history is over.
        let Some(next) = next else { return Ok(()) };
        (world, array, started) = next;
        if world.is_torn(&array) {
            return Ok(());
        }
        world.settle(&array, &started)?;
        if chance.below(2) == 0 {
            world.bring_back(&mut array, counts).map_err(|why| format!("{here}: {why}"))?;
        }
    }
    Ok(())
}

/// Interrupts one run at every step; then, for every failure, the recovery at every `stride`th step, followed by every
/// other failure.
fn sweep(seed: u64, mutation: Mutation, stride: u64, counts: &mut Counts) -> Result<(), String> {
    const EVENTS: u64 = 90;
    let steps = {
        let (mut world, array, started) = build(seed);
        world.live(array, &started, mutation, seed, EVENTS, None);
        world.disks.steps()
    };
    for step in 0..=steps {
        for how in [Crash::Power, Crash::Kill] {
            let mut chance = Chance(seed << 16 | step);
            let (mut world, array, started) = build(seed);
            counts.add(&world.live(array, &started, mutation, seed, EVENTS, (step < steps).then_some(step)));
            world.disks.crash(how, &mut chance);
            counts.crashes += 1;
            for lost in (0..1 << world.members).filter(|lost| world.tolerates(*lost)) {
                let here = format!("seed {seed}, cut at step {step}, {how:?}, without {lost:b}");
                let said = |why: String| format!("{here}: {why}");
                world.recover(lost, None, None, how, &mut chance, counts).map_err(said)?;
                for cut in (chance.below(stride)..world.steps_of_restart(lost)).step_by(stride as usize) {
                    let then = chance.below(1 << world.members) as u32;
                    world.recover(lost, Some(cut), Some(then), how, &mut chance, counts).map_err(said)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_was_written_survives_every_history() {
    let mut counts = Counts::default();
    for seed in 0..500 {
        history(seed, Mutation::None, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.crashes > 1500 && counts.second_crashes > 700 && counts.degraded > 800, "{counts:?}");
    assert!(counts.replayed > 3000 && counts.resynced > 500 && counts.lost_now > 200, "{counts:?}");
    assert!(counts.lost_kept > 20 && counts.returned > 500, "{counts:?}");
    let seen = counts.seen;
    assert!(seen.marks > 1000 && seen.logged > 5000 && seen.expanded > 200, "{seen:?}");
    assert!(seen.flushes > 100 && seen.wraps > 200 && seen.left_list > 50, "{seen:?}");
}

#[test]
fn every_step_of_writer_and_recovery_may_be_the_last() {
    let mut counts = Counts::default();
    for seed in 0..6 {
        sweep(seed, Mutation::None, 9, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.crashes > 300 && counts.second_crashes > 5000, "{counts:?}");
    assert!(counts.replayed > 2000 && counts.resynced > 500 && counts.lost_now > 100, "{counts:?}");
}

/// A member that fails all writes from some step of the start or the recovery on is dropped, and the others go on.
#[test]
fn a_member_that_fails_at_any_step_of_the_recovery_is_dropped() {
    let mut dropped = 0;
    for seed in 0..24 {
        let mut chance = Chance(seed);
        let (mut world, array, started) = build(seed);
        world.live(array, &started, Mutation::None, seed, 120, None);
        world.disks.crash(Crash::Power, &mut chance);
        for leaf in leaves(world.members) {
            for at in (seed % 3..world.steps_of_restart(0)).step_by(3) {
                let world = world.clone();
                world.disks.fail(leaf, at, u64::MAX);
                let here = format!("seed {seed}, {leaf:?} fails from step {at} on");
                let restarted = restart(&world.disks, &leaves(world.members), false, chance.next());
                let restarted = restarted.unwrap_or_else(|why| panic!("{here}: {why}"));
                let (array, started) = restarted.unwrap_or_else(|| panic!("{here}: does not start"));
                dropped += array.failed().len();
                world.verify(&array, &started, true).unwrap_or_else(|why| panic!("{here}: {why}"));
            }
        }
    }
    assert!(dropped > 500, "{dropped} members were dropped");
}

/// Searches for a history that detects a mutation, from a seed that is known to be near one.
fn caught(mutation: Mutation, near: u64) -> Option<String> {
    let found = std::panic::catch_unwind(|| {
        let mut counts = Counts::default();
        (near..near + 3000).find_map(|seed| history(seed, mutation, &mut counts).err())
    });
    found.unwrap_or_else(|_| Some("an array could not be set up".to_owned()))
}

#[test]
fn every_mutation_of_a_writer_is_detected() {
    let mutations = [
        (Mutation::OneCopyFewer, 0),
        (Mutation::PlacedBeforeLogged, 0),
        (Mutation::OutOfOrder, 1300),
        (Mutation::TailBeforeFlush, 0),
        (Mutation::SpaceBeforeTail, 0),
        (Mutation::MarkOverEntry, 0),
        (Mutation::PartOfMarkedStripe, 145),
        (Mutation::FlushKeepsMarks, 0),
        (Mutation::DegradedMarked, 0),
        (Mutation::LeavesListEarly, 1020),
        (Mutation::TailBeforeList, 0),
    ];
    let mut missed = Vec::new();
    for (mutation, near) in mutations {
        let found = caught(mutation, near);
        println!("{mutation:?}: {}", found.as_deref().unwrap_or("unnoticed"));
        missed.extend(found.is_none().then_some(mutation));
    }
    assert!(missed.is_empty(), "unnoticed: {missed:?}");
}

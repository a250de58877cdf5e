//! Runs from a seed: everything about them is drawn from it.

use braid_format::DiskLayout;
use braid_geometry::Level;

use crate::arrays::{Kind, Trial};
use crate::counters::Counters;
use crate::disk::Profile;
use crate::labelled;
use crate::plot::journal::{JournalDisks, Manners};
use crate::plot::mirrors::Mirror;
use crate::plot::subject::Subject;
use crate::plot::{ArrayState, Habits, Plot};
use crate::plot::{journal_drills, row_drills};
use crate::rng::Rng;
use crate::shrink::Bounds;
use crate::sim::{Doom, Outcome, Sim};
use crate::trace::Trace;
use crate::world::Crash;

/// What goes on by itself in redundant arrays.
const MOMENTS: [&str; 13] = [
    "writing bits",
    "writing bits",
    "writing bits",
    "writing a label",
    "writing a label",
    "copying",
    "trouble of a member",
    "dropped",
    "in sync",
    "in sync",
    "resynced",
    "settling",
    "settling",
];

/// And in those with parity.
const OF_ROWS: [&str; 8] =
    ["logging", "logging", "logging", "placing", "placing", "recovering", "recovering", "writing a head"];

/// And where the journal may be on a disk of its own.
const JOURNALS: [&str; 8] = [
    "moving the journal",
    "moving the journal",
    "ring nowhere",
    "ring nowhere",
    "ring quiet",
    "ring quiet",
    "journal moved",
    "writing a head",
];

/// Of the first, those in which members neither come nor go.
const DATA: [&str; 8] = [
    "writing bits",
    "writing bits",
    "writing bits",
    "writing bits",
    "copying",
    "settling",
    "resynced",
    "starting a mirror",
];

/// And those in which members fail by themselves.
const FAILING: [&str; 8] = [
    "trouble of a member",
    "trouble of a member",
    "trouble of a member",
    "dropped",
    "dropped",
    "writing a label",
    "writing bits",
    "settling",
];

/// What a run of a redundant array is about most. Members that come and go hide what goes wrong with bits and data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Focus {
    /// Regions, bits and data: all members stay.
    Data,
    /// Members that make errors.
    Failing,
    /// Members that come and go.
    Members,
    /// Everything, more being lost than is tolerated and members being used apart included.
    All,
    /// One story that chance would hardly tell.
    Drill(Subject),
}

impl Focus {
    fn draw(rng: &mut Rng, drills: bool) -> Focus {
        match rng.below(6) {
            _ if drills => Focus::Drill(Subject::any(rng)),
            0 => Focus::Data,
            1 => Focus::Failing,
            2 => Focus::Members,
            3 => Focus::All,
            _ => Focus::Drill(Subject::any(rng)),
        }
    }
}

/// What is the same for all seeds of a range.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kinds of arrays to choose from.
    pub kinds: Vec<Kind>,
    /// Print every event as it happens.
    pub print: bool,
    /// Check by the count of requests, too, that what has drained has no user: off where the data are to show it.
    pub check_drained: bool,
    /// What a seed draws is cut down to these.
    pub bounds: Bounds,
    /// Of redundant arrays only drills.
    pub drills: bool,
    /// And of arrays with parity only this one.
    pub subject: Option<Subject>,
    /// Of redundant arrays only those that answer under a lease.
    pub replicated: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            kinds: Kind::ALL.to_vec(),
            print: false,
            check_drained: true,
            bounds: Bounds::NONE,
            drills: false,
            subject: None,
            replicated: false,
        }
    }
}

impl Options {
    /// Whether a redundant array is one with parity.
    fn draws_rows(&self, chance: &mut Rng) -> bool {
        let redundant = self.redundant();
        let of_rows = redundant.iter().filter(|kind| kind.has_parity()).count();
        of_rows > 0 && (of_rows == redundant.len() || chance.below(5) < 2)
    }

    /// The levels without redundancy.
    fn plain(&self) -> Vec<Kind> {
        self.kinds.iter().copied().filter(|kind| !kind.is_redundant()).collect()
    }

    /// Those with it.
    fn redundant(&self) -> Vec<Kind> {
        self.kinds.iter().copied().filter(|kind| kind.is_redundant()).collect()
    }
}

/// Runs a seed once.
pub fn once(seed: u64, options: &Options) -> Outcome {
    run(seed, options, None)
}

/// Runs a small story of a seed, cut at every durable step of its first life in turn, by both kinds of crash, and
/// once more during the recovery. Returns what all runs exercised, and the first violation with the cut that led to it.
pub fn sweep(seed: u64, options: &Options) -> (u64, Counters, Option<String>) {
    let whole = run(seed, options, Some(&[Doom::Clean]));
    let (mut runs, mut counters) = (1, whole.counters);
    if let Some(why) = whole.violation {
        return (runs, counters, Some(format!("seed {seed}, not cut: {why}")));
    }
    for step in 1..=whole.steps[0] {
        for (first, second) in [(Crash::Power, Crash::Power), (Crash::Kill, Crash::Power), (Crash::Power, Crash::Kill)]
        {
            let again = 1 + step % 9;
            let dooms = [Doom::AtStep(step, first), Doom::AtStep(again, second), Doom::AtStep(3 * again, first)];
            let outcome = run(seed, options, Some(&dooms));
            runs += 1;
            counters.merge(&outcome.counters);
            if let Some(why) = outcome.violation {
                return (runs, counters, Some(format!("seed {seed}, cut by {dooms:?}: {why}")));
            }
        }
    }
    (runs, counters, None)
}

/// With `dooms`: a small story without faults of disks, whose lives end like this.
fn run(seed: u64, options: &Options, dooms: Option<&[Doom]>) -> Outcome {
    let mut sim = Sim::new(seed, Trace::new(options.print));
    sim.stage.borrow_mut().check_drained = options.check_drained;
    let faults = sim.rng().coin() && dooms.is_none();
    // Many short lives on small disks, or fewer and longer ones.
    let short = sim.rng().coin() || dooms.is_some();
    let blocks_max = if short { 100 } else { 600 };
    let (plain, redundant) = (options.plain(), options.redundant());
    let mirrors = !redundant.is_empty() && (plain.is_empty() || sim.rng().coin());
    // Of a stream of its own: seeds of mirrors alone stay what they are.
    let rows = options.draws_rows(&mut Rng::new(seed ^ 0x726f_7773));
    let redundant: Vec<Kind> = redundant.into_iter().filter(|kind| kind.has_parity() == rows).collect();
    let focus = if mirrors { Focus::draw(sim.rng(), options.drills) } else { Focus::All };
    // A sweep cuts by its own rules.
    let focus = if dooms.is_some() && matches!(focus, Focus::Drill(_)) { Focus::Data } else { focus };
    // Of a stream of its own, as growth below.
    let mut later = Rng::new(seed ^ 0x6c61_7465);
    let of = if options.drills { 4 } else { 6 };
    let told = matches!(focus, Focus::Drill(_));
    // Chance tells less of rows than of copies: more of them are drills.
    let more = rows && dooms.is_none() && !told && focus != Focus::All && later.below(3) == 0;
    let focus = match focus {
        _ if rows && (told || more) => Focus::Drill(options.subject.unwrap_or_else(|| row_drills::any(&mut later))),
        Focus::Drill(subject) => Focus::Drill(subject.or_later(of, &mut later)),
        other => other,
    };
    // Of a stream of its own: seeds without journals on disks of their own stay what they are.
    let mut journals = Rng::new(seed ^ 0x6a6f_7572);
    let drawn = rows && dooms.is_none() && journals.below(3) == 0;
    let focus = match focus {
        Focus::Drill(_) if drawn && options.subject.is_none() && journals.below(3) > 0 => {
            Focus::Drill(journal_drills::any(&mut journals))
        }
        other => other,
    };
    // And of another one: seeds in which arrays take up no further disks stay what they are.
    let mut wide = Rng::new(seed ^ 0x7769_6465);
    let widened = rows && told && dooms.is_none() && options.subject.is_none() && wide.below(12) == 0;
    let focus = if widened { Focus::Drill(Subject::RowsWidened) } else { focus };
    // And of another one: seeds in which nothing becomes full stay what they are.
    let mut full = Rng::new(seed ^ 0x6675_6c6c);
    let fills = rows && told && dooms.is_none() && options.subject.is_none() && full.below(12) == 0;
    let focus = if fills { Focus::Drill(Subject::RowsFull) } else { focus };
    // And of another one: seeds in which nothing answers under a lease stay what they are.
    let mut leases = Rng::new(seed ^ 0x6c65_6173);
    let tame = matches!(focus, Focus::Data | Focus::Failing | Focus::Members);
    let replicated = mirrors
        && (!rows || options.replicated)
        && dooms.is_none()
        && (options.replicated || tame && leases.below(3) == 0);
    let focus = if replicated && !tame { *leases.pick(&[Focus::Failing, Focus::Members]) } else { focus };
    let drill = if let Focus::Drill(subject) = focus { Some(subject) } else { None };
    let with_journals = drawn || drill.is_some_and(Subject::is_of_journal);
    // A member that fails is what this is about; where bits and data are, members stay.
    let faults = match focus {
        Focus::Data | Focus::Drill(_) => false,
        Focus::Failing => dooms.is_none(),
        Focus::Members | Focus::All => faults,
    };
    let blocks_max = match focus {
        Focus::Data if sim.rng().coin() => 60,
        Focus::Drill(subject) => subject.blocks_max(),
        _ => blocks_max,
    };
    if mirrors {
        add_mirror(&mut sim, &redundant, blocks_max, faults, focus);
    }
    if replicated {
        let mirror = &mut sim.stage.borrow_mut().mirrors[0];
        mirror.leases = Some(leases.fork());
        // And of another one: seeds of whole blocks stay what they are.
        mirror.in_sectors = !rows && Rng::new(seed ^ 0x7365_6374).below(3) == 0;
    }
    if mirrors && rows && !matches!(focus, Focus::Drill(_)) && later.below(3) == 0 {
        // They share the shards, and what those have for journals and rows.
        add_mirror(&mut sim, &redundant, blocks_max.min(100), faults, focus);
    }
    if with_journals {
        let wild = matches!(focus, Focus::Members | Focus::All);
        add_journals(&mut sim, Manners { faults, wild }, &mut journals);
    }
    let levels: Vec<Level> = plain.iter().map(|kind| kind.level()).collect();
    let labels = !mirrors && sim.rng().below(3) > 0;
    if labels {
        let count = sim.rng().between(1, 6);
        let disks = (0..count).map(|_| add_disk(&mut sim, (1 << 20) + 8192, blocks_max, faults)).collect();
        let mut stage = sim.stage.borrow_mut();
        stage.label_disks = disks;
        stage.levels = levels;
    }
    let count = if mirrors { 0 } else { sim.rng().between(u64::from(!labels), if labels { 1 } else { 3 }) };
    for _ in 0..count {
        add_array(&mut sim, &plain, blocks_max, faults);
    }
    // A stream of its own: seeds in which nothing grows stay what they are.
    let mut growth = Rng::new(seed ^ 0x6772_6f77);
    let grows = growth.below(4) == 0 && (labels || mirrors && focus != Focus::All);
    let drilled = drill.is_some_and(Subject::widens);
    sim.stage.borrow_mut().growth = (grows || drilled).then(|| growth.fork());
    if mirrors && (grows || drilled) && (drill == Some(Subject::RowsWidened) || wide.below(3) > 0) {
        add_further(&mut sim, blocks_max, &mut wide);
    }
    // And of another one: seeds in which no mirror becomes wider stay what they are.
    let mut widths = Rng::new(seed ^ 0x7769_6474_6873);
    let changes = mirrors && !rows && drill.is_none() && focus != Focus::All && widths.below(3) == 2;
    sim.stage.borrow_mut().widths = changes.then(|| widths.fork());
    sim.stage.borrow_mut().old_copies = Rng::new(seed ^ 0x636f_7079);
    // Moments at which a crash is worth more than at others.
    let mut phases: Vec<&'static str> = Vec::new();
    if labels {
        let most = ["creating", "deleting", "renaming", "assembling"];
        phases.extend(most.into_iter().chain(most).chain(["creating", "creating", "stopping"]));
    }
    if count > 0 {
        phases.extend(["changing a layout", "replacing"]);
    }
    if mirrors {
        let members = ["pulling a member", "returning a member", "failing a member"];
        phases.extend(members.into_iter().chain(["starting a mirror", "filling a new member", "checking a mirror"]));
        phases.extend(MOMENTS);
    }
    match focus {
        Focus::Data => phases = DATA.to_vec(),
        Focus::Failing => phases = FAILING.to_vec(),
        Focus::Members | Focus::All | Focus::Drill(_) => {}
    }
    if mirrors && rows {
        phases.extend(OF_ROWS);
    }
    if with_journals {
        phases.extend(JOURNALS.into_iter().chain(JOURNALS));
    }
    if grows {
        let often = phases.len() / 2;
        phases.extend(std::iter::repeat_n("growing", often.max(2)));
    }
    if changes {
        let often = phases.len() / 2;
        phases.extend(std::iter::repeat_n("changing the width", often.max(2)));
    }
    let lives = sim.rng().between(1, if short { 12 } else { 6 });
    let mut drawn: Vec<Doom> = (0..lives).map(|_| draw_doom(sim.rng(), short, faults, mirrors, &phases)).collect();
    if labels && short && sim.rng().coin() {
        // Some starts in a row that crashes cut: only then labels are more than one step apart, if they ever are.
        let first = sim.rng().index(drawn.len());
        let count = sim.rng().between(2, 5) as usize;
        let most = *sim.rng().pick(&[4, 8, 16]);
        for doom in drawn.iter_mut().skip(first).take(count) {
            let how = if sim.rng().coin() { Crash::Power } else { Crash::Kill };
            *doom = Doom::AtStep(sim.rng().between(1, most), how);
        }
    }
    let mut dooms = dooms.map_or(drawn, <[Doom]>::to_vec);
    let bounds = options.bounds;
    let acts = drill.map(|subject| {
        sim.world.counters.add("drills", subject.name());
        subject.draw(sim.rng())
    });
    if let Some(acts) = &acts {
        dooms = acts.iter().map(|act| act.doom).collect();
        sim.busy_shard = drill.is_some_and(Subject::has_busy_shard);
        sim.stage.borrow_mut().mirrors[0].script = acts.iter().map(|act| act.after.clone()).collect();
    }
    dooms.truncate(bounds.lives as usize);
    let life = std::cell::Cell::new(0);
    let mut outcome = sim.run(&dooms, |rng, doom| {
        let mut habits = match (short, labels) {
            (true, false) if mirrors => Habits::draw_mirrors(rng, faults),
            (true, true) => Habits::draw_busy_admin(rng, faults),
            (true, false) => Habits::draw_short(rng, faults),
            (false, _) => Habits::draw(rng, faults),
        };
        if matches!(focus, Focus::Data | Focus::Failing) {
            habits.actions = if rng.coin() { 0 } else { 1 };
            habits.requests_max = 100;
            habits.flushes = focus == Focus::Failing || rng.below(3) == 0;
        }
        if let Some(Doom::Within(phase, ..)) = doom {
            habits.aim = Some(phase);
            let busy = !matches!(focus, Focus::Data | Focus::Failing);
            let busy = busy || phase == "growing";
            habits.actions = if busy { habits.actions.max(4) } else { habits.actions };
        }
        if grows || with_journals {
            habits.actions = habits.actions.max(3);
        }
        habits.actions = habits.actions.min(bounds.actions);
        habits.clients_max = habits.clients_max.min(u64::from(bounds.clients));
        habits.requests_max = habits.requests_max.min(u64::from(bounds.requests));
        let act = acts.as_ref().and_then(|acts| acts.get(life.replace(life.get() + 1)));
        let steps = act.filter(|_| doom.is_some()).map(|act| {
            let some = act.steps.iter().copied().take(bounds.actions as usize).collect();
            (some, bounds)
        });
        Plot { habits: doom.is_some().then_some(habits), rng: rng.fork(), steps }
    });
    if mirrors && rows {
        // What is demanded of them nothing else makes up for.
        outcome.counters = outcome.counters.prefixed("parity: ");
    }
    outcome
}

/// Runs a seed twice. The second run must be like the first.
///
/// # Panics
/// When it is not: the simulator or the engine looked at something that does not come from the seed.
pub fn twice(seed: u64, options: &Options) -> Outcome {
    let quiet = Options { print: false, ..options.clone() };
    let (first, second) = (once(seed, options), once(seed, &quiet));
    assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed} does not replay");
    first
}

/// A redundant array, one member of which is always well. Where any two hold all copies of something, all but one other are.
fn add_mirror(sim: &mut Sim, kinds: &[Kind], blocks_max: u64, faults: bool, focus: Focus) {
    let kind = *sim.rng().pick(kinds);
    let most = match focus {
        // All but one may be lost then.
        Focus::Drill(Subject::TakingOver) => 2,
        Focus::Drill(_) if kind == Kind::Raid10 => 2,
        Focus::Drill(_) => 3,
        _ => 4,
    };
    let (least, most) = match kind {
        Kind::Raid5 if matches!(focus, Focus::Drill(_)) => (3, 4),
        Kind::Raid6 if matches!(focus, Focus::Drill(_)) => (4, 5),
        Kind::Raid5 => (2, 5),
        Kind::Raid6 => (3, 6),
        _ => (2, most),
    };
    let count = sim.rng().between(least, most) as usize;
    let copies = if kind == Kind::Raid10 { sim.rng().between(2, count.min(3) as u64) as u16 } else { 2 };
    let before = (1 << 20) + 8192;
    // Or nobody is well: then more may be lost than the array tolerates.
    let careless = focus == Focus::All && sim.rng().coin();
    let bad = match kind {
        Kind::Raid5 => 1,
        Kind::Raid6 => 2,
        _ => sim.rng().between(1, count as u64 - 1) as usize,
    };
    let mut disks = Vec::new();
    // In a drill each member may be the one that is left: they are of one size.
    let same = before + 4096 * sim.rng().between(20, blocks_max);
    for number in 0..count {
        let within = number <= bad && number > 0 && (kind != Kind::Raid10 || number == 1);
        let faulty = faults && (within || careless && sim.rng().coin());
        // The one that is well is the largest: it is part of every zone.
        let more = if number == 0 { 4096 * blocks_max } else { 0 };
        let disk = if let Focus::Drill(_) = focus {
            let disk = add_disk_sized(sim, same, false);
            if kind.has_parity() && sim.rng().below(3) == 0 {
                // What it is asked for first it answers last.
                sim.world.disks[disk].profile.slow = 300_000;
            }
            disk
        } else {
            add_disk_of(sim, before + more, blocks_max, faulty)
        };
        if faulty && focus == Focus::Failing {
            let often = sim.rng().between(10_000, 100_000) as u32;
            let kind = sim.rng().below(4);
            let profile = &mut sim.world.disks[disk].profile;
            match kind {
                0 => profile.flush_error = often,
                1 => (profile.latent_error, profile.read_error) = (often, often / 4),
                _ => profile.write_error = often,
            }
        }
        disks.push(disk);
    }
    let spares = if matches!(focus, Focus::Drill(_)) { 0 } else { sim.rng().below(3) };
    let others: Vec<usize> = match focus {
        Focus::Drill(subject) if subject.replaces() => vec![add_disk_sized(sim, same, false)],
        Focus::Drill(_) if kind.has_parity() => Vec::new(),
        _ => (0..spares).map(|_| add_disk(sim, before, blocks_max, faults)).collect(),
    };
    let well = (!careless).then_some(disks[0]);
    let mut spec = labelled::draw_spec(&[kind.level()], sim.rng());
    spec.copies = copies;
    if kind.has_parity() && matches!(focus, Focus::Drill(_)) {
        spec.chunk_bytes = 4096 * *sim.rng().pick(&[1, 1, 2, 3, 4]);
    }
    // The others are never touched by hand, so that what one alone does not hold is not lost.
    let victims = if careless {
        disks.clone()
    } else if kind.has_parity() {
        disks[1..=bad].to_vec()
    } else if kind == Kind::Raid1 {
        disks[1..].to_vec()
    } else {
        vec![disks[1]]
    };
    let data = (count - usize::from(kind.level().parity())) as u64;
    let row_blocks = if kind.has_parity() { spec.chunk_bytes / 4096 * data } else { 0 };
    let mut order = disks;
    sim.rng().shuffle(&mut order);
    for disk in order.iter().chain(&others) {
        let places =
            DiskLayout::for_device(sim.world.disks[*disk].size_bytes()).expect("a disk that has room for labels");
        sim.world.bitmaps.insert(*disk, (places.bitmap.start, places.bitmap.start + places.bitmap.bytes));
        if kind.has_parity() {
            let journal = (places.journal.start, places.journal.start + places.journal.bytes);
            sim.world.journals.insert(*disk, journal);
        }
    }
    let unplug = match focus {
        Focus::Data | Focus::Failing | Focus::Drill(_) => 0,
        Focus::Members | Focus::All => *sim.rng().pick(&[0, 100_000, 500_000]),
    };
    let clear_ns_max = if let Focus::Drill(subject) = focus { Some(subject.clear_ns_max(sim.rng())) } else { None };
    let mirror = Mirror {
        clear_ns_max,
        row_blocks,
        disks: order,
        others,
        well,
        victims,
        unplug,
        wild: focus == Focus::All,
        // What is computed from a cell that has rotted is wrong for good: nothing must be, while one has.
        rots: !kind.has_parity() || !faults,
        ..Mirror::new(spec)
    };
    sim.stage.borrow_mut().mirrors.push(mirror);
}

/// Disks with which redundant arrays may grow: once or twice.
fn add_further(sim: &mut Sim, blocks_max: u64, chance: &mut Rng) {
    let count = sim.stage.borrow().mirrors.len();
    for index in 0..count {
        let spec = sim.stage.borrow().mirrors[index].spec;
        for _ in 0..spec.members_min() as u64 * chance.between(1, 2) + chance.below(2) {
            let size = (1 << 20) + 8192 + 4096 * chance.between(20, blocks_max.clamp(20, 200));
            let disk = sim.add_disk(size, chance.coin(), Profile::healthy(chance));
            let places = DiskLayout::for_device(size).expect("a disk that has room for labels");
            sim.world.bitmaps.insert(disk, (places.bitmap.start, places.bitmap.start + places.bitmap.bytes));
            if spec.level.parity() > 0 {
                let journal = (places.journal.start, places.journal.start + places.journal.bytes);
                sim.world.journals.insert(disk, journal);
            }
            sim.stage.borrow_mut().mirrors[index].further.push(disk);
        }
    }
}

/// Disks for the journals of all arrays.
fn add_journals(sim: &mut Sim, manners: Manners, chance: &mut Rng) {
    let count = sim.stage.borrow().mirrors.len();
    for index in 0..count {
        let disks = JournalDisks::draw(sim, chance, manners);
        sim.stage.borrow_mut().mirrors[index].journal = disks;
    }
    sim.stage.borrow_mut().journals = Some(chance.fork());
}

fn add_array(sim: &mut Sim, kinds: &[Kind], blocks_max: u64, faults: bool) {
    let kind = *sim.rng().pick(kinds);
    let members = sim.rng().between(1, 4) as usize;
    let disks: Vec<usize> = (0..members).map(|_| add_disk(sim, 64 << 10, blocks_max, faults)).collect();
    let trial = Trial::draw(kind, disks, sim.rng());
    sim.stage.borrow_mut().arrays.push(ArrayState { trial, number: None });
}

fn add_disk(sim: &mut Sim, before_bytes: u64, blocks_max: u64, faults: bool) -> usize {
    let faulty = faults && sim.rng().below(3) > 0;
    add_disk_of(sim, before_bytes, blocks_max, faulty)
}

fn add_disk_of(sim: &mut Sim, before_bytes: u64, blocks_max: u64, faulty: bool) -> usize {
    let size = before_bytes + 4096 * sim.rng().between(20, blocks_max);
    add_disk_sized(sim, size, faulty)
}

fn add_disk_sized(sim: &mut Sim, size: u64, faulty: bool) -> usize {
    let profile = if faulty { Profile::faulty(sim.rng()) } else { Profile::healthy(sim.rng()) };
    let junk = sim.rng().coin();
    sim.add_disk(size, junk, profile)
}

fn draw_doom(rng: &mut Rng, short: bool, faults: bool, mirrors: bool, phases: &[&'static str]) -> Doom {
    // Bits and what is flushed are about power.
    let power = if phases.starts_with(&DATA) { rng.below(4) > 0 } else { rng.coin() };
    let how = if power { Crash::Power } else { Crash::Kill };
    match rng.below(16) {
        0 | 1 => Doom::Clean,
        2..=8 => {
            let (phase, most) = (*rng.pick(phases), *rng.pick(&[10_000, 100_000, 600_000]));
            let most = if phase == "writing bits" { *rng.pick(&[100_000, 600_000, 3_000_000]) } else { most };
            let nth = if MOMENTS.contains(&phase) || OF_ROWS.contains(&phase) {
                *rng.pick(&[1, 2, 5, 30])
            } else {
                *rng.pick(&[1, 1, 2])
            };
            Doom::Within(phase, rng.between(1, nth), rng.below(most), how)
        }
        // Long enough for what hangs to become late, and to come back.
        9..=11 if faults => Doom::After(rng.below(100_000_000_000), how),
        _ if short => {
            // Also while the last crash is still being dealt with.
            let most = *rng.pick(if mirrors { &[40, 200, 1000] } else { &[15, 80, 80] });
            Doom::AtStep(rng.between(1, most), how)
        }
        9..=11 => {
            let most = *rng.pick(&[10, 100, 1000]);
            Doom::AtStep(rng.between(1, most), how)
        }
        _ => {
            let most = *rng.pick(&[1_000_000, 10_000_000, 100_000_000]);
            Doom::After(rng.below(most), how)
        }
    }
}

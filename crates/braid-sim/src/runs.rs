//! Runs of seeds: everything about a run is drawn from its seed.

use braid_format::DiskLayout;
use braid_geometry::Level;

use crate::acts::PlannedEnd;
use crate::arrays::{ArrayKind, ArrayState, PlainArray};
use crate::bounds::Bounds;
use crate::counters::Counters;
use crate::disk::Profile;
use crate::journal_disks::{JournalDisks, JournalHabits};
use crate::labelled;
use crate::mirrors::Mirror;
use crate::rng::Rng;
use crate::scenario::catalog::Scenario;
use crate::scenario::{AdminHabits, LifePlan, journal_scenarios, parity_scenarios};
use crate::sim::{Outcome, Sim};
use crate::trace::Trace;
use crate::world::Crash;

/// Moments and phases at which crashes of redundant arrays aim, in any run. A name that is listed several times is
/// drawn more often; the same holds for the lists below.
const MOMENTS: [&str; 13] = [
    "writing bits",
    "writing bits",
    "writing bits",
    "writing a label",
    "writing a label",
    "copying",
    "fault of a member",
    "dropped",
    "in sync",
    "in sync",
    "resynced",
    "settling",
    "settling",
];

/// Additional ones in runs of arrays with parity.
const PARITY_MOMENTS: [&str; 8] =
    ["logging", "logging", "logging", "placing", "placing", "recovering", "recovering", "writing a head"];

/// Additional ones in runs in which the journal may be on a disk of its own.
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

/// Those of [`Focus::Data`], in which no member fails or returns.
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

/// Those of [`Focus::Failing`], in which members fail because of I/O errors.
const FAILING: [&str; 8] = [
    "fault of a member",
    "fault of a member",
    "fault of a member",
    "dropped",
    "dropped",
    "writing a label",
    "writing bits",
    "settling",
];

/// The focus of a run of a redundant array. A failed member is resynced or rebuilt when it returns, which would hide
/// bugs of the bitmap and of the data path: some runs exclude that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Focus {
    /// The data path, regions and the bitmap: no member fails.
    Data,
    /// Members whose disks make errors.
    Failing,
    /// Members that the administrator fails or pulls, and returns.
    Members,
    /// Everything, including losses beyond tolerance and split brain.
    All,
    /// A scenario that random actions would hardly produce.
    Scenario(Scenario),
}

impl Focus {
    fn draw(rng: &mut Rng, scenarios_only: bool) -> Focus {
        match rng.below(6) {
            _ if scenarios_only => Focus::Scenario(Scenario::any(rng)),
            0 => Focus::Data,
            1 => Focus::Failing,
            2 => Focus::Members,
            3 => Focus::All,
            _ => Focus::Scenario(Scenario::any(rng)),
        }
    }
}

/// Options that apply to all seeds of a range.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kinds of arrays to choose from.
    pub kinds: Vec<ArrayKind>,
    /// Print every event as it happens.
    pub print: bool,
    /// Check that no request uses a layout any more when it is reported as drained. Off in runs that are to detect such
    /// a bug by wrong data alone.
    pub check_drained: bool,
    /// Limits on what a seed draws.
    pub bounds: Bounds,
    /// Of redundant arrays, run only scenarios.
    pub scenarios_only: bool,
    /// Of arrays with parity, run only this scenario.
    pub scenario: Option<Scenario>,
    /// Of redundant arrays, run only those that answer under a lease.
    pub replicated: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            kinds: ArrayKind::ALL.to_vec(),
            print: false,
            check_drained: true,
            bounds: Bounds::NONE,
            scenarios_only: false,
            scenario: None,
            replicated: false,
        }
    }
}

impl Options {
    /// Draws whether a redundant array is one with parity.
    fn draws_parity(&self, chance: &mut Rng) -> bool {
        let redundant = self.redundant();
        let with_parity = redundant.iter().filter(|kind| kind.has_parity()).count();
        with_parity > 0 && (with_parity == redundant.len() || chance.below(5) < 2)
    }

    /// Returns the kinds without redundancy.
    fn plain(&self) -> Vec<ArrayKind> {
        self.kinds.iter().copied().filter(|kind| !kind.is_redundant()).collect()
    }

    /// Returns the kinds with redundancy.
    fn redundant(&self) -> Vec<ArrayKind> {
        self.kinds.iter().copied().filter(|kind| kind.is_redundant()).collect()
    }
}

/// Runs a seed once.
pub fn once(seed: u64, options: &Options) -> Outcome {
    run(seed, options, None)
}

/// Sweeps a seed: repeats a small run of it, with a crash at each durable step of its first life in turn. Each step is
/// tried with three pairs of crash kinds (power, power), (kill, power) and (power, kill), and each run crashes twice
/// more, at early steps of the next two lives, mostly during recovery. Returns the number of runs, what all of them
/// exercised, and the first violation with the crashes that led to it.
pub fn sweep(seed: u64, options: &Options) -> (u64, Counters, Option<String>) {
    let whole = run(seed, options, Some(&[PlannedEnd::Clean]));
    let (mut runs, mut counters) = (1, whole.counters);
    if let Some(why) = whole.violation {
        return (runs, counters, Some(format!("not cut: {why}")));
    }
    for step in 1..=whole.steps[0] {
        for (first, second) in [(Crash::Power, Crash::Power), (Crash::Kill, Crash::Power), (Crash::Power, Crash::Kill)]
        {
            let again = 1 + step % 9;
            let dooms = [
                PlannedEnd::AtStep(step, first),
                PlannedEnd::AtStep(again, second),
                PlannedEnd::AtStep(3 * again, first),
            ];
            let outcome = run(seed, options, Some(&dooms));
            runs += 1;
            counters.merge(&outcome.counters);
            if let Some(why) = outcome.violation {
                return (runs, counters, Some(format!("cut by {dooms:?}: {why}")));
            }
        }
    }
    (runs, counters, None)
}

/// Runs a seed. With `dooms` the run is small and without disk faults, and its lives end as given.
fn run(seed: u64, options: &Options, dooms: Option<&[PlannedEnd]>) -> Outcome {
    let mut sim = Sim::new(seed, Trace::new(options.print));
    sim.state.borrow_mut().check_drained = options.check_drained;
    let faults = sim.rng().coin() && dooms.is_none();
    // Many short lives on small disks, or fewer and longer ones.
    let short = sim.rng().coin() || dooms.is_some();
    let blocks_max = if short { 100 } else { 600 };
    let (plain, redundant) = (options.plain(), options.redundant());
    let mirrors = !redundant.is_empty() && (plain.is_empty() || sim.rng().coin());
    // From a stream of its own: seeds of mirrors alone stay the same.
    let parity = options.draws_parity(&mut Rng::new(seed ^ 0x726f_7773));
    let redundant: Vec<ArrayKind> = redundant.into_iter().filter(|kind| kind.has_parity() == parity).collect();
    let focus = if mirrors { Focus::draw(sim.rng(), options.scenarios_only) } else { Focus::All };
    // A scenario plans its own crashes, a sweep needs them at each step: it runs no scenario.
    let focus = if dooms.is_some() && matches!(focus, Focus::Scenario(_)) { Focus::Data } else { focus };
    // From a stream of its own, as growth below.
    let mut later = Rng::new(seed ^ 0x6c61_7465);
    let of = if options.scenarios_only { 4 } else { 6 };
    let is_scenario = matches!(focus, Focus::Scenario(_));
    // Random actions exercise stripes less than they exercise copies of mirrors: arrays with parity run scenarios more
    // often.
    let more = parity && dooms.is_none() && !is_scenario && focus != Focus::All && later.below(3) == 0;
    let focus = match focus {
        _ if parity && (is_scenario || more) => {
            Focus::Scenario(options.scenario.unwrap_or_else(|| parity_scenarios::any(&mut later)))
        }
        Focus::Scenario(scenario) => Focus::Scenario(scenario.or_later(of, &mut later)),
        other => other,
    };
    // From a stream of its own: seeds without journals on disks of their own stay the same.
    let mut journals = Rng::new(seed ^ 0x6a6f_7572);
    let drawn = parity && dooms.is_none() && journals.below(3) == 0;
    let focus = match focus {
        Focus::Scenario(_) if drawn && options.scenario.is_none() && journals.below(3) > 0 => {
            Focus::Scenario(journal_scenarios::any(&mut journals))
        }
        other => other,
    };
    // From another stream: seeds in which arrays take no new members stay the same.
    let mut wide = Rng::new(seed ^ 0x7769_6465);
    let widened = parity && is_scenario && dooms.is_none() && options.scenario.is_none() && wide.below(12) == 0;
    let focus = if widened { Focus::Scenario(Scenario::StripesWidened) } else { focus };
    // From another stream: seeds in which no file system becomes full stay the same.
    let mut full = Rng::new(seed ^ 0x6675_6c6c);
    let fills = parity && is_scenario && dooms.is_none() && options.scenario.is_none() && full.below(12) == 0;
    let focus = if fills { Focus::Scenario(Scenario::StripesFullFileSystem) } else { focus };
    // From another stream: seeds without leases stay the same.
    let mut leases = Rng::new(seed ^ 0x6c65_6173);
    let tame = matches!(focus, Focus::Data | Focus::Failing | Focus::Members);
    let replicated = mirrors
        && (!parity || options.replicated)
        && dooms.is_none()
        && (options.replicated || tame && leases.below(3) == 0);
    let focus = if replicated && !tame { *leases.pick(&[Focus::Failing, Focus::Members]) } else { focus };
    let scenario = if let Focus::Scenario(scenario) = focus { Some(scenario) } else { None };
    let with_journals = drawn || scenario.is_some_and(Scenario::is_of_journal);
    // This focus is on failing members; where the focus is on bits and data, members do not fail.
    let faults = match focus {
        Focus::Data | Focus::Scenario(_) => false,
        Focus::Failing => dooms.is_none(),
        Focus::Members | Focus::All => faults,
    };
    let blocks_max = match focus {
        Focus::Data if sim.rng().coin() => 60,
        Focus::Scenario(scenario) => scenario.blocks_max(),
        _ => blocks_max,
    };
    if mirrors {
        add_mirror(&mut sim, &redundant, blocks_max, faults, focus);
    }
    if replicated {
        let mirror = &mut sim.state.borrow_mut().mirrors[0];
        mirror.leases = Some(leases.fork());
        // From another stream: seeds of whole blocks stay the same.
        mirror.in_sectors = !parity && Rng::new(seed ^ 0x7365_6374).below(3) == 0;
    }
    if mirrors && parity && !matches!(focus, Focus::Scenario(_)) && later.below(3) == 0 {
        // Both arrays share the shards, and the shards' memory for journals and stripes.
        add_mirror(&mut sim, &redundant, blocks_max.min(100), faults, focus);
    }
    if with_journals {
        let wild = matches!(focus, Focus::Members | Focus::All);
        add_journals(&mut sim, JournalHabits { faults, wild }, &mut journals);
    }
    let levels: Vec<Level> = plain.iter().map(|kind| kind.level()).collect();
    let labels = !mirrors && sim.rng().below(3) > 0;
    if labels {
        let count = sim.rng().between(1, 6);
        let disks = (0..count).map(|_| add_disk(&mut sim, (1 << 20) + 8192, blocks_max, faults)).collect();
        let mut state = sim.state.borrow_mut();
        state.label_disks = disks;
        state.levels = levels;
    }
    let count = if mirrors { 0 } else { sim.rng().between(u64::from(!labels), if labels { 1 } else { 3 }) };
    for _ in 0..count {
        add_array(&mut sim, &plain, blocks_max, faults);
    }
    // From a stream of its own: seeds in which nothing grows stay the same.
    let mut growth = Rng::new(seed ^ 0x6772_6f77);
    let grows = growth.below(4) == 0 && (labels || mirrors && focus != Focus::All);
    let grows_in_scenario = scenario.is_some_and(Scenario::widens);
    sim.state.borrow_mut().growth = (grows || grows_in_scenario).then(|| growth.fork());
    if mirrors && (grows || grows_in_scenario) && (scenario == Some(Scenario::StripesWidened) || wide.below(3) > 0) {
        add_further(&mut sim, blocks_max, &mut wide);
    }
    // From another stream: seeds in which no mirror gets wider stay the same.
    let mut widths = Rng::new(seed ^ 0x7769_6474_6873);
    let changes = mirrors && !parity && scenario.is_none() && focus != Focus::All && widths.below(3) == 2;
    sim.state.borrow_mut().widths = changes.then(|| widths.fork());
    sim.state.borrow_mut().old_copies = Rng::new(seed ^ 0x636f_7079);
    // The moments and phases at which crashes of this run aim.
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
        phases.extend(members.into_iter().chain(["starting a mirror", "rebuilding a new member", "checking a mirror"]));
        phases.extend(MOMENTS);
    }
    match focus {
        Focus::Data => phases = DATA.to_vec(),
        Focus::Failing => phases = FAILING.to_vec(),
        Focus::Members | Focus::All | Focus::Scenario(_) => {}
    }
    if mirrors && parity {
        phases.extend(PARITY_MOMENTS);
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
    let mut drawn: Vec<PlannedEnd> =
        (0..lives).map(|_| draw_doom(sim.rng(), short, faults, mirrors, &phases)).collect();
    if labels && short && sim.rng().coin() {
        // A crash interrupts several consecutive starts. Only that could leave labels of members more than one sequence
        // number apart.
        let first = sim.rng().index(drawn.len());
        let count = sim.rng().between(2, 5) as usize;
        let most = *sim.rng().pick(&[4, 8, 16]);
        for doom in drawn.iter_mut().skip(first).take(count) {
            let how = if sim.rng().coin() { Crash::Power } else { Crash::Kill };
            *doom = PlannedEnd::AtStep(sim.rng().between(1, most), how);
        }
    }
    let mut dooms = dooms.map_or(drawn, <[PlannedEnd]>::to_vec);
    let bounds = options.bounds;
    let acts = scenario.map(|scenario| {
        sim.world.counters.add("scenarios", scenario.name());
        scenario.draw(sim.rng())
    });
    if let Some(acts) = &acts {
        dooms = acts.iter().map(|act| act.doom).collect();
        sim.busy_shard = scenario.is_some_and(Scenario::has_busy_shard);
        sim.state.borrow_mut().mirrors[0].script = acts.iter().map(|act| act.after.clone()).collect();
    }
    dooms.truncate(bounds.lives as usize);
    let life = std::cell::Cell::new(0);
    let mut outcome = sim.run(&dooms, |rng, doom| {
        let mut habits = match (short, labels) {
            (true, false) if mirrors => AdminHabits::draw_mirrors(rng, faults),
            (true, true) => AdminHabits::draw_busy_admin(rng, faults),
            (true, false) => AdminHabits::draw_short(rng, faults),
            (false, _) => AdminHabits::draw(rng, faults),
        };
        if matches!(focus, Focus::Data | Focus::Failing) {
            habits.actions = if rng.coin() { 0 } else { 1 };
            habits.requests_max = 100;
            habits.flushes = focus == Focus::Failing || rng.below(3) == 0;
        }
        if let Some(PlannedEnd::Within(phase, ..)) = doom {
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
        LifePlan { habits: doom.is_some().then_some(habits), rng: rng.fork(), steps }
    });
    if mirrors && parity {
        // The requirements for arrays with parity must be met by them alone.
        outcome.counters = outcome.counters.prefixed("parity: ");
    }
    outcome
}

/// Adds a redundant array. Unless the run loses more members than are tolerated, one member is always healthy. Then all
/// others may fail on RAID 1, one on RAID 10, and as many as there are parities on RAID 5 and 6.
fn add_mirror(sim: &mut Sim, kinds: &[ArrayKind], blocks_max: u64, faults: bool, focus: Focus) {
    let kind = *sim.rng().pick(kinds);
    let most = match focus {
        // All but one may be lost in this scenario.
        Focus::Scenario(Scenario::TakeoverFailed) => 2,
        Focus::Scenario(_) if kind == ArrayKind::Raid10 => 2,
        Focus::Scenario(_) => 3,
        _ => 4,
    };
    let (least, most) = match kind {
        ArrayKind::Raid5 if matches!(focus, Focus::Scenario(_)) => (3, 4),
        ArrayKind::Raid6 if matches!(focus, Focus::Scenario(_)) => (4, 5),
        ArrayKind::Raid5 => (2, 5),
        ArrayKind::Raid6 => (3, 6),
        _ => (2, most),
    };
    let count = sim.rng().between(least, most) as usize;
    let copies = if kind == ArrayKind::Raid10 { sim.rng().between(2, count.min(3) as u64) as u16 } else { 2 };
    let before = (1 << 20) + 8192;
    // In some runs of everything no member is always healthy: more members may be lost than the array tolerates.
    let careless = focus == Focus::All && sim.rng().coin();
    let bad = match kind {
        ArrayKind::Raid5 => 1,
        ArrayKind::Raid6 => 2,
        _ => sim.rng().between(1, count as u64 - 1) as usize,
    };
    let mut disks = Vec::new();
    // In a scenario any member may be the only one left and must hold all data: all have one size.
    let same = before + 4096 * sim.rng().between(20, blocks_max);
    for number in 0..count {
        let within = number <= bad && number > 0 && (kind != ArrayKind::Raid10 || number == 1);
        let faulty = faults && (within || careless && sim.rng().coin());
        // The healthy member is the largest: it is part of every zone.
        let more = if number == 0 { 4096 * blocks_max } else { 0 };
        let disk = if let Focus::Scenario(_) = focus {
            let disk = add_disk_sized(sim, same, false);
            if kind.has_parity() && sim.rng().below(3) == 0 {
                // This disk completes some of its I/Os late, and so out of order.
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
    let spares = if matches!(focus, Focus::Scenario(_)) { 0 } else { sim.rng().below(3) };
    let others: Vec<usize> = match focus {
        Focus::Scenario(scenario) if scenario.replaces() => vec![add_disk_sized(sim, same, false)],
        Focus::Scenario(_) if kind.has_parity() => Vec::new(),
        _ => (0..spares).map(|_| add_disk(sim, before, blocks_max, faults)).collect(),
    };
    let healthy = (!careless).then_some(disks[0]);
    let mut spec = labelled::draw_spec(&[kind.level()], sim.rng());
    spec.copies = copies;
    if kind.has_parity() && matches!(focus, Focus::Scenario(_)) {
        spec.chunk_bytes = 4096 * *sim.rng().pick(&[1, 1, 2, 3, 4]);
    }
    // The others are never failed by hand, so that data that one member alone does not hold is not lost.
    let victims = if careless {
        disks.clone()
    } else if kind.has_parity() {
        disks[1..=bad].to_vec()
    } else if kind == ArrayKind::Raid1 {
        disks[1..].to_vec()
    } else {
        vec![disks[1]]
    };
    let data = (count - usize::from(kind.level().parity())) as u64;
    let stripe_blocks = if kind.has_parity() { spec.chunk_bytes / 4096 * data } else { 0 };
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
        Focus::Data | Focus::Failing | Focus::Scenario(_) => 0,
        Focus::Members | Focus::All => *sim.rng().pick(&[0, 100_000, 500_000]),
    };
    let clear_ns_max =
        if let Focus::Scenario(scenario) = focus { Some(scenario.clear_ns_max(sim.rng())) } else { None };
    let mirror = Mirror {
        clear_ns_max,
        stripe_blocks,
        disks: order,
        others,
        healthy,
        victims,
        unplug,
        wild: focus == Focus::All,
        // Data computed from a rotten cell stays wrong: no member may fail while a cell is rotten.
        rots: !kind.has_parity() || !faults,
        ..Mirror::new(spec)
    };
    sim.state.borrow_mut().mirrors.push(mirror);
}

/// Adds disks with which redundant arrays may grow, once or twice.
fn add_further(sim: &mut Sim, blocks_max: u64, chance: &mut Rng) {
    let count = sim.state.borrow().mirrors.len();
    for index in 0..count {
        let spec = sim.state.borrow().mirrors[index].spec;
        for _ in 0..spec.min_members() as u64 * chance.between(1, 2) + chance.below(2) {
            let size = (1 << 20) + 8192 + 4096 * chance.between(20, blocks_max.clamp(20, 200));
            let disk = sim.world.add_disk(size, chance.coin(), Profile::healthy(chance));
            let places = DiskLayout::for_device(size).expect("a disk that has room for labels");
            sim.world.bitmaps.insert(disk, (places.bitmap.start, places.bitmap.start + places.bitmap.bytes));
            if spec.level.parity() > 0 {
                let journal = (places.journal.start, places.journal.start + places.journal.bytes);
                sim.world.journals.insert(disk, journal);
            }
            sim.state.borrow_mut().mirrors[index].further.push(disk);
        }
    }
}

/// Adds disks for the journals of all arrays.
fn add_journals(sim: &mut Sim, habits: JournalHabits, chance: &mut Rng) {
    let count = sim.state.borrow().mirrors.len();
    for index in 0..count {
        let disks = JournalDisks::draw(&mut sim.world, chance, habits);
        sim.state.borrow_mut().mirrors[index].journal = disks;
    }
    sim.state.borrow_mut().journals = Some(chance.fork());
}

fn add_array(sim: &mut Sim, kinds: &[ArrayKind], blocks_max: u64, faults: bool) {
    let kind = *sim.rng().pick(kinds);
    let members = sim.rng().between(1, 4) as usize;
    let disks: Vec<usize> = (0..members).map(|_| add_disk(sim, 64 << 10, blocks_max, faults)).collect();
    let plain = PlainArray::draw(kind, disks, sim.rng());
    sim.state.borrow_mut().arrays.push(ArrayState { plain, number: None });
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
    sim.world.add_disk(size, junk, profile)
}

fn draw_doom(rng: &mut Rng, short: bool, faults: bool, mirrors: bool, phases: &[&'static str]) -> PlannedEnd {
    // Bugs of the bitmap and of flushes show after power cuts only.
    let power = if phases.starts_with(&DATA) { rng.below(4) > 0 } else { rng.coin() };
    let how = if power { Crash::Power } else { Crash::Kill };
    match rng.below(16) {
        0 | 1 => PlannedEnd::Clean,
        2..=8 => {
            let (phase, most) = (*rng.pick(phases), *rng.pick(&[10_000, 100_000, 600_000]));
            let most = if phase == "writing bits" { *rng.pick(&[100_000, 600_000, 3_000_000]) } else { most };
            let nth = if MOMENTS.contains(&phase) || PARITY_MOMENTS.contains(&phase) {
                *rng.pick(&[1, 2, 5, 30])
            } else {
                *rng.pick(&[1, 1, 2])
            };
            PlannedEnd::Within(phase, rng.between(1, nth), rng.below(most), how)
        }
        // Long enough for hanging I/Os to become late and to complete.
        9..=11 if faults => PlannedEnd::After(rng.below(100_000_000_000), how),
        _ if short => {
            // Also during the recovery from the previous crash.
            let most = *rng.pick(if mirrors { &[40, 200, 1000] } else { &[15, 80, 80] });
            PlannedEnd::AtStep(rng.between(1, most), how)
        }
        9..=11 => {
            let most = *rng.pick(&[10, 100, 1000]);
            PlannedEnd::AtStep(rng.between(1, most), how)
        }
        _ => {
            let most = *rng.pick(&[1_000_000, 10_000_000, 100_000_000]);
            PlannedEnd::After(rng.below(most), how)
        }
    }
}

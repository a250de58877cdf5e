//! Executes a plan: every point on every target, in slices in which the targets take turns.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::frontend::Pass;
use super::in_process::Local;
use super::interrupt;
use super::live::LiveCell;
use super::model::{Document, Measured, TargetInfo};
use super::over_nbd::Remote;
use super::pattern::{Mix, Order, Visit};
use super::plan::{Length, Plan, Point};
use super::progress::Progress;
use super::resolve;
use super::slice::Slice;
use super::target::Target;
use std::sync::Arc;

/// The open targets.
struct Targets {
    local: Option<Local>,
    /// By number of the target; none for targets of disks.
    remote: Vec<Option<Remote>>,
}

impl Targets {
    fn pass(&mut self, plan: &Plan, target: usize, epoch: usize, pass: Pass) -> anyhow::Result<Slice> {
        let (point, epoch) = (&plan.points[epoch], epoch as u32);
        match (&mut self.remote[target], &self.local) {
            (Some(remote), _) => remote.pass(plan, epoch, point, pass),
            (None, Some(local)) => local.pass(plan, target, epoch, point, pass),
            (None, None) => unreachable!("a target is of disks or over NBD"),
        }
    }

    fn live(&self, target: usize, jobs: u16) -> &[Arc<LiveCell>] {
        let all = match (&self.remote[target], &self.local) {
            (Some(remote), _) => remote.live(),
            (None, Some(local)) => local.live(),
            (None, None) => &[],
        };
        &all[..all.len().min(usize::from(jobs))]
    }
}

/// Opens all targets of `plan`, measures them, and returns the document of results.
///
/// # Errors
/// A target cannot be measured. I/O errors are counted in the document instead.
pub fn run(plan: &Plan, socket: Option<&Path>) -> anyhow::Result<Document> {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let (mut targets, infos) = open(plan, socket)?;
    if plan.origin.as_ref().is_some_and(|origin| origin.stand_ins)
        && let Some(local) = &targets.local
    {
        touch(plan, local)?;
    }
    let progress = Progress::start(plan.points.len() * plan.targets.len() * usize::from(plan.slices), expected(plan));
    let mut results = Vec::with_capacity(plan.points.len() * plan.targets.len());
    for (number, point) in plan.points.iter().enumerate() {
        if interrupt::requested() {
            break;
        }
        results.extend(measure(plan, &mut targets, number, point, &progress)?);
    }
    drop(progress);
    drop(targets);
    Ok(Document::new(plan, begun, infos, results, interrupt::requested()))
}

fn open(plan: &Plan, socket: Option<&Path>) -> anyhow::Result<(Targets, Vec<TargetInfo>)> {
    // Names are resolved first: an unknown name is reported before a disk is opened.
    let mut uris = Vec::with_capacity(plan.targets.len());
    for named in &plan.targets {
        uris.push(match &named.target {
            Target::Local(_) => None,
            Target::Nbd(uri) => Some(uri.clone()),
            Target::Named(name) => Some(resolve::uri(name, socket, plan.writes())?),
        });
    }
    let local = Local::start(plan)?;
    let mut remote = Vec::with_capacity(plan.targets.len());
    let mut infos = Vec::with_capacity(plan.targets.len());
    for (number, (named, uri)) in plan.targets.iter().zip(uris).enumerate() {
        match (uri, &local) {
            (Some(uri), _) => {
                let connected = Remote::connect(plan, &uri)?;
                let through = matches!(named.target, Target::Named(_)).then_some(uri);
                infos.push(TargetInfo::of(named, "nbd", through, connected.size_bytes()));
                remote.push(Some(connected));
            }
            (None, Some(local)) => {
                infos.push(TargetInfo::of(named, local.driver(), None, local.size_bytes(number)));
                remote.push(None);
            }
            (None, None) => unreachable!("a target of disks was opened with the others"),
        }
    }
    Ok((Targets { local, remote }, infos))
}

/// Writes every byte of a profile's stand-ins once: page faults on untouched memory, which zero 2 MiB at a time, are not to be measured. Of the
/// targets that use all disks, the largest covers all of them.
fn touch(plan: &Plan, local: &Local) -> anyhow::Result<()> {
    const BLOCK_BYTES: u64 = 1 << 20;
    let disks = |target: usize| match &plan.targets[target].target {
        Target::Local(combination) => combination.disks.len(),
        _ => 0,
    };
    let all = (0..plan.targets.len()).max_by_key(|&target| (disks(target), local.size_bytes(target)));
    let largest = all.unwrap_or(0);
    let point = Point {
        visit: Visit { order: Order::Sequential, theta: 1.0, reads_percent: 0 },
        mix: Mix::Write,
        block_bytes: BLOCK_BYTES,
        depth: 4,
        jobs: plan.jobs_max(),
        rate_iops: None,
    };
    // The remainder below one block is not written.
    let pass = Pass::Run { ios: local.size_bytes(largest) / BLOCK_BYTES, time_ns: u64::MAX };
    local.pass(plan, largest, u32::MAX - 1, &point, pass).map(drop)
}

/// Measures one point on all targets. If the run is interrupted, returns the results of the targets that have any.
fn measure(
    plan: &Plan,
    targets: &mut Targets,
    number: usize,
    point: &Point,
    progress: &Progress,
) -> anyhow::Result<Vec<Measured>> {
    let count = plan.targets.len();
    let mut slices: Vec<Vec<Slice>> = vec![Vec::new(); count];
    let mut findings: Vec<Slice> = vec![Slice::new(); count];
    let reads = point.visit.reads_percent;
    if plan.verify && reads > 0 {
        for (target, found) in findings.iter_mut().enumerate() {
            found.add_findings(&targets.pass(plan, target, number, Pass::Fill)?);
        }
    }
    if let Some(ramp) = plan.ramp {
        let pass = Pass::Run { ios: u64::MAX, time_ns: ramp.as_nanos() as u64 };
        for (target, found) in findings.iter_mut().enumerate() {
            found.add_findings(&targets.pass(plan, target, number, pass)?);
        }
    }
    'slices: for slice in 0..plan.slices {
        for turn in 0..count {
            // The order of the targets alternates, too.
            let target = if slice % 2 == 0 { turn } else { count - 1 - turn };
            let what = || format!("{}, {}", plan.targets[target].label, point.whole());
            progress.step(what, point.block_bytes, targets.live(target, point.jobs));
            if interrupt::requested() {
                break 'slices;
            }
            let found = targets.pass(plan, target, number, slice_pass(plan, slice))?;
            // The figures of an interrupted slice are dropped if there are whole ones; its errors count.
            if interrupt::requested() && (found.ios == 0 || !slices[target].is_empty()) {
                findings[target].add_findings(&found);
            } else {
                slices[target].push(found);
            }
        }
    }
    if plan.verify && reads < 100 && !interrupt::requested() {
        for (target, found) in findings.iter_mut().enumerate() {
            found.add_findings(&targets.pass(plan, target, number, Pass::ReadBack)?);
        }
    }
    for (slices, found) in slices.iter_mut().zip(&findings) {
        // Errors and mismatches are reported even if there is no rate.
        if slices.is_empty() && (found.errors > 0 || found.mismatch_count > 0) {
            slices.push(Slice::new());
        }
    }
    let measured = |target: usize| Measured::of(target, number, point.block_bytes, &slices[target], &findings[target]);
    Ok((0..count).filter(|&target| !slices[target].is_empty()).map(measured).collect())
}

/// Returns the pass of a slice. The first slices take the remainder of a number of I/Os.
fn slice_pass(plan: &Plan, slice: u16) -> Pass {
    match plan.length {
        Length::Time(time) => Pass::Run { ios: u64::MAX, time_ns: (time / u32::from(plan.slices)).as_nanos() as u64 },
        Length::Count(count) => {
            let slices = u64::from(plan.slices);
            Pass::Run { ios: count / slices + u64::from(u64::from(slice) < count % slices), time_ns: u64::MAX }
        }
    }
}

/// Returns the expected duration of the run, if it is known.
fn expected(plan: &Plan) -> Option<Duration> {
    match plan.length {
        Length::Time(time) if !plan.verify => {
            Some((time + plan.ramp.unwrap_or_default()) * (plan.points.len() * plan.targets.len()) as u32)
        }
        _ => None,
    }
}

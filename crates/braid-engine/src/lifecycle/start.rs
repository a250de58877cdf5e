//! Starting arrays that were found.

use braid_format::{ANCESTORS_MAX, Ancestor, ArrayPart, MemberState, Name, RetiredMarks, Uuid};

use super::array::{Array, Candidate, Filling, fills};
use super::disk::{FoundDisk, MemberDisk};
use super::erase::{finish_delete, wipe};
use super::error::LifecycleError;
use super::grow::{forget_joining, joins};
use super::join::{join_all, try_join_all};
use super::lines::{SERVES, Standing, part, starting, way_back};
use super::planted::{Planted, planted};
use super::record::Losses;
use super::redundant::is_redundant;
use super::scan::{FoundArray, Refusal, Status, scan};
use super::write::{Target, flush, write_labels};
use crate::{LeafId, MetaIo};

/// How to start an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// A random number that names this run.
    pub session: u64,
    /// A random number from which the ids of new lines of members are made; another one for each start.
    pub lineage: u64,
    /// Start although members are stale or went apart: a redundant array leaves these out, any other uses stale ones as
    /// they are.
    pub force: bool,
    /// Start without absent members that may have gone on without those that are here.
    pub degraded: bool,
}

impl StartOptions {
    /// The options with which an array starts by itself.
    pub fn new(session: u64, lineage: u64) -> StartOptions {
        StartOptions { session, lineage, force: false, degraded: false }
    }
}

/// What `assemble` did.
#[derive(Debug)]
pub struct Assembled {
    /// Arrays that are now started.
    pub started: Vec<Array>,
    /// Deletions that had been interrupted and are now done.
    pub deleted: Vec<(Uuid, Name)>,
    /// Arrays that were not started; their status says why.
    pub waiting: Vec<FoundArray>,
    /// Arrays where starting, or finishing the deletion, failed.
    pub failed: Vec<(FoundArray, LifecycleError)>,
    /// Every disk and what its labels mean.
    pub disks: Vec<FoundDisk>,
}

/// Finds the arrays of these disks, finishes interrupted deletions and starts what is ready. Arrays that are
/// ready and share a name are left waiting: [`start`] takes them one by one. `random` gives random numbers, two an array.
pub async fn assemble<M: MetaIo>(io: &M, leaves: &[LeafId], mut random: impl FnMut() -> u64) -> Assembled {
    enum Outcome {
        Started(Box<Array>),
        Deleted(Uuid, Name),
        Waiting(Box<FoundArray>),
        Failed(Box<FoundArray>, LifecycleError),
    }
    let found = scan(io, leaves).await;
    let ready: Vec<Uuid> = found.arrays.iter().filter(|a| a.status.starts_by_itself()).map(|a| a.uuid).collect();
    let work = found.arrays.into_iter().map(|array| {
        let options = StartOptions::new(random(), random());
        let alone = !array.same_name.iter().any(|uuid| ready.contains(uuid));
        async move {
            let done = match array.status {
                Status::Ready | Status::Degraded { .. } if alone => {
                    start(io, &array, options).await.map(|started| Outcome::Started(Box::new(started)))
                }
                Status::InterruptedDelete => {
                    finish_delete(io, &array).await.map(|()| Outcome::Deleted(array.uuid, array.name.clone()))
                }
                Status::Ready | Status::Degraded { .. } => {
                    let status = Status::Refused { reasons: vec![Refusal::SameName] };
                    return Outcome::Waiting(Box::new(FoundArray { status, ..array }));
                }
                _ => return Outcome::Waiting(Box::new(array)),
            };
            done.unwrap_or_else(|error| Outcome::Failed(Box::new(array), error))
        }
    });
    let mut result =
        Assembled { started: vec![], deleted: vec![], waiting: vec![], failed: vec![], disks: found.disks };
    for outcome in join_all(work).await {
        match outcome {
            Outcome::Started(array) => result.started.push(*array),
            Outcome::Deleted(uuid, name) => result.deleted.push((uuid, name)),
            Outcome::Waiting(array) => result.waiting.push(*array),
            Outcome::Failed(array, error) => result.failed.push((*array, error)),
        }
    }
    result
}

/// Starts one array that [`scan`] found.
///
/// 1. Flush all members: what was read of their labels may still have been in a cache.
/// 2. Where members are a step behind, or a copy is damaged or older, write the newest label on them, as it is.
/// 3. Write the next label on all: it begins the new session, names the one before, and is without the clean mark.
/// 4. Write one more on all, which marks the session as one that serves: what was copied from a disk before this
///    start is then of another session, and never taken for a disk that a crash left so.
///
/// Only then may the array be served, at every level. A redundant array that starts without some members writes in step 3 that these
/// are out, in a new line; it drops a member that fails meanwhile, and writes in-sync members first in each step.
///
/// # Errors
/// [`LifecycleError::NotReady`] where the status forbids it, or a disk's error.
pub async fn start<M: MetaIo>(io: &M, found: &FoundArray, options: StartOptions) -> Result<Array, LifecycleError> {
    if found.newest.as_ref().is_some_and(|newest| is_redundant(newest.spec.level)) {
        return start_redundant(io, found, options).await;
    }
    let not_ready = || LifecycleError::NotReady { status: Box::new(found.status.clone()) };
    let Some(newest) = found.newest.clone().filter(|_| found.may_start(options.force, options.degraded)) else {
        return Err(not_ready());
    };
    let geometry = newest.geometry()?;
    let seats = geometry.members().len();
    // Disks that were to become members when a growth was interrupted: the array never began to use them.
    let (mut targets, newcomers): (Vec<Target>, Vec<Target>) =
        targets_of(found).into_iter().partition(|target| usize::from(target.part.role) < seats);
    if !planted(Planted::StartWithoutFlush) {
        try_join_all(targets.iter().map(|target| flush(io, target.leaf))).await?;
    }
    // A damaged copy may be the remains of the very number that comes next, of a start that was cut. A write over it
    // that is torn could make that one whole again, beside others of its number: so it is replaced by the newest first.
    let damaged = |disk: &MemberDisk| is_half(disk) && !planted(Planted::RemainsLeft);
    let is_behind = |disk: &MemberDisk| disk.label.array.sequence != newest.sequence || damaged(disk);
    let behind = |leaf: LeafId| found.disks().any(|disk| disk.leaf == leaf && is_behind(disk));
    let mut laggards: Vec<Target> = targets.iter().filter(|t| behind(t.leaf)).cloned().collect();
    if !laggards.is_empty() && !planted(Planted::RaisedWhileBehind) && !planted(Planted::NewestNotWritten) {
        write_labels(io, &mut laggards, &newest).await?;
        for laggard in laggards {
            targets.iter_mut().filter(|t| t.leaf == laggard.leaf).for_each(|t| *t = laggard.clone());
        }
    }
    // They lose their labels while the array's still name them: afterwards nobody would look for them.
    drop(join_all(newcomers.iter().map(|target| wipe(io, target.leaf))).await);
    let mut array = Array::new(newest, geometry, targets, options.lineage);
    if planted(Planted::NewestNotWritten) {
        return Ok(array);
    }
    let change = array.change(io, |label| {
        begin_session(label, options.session);
        label.members.truncate(seats);
    });
    change.await?;
    // Serving begins only when the session that was begun is durable on all: from here on, a member of another one is an old copy.
    if !planted(Planted::ServedAfterOneLabel) && !planted(Planted::PlainServedAfterOneLabel) {
        array.change(io, |label| label.session |= SERVES).await?;
    }
    array.clear_old_copies(io).await;
    Ok(array)
}

/// Without those that are absent, stale or went apart. Who is left out is said by the first label that is new.
async fn start_redundant<M: MetaIo>(
    io: &M,
    found: &FoundArray,
    options: StartOptions,
) -> Result<Array, LifecycleError> {
    let Some(newest) = found.newest.clone().filter(|_| found.may_start(options.force, options.degraded)) else {
        let status = found.forced.as_deref().filter(|_| options.force).unwrap_or(&found.status);
        return Err(LifecycleError::NotReady { status: Box::new(status.clone()) });
    };
    let seats = Seated::of(found);
    let geometry = newest.geometry()?;
    // Disks with which a growth was interrupted: the array never began to use them.
    let (newcomers, targets): (Vec<Target>, Vec<Target>) =
        seats.targets.into_iter().partition(|target| joins(&newest, target.part.role));
    let mut array = Array::new(newest.clone(), geometry, targets, options.lineage);
    (array.unproven, array.found_sequence) = (seats.unproven, newest.sequence);
    array.retired = seats.retired;
    // Absent members that count as lost, and those that are given up.
    let (mut losses, given_up) = (Losses::of(seats.lost), seats.given_up);
    if !planted(Planted::StartWithoutFlush) {
        let results = join_all(array.targets.iter().map(|target| flush(io, target.leaf))).await;
        let failed = array.targets.iter().zip(results).filter_map(|(t, r)| Some((t.part.role, r.err()?)));
        losses.add(failed.collect());
    }
    array.rewrite(io, &seats.behind, &mut losses).await?;
    // They lose their labels while the array's still name them: afterwards nobody would look for them.
    drop(join_all(newcomers.iter().map(|target| wipe(io, target.leaf))).await);
    let mut next = array.next();
    begin_session(&mut next, options.session);
    array.leave_out(&mut next, &losses.roles, &[]);
    if !planted(Planted::JoiningKept) {
        forget_joining(&mut next);
    }
    if !given_up.is_empty() {
        // They leave the table: what they hold counts no more, and they come back as new members only.
        for (role, _) in &given_up {
            let entry = &mut next.members[usize::from(*role)];
            (entry.id, entry.state) = (None, MemberState::Absent);
            next.jobs.retain(|job| !fills(job, *role));
        }
        let apart: Vec<u64> = given_up.iter().filter_map(|(_, line)| *line).collect();
        let id = if next.lineage.id == newest.lineage.id { array.lines.next() } else { next.lineage.id };
        next.lineage = part(&newest.lineage, array.believed_from(), id, &apart);
    }
    // Lines that were begun and never used are known from now on, also where nobody is here who can tell.
    for line in seats.unused_lines {
        if !next.lineage.knows(line) {
            let after_parent = next.lineage.ancestors.len().min(1);
            next.lineage.ancestors.insert(after_parent, Ancestor::open(line));
            next.lineage.ancestors.truncate(ANCESTORS_MAX);
        }
    }
    array.record(io, next, losses).await?;
    // The array is served two labels after what was on the disks before: whoever has that is more than a crash behind.
    if !planted(Planted::ServedAfterOneLabel) {
        let mut next = array.next();
        next.session |= SERVES;
        array.record(io, next, Losses::default()).await?;
    }
    array.clear_old_copies(io).await;
    for (candidate, target) in seats.candidates {
        match array.state(candidate.role) {
            MemberState::Absent | MemberState::Out if candidate.role < array.roles() => {
                array.note_candidate(candidate, target)
            }
            _ => {}
        }
    }
    Ok(array)
}

/// States that a start begins this session, after the one that the label names.
fn begin_session(label: &mut ArrayPart, session: u64) {
    label.session_before = label.session;
    label.session = starting(session);
    label.clean = false;
}

/// Whether a disk bears its label once only. It may come of a write that was never answered, and that no flush makes durable: another
/// crash could give the one before it back.
fn is_half(disk: &MemberDisk) -> bool {
    disk.other_copy.is_some()
}

/// What each disk that was found is to do.
#[derive(Default)]
struct Seated {
    targets: Vec<Target>,
    /// Disks whose label is not the newest, or of which one copy is damaged or older.
    behind: Vec<LeafId>,
    /// Members that are absent, though in sync or being filled.
    lost: Vec<u16>,
    /// Members of which an old copy is here, or one that went apart (then with its line).
    given_up: Vec<(u16, Option<u64>)>,
    candidates: Vec<(Candidate, Target)>,
    /// Members that the newest label promotes and that do not bear it yet.
    unproven: Vec<u16>,
    /// The marks of the journal that the newest label retires.
    retired: RetiredMarks,
    /// Lines of members that return, where the newest label does not know them.
    unused_lines: Vec<u64>,
}

impl Seated {
    fn of(found: &FoundArray) -> Seated {
        let mut seated = Seated::default();
        for member in &found.members {
            let holds = matches!(member.entry.state, MemberState::InSync | MemberState::Filling);
            let (Some(disk), Some(standing)) = (&member.disk, member.standing) else {
                seated.lost.extend(holds.then_some(member.role));
                continue;
            };
            let Some(part) = member.part() else { continue };
            let target = Target { leaf: disk.leaf, part, doubtful: disk.doubtful };
            let (role, leaf) = (member.role, disk.leaf);
            match standing {
                standing if standing.takes_part() => {
                    let damaged = is_half(disk) && !planted(Planted::RemainsLeft);
                    let is_newest = found.newest.as_ref() == Some(&disk.label.array);
                    if damaged || !is_newest {
                        seated.behind.push(leaf);
                    }
                    if is_newest && disk.label.member.retired.run != 0 {
                        seated.retired = disk.label.member.retired;
                    }
                    let own_role = disk.label.member.role;
                    let own = disk.label.array.members[usize::from(own_role)].state;
                    let joins = joins(&disk.label.array, own_role);
                    if standing == Standing::Behind && own != MemberState::InSync && !joins {
                        seated.unproven.push(role);
                    }
                    seated.targets.push(target);
                }
                Standing::Returning => {
                    seated.lost.extend(holds.then_some(role));
                    seated.unused_lines.push(disk.label.array.lineage.id);
                    let newest = found.newest.as_ref();
                    let way_back = newest.and_then(|newest| way_back(newest, role, disk));
                    let (from, position_bytes) = way_back.unwrap_or((Filling::FromBitmap, 0));
                    let candidate = Candidate { role, leaf, from, position_bytes, returns: true };
                    seated.candidates.push((candidate, target));
                }
                standing => {
                    let line = (standing == Standing::Diverged).then_some(disk.label.array.lineage.id);
                    if holds || line.is_some() {
                        seated.given_up.push((role, line));
                    }
                    let candidate = Candidate { role, leaf, from: Filling::Full, position_bytes: 0, returns: false };
                    seated.candidates.push((candidate, target));
                }
            }
        }
        seated
    }
}

/// The members that are here, as targets for labels.
pub(super) fn targets_of(found: &FoundArray) -> Vec<Target> {
    let target = |member: &super::FoundMember| {
        let disk = member.disk.as_ref()?;
        Some(Target { leaf: disk.leaf, part: member.part()?, doubtful: disk.doubtful })
    };
    found.members.iter().filter_map(target).collect()
}

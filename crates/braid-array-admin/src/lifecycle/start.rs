//! Starts the arrays that a scan has found.

use braid_engine::{LeafId, MetaIo};
use braid_format::{ANCESTORS_MAX, Ancestor, ArrayPart, MemberState, Name, RetiredMarks, Uuid};

use super::array::{Array, Candidate};
use super::disk::{FoundDisk, MemberDisk};
use super::erase::{finish_delete, wipe};
use super::error::LifecycleError;
use super::found::{FoundArray, targets_of};
use super::join::{join_all, try_join_all};
use super::lineage::{MemberStanding, RebuildKind, SERVES, branch, rejoin_from, starting};
use super::losses::Losses;
use super::member_table::{forget_joining, is_rebuild_of, is_redundant, joins};
use super::scan::scan;
use super::status::{ArrayStatus, Refusal};
use super::write::{Target, flush, write_labels};

/// How to start an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// A random id of this run.
    pub session: u64,
    /// A random seed for the ids of new lineages; different for each start.
    pub lineage: u64,
    /// Start although members are stale or have diverged: a redundant array drops them, any other uses stale ones as
    /// they are.
    pub force: bool,
    /// Start without missing members that may have gone on without the present ones.
    pub degraded: bool,
}

impl StartOptions {
    /// Returns the options of an automatic start.
    pub fn new(session: u64, lineage: u64) -> StartOptions {
        StartOptions { session, lineage, force: false, degraded: false }
    }
}

/// The result of [`assemble`].
#[derive(Debug)]
pub struct Assembled {
    /// Arrays that were started.
    pub started: Vec<Array>,
    /// Interrupted deletions that were finished.
    pub deleted: Vec<(Uuid, Name)>,
    /// Arrays that were not started, with the reason in their status.
    pub waiting: Vec<FoundArray>,
    /// Arrays whose start, or deletion, failed.
    pub failed: Vec<(FoundArray, LifecycleError)>,
    /// Every disk and what its labels say.
    pub disks: Vec<FoundDisk>,
}

/// Finds the arrays of these disks, finishes interrupted deletions and starts arrays that are ready. Arrays that are
/// ready and share a name are not started: [`start`] them one by one. `random` returns random numbers, two per array.
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
                ArrayStatus::Ready | ArrayStatus::Degraded { .. } if alone => {
                    start(io, &array, options).await.map(|started| Outcome::Started(Box::new(started)))
                }
                ArrayStatus::InterruptedDelete => {
                    finish_delete(io, &array).await.map(|()| Outcome::Deleted(array.uuid, array.name.clone()))
                }
                ArrayStatus::Ready | ArrayStatus::Degraded { .. } => {
                    let status = ArrayStatus::Refused { reasons: vec![Refusal::SameName] };
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
/// 1. Flush all members: what was read of their labels may only be in a cache.
/// 2. Write the newest label, unchanged, to members that are a step behind or have a damaged or older copy.
/// 3. Write the next label to all: it begins the new session, names the previous one, and has no clean mark.
/// 4. Write one more to all, which marks the session as serving: a copy of a disk from before this start is then of
///    another session, and never mistaken for a disk that a crash left behind.
///
/// Only then may the array be served, at every level. A redundant array that starts without some members records these
/// as failed in step 3, in a new lineage. It drops a member that fails meanwhile, and writes members in sync first in
/// each step.
///
/// # Errors
/// [`LifecycleError::NotReady`] if the status forbids the start, or a disk's error.
pub async fn start<M: MetaIo>(io: &M, found: &FoundArray, options: StartOptions) -> Result<Array, LifecycleError> {
    if found.newest.as_ref().is_some_and(|newest| is_redundant(newest.spec.level)) {
        return start_redundant(io, found, options).await;
    }
    let not_ready = || LifecycleError::NotReady { status: Box::new(found.status.clone()) };
    let Some(newest) = found.newest.clone().filter(|_| found.may_start(options.force, options.degraded)) else {
        return Err(not_ready());
    };
    let geometry = newest.geometry()?;
    let slots = geometry.member_data_bytes().len();
    // Disks that an interrupted growth was about to add: the array never began to use them.
    let (mut targets, newcomers): (Vec<Target>, Vec<Target>) =
        targets_of(found).into_iter().partition(|target| usize::from(target.part.slot) < slots);
    try_join_all(targets.iter().map(|target| flush(io, target.leaf))).await?;
    // A damaged copy may be the remains of a label with the next number, of an interrupted start. A torn write over it
    // could complete that label, beside others of the same number: so it is first replaced by the newest label.
    let is_behind = |disk: &MemberDisk| disk.label.array.sequence != newest.sequence || has_one_copy(disk);
    let behind = |leaf: LeafId| found.disks().any(|disk| disk.leaf == leaf && is_behind(disk));
    let mut laggards: Vec<Target> = targets.iter().filter(|t| behind(t.leaf)).cloned().collect();
    if !laggards.is_empty() {
        write_labels(io, &mut laggards, &newest).await?;
        for laggard in laggards {
            targets.iter_mut().filter(|t| t.leaf == laggard.leaf).for_each(|t| *t = laggard.clone());
        }
    }
    // Erased while the labels of the array still name these disks: after the next label, no start would find them to
    // erase their labels.
    drop(join_all(newcomers.iter().map(|target| wipe(io, target.leaf))).await);
    let mut array = Array::new(newest, geometry, targets, options.lineage);
    let change = array.change(io, |label| {
        begin_session(label, options.session);
        label.members.truncate(slots);
    });
    change.await?;
    // Serving begins once the new session is durable on all members: from here on, a member of another session is an
    // old copy.
    array.change(io, |label| label.session |= SERVES).await?;
    array.clear_old_copies(io).await;
    Ok(array)
}

/// Starts a redundant array without members that are missing, stale or diverged. The first new label records these as
/// failed.
async fn start_redundant<M: MetaIo>(
    io: &M,
    found: &FoundArray,
    options: StartOptions,
) -> Result<Array, LifecycleError> {
    let Some(newest) = found.newest.clone().filter(|_| found.may_start(options.force, options.degraded)) else {
        let status = found.forced.as_deref().filter(|_| options.force).unwrap_or(&found.status);
        return Err(LifecycleError::NotReady { status: Box::new(status.clone()) });
    };
    let plan = StartPlan::of(found);
    let geometry = newest.geometry()?;
    // Disks that an interrupted growth was about to add: the array never began to use them.
    let (newcomers, targets): (Vec<Target>, Vec<Target>) =
        plan.targets.into_iter().partition(|target| joins(&newest, target.part.slot));
    let mut array = Array::new(newest.clone(), geometry, targets, options.lineage);
    (array.unproven, array.found_sequence) = (plan.unproven, newest.sequence);
    array.retired = plan.retired;
    // Missing members, which count as lost, and members that are given up.
    let (mut losses, given_up) = (Losses::of(plan.lost), plan.given_up);
    let results = join_all(array.targets.iter().map(|target| flush(io, target.leaf))).await;
    let failed = array.targets.iter().zip(results).filter_map(|(t, r)| Some((t.part.slot, r.err()?)));
    losses.add(failed.collect());
    array.rewrite(io, &plan.behind, &mut losses).await?;
    // Erased while the labels of the array still name these disks: after the next label, no start would find them to
    // erase their labels.
    drop(join_all(newcomers.iter().map(|target| wipe(io, target.leaf))).await);
    let mut next = array.next();
    begin_session(&mut next, options.session);
    array.mark_failed(&mut next, &losses.roles, &[]);
    forget_joining(&mut next);
    if !given_up.is_empty() {
        // They are removed from the member table: their content no longer counts, and they come back only as new
        // members.
        for (role, _) in &given_up {
            let entry = &mut next.members[usize::from(*role)];
            (entry.id, entry.state) = (None, MemberState::Empty);
            next.jobs.retain(|job| !is_rebuild_of(job, *role));
        }
        let apart: Vec<u64> = given_up.iter().filter_map(|(_, lineage)| *lineage).collect();
        let id = if next.lineage.id == newest.lineage.id { array.lineage_ids.next() } else { next.lineage.id };
        next.lineage = branch(&newest.lineage, array.believed_from(), id, &apart);
    }
    // Records lineages that were begun and never used as ancestors: a later start may lack the disk that proves it.
    for lineage in plan.unused_lineages {
        if !next.lineage.knows(lineage) {
            let after_parent = next.lineage.ancestors.len().min(1);
            next.lineage.ancestors.insert(after_parent, Ancestor::all_accepted(lineage));
            next.lineage.ancestors.truncate(ANCESTORS_MAX);
        }
    }
    array.record(io, next, losses).await?;
    // A second label before the array serves: a disk that still bears a label from before this start is then two steps
    // behind, more than a crash can leave it.
    let mut next = array.next();
    next.session |= SERVES;
    array.record(io, next, Losses::default()).await?;
    array.clear_old_copies(io).await;
    for (candidate, target) in plan.candidates {
        match array.state(candidate.slot) {
            MemberState::Empty | MemberState::Failed if candidate.slot < array.slots() => {
                array.note_candidate(candidate, target)
            }
            _ => {}
        }
    }
    Ok(array)
}

/// Records in a label that a start begins this session, after the session in the label.
fn begin_session(label: &mut ArrayPart, session: u64) {
    label.previous_session = label.session;
    label.session = starting(session);
    label.clean = false;
}

/// Whether a disk has only one current copy of its label. That copy may come from a write that was never acknowledged,
/// and that no flush makes durable: another crash could bring the previous label back.
fn has_one_copy(disk: &MemberDisk) -> bool {
    disk.other_copy.is_some()
}

/// What a start does with each disk found.
#[derive(Default)]
struct StartPlan {
    targets: Vec<Target>,
    /// Disks with a label that is not the newest, or with a damaged or older copy.
    behind: Vec<LeafId>,
    /// Missing members that are in sync or rebuilding by the newest label.
    lost: Vec<u16>,
    /// Members with a present disk that is an old copy, or that has diverged (then with its lineage).
    given_up: Vec<(u16, Option<u64>)>,
    candidates: Vec<(Candidate, Target)>,
    /// Members that the newest label promotes and that do not bear it yet.
    unproven: Vec<u16>,
    /// The journal marks that the newest label retires.
    retired: RetiredMarks,
    /// Lineages of returning members. Those that the newest label does not know were begun and never used.
    unused_lineages: Vec<u64>,
}

impl StartPlan {
    fn of(found: &FoundArray) -> StartPlan {
        let mut plan = StartPlan::default();
        for member in &found.members {
            let holds = matches!(member.entry.state, MemberState::InSync | MemberState::Rebuilding);
            let (Some(disk), Some(standing)) = (&member.disk, member.standing) else {
                plan.lost.extend(holds.then_some(member.number));
                continue;
            };
            let Some(part) = member.part() else { continue };
            let target = Target { leaf: disk.leaf, part, doubtful: disk.doubtful };
            let (role, leaf) = (member.number, disk.leaf);
            match standing {
                standing if standing.takes_part() => {
                    let is_newest = found.newest.as_ref() == Some(&disk.label.array);
                    if has_one_copy(disk) || !is_newest {
                        plan.behind.push(leaf);
                    }
                    if is_newest && disk.label.member.retired.run != 0 {
                        plan.retired = disk.label.member.retired;
                    }
                    let own_role = disk.label.member.slot;
                    let own = disk.label.array.members[usize::from(own_role)].state;
                    let joins = joins(&disk.label.array, own_role);
                    if standing == MemberStanding::Behind && own != MemberState::InSync && !joins {
                        plan.unproven.push(role);
                    }
                    plan.targets.push(target);
                }
                MemberStanding::Returning => {
                    plan.lost.extend(holds.then_some(role));
                    plan.unused_lineages.push(disk.label.array.lineage.id);
                    let newest = found.newest.as_ref();
                    let rejoin_from = newest.and_then(|newest| rejoin_from(newest, role, disk));
                    let (from, position_bytes) = rejoin_from.unwrap_or((RebuildKind::FromBitmap, 0));
                    let candidate = Candidate { slot: role, leaf, kind: from, position_bytes, is_same_member: true };
                    plan.candidates.push((candidate, target));
                }
                standing => {
                    let lineage = (standing == MemberStanding::Diverged).then_some(disk.label.array.lineage.id);
                    if holds || lineage.is_some() {
                        plan.given_up.push((role, lineage));
                    }
                    let candidate = Candidate {
                        slot: role,
                        leaf,
                        kind: RebuildKind::Full,
                        position_bytes: 0,
                        is_same_member: false,
                    };
                    plan.candidates.push((candidate, target));
                }
            }
        }
        plan
    }
}

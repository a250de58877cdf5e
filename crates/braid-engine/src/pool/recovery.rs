//! Recovery: which members are current and which return, and which commits in the log rings are valid.
//!
//! A commit is valid if it is complete on all present members. A missing member may lack its part, and that cannot be
//! known. So the decision is written to all present members before anything else is: a returning member must have every
//! commit that was decided to be valid, or it is refused. Anything else that it has never becomes valid.

use std::collections::BTreeMap;

use braid_format::limits::COUNTER_MAX;
use braid_format::pool::{
    CHECKPOINT_BYTES, Change, Checkpoint, LogBatchHeader, LogEntry, MissingMember, MissingMembers, checkpoint_slot,
    pool_tag,
};

use super::checkpoint::generation_after;
use super::commit_ring::BATCH_BLOCKS_MAX;
use super::device::PoolDevice;
use super::log_rings::{check_no_later_commit, read_ring};
use super::open_pool::{OpenError, OpenPool, failed};
use super::units::MEMBERS_MAX;
use crate::io::DeviceIo;

const BLOCK: u64 = 4096;
/// Generations that are skipped when a pool goes on without a member. The ring start of a missing member may be ahead
/// of all others: by 2 for each checkpoint that was interrupted when only that start was durable. A decision made
/// without the member must have a higher generation than anything it has.
const GENERATION_LEAP: u64 = 1 << 20;

/// How a member relates to the newest ring start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It is of the same run.
    Current,
    /// The newest start of the member is of the previous run: a crash came before the member had one of the newest run.
    /// Nothing was committed in the newest run.
    Behind,
    /// The pool went on without it, and it returns.
    Returning(MissingMember),
}

/// What was found in the log ring of one member.
pub(super) struct MemberLog {
    pub number: u8,
    pub start: Checkpoint,
    pub standing: Standing,
    pub batches: Vec<(LogBatchHeader, Vec<LogEntry>)>,
}

impl MemberLog {
    fn of_commit(&self, commit: u64) -> impl Iterator<Item = &LogBatchHeader> {
        self.batches.iter().map(|(header, _)| header).filter(move |header| header.commit == commit)
    }

    /// Returns whether all batches of the commit that belong to this member are present.
    fn is_whole(&self, commit: u64) -> bool {
        let batches = self.of_commit(commit).count();
        self.of_commit(commit).next().is_some_and(|first| batches == usize::from(first.batches))
    }
}

/// The outcome of recovery.
pub(super) struct Recovered {
    /// The last valid commit.
    pub commit: u64,
    /// Its last unit.
    pub mark: u64,
    /// By member, the last commit that has batches on it.
    pub parts: [u64; MEMBERS_MAX],
    /// Entries of valid commits that the tables may lack, in order.
    pub replay: Vec<LogEntry>,
    /// What is decided about missing and returning members.
    pub absent: MissingMembers,
}

/// Reads the ring starts and rings of all present members. Returns the newest start, and what each ring holds.
pub(super) async fn read_logs<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
) -> Result<(Checkpoint, Vec<MemberLog>), OpenError> {
    let mut starts = Vec::with_capacity(what.members.len());
    for member in what.members {
        starts.push(read_start(io, what, member).await?);
    }
    // The run is not chosen by session: a missing member may have been the only one with a start of the next session
    // when the others went on without it.
    let run = starts.iter().max_by_key(|start| start.generation).expect("a pool has members").run;
    let of_run = starts.iter().filter(|start| start.run == run);
    let newest = *of_run.max_by_key(|start| (start.session, start.generation)).expect("one has the highest generation");
    let of_session = starts.iter().filter(|start| start.session == newest.session);
    let ahead = of_session.map(|start| start.commit).max().unwrap_or(newest.commit);
    let mut found = Vec::with_capacity(starts.len());
    for (member, start) in what.members.iter().zip(starts) {
        let standing = standing(what, &newest, member.number, &start)?;
        let is_read = match standing {
            // What was committed in an earlier session of the same run is in the tables.
            Standing::Current => start.session == newest.session,
            Standing::Behind => false,
            Standing::Returning(_) => true,
        };
        if !is_read && start.run == newest.run {
            check_no_later_commit(io, member, &start, ahead).await?;
        }
        let batches = if is_read { read_ring(io, what, member, &start).await? } else { Vec::new() };
        found.push(MemberLog { number: member.number, start, standing, batches });
    }
    for found in &found {
        if let Standing::Returning(absence) = &found.standing
            && found.start.commit < absence.required_commit
            && !found.is_whole(absence.required_commit)
        {
            return Err(OpenError::LacksCommit { member: found.number, commit: absence.required_commit });
        }
    }
    Ok((newest, found))
}

fn standing(what: &OpenPool<'_>, newest: &Checkpoint, member: u8, start: &Checkpoint) -> Result<Standing, OpenError> {
    let current = start.run == newest.run;
    match newest.missing.get(member) {
        // The member is back already, but not all members have recorded that.
        Some(absence) if current && absence.run != start.run => Ok(Standing::Current),
        Some(absence) if start.run == absence.run || start.run == absence.alternative_run => {
            Ok(Standing::Returning(*absence))
        }
        // A crash came when this member had its start of a new run, and none of the other members present now had one.
        Some(absence)
            if start.previous_run != 0
                && (start.previous_run == absence.run || start.previous_run == absence.alternative_run) =>
        {
            if knows_decisions(what, member, start) {
                Ok(Standing::Returning(*absence))
            } else {
                Err(OpenError::OtherRun(member))
            }
        }
        None if current => Ok(Standing::Current),
        None if start.run == newest.previous_run => Ok(Standing::Behind),
        _ => Err(OpenError::OtherRun(member)),
    }
}

/// Returns whether the present members know the decisions that were made before `start`, the start of a run of which
/// they have no start. They know them if one of them was to get a start of that run: then nothing was committed in the
/// run. They also know them if no member was missing then: nothing had to be decided. Otherwise the pool went on
/// without them.
fn knows_decisions(what: &OpenPool<'_>, member: u8, start: &Checkpoint) -> bool {
    let returned = |absence: &MissingMember| absence.alternative_run == start.run;
    let none_missing = start.missing.list().iter().all(returned);
    let knows = |other: &PoolDevice| other.number != member && start.hold_outcome >> other.number & 1 == 1;
    none_missing || what.members.iter().any(knows)
}

async fn read_start<I: DeviceIo>(io: &I, what: &OpenPool<'_>, member: &PoolDevice) -> Result<Checkpoint, OpenError> {
    let number = member.number;
    let bytes = io.read(member.device, member.layout.starts, 2 * CHECKPOINT_BYTES).await;
    let bytes = bytes.map_err(failed(number, "read"))?;
    let read: Vec<_> = bytes.as_chunks::<CHECKPOINT_BYTES>().0.iter().map(Checkpoint::decode).collect();
    let of_pool = read.iter().filter_map(|start| start.as_ref().ok()).filter(|start| {
        start.pool_tag == pool_tag(&what.uuid) && u64::from(start.position) + BATCH_BLOCKS_MAX <= member.ring.1
    });
    let refused = || match read.iter().find_map(|start| start.as_ref().err().filter(|why| why.is_invalid())) {
        Some(why) => OpenError::Damaged { member: number, what: format!("neither start of its ring counts: {why}") },
        None => OpenError::NoStart(number),
    };
    of_pool.max_by_key(|start| start.generation).copied().ok_or_else(refused)
}

/// Decides which commits are valid: consecutive ones of which every batch is present.
pub(super) fn decide_commits(
    what: &OpenPool<'_>,
    newest: &Checkpoint,
    all: &[MemberLog],
) -> Result<Recovered, OpenError> {
    let current: Vec<&MemberLog> = all.iter().filter(|found| found.standing == Standing::Current).collect();
    // The commits that the furthest start covers were complete, and are in the tables of its member; the other tables
    // may lack them.
    let of_session = current.iter().filter(|found| found.start.session == newest.session);
    let ahead = of_session.map(|found| found.start).max_by_key(|start| start.commit).unwrap_or(*newest);
    let (mut commit, mut mark, mut parts) = (ahead.commit, ahead.mark, ahead.last_commits);
    // A member whose start is behind must have these in its ring: otherwise older images would overwrite what its
    // tables may hold already.
    for found in current.iter().filter(|found| found.start.session == newest.session) {
        let last = parts[usize::from(found.number)];
        if found.start.commit < last && !found.is_whole(last) {
            let what = format!("its ring lacks commit {last}, which another member's tables hold");
            return Err(OpenError::Damaged { member: found.number, what });
        }
    }
    // All entries in one order: those of returning members come first, because the others wrote theirs later.
    let mut replay: BTreeMap<(bool, u8, u64), LogEntry> = BTreeMap::new();
    let mut count = |found: &MemberLog, commit: u64, is_current: bool| {
        let lists = found.batches.iter().filter(|(header, _)| header.commit == commit).flat_map(|(_, list)| list);
        // Owners are copied from the current members.
        let valid = lists.filter(|entry| is_current || !matches!(entry.change, Change::Owner { .. }));
        // Current members have the same owner entries under the same sequence; a returning member may be of another
        // run.
        let of = if is_current { 0 } else { found.number };
        replay.extend(valid.map(|entry| ((is_current, of, entry.sequence), entry.clone())));
    };
    for found in &current {
        let covered = found.batches.iter().map(|(header, _)| header.commit).filter(|covered| *covered <= commit);
        covered.for_each(|covered| count(found, covered, true));
    }
    // An earlier open may have decided, in this run, which commit is the last valid one. No later commit becomes valid.
    let decided = newest.missing.list().iter().filter(|absence| absence.run == newest.run);
    let last = decided.map(|absence| absence.commit).min().unwrap_or(COUNTER_MAX);
    // Members that were removed do not count: no ring held anything of a removed member at its removal, so it has no
    // part in commits after the start that is used.
    let some_lack = what.missing != 0 || all.len() != current.len();
    loop {
        let headers = current.iter().flat_map(|found| found.batches.iter().map(|(header, _)| header));
        let Some(header) = headers.filter(|header| header.commit > commit).min_by_key(|header| header.commit).copied()
        else {
            break;
        };
        let next = header.commit;
        // If members are missing, commits with batches on missing members only leave gaps in the numbers. A gap is
        // skipped: such a commit changes nothing on the current members.
        let is_next = next == commit + 1 || some_lack;
        let whole = is_next
            && current.iter().filter(|found| header.members >> found.number & 1 == 1).all(|found| found.is_whole(next));
        if next > last {
            break;
        }
        if !whole {
            // Commits are made one at a time: if there is a later one, this one was complete, even if no present member
            // has any of it.
            let first = if some_lack { next } else { commit + 1 };
            let later = |found: &&MemberLog| found.batches.iter().any(|(header, _)| header.commit > first);
            if let Some(found) = current.iter().copied().find(later) {
                let what = format!("its ring has commits after number {first}, of which other members lack a part");
                return Err(OpenError::Damaged { member: found.number, what });
            }
            break;
        }
        current.iter().for_each(|found| count(found, next, true));
        mark = mark.max(header.mark);
        commit = next;
        let takes_part = |member: &usize| header.members >> member & 1 == 1;
        (0..MEMBERS_MAX).filter(takes_part).for_each(|member| parts[member] = next);
    }
    let mut absent = Vec::new();
    for member in (0..MEMBERS_MAX as u8).filter(|member| what.missing >> member & 1 == 1) {
        // If the member has no part in commits after the newest start, its own newest start may still be of the
        // previous run (0 once all members had a start of this run).
        let needs = parts[usize::from(member)];
        let other = if needs <= newest.commit { newest.previous_run } else { 0 };
        let known = newest.missing.get(member).copied();
        absent.push(known.unwrap_or(MissingMember {
            member,
            run: newest.run,
            alternative_run: other,
            commit,
            required_commit: needs,
        }));
    }
    for found in all {
        let Standing::Returning(absence) = found.standing else { continue };
        let mut last = absence.required_commit;
        for commit in found.batches.iter().map(|(header, _)| header.commit) {
            if commit <= absence.required_commit || is_valid_alone(newest, all, found, &absence, commit) {
                count(found, commit, false);
                last = last.max(commit);
                raise_needs(&mut absent, found, commit);
            } else {
                break;
            }
        }
        let member = found.number;
        parts[usize::from(member)] = last.min(commit);
        // A crash may come before all members know that this one is back: then it has its present start, or one of the
        // new run.
        let end = if found.start.run == absence.run { absence.commit } else { COUNTER_MAX };
        let needs = last.min(commit);
        absent.push(MissingMember {
            member,
            run: found.start.run,
            alternative_run: what.run,
            commit: end,
            required_commit: needs,
        });
    }
    absent.sort_unstable_by_key(|absence| absence.member);
    let absent = MissingMembers::new(&absent).ok_or(OpenError::TooManyMissing)?;
    let replay = replay.into_values().collect();
    Ok(Recovered { commit, mark, parts, replay, absent })
}

/// Returns whether a commit is valid that a returning member has, and no current one: all members with batches of it
/// were missing then, by the same decision. Its number may lie between those of commits that current members have.
fn is_valid_alone(
    newest: &Checkpoint,
    all: &[MemberLog],
    found: &MemberLog,
    absence: &MissingMember,
    commit: u64,
) -> bool {
    let Some(header) = found.of_commit(commit).next().filter(|_| found.is_whole(commit)) else { return false };
    if found.start.run != absence.run {
        return false;
    }
    (0..MEMBERS_MAX as u8).filter(|member| header.members >> member & 1 == 1).all(|member| {
        let of = newest.missing.get(member);
        let then = of.is_some_and(|of| (of.run, of.commit) == (absence.run, absence.commit));
        let returned = all.iter().find(|found| found.number == member);
        then && returned.is_none_or(|found| found.start.commit >= commit || found.is_whole(commit))
    })
}

/// Notes that the commit `commit` is valid, so that a missing member with batches of it must have it to return.
fn raise_needs(absent: &mut [MissingMember], found: &MemberLog, commit: u64) {
    let members = found.of_commit(commit).next().map_or(0, |header| header.members);
    for absence in absent.iter_mut().filter(|absence| members >> absence.member & 1 == 1) {
        absence.required_commit = absence.required_commit.max(commit);
    }
}

/// Writes what is decided about missing members to all current members, before anything else is written, and gives a
/// start of the newest run to members that lack one. Returns the generations of the starts, by ordinal.
pub(super) async fn write_decisions<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    newest: &Checkpoint,
    all: &[MemberLog],
    recovered: &Recovered,
) -> Result<Vec<u64>, OpenError> {
    let mut generations: Vec<u64> = all.iter().map(|found| found.start.generation).collect();
    let not_returning =
        || what.members.iter().zip(all).filter(|(_, found)| !matches!(found.standing, Standing::Returning(_)));
    let lacks =
        |start: &Checkpoint| recovered.absent.list().iter().any(|one| start.missing.get(one.member) != Some(one));
    // Even if it was decided before: a missing member may have been present since, when an open was interrupted.
    let decides = not_returning().any(|(_, found)| lacks(&found.start)) || what.missing != 0;
    let behind = all.iter().any(|found| found.standing == Standing::Behind);
    if !behind && !decides {
        return Ok(generations);
    }
    let leap = if what.missing != 0 { GENERATION_LEAP } else { 0 };
    let highest = generations.iter().copied().max().unwrap_or(0) + leap;
    for ((member, found), generation) in what.members.iter().zip(all).zip(&mut generations) {
        let start = match found.standing {
            Standing::Current => found.start,
            Standing::Behind => Checkpoint { position: 0, sequence: 1, ..*newest },
            Standing::Returning(_) => continue,
        };
        *generation = generation_after(*generation, highest + 1);
        let start = Checkpoint { generation: *generation, missing: recovered.absent, ..start };
        let at = member.layout.starts + checkpoint_slot(start.generation) * BLOCK;
        let written = io.write(member.device, at, start.encode().to_vec(), false).await;
        written.map_err(failed(member.number, "written"))?;
    }
    for (member, _) in not_returning() {
        io.flush(member.device).await.map_err(failed(member.number, "flushed"))?;
    }
    Ok(generations)
}

#[cfg(test)]
mod tests {
    use braid_format::Uuid;

    use super::*;
    use crate::io::DeviceId;
    use crate::pool::MemberLayout;

    /// Returns the ring of a member with these commits, all complete.
    fn ring(number: u8, commits: &[(u64, u128)], parts: [u64; MEMBERS_MAX]) -> MemberLog {
        let start = Checkpoint {
            pool_tag: 1,
            session: 1,
            run: 7,
            sequence: 1,
            position: 0,
            commit: 4,
            mark: 4,
            generation: 1,
            previous_run: 0,
            last_commits: parts,
            missing: MissingMembers::NONE,
            hold_outcome: 0,
        };
        let batch = |(commit, members): &(u64, u128)| {
            let (pool_tag, run, sequence, index, batches, mark, units, blocks) = (1, 7, 1, 0, 1, *commit, 0, 1);
            let header = LogBatchHeader {
                pool_tag,
                run,
                sequence,
                commit: *commit,
                members: *members,
                index,
                batches,
                mark,
                units,
                blocks,
            };
            (header, Vec::new())
        };
        MemberLog { number, start, standing: Standing::Current, batches: commits.iter().map(batch).collect() }
    }

    fn last_commit(a: &[(u64, u128)], b: &[(u64, u128)], parts: [u64; MEMBERS_MAX]) -> Result<u64, OpenError> {
        let places = MemberLayout { starts: 0, owners: 0, table: 0, addresses: 0, data: 0 };
        let member = |number| {
            let device = DeviceId(u32::from(number));
            PoolDevice { number, device, layout: places, ring: (0, 64), extents: 0, zero_slots: 0 }
        };
        let members = [member(0), member(1)];
        let what = OpenPool {
            uuid: Uuid::nil(),
            members: &members,
            owner_slots: 16,
            missing: 0,
            overwrites_unreadable: false,
            run: 8,
        };
        let found = [ring(0, a, parts), ring(1, b, parts)];
        decide_commits(&what, &found[0].start, &found).map(|recovered| recovered.commit)
    }

    #[test]
    fn a_commit_of_which_no_member_has_anything_was_complete_if_a_later_one_was_begun() {
        let none = [0; MEMBERS_MAX];
        assert_eq!(last_commit(&[(5, 0b01)], &[(6, 0b10)], none), Ok(6));
        assert_eq!(last_commit(&[(5, 0b01)], &[], none), Ok(5));
        assert_eq!(last_commit(&[], &[], none), Ok(4));
        let refused = last_commit(&[], &[(6, 0b10)], none);
        assert!(matches!(refused, Err(OpenError::Damaged { member: 1, .. })), "{refused:?}");
        // A removed member had a part in earlier commits, and in none of these.
        let mut left = none;
        left[2] = 3;
        let refused = last_commit(&[], &[(6, 0b10)], left);
        assert!(matches!(refused, Err(OpenError::Damaged { member: 1, .. })), "{refused:?}");
    }

    #[test]
    fn a_member_that_was_alone_in_a_run_returns_if_a_present_member_was_to_join_it() {
        let places = MemberLayout { starts: 0, owners: 0, table: 0, addresses: 0, data: 0 };
        let member = |number| {
            let device = DeviceId(u32::from(number));
            PoolDevice { number, device, layout: places, ring: (0, 64), extents: 0, zero_slots: 0 }
        };
        let of = |run, before, absent: &[MissingMember], settled| {
            let absent = MissingMembers::new(absent).expect("few enough");
            Checkpoint {
                run,
                previous_run: before,
                missing: absent,
                hold_outcome: settled,
                ..ring(0, &[], [0; MEMBERS_MAX]).start
            }
        };
        let absence =
            |member, run, other| MissingMember { member, run, alternative_run: other, commit: 4, required_commit: 4 };
        // Members 1 and 2 went on without 0, when they were of run 7.
        let (members, newest) = ([member(0), member(1), member(2)], of(9, 0, &[absence(0, 7, 6)], 0));
        let what = OpenPool {
            uuid: Uuid::nil(),
            members: &members,
            owner_slots: 16,
            missing: 0,
            overwrites_unreadable: false,
            run: 10,
        };
        let returns = |start: Checkpoint| match standing(&what, &newest, 0, &start) {
            Ok(standing) => standing == Standing::Returning(absence(0, 7, 6)),
            Err(error) => {
                assert_eq!(error, OpenError::OtherRun(0));
                false
            }
        };
        for before in [6, 7] {
            // It began run 8 with all members; without 2, which only it knows; without 2, which 1 knows.
            assert!(returns(of(8, before, &[], 0b111)));
            assert!(!returns(of(8, before, &[absence(2, before, 0)], 0b001)));
            assert!(returns(of(8, before, &[absence(2, before, 0)], 0b011)));
            // Or while 2 returned, which did not know yet.
            assert!(returns(of(8, before, &[absence(2, 3, 8)], 0b001)));
            assert!(!returns(of(8, before, &[absence(1, 3, 0), absence(2, 3, 8)], 0b001)));
        }
        assert!(!returns(of(8, 5, &[], 0b111)), "behind another run");
        assert!(!returns(of(8, 0, &[], 0b111)), "all members had joined it");
        assert!(returns(of(7, 0, &[], 0)) && returns(of(6, 0, &[], 0)));
    }
}

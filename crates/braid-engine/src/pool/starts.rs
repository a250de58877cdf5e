//! What a start finds in the rings: who was there all the time, who returns, and which commits count.
//!
//! A commit counts when it is whole on all members that are here; one that is absent may lack its part of it, and nobody can know. So
//! what was decided is written down, on all who are here, before anything else is: a member that returns has to have what was counted, or
//! it is refused. What a member has that was not counted counts nothing ever.

use std::collections::BTreeMap;

use braid_format::limits::COUNTER_MAX;
use braid_format::pool::{
    Absence, Absences, BatchHeader, Change, Entry, RING_START_BYTES, RingStart, pool_tag, start_slot,
};

use super::checkpoint::generation_after;
use super::commit::BATCH_BLOCKS_MAX;
use super::open::{OpenError, OpenPool, PoolDevice, failed};
use super::rings::{never_served, read_ring};
use super::units::MEMBERS_MAX;
use crate::io::DeviceIo;
use crate::planted::{Planted, planted};

const BLOCK: u64 = 4096;
/// Generations that are passed over when a pool goes on without a member. Its start may be ahead of all others': by 2 for each time that a
/// checkpoint was cut off when only that start was durable. What is decided without it has to count more than anything it has.
const ABSENT_LEAP: u64 = 1 << 20;

/// How a member stands to the newest of the starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It is of the same run.
    Here,
    /// It has no start of that run yet: a crash came between. Nothing was committed in that run.
    Behind,
    /// The others went on without it.
    Returns(Absence),
}

/// What was found in the ring of one member.
pub(super) struct Found {
    pub number: u8,
    pub start: RingStart,
    pub standing: Standing,
    pub batches: Vec<(BatchHeader, Vec<Entry>)>,
}

impl Found {
    fn of_commit(&self, commit: u64) -> impl Iterator<Item = &BatchHeader> {
        self.batches.iter().map(|(header, _)| header).filter(move |header| header.commit == commit)
    }

    /// Whether all batches of the commit are here that it has on this member.
    fn is_whole(&self, commit: u64) -> bool {
        let batches = self.of_commit(commit).count();
        self.of_commit(commit).next().is_some_and(|first| batches == usize::from(first.batches))
    }
}

/// What counts.
pub(super) struct Judged {
    /// The last commit.
    pub commit: u64,
    /// Its last unit.
    pub mark: u64,
    /// By member, the last commit that has batches on it.
    pub parts: [u64; MEMBERS_MAX],
    /// What the commits say that the tables may lack, in order.
    pub replay: Vec<Entry>,
    /// What is decided of those who are not here, and of those who return.
    pub absent: Absences,
}

/// The starts of all who are here, the newest of them, and what their rings hold.
pub(super) async fn find<I: DeviceIo>(io: &I, what: &OpenPool<'_>) -> Result<(RingStart, Vec<Found>), OpenError> {
    let mut starts = Vec::with_capacity(what.members.len());
    for member in what.members {
        starts.push(read_start(io, what, member).await?);
    }
    // The run not by the session: whoever is absent may have been the only one to have a start of the next, when the others went on without it.
    let run = starts.iter().max_by_key(|start| start.generation).expect("a pool has members").run;
    let of_run = starts.iter().filter(|start| start.run == run);
    let newest = *of_run.max_by_key(|start| (start.session, start.generation)).expect("one has the highest generation");
    let of_session = starts.iter().filter(|start| start.session == newest.session);
    let ahead = of_session.map(|start| start.commit).max().unwrap_or(newest.commit);
    let mut found = Vec::with_capacity(starts.len());
    for (member, start) in what.members.iter().zip(starts) {
        let standing = standing(what, &newest, member.number, &start)?;
        let counts = match standing {
            // What was committed in an earlier session of the same run is in the tables.
            Standing::Here => start.session == newest.session,
            Standing::Behind => false,
            Standing::Returns(_) => true,
        };
        if !counts && start.run == newest.run && !planted(Planted::StartRotUnseen) {
            never_served(io, member, &start, ahead).await?;
        }
        let batches = if counts { read_ring(io, what, member, &start).await? } else { Vec::new() };
        found.push(Found { number: member.number, start, standing, batches });
    }
    for found in &found {
        if let Standing::Returns(absence) = &found.standing
            && found.start.commit < absence.needs
            && !found.is_whole(absence.needs)
            && !planted(Planted::ReturnBelieved)
        {
            return Err(OpenError::Lacks { member: found.number, commit: absence.needs });
        }
    }
    Ok((newest, found))
}

fn standing(what: &OpenPool<'_>, newest: &RingStart, member: u8, start: &RingStart) -> Result<Standing, OpenError> {
    let here = start.run == newest.run;
    match newest.absent.of(member) {
        // It is back already: only the note of that is not everywhere.
        Some(absence) if here && absence.run != start.run => Ok(Standing::Here),
        Some(absence) if start.run == absence.run || start.run == absence.other => Ok(Standing::Returns(*absence)),
        // A crash struck when it had its start of a new run, and others had none yet.
        Some(absence) if start.before != 0 && (start.before == absence.run || start.before == absence.other) => {
            if began_with_them(what, member, start) {
                Ok(Standing::Returns(*absence))
            } else {
                Err(OpenError::OtherRun(member))
            }
        }
        Some(absence) if planted(Planted::ReturnBelieved) => Ok(Standing::Returns(*absence)),
        None if here => Ok(Standing::Here),
        None if start.run == newest.before => Ok(Standing::Behind),
        _ => Err(OpenError::OtherRun(member)),
    }
}

/// Whether those who are here know what was decided when this member got its start of a run that they have none of. One of them was to have
/// one, too, so that nothing was committed in that run; or all were there, and nothing had to be decided. Else it went on without them.
fn began_with_them(what: &OpenPool<'_>, member: u8, start: &RingStart) -> bool {
    let returned = |absence: &Absence| absence.other == start.run;
    let all_were_there = start.absent.list().iter().all(returned);
    let knows = |other: &PoolDevice| other.number != member && start.settled >> other.number & 1 == 1;
    all_were_there || what.members.iter().any(knows)
}

async fn read_start<I: DeviceIo>(io: &I, what: &OpenPool<'_>, member: &PoolDevice) -> Result<RingStart, OpenError> {
    let number = member.number;
    let bytes = io.read(member.device, member.places.starts, 2 * RING_START_BYTES).await;
    let bytes = bytes.map_err(failed(number, "read"))?;
    let read: Vec<_> = bytes.as_chunks::<RING_START_BYTES>().0.iter().map(RingStart::decode).collect();
    let of_pool = read.iter().filter_map(|start| start.as_ref().ok()).filter(|start| {
        start.pool_tag == pool_tag(&what.uuid) && u64::from(start.position) + BATCH_BLOCKS_MAX <= member.ring.1
    });
    let refused = || match read.iter().find_map(|start| start.as_ref().err().filter(|why| why.is_nonsense())) {
        Some(why) => OpenError::Damaged { member: number, what: format!("neither start of its ring counts: {why}") },
        None => OpenError::NoStart(number),
    };
    of_pool.max_by_key(|start| start.generation).copied().ok_or_else(refused)
}

/// Which commits count: those of which every batch is there, one after the other.
pub(super) fn judge(what: &OpenPool<'_>, newest: &RingStart, all: &[Found]) -> Result<Judged, OpenError> {
    let here: Vec<&Found> = all.iter().filter(|found| found.standing == Standing::Here).collect();
    // What the start that is ahead covers was complete once, and is in the tables of its member; the others may lack it in theirs.
    let of_session = here.iter().filter(|found| found.start.session == newest.session);
    let ahead = of_session.map(|found| found.start).max_by_key(|start| start.commit).unwrap_or(*newest);
    let (mut commit, mut mark, mut parts) = (ahead.commit, ahead.mark, ahead.parts);
    // Whoever is behind it has these in its ring, or older images would overwrite what its tables may hold already.
    for found in here.iter().filter(|found| found.start.session == newest.session) {
        let last = parts[usize::from(found.number)];
        if found.start.commit < last && !found.is_whole(last) && !planted(Planted::LastPartUnseen) {
            let what = format!("its ring lacks commit {last}, which another member's tables hold");
            return Err(OpenError::Damaged { member: found.number, what });
        }
    }
    // In one sequence: what those return with is older than what others said since.
    let mut replay: BTreeMap<(bool, u8, u64), Entry> = BTreeMap::new();
    let mut count = |found: &Found, commit: u64, is_here: bool| {
        let lists = found.batches.iter().filter(|(header, _)| header.commit == commit).flat_map(|(_, list)| list);
        // Owners are copied from those who were here.
        let counts = lists.filter(|entry| is_here || !matches!(entry.change, Change::Owner { .. }));
        // Those who are here say the same of owners under the same number; who returns may be of another run.
        let of = if is_here { 0 } else { found.number };
        replay.extend(counts.map(|entry| ((is_here, of, entry.sequence), entry.clone())));
    };
    for found in &here {
        let covered = found.batches.iter().map(|(header, _)| header.commit).filter(|covered| *covered <= commit);
        covered.for_each(|covered| count(found, covered, true));
    }
    // What a start of this run decided before stays.
    let decided = newest.absent.list().iter().filter(|absence| absence.run == newest.run);
    let last = decided.map(|absence| absence.commit).min().unwrap_or(COUNTER_MAX);
    // Whoever has left for good has no part in what comes after the start that counts: before it left nothing of it was in a ring.
    let some_lack = what.absent != 0 || all.len() != here.len();
    loop {
        let headers = here.iter().flat_map(|found| found.batches.iter().map(|(header, _)| header));
        let Some(header) = headers.filter(|header| header.commit > commit).min_by_key(|header| header.commit).copied()
        else {
            break;
        };
        let next = header.commit;
        // One of which only members have batches that are not here is passed over: nobody here is told of by it.
        let is_next = next == commit + 1 || some_lack;
        let whole = is_next
            && here.iter().filter(|found| header.members >> found.number & 1 == 1).all(|found| found.is_whole(next));
        if next > last {
            break;
        }
        if !whole && !planted(Planted::CommitWithoutAllMembers) {
            // Commits are made one at a time: where there is a later one this one was complete, also where nobody has any of it.
            let first = if some_lack { next } else { commit + 1 };
            let later = |found: &&Found| found.batches.iter().any(|(header, _)| header.commit > first);
            if let Some(found) = here.iter().copied().find(later) {
                let what = format!("its ring has commits after number {first}, of which other members lack a part");
                return Err(OpenError::Damaged { member: found.number, what });
            }
            break;
        }
        here.iter().for_each(|found| count(found, next, true));
        mark = mark.max(header.mark);
        commit = next;
        let takes_part = |member: &usize| header.members >> member & 1 == 1;
        (0..MEMBERS_MAX).filter(takes_part).for_each(|member| parts[member] = next);
    }
    let mut absent = Vec::new();
    for member in (0..MEMBERS_MAX as u8).filter(|member| what.absent >> member & 1 == 1) {
        // As long as some had no start of this run nobody had a part in it.
        let needs = parts[usize::from(member)];
        let other = if needs <= newest.commit { newest.before } else { 0 };
        let known = newest.absent.of(member).copied();
        absent.push(known.unwrap_or(Absence { member, run: newest.run, other, commit, needs }));
    }
    for found in all {
        let Standing::Returns(absence) = found.standing else { continue };
        let mut last = absence.needs;
        for commit in found.batches.iter().map(|(header, _)| header.commit) {
            if commit <= absence.needs || counts_alone(newest, all, found, &absence, commit) {
                count(found, commit, false);
                last = last.max(commit);
                raise(&mut absent, found, commit);
            } else {
                break;
            }
        }
        let member = found.number;
        parts[usize::from(member)] = last.min(commit);
        // Until all know that it is back it may be as it is, or of the new run.
        let end = if found.start.run == absence.run { absence.commit } else { COUNTER_MAX };
        let needs = last.min(commit);
        absent.push(Absence { member, run: found.start.run, other: what.run, commit: end, needs });
    }
    absent.sort_unstable_by_key(|absence| absence.member);
    let absent = Absences::new(&absent).ok_or(OpenError::TooManyAbsent)?;
    let replay = replay.into_values().collect();
    Ok(Judged { commit, mark, parts, replay, absent })
}

/// Whether a commit counts that one who returns has, and none of those who went on: all who have batches of it were absent then. It may
/// lie between others that these have.
fn counts_alone(newest: &RingStart, all: &[Found], found: &Found, absence: &Absence, commit: u64) -> bool {
    let Some(header) = found.of_commit(commit).next().filter(|_| found.is_whole(commit)) else { return false };
    if found.start.run != absence.run {
        return false;
    }
    (0..MEMBERS_MAX as u8).filter(|member| header.members >> member & 1 == 1).all(|member| {
        let of = newest.absent.of(member);
        let then = of.is_some_and(|of| (of.run, of.commit) == (absence.run, absence.commit));
        let returned = all.iter().find(|found| found.number == member);
        then && returned.is_none_or(|found| found.start.commit >= commit || found.is_whole(commit))
    })
}

/// Those who are absent still have to have what now counts.
fn raise(absent: &mut [Absence], found: &Found, commit: u64) {
    let members = found.of_commit(commit).next().map_or(0, |header| header.members);
    for absence in absent.iter_mut().filter(|absence| members >> absence.member & 1 == 1) {
        absence.needs = absence.needs.max(commit);
    }
}

/// Writes down, on all who were there, what is decided of those who are not, before anything else is written; and gives those a start of the
/// newest run who lack one. Returns the generations of the starts, by seat.
pub(super) async fn settle<I: DeviceIo>(
    io: &I,
    what: &OpenPool<'_>,
    newest: &RingStart,
    all: &[Found],
    judged: &Judged,
) -> Result<Vec<u64>, OpenError> {
    let mut generations: Vec<u64> = all.iter().map(|found| found.start.generation).collect();
    let who = || what.members.iter().zip(all).filter(|(_, found)| !matches!(found.standing, Standing::Returns(_)));
    let lacks = |start: &RingStart| judged.absent.list().iter().any(|one| start.absent.of(one.member) != Some(one));
    // Also where it was decided before: whoever is absent may have been there since, in a start that was cut off.
    let decides = who().any(|(_, found)| lacks(&found.start)) || what.absent != 0;
    let behind = all.iter().any(|found| found.standing == Standing::Behind);
    if !behind && (!decides || planted(Planted::VerdictNotDurable)) {
        return Ok(generations);
    }
    let leap = if what.absent != 0 && !planted(Planted::VerdictOvertaken) { ABSENT_LEAP } else { 0 };
    let highest = generations.iter().copied().max().unwrap_or(0) + leap;
    for ((member, found), generation) in what.members.iter().zip(all).zip(&mut generations) {
        let start = match found.standing {
            Standing::Here => found.start,
            Standing::Behind => RingStart { position: 0, sequence: 1, ..*newest },
            Standing::Returns(_) => continue,
        };
        *generation = generation_after(*generation, highest + 1);
        let start = RingStart { generation: *generation, absent: judged.absent, ..start };
        let at = member.places.starts + start_slot(start.generation) * BLOCK;
        let written = io.write(member.device, at, start.encode().to_vec(), false).await;
        written.map_err(failed(member.number, "written"))?;
    }
    for (member, _) in who() {
        io.flush(member.device).await.map_err(failed(member.number, "flushed"))?;
    }
    Ok(generations)
}

#[cfg(test)]
mod tests {
    use braid_format::Uuid;

    use super::*;
    use crate::io::DeviceId;
    use crate::pool::MemberPlaces;

    /// A ring of this member, of which these commits are whole.
    fn ring(number: u8, commits: &[(u64, u128)], parts: [u64; MEMBERS_MAX]) -> Found {
        let start = RingStart {
            pool_tag: 1,
            session: 1,
            run: 7,
            sequence: 1,
            position: 0,
            commit: 4,
            mark: 4,
            generation: 1,
            before: 0,
            parts,
            absent: Absences::NONE,
            settled: 0,
        };
        let batch = |(commit, members): &(u64, u128)| {
            let (pool_tag, run, sequence, index, batches, mark, units, blocks) = (1, 7, 1, 0, 1, *commit, 0, 1);
            let header = BatchHeader {
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
        Found { number, start, standing: Standing::Here, batches: commits.iter().map(batch).collect() }
    }

    fn last_commit(a: &[(u64, u128)], b: &[(u64, u128)], parts: [u64; MEMBERS_MAX]) -> Result<u64, OpenError> {
        let places = MemberPlaces { starts: 0, owners: 0, table: 0, addresses: 0, data: 0 };
        let member = |number| {
            let device = DeviceId(u32::from(number));
            PoolDevice { number, device, places, ring: (0, 64), extents: 0, zero_slots: 0 }
        };
        let members = [member(0), member(1)];
        let what =
            OpenPool { uuid: Uuid::nil(), members: &members, owner_slots: 16, absent: 0, writes_over: false, run: 8 };
        let found = [ring(0, a, parts), ring(1, b, parts)];
        judge(&what, &found[0].start, &found).map(|judged| judged.commit)
    }

    #[test]
    fn a_commit_of_which_nobody_has_anything_was_whole_where_a_later_one_was_begun() {
        let none = [0; MEMBERS_MAX];
        assert_eq!(last_commit(&[(5, 0b01)], &[(6, 0b10)], none), Ok(6));
        assert_eq!(last_commit(&[(5, 0b01)], &[], none), Ok(5));
        assert_eq!(last_commit(&[], &[], none), Ok(4));
        let refused = last_commit(&[], &[(6, 0b10)], none);
        assert!(matches!(refused, Err(OpenError::Damaged { member: 1, .. })), "{refused:?}");
        // A member that left had a part in earlier ones, and in none of these.
        let mut left = none;
        left[2] = 3;
        let refused = last_commit(&[], &[(6, 0b10)], left);
        assert!(matches!(refused, Err(OpenError::Damaged { member: 1, .. })), "{refused:?}");
    }

    #[test]
    fn who_began_a_run_that_nobody_else_came_to_returns_if_one_who_is_here_was_to_come() {
        let places = MemberPlaces { starts: 0, owners: 0, table: 0, addresses: 0, data: 0 };
        let member = |number| {
            let device = DeviceId(u32::from(number));
            PoolDevice { number, device, places, ring: (0, 64), extents: 0, zero_slots: 0 }
        };
        let of = |run, before, absent: &[Absence], settled| {
            let absent = Absences::new(absent).expect("few enough");
            RingStart { run, before, absent, settled, ..ring(0, &[], [0; MEMBERS_MAX]).start }
        };
        let absence = |member, run, other| Absence { member, run, other, commit: 4, needs: 4 };
        // Members 1 and 2 went on without 0, when they were of run 7.
        let (members, newest) = ([member(0), member(1), member(2)], of(9, 0, &[absence(0, 7, 6)], 0));
        let what =
            OpenPool { uuid: Uuid::nil(), members: &members, owner_slots: 16, absent: 0, writes_over: false, run: 10 };
        let returns = |start: RingStart| match standing(&what, &newest, 0, &start) {
            Ok(standing) => standing == Standing::Returns(absence(0, 7, 6)),
            Err(error) => {
                assert_eq!(error, OpenError::OtherRun(0));
                false
            }
        };
        for before in [6, 7] {
            // It began run 8 with all of them; without 2, which nobody but itself knows; without 2, which 1 knows.
            assert!(returns(of(8, before, &[], 0b111)));
            assert!(!returns(of(8, before, &[absence(2, before, 0)], 0b001)));
            assert!(returns(of(8, before, &[absence(2, before, 0)], 0b011)));
            // Or while 2 returned to it: that one had not been told.
            assert!(returns(of(8, before, &[absence(2, 3, 8)], 0b001)));
            assert!(!returns(of(8, before, &[absence(1, 3, 0), absence(2, 3, 8)], 0b001)));
        }
        assert!(!returns(of(8, 5, &[], 0b111)), "behind another run");
        assert!(!returns(of(8, 0, &[], 0b111)), "all had come to it");
        assert!(returns(of(7, 0, &[], 0)) && returns(of(6, 0, &[], 0)));
    }
}

//! What the simulator meets rarely or never, one voter or one controller at a time.

use braid_format::Uuid;

use super::*;

const BOOT: Uuid = Uuid::from_u128(100);
const LATER_BOOT: Uuid = Uuid::from_u128(101);
const FIRST: Uuid = Uuid::from_u128(1);
const SECOND: Uuid = Uuid::from_u128(2);

fn voters(numbers: &[u8]) -> Voters {
    numbers.iter().copied().map(VoterId).collect()
}

fn vote(epoch: u64, sequence: u64, in_sync: &[u8]) -> Vote {
    Vote { epoch, sequence, lineage: 7, in_sync: voters(in_sync), seating: Seating::of(3, 2) }
}

/// Asks a fence, and lets it write what it wants to.
fn ask(fence: &mut Fence, ask: Ask) -> Option<Result<Answer, Refused>> {
    assert!(fence.ask(9, ask));
    let mut said = None;
    while let Some(action) = fence.pop() {
        match action {
            FenceAction::Write(_) => fence.written(true),
            FenceAction::Answer(9, answer) => said = Some(answer),
            _ => {}
        }
    }
    said
}

fn raise(fence: &mut Fence, epoch: u64, controller: Uuid) -> Option<Result<Answer, Refused>> {
    ask(fence, Ask::Raise { epoch, controller })
}

/// A connection says whose it is: epoch, controller and session; lane and attempt.
fn hello(
    fence: &mut Fence,
    id: u64,
    (epoch, controller, session): (u64, Uuid, u64),
    (lane, attempt): (u16, u64),
) -> Hello {
    fence.hello(ConnectionId(id), &Caller { epoch, controller, session, lane, attempt })
}

#[test]
fn quorums_meet_in_one_voter() {
    for count in 1..=VOTERS_MAX {
        let Quorums { voters, open, drop, lease } = Quorums::of(count);
        assert!(voters == count && open <= count && drop >= 1 && lease >= 1);
        assert!(open + open > count && open + drop > count && open + lease > count, "{count}");
    }
    let of = |count| (Quorums::of(count).open, Quorums::of(count).drop);
    assert_eq!([1, 2, 3, 4, 5].map(of), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]);
}

#[test]
fn an_epoch_belongs_to_one_controller() {
    let mut fence = Fence::new(Register::default(), BOOT);
    let before = Register::default();
    assert_eq!(raise(&mut fence, 3, FIRST), Some(Ok(Answer::Raised { before, boot: BOOT })));
    for (epoch, controller) in [(2, SECOND), (2, FIRST), (3, SECOND)] {
        assert_eq!(raise(&mut fence, epoch, controller), Some(Err(Refused { epoch: 3 })), "{epoch}");
        let vote = vote(epoch, 1, &[0]);
        let cast = ask(&mut fence, Ask::Cast { epoch, controller, vote, boot: BOOT });
        assert_eq!(cast, Some(Err(Refused { epoch: 3 })));
        assert_eq!(ask(&mut fence, Ask::Beat { epoch, controller }), Some(Err(Refused { epoch: 3 })));
        assert_eq!(ask(&mut fence, Ask::Release { epoch, controller }), Some(Err(Refused { epoch: 3 })));
        assert_eq!(hello(&mut fence, 1, (epoch, controller, 1), (0, 1)), Hello::Refused(Refused { epoch: 3 }));
    }
    // Whose answer was lost asks again.
    assert!(matches!(raise(&mut fence, 3, FIRST), Some(Ok(Answer::Raised { .. }))));
    assert_eq!(ask(&mut fence, Ask::Beat { epoch: 3, controller: FIRST }), Some(Ok(Answer::Alive)));
}

#[test]
fn a_raise_waits_for_what_is_under_way() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 5, (1, FIRST, 1), (0, 5)), Hello::Admitted);
    assert!(fence.begin(ConnectionId(5)) && fence.begin(ConnectionId(5)));
    assert_eq!(raise(&mut fence, 2, SECOND), None);
    // Cut off: nothing more begins, and nobody is let in.
    assert!(!fence.begin(ConnectionId(5)));
    assert!(matches!(hello(&mut fence, 6, (1, FIRST, 2), (0, 6)), Hello::Refused(_)));
    fence.closed(ConnectionId(5));
    fence.end(ConnectionId(5));
    assert_eq!((fence.pop(), fence.register().epoch), (None, 1));
    fence.end(ConnectionId(5));
    assert!(matches!(fence.pop(), Some(FenceAction::Write(Register { epoch: 2, .. }))));
    assert_eq!(fence.pop(), None, "it is answered before it is durable");
    fence.written(true);
    assert!(matches!(fence.pop(), Some(FenceAction::Answer(9, Ok(Answer::Raised { .. })))));
}

#[test]
fn a_session_waits_for_the_one_before_and_none_comes_late() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 1), (0, 1)), Hello::Admitted);
    assert!(fence.begin(ConnectionId(1)));
    assert_eq!(hello(&mut fence, 2, (1, FIRST, 3), (0, 2)), Hello::Waits);
    assert!(!fence.begin(ConnectionId(2)));
    assert_eq!(fence.pop(), Some(FenceAction::Cut(ConnectionId(1))));
    fence.end(ConnectionId(1));
    assert_eq!(fence.pop(), Some(FenceAction::Admit(ConnectionId(2))));
    assert!(fence.begin(ConnectionId(2)));
    fence.end(ConnectionId(2));
    fence.closed(ConnectionId(2));
    // Also where nothing is left of the newer one.
    assert!(matches!(hello(&mut fence, 3, (1, FIRST, 2), (0, 3)), Hello::Refused(_)));
    assert_eq!(hello(&mut fence, 4, (1, FIRST, 3), (0, 4)), Hello::Admitted);
    // Another epoch counts its sessions anew.
    raise(&mut fence, 2, SECOND);
    assert_eq!(hello(&mut fence, 5, (2, SECOND, 1), (0, 5)), Hello::Admitted);
}

#[test]
fn a_connection_waits_for_the_one_that_it_takes_the_place_of() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    for lane in [0, 1] {
        assert_eq!(hello(&mut fence, u64::from(lane), (1, FIRST, 4), (lane, 1)), Hello::Admitted);
        assert!(fence.begin(ConnectionId(u64::from(lane))));
    }
    assert_eq!(hello(&mut fence, 2, (1, FIRST, 4), (0, 3)), Hello::Waits);
    assert_eq!(fence.pop(), Some(FenceAction::Cut(ConnectionId(0))));
    // The other lane goes on, and what is under way there is not waited for.
    assert!(fence.pop().is_none() && fence.begin(ConnectionId(1)) && !fence.begin(ConnectionId(0)));
    // The same attempt, or an earlier one that comes late.
    for attempt in [2, 3] {
        assert!(matches!(hello(&mut fence, 3, (1, FIRST, 4), (0, attempt)), Hello::Refused(_)), "{attempt}");
    }
    // One that gives up waiting is taken the place of, too.
    assert_eq!(hello(&mut fence, 4, (1, FIRST, 4), (0, 4)), Hello::Waits);
    assert_eq!((fence.pop(), fence.pop()), (Some(FenceAction::Cut(ConnectionId(2))), None));
    fence.end(ConnectionId(0));
    assert_eq!((fence.pop(), fence.pop()), (Some(FenceAction::Admit(ConnectionId(4))), None));
    // A later session waits for all of them, and counts attempts anew.
    assert!(fence.begin(ConnectionId(4)));
    assert_eq!(hello(&mut fence, 5, (1, FIRST, 5), (0, 1)), Hello::Waits);
    fence.end(ConnectionId(4));
    fence.end(ConnectionId(1));
    let actions: Vec<FenceAction> = std::iter::from_fn(|| fence.pop()).collect();
    assert_eq!(actions.len(), 2, "{actions:?}: both are cut, and one I/O is left");
    fence.end(ConnectionId(1));
    assert_eq!(fence.pop(), Some(FenceAction::Admit(ConnectionId(5))));
    assert!(matches!(hello(&mut fence, 6, (1, FIRST, 5), (LANES_MAX, 1)), Hello::Refused(_)));
}

#[test]
fn before_the_first_epoch_nobody_is_answered() {
    let mut fence = Fence::new(Register::default(), BOOT);
    let nobody = Uuid::nil();
    assert!(matches!(hello(&mut fence, 1, (0, nobody, 1), (0, 1)), Hello::Refused(_)));
    let release = Ask::Release { epoch: 0, controller: nobody };
    assert_eq!(ask(&mut fence, release), Some(Err(Refused { epoch: 0 })));
    let cast = Ask::Cast { epoch: 0, controller: nobody, vote: vote(0, 1, &[0]), boot: BOOT };
    assert_eq!(ask(&mut fence, cast), Some(Err(Refused { epoch: 0 })));
    assert_eq!(raise(&mut fence, 0, nobody), Some(Err(Refused { epoch: 0 })));
}

/// A node reboots after the flush that comes before a drop and before the vote: what was written between may be lost.
#[test]
fn a_vote_under_another_boot_does_not_make_a_replica_believed() {
    let mut fence = Fence::new(Register::default(), LATER_BOOT);
    raise(&mut fence, 1, FIRST);
    let cast = Ask::Cast { epoch: 1, controller: FIRST, vote: vote(1, 1, &[0]), boot: BOOT };
    assert_eq!(ask(&mut fence, cast), Some(Ok(Answer::Cast)));
    assert_eq!((fence.boot(), fence.register().boot), (LATER_BOOT, BOOT));
    // An older vote that comes late changes nothing.
    let cast = Ask::Cast { epoch: 1, controller: FIRST, vote: vote(0, 9, &[1]), boot: LATER_BOOT };
    assert_eq!(ask(&mut fence, cast), Some(Ok(Answer::Cast)));
    assert_eq!((fence.register().vote, fence.register().boot), (vote(1, 1, &[0]), BOOT));
}

#[test]
fn a_voter_that_cannot_write_promises_nothing_more() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 1), (0, 1)), Hello::Admitted);
    assert!(fence.ask(1, Ask::Release { epoch: 1, controller: FIRST }));
    assert!(fence.ask(2, Ask::Beat { epoch: 1, controller: FIRST }));
    assert!(matches!(fence.pop(), Some(FenceAction::Write(_))));
    fence.written(false);
    assert_eq!(fence.pop(), Some(FenceAction::Cut(ConnectionId(1))));
    assert_eq!(fence.pop(), None);
    assert!(!fence.ask(3, Ask::Beat { epoch: 1, controller: FIRST }) && !fence.begin(ConnectionId(1)));
    assert!(matches!(hello(&mut fence, 2, (1, FIRST, 2), (0, 2)), Hello::Refused(_)));
}

#[test]
fn a_voter_that_can_write_again_goes_on_from_what_is_durable() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 5), (0, 1)), Hello::Admitted);
    assert!(fence.begin(ConnectionId(1)) && fence.ask(1, Ask::Release { epoch: 1, controller: FIRST }));
    let before = *fence.register();
    fence.written(false);
    // Something of it is with a disk still.
    assert!(!fence.is_idle());
    fence.closed(ConnectionId(1));
    fence.end(ConnectionId(1));
    assert!(fence.is_idle());
    while fence.pop().is_some() {}
    fence.recovered(before);
    assert_eq!(ask(&mut fence, Ask::Beat { epoch: 1, controller: FIRST }), Some(Ok(Answer::Alive)));
    // A connection of a session that was over does not come back with it.
    assert!(matches!(hello(&mut fence, 2, (1, FIRST, 4), (0, 9)), Hello::Refused(_)));
    assert_eq!(hello(&mut fence, 3, (1, FIRST, 6), (0, 1)), Hello::Admitted);
    // What was to be written may be what is durable: nobody was told, and it counts.
    fence.closed(ConnectionId(3));
    assert!(fence.ask(2, Ask::Raise { epoch: 2, controller: SECOND }));
    let Some(FenceAction::Write(raised)) = std::iter::from_fn(|| fence.pop()).last() else {
        panic!("it is to be durable")
    };
    fence.written(false);
    while fence.pop().is_some() {}
    fence.recovered(raised);
    assert_eq!(ask(&mut fence, Ask::Beat { epoch: 1, controller: FIRST }), Some(Err(Refused { epoch: 2 })));
    assert_eq!(hello(&mut fence, 4, (2, SECOND, 1), (0, 1)), Hello::Admitted);
}

#[test]
fn what_nobody_waits_for_any_more_is_not_begun() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 1), (0, 1)), Hello::Admitted);
    assert!(fence.begin(ConnectionId(1)));
    // It waits for I/O; another question waits behind it.
    assert!(fence.ask(1, Ask::Raise { epoch: 2, controller: SECOND }));
    assert!(fence.ask(2, Ask::Beat { epoch: 1, controller: FIRST }));
    assert_eq!((fence.pop(), fence.pop()), (Some(FenceAction::Cut(ConnectionId(1))), None));
    fence.withdraw(1);
    assert_eq!(fence.pop(), Some(FenceAction::Answer(2, Ok(Answer::Alive))));
    fence.closed(ConnectionId(1));
    fence.end(ConnectionId(1));
    assert_eq!((fence.pop(), fence.register().epoch), (None, 1), "nobody has raised it");
    assert_eq!(hello(&mut fence, 2, (1, FIRST, 1), (0, 2)), Hello::Admitted);
    fence.closed(ConnectionId(2));
    // What is being written goes on, and is answered to nobody in particular.
    assert!(fence.ask(3, Ask::Raise { epoch: 3, controller: SECOND }));
    assert!(matches!(fence.pop(), Some(FenceAction::Write(_))));
    fence.withdraw(3);
    fence.written(true);
    assert!(matches!(fence.pop(), Some(FenceAction::Answer(3, Ok(_)))));
    assert_eq!(fence.register().epoch, 3);
}

/// An opening of three voters, the last one a witness.
fn opening() -> Opening {
    Opening::new(Seating::of(3, 2), SECOND, 70)
}

fn raised(registers: &[(u8, Register)], epoch: u64) -> Opening {
    let mut opening = opening();
    opening.refused(epoch);
    for (voter, register) in registers {
        opening.raised(VoterId(*voter), epoch + 1, *register, BOOT, 1000);
    }
    opening
}

#[test]
fn who_never_served_does_not_speak_for_who_did() {
    let served =
        Register { epoch: 4, controller: FIRST, released: false, vote: vote(4, 2, &[0, 1]), boot: BOOT, since: 0 };
    let released = Register { released: true, ..served };
    let nobody = Register { epoch: 5, controller: SECOND, ..released };
    let waits = |registers: &[(u8, Register)]| matches!(raised(registers, 5).next(1000), Next::Wait(_, _, until) if until == 1000 + OPEN_WAIT_NS);
    assert!(waits(&[(0, served), (1, served)]));
    assert!(waits(&[(0, served), (1, nobody)]));
    assert!(!waits(&[(0, released), (1, served)]));
    // A volume that nobody ever opened.
    let new = Register { vote: vote(0, 0, &[0, 1]), boot: BOOT, ..Register::default() };
    assert_eq!(raised(&[(0, new), (1, new)], 0).next(1000), Next::MakeEqual(voters(&[0, 1])));
}

#[test]
fn rebooted_replicas_are_believed_when_all_in_sync_have_rebooted() {
    let good =
        Register { epoch: 4, controller: FIRST, released: true, vote: vote(4, 2, &[0, 1]), boot: BOOT, since: 0 };
    let rebooted = Register { boot: LATER_BOOT, ..good };
    let next = |registers: &[(u8, Register)]| raised(registers, 4).next(1000);
    assert_eq!(next(&[(0, good), (1, rebooted)]), Next::MakeEqual(voters(&[0])));
    assert_eq!(next(&[(0, rebooted), (1, rebooted)]), Next::MakeEqual(voters(&[0, 1])));
    // The other one may know better.
    assert!(matches!(next(&[(0, rebooted), (2, good)]), Next::Missing(_, _, missing) if missing == voters(&[0, 1])));
    assert!(matches!(next(&[(2, good)]), Next::Ask(..)));
}

#[test]
fn an_older_copy_is_believed_after_everybody_else() {
    let older_boot = boot_of_older_copy(LATER_BOOT);
    assert!(is_of_older_copy(older_boot) && older_boot != LATER_BOOT && !is_of_older_copy(LATER_BOOT));
    assert!(!is_of_older_copy(boot_of_original(older_boot)));
    let good = Register { epoch: 4, controller: FIRST, released: true, boot: BOOT, ..Register::default() };
    // Under which boot each replica is, by number; all were in sync under another one, or under this one.
    let next = |in_sync: &[u8], found: &[(u8, Uuid)], believed_before: Uuid| {
        let mut opening = opening();
        opening.refused(4);
        let register = Register { vote: vote(4, 2, in_sync), boot: believed_before, ..good };
        for (voter, boot) in found {
            opening.raised(VoterId(*voter), 5, register, *boot, 1000);
        }
        opening.next(1000)
    };
    let both = |boots: [Uuid; 2]| [(0, boots[0]), (1, boots[1])];
    assert_eq!(next(&[0, 1], &both([BOOT, older_boot]), BOOT), Next::MakeEqual(voters(&[0])));
    // The other one may lack what was not flushed, this one anything.
    assert_eq!(next(&[0, 1], &both([LATER_BOOT, older_boot]), BOOT), Next::MakeEqual(voters(&[0])));
    let missing = next(&[0, 1], &[(1, older_boot), (2, BOOT)], BOOT);
    assert!(matches!(missing, Next::Missing(_, _, missing) if missing == voters(&[0, 1])), "{missing:?}");
    // Nobody knows better.
    assert_eq!(next(&[0, 1], &both([older_boot, older_boot]), BOOT), Next::MakeEqual(voters(&[0, 1])));
    assert_eq!(next(&[1], &both([BOOT, older_boot]), BOOT), Next::MakeEqual(voters(&[1])));
    // Filled since, and believed under this boot.
    let filled = next(&[0, 1], &[(1, older_boot), (2, older_boot)], older_boot);
    assert_eq!(filled, Next::MakeEqual(voters(&[1])));
}

#[test]
fn an_opening_is_recorded_on_all_that_are_in_sync() {
    let last =
        Register { epoch: 4, controller: FIRST, released: true, vote: vote(4, 2, &[0, 1]), boot: BOOT, since: 0 };
    let mut opening = raised(&[(0, last), (1, last), (2, last)], 4);
    opening.choose(voters(&[0, 1]));
    opening.equal(voters(&[0, 1]));
    opening.cast(VoterId(0), 5);
    opening.cast(VoterId(2), 5);
    assert_eq!(opening.next(1000), Next::Cast(Vote { epoch: 5, sequence: 1, ..last.vote }, voters(&[1])));
    opening.cast(VoterId(1), 5);
    assert_eq!(opening.next(1000), Next::Open);
}

#[test]
fn a_drop_waits_for_flushes_and_votes_and_a_newcomer_for_itself() {
    let opened = Opened { vote: vote(5, 1, &[0, 1]), boots: [Some(BOOT); VOTERS_MAX] };
    let mut membership = Membership::new(&opened, 1);
    membership.fail(VoterId(1));
    assert_eq!((membership.wanted(), membership.may_answer()), (Wanted::Flush(voters(&[0])), false));
    membership.flushed(VoterId(0));
    let Wanted::Cast(dropped, asked) = membership.wanted() else { panic!("it is to be voted for") };
    assert_eq!((dropped.order(), dropped.in_sync, asked), ((5, 2), voters(&[0]), voters(&[0, 1, 2])));
    membership.cast(VoterId(0), dropped.order());
    membership.cast(VoterId(0), dropped.order());
    assert!(!membership.may_answer());
    membership.cast(VoterId(2), dropped.order());
    assert!(membership.may_answer() && membership.settled().in_sync == voters(&[0]));

    assert!(membership.promote(VoterId(1)));
    let order = (5, 3);
    membership.cast(VoterId(0), order);
    membership.cast(VoterId(2), order);
    assert_eq!((membership.settled().in_sync, membership.in_sync()), (voters(&[0]), voters(&[0, 1])));
    membership.cast(VoterId(1), order);
    assert_eq!(membership.settled().in_sync, voters(&[0, 1]));

    // Another boot is a failure; the last one that holds everything is never dropped.
    membership.met(VoterId(1), LATER_BOOT);
    assert_eq!((membership.in_sync(), membership.boot(VoterId(1))), (voters(&[0]), LATER_BOOT));
    membership.met(VoterId(0), LATER_BOOT);
    assert_eq!((membership.wanted(), membership.may_answer()), (Wanted::Frozen, false));
}

#[test]
fn a_lease_counts_from_the_moment_of_asking() {
    let mut lease = Lease::default();
    let holds = |lease: &Lease, now| lease.holds(Seating::of(3, 2).sets(), now);
    assert!(!holds(&lease, 0));
    lease.heard(VoterId(0), 1000);
    assert!(!holds(&lease, 1000));
    lease.heard(VoterId(2), 400);
    assert!(holds(&lease, 400 + LEASE_NS - 1) && !holds(&lease, 400 + LEASE_NS));
    lease.heard(VoterId(2), 300);
    assert_eq!(lease.until_ns(Seating::of(3, 2).sets()), Some(400 + LEASE_NS));
    // Each set needs its own.
    let joint = Seating { before: voters(&[0, 1]), ..Seating::of(3, 2) };
    assert_eq!(lease.until_ns(joint.sets()), Some(400 + LEASE_NS));
    let joint = Seating { before: voters(&[1, 3]), ..Seating::of(3, 2) };
    assert_eq!(lease.until_ns(joint.sets()), None);
}

#[test]
fn an_opening_begins_anew_where_who_was_counted_is_somebody_else() {
    let register =
        Register { epoch: 5, controller: FIRST, released: true, vote: vote(5, 1, &[0, 1]), boot: BOOT, since: 0 };
    for voted in [false, true] {
        let mut opening = Opening::new(Seating::of(3, 2), SECOND, 70).above(5);
        for voter in [0, 2] {
            opening.raised(VoterId(voter), 6, register, BOOT, 1000);
        }
        let Next::MakeEqual(chosen) = opening.next(1000) else { panic!("two of three are enough") };
        opening.choose(chosen);
        if voted {
            opening.equal(chosen);
        }
        // Who was not raised says nothing of it.
        opening.moved(VoterId(1), 1000);
        assert_eq!(opening.epoch(), 6);
        opening.moved(VoterId(2), 1000);
        let Next::Ask(asked, all) = opening.next(1000) else { panic!("it begins anew") };
        assert_eq!((asked, all), (Ask::Raise { epoch: 7, controller: SECOND }, Voters::first(3)));
    }
}

mod forced;
mod levels;
mod seats;

//! Cases that the simulator meets rarely or never, with one voter or one controller.

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
    Vote { epoch, sequence, lineage: 7, in_sync: voters(in_sync), config: VoterConfig::of(3, 2) }
}

/// Sends a request to a fence, and completes its writes.
fn ask(fence: &mut Fence, ask: VoterRequest) -> Option<Result<VoterReply, VoterRefusal>> {
    assert!(fence.request(9, ask));
    let mut said = None;
    while let Some(action) = fence.pop() {
        match action {
            FenceAction::Write(_) => fence.written(true),
            FenceAction::Reply(9, answer) => said = Some(answer),
            _ => {}
        }
    }
    said
}

fn raise(fence: &mut Fence, epoch: u64, controller: Uuid) -> Option<Result<VoterReply, VoterRefusal>> {
    ask(fence, VoterRequest::Raise { epoch, controller })
}

/// Introduces a connection with epoch, controller and session; number and attempt.
fn hello(
    fence: &mut Fence,
    id: u64,
    (epoch, controller, session): (u64, Uuid, u64),
    (number, attempt): (u16, u64),
) -> AdmissionResult {
    fence.hello(ConnectionId(id), &ConnectionOrigin { epoch, controller, session, connection: number, attempt })
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
    assert_eq!(raise(&mut fence, 3, FIRST), Some(Ok(VoterReply::Raised { before, boot: BOOT })));
    for (epoch, controller) in [(2, SECOND), (2, FIRST), (3, SECOND)] {
        assert_eq!(raise(&mut fence, epoch, controller), Some(Err(VoterRefusal { epoch: 3 })), "{epoch}");
        let vote = vote(epoch, 1, &[0]);
        let cast = ask(&mut fence, VoterRequest::Cast { epoch, controller, vote, boot: BOOT });
        assert_eq!(cast, Some(Err(VoterRefusal { epoch: 3 })));
        assert_eq!(
            ask(&mut fence, VoterRequest::Heartbeat { epoch, controller }),
            Some(Err(VoterRefusal { epoch: 3 }))
        );
        assert_eq!(ask(&mut fence, VoterRequest::Release { epoch, controller }), Some(Err(VoterRefusal { epoch: 3 })));
        assert_eq!(
            hello(&mut fence, 1, (epoch, controller, 1), (0, 1)),
            AdmissionResult::Refused(VoterRefusal { epoch: 3 })
        );
    }
    // A controller whose reply was lost asks again.
    assert!(matches!(raise(&mut fence, 3, FIRST), Some(Ok(VoterReply::Raised { .. }))));
    assert_eq!(ask(&mut fence, VoterRequest::Heartbeat { epoch: 3, controller: FIRST }), Some(Ok(VoterReply::Alive)));
}

#[test]
fn a_raise_waits_for_io_in_flight() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 5, (1, FIRST, 1), (0, 5)), AdmissionResult::Admitted);
    assert!(fence.begin(ConnectionId(5)) && fence.begin(ConnectionId(5)));
    assert_eq!(raise(&mut fence, 2, SECOND), None);
    // The connection is cut: no more I/O begins, and no connection is admitted.
    assert!(!fence.begin(ConnectionId(5)));
    assert!(matches!(hello(&mut fence, 6, (1, FIRST, 2), (0, 6)), AdmissionResult::Refused(_)));
    fence.closed(ConnectionId(5));
    fence.end(ConnectionId(5));
    assert_eq!((fence.pop(), fence.register().epoch), (None, 1));
    fence.end(ConnectionId(5));
    assert!(matches!(fence.pop(), Some(FenceAction::Write(Register { epoch: 2, .. }))));
    assert_eq!(fence.pop(), None, "it is answered before it is durable");
    fence.written(true);
    assert!(matches!(fence.pop(), Some(FenceAction::Reply(9, Ok(VoterReply::Raised { .. })))));
}

#[test]
fn a_session_waits_for_earlier_ones_and_none_is_admitted_late() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 1), (0, 1)), AdmissionResult::Admitted);
    assert!(fence.begin(ConnectionId(1)));
    assert_eq!(hello(&mut fence, 2, (1, FIRST, 3), (0, 2)), AdmissionResult::Waits);
    assert!(!fence.begin(ConnectionId(2)));
    assert_eq!(fence.pop(), Some(FenceAction::Cut(ConnectionId(1))));
    fence.end(ConnectionId(1));
    assert_eq!(fence.pop(), Some(FenceAction::Admit(ConnectionId(2))));
    assert!(fence.begin(ConnectionId(2)));
    fence.end(ConnectionId(2));
    fence.closed(ConnectionId(2));
    // This holds even if the newer session has ended.
    assert!(matches!(hello(&mut fence, 3, (1, FIRST, 2), (0, 3)), AdmissionResult::Refused(_)));
    assert_eq!(hello(&mut fence, 4, (1, FIRST, 3), (0, 4)), AdmissionResult::Admitted);
    // Another epoch counts its sessions from the start.
    raise(&mut fence, 2, SECOND);
    assert_eq!(hello(&mut fence, 5, (2, SECOND, 1), (0, 5)), AdmissionResult::Admitted);
}

#[test]
fn a_connection_waits_for_the_one_that_it_replaces() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    for number in [0, 1] {
        assert_eq!(hello(&mut fence, u64::from(number), (1, FIRST, 4), (number, 1)), AdmissionResult::Admitted);
        assert!(fence.begin(ConnectionId(u64::from(number))));
    }
    assert_eq!(hello(&mut fence, 2, (1, FIRST, 4), (0, 3)), AdmissionResult::Waits);
    assert_eq!(fence.pop(), Some(FenceAction::Cut(ConnectionId(0))));
    // The other connection continues, and its I/O is not waited for.
    assert!(fence.pop().is_none() && fence.begin(ConnectionId(1)) && !fence.begin(ConnectionId(0)));
    // The same attempt, or an earlier one that arrives late.
    for attempt in [2, 3] {
        assert!(matches!(hello(&mut fence, 3, (1, FIRST, 4), (0, attempt)), AdmissionResult::Refused(_)), "{attempt}");
    }
    // A waiting connection is replaced, too.
    assert_eq!(hello(&mut fence, 4, (1, FIRST, 4), (0, 4)), AdmissionResult::Waits);
    assert_eq!((fence.pop(), fence.pop()), (Some(FenceAction::Cut(ConnectionId(2))), None));
    fence.end(ConnectionId(0));
    assert_eq!((fence.pop(), fence.pop()), (Some(FenceAction::Admit(ConnectionId(4))), None));
    // A later session waits for all of them, and counts attempts from the start.
    assert!(fence.begin(ConnectionId(4)));
    assert_eq!(hello(&mut fence, 5, (1, FIRST, 5), (0, 1)), AdmissionResult::Waits);
    fence.end(ConnectionId(4));
    fence.end(ConnectionId(1));
    let actions: Vec<FenceAction> = std::iter::from_fn(|| fence.pop()).collect();
    assert_eq!(actions.len(), 2, "{actions:?}: both are cut, and one I/O is left");
    fence.end(ConnectionId(1));
    assert_eq!(fence.pop(), Some(FenceAction::Admit(ConnectionId(5))));
    assert!(matches!(hello(&mut fence, 6, (1, FIRST, 5), (SESSION_CONNECTIONS_MAX, 1)), AdmissionResult::Refused(_)));
}

#[test]
fn before_the_first_epoch_no_controller_is_answered() {
    let mut fence = Fence::new(Register::default(), BOOT);
    let no_controller = Uuid::nil();
    assert!(matches!(hello(&mut fence, 1, (0, no_controller, 1), (0, 1)), AdmissionResult::Refused(_)));
    let release = VoterRequest::Release { epoch: 0, controller: no_controller };
    assert_eq!(ask(&mut fence, release), Some(Err(VoterRefusal { epoch: 0 })));
    let cast = VoterRequest::Cast { epoch: 0, controller: no_controller, vote: vote(0, 1, &[0]), boot: BOOT };
    assert_eq!(ask(&mut fence, cast), Some(Err(VoterRefusal { epoch: 0 })));
    assert_eq!(raise(&mut fence, 0, no_controller), Some(Err(VoterRefusal { epoch: 0 })));
}

/// A node reboots between the flush that precedes a drop and the vote: what was written in between may be lost.
#[test]
fn a_vote_under_another_boot_does_not_make_a_replica_trusted() {
    let mut fence = Fence::new(Register::default(), LATER_BOOT);
    raise(&mut fence, 1, FIRST);
    let cast = VoterRequest::Cast { epoch: 1, controller: FIRST, vote: vote(1, 1, &[0]), boot: BOOT };
    assert_eq!(ask(&mut fence, cast), Some(Ok(VoterReply::Cast)));
    assert_eq!((fence.boot(), fence.register().boot), (LATER_BOOT, BOOT));
    // An older vote that arrives late changes nothing.
    let cast = VoterRequest::Cast { epoch: 1, controller: FIRST, vote: vote(0, 9, &[1]), boot: LATER_BOOT };
    assert_eq!(ask(&mut fence, cast), Some(Ok(VoterReply::Cast)));
    assert_eq!((fence.register().vote, fence.register().boot), (vote(1, 1, &[0]), BOOT));
}

#[test]
fn a_voter_that_cannot_write_answers_nothing_more() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 1), (0, 1)), AdmissionResult::Admitted);
    assert!(fence.request(1, VoterRequest::Release { epoch: 1, controller: FIRST }));
    assert!(fence.request(2, VoterRequest::Heartbeat { epoch: 1, controller: FIRST }));
    assert!(matches!(fence.pop(), Some(FenceAction::Write(_))));
    fence.written(false);
    assert_eq!(fence.pop(), Some(FenceAction::Cut(ConnectionId(1))));
    assert_eq!(fence.pop(), None);
    assert!(
        !fence.request(3, VoterRequest::Heartbeat { epoch: 1, controller: FIRST }) && !fence.begin(ConnectionId(1))
    );
    assert!(matches!(hello(&mut fence, 2, (1, FIRST, 2), (0, 2)), AdmissionResult::Refused(_)));
}

#[test]
fn a_voter_that_can_write_again_continues_from_its_durable_register() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 5), (0, 1)), AdmissionResult::Admitted);
    assert!(fence.begin(ConnectionId(1)) && fence.request(1, VoterRequest::Release { epoch: 1, controller: FIRST }));
    let before = *fence.register();
    fence.written(false);
    // I/O of the connection is still in flight.
    assert!(!fence.is_idle());
    fence.closed(ConnectionId(1));
    fence.end(ConnectionId(1));
    assert!(fence.is_idle());
    while fence.pop().is_some() {}
    fence.recovered(before);
    assert_eq!(ask(&mut fence, VoterRequest::Heartbeat { epoch: 1, controller: FIRST }), Some(Ok(VoterReply::Alive)));
    // A connection of an ended session is not admitted again.
    assert!(matches!(hello(&mut fence, 2, (1, FIRST, 4), (0, 9)), AdmissionResult::Refused(_)));
    assert_eq!(hello(&mut fence, 3, (1, FIRST, 6), (0, 1)), AdmissionResult::Admitted);
    // The new register may have become durable: it counts, although no reply was sent.
    fence.closed(ConnectionId(3));
    assert!(fence.request(2, VoterRequest::Raise { epoch: 2, controller: SECOND }));
    let Some(FenceAction::Write(raised)) = std::iter::from_fn(|| fence.pop()).last() else {
        panic!("it is to be durable")
    };
    fence.written(false);
    while fence.pop().is_some() {}
    fence.recovered(raised);
    assert_eq!(
        ask(&mut fence, VoterRequest::Heartbeat { epoch: 1, controller: FIRST }),
        Some(Err(VoterRefusal { epoch: 2 }))
    );
    assert_eq!(hello(&mut fence, 4, (2, SECOND, 1), (0, 1)), AdmissionResult::Admitted);
}

#[test]
fn a_withdrawn_request_is_not_begun() {
    let mut fence = Fence::new(Register::default(), BOOT);
    raise(&mut fence, 1, FIRST);
    assert_eq!(hello(&mut fence, 1, (1, FIRST, 1), (0, 1)), AdmissionResult::Admitted);
    assert!(fence.begin(ConnectionId(1)));
    // The request waits for I/O; another request waits behind it.
    assert!(fence.request(1, VoterRequest::Raise { epoch: 2, controller: SECOND }));
    assert!(fence.request(2, VoterRequest::Heartbeat { epoch: 1, controller: FIRST }));
    assert_eq!((fence.pop(), fence.pop()), (Some(FenceAction::Cut(ConnectionId(1))), None));
    fence.withdraw(1);
    assert_eq!(fence.pop(), Some(FenceAction::Reply(2, Ok(VoterReply::Alive))));
    fence.closed(ConnectionId(1));
    fence.end(ConnectionId(1));
    assert_eq!((fence.pop(), fence.register().epoch), (None, 1), "no controller has raised it");
    assert_eq!(hello(&mut fence, 2, (1, FIRST, 1), (0, 2)), AdmissionResult::Admitted);
    fence.closed(ConnectionId(2));
    // A write in progress continues, and its reply is sent although the request was withdrawn.
    assert!(fence.request(3, VoterRequest::Raise { epoch: 3, controller: SECOND }));
    assert!(matches!(fence.pop(), Some(FenceAction::Write(_))));
    fence.withdraw(3);
    fence.written(true);
    assert!(matches!(fence.pop(), Some(FenceAction::Reply(3, Ok(_)))));
    assert_eq!(fence.register().epoch, 3);
}

/// Returns an opening of three voters, the last one a witness.
fn opening() -> Opening {
    Opening::new(VoterConfig::of(3, 2), SECOND, 70)
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
fn a_controller_that_never_served_does_not_release_an_earlier_lease() {
    let served = Register {
        epoch: 4,
        controller: FIRST,
        released: false,
        vote: vote(4, 2, &[0, 1]),
        boot: BOOT,
        added_in_version: 0,
    };
    let released = Register { released: true, ..served };
    let no_controller = Register { epoch: 5, controller: SECOND, ..released };
    let waits = |registers: &[(u8, Register)]| matches!(raised(registers, 5).next(1000), OpeningStep::Wait(_, _, until) if until == 1000 + OPEN_WAIT_NS);
    assert!(waits(&[(0, served), (1, served)]));
    assert!(waits(&[(0, served), (1, no_controller)]));
    assert!(!waits(&[(0, released), (1, served)]));
    // A volume that was never opened.
    let new = Register { vote: vote(0, 0, &[0, 1]), boot: BOOT, ..Register::default() };
    assert_eq!(raised(&[(0, new), (1, new)], 0).next(1000), OpeningStep::Resync(voters(&[0, 1])));
}

#[test]
fn rebooted_replicas_are_trusted_when_all_in_sync_have_rebooted() {
    let good = Register {
        epoch: 4,
        controller: FIRST,
        released: true,
        vote: vote(4, 2, &[0, 1]),
        boot: BOOT,
        added_in_version: 0,
    };
    let rebooted = Register { boot: LATER_BOOT, ..good };
    let next = |registers: &[(u8, Register)]| raised(registers, 4).next(1000);
    assert_eq!(next(&[(0, good), (1, rebooted)]), OpeningStep::Resync(voters(&[0])));
    assert_eq!(next(&[(0, rebooted), (1, rebooted)]), OpeningStep::Resync(voters(&[0, 1])));
    // The other replica may have better content.
    assert!(
        matches!(next(&[(0, rebooted), (2, good)]), OpeningStep::Missing(_, _, missing) if missing == voters(&[0, 1]))
    );
    assert!(matches!(next(&[(2, good)]), OpeningStep::Ask(..)));
}

#[test]
fn an_older_copy_is_trusted_last() {
    let older_boot = boot_of_older_copy(LATER_BOOT);
    assert!(is_of_older_copy(older_boot) && older_boot != LATER_BOOT && !is_of_older_copy(LATER_BOOT));
    assert!(!is_of_older_copy(boot_of_original(older_boot)));
    let good = Register { epoch: 4, controller: FIRST, released: true, boot: BOOT, ..Register::default() };
    // The boot of each replica, by number; all were in sync under another boot, or under this one.
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
    assert_eq!(next(&[0, 1], &both([BOOT, older_boot]), BOOT), OpeningStep::Resync(voters(&[0])));
    // The other one may lack what was not flushed, this one anything.
    assert_eq!(next(&[0, 1], &both([LATER_BOOT, older_boot]), BOOT), OpeningStep::Resync(voters(&[0])));
    let missing = next(&[0, 1], &[(1, older_boot), (2, BOOT)], BOOT);
    assert!(matches!(missing, OpeningStep::Missing(_, _, missing) if missing == voters(&[0, 1])), "{missing:?}");
    // No better content exists.
    assert_eq!(next(&[0, 1], &both([older_boot, older_boot]), BOOT), OpeningStep::Resync(voters(&[0, 1])));
    assert_eq!(next(&[1], &both([BOOT, older_boot]), BOOT), OpeningStep::Resync(voters(&[1])));
    // Rebuilt since, and trusted under this boot.
    let filled = next(&[0, 1], &[(1, older_boot), (2, older_boot)], older_boot);
    assert_eq!(filled, OpeningStep::Resync(voters(&[1])));
}

#[test]
fn an_opening_is_recorded_on_all_that_are_in_sync() {
    let last = Register {
        epoch: 4,
        controller: FIRST,
        released: true,
        vote: vote(4, 2, &[0, 1]),
        boot: BOOT,
        added_in_version: 0,
    };
    let mut opening = raised(&[(0, last), (1, last), (2, last)], 4);
    opening.choose(voters(&[0, 1]));
    opening.resynced(voters(&[0, 1]));
    opening.cast(VoterId(0), 5);
    opening.cast(VoterId(2), 5);
    assert_eq!(opening.next(1000), OpeningStep::Cast(Vote { epoch: 5, sequence: 1, ..last.vote }, voters(&[1])));
    opening.cast(VoterId(1), 5);
    assert_eq!(opening.next(1000), OpeningStep::Open);
}

#[test]
fn a_drop_waits_for_flushes_and_votes_and_a_promotion_for_the_new_member() {
    let opened = Opened { vote: vote(5, 1, &[0, 1]), boots: [Some(BOOT); VOTERS_MAX] };
    let mut membership = Membership::new(&opened, 1);
    membership.fail(VoterId(1));
    assert_eq!((membership.next_action(), membership.may_answer()), (MembershipAction::Flush(voters(&[0])), false));
    membership.flushed(VoterId(0));
    let MembershipAction::Cast(dropped, targets) = membership.next_action() else { panic!("it is to be voted for") };
    assert_eq!((dropped.order(), dropped.in_sync, targets), ((5, 2), voters(&[0]), voters(&[0, 1, 2])));
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

    // Another boot is a failure; the last replica that holds everything is never dropped.
    membership.connected(VoterId(1), LATER_BOOT);
    assert_eq!((membership.in_sync(), membership.boot(VoterId(1))), (voters(&[0]), LATER_BOOT));
    membership.connected(VoterId(0), LATER_BOOT);
    assert_eq!((membership.next_action(), membership.may_answer()), (MembershipAction::Frozen, false));
}

#[test]
fn a_lease_counts_from_the_time_of_the_request() {
    let mut lease = Lease::default();
    let holds = |lease: &Lease, now| lease.holds(VoterConfig::of(3, 2).sets(), now);
    assert!(!holds(&lease, 0));
    lease.replied(VoterId(0), 1000);
    assert!(!holds(&lease, 1000));
    lease.replied(VoterId(2), 400);
    assert!(holds(&lease, 400 + LEASE_NS - 1) && !holds(&lease, 400 + LEASE_NS));
    lease.replied(VoterId(2), 300);
    assert_eq!(lease.expires_ns(VoterConfig::of(3, 2).sets()), Some(400 + LEASE_NS));
    // Each set needs its own quorum.
    let joint = VoterConfig { previous_voters: voters(&[0, 1]), ..VoterConfig::of(3, 2) };
    assert_eq!(lease.expires_ns(joint.sets()), Some(400 + LEASE_NS));
    let joint = VoterConfig { previous_voters: voters(&[1, 3]), ..VoterConfig::of(3, 2) };
    assert_eq!(lease.expires_ns(joint.sets()), None);
}

#[test]
fn an_opening_starts_again_if_a_raised_voter_was_replaced() {
    let register = Register {
        epoch: 5,
        controller: FIRST,
        released: true,
        vote: vote(5, 1, &[0, 1]),
        boot: BOOT,
        added_in_version: 0,
    };
    for voted in [false, true] {
        let mut opening = Opening::new(VoterConfig::of(3, 2), SECOND, 70).above_epoch(5);
        for voter in [0, 2] {
            opening.raised(VoterId(voter), 6, register, BOOT, 1000);
        }
        let OpeningStep::Resync(chosen) = opening.next(1000) else { panic!("two of three are enough") };
        opening.choose(chosen);
        if voted {
            opening.resynced(chosen);
        }
        // A voter that was not raised has no influence.
        opening.replaced(VoterId(1), 1000);
        assert_eq!(opening.epoch(), 6);
        opening.replaced(VoterId(2), 1000);
        let OpeningStep::Ask(targets, all) = opening.next(1000) else { panic!("it starts again") };
        assert_eq!((targets, all), (VoterRequest::Raise { epoch: 7, controller: SECOND }, Voters::first(3)));
    }
}

mod forced;
mod parity;
mod voter_changes;

//! Adding and removing voters.

use super::*;

/// Three voters, two of them replicas; a fourth one, a replica, is added with this version.
const VERSION: u64 = 5 << 16 | 1;

fn four() -> VoterConfig {
    VoterConfig::of(3, 2).with(VoterId(3), true, VERSION).expect("it is none of them")
}

fn serving() -> Membership {
    Membership::new(&Opened { vote: vote(5, 1, &[0, 1]), boots: [Some(BOOT); VOTERS_MAX] }, 1)
}

fn cast(membership: &mut Membership, numbers: &[u8]) {
    let MembershipAction::Cast(vote, _) = membership.next_action() else { panic!("nothing is voted for") };
    numbers.iter().for_each(|number| membership.cast(VoterId(*number), vote.order()));
}

#[test]
fn each_change_is_one_voter_and_has_its_own_version() {
    let three = VoterConfig::of(3, 2);
    assert_eq!(three.with(VoterId(1), true, VERSION), None);
    assert_eq!(three.with(VoterId(16), true, VERSION), None);
    assert_eq!(three.without(VoterId(3), VERSION), None);
    assert_eq!(VoterConfig::of(1, 1).without(VoterId(0), VERSION), None);
    let joint = four();
    assert_eq!(
        (joint.voters, joint.previous_voters, joint.replicas),
        (voters(&[0, 1, 2, 3]), voters(&[0, 1, 2]), voters(&[0, 1, 3]))
    );
    assert_eq!((joint.with(VoterId(4), true, 9), joint.without(VoterId(0), 9)), (None, None));
    let gone = joint.final_config().without(VoterId(1), VERSION + 1).expect("it is one of them");
    assert_eq!((gone.all(), gone.final_config().all()), (voters(&[0, 1, 2, 3]), voters(&[0, 2, 3])));
    assert_eq!(gone.final_config().replicas, voters(&[0, 3]));
    assert!(VoterConfig::version_of(1, 2) < VoterConfig::version_of(2, 1));
    assert_eq!(VoterConfig::version_of(u64::MAX >> 16, 1), None);
}

#[test]
fn quorums_of_n_and_n_plus_one_voters_meet() {
    // An opening with the previous voters meets an opening with the new ones.
    for count in 1..VOTERS_MAX {
        assert!(Quorums::of(count).open + Quorums::of(count + 1).open > count + 1, "{count}");
    }
}

#[test]
fn a_change_needs_both_quorums_and_settles_by_itself() {
    let mut membership = serving();
    assert!(membership.change(four()) && !membership.change(four()) && membership.may_answer());
    assert_eq!(membership.lease_sets().count(), 3);
    let MembershipAction::Cast(joint, targets) = membership.next_action() else { panic!("it is to be voted for") };
    assert_eq!((joint.config, joint.in_sync, targets), (four(), voters(&[0, 1]), voters(&[0, 1, 2, 3])));
    // Two of the four, and one of the three.
    cast(&mut membership, &[0, 3]);
    assert!(!membership.settled().config.is_joint());
    cast(&mut membership, &[2]);
    assert_eq!(membership.settled().config, four());
    let MembershipAction::Cast(last, _) = membership.next_action() else { panic!("it is to be settled") };
    assert_eq!((last.config, last.sequence), (four().final_config(), 3));
    cast(&mut membership, &[0, 3]);
    assert_eq!(
        (membership.settled().config, membership.next_action()),
        (four().final_config(), MembershipAction::Nothing)
    );
    assert_eq!(membership.lease_sets().count(), 1);
}

#[test]
fn a_failure_during_a_change_is_voted_for_by_both_voter_sets() {
    let mut membership = serving();
    assert!(membership.change(four()));
    membership.fail(VoterId(1));
    membership.flushed(VoterId(0));
    assert!(!membership.may_answer());
    let MembershipAction::Cast(vote, _) = membership.next_action() else { panic!("it is to be voted for") };
    assert_eq!((vote.config, vote.in_sync), (four(), voters(&[0])));
    cast(&mut membership, &[0, 3]);
    assert!(!membership.may_answer());
    cast(&mut membership, &[2]);
    assert!(membership.may_answer());
    // A promotion can be voted for while the change settles.
    assert!(membership.promote(VoterId(1)));
    cast(&mut membership, &[0, 1, 2]);
    assert_eq!((membership.settled().config, membership.settled().in_sync), (four().final_config(), voters(&[0, 1])));
}

#[test]
fn a_replica_in_sync_keeps_its_vote() {
    let mut membership = serving();
    let without = membership.config().without(VoterId(1), VERSION).expect("it is one of them");
    assert!(!membership.change(without));
    membership.fail(VoterId(1));
    assert!(!membership.change(without));
    membership.flushed(VoterId(0));
    cast(&mut membership, &[0, 2]);
    assert!(membership.change(without));
    // A removed voter of three is not needed.
    cast(&mut membership, &[0, 2]);
    cast(&mut membership, &[0]);
    assert_eq!(membership.settled().config.voters, voters(&[0, 2]));
}

#[test]
fn an_opening_follows_the_votes_to_the_current_voters() {
    let last = Register {
        epoch: 5,
        controller: FIRST,
        released: true,
        vote: vote(5, 1, &[0, 1]),
        boot: BOOT,
        added_in_version: 0,
    };
    let of = |sequence, config| Register { vote: Vote { sequence, config, ..last.vote }, ..last };
    let new_voter = Register { added_in_version: VERSION, ..of(2, four()) };
    // No raised voter knows of the fourth one.
    assert_eq!(raised(&[(0, last), (2, last)], 5).next(1000), OpeningStep::Resync(voters(&[0])));
    // One does: three of the four are needed, and two of the three.
    let next = |registers: &[(u8, Register)]| raised(registers, 5).next(1000);
    let OpeningStep::Ask(_, targets) = next(&[(0, of(2, four())), (2, last)]) else { panic!("more are needed") };
    assert_eq!(targets, voters(&[1, 3]));
    assert!(matches!(next(&[(0, of(2, four())), (3, new_voter)]), OpeningStep::Ask(..)));
    assert!(matches!(next(&[(0, of(2, four())), (2, last), (3, new_voter)]), OpeningStep::Resync(_)));
    // The vote counts: the previous voters alone do not suffice.
    let settled = of(3, four().final_config());
    assert!(matches!(next(&[(0, settled), (2, last)]), OpeningStep::Ask(..)));
    let mut opening = raised(&[(0, settled), (2, last), (3, new_voter)], 5);
    assert_eq!(opening.next(1000), OpeningStep::Resync(voters(&[0])));
    opening.choose(voters(&[0]));
    opening.resynced(voters(&[0]));
    let OpeningStep::Cast(vote, _) = opening.next(1000) else { panic!("it is to be voted for") };
    assert_eq!(vote.config, four().final_config());
}

#[test]
fn a_voter_that_was_added_again_knows_nothing_of_the_time_before() {
    let last = Register {
        epoch: 5,
        controller: FIRST,
        released: true,
        vote: vote(5, 1, &[0, 1]),
        boot: BOOT,
        added_in_version: 0,
    };
    // Voter 1 was removed and added again; voter 2 does not know.
    let anew = Register { added_in_version: VERSION, vote: vote(0, 0, &[0]), ..Register::default() };
    assert!(matches!(raised(&[(1, anew), (2, last)], 5).next(1000), OpeningStep::Ask(..)));
    // An opening that knows only its first list asks the voters that the new one knows.
    let mut opening = Opening::new(VoterConfig::of(1, 1), SECOND, 70);
    opening.raised(VoterId(0), 1, Register { vote: Vote { config: four(), ..anew.vote }, ..anew }, BOOT, 1000);
    let OpeningStep::Ask(_, targets) = opening.next(1000) else { panic!("it is no voter of that list") };
    assert_eq!(targets, voters(&[1, 2, 3]));
    // A voter that was raised and has moved since does not count, either.
    let mut opening = raised(&[(0, last), (2, last)], 5);
    opening.replaced(VoterId(2), 1000);
    assert!(matches!(opening.next(1000), OpeningStep::Ask(..)));
}

#[test]
fn a_removed_voter_gives_no_quorum_beside_the_serving_controller() {
    let old = Vote { config: VoterConfig::of(2, 2), ..vote(5, 1, &[0, 1]) };
    let config = VoterConfig { version: VERSION, ..VoterConfig::of(2, 2) };
    let new = Vote { sequence: 9, config, ..old };
    let register =
        |vote| Register { epoch: 5, controller: FIRST, released: false, vote, boot: BOOT, added_in_version: 0 };
    // Voter 1 was raised; then the serving controller removed it, and added it again under a new list. Voter 0 knows of
    // that.
    let opens = |hears: bool| {
        let mut opening = Opening::new(old.config, SECOND, 70).above_epoch(5);
        opening.raised(VoterId(1), 6, register(old), BOOT, 1000);
        if hears {
            opening.replaced(VoterId(1), 2000);
        }
        opening.raised(VoterId(0), 6, register(new), BOOT, 2000);
        opening.next(u64::MAX)
    };
    let OpeningStep::Ask(_, targets) = opens(true) else { panic!("it takes both") };
    assert_eq!(targets, voters(&[1]));
    // The serving controller can continue with voter 1 alone.
    let mut membership = Membership::new(&Opened { vote: new, boots: [Some(BOOT); VOTERS_MAX] }, 1);
    membership.fail(VoterId(0));
    membership.flushed(VoterId(1));
    cast(&mut membership, &[1]);
    assert!(membership.may_answer() && membership.settled().in_sync == voters(&[1]));
    assert_eq!(opens(false), OpeningStep::Resync(voters(&[0, 1])));
}

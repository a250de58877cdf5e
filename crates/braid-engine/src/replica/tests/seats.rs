//! Voters that come and go.

use super::*;

/// Three voters, two of them replicas, and a fourth one, a replica, that comes with this version.
const VERSION: u64 = 5 << 16 | 1;

fn four() -> Seating {
    Seating::of(3, 2).with(VoterId(3), true, VERSION).expect("it is none of them")
}

fn serving() -> Membership {
    Membership::new(&Opened { vote: vote(5, 1, &[0, 1]), boots: [Some(BOOT); VOTERS_MAX] }, 1)
}

fn cast(membership: &mut Membership, numbers: &[u8]) {
    let Wanted::Cast(vote, _) = membership.wanted() else { panic!("nothing is voted for") };
    numbers.iter().for_each(|number| membership.cast(VoterId(*number), vote.order()));
}

#[test]
fn each_change_is_one_voter_and_has_its_own_version() {
    let three = Seating::of(3, 2);
    assert_eq!(three.with(VoterId(1), true, VERSION), None);
    assert_eq!(three.with(VoterId(16), true, VERSION), None);
    assert_eq!(three.without(VoterId(3), VERSION), None);
    assert_eq!(Seating::of(1, 1).without(VoterId(0), VERSION), None);
    let joint = four();
    assert_eq!(
        (joint.voters, joint.before, joint.replicas),
        (voters(&[0, 1, 2, 3]), voters(&[0, 1, 2]), voters(&[0, 1, 3]))
    );
    assert_eq!((joint.with(VoterId(4), true, 9), joint.without(VoterId(0), 9)), (None, None));
    let gone = joint.settled().without(VoterId(1), VERSION + 1).expect("it is one of them");
    assert_eq!((gone.all(), gone.settled().all()), (voters(&[0, 1, 2, 3]), voters(&[0, 2, 3])));
    assert_eq!(gone.settled().replicas, voters(&[0, 3]));
    assert!(Seating::version_of(1, 2) < Seating::version_of(2, 1));
    assert_eq!(Seating::version_of(u64::MAX >> 16, 1), None);
}

#[test]
fn quorums_of_neighbours_meet() {
    // Whoever opens with the voters of before meets whoever opens with those that come.
    for count in 1..VOTERS_MAX {
        assert!(Quorums::of(count).open + Quorums::of(count + 1).open > count + 1, "{count}");
    }
}

#[test]
fn a_change_needs_enough_of_both_and_settles_by_itself() {
    let mut membership = serving();
    assert!(membership.change(four()) && !membership.change(four()) && membership.may_answer());
    assert_eq!(membership.lease_sets().count(), 3);
    let Wanted::Cast(joint, asked) = membership.wanted() else { panic!("it is to be voted for") };
    assert_eq!((joint.seating, joint.in_sync, asked), (four(), voters(&[0, 1]), voters(&[0, 1, 2, 3])));
    // Two of the four, and one of the three.
    cast(&mut membership, &[0, 3]);
    assert!(!membership.settled().seating.is_joint());
    cast(&mut membership, &[2]);
    assert_eq!(membership.settled().seating, four());
    let Wanted::Cast(last, _) = membership.wanted() else { panic!("it is to be settled") };
    assert_eq!((last.seating, last.sequence), (four().settled(), 3));
    cast(&mut membership, &[0, 3]);
    assert_eq!((membership.settled().seating, membership.wanted()), (four().settled(), Wanted::Nothing));
    assert_eq!(membership.lease_sets().count(), 1);
}

#[test]
fn what_fails_meanwhile_is_dropped_by_both() {
    let mut membership = serving();
    assert!(membership.change(four()));
    membership.fail(VoterId(1));
    membership.flushed(VoterId(0));
    assert!(!membership.may_answer());
    let Wanted::Cast(vote, _) = membership.wanted() else { panic!("it is to be voted for") };
    assert_eq!((vote.seating, vote.in_sync), (four(), voters(&[0])));
    cast(&mut membership, &[0, 3]);
    assert!(!membership.may_answer());
    cast(&mut membership, &[2]);
    assert!(membership.may_answer());
    // A promotion goes along with what settles.
    assert!(membership.promote(VoterId(1)));
    cast(&mut membership, &[0, 1, 2]);
    assert_eq!((membership.settled().seating, membership.settled().in_sync), (four().settled(), voters(&[0, 1])));
}

#[test]
fn who_is_in_sync_keeps_its_vote() {
    let mut membership = serving();
    let without = membership.seating().without(VoterId(1), VERSION).expect("it is one of them");
    assert!(!membership.change(without));
    membership.fail(VoterId(1));
    assert!(!membership.change(without));
    membership.flushed(VoterId(0));
    cast(&mut membership, &[0, 2]);
    assert!(membership.change(without));
    // One of three that is gone for good has no say.
    cast(&mut membership, &[0, 2]);
    cast(&mut membership, &[0]);
    assert_eq!(membership.settled().seating.voters, voters(&[0, 2]));
}

#[test]
fn an_opening_follows_the_votes_to_those_who_vote() {
    let last =
        Register { epoch: 5, controller: FIRST, released: true, vote: vote(5, 1, &[0, 1]), boot: BOOT, since: 0 };
    let of = |sequence, seating| Register { vote: Vote { sequence, seating, ..last.vote }, ..last };
    let newcomer = Register { since: VERSION, ..of(2, four()) };
    // Nobody of those that were raised knows of the fourth one.
    assert_eq!(raised(&[(0, last), (2, last)], 5).next(1000), Next::MakeEqual(voters(&[0])));
    // One does: three of the four are needed, and two of the three.
    let next = |registers: &[(u8, Register)]| raised(registers, 5).next(1000);
    let Next::Ask(_, asked) = next(&[(0, of(2, four())), (2, last)]) else { panic!("more are needed") };
    assert_eq!(asked, voters(&[1, 3]));
    assert!(matches!(next(&[(0, of(2, four())), (3, newcomer)]), Next::Ask(..)));
    assert!(matches!(next(&[(0, of(2, four())), (2, last), (3, newcomer)]), Next::MakeEqual(_)));
    // It counts: those of before alone are of no use.
    let settled = of(3, four().settled());
    assert!(matches!(next(&[(0, settled), (2, last)]), Next::Ask(..)));
    let mut opening = raised(&[(0, settled), (2, last), (3, newcomer)], 5);
    assert_eq!(opening.next(1000), Next::MakeEqual(voters(&[0])));
    opening.choose(voters(&[0]));
    opening.equal(voters(&[0]));
    let Next::Cast(vote, _) = opening.next(1000) else { panic!("it is to be voted for") };
    assert_eq!(vote.seating, four().settled());
}

#[test]
fn who_came_anew_says_nothing_of_the_time_before() {
    let last =
        Register { epoch: 5, controller: FIRST, released: true, vote: vote(5, 1, &[0, 1]), boot: BOOT, since: 0 };
    // Voter 1 was taken away and made anew; voter 2 does not know.
    let anew = Register { since: VERSION, vote: vote(0, 0, &[0]), ..Register::default() };
    assert!(matches!(raised(&[(1, anew), (2, last)], 5).next(1000), Next::Ask(..)));
    // Whoever knows nothing but the list that it began with asks those whom the newcomer knows.
    let mut opening = Opening::new(Seating::of(1, 1), SECOND, 70);
    opening.raised(VoterId(0), 1, Register { vote: Vote { seating: four(), ..anew.vote }, ..anew }, BOOT, 1000);
    let Next::Ask(_, asked) = opening.next(1000) else { panic!("it is no voter of that list") };
    assert_eq!(asked, voters(&[1, 2, 3]));
    // What was raised at a place where it is no more does not count, either.
    let mut opening = raised(&[(0, last), (2, last)], 5);
    opening.moved(VoterId(2), 1000);
    assert!(matches!(opening.next(1000), Next::Ask(..)));
}

#[test]
fn what_one_promised_that_was_taken_away_lets_nobody_serve_beside_who_goes_on() {
    let old = Vote { seating: Seating::of(2, 2), ..vote(5, 1, &[0, 1]) };
    let seating = Seating { version: VERSION, ..Seating::of(2, 2) };
    let new = Vote { sequence: 9, seating, ..old };
    let register = |vote| Register { epoch: 5, controller: FIRST, released: false, vote, boot: BOOT, since: 0 };
    // Voter 1 was raised; then whoever serves took it away, and made it anew, which it was cut off from. Voter 0 knows of that.
    let opens = |hears: bool| {
        let mut opening = Opening::new(old.seating, SECOND, 70).above(5);
        opening.raised(VoterId(1), 6, register(old), BOOT, 1000);
        if hears {
            opening.moved(VoterId(1), 2000);
        }
        opening.raised(VoterId(0), 6, register(new), BOOT, 2000);
        opening.next(u64::MAX)
    };
    let Next::Ask(_, asked) = opens(true) else { panic!("it takes both") };
    assert_eq!(asked, voters(&[1]));
    // For whoever serves goes on with that one alone.
    let mut membership = Membership::new(&Opened { vote: new, boots: [Some(BOOT); VOTERS_MAX] }, 1);
    membership.fail(VoterId(0));
    membership.flushed(VoterId(1));
    cast(&mut membership, &[1]);
    assert!(membership.may_answer() && membership.settled().in_sync == voters(&[1]));
    assert_eq!(opens(false), Next::MakeEqual(voters(&[0, 1])));
    plant(Some(Planted::MovedCounted));
    let planted = opens(true);
    plant(None);
    assert_eq!(planted, Next::MakeEqual(voters(&[0, 1])));
}

//! Arrays with parity over nodes: it takes several replicas to have everything.

use super::*;

/// Four replicas and a witness, of which it takes three to have everything.
fn seating() -> Seating {
    Seating::of(5, 4).taking(3)
}

fn vote_of(in_sync: &[u8]) -> Vote {
    Vote { epoch: 4, sequence: 2, lineage: 7, in_sync: voters(in_sync), seating: seating() }
}

/// What comes next where these voters were raised; the last value: it has rebooted since.
fn next(in_sync: &[u8], raised: &[(u8, bool)]) -> Next {
    opened(in_sync, raised).next(1000)
}

fn opened(in_sync: &[u8], raised: &[(u8, bool)]) -> Opening {
    let mut opening = Opening::new(seating(), SECOND, 70);
    opening.refused(4);
    for (voter, rebooted) in raised {
        let boot = if *rebooted { LATER_BOOT } else { BOOT };
        let vote = vote_of(in_sync);
        let register = Register { epoch: 4, controller: FIRST, released: true, vote, boot, since: 0 };
        opening.raised(VoterId(*voter), 5, register, BOOT, 1000);
    }
    opening
}

#[test]
fn nobody_opens_with_fewer_than_have_everything() {
    let all = &[0, 1, 2, 3];
    assert_eq!(next(all, &[(0, false), (1, false), (2, false)]), Next::MakeEqual(voters(&[0, 1, 2])));
    assert!(
        matches!(next(all, &[(0, false), (1, false), (4, false)]), Next::Missing(_, _, missing) if missing == voters(all))
    );
    // One that was left out has nothing to say.
    let missing = next(&[0, 1, 2], &[(0, false), (1, false), (3, false), (4, false)]);
    assert!(matches!(missing, Next::Missing(_, _, missing) if missing == voters(&[0, 1, 2])));
}

#[test]
fn rebooted_replicas_are_left_out_where_the_others_have_everything() {
    let all = &[0, 1, 2, 3];
    let here = [(0, true), (1, false), (2, false), (3, false)];
    assert_eq!(next(all, &here), Next::MakeEqual(voters(&[1, 2, 3])));
    // The one that is missing may not have rebooted: then it is of those that know better.
    let here = [(0, true), (1, false), (2, false)];
    assert!(matches!(next(all, &here), Next::Missing(..)));
    // Whatever the one that is missing says, too few are left that have not: nobody knows better than these.
    let here = [(0, true), (1, true), (2, false)];
    assert_eq!(next(all, &here), Next::MakeEqual(voters(&[0, 1, 2])));
    let here = [(0, true), (1, true), (4, false)];
    assert!(matches!(next(all, &here), Next::Missing(..)));
}

#[test]
fn an_opening_begins_anew_where_too_few_are_made_equal() {
    let here = [(0, false), (1, false), (2, false), (3, false)];
    let mut opening = opened(&[0, 1, 2, 3], &here);
    opening.choose(voters(&[0, 1, 2, 3]));
    opening.equal(voters(&[0, 1]));
    assert_eq!(opening.epoch(), 6);
    let mut opening = opened(&[0, 1, 2, 3], &here);
    opening.choose(voters(&[0, 1, 2, 3]));
    opening.equal(voters(&[0, 1, 3]));
    assert!(matches!(opening.next(1000), Next::Cast(vote, _) if vote.in_sync == voters(&[0, 1, 3])));
}

#[test]
fn nothing_is_dropped_below_what_has_everything() {
    let boots = [Some(BOOT); VOTERS_MAX];
    let served = || Membership::new(&Opened { vote: vote_of(&[0, 1, 2, 3]), boots }, 1);
    let mut membership = served();
    membership.fail(VoterId(1));
    assert_eq!(membership.wanted(), Wanted::Flush(voters(&[0, 2, 3])));
    membership.fail(VoterId(2));
    assert_eq!((membership.wanted(), membership.may_answer()), (Wanted::Frozen, false));

    // One that is being promoted counts once enough voters say so.
    let mut membership = Membership::new(&Opened { vote: vote_of(&[0, 1, 2]), boots }, 1);
    assert!(membership.promote(VoterId(3)));
    membership.fail(VoterId(0));
    assert_eq!(membership.wanted(), Wanted::Frozen);
    let mut membership = Membership::new(&Opened { vote: vote_of(&[0, 1, 2]), boots }, 1);
    assert!(membership.promote(VoterId(3)));
    let Wanted::Cast(vote, _) = membership.wanted() else { panic!("it is to be voted for") };
    [3, 0, 4].into_iter().for_each(|voter| membership.cast(VoterId(voter), vote.order()));
    membership.fail(VoterId(0));
    assert_eq!(membership.wanted(), Wanted::Flush(voters(&[1, 2, 3])));
}

#[test]
fn a_register_says_how_many_it_takes() {
    let of = RegisterOf { volume: Uuid::from_u128(9), voter: VoterId(1) };
    let register =
        Register { epoch: 4, controller: FIRST, vote: vote_of(&[0, 1, 2]), boot: BOOT, ..Register::default() };
    let stored = register.stored(&of, 3);
    assert!(stored.is_sound() && stored.extra_replicas == 2);
    assert_eq!(Register::of_stored(&stored, &of), Some(register));
    let too_few = Register { vote: vote_of(&[0, 1]), ..register };
    assert!(!too_few.stored(&of, 3).is_sound());
    assert_eq!((seating().least(), Seating::of(3, 2).least()), (3, 1));
    let changed = seating().without(VoterId(4), 5).expect("a witness goes");
    assert_eq!((changed.least(), changed.settled().least()), (3, 3));
}

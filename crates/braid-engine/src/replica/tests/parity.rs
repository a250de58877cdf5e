//! Replicated arrays with parity: several replicas are needed to have everything.

use super::*;

/// Returns four replicas and a witness; three replicas are needed to have everything.
fn config() -> VoterConfig {
    VoterConfig::of(5, 4).with_replicas_needed(3)
}

fn vote_of(in_sync: &[u8]) -> Vote {
    Vote { epoch: 4, sequence: 2, lineage: 7, in_sync: voters(in_sync), config: config() }
}

/// Returns the next step if these voters were raised; the second value: the voter has rebooted since.
fn next(in_sync: &[u8], raised: &[(u8, bool)]) -> OpeningStep {
    opened(in_sync, raised).next(1000)
}

fn opened(in_sync: &[u8], raised: &[(u8, bool)]) -> Opening {
    let mut opening = Opening::new(config(), SECOND, 70);
    opening.refused(4);
    for (voter, rebooted) in raised {
        let boot = if *rebooted { LATER_BOOT } else { BOOT };
        let vote = vote_of(in_sync);
        let register = Register { epoch: 4, controller: FIRST, released: true, vote, boot, added_in_version: 0 };
        opening.raised(VoterId(*voter), 5, register, BOOT, 1000);
    }
    opening
}

#[test]
fn no_opening_succeeds_without_replicas_that_have_everything() {
    let all = &[0, 1, 2, 3];
    assert_eq!(next(all, &[(0, false), (1, false), (2, false)]), OpeningStep::Resync(voters(&[0, 1, 2])));
    assert!(
        matches!(next(all, &[(0, false), (1, false), (4, false)]), OpeningStep::Missing(_, _, missing) if missing == voters(all))
    );
    // A dropped replica does not count.
    let missing = next(&[0, 1, 2], &[(0, false), (1, false), (3, false), (4, false)]);
    assert!(matches!(missing, OpeningStep::Missing(_, _, missing) if missing == voters(&[0, 1, 2])));
}

#[test]
fn rebooted_replicas_are_excluded_if_the_others_have_everything() {
    let all = &[0, 1, 2, 3];
    let here = [(0, true), (1, false), (2, false), (3, false)];
    assert_eq!(next(all, &here), OpeningStep::Resync(voters(&[1, 2, 3])));
    // The missing one may not have rebooted: then its content counts.
    let here = [(0, true), (1, false), (2, false)];
    assert!(matches!(next(all, &here), OpeningStep::Missing(..)));
    // Whatever the missing one has, too few have not rebooted: no better content exists.
    let here = [(0, true), (1, true), (2, false)];
    assert_eq!(next(all, &here), OpeningStep::Resync(voters(&[0, 1, 2])));
    let here = [(0, true), (1, true), (4, false)];
    assert!(matches!(next(all, &here), OpeningStep::Missing(..)));
}

#[test]
fn an_opening_starts_again_if_too_few_replicas_are_equal() {
    let here = [(0, false), (1, false), (2, false), (3, false)];
    let mut opening = opened(&[0, 1, 2, 3], &here);
    opening.choose(voters(&[0, 1, 2, 3]));
    opening.resynced(voters(&[0, 1]));
    assert_eq!(opening.epoch(), 6);
    let mut opening = opened(&[0, 1, 2, 3], &here);
    opening.choose(voters(&[0, 1, 2, 3]));
    opening.resynced(voters(&[0, 1, 3]));
    assert!(matches!(opening.next(1000), OpeningStep::Cast(vote, _) if vote.in_sync == voters(&[0, 1, 3])));
}

#[test]
fn no_replica_is_dropped_if_the_others_lack_data() {
    let boots = [Some(BOOT); VOTERS_MAX];
    let served = || Membership::new(&Opened { vote: vote_of(&[0, 1, 2, 3]), boots }, 1);
    let mut membership = served();
    membership.fail(VoterId(1));
    assert_eq!(membership.next_action(), MembershipAction::Flush(voters(&[0, 2, 3])));
    membership.fail(VoterId(2));
    assert_eq!((membership.next_action(), membership.may_answer()), (MembershipAction::Frozen, false));

    // A replica that is being promoted counts once enough voters have the vote.
    let mut membership = Membership::new(&Opened { vote: vote_of(&[0, 1, 2]), boots }, 1);
    assert!(membership.promote(VoterId(3)));
    membership.fail(VoterId(0));
    assert_eq!(membership.next_action(), MembershipAction::Frozen);
    let mut membership = Membership::new(&Opened { vote: vote_of(&[0, 1, 2]), boots }, 1);
    assert!(membership.promote(VoterId(3)));
    let MembershipAction::Cast(vote, _) = membership.next_action() else { panic!("it is to be voted for") };
    [3, 0, 4].into_iter().for_each(|voter| membership.cast(VoterId(voter), vote.order()));
    membership.fail(VoterId(0));
    assert_eq!(membership.next_action(), MembershipAction::Flush(voters(&[1, 2, 3])));
}

#[test]
fn a_register_stores_how_many_replicas_are_needed() {
    let of = RegisterId { volume: Uuid::from_u128(9), voter: VoterId(1) };
    let register =
        Register { epoch: 4, controller: FIRST, vote: vote_of(&[0, 1, 2]), boot: BOOT, ..Register::default() };
    let stored = register.stored(&of, 3);
    assert!(stored.is_sound() && stored.extra_replicas == 2);
    assert_eq!(Register::of_stored(&stored, &of), Some(register));
    let too_few = Register { vote: vote_of(&[0, 1]), ..register };
    assert!(!too_few.stored(&of, 3).is_sound());
    assert_eq!((config().replicas_needed(), VoterConfig::of(3, 2).replicas_needed()), (3, 1));
    let changed = config().without(VoterId(4), 5).expect("a witness goes");
    assert_eq!((changed.replicas_needed(), changed.final_config().replicas_needed()), (3, 3));
}

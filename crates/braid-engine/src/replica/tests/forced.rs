//! Forced openings.

use super::*;

fn register(epoch: u64, vote: Vote) -> Register {
    Register { epoch, controller: FIRST, released: false, vote, boot: BOOT, added_in_version: 0 }
}

/// Returns the forecast for three voters, of which the last one is a witness.
fn forecast_of(said: &[(u8, Register)]) -> Result<Forecast, ForceRefusal> {
    let said: Vec<_> = said.iter().map(|(voter, register)| (VoterId(*voter), *register, BOOT)).collect();
    forecast(VoterConfig::of(3, 2), &said)
}

/// Returns a forecast with these voters present and this newest vote.
fn agreed(present: &[u8], epoch: u64, vote: (u64, u64)) -> Forecast {
    let (present, absent, from) = (voters(present), Voters::NONE, Voters::NONE);
    Forecast { present, absent, from, newest: true, rebooted: false, epoch, vote }
}

/// Returns a forced opening with these voters, which were raised.
fn forced(present: &[u8], said: &[(u8, Register)]) -> Opening {
    let newest = said.iter().map(|(_, register)| register.vote.order()).max().unwrap_or_default();
    let mut opening = opening().forced(&agreed(present, 4, newest), 9).expect("there are epochs left");
    for (voter, register) in said {
        opening.raised(VoterId(*voter), opening.epoch(), *register, BOOT, 1000);
    }
    opening
}

fn cast_by_all(opening: &mut Opening) -> Vote {
    let chosen = match opening.next(u64::MAX) {
        OpeningStep::Resync(chosen) => chosen,
        other => panic!("{other:?}"),
    };
    opening.choose(chosen);
    opening.resynced(chosen);
    let OpeningStep::Cast(vote, targets) = opening.next(u64::MAX) else { panic!("it is to be voted for") };
    targets.iter().for_each(|voter| opening.cast(voter, vote.epoch));
    assert_eq!(opening.next(u64::MAX), OpeningStep::Open);
    vote
}

#[test]
fn one_of_two_voters_is_enough_only_if_forced() {
    let two = VoterConfig::of(2, 2);
    let last = register(4, Vote { config: two, ..vote(4, 3, &[0, 1]) });
    let said = [(VoterId(1), last, BOOT)];
    let expected = Forecast {
        present: voters(&[1]),
        absent: voters(&[0]),
        from: voters(&[1]),
        newest: true,
        rebooted: false,
        epoch: 4,
        vote: (4, 3),
    };
    assert_eq!(forecast(two, &said), Ok(expected));
    let both = [(VoterId(0), last, BOOT), said[0]];
    assert_eq!(forecast(two, &both), Err(ForceRefusal::NotNeeded));
    // The opening waits for a controller that may still serve, even if a voter says that it has released the volume:
    // the others may know of a later one.
    let let_go = Register { released: true, ..last };
    let mut opening = Opening::new(two, SECOND, 70).forced(&expected, 0).expect("there are epochs left");
    opening.raised(VoterId(0), opening.epoch(), last, BOOT, 1000);
    assert!(
        matches!(opening.next(1000), OpeningStep::Ask(_, targets) if targets == voters(&[1])),
        "no other voter is asked"
    );
    opening.raised(VoterId(1), opening.epoch(), let_go, BOOT, 2000);
    assert!(
        matches!(opening.next(2000), OpeningStep::Wait(_, targets, until) if targets.is_empty() && until == 2000 + OPEN_WAIT_NS)
    );
    let vote = cast_by_all(&mut opening);
    assert_eq!((vote.in_sync, vote.lineage), (voters(&[1]), 70));
    let config = VoterConfig { version: vote.config.version, voters: voters(&[1]), replicas: voters(&[1]), ..two };
    assert_eq!(vote.config, config);
    assert!(vote.config.version > VoterConfig::version_of(1 << 32, 0).expect("it is one"));
}

#[test]
fn a_forced_vote_is_on_all_present_voters_before_the_volume_is_served() {
    let of_five = |in_sync: &[u8]| Vote { config: VoterConfig::of(5, 3), ..vote(4, 3, in_sync) };
    let last = register(4, of_five(&[0, 1, 2]));
    let mut opening =
        Opening::new(VoterConfig::of(5, 3), SECOND, 70).forced(&agreed(&[1, 4], 4, (4, 3)), 0).expect("it is");
    opening.raised(VoterId(4), opening.epoch(), last, BOOT, 1000);
    assert!(matches!(opening.next(u64::MAX), OpeningStep::Ask(_, targets) if targets == voters(&[1])));
    opening.raised(VoterId(1), opening.epoch(), last, BOOT, 1000);
    opening.choose(voters(&[1]));
    opening.resynced(voters(&[1]));
    let epoch = opening.epoch();
    opening.cast(VoterId(1), epoch);
    // Of two, one would be enough to record a drop.
    assert!(matches!(opening.next(u64::MAX), OpeningStep::Cast(_, targets) if targets == voters(&[4])));
    opening.cast(VoterId(4), epoch);
    assert_eq!(opening.next(u64::MAX), OpeningStep::Open);
}

#[test]
fn the_best_data_is_taken_and_none_of_a_witness() {
    let of = |sequence, in_sync: &[u8]| register(4, vote(4, sequence, in_sync));
    // A witness knows that the remaining replica was dropped before: its data is from then.
    let said = forecast_of(&[(0, of(1, &[0, 1])), (2, of(2, &[1]))]).expect("it is of use");
    assert_eq!((said.from, said.newest, said.absent), (voters(&[0]), false, voters(&[1])));
    let mut opening = forced(&[0, 2], &[(0, of(1, &[0, 1])), (2, of(2, &[1]))]);
    let vote = cast_by_all(&mut opening);
    assert_eq!((vote.in_sync, vote.config.voters, vote.config.replicas), (voters(&[0]), voters(&[0, 2]), voters(&[0])));
    // A replica that has recorded its own drop may be half rebuilt.
    assert_eq!(forecast_of(&[(0, of(2, &[1])), (2, of(2, &[1]))]), Err(ForceRefusal::NoData));
    assert_eq!(forecast_of(&[(2, of(2, &[1]))]), Err(ForceRefusal::NoData));
    assert_eq!(forecast_of(&[]), Err(ForceRefusal::NoData));
    // Of dropped replicas the later one is taken; of two that have rebooted, or not, the one that has not.
    let three = |epoch, sequence, in_sync: &[u8]| {
        register(epoch, Vote { config: VoterConfig::of(4, 3), ..self::vote(epoch, sequence, in_sync) })
    };
    let known = VoterConfig::of(4, 3);
    let said = |registers: &[(u8, Register)]| {
        let said: Vec<_> = registers.iter().map(|(voter, register)| (VoterId(*voter), *register, BOOT)).collect();
        forecast(known, &said).map(|forecast| (forecast.from, forecast.newest, forecast.rebooted))
    };
    let (early, late, newest) = (three(3, 9, &[0, 1, 2]), three(4, 1, &[1, 2]), three(5, 1, &[2]));
    assert_eq!(said(&[(0, early), (1, late), (3, newest)]), Ok((voters(&[1]), false, false)));
    let rebooted = Register { boot: LATER_BOOT, ..late };
    assert_eq!(said(&[(1, rebooted), (2, late)]), Ok((voters(&[2]), true, false)));
    assert_eq!(said(&[(1, rebooted)]), Ok((voters(&[1]), true, true)));
}

#[test]
fn with_parity_the_present_replicas_must_be_complete_and_of_one_vote() {
    let config = VoterConfig::of(4, 4).with_replicas_needed(3);
    let of = |sequence, in_sync: &[u8]| register(4, Vote { config, ..vote(4, sequence, in_sync) });
    let said = |registers: &[(u8, Register)]| {
        let said: Vec<_> = registers.iter().map(|(voter, register)| (VoterId(*voter), *register, BOOT)).collect();
        forecast(config, &said).map(|forecast| forecast.from)
    };
    let all = of(1, &[0, 1, 2, 3]);
    assert_eq!(said(&[(0, all), (1, all), (2, all)]), Err(ForceRefusal::NotNeeded));
    assert_eq!(said(&[(0, all), (1, all)]), Err(ForceRefusal::NoData));
    let without = of(2, &[1, 2, 3]);
    assert_eq!(said(&[(0, all), (1, without), (2, without)]), Err(ForceRefusal::NoData));
    // Three of six are needed: the data is complete, but the votes do not suffice.
    let config = VoterConfig::of(6, 6).with_replicas_needed(3);
    let last = register(4, Vote { config, ..vote(4, 1, &[0, 1, 2, 3, 4, 5]) });
    let said: Vec<_> = [0, 1, 2].map(|voter| (VoterId(voter), last, BOOT)).to_vec();
    assert_eq!(forecast(config, &said).map(|forecast| forecast.from), Ok(voters(&[0, 1, 2])));
}

#[test]
fn a_voter_that_was_added_again_does_not_count_in_a_forced_opening() {
    let version = 5 << 16 | 1;
    let joint = VoterConfig::of(2, 2).with(VoterId(2), true, version).expect("it is none of them");
    let old = register(5, Vote { config: VoterConfig::of(2, 2), ..vote(5, 1, &[0, 1]) });
    let anew =
        Register { added_in_version: version, ..register(5, Vote { epoch: 0, config: joint, ..vote(0, 0, &[0, 1]) }) };
    // A change that never came to a vote: the voter to be added is not one of those that are left.
    let said = [(VoterId(0), old, BOOT), (VoterId(2), anew, BOOT)];
    let forecast = forecast(VoterConfig::of(2, 2), &said).expect("it is of use");
    assert_eq!((forecast.present, forecast.absent, forecast.from), (voters(&[0]), voters(&[1]), voters(&[0])));
}

#[test]
fn an_opening_that_meets_both_sides_follows_the_forced_one() {
    // Three replicas: the first one alone is opened by force, the others have continued with an opening of their own.
    let three = |epoch, in_sync: &[u8]| Vote { config: VoterConfig::of(3, 3), ..vote(epoch, 1, in_sync) };
    let mut opening =
        Opening::new(VoterConfig::of(3, 3), SECOND, 70).forced(&agreed(&[0], 4, (4, 1)), 0).expect("it is");
    let mut fence = Fence::new(register(4, three(4, &[0, 1, 2])), BOOT);
    let Some(Ok(VoterReply::Raised { before, boot })) = raise(&mut fence, opening.epoch(), SECOND) else {
        panic!("raised")
    };
    opening.raised(VoterId(0), opening.epoch(), before, boot, 0);
    let cast = cast_by_all(&mut opening);
    let (epoch, controller) = (opening.epoch(), SECOND);
    assert_eq!(
        ask(&mut fence, VoterRequest::Cast { epoch, controller, vote: cast, boot: BOOT }),
        Some(Ok(VoterReply::Cast))
    );
    // The other controller is refused there, however often it opens the volume again.
    for other in [5, 6, 1 << 32] {
        assert_eq!(raise(&mut fence, other, FIRST), Some(Err(VoterRefusal { epoch })));
        let cast = VoterRequest::Cast { epoch: other, controller: FIRST, vote: three(other, &[0, 1, 2]), boot: BOOT };
        assert_eq!(ask(&mut fence, cast), Some(Err(VoterRefusal { epoch })));
    }
    // A third controller, without any knowledge, meets both: the other replicas are in no list of voters.
    let others = register(6, three(6, &[1, 2]));
    let mut third = Opening::new(VoterConfig::of(3, 3), Uuid::from_u128(3), 80);
    third.refused(epoch);
    for (voter, register) in [(0, *fence.register()), (1, others), (2, others)] {
        third.raised(VoterId(voter), third.epoch(), register, BOOT, 0);
    }
    assert_eq!(third.next(u64::MAX), OpeningStep::Resync(voters(&[0])));
    assert_eq!(third.config(), cast.config);
    // A voter that has the forced vote gives no quorum to the others any more.
    let recorded = Register { epoch, controller: SECOND, vote: cast, ..others };
    let mut third = Opening::new(VoterConfig::of(3, 3), Uuid::from_u128(3), 80);
    third.refused(epoch);
    third.raised(VoterId(1), third.epoch(), recorded, BOOT, 0);
    third.raised(VoterId(2), third.epoch(), others, BOOT, 0);
    assert!(matches!(third.next(u64::MAX), OpeningStep::Ask(_, targets) if targets == voters(&[0])));
}

#[test]
fn two_forced_openings_have_different_epochs_below_the_maximum() {
    let epoch = |seen, random| opening().forced(&agreed(&[0], seen, (4, 1)), random).map(|opening| opening.epoch());
    assert_ne!(epoch(4, 2), epoch(4, 4));
    assert!(epoch(4, 0) > Some(4 << 8) && epoch(0, u32::MAX).is_some());
    assert_eq!((epoch(u64::MAX >> 17, 0), epoch(u64::MAX, 0)), (None, None));
    // Another controller raises the remaining voters: the opening starts again, with those alone.
    let last = register(4, vote(4, 1, &[0, 1]));
    let mut opening = forced(&[0], &[(0, last)]);
    let before = opening.epoch();
    opening.refused(before + 1);
    assert_eq!((opening.epoch(), opening.unraised()), (before + 2, voters(&[0])));
}

#[test]
fn a_vote_after_the_forecast_was_not_agreed_to() {
    let of = |sequence, in_sync: &[u8]| register(4, vote(4, sequence, in_sync));
    let said = forecast_of(&[(0, of(1, &[0, 1])), (2, of(1, &[0, 1]))]);
    assert_eq!(said, Err(ForceRefusal::NotNeeded));
    let said = forecast_of(&[(0, of(1, &[0, 1]))]).expect("it is of use");
    // A slow controller's vote was cast after the forecast.
    let mut opening = opening().forced(&said, 9).expect("there are epochs left");
    opening.raised(VoterId(0), opening.epoch(), of(2, &[0]), BOOT, 1000);
    assert!(matches!(opening.next(u64::MAX), OpeningStep::Ask(..)));
}

//! Openings that are forced.

use super::*;

fn register(epoch: u64, vote: Vote) -> Register {
    Register { epoch, controller: FIRST, released: false, vote, boot: BOOT, since: 0 }
}

/// What a forced opening would go by, of three voters of which the last one is a witness.
fn forecast_of(said: &[(u8, Register)]) -> Result<Forecast, Unforced> {
    let said: Vec<_> = said.iter().map(|(voter, register)| (VoterId(*voter), *register, BOOT)).collect();
    forecast(Seating::of(3, 2), &said)
}

/// That these are left, with this newest vote.
fn agreed(present: &[u8], epoch: u64, vote: (u64, u64)) -> Forecast {
    let (present, absent, from) = (voters(present), Voters::NONE, Voters::NONE);
    Forecast { present, absent, from, newest: true, rebooted: false, epoch, vote }
}

/// A forced opening by these voters alone, which were raised.
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
        Next::MakeEqual(chosen) => chosen,
        other => panic!("{other:?}"),
    };
    opening.choose(chosen);
    opening.equal(chosen);
    let Next::Cast(vote, asked) = opening.next(u64::MAX) else { panic!("it is to be voted for") };
    asked.iter().for_each(|voter| opening.cast(voter, vote.epoch));
    assert_eq!(opening.next(u64::MAX), Next::Open);
    vote
}

#[test]
fn one_of_two_is_enough_by_force_alone() {
    let two = Seating::of(2, 2);
    let last = register(4, Vote { seating: two, ..vote(4, 3, &[0, 1]) });
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
    assert_eq!(forecast(two, &both), Err(Unforced::VotesAllow));
    // Whoever could serve still is waited for, also where one says that he has let go: the others may know of a later one.
    let let_go = Register { released: true, ..last };
    let mut opening = Opening::new(two, SECOND, 70).forced(&expected, 0).expect("there are epochs left");
    opening.raised(VoterId(0), opening.epoch(), last, BOOT, 1000);
    assert!(matches!(opening.next(1000), Next::Ask(_, asked) if asked == voters(&[1])), "nobody else is asked");
    opening.raised(VoterId(1), opening.epoch(), let_go, BOOT, 2000);
    assert!(
        matches!(opening.next(2000), Next::Wait(_, asked, until) if asked.is_empty() && until == 2000 + OPEN_WAIT_NS)
    );
    let vote = cast_by_all(&mut opening);
    assert_eq!((vote.in_sync, vote.lineage), (voters(&[1]), 70));
    let seating = Seating { version: vote.seating.version, voters: voters(&[1]), replicas: voters(&[1]), ..two };
    assert_eq!(vote.seating, seating);
    assert!(vote.seating.version > Seating::version_of(1 << 32, 0).expect("it is one"));
}

#[test]
fn all_that_are_left_have_the_vote_before_it_is_served() {
    let of_five = |in_sync: &[u8]| Vote { seating: Seating::of(5, 3), ..vote(4, 3, in_sync) };
    let last = register(4, of_five(&[0, 1, 2]));
    let mut opening =
        Opening::new(Seating::of(5, 3), SECOND, 70).forced(&agreed(&[1, 4], 4, (4, 3)), 0).expect("it is");
    opening.raised(VoterId(4), opening.epoch(), last, BOOT, 1000);
    assert!(matches!(opening.next(u64::MAX), Next::Ask(_, asked) if asked == voters(&[1])));
    opening.raised(VoterId(1), opening.epoch(), last, BOOT, 1000);
    opening.choose(voters(&[1]));
    opening.equal(voters(&[1]));
    let epoch = opening.epoch();
    opening.cast(VoterId(1), epoch);
    // Of two, one would be enough to record a drop.
    assert!(matches!(opening.next(u64::MAX), Next::Cast(_, asked) if asked == voters(&[4])));
    opening.cast(VoterId(4), epoch);
    assert_eq!(opening.next(u64::MAX), Next::Open);
}

#[test]
fn the_best_data_are_taken_and_none_of_a_witness() {
    let of = |sequence, in_sync: &[u8]| register(4, vote(4, sequence, in_sync));
    // A witness knows that the one which is left was left out before: its data are from then.
    let said = forecast_of(&[(0, of(1, &[0, 1])), (2, of(2, &[1]))]).expect("it is of use");
    assert_eq!((said.from, said.newest, said.absent), (voters(&[0]), false, voters(&[1])));
    let mut opening = forced(&[0, 2], &[(0, of(1, &[0, 1])), (2, of(2, &[1]))]);
    let vote = cast_by_all(&mut opening);
    assert_eq!(
        (vote.in_sync, vote.seating.voters, vote.seating.replicas),
        (voters(&[0]), voters(&[0, 2]), voters(&[0]))
    );
    // One that has heard so may be half filled.
    assert_eq!(forecast_of(&[(0, of(2, &[1])), (2, of(2, &[1]))]), Err(Unforced::NoData));
    assert_eq!(forecast_of(&[(2, of(2, &[1]))]), Err(Unforced::NoData));
    assert_eq!(forecast_of(&[]), Err(Unforced::NoData));
    // Of those that are out the later one; of two that have rebooted, or not, the one that has not.
    let three = |epoch, sequence, in_sync: &[u8]| {
        register(epoch, Vote { seating: Seating::of(4, 3), ..self::vote(epoch, sequence, in_sync) })
    };
    let known = Seating::of(4, 3);
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
fn with_parity_what_is_left_has_to_be_a_whole_of_one_moment() {
    let seating = Seating::of(4, 4).taking(3);
    let of = |sequence, in_sync: &[u8]| register(4, Vote { seating, ..vote(4, sequence, in_sync) });
    let said = |registers: &[(u8, Register)]| {
        let said: Vec<_> = registers.iter().map(|(voter, register)| (VoterId(*voter), *register, BOOT)).collect();
        forecast(seating, &said).map(|forecast| forecast.from)
    };
    let all = of(1, &[0, 1, 2, 3]);
    assert_eq!(said(&[(0, all), (1, all), (2, all)]), Err(Unforced::VotesAllow));
    assert_eq!(said(&[(0, all), (1, all)]), Err(Unforced::NoData));
    let without = of(2, &[1, 2, 3]);
    assert_eq!(said(&[(0, all), (1, without), (2, without)]), Err(Unforced::NoData));
    // Six of which it takes three: those would be enough, and their votes are not.
    let seating = Seating::of(6, 6).taking(3);
    let last = register(4, Vote { seating, ..vote(4, 1, &[0, 1, 2, 3, 4, 5]) });
    let said: Vec<_> = [0, 1, 2].map(|voter| (VoterId(voter), last, BOOT)).to_vec();
    assert_eq!(forecast(seating, &said).map(|forecast| forecast.from), Ok(voters(&[0, 1, 2])));
}

#[test]
fn who_came_anew_says_nothing_in_a_forced_opening_either() {
    let version = 5 << 16 | 1;
    let joint = Seating::of(2, 2).with(VoterId(2), true, version).expect("it is none of them");
    let old = register(5, Vote { seating: Seating::of(2, 2), ..vote(5, 1, &[0, 1]) });
    let anew = Register { since: version, ..register(5, Vote { epoch: 0, seating: joint, ..vote(0, 0, &[0, 1]) }) };
    // A change that never came to a vote: whoever was to come is not one of those that are left.
    let said = [(VoterId(0), old, BOOT), (VoterId(2), anew, BOOT)];
    let forecast = forecast(Seating::of(2, 2), &said).expect("it is of use");
    assert_eq!((forecast.present, forecast.absent, forecast.from), (voters(&[0]), voters(&[1]), voters(&[0])));
}

#[test]
fn whoever_meets_both_goes_by_the_forced_one_and_no_voter_is_of_both() {
    // Three replicas: the first one alone is opened by force, the others had gone on with an opening of their own.
    let three = |epoch, in_sync: &[u8]| Vote { seating: Seating::of(3, 3), ..vote(epoch, 1, in_sync) };
    let mut opening = Opening::new(Seating::of(3, 3), SECOND, 70).forced(&agreed(&[0], 4, (4, 1)), 0).expect("it is");
    let mut fence = Fence::new(register(4, three(4, &[0, 1, 2])), BOOT);
    let Some(Ok(Answer::Raised { before, boot })) = raise(&mut fence, opening.epoch(), SECOND) else {
        panic!("raised")
    };
    opening.raised(VoterId(0), opening.epoch(), before, boot, 0);
    let cast = cast_by_all(&mut opening);
    let (epoch, controller) = (opening.epoch(), SECOND);
    assert_eq!(ask(&mut fence, Ask::Cast { epoch, controller, vote: cast, boot: BOOT }), Some(Ok(Answer::Cast)));
    // The other controller is refused there, however often it opens the volume anew.
    for other in [5, 6, 1 << 32] {
        assert_eq!(raise(&mut fence, other, FIRST), Some(Err(Refused { epoch })));
        let cast = Ask::Cast { epoch: other, controller: FIRST, vote: three(other, &[0, 1, 2]), boot: BOOT };
        assert_eq!(ask(&mut fence, cast), Some(Err(Refused { epoch })));
    }
    // A third one, that knows of nothing, meets both: what the others had since is in no seating.
    let others = register(6, three(6, &[1, 2]));
    let mut third = Opening::new(Seating::of(3, 3), Uuid::from_u128(3), 80);
    third.refused(epoch);
    for (voter, register) in [(0, *fence.register()), (1, others), (2, others)] {
        third.raised(VoterId(voter), third.epoch(), register, BOOT, 0);
    }
    assert_eq!(third.next(u64::MAX), Next::MakeEqual(voters(&[0])));
    assert_eq!(third.seating(), cast.seating);
    // One that was told takes nobody along any more.
    let told = Register { epoch, controller: SECOND, vote: cast, ..others };
    let mut third = Opening::new(Seating::of(3, 3), Uuid::from_u128(3), 80);
    third.refused(epoch);
    third.raised(VoterId(1), third.epoch(), told, BOOT, 0);
    third.raised(VoterId(2), third.epoch(), others, BOOT, 0);
    assert!(matches!(third.next(u64::MAX), Next::Ask(_, asked) if asked == voters(&[0])));
}

#[test]
fn two_who_force_it_have_epochs_of_their_own_and_somewhere_they_end() {
    let epoch = |seen, random| opening().forced(&agreed(&[0], seen, (4, 1)), random).map(|opening| opening.epoch());
    assert_ne!(epoch(4, 2), epoch(4, 4));
    assert!(epoch(4, 0) > Some(4 << 8) && epoch(0, u32::MAX).is_some());
    assert_eq!((epoch(u64::MAX >> 17, 0), epoch(u64::MAX, 0)), (None, None));
    // Somebody else who raises what is left: it begins anew, by those alone.
    let last = register(4, vote(4, 1, &[0, 1]));
    let mut opening = forced(&[0], &[(0, last)]);
    let before = opening.epoch();
    opening.refused(before + 1);
    assert_eq!((opening.epoch(), opening.unraised()), (before + 2, voters(&[0])));
}

#[test]
fn what_comes_to_be_known_meanwhile_was_not_agreed_to() {
    let of = |sequence, in_sync: &[u8]| register(4, vote(4, sequence, in_sync));
    let said = forecast_of(&[(0, of(1, &[0, 1])), (2, of(1, &[0, 1]))]);
    assert_eq!(said, Err(Unforced::VotesAllow));
    let said = forecast_of(&[(0, of(1, &[0, 1]))]).expect("it is of use");
    // A controller that was slow has had its vote cast after that.
    let mut opening = opening().forced(&said, 9).expect("there are epochs left");
    opening.raised(VoterId(0), opening.epoch(), of(2, &[0]), BOOT, 1000);
    assert!(matches!(opening.next(u64::MAX), Next::Ask(..)));
}

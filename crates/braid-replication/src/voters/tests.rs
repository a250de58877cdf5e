//! Tests of the voters as their controller sees them: votes, leases, epochs and changes of the membership, with voters
//! in memory.

use crate::voters::probe::{ProbeOutcome, RegistersRead, probe};
use crate::voters::{ControllerFenced, VoterError, VoterGroup, VoterTransport};
use braid_engine::DeviceLease;
use braid_engine::replica::{
    Fence, FenceAction, LEASE_NS, OPEN_WAIT_NS, Register, Vote, VoterConfig, VoterId, VoterReply, VoterRequest, Voters,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Voters in memory; each of them can be disconnected.
struct TestNodes {
    fences: Mutex<Vec<Fence>>,
    disconnected: Mutex<Voters>,
    /// These voters receive everything but votes.
    ignore_votes: Mutex<Voters>,
    started: Instant,
}

#[derive(Clone)]
struct TestTransport(Arc<TestNodes>);

fn voters(numbers: &[u8]) -> Voters {
    numbers.iter().copied().map(VoterId).collect()
}

impl TestNodes {
    fn of(count: usize) -> Arc<TestNodes> {
        let membership = VoterConfig::of(count, count);
        let vote = Vote { lineage: 7, in_sync: Voters::first(count), config: membership, ..Vote::default() };
        let fence = |number: usize| {
            let boot = Uuid::from_u64_pair(1, number as u64 + 1);
            Fence::new(Register { vote, boot, ..Register::default() }, boot)
        };
        Arc::new(TestNodes {
            fences: Mutex::new((0..count).map(fence).collect()),
            disconnected: Mutex::default(),
            ignore_votes: Mutex::default(),
            started: Instant::now(),
        })
    }

    fn group(self: &Arc<TestNodes>, controller: u128) -> Arc<VoterGroup<TestTransport>> {
        let count = self.fences.lock().unwrap().len().min(3);
        VoterGroup::begin(
            TestTransport(Arc::clone(self)),
            VoterConfig::of(count, count),
            Uuid::from_u128(controller),
            99,
            0,
        )
    }

    /// Adds a voter, or replaces the one with this number.
    fn replace_voter(&self, number: usize, register: Register) {
        let boot = Uuid::from_u64_pair(1, number as u64 + 1);
        let fence = Fence::new(register, boot);
        let mut fences = self.fences.lock().unwrap();
        match fences.get_mut(number) {
            Some(there) => *there = fence,
            None => fences.push(fence),
        }
    }

    fn disconnect(&self, numbers: &[u8]) {
        *self.disconnected.lock().unwrap() = voters(numbers);
    }

    /// Returns what a controller reads of all registers.
    fn read(&self) -> RegistersRead {
        let fences = self.fences.lock().unwrap();
        let newest = fences.iter().map(|fence| fence.register().vote).max_by_key(Vote::order).unwrap();
        let Vote { config: membership, epoch, .. } = newest;
        RegistersRead {
            membership,
            newest: epoch,
            voters: membership.voters,
            before: membership.previous_voters,
            new: Voters::NONE,
        }
    }

    fn vote_of(&self, number: usize) -> Vote {
        self.fences.lock().unwrap()[number].register().vote
    }
}

impl VoterTransport for TestTransport {
    async fn send(&self, voter: VoterId, ask: VoterRequest) -> Result<VoterReply, VoterError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let ignore_votes = matches!(ask, VoterRequest::Cast { .. }) && self.0.ignore_votes.lock().unwrap().has(voter);
        if self.0.disconnected.lock().unwrap().has(voter) || ignore_votes {
            return Err(VoterError::Unreachable("it is disconnected".to_owned()));
        }
        let fence = &mut self.0.fences.lock().unwrap()[usize::from(voter.0)];
        assert!(fence.request(1, ask));
        while let Some(action) = fence.pop() {
            match action {
                FenceAction::Write(_) => fence.written(true),
                FenceAction::Reply(1, answer) => return answer.map_err(VoterError::Refused),
                _ => {}
            }
        }
        panic!("no answer");
    }

    fn now_ns(&self) -> u64 {
        self.0.started.elapsed().as_nanos() as u64 + 1
    }

    fn renew(&self, lease: &DeviceLease, until_ns: u64) {
        assert!(!lease.renew(until_ns), "no completion is held back here");
    }
}

fn lease_of(group: &VoterGroup<TestTransport>) -> u64 {
    group.lease().until_ns()
}

#[tokio::test(start_paused = true)]
async fn a_new_volume_opens_at_once_with_all_voters() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    let chosen = group.open(Duration::ZERO).await.unwrap();
    // No controller has served it: there is no lease to wait for.
    assert!(nodes.started.elapsed() < Duration::from_secs(1), "{:?}", nodes.started.elapsed());
    assert!(chosen.count() >= 2);
    assert_eq!(group.agree(chosen).await, Ok(Voters::NONE));
    assert_eq!(group.status().in_sync, chosen);
    assert!(lease_of(&group) > 0);
}

#[tokio::test(start_paused = true)]
async fn an_opening_waits_for_the_previous_lease_unless_it_was_released() {
    for (released, least_ns, most_ns) in [(false, OPEN_WAIT_NS, 2 * OPEN_WAIT_NS), (true, 0, 1_000_000_000)] {
        let nodes = TestNodes::of(3);
        let first = nodes.group(1);
        let chosen = first.open(Duration::ZERO).await.unwrap();
        first.agree(chosen).await.unwrap();
        if released {
            first.release(Duration::from_secs(1)).await;
        }
        let started = Instant::now();
        let second = nodes.group(2);
        let chosen = second.open(Duration::ZERO).await.unwrap();
        let waited = started.elapsed().as_nanos() as u64;
        assert!((least_ns..most_ns).contains(&waited), "released {released}: {waited} ns");
        assert!(
            released || lease_of(&first) < nodes.started.elapsed().as_nanos() as u64,
            "two controllers could complete requests"
        );
        second.agree(chosen).await.unwrap();
        assert_eq!(second.status().epoch, 2);
        if !released {
            // The fenced controller learns it.
            first.ended().await;
            assert_eq!(first.agree(chosen).await, Err(ControllerFenced));
        }
    }
}

/// The serving node is dead, and its voter with it: the takeover waits while the lease expires, and no longer.
#[tokio::test(start_paused = true)]
async fn a_takeover_from_a_dead_node_takes_no_longer_than_its_lease() {
    let nodes = TestNodes::of(3);
    let first = nodes.group(1);
    let chosen = first.open(Duration::ZERO).await.unwrap();
    first.agree(chosen).await.unwrap();
    drop(first);
    nodes.disconnect(&[0]);
    let started = Instant::now();
    let second = nodes.group(2);
    assert_eq!(second.open(Duration::from_secs(2)).await, Ok(voters(&[1, 2])));
    let waited = started.elapsed().as_nanos() as u64;
    assert!((OPEN_WAIT_NS..OPEN_WAIT_NS + 500_000_000).contains(&waited), "{waited} ns");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_replica_needs_a_quorum_of_votes() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let chosen = group.open(Duration::ZERO).await.unwrap();
    assert_eq!(chosen, Voters::first(3));
    group.agree(chosen).await.unwrap();
    nodes.disconnect(&[1, 2]);
    let asked = {
        let group = Arc::clone(&group);
        tokio::spawn(async move { group.agree(voters(&[0, 1])).await })
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!asked.is_finished(), "one vote of three is no quorum");
    assert_eq!(group.status().in_sync, Voters::first(3));
    // The lease has expired in the meantime.
    assert!(lease_of(&group) < nodes.started.elapsed().as_nanos() as u64);
    nodes.disconnect(&[2]);
    assert_eq!(asked.await.unwrap(), Ok(Voters::NONE));
    assert_eq!((nodes.vote_of(0).in_sync, nodes.vote_of(1).in_sync), (voters(&[0, 1]), voters(&[0, 1])));
    assert_eq!(nodes.vote_of(2).in_sync, Voters::first(3));
    let lease = lease_of(&group);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(lease_of(&group) > lease, "two of three renew it");
    assert!(lease_of(&group) <= nodes.started.elapsed().as_nanos() as u64 + LEASE_NS);
}

#[tokio::test(start_paused = true)]
async fn a_new_replica_without_acknowledgment_is_dropped_again() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let chosen = group.open(Duration::ZERO).await.unwrap();
    group.agree(chosen).await.unwrap();
    group.agree(voters(&[0, 1])).await.unwrap();
    assert!(group.refresh_boot(VoterId(2)).await);
    *nodes.ignore_votes.lock().unwrap() = voters(&[2]);
    let started = Instant::now();
    assert_eq!(group.agree(Voters::first(3)).await, Ok(voters(&[2])));
    assert!(started.elapsed() >= Duration::from_secs(5));
    assert_eq!(group.status().in_sync, voters(&[0, 1]));
    assert_eq!(nodes.vote_of(0).in_sync, voters(&[0, 1]));
    *nodes.ignore_votes.lock().unwrap() = Voters::NONE;
    assert_eq!(group.agree(Voters::first(3)).await, Ok(Voters::NONE));
    assert_eq!(group.status().in_sync, Voters::first(3));
}

#[tokio::test(start_paused = true)]
async fn too_few_voters_cannot_open_and_missing_replicas_are_reported() {
    let nodes = TestNodes::of(3);
    nodes.disconnect(&[1, 2]);
    let group = nodes.group(1);
    let opening = {
        let group = Arc::clone(&group);
        tokio::spawn(async move { group.open(Duration::ZERO).await })
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!opening.is_finished());
    let status = group.status();
    assert_eq!(status.raised, voters(&[0]));
    assert!(status.failures[1].is_some() && status.failures[0].is_none(), "{status:?}");
    // The only replica in sync is disconnected.
    nodes.disconnect(&[]);
    let chosen = opening.await.unwrap().unwrap();
    group.agree(voters(&[0])).await.unwrap();
    assert!(chosen.has(VoterId(0)));
    group.release(Duration::from_secs(1)).await;
    nodes.disconnect(&[0]);
    let group = nodes.group(2);
    let opening = {
        let group = Arc::clone(&group);
        tokio::spawn(async move { group.open(Duration::ZERO).await })
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!opening.is_finished());
    assert_eq!(group.status().missing, voters(&[0]));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_controller_probes_whether_the_volume_is_still_its_own() {
    let nodes = TestNodes::of(3);
    let transport = TestTransport(Arc::clone(&nodes));
    let first = nodes.group(1);
    let chosen = first.open(Duration::ZERO).await.unwrap();
    first.agree(chosen).await.unwrap();
    drop(first);
    let (mine, nothing) = (Uuid::from_u128(1), RegistersRead::default());
    assert_eq!(probe(&transport, VoterConfig::of(3, 3), &nothing, 1, mine).await, ProbeOutcome::Ours(1));
    nodes.disconnect(&[0]);
    assert_eq!(
        probe(&transport, VoterConfig::of(3, 3), &nothing, 1, mine).await,
        ProbeOutcome::Ours(1),
        "two of three are enough"
    );
    nodes.disconnect(&[0, 1]);
    assert_eq!(probe(&transport, VoterConfig::of(3, 3), &nothing, 1, mine).await, ProbeOutcome::Unknown);
    nodes.disconnect(&[]);
    // One voter was raised by a controller that gave up: the next epoch is above that.
    let raised = transport.send(VoterId(2), VoterRequest::Raise { epoch: 9, controller: Uuid::from_u128(5) }).await;
    assert!(matches!(raised, Ok(VoterReply::Raised { .. })));
    assert_eq!(probe(&transport, VoterConfig::of(3, 3), &nothing, 1, mine).await, ProbeOutcome::Ours(9));
    // An epoch that this controller has raised and not saved is its own.
    for voter in [0, 1] {
        transport.send(VoterId(voter), VoterRequest::Raise { epoch: 2, controller: mine }).await.unwrap();
    }
    assert_eq!(probe(&transport, VoterConfig::of(3, 3), &nothing, 1, mine).await, ProbeOutcome::Ours(9));
    let other = nodes.group(2);
    let chosen = other.open(Duration::ZERO).await.unwrap();
    other.agree(chosen).await.unwrap();
    assert_eq!(probe(&transport, VoterConfig::of(3, 3), &nothing, 2, mine).await, ProbeOutcome::Other);
    assert!(!other.status().ended, "the serving controller is not disturbed");
}

#[tokio::test(start_paused = true)]
async fn half_of_the_voters_raised_by_an_abandoned_opening_are_raised_above_it() {
    for count in [2, 4] {
        let (nodes, membership, mine) = (TestNodes::of(count), VoterConfig::of(count, count), Uuid::from_u128(1));
        let transport = TestTransport(Arc::clone(&nodes));
        let first = VoterGroup::begin(transport.clone(), membership, mine, 99, 0);
        let chosen = first.open(Duration::from_secs(1)).await.unwrap();
        first.agree(chosen).await.unwrap();
        let epoch = first.status().epoch;
        // A controller that is cut off from the other half raises its own half only.
        let other = Uuid::from_u128(5);
        for voter in (count / 2..count).map(|number| VoterId(number as u8)) {
            transport.send(voter, VoterRequest::Raise { epoch: 9, controller: other }).await.unwrap();
            transport.send(voter, VoterRequest::Release { epoch: 9, controller: other }).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!first.status().ended && lease_of(&first) > nodes.started.elapsed().as_nanos() as u64, "it goes on");
        first.give_up();
        assert_eq!(
            probe(&transport, membership, &RegistersRead::default(), epoch, mine).await,
            ProbeOutcome::Unknown,
            "of {count}"
        );
        assert_eq!(
            probe(&transport, membership, &nodes.read(), epoch, mine).await,
            ProbeOutcome::Ours(9),
            "of {count}"
        );
        let again = VoterGroup::begin(transport.clone(), membership, mine, 97, 9);
        let chosen = again.open(Duration::from_secs(1)).await.unwrap();
        assert_eq!(chosen, Voters::first(count));
        again.agree(chosen).await.unwrap();
        assert_eq!(again.status().epoch, 10);
        // A controller that raises a quorum keeps the volume, whether it has voted or not.
        for voter in (0..count / 2 + 1).map(|number| VoterId(number as u8)) {
            transport.send(voter, VoterRequest::Raise { epoch: 11, controller: other }).await.unwrap();
        }
        assert_eq!(probe(&transport, membership, &nodes.read(), 10, mine).await, ProbeOutcome::Other, "of {count}");
        assert_eq!(
            probe(&transport, membership, &RegistersRead::default(), 10, mine).await,
            ProbeOutcome::Other,
            "of {count}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_voter_raised_by_another_controller_fences_nothing_and_a_majority_does() {
    let nodes = TestNodes::of(3);
    let transport = TestTransport(Arc::clone(&nodes));
    let group = nodes.group(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let chosen = group.open(Duration::ZERO).await.unwrap();
    group.agree(chosen).await.unwrap();
    let raise = |voter: u8| {
        let transport = transport.clone();
        async move {
            transport
                .send(VoterId(voter), VoterRequest::Raise { epoch: 9, controller: Uuid::from_u128(5) })
                .await
                .map(drop)
        }
    };
    raise(2).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let status = group.status();
    assert_eq!((status.ended, status.refused), (false, voters(&[2])), "{status:?}");
    assert!(lease_of(&group) > nodes.started.elapsed().as_nanos() as u64, "two of three renew it");
    raise(1).await.unwrap();
    group.ended().await;
    // A bounded opening does not go above another controller.
    let again = { VoterGroup::begin(transport.clone(), VoterConfig::of(3, 3), Uuid::from_u128(1), 97, 1) };
    assert_eq!(again.open(Duration::ZERO).await, Err(ControllerFenced));
}

#[tokio::test(start_paused = true)]
async fn giving_up_ends_every_wait() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let chosen = group.open(Duration::ZERO).await.unwrap();
    group.agree(chosen).await.unwrap();
    nodes.disconnect(&[1, 2]);
    let asked = {
        let group = Arc::clone(&group);
        tokio::spawn(async move { group.agree(voters(&[0])).await })
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!asked.is_finished());
    group.give_up();
    assert_eq!(asked.await.unwrap(), Err(ControllerFenced));
}

#[tokio::test(start_paused = true)]
async fn a_rebooted_voter_is_used_under_its_new_boot() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let chosen = group.open(Duration::ZERO).await.unwrap();
    group.agree(chosen).await.unwrap();
    assert!(!group.refresh_boot(VoterId(2)).await, "it is in sync");
    group.agree(voters(&[0, 1])).await.unwrap();
    let boot = Uuid::from_u64_pair(2, 3);
    {
        let mut fences = nodes.fences.lock().unwrap();
        let register = *fences[2].register();
        fences[2] = Fence::new(register, boot);
    }
    assert!(group.refresh_boot(VoterId(2)).await);
    assert_eq!(group.session_of(VoterId(2)).2, boot);
    group.agree(Voters::first(3)).await.unwrap();
    assert_eq!(nodes.fences.lock().unwrap()[2].register().boot, boot);
    nodes.disconnect(&[2]);
    group.agree(voters(&[0, 1])).await.unwrap();
    assert!(!group.refresh_boot(VoterId(2)).await, "it does not answer");
}

#[tokio::test(start_paused = true)]
async fn optional_voters_are_waited_for_with_patience() {
    let nodes = TestNodes::of(3);
    nodes.disconnect(&[2]);
    let group = nodes.group(1);
    let started = Instant::now();
    assert_eq!(group.open(Duration::from_secs(2)).await, Ok(voters(&[0, 1])));
    assert!(started.elapsed() >= Duration::from_secs(2));
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    let started = Instant::now();
    assert_eq!(group.open(Duration::from_secs(2)).await, Ok(Voters::first(3)));
    assert!(started.elapsed() < Duration::from_secs(1), "all voters reply");
}

#[tokio::test(start_paused = true)]
async fn a_voter_is_added_and_another_one_removed() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    let chosen = group.open(Duration::ZERO).await.unwrap();
    group.agree(chosen).await.unwrap();
    // A new voter, which knows nothing of the time before.
    let version = group.next_version().unwrap();
    let next = group.membership().with(VoterId(3), true, version).unwrap();
    nodes.replace_voter(
        3,
        Register { vote: Vote { config: next, ..nodes.vote_of(0) }, added_in_version: version, ..Register::default() },
    );
    assert_eq!(group.change(&next), Ok(true));
    assert_eq!(group.changed_to(&next).await, Ok(()));
    assert_eq!(group.membership(), next.final_config());
    // Of four voters three suffice for everything, and two for the lease.
    nodes.disconnect(&[0, 1]);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(lease_of(&group) > nodes.started.elapsed().as_nanos() as u64);
    nodes.disconnect(&[]);
    // A voter that is gone for ever cannot block the change.
    nodes.disconnect(&[0]);
    let gone = group.membership().without(VoterId(0), group.next_version().unwrap()).unwrap();
    assert_eq!(group.change(&gone), Ok(false), "it is in sync");
    group.agree(voters(&[1, 2])).await.unwrap();
    assert_eq!(group.change(&gone), Ok(true));
    assert_eq!(group.changed_to(&gone).await, Ok(()));
    group.release(Duration::from_secs(1)).await;
    // A controller that knows the original membership learns the current one.
    let again = VoterGroup::begin(TestTransport(Arc::clone(&nodes)), VoterConfig::of(3, 3), Uuid::from_u128(2), 98, 0);
    assert_eq!(again.open(Duration::from_secs(1)).await.unwrap(), voters(&[1, 2]));
    assert_eq!(again.membership(), gone.final_config());
    again.agree(voters(&[1, 2])).await.unwrap();
    assert_eq!(nodes.vote_of(3).config, gone.final_config());
}

#[tokio::test(start_paused = true)]
async fn a_change_without_quorum_waits_and_the_next_opening_completes_it() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    let chosen = group.open(Duration::ZERO).await.unwrap();
    group.agree(chosen).await.unwrap();
    let version = group.next_version().unwrap();
    let next = group.membership().with(VoterId(3), true, version).unwrap();
    nodes.replace_voter(
        3,
        Register { vote: Vote { config: next, ..nodes.vote_of(0) }, added_in_version: version, ..Register::default() },
    );
    // Two of the four new voters get the vote, and one of the three old ones: two of these are needed.
    *nodes.ignore_votes.lock().unwrap() = voters(&[0, 1]);
    assert_eq!(group.change(&next), Ok(true));
    let waits = tokio::time::timeout(Duration::from_secs(30), group.changed_to(&next)).await;
    assert!(waits.is_err() && group.membership() == VoterConfig::of(3, 3));
    drop(group);
    *nodes.ignore_votes.lock().unwrap() = Voters::NONE;
    let again = nodes.group(2);
    let chosen = again.open(Duration::from_secs(1)).await.unwrap();
    assert_eq!(again.membership(), next, "the voter with the new vote reported it");
    again.agree(chosen).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(again.membership(), next.final_config());
}

/// Three voters, the last of which was raised by an opening (2) while the first controller (1) serves. Then that voter
/// is created anew, and the two others drop the first replica.
async fn voter_replaced_during_an_opening(wait: Duration) -> (Arc<TestNodes>, Arc<VoterGroup<TestTransport>>) {
    let nodes = TestNodes::of(3);
    let first = nodes.group(1);
    let chosen = first.open(Duration::from_secs(1)).await.unwrap();
    first.agree(chosen).await.unwrap();
    first.release(Duration::from_secs(1)).await;
    let old = nodes.vote_of(2);
    nodes.disconnect(&[0, 1]);
    let second = nodes.group(2);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(second.status().raised, voters(&[2]));
    // The serving controller goes on with the new voter, which the opening does not know, and with the second one.
    let dropped = Vote { sequence: old.sequence + 1, lineage: 8, in_sync: voters(&[1, 2]), ..old };
    let transport = TestTransport(Arc::clone(&nodes));
    nodes.replace_voter(
        2,
        Register { vote: old, epoch: old.epoch, controller: Uuid::from_u128(1), ..Register::default() },
    );
    nodes.disconnect(&[]);
    for voter in [1, 2] {
        let (epoch, controller) = (old.epoch, Uuid::from_u128(1));
        let cast =
            VoterRequest::Cast { epoch, controller, vote: dropped, boot: Uuid::from_u64_pair(1, u64::from(voter) + 1) };
        transport.send(VoterId(voter), cast).await.unwrap();
    }
    nodes.disconnect(&[1]);
    tokio::time::sleep(wait).await;
    (nodes, second)
}

#[tokio::test(start_paused = true)]
async fn guarantees_of_a_replaced_voter_do_not_count() {
    // It is noticed before another voter replies, or after the opening has chosen.
    for wait in [Duration::ZERO, Duration::from_secs(3)] {
        let (nodes, second) = voter_replaced_during_an_opening(wait).await;
        let opened = tokio::time::timeout(Duration::from_secs(30), async {
            let chosen = second.open(Duration::ZERO).await?;
            second.agree(chosen).await.map(|_| chosen)
        });
        let opened = opened.await.expect("two of three answer");
        // The dropped replica never counts.
        assert!(opened.is_err() || opened == Ok(voters(&[2])), "{wait:?}: {opened:?}");
        assert!(!nodes.vote_of(2).in_sync.has(VoterId(0)), "{wait:?}: {:?}", nodes.vote_of(2));
        drop(second);
        let third = nodes.group(3);
        assert_eq!(third.open(Duration::ZERO).await, Ok(voters(&[2])), "{wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_node_forgets_is_dropped_and_gets_the_vote_again() {
    let nodes = TestNodes::of(3);
    let group = nodes.group(1);
    let chosen = group.open(Duration::from_secs(1)).await.unwrap();
    group.agree(chosen).await.unwrap();
    let old = Vote { epoch: 0, sequence: 0, ..nodes.vote_of(2) };
    nodes.replace_voter(2, Register { vote: old, ..Register::default() });
    tokio::time::sleep(Duration::from_secs(5)).await;
    let status = group.status();
    assert_eq!((status.forgotten, status.raised, status.ended), (voters(&[2]), voters(&[0, 1]), false), "{status:?}");
    assert_eq!(nodes.fences.lock().unwrap()[2].register().epoch, 0, "no session may be admitted there");
    group.agree(voters(&[0, 1])).await.unwrap();
    group.allow_rebuild(VoterId(2));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((group.status().forgotten, group.status().raised), (Voters::NONE, Voters::first(3)));
    assert_eq!(nodes.vote_of(2), nodes.vote_of(0), "it knows who is in sync");
    assert!(group.refresh_boot(VoterId(2)).await);
    // A dropped replica's voter forgets, too, and gets no request before the replica rejoins.
    nodes.replace_voter(2, Register { vote: old, ..Register::default() });
    assert!(group.refresh_boot(VoterId(2)).await);
    assert_eq!(group.status().forgotten, voters(&[2]));
}

#[tokio::test(start_paused = true)]
async fn guarantees_of_a_removed_voter_do_not_count_for_its_successor() {
    let nodes = TestNodes::of(3);
    nodes.disconnect(&[0, 1]);
    let group = nodes.group(1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(group.status().raised, voters(&[2]));
    // Another voter is there now, which came with a later membership: by the one that the others know, it has no vote.
    nodes.replace_voter(2, Register { vote: nodes.vote_of(0), added_in_version: 5 << 16 | 1, ..Register::default() });
    nodes.disconnect(&[0]);
    let opened = tokio::time::timeout(Duration::from_secs(30), group.open(Duration::ZERO)).await;
    assert!(opened.is_err() && group.status().raised == voters(&[1, 2]), "it is raised again, and does not count");
    nodes.disconnect(&[]);
    group.open(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_to_an_old_location_do_not_count_for_the_new_one() {
    let nodes = TestNodes::of(3);
    let first = nodes.group(1);
    let chosen = first.open(Duration::ZERO).await.unwrap();
    first.agree(chosen).await.unwrap();
    first.release(Duration::from_secs(1)).await;
    // Two of three are needed. The request to the third one is in flight when its location changes.
    nodes.disconnect(&[0]);
    let second = nodes.group(2);
    for _ in 0..40 {
        second.relocated(voters(&[2]));
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
    assert_eq!(second.status().raised, voters(&[1]), "each reply was to an earlier request");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(second.status().raised, voters(&[1, 2]));
}

//! Opening a volume: from what voters remember to what may be served.
//!
//! 1. Raise the epoch on enough voters. From then on no other controller's I/O reaches a replica of theirs.
//! 2. The highest vote among them says who is in sync. Those of them that were raised, and have not rebooted since, are
//!    believed; where all that are in sync have rebooted, nobody knows better, and all are.
//! 3. Wait until the lease of whoever was cut off has run out, unless he let go.
//! 4. The replicas that are believed are flushed and made equal, by the caller.
//! 5. Who is in sync is voted for in the new epoch. Once enough voters have it, and all that are in sync, the volume may be served. Where
//!    one of them does not take it any more the caller begins anew.

use braid_format::Uuid;

use super::fence::Ask;
use super::lease::OPEN_WAIT_NS;
use super::planted::{Planted, planted};
use super::quorum::{Quorums, VOTERS_MAX, VoterId, Voters};
use super::register::{Register, Vote};

/// What an opening needs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// These voters are to be asked, again and again until they answer: more of them are needed.
    Ask(Ask, Voters),
    /// These voters are to take this vote, each under the boot that [`Opening::boot`] says. The others ([`Opening::unraised`]) are still to
    /// be asked: they may take it, too.
    Cast(Vote, Voters),
    /// Enough were raised, and none of the replicas in sync is among them: these are missing. The others are still to be asked.
    Missing(Ask, Voters, Voters),
    /// Until this moment somebody else may answer clients. The others are still to be asked.
    Wait(Ask, Voters, u64),
    /// These are to be flushed and made equal ([`Opening::equal`]).
    MakeEqual(Voters),
    /// It may be served ([`Opening::opened`]).
    Open,
}

/// What may be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The vote that enough voters have.
    pub vote: Vote,
    /// The boot of each voter's node, as far as known. A replica that answers under another one is to be dropped.
    pub boots: [Option<Uuid>; VOTERS_MAX],
}

/// One try to open a volume.
pub struct Opening {
    quorums: Quorums,
    /// Which of the voters are replicas.
    replicas: Voters,
    controller: Uuid,
    /// A line for those that go on, should some be left out; random.
    lineage: u64,
    epoch: u64,
    /// What those that were raised remembered, and the boot of their nodes.
    raised: [Option<(Register, Uuid)>; VOTERS_MAX],
    /// When there were enough of them.
    enough_ns: Option<u64>,
    /// The vote that was found, and who is being made equal: what comes later changes neither.
    chosen: Option<(Vote, Voters)>,
    vote: Option<Vote>,
    cast: Voters,
}

impl Opening {
    /// `lineage` and `controller` are random. The epoch begins at 1, and is raised by what voters say.
    pub fn new(quorums: Quorums, replicas: Voters, controller: Uuid, lineage: u64) -> Opening {
        Opening {
            quorums,
            replicas,
            controller,
            lineage,
            epoch: 1,
            raised: [None; VOTERS_MAX],
            enough_ns: None,
            chosen: None,
            vote: None,
            cast: Voters::NONE,
        }
    }

    /// The same, with an epoch above this one: for whoever served in that one, and goes on only if nobody else has come since. Then
    /// [`Opening::refused`] is not to be called: it would go above whoever has.
    #[must_use]
    pub fn above(self, epoch: u64) -> Opening {
        Opening { epoch: epoch + 1, ..self }
    }

    /// The epoch that it tries to raise.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A voter was raised to `epoch`.
    pub fn raised(&mut self, voter: VoterId, epoch: u64, before: Register, boot: Uuid, now_ns: u64) {
        if epoch != self.epoch {
            return;
        }
        self.raised[usize::from(voter.0)].get_or_insert((before, boot));
        if self.who_was_raised().count() >= self.open() {
            self.enough_ns.get_or_insert(now_ns);
        }
    }

    /// A voter answers another epoch: everything begins anew, above it.
    pub fn refused(&mut self, epoch: u64) {
        if epoch >= self.epoch {
            let Opening { quorums, replicas, controller, lineage, .. } = *self;
            *self = Opening { epoch: epoch + 1, ..Opening::new(quorums, replicas, controller, lineage) };
        }
    }

    /// Those of [`Next::MakeEqual`] that are flushed and hold the same. Nobody: it begins anew, and raises the same voters again.
    pub fn equal(&mut self, equal: Voters) {
        let Some((winner, _)) = self.chosen.filter(|_| !equal.is_empty()) else { return self.refused(self.epoch) };
        let lineage = if equal == winner.in_sync { winner.lineage } else { self.lineage };
        self.vote = Some(Vote { epoch: self.epoch, sequence: 1, lineage, in_sync: equal });
    }

    /// A voter has the vote of this epoch.
    pub fn cast(&mut self, voter: VoterId, epoch: u64) {
        if epoch == self.epoch && self.vote.is_some() {
            self.cast.insert(voter);
        }
    }

    /// What is to be done now.
    pub fn next(&self, now_ns: u64) -> Next {
        if let Some(vote) = self.vote {
            let enough = self.cast.count() >= self.quorums.drop;
            // Each of those in sync has to know under which boot it was made equal, or whoever opens next takes it for rebooted.
            let told = vote.in_sync.without(self.cast).is_empty() || planted(Planted::NewcomerUntold);
            if enough && told || planted(Planted::ServedBeforeRecorded) {
                return Next::Open;
            }
            return Next::Cast(vote, self.who_was_raised().without(self.cast));
        }
        if let Some((_, chosen)) = self.chosen {
            return Next::MakeEqual(chosen);
        }
        let ask = self.ask();
        let others = self.unraised();
        let Some(since) = self.enough_ns else { return Next::Ask(ask, others) };
        if self.believed().is_empty() {
            return Next::Missing(ask, others, self.winner().in_sync);
        }
        let until = if self.has_let_go() || planted(Planted::OpenedWithoutWait) { since } else { since + OPEN_WAIT_NS };
        if now_ns < until {
            return Next::Wait(ask, others, until);
        }
        Next::MakeEqual(self.believed())
    }

    /// What may be served after [`Next::Open`].
    pub fn opened(&self) -> Option<Opened> {
        let boots = self.raised.map(|raised| raised.map(|(_, boot)| boot));
        self.vote.map(|vote| Opened { vote, boots })
    }

    /// [`Next::MakeEqual`] has begun with these: what voters say that are raised from now on changes nothing of it.
    pub fn choose(&mut self, chosen: Voters) {
        self.chosen = Some((self.winner(), chosen));
    }

    /// What those are asked that were not raised yet.
    pub fn ask(&self) -> Ask {
        Ask::Raise { epoch: self.epoch, controller: self.controller }
    }

    /// Those.
    pub fn unraised(&self) -> Voters {
        Voters::first(self.quorums.voters).without(self.who_was_raised())
    }

    /// Under which boot a voter was raised; nil: it was not. A replica of [`Next::MakeEqual`] that is met under another one has failed.
    pub fn boot(&self, voter: VoterId) -> Uuid {
        self.raised[usize::from(voter.0)].map(|(_, boot)| boot).unwrap_or_default()
    }

    fn open(&self) -> usize {
        if planted(Planted::OpenedWithoutVotes) { 1 } else { self.quorums.open }
    }

    fn who_was_raised(&self) -> Voters {
        (0..VOTERS_MAX as u8).map(VoterId).filter(|v| self.raised[usize::from(v.0)].is_some()).collect()
    }

    fn registers(&self) -> impl Iterator<Item = &Register> {
        self.raised.iter().flatten().map(|(register, _)| register)
    }

    fn winner(&self) -> Vote {
        let order = |vote: &Vote| {
            if planted(Planted::EpochForgotten) { (vote.sequence, vote.epoch) } else { vote.order() }
        };
        self.registers().map(|register| register.vote).max_by_key(order).unwrap_or_default()
    }

    fn has_rebooted(&self, voter: VoterId) -> bool {
        self.raised[usize::from(voter.0)].is_some_and(|(register, boot)| register.boot != boot)
    }

    /// The replicas from which the volume may be served.
    fn believed(&self) -> Voters {
        let mut in_sync = self.winner().in_sync.and(self.replicas);
        if planted(Planted::WitnessIsData) {
            in_sync = in_sync.or(Voters::first(self.quorums.voters).without(self.replicas));
        }
        if planted(Planted::LinesCalledApart) && self.lines_are_apart() {
            return Voters::NONE;
        }
        let here = in_sync.and(self.who_was_raised());
        let rebooted: Voters = here.iter().filter(|voter| self.has_rebooted(*voter)).collect();
        if rebooted == in_sync || planted(Planted::RebootBelieved) { here } else { here.without(rebooted) }
    }

    /// What the planted bug takes for a parting of ways.
    fn lines_are_apart(&self) -> bool {
        let drops = || self.registers().map(|register| register.vote).filter(|vote| vote.sequence > 1);
        drops().any(|vote| drops().any(|other| vote.epoch != other.epoch && vote.lineage != other.lineage))
    }

    /// Whether the last controller that can have served stopped in order, as one of those says that know it. Whoever raised an epoch and
    /// served after it would be known to one of these, too. A register that says so without a vote of that epoch speaks of somebody who
    /// never served: of the one before it says nothing.
    fn has_let_go(&self) -> bool {
        let last = self.registers().map(|register| register.epoch).max().unwrap_or(0);
        let mut of_last = self.registers().filter(|register| register.epoch == last);
        let served = |register: &Register| register.vote.epoch == last || planted(Planted::ReleaseOfNobody);
        // What says this epoch already was raised by this opening: an answer was lost, and what stood before with it.
        last < self.epoch && (last == 0 || of_last.any(|register| register.released && served(register)))
    }
}

//! Opening a volume: from what voters remember to what may be served.
//!
//! 1. Raise the epoch on enough voters. From then on no other controller's I/O reaches a replica of theirs.
//! 2. The highest vote among them says who is in sync. Those of them that were raised, and have not rebooted since, are
//!    believed, if they have everything ([`Seating::least`]); where so many of those in sync have rebooted that the others, missing ones
//!    included, cannot have everything, nobody knows better, and all are; but for older copies of themselves, unless again the others cannot
//!    have everything.
//! 3. Wait until the lease of whoever was cut off has run out, unless he let go.
//! 4. The replicas that are believed are flushed and made equal, by the caller.
//! 5. Who is in sync is voted for in the new epoch. Once enough voters have it, and all that are in sync, the volume may be served. Where
//!    one of them does not take it any more the caller begins anew.

use braid_format::Uuid;

use super::boot::is_of_older_copy;
use super::fence::Ask;
use super::lease::OPEN_WAIT_NS;
use super::planted::{Planted, planted};
use super::quorum::{Quorums, Seating, VOTERS_MAX, VoterId, Voters};
use super::register::{Register, Vote};

mod forced;
pub use forced::{Forecast, Unforced, forecast};

/// What an opening needs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// These voters are to be asked, again and again until they answer: more of them are needed.
    Ask(Ask, Voters),
    /// These voters are to take this vote, each under the boot that [`Opening::boot`] says. The others ([`Opening::unraised`]) are still to
    /// be asked: they may take it, too.
    Cast(Vote, Voters),
    /// Enough were raised, and the replicas in sync among them do not have everything: of these some are missing. The others are still to be
    /// asked.
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
    /// Who votes as far as was known at the beginning.
    known: Seating,
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
    /// It goes by these voters alone, whatever others may know, and by the vote of this order: [`Opening::forced`].
    forced: Option<(Voters, (u64, u64))>,
}

impl Opening {
    /// `lineage` and `controller` are random. The epoch begins at 1, and is raised by what voters say. `known`: who votes, as some vote said once, or as
    /// the volume was made; what voters say that are raised counts before that.
    pub fn new(known: Seating, controller: Uuid, lineage: u64) -> Opening {
        Opening {
            known,
            controller,
            lineage,
            epoch: 1,
            raised: [None; VOTERS_MAX],
            enough_ns: None,
            chosen: None,
            vote: None,
            cast: Voters::NONE,
            forced: None,
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
        if epoch != self.epoch || self.forced.is_some_and(|(present, _)| !present.has(voter)) {
            return;
        }
        self.raised[usize::from(voter.0)].get_or_insert((before, boot));
        self.look_for_enough(now_ns);
    }

    /// A voter is somebody else than who was raised, and that one does not count: it is somewhere else, or was made anew in its place, as a later
    /// list of places says; or it answers an epoch below the one that it was raised to, which who was raised never does. If who is in sync was
    /// chosen by his word already, everything begins anew.
    ///
    /// Whoever opens the volume must hear this of a list before it hears of a vote that goes by that list ([`Opening::raised`]). Nobody has to vote for
    /// what that one promised: whoever served meanwhile goes on with the new one, and with others that were not raised.
    pub fn moved(&mut self, voter: VoterId, now_ns: u64) {
        if planted(Planted::MovedCounted) || self.raised[usize::from(voter.0)].take().is_none() {
            return;
        }
        if self.chosen.is_some() || self.vote.is_some() {
            return self.refused(self.epoch);
        }
        self.look_for_enough(now_ns);
    }

    /// Who votes, as far as those say that were raised.
    pub fn seating(&self) -> Seating {
        let winner = self.chosen.map_or_else(|| self.winner(), |(winner, _)| winner);
        // Nobody has voted: the list that came with the volume, or one that counted later.
        if winner.epoch == 0 || winner.seating.voters.is_empty() { self.known } else { winner.seating }
    }

    fn look_for_enough(&mut self, now_ns: u64) {
        // Who was raised later may say that more are needed: then the wait begins with the last of them.
        match self.opens() {
            true => drop(self.enough_ns.get_or_insert(now_ns)),
            false => self.enough_ns = None,
        }
    }

    /// Whether enough were raised.
    fn opens(&self) -> bool {
        let seating = self.seating();
        if let Some((present, newest)) = self.forced {
            // A vote that came since says something else than what was agreed to.
            let is_as_said = self.winner().order() == newest;
            return !present.is_empty() && present.without(self.who_was_raised()).is_empty() && is_as_said;
        }
        if planted(Planted::OpenedWithoutVotes) {
            return !self.who_was_raised().is_empty();
        }
        let enough = |set: Voters, raised: Voters| set.and(raised).count() >= Quorums::of(set.count()).open;
        // Who came with a version is no voter of those before, even under the number of one.
        let of_before = !seating.is_joint() || enough(seating.before, self.older(seating.version));
        of_before && enough(seating.voters, self.older(seating.version.saturating_add(1)))
    }

    /// Those that were raised and had come before this version of the list.
    fn older(&self, than: u64) -> Voters {
        let is_old = |voter: &VoterId| {
            self.raised[usize::from(voter.0)].is_some_and(|(register, _)| register.since < than)
                || planted(Planted::NewcomerKnowsPast)
        };
        self.who_was_raised().iter().filter(is_old).collect()
    }

    /// A voter answers another epoch: everything begins anew, above it.
    pub fn refused(&mut self, epoch: u64) {
        if epoch >= self.epoch {
            let Opening { known, controller, lineage, forced, .. } = *self;
            *self = Opening { epoch: epoch + 1, forced, ..Opening::new(known, controller, lineage) };
        }
    }

    /// Those of [`Next::MakeEqual`] that are flushed and hold the same. Fewer than have everything: it begins anew, and raises the same voters again.
    pub fn equal(&mut self, equal: Voters) {
        let enough = equal.count() >= self.seating().least() || planted(Planted::OpenedBelowLeast);
        let chosen = self.chosen.filter(|_| enough && !equal.is_empty());
        let Some((winner, _)) = chosen else { return self.refused(self.epoch) };
        let goes_on = equal == winner.in_sync && self.forced.is_none();
        let lineage = if goes_on { winner.lineage } else { self.lineage };
        let seating = self.forced.map_or_else(|| self.seating(), |(present, _)| self.seating_of_present(present));
        self.vote = Some(Vote { epoch: self.epoch, sequence: 1, lineage, in_sync: equal, seating });
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
            let enough = match self.forced {
                // Whoever meets any of them later is to know that the others count no more.
                Some(_) => vote.seating.voters.without(self.cast).is_empty(),
                _ => vote.seating.may_record(self.cast),
            };
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
        if let Some((present, _)) = self.forced {
            return present.without(self.who_was_raised());
        }
        // Whoever any of them knows of may know more.
        let heard = self.registers().map(|register| register.vote.seating.all());
        heard.fold(self.known.all(), Voters::or).without(self.who_was_raised())
    }

    /// Under which boot a voter was raised; nil: it was not. A replica of [`Next::MakeEqual`] that is met under another one has failed.
    pub fn boot(&self, voter: VoterId) -> Uuid {
        self.raised[usize::from(voter.0)].map(|(_, boot)| boot).unwrap_or_default()
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

    /// Whether a voter's replica is an older copy, which nobody has believed since.
    fn is_older(&self, voter: VoterId) -> bool {
        let boot = self.boot(voter);
        self.has_rebooted(voter) && is_of_older_copy(boot)
    }

    /// The replicas from which the volume may be served.
    fn believed(&self) -> Voters {
        if let Some((present, _)) = self.forced {
            return self.best_of(present).map(|(best, _)| best).unwrap_or_default();
        }
        let seating = self.seating();
        let mut in_sync = self.winner().in_sync.and(seating.replicas);
        if planted(Planted::WitnessIsData) {
            in_sync = in_sync.or(seating.voters.without(seating.replicas));
        }
        if planted(Planted::LinesCalledApart) && self.lines_are_apart() {
            return Voters::NONE;
        }
        let here = in_sync.and(self.who_was_raised());
        let rebooted: Voters = here.iter().filter(|voter| self.has_rebooted(*voter)).collect();
        let older: Voters = here.iter().filter(|voter| self.is_older(*voter)).collect();
        let least = if planted(Planted::OpenedBelowLeast) { 1 } else { seating.least() };
        // Not even with those that did not answer yet enough are left that have not.
        let know_better = |who: Voters| in_sync.without(who).count() >= least;
        let believed = match planted(Planted::RebootBelieved) {
            false if know_better(rebooted) => here.without(rebooted),
            false if know_better(older) && !planted(Planted::OlderLikeRebooted) => here.without(older),
            _ => here,
        };
        if believed.count() < least { Voters::NONE } else { believed }
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
        if self.forced.is_some() {
            // Those that were not asked may know of a later one.
            return false;
        }
        let last = self.registers().map(|register| register.epoch).max().unwrap_or(0);
        let mut of_last = self.registers().filter(|register| register.epoch == last);
        let served = |register: &Register| register.vote.epoch == last || planted(Planted::ReleaseOfNobody);
        // What says this epoch already was raised by this opening: an answer was lost, and what stood before with it.
        last < self.epoch && (last == 0 || of_last.any(|register| register.released && served(register)))
    }
}

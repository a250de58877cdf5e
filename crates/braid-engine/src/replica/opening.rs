//! Opens a volume: from the voters' registers to what may be served.
//!
//! 1. Raise the epoch on enough voters. From then on no other controller's I/O reaches their replicas.
//! 2. The highest vote among them says which replicas are in sync. Those of them that were raised, and have not
//!    rebooted since, are trusted, if they have everything ([`VoterConfig::replicas_needed`]). If so many replicas in
//!    sync have rebooted that the others, including missing ones, cannot have everything, no better content exists:
//!    then rebooted replicas are trusted, too, except for older copies of themselves. Older copies are trusted only if
//!    the others, again, cannot have everything.
//! 3. Wait until the lease of the fenced controller has expired, unless it has released the volume.
//! 4. The caller flushes and resyncs the trusted replicas.
//! 5. The replicas in sync are voted for in the new epoch. Once enough voters have the vote, and all replicas in sync,
//!    the volume may be served. If one of these does not take the vote any more, the caller starts again.

use braid_format::Uuid;

use super::boot::is_of_older_copy;
use super::fence::VoterRequest;
use super::lease::OPEN_WAIT_NS;
use super::quorum::{Quorums, VOTERS_MAX, VoterConfig, VoterId, Voters};
use super::register::{Register, Vote};

mod forced;
pub use forced::{ForceRefusal, Forecast, forecast};

/// The next step of an opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpeningStep {
    /// Send this request to these voters, repeatedly until they reply: more of them are needed.
    Ask(VoterRequest, Voters),
    /// Send this vote to these voters, each with the boot that [`Opening::boot`] returns. The others
    /// ([`Opening::unraised`]) are still to be asked: they may take it, too.
    Cast(Vote, Voters),
    /// Send this request to the voters of the first set. Enough voters were raised, but the replicas in sync among them
    /// do not have everything: the second set has the replicas in sync by the highest vote, some of which are missing.
    Missing(VoterRequest, Voters, Voters),
    /// Wait until this moment, in nanoseconds: another controller may answer clients until then. Meanwhile, send the
    /// request to these voters.
    Wait(VoterRequest, Voters, u64),
    /// Flush and resync these replicas ([`Opening::resynced`]).
    Resync(Voters),
    /// The volume may be served ([`Opening::opened`]).
    Open,
}

/// An opened volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The vote that enough voters have.
    pub vote: Vote,
    /// The boot of each voter's node, as far as known. A replica that replies under another one must be dropped.
    pub boots: [Option<Uuid>; VOTERS_MAX],
}

/// An attempt to open a volume.
pub struct Opening {
    /// The voters as known at the beginning.
    known: VoterConfig,
    controller: Uuid,
    /// A new lineage, in case replicas are dropped; random.
    lineage: u64,
    epoch: u64,
    /// The previous register of each raised voter, and the boot of its node.
    raised: [Option<(Register, Uuid)>; VOTERS_MAX],
    /// When enough voters were raised.
    enough_ns: Option<u64>,
    /// The vote that was found, and the replicas being resynced: later replies change neither.
    chosen: Option<(Vote, Voters)>,
    vote: Option<Vote>,
    cast: Voters,
    /// Of a forced opening ([`Opening::forced`]): the only voters that count, and the order of the vote that must be
    /// the highest.
    forced: Option<(Voters, (u64, u64))>,
}

impl Opening {
    /// Creates an opening. `lineage` and `controller` are random. The epoch begins at 1, and is raised by the voters'
    /// replies. `known`: the voters, by an earlier vote, or as the volume was created; the registers of raised voters
    /// take precedence.
    pub fn new(known: VoterConfig, controller: Uuid, lineage: u64) -> Opening {
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

    /// Returns the opening with an epoch above this one: for a controller that served in that one, and continues only
    /// if no other controller has opened the volume since. Then [`Opening::refused`] must not be called: it would raise
    /// the epoch above the other controller's.
    #[must_use]
    pub fn above_epoch(self, epoch: u64) -> Opening {
        Opening { epoch: epoch + 1, ..self }
    }

    /// Returns the epoch that it tries to raise.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Records that a voter was raised to `epoch`, and its previous register. Ignored if the opening is in another
    /// epoch by now.
    pub fn raised(&mut self, voter: VoterId, epoch: u64, before: Register, boot: Uuid, now_ns: u64) {
        if epoch != self.epoch || self.forced.is_some_and(|(present, _)| !present.has(voter)) {
            return;
        }
        self.raised[usize::from(voter.0)].get_or_insert((before, boot));
        self.look_for_enough(now_ns);
    }

    /// Discards the reply of a voter that was replaced: by a later list of voters it is elsewhere, or was created again
    /// under its number; or it replies in an epoch below the one that it was raised to, which a raised voter never
    /// does. If the replicas in sync were chosen by its reply already, the opening starts again.
    ///
    /// The caller must report this of a list before it reports a vote that uses that list ([`Opening::raised`]). The
    /// guarantees of the replaced voter bind no other voter: a controller that served meanwhile continues with the new
    /// one, and with others that were not raised.
    pub fn replaced(&mut self, voter: VoterId, now_ns: u64) {
        if self.raised[usize::from(voter.0)].take().is_none() {
            return;
        }
        if self.chosen.is_some() || self.vote.is_some() {
            return self.refused(self.epoch);
        }
        self.look_for_enough(now_ns);
    }

    /// Returns the voters, by the registers of the raised voters.
    pub fn config(&self) -> VoterConfig {
        let winner = self.chosen.map_or_else(|| self.winner(), |(winner, _)| winner);
        // No controller has cast a vote yet: the list of voters that this opening was created with applies.
        if winner.epoch == 0 || winner.config.voters.is_empty() { self.known } else { winner.config }
    }

    fn look_for_enough(&mut self, now_ns: u64) {
        // A voter raised later may know that more voters are needed: then the wait begins with the last of them.
        match self.opens() {
            true => drop(self.enough_ns.get_or_insert(now_ns)),
            false => self.enough_ns = None,
        }
    }

    /// Returns whether enough voters were raised.
    fn opens(&self) -> bool {
        let config = self.config();
        if let Some((present, newest)) = self.forced {
            // A later vote differs from what the user agreed to.
            let is_as_said = self.winner().order() == newest;
            return !present.is_empty() && present.without(self.raised_voters()).is_empty() && is_as_said;
        }
        let enough = |set: Voters, raised: Voters| set.and(raised).count() >= Quorums::of(set.count()).open;
        // A voter that was added with a version is no voter of earlier lists, even if it has the number of one.
        let of_before = !config.is_joint() || enough(config.previous_voters, self.older(config.version));
        of_before && enough(config.voters, self.older(config.version.saturating_add(1)))
    }

    /// Returns the raised voters that were added before this version of the list.
    fn older(&self, than: u64) -> Voters {
        let is_old = |voter: &VoterId| {
            self.raised[usize::from(voter.0)].is_some_and(|(register, _)| register.added_in_version < than)
        };
        self.raised_voters().iter().filter(is_old).collect()
    }

    /// Records that a voter replied that its epoch is `epoch`. If this opening's epoch is no higher, the opening starts
    /// again, in the epoch above.
    pub fn refused(&mut self, epoch: u64) {
        if epoch >= self.epoch {
            let Opening { known, controller, lineage, forced, .. } = *self;
            *self = Opening { epoch: epoch + 1, forced, ..Opening::new(known, controller, lineage) };
        }
    }

    /// Reports which replicas of [`OpeningStep::Resync`] are flushed and equal. If they lack something, the opening
    /// starts again, and raises the same voters again.
    pub fn resynced(&mut self, equal: Voters) {
        let enough = equal.count() >= self.config().replicas_needed();
        let chosen = self.chosen.filter(|_| enough && !equal.is_empty());
        let Some((winner, _)) = chosen else { return self.refused(self.epoch) };
        let goes_on = equal == winner.in_sync && self.forced.is_none();
        let lineage = if goes_on { winner.lineage } else { self.lineage };
        let config = self.forced.map_or_else(|| self.config(), |(present, _)| self.config_of_present(present));
        self.vote = Some(Vote { epoch: self.epoch, sequence: 1, lineage, in_sync: equal, config });
    }

    /// Records that a voter has the vote of this epoch.
    pub fn cast(&mut self, voter: VoterId, epoch: u64) {
        if epoch == self.epoch && self.vote.is_some() {
            self.cast.insert(voter);
        }
    }

    /// Returns the next step.
    pub fn next(&self, now_ns: u64) -> OpeningStep {
        if let Some(vote) = self.vote {
            let enough = match self.forced {
                // An opening that meets any of them later must learn that the other voters no longer count.
                Some(_) => vote.config.voters.without(self.cast).is_empty(),
                _ => vote.config.may_record(self.cast),
            };
            // Each replica in sync must record the boot under which it was resynced; otherwise the next opening takes
            // it for rebooted.
            let recorded = vote.in_sync.without(self.cast).is_empty();
            if enough && recorded {
                return OpeningStep::Open;
            }
            return OpeningStep::Cast(vote, self.raised_voters().without(self.cast));
        }
        if let Some((_, chosen)) = self.chosen {
            return OpeningStep::Resync(chosen);
        }
        let ask = self.raise_request();
        let others = self.unraised();
        let Some(since) = self.enough_ns else { return OpeningStep::Ask(ask, others) };
        if self.trusted().is_empty() {
            return OpeningStep::Missing(ask, others, self.winner().in_sync);
        }
        let until = if self.was_released() { since } else { since + OPEN_WAIT_NS };
        if now_ns < until {
            return OpeningStep::Wait(ask, others, until);
        }
        OpeningStep::Resync(self.trusted())
    }

    /// Returns what may be served after [`OpeningStep::Open`].
    pub fn opened(&self) -> Option<Opened> {
        let boots = self.raised.map(|raised| raised.map(|(_, boot)| boot));
        self.vote.map(|vote| Opened { vote, boots })
    }

    /// Fixes the replicas for which [`OpeningStep::Resync`] has begun: later replies change nothing of it.
    pub fn choose(&mut self, chosen: Voters) {
        self.chosen = Some((self.winner(), chosen));
    }

    /// Returns the request for voters that were not raised yet.
    pub fn raise_request(&self) -> VoterRequest {
        VoterRequest::Raise { epoch: self.epoch, controller: self.controller }
    }

    /// Returns the voters that were not raised yet.
    pub fn unraised(&self) -> Voters {
        if let Some((present, _)) = self.forced {
            return present.without(self.raised_voters());
        }
        // A voter that is in the list of a raised voter may know a later vote.
        let known_voters = self.registers().map(|register| register.vote.config.all());
        known_voters.fold(self.known.all(), Voters::or).without(self.raised_voters())
    }

    /// Returns the boot under which a voter was raised; nil: it was not. A replica of [`OpeningStep::Resync`] that
    /// connects under another one has failed.
    pub fn boot(&self, voter: VoterId) -> Uuid {
        self.raised[usize::from(voter.0)].map(|(_, boot)| boot).unwrap_or_default()
    }

    fn raised_voters(&self) -> Voters {
        (0..VOTERS_MAX as u8).map(VoterId).filter(|v| self.raised[usize::from(v.0)].is_some()).collect()
    }

    fn registers(&self) -> impl Iterator<Item = &Register> {
        self.raised.iter().flatten().map(|(register, _)| register)
    }

    fn winner(&self) -> Vote {
        self.registers().map(|register| register.vote).max_by_key(Vote::order).unwrap_or_default()
    }

    fn has_rebooted(&self, voter: VoterId) -> bool {
        self.raised[usize::from(voter.0)].is_some_and(|(register, boot)| register.boot != boot)
    }

    /// Returns whether a voter's replica is an older copy that no vote has trusted since.
    fn is_older(&self, voter: VoterId) -> bool {
        let boot = self.boot(voter);
        self.has_rebooted(voter) && is_of_older_copy(boot)
    }

    /// Returns the replicas from which the volume may be served.
    fn trusted(&self) -> Voters {
        if let Some((present, _)) = self.forced {
            return self.best_of(present).map(|(best, _)| best).unwrap_or_default();
        }
        let config = self.config();
        let in_sync = self.winner().in_sync.and(config.replicas);
        let available = in_sync.and(self.raised_voters());
        let rebooted: Voters = available.iter().filter(|voter| self.has_rebooted(*voter)).collect();
        let older: Voters = available.iter().filter(|voter| self.is_older(*voter)).collect();
        let least = config.replicas_needed();
        // Whether the others, including those that have not replied yet, still have everything.
        let complete_without = |who: Voters| in_sync.without(who).count() >= least;
        let trusted = if complete_without(rebooted) {
            available.without(rebooted)
        } else if complete_without(older) {
            available.without(older)
        } else {
            available
        };
        if trusted.count() < least { Voters::NONE } else { trusted }
    }

    /// Returns whether the last controller that can have served has stopped cleanly, by the register of a voter that
    /// knows it. A controller that raised an epoch and served later would be known to one of these voters, too. A
    /// register that says so without a vote of that epoch was written for a controller that never served: it says
    /// nothing of the previous one.
    fn was_released(&self) -> bool {
        if self.forced.is_some() {
            // Voters that were not asked may know of a later controller.
            return false;
        }
        let last = self.registers().map(|register| register.epoch).max().unwrap_or(0);
        let mut of_last = self.registers().filter(|register| register.epoch == last);
        let served = |register: &Register| register.vote.epoch == last;
        // A register with this epoch was raised by this opening: its reply was lost, and with it the previous register.
        last < self.epoch && (last == 0 || of_last.any(|register| register.released && served(register)))
    }
}

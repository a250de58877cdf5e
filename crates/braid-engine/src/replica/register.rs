//! What a voter remembers.

use braid_format::Uuid;
use braid_format::register::StoredRegister;

use super::quorum::{Seating, VoterId, Voters};

/// Who is in sync, by the word of one controller. The highest by ([`Vote::epoch`], [`Vote::sequence`]) counts, once
/// enough voters have it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Vote {
    /// The epoch of the controller that cast it; 0: nobody has, which is how a volume is born.
    pub epoch: u64,
    /// Raised with each vote of an epoch, from 1.
    pub sequence: u64,
    /// The line of members that goes on.
    pub lineage: u64,
    /// Which replicas hold everything that was acknowledged. Never a witness.
    pub in_sync: Voters,
    /// Who votes from then on.
    pub seating: Seating,
}

impl Vote {
    /// By this votes are ordered.
    pub fn order(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }
}

/// All that a voter keeps durably of one volume; changed as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Register {
    /// Only this epoch's controller is answered.
    pub epoch: u64,
    /// The controller that raised it; nil: none.
    pub controller: Uuid,
    /// That controller has stopped in order: it answers nothing any more, and nobody need wait for its lease.
    pub released: bool,
    /// The highest vote.
    pub vote: Vote,
    /// The boot of the node under which whoever cast that vote believed the replica; nil: none. In another one the replica may lack what
    /// was acknowledged and not flushed.
    pub boot: Uuid,
    /// The version of the seating with which the voter came; 0: it is as old as the volume. It never changes. Who came later says nothing of the
    /// time before: among older voters it does not count.
    pub since: u64,
}

/// Of what a register is: it never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterOf {
    /// The volume.
    pub volume: Uuid,
    /// Which of its voters.
    pub voter: VoterId,
}

impl Register {
    /// As it is written down, under this generation.
    pub fn stored(&self, of: &RegisterOf, generation: u64) -> StoredRegister {
        StoredRegister {
            volume: of.volume,
            voter: of.voter.0,
            generation,
            epoch: self.epoch,
            controller: self.controller,
            released: self.released,
            boot_id: self.boot,
            vote_epoch: self.vote.epoch,
            vote_sequence: self.vote.sequence,
            lineage: self.vote.lineage,
            in_sync: self.vote.in_sync.bits(),
            voters_version: self.vote.seating.version,
            voters: self.vote.seating.voters.bits(),
            previous_voters: self.vote.seating.before.bits(),
            replicas: self.vote.seating.replicas.bits(),
            extra_replicas: self.vote.seating.further,
            added_in_version: self.since,
        }
    }

    /// What was written down, when it is of this voter.
    pub fn of_stored(stored: &StoredRegister, of: &RegisterOf) -> Option<Register> {
        let found = RegisterOf { volume: stored.volume, voter: VoterId(stored.voter) };
        let vote = Vote {
            epoch: stored.vote_epoch,
            sequence: stored.vote_sequence,
            lineage: stored.lineage,
            in_sync: Voters::from_bits(stored.in_sync),
            seating: Seating {
                version: stored.voters_version,
                voters: Voters::from_bits(stored.voters),
                before: Voters::from_bits(stored.previous_voters),
                replicas: Voters::from_bits(stored.replicas),
                further: stored.extra_replicas,
            },
        };
        let register = Register {
            epoch: stored.epoch,
            controller: stored.controller,
            released: stored.released,
            vote,
            boot: stored.boot_id,
            since: stored.added_in_version,
        };
        (found == *of).then_some(register)
    }
}

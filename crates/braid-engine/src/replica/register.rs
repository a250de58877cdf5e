//! The durable state of a voter.

use braid_format::Uuid;
use braid_format::register::StoredRegister;

use super::quorum::{VoterConfig, VoterId, Voters};

/// A vote: which replicas are in sync, by the decision of one controller. The highest vote by ([`Vote::epoch`],
/// [`Vote::sequence`]) counts, once enough voters have it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Vote {
    /// The epoch of the controller that cast it; 0: no controller has, as in a new volume.
    pub epoch: u64,
    /// Raised with each vote of an epoch, from 1.
    pub sequence: u64,
    /// The lineage of the members in sync.
    pub lineage: u64,
    /// The replicas that hold everything that was acknowledged. Never a witness.
    pub in_sync: Voters,
    /// The list of voters by this vote.
    pub config: VoterConfig,
}

impl Vote {
    /// Returns the key by which votes are ordered.
    pub fn order(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }
}

/// The state that a voter keeps durably of one volume; changed as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Register {
    /// The highest epoch that the voter was raised to. The voter answers only the controller that raised it.
    pub epoch: u64,
    /// The controller that raised it; nil: none.
    pub controller: Uuid,
    /// That controller has stopped cleanly: it answers nothing any more, and no opening needs to wait for its lease.
    pub released: bool,
    /// The highest vote.
    pub vote: Vote,
    /// The boot of the voter's node under which the controller that cast the vote trusted its replica; nil: it did not.
    /// Under another boot the replica may lack what was acknowledged and not flushed.
    pub boot: Uuid,
    /// The version of the voter list with which the voter was added; 0: it is as old as the volume. It never changes. A
    /// voter knows nothing of the time before it was added: it does not count among older voters.
    pub added_in_version: u64,
}

/// The identity of a register: it never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterId {
    /// The volume.
    pub volume: Uuid,
    /// The number of the voter.
    pub voter: VoterId,
}

impl Register {
    /// Returns the register in its stored form, with this generation.
    pub fn stored(&self, of: &RegisterId, generation: u64) -> StoredRegister {
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
            voters_version: self.vote.config.version,
            voters: self.vote.config.voters.bits(),
            previous_voters: self.vote.config.previous_voters.bits(),
            replicas: self.vote.config.replicas.bits(),
            extra_replicas: self.vote.config.extra_replicas,
            added_in_version: self.added_in_version,
        }
    }

    /// Returns a stored register, if it is of this voter.
    pub fn of_stored(stored: &StoredRegister, of: &RegisterId) -> Option<Register> {
        let found = RegisterId { volume: stored.volume, voter: VoterId(stored.voter) };
        let vote = Vote {
            epoch: stored.vote_epoch,
            sequence: stored.vote_sequence,
            lineage: stored.lineage,
            in_sync: Voters::from_bits(stored.in_sync),
            config: VoterConfig {
                version: stored.voters_version,
                voters: Voters::from_bits(stored.voters),
                previous_voters: Voters::from_bits(stored.previous_voters),
                replicas: Voters::from_bits(stored.replicas),
                extra_replicas: stored.extra_replicas,
            },
        };
        let register = Register {
            epoch: stored.epoch,
            controller: stored.controller,
            released: stored.released,
            vote,
            boot: stored.boot_id,
            added_in_version: stored.added_in_version,
        };
        (found == *of).then_some(register)
    }
}

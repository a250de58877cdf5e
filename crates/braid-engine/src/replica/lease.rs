//! The lease of a controller: it may answer while enough voters have replied lately, so that no other controller can
//! have opened the volume.

use super::quorum::{Quorums, VOTERS_MAX, VoterId, Voters};

/// How long a voter's reply counts, in nanoseconds of a monotonic clock, from the moment in which the request was sent.
pub const LEASE_NS: u64 = 5_000_000_000;

/// How long a controller that opens a volume waits after enough voters were raised: the lease of the fenced controller
/// then has expired, even if its clock is a tenth slower.
pub const OPEN_WAIT_NS: u64 = LEASE_NS + LEASE_NS / 10;

/// When the last request that each voter replied to was sent.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// When the request was sent; `None`: the voter has never replied.
    sent_ns: [Option<u64>; VOTERS_MAX],
}

impl Lease {
    /// Records that a voter replied to a request that was sent at `sent_ns`, under this controller's epoch. The time
    /// of the reply does not count: the reply may have been in flight while another controller raised the epoch.
    pub fn replied(&mut self, voter: VoterId, sent_ns: u64) {
        let last = &mut self.sent_ns[usize::from(voter.0)];
        *last = (*last).max(Some(sent_ns));
    }

    /// Returns until when answers may be given if a quorum of each of these sets of voters must have replied; `None`:
    /// no answer may be given.
    pub fn expires_ns(&self, sets: impl Iterator<Item = Voters>) -> Option<u64> {
        let of = |set: Voters| {
            let mut sent: Vec<u64> = set.iter().filter_map(|voter| self.sent_ns[usize::from(voter.0)]).collect();
            sent.sort_unstable();
            // The newest time such that enough voters were asked then or later.
            let oldest_needed = sent.len().checked_sub(Quorums::of(set.count()).lease)?;
            Some(sent[oldest_needed].saturating_add(LEASE_NS))
        };
        // `None` is less than any time.
        sets.map(of).min().flatten()
    }

    /// Returns whether an answer may be given now.
    pub fn holds(&self, sets: impl Iterator<Item = Voters>, now_ns: u64) -> bool {
        self.expires_ns(sets).is_some_and(|until| now_ns < until)
    }
}

//! Volumes that are kept on several nodes: who may write, who is in sync, and who says so.
//!
//! A replicated volume is a mirror whose members are far away. What a mirror on one machine need not know is here: that its
//! *controller* may be cut off while another one opens the volume elsewhere. Each node that keeps a replica, and each
//! witness, is a *voter* with a small durable [`Register`].
//!
//! - [`Fence`], on a voter's node: raises the epoch, cuts older controllers off and lets their I/O end, takes votes.
//! - [`Opening`], on a controller: from the registers of enough voters to what may be served.
//! - [`Membership`], on a controller that serves: drops and promotions, each of which counts once enough voters have it.
//! - [`Lease`], on a controller: whether it may answer at all.
//! - [`Seating`], in each vote: who votes. Voters come and go while the volume is served.
//! - [`forecast`] and [`Opening::forced`]: where too few voters are left for ever, by the word of the volume's user.
//!
//! Like all of this crate they do no I/O and read no clock: they are told what came, and say what is to be sent, written and
//! answered. The simulator's `replica-sim` runs them over links that delay, lose and cut, with two controllers, and looks whether
//! each block's history can be put in one order (`docs/replication.md`).

mod boot;
mod fence;
mod lease;
mod membership;
mod opening;
mod planted;
mod quorum;
mod register;
#[cfg(test)]
mod tests;

pub use boot::{boot_of_older_copy, boot_of_original, is_of_older_copy};
pub use fence::{Answer, Ask, Caller, ConnectionId, Fence, FenceAction, Hello, LANES_MAX, Refused};
pub use lease::{LEASE_NS, Lease, OPEN_WAIT_NS};
pub use membership::{Membership, Wanted};
pub use opening::{Forecast, Next, Opened, Opening, Unforced, forecast};
#[cfg(any(test, feature = "planted"))]
pub use planted::plant;
pub use planted::{Planted, planted};
pub use quorum::{Quorums, Seating, VOTERS_MAX, VoterId, Voters};
pub use register::{Register, RegisterOf, Vote};

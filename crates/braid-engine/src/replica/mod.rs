//! Replicated volumes, which are kept on several nodes: which controller may write, which replicas are in sync, and
//! which voters decide.
//!
//! A replicated volume is a mirror whose members are on other nodes. Its *controller* may be cut off while another one
//! opens the volume. Each node that keeps a replica, and each witness, is a *voter* with a small durable [`Register`].
//!
//! - [`Fence`], on a voter's node: raises the epoch, fences older controllers and lets their I/O end, takes votes.
//! - [`Opening`], on a controller: determines from the registers of enough voters what may be served.
//! - [`Membership`], on a controller that serves: drops and promotions, each of which counts once enough voters have
//!   it.
//! - [`Lease`], on a controller: whether it may answer at all.
//! - [`VoterConfig`], in each vote: the voters. Voters may be added and removed while the volume is served.
//! - [`forecast`] and [`Opening::forced`]: forced attach by the user's decision, if too many voters are lost for ever.
//!
//! Like the rest of this crate these types do no I/O and read no clock: the caller reports events to them, and they
//! return what to send, write and answer. `braid-sim replicas` runs them over links that delay, lose and cut, with two
//! controllers, and checks that each block's history is linearizable (`docs/internals/replication-protocol.md`).

mod boot;
mod fence;
mod lease;
mod membership;
mod opening;
mod quorum;
mod register;
#[cfg(test)]
mod tests;

pub use boot::{boot_of_older_copy, boot_of_original, is_of_older_copy};
pub use fence::{
    AdmissionResult, ConnectionId, ConnectionOrigin, Fence, FenceAction, SESSION_CONNECTIONS_MAX, VoterRefusal,
    VoterReply, VoterRequest,
};
pub use lease::{LEASE_NS, Lease, OPEN_WAIT_NS};
pub use membership::{Membership, MembershipAction};
pub use opening::{ForceRefusal, Forecast, Opened, Opening, OpeningStep, forecast};
pub use quorum::{Quorums, VOTERS_MAX, VoterConfig, VoterId, Voters};
pub use register::{Register, RegisterId, Vote};

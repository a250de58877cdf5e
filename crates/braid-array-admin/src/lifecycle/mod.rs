//! The life cycle of an array on its disks: create, find and start, rename, stop, delete; and wiping a disk.
//!
//! Each procedure runs over [`MetaIo`](braid_engine::MetaIo), on no data core, and needs no executor of its own. Randomness
//! and time are arguments.
//!
//! # What is on the disks before, between and after
//!
//! Each disk has two copies of its label. One *change* of a label writes one copy, durably, and then the other: at
//! every moment at least one of the two is valid. The doubtful copy (torn, or older) is written first.
//!
//! Sequence numbers order the labels. Label *n* + 1 is written to any member only once label *n* is durable on every
//! member: so two labels of one array are at most one step apart. A member that is further behind was missing while the
//! array lived on (a restored backup, for example): it is *stale*.
//!
//! Each start begins a *session*, with two labels: the first names it and the previous one, the second says that it
//! serves. The array serves once the second is durable on every member. So a crash has left a member one step behind
//! only if the member bears the newest label's session, or the one that a start was about to end; any other such member
//! is stale too.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | create | no label | (a) some disks *forming*; (b) all *forming*; (c) some *active*, the others *forming* | all *active* |
//! | start | labels *n*, perhaps some *n* − 1 | (a) all *n*; (b) some *n* + 1, which begins a session; (c) all *n* + 1; (d) some *n* + 2 | all *n* + 2: the session serves |
//! | rename, stop | all *n* | some *n* + 1 | all *n* + 1 |
//! | delete | all *active* | (a) some *deleting*; (b) all *deleting*; (c) some without label | no label |
//!
//! How a start treats these states: *forming* on any disk is an interrupted create, which was never acknowledged; it is
//! never served and can be deleted. *Deleting* on any disk: the deletion is finished. Otherwise all members are
//! flushed, because what was read from a disk's cache must not be lost in the next crash; and the newest label is
//! written to all members before the array is served.
//!
//! The first sector of a label has its own checksum. So a label of which only the first sector was written still
//! identifies its array: the *remnant* of a create or of a delete is recognised and cleared.
//!
//! Redundant arrays (raid1, raid10, raid5, raid6) go on without some of their members. For what their labels say then,
//! which members are current, and in which order labels are written, see `docs/internals/format/lineages.md`,
//! and the modules `lineage`, `redundant`, `record`, `losses` and `members`.

mod array;
mod bitmap;
mod change;
mod coverage;
mod create;
mod disk;
mod erase;
mod error;
mod found;
mod grow;
mod join;
mod journal;
mod journal_disk;
mod lineage;
mod losses;
mod member_table;
mod members;
mod record;
mod redundant;
mod replace;
mod retirement;
mod scan;
mod start;
mod status;
mod twins;
mod widen;
mod write;

#[cfg(test)]
mod tests;

pub use array::{Array, ArrayMember, Candidate};
pub use bitmap::{ArrayBitmap, load_regions, store_regions};
pub use coverage::tolerated_failures;
pub use create::{CreateRequest, create};
pub use disk::{DiskOutcome, FoundDisk, MemberDisk};
pub use erase::{Wiped, delete_found, wipe};
pub use error::LifecycleError;
pub use found::{FoundArray, FoundMember};
pub use grow::{GrowRequest, Growth, plan_growth};
pub use journal::{JournalStart, move_ring, recover_journal};
pub use lineage::{MemberStanding, RebuildKind};
pub use member_table::is_redundant;
pub use members::RebuildTarget;
pub use replace::Replacement;
pub(crate) use retirement::Retirement;
pub use scan::{Scan, resolve_labels, scan};
pub use start::{Assembled, StartOptions, assemble, start};
pub use status::{ArrayStatus, DiskProblem, MissingMember, Refusal};
pub use write::LabelCopy;

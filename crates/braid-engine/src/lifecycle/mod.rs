//! The life of an array on its disks: create, find and start, rename, stop, delete; and wiping a disk.
//!
//! Each procedure runs over [`MetaIo`](crate::MetaIo), on no data core, and needs no executor of its own. Randomness
//! and time come in as arguments.
//!
//! # What is on the disks before, between and after
//!
//! Each disk has two copies of its label. One *change* of a label writes one copy, durably, then the other: at every
//! moment at least one of the two is whole. The copy that is doubtful (torn, or older) is written first.
//!
//! Sequence numbers tell which label is newer. Label *n* + 1 is written to any member only when label *n* is durable
//! on every member: so two labels of one array are at most one step apart, and a member that is further behind was
//! away while the array lived on (a restored backup, say): it is *stale*.
//!
//! Each start begins a *session*, in two labels: the first names it and the one before, the second says that it serves.
//! The array serves once the second is durable on every member. So a member one step behind was left there by a crash only
//! if it bears the newest label's session, or the one that a start was about to end; any other is stale, too.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | create | no label | (a) some disks *forming*; (b) all *forming*; (c) some *active*, the others *forming* | all *active* |
//! | start | labels *n*, perhaps some *n* − 1 | (a) all *n*; (b) some *n* + 1, which begins a session; (c) all *n* + 1; (d) some *n* + 2 | all *n* + 2: the session serves |
//! | rename, stop | all *n* | some *n* + 1 | all *n* + 1 |
//! | delete | all *active* | (a) some *deleting*; (b) all *deleting*; (c) some without label | no label |
//!
//! What a start makes of it: *forming* anywhere is an interrupted create: it was never acknowledged, it is never
//! served, it can be deleted. *Deleting* anywhere: the deletion is finished. Else the newest label counts and is
//! written on all before the array is served, after every member was flushed: what was read from a disk's cache
//! must not be gone after the next crash.
//!
//! The first sector of a label has a checksum of its own. So a label of which only the first sector arrived still says
//! whose it was going to be: the *remnant* of a create or of a delete is recognised and cleared.
//!
//! Redundant arrays (raid1, raid10, raid5, raid6) go on without some of their members. What their labels say then, who is current, and
//! in which order labels are written: `docs/format.md`, *Members that part ways*; in code `lines`, `redundant`, `record`
//! and `members`.

mod array;
mod bitmap;
mod coverage;
mod create;
mod disk;
mod erase;
mod error;
mod grow;
mod join;
mod journal;
mod journal_disk;
mod lines;
mod members;
mod planted;
mod record;
mod redundant;
mod replace;
mod retirement;
mod scan;
mod start;
mod twins;
mod widen;
mod write;

#[cfg(test)]
mod tests;

pub use array::{Array, ArrayMember, Candidate, Filling};
pub use bitmap::{Regions, load_regions, store_regions};
pub use coverage::tolerated_failures;
pub use create::{CreateRequest, create};
pub use disk::{DiskProblem, DiskVerdict, FoundDisk, MemberDisk};
pub use erase::{Wiped, delete_found, wipe};
pub use error::LifecycleError;
pub use grow::{GrowRequest, Growth, plan_growth};
pub use journal::{JournalStart, move_ring, recover_journal};
pub use lines::Standing;
pub use members::Newcomer;
#[cfg(feature = "planted")]
pub use planted::{Planted, plant};
pub use redundant::is_redundant;
pub use replace::Replacement;
pub(crate) use retirement::Retirement;
pub use scan::{FoundArray, FoundMember, Missing, Refusal, Scan, Status, judge_labels, scan};
pub use start::{Assembled, StartOptions, assemble, start};
pub use write::LabelCopy;

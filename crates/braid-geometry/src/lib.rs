//! Maps every byte of an array to its location on the members, with integer arithmetic alone.
//!
//! The members of an array may differ in size. The array is divided into [`Zone`]s: over each span in which *k* members
//! still have capacity, the level is laid out across those *k*. [`Geometry`] holds the zone table, compiled for a fast
//! [`Geometry::locate`], and maps in the other directions as well: all copies of a byte ([`Geometry::copies`]), the
//! content of a member at an offset ([`Geometry::content_at`]), the members that hold the parts of a stripe
//! ([`Geometry::stripe_position`], [`Geometry::stripe`], [`Geometry::stripe_at`]), and the whole map as a list
//! ([`Geometry::runs`], [`Geometry::runs_strided`]).
//!
//! What it guarantees: every byte of the array has exactly one location (or exactly *n*, with *n* copies), no location
//! holds two bytes of the array, no location is outside its member, and the map has an inverse. Within a zone the
//! layouts are those of Linux md.
//!
//! Words: a member's *data area* is the part of the disk that holds the array; offsets on a member count from its
//! start. A *height* is such an offset, or a number of bytes that a zone takes of each of its members. A *slot* is a
//! position in the order in which a zone's layout distributes chunks over its members; a zone of *k* members has *k*
//! slots. A *row* is one chunk at the same height in every slot: with parity, a stripe.
//!
//! What it never does: perform I/O, read a clock, allocate memory in `locate`, `copies` or the stripe functions, or depend
//! on another crate.

#![forbid(unsafe_code)]

mod cell;
mod compiled;
mod copies;
mod error;
mod foreign;
mod geometry;
mod grow;
mod level;
mod map;
mod single;
mod spec;
mod strided;
mod stripe;
pub mod units;
mod zones;

pub use copies::{CopyLocations, MirrorMap};
pub use error::{GeometryError, ZoneFault};
pub use geometry::{Geometry, MemberRange};
pub use level::{Layout, Level, ParseNameError, ZonePolicy};
pub use map::{ContentKind, MemberContent, Run, Runs};
pub use single::{SingleCopyLocation, SingleCopyMap};
pub use spec::Spec;
pub use strided::{RunsStrided, StridedRun};
pub use stripe::{Stripe, StripePart, StripePosition, StripeRole};
pub use zones::Zone;

/// The allocation unit on a disk, in bytes. Chunks, zones and member spans are multiples of it. Only
/// [`Geometry::imported`] lays out mirrors and concats of Linux md to the sector of 512 bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// The maximum chunk size, in bytes.
pub const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// The default chunk size, in bytes.
pub const CHUNK_BYTES_DEFAULT: u64 = 64 << 10;

/// The maximum number of members of an array.
pub const MEMBERS_MAX: usize = 128;

/// The maximum size of all members of an array together, in bytes. Up to this size no arithmetic in this crate overflows.
pub const TOTAL_BYTES_MAX: u64 = 1 << 62;

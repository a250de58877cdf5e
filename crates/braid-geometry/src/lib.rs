//! Where every byte of an array lives: integer arithmetic and nothing else.
//!
//! An array stands on members of different sizes. It is cut into [`Zone`]s: over each span where *k* members still
//! have room, the level is laid out across those *k*. [`Geometry`] holds the table of zones, compiled for a fast
//! [`Geometry::locate`], and answers the same question in the other directions: all copies of a byte
//! ([`Geometry::copies`]), what stands at a place of a member ([`Geometry::place`]), which members carry which part of
//! a stripe ([`Geometry::stripe_place`], [`Geometry::stripe`], [`Geometry::stripe_at`]), and the whole map as a list
//! ([`Geometry::runs`], [`Geometry::runs_strided`]).
//!
//! What it promises: every byte of the array has exactly one place (or exactly *n*, with *n* copies), no place serves
//! two, none lies outside its member, and the map inverts. Within a zone the layouts are those of Linux md.
//!
//! What it never does: I/O, reading a clock, allocating in `locate`, `copies` or what concerns stripes, depending on another crate.

#![forbid(unsafe_code)]

mod compiled;
mod copies;
mod error;
mod foreign;
mod geometry;
mod grow;
mod map;
mod single;
mod spec;
mod strided;
mod stripe;
pub mod units;
mod zones;

pub use copies::{Copies, CopyPlaces};
pub use error::{GeometryError, ZoneFault};
pub use geometry::{Geometry, Piece};
pub use map::{Kind, Place, Run, Runs};
pub use single::{SinglePlace, SinglePlaces};
pub use spec::{Layout, Level, ParseNameError, Spec, ZonePolicy};
pub use strided::{RunsStrided, StridedRun};
pub use stripe::{Stripe, StripePart, StripePlace, StripeRole};
pub use zones::Zone;

/// The unit of everything on a disk, in bytes. Chunks, zones and member spans are multiples of it.
pub const BLOCK_BYTES: u64 = 4096;

/// The largest chunk, in bytes.
pub const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// The chunk used where none is asked for, in bytes.
pub const CHUNK_BYTES_DEFAULT: u64 = 64 << 10;

/// The most members that an array can have.
pub const MEMBERS_MAX: usize = 128;

/// The most bytes that all members of an array can have together. Below it no arithmetic here can overflow.
pub const TOTAL_BYTES_MAX: u64 = 1 << 62;

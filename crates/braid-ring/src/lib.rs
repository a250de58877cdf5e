//! The shards' threads and everything between the engine and the kernel: drivers, disks, buffers, sockets, timers.
//!
//! What it is: [`Ring::start`] makes one thread a shard, each with a [`braid_engine::Shard`], an io_uring (or, where
//! that is forbidden, libaio or a few threads), an arena of buffers and the [`Frontend`]s that live there. The
//! control plane reaches them by a [`RingHandle`].
//!
//! What it promises: a busy shard enters the kernel once a turn, an idle one sleeps until something happens. Each
//! leaf I/O is answered exactly once; one that exceeds its time limit is answered then, and its buffer is let go only when
//! the kernel has given it back. Nothing is allocated for an I/O after start. An opened [`Disk`] is held exclusively.
//!
//! What it never does: decide where a byte lives, or in which order. That is the engine's.
//!
//! Where to find what: `spec` reads disks' names, `disk` opens them; `shard` is the loop, `port` carries leaf I/Os out,
//! `driver` speaks with the kernel; `frontend` and `net` are what servers see, `remote` what carries I/O to other machines; `ring`, `meta`, `devices` and
//! `link` are the outside.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arena;
mod channels;
mod commands;
mod devices;
pub mod disk;
pub mod driver;
mod engine;
pub mod error;
mod faults;
pub mod frontend;
mod jobs;
pub mod kept;
mod link;
mod map;
mod meta;
mod metas;
mod net;
mod nop;
mod parts;
mod pending;
mod pools;
mod port;
pub mod remote;
mod requests;
mod ring;
mod shard;
pub mod shm;
pub mod spec;
pub mod stats;
mod throttle;
mod tier;
mod timer;
mod troubles;
mod wake;
mod zeros;

pub use channels::{CHANNEL_CALLS_MAX, CHANNELS_MAX, ChannelId, MESSAGE_PIECES_MAX};
pub use commands::{COMMAND_BYTES_MAX, SHORT_COMMAND_BYTES, command};
pub use devices::RingDevices;
pub use disk::{Disk, OpenOptions};
pub use driver::{DriverInfo, DriverKind};
pub use engine::RingEngine;
pub use error::{RingError, RingErrorKind};
pub use frontend::{Cx, Frontend, Loan, TAG_LIMIT};
pub use meta::RingMeta;
pub use net::{RecvMode, SEND_PIECES_MAX, SOCKETS_MAX, SendPiece, SocketId};
pub use nop::nop_bench;
pub use parts::PARTS_MAX;
pub use pending::Pending;
pub use pools::PoolCallError;
pub use port::LEAVES_MAX;
pub use remote::{
    Carrier, Cut, INPUT_BYTES, OUTPUT_BYTES, REMOTE_CONNECTIONS_MAX, RemoteCx, RemoteDisk, RemotePart, SLOW,
};
pub use ring::{Ring, RingConfig, RingHandle, SHARDS_MAX};
pub use shm::{SharedTail, TailFolder, TailName};
pub use spec::{DiskSpec, FaultRules, SpecError};
pub use stats::{Histogram, LeafStats};
pub use throttle::{BURST_NS, Rates, Throttle};
pub use tier::{TIERS_MAX, device_of_tier, pool_of_tier, tier_of, tier_of_pool};
pub use timer::TIMERS_MAX;
pub use zeros::KnownZeros;

//! The shard threads and everything between the engine and the kernel: drivers, disks, buffers, sockets, timers.
//!
//! [`Ring::start`] starts one thread per shard. Each has a [`braid_engine::Shard`], an io_uring (or, where io_uring is
//! forbidden, libaio or a few threads), an arena of buffers and the [`Frontend`]s of that shard. The control plane
//! reaches the shards through a [`RingHandle`].
//!
//! Guarantees: a busy shard enters the kernel once per turn, or a few times more to keep disks busy; an idle shard
//! sleeps until an event arrives. Each leaf I/O completes exactly once. A leaf I/O that exceeds its time limit fails at
//! that moment, but its buffer is released only when the kernel has returned the I/O. The I/O of frontends allocates no
//! memory after start, except when the table of forwarded I/Os grows; I/O of the control plane allocates its own. An
//! open [`Disk`] is held exclusively, unless [`OpenOptions`] says otherwise.
//!
//! This crate never decides where a byte lives or in which order writes happen. The engine does.
//!
//! Modules: `spec` parses disk names and `disk` opens disks, of which `medium` is what the shards need; `shard` is the
//! event loop, `core` what frontends reach of it, `port` executes leaf I/Os, and `driver` makes the system calls;
//! `frontend` and `net` are the interface for servers, and `remote` carries I/O to other machines; `ring`, `meta`,
//! `devices` and `link` are the interface for the control plane; `mounts` parses the mount table.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arena;
mod channels;
mod clock;
mod commands;
mod control_work;
mod core;
mod devices;
pub mod disk;
pub mod driver;
mod engine;
pub mod error;
mod faults;
pub mod frontend;
mod jobs;
pub mod kept;
mod layouts;
mod limits;
mod link;
mod map;
mod medium;
mod member_faults;
mod meta;
mod meta_requests;
pub mod mounts;
mod net;
mod nop;
mod parts;
mod pending;
mod pool_handle;
mod pools;
mod port;
pub mod remote;
mod remote_part;
mod requests;
mod ring;
mod shard;
pub mod shm;
pub mod spec;
mod stack_level;
pub mod stats;
mod throttle;
mod timer;
mod tokens;
mod wake;
mod zeros;

pub use channels::{CHANNEL_CALLS_MAX, CHANNELS_MAX, ChannelId, MESSAGE_PIECES_MAX};
pub use clock::{ClockState, clock_state};
pub use commands::{COMMAND_BYTES_MAX, command};
pub use devices::RingDevices;
pub use disk::{Disk, OpenOptions};
pub use driver::{DriverInfo, DriverKind, SHORT_COMMAND_BYTES};
pub use engine::RingEngine;
pub use error::{RingError, RingErrorKind};
pub use frontend::{Cx, Frontend, Loan, TAG_LIMIT};
pub use limits::{LEAVES_MAX, SOCKETS_MAX};
pub use medium::Medium;
pub use meta::RingMeta;
pub use net::{RecvMode, SEND_PIECES_MAX, SendPiece, SocketId};
pub use nop::nop_bench;
pub use parts::PARTS_MAX;
pub use pending::Pending;
pub use pool_handle::PoolCallError;
pub use remote::{
    Carrier, INPUT_BYTES, OUTPUT_BYTES, PartLimits, REMOTE_CONNECTIONS_MAX, RemoteCx, RemoteDisk, RemotePart,
    SLOW_ERRNO,
};
pub use ring::{Ring, RingConfig, RingHandle, SHARDS_MAX};
pub use shm::{SharedLog, SharedLogFolder, SharedLogName};
pub use spec::{DiskSpec, FaultRules, SpecError};
pub use stack_level::{STACK_LEVELS_MAX, device_at_level, pool_at_level, stack_level_of, stack_level_of_pool};
pub use stats::{Histogram, LeafStats};
pub use throttle::{BURST_NS, Rates, Throttle};
pub use timer::TIMERS_MAX;
pub use zeros::KnownZeros;

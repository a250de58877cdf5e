//! Tokens and tags, by which a shard's loop finds the owner of what has ended.
//!
//! The highest byte of a driver token says whose job it was. In the tag of a request to a device, and in the token of a
//! command, the index of the frontend is above the frontend's own tag or token.

/// Marks the driver tokens of leaf I/Os. Below it is the index of the port's entry.
pub(crate) const LEAF_TOKEN: u64 = 1 << 56;

/// Mark the driver tokens of receives and sends. Below them is the socket's index.
pub(crate) const RECV_TOKEN: u64 = 2 << 56;
pub(crate) const SEND_TOKEN: u64 = 3 << 56;

/// Marks the driver tokens of channels. Below it are the channel's index and the call's.
pub(crate) const CHANNEL_TOKEN: u64 = 4 << 56;

/// Marks the driver tokens of commands. Below it are the frontend's index and its own token.
pub(crate) const COMMAND_TOKEN: u64 = 5 << 56;

/// Maximum number of frontends on a shard.
pub const FRONTENDS_MAX: usize = 256;

/// Tags and tokens are below this. The ring puts the frontend's index above.
pub const TAG_LIMIT: u64 = 1 << TAG_BITS;
pub(crate) const TAG_BITS: u32 = 48;

/// In the tags of requests of the control plane, stands in place of a frontend's index.
pub(crate) const CONTROL_PLANE: u64 = (1 << (64 - TAG_BITS)) - 1;

/// The same for requests of a leaf that is a device of the stack level below: see [`crate::stack_level`].
pub(crate) const BELOW: u64 = CONTROL_PLANE - 1;

const _: () = assert!(FRONTENDS_MAX as u64 <= BELOW);

//! The configuration file; the paths of the socket, the state and the shared memory; and the atomic replacement of a
//! state file.
//!
//! What it guarantees: an unknown key, an invalid value or a duplicate key is an error that names the file and the line.
//! What it never does: decide on the precedence of the command line, the environment and the file, except for the paths in [`paths`].

#![forbid(unsafe_code)]

mod config;
mod environment;
mod listen;
pub mod paths;
mod state_file;

pub use config::{
    ApiConfig, BUFFERS_BYTES_DEFAULT, Config, LogFormat, NbdConfig, OPEN_FILES_FEW, SHARDS_DEFAULT_MAX, SHARDS_MAX,
};
pub use listen::{API_PORT, ListenAddress, listen_address};
pub use state_file::replace_file;

//! The configuration file, and where the socket, the state and the shared memory are.
//!
//! What it promises: an unknown key, a wrong value or a second one of the same name is an error that names the file and the line.
//! What it never does: it does not decide which of the command line, the environment and the file wins; its callers do.

#![forbid(unsafe_code)]

mod config;
mod listen;
pub mod places;

pub use config::{ApiConfig, Config, LogFormat, NbdConfig, SHARDS_MAX};
pub use listen::{API_PORT, ListenAddress, listen_address};

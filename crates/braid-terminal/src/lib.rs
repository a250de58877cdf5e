//! Output of commands: text, tables, JSON, color and progress, and the options that select them.
//!
//! What it guarantees: JSON is written to standard output as one document, and a pipe that is closed early ends the command without an
//! error.

#![forbid(unsafe_code)]

pub mod color;
pub mod failure;
pub mod levels;
pub mod listing;
pub mod output;
pub mod progress;
mod requests;
mod width;

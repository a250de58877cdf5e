//! What people and programs read of a command: text, tables, JSON and colour; and the options that say how.
//!
//! What it promises: JSON goes to standard output as one document; a pipe that is closed early ends the command quietly.

#![forbid(unsafe_code)]

pub mod color;
pub mod failure;
pub mod levels;
pub mod listing;
pub mod output;

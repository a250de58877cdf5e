//! User-visible messages about the layers below: errors with their remedies, and advice by the kind and state of an object.
//!
//! What it is: the single source from which the daemon and the command line take the messages for errors of disks and labels, for findings
//! of a check, and for remedies.
//! What it guarantees: every command in a remedy exists in the command line. A test of the program checks them all.
//! What it never does: perform I/O, or change state.

#![forbid(unsafe_code)]

mod advice;
pub mod errors;
pub mod findings;

pub use advice::*;

//! What users are told of the layers below: errors with their remedies, and advice by the kind and state of an object.
//!
//! What it is: the one place from which the daemon and the command line take the words for errors of disks and labels, for findings of a check,
//! and for what to do next.
//! What it promises: every remedy is a command that the command line has; a test of the program walks them all.
//! What it never does: no I/O; it changes nothing.

#![forbid(unsafe_code)]

mod advice;
pub mod errors;
pub mod findings;

pub use advice::*;

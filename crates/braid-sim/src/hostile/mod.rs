//! Disks that lie under right checksums, opened and used.
//!
//! Decoding alone proves little: a number that is accepted is calculated with later, at the first write or at the next start. So a rig here takes a
//! sound image, changes fields in it as the input says, makes the checksums right again, and then does with it what the daemon does:
//! it opens it, writes, commits, takes and deletes snapshots, dies, and opens it again. What is refused is refused with an
//! error; nothing panics, overflows or goes on for ever.

pub mod array;
mod edits;
mod image;
pub mod pool;

pub use edits::{EDIT_BYTES, Edit, random_edits};

#[cfg(test)]
mod tests;

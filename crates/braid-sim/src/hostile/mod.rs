//! Hostile images: disks whose content is wrong under valid checksums, opened and used.
//!
//! Decoding alone proves little: an accepted number is used in calculations later, at the first write or at the next
//! start. So a rig takes a valid image, changes fields in it as the input says, and makes the checksums valid again.
//! Then it does what the daemon does: it opens the image, writes, commits, takes and deletes snapshots, dies, and
//! opens it again. A refusal must be an error; nothing may panic, overflow or loop for ever.

pub mod array;
mod edits;
mod image;
pub mod pool;

pub use edits::{EDIT_BYTES, Edit, random_edits};

#[cfg(test)]
mod tests;

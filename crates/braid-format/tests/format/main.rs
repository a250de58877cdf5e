//! The tests of what is written on a disk.
#![allow(clippy::unwrap_used)]

mod document_matches_code;
mod foreign_bytes;
mod foreign_real_tools;
mod golden_journal;
mod golden_labels;
mod golden_pool;
mod label_robustness;
mod md_arrays;
mod odd_chunks_round_trip;
mod pool_labels;
mod pool_robustness;
mod ranges_leave_room;
mod register_robustness;
mod support;

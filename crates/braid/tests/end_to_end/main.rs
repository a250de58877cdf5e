//! Whole stories with the real program, real clients and the real kernel.
//!
//! Each test has a folder and a daemon of its own. What it starts ends with it: by its own id, and by the kernel if
//! the test itself is killed. Tests that need root say so and fail where they do not have it. docs/testing.md
//! says how to run one of them.

mod api;
mod bench;
mod bench_page;
mod checks;
mod clients;
mod command_line;
mod configuration;
mod contract;
mod crashes;
mod daemons;
mod exports;
mod faults;
mod filesystems;
mod floods;
mod growing;
mod hostile;
mod json;
mod mirror_crashes;
mod mirror_disks;
mod mirror_filesystems;
mod mirrors;
mod nbd;
mod network;
mod nodes;
mod parity;
mod parity_checks;
mod parity_crashes;
mod parity_filesystems;
mod parity_growing;
mod parity_journal;
mod patient;
mod pool_absent;
mod pool_compact;
mod pool_crashes;
mod pool_damage;
mod pool_diff;
mod pool_faults;
mod pool_filesystems;
mod pool_filling;
mod pool_flatten;
mod pool_flatten_jobs;
mod pool_grows;
mod pool_hangs;
mod pool_limits;
mod pool_model;
mod pool_moves;
mod pool_policies;
mod pool_rivals;
mod pool_shrinking;
mod pool_space;
mod pools;
mod remote_disks;
mod renaming;
mod replacing;
mod returning;
mod rivals;
mod stopping;
mod support;
mod terminal;
mod the_demo;
mod unreadable;
mod volume_arrays;

//! The tests of the engine from outside, in one program: each program is compiled with the whole engine.
#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod compare_copies;
mod every_loss_of_every_geometry;
mod holes;
mod images_that_md_wrote;
mod imported;
mod inline_completion;
mod maps_are_read_while_they_change;
mod mirrors;
mod one_pass;
mod order_of_writes;
mod parity;
mod replicated;
mod replicated_at_random;
mod slow_path;
mod support;
mod volumes;

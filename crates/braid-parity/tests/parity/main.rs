//! The tests of parity, each with every implementation that the processor has.

mod common;
mod every_implementation;
mod every_loss;
mod random_stripes;
mod the_same_as_another_library;
mod which_block_is_wrong;

//! The tests of where bytes live.

mod brute_force;
mod common;
mod growing;
mod layouts_of_md_only;
mod small_arrays_by_hand;
mod tables_from_labels;
mod the_same_as_md;

//! The engine of Braid: slots, layouts, planning; sans-I/O.
pub mod io;
pub use io::*;

//! The arithmetic of parity: P, Q, their updates, what was lost, and which block of a row is wrong.
//!
//! A *row* is one block of data from each data member and its parity: P, the XOR of the data, and at raid6 Q, the sum of
//! g^*i* · D*i* over GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d) and g = 2. These are the conventions of
//! Linux md. *i* counts the data of the row in the order of the array: with the left-symmetric layout that is the order of
//! the members from the one after Q (at raid5: after P) on, around the end. Whoever calls passes blocks in this order.
//!
//! [`Parity`] is the door: it stands for one implementation (AVX2, SSSE3, NEON or portable), and [`Parity::best`] for the
//! fastest that this processor can run. All blocks of a call have the same length, which can be any, at any address. An
//! empty block among the data counts as zeros where P and Q are computed or checked, and is lost where something is recovered.
//! An empty output is not computed.
//!
//! What it promises: every implementation gives the same bytes. What it never does: I/O, allocation, reading past a block,
//! depending on another crate. `unsafe` is in `simd/` only.

mod check;
mod encode;
mod field;
mod parity;
mod recover;
mod simd;

pub use check::Damage;
pub use parity::{DATA_MAX, Parity};
pub use recover::{Role, Unrecoverable};

//! Parity arithmetic: computes and updates P and Q, recovers lost blocks, and finds the damaged block of a stripe.
//!
//! In this crate a *stripe* is one block of data from each data member, and the parity of these blocks: P, the XOR of the
//! data, and with raid6 Q, the sum of g^*i* · D*i* over GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d) and
//! g = 2. These are the conventions of Linux md. The index *i* counts the data blocks of the stripe in the order of the array:
//! with the left-symmetric layout that is the order of the members from the one after Q (with raid5: after P) on, wrapping
//! around. The caller passes data blocks in this order.
//!
//! [`Parity`] is the entry point. It represents one implementation (AVX2, SSSE3, NEON or portable), and [`Parity::best`] returns
//! the fastest that this processor can run. All blocks of a call have the same length. Any length and any alignment is valid. An
//! empty data block counts as zeros when P and Q are computed or checked, and as lost when blocks are recovered. An empty output
//! is not computed.
//!
//! What it guarantees: every implementation computes the same bytes. What it never does: perform I/O, allocate memory, read
//! beyond a block, or depend on another crate. `unsafe` code is in `simd/` only.

mod check;
mod encode;
mod field;
mod parity;
mod recover;
mod simd;

pub use check::StripeDamage;
pub use parity::{DATA_MAX, Parity};
pub use recover::{BlockRole, Unrecoverable};

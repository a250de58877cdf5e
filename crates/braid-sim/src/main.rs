//! `braid-sim`: runs seeds of one of the simulations, each twice, and reports what they exercise and which violations
//! they find. See `docs/internals/simulation.md`.

mod command;

use std::process::ExitCode;

fn main() -> ExitCode {
    command::main(std::env::args().skip(1))
}

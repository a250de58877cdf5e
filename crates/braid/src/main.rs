//! `braid`: mixed disks become fast block volumes. The one binary, and its daemon.
//!
//! What it is: [`commands`] is the table of what there is to type; `daemon` is the control plane beside the shards. Commands that ask the daemon
//! are in `braid-cli`, measurements and the demonstration in `braid-bench`.
//! What it promises: every command takes `--json` and ends with an exit status of [`braid_cli::man::EXIT_STATUS`]; every error names the
//! object, the reason and the remedy.
//! What it never does: no I/O of users passes through here; that is the ring's.

#![forbid(unsafe_code)]

#[cfg(test)]
mod advice_tests;
mod commands;
mod daemon;
#[cfg(test)]
mod tests;

fn main() -> std::process::ExitCode {
    commands::main()
}

//! The `braid` binary: turns mixed disks into fast block volumes, and runs their daemon.
//!
//! [`commands`] is the table of all commands; `daemon` is the control plane beside the shards. Commands that call the
//! daemon are in `braid-cli`, measurements and the demonstration in `braid-bench`.
//! Guarantees: every command takes `--json` and ends with an exit status of [`braid_cli::man::EXIT_STATUS`]; every
//! error names the object, the reason and the remedy.
//! Never: no I/O of clients passes through this crate; the ring does it.

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

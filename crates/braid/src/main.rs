//! `braid`: mixed disks become fast block volumes. The daemon, the command line, the bench, the demo.
//!
//! What it is: the one binary. `cli` says what there is to type, `client` talks to the daemon, `daemon` is the
//! control plane beside the shards.
//! What it promises: every command takes `--json` and ends with a status of CONVENTIONS; every error names the
//! thing, the reason and the remedy.
//! What it never does: no I/O of users passes through here; that is the ring's.

#![forbid(unsafe_code)]

mod bench;
mod cli;
mod client;
mod config;
mod daemon;
mod demo;
mod disk;
mod findings;
mod kernel_nbd;
mod mounts;
mod places;
mod plan;
mod tls;

fn main() -> std::process::ExitCode {
    cli::main()
}

//! The command line: one module for each noun, and this table of them.
//!
//! What it is: every command that sends requests to a daemon or reads a disk of this machine. The program adds the commands that run something (`serve`,
//! `bench`, `demo`) and passes the whole command line to [`examples`], [`man`] and [`completions`].
//! What it promises: every command takes `--json`; an error names the object, the reason and the remedy, and has an exit status of
//! [`man::EXIT_STATUS`].
//! What it never does: use anything of the daemon but its API.

#![forbid(unsafe_code)]

pub mod aliases;
mod api_args;
mod array;
pub mod completions;
mod confirm;
mod disk;
mod disk_names;
mod doctor;
mod endpoint;
mod events;
mod examine;
mod examine_pool;
pub mod examples;
pub mod explain;
mod export;
mod export_limits;
mod freeze;
mod import_md;
mod job;
mod job_progress;
pub mod man;
mod mount;
mod node;
mod object_names;
mod plan;
mod pool;
mod pool_check;
mod pool_dump;
mod pool_dump_log;
mod redundant;
mod replica;
mod replicated;
mod resize;
pub mod schema;
mod snapshot;
mod status;
mod top;
pub mod usage;
mod volume;
mod watch;

use anyhow::Context;
use braid_api::address::escaped as segment;
use braid_terminal::{color, failure, output};
use clap::Subcommand;
use std::future::Future;
use std::process::ExitCode;

pub use api_args::{ApiArgs, ApiListArgs};

/// Commands that send requests to a daemon, or read a disk of this machine.
#[derive(Subcommand)]
pub enum Command {
    /// Show the state of the daemon, its arrays, disks and exports
    Status(status::StatusArgs),
    /// Show live rates and latencies of disks, arrays and exports
    Top(top::TopArgs),
    /// Show the events of the daemon
    Events(events::EventsArgs),
    /// Check this machine: what is missing, what it costs, and the command that mends it
    Doctor(doctor::DoctorArgs),
    /// Explain an event or a code of `braid status`: what happened, and what to do
    Explain(explain::ExplainArgs),
    /// Show what arrays disks of given sizes would make; opens no disk
    Plan(plan::PlanArgs),
    /// List, examine and wipe the disks of this machine
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Disk {
        #[command(subcommand)]
        /// The verb.
        verb: disk::Verb,
    },
    /// Create and manage arrays of disks
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Array {
        #[command(subcommand)]
        /// The verb.
        verb: array::Verb,
    },
    /// Create and manage pools of disks and arrays, which hold volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Pool {
        #[command(subcommand)]
        /// The verb.
        verb: pool::Verb,
    },
    /// Create and manage volumes in pools, and replicated volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Volume {
        #[command(subcommand)]
        /// The verb.
        verb: volume::Verb,
    },
    /// Create and manage snapshots of volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Snapshot {
        #[command(subcommand)]
        /// The verb.
        verb: snapshot::Verb,
    },
    /// Export arrays, volumes and snapshots over NBD, FUSE or ublk
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Export {
        #[command(subcommand)]
        /// The verb.
        verb: export::Verb,
    },
    /// Mount the file system of an array, a volume or a snapshot at a folder of this machine
    Mount(mount::MountArgs),
    /// Unmount a file system that `braid mount` mounted
    Umount(mount::UmountArgs),
    /// Form a cluster of the daemons of several machines
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Node {
        #[command(subcommand)]
        /// The verb.
        verb: node::Verb,
    },
    /// Manage the replicas and witnesses of replicated volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Replica {
        #[command(subcommand)]
        /// The verb.
        verb: replica::Verb,
    },
    /// List, watch and control background jobs
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Job {
        #[command(subcommand)]
        /// The verb.
        verb: job::Verb,
    },
}

impl Command {
    /// Runs the command and returns its exit status.
    ///
    /// # Errors
    /// The command failed: a [`braid_api::ErrorDetail`] if the reason is known.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Status(args) => block_on(status::run(args)),
            Command::Top(args) => top::run(&args),
            Command::Events(args) => block_on(events::run(args)),
            Command::Doctor(args) => block_on(doctor::run(args)),
            Command::Explain(args) => explain::run(&args),
            Command::Plan(args) => plan::run(args),
            Command::Disk { verb } => block_on(disk::run(verb)),
            Command::Array { verb } => block_on(array::run(verb)),
            Command::Pool { verb } => block_on(pool::run(verb)),
            Command::Volume { verb } => block_on(volume::run(verb)),
            Command::Snapshot { verb } => block_on(snapshot::run(verb)),
            Command::Export { verb } => block_on(export::run(verb)),
            Command::Mount(args) => block_on(mount::mount(args)),
            Command::Umount(args) => block_on(mount::umount(args)),
            Command::Node { verb } => block_on(node::run(verb)),
            Command::Replica { verb } => block_on(replica::run(verb)),
            Command::Job { verb } => block_on(job::run(verb)),
        }
    }
}

/// Runs this process as a helper of another process of this program, if its arguments request it. Users never type these arguments.
pub fn run_as_helper() -> Option<ExitCode> {
    if freeze::guard::is_wanted() {
        return Some(freeze::guard::run());
    }
    braid_host::probe_process::is_probe_process().then(braid_host::probe_process::run)
}

/// Runs a command that sends requests to the daemon, on the calling thread.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime of the command")?
        .block_on(command)
}

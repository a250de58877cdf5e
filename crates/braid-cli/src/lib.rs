//! The command line: one module for each noun, and this table of them.
//!
//! What it is: every command that asks a daemon or looks at a disk of this machine. The program adds those that run something themselves (`serve`,
//! `bench`, `demo`) and hands the whole command line to what needs it ([`examples`], [`man`], [`completions`]).
//! What it promises: every command takes `--json`; an error names the object, the reason and the remedy, and has an exit status of
//! [`man::EXIT_STATUS`].
//! What it never does: it knows nothing of the daemon but its API.

#![forbid(unsafe_code)]

pub mod aliases;
mod array;
pub mod completions;
mod confirm;
mod disk;
mod disk_names;
mod events;
mod examine;
mod examine_pool;
pub mod examples;
mod export;
mod export_limits;
mod freeze;
mod import_md;
mod job;
pub mod man;
mod mount;
mod node;
mod plan;
mod pool;
mod pool_check;
mod pool_dump;
mod pool_dump_ring;
mod reach;
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
use braid_client::Client;
use braid_terminal::listing::ListStyle;
use braid_terminal::{color, failure, output};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::future::Future;
use std::process::ExitCode;

/// Commands that ask a daemon, or look at a disk of this machine.
#[derive(Subcommand)]
pub enum Command {
    /// Show how the daemon, its arrays, disks and exports do
    Status(status::StatusArgs),
    /// Show live what disks, arrays and exports do
    Top(top::TopArgs),
    /// Show what happened
    Events(events::EventsArgs),
    /// Show what disks of given sizes would become, before touching anything
    Plan(plan::PlanArgs),
    /// Look at the disks of this machine
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Disk {
        #[command(subcommand)]
        /// The verb.
        verb: disk::Verb,
    },
    /// Make arrays of disks
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Array {
        #[command(subcommand)]
        /// The verb.
        verb: array::Verb,
    },
    /// Make pools of disks and arrays, which hold volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Pool {
        #[command(subcommand)]
        /// The verb.
        verb: pool::Verb,
    },
    /// Make volumes in pools
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Volume {
        #[command(subcommand)]
        /// The verb.
        verb: volume::Verb,
    },
    /// Take snapshots of volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Snapshot {
        #[command(subcommand)]
        /// The verb.
        verb: snapshot::Verb,
    },
    /// Let clients use arrays, volumes and snapshots over NBD
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Export {
        #[command(subcommand)]
        /// The verb.
        verb: export::Verb,
    },
    /// Mount the file system of an array, a volume or a snapshot at a folder of this machine
    Mount(mount::MountArgs),
    /// Unmount it
    Umount(mount::UmountArgs),
    /// Let daemons of several machines know each other
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Node {
        #[command(subcommand)]
        /// The verb.
        verb: node::Verb,
    },
    /// Look at what this node keeps of volumes that are kept on several nodes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Replica {
        #[command(subcommand)]
        /// The verb.
        verb: replica::Verb,
    },
    /// Look at long work in the background, and steer it
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Job {
        #[command(subcommand)]
        /// The verb.
        verb: job::Verb,
    },
}

/// How the daemon is reached, and how answers are printed: the same for every command that asks it.
#[derive(Args, Clone, Debug)]
pub struct Ask {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    /// Which daemon.
    pub reach: reach::Reach,
}

impl Ask {
    /// A client of that daemon.
    ///
    /// # Errors
    /// The configuration or an option is wrong; a file cannot be read.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(self.reach.client()?)
    }
}

/// How the daemon is reached, and how a list is printed: the same for every `list`.
#[derive(Args, Clone, Debug)]
pub struct AskList {
    #[command(flatten)]
    /// How the list is printed.
    style: ListStyle,
    #[command(flatten)]
    /// Which daemon, and whether it is asked for JSON.
    ask: Ask,
}

impl AskList {
    /// A client of that daemon.
    ///
    /// # Errors
    /// See [`Ask::client`].
    pub fn client(&self) -> anyhow::Result<Client> {
        self.ask.client()
    }

    /// Prints a list: see [`ListStyle::print`].
    pub fn print<'a, T: Serialize>(
        &self,
        list: &T,
        names: impl Iterator<Item = &'a str>,
        incomplete: &[String],
        people: impl FnOnce(ListStyle) -> String,
    ) {
        self.style.or_json(self.ask.json).print(list, names, incomplete, people);
    }
}

impl Command {
    /// Does what the command says, and returns the exit status.
    ///
    /// # Errors
    /// The command failed: an [`braid_api::ErrorDetail`] where the reason is known.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Status(args) => wait(status::run(args)),
            Command::Top(args) => top::run(&args),
            Command::Events(args) => wait(events::run(args)),
            Command::Plan(args) => plan::run(args),
            Command::Disk { verb } => wait(disk::run(verb)),
            Command::Array { verb } => wait(array::run(verb)),
            Command::Pool { verb } => wait(pool::run(verb)),
            Command::Volume { verb } => wait(volume::run(verb)),
            Command::Snapshot { verb } => wait(snapshot::run(verb)),
            Command::Export { verb } => wait(export::run(verb)),
            Command::Mount(args) => wait(mount::mount(args)),
            Command::Umount(args) => wait(mount::umount(args)),
            Command::Node { verb } => wait(node::run(verb)),
            Command::Replica { verb } => wait(replica::run(verb)),
            Command::Job { verb } => wait(job::run(verb)),
        }
    }
}

/// Runs this process as a helper of another one of this program, if its arguments say so: these are no commands that anyone types.
pub fn run_as_helper() -> Option<ExitCode> {
    if freeze::guard::is_wanted() {
        return Some(freeze::guard::run());
    }
    braid_host::aside::is_wanted().then(braid_host::aside::run)
}

/// Runs one command that asks the daemon: one thread is plenty.
fn wait<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime of the command cannot start")?
        .block_on(command)
}

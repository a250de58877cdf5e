//! The command line: one place for each command, and this table of them.

mod array;
mod color;
mod completions;
mod confirm;
mod disk;
mod disk_names;
mod events;
pub(crate) mod examples;
mod export;
mod export_limits;
pub mod failure;
mod freeze;
mod import_md;
mod job;
mod man;
mod mount;
mod node;
pub mod output;
mod pool;
mod pool_check;
mod reach;
mod redundant;
mod replica;
mod replicated;
pub mod schema;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod top;
mod volume;
mod watch;

use crate::client::Client;
use anyhow::Context;
use clap::{Args, FromArgMatches, Parser, Subcommand};
use std::future::Future;
use std::process::ExitCode;

/// Braids the disks of this machine into fast block devices that any NBD client can use.
///
/// A daemon (`braid serve`) owns the disks; all other commands ask it. `braid demo` shows everything at once,
/// without root and without a spare disk.
#[derive(Parser)]
#[command(name = "braid", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Colour: never, always, or auto: at a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value = "auto")]
    color: color::Color,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    Serve(crate::daemon::ServeArgs),
    /// Show how the daemon, its arrays, disks and exports do
    Status(status::StatusArgs),
    /// Show live what disks, arrays and exports do
    Top(top::TopArgs),
    /// Show what happened
    Events(events::EventsArgs),
    /// Show what disks of given sizes would become, before touching anything
    Plan(crate::plan::PlanArgs),
    /// Look at the disks of this machine
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Disk {
        #[command(subcommand)]
        verb: disk::Verb,
    },
    /// Make arrays of disks
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Array {
        #[command(subcommand)]
        verb: array::Verb,
    },
    /// Make pools of disks and arrays, which hold volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Pool {
        #[command(subcommand)]
        verb: pool::Verb,
    },
    /// Make volumes in pools
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Volume {
        #[command(subcommand)]
        verb: volume::Verb,
    },
    /// Take snapshots of volumes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Snapshot {
        #[command(subcommand)]
        verb: snapshot::Verb,
    },
    /// Let clients use arrays, volumes and snapshots over NBD
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Export {
        #[command(subcommand)]
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
        verb: node::Verb,
    },
    /// Look at what this node keeps of volumes that are kept on several nodes
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Replica {
        #[command(subcommand)]
        verb: replica::Verb,
    },
    /// Look at long work in the background, and steer it
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Job {
        #[command(subcommand)]
        verb: job::Verb,
    },
    /// Show everything at once: three disks, one array, one export, verified data
    Demo(crate::demo::DemoArgs),
    /// Measure disks, arrays and exports
    Bench(crate::bench::BenchArgs),
    /// Print the script that completes commands in a shell
    Completions(completions::CompletionsArgs),
    /// Write a manual page for each command
    Man(man::ManArgs),
    /// Print the schema of what a command prints with --json
    Schema(schema::SchemaArgs),
}

/// How the daemon is reached, and how answers are printed: the same for every command that asks it.
#[derive(Args, Clone, Debug)]
pub struct Ask {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
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

/// Reads the command line, does what it says, and returns the exit status.
pub fn main() -> ExitCode {
    if freeze::guard::is_wanted() {
        return freeze::guard::run();
    }
    if crate::disk::aside::is_wanted() {
        return crate::disk::aside::run();
    }
    // Known before anything is read, as what cannot be read is said in colour, too.
    color::choose(std::env::args_os().skip(1));
    // Those commands that print JSON print their errors as JSON too, also of a command line that was not understood.
    let json = std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json");
    let mut command = examples::command();
    if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        command = command.term_width(output::columns());
    }
    let matches = match command.try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return failure::usage(&error, json),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error, json),
    };
    match run(cli.command) {
        Ok(status) => status,
        Err(error) => failure::report(&error, json),
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => crate::daemon::run(args),
        Command::Status(args) => wait(status::run(args)),
        Command::Top(args) => top::run(&args),
        Command::Events(args) => wait(events::run(args)),
        Command::Plan(args) => crate::plan::run(args),
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
        Command::Demo(args) => crate::demo::run(args),
        Command::Bench(args) => crate::bench::run(args),
        Command::Completions(args) => wait(completions::run(&args)),
        Command::Man(args) => man::run(&args),
        Command::Schema(args) => schema::run(&args),
    }
}

/// A name as one segment of a path: that of a volume has a slash.
pub(crate) fn segment(name: &str) -> String {
    crate::daemon::address::escaped(name)
}

/// Runs one command that asks the daemon: one thread is plenty.
fn wait<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime of the command cannot start")?
        .block_on(command)
}

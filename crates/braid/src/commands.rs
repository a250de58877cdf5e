//! The table of all commands.

use braid_bench::{BenchArgs, demo};
use braid_cli::completions::{self, CompletionsArgs};
use braid_cli::man::{self, ManArgs};
use braid_cli::schema::{self, SchemaArgs};
use braid_cli::{aliases, examples, usage};
use braid_terminal::{color, failure, listing, output, progress};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;
use utoipa::OpenApi;

/// Braids the disks of this machine into fast block devices that any NBD client can use.
///
/// A daemon (`braid serve`) owns the disks; all other commands ask it. `braid demo` shows everything at once,
/// without root and without a spare disk.
#[derive(Parser)]
#[command(name = "braid", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
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
    #[command(flatten)]
    Client(braid_cli::Command),
    /// Show everything at once: three disks, one array, one export, verified data
    Demo(demo::DemoArgs),
    /// Measure disks, arrays and exports
    Bench(BenchArgs),
    /// Print the script that completes commands in a shell
    Completions(CompletionsArgs),
    /// Write a manual page for each command
    Man(ManArgs),
    /// Print the schema of what a command prints with --json
    Schema(SchemaArgs),
}

/// The `--json` documents of commands that are not in `braid-cli`.
#[derive(OpenApi)]
#[openapi(components(schemas(braid_bench::model::Document, demo::Report)))]
struct Documents;

/// Returns the documents of commands that are not in `braid-cli`.
pub fn documents() -> utoipa::openapi::OpenApi {
    Documents::openapi()
}

/// Returns the command line with the aliases of its verbs, and with the examples in every `--help`.
pub fn command() -> clap::Command {
    examples::added_to(aliases::added_to(Cli::command()))
}

/// Reads the command line, does what it says, and returns the exit status.
pub fn main() -> ExitCode {
    if let Some(status) = braid_cli::run_as_helper() {
        return status;
    }
    // Chosen before the command line is parsed, because errors of parsing are coloured, too.
    color::choose(std::env::args_os().skip(1));
    // Commands that print JSON print their errors as JSON, too, even if the command line cannot be parsed.
    let json = listing::requests_json(std::env::args_os().skip(1));
    progress::choose(json);
    let mut command = command();
    if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        command = command.term_width(output::columns());
    }
    let cli = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error, json),
    };
    match run(cli.command) {
        Ok(status) => status,
        Err(error) => failure::report(&error, json),
    }
}

fn run(chosen: Command) -> anyhow::Result<ExitCode> {
    match chosen {
        Command::Serve(args) => crate::daemon::run(args),
        Command::Client(command) => command.run(),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => braid_bench::run(args),
        Command::Completions(args) => completions::run(&args, command()),
        Command::Man(args) => man::run(&args, command()),
        Command::Schema(args) => schema::run(&args, &documents()),
    }
}

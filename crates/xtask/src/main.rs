//! Tasks of this repository that are no part of the product: `cargo xtask bench` is the harness of `make bench`.
//!
//! `bench` measures the table of targets: each line in pairs against its rival, with the `braid` program of the same build. `load` and
//! `scene` run one load or one scene of it in this process; `bench` starts them as processes of their own.

#![forbid(unsafe_code)]

mod bare;
mod bench;
mod load;
mod pool;
mod program;
mod scenes;
mod volume;

use std::process::ExitCode;

use braid_terminal::failure;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Tasks of this repository", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure the table of targets (`make bench`)
    Bench(bench::TableArgs),
    /// Measure one load, with options that braid bench does not have
    Load(Box<load::LoadArgs>),
    /// Measure one scene, and print its figures as JSON
    Scene(scenes::SceneArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Bench(args) => bench::run(args),
        Task::Load(args) => load::run(*args),
        Task::Scene(args) => scenes::run(&args),
    };
    done.unwrap_or_else(|error| failure::report(&error, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}

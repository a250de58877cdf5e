//! `braid completions SHELL`: what the shell needs to complete commands and options.

use super::{examples, output};
use clap::{Args, ValueEnum};
use clap_complete::{Shell, generate};
use std::process::ExitCode;

/// Arguments of `braid completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: For,
}

/// The shells that are tested.
#[derive(Clone, Copy, ValueEnum)]
enum For {
    Bash,
    Zsh,
    Fish,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> ExitCode {
    let shell = match args.shell {
        For::Bash => Shell::Bash,
        For::Zsh => Shell::Zsh,
        For::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut examples::command(), "braid", &mut script);
    output::text(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

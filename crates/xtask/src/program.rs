//! Finds the `braid` program that is measured.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

/// Returns the path of the `braid` program beside this executable.
///
/// # Errors
/// The system does not report the path of this executable.
pub fn default_braid() -> anyhow::Result<PathBuf> {
    Ok(std::env::current_exe().context("finding the path of this executable")?.with_file_name("braid"))
}

/// Returns the absolute path of the named program, else of [`default_braid`].
///
/// # Errors
/// There is no such file, or the system does not report its path.
pub fn named_or_default(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let program = match named {
        Some(program) => program,
        None => default_braid()?,
    };
    if !program.is_file() {
        bail!(
            "{} does not exist: build it (cargo build --release -p braid), or name it with --braid",
            program.display()
        );
    }
    std::path::absolute(&program).with_context(|| format!("finding the path of {}", program.display()))
}

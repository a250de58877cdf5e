//! Loads and scenes of the table, each in a process of its own that is pinned to a core.

use std::time::Duration;

use anyhow::{Context as _, bail};
use braid_bench::process::{Report, braid, pinned, report_of};

use crate::scenes::Figure;

/// Runs `braid bench` with these arguments on a core, as one slice, and returns its result.
///
/// # Errors
/// The command fails, or an I/O of the load does.
pub fn bench(core: u32, arguments: &[&str]) -> anyhow::Result<Report> {
    let mut command = pinned(core, &braid()?);
    command.arg("bench");
    report_of(command, arguments)
}

/// Runs `xtask load` as [`bench`] runs `braid bench`: the same load generator, with the options that only this harness has.
///
/// # Errors
/// As [`bench`].
pub fn xtask_load(core: u32, arguments: &[&str]) -> anyhow::Result<Report> {
    let mut command = pinned(core, &this_program()?);
    command.arg("load");
    report_of(command, arguments)
}

/// Runs a scene on a core, and returns its figures.
///
/// # Errors
/// The scene cannot be measured on this machine.
pub fn scene(core: u32, arguments: &[&str]) -> anyhow::Result<Vec<Figure>> {
    let out = pinned(core, &this_program()?).arg("scene").args(arguments).output()?;
    if !out.status.success() {
        bail!("scene {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    serde_json::from_slice(&out.stdout).context("reading the figures of a scene")
}

fn this_program() -> anyhow::Result<String> {
    let program = std::env::current_exe().context("finding the path of this executable")?;
    Ok(program.to_string_lossy().into_owned())
}

/// Formats a duration as `--time` parses it.
pub fn time(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

//! Measurements of pools that take more than one load: snapshots that are taken and deleted, space, memory, members of different sizes.
//!
//! Each scene is a process of its own (`xtask scene NAME`), which prints its figures as one JSON document. The table of targets has a line for
//! each figure.

mod deleting;
mod first_writes;
mod opening;
mod rig;
mod several;
mod snapshots;

use std::process::ExitCode;
use std::time::Duration;

use braid_bench::values;
use clap::Args;
use serde::{Deserialize, Serialize};

/// Arguments of `xtask scene`.
#[derive(Args, Clone, Debug)]
pub struct SceneArgs {
    /// The name of the scene
    name: String,
    /// Pairs of slices
    #[arg(long, value_name = "N", default_value_t = 7)]
    slices: usize,
    /// The length of one slice: 500ms, 5s
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = values::duration)]
    time: Duration,
}

/// A bound that a figure must keep.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// No bound: the figure is shown for comparison.
    Shown,
}

/// One figure of a scene.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub measure: String,
    /// The bound of the figure.
    pub bound: Bound,
    /// The values of several slices.
    pub a: Vec<f64>,
    /// The values that each is compared with; empty if there is no comparison.
    pub b: Vec<f64>,
    /// The medians, as text.
    pub detail: String,
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The number of pairs of slices.
    pub pairs: usize,
    /// The length of a slice.
    pub slice: Duration,
}

type Scene = fn(Pace, &mut Vec<Figure>) -> anyhow::Result<()>;

/// Every scene by its name.
const SCENES: [(&str, Scene); 9] = [
    ("hundred-snapshots", snapshots::hundred),
    ("beside-a-snapshot", snapshots::beside),
    ("flushed-first-writes", first_writes::flushed),
    ("bytes-written", first_writes::bytes_written),
    ("delete-a-snapshot", deleting::measure),
    ("spread", several::spread),
    ("single", several::single),
    ("striping", several::striping),
    ("open", opening::measure),
];

/// Returns the names of all scenes, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    SCENES.iter().map(|(name, _)| *name)
}

/// Measures a scene, and prints its figures as one JSON document.
///
/// # Errors
/// There is no scene of that name, or it cannot be measured on this machine.
pub fn run(args: &SceneArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    let Some((_, scene)) = SCENES.iter().find(|(known, _)| *known == name) else {
        anyhow::bail!("there is no scene {name}: one of {}", names().collect::<Vec<_>>().join(", "));
    };
    let mut figures = Vec::new();
    scene(Pace { pairs: args.slices, slice: args.time }, &mut figures)?;
    braid_terminal::output::json(&figures);
    Ok(ExitCode::SUCCESS)
}

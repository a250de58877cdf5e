//! What pools are measured at that takes more than one load: snapshots that come and go, space, memory, members of unlike size.
//!
//! Each scene is a process of its own (`braid bench --scene NAME`), which prints its figures as one document; the table of targets has a row
//! for each of them.

mod deleting;
mod first_writes;
mod opening;
mod rig;
mod several;
mod snapshots;

use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// On which side of its bound a figure has to stay.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// For comparison only.
    Shown,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub measure: String,
    /// What it has to be.
    pub bound: Bound,
    /// Values of several slices.
    pub a: Vec<f64>,
    /// What each is compared with; empty: with nothing.
    pub b: Vec<f64>,
    /// In words.
    pub detail: String,
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Pairs of slices.
    pub pairs: usize,
    /// One slice.
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

/// The names of all scenes, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    SCENES.iter().map(|(name, _)| *name)
}

/// Measures one and prints its figures.
///
/// # Errors
/// There is no such scene, or it cannot be measured here.
pub fn run(name: &str, pace: Pace) -> anyhow::Result<ExitCode> {
    let Some((_, scene)) = SCENES.iter().find(|(known, _)| *known == name) else {
        anyhow::bail!("there is no scene {name}: one of {}", names().collect::<Vec<_>>().join(", "));
    };
    let mut figures = Vec::new();
    scene(pace, &mut figures)?;
    braid_terminal::output::json(&figures);
    Ok(ExitCode::SUCCESS)
}

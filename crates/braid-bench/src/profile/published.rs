//! The published figures: a file of facts, read once.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::super::report::{count, rate, time};

/// The file.
const FACTS: &str = include_str!("published.toml");

/// What was published for one target at one point.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Published {
    #[serde(skip)]
    target: usize,
    #[serde(skip)]
    point: usize,
    /// What the publication calls the target.
    pub label: String,
    /// I/Os a second.
    pub iops: Option<f64>,
    /// Bytes a second.
    pub bytes_per_second: Option<f64>,
    /// Mean latency, in nanoseconds.
    pub latency_ns: Option<f64>,
    /// I/Os a second against the profile's first target.
    pub iops_ratio: Option<f64>,
    /// In words.
    pub note: Option<String>,
}

impl Published {
    /// Whether this belongs to that target and point.
    pub fn is_of(&self, target: usize, point: usize) -> bool {
        (self.target, self.point) == (target, point)
    }

    /// For a cell of a table.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.iops.map(|iops| format!("{} IOPS", count(iops))));
        parts.extend(self.bytes_per_second.map(rate));
        parts.extend(self.latency_ns.map(time));
        parts.extend(self.iops_ratio.map(|ratio| format!("{ratio} times the IOPS")));
        parts.extend(self.note.clone());
        parts.join(", ")
    }
}

/// What is known of one profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// In one line.
    pub title: String,
    /// Where the figures come from.
    pub source: String,
    /// What is and is not comparable.
    pub notes: Vec<String>,
    figures: Vec<Figure>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    target: String,
    point: String,
    #[serde(rename = "as")]
    label: String,
    iops: Option<f64>,
    kib_per_second: Option<f64>,
    latency_ns: Option<f64>,
    iops_ratio: Option<f64>,
    note: Option<String>,
}

/// The facts of a profile.
///
/// # Panics
/// When the file is wrong; a test reads all of it.
pub fn of(name: &str) -> Facts {
    let mut all: BTreeMap<String, Facts> = toml::from_str(FACTS).expect("a test reads this file");
    all.remove(name).expect("every profile has its facts")
}

impl Facts {
    /// The figures in the order of targets and points.
    pub fn figures(&self, targets: &[&str], points: &[&str]) -> Vec<Published> {
        let place = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        self.figures
            .iter()
            .map(|figure| Published {
                // A name that is not there is beyond everything, which a test looks for.
                target: place(targets, &figure.target).unwrap_or(usize::MAX),
                point: place(points, &figure.point).unwrap_or(usize::MAX),
                label: figure.label.clone(),
                iops: figure.iops,
                bytes_per_second: figure.kib_per_second.map(|kib| kib * 1024.0),
                latency_ns: figure.latency_ns,
                iops_ratio: figure.iops_ratio,
                note: figure.note.clone(),
            })
            .collect()
    }
}

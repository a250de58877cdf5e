//! Profiles by name, with their published figures, from a file that is part of the program.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::figures::{count, rate, time};

/// The names of the profiles whose targets are volumes of nodes.
pub const PROFILES_OF_NODES: [&str; 2] = ["replicated-aggregation", "replicated-engine"];

/// The names of all profiles.
pub const PROFILES: [&str; 6] =
    ["disk-aggregation", "jbod", "queue-depth", "striping", PROFILES_OF_NODES[0], PROFILES_OF_NODES[1]];

/// The contents of the file.
const FACTS: &str = include_str!("published.toml");

/// The published figures of one target at one point.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Published {
    #[serde(skip)]
    target: usize,
    #[serde(skip)]
    point: usize,
    /// The name of the target in the publication.
    pub label: String,
    /// I/Os per second.
    pub iops: Option<f64>,
    /// Bytes per second.
    pub bytes_per_second: Option<f64>,
    /// Mean latency, in nanoseconds.
    pub latency_ns: Option<f64>,
    /// Ratio of I/Os per second to those of the profile's first target.
    pub iops_ratio: Option<f64>,
    /// A note.
    pub note: Option<String>,
}

impl Published {
    /// Returns whether this belongs to that target and point.
    pub fn is_of(&self, target: usize, point: usize) -> bool {
        (self.target, self.point) == (target, point)
    }

    /// Formats the figures for a cell of a table.
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

/// The published facts of one profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The title, in one line.
    pub title: String,
    /// Where the figures were published.
    pub source: String,
    /// Notes on what is comparable and what is not.
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

/// Returns the facts of a profile.
///
/// # Panics
/// The file is malformed. A test reads all of it.
pub fn of(name: &str) -> Facts {
    let mut all: BTreeMap<String, Facts> = toml::from_str(FACTS).expect("a test reads this file");
    all.remove(name).expect("every profile has its facts")
}

impl Facts {
    /// Returns the figures, given the names of targets and points in order.
    pub fn figures(&self, targets: &[&str], points: &[&str]) -> Vec<Published> {
        let index = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        self.figures
            .iter()
            .map(|figure| Published {
                // An unknown name gets an index beyond all others, which a test detects.
                target: index(targets, &figure.target).unwrap_or(usize::MAX),
                point: index(points, &figure.point).unwrap_or(usize::MAX),
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

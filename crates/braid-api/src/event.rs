//! Events: what happened, in order.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// For the record.
    Info,
    /// An administrator should have a look.
    Warning,
    /// Something does not work.
    Error,
}

impl Severity {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number since the daemon started, from 1, without gaps.
    pub sequence: u64,
    /// When it happened, in milliseconds since 1970-01-01 UTC.
    pub time_unix_ms: u64,
    /// Its severity.
    pub severity: Severity,
    /// A stable word; `docs/reference/events.md` lists all of them.
    pub kind: String,
    /// One sentence for people.
    pub message: String,
    /// The objects concerned, by kind: `array`, `disk`, `export`, …
    #[serde(default)]
    pub context: BTreeMap<String, String>,
}

/// The most recent events, which the daemon keeps in memory.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// The number that the next event will have.
    pub next_sequence: u64,
}

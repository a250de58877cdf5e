//! Selection of color output: by default only on a terminal.

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use comfy_table::{Attribute, Cell, Color as CellColor};
use std::ffi::OsString;

/// The values of `--color`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal that supports color, unless NO_COLOR is set
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

/// Sets the color mode of the process from the `--color` option in `arguments`, even if other arguments are invalid.
pub fn choose(arguments: impl Iterator<Item = OsString>) {
    let choice = match color_option(arguments) {
        Some(Color::Always) => ColorChoice::Always,
        Some(Color::Never) => ColorChoice::Never,
        Some(Color::Auto) | None => ColorChoice::Auto,
    };
    choice.write_global();
}

/// Returns the last valid `--color` value before `--`; `None` if there is none.
fn color_option(arguments: impl Iterator<Item = OsString>) -> Option<Color> {
    let mut found = None;
    let mut arguments = arguments.take_while(|argument| argument != "--");
    while let Some(argument) = arguments.next() {
        let argument = argument.to_string_lossy().into_owned();
        let value = match argument.strip_prefix("--color") {
            Some("") => arguments.next().map(|value| value.to_string_lossy().into_owned()),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        found = value.and_then(|value| Color::from_str(&value, false).ok()).or(found);
    }
    found
}

/// The style of healthy states.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// The style of states that need attention.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// The style of what may need attention.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// The style of headings and of commands to type.
pub const STRONG: Style = Style::new().bold();

/// The style of what is missing, unknown, or not in service.
pub const DIM: Style = Style::new().dimmed();

/// What a state says, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Good,
    Dim,
    Warning,
    Bad,
}

impl Severity {
    fn style(self) -> Style {
        match self {
            Severity::Good => GOOD,
            Severity::Dim => DIM,
            Severity::Warning => WARNING,
            Severity::Bad => BAD,
        }
    }
}

/// The states that the API and the tables show.
const STATES: [(Severity, &[&str]); 4] = [
    (
        Severity::Good,
        &[
            "active",
            "done",
            "reachable",
            "in sync",
            "in_sync",
            "in_use",
            "journal",
            "listening",
            "ok",
            "ready",
            "running",
            "served",
            "serving",
            "spare",
            "whole",
        ],
    ),
    (
        Severity::Dim,
        &[
            "cancelled",
            "detached",
            "missing",
            "removed",
            "skipped",
            "standby",
            "stopped",
            "unavailable",
            "unknown",
            "vacant",
            "witness",
        ],
    ),
    (
        Severity::Warning,
        &[
            "unreachable",
            "out of sync",
            "degraded",
            "failing",
            "hanging",
            "incomplete",
            "removing",
            "opening",
            "paused",
            "rebuilding",
            "resyncing",
            "unfenced",
            "waiting",
            "warning",
        ],
    ),
    (Severity::Bad, &["error", "failed", "given_up", "gone", "lost", "problem"]),
];

/// Returns what the state at the start of a text says; `None` if the text starts with no state.
fn severity_of_start(text: &str) -> Option<Severity> {
    let ends = |rest: &str| rest.chars().next().is_none_or(|next| matches!(next, ' ' | ')' | ';' | ':' | '!' | ','));
    let starts_with = |states: &[&str]| states.iter().any(|state| text.strip_prefix(*state).is_some_and(ends));
    STATES.iter().find(|(_, states)| starts_with(states)).map(|(severity, _)| *severity)
}

/// Returns the worst of the states in a text: at its start, after commas, and in parentheses. An exclamation mark after a state says that
/// it needs attention.
fn severity(text: &str) -> Option<Severity> {
    let starts = text.split(", ").flat_map(|part| part.split(" (")).map(|part| part.trim_start_matches('('));
    let worst = starts.filter_map(severity_of_start).max()?;
    Some(if text.ends_with('!') { worst.max(Severity::Warning) } else { worst })
}

/// Returns a state, or a text that starts with one, in the color of the state. Output without color omits it.
pub fn state(text: &str) -> String {
    severity(text).map_or_else(|| text.to_owned(), |severity| paint(severity.style(), text))
}

/// Returns the cell of a table with a state in its color.
pub(crate) fn state_cell(text: &str) -> Cell {
    let cell = Cell::new(text);
    let colored = |color: CellColor| Cell::new(text).fg(color).add_attribute(Attribute::Bold);
    match severity(text) {
        None => cell,
        Some(Severity::Good) => colored(CellColor::DarkGreen),
        Some(Severity::Dim) => cell.add_attribute(Attribute::Dim),
        Some(Severity::Warning) => colored(CellColor::DarkYellow),
        Some(Severity::Bad) => colored(CellColor::DarkRed),
    }
}

/// Returns text in a style. Output without color omits the style.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output;
    use braid_api::{
        ArrayState, ClusterVoterState, DiskState, DoctorState, ExportState, Health, JobState, MemberState, NodeState,
        PoolState, ReplicaState, ReplicatedState, Service, VoterState,
    };

    #[test]
    fn every_state_has_a_color() {
        use Severity::{Bad, Dim, Good, Warning};
        let check = |state: &str, expected: Severity| assert_eq!(severity(state), Some(expected), "{state}");
        for state in [ArrayState::Active.word(), PoolState::Active.word(), Health::Whole.word(), DiskState::Ok.word()] {
            check(state, Good);
        }
        for state in [MemberState::InSync, MemberState::Spare, MemberState::Journal] {
            check(state.word(), Good);
        }
        for state in [
            ExportState::Listening.word(),
            JobState::Running.word(),
            JobState::Done.word(),
            NodeState::Reachable.word(),
            ReplicaState::Ready.word(),
            ReplicatedState::Serving.word(),
            Service::Served.word(),
            ClusterVoterState::InSync.word(),
            VoterState::InSync.word(),
            DoctorState::Ok.word(),
        ] {
            check(state, Good);
        }
        for state in [
            ArrayState::Incomplete.word(),
            PoolState::Incomplete.word(),
            Health::Resyncing.word(),
            Health::Rebuilding.word(),
            Health::Degraded.word(),
            DiskState::Failing.word(),
            DiskState::Hanging.word(),
            MemberState::Failing.word(),
            MemberState::Rebuilding.word(),
            ExportState::Waiting.word(),
            JobState::Paused.word(),
            NodeState::Unreachable.word(),
            ReplicaState::Waiting.word(),
            ReplicatedState::Opening.word(),
            ClusterVoterState::OutOfSync.word(),
            VoterState::Rebuilding.word(),
            DoctorState::Warning.word(),
        ] {
            check(state, Warning);
        }
        for state in [
            ArrayState::Failed.word(),
            PoolState::Failed.word(),
            Health::Failed.word(),
            DiskState::Gone.word(),
            MemberState::Gone.word(),
            MemberState::Failed.word(),
            ExportState::Failed.word(),
            JobState::Failed.word(),
            ReplicaState::Lost.word(),
            ReplicaState::Failed.word(),
            VoterState::Failed.word(),
            DoctorState::Problem.word(),
        ] {
            check(state, Bad);
        }
        for state in [
            ArrayState::Stopped.word(),
            MemberState::Missing.word(),
            MemberState::Vacant.word(),
            ExportState::Standby.word(),
            JobState::Cancelled.word(),
            NodeState::Unknown.word(),
            NodeState::Removed.word(),
            ReplicatedState::Detached.word(),
            Service::Unknown.word(),
            ClusterVoterState::Unavailable.word(),
            ClusterVoterState::Unknown.word(),
            ClusterVoterState::Witness.word(),
            VoterState::Witness.word(),
            VoterState::Unknown.word(),
            DoctorState::Skipped.word(),
        ] {
            check(state, Dim);
        }
    }

    #[test]
    fn the_worst_state_of_a_text_decides() {
        for (text, expected) in [
            ("active!", Some(Severity::Warning)),
            ("rebuilding 12 % (for 3)", Some(Severity::Warning)),
            ("in_sync (unfenced)", Some(Severity::Warning)),
            ("unreachable since 2026-11-21 14:03:59", Some(Severity::Warning)),
            ("one/tank (in sync), two/tank (in sync)", Some(Severity::Good)),
            ("one/tank (in sync), two/tank (failed)", Some(Severity::Bad)),
            ("lost: its disk has failed", Some(Severity::Bad)),
            ("(unknown)", Some(Severity::Dim)),
            ("-", None),
            ("failures", None),
            ("", None),
        ] {
            assert_eq!(severity(text), expected, "{text}");
        }
    }

    #[test]
    fn states_are_colored_in_text_and_in_tables() {
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        let text = state("degraded");
        assert!(text.contains("\x1b[33m") && plain(&text) == "degraded", "{text:?}");
        assert_eq!(state("-"), "-");
        let mut table = output::table(["NAME", "STATE"]);
        table.add_rows([["failed", "failed"], ["an-array", "missing"]]);
        let uncolored = output::render(&table);
        assert_eq!(plain(&uncolored), uncolored);
        output::states(&mut table, [1]);
        let colored = output::render(&table);
        assert!(colored.matches('\x1b').count() > 3, "{colored:?}");
        assert_eq!(plain(&colored), uncolored, "widths are those of the text");
        assert!(
            colored.lines().nth(1).is_some_and(|line| line.trim_start().starts_with("failed")),
            "names stay as they are"
        );
    }

    #[test]
    fn last_valid_color_option_wins() {
        let check = |words: &[&str], expected| {
            assert_eq!(color_option(words.iter().map(OsString::from)), expected, "{words:?}")
        };
        check(&["status"], None);
        check(&["status", "--color", "always"], Some(Color::Always));
        check(&["--color=never", "status"], Some(Color::Never));
        check(&["--color=never", "status", "--color", "auto"], Some(Color::Auto));
        check(&["--color"], None);
        check(&["--color", "loud"], None);
        check(&["--colors=always"], None);
        check(&["array", "--", "--color=always"], None);
    }
}

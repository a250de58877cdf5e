//! What `braid doctor` prints: checks of this machine and of the daemon's surroundings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The subject of a group of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DoctorGroup {
    /// The kernel's version, io_uring and the driver of the shards.
    Kernel,
    /// Modules of the kernel and their device files.
    Modules,
    /// Memory, locked memory and open files.
    Limits,
    /// The clock of this machine, and those of other nodes.
    Clocks,
    /// The user, the capabilities and the state folder.
    Permissions,
    /// The configuration and the daemon's socket.
    Daemon,
    /// The disks of this machine.
    Disks,
    /// Certificates and their keys.
    Certificates,
    /// Ports that the daemon listens on.
    Ports,
}

impl DoctorGroup {
    /// Returns the word that the API and the output for people show.
    pub const fn word(self) -> &'static str {
        match self {
            DoctorGroup::Kernel => "kernel",
            DoctorGroup::Modules => "modules",
            DoctorGroup::Limits => "limits",
            DoctorGroup::Clocks => "clocks",
            DoctorGroup::Permissions => "permissions",
            DoctorGroup::Daemon => "daemon",
            DoctorGroup::Disks => "disks",
            DoctorGroup::Certificates => "certificates",
            DoctorGroup::Ports => "ports",
        }
    }
}

/// The outcome of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DoctorState {
    /// Nothing is to be done.
    Ok,
    /// Something is slower, or cannot be used; Braid works without it.
    Warning,
    /// Braid does not work, or a part of it that the configuration names does not.
    Problem,
    /// The check was not possible, or does not apply.
    Skipped,
}

impl DoctorState {
    /// Returns the word that the API and the output for people show.
    pub const fn word(self) -> &'static str {
        match self {
            DoctorState::Ok => "ok",
            DoctorState::Warning => "warning",
            DoctorState::Problem => "problem",
            DoctorState::Skipped => "skipped",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorCheck {
    /// The subject of its group.
    pub group: DoctorGroup,
    /// Its name within the group.
    pub name: String,
    /// Its outcome.
    pub state: DoctorState,
    /// What was found, with the measured value; of a skipped check the reason.
    pub found: String,
    /// What does not work, or is slower, in one sentence; empty if nothing is.
    pub impact: String,
    /// The commands that mend it, in order; words in capitals are placeholders. Empty if no action is needed.
    pub commands: Vec<String>,
}

/// `braid doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// Number of checks that found a problem.
    pub problems: u64,
    /// Number of checks that found something to warn of.
    pub warnings: u64,
    /// The checks, by group.
    pub checks: Vec<DoctorCheck>,
}

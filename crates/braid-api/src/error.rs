//! The one shape of an error, over HTTP and on the command line.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use utoipa::ToSchema;

/// The kind of an error, as a stable word. `docs/reference/errors.md` describes each, and whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// An argument is invalid, independent of the state of the machine.
    InvalidArgument,
    /// The array, export, disk, path or other object does not exist.
    NotFound,
    /// The name is taken, or the object already exists.
    Exists,
    /// The object is in use: mounted, held, exported, or owned by another process.
    InUse,
    /// The disk already carries data, which the request would destroy.
    WouldDestroy,
    /// The request is unsafe, and does not confirm that this is intended.
    NeedsConfirmation,
    /// The array is not active, so that the request cannot be carried out now.
    Inactive,
    /// Members are missing.
    Incomplete,
    /// Another controller serves the replicated volume now.
    Fenced,
    /// A constant limit is reached.
    LimitReached,
    /// The operating system does not permit it.
    PermissionDenied,
    /// The client is not authenticated: no token, no certificate, or a wrong one.
    Unauthenticated,
    /// The client is not allowed to do this.
    Forbidden,
    /// There is no space left.
    NoSpace,
    /// A disk reported an error.
    DiskError,
    /// A disk did not complete an I/O within its time limit.
    TimedOut,
    /// Metadata on a disk, or the state file, is damaged.
    Damaged,
    /// Written by another, unknown version of Braid.
    UnknownVersion,
    /// This build or this machine does not support it.
    Unsupported,
    /// The daemon is still searching for disks after its start: the object may be on one of them.
    Starting,
    /// The daemon is stopping.
    Stopping,
    /// The daemon cannot be reached. Reported by clients only.
    Unreachable,
    /// A bug in Braid.
    Internal,
    /// A kind of a newer daemon that this client does not know.
    #[serde(other)]
    Unknown,
}

impl Kind {
    /// Every kind, in the order of `docs/reference/errors.md`.
    pub const ALL: [Kind; 24] = [
        Kind::InvalidArgument,
        Kind::NotFound,
        Kind::Exists,
        Kind::InUse,
        Kind::WouldDestroy,
        Kind::NeedsConfirmation,
        Kind::Inactive,
        Kind::Incomplete,
        Kind::Fenced,
        Kind::LimitReached,
        Kind::PermissionDenied,
        Kind::Unauthenticated,
        Kind::Forbidden,
        Kind::NoSpace,
        Kind::DiskError,
        Kind::TimedOut,
        Kind::Damaged,
        Kind::UnknownVersion,
        Kind::Unsupported,
        Kind::Starting,
        Kind::Stopping,
        Kind::Unreachable,
        Kind::Internal,
        Kind::Unknown,
    ];

    /// Returns the stable word.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::InvalidArgument => "invalid_argument",
            Kind::NotFound => "not_found",
            Kind::Exists => "exists",
            Kind::InUse => "in_use",
            Kind::WouldDestroy => "would_destroy",
            Kind::NeedsConfirmation => "needs_confirmation",
            Kind::Inactive => "inactive",
            Kind::Incomplete => "incomplete",
            Kind::Fenced => "fenced",
            Kind::LimitReached => "limit_reached",
            Kind::PermissionDenied => "permission_denied",
            Kind::Unauthenticated => "unauthenticated",
            Kind::Forbidden => "forbidden",
            Kind::NoSpace => "no_space",
            Kind::DiskError => "disk_error",
            Kind::TimedOut => "timed_out",
            Kind::Damaged => "damaged",
            Kind::UnknownVersion => "unknown_version",
            Kind::Unsupported => "unsupported",
            Kind::Starting => "starting",
            Kind::Stopping => "stopping",
            Kind::Unreachable => "unreachable",
            Kind::Internal => "internal",
            Kind::Unknown => "unknown",
        }
    }

    /// Returns the HTTP status of a response with this error.
    pub const fn http_status(self) -> u16 {
        match self {
            Kind::InvalidArgument => 400,
            Kind::Unauthenticated => 401,
            Kind::PermissionDenied | Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::Exists
            | Kind::InUse
            | Kind::WouldDestroy
            | Kind::NeedsConfirmation
            | Kind::Inactive
            | Kind::Incomplete
            | Kind::Fenced => 409,
            Kind::Damaged | Kind::UnknownVersion => 422,
            Kind::LimitReached => 429,
            Kind::DiskError | Kind::Internal | Kind::Unknown => 500,
            Kind::Unsupported => 501,
            Kind::Starting | Kind::Stopping | Kind::Unreachable => 503,
            Kind::TimedOut => 504,
            Kind::NoSpace => 507,
        }
    }

    /// Returns the exit status of a command that fails with it.
    pub const fn exit_status(self) -> u8 {
        match self {
            Kind::InvalidArgument => 2,
            Kind::NotFound => 3,
            Kind::Exists | Kind::InUse | Kind::WouldDestroy | Kind::NeedsConfirmation | Kind::LimitReached => 4,
            Kind::Starting | Kind::Stopping | Kind::Unreachable => 6,
            Kind::Damaged => 7,
            Kind::Inactive
            | Kind::Incomplete
            | Kind::Fenced
            | Kind::PermissionDenied
            | Kind::Unauthenticated
            | Kind::Forbidden
            | Kind::NoSpace
            | Kind::DiskError
            | Kind::TimedOut
            | Kind::UnknownVersion
            | Kind::Unsupported
            | Kind::Internal
            | Kind::Unknown => 1,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The body of every response that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// One error: the object, the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// The stable word for programs to decide on.
    pub kind: Kind,
    /// One sentence for people: the object and the reason.
    pub message: String,
    /// The objects concerned, by kind: `array`, `disk`, `export`, `path`, `found`, …
    #[serde(default)]
    pub context: BTreeMap<String, String>,
    /// What to do about it; empty if there is no advice.
    #[serde(default)]
    pub remedy: String,
}

impl ErrorDetail {
    /// Creates an error without context and remedy.
    pub fn new(kind: Kind, message: impl Into<String>) -> ErrorDetail {
        ErrorDetail { kind, message: message.into(), context: BTreeMap::new(), remedy: String::new() }
    }

    /// Adds an object to the context.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl fmt::Display) -> ErrorDetail {
        self.context.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> ErrorDetail {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for ErrorDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "\n{}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for ErrorDetail {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_sent_as_their_words() {
        for kind in Kind::ALL {
            let sent = serde_json::to_string(&kind).expect("a kind is a string");
            assert_eq!(sent, format!("\"{}\"", kind.word()));
            assert_eq!(serde_json::from_str::<Kind>(&sent).expect("the word is read back"), kind);
        }
    }

    #[test]
    fn a_newer_daemons_kind_is_read_as_unknown() {
        let body = r#"{"error":{"kind":"eaten_by_bears","message":"m","extra":1}}"#;
        let read: ErrorBody = serde_json::from_str(body).expect("unknown words and fields are allowed in responses");
        assert_eq!(read.error.kind, Kind::Unknown);
        assert_eq!(read.error.remedy, "");
    }

    #[test]
    fn statuses_are_error_statuses() {
        for kind in Kind::ALL {
            assert!((400..600).contains(&kind.http_status()), "{kind}");
            assert!((1..=7).contains(&kind.exit_status()), "{kind}");
        }
    }
}

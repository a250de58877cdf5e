//! Failure of a command: its error output and its exit status.

use crate::output;
use braid_api::{ErrorBody, ErrorDetail, Kind};
use std::process::ExitCode;

/// Exit status of a command that succeeded and found something that needs attention.
pub const ATTENTION: u8 = 5;
/// Exit status of a command that found damage.
pub const DAMAGE: u8 = 7;

/// Prints an error and returns its exit status. The error is always printed as text to standard error and, with `json`, also in the API's
/// form to standard output.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let detail = detail(error);
    if json {
        output::json(&ErrorBody { error: detail.clone() });
    }
    let mut text = format!("braid: {}\n", detail.message);
    if !detail.remedy.is_empty() {
        text.push_str(&format!("  {}\n", detail.remedy));
    }
    output::error_text(&text);
    ExitCode::from(detail.kind.exit_status())
}

/// Converts an error to an API error.
pub fn detail(error: &anyhow::Error) -> ErrorDetail {
    if let Some(detail) = error.downcast_ref::<ErrorDetail>() {
        return detail.clone();
    }
    ErrorDetail::new(Kind::Internal, format!("{error:#}"))
}

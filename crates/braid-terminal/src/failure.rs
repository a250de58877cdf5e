//! How a command fails: what it prints, and its exit status.

use crate::output;
use braid_api::{ErrorBody, ErrorDetail, Kind};
use std::process::ExitCode;

/// Done, but something needs attention.
pub const ATTENTION: u8 = 5;
/// Damage was found.
pub const DAMAGE: u8 = 7;

/// Prints an error and returns its exit status. With `json`, standard output gets the error in the shape of
/// the API; standard error always gets it for people.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let detail = detail(error);
    if json {
        output::json(&ErrorBody { error: detail.clone() });
    }
    let mut text = format!("braid: {}\n", detail.message);
    if !detail.remedy.is_empty() {
        text.push_str(&format!("  {}\n", detail.remedy));
    }
    output::complain(&text);
    ExitCode::from(detail.kind.exit_status())
}

/// What an error is in the shape of the API.
pub fn detail(error: &anyhow::Error) -> ErrorDetail {
    if let Some(detail) = error.downcast_ref::<ErrorDetail>() {
        return detail.clone();
    }
    ErrorDetail::new(Kind::Internal, format!("{error:#}"))
}

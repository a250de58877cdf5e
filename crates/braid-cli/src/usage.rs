//! Reports a command line that cannot be parsed.

use super::{examples, output};
use braid_api::{ErrorBody, ErrorDetail, Kind};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::process::ExitCode;

/// Prints what clap reports: help and version on standard output with status 0, everything else on standard error with an
/// example and status 2. With `json`, also prints the error in the format of the API on standard output.
pub fn report(error: &clap::Error, json: bool) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::text(&error.render().ansi().to_string());
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::error_text(&error.render().ansi().to_string());
            ExitCode::from(2)
        }
        _ => {
            let mut text = error.render().ansi().to_string();
            let (mut detail, plain) = (ErrorDetail::new(Kind::InvalidArgument, ""), error.render().to_string());
            let first = plain.split("\n\n").next().unwrap_or_default();
            let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
            detail.message = words.join(" ");
            // The help of a command has its examples already; a usage error gets the first one.
            if !matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(s)) if s.to_string().contains("Examples:"))
                && let Some(example) = examples::for_arguments(std::env::args().skip(1))
            {
                detail.remedy = format!("Example: {example}");
                text.push_str(&format!("\n{}\n", detail.remedy));
            }
            if json {
                output::json(&ErrorBody { error: detail });
            }
            output::error_text(&text);
            ExitCode::from(2)
        }
    }
}

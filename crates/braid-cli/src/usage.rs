//! What is said of a command line that was not understood.

use super::{examples, output};
use braid_api::{ErrorBody, ErrorDetail, Kind};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::process::ExitCode;

/// What clap has to say: help and version on standard output with status 0, everything else with a right
/// example and status 2. With `json`, standard output gets the error in the shape of the API besides.
pub fn report(error: &clap::Error, json: bool) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::text(&error.render().ansi().to_string());
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::complain(&error.render().ansi().to_string());
            ExitCode::from(2)
        }
        _ => {
            let mut text = error.render().ansi().to_string();
            let (mut detail, plain) = (ErrorDetail::new(Kind::InvalidArgument, ""), error.render().to_string());
            let first = plain.split("\n\n").next().unwrap_or_default();
            let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
            detail.message = words.join(" ");
            // Help of a command has its examples already; a usage error gets the first one.
            if !matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(s)) if s.to_string().contains("Examples:"))
                && let Some(example) = examples::for_arguments(std::env::args().skip(1))
            {
                detail.remedy = format!("A right one: {example}");
                text.push_str(&format!("\n{}\n", detail.remedy));
            }
            if json {
                output::json(&ErrorBody { error: detail });
            }
            output::complain(&text);
            ExitCode::from(2)
        }
    }
}

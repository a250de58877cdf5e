//! Asks for confirmation before something is destroyed.

use braid_api::{ErrorDetail, Kind};
use clap::Args;
use std::io::{BufRead, IsTerminal, Write};

/// `--yes` of a command that never asks for confirmation. Such commands accept the option, so that a script may pass it to every
/// command that stops, removes or cancels something.
#[derive(Args, Clone, Copy)]
pub struct YesArgs {
    /// Accepted for scripts; this command does not ask for confirmation
    #[arg(id = "yes", long = "yes")]
    _yes: bool,
}

/// Returns `Ok` if the user confirms: `yes` was given, or a person at a terminal answered yes.
///
/// # Errors
/// [`Kind::NeedsConfirmation`] if there is no terminal, or the answer was no.
pub fn confirm(what: &str, yes: bool) -> Result<(), ErrorDetail> {
    if yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || !std::io::stderr().is_terminal() {
        return Err(ErrorDetail::new(Kind::NeedsConfirmation, format!("{what}: this needs to be confirmed"))
            .remedy("add --yes to confirm"));
    }
    let mut stderr = std::io::stderr().lock();
    // A prompt that cannot be shown counts as answered with no.
    let prompted = write!(stderr, "{what}. Continue? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    if prompted.is_ok() && stdin.lock().read_line(&mut answer).is_ok() {
        let answer = answer.trim().to_ascii_lowercase();
        if answer == "y" || answer == "yes" {
            return Ok(());
        }
    }
    Err(ErrorDetail::new(Kind::NeedsConfirmation, "not confirmed: nothing was changed")
        .remedy("answer y, or add --yes"))
}

//! Asks before something is destroyed.

use braid_api::{ErrorDetail, Kind};
use std::io::{BufRead, IsTerminal, Write};

/// Returns if the user wants it: `yes` was given, or a person at a terminal answered so.
///
/// # Errors
/// [`Kind::NeedsConfirmation`] where nobody can be asked, or the answer was no.
pub fn confirm(what: &str, yes: bool) -> Result<(), ErrorDetail> {
    if yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || !std::io::stderr().is_terminal() {
        return Err(ErrorDetail::new(Kind::NeedsConfirmation, format!("{what}: this needs to be confirmed"))
            .remedy("add --yes if that is what you want"));
    }
    let mut stderr = std::io::stderr().lock();
    // A prompt that cannot be shown is answered by nobody: the answer is no.
    let asked = write!(stderr, "{what}. Go on? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    if asked.is_ok() && stdin.lock().read_line(&mut answer).is_ok() {
        let answer = answer.trim().to_ascii_lowercase();
        if answer == "y" || answer == "yes" {
            return Ok(());
        }
    }
    Err(ErrorDetail::new(Kind::NeedsConfirmation, "nothing was done").remedy("answer y, or add --yes"))
}

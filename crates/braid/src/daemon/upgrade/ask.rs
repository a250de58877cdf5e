//! `braid serve --upgrade` from the side of who types it.

use braid_api::{ErrorDetail, Kind, Status, Upgrade, Upgraded, Upgrading};
use braid_client::Client;
use braid_config::places::Places;
use braid_terminal::output;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Longest that the daemon is waited for: an end has half a minute, and a start as much.
const BACK_MAX: Duration = Duration::from_secs(90);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Asks the daemon at a socket to become the program that runs this, and waits until it serves as that.
///
/// # Errors
/// The daemon's; it does not answer, or went on as it was.
pub async fn run(socket: Option<&Path>, json: bool) -> anyhow::Result<ExitCode> {
    let socket = Places::find_socket(socket)?;
    let own = std::env::current_exe().map_err(|error| {
        ErrorDetail::new(Kind::Internal, format!("the program that is running cannot be found: {error}"))
    })?;
    let ask = Upgrade { binary: own.display().to_string() };
    let begun: Upgrading = Client::at_socket(&socket).post("/v1/upgrade", &ask).await?;
    let done = tokio::time::timeout(BACK_MAX, wait(&socket, begun.number)).await.map_err(|_| {
        let message = format!("process {} has not come back within {} s", begun.pid, BACK_MAX.as_secs());
        ErrorDetail::new(Kind::TimedOut, message).remedy("look at its log (journalctl -u braid)")
    })?;
    if let Some(why) = &done.failed {
        return Err(ErrorDetail::new(Kind::Internal, format!("the daemon went on as {}: {why}", done.to))
            .remedy("nothing is lost; look at its log (journalctl -u braid)")
            .into());
    }
    output::show(json, &done, |done| {
        let pause = done.pause_ms.map(|ms| format!(": exports waited for {ms} ms")).unwrap_or_default();
        format!("process {} went on from braid {} to braid {}{pause}\n", begun.pid, done.from, done.to)
    });
    Ok(ExitCode::SUCCESS)
}

/// Waits until the daemon says that this upgrade is over. Calls that come to nothing meanwhile are those of the old one.
async fn wait(socket: &Path, number: u64) -> Upgraded {
    loop {
        // A connection of its own each time: the old daemon's is of no use.
        if let Ok(status) = Client::at_socket(socket).get::<Status>("/v1/status").await
            && let Some(done) = status.upgrade
            && done.number >= number
            && done.pause_ms.is_some()
        {
            return done;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

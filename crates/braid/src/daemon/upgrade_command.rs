//! The client side of `braid serve --upgrade`.

use braid_api::{ErrorDetail, Kind, Status, Upgrade, Upgraded, Upgrading};
use braid_client::Client;
use braid_config::paths::DaemonPaths;
use braid_terminal::output;
use braid_terminal::progress::Waiting;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Maximum time to wait for the daemon: a stop may take half a minute, and so may a start.
const RETURN_MAX: Duration = Duration::from_secs(90);
/// Interval between two queries.
const QUERY_INTERVAL: Duration = Duration::from_millis(20);

/// Requests the daemon at a socket to become the running program, and waits until it serves as that.
///
/// # Errors
/// The daemon's; it does not answer, or continued as the old program.
pub async fn run(socket: Option<&Path>, json: bool) -> anyhow::Result<ExitCode> {
    let socket = DaemonPaths::find_socket(socket)?;
    let own = std::env::current_exe().map_err(|error| {
        ErrorDetail::new(Kind::Internal, format!("the program that is running cannot be found: {error}"))
    })?;
    let request = Upgrade { binary: own.display().to_string() };
    let waiting = Waiting::begin(|| "the daemon: upgrading it".to_owned());
    let started: Upgrading = Client::at_socket(&socket).post("/v1/upgrade", &request).await?;
    let done = tokio::time::timeout(RETURN_MAX, wait(&socket, started.number)).await.map_err(|_| {
        let message = format!("process {} has not come back within {} s", started.pid, RETURN_MAX.as_secs());
        ErrorDetail::new(Kind::TimedOut, message).remedy("look at its log (journalctl -u braid)")
    })?;
    drop(waiting);
    if let Some(why) = &done.failed {
        return Err(ErrorDetail::new(Kind::Internal, format!("the daemon went on as {}: {why}", done.to))
            .remedy("nothing is lost; look at its log (journalctl -u braid)")
            .into());
    }
    output::show(json, &done, |done| {
        let pause = done.pause_ms.map(|ms| format!(": exports waited for {ms} ms")).unwrap_or_default();
        format!("process {} went on from braid {} to braid {}{pause}\n", started.pid, done.from, done.to)
    });
    Ok(ExitCode::SUCCESS)
}

/// Waits until the daemon reports the end of this upgrade. Failed calls meanwhile belong to the stop of the old
/// program.
async fn wait(socket: &Path, number: u64) -> Upgraded {
    loop {
        // A new connection each time: one to the old program ends with it.
        if let Ok(status) = Client::at_socket(socket).get::<Status>("/v1/status").await
            && let Some(done) = status.upgrade
            && done.number >= number
            && done.pause_ms.is_some()
        {
            return done;
        }
        tokio::time::sleep(QUERY_INTERVAL).await;
    }
}

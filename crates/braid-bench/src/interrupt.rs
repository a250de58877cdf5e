//! Ctrl-C in the middle of a run: what was measured so far is told all the same.
//!
//! The first signal asks the run to end: nothing new begins, what is in flight is waited for. The second one ends the process
//! at once, as a disk or a server may never answer.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Catches SIGINT and SIGTERM from now on.
///
/// # Errors
/// They cannot be caught, or there is no thread for it.
pub fn watch() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("signals cannot be waited for")?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        let caught = signal(SignalKind::interrupt()).and_then(|one| Ok((one, signal(SignalKind::terminate())?)));
        caught.context("signals cannot be caught")?
    };
    let wait = move || {
        runtime.block_on(async {
            loop {
                let status = tokio::select! {
                    _ = interrupt.recv() => 130,
                    _ = terminate.recv() => 143,
                };
                if ASKED.swap(true, Ordering::AcqRel) {
                    exit(status);
                }
                eprintln!("interrupted: what is in flight is waited for; once more ends at once");
            }
        });
    };
    std::thread::Builder::new().name("bench-signals".into()).spawn(wait).context("signals cannot be waited for")?;
    Ok(())
}

/// Whether the run is to end.
pub fn asked() -> bool {
    ASKED.load(Ordering::Acquire)
}

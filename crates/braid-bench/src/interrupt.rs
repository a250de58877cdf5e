//! Interruption of a run (SIGINT, SIGTERM): what was measured so far is reported.
//!
//! The first signal requests the end of the run: no I/O is begun any more, and those in flight are waited for. The second signal ends the
//! process at once, because a disk or a server may never reply.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Catches SIGINT and SIGTERM from now on.
///
/// # Errors
/// The signals cannot be caught, or the thread that waits for them cannot be started.
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
                if REQUESTED.swap(true, Ordering::AcqRel) {
                    exit(status);
                }
                eprintln!("interrupted: waiting for I/Os in flight; interrupt once more to end at once");
            }
        });
    };
    std::thread::Builder::new().name("bench-signals".into()).spawn(wait).context("signals cannot be waited for")?;
    Ok(())
}

/// Returns whether the end of the run was requested.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}

//! Panics: they are logged, and a panic of a shard ends the daemon.
//!
//! A shard that has panicked leaves its clients without replies, and its share of every array without flushes. A daemon
//! that continued would only seem healthy; one that ends is restarted by its service manager, as after a kill.

use braid_api::{ErrorDetail, Kind};
use std::panic::PanicHookInfo;
use tokio::sync::mpsc;

/// Receives the panics of shards.
pub struct Panics {
    receiver: mpsc::Receiver<String>,
}

impl Panics {
    /// Installs a hook for the panics of all threads.
    pub fn watch() -> Panics {
        let (sender, receiver) = mpsc::channel(1);
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name");
            tracing::error!("thread {name} panicked: {}", describe(panic));
            if let Some(shard) = name.strip_prefix("shard-") {
                // A second panic adds nothing: the daemon ends already.
                let _ = sender.try_send(format!("shard {shard} has panicked: {}", describe(panic)));
            }
        }));
        Panics { receiver }
    }

    /// Waits for the first panic of a shard, and returns it as the error that ends the daemon.
    pub async fn of_a_shard(&mut self) -> ErrorDetail {
        match self.receiver.recv().await {
            Some(what) => ErrorDetail::new(Kind::Internal, format!("{what}; the daemon ends at once")).remedy(
                "start it again: what was acknowledged survives the daemon, and what was flushed a loss of power, too; \
                 this is a bug in Braid, please report it",
            ),
            // The hook, which holds the sender, lives as long as the process.
            None => std::future::pending().await,
        }
    }
}

/// Returns the message and location of a panic, and with RUST_BACKTRACE=1 the backtrace.
fn describe(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("without a word");
    let location = panic.location().map(|location| format!(" at {location}")).unwrap_or_default();
    let backtrace = std::backtrace::Backtrace::capture();
    match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => format!("{what}{location}\n{backtrace}"),
        _ => format!("{what}{location}"),
    }
}

/// Makes a shard panic, for tests: only in builds with debug assertions, and only if `BRAID_DEBUG_PANIC_SHARD` names a
/// shard. SIGUSR1 triggers it.
#[cfg(debug_assertions)]
pub mod injection {
    use braid_engine::{Completion, ShardId};
    use braid_ring::{Cx, Frontend, RingHandle};
    use std::any::Any;
    use tokio::signal::unix::{SignalKind, signal};

    /// Its index among the frontends of a shard, after those that serve.
    const FRONTEND: usize = 3;

    /// Panics at the first message.
    pub struct PanicFrontend;

    impl Frontend for PanicFrontend {
        fn io_done(&mut self, _cx: &mut Cx<'_>, _completion: &Completion) {}

        fn message(&mut self, _cx: &mut Cx<'_>, _message: Box<dyn Any + Send>) {
            panic!("a test has requested it");
        }
    }

    /// Waits for the signal, if the variable is set.
    pub fn inject_on_signal(ring: RingHandle) {
        let named = std::env::var("BRAID_DEBUG_PANIC_SHARD").ok().and_then(|shard| shard.parse().ok());
        let Some(shard) = named.filter(|shard| *shard < ring.shards()) else { return };
        let Ok(mut requested) = signal(SignalKind::user_defined1()) else { return };
        braid_tasks::spawn(async move {
            requested.recv().await;
            ring.post(ShardId(shard), FRONTEND, Box::new(()));
        });
    }
}

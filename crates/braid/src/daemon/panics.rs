//! Panics: what they say goes to the log, and one of a shard ends the daemon.
//!
//! A shard that is gone leaves its clients without answers, and its share of every array without flushes. Going on would
//! be a daemon that looks well and is not; one that ends is started again by its service manager, as after a kill.

use braid_api::{ErrorDetail, Kind};
use std::panic::PanicHookInfo;
use tokio::sync::mpsc;

/// Says which shards have panicked.
pub struct Panics {
    told: mpsc::Receiver<String>,
}

impl Panics {
    /// Watches all threads from now on.
    pub fn watch() -> Panics {
        let (tell, told) = mpsc::channel(1);
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name");
            tracing::error!("thread {name} panicked: {}", words(panic));
            if let Some(shard) = name.strip_prefix("shard-") {
                // A second one adds nothing: the daemon ends already.
                let _ = tell.try_send(format!("shard {shard} has panicked: {}", words(panic)));
            }
        }));
        Panics { told }
    }

    /// The first panic of a shard, as the error that ends the daemon.
    pub async fn of_a_shard(&mut self) -> ErrorDetail {
        match self.told.recv().await {
            Some(what) => ErrorDetail::new(Kind::Internal, format!("{what}; the daemon ends at once")).remedy(
                "start it again: what was acknowledged survives the daemon, and what was flushed a loss of power, too; \
                 this is a mistake in Braid, please report it",
            ),
            // The hook, which holds the other end, lives as long as the process.
            None => std::future::pending().await,
        }
    }
}

/// What was said, where, and with RUST_BACKTRACE=1 the way there.
fn words(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("without a word");
    let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let way = std::backtrace::Backtrace::capture();
    match way.status() {
        std::backtrace::BacktraceStatus::Captured => format!("{what}{place}\n{way}"),
        _ => format!("{what}{place}"),
    }
}

/// A way to make a shard panic, for tests: only in builds with debug assertions, and only when
/// `BRAID_DEBUG_PANIC_SHARD` names one. SIGUSR1 does it then.
#[cfg(debug_assertions)]
pub mod planted {
    use braid_engine::{Completion, ShardId};
    use braid_ring::{Cx, Frontend, RingHandle};
    use std::any::Any;
    use tokio::signal::unix::{SignalKind, signal};

    /// Its place among the frontends of a shard, after those that serve.
    const FRONTEND: usize = 3;

    /// Panics at the first message.
    pub struct Bomb;

    impl Frontend for Bomb {
        fn io_done(&mut self, _cx: &mut Cx<'_>, _completion: &Completion) {}

        fn message(&mut self, _cx: &mut Cx<'_>, _message: Box<dyn Any + Send>) {
            panic!("a test asked for it");
        }
    }

    /// Waits for the signal, if the variable is set.
    pub fn arm(ring: RingHandle) {
        let named = std::env::var("BRAID_DEBUG_PANIC_SHARD").ok().and_then(|shard| shard.parse().ok());
        let Some(shard) = named.filter(|shard| *shard < ring.shards()) else { return };
        let Ok(mut asked) = signal(SignalKind::user_defined1()) else { return };
        tokio::spawn(async move {
            asked.recv().await;
            ring.post(ShardId(shard), FRONTEND, Box::new(()));
        });
    }
}

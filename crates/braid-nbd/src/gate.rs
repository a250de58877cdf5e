//! Exports that are not for everybody who knows their name: whoever asks says on which terms, behind a `?` in the name, may have to wait,
//! and may be cut off later.
//!
//! A connection holds a [`Pass`] from its question on until the kernel has nothing of its I/O any more, also of what ran into its time limit: the
//! gate hears of the end when the last hold on it goes. So nothing is counted request by request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Decides who may use an export. Nothing of this may wait.
pub trait Gate: Send + Sync {
    /// Somebody asks, with what the name says behind its `?`.
    ///
    /// # Errors
    /// Why not.
    fn ask(&self, terms: &str) -> Result<Arc<Pass>, Denied>;
}

/// Why somebody is not let in, in words for whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Not on these terms, whenever it comes: told as `ERR_POLICY`.
    Never(String),
    /// It may come again: told as `ERR_SHUTDOWN`.
    Now(String),
}

/// What becomes of whoever has asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is not decided yet.
    Waits,
    /// I/O may begin.
    Admitted,
    /// No further I/O may begin.
    Cut,
}

/// The right to use an export, for one connection.
pub struct Pass {
    standing: AtomicU8,
    /// Called when nothing of the connection is left.
    ended: Box<dyn Fn() + Send + Sync>,
}

const WAITS: u8 = 0;
const ADMITTED: u8 = 1;
const CUT: u8 = 2;

impl Pass {
    /// One that waits, and what is to be called at its end.
    pub fn new(ended: impl Fn() + Send + Sync + 'static) -> Pass {
        Pass { standing: AtomicU8::new(WAITS), ended: Box::new(ended) }
    }

    /// Lets it in, unless it is cut off. The shards look at it with the next message [`crate::server::ExportsChanged`].
    pub fn admit(&self) {
        let _ = self.standing.compare_exchange(WAITS, ADMITTED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Lets no further I/O begin; the connection is closed with the same message.
    pub fn cut(&self) {
        self.standing.store(CUT, Ordering::Release);
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            WAITS => Standing::Waits,
            ADMITTED => Standing::Admitted,
            _ => Standing::Cut,
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        (self.ended)();
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pass").field(&self.standing()).finish()
    }
}

//! When a voter has heard of its controller last: whoever opens the volume by force asks that. It is not durable: a voter that begins takes its controller for alive.

use braid_engine::replica::{Answer, Register};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The last time; none: it has no controller, or that one has let go.
pub struct Heard(Mutex<Option<Instant>>);

impl Heard {
    /// Of a voter that begins with this register.
    pub fn at_start(register: &Register) -> Heard {
        let has_one = register.epoch > 0 && !register.released;
        Heard(Mutex::new(has_one.then(Instant::now)))
    }

    /// The controller was answered this.
    pub fn note(&self, answer: &Answer) {
        let now = Some(Instant::now()).filter(|_| *answer != Answer::Released);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// How long ago that was.
    pub fn ago(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|last| last.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_let_go_is_heard_of_no_more_and_who_may_live_is_at_first() {
        let served = Register { epoch: 3, ..Register::default() };
        assert!(Heard::at_start(&served).ago().is_some());
        assert_eq!(Heard::at_start(&Register { released: true, ..served }).ago(), None);
        let heard = Heard::at_start(&Register::default());
        assert_eq!(heard.ago(), None);
        heard.note(&Answer::Alive);
        assert!(heard.ago().is_some());
        heard.note(&Answer::Released);
        assert_eq!(heard.ago(), None);
    }
}

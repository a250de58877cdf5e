//! When a voter last replied to its controller. A forced attach of the volume on another node depends on that time. The
//! time is not durable: a voter with a controller counts from its own start until the first reply.

use braid_engine::replica::{Register, VoterReply};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time of a voter's last reply to its controller; `None`: the voter has no controller, or the controller has
/// released it.
pub struct ControllerContact(Mutex<Option<Instant>>);

impl ControllerContact {
    /// Returns the state of a voter that starts with this register.
    pub(crate) fn at_start(register: &Register) -> ControllerContact {
        let has_one = register.epoch > 0 && !register.released;
        ControllerContact(Mutex::new(has_one.then(Instant::now)))
    }

    /// Records a reply to the controller.
    pub fn record(&self, reply: &VoterReply) {
        let now = Some(Instant::now()).filter(|_| *reply != VoterReply::Released);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Returns the time since the last reply; `None`: the voter has no controller, or the controller has released it.
    pub fn silent_for(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|last| last.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_controller_is_forgotten_and_a_possibly_live_one_counts_at_first() {
        let served = Register { epoch: 3, ..Register::default() };
        assert!(ControllerContact::at_start(&served).silent_for().is_some());
        assert_eq!(ControllerContact::at_start(&Register { released: true, ..served }).silent_for(), None);
        let contact = ControllerContact::at_start(&Register::default());
        assert_eq!(contact.silent_for(), None);
        contact.record(&VoterReply::Alive);
        assert!(contact.silent_for().is_some());
        contact.record(&VoterReply::Released);
        assert_eq!(contact.silent_for(), None);
    }
}

//! Failures of members, on their way from the shards to whoever keeps the array.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use braid_engine::{DeviceId, Trouble};

/// Failed reads of one array that wait to be taken; more are forgotten, as the next read of such a place fails again.
const READS_MAX: usize = 64;

#[derive(Default)]
struct Of {
    queue: VecDeque<Trouble>,
    wakers: Vec<Waker>,
}

impl Of {
    /// Takes one in, unless nothing new is said by it. What freezes a device is told once for each member and layout, and
    /// there are only so many of these; it is never forgotten.
    fn add(&mut self, trouble: Trouble) {
        let same = |t: &Trouble| (t.version, t.role, t.is_frozen()) == (trouble.version, trouble.role, true);
        let superfluous = match trouble.is_frozen() {
            true => self.queue.iter().any(same),
            false => self.queue.iter().filter(|t| !t.is_frozen()).count() >= READS_MAX,
        };
        if !superfluous {
            self.queue.push_back(trouble);
        }
    }
}

/// The troubles of all arrays.
#[derive(Default)]
pub(crate) struct Troubles(Mutex<HashMap<DeviceId, Of>>);

impl Troubles {
    fn with<R>(&self, work: impl FnOnce(&mut HashMap<DeviceId, Of>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A shard tells of one.
    #[cold]
    pub(crate) fn tell(&self, trouble: Trouble) {
        let wakers = self.with(|all| {
            let of = all.entry(trouble.device).or_default();
            of.add(trouble);
            std::mem::take(&mut of.wakers)
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The next one of a device, or a note of whom to wake when it is there.
    pub(crate) fn poll(&self, device: DeviceId, cx: &Context<'_>) -> Poll<Trouble> {
        self.with(|all| {
            let of = all.entry(device).or_default();
            if let Some(trouble) = of.queue.pop_front() {
                return Poll::Ready(trouble);
            }
            if !of.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                of.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// The device is no more: another one may get its number.
    pub(crate) fn forget(&self, device: DeviceId) {
        self.with(|all| all.remove(&device));
    }
}

#[cfg(test)]
mod tests {
    use braid_engine::{ErrorKind, LeafId, Op};

    use super::*;

    fn trouble(op: Op, role: u16, version: u32) -> Trouble {
        let (device, leaf) = (DeviceId(3), LeafId(u32::from(role)));
        Trouble { device, version, role, leaf, op, kind: ErrorKind::Io, errno: 5, offset: 0, len: 4096 }
    }

    #[test]
    fn what_freezes_is_kept_whatever_else_is_told() {
        let troubles = Troubles::default();
        (0..2 * READS_MAX).for_each(|_| troubles.tell(trouble(Op::Read, 0, 1)));
        for role in 0..128 {
            // Two shards tell the same.
            troubles.tell(trouble(Op::Write, role, 1));
            troubles.tell(trouble(Op::Flush, role, 1));
        }
        troubles.tell(trouble(Op::Write, 0, 2));
        let cx = Context::from_waker(Waker::noop());
        let next = || match troubles.poll(DeviceId(3), &cx) {
            Poll::Ready(trouble) => Some(trouble),
            Poll::Pending => None,
        };
        let all: Vec<Trouble> = std::iter::from_fn(next).collect();
        assert_eq!(all.iter().filter(|t| t.op == Op::Read).count(), READS_MAX);
        let frozen: Vec<(u32, u16)> = all.iter().filter(|t| t.is_frozen()).map(|t| (t.version, t.role)).collect();
        let expected: Vec<(u32, u16)> = (0..128).map(|role| (1, role)).chain([(2, 0)]).collect();
        assert_eq!(frozen, expected);
        troubles.tell(trouble(Op::Write, 0, 3));
        troubles.forget(DeviceId(3));
        assert!(troubles.poll(DeviceId(3), &cx).is_pending());
    }
}

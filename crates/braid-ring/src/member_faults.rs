//! Faults of members, on their way from the shards to the monitors of arrays.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use braid_engine::{DeviceId, Fault};

/// Maximum number of queued read faults of one array. Further ones are dropped: the next read of the same range fails
/// again.
const READS_MAX: usize = 64;

#[derive(Default)]
struct DeviceFaults {
    queue: VecDeque<Fault>,
    wakers: Vec<Waker>,
}

impl DeviceFaults {
    /// Adds a fault, unless it is redundant. A fault that freezes the device is queued once for each member and layout
    /// version, which bounds the queue, and is never dropped.
    fn add(&mut self, fault: Fault) {
        let same = |t: &Fault| (t.version, t.role, t.freezes_device()) == (fault.version, fault.role, true);
        let redundant = match fault.freezes_device() {
            true => self.queue.iter().any(same),
            false => self.queue.iter().filter(|t| !t.freezes_device()).count() >= READS_MAX,
        };
        if !redundant {
            self.queue.push_back(fault);
        }
    }
}

/// The queued faults of all arrays.
#[derive(Default)]
pub(crate) struct MemberFaults(Mutex<HashMap<DeviceId, DeviceFaults>>);

impl MemberFaults {
    fn with<R>(&self, work: impl FnOnce(&mut HashMap<DeviceId, DeviceFaults>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Queues a fault that a shard reports.
    #[cold]
    pub(crate) fn report(&self, fault: Fault) {
        let wakers = self.with(|all| {
            let faults = all.entry(fault.device).or_default();
            faults.add(fault);
            std::mem::take(&mut faults.wakers)
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes the next fault of a device, or registers the waker for it.
    pub(crate) fn poll(&self, device: DeviceId, cx: &Context<'_>) -> Poll<Fault> {
        self.with(|all| {
            let faults = all.entry(device).or_default();
            if let Some(fault) = faults.queue.pop_front() {
                return Poll::Ready(fault);
            }
            if !faults.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                faults.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Forgets a device that no longer exists: another device may get its number.
    pub(crate) fn forget(&self, device: DeviceId) {
        self.with(|all| all.remove(&device));
    }
}

#[cfg(test)]
mod tests {
    use braid_engine::{ErrorKind, LeafId, Op};

    use super::*;

    fn fault(op: Op, role: u16, version: u32) -> Fault {
        let (device, leaf) = (DeviceId(3), LeafId(u32::from(role)));
        Fault { device, version, role, leaf, op, kind: ErrorKind::Io, errno: 5, offset: 0, len: 4096 }
    }

    #[test]
    fn freezing_faults_are_never_dropped() {
        let member_faults = MemberFaults::default();
        (0..2 * READS_MAX).for_each(|_| member_faults.report(fault(Op::Read, 0, 1)));
        for role in 0..128 {
            // Two shards report the same fault.
            member_faults.report(fault(Op::Write, role, 1));
            member_faults.report(fault(Op::Flush, role, 1));
        }
        member_faults.report(fault(Op::Write, 0, 2));
        let cx = Context::from_waker(Waker::noop());
        let next = || match member_faults.poll(DeviceId(3), &cx) {
            Poll::Ready(fault) => Some(fault),
            Poll::Pending => None,
        };
        let all: Vec<Fault> = std::iter::from_fn(next).collect();
        assert_eq!(all.iter().filter(|t| t.op == Op::Read).count(), READS_MAX);
        let frozen: Vec<(u32, u16)> = all.iter().filter(|t| t.freezes_device()).map(|t| (t.version, t.role)).collect();
        let expected: Vec<(u32, u16)> = (0..128).map(|role| (1, role)).chain([(2, 0)]).collect();
        assert_eq!(frozen, expected);
        member_faults.report(fault(Op::Write, 0, 3));
        member_faults.forget(DeviceId(3));
        assert!(member_faults.poll(DeviceId(3), &cx).is_pending());
    }
}

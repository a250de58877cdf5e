//! A frontend that keeps a number of requests in flight.

use std::any::Any;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use braid_engine::{Buf, Completion, DeviceId, Flags, Op, Request, ShardId};
use braid_ring::{Cx, Frontend, RingHandle};

use super::Random;

/// What to do. Offsets are random multiples of `len` below `size`.
#[derive(Clone)]
pub struct Order {
    pub device: DeviceId,
    pub size: u64,
    pub len: u64,
    pub depth: u64,
    /// Total number of requests.
    pub total: u64,
    /// Writes out of ten requests. If not 0, one in a hundred requests is a flush.
    pub writes: u64,
    /// Called on the shard's thread before the first request and after the last.
    pub probe: fn(),
}

/// The result of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub ended: u64,
    pub errors: u64,
    pub took: Duration,
}

pub struct Load {
    order: Option<(Order, Sender<Outcome>)>,
    buf: Buf,
    outcome: Outcome,
    started: u64,
    begin: Instant,
    random: Random,
    stopping: bool,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            order: None,
            buf: Buf::NONE,
            outcome: Outcome::default(),
            started: 0,
            begin: Instant::now(),
            random: Random(1),
            stopping: false,
        }
    }
}

/// Starts a load on a shard. Its frontend number `frontend` must be a [`Load`].
pub fn begin(handle: &RingHandle, shard: u16, frontend: usize, order: &Order) -> Receiver<Outcome> {
    let (sender, receiver) = channel();
    handle.post(ShardId(shard), frontend, Box::new((order.clone(), sender)));
    receiver
}

impl Load {
    fn submit(&mut self, cx: &mut Cx<'_>, tag: u64) {
        let Some((order, _)) = &self.order else { return };
        let device = order.device;
        let flags = Flags::NONE;
        let dice = self.random.below(100);
        let request = if dice == 0 && order.writes > 0 {
            Request { device, op: Op::Flush, flags, offset: 0, len: 0, buf: Buf::NONE, tag }
        } else {
            let op = if dice < order.writes * 10 { Op::Write } else { Op::Read };
            let offset = self.random.below(order.size / order.len) * order.len;
            Request { device, op, flags, offset, len: order.len, buf: self.buf.add(tag * order.len), tag }
        };
        self.started += 1;
        cx.submit(&request).expect("a load of modest depth is accepted");
    }
}

impl Frontend for Load {
    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let order = *message.downcast::<(Order, Sender<Outcome>)>().expect("loads get orders");
        let (depth, len) = (order.0.depth, order.0.len);
        self.buf = cx.alloc((depth * len) as usize).expect("the arena has room for the tests");
        self.begin = Instant::now();
        (self.started, self.outcome) = (0, Outcome::default());
        (order.0.probe)();
        self.order = Some(order);
        (0..depth).for_each(|tag| self.submit(cx, tag));
    }

    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        self.outcome.ended += 1;
        self.outcome.errors += u64::from(completion.result.is_err());
        let Some((order, _)) = &self.order else { return };
        if self.started < order.total && !self.stopping {
            self.submit(cx, completion.tag);
        } else if self.outcome.ended == self.started
            && let Some((order, sender)) = self.order.take()
        {
            (order.probe)();
            cx.free(self.buf, (order.depth * order.len) as usize);
            self.outcome.took = self.begin.elapsed();
            let _ = sender.send(self.outcome);
        }
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {
        self.stopping = true;
    }
}

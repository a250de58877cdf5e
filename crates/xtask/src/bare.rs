//! The cheapest possible load: the same block again and again, without a pattern, timestamps or a record of what was written. `make bench`
//! subtracts the cost of the engine under it from the cost under the load generator of `braid bench`.

use std::any::Any;
use std::sync::mpsc::SyncSender;

use braid_bench::frontend::{Pass, Phase, PhaseDone};
use braid_engine::{Completion, Flags, Op, Request};
use braid_ring::{Cx, Frontend};

/// The frontend of one job: the load generator.
pub struct BareFrontend {
    done: SyncSender<PhaseDone>,
    request: Option<Request>,
    begun_ns: u64,
    deadline_ns: u64,
    ios: u64,
    in_flight: u32,
}

impl BareFrontend {
    /// Returns a frontend that sends the result of each phase to `done`.
    pub fn boxed(done: SyncSender<PhaseDone>) -> Box<dyn Frontend> {
        Box::new(BareFrontend { done, request: None, begun_ns: 0, deadline_ns: 0, ios: 0, in_flight: 0 })
    }
}

impl Frontend for BareFrontend {
    #[inline(always)]
    fn io_done(&mut self, cx: &mut Cx<'_>, _: &Completion) {
        self.ios += 1;
        self.in_flight -= 1;
        if let Some(request) = &self.request {
            self.in_flight += u32::from(cx.submit(request).is_ok());
        }
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let Ok(phase) = message.downcast::<Phase>() else { return };
        let Pass::Run { time_ns, .. } = phase.pass else { return };
        let load = &phase.load;
        let len = load.block_bytes;
        let buf = cx.alloc(len as usize).expect("the arena has room for a block");
        let op = if load.visit.reads_percent == 0 { Op::Write } else { Op::Read };
        let request =
            Request { device: load.device, op, flags: Flags::NONE, offset: load.first_byte, len, buf, tag: 0 };
        (self.begun_ns, self.deadline_ns, self.ios) = (cx.now_ns(), cx.now_ns().saturating_add(time_ns), 0);
        self.in_flight = (0..load.depth).map(|_| u32::from(cx.submit(&request).is_ok())).sum();
        self.request = Some(request);
    }

    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        let Some(request) = self.request else { return };
        if cx.now_ns() < self.deadline_ns {
            return;
        }
        self.request = None;
        cx.free(request.buf, request.len as usize);
        let done = PhaseDone { ios: self.ios, begun_ns: self.begun_ns, ended_ns: cx.now_ns(), ..PhaseDone::new() };
        let _ = self.done.try_send(done);
    }
}

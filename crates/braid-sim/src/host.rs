//! The simulated process: its shards, the messages between them, and the publication of layouts to each shard.
//!
//! The host takes the place of `braid-ring` in the real program. It makes no decisions about data.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use braid_engine::io::{
    Buf, Completion, Cookie, DeviceId, ErrorKind, IoError, LeafId, LeafIo, LeafResult, LeafSink, META_BLOCKS, Op,
    Request,
};
use braid_engine::layout::DeviceLayout;
use braid_engine::pool::Pool;
use braid_engine::{
    Compared, ComputeFn, Fault, Limits, PoolCall, PoolKey, PoolMembers, RegionCall, SCRATCH_BYTES_MIN, Shard,
    ShardMessage, Shared, SyncPart, SyncRequest,
};

use crate::device_request::{DeviceReply, DeviceRequest};
use crate::devices::{Completed, OF_TASKS, Requests};
use crate::memory::Memory;
use crate::rng::Rng;
use crate::world::{World, WorldEvent};

/// Tag of requests that the shard drops when it begins them, because their client has disconnected. No simulated client
/// uses this tag.
const CALLED_OFF: u64 = OF_TASKS - 1;

/// An event that the shards report to the simulated world.
#[derive(Debug)]
pub enum HostEvent {
    /// A request was answered.
    Done(Completion),
    /// The buffer of a request that was answered earlier is free.
    Released(u64),
    /// The publish with this number is complete on all shards: no request uses the replaced layout any more.
    Drained(u64),
    /// The freeze with this number is complete: every shard has frozen the device.
    Frozen(u64),
    /// The task request with this number has ended.
    TaskReply(u64, DeviceReply),
    /// The part of a job (a range to be compared or copied) with this number has ended.
    Synced(u64, Result<Compared, IoError>),
    /// The home shard of an array's regions has completed the call with this number.
    RegionCallDone(u64),
    /// A member failed.
    Fault(Fault),
    /// The pool call with this number has ended. The flag says whether a requested commit succeeded.
    PoolCallDone(u64, bool),
}

/// The state of a publish on one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PublishStage {
    Posted,
    Draining(u32),
    Done,
}

struct Publish {
    device: DeviceId,
    stages: Vec<PublishStage>,
}

/// A message of the control plane to a shard.
enum Mail {
    Publish(u64, DeviceId, Option<Arc<DeviceLayout>>),
    Freeze(u64, DeviceId),
    Renewed(DeviceId),
    Request(u64, DeviceRequest),
    Sync(u64, SyncPart),
    Call(u64, DeviceId, RegionCall),
}

/// One process.
pub struct Host {
    shards: Vec<Shard>,
    shared: Arc<Shared>,
    meta_blocks: Vec<Vec<Buf>>,
    channels: Vec<Channel<ShardMessage>>,
    mailboxes: Vec<Channel<Mail>>,
    publishes: BTreeMap<u64, Publish>,
    /// By number of the freeze, the number of shards that have not frozen the device yet.
    freezes: BTreeMap<u64, usize>,
    /// The buffer of each part of a job in flight, by the part's number, and its length in bytes.
    syncs: BTreeMap<u64, (Buf, usize)>,
    /// Requests of tasks to devices.
    requests: Requests,
    /// By shard, whether the event that ends its driver's turn is scheduled.
    turns: Vec<bool>,
    /// Maximum delay of a message to each shard, in nanoseconds.
    message_ns_max: Vec<u64>,
    rng: Rng,
    /// Events that the caller handles after every call.
    pub events: VecDeque<HostEvent>,
    ended: Vec<Completion>,
}

/// Messages in flight, which arrive in order.
struct Channel<T> {
    queue: VecDeque<T>,
    last_ns: u64,
}

impl<T> Channel<T> {
    fn put(&mut self, what: T, at_ns: u64) -> u64 {
        self.queue.push_back(what);
        self.last_ns = self.last_ns.max(at_ns);
        self.last_ns
    }
}

struct Sink<'a> {
    world: &'a mut World,
    shard: u16,
    meta: &'a [Buf],
}

impl LeafSink for Sink<'_> {
    fn submit(&mut self, io: &LeafIo) {
        self.world.submit(self.shard, io);
    }

    fn complete_inline(&mut self, leaf: LeafId, op: Op, offset: u64, len: u64, buf: Buf) -> Option<LeafResult> {
        self.world.at_once(leaf, op, offset, len, buf)
    }

    fn zero(&mut self, buf: Buf, len: u64) {
        self.world.memory.slice_mut(buf, len as usize).fill(0);
    }

    fn is_equal(&mut self, a: Buf, b: Buf, len: u64) -> bool {
        self.world.memory.slice(a, len as usize) == self.world.memory.slice(b, len as usize)
    }

    fn scratch(&mut self) -> (Buf, u64) {
        let buf = self.world.memory.alloc(SCRATCH_BYTES_MIN as usize).expect("memory for stripes");
        (buf, SCRATCH_BYTES_MIN)
    }

    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut ComputeFn<'_>) {
        let memory = &mut self.world.memory;
        let bytes = |memory: &Memory, buf: &Buf| memory.slice(*buf, len as usize).to_vec();
        let mut changed: Vec<Vec<u8>> = outputs.iter().map(|buf| bytes(memory, buf)).collect();
        let read: Vec<&[u8]> = inputs.iter().map(|buf| memory.slice(*buf, len as usize)).collect();
        work(&read, &mut changed.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        for (buf, bytes) in outputs.iter().zip(changed) {
            memory.slice_mut(*buf, len as usize).copy_from_slice(&bytes);
        }
    }

    fn now_ns(&self) -> u64 {
        self.world.now_ns
    }

    fn meta_block(&mut self, index: u32) -> (Buf, &mut [u8; 4096]) {
        let buf = self.meta[index as usize];
        let bytes = self.world.memory.slice_mut(buf, 4096);
        (buf, bytes.try_into().expect("a slice of 4096 bytes"))
    }
}

impl Host {
    /// Creates a process with this many shards, in a world whose memory is free.
    pub fn new(shards: u16, limits: &Limits, world: &mut World, mut rng: Rng) -> Host {
        let shared = Arc::new(Shared::new(shards, limits));
        let mut block = || world.memory.alloc(4096).expect("memory for metadata blocks");
        Host {
            shards: (0..shards)
                .map(|id| Shard::new(braid_engine::io::ShardId(id), limits, Arc::clone(&shared)))
                .collect(),
            shared,
            meta_blocks: (0..shards).map(|_| (0..META_BLOCKS).map(|_| block()).collect()).collect(),
            channels: (0..shards * shards).map(|_| Channel { queue: VecDeque::new(), last_ns: 0 }).collect(),
            mailboxes: (0..shards).map(|_| Channel { queue: VecDeque::new(), last_ns: 0 }).collect(),
            publishes: BTreeMap::new(),
            freezes: BTreeMap::new(),
            syncs: BTreeMap::new(),
            requests: Requests::default(),
            message_ns_max: vec![rng.between(0, 500_000); usize::from(shards)],
            turns: vec![false; usize::from(shards)],
            rng,
            events: VecDeque::new(),
            ended: Vec::new(),
        }
    }

    /// Makes one of the shards process its messages much later than the others.
    pub fn make_busy(&mut self) {
        let busy = self.rng.index(self.message_ns_max.len());
        self.message_ns_max[busy] = 40 * self.message_ns_max[busy].max(250_000);
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        self.shards.len() as u16
    }

    /// Returns whether no I/O is in flight and no range is locked.
    pub fn is_calm(&self) -> bool {
        let is_calm = |s: &Shard| s.in_flight() == 0 && s.slots_in_use() == 0 && s.pools_in_use() == 0;
        self.shared.ranges().is_empty() && self.shared.volume_ranges().is_empty() && self.shards.iter().all(is_calm)
    }

    /// Submits a request to a shard.
    ///
    /// # Errors
    /// As [`Shard::submit`].
    pub fn submit(&mut self, world: &mut World, shard: u16, request: &Request) -> Result<(), IoError> {
        // Derived from the tag, so that it draws no random number.
        let choice = request.tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
        if choice == 0 && request.op == Op::Write {
            // At times another client sends the same data to the next offset first, and disconnects before the shard
            // begins that request. The shard must drop it.
            let gone = Request { offset: request.offset + request.len, tag: CALLED_OFF, ..*request };
            self.with(world, shard, |shard, sink| {
                if shard.enter(&gone, sink).is_ok() {
                    shard.cancel_entered(sink);
                }
            });
        }
        self.with(world, shard, |shard, sink| {
            if choice.is_multiple_of(2) {
                return shard.submit(request, sink);
            }
            let entered = shard.enter(request, sink);
            shard.begin_entered(sink);
            entered
        })
    }

    /// Reports to a shard that a leaf I/O completed.
    pub fn leaf_done(&mut self, world: &mut World, shard: u16, cookie: Cookie, result: LeafResult) {
        self.with(world, shard, |shard, sink| shard.leaf_done(cookie, result, sink));
    }

    /// Reports to a shard that a leaf I/O exceeded its time limit.
    pub fn leaf_late(&mut self, world: &mut World, shard: u16, cookie: Cookie) {
        self.with(world, shard, |shard, sink| shard.leaf_late(cookie, sink));
    }

    /// Reports to a shard that a late leaf I/O completed.
    pub fn leaf_returned(&mut self, world: &mut World, shard: u16, cookie: Cookie) {
        self.with(world, shard, |shard, sink| shard.leaf_returned(cookie, sink));
    }

    /// Delivers the oldest message from one shard to another.
    pub fn deliver(&mut self, world: &mut World, from: u16, to: u16) {
        let channel = self.channel(from, to);
        let message = self.channels[channel].queue.pop_front().expect("one message for each delivery");
        world.note(format_args!("message {from} to {to}: {}", name_of(&message)));
        self.with(world, to, |shard, sink| shard.handle_message(message, sink));
    }

    /// Starts publishing a layout on every shard, under a number that the caller chooses.
    pub fn publish(&mut self, world: &mut World, number: u64, device: DeviceId, layout: Option<&Arc<DeviceLayout>>) {
        let count = self.shards.len();
        self.publishes.insert(number, Publish { device, stages: vec![PublishStage::Posted; count] });
        for shard in 0..count {
            self.mail(world, shard, Mail::Publish(number, device, layout.cloned()));
        }
    }

    fn mail(&mut self, world: &mut World, shard: usize, mail: Mail) {
        let at_ns = world.now_ns + self.rng.between(0, self.message_ns_max[shard]);
        let at_ns = self.mailboxes[shard].put(mail, at_ns);
        world.at(at_ns, WorldEvent::Publish(shard as u16));
    }

    /// Freezes a device on every shard.
    pub fn freeze(&mut self, world: &mut World, number: u64, device: DeviceId) {
        self.freezes.insert(number, self.shards.len());
        for shard in 0..self.shards.len() {
            self.mail(world, shard, Mail::Freeze(number, device));
        }
    }

    /// Reports to every shard that a device's lease was renewed.
    pub fn renewed(&mut self, world: &mut World, device: DeviceId) {
        for shard in 0..self.shards.len() {
            self.mail(world, shard, Mail::Renewed(device));
        }
    }

    /// Returns the number of requests to a device that were answered in this life.
    pub fn requests(&self, device: DeviceId) -> u64 {
        self.shards.iter().map(|shard| shard.counters(device).requests()).sum()
    }

    /// Returns whether every shard has a layout of the device of at least this size.
    pub fn offers(&self, device: DeviceId, size_bytes: u64) -> bool {
        let is = |shard: &Shard| shard.layout(device).is_some_and(|layout| layout.size_bytes() >= size_bytes);
        self.shards.iter().all(is)
    }

    /// Sends a task's request to a device, on a random shard.
    pub fn request(&mut self, world: &mut World, number: u64, task_request: DeviceRequest) {
        let shard = self.rng.index(self.shards.len());
        self.mail(world, shard, Mail::Request(number, task_request));
    }

    /// Sends a part of a job to a random shard.
    pub fn sync(&mut self, world: &mut World, number: u64, part: SyncPart) {
        let shard = self.rng.index(self.shards.len());
        self.mail(world, shard, Mail::Sync(number, part));
    }

    /// Sends a call to the home shard of an array's regions.
    pub fn call(&mut self, world: &mut World, number: u64, device: DeviceId, home: u16, call: RegionCall) {
        self.mail(world, usize::from(home), Mail::Call(number, device, call));
    }

    /// Serves an opened pool at its home shard, and reports the home to all shards.
    pub fn serve_pool(
        &mut self,
        world: &mut World,
        key: PoolKey,
        home: u16,
        pool: Box<Pool>,
        places: Arc<PoolMembers>,
    ) {
        self.shards.iter_mut().for_each(|shard| shard.set_pool_home(key, braid_engine::io::ShardId(home)));
        self.with(world, home, |shard, sink| shard.serve_pool(key, pool, places, sink));
    }

    /// Makes a call at a pool's home shard at once.
    pub fn pool_call(&mut self, world: &mut World, number: u64, key: PoolKey, home: u16, call: PoolCall) {
        self.with(world, home, |shard, sink| shard.pool_call(number, key, call, sink));
    }

    /// Takes a pool from its home shard. The caller guarantees that no operation on it is in flight.
    pub fn leave_pool(&mut self, world: &mut World, key: PoolKey, home: u16) -> Option<Box<Pool>> {
        self.with(world, home, |shard, sink| shard.withdraw_pool(key, sink))
    }

    /// Delivers the oldest mail to a shard.
    pub fn take_mail(&mut self, world: &mut World, shard: u16) {
        let at = usize::from(shard);
        match self.mailboxes[at].queue.pop_front().expect("one mail for each delivery") {
            Mail::Publish(number, device, layout) => {
                let version = layout.as_ref().map_or(0, |l| l.version());
                world.note(format_args!("shard {shard} takes version {version} of device {}", device.0));
                let mut sink = Sink { world, shard, meta: &self.meta_blocks[at] };
                let old = self.shards[at].publish(device, layout, &mut sink);
                let stage = old.map_or(PublishStage::Done, PublishStage::Draining);
                self.publishes.get_mut(&number).expect("a publish that runs").stages[at] = stage;
                self.collect(world, shard);
                self.finish_publishes(world);
            }
            Mail::Freeze(number, device) => {
                world.note(format_args!("shard {shard} freezes device {}", device.0));
                self.with(world, shard, |shard, sink| shard.freeze(device, sink));
                let left = self.freezes.get_mut(&number).expect("a freeze that runs");
                *left -= 1;
                if *left == 0 {
                    self.freezes.remove(&number);
                    self.events.push_back(HostEvent::Frozen(number));
                }
            }
            Mail::Renewed(device) => {
                world.note(format_args!("shard {shard} receives the renewal of the lease of device {}", device.0));
                self.with(world, shard, |shard, sink| shard.lease_renewed(device, sink));
            }
            Mail::Request(number, task_request) => self.begin_request(world, shard, number, task_request),
            Mail::Sync(number, part) => self.begin_sync(world, shard, number, part),
            Mail::Call(number, device, call) => {
                world.note(format_args!("shard {shard} receives {call:?} of device {}", device.0));
                self.with(world, shard, |shard, sink| shard.begin_call(number, device, call, sink));
            }
        }
    }

    fn begin_request(&mut self, world: &mut World, shard: u16, number: u64, task_request: DeviceRequest) {
        let DeviceRequest { device, op, flags, offset, len, .. } = task_request;
        world.note(format_args!(
            "shard {shard} begins {op:?} {flags:?} of {offset}+{len} of device {} for a task",
            device.0
        ));
        let request = match self.requests.prepare(&mut world.memory, shard, number, &task_request) {
            Ok(request) => request,
            Err(error) => return self.events.push_back(HostEvent::TaskReply(number, Err(error))),
        };
        if let Err(error) = self.with(world, shard, |shard, sink| shard.submit(&request, sink)) {
            self.requests.refused(&mut world.memory, request.tag);
            if error.kind == ErrorKind::Busy {
                world.counters.add("devices", "waited for a slot");
                self.requests.wait(shard, number, task_request);
            } else {
                self.events.push_back(HostEvent::TaskReply(number, Err(error)));
            }
        }
    }

    fn request_done(&mut self, world: &mut World, shard: u16, completion: &Completion) {
        let engine = &self.shards[usize::from(shard)];
        match self.requests.done(&mut world.memory, completion, |device| engine.is_redundant(device)) {
            Completed::Reply(number, reply) => {
                world.counters.add("devices", if reply.is_ok() { "request" } else { "request failed" });
                self.events.push_back(HostEvent::TaskReply(number, reply));
            }
            Completed::Retry(shard, number, task_request) => {
                world.counters.add("devices", "read again");
                self.mail(world, usize::from(shard), Mail::Request(number, task_request));
            }
        }
    }

    fn begin_sync(&mut self, world: &mut World, shard: u16, number: u64, part: SyncPart) {
        let busy = Err(IoError::of(ErrorKind::Busy));
        let SyncPart { device, offset, len, kind } = part;
        let memory = kind.memory_bytes(len) as usize;
        let Some(buf) = world.memory.alloc(memory) else {
            return self.events.push_back(HostEvent::Synced(number, busy));
        };
        world.note(format_args!("shard {shard} begins {kind:?} of {offset}+{len} of device {}", device.0));
        self.syncs.insert(number, (buf, memory));
        let request = SyncRequest { device, offset, len, kind, buf, tag: number };
        if let Err(error) = self.with(world, shard, |shard, sink| shard.submit_sync(&request, sink)) {
            self.end_sync(world, number, Err(error), false);
        }
    }

    fn end_sync(&mut self, world: &mut World, number: u64, result: Result<Compared, IoError>, lost: bool) {
        let (buf, len) = self.syncs.remove(&number).expect("a part that is under way");
        if !lost {
            world.memory.free(buf, len);
        }
        world.counters.add("jobs", if result.is_ok() { "part" } else { "part failed" });
        self.events.push_back(HostEvent::Synced(number, result));
    }

    fn with<T>(&mut self, world: &mut World, shard: u16, call: impl FnOnce(&mut Shard, &mut Sink<'_>) -> T) -> T {
        let mut sink = Sink { world, shard, meta: &self.meta_blocks[usize::from(shard)] };
        let out = call(&mut self.shards[usize::from(shard)], &mut sink);
        self.collect(world, shard);
        out
    }

    /// Reports to a shard that its driver has submitted everything it received.
    pub fn end_turn(&mut self, world: &mut World, shard: u16) {
        self.turns[usize::from(shard)] = false;
        let before = self.shards[usize::from(shard)].writes_gathered();
        self.with(world, shard, |shard, sink| shard.end_turn(sink));
        let gathered = self.shards[usize::from(shard)].writes_gathered() - before;
        if gathered > 0 {
            world.note(format_args!("shard {shard} carries out {gathered} writes together with their neighbours"));
            world.counters.add("stripes", "writes gathered");
        }
    }

    fn channel(&self, from: u16, to: u16) -> usize {
        usize::from(from) * self.shards.len() + usize::from(to)
    }

    /// Collects all events and messages of a shard.
    fn collect(&mut self, world: &mut World, shard: u16) {
        let at = usize::from(shard);
        if self.shards[at].is_turn_open() && !std::mem::replace(&mut self.turns[at], true) {
            // The driver may receive much or little before its turn ends.
            let at_ns = world.now_ns + self.rng.between(0, self.message_ns_max[at]);
            world.at(at_ns, WorldEvent::EndTurn(shard));
        }
        self.shards[at].swap_done(&mut self.ended);
        let mut ended = std::mem::take(&mut self.ended);
        let mut freed = !ended.is_empty();
        for completion in ended.drain(..) {
            if completion.tag == CALLED_OFF {
                world.counters.add("requests", "called off");
                continue;
            }
            if completion.tag & OF_TASKS == 0 {
                self.events.push_back(HostEvent::Done(completion));
            } else {
                self.request_done(world, shard, &completion);
            }
        }
        self.ended = ended;
        while let Some(tag) = self.shards[at].pop_released() {
            freed = true;
            if tag & OF_TASKS == 0 {
                self.events.push_back(HostEvent::Released(tag));
            } else {
                self.requests.released(&mut world.memory, tag);
            }
        }
        if freed {
            // A slot is free: retry the requests that wait for one.
            for (number, task_request) in self.requests.take_waiting(shard) {
                self.mail(world, at, Mail::Request(number, task_request));
            }
        }
        while let Some((to, message)) = self.shards[at].pop_message() {
            let at_ns = world.now_ns + self.rng.between(0, self.message_ns_max[usize::from(to.0)]);
            let channel = self.channel(shard, to.0);
            let at_ns = self.channels[channel].put(message, at_ns);
            world.counters.add("messages", "between shards");
            world.at(at_ns, WorldEvent::Deliver(shard, to.0));
        }
        while let Some(done) = self.shards[at].pop_sync_done() {
            self.end_sync(world, done.tag, done.result.map(|()| done.compared), done.buffer_lost);
        }
        while let Some(number) = self.shards[at].pop_call_done() {
            self.events.push_back(HostEvent::RegionCallDone(number));
        }
        while let Some((number, good)) = self.shards[at].pop_pool_call() {
            self.events.push_back(HostEvent::PoolCallDone(number, good));
        }
        while let Some(fault) = self.shards[at].pop_fault() {
            world.note(format_args!("shard {shard}: {fault:?}"));
            world.counters.add("member faults", if fault.is_fatal() { "fatal" } else { "repairable" });
            self.events.push_back(HostEvent::Fault(fault));
        }
        let mut any = false;
        while let Some((device, version)) = self.shards[at].pop_drained() {
            any = true;
            let publish = self
                .publishes
                .values_mut()
                .find(|p| p.device == device && p.stages[at] == PublishStage::Draining(version));
            publish.expect("only what a publish replaced can drain").stages[at] = PublishStage::Done;
        }
        if any {
            self.finish_publishes(world);
        }
    }

    fn finish_publishes(&mut self, world: &mut World) {
        let complete = |p: &Publish| p.stages.iter().all(|s| *s == PublishStage::Done);
        while let Some(number) = self.publishes.iter().find(|(_, p)| complete(p)).map(|(n, _)| *n) {
            self.publishes.remove(&number);
            world.note(format_args!("publish {number} has drained"));
            self.events.push_back(HostEvent::Drained(number));
        }
    }
}

fn name_of(message: &ShardMessage) -> &'static str {
    match message {
        ShardMessage::Released(_) => "released",
        ShardMessage::NeedRegion { .. } => "need",
        ShardMessage::RegionsChanged { .. } => "changed",
        ShardMessage::Log { .. } => "log",
        ShardMessage::Logged { .. } => "logged",
        ShardMessage::EntryInPlace { .. } => "in place",
        ShardMessage::FlushJournal { .. } => "settle",
        ShardMessage::JournalFlushed { .. } => "settled",
        ShardMessage::DrainMarked { .. } => "still",
        ShardMessage::MarkedDrained { .. } => "is still",
        ShardMessage::PoolRequest { .. } => "pool request",
        ShardMessage::PoolReply { .. } => "pool reply",
        ShardMessage::PoolBeginPeriod { .. } => "pool turn",
        ShardMessage::PoolPeriodEnded { .. } => "pool turned",
        ShardMessage::PoolRetry { .. } => "pool again",
        ShardMessage::PoolLate { .. } => "pool late",
        ShardMessage::PoolWithdrawn { .. } => "pool left",
        ShardMessage::PoolDrained { .. } => "pool ended",
    }
}

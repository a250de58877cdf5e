//! The process: its shards, the messages between them, and layouts on their way to each of them.
//!
//! Nothing here decides anything about data: it is what `braid-ring` is in the real program.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use braid_engine::io::{
    Buf, Completion, Cookie, DeviceId, ErrorKind, IoError, LeafId, LeafIo, LeafResult, LeafSink, META_BLOCKS, Op,
    Request,
};
use braid_engine::keeper::SyncPart;
use braid_engine::layout::DeviceLayout;
use braid_engine::pool::Pool;
use braid_engine::{
    Compared, Limits, PoolCall, PoolKey, PoolMembers, RegionCall, RowWork, SCRATCH_BYTES_MIN, Shard, ShardMessage,
    Shared, SyncRequest, Trouble,
};

use crate::devices::{Asked, Given, Next, OF_TASKS, Requests};
use crate::memory::Memory;
use crate::rng::Rng;
use crate::world::{Happening, World};

/// Marks requests of clients that have gone before they began: no simulated client's.
const CALLED_OFF: u64 = OF_TASKS - 1;

/// What the shards have to tell the world above.
#[derive(Debug)]
pub enum Told {
    /// A request was answered.
    Done(Completion),
    /// The buffer of a request that was answered earlier is free.
    Released(u64),
    /// Nothing uses the layout any more that a publish replaced: the publish of this number is complete.
    Drained(u64),
    /// Every shard has frozen the device: the freeze of this number is complete.
    Frozen(u64),
    /// The request of a task of this number has ended.
    Given(u64, Given),
    /// The part of a job of this number has ended.
    Synced(u64, Result<Compared, IoError>),
    /// The home of an array's regions has done what was asked under this number.
    Called(u64),
    /// A member failed.
    Trouble(Trouble),
    /// The call of a pool of this number has ended; and whether what it changed was committed, where it was to be.
    PoolCalled(u64, bool),
}

/// Where a publish stands on one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Posted,
    Draining(u32),
    Done,
}

struct Publish {
    device: DeviceId,
    stages: Vec<Stage>,
}

/// What the control plane tells a shard.
enum Mail {
    Publish(u64, DeviceId, Option<Arc<DeviceLayout>>),
    Freeze(u64, DeviceId),
    Renewed(DeviceId),
    Request(u64, Asked),
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
    /// Shards that have not frozen yet.
    freezes: BTreeMap<u64, usize>,
    /// Memory of parts of jobs.
    syncs: BTreeMap<u64, (Buf, usize)>,
    /// What tasks ask of devices.
    requests: Requests,
    /// Shards whose driver is going to end its turn.
    turns: Vec<bool>,
    /// Longest time until each shard takes what comes for it.
    message_ns_max: Vec<u64>,
    rng: Rng,
    /// To be worked off after every call.
    pub told: VecDeque<Told>,
    ended: Vec<Completion>,
}

/// Things on their way, which arrive in order.
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

    fn at_once(&mut self, leaf: LeafId, op: Op, offset: u64, len: u64, buf: Buf) -> Option<LeafResult> {
        self.world.at_once(leaf, op, offset, len, buf)
    }

    fn zero(&mut self, buf: Buf, len: u64) {
        self.world.memory.slice_mut(buf, len as usize).fill(0);
    }

    fn is_equal(&mut self, a: Buf, b: Buf, len: u64) -> bool {
        self.world.memory.slice(a, len as usize) == self.world.memory.slice(b, len as usize)
    }

    fn scratch(&mut self) -> (Buf, u64) {
        let buf = self.world.memory.alloc(SCRATCH_BYTES_MIN as usize).expect("memory for rows");
        (buf, SCRATCH_BYTES_MIN)
    }

    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut RowWork<'_>) {
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
    /// A process with this many shards, in a world whose memory is free.
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
            told: VecDeque::new(),
            ended: Vec::new(),
        }
    }

    /// One of the shards takes what comes for it much later than the others.
    pub fn make_busy(&mut self) {
        let busy = self.rng.index(self.message_ns_max.len());
        self.message_ns_max[busy] = 40 * self.message_ns_max[busy].max(250_000);
    }

    /// How many shards there are.
    pub fn shards(&self) -> u16 {
        self.shards.len() as u16
    }

    /// Whether nothing is in flight and no range is held.
    pub fn is_calm(&self) -> bool {
        let is_calm = |s: &Shard| s.in_flight() == 0 && s.slots_in_use() == 0 && s.pools_in_use() == 0;
        self.shared.ranges().is_empty() && self.shared.volume_ranges().is_empty() && self.shards.iter().all(is_calm)
    }

    /// Hands a request to a shard.
    ///
    /// # Errors
    /// As [`Shard::submit`].
    pub fn submit(&mut self, world: &mut World, shard: u16, request: &Request) -> Result<(), IoError> {
        // By the number, so that no other choice depends on it.
        let choice = request.tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
        if choice == 0 && request.op == Op::Write {
            // Before it another client sends the same to another place, and has hung up when that is looked at.
            let gone = Request { offset: request.offset + request.len, tag: CALLED_OFF, ..*request };
            self.with(world, shard, |shard, sink| {
                if shard.enter(&gone, sink).is_ok() {
                    shard.call_off_entered(sink);
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

    /// Tells a shard about a leaf I/O that ended.
    pub fn leaf_done(&mut self, world: &mut World, shard: u16, cookie: Cookie, result: LeafResult) {
        self.with(world, shard, |shard, sink| shard.leaf_done(cookie, result, sink));
    }

    /// Tells a shard about a leaf I/O that ran into its time limit.
    pub fn leaf_late(&mut self, world: &mut World, shard: u16, cookie: Cookie) {
        self.with(world, shard, |shard, sink| shard.leaf_late(cookie, sink));
    }

    /// Tells a shard about a late leaf I/O that came back.
    pub fn leaf_returned(&mut self, world: &mut World, shard: u16, cookie: Cookie) {
        self.with(world, shard, |shard, sink| shard.leaf_returned(cookie, sink));
    }

    /// Lets a shard take the oldest message of another.
    pub fn deliver(&mut self, world: &mut World, from: u16, to: u16) {
        let channel = self.channel(from, to);
        let message = self.channels[channel].queue.pop_front().expect("one message for each delivery");
        world.note(format_args!("message {from} to {to}: {}", name_of(&message)));
        self.with(world, to, |shard, sink| shard.message(message, sink));
    }

    /// Starts publishing a layout on every shard, under a number of the caller's.
    pub fn publish(&mut self, world: &mut World, number: u64, device: DeviceId, layout: Option<&Arc<DeviceLayout>>) {
        let count = self.shards.len();
        self.publishes.insert(number, Publish { device, stages: vec![Stage::Posted; count] });
        for shard in 0..count {
            self.mail(world, shard, Mail::Publish(number, device, layout.cloned()));
        }
    }

    fn mail(&mut self, world: &mut World, shard: usize, mail: Mail) {
        let at_ns = world.now_ns + self.rng.between(0, self.message_ns_max[shard]);
        let at_ns = self.mailboxes[shard].put(mail, at_ns);
        world.at(at_ns, Happening::Publish(shard as u16));
    }

    /// Freezes a device on every shard.
    pub fn freeze(&mut self, world: &mut World, number: u64, device: DeviceId) {
        self.freezes.insert(number, self.shards.len());
        for shard in 0..self.shards.len() {
            self.mail(world, shard, Mail::Freeze(number, device));
        }
    }

    /// Tells every shard that a device's lease was renewed.
    pub fn renewed(&mut self, world: &mut World, device: DeviceId) {
        for shard in 0..self.shards.len() {
            self.mail(world, shard, Mail::Renewed(device));
        }
    }

    /// Requests to a device that were answered in this life.
    pub fn requests(&self, device: DeviceId) -> u64 {
        self.shards.iter().map(|shard| shard.counters(device).requests()).sum()
    }

    /// Whether every shard has a layout of the device that is so large.
    pub fn offers(&self, device: DeviceId, size_bytes: u64) -> bool {
        let is = |shard: &Shard| shard.layout(device).is_some_and(|layout| layout.size_bytes() >= size_bytes);
        self.shards.iter().all(is)
    }

    /// Asks something of a device, on any shard.
    pub fn request(&mut self, world: &mut World, number: u64, asked: Asked) {
        let shard = self.rng.index(self.shards.len());
        self.mail(world, shard, Mail::Request(number, asked));
    }

    /// Does a part of a job, on any shard.
    pub fn sync(&mut self, world: &mut World, number: u64, part: SyncPart) {
        let shard = self.rng.index(self.shards.len());
        self.mail(world, shard, Mail::Sync(number, part));
    }

    /// Asks the home of an array's regions.
    pub fn call(&mut self, world: &mut World, number: u64, device: DeviceId, home: u16, call: RegionCall) {
        self.mail(world, usize::from(home), Mail::Call(number, device, call));
    }

    /// Serves a pool that was opened, at its home; all shards know where that is.
    pub fn serve_pool(
        &mut self,
        world: &mut World,
        key: PoolKey,
        home: u16,
        pool: Box<Pool>,
        places: Arc<PoolMembers>,
    ) {
        self.shards.iter_mut().for_each(|shard| shard.know_pool(key, braid_engine::io::ShardId(home)));
        self.with(world, home, |shard, sink| shard.serve_pool(key, pool, places, sink));
    }

    /// Makes a call at a pool's home, at once.
    pub fn pool_call(&mut self, world: &mut World, number: u64, key: PoolKey, home: u16, call: PoolCall) {
        self.with(world, home, |shard, sink| shard.pool_call(number, key, call, sink));
    }

    /// Takes a pool from its home. Nothing of it is under way.
    pub fn leave_pool(&mut self, world: &mut World, key: PoolKey, home: u16) -> Option<Box<Pool>> {
        self.with(world, home, |shard, sink| shard.leave_pool(key, sink))
    }

    /// Lets a shard take the oldest mail from its mailbox.
    pub fn take_mail(&mut self, world: &mut World, shard: u16) {
        let at = usize::from(shard);
        match self.mailboxes[at].queue.pop_front().expect("one mail for each delivery") {
            Mail::Publish(number, device, layout) => {
                let version = layout.as_ref().map_or(0, |l| l.version());
                world.note(format_args!("shard {shard} takes version {version} of device {}", device.0));
                let mut sink = Sink { world, shard, meta: &self.meta_blocks[at] };
                let old = self.shards[at].publish(device, layout, &mut sink);
                let stage = old.map_or(Stage::Done, Stage::Draining);
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
                    self.told.push_back(Told::Frozen(number));
                }
            }
            Mail::Renewed(device) => {
                world.note(format_args!("shard {shard} hears that the lease of device {} was renewed", device.0));
                self.with(world, shard, |shard, sink| shard.renewed(device, sink));
            }
            Mail::Request(number, asked) => self.begin_request(world, shard, number, asked),
            Mail::Sync(number, part) => self.begin_sync(world, shard, number, part),
            Mail::Call(number, device, call) => {
                world.note(format_args!("shard {shard} is asked {call:?} of device {}", device.0));
                self.with(world, shard, |shard, sink| shard.call(number, device, call, sink));
            }
        }
    }

    fn begin_request(&mut self, world: &mut World, shard: u16, number: u64, asked: Asked) {
        let Asked { device, op, flags, offset, len, .. } = asked;
        world.note(format_args!(
            "shard {shard} begins {op:?} {flags:?} of {offset}+{len} of device {} for a task",
            device.0
        ));
        let request = match self.requests.prepare(&mut world.memory, shard, number, &asked) {
            Ok(request) => request,
            Err(error) => return self.told.push_back(Told::Given(number, Err(error))),
        };
        if let Err(error) = self.with(world, shard, |shard, sink| shard.submit(&request, sink)) {
            self.requests.refused(&mut world.memory, request.tag);
            if error.kind == ErrorKind::Busy {
                world.counters.add("devices", "waited for a slot");
                self.requests.wait(shard, number, asked);
            } else {
                self.told.push_back(Told::Given(number, Err(error)));
            }
        }
    }

    fn request_done(&mut self, world: &mut World, shard: u16, completion: &Completion) {
        let engine = &self.shards[usize::from(shard)];
        match self.requests.done(&mut world.memory, completion, |device| engine.is_redundant(device)) {
            Next::Tell(number, given) => {
                world.counters.add("devices", if given.is_ok() { "request" } else { "request failed" });
                self.told.push_back(Told::Given(number, given));
            }
            Next::Again(shard, number, asked) => {
                world.counters.add("devices", "read again");
                self.mail(world, usize::from(shard), Mail::Request(number, asked));
            }
        }
    }

    fn begin_sync(&mut self, world: &mut World, shard: u16, number: u64, part: SyncPart) {
        let busy = Err(IoError::of(ErrorKind::Busy));
        let SyncPart { device, offset, len, kind } = part;
        let memory = kind.memory_bytes(len) as usize;
        let Some(buf) = world.memory.alloc(memory) else {
            return self.told.push_back(Told::Synced(number, busy));
        };
        world.note(format_args!("shard {shard} begins {kind:?} of {offset}+{len} of device {}", device.0));
        self.syncs.insert(number, (buf, memory));
        let request = SyncRequest { device, offset, len, kind, buf, tag: number };
        if let Err(error) = self.with(world, shard, |shard, sink| shard.sync(&request, sink)) {
            self.end_sync(world, number, Err(error), false);
        }
    }

    fn end_sync(&mut self, world: &mut World, number: u64, result: Result<Compared, IoError>, lost: bool) {
        let (buf, len) = self.syncs.remove(&number).expect("a part that is under way");
        if !lost {
            world.memory.free(buf, len);
        }
        world.counters.add("jobs", if result.is_ok() { "part" } else { "part failed" });
        self.told.push_back(Told::Synced(number, result));
    }

    fn with<T>(&mut self, world: &mut World, shard: u16, call: impl FnOnce(&mut Shard, &mut Sink<'_>) -> T) -> T {
        let mut sink = Sink { world, shard, meta: &self.meta_blocks[usize::from(shard)] };
        let out = call(&mut self.shards[usize::from(shard)], &mut sink);
        self.collect(world, shard);
        out
    }

    /// Tells a shard that its driver has taken in all that there was.
    pub fn end_turn(&mut self, world: &mut World, shard: u16) {
        self.turns[usize::from(shard)] = false;
        let before = self.shards[usize::from(shard)].writes_gathered();
        self.with(world, shard, |shard, sink| shard.end_turn(sink));
        let gathered = self.shards[usize::from(shard)].writes_gathered() - before;
        if gathered > 0 {
            world.note(format_args!("shard {shard} carries out {gathered} writes together with their neighbours"));
            world.counters.add("rows", "writes gathered");
        }
    }

    fn channel(&self, from: u16, to: u16) -> usize {
        usize::from(from) * self.shards.len() + usize::from(to)
    }

    /// Takes everything that a shard has to say.
    fn collect(&mut self, world: &mut World, shard: u16) {
        let at = usize::from(shard);
        if self.shards[at].is_turn_open() && !std::mem::replace(&mut self.turns[at], true) {
            // Much or little may come before the driver has no more.
            let at_ns = world.now_ns + self.rng.between(0, self.message_ns_max[at]);
            world.at(at_ns, Happening::EndTurn(shard));
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
                self.told.push_back(Told::Done(completion));
            } else {
                self.request_done(world, shard, &completion);
            }
        }
        self.ended = ended;
        while let Some(tag) = self.shards[at].pop_released() {
            freed = true;
            if tag & OF_TASKS == 0 {
                self.told.push_back(Told::Released(tag));
            } else {
                self.requests.released(&mut world.memory, tag);
            }
        }
        if freed {
            // A slot is free.
            for (number, asked) in self.requests.take_waiting(shard) {
                self.mail(world, at, Mail::Request(number, asked));
            }
        }
        while let Some((to, message)) = self.shards[at].pop_message() {
            let at_ns = world.now_ns + self.rng.between(0, self.message_ns_max[usize::from(to.0)]);
            let channel = self.channel(shard, to.0);
            let at_ns = self.channels[channel].put(message, at_ns);
            world.counters.add("messages", "between shards");
            world.at(at_ns, Happening::Deliver(shard, to.0));
        }
        while let Some(done) = self.shards[at].pop_sync_done() {
            self.end_sync(world, done.tag, done.result.map(|()| done.compared), done.buffer_lost);
        }
        while let Some(number) = self.shards[at].pop_called() {
            self.told.push_back(Told::Called(number));
        }
        while let Some((number, good)) = self.shards[at].pop_pool_call() {
            self.told.push_back(Told::PoolCalled(number, good));
        }
        while let Some(trouble) = self.shards[at].pop_trouble() {
            world.note(format_args!("shard {shard}: {trouble:?}"));
            world.counters.add("troubles", if trouble.is_fatal() { "fatal" } else { "to be mended" });
            self.told.push_back(Told::Trouble(trouble));
        }
        let mut any = false;
        while let Some((device, version)) = self.shards[at].pop_drained() {
            any = true;
            let publish =
                self.publishes.values_mut().find(|p| p.device == device && p.stages[at] == Stage::Draining(version));
            publish.expect("only what a publish replaced can drain").stages[at] = Stage::Done;
        }
        if any {
            self.finish_publishes(world);
        }
    }

    fn finish_publishes(&mut self, world: &mut World) {
        let complete = |p: &Publish| p.stages.iter().all(|s| *s == Stage::Done);
        while let Some(number) = self.publishes.iter().find(|(_, p)| complete(p)).map(|(n, _)| *n) {
            self.publishes.remove(&number);
            world.note(format_args!("publish {number} has drained"));
            self.told.push_back(Told::Drained(number));
        }
    }
}

fn name_of(message: &ShardMessage) -> &'static str {
    match message {
        ShardMessage::Released(_) => "released",
        ShardMessage::Need { .. } => "need",
        ShardMessage::Changed { .. } => "changed",
        ShardMessage::Log { .. } => "log",
        ShardMessage::Logged { .. } => "logged",
        ShardMessage::InPlace { .. } => "in place",
        ShardMessage::Settle { .. } => "settle",
        ShardMessage::Settled { .. } => "settled",
        ShardMessage::Still { .. } => "still",
        ShardMessage::IsStill { .. } => "is still",
        ShardMessage::PoolAsk { .. } => "pool ask",
        ShardMessage::PoolTold { .. } => "pool told",
        ShardMessage::PoolTurn { .. } => "pool turn",
        ShardMessage::PoolTurned { .. } => "pool turned",
        ShardMessage::PoolAgain { .. } => "pool again",
        ShardMessage::PoolLate { .. } => "pool late",
        ShardMessage::PoolLeft { .. } => "pool left",
        ShardMessage::PoolEnded { .. } => "pool ended",
    }
}

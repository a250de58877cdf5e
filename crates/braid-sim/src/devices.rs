//! Devices that tasks read and write: their requests are mixed with those of the clients and have their own memory.

use std::collections::{BTreeMap, VecDeque};

use braid_engine::io::{Buf, Completion, DeviceId, DeviceIo, ErrorKind, Flags, IoError, Op, Request};

use crate::device_request::{DeviceReply, DeviceRequest};
use crate::memory::Memory;
use crate::meta::Port;

/// Maximum size in bytes of one read: longer reads are split, because simulated memory is small.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The bit that marks the tags of requests of tasks. Tags of clients' requests do not reach it.
pub(crate) const OF_TASKS: u64 = 1 << 63;

impl DeviceRequest {
    fn bytes(&self) -> usize {
        if matches!(self.op, Op::Read | Op::Write) { self.len as usize } else { 0 }
    }
}

/// A request that the engine has, or whose memory a disk may still use.
struct Running {
    task_request: DeviceRequest,
    shard: u16,
    buf: Buf,
    answered: bool,
}

/// What follows from a completion.
pub(crate) enum Completed {
    /// The task gets the reply.
    Reply(u64, DeviceReply),
    /// The request is sent once more to the same shard, because that shard knows which disk did not reply in time. The
    /// fields are the shard, the task's number of the request, and the request.
    Retry(u16, u64, DeviceRequest),
}

/// The requests of one process.
#[derive(Default)]
pub(crate) struct Requests {
    /// By tag: the task's number and the request.
    running: BTreeMap<u64, (u64, Running)>,
    /// Requests that wait for a slot, by shard.
    waiting: BTreeMap<u16, VecDeque<(u64, DeviceRequest)>>,
    last_tag: u64,
}

impl Requests {
    /// Allocates memory for a request and returns it in the engine's form.
    ///
    /// # Errors
    /// `Busy` if there is no free memory.
    pub fn prepare(
        &mut self,
        memory: &mut Memory,
        shard: u16,
        number: u64,
        task_request: &DeviceRequest,
    ) -> Result<Request, IoError> {
        let bytes = task_request.bytes();
        let buf = match bytes {
            0 => Buf::NONE,
            _ => memory.alloc(bytes).ok_or(IoError::of(ErrorKind::Busy))?,
        };
        if task_request.op == Op::Write && bytes > 0 {
            memory.slice_mut(buf, bytes).copy_from_slice(&task_request.data);
        }
        self.last_tag += 1;
        let tag = OF_TASKS | self.last_tag;
        self.running.insert(tag, (number, Running { task_request: task_request.clone(), shard, buf, answered: false }));
        let DeviceRequest { device, op, flags, offset, len, .. } = *task_request;
        Ok(Request { device, op, flags, offset, len, buf, tag })
    }

    /// Frees the memory of a request that the engine refused.
    pub fn refused(&mut self, memory: &mut Memory, tag: u64) {
        self.forget(memory, tag);
    }

    /// Queues a request until a slot of its shard is free.
    pub fn wait(&mut self, shard: u16, number: u64, task_request: DeviceRequest) {
        self.waiting.entry(shard).or_default().push_back((number, task_request));
    }

    /// Takes the queued requests of a shard.
    pub fn take_waiting(&mut self, shard: u16) -> VecDeque<(u64, DeviceRequest)> {
        self.waiting.remove(&shard).unwrap_or_default()
    }

    /// Handles the engine's completion of a request.
    pub fn done(
        &mut self,
        memory: &mut Memory,
        completion: &Completion,
        is_redundant: impl Fn(DeviceId) -> bool,
    ) -> Completed {
        let (number, running) = self.running.get_mut(&completion.tag).expect("each request is answered once");
        assert!(!std::mem::replace(&mut running.answered, true), "answered twice");
        let (number, task_request) = (*number, &running.task_request);
        let reads = task_request.op == Op::Read;
        if completion.buffer_busy {
            if reads && !task_request.is_retry && is_redundant(task_request.device) {
                return Completed::Retry(
                    running.shard,
                    number,
                    DeviceRequest { is_retry: true, ..task_request.clone() },
                );
            }
            // A disk that did not reply may still write to the memory of this read: the data is not passed on.
            let late = if reads { Err(IoError::of(ErrorKind::TimedOut)) } else { Ok(Vec::new()) };
            return Completed::Reply(number, completion.result.and(late));
        }
        let bytes = if reads { memory.slice(running.buf, task_request.bytes()).to_vec() } else { Vec::new() };
        self.forget(memory, completion.tag);
        Completed::Reply(number, completion.result.map(|()| bytes))
    }

    /// Frees the memory of a request that no disk can use any more.
    pub fn released(&mut self, memory: &mut Memory, tag: u64) {
        self.forget(memory, tag);
    }

    fn forget(&mut self, memory: &mut Memory, tag: u64) {
        let (_, running) = self.running.remove(&tag).expect("memory is given back once");
        if running.task_request.bytes() > 0 {
            memory.free(running.buf, running.task_request.bytes());
        }
    }
}

/// [`DeviceIo`] for tasks.
#[derive(Clone)]
pub struct Devices(Port);

impl Port {
    /// Returns the [`DeviceIo`] for tasks that store data on devices.
    pub fn devices(&self) -> Devices {
        Devices(self.clone())
    }
}

impl Devices {
    async fn request(&self, device: DeviceId, op: Op, range: (u64, u64), data: Vec<u8>, fua: bool) -> DeviceReply {
        let flags = if fua { Flags::FUA } else { Flags::NONE };
        let (offset, len) = range;
        self.0.request(DeviceRequest { device, op, flags, offset, len, data, is_retry: false }).await
    }
}

impl DeviceIo for Devices {
    fn size_bytes(&self, device: DeviceId) -> u64 {
        self.0.size_of_device(device).0
    }

    fn block_bytes(&self, device: DeviceId) -> u32 {
        self.0.size_of_device(device).1
    }

    async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let end = offset.checked_add(len as u64).ok_or(IoError::of(ErrorKind::Invalid))?;
        let mut all = Vec::with_capacity(len);
        let mut at = offset;
        loop {
            let part = READ_BYTES_MAX.min(end - at);
            all.extend(self.request(device, Op::Read, (at, part), Vec::new(), false).await?);
            at += part;
            if at == end {
                return Ok(all);
            }
        }
    }

    async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), IoError> {
        let range = (offset, data.len() as u64);
        self.request(device, Op::Write, range, data, fua).await.map(drop)
    }

    async fn flush(&self, device: DeviceId) -> Result<(), IoError> {
        self.request(device, Op::Flush, (0, 0), Vec::new(), false).await.map(drop)
    }

    async fn discard(&self, device: DeviceId, offset: u64, len: u64) -> Result<(), IoError> {
        self.request(device, Op::Discard, (offset, len), Vec::new(), false).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    use braid_engine::io::{LeafId, ShardId};
    use braid_engine::{DeviceLayout, EngineIo, Limits, MemberRole, MirrorMember, MirrorNode, Node, RegionMap, Uuid};
    use braid_geometry::{Geometry, Level, Spec};

    use super::*;
    use crate::disk::{Profile, SimDisk, Survival};
    use crate::host::Host;
    use crate::meta::Tasks;
    use crate::rng::Rng;
    use crate::run_state::RunState;
    use crate::serve::Run;
    use crate::trace::Trace;
    use crate::workload::Workload;
    use crate::world::{Crash, World};

    const DISK: u64 = 1 << 20;
    const SLICE: u64 = 128 << 10;

    fn world(seed: u64, profile: impl Fn(&mut Rng) -> Profile) -> (World, Rng) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.fork(), Trace::new(false), 8 << 20);
        world.disks = (0..2).map(|n| SimDisk::new(n, DISK, false, profile(&mut rng))).collect();
        (world, rng)
    }

    /// Runs one life: some tasks, until all have ended and no disk I/O is in flight.
    fn live(world: &mut World, rng: &mut Rng, port: &Port, tasks: &mut Tasks) {
        world.leaves = vec![0, 1];
        let limits = Limits { slots: 4, devices: 4, range_table_bits: 6 };
        let host = Host::new(rng.between(1, 3) as u16, &limits, world, rng.fork());
        let state = Rc::new(RefCell::new(RunState::new(Workload::new(rng.fork()))));
        let before = world.memory.free_units();
        let port = port.clone();
        let mut run = Run { host, port, publishing: Vec::new(), quiescing: Vec::new(), world, state: &state };
        loop {
            tasks.poll();
            run.serve_tasks();
            if tasks.is_empty() && run.world.in_flight() == 0 {
                break;
            }
            let next = run.world.next_event().expect("something is left to happen");
            run.handle_event(next).expect("no client can see a violation");
        }
        assert!(run.host.is_calm());
        assert_eq!(run.world.memory.free_units(), before, "all memory has come back");
        run.world.leave();
        run.world.memory.clear();
    }

    fn bare() -> Node {
        Node::Leaf { leaf: LeafId(1), start: 8192, len: DISK - 8192 }
    }

    fn on_both(level: Level) -> Node {
        let len = DISK - (64 << 10);
        let geometry = Geometry::plan(Spec::new(level), &[len; 2]).unwrap();
        if level == Level::Raid0 {
            let members = [0, 1].map(|leaf| Node::Leaf { leaf: LeafId(leaf), start: 0, len });
            return Node::Striped { geometry, members: members.into() };
        }
        let member = |leaf| MirrorMember {
            leaf: LeafId(leaf),
            start: 0,
            len,
            bitmap_start: len,
            role: MemberRole::InSync,
            write_mostly: false,
        };
        let all = [u64::MAX; 4];
        let regions = RegionMap::new(ShardId(0), Uuid::from_u128(3), len, 4096, (&all, &all), true);
        Node::Mirrored(Box::new(MirrorNode {
            geometry,
            members: [0, 1].map(member).into(),
            successors: Vec::new(),
            regions: Arc::new(regions),
            parity: None,
            failed: false,
        }))
    }

    async fn publish(port: &Port, node: &Node) -> Devices {
        let layout = DeviceLayout::new(port.new_version(), 4096, node);
        port.publish(DeviceId(2), Some(Arc::new(layout))).await;
        port.devices()
    }

    fn filled(block: u64, version: u8) -> Vec<u8> {
        (0..4096).map(|i| (i as u8) ^ (block as u8).wrapping_mul(31) ^ version).collect()
    }

    #[test]
    fn flushed_data_survives_a_power_cut() {
        let mut waited = 0;
        for (seed, node) in (0..30).map(|seed| (seed, [bare(), on_both(Level::Raid0), on_both(Level::Raid1)])) {
            let node = node[seed as usize % 3].clone();
            let (mut world, mut rng) = world(seed, Profile::healthy);
            let port = Port::new(vec![DISK; 2]);
            let mut tasks = Tasks::default();
            let ready = Rc::new(RefCell::new(0));
            // Five concurrent requests exceed four slots.
            for part in 0..5u64 {
                let (port, node, ready) = (port.clone(), node.clone(), Rc::clone(&ready));
                let mut rng = rng.fork();
                tasks.spawn(async move {
                    if part == 0 {
                        publish(&port, &node).await;
                        *ready.borrow_mut() = 1;
                    }
                    while *ready.borrow() == 0 {
                        port.sleep(1_000).await;
                    }
                    let devices = port.devices();
                    let device = DeviceId(2);
                    assert_eq!((devices.size_bytes(device), devices.block_bytes(device)), (node.size_bytes(), 4096));
                    let first = part * SLICE / 4096;
                    let mut versions = [0u8; (SLICE / 4096) as usize];
                    for round in 1..40u8 {
                        let at = rng.index(versions.len());
                        let count = 1 + rng.index((versions.len() - at).min(4));
                        let offset = (first + at as u64) * 4096;
                        let blocks = at..at + count;
                        if rng.coin() {
                            let data = blocks.clone().flat_map(|b| filled(first + b as u64, round)).collect();
                            devices.write(device, offset, data, rng.coin()).await.unwrap();
                            versions[blocks].fill(round);
                        } else {
                            let got = devices.read(device, offset, count * 4096).await.unwrap();
                            for (b, block) in blocks.zip(got.chunks(4096)) {
                                let expected = filled(first + b as u64, versions[b]);
                                assert!(versions[b] == 0 || block == expected, "block {b} of part {part}");
                            }
                        }
                    }
                    let last = (0..SLICE / 4096).flat_map(|b| filled(first + b, 99)).collect();
                    devices.write(device, first * 4096, last, false).await.unwrap();
                    devices.flush(device).await.unwrap();
                });
            }
            live(&mut world, &mut rng, &port, &mut tasks);
            waited += world.counters.get("devices.waited for a slot");
            for disk in &mut world.disks {
                disk.cut_power(Survival::None, &mut rng);
            }
            let port = Port::new(vec![DISK; 2]);
            let again = port.clone();
            tasks.spawn(async move {
                let devices = publish(&again, &node).await;
                let all = devices.read(DeviceId(2), 0, 5 * SLICE as usize).await.unwrap();
                for (b, block) in all.chunks(4096).enumerate() {
                    assert!(block == filled(b as u64, 99), "block {b}");
                }
                devices.discard(DeviceId(2), 0, SLICE).await.unwrap();
                let block = devices.read(DeviceId(2), 4096, 4096).await.unwrap();
                for (sector, old) in block.chunks(512).zip(filled(1, 99).chunks(512)) {
                    assert!(sector == old || sector == [0; 512]);
                }
                let beyond = devices.read(DeviceId(2), node.size_bytes() - 4096, 8192).await;
                assert_eq!(beyond.unwrap_err().kind, ErrorKind::Invalid);
                again.publish(DeviceId(2), None).await;
                assert_eq!(devices.flush(DeviceId(2)).await.unwrap_err().kind, ErrorKind::NoDevice);
                assert_eq!(devices.size_bytes(DeviceId(2)), 0);
            });
            live(&mut world, &mut rng, &port, &mut tasks);
        }
        assert!(waited > 100, "{waited} waited for a slot");
    }

    #[test]
    fn the_memory_of_a_late_request_waits_for_the_disk() {
        let mut late = 0;
        for seed in 0..20 {
            let (mut world, mut rng) = world(seed, |rng| Profile {
                hang: 100_000,
                write_error: 50_000,
                instant: false,
                ..Profile::healthy(rng)
            });
            let port = Port::new(vec![DISK; 2]);
            let mut tasks = Tasks::default();
            let of_task = port.clone();
            let failures = tasks.spawn(async move {
                let devices = publish(&of_task, &bare()).await;
                let mut kinds = Vec::new();
                for k in 0..60u64 {
                    let written = devices.write(DeviceId(2), k % 30 * 4096, vec![k as u8; 4096], false).await;
                    let read = devices.read(DeviceId(2), k % 30 * 4096, 4096).await;
                    match (written, read) {
                        (Ok(()), Ok(data)) => assert_eq!(data, vec![k as u8; 4096]),
                        (a, b) => kinds.extend([a.err(), b.err()].into_iter().flatten().map(|e| e.kind)),
                    }
                }
                kinds
            });
            live(&mut world, &mut rng, &port, &mut tasks);
            let kinds = failures.take().expect("the task has ended");
            assert!(kinds.iter().all(|kind| matches!(kind, ErrorKind::TimedOut | ErrorKind::Io)), "{kinds:?}");
            late += kinds.iter().filter(|kind| **kind == ErrorKind::TimedOut).count();
            world.crash(Crash::Kill);
        }
        assert!(late > 20, "{late} were late");
    }
}

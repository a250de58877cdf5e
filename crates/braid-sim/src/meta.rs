//! The asynchronous side: label procedures and the control plane run here, one poll at a time.
//!
//! A waiting task is polled again after every event, in the order in which tasks were started. There is no waker, no
//! thread and no clock.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use braid_array_admin::reconciler::{Order, OrderResult, ReconcilerEvent, ReconcilerIo};
use braid_engine::io::{DeviceId, IoError, LeafError, LeafId, MetaIo, ShardId};
use braid_engine::layout::DeviceLayout;
use braid_engine::{Compared, EngineIo, Fault, RegionCall, RegionMap, SyncPart};

use crate::device_request::{DeviceReply, DeviceRequest};

/// Maximum number of events that reconcilers report between two polls.
const NOTES_MAX: usize = 10_000;

/// An operation that a task requests.
#[derive(Debug)]
pub enum TaskRequest {
    /// Reads at this byte offset, this many bytes.
    Read(LeafId, u64, usize),
    /// Writes these bytes at this byte offset. With the flag the write is durable on return (FUA).
    Write(LeafId, u64, Vec<u8>, bool),
    /// Flushes.
    Flush(LeafId),
    /// Publishes a layout on every shard; answered when the old layout has drained on all shards.
    Publish(DeviceId, Option<Arc<DeviceLayout>>),
    /// Asks whether no I/O is in flight on a disk; answered with an error if one is.
    IsIdle(LeafId),
    /// Reopens a disk, as soon as no I/O is in flight on it.
    Reopen(LeafId),
    /// Reports to every shard that a device's lease was renewed.
    Renewed(DeviceId),
    /// Freezes a device on every shard.
    Freeze(DeviceId),
    /// Sends a request to a device.
    Request(DeviceRequest),
    /// Executes a part of a job.
    Sync(SyncPart),
    /// Sends a call to the home shard of a device's regions.
    Call(DeviceId, ShardId, RegionCall),
    /// Returns the number of requests to a device that were answered in this life, as eight bytes, little-endian.
    Requests(DeviceId),
    /// Sleeps for this many nanoseconds.
    Sleep(u64),
}

/// The reply: the data of a read, nothing for other operations.
pub type Answer = Result<Vec<u8>, LeafError>;

#[derive(Default)]
struct PortState {
    sizes: Vec<u64>,
    wanted: Vec<(u64, TaskRequest)>,
    answers: BTreeMap<u64, Answer>,
    device_replies: BTreeMap<u64, DeviceReply>,
    /// Size and logical block of each device in bytes, by the last published layout.
    devices: BTreeMap<u32, (u64, u32)>,
    next: u64,
    version: u32,
    now_ns: u64,
    faults: BTreeMap<u32, VecDeque<Fault>>,
    orders: BTreeMap<u32, VecDeque<(u64, Order)>>,
    ordered: BTreeMap<u64, OrderResult>,
    notes: VecDeque<(DeviceId, ReconcilerEvent)>,
    grown: BTreeMap<u32, Arc<RegionMap>>,
}

/// Connects tasks to the event loop: queues the requests of tasks and holds the replies. Implements [`MetaIo`] for the
/// simulated disks.
#[derive(Clone, Default)]
pub struct Port(Rc<RefCell<PortState>>);

impl Port {
    /// Creates a port to leaves of these sizes in bytes, indexed by [`LeafId`].
    pub fn new(sizes: Vec<u64>) -> Port {
        Port(Rc::new(RefCell::new(PortState { sizes, ..PortState::default() })))
    }

    fn put(&self, what: TaskRequest) -> u64 {
        let mut state = self.0.borrow_mut();
        state.next += 1;
        let id = state.next;
        if let TaskRequest::Publish(device, layout) = &what {
            let size = |layout: &Arc<DeviceLayout>| (layout.size_bytes(), layout.block_bytes());
            state.devices.insert(device.0, layout.as_ref().map(size).unwrap_or_default());
        }
        state.wanted.push((id, what));
        id
    }

    async fn perform(&self, what: TaskRequest) -> Answer {
        let id = self.put(what);
        std::future::poll_fn(|_| match self.0.borrow_mut().answers.remove(&id) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    /// Sends a request to a device and waits for the reply.
    pub(crate) async fn request(&self, task_request: DeviceRequest) -> DeviceReply {
        let id = self.put(TaskRequest::Request(task_request));
        std::future::poll_fn(|_| match self.0.borrow_mut().device_replies.remove(&id) {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        })
        .await
    }

    /// Delivers the reply of a device request.
    pub fn deliver_device_reply(&self, id: u64, reply: DeviceReply) {
        self.0.borrow_mut().device_replies.insert(id, reply);
    }

    /// Returns the size and logical block of a device in bytes.
    pub(crate) fn size_of_device(&self, device: DeviceId) -> (u64, u32) {
        self.0.borrow().devices.get(&device.0).copied().unwrap_or_default()
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> u32 {
        self.0.borrow().sizes.len() as u32
    }

    /// Sets the time.
    pub fn set_now(&self, now_ns: u64) {
        self.0.borrow_mut().now_ns = now_ns;
    }

    /// Takes the requests since the last call, in order.
    pub fn take_requests(&self) -> Vec<(u64, TaskRequest)> {
        std::mem::take(&mut self.0.borrow_mut().wanted)
    }

    /// Returns a layout version that no layout had before.
    pub fn new_version(&self) -> u32 {
        let mut state = self.0.borrow_mut();
        state.version += 1;
        state.version
    }

    /// Reports the failure of a member of a redundant array to its reconciler.
    pub fn report_fault(&self, fault: Fault) {
        self.0.borrow_mut().faults.entry(fault.device.0).or_default().push_back(fault);
    }

    /// Gives an order to the reconciler of a device, and waits for the result.
    pub async fn give_order(&self, device: DeviceId, order: Order) -> OrderResult {
        let id = {
            let mut state = self.0.borrow_mut();
            state.next += 1;
            let id = state.next;
            state.orders.entry(device.0).or_default().push_back((id, order));
            id
        };
        std::future::poll_fn(|_| match self.0.borrow_mut().ordered.remove(&id) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        })
        .await
    }

    /// Reports that a device's lease was renewed while the shards held replies back.
    pub fn renewed(&self, device: DeviceId) {
        self.put(TaskRequest::Renewed(device));
    }

    /// Reopens a disk, as soon as no I/O is in flight on it.
    pub async fn reopen(&self, leaf: LeafId) {
        self.perform(TaskRequest::Reopen(leaf)).await.expect("a disk can be reopened");
    }

    /// Forgets the reports about a device that is no longer served.
    pub fn forget(&self, device: DeviceId) {
        let mut state = self.0.borrow_mut();
        state.faults.remove(&device.0);
        state.orders.remove(&device.0);
    }

    /// Sets the new size of a disk that has grown.
    pub fn set_size(&self, leaf: LeafId, size_bytes: u64) {
        self.0.borrow_mut().sizes[leaf.0 as usize] = size_bytes;
    }

    /// Takes the region map of a device that has grown since the last call.
    pub fn take_grown(&self, device: DeviceId) -> Option<Arc<RegionMap>> {
        self.0.borrow_mut().grown.remove(&device.0)
    }

    /// Takes the events that reconcilers reported since the last call.
    pub fn take_events(&self) -> VecDeque<(DeviceId, ReconcilerEvent)> {
        std::mem::take(&mut self.0.borrow_mut().notes)
    }

    /// Delivers the reply of a part of a job.
    pub fn answer_sync(&self, id: u64, result: Result<Compared, IoError>) {
        let bytes = |found: Compared| [&found.differing.to_le_bytes()[..], &found.wrong].concat();
        let answer = result.map(bytes);
        self.answer(id, answer.map_err(|error| LeafError { kind: error.kind, errno: error.errno }));
    }

    /// Delivers a reply.
    pub fn answer(&self, id: u64, answer: Answer) {
        self.0.borrow_mut().answers.insert(id, answer);
    }
}

impl MetaIo for Port {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.0.borrow().sizes[leaf.0 as usize]
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.perform(TaskRequest::Read(leaf, offset, len)).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.perform(TaskRequest::Write(leaf, offset, data, fua)).await.map(drop)
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.perform(TaskRequest::Flush(leaf)).await.map(drop)
    }
}

impl EngineIo for Port {
    async fn freeze(&self, device: DeviceId) {
        self.perform(TaskRequest::Freeze(device)).await.expect("freezing cannot fail");
    }

    fn post(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.put(TaskRequest::Publish(device, layout));
    }

    async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.perform(TaskRequest::Publish(device, layout)).await.expect("publishing cannot fail");
    }

    async fn sync(&self, part: SyncPart) -> Result<Compared, IoError> {
        let answer = self.perform(TaskRequest::Sync(part)).await;
        let answer = answer.map_err(|error| IoError { errno: error.errno, ..IoError::of(error.kind) })?;
        let (differing, wrong) = answer.split_at(8);
        let differing = u64::from_le_bytes(differing.try_into().expect("eight bytes"));
        Ok(Compared { differing, wrong: wrong.try_into().expect("as it was put there") })
    }

    async fn call(&self, device: DeviceId, home: ShardId, call: RegionCall) {
        self.perform(TaskRequest::Call(device, home, call)).await.expect("a call cannot fail");
    }

    async fn next_fault(&self, device: DeviceId) -> Fault {
        std::future::poll_fn(|_| {
            let mut state = self.0.borrow_mut();
            match state.faults.get_mut(&device.0).and_then(VecDeque::pop_front) {
                Some(fault) => Poll::Ready(fault),
                None => Poll::Pending,
            }
        })
        .await
    }

    async fn is_idle(&self, leaf: LeafId) -> bool {
        self.perform(TaskRequest::IsIdle(leaf)).await.is_ok()
    }

    async fn sleep(&self, ns: u64) {
        self.perform(TaskRequest::Sleep(ns)).await.expect("sleeping cannot fail");
    }

    fn now_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    async fn requests(&self, device: DeviceId) -> u64 {
        let answer = self.perform(TaskRequest::Requests(device)).await.expect("counting cannot fail");
        u64::from_le_bytes(answer.try_into().expect("eight bytes"))
    }
}

impl ReconcilerIo for Port {
    fn next_version(&self, _: DeviceId) -> u32 {
        self.new_version()
    }

    async fn order(&self, device: DeviceId) -> (u64, Order) {
        std::future::poll_fn(|_| {
            let mut state = self.0.borrow_mut();
            match state.orders.get_mut(&device.0).and_then(VecDeque::pop_front) {
                Some(order) => Poll::Ready(order),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn report_result(&self, id: u64, result: OrderResult) {
        self.0.borrow_mut().ordered.insert(id, result);
    }

    fn grown(&self, device: DeviceId, regions: &Arc<RegionMap>) {
        self.0.borrow_mut().grown.insert(device.0, Arc::clone(regions));
    }

    fn report(&self, device: DeviceId, note: ReconcilerEvent) {
        let notes = &mut self.0.borrow_mut().notes;
        // The events are taken after each poll: a reconciler that loops without waiting would fill all memory.
        assert!(notes.len() < NOTES_MAX, "the reconciler of device {} reports events without end: {note:?}", device.0);
        notes.push_back((device, note));
    }
}

/// The result of a task, once it has ended.
pub struct Handle<T>(Rc<RefCell<Option<T>>>);

impl<T> Handle<T> {
    /// Takes the result; `None` while the task runs.
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().take()
    }

    /// Returns whether the task has ended and its result was not taken yet.
    pub fn is_done(&self) -> bool {
        self.0.borrow().is_some()
    }
}

/// The running tasks.
#[derive(Default)]
pub struct Tasks(Vec<Task>);

/// A running task.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

impl Tasks {
    /// Starts a task. The next [`Tasks::poll`] polls it first.
    pub fn spawn<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Handle<T> {
        let slot = Rc::new(RefCell::new(None));
        let result = Rc::clone(&slot);
        self.0.push(Box::pin(async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        }));
        Handle(slot)
    }

    /// Starts a task that stores its result itself.
    pub fn add(&mut self, task: Task) {
        self.0.push(task);
    }

    /// Polls every task once.
    pub fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        self.0.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
    }

    /// Returns whether no task runs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_waits_for_its_replies() {
        let port = Port::new(vec![1 << 20]);
        let mut tasks = Tasks::default();
        let meta = port.clone();
        let handle = tasks.spawn(async move {
            meta.write(LeafId(0), 0, vec![1; 4096], true).await?;
            meta.read(LeafId(0), 4096, 4096).await
        });
        tasks.poll();
        let first = port.take_requests();
        assert!(matches!(&first[..], [(1, TaskRequest::Write(LeafId(0), 0, data, true))] if data.len() == 4096));
        tasks.poll();
        assert!(port.take_requests().is_empty() && !handle.is_done());
        port.answer(1, Ok(vec![]));
        tasks.poll();
        assert!(matches!(&port.take_requests()[..], [(2, TaskRequest::Read(..))]));
        port.answer(2, Ok(vec![5]));
        tasks.poll();
        assert!(tasks.is_empty());
        assert_eq!(handle.take(), Some(Ok(vec![5])));
    }
}

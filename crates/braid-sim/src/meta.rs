//! The asynchronous side: label procedures and the control plane run here, one poll at a time.
//!
//! A task that waits is polled again after whatever happens next, tasks in the order in which they
//! were started. There is no waker, no thread and no clock.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use braid_engine::io::{DeviceId, IoError, LeafError, LeafId, MetaIo, ShardId};
use braid_engine::keeper::{EngineIo, Order, OrderResult, ReconcilerEvent, ReconcilerIo, SyncPart};
use braid_engine::layout::DeviceLayout;
use braid_engine::{Compared, RegionCall, RegionMap, Trouble};

use crate::devices::{Asked, Given};

/// More than a keeper has to tell at a time.
const NOTES_MAX: usize = 10_000;

/// Something that a task wants to happen.
#[derive(Debug)]
pub enum Wanted {
    /// Read this many bytes at this offset.
    Read(LeafId, u64, usize),
    /// Write at this offset, durable on return if the flag is set.
    Write(LeafId, u64, Vec<u8>, bool),
    /// Flush.
    Flush(LeafId),
    /// Publish a layout on every shard; answered when the old one has drained on all.
    Publish(DeviceId, Option<Arc<DeviceLayout>>),
    /// Say whether nothing is under way on a disk: answered with an error where something is.
    IsIdle(LeafId),
    /// Open a disk anew, as soon as nothing is under way on it.
    Reopen(LeafId),
    /// Tell every shard that a device's lease was renewed.
    Renewed(DeviceId),
    /// Freeze a device on every shard.
    Freeze(DeviceId),
    /// Ask something of a device.
    Request(Asked),
    /// Do a part of a job.
    Sync(SyncPart),
    /// Ask the home of a device's regions.
    Call(DeviceId, ShardId, RegionCall),
    /// Count the requests to a device that were answered: eight bytes, little-endian.
    Requests(DeviceId),
    /// Sleep for this many nanoseconds.
    Sleep(u64),
}

/// What came of it: the data for reads, nothing for others.
pub type Answer = Result<Vec<u8>, LeafError>;

#[derive(Default)]
struct Shelf {
    sizes: Vec<u64>,
    wanted: Vec<(u64, Wanted)>,
    answers: BTreeMap<u64, Answer>,
    given: BTreeMap<u64, Given>,
    /// Size and logical block in bytes of each device, by the last layout.
    devices: BTreeMap<u32, (u64, u32)>,
    next: u64,
    version: u32,
    now_ns: u64,
    troubles: BTreeMap<u32, VecDeque<Trouble>>,
    orders: BTreeMap<u32, VecDeque<(u64, Order)>>,
    ordered: BTreeMap<u64, OrderResult>,
    notes: VecDeque<(DeviceId, ReconcilerEvent)>,
    grown: BTreeMap<u32, Arc<RegionMap>>,
}

/// Where tasks put what they want and find what came of it. Also the [`MetaIo`] of the simulated disks.
#[derive(Clone, Default)]
pub struct Port(Rc<RefCell<Shelf>>);

impl Port {
    /// A port to leaves of these sizes in bytes, indexed by [`LeafId`].
    pub fn new(sizes: Vec<u64>) -> Port {
        Port(Rc::new(RefCell::new(Shelf { sizes, ..Shelf::default() })))
    }

    fn put(&self, what: Wanted) -> u64 {
        let mut shelf = self.0.borrow_mut();
        shelf.next += 1;
        let id = shelf.next;
        if let Wanted::Publish(device, layout) = &what {
            let size = |layout: &Arc<DeviceLayout>| (layout.size_bytes(), layout.block_bytes());
            shelf.devices.insert(device.0, layout.as_ref().map(size).unwrap_or_default());
        }
        shelf.wanted.push((id, what));
        id
    }

    async fn ask(&self, what: Wanted) -> Answer {
        let id = self.put(what);
        std::future::poll_fn(|_| match self.0.borrow_mut().answers.remove(&id) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    /// Asks something of a device.
    pub(crate) async fn request(&self, asked: Asked) -> Given {
        let id = self.put(Wanted::Request(asked));
        std::future::poll_fn(|_| match self.0.borrow_mut().given.remove(&id) {
            Some(given) => Poll::Ready(given),
            None => Poll::Pending,
        })
        .await
    }

    /// Answers a request to a device.
    pub fn give(&self, id: u64, given: Given) {
        self.0.borrow_mut().given.insert(id, given);
    }

    /// Size and logical block of a device in bytes.
    pub(crate) fn size_of_device(&self, device: DeviceId) -> (u64, u32) {
        self.0.borrow().devices.get(&device.0).copied().unwrap_or_default()
    }

    /// Leaves that there are.
    pub fn leaves(&self) -> u32 {
        self.0.borrow().sizes.len() as u32
    }

    /// Time has passed.
    pub fn set_now(&self, now_ns: u64) {
        self.0.borrow_mut().now_ns = now_ns;
    }

    /// What was asked for since the last call, in that order.
    pub fn take_wanted(&self) -> Vec<(u64, Wanted)> {
        std::mem::take(&mut self.0.borrow_mut().wanted)
    }

    /// A number for a layout that no layout had before.
    pub fn new_version(&self) -> u32 {
        let mut shelf = self.0.borrow_mut();
        shelf.version += 1;
        shelf.version
    }

    /// A member of a redundant array failed.
    pub fn tell_trouble(&self, trouble: Trouble) {
        self.0.borrow_mut().troubles.entry(trouble.device.0).or_default().push_back(trouble);
    }

    /// Gives the keeper of a device an order, and waits for what comes of it.
    pub async fn give_order(&self, device: DeviceId, order: Order) -> OrderResult {
        let id = {
            let mut shelf = self.0.borrow_mut();
            shelf.next += 1;
            let id = shelf.next;
            shelf.orders.entry(device.0).or_default().push_back((id, order));
            id
        };
        std::future::poll_fn(|_| match self.0.borrow_mut().ordered.remove(&id) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        })
        .await
    }

    /// A device's lease was renewed, and answers had been kept.
    pub fn renewed(&self, device: DeviceId) {
        self.put(Wanted::Renewed(device));
    }

    /// Opens a disk anew, as soon as nothing is under way on it.
    pub async fn reopen(&self, leaf: LeafId) {
        self.ask(Wanted::Reopen(leaf)).await.expect("a disk can be opened anew");
    }

    /// Forgets what was told of a device that is served no longer.
    pub fn forget(&self, device: DeviceId) {
        let mut shelf = self.0.borrow_mut();
        shelf.troubles.remove(&device.0);
        shelf.orders.remove(&device.0);
    }

    /// A disk has become larger.
    pub fn set_size(&self, leaf: LeafId, size_bytes: u64) {
        self.0.borrow_mut().sizes[leaf.0 as usize] = size_bytes;
    }

    /// The regions of a device that has grown since this was asked last.
    pub fn take_grown(&self, device: DeviceId) -> Option<Arc<RegionMap>> {
        self.0.borrow_mut().grown.remove(&device.0)
    }

    /// What keepers have told since the last call.
    pub fn take_notes(&self) -> VecDeque<(DeviceId, ReconcilerEvent)> {
        std::mem::take(&mut self.0.borrow_mut().notes)
    }

    /// Answers a part of a job.
    pub fn answer_sync(&self, id: u64, result: Result<Compared, IoError>) {
        let bytes = |found: Compared| [&found.differing.to_le_bytes()[..], &found.wrong].concat();
        let answer = result.map(bytes);
        self.answer(id, answer.map_err(|error| LeafError { kind: error.kind, errno: error.errno }));
    }

    /// Answers one.
    pub fn answer(&self, id: u64, answer: Answer) {
        self.0.borrow_mut().answers.insert(id, answer);
    }
}

impl MetaIo for Port {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.0.borrow().sizes[leaf.0 as usize]
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.ask(Wanted::Read(leaf, offset, len)).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.ask(Wanted::Write(leaf, offset, data, fua)).await.map(drop)
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.ask(Wanted::Flush(leaf)).await.map(drop)
    }
}

impl EngineIo for Port {
    async fn freeze(&self, device: DeviceId) {
        self.ask(Wanted::Freeze(device)).await.expect("freezing cannot fail");
    }

    fn post(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.put(Wanted::Publish(device, layout));
    }

    async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.ask(Wanted::Publish(device, layout)).await.expect("publishing cannot fail");
    }

    async fn sync(&self, part: SyncPart) -> Result<Compared, IoError> {
        let answer = self.ask(Wanted::Sync(part)).await;
        let answer = answer.map_err(|error| IoError { errno: error.errno, ..IoError::of(error.kind) })?;
        let (differing, wrong) = answer.split_at(8);
        let differing = u64::from_le_bytes(differing.try_into().expect("eight bytes"));
        Ok(Compared { differing, wrong: wrong.try_into().expect("as it was put there") })
    }

    async fn call(&self, device: DeviceId, home: ShardId, call: RegionCall) {
        self.ask(Wanted::Call(device, home, call)).await.expect("a call cannot fail");
    }

    async fn next_fault(&self, device: DeviceId) -> Trouble {
        std::future::poll_fn(|_| {
            let mut shelf = self.0.borrow_mut();
            match shelf.troubles.get_mut(&device.0).and_then(VecDeque::pop_front) {
                Some(trouble) => Poll::Ready(trouble),
                None => Poll::Pending,
            }
        })
        .await
    }

    async fn is_idle(&self, leaf: LeafId) -> bool {
        self.ask(Wanted::IsIdle(leaf)).await.is_ok()
    }

    async fn sleep(&self, ns: u64) {
        self.ask(Wanted::Sleep(ns)).await.expect("sleeping cannot fail");
    }

    fn now_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    async fn requests(&self, device: DeviceId) -> u64 {
        let answer = self.ask(Wanted::Requests(device)).await.expect("counting cannot fail");
        u64::from_le_bytes(answer.try_into().expect("eight bytes"))
    }
}

impl ReconcilerIo for Port {
    fn next_version(&self, _: DeviceId) -> u32 {
        self.new_version()
    }

    async fn order(&self, device: DeviceId) -> (u64, Order) {
        std::future::poll_fn(|_| {
            let mut shelf = self.0.borrow_mut();
            match shelf.orders.get_mut(&device.0).and_then(VecDeque::pop_front) {
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
        // They are taken after each poll: a keeper that goes round and never waits would take all memory.
        assert!(notes.len() < NOTES_MAX, "the keeper of device {} tells notes without end: {note:?}", device.0);
        notes.push_back((device, note));
    }
}

/// The result of a task, once there is one.
pub struct Handle<T>(Rc<RefCell<Option<T>>>);

impl<T> Handle<T> {
    /// Takes the result; `None` while the task runs.
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().take()
    }

    /// Whether the task has ended and nobody took its result yet.
    pub fn is_done(&self) -> bool {
        self.0.borrow().is_some()
    }
}

/// The tasks that run.
#[derive(Default)]
pub struct Tasks(Vec<Task>);

/// One that runs.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

impl Tasks {
    /// Starts one. It is polled first by the next [`Tasks::poll`].
    pub fn spawn<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Handle<T> {
        let slot = Rc::new(RefCell::new(None));
        let result = Rc::clone(&slot);
        self.0.push(Box::pin(async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        }));
        Handle(slot)
    }

    /// Starts one that puts its result where it wants.
    pub fn add(&mut self, task: Task) {
        self.0.push(task);
    }

    /// Lets every task go as far as it can.
    pub fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        self.0.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
    }

    /// Whether nothing runs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_waits_for_its_answers() {
        let port = Port::new(vec![1 << 20]);
        let mut tasks = Tasks::default();
        let meta = port.clone();
        let handle = tasks.spawn(async move {
            meta.write(LeafId(0), 0, vec![1; 4096], true).await?;
            meta.read(LeafId(0), 4096, 4096).await
        });
        tasks.poll();
        let first = port.take_wanted();
        assert!(matches!(&first[..], [(1, Wanted::Write(LeafId(0), 0, data, true))] if data.len() == 4096));
        tasks.poll();
        assert!(port.take_wanted().is_empty() && !handle.is_done());
        port.answer(1, Ok(vec![]));
        tasks.poll();
        assert!(matches!(&port.take_wanted()[..], [(2, Wanted::Read(..))]));
        port.answer(2, Ok(vec![5]));
        tasks.poll();
        assert!(tasks.is_empty());
        assert_eq!(handle.take(), Some(Ok(vec![5])));
    }
}

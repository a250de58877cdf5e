//! The asynchronous side: label procedures and the control plane run here, one poll at a time.
//!
//! A task that waits is polled again after whatever happens next, tasks in the order in which they
//! were started. There is no waker, no thread and no clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use braid_engine::io::{DeviceId, LeafError, LeafId, MetaIo};
use braid_engine::layout::DeviceLayout;

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
    next: u64,
}

/// Where tasks put what they want and find what came of it. Also the [`MetaIo`] of the simulated disks.
#[derive(Clone, Default)]
pub struct Port(Rc<RefCell<Shelf>>);

impl Port {
    /// A port to leaves of these sizes in bytes, indexed by [`LeafId`].
    pub fn new(sizes: Vec<u64>) -> Port {
        Port(Rc::new(RefCell::new(Shelf { sizes, ..Shelf::default() })))
    }

    async fn ask(&self, what: Wanted) -> Answer {
        let id = {
            let mut shelf = self.0.borrow_mut();
            shelf.next += 1;
            let id = shelf.next;
            shelf.wanted.push((id, what));
            id
        };
        std::future::poll_fn(|_| match self.0.borrow_mut().answers.remove(&id) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    /// Publishes a layout on every shard, and waits until nothing uses the one before.
    pub async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        let answer = self.ask(Wanted::Publish(device, layout)).await;
        answer.expect("publishing cannot fail");
    }

    /// Lets virtual time pass.
    pub async fn sleep(&self, ns: u64) {
        self.ask(Wanted::Sleep(ns)).await.expect("sleeping cannot fail");
    }

    /// Leaves that there are.
    pub fn leaves(&self) -> u32 {
        self.0.borrow().sizes.len() as u32
    }

    /// What was asked for since the last call, in that order.
    pub fn take_wanted(&self) -> Vec<(u64, Wanted)> {
        std::mem::take(&mut self.0.borrow_mut().wanted)
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
pub struct Tasks(Vec<Pin<Box<dyn Future<Output = ()>>>>);

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

//! The asynchronous side: label procedures run here, one poll at a time, over the simulated disks.
//!
//! A future that waits is polled again whenever one of its I/Os has been answered, tasks in the order
//! in which they were started. There is no waker, no thread and no clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use braid_engine::io::{LeafError, LeafId, MetaIo};

/// One I/O that a task wants.
#[derive(Debug)]
pub enum MetaRequest {
    /// Read this many bytes at this offset.
    Read(LeafId, u64, usize),
    /// Write at this offset, durable on return if the flag is set.
    Write(LeafId, u64, Vec<u8>, bool),
    /// Flush.
    Flush(LeafId),
}

/// What came of it: the data for reads, nothing for others.
pub type MetaResult = Result<Vec<u8>, LeafError>;

#[derive(Default)]
struct Port {
    sizes: Vec<u64>,
    wanted: Vec<(u64, MetaRequest)>,
    answers: BTreeMap<u64, MetaResult>,
    next: u64,
}

/// Metadata I/O on simulated disks, as the engine's procedures see it.
#[derive(Clone, Default)]
pub struct SimMeta(Rc<RefCell<Port>>);

impl SimMeta {
    /// A port to leaves of these sizes in bytes, indexed by [`LeafId`].
    pub fn new(sizes: Vec<u64>) -> SimMeta {
        SimMeta(Rc::new(RefCell::new(Port { sizes, ..Port::default() })))
    }

    async fn ask(&self, request: MetaRequest) -> MetaResult {
        let id = {
            let mut port = self.0.borrow_mut();
            port.next += 1;
            let id = port.next;
            port.wanted.push((id, request));
            id
        };
        std::future::poll_fn(|_| match self.0.borrow_mut().answers.remove(&id) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    /// The I/Os asked for since the last call, in that order.
    pub fn take_wanted(&self) -> Vec<(u64, MetaRequest)> {
        std::mem::take(&mut self.0.borrow_mut().wanted)
    }

    /// Answers one.
    pub fn answer(&self, id: u64, result: MetaResult) {
        self.0.borrow_mut().answers.insert(id, result);
    }
}

impl MetaIo for SimMeta {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.0.borrow().sizes[leaf.0 as usize]
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.ask(MetaRequest::Read(leaf, offset, len)).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.ask(MetaRequest::Write(leaf, offset, data, fua)).await.map(drop)
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.ask(MetaRequest::Flush(leaf)).await.map(drop)
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
        let meta = SimMeta::new(vec![1 << 20]);
        let mut tasks = Tasks::default();
        let port = meta.clone();
        let handle = tasks.spawn(async move {
            port.write(LeafId(0), 0, vec![1; 4096], true).await?;
            port.read(LeafId(0), 4096, 4096).await
        });
        tasks.poll();
        let first = meta.take_wanted();
        assert!(matches!(&first[..], [(1, MetaRequest::Write(LeafId(0), 0, data, true))] if data.len() == 4096));
        tasks.poll();
        assert!(meta.take_wanted().is_empty() && !handle.is_done());
        meta.answer(1, Ok(vec![]));
        tasks.poll();
        assert!(matches!(&meta.take_wanted()[..], [(2, MetaRequest::Read(..))]));
        meta.answer(2, Ok(vec![5]));
        tasks.poll();
        assert!(tasks.is_empty());
        assert_eq!(handle.take(), Some(Ok(vec![5])));
    }
}

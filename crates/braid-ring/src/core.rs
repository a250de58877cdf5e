//! The part of a shard that frontends and carriers reach: the engines of its stack levels, the port, the sockets, the
//! channels and the timers.

use std::sync::Arc;

use braid_engine::{ErrorKind, IoError, Limits, Request, Shard, ShardId, Shared};

use crate::channels::Channels;
use crate::error::RingError;
use crate::net::Net;
use crate::port::{LevelMemory, Port};
use crate::stack_level::stack_level_of;
use crate::timer::Timers;

/// The part of a shard that frontends reach through [`crate::Cx`].
pub(crate) struct Core {
    pub(crate) id: ShardId,
    /// The engine of the first stack level.
    pub(crate) engine: Shard,
    /// The engines of the levels above the first.
    pub(crate) upper: Vec<Shard>,
    pub(crate) port: Port,
    pub(crate) net: Net,
    pub(crate) channels: Channels,
    pub(crate) timers: Timers,
}

/// Everything that a shard needs for one more stack level. Created outside the shard, because allocating memory may
/// fail.
pub(crate) struct AddLevel {
    pub(crate) level: usize,
    shared: Arc<Shared>,
    memory: LevelMemory,
    limits: Limits,
}

impl AddLevel {
    pub(crate) fn new(level: usize, shared: Arc<Shared>, limits: Limits) -> Result<AddLevel, RingError> {
        let memory = LevelMemory::new().map_err(|e| RingError::os(e, format!("taking memory for tier {level}")))?;
        Ok(AddLevel { level, shared, memory, limits })
    }
}

impl Core {
    /// Adds a stack level.
    pub(crate) fn add_level(&mut self, level: AddLevel) {
        debug_assert_eq!(level.level, self.upper.len() + 1, "levels are added in order");
        self.port.add_level(level.memory, level.limits.slots as usize);
        self.upper.push(Shard::new(ShardId(self.id.0), &level.limits, level.shared));
    }

    /// Calls `work` with the engine of a stack level and with the port, which marks I/O as that level's meanwhile.
    /// Returns `None`, without a call, if the level does not exist.
    pub(crate) fn on<R>(&mut self, level: usize, work: impl FnOnce(&mut Shard, &mut Port) -> R) -> Option<R> {
        if level == 0 {
            return Some(work(&mut self.engine, &mut self.port));
        }
        let engine = self.upper.get_mut(level - 1)?;
        self.port.set_level(level);
        let result = work(engine, &mut self.port);
        self.port.set_level(0);
        Some(result)
    }

    /// Returns the engine of a stack level for reading.
    pub(crate) fn engine_of(&self, level: usize) -> Option<&Shard> {
        if level == 0 { Some(&self.engine) } else { self.upper.get(level - 1) }
    }

    /// Submits a request to a device above the first stack level.
    #[cold]
    pub(crate) fn submit_above(&mut self, request: &Request) -> Result<(), IoError> {
        let submitted = self.on(stack_level_of(request.device), |engine, port| engine.submit(request, port));
        submitted.unwrap_or(Err(IoError::of(ErrorKind::NoDevice)))
    }
}

//! The control plane's work on a shard, by kind.

use crate::jobs::Jobs;
use crate::meta_requests::MetaRequests;
use crate::pools::PoolCalls;
use crate::requests::Requests;
use crate::stack_level::{META_COOKIE, mark_of};

/// The control plane's work on a shard at one stack level.
pub(crate) struct ControlWork {
    pub(crate) jobs: Jobs,
    pub(crate) requests: Requests,
    pub(crate) pool_calls: PoolCalls,
    pub(crate) meta_requests: MetaRequests,
}

impl ControlWork {
    pub(crate) fn new(level: usize) -> ControlWork {
        ControlWork {
            jobs: Jobs::new(),
            requests: Requests::default(),
            pool_calls: PoolCalls::default(),
            meta_requests: MetaRequests::new(META_COOKIE | mark_of(level)),
        }
    }
}

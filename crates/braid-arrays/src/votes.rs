//! Reads and writes labels of arrays, with the votes of those whose members are replicas.

use braid_engine::{DeviceLease, LeafError, LeafId, MetaIo};
use braid_exports::BoxFuture;
use braid_ring::RingMeta;
use std::sync::Arc;

/// The votes that decide which members of an array are in sync, if its members are replicas. The crate
/// `braid-replication` implements it.
pub trait Votes: Send + Sync {
    /// The lease under which the array may serve.
    fn lease(&self) -> &Arc<DeviceLease>;

    /// Has the members in sync stored by a majority of the voters. The number of a member is that of its voter. Returns
    /// the members that did not acknowledge their vote.
    ///
    /// # Errors
    /// This node does not serve the array any more.
    fn agree<'a>(&'a self, in_sync: &'a [u16]) -> BoxFuture<'a, Result<Vec<u16>, LeafError>>;
}

/// Access to labels over the ring, and the votes that decide which replicas are in sync.
pub struct VotedMeta {
    /// The labels.
    pub meta: RingMeta,
    /// The votes; none of an array of disks.
    pub votes: Option<Arc<dyn Votes>>,
}

impl MetaIo for VotedMeta {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.meta.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.meta.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.meta.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.meta.flush(leaf).await
    }

    async fn record_in_sync(&self, in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
        agree(self.votes.as_deref(), in_sync).await
    }
}

/// Has the voters of an array, if it has some, store its members in sync: see [`Votes::agree`].
///
/// # Errors
/// As [`Votes::agree`].
pub(crate) async fn agree(votes: Option<&dyn Votes>, in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
    match votes {
        Some(votes) => votes.agree(in_sync).await,
        None => Ok(Vec::new()),
    }
}

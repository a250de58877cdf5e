//! How labels of arrays are read and written, with the voters of those that have some.

use super::Voters;
use braid_engine::replica::VoterId;
use braid_engine::{ErrorKind, LeafError, LeafId, MetaIo};
use braid_ring::RingMeta;
use std::sync::Arc;

/// The ring's way to labels, and whoever decides beside them who is in sync.
pub struct VotedMeta {
    pub(super) meta: RingMeta,
    pub(super) voters: Option<Arc<Voters>>,
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

    async fn agree(&self, in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
        agree(self.voters.as_deref(), in_sync).await
    }
}

/// Asks the voters of an array, where it has some. The number of a member is that of its voter.
pub async fn agree(voters: Option<&Voters>, in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
    let Some(voters) = voters else { return Ok(Vec::new()) };
    let roles = in_sync.iter().map(|role| VoterId(*role as u8)).collect();
    let untold = voters.agree(roles).await.map_err(|_| LeafError::of(ErrorKind::Gone))?;
    Ok(untold.iter().map(|voter| u16::from(voter.0)).collect())
}

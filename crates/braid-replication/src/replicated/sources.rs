//! Sources of a snapshot that a replica lacks: the replica on this node, read as a device, or another one in sync, read
//! over the link. The node of the latter offers it as a read-only disk, for as long as its replica replies to this
//! controller.

use crate::ReplicationManager;
use crate::attached::ServedVolume;
use crate::replicated::outcome::{SnapshotLists, SnapshotState};
use crate::replicated::replica_requests::CHANGE_MAX;
use braid_api::{ErrorDetail, Kind, ReplicaChange, SnapshotDiff};
use braid_engine::replica::VoterId;
use braid_engine::{DeviceIo, Flags, LeafId, Op};
use braid_export::Allocation;
use braid_inventory::OpenDisk;
use hyper::Method;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time for a node to compare two snapshots: it walks the tables of a volume.
const DIFF_MAX: Duration = Duration::from_secs(60);

/// Maximum time for withdrawing an offer. If the node is not reached, it ends the offer by itself.
const WITHDRAW_MAX: Duration = Duration::from_secs(2);

/// A snapshot that other replicas have and one lacks.
pub(crate) struct MissingSnapshot {
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    /// The replica that it is read from.
    pub(crate) from: u16,
    /// A snapshot that both have by then, or that was copied just before.
    pub(crate) since: Option<Uuid>,
}

/// An open source of a snapshot, until it is closed.
pub(crate) struct OpenSource {
    snapshot: Uuid,
    /// The replica that it is read from.
    pub(crate) from: u16,
    source: SnapshotSource,
    /// Ranges in which the other replica may differ from it.
    pub(crate) ranges: Vec<Range<u64>>,
}

enum SnapshotSource {
    /// On this node, served as a device.
    Local(braid_exports::ExportSource),
    /// On another node.
    Remote(Arc<OpenDisk>),
}

impl OpenSource {
    /// Returns the size at the opening, in bytes. If the device is gone in the meantime, reads fail.
    pub(crate) fn size_bytes(&self) -> u64 {
        match &self.source {
            SnapshotSource::Local(source) => source.size_bytes,
            SnapshotSource::Remote(disk) => disk.disk.size_bytes(),
        }
    }

    /// Returns what is known about its holes before it is read. A remote source reports them with each read.
    pub(crate) fn allocation(&self) -> Option<&dyn Allocation> {
        match &self.source {
            SnapshotSource::Local(source) => source.allocation.as_deref(),
            SnapshotSource::Remote(_) => None,
        }
    }
}

impl SnapshotLists {
    /// Returns the replica that a snapshot is read from: that of this node, if it has the snapshot.
    pub(crate) fn source_of(&self, local: Option<u16>, lacks: u16, snapshot: &str) -> Option<u16> {
        let has = |slot: &u16| *slot != lacks && matches!(self.state_on(*slot, snapshot), SnapshotState::Named(_));
        local.filter(has).or_else(|| self.0.keys().copied().find(|slot| has(slot)))
    }
}

impl ReplicationManager {
    /// Opens a source of the snapshot, and determines the ranges to compare.
    pub(crate) async fn open_source(
        self: &Arc<Self>,
        serving: &ServedVolume,
        missing: &MissingSnapshot,
    ) -> Result<OpenSource, ErrorDetail> {
        let (volume, from) = (serving.volume.uuid, missing.from);
        let ranges = match missing.since {
            Some(since) => self.ranges_between(serving, from, since, Some(missing.uuid)).await?,
            None => self.written_ranges(volume)?,
        };
        let source = match self.local_replica(volume) {
            Some(local) if local == from => {
                let data = self.data_of_replica(&volume.to_string())?;
                // An existing offer of it is to an earlier controller.
                self.withdraw_snapshot(missing.uuid).await;
                SnapshotSource::Local(self.serve_snapshot(data, missing.uuid).await?)
            }
            _ => SnapshotSource::Remote(self.open_remote_source(serving, from, missing.uuid).await?),
        };
        Ok(OpenSource { snapshot: missing.uuid, from, source, ranges })
    }

    async fn open_remote_source(
        &self,
        serving: &ServedVolume,
        from: u16,
        snapshot: Uuid,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let offer = ReplicaChange::Offer { snapshot: snapshot.to_string() };
        self.change_one(serving, from, &offer, CHANGE_MAX).await?;
        let ServedVolume { volume, voters, .. } = serving;
        let opened = self.reach_snapshot(volume, voters, VoterId(from as u8), snapshot).await;
        if opened.is_err() {
            self.withdraw_remote(serving, from, snapshot).await;
        }
        opened
    }

    /// Closes a source.
    pub(crate) async fn close_source(self: &Arc<Self>, serving: &ServedVolume, opened: OpenSource) {
        match opened.source {
            SnapshotSource::Local(_) => self.pools.close_volume(opened.snapshot).await,
            SnapshotSource::Remote(disk) => {
                self.arrays.close_disks(vec![disk]).await;
                self.withdraw_remote(serving, opened.from, opened.snapshot).await;
            }
        }
    }

    async fn withdraw_remote(&self, serving: &ServedVolume, from: u16, snapshot: Uuid) {
        let withdraw = ReplicaChange::Withdraw { snapshot: snapshot.to_string() };
        // Under another controller the offer has ended anyway.
        if let Err(error) = self.change_one(serving, from, &withdraw, WITHDRAW_MAX).await
            && error.kind != Kind::Fenced
        {
            tracing::info!("snapshot {snapshot} is offered until its node ends that: {}", error.message);
        }
    }

    /// Reads a range of a source.
    pub(crate) async fn read_source(
        &self,
        serving: &ServedVolume,
        opened: &OpenSource,
        start: u64,
        len: u64,
    ) -> Result<Vec<u8>, ErrorDetail> {
        let failed = |why: String| ErrorDetail::new(Kind::DiskError, why);
        match &opened.source {
            SnapshotSource::Local(source) => {
                let read = self.ring.devices().read(source.device, start, len as usize).await;
                read.map_err(|error| failed(format!("this node's replica: {error}")))
            }
            SnapshotSource::Remote(disk) => {
                let read = self.ring.leaf_io(disk.leaf, Op::Read, Flags::SPARSE, start, len, &[]).await;
                let name = serving.volume.voter_name(opened.from as u8);
                read.map_err(|error| failed(format!("replica {name}, of which it is read: {error}")))
            }
        }
    }

    /// Returns the disk of a replica.
    pub(crate) fn leaf_of_replica(&self, array: Uuid, slot: u16) -> Option<LeafId> {
        let tables = self.inventory.read();
        let active = tables.arrays.get(&array)?.active()?;
        Some(active.disks.iter().find(|member| member.role == slot)?.disk.leaf)
    }

    /// Returns the ranges of a volume that were ever written, by the regions of its array.
    pub(crate) fn written_ranges(&self, volume: Uuid) -> Result<Vec<Range<u64>>, ErrorDetail> {
        let regions = self.arrays.with_reconciler(volume, |reconciler| reconciler.regions()).ok_or_else(not_served)?;
        let label = self.inventory.read().arrays.get(&volume).and_then(|entry| Some(entry.active()?.label.clone()));
        let geometry = label.ok_or_else(not_served)?.geometry();
        let geometry = geometry.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        let (mut ranges, mut at): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        while at < geometry.size_bytes() {
            let (is_written, end) = regions.run_at(&geometry, at);
            match ranges.last_mut().filter(|last| last.end == at) {
                _ if !is_written => {}
                Some(last) => last.end = end,
                None => ranges.push(at..end),
            }
            at = end;
        }
        Ok(ranges)
    }

    /// Returns the ranges in which a snapshot of a replica, or its current data, differs from an older snapshot.
    pub(crate) async fn ranges_between(
        &self,
        serving: &ServedVolume,
        from: u16,
        since: Uuid,
        snapshot: Option<Uuid>,
    ) -> Result<Vec<Range<u64>>, ErrorDetail> {
        let (mut ranges, mut next) = (Vec::new(), Some(0));
        let (since, to) = (since.to_string(), snapshot.map(|snapshot| snapshot.to_string()));
        let is_local = self.local_replica(serving.volume.uuid) == Some(from);
        while let Some(offset) = next {
            let some = match is_local {
                true => self.pools.diff(&since, to.as_deref(), offset).await?,
                false => self.diff_remote(serving, from, &since, to.as_deref(), offset).await?,
            };
            ranges.extend(some.ranges.iter().map(|range| range.offset_bytes..range.offset_bytes + range.length_bytes));
            next = some.next_offset_bytes;
        }
        Ok(ranges)
    }

    /// Returns a part of these ranges, as reported by the replica's node.
    async fn diff_remote(
        &self,
        serving: &ServedVolume,
        from: u16,
        since: &str,
        to: Option<&str>,
        offset_bytes: u64,
    ) -> Result<SnapshotDiff, ErrorDetail> {
        let to = to.map(|to| format!("&to={to}")).unwrap_or_default();
        let path = format!("/v1/snapshots/{since}/diff?offset_bytes={offset_bytes}{to}");
        let node = serving.volume.node_of(from)?;
        let reply = self.nodes.call_within(DIFF_MAX, node, Method::GET, &path, None).await?;
        serde_json::from_value(reply).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))
    }
}

/// Returns the error that the volume has stopped being served meanwhile.
pub(crate) fn not_served() -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, "the volume is not served any more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::ReplicaSnapshot;

    #[test]
    fn a_snapshot_is_read_locally_if_possible_and_never_from_a_replica_without_it() {
        const UUID: &str = "51a90000-0000-8000-8000-000000000001";
        let one = |name: Option<&str>| ReplicaSnapshot {
            uuid: UUID.to_owned(),
            name: name.map(str::to_owned),
            size_bytes: 0,
            allocated_bytes: 0,
            created_unix_s: 0,
            frozen: false,
        };
        let named = || vec![one(Some("monday"))];
        let listed = SnapshotLists([(0, Vec::new()), (1, vec![one(None)]), (2, named()), (3, named())].into());
        for (local, lacks, expected) in [
            (None, 0, Some(2)),
            (Some(3), 0, Some(3)),
            (Some(0), 1, Some(2)),
            (Some(1), 0, Some(2)),
            (Some(2), 2, Some(3)),
            (None, 3, Some(2)),
        ] {
            assert_eq!(listed.source_of(local, lacks, UUID), expected, "{local:?} {lacks}");
        }
        assert_eq!(listed.source_of(None, 0, "another one"), None);
    }
}

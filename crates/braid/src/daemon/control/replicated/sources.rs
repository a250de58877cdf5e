//! Where a snapshot is read that a replica lacks: from the replica of this very node, as a device, or from another one that is in sync, over the
//! link. That one's node offers it as a disk that nobody writes, for as long as it answers this controller.

use super::super::Control;
use super::super::pools;
use super::super::tables::OpenDisk;
use super::decided::{Has, Listed};
use super::snapshots::{CHANGING_MAX, Serving};
use braid_api::{ErrorDetail, Kind, ReplicaChange, SnapshotDiff};
use braid_engine::replica::VoterId;
use braid_engine::{DeviceIo, Flags, LeafId, Op};
use braid_nbd::export::Allocation;
use hyper::Method;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Longest that a node may take to say in what two snapshots differ: it walks over the tables of a volume.
const DIFFERING_MAX: Duration = Duration::from_secs(60);
/// Longest that a node is asked to offer a snapshot no more. If it is not reached it ends that by itself.
const WITHDRAWING_MAX: Duration = Duration::from_secs(2);

/// A snapshot that others have and a replica lacks.
pub(super) struct Missing {
    pub uuid: Uuid,
    pub name: String,
    /// Of which replica it is read.
    pub from: u16,
    /// One that both have then, or that was brought just now.
    pub since: Option<Uuid>,
}

/// A snapshot that is open, until it is closed.
pub(super) struct Opened {
    snapshot: Uuid,
    /// Of which replica.
    pub from: u16,
    source: Source,
    /// Where a replica may differ from it.
    pub ranges: Vec<Range<u64>>,
}

enum Source {
    /// Of this node, served as a device.
    Near(pools::Source),
    /// Of another one.
    Far(Arc<OpenDisk>),
}

impl Opened {
    /// As it was opened: of a device that has gone meanwhile nothing can be read, and that is an error.
    pub(super) fn size_bytes(&self) -> u64 {
        match &self.source {
            Source::Near(source) => source.size_bytes,
            Source::Far(disk) => disk.disk.size_bytes(),
        }
    }

    /// What is known of its holes before it is read. Where it is far away it is asked for them with each read.
    pub(super) fn allocation(&self) -> Option<&dyn Allocation> {
        match &self.source {
            Source::Near(source) => source.allocation.as_deref(),
            Source::Far(_) => None,
        }
    }
}

impl Listed {
    /// Of which replica a snapshot is read: of that of this node, if it has it.
    pub(super) fn source_of(&self, near: Option<u16>, lacks: u16, snapshot: &str) -> Option<u16> {
        let has = |role: &u16| *role != lacks && matches!(self.has(*role, snapshot), Has::Named(_));
        near.filter(has).or_else(|| self.0.keys().copied().find(|role| has(role)))
    }
}

impl Control {
    /// The snapshot as something that can be read, and where it has to be looked at.
    pub(super) async fn open_missing(
        self: &Arc<Self>,
        serving: &Serving,
        missing: &Missing,
    ) -> Result<Opened, ErrorDetail> {
        let (volume, from) = (serving.volume.uuid, missing.from);
        let ranges = match missing.since {
            Some(since) => self.ranges_between(serving, from, since, Some(missing.uuid)).await?,
            None => self.written_ranges(volume)?,
        };
        let source = match self.near_replica(volume) {
            Some(near) if near == from => {
                let data = self.data_of_replica(&volume.to_string())?;
                // To whom it is offered is a controller of before.
                self.withdraw_snapshot(missing.uuid).await;
                Source::Near(self.hold_snapshot(data, missing.uuid).await?)
            }
            _ => Source::Far(self.open_far(serving, from, missing.uuid).await?),
        };
        Ok(Opened { snapshot: missing.uuid, from, source, ranges })
    }

    async fn open_far(&self, serving: &Serving, from: u16, snapshot: Uuid) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let offer = ReplicaChange::Offer { snapshot: snapshot.to_string() };
        self.change_one(serving, from, &offer, CHANGING_MAX).await?;
        let Serving { volume, voters, .. } = serving;
        let opened = self.reach_snapshot(volume, voters, VoterId(from as u8), snapshot).await;
        if opened.is_err() {
            self.withdraw_far(serving, from, snapshot).await;
        }
        opened
    }

    /// Lets go of it.
    pub(super) async fn close_opened(self: &Arc<Self>, serving: &Serving, opened: Opened) {
        match opened.source {
            Source::Near(_) => self.close_volume(opened.snapshot).await,
            Source::Far(disk) => {
                self.close_disks(vec![disk]).await;
                self.withdraw_far(serving, opened.from, opened.snapshot).await;
            }
        }
    }

    async fn withdraw_far(&self, serving: &Serving, from: u16, snapshot: Uuid) {
        let withdraw = ReplicaChange::Withdraw { snapshot: snapshot.to_string() };
        // Where another controller is answered, that has ended it.
        if let Err(error) = self.change_one(serving, from, &withdraw, WITHDRAWING_MAX).await
            && error.kind != Kind::Fenced
        {
            tracing::info!("snapshot {snapshot} is offered until its node ends that: {}", error.message);
        }
    }

    /// Reads some of it.
    pub(super) async fn read_opened(
        &self,
        serving: &Serving,
        opened: &Opened,
        start: u64,
        len: u64,
    ) -> Result<Vec<u8>, ErrorDetail> {
        let failed = |why: String| ErrorDetail::new(Kind::DiskError, why);
        match &opened.source {
            Source::Near(source) => {
                let read = self.ring.devices().read(source.device, start, len as usize).await;
                read.map_err(|error| failed(format!("this node's replica: {error}")))
            }
            Source::Far(disk) => {
                let read = self.ring.leaf_io(disk.leaf, Op::Read, Flags::SPARSE, start, len, &[]).await;
                let name = serving.volume.voter_name(opened.from as u8);
                read.map_err(|error| failed(format!("replica {name}, of which it is read: {error}")))
            }
        }
    }

    /// The disk of a replica.
    pub(super) fn leaf_of_replica(&self, array: Uuid, role: u16) -> Option<LeafId> {
        let tables = self.read();
        let active = tables.arrays.get(&array)?.active()?;
        Some(active.disks.iter().find(|seat| seat.role == role)?.disk.leaf)
    }

    /// What was ever written of a volume, by what its array knows.
    pub(super) fn written_ranges(&self, volume: Uuid) -> Result<Vec<Range<u64>>, ErrorDetail> {
        let regions = self.with_keeping(volume, |keeping| keeping.regions()).ok_or_else(super::bringing::stopped)?;
        let label = self.read().arrays.get(&volume).and_then(|entry| Some(entry.active()?.label.clone()));
        let geometry = label.ok_or_else(super::bringing::stopped)?.geometry();
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

    /// In what a snapshot of a replica, or its data as they are now, differ from an older one.
    pub(super) async fn ranges_between(
        &self,
        serving: &Serving,
        from: u16,
        since: Uuid,
        snapshot: Option<Uuid>,
    ) -> Result<Vec<Range<u64>>, ErrorDetail> {
        let (mut ranges, mut next) = (Vec::new(), Some(0));
        let (since, to) = (since.to_string(), snapshot.map(|snapshot| snapshot.to_string()));
        let is_near = self.near_replica(serving.volume.uuid) == Some(from);
        while let Some(offset) = next {
            let some = match is_near {
                true => self.diff(&since, to.as_deref(), offset).await?,
                false => self.diff_far(serving, from, &since, to.as_deref(), offset).await?,
            };
            ranges.extend(some.ranges.iter().map(|range| range.offset_bytes..range.offset_bytes + range.length_bytes));
            next = some.next_offset_bytes;
        }
        Ok(ranges)
    }

    /// The same of some of it, by the word of the replica's node.
    async fn diff_far(
        &self,
        serving: &Serving,
        from: u16,
        since: &str,
        to: Option<&str>,
        offset_bytes: u64,
    ) -> Result<SnapshotDiff, ErrorDetail> {
        let to = to.map(|to| format!("&to={to}")).unwrap_or_default();
        let path = format!("/v1/snapshots/{since}/diff?offset_bytes={offset_bytes}{to}");
        let node = serving.volume.node_of(from)?;
        let answer = self.nodes().call_within(DIFFERING_MAX, node, Method::GET, &path, None).await?;
        serde_json::from_value(answer).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::ReplicaSnapshot;

    #[test]
    fn a_snapshot_is_read_near_where_it_is_there_and_never_of_who_lacks_it() {
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
        let listed = Listed([(0, Vec::new()), (1, vec![one(None)]), (2, named()), (3, named())].into());
        for (near, lacks, expected) in [
            (None, 0, Some(2)),
            (Some(3), 0, Some(3)),
            (Some(0), 1, Some(2)),
            (Some(1), 0, Some(2)),
            (Some(2), 2, Some(3)),
            (None, 3, Some(2)),
        ] {
            assert_eq!(listed.source_of(near, lacks, UUID), expected, "{near:?} {lacks}");
        }
        assert_eq!(listed.source_of(None, 0, "another one"), None);
    }
}

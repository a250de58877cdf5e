//! The array on the replicas of a volume: created, or started on the replicas in sync.

use crate::ReplicationManager;
use braid_advice::errors::lifecycle_error;
use braid_api::{ErrorDetail, Kind};
use braid_array_admin::lifecycle::{self, CreateRequest, LifecycleError, StartOptions};
use braid_arrays::VotedMeta;
use braid_format::{MemberId, Name, StartPolicy};
use braid_geometry::{Level, Spec};
use braid_inventory::{OpenDisk, SavedReplicated, random};
use std::sync::Arc;

impl ReplicationManager {
    /// Creates the array on new replicas.
    ///
    /// # Errors
    /// The error of a replica.
    pub(crate) async fn create_replicated_array(
        &self,
        volume: &SavedReplicated,
        meta: &VotedMeta,
        disks: &[Arc<OpenDisk>],
    ) -> Result<lifecycle::Array, ErrorDetail> {
        let mut member_ids: Vec<MemberId> = Vec::with_capacity(disks.len());
        while member_ids.len() < disks.len() {
            let id = MemberId::from_random(random()?);
            if !member_ids.contains(&id) {
                member_ids.push(id);
            }
        }
        let invalid = |error: &dyn std::fmt::Display| ErrorDetail::new(Kind::InvalidArgument, error.to_string());
        let request = CreateRequest {
            name: Name::new(&volume.name).map_err(|error| invalid(&error))?,
            spec: spec_of(volume, disks.len()),
            leaves: disks.iter().map(|disk| disk.leaf).collect(),
            uuid: volume.uuid,
            member_ids,
            spares: Vec::new(),
            journal: None,
            write_mostly: Vec::new(),
            start_policy: StartPolicy::ByLevel,
            lineage: random()?,
            session: random()?,
            created_unix_s: braid_inventory::unix_ms() / 1000,
            force: false,
        };
        let in_words = |error| lifecycle_error(&error, &volume.name, &braid_arrays::ArrayManager::name_in(disks));
        let array = lifecycle::create(meta, &request).await.map_err(in_words)?;
        if volume.from.is_some() {
            // The volume has content before its first write: no region may be treated as empty.
            all_written(meta, &array).await.map_err(in_words)?;
        }
        Ok(array)
    }

    /// Starts the array on the replicas that are in sync by the votes. Other replicas are left out, whatever their
    /// labels say.
    pub(crate) async fn start_replicated_array(
        &self,
        volume: &SavedReplicated,
        meta: &VotedMeta,
        disks: &[Arc<OpenDisk>],
    ) -> Result<(lifecycle::Array, bool), ErrorDetail> {
        let leaves: Vec<_> = disks.iter().map(|disk| disk.leaf).collect();
        let scan = lifecycle::scan(meta, &leaves).await;
        let found = scan.arrays.into_iter().find(|array| array.uuid == volume.uuid).ok_or_else(|| {
            ErrorDetail::new(Kind::Damaged, format!("no replica of volume {} bears its label", volume.name))
                .with("volume", &volume.name)
        })?;
        let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
        let options = StartOptions { degraded: true, ..StartOptions::new(random()?, random()?) };
        let started = lifecycle::start(meta, &found, options).await;
        let array = started
            .map_err(|error| lifecycle_error(&error, &volume.name, &braid_arrays::ArrayManager::name_in(disks)))?;
        Ok((array, clean))
    }
}

/// Returns the specification of the array on this number of replicas.
fn spec_of(volume: &SavedReplicated, replicas: usize) -> Spec {
    match replicas - volume.replicas_min() {
        _ if volume.is_mirrored() => Spec { copies: if replicas == 1 { 1 } else { 2 }, ..Spec::new(Level::Raid1) },
        1 => Spec::new(Level::Raid5),
        _ => Spec::new(Level::Raid6),
    }
}

/// Marks every region as written, on all members.
async fn all_written(meta: &VotedMeta, array: &lifecycle::Array) -> Result<(), LifecycleError> {
    let lifecycle::ArrayBitmap { mut written, dirty, .. } = lifecycle::load_regions(meta, array, false).await?;
    let label = array.label();
    let regions = label.array_bytes.div_ceil(u64::from(label.region_bytes));
    for region in 0..regions {
        written[region as usize / 64] |= 1 << (region % 64);
    }
    let slots: Vec<u16> = array.members().map(|member| member.number).collect();
    lifecycle::store_regions(meta, array, &slots, &written, &dirty).await
}

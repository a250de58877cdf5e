//! The array above the replicas of a volume: made, or started on those that hold everything.

use super::super::tables::OpenDisk;
use super::super::{Control, random};
use super::meta::VotedMeta;
use super::saved::SavedReplicated;
use braid_advice::errors::of_lifecycle;
use braid_api::{ErrorDetail, Kind};
use braid_engine::lifecycle::{self, CreateRequest, LifecycleError, StartOptions};
use braid_format::{MemberId, Name, StartPolicy};
use braid_geometry::{Level, Spec};
use std::sync::Arc;

impl Control {
    /// Makes the array above new replicas.
    ///
    /// # Errors
    /// A replica's.
    pub(super) async fn create_above(
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
            created_unix_s: super::super::unix_ms() / 1000,
            force: false,
        };
        let in_words = |error| of_lifecycle(&error, &volume.name, &Control::name_in(disks));
        let array = lifecycle::create(meta, &request).await.map_err(in_words)?;
        if volume.from.is_some() {
            // It has content before anybody has written: nothing of that is to be taken for empty.
            all_written(meta, &array).await.map_err(in_words)?;
        }
        Ok(array)
    }

    /// Starts the array on replicas that hold everything, by the word of the voters: without any others, whatever these may say.
    pub(super) async fn start_above(
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
        let array = started.map_err(|error| of_lifecycle(&error, &volume.name, &Control::name_in(disks)))?;
        Ok((array, clean))
    }
}

/// What the array above so many replicas is.
fn spec_of(volume: &SavedReplicated, replicas: usize) -> Spec {
    match replicas - volume.least() {
        _ if volume.is_of_copies() => Spec { copies: if replicas == 1 { 1 } else { 2 }, ..Spec::new(Level::Raid1) },
        1 => Spec::new(Level::Raid5),
        _ => Spec::new(Level::Raid6),
    }
}

/// Notes on all members that every region has something.
async fn all_written(meta: &VotedMeta, array: &lifecycle::Array) -> Result<(), LifecycleError> {
    let lifecycle::ArrayBitmap { mut written, dirty, .. } = lifecycle::load_regions(meta, array, false).await?;
    let label = array.label();
    let regions = label.array_bytes.div_ceil(u64::from(label.region_bytes));
    for region in 0..regions {
        written[region as usize / 64] |= 1 << (region % 64);
    }
    let roles: Vec<u16> = array.members().map(|member| member.number).collect();
    lifecycle::store_regions(meta, array, &roles, &written, &dirty).await
}

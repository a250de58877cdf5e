//! Grows an array: by the space that its disks have gained, and by further disks.

use crate::ArrayManager;
use crate::change::inactive;
use crate::disk_names::read_disk;
use crate::disks::remove_files;
use crate::reconcilers::members::{check_fit, stopped_meanwhile};
use braid_advice::errors::{lifecycle_error, ring_error};
use braid_api::{ErrorDetail, GrowArray, Growth, Kind, Zone};
use braid_array_admin::lifecycle::{self, GrowRequest, LifecycleError};
use braid_array_admin::reconciler::Order;
use braid_engine::layout::Node;
use braid_engine::{DeviceLayout, LeafId};
use braid_format::{ArrayPart, DiskLayout, MemberId, copy_offset};
use braid_geometry::Geometry;
use braid_geometry::units::format_size;
use braid_host::open::open_disk;
use braid_inventory::{
    ArrayCondition, ArrayHandle, ArraySlot, ExportCondition, OpenDisk, random, refuse_higher_stack_level,
};
use braid_ring::{DiskSpec, OpenOptions};
use braid_tasks as tasks;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// The state of an array before it grows.
struct ArrayBefore {
    uuid: Uuid,
    name: String,
    label: ArrayPart,
    handle: ArrayHandle,
    disks: Vec<Arc<OpenDisk>>,
    /// Slot, disk and start of the data area of each member that is present.
    slots: Vec<(u16, Arc<OpenDisk>, u64)>,
}

impl ArrayManager {
    /// Grows an array by the space that its members' disks have gained and by further disks, or reports what that would
    /// give.
    ///
    /// Order: all checks come before the first write; then the state file records the further disks; then the labels
    /// are written; then the larger array serves.
    ///
    /// # Errors
    /// The reason; the array is unchanged.
    pub async fn grow_array(self: &Arc<Self>, array: &str, request: GrowArray) -> Result<Growth, ErrorDetail> {
        let claim = self.inventory.claim(array, "grown")?;
        let before = self.before_growth(array)?;
        let specs = request.disks.iter().map(|disk| read_disk(disk)).collect::<Result<Vec<_>, _>>()?;
        let (manager, checked) = (Arc::clone(self), specs.clone());
        let checked = tasks::blocking(move || manager.check_paths(&checked)).await;
        let (_paths, absent) = checked.map_err(task_failed)??;
        self.refresh_sizes(&before).await?;
        if request.dry_run {
            let growth = before.plan(specs, request.force).await?;
            return Ok(before.describe(&growth.geometry, true));
        }
        let new_disks = self.open_disks(&specs, &absent).await?;
        let fit = |disk: &Arc<OpenDisk>| refuse_higher_stack_level(&self.inventory.read(), before.uuid, disk);
        if let Err(error) = new_disks.iter().try_for_each(fit) {
            remove_files(&created_files(&new_disks, &absent));
            self.close_disks(new_disks).await;
            return Err(error);
        }
        match &before.handle {
            ArrayHandle::Kept(_) => {
                let grown = self.grow_redundant(&before, &new_disks, request.force).await;
                if let Err((error, released)) = grown {
                    if released {
                        remove_files(&created_files(&new_disks, &absent));
                        for disk in new_disks {
                            self.leave(claim.uuid, disk).await;
                        }
                        self.inventory.save_or_warn();
                    }
                    return Err(error);
                }
            }
            // `claim` refuses imported arrays.
            ArrayHandle::Imported(_) => return Err(ErrorDetail::new(Kind::Unsupported, "it is only read")),
            ArrayHandle::Plain(plain) => {
                let grown = self.grow_plain(&before, plain, &new_disks, request.force).await;
                if let Err(error) = grown {
                    let made = created_files(&new_disks, &absent);
                    remove_files(&made);
                    self.close_disks(new_disks).await;
                    return Err(error);
                }
            }
        }
        let label = {
            let tables = self.inventory.read();
            let entry = tables.array(&before.uuid.to_string())?;
            entry.active().ok_or_else(|| inactive(entry, "grown"))?.label.clone()
        };
        let geometry = label.geometry();
        let geometry = geometry.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        self.inventory.save_or_warn();
        Ok(before.describe(&geometry, false))
    }

    /// Returns the state of an active array before it grows.
    fn before_growth(&self, array: &str) -> Result<ArrayBefore, ErrorDetail> {
        let tables = self.inventory.read();
        let entry = tables.array(array)?;
        let active = entry.active().ok_or_else(|| inactive(entry, "grown"))?;
        let slot = |slot: &ArraySlot| (slot.role, Arc::clone(&slot.disk), slot.data_offset_bytes);
        Ok(ArrayBefore {
            uuid: entry.uuid,
            name: entry.name.clone(),
            label: active.label.clone(),
            handle: active.handle.clone(),
            disks: active.open_disks(),
            slots: active.disks.iter().map(slot).collect(),
        })
    }

    /// Rereads the sizes of the members' disks, and reports them to the shards.
    async fn refresh_sizes(&self, before: &ArrayBefore) -> Result<(), ErrorDetail> {
        let disks = before.disks.clone();
        let refreshed = tasks::blocking(move || {
            let look = |disk: &Arc<OpenDisk>| disk.disk.refresh_size().map_err(|error| ring_error(&error, &disk.name));
            disks.iter().try_for_each(|disk| look(disk).map(drop))
        });
        refreshed.await.map_err(task_failed)??;
        for disk in &before.disks {
            // An error means that the shards have ended.
            let _ = self.ring.resize_leaf(disk.leaf).await;
        }
        Ok(())
    }

    /// Has the reconciler grow the array. An error comes with whether the further disks are free: if the array failed
    /// at that moment, they may be members.
    async fn grow_redundant(
        self: &Arc<Self>,
        before: &ArrayBefore,
        new_disks: &[Arc<OpenDisk>],
        force: bool,
    ) -> Result<(), (ErrorDetail, bool)> {
        let released = |error: ErrorDetail| (error, true);
        let mut with_ids = Vec::with_capacity(new_disks.len());
        for disk in new_disks {
            with_ids.push((disk.leaf, MemberId::from_random(random().map_err(released)?)));
        }
        let persistent = {
            let mut tables = self.inventory.write();
            let entry = tables.arrays.get_mut(&before.uuid).map(|entry| &mut entry.condition);
            let Some(ArrayCondition::Active(active)) = entry else {
                return Err(released(stopped_meanwhile(&before.name)));
            };
            let fit = new_disks.iter().try_for_each(|disk| check_fit(&before.name, active, disk));
            fit.map_err(released)?;
            active.guests.extend(new_disks.iter().cloned());
            active.is_kept()
        };
        // Recorded before the first label is written, so that the next start scans these disks: harmless while they
        // bear none.
        let first = before.label.members.len() as u16;
        let noted = if persistent && !new_disks.is_empty() {
            self.record_array_disks(before.uuid, &before.name, new_disks, first).map_err(released)?
        } else {
            Vec::new()
        };
        let grown = self.give_order(before.uuid, Order::Grow { newcomers: with_ids, force }).await;
        grown.map_err(|error| {
            let failed = self.inventory.read().arrays.get(&before.uuid).and_then(|e| Some(e.active()?.has_failed()));
            if failed != Some(true) {
                self.undo_record(noted);
            }
            (error, failed != Some(true))
        })
    }

    /// Writes the labels first; then publishes the larger layout.
    async fn grow_plain(
        self: &Arc<Self>,
        before: &ArrayBefore,
        plain: &Arc<tokio::sync::Mutex<lifecycle::Array>>,
        new_disks: &[Arc<OpenDisk>],
        force: bool,
    ) -> Result<(), ErrorDetail> {
        let mut request = GrowRequest { new_disks: Vec::with_capacity(new_disks.len()), force };
        let persistent = {
            let tables = self.inventory.read();
            let entry = tables.array(&before.uuid.to_string())?;
            let active = entry.active().ok_or_else(|| inactive(entry, "grown"))?;
            new_disks.iter().try_for_each(|disk| check_fit(&before.name, active, disk))?;
            active.is_kept()
        };
        for disk in new_disks {
            request.new_disks.push((disk.leaf, MemberId::from_random(random()?)));
        }
        // Recorded before the first label is written, so that the next start scans these disks: harmless while they
        // bear none.
        let first = before.slots.len() as u16;
        let noted =
            if persistent { self.record_array_disks(before.uuid, &before.name, new_disks, first)? } else { Vec::new() };
        let known: Vec<Arc<OpenDisk>> = before.disks.iter().chain(new_disks).cloned().collect();
        let mut array = plain.lock().await;
        let grown = array.grow(&self.meta, &request).await;
        let growth = match grown {
            Ok(growth) => growth,
            Err(error) => {
                drop(array);
                if persistent {
                    self.undo_record(noted);
                    self.inventory.save_or_warn();
                }
                return Err(lifecycle_error(&error, &before.name, &ArrayManager::name_in(&known)));
            }
        };
        let members: Vec<_> = array.members().map(|m| (m.number, m.leaf, m.part.layout.data)).collect();
        let label = array.label().clone();
        drop(array);
        let nodes =
            members.iter().map(|(_, leaf, data)| Node::Leaf { leaf: *leaf, start: data.start, len: data.bytes });
        let root = Node::Striped { geometry: growth.geometry.clone(), members: nodes.collect() };
        let slot = |(role, leaf, data): &(u16, LeafId, braid_format::ByteRange)| {
            let disk = known.iter().find(|disk| disk.leaf == *leaf)?;
            Some(ArraySlot { role: *role, disk: Arc::clone(disk), data_offset_bytes: data.start })
        };
        let published = {
            let mut tables = self.inventory.write();
            let version = tables.next_layout_version();
            let Some(ArrayCondition::Active(active)) = tables.arrays.get_mut(&before.uuid).map(|e| &mut e.condition)
            else {
                return Ok(());
            };
            let layout = Arc::new(DeviceLayout::new(version, active.block_bytes, &root));
            active.label = label;
            active.size_bytes = layout.size_bytes();
            active.disks = members.iter().filter_map(slot).collect();
            // Under the lock: no other layout is published in between, and the array is not stopped.
            self.ring.publish_and_drain(active.device, Some(layout))
        };
        // Requests in flight may use the old layout; clients that connect from here on use the new one.
        drop(published);
        self.grow_exports(before.uuid);
        self.report_growth(&before.name, growth.before_bytes, growth.after_bytes());
        Ok(())
    }

    /// Updates the size that the exports of an array report to new clients.
    pub(crate) fn grow_exports(&self, uuid: Uuid) {
        let tables = self.inventory.read();
        let Some(active) = tables.arrays.get(&uuid).and_then(|entry| entry.active()) else { return };
        for export in tables.exports.values().filter(|export| export.saved.array == uuid) {
            if let ExportCondition::Listening(export) = &export.serving {
                export.grow(active.size_bytes);
            }
        }
        drop(tables);
        self.exports.refresh_file_sizes(uuid);
        self.exports.resize_blocks_of(uuid);
    }

    /// Reports that an array has grown.
    pub(crate) fn report_growth(&self, name: &str, before_bytes: u64, after_bytes: u64) {
        let message = format!(
            "array {name} has grown from {} to {}; clients that are connected see the new size when they reconnect",
            format_size(before_bytes),
            format_size(after_bytes)
        );
        self.inventory.events().info("array_grown", message, &[("array", name)]);
    }
}

impl ArrayBefore {
    /// Plans the growth without any change.
    async fn plan(&self, specs: Vec<DiskSpec>, force: bool) -> Result<lifecycle::Growth, ErrorDetail> {
        let names: Vec<String> = specs.iter().map(ToString::to_string).collect();
        let sizes = tasks::blocking(move || specs.iter().map(size_of).collect::<Result<Vec<u64>, _>>());
        let sizes = sizes.await.map_err(task_failed)??;
        let entry = |role: u16| self.label.members.get(usize::from(role)).map_or(0, |entry| entry.data_bytes);
        let data: Vec<(u16, u64)> = self
            .slots
            .iter()
            .map(|(role, disk, start)| {
                let end = copy_offset(disk.disk.size_bytes()).unwrap_or(0);
                (*role, end.saturating_sub(*start).max(entry(*role)))
            })
            .collect();
        let mut further = Vec::with_capacity(sizes.len());
        for (size, name) in sizes.iter().zip(&names) {
            let places = DiskLayout::for_device(*size).map_err(|error| {
                let error = ErrorDetail::new(Kind::InvalidArgument, format!("disk {name}: {error}"));
                error.with("disk", name).remedy("use a disk of another size")
            })?;
            further.push(places.data.bytes);
        }
        let known = ArrayManager::name_in(&self.disks);
        lifecycle::plan_growth(&self.label, &data, &further, force)
            .map_err(|error: LifecycleError| lifecycle_error(&error, &self.name, &known))
    }

    /// Describes the growth to this geometry.
    fn describe(&self, geometry: &Geometry, dry_run: bool) -> Growth {
        let zone = |zone: &braid_geometry::Zone| Zone {
            array_start_bytes: zone.array_start,
            array_bytes: zone.array_bytes,
            member_start_bytes: zone.member_start,
            member_bytes: zone.member_bytes,
            members: zone.members.clone(),
        };
        let further = geometry.member_data_bytes().len()
            > self.label.geometry().map_or(0, |before| before.member_data_bytes().len());
        let advice = (further && self.label.spec.level.parity() > 0).then(|| {
            format!(
                "existing stripes keep their width, and further disks form stripes of their own; for wider stripes create another array of level {} and copy the content there",
                self.label.spec.level
            )
        });
        Growth {
            advice,
            array: self.name.clone(),
            dry_run,
            before_bytes: self.label.array_bytes,
            size_bytes: geometry.size_bytes(),
            zones: geometry.zones().iter().map(zone).collect(),
        }
    }
}

/// Returns the size of a disk, or the size that it will be created with.
fn size_of(spec: &DiskSpec) -> Result<u64, ErrorDetail> {
    let absent = |path: &Path| std::fs::symlink_metadata(path).is_err();
    let mut inner = spec;
    while let DiskSpec::Throttled { disk, .. } | DiskSpec::Faulty { disk, .. } = inner {
        inner = disk;
    }
    match inner {
        DiskSpec::Mem { size_bytes } | DiskSpec::Null { size_bytes } => Ok(*size_bytes),
        DiskSpec::File { path, size_bytes: Some(size), .. } if absent(path) => Ok(*size),
        _ => {
            let opened = open_disk(inner, &spec.to_string(), OpenOptions { exclusive: false, write: false });
            opened.map(|disk| disk.size_bytes()).map_err(|error| error.detail)
        }
    }
}

/// Returns those of the `absent` files that opening the disks has created.
fn created_files<'a>(disks: &[Arc<OpenDisk>], absent: &'a [PathBuf]) -> Vec<&'a PathBuf> {
    let is_of = |path: &&PathBuf| disks.iter().any(|disk| disk.disk.spec().path() == Some(path.as_path()));
    absent.iter().filter(is_of).collect()
}

/// Returns the error for a blocking task that panicked.
fn task_failed(error: tokio::task::JoinError) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, format!("examining the disks ended unexpectedly: {error}"))
}

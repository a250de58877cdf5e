//! Growing an array: what its disks have gained, and further disks.

use super::change::inactive;
use super::create::read_disk;
use super::disks::remove_files;
use super::keeping::stopped_meanwhile;
use super::pools::refuse_higher_tier;
use super::tables::{Condition, Handle, OpenDisk, Seat, Serving};
use super::{Control, random};
use braid_advice::errors::{of_lifecycle, of_ring};
use braid_api::{ErrorDetail, GrowArray, Growth, Kind, Zone};
use braid_engine::keeper::Order;
use braid_engine::layout::Node;
use braid_engine::lifecycle::{self, GrowRequest, LifecycleError};
use braid_engine::{DeviceLayout, LeafId};
use braid_format::{ArrayPart, DiskLayout, MemberId, copy_offset};
use braid_geometry::Geometry;
use braid_geometry::units::format_size;
use braid_host::open::open_disk;
use braid_ring::{DiskSpec, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// An array that is to grow, as it is before.
struct Before {
    uuid: Uuid,
    name: String,
    label: ArrayPart,
    handle: Handle,
    disks: Vec<Arc<OpenDisk>>,
    /// Role, disk and where its data begin, of everybody who is here.
    seats: Vec<(u16, Arc<OpenDisk>, u64)>,
}

impl Control {
    /// Takes up what the members of an array have gained, and further disks; or says what that would give.
    ///
    /// Order: everything that can be refused is, before anything is written; then the state file remembers the further disks;
    /// then the labels; then the larger array serves.
    ///
    /// # Errors
    /// The reason, with the array as it was.
    pub async fn grow_array(self: &Arc<Self>, array: &str, ask: GrowArray) -> Result<Growth, ErrorDetail> {
        let claim = self.claim(array, "grown")?;
        let before = self.before_growth(array)?;
        let specs = ask.disks.iter().map(|disk| read_disk(disk)).collect::<Result<Vec<_>, _>>()?;
        let (control, checked) = (Arc::clone(self), specs.clone());
        let checked = tokio::task::spawn_blocking(move || control.check_paths(&checked)).await;
        let (_paths, absent) = checked.map_err(ended)??;
        self.look_again(&before).await?;
        if ask.dry_run {
            let growth = before.plan(specs, ask.force).await?;
            return Ok(before.told(&growth.geometry, true));
        }
        let newcomers = self.open_disks(&specs, &absent).await?;
        let fit = |disk: &Arc<OpenDisk>| refuse_higher_tier(&self.read(), before.uuid, disk);
        if let Err(error) = newcomers.iter().try_for_each(fit) {
            remove_files(&made_by(&newcomers, &absent));
            self.close_disks(newcomers).await;
            return Err(error);
        }
        match &before.handle {
            Handle::Kept(_) => {
                let grown = self.grow_kept(&before, &newcomers, ask.force).await;
                if let Err((error, given_up)) = grown {
                    if given_up {
                        remove_files(&made_by(&newcomers, &absent));
                        for disk in newcomers {
                            self.leave(claim.uuid, disk).await;
                        }
                        self.save_or_warn();
                    }
                    return Err(error);
                }
            }
            // The claim refused it.
            Handle::Imported(_) => return Err(ErrorDetail::new(Kind::Unsupported, "it is only read")),
            Handle::Plain(plain) => {
                let grown = self.grow_plain(&before, plain, &newcomers, ask.force).await;
                if let Err(error) = grown {
                    let made = made_by(&newcomers, &absent);
                    remove_files(&made);
                    self.close_disks(newcomers).await;
                    return Err(error);
                }
            }
        }
        let label = {
            let tables = self.read();
            let entry = tables.array(&before.uuid.to_string())?;
            entry.active().ok_or_else(|| inactive(entry, "grown"))?.label.clone()
        };
        let geometry = label.geometry();
        let geometry = geometry.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        self.save_or_warn();
        Ok(before.told(&geometry, false))
    }

    fn before_growth(&self, array: &str) -> Result<Before, ErrorDetail> {
        let tables = self.read();
        let entry = tables.array(array)?;
        let active = entry.active().ok_or_else(|| inactive(entry, "grown"))?;
        let seat = |seat: &Seat| (seat.role, Arc::clone(&seat.disk), seat.data_offset_bytes);
        Ok(Before {
            uuid: entry.uuid,
            name: entry.name.clone(),
            label: active.label.clone(),
            handle: active.handle.clone(),
            disks: active.open_disks(),
            seats: active.disks.iter().map(seat).collect(),
        })
    }

    /// Learns how large the members' disks are by now, and tells the shards.
    async fn look_again(&self, before: &Before) -> Result<(), ErrorDetail> {
        let disks = before.disks.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let look = |disk: &Arc<OpenDisk>| disk.disk.refresh_size().map_err(|error| of_ring(&error, &disk.name));
            disks.iter().try_for_each(|disk| look(disk).map(drop))
        });
        looked.await.map_err(ended)??;
        for disk in &before.disks {
            // An error says that the shards have ended.
            let _ = self.ring.resize_leaf(disk.leaf).await;
        }
        Ok(())
    }

    /// Has the keeper do it. An error says whether the further disks are nobody's then: of an array that failed in that very
    /// moment they may be members.
    async fn grow_kept(
        self: &Arc<Self>,
        before: &Before,
        newcomers: &[Arc<OpenDisk>],
        force: bool,
    ) -> Result<(), (ErrorDetail, bool)> {
        let given_up = |error: ErrorDetail| (error, true);
        let mut taken = Vec::with_capacity(newcomers.len());
        for disk in newcomers {
            taken.push((disk.leaf, MemberId::from_random(random().map_err(given_up)?)));
        }
        let kept = {
            let mut tables = self.write();
            let entry = tables.arrays.get_mut(&before.uuid).map(|entry| &mut entry.condition);
            let Some(Condition::Active(active)) = entry else {
                return Err(given_up(stopped_meanwhile(&before.name)));
            };
            let fit = newcomers.iter().try_for_each(|disk| super::keeping::check_fit(&before.name, active, disk));
            fit.map_err(given_up)?;
            active.guests.extend(newcomers.iter().cloned());
            active.is_kept()
        };
        // Noted before the first label, so that the next start looks for them: harmless while they bear none.
        let first = before.label.members.len() as u16;
        let noted = if kept && !newcomers.is_empty() {
            self.remember(before.uuid, &before.name, newcomers, first).map_err(given_up)?
        } else {
            Vec::new()
        };
        let grown = self.give_order(before.uuid, Order::Grow { newcomers: taken, force }).await;
        grown.map_err(|error| {
            let failed = self.read().arrays.get(&before.uuid).and_then(|e| Some(e.active()?.has_failed()));
            if failed != Some(true) {
                self.take_back(noted);
            }
            (error, failed != Some(true))
        })
    }

    /// Labels first; then the larger layout is published.
    async fn grow_plain(
        self: &Arc<Self>,
        before: &Before,
        plain: &Arc<tokio::sync::Mutex<lifecycle::Array>>,
        newcomers: &[Arc<OpenDisk>],
        force: bool,
    ) -> Result<(), ErrorDetail> {
        let mut request = GrowRequest { new_disks: Vec::with_capacity(newcomers.len()), force };
        let kept = {
            let tables = self.read();
            let entry = tables.array(&before.uuid.to_string())?;
            let active = entry.active().ok_or_else(|| inactive(entry, "grown"))?;
            newcomers.iter().try_for_each(|disk| super::keeping::check_fit(&before.name, active, disk))?;
            active.is_kept()
        };
        for disk in newcomers {
            request.new_disks.push((disk.leaf, MemberId::from_random(random()?)));
        }
        // Noted before the first label, so that the next start looks for them: harmless while they bear none.
        let first = before.seats.len() as u16;
        let noted = if kept { self.remember(before.uuid, &before.name, newcomers, first)? } else { Vec::new() };
        let known: Vec<Arc<OpenDisk>> = before.disks.iter().chain(newcomers).cloned().collect();
        let mut array = plain.lock().await;
        let grown = array.grow(&self.meta, &request).await;
        let growth = match grown {
            Ok(growth) => growth,
            Err(error) => {
                drop(array);
                if kept {
                    self.take_back(noted);
                    self.save_or_warn();
                }
                return Err(of_lifecycle(&error, &before.name, &Control::name_in(&known)));
            }
        };
        let members: Vec<_> = array.members().map(|m| (m.number, m.leaf, m.part.layout.data)).collect();
        let label = array.label().clone();
        drop(array);
        let nodes =
            members.iter().map(|(_, leaf, data)| Node::Leaf { leaf: *leaf, start: data.start, len: data.bytes });
        let root = Node::Striped { geometry: growth.geometry.clone(), members: nodes.collect() };
        let seat = |(role, leaf, data): &(u16, LeafId, braid_format::ByteRange)| {
            let disk = known.iter().find(|disk| disk.leaf == *leaf)?;
            Some(Seat { role: *role, disk: Arc::clone(disk), data_offset_bytes: data.start })
        };
        let published = {
            let mut tables = self.write();
            let version = tables.next_version();
            let Some(Condition::Active(active)) = tables.arrays.get_mut(&before.uuid).map(|e| &mut e.condition) else {
                return Ok(());
            };
            let layout = Arc::new(DeviceLayout::new(version, active.block_bytes, &root));
            active.label = label;
            active.size_bytes = layout.size_bytes();
            active.disks = members.iter().filter_map(seat).collect();
            // Within the lock: nobody publishes another one in between, and nobody stops the array.
            self.ring.publish_and_drain(active.device, Some(layout))
        };
        // Requests under way may stay with the layout before; whoever connects from here on meets this one.
        drop(published);
        self.grow_exports(before.uuid);
        self.tell_grown(&before.name, growth.before_bytes, growth.after_bytes());
        Ok(())
    }

    /// Exports of an array tell clients that connect from now on how large it is.
    pub(super) fn grow_exports(&self, uuid: Uuid) {
        let tables = self.read();
        let Some(active) = tables.arrays.get(&uuid).and_then(|entry| entry.active()) else { return };
        for export in tables.exports.values().filter(|export| export.saved.array == uuid) {
            if let Serving::Listening(export) = &export.serving {
                export.grow(active.size_bytes);
            }
        }
        drop(tables);
        self.look_at_files_of(uuid);
        self.resize_blocks_of(uuid);
    }

    /// An array has grown.
    pub(super) fn tell_grown(&self, name: &str, before_bytes: u64, after_bytes: u64) {
        let message = format!(
            "array {name} has grown from {} to {}; clients that are connected learn it when they connect again",
            format_size(before_bytes),
            format_size(after_bytes)
        );
        self.events().info("array_grown", message, &[("array", name)]);
    }
}

impl Before {
    /// What it would come to, without touching anything.
    async fn plan(&self, specs: Vec<DiskSpec>, force: bool) -> Result<lifecycle::Growth, ErrorDetail> {
        let names: Vec<String> = specs.iter().map(ToString::to_string).collect();
        let sizes = tokio::task::spawn_blocking(move || specs.iter().map(size_of).collect::<Result<Vec<u64>, _>>());
        let sizes = sizes.await.map_err(ended)??;
        let entry = |role: u16| self.label.members.get(usize::from(role)).map_or(0, |entry| entry.data_bytes);
        let data: Vec<(u16, u64)> = self
            .seats
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
        let known = Control::name_in(&self.disks);
        lifecycle::plan_growth(&self.label, &data, &further, force)
            .map_err(|error: LifecycleError| of_lifecycle(&error, &self.name, &known))
    }

    fn told(&self, geometry: &Geometry, dry_run: bool) -> Growth {
        let zone = |zone: &braid_geometry::Zone| Zone {
            array_start_bytes: zone.array_start,
            array_bytes: zone.array_bytes,
            member_start_bytes: zone.member_start,
            member_bytes: zone.member_bytes,
            members: zone.members.clone(),
        };
        let further = geometry.members().len() > self.label.geometry().map_or(0, |before| before.members().len());
        let advice = (further && self.label.spec.level.parity() > 0).then(|| {
            format!(
                "rows that were there keep their width, and further disks form rows of their own; for wider rows create another array of level {} and copy the content there",
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

/// How large a disk is, or would be when it is made.
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

fn made_by<'a>(disks: &[Arc<OpenDisk>], absent: &'a [PathBuf]) -> Vec<&'a PathBuf> {
    let is_of = |path: &&PathBuf| disks.iter().any(|disk| disk.disk.spec().path() == Some(path.as_path()));
    absent.iter().filter(is_of).collect()
}

fn ended(error: tokio::task::JoinError) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, format!("looking at the disks ended unexpectedly: {error}"))
}

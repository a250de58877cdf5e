//! Arrays of Linux md that are served read-only: found on their disks, recorded in the state file, started with the
//! daemon.
//!
//! Nothing is ever written to their disks: the disks are opened read-only, the layouts refuse modifying requests, and
//! the exports are read-only.

mod layout;
mod open;

use crate::ArrayManager;
use crate::disk_names::read_disk;
use crate::imported::layout::MemberLocation;
use crate::imported::open::{MdMemberInfo, OpenMdMember};
use braid_advice::errors::ring_error;
use braid_api::{ArrayState, ErrorDetail, ImportMd, Kind, MdImport, MdMember, MdProblem};
use braid_exports::exported_file;
use braid_format::Name;
use braid_format::md::{self, AssembleOptions, AssembleProblem, SlotState, Superblock};
use braid_geometry::{Geometry, Layout};
use braid_host::host::{Identity, SystemRoots};
use braid_host::probe_process;
use braid_inventory::state::SavedImport;
use braid_inventory::{
    ActiveArray, ArrayCondition, ArrayEntry, ArrayHandle, ArraySlot, IdleArray, Imported, OpenDisk, needs_operator,
};
use braid_ring::DiskSpec;
use braid_tasks as tasks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Logical block of devices with parity, in bytes: lost data are computed in whole blocks.
const PARITY_BLOCK_BYTES: u32 = 4096;

/// Maximum time that a start waits for the disks of one imported array, so that a hanging disk does not delay other
/// arrays.
const DISKS_WAIT_MAX: Duration = Duration::from_secs(10);

/// Maximum time to wait for disks that are not known to belong to the array.
const OTHER_DISKS_WAIT_MAX: Duration = Duration::from_secs(2);

impl ArrayManager {
    /// Describes the arrays of md on these disks; if a name is given, serves the array that they belong to.
    ///
    /// # Errors
    /// A disk is not a member of an md array; with a name: the array cannot be read, its disks are in use, or they
    /// belong to several arrays.
    pub async fn import_md(self: &Arc<Self>, request: ImportMd) -> Result<MdImport, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let options = AssembleOptions { force: request.force, layout: requested_layout(request.layout.as_deref())? };
        if request.disks.is_empty() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "no disk is named")
                .remedy("name the members of the array, in any order"));
        }
        let specs = request.disks.iter().map(|disk| read_disk(disk)).collect::<Result<Vec<_>, _>>()?;
        let Some(name) = &request.name else {
            let examined = blocking(move || specs.iter().map(open::examine).collect::<Result<Vec<_>, _>>()).await??;
            return Ok(MdImport { found: describe_all(&examined, options), array: None });
        };
        let _one_at_a_time = self.scan_lock.lock().await;
        let _name = self.claim_name(name)?;
        let opened = self.open_md(specs).await?;
        let uuid = opened[0].examined.superblock.array;
        let _claim = self.inventory.claim_uuid(uuid, "imported").ok_or_else(|| {
            ErrorDetail::new(Kind::InUse, format!("array {uuid} is being changed"))
                .remedy("try again when that is done")
        })?;
        if let Some(other) = self.inventory.read().arrays.get(&uuid) {
            let message = format!("this array is imported already, as {}", other.name);
            return Err(ErrorDetail::new(Kind::Exists, message)
                .with("array", &other.name)
                .remedy(format!("braid array assemble {0}; or braid array delete {0}, which forgets it", other.name)));
        }
        let examined: Vec<MdMemberInfo> = opened.iter().map(|member| member.examined.clone()).collect();
        let saved = SavedImport {
            array: uuid,
            name: name.clone(),
            disks: examined.iter().map(|examined| examined.name.clone()).collect(),
            force: request.force,
            layout: options.layout.map(|layout| layout.to_string()),
        };
        // Recorded before the array serves, so that its exports are found again.
        self.inventory.write().imported.insert(uuid, saved.clone());
        let served = match self.inventory.save() {
            Ok(()) => self.serve_md(&saved, opened, options).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            self.inventory.write().imported.remove(&uuid);
            self.inventory.save_or_warn();
            return Err(error);
        }
        let message = format!("array {name} of Linux md is imported: it is only read");
        self.inventory.events().info("array_imported", message, &[("array", name)]);
        Ok(MdImport { found: describe_all(&examined, options), array: Some(self.array(&uuid.to_string())?) })
    }

    /// Opens the members of one array, all or none.
    async fn open_md(self: &Arc<Self>, specs: Vec<DiskSpec>) -> Result<Vec<OpenMdMember>, ErrorDetail> {
        let manager = Arc::clone(self);
        let opened = blocking(move || {
            let (_paths, _) = manager.check_paths(&specs)?;
            specs.iter().map(|spec| manager.open_md_member(spec)).collect::<Result<Vec<_>, _>>()
        });
        let opened = opened.await??;
        let first = opened.first().ok_or_else(|| ErrorDetail::new(Kind::Incomplete, "no disk of it was found"))?;
        let other = opened.iter().find(|other| other.examined.superblock.array != first.examined.superblock.array);
        if let Some(other) = other {
            let message =
                format!("disks {} and {} are of different arrays of md", first.examined.name, other.examined.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("name the disks of one array; without --name they are only described"));
        }
        Ok(opened)
    }

    /// Serves an array of md with these members.
    async fn serve_md(
        self: &Arc<Self>,
        saved: &SavedImport,
        opened: Vec<OpenMdMember>,
        options: AssembleOptions,
    ) -> Result<(), ErrorDetail> {
        let name = Name::new(&saved.name)
            .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("name", &saved.name))?;
        let devices: Vec<Superblock> = opened.iter().map(|member| member.examined.superblock.clone()).collect();
        let names: Vec<String> = opened.iter().map(|member| member.examined.name.clone()).collect();
        let array = md::assemble(&devices, options);
        if let Some(problem) = array.problems.first() {
            return Err(refused(&saved.name, problem, &names));
        }
        let geometry = array.geometry.clone().ok_or_else(|| ErrorDetail::new(Kind::Internal, "it has no layout"))?;
        // Spares and stale members are closed.
        let mut members: Vec<Option<OpenMdMember>> = opened.into_iter().map(Some).collect();
        let (mut array_slots, mut locations) = (Vec::new(), vec![None; array.slots.len()]);
        for (slot, number) in array.slots.iter().zip(0u16..).filter(|(slot, _)| slot.used) {
            let Some(member) = slot.device.and_then(|device| members[device].take()) else { continue };
            let superblock = &member.examined.superblock;
            let (start, len, write_mostly) = (superblock.data_start, superblock.data_bytes, superblock.write_mostly);
            let disk = match self.register_disk(member.examined.name, member.disk, member.identity, member.entry) {
                Ok(disk) => disk,
                Err(error) => {
                    self.close_disks(array_slots.into_iter().map(|slot: ArraySlot| slot.disk).collect()).await;
                    return Err(error);
                }
            };
            locations[usize::from(number)] = Some(MemberLocation { leaf: disk.leaf, start, len, write_mostly });
            array_slots.push(ArraySlot { role: number, disk, data_offset_bytes: start });
        }
        drop(members);
        let imported = Imported { array };
        let label = layout::label(name, &imported, &geometry, &devices);
        let disks: Vec<Arc<OpenDisk>> = array_slots.iter().map(|slot| Arc::clone(&slot.disk)).collect();
        let least = if geometry.spec().level.parity() > 0 { PARITY_BLOCK_BYTES } else { 512 };
        let block_bytes = disks.iter().map(|disk| disk.disk.logical_block_bytes()).max().unwrap_or(least).max(least);
        let ready = self.stack_level_of_array(saved.array, &disks).and_then(|stack_level| {
            let mut tables = self.inventory.write();
            Ok((tables.allocate_device(stack_level)?, tables.next_layout_version()))
        });
        let (device, version) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                self.close_disks(disks).await;
                return Err(error);
            }
        };
        let compiled = Arc::new(layout::compile(&imported.array, &geometry, &locations, version, block_bytes));
        if let Err(error) = self.ring.publish_and_drain(device, Some(Arc::clone(&compiled))).await {
            self.inventory.write().release_device(device);
            self.close_disks(disks).await;
            return Err(ring_error(&error, &saved.name));
        }
        let size_bytes = compiled.size_bytes() - compiled.size_bytes() % u64::from(block_bytes);
        let active = ActiveArray {
            handle: ArrayHandle::Imported(Arc::new(imported)),
            label,
            device,
            size_bytes,
            block_bytes,
            request_bytes: block_bytes,
            disks: array_slots,
            guests: Vec::new(),
            missing: BTreeMap::new(),
            last_journal: None,
            left_out: BTreeSet::new(),
        };
        let entry =
            ArrayEntry { uuid: saved.array, name: saved.name.clone(), condition: ArrayCondition::Active(active) };
        self.inventory.write().arrays.insert(saved.array, entry);
        self.exports.restore_exports(saved.array).await;
        Ok(())
    }

    /// Starts imported arrays that do not serve: the named one, or all that were not stopped by command. `extra`:
    /// further disks that they may be on now.
    pub(crate) async fn start_imports(self: &Arc<Self>, only: Option<&str>, extra: &[DiskSpec]) {
        let waiting: Vec<SavedImport> = {
            let mut tables = self.inventory.write();
            let named =
                |saved: &SavedImport| only == Some(saved.name.as_str()) || only == Some(&*saved.array.to_string());
            let active = |uuid: &Uuid| tables.arrays.get(uuid).and_then(ArrayEntry::active).is_some();
            let idle =
                tables.imported.values().filter(|saved| !active(&saved.array) && (only.is_none() || named(saved)));
            let (start, stay): (Vec<_>, Vec<_>) =
                idle.cloned().partition(|saved| named(saved) || !tables.stopped.contains(&saved.array));
            for saved in &start {
                tables.stopped.remove(&saved.array);
            }
            for saved in stay {
                tables.arrays.entry(saved.array).or_insert_with(|| idle_entry(&saved, ArrayState::Stopped, None));
            }
            start
        };
        for saved in waiting {
            let Some(_claim) = self.inventory.claim_uuid(saved.array, "started") else { continue };
            let started = tokio::time::timeout(DISKS_WAIT_MAX, self.members_of(&saved, extra.to_vec())).await;
            let opened = started.unwrap_or_else(|_| {
                let message = format!("its disks have not answered within {} s", DISKS_WAIT_MAX.as_secs());
                Err(ErrorDetail::new(Kind::TimedOut, message).remedy(format!("braid array assemble {}", saved.name)))
            });
            let started = match opened {
                Ok(opened) => self.start_import(&saved, opened).await,
                Err(error) => Err(error),
            };
            match started {
                Ok(()) => {
                    let message = format!("array {} of Linux md is active: it is only read", saved.name);
                    self.inventory.events().info("array_started", message, &[("array", &saved.name)]);
                }
                Err(error) => {
                    let message = format!("array {} of Linux md is not active: {}", saved.name, error.message);
                    let known =
                        self.inventory.read().arrays.get(&saved.array).is_some_and(|entry| match &entry.condition {
                            ArrayCondition::Idle(idle) => {
                                needs_operator(idle.state) && idle.attention.first() == Some(&error.message)
                            }
                            ArrayCondition::Active(_) => false,
                        });
                    if !known {
                        self.inventory.events().warning("array_waits", message, &[("array", &saved.name)]);
                    }
                    let entry = idle_entry(&saved, ArrayState::Incomplete, Some(error));
                    self.inventory.write().arrays.insert(saved.array, entry);
                }
            }
        }
    }

    /// Opens the members of an array on the disks that they were on, or wherever they are now.
    async fn members_of(
        self: &Arc<Self>,
        saved: &SavedImport,
        extra: Vec<DiskSpec>,
    ) -> Result<Vec<OpenMdMember>, ErrorDetail> {
        let (uuid, known) = (saved.array, saved.disks.clone());
        let found = blocking(move || {
            let known = known.iter().filter_map(|name| DiskSpec::parse(name).ok());
            let candidates: Vec<DiskSpec> = known.chain(extra).collect();
            let is_member =
                |spec: &DiskSpec| open::examine(spec).is_ok_and(|examined| examined.superblock.array == uuid);
            let mut found: Vec<DiskSpec> = candidates.iter().filter(|spec| is_member(spec)).cloned().collect();
            if found.len() < candidates.len() {
                // Names of disks change.
                let devices = SystemRoots::default().block_devices();
                let free = devices.iter().filter(|device| device.holders.is_empty());
                let free = free.filter(|device| exported_file(&device.path).is_none());
                // A disk that never responds would keep this process from ending.
                let answering = probe_process::responsive_paths(
                    free.map(|device| device.path.clone()).collect(),
                    OTHER_DISKS_WAIT_MAX,
                );
                let others = answering.into_iter().map(DiskSpec::Path);
                let new =
                    others.filter(|spec| !found.iter().any(|other| same(other, spec))).filter(|spec| is_member(spec));
                let new: Vec<DiskSpec> = new.collect();
                found.extend(new);
            }
            found
        });
        self.open_md(found.await?).await
    }

    /// Starts an array with these members.
    async fn start_import(self: &Arc<Self>, saved: &SavedImport, opened: Vec<OpenMdMember>) -> Result<(), ErrorDetail> {
        let options = AssembleOptions { force: saved.force, layout: requested_layout(saved.layout.as_deref())? };
        let uuid = saved.array;
        let disks: Vec<String> = opened.iter().map(|member| member.examined.name.clone()).collect();
        self.serve_md(saved, opened, options).await?;
        let changed = {
            let mut tables = self.inventory.write();
            let entry =
                tables.imported.get_mut(&uuid).filter(|saved| disks.iter().any(|disk| !saved.disks.contains(disk)));
            entry.map(|saved| saved.disks = disks).is_some()
        };
        if changed {
            self.inventory.save_or_warn();
        }
        Ok(())
    }
}

/// Returns true if both names denote the same disk.
fn same(one: &DiskSpec, other: &DiskSpec) -> bool {
    let identity = |spec: &DiskSpec| spec.path().and_then(Identity::of);
    identity(one).is_some() && identity(one) == identity(other)
}

/// Returns the entry of an array that does not serve.
fn idle_entry(saved: &SavedImport, state: ArrayState, error: Option<ErrorDetail>) -> ArrayEntry {
    let again = format!("braid array assemble {}", saved.name);
    let idle = IdleArray {
        state,
        attention: error.iter().map(|error| error.message.clone()).collect(),
        remedy: error.map(|error| error.remedy).filter(|remedy| !remedy.is_empty()).unwrap_or(again),
        label: None,
        members: Vec::new(),
    };
    ArrayEntry { uuid: saved.array, name: saved.name.clone(), condition: ArrayCondition::Idle(idle) }
}

/// Runs work that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorDetail> {
    tasks::blocking(work)
        .await
        .map_err(|error| ErrorDetail::new(Kind::Internal, format!("examining disks ended unexpectedly: {error}")))
}

/// Parses the layout that a request names for an old raid0.
fn requested_layout(layout: Option<&str>) -> Result<Option<Layout>, ErrorDetail> {
    match layout {
        None => Ok(None),
        Some("original") => Ok(Some(Layout::Original)),
        Some("alternate") => Ok(Some(Layout::Alternate)),
        Some(other) => {
            Err(ErrorDetail::new(Kind::InvalidArgument, format!("layout: {other:?} is neither original nor alternate"))
                .remedy("leave it out: an array says itself which layout it has, unless it is an old raid0"))
        }
    }
}

/// Returns the error for an array that cannot be assembled.
fn refused(name: &str, problem: &AssembleProblem, disks: &[String]) -> ErrorDetail {
    let kind = match problem {
        AssembleProblem::TooFew { .. } | AssembleProblem::Stale { .. } | AssembleProblem::DirtyDegraded => {
            Kind::Incomplete
        }
        AssembleProblem::DuplicateRole { .. }
        | AssembleProblem::Diverged { .. }
        | AssembleProblem::RequestedLayout(_)
        | AssembleProblem::Raid0Layout => Kind::InvalidArgument,
        _ => Kind::Unsupported,
    };
    let text = problem.text(&|device| format!("disk {}", disks[device]));
    ErrorDetail::new(kind, format!("array {name} cannot be read: {text}")).with("array", name).remedy(problem.remedy())
}

/// Describes all arrays that these disks belong to.
fn describe_all(examined: &[MdMemberInfo], options: AssembleOptions) -> Vec<braid_api::MdArray> {
    let devices: Vec<Superblock> = examined.iter().map(|examined| examined.superblock.clone()).collect();
    md::groups(&devices)
        .values()
        .map(|group| {
            let members: Vec<&MdMemberInfo> = group.iter().map(|index| &examined[*index]).collect();
            describe(&members, options)
        })
        .collect()
}

/// Describes the array of which these are members.
fn describe(examined: &[&MdMemberInfo], options: AssembleOptions) -> braid_api::MdArray {
    let devices: Vec<Superblock> = examined.iter().map(|examined| examined.superblock.clone()).collect();
    let array = md::assemble(&devices, options);
    let name = |device: usize| format!("disk {}", examined[device].name);
    let members = array.slots.iter().zip(0..).map(|(slot, number)| {
        let device = slot.device.map(|device| examined[device]);
        let state = match slot.state {
            SlotState::Current => "current",
            SlotState::Missing => "missing",
            SlotState::Stale { .. } => "stale",
            SlotState::Rebuilding { .. } => "rebuilding",
        };
        MdMember {
            slot: number,
            disk: device.map(|device| device.name.clone()),
            state: state.to_owned(),
            used: slot.used,
            events: device.map(|device| device.superblock.events),
            data_offset_bytes: device.map(|device| device.superblock.data_start),
            bad_ranges: device.map_or(0, |device| device.bad.len() as u64),
        }
    });
    let problem = |problem: &AssembleProblem| MdProblem {
        message: problem.text(&name),
        remedy: problem.remedy(),
        can_be_forced: problem.can_be_forced(),
    };
    braid_api::MdArray {
        uuid: array.uuid.to_string(),
        members: members.collect(),
        degraded: array.is_degraded(),
        readable: array.problems.is_empty(),
        size_bytes: array.geometry.as_ref().map(Geometry::size_bytes),
        metadata: format!("1.{}", array.minor),
        others: array.non_members.iter().map(|device| examined[*device].name.clone()).collect(),
        problems: array.problems.iter().map(problem).collect(),
        name: array.name,
        level: array.level,
        layout: array.layout,
        chunk_bytes: array.chunk_bytes,
        events: array.events,
        created_unix_s: array.created_unix_s,
        updated_unix_s: array.updated_unix_s,
        clean: array.clean,
        warnings: array.warnings,
    }
}

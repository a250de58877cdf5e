//! Arrays of Linux md that are served read-only: found on their disks, kept in the state file, started with the daemon.
//!
//! Nothing is ever written to their disks: these are opened for reading alone, their layouts refuse what changes them, and their exports are
//! read-only.

mod layout;
mod open;

use super::tables::{Active, ArrayEntry, Condition, Handle, Idle, OpenDisk, Seat, Tables};
use super::{Control, waits};
use crate::daemon::state::SavedImport;
use braid_advice::errors::of_ring;
use braid_advice::{self as advice, Case, Names};
use braid_api::{ArrayState, Attention, ErrorDetail, ImportMd, Kind, MdImport, MdMember, MdProblem, Zone};
use braid_format::Name;
use braid_format::md::{self, AssembleOptions, AssembleProblem, MdArray, SlotState, Superblock};
use braid_geometry::{Geometry, Layout};
use braid_host::aside;
use braid_host::host::Roots;
use braid_ring::DiskSpec;
use layout::Place;
use open::{Looked, Opened};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Blocks of devices with parity: what is lost is computed in whole ones.
const ROW_BLOCK_BYTES: u32 = 4096;

/// Longest that a start waits for the disks of an imported array: one that hangs keeps nobody else waiting.
const LOOKING_MAX: Duration = Duration::from_secs(10);
/// Longest that disks are waited for of which nothing is known.
const OTHERS_MAX: Duration = Duration::from_secs(2);

/// What is known of an imported array beside its members.
pub struct Imported {
    /// What its superblocks say.
    pub array: MdArray,
}

impl Imported {
    /// What has to be known about what is read of it.
    pub fn sentences(&self) -> Vec<String> {
        self.array.warnings.clone()
    }

    /// Its zones, for people.
    pub fn zones(&self) -> Vec<Zone> {
        let zones = self.array.geometry.iter().flat_map(Geometry::zones);
        let zone = |zone: &braid_geometry::Zone| Zone {
            array_start_bytes: zone.array_start,
            array_bytes: zone.array_bytes,
            member_start_bytes: zone.member_start,
            member_bytes: zone.member_bytes,
            members: zone.members.clone(),
        };
        zones.map(zone).collect()
    }

    /// What needs attention.
    pub fn attention(&self, name: &str) -> Vec<Attention> {
        let item = |message: &String| {
            advice::of(Case::ImportedArray, Names::of(name)).attention(format!("array {name}"), message.clone())
        };
        self.array.warnings.iter().map(item).collect()
    }
}

impl Control {
    /// Describes the arrays of md on these disks, and serves the one that they are of, where a name is given.
    ///
    /// # Errors
    /// A disk is no member of one; with a name: the array cannot be read, its disks are in use, or are of several arrays.
    pub async fn import_md(self: &Arc<Self>, ask: ImportMd) -> Result<MdImport, ErrorDetail> {
        self.is_open()?;
        let wishes = AssembleOptions { force: ask.force, layout: asked_layout(ask.layout.as_deref())? };
        if ask.disks.is_empty() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "no disk is named")
                .remedy("name the members of the array, in any order"));
        }
        let specs = ask.disks.iter().map(|disk| super::create::read_disk(disk)).collect::<Result<Vec<_>, _>>()?;
        let Some(name) = &ask.name else {
            let looked = blocking(move || specs.iter().map(open::look).collect::<Result<Vec<_>, _>>()).await??;
            return Ok(MdImport { found: describe_all(&looked, wishes), array: None });
        };
        let _one_at_a_time = self.assembling.lock().await;
        let _name = self.claim_name(name)?;
        let opened = self.open_md(specs).await?;
        let uuid = opened[0].looked.superblock.array;
        let _claim = self.claim_found(uuid, "imported").ok_or_else(|| {
            ErrorDetail::new(Kind::InUse, format!("array {uuid} is being changed"))
                .remedy("try again when that is done")
        })?;
        if let Some(other) = self.read().arrays.get(&uuid) {
            let message = format!("this array is imported already, as {}", other.name);
            return Err(ErrorDetail::new(Kind::Exists, message)
                .with("array", &other.name)
                .remedy(format!("braid array assemble {0}; or braid array delete {0}, which forgets it", other.name)));
        }
        let looked: Vec<Looked> = opened.iter().map(|member| member.looked.clone()).collect();
        let saved = SavedImport {
            array: uuid,
            name: name.clone(),
            disks: looked.iter().map(|looked| looked.name.clone()).collect(),
            force: ask.force,
            layout: wishes.layout.map(|layout| layout.to_string()),
        };
        // Before it serves: what was exported is found again.
        self.write().imported.insert(uuid, saved.clone());
        let served = match self.save() {
            Ok(()) => self.serve_md(&saved, opened, wishes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            self.write().imported.remove(&uuid);
            self.save_or_warn();
            return Err(error);
        }
        let message = format!("array {name} of Linux md is imported: it is only read");
        self.events().info("array_imported", message, &[("array", name)]);
        Ok(MdImport { found: describe_all(&looked, wishes), array: Some(self.array(&uuid.to_string())?) })
    }

    /// Opens the members of one array, all or none.
    async fn open_md(self: &Arc<Self>, specs: Vec<DiskSpec>) -> Result<Vec<Opened>, ErrorDetail> {
        let control = Arc::clone(self);
        let opened = blocking(move || {
            let (_paths, _) = control.check_paths(&specs)?;
            specs.iter().map(|spec| control.open_md_member(spec)).collect::<Result<Vec<_>, _>>()
        });
        let opened = opened.await??;
        let first = opened.first().ok_or_else(|| ErrorDetail::new(Kind::Incomplete, "no disk of it is here"))?;
        let other = opened.iter().find(|other| other.looked.superblock.array != first.looked.superblock.array);
        if let Some(other) = other {
            let message =
                format!("disks {} and {} are of different arrays of md", first.looked.name, other.looked.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("name the disks of one array; without --name they are only described"));
        }
        Ok(opened)
    }

    /// Serves an array of md with these members.
    async fn serve_md(
        self: &Arc<Self>,
        saved: &SavedImport,
        opened: Vec<Opened>,
        wishes: AssembleOptions,
    ) -> Result<(), ErrorDetail> {
        let name = Name::new(&saved.name)
            .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("name", &saved.name))?;
        let devices: Vec<Superblock> = opened.iter().map(|member| member.looked.superblock.clone()).collect();
        let names: Vec<String> = opened.iter().map(|member| member.looked.name.clone()).collect();
        let array = md::assemble(&devices, wishes);
        if let Some(problem) = array.problems.first() {
            return Err(refused(&saved.name, problem, &names));
        }
        let geometry = array.geometry.clone().ok_or_else(|| ErrorDetail::new(Kind::Internal, "it has no layout"))?;
        // Spares, and what is old, are let go of.
        let mut members: Vec<Option<Opened>> = opened.into_iter().map(Some).collect();
        let (mut seats, mut places) = (Vec::new(), vec![None; array.slots.len()]);
        for (seat, role) in array.slots.iter().zip(0u16..).filter(|(seat, _)| seat.used) {
            let Some(member) = seat.device.and_then(|device| members[device].take()) else { continue };
            let superblock = &member.looked.superblock;
            let (start, len, write_mostly) = (superblock.data_start, superblock.data_bytes, superblock.write_mostly);
            let disk = match self.know_disk(member.looked.name, member.disk, member.identity, member.entry) {
                Ok(disk) => disk,
                Err(error) => {
                    self.close_disks(seats.into_iter().map(|seat: Seat| seat.disk).collect()).await;
                    return Err(error);
                }
            };
            places[usize::from(role)] = Some(Place { leaf: disk.leaf, start, len, write_mostly });
            seats.push(Seat { role, disk, data_offset_bytes: start });
        }
        drop(members);
        let imported = Imported { array };
        let label = layout::label(name, &imported, &geometry, &devices);
        let disks: Vec<Arc<OpenDisk>> = seats.iter().map(|seat| Arc::clone(&seat.disk)).collect();
        let least = if geometry.spec().level.parity() > 0 { ROW_BLOCK_BYTES } else { 512 };
        let block_bytes = disks.iter().map(|disk| disk.disk.logical_block_bytes()).max().unwrap_or(least).max(least);
        let ready = self.tier_of_array(saved.array, &disks).and_then(|tier| {
            let mut tables = self.write();
            Ok((tables.take_device(tier)?, tables.next_version()))
        });
        let (device, version) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                self.close_disks(disks).await;
                return Err(error);
            }
        };
        let compiled = Arc::new(layout::compile(&imported.array, &geometry, &places, version, block_bytes));
        if let Err(error) = self.ring.publish_and_drain(device, Some(Arc::clone(&compiled))).await {
            self.write().give_device(device);
            self.close_disks(disks).await;
            return Err(of_ring(&error, &saved.name));
        }
        let size_bytes = compiled.size_bytes() - compiled.size_bytes() % u64::from(block_bytes);
        let active = Active {
            handle: Handle::Imported(Arc::new(imported)),
            label,
            device,
            size_bytes,
            block_bytes,
            request_bytes: block_bytes,
            disks: seats,
            guests: Vec::new(),
            away: BTreeMap::new(),
            last_journal: None,
            left_out: std::collections::BTreeSet::new(),
        };
        let entry = ArrayEntry { uuid: saved.array, name: saved.name.clone(), condition: Condition::Active(active) };
        self.write().arrays.insert(saved.array, entry);
        self.restore_exports(saved.array).await;
        Ok(())
    }

    /// Starts imported arrays that do not serve: the one that is named, or all that no command stopped. `extra`: further disks that they may
    /// be on by now.
    pub(super) async fn start_imports(self: &Arc<Self>, only: Option<&str>, extra: &[DiskSpec]) {
        let waiting: Vec<SavedImport> = {
            let mut tables = self.write();
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
            let Some(_claim) = self.claim_found(saved.array, "started") else { continue };
            let started = tokio::time::timeout(LOOKING_MAX, self.members_of(&saved, extra.to_vec())).await;
            let opened = started.unwrap_or_else(|_| {
                let message = format!("its disks have not answered within {} s", LOOKING_MAX.as_secs());
                Err(ErrorDetail::new(Kind::TimedOut, message).remedy(format!("braid array assemble {}", saved.name)))
            });
            let started = match opened {
                Ok(opened) => self.start_import(&saved, opened).await,
                Err(error) => Err(error),
            };
            match started {
                Ok(()) => {
                    let message = format!("array {} of Linux md is active: it is only read", saved.name);
                    self.events().info("array_started", message, &[("array", &saved.name)]);
                }
                Err(error) => {
                    let message = format!("array {} of Linux md is not active: {}", saved.name, error.message);
                    let known = self.read().arrays.get(&saved.array).is_some_and(|entry| match &entry.condition {
                        Condition::Idle(idle) => waits(idle.state) && idle.attention.first() == Some(&error.message),
                        Condition::Active(_) => false,
                    });
                    if !known {
                        self.events().warning("array_waits", message, &[("array", &saved.name)]);
                    }
                    let entry = idle_entry(&saved, ArrayState::Incomplete, Some(error));
                    self.write().arrays.insert(saved.array, entry);
                }
            }
        }
    }

    /// Opens the members of one on the disks that it was on, or where they are by now.
    async fn members_of(
        self: &Arc<Self>,
        saved: &SavedImport,
        extra: Vec<DiskSpec>,
    ) -> Result<Vec<Opened>, ErrorDetail> {
        let (uuid, known) = (saved.array, saved.disks.clone());
        let found = blocking(move || {
            let known = known.iter().filter_map(|name| DiskSpec::parse(name).ok());
            let candidates: Vec<DiskSpec> = known.chain(extra).collect();
            let is_member = |spec: &DiskSpec| open::look(spec).is_ok_and(|looked| looked.superblock.array == uuid);
            let mut found: Vec<DiskSpec> = candidates.iter().filter(|spec| is_member(spec)).cloned().collect();
            if found.len() < candidates.len() {
                // Names of disks change.
                let devices = Roots::default().block_devices();
                let free = devices.iter().filter(|device| device.holders.is_empty());
                let free = free.filter(|device| super::files::braids_file(&device.path).is_none());
                // One that never answers would keep this process from ending.
                let answering = aside::answering(free.map(|device| device.path.clone()).collect(), OTHERS_MAX);
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

    /// Starts one with these members.
    async fn start_import(self: &Arc<Self>, saved: &SavedImport, opened: Vec<Opened>) -> Result<(), ErrorDetail> {
        let wishes = AssembleOptions { force: saved.force, layout: asked_layout(saved.layout.as_deref())? };
        let uuid = saved.array;
        let disks: Vec<String> = opened.iter().map(|member| member.looked.name.clone()).collect();
        self.serve_md(saved, opened, wishes).await?;
        let changed = {
            let mut tables = self.write();
            let entry =
                tables.imported.get_mut(&uuid).filter(|saved| disks.iter().any(|disk| !saved.disks.contains(disk)));
            entry.map(|saved| saved.disks = disks).is_some()
        };
        if changed {
            self.save_or_warn();
        }
        Ok(())
    }
}

/// Refuses what an imported array cannot have done to it.
pub(super) fn refuse_change(tables: &Tables, uuid: Uuid, doing: &str) -> Result<(), ErrorDetail> {
    let Some(saved) = tables.imported.get(&uuid) else { return Ok(()) };
    if matches!(doing, "renamed" | "stopped" | "deleted") {
        return Ok(());
    }
    let name = &saved.name;
    let message = format!("array {name} is one of Linux md, which is only read, and so it cannot be {doing}");
    Err(ErrorDetail::new(Kind::Unsupported, message).with("array", name).remedy(
        "copy what it holds to an array of Braid's own; braid array delete forgets it and leaves its disks as they are",
    ))
}

/// Whether two names are the same disk.
fn same(one: &DiskSpec, other: &DiskSpec) -> bool {
    let identity = |spec: &DiskSpec| spec.path().and_then(braid_host::host::Identity::of);
    identity(one).is_some() && identity(one) == identity(other)
}

/// One that does not serve.
fn idle_entry(saved: &SavedImport, state: ArrayState, error: Option<ErrorDetail>) -> ArrayEntry {
    let again = format!("braid array assemble {}", saved.name);
    let idle = Idle {
        state,
        attention: error.iter().map(|error| error.message.clone()).collect(),
        remedy: error.map(|error| error.remedy).filter(|remedy| !remedy.is_empty()).unwrap_or(again),
        label: None,
        members: Vec::new(),
    };
    ArrayEntry { uuid: saved.array, name: saved.name.clone(), condition: Condition::Idle(idle) }
}

/// Runs what may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorDetail> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ErrorDetail::new(Kind::Internal, format!("looking at disks ended unexpectedly: {error}")))
}

fn asked_layout(layout: Option<&str>) -> Result<Option<Layout>, ErrorDetail> {
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

/// All arrays that these disks are of.
fn describe_all(looked: &[Looked], wishes: AssembleOptions) -> Vec<braid_api::MdArray> {
    let devices: Vec<Superblock> = looked.iter().map(|looked| looked.superblock.clone()).collect();
    md::groups(&devices)
        .values()
        .map(|group| {
            let members: Vec<&Looked> = group.iter().map(|index| &looked[*index]).collect();
            describe(&members, wishes)
        })
        .collect()
}

fn describe(looked: &[&Looked], wishes: AssembleOptions) -> braid_api::MdArray {
    let devices: Vec<Superblock> = looked.iter().map(|looked| looked.superblock.clone()).collect();
    let array = md::assemble(&devices, wishes);
    let name = |device: usize| format!("disk {}", looked[device].name);
    let members = array.slots.iter().zip(0..).map(|(seat, role)| {
        let device = seat.device.map(|device| looked[device]);
        let state = match seat.state {
            SlotState::Current => "here",
            SlotState::Missing => "missing",
            SlotState::Stale { .. } => "old",
            SlotState::Rebuilding { .. } => "filling",
        };
        MdMember {
            role,
            disk: device.map(|device| device.name.clone()),
            state: state.to_owned(),
            used: seat.used,
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
        others: array.non_members.iter().map(|device| looked[*device].name.clone()).collect(),
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

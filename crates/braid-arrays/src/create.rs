//! Creates an array on disks.

use crate::ArrayManager;
use crate::claims::check_name;
use crate::disk_names::read_disk;
use crate::disks::remove_files;
use crate::reconcilers::ReconcilerStart;
use braid_advice::errors::lifecycle_error;
use braid_api::limits::ARRAY_MEMBERS_MAX;
use braid_api::{Array, CreateArray, ErrorDetail, Kind};
use braid_array_admin::lifecycle::{self, CreateRequest};
use braid_format::{MemberId, Name, StartPolicy};
use braid_geometry::{Level, Spec};
use braid_inventory::state::SavedDisk;
use braid_inventory::{OpenDisk, counted, random, random_uuid};
use braid_ring::DiskSpec;
use braid_tasks as tasks;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// The term for members that are marked as write-mostly.
const READ_LAST: &str = "members that are read last";

/// The records of disks before they were changed, by the name of the disk; none: there was no record.
pub(crate) type EarlierDiskRecords = Vec<(String, Option<SavedDisk>)>;

/// A validated request to create an array.
struct ValidatedCreate {
    name: Name,
    spec: Spec,
    /// The members, then the spares, then the journal disk if there is one.
    disks: Vec<DiskSpec>,
    spares: usize,
    journal: bool,
    write_mostly: Vec<u16>,
    start_policy: StartPolicy,
    force: bool,
}

impl ArrayManager {
    /// Creates an array and serves it.
    ///
    /// Order: all checks come before the first write; then the state file records the disks (harmless if the daemon
    /// dies now: they bear no label); then the labels are written; then the array serves.
    ///
    /// # Errors
    /// The reason. Nothing is left behind, or the error names what is left.
    pub async fn create_array(self: &Arc<Self>, request: CreateArray) -> Result<Array, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let validated = validate(&request)?;
        let _name = self.claim_name(&request.name)?;
        let (manager, specs) = (Arc::clone(self), validated.disks.clone());
        // Paths may be on a file system that does not answer: then only this client waits.
        let checked = tasks::blocking(move || manager.check_paths(&specs)).await;
        let checked = checked.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("examining the disks ended unexpectedly: {error}"))
        })?;
        let (_paths, absent) = checked?;
        let disks = self.open_disks(&validated.disks, &absent).await?;
        match self.create_on(&validated, &disks).await {
            Ok(uuid) => self.array(&uuid.to_string()),
            Err(error) => {
                // Before the disks are closed: afterwards another process may use the files.
                remove_files(&absent);
                self.close_disks(disks).await;
                Err(error)
            }
        }
    }

    async fn create_on(
        self: &Arc<Self>,
        validated: &ValidatedCreate,
        disks: &[Arc<OpenDisk>],
    ) -> Result<Uuid, ErrorDetail> {
        let name = validated.name.to_string();
        let redundant = lifecycle::is_redundant(validated.spec.level);
        // With parity the array's blocks are 4 KiB, independent of the disks, and also if a volume is a member.
        if redundant && validated.spec.level.parity() == 0 && disks.iter().all(|disk| disk.volume.is_none()) {
            check_blocks(&name, disks)?;
        }
        let request = request(validated, disks)?;
        let persistent = disks.iter().all(|disk| !disk.disk.spec().is_volatile());
        let before = if persistent {
            self.record_array_disks(request.uuid, &name, disks, 0)?
        } else {
            EarlierDiskRecords::new()
        };
        let created = lifecycle::create(&self.meta, &request).await;
        let array = created.map_err(|error| lifecycle_error(&error, &name, &ArrayManager::name_in(disks)));
        let activated = match array {
            Ok(array) if redundant => {
                self.serve_redundant(array, disks, ReconcilerStart { clean: true, force: false }).await
            }
            Ok(array) => self.activate(array, disks.to_vec()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = activated {
            if persistent {
                self.undo_record(before);
                self.inventory.save_or_warn();
            }
            return Err(error);
        }
        let note = if persistent { "" } else { "; memory and null disks keep nothing, so it ends with the daemon" };
        self.inventory.events().info(
            "array_created",
            format!("array {name} was created on {}{note}", counted(disks.len(), "disk", "disks")),
            &[("array", &name)],
        );
        Ok(request.uuid)
    }

    /// Opens all disks or none. If one cannot be opened, those of the `absent` files that were created are removed.
    ///
    /// # Errors
    /// A disk is in use or does not exist, or the operating system refuses.
    pub async fn open_disks(
        self: &Arc<Self>,
        specs: &[DiskSpec],
        absent: &[PathBuf],
    ) -> Result<Vec<Arc<OpenDisk>>, ErrorDetail> {
        let mut disks: Vec<Arc<OpenDisk>> = Vec::with_capacity(specs.len());
        for spec in specs {
            match self.open_disk(spec.clone(), Duration::ZERO).await {
                Ok(disk) => disks.push(disk),
                Err(error) => {
                    let opened: Vec<&Path> = disks.iter().filter_map(|disk| disk.disk.spec().path()).collect();
                    let made: Vec<&PathBuf> = absent.iter().filter(|path| opened.contains(&path.as_path())).collect();
                    remove_files(&made);
                    self.close_disks(disks).await;
                    return Err(error);
                }
            }
        }
        Ok(disks)
    }

    /// Records the disks of an array in the state file, in slots from `first_role` on. Returns the earlier records.
    ///
    /// # Errors
    /// The state file cannot be written; the records are as before.
    pub(crate) fn record_array_disks(
        &self,
        uuid: Uuid,
        name: &str,
        disks: &[Arc<OpenDisk>],
        first_role: u16,
    ) -> Result<EarlierDiskRecords, ErrorDetail> {
        let before = {
            let mut tables = self.inventory.write();
            let note = |(role, disk): (usize, &Arc<OpenDisk>)| {
                let saved = SavedDisk {
                    disk: disk.name.clone(),
                    array: uuid,
                    array_name: name.to_owned(),
                    slot: first_role + role as u16,
                };
                (disk.name.clone(), tables.disks.insert(disk.name.clone(), saved))
            };
            disks.iter().enumerate().map(note).collect::<EarlierDiskRecords>()
        };
        match self.inventory.save() {
            Ok(()) => Ok(before),
            Err(error) => {
                self.undo_record(before);
                Err(error)
            }
        }
    }

    /// Undoes [`ArrayManager::record_array_disks`] in the tables; the caller saves the state file.
    pub(crate) fn undo_record(&self, before: EarlierDiskRecords) {
        let mut tables = self.inventory.write();
        for (name, saved) in before {
            match saved {
                Some(saved) => tables.disks.insert(name, saved),
                None => tables.disks.remove(&name),
            };
        }
    }

    /// Removes the records of an array's disks.
    pub(crate) fn remove_disk_records(&self, uuid: Uuid) {
        self.inventory.write().disks.retain(|_, saved| saved.array != uuid);
    }
}

fn validate(request: &CreateArray) -> Result<ValidatedCreate, ErrorDetail> {
    check_name(&request.name)?;
    let invalid = |what: String| ErrorDetail::new(Kind::InvalidArgument, what).with("array", &request.name);
    let level: Level = request
        .level
        .parse()
        .map_err(|error| invalid(format!("level: {error}")).remedy("for example --level raid0 or --level concat"))?;
    if request.disks.is_empty() || request.disks.len() > ARRAY_MEMBERS_MAX {
        return Err(invalid(format!("an array has 1 to {ARRAY_MEMBERS_MAX} disks, not {}", request.disks.len())));
    }
    let mut spec = Spec::new(level);
    if let Some(chunk_bytes) = request.chunk_bytes {
        spec.chunk_bytes = chunk_bytes;
    }
    if let Some(copies) = request.copies {
        // A mirror has as many copies as members, so that this number is accepted there.
        if level != Level::Raid10 && !(level == Level::Raid1 && usize::from(copies) == request.disks.len()) {
            return Err(invalid(format!("{copies} copies: {level} has none to choose, only raid10 has"))
                .remedy("leave --copies out, or use --level raid10 --copies N"));
        }
        if level == Level::Raid10 {
            spec.copies = copies;
        }
    }
    let redundant = lifecycle::is_redundant(level);
    let extras = [
        (!request.spares.is_empty(), "spares"),
        (!request.write_mostly.is_empty(), READ_LAST),
        (request.start_degraded.is_some(), "a rule for starting degraded"),
    ];
    if let Some((_, what)) = extras.iter().find(|(given, _)| *given && !redundant) {
        return Err(invalid(format!("{level} has no redundancy, and so no use for {what}"))
            .remedy("use --level raid1, raid10, raid5 or raid6, or leave that out"));
    }
    if level.parity() > 0 && !request.write_mostly.is_empty() {
        return Err(invalid(format!("{level} has each byte on one member, and so no use for {READ_LAST}"))
            .remedy("leave --write-mostly out, or use --level raid1 or --level raid10"));
    }
    if request.journal.is_some() && level.parity() == 0 {
        return Err(invalid(format!("{level} has no journal that a disk could hold"))
            .remedy("leave --journal out, or use --level raid5 or --level raid6"));
    }
    let needed = if level.parity() > 0 { spec.min_members() } else { 2 };
    if redundant && request.disks.len() < needed {
        return Err(invalid(format!("{level} needs {needed} disks or more, not {}", request.disks.len()))
            .remedy("name further disks; spares are none of them"));
    }
    let count = request.disks.len() + request.spares.len() + usize::from(request.journal.is_some());
    if count > ARRAY_MEMBERS_MAX {
        let included = "spares and the journal's included";
        return Err(invalid(format!("an array has at most {ARRAY_MEMBERS_MAX} disks, {included}, not {count}")));
    }
    let start_policy = match request.start_degraded.as_deref() {
        None | Some("wait") => StartPolicy::ByLevel,
        Some("auto") => StartPolicy::Auto,
        Some(other) => {
            return Err(invalid(format!("start_degraded: {other:?} is neither auto nor wait"))
                .remedy("auto starts without members that may have gone on apart; wait, the default, does not"));
        }
    };
    spec.check(request.disks.len())
        .map_err(|error| invalid(error.to_string()).remedy("`braid plan` shows what is possible"))?;
    let mut disks = Vec::with_capacity(request.disks.len());
    for disk in request.disks.iter().chain(&request.spares).chain(&request.journal) {
        let disk = read_disk(disk)?;
        if let Some(path) = disk.path()
            && disks.iter().any(|other: &DiskSpec| other.path() == Some(path))
        {
            return Err(invalid(format!("{} is named twice", path.display())).remedy("name each disk once"));
        }
        disks.push(disk);
    }
    let name = Name::new(&request.name).map_err(|error| invalid(error.to_string()))?;
    let mut write_mostly = Vec::with_capacity(request.write_mostly.len());
    for named in &request.write_mostly {
        let disk = read_disk(named)?;
        let role = disks.iter().take(request.disks.len()).position(|other| *other == disk);
        let role = role.ok_or_else(|| {
            invalid(format!("{named} is to be read last and is no member of the array"))
                .with("disk", named)
                .remedy("name it among the disks, too, written the same way")
        })?;
        write_mostly.push(role as u16);
    }
    let spares = request.spares.len();
    let journal = request.journal.is_some();
    Ok(ValidatedCreate { name, spec, disks, spares, journal, write_mostly, start_policy, force: request.force })
}

/// Checks that all disks have the same logical block: the copies of a block have to be alike, and a mirror of disks
/// with different blocks would change its own block when a member is missing.
fn check_blocks(name: &str, disks: &[Arc<OpenDisk>]) -> Result<(), ErrorDetail> {
    let Some(first) = disks.first() else { return Ok(()) };
    let block = |disk: &OpenDisk| disk.disk.logical_block_bytes();
    let Some(other) = disks.iter().find(|disk| block(disk) != block(first)) else { return Ok(()) };
    let message = format!(
        "array {name}: disk {} has logical blocks of {} bytes and disk {} of {} bytes; the members of a redundant array have the same",
        first.name,
        block(first),
        other.name,
        block(other)
    );
    Err(ErrorDetail::new(Kind::InvalidArgument, message)
        .with("array", name)
        .with("disk", &other.name)
        .remedy("use disks with the same blocks; some disks can be reformatted (nvme format, sg_format)"))
}

fn request(validated: &ValidatedCreate, disks: &[Arc<OpenDisk>]) -> Result<CreateRequest, ErrorDetail> {
    let mut member_ids: Vec<MemberId> = Vec::with_capacity(disks.len());
    while member_ids.len() < disks.len() {
        let id = MemberId::from_random(random()?);
        if !member_ids.contains(&id) {
            member_ids.push(id);
        }
    }
    let (others, journal) = disks.split_at(disks.len() - usize::from(validated.journal));
    let journal_ids = member_ids.split_off(others.len());
    let (members, spares) = others.split_at(others.len() - validated.spares);
    let spare_ids = member_ids.split_off(members.len());
    Ok(CreateRequest {
        name: validated.name.clone(),
        spec: validated.spec,
        leaves: members.iter().map(|disk| disk.leaf).collect(),
        uuid: random_uuid()?,
        member_ids,
        spares: spares.iter().map(|disk| disk.leaf).zip(spare_ids).collect(),
        journal: journal.iter().map(|disk| disk.leaf).zip(journal_ids).next(),
        write_mostly: validated.write_mostly.clone(),
        start_policy: validated.start_policy,
        lineage: random()?,
        session: random()?,
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        force: validated.force,
    })
}

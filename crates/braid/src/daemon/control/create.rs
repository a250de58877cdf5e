//! Making an array of disks.

use super::disks::remove_files;
use super::keeping::Keep;
use super::tables::OpenDisk;
use super::{Control, counted, random, random_uuid};
use crate::daemon::state::SavedDisk;
use braid_advice::errors::of_lifecycle;
use braid_api::limits::{ARRAY_MEMBERS_MAX, ARRAYS_MAX};
use braid_api::{Array, CreateArray, ErrorDetail, Kind, names};
use braid_engine::lifecycle::{self, CreateRequest};
use braid_format::{MemberId, Name, StartPolicy};
use braid_geometry::{Level, Spec};
use braid_ring::DiskSpec;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// What members are called that are marked so.
const READ_LAST: &str = "members that are read last";

/// What was noted of disks, by name, before it was changed.
pub(super) type Noted = Vec<(String, Option<SavedDisk>)>;

/// What was asked for, understood.
struct Wanted {
    name: Name,
    spec: Spec,
    /// The members, then the spares, then the disk of the journal where there is one.
    disks: Vec<DiskSpec>,
    spares: usize,
    journal: bool,
    write_mostly: Vec<u16>,
    start_policy: StartPolicy,
    force: bool,
}

impl Control {
    /// Makes an array and serves it.
    ///
    /// Order: everything that can be refused is, before anything is written; then the state file remembers the
    /// disks (harmless if the daemon dies now: they bear no label); then the labels; then the array serves.
    ///
    /// # Errors
    /// The reason, with nothing left behind, or what is left named.
    pub async fn create_array(self: &Arc<Self>, ask: CreateArray) -> Result<Array, ErrorDetail> {
        self.is_open()?;
        let wanted = understand(&ask)?;
        let _name = self.claim_name(&ask.name)?;
        let (control, specs) = (Arc::clone(self), wanted.disks.clone());
        // Paths may lie on a file system that does not answer: then this client waits, and nobody else.
        let checked = tokio::task::spawn_blocking(move || control.check_paths(&specs)).await;
        let checked = checked.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("looking at the disks ended unexpectedly: {error}"))
        })?;
        let (_paths, absent) = checked?;
        let disks = self.open_disks(&wanted.disks, &absent).await?;
        match self.create_on(&wanted, &disks).await {
            Ok(uuid) => self.array(&uuid.to_string()),
            Err(error) => {
                // While they are still held: afterwards somebody else may have them.
                remove_files(&absent);
                self.close_disks(disks).await;
                Err(error)
            }
        }
    }

    /// Takes the paths of disks for one create, refuses disks in use, and says which are not there yet: files that this
    /// makes are removed again when it fails. Looks at files, which may block.
    pub(super) fn check_paths(self: &Arc<Self>, specs: &[DiskSpec]) -> Result<(PathClaim, Vec<PathBuf>), ErrorDetail> {
        let claim = self.claim_paths(specs)?;
        self.check_use(specs)?;
        let paths = specs.iter().filter_map(DiskSpec::path);
        let absent = paths.filter(|path| std::fs::symlink_metadata(path).is_err()).map(Path::to_owned);
        Ok((claim, absent.collect()))
    }

    /// Takes the paths of disks that are about to become members. Of two creates that want one file, which neither
    /// finds there, the one that fails would else remove what the other has made.
    fn claim_paths(self: &Arc<Self>, specs: &[DiskSpec]) -> Result<PathClaim, ErrorDetail> {
        let resolved = |path: &Path| {
            let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
            let absent = || Some(parent?.join(path.file_name()?));
            path.canonicalize().ok().or_else(absent).unwrap_or_else(|| path.to_owned())
        };
        let paths: BTreeSet<PathBuf> = specs.iter().filter_map(DiskSpec::path).map(resolved).collect();
        let mut tables = self.write();
        if let Some(path) = paths.iter().find(|path| tables.claimed_paths.contains(*path)) {
            let message = format!("disk {} is being made a member of another array or pool", path.display());
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", path.display())
                .remedy("each member needs a disk of its own"));
        }
        tables.claimed_paths.extend(paths.iter().cloned());
        Ok(PathClaim { control: Arc::clone(self), paths })
    }

    async fn create_on(self: &Arc<Self>, wanted: &Wanted, disks: &[Arc<OpenDisk>]) -> Result<Uuid, ErrorDetail> {
        let name = wanted.name.to_string();
        let redundant = lifecycle::is_redundant(wanted.spec.level);
        // With parity the blocks are of 4 KiB, whatever the disks have.
        // So they are where a volume is a member.
        if redundant && wanted.spec.level.parity() == 0 && disks.iter().all(|disk| disk.volume.is_none()) {
            check_blocks(&name, disks)?;
        }
        let request = request(wanted, disks)?;
        let kept = disks.iter().all(|disk| !disk.disk.spec().is_volatile());
        let before = if kept { self.remember(request.uuid, &name, disks, 0)? } else { Noted::new() };
        let created = lifecycle::create(&self.meta, &request).await;
        let array = created.map_err(|error| of_lifecycle(&error, &name, &Control::name_in(disks)));
        let activated = match array {
            Ok(array) if redundant => self.keep(array, disks, Keep { clean: true, force: false }).await,
            Ok(array) => self.activate(array, disks.to_vec()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = activated {
            if kept {
                self.take_back(before);
                self.save_or_warn();
            }
            return Err(error);
        }
        let note = if kept { "" } else { "; memory and null disks keep nothing, so it ends with the daemon" };
        self.events().info(
            "array_created",
            format!("array {name} was created on {}{note}", counted(disks.len(), "disk", "disks")),
            &[("array", &name)],
        );
        Ok(request.uuid)
    }

    /// Opens all of them, or none; then those of `absent` that this has made are gone again.
    pub(super) async fn open_disks(
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

    /// Notes in the state file where an array's disks are, whose roles begin with `first_role`. Returns what was noted of them before.
    pub(super) fn remember(
        &self,
        uuid: Uuid,
        name: &str,
        disks: &[Arc<OpenDisk>],
        first_role: u16,
    ) -> Result<Noted, ErrorDetail> {
        let before = {
            let mut tables = self.write();
            let note = |(role, disk): (usize, &Arc<OpenDisk>)| {
                let saved = SavedDisk {
                    disk: disk.name.clone(),
                    array: uuid,
                    array_name: name.to_owned(),
                    role: first_role + role as u16,
                };
                (disk.name.clone(), tables.disks.insert(disk.name.clone(), saved))
            };
            disks.iter().enumerate().map(note).collect::<Noted>()
        };
        match self.save() {
            Ok(()) => Ok(before),
            Err(error) => {
                self.take_back(before);
                Err(error)
            }
        }
    }

    /// Undoes [`Control::remember`].
    pub(super) fn take_back(&self, before: Noted) {
        let mut tables = self.write();
        for (name, saved) in before {
            match saved {
                Some(saved) => tables.disks.insert(name, saved),
                None => tables.disks.remove(&name),
            };
        }
    }

    /// Forgets where an array's disks were.
    pub(super) fn forget(&self, uuid: Uuid) {
        self.write().disks.retain(|_, saved| saved.array != uuid);
    }

    /// Takes a name for an array that is about to be.
    pub(super) fn claim_name(&self, name: &str) -> Result<NameClaim<'_>, ErrorDetail> {
        check_name(name)?;
        let mut tables = self.write();
        tables.name_is_free(name)?;
        if tables.arrays.len() + tables.claimed_names.len() >= ARRAYS_MAX {
            return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {ARRAYS_MAX} arrays already"))
                .remedy("delete one first"));
        }
        tables.claimed_names.insert(name.to_owned());
        Ok(NameClaim { control: self, name: name.to_owned() })
    }
}

/// A name that is taken as long as this lives.
pub(super) struct NameClaim<'a> {
    control: &'a Control,
    name: String,
}

impl Drop for NameClaim<'_> {
    fn drop(&mut self) {
        self.control.write().claimed_names.remove(&self.name);
    }
}

/// Paths of disks that are taken as long as this lives.
pub(super) struct PathClaim {
    control: Arc<Control>,
    paths: BTreeSet<PathBuf>,
}

impl Drop for PathClaim {
    fn drop(&mut self) {
        self.control.write().claimed_paths.retain(|path| !self.paths.contains(path));
    }
}

/// Refuses what cannot be a name.
pub(super) fn check_name(name: &str) -> Result<(), ErrorDetail> {
    names::check_name(name).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{name:?} cannot be a name: {error}")).with("name", name)
    })
}

fn understand(ask: &CreateArray) -> Result<Wanted, ErrorDetail> {
    check_name(&ask.name)?;
    let invalid = |what: String| ErrorDetail::new(Kind::InvalidArgument, what).with("array", &ask.name);
    let level: Level = ask
        .level
        .parse()
        .map_err(|error| invalid(format!("level: {error}")).remedy("for example --level raid0 or --level concat"))?;
    if ask.disks.is_empty() || ask.disks.len() > ARRAY_MEMBERS_MAX {
        return Err(invalid(format!("an array has 1 to {ARRAY_MEMBERS_MAX} disks, not {}", ask.disks.len())));
    }
    let mut spec = Spec::new(level);
    if let Some(chunk_bytes) = ask.chunk_bytes {
        spec.chunk_bytes = chunk_bytes;
    }
    if let Some(copies) = ask.copies {
        // A mirror of all its members has as many copies as members; saying so is no mistake.
        if level != Level::Raid10 && !(level == Level::Raid1 && usize::from(copies) == ask.disks.len()) {
            return Err(invalid(format!("{copies} copies: {level} has none to choose, only raid10 has"))
                .remedy("leave --copies out, or use --level raid10 --copies N"));
        }
        if level == Level::Raid10 {
            spec.copies = copies;
        }
    }
    let redundant = lifecycle::is_redundant(level);
    let extras = [
        (!ask.spares.is_empty(), "spares"),
        (!ask.write_mostly.is_empty(), READ_LAST),
        (ask.start_degraded.is_some(), "a rule for starting degraded"),
    ];
    if let Some((_, what)) = extras.iter().find(|(given, _)| *given && !redundant) {
        return Err(invalid(format!("{level} has no redundancy, and so no use for {what}"))
            .remedy("use --level raid1, raid10, raid5 or raid6, or leave that out"));
    }
    if level.parity() > 0 && !ask.write_mostly.is_empty() {
        return Err(invalid(format!("{level} has each byte on one member, and so no use for {READ_LAST}"))
            .remedy("leave --write-mostly out, or use --level raid1 or --level raid10"));
    }
    if ask.journal.is_some() && level.parity() == 0 {
        return Err(invalid(format!("{level} has no journal that a disk could hold"))
            .remedy("leave --journal out, or use --level raid5 or --level raid6"));
    }
    let needed = if level.parity() > 0 { spec.members_min() } else { 2 };
    if redundant && ask.disks.len() < needed {
        return Err(invalid(format!("{level} needs {needed} disks or more, not {}", ask.disks.len()))
            .remedy("name further disks; spares are none of them"));
    }
    let count = ask.disks.len() + ask.spares.len() + usize::from(ask.journal.is_some());
    if count > ARRAY_MEMBERS_MAX {
        let included = "spares and the journal's included";
        return Err(invalid(format!("an array has at most {ARRAY_MEMBERS_MAX} disks, {included}, not {count}")));
    }
    let start_policy = match ask.start_degraded.as_deref() {
        None | Some("wait") => StartPolicy::ByLevel,
        Some("auto") => StartPolicy::Auto,
        Some(other) => {
            return Err(invalid(format!("start_degraded: {other:?} is neither auto nor wait"))
                .remedy("auto starts without members that may have gone on apart; wait, the default, does not"));
        }
    };
    spec.check(ask.disks.len())
        .map_err(|error| invalid(error.to_string()).remedy("`braid plan` shows what is possible"))?;
    let mut disks = Vec::with_capacity(ask.disks.len());
    for disk in ask.disks.iter().chain(&ask.spares).chain(&ask.journal) {
        let disk = read_disk(disk)?;
        if let Some(path) = disk.path()
            && disks.iter().any(|other: &DiskSpec| other.path() == Some(path))
        {
            return Err(invalid(format!("{} is named twice", path.display())).remedy("name each disk once"));
        }
        disks.push(disk);
    }
    let name = Name::new(&ask.name).map_err(|error| invalid(error.to_string()))?;
    let mut write_mostly = Vec::with_capacity(ask.write_mostly.len());
    for named in &ask.write_mostly {
        let disk = read_disk(named)?;
        let role = disks.iter().take(ask.disks.len()).position(|other| *other == disk);
        let role = role.ok_or_else(|| {
            invalid(format!("{named} is to be read last and is no member of the array"))
                .with("disk", named)
                .remedy("name it among the disks, too, written the same way")
        })?;
        write_mostly.push(role as u16);
    }
    let spares = ask.spares.len();
    let journal = ask.journal.is_some();
    Ok(Wanted { name, spec, disks, spares, journal, write_mostly, start_policy, force: ask.force })
}

/// Reads a disk's name as it comes over the API: with an absolute path.
pub(super) fn read_disk(name: &str) -> Result<DiskSpec, ErrorDetail> {
    let invalid = |what: String| ErrorDetail::new(Kind::InvalidArgument, what).with("disk", name);
    let spec = DiskSpec::parse(name).map_err(|error| invalid(error.to_string()))?;
    match spec.path() {
        Some(path) if !path.is_absolute() => {
            Err(invalid(format!("disk {name}: the path {} is not absolute", path.display()))
                .remedy("the daemon has another working folder than you; write the path from the root"))
        }
        _ => Ok(spec),
    }
}

/// Copies of one block have to be alike: a mirror of disks with other logical blocks would change its own when one of them
/// is away.
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

fn request(wanted: &Wanted, disks: &[Arc<OpenDisk>]) -> Result<CreateRequest, ErrorDetail> {
    let mut member_ids: Vec<MemberId> = Vec::with_capacity(disks.len());
    while member_ids.len() < disks.len() {
        let id = MemberId::from_random(random()?);
        if !member_ids.contains(&id) {
            member_ids.push(id);
        }
    }
    let (others, journal) = disks.split_at(disks.len() - usize::from(wanted.journal));
    let journal_ids = member_ids.split_off(others.len());
    let (members, spares) = others.split_at(others.len() - wanted.spares);
    let spare_ids = member_ids.split_off(members.len());
    Ok(CreateRequest {
        name: wanted.name.clone(),
        spec: wanted.spec,
        leaves: members.iter().map(|disk| disk.leaf).collect(),
        uuid: random_uuid()?,
        member_ids,
        spares: spares.iter().map(|disk| disk.leaf).zip(spare_ids).collect(),
        journal: journal.iter().map(|disk| disk.leaf).zip(journal_ids).next(),
        write_mostly: wanted.write_mostly.clone(),
        start_policy: wanted.start_policy,
        lineage: random()?,
        session: random()?,
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        force: wanted.force,
    })
}

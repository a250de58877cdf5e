//! The daemon's own small state: exports, where disks were, what was stopped. One file, replaced atomically.
//!
//! Everything else is found again from the labels. At any moment of a crash the file is either the old one or
//! the new one: the new one is written beside it, made durable, renamed over it, and the folder made durable.
//! What cannot be understood is never overwritten: the daemon does not start with it.

use super::control::replicated::saved::SavedReplicated;
use braid_advice::errors::os_error;
use braid_api::{ErrorDetail, ExportTls, Findings, Kind, ReplicaPlace};

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;

/// The version of the file that this build writes and reads.
pub const VERSION: u32 = 1;
/// Longest file that is believed to be ours.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What is in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// [`VERSION`].
    pub version: u32,
    /// The exports, by name.
    #[serde(default)]
    pub exports: Vec<SavedExport>,
    /// Disks that were members, so that files and wrapped disks are found again.
    #[serde(default)]
    pub disks: Vec<SavedDisk>,
    /// The same of pools.
    #[serde(default)]
    pub pool_disks: Vec<SavedPoolDisk>,
    /// In which boot of the machine pools were opened last: what a session left in shared memory is there until the next one.
    #[serde(default)]
    pub pool_boots: BTreeMap<Uuid, Uuid>,
    /// In which session pools were last that keep replicas.
    #[serde(default)]
    pub pool_sessions: BTreeMap<Uuid, SavedSession>,
    /// Arrays that were members of pools.
    #[serde(default)]
    pub pool_arrays: Vec<SavedPoolArray>,
    /// Volumes that were placed on members of pools that leave.
    #[serde(default)]
    pub unplaced: Vec<SavedUnplaced>,
    /// Arrays that a command stopped, and that stay so.
    #[serde(default)]
    pub stopped: Vec<Uuid>,
    /// Arrays of Linux md that are read.
    #[serde(default)]
    pub imported: Vec<SavedImport>,
    /// Checks and repairs that go on when their array is started again.
    #[serde(default)]
    pub checks: Vec<SavedCheck>,
    /// What checks and repairs have found that is not as it should be, and that none has found right since.
    #[serde(default)]
    pub damage: Vec<SavedDamage>,
    /// Disks of journals that were lost, until somebody has acted on that.
    #[serde(default)]
    pub lost_journals: Vec<SavedLoss>,
    /// Replicas of volumes that are kept on several nodes, and witnesses.
    #[serde(default)]
    pub replicas: Vec<SavedReplica>,
    /// Replicas that were deleted while their pool was not there: what it has of them is removed when it is back.
    #[serde(default)]
    pub forgotten: Vec<SavedReplica>,
    /// Volumes of several nodes that this one serves, or was the last to.
    #[serde(default)]
    pub replicated: Vec<SavedReplicated>,
}

/// An array of Linux md as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedImport {
    /// Its identity.
    pub array: Uuid,
    /// Its name here.
    pub name: String,
    /// Where its members were.
    pub disks: Vec<String>,
    /// Old members are read where it takes them, and parity is believed that may be wrong.
    pub force: bool,
    /// The layout of a raid0 that says none.
    #[serde(default)]
    pub layout: Option<String>,
}

/// A replica or witness as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedReplica {
    /// The identity of the replicated volume.
    pub volume: Uuid,
    /// Its name.
    pub name: String,
    /// Which of its voters this is.
    pub voter: u8,
    /// How many there are, by the list of places.
    pub voters: u8,
    /// The pool; none: a witness.
    pub pool: Option<Uuid>,
    /// Its name when it was last seen.
    pub pool_name: String,
    /// The volume that has the data.
    pub data: Option<Uuid>,
    /// Its companion.
    pub companion: Option<Uuid>,
    /// Size of the data, in bytes.
    pub size_bytes: u64,
    /// What of the companion stands in front of them.
    pub head_bytes: u64,
    /// What of it stands behind them.
    pub tail_bytes: u64,
    /// Where all voters of the volume are.
    #[serde(default)]
    pub places: Vec<ReplicaPlace>,
    /// With which list it came; 0: with the volume.
    #[serde(default)]
    pub since: u64,
    /// Which list of them this is: never an older one than that of the register's vote.
    #[serde(default)]
    pub version: u64,
    /// Size of the volume, in bytes, of which a witness has nothing.
    #[serde(default)]
    pub volume_bytes: u64,
    /// The logical block of the volume, in bytes.
    #[serde(default = "braid_api::block_bytes_usual", skip_serializing_if = "braid_api::is_block_usual")]
    pub block_bytes: u32,
    /// Another one after each loss of what was not flushed that was no restart of the machine; nil: there was none.
    pub losses: Uuid,
    /// What its pool has of it is an older copy of itself: nothing of that counts before it was filled, and is in sync.
    #[serde(default)]
    pub older: bool,
    /// It is there: its register is durable. Otherwise it is removed by the next start.
    pub formed: bool,
}

/// The session of a pool, by what its labels say: each time that it is opened they have another random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSession {
    /// The one that the labels had last, as far as is known.
    pub session: u64,
    /// The one that they may have instead: they were about to be written.
    #[serde(default)]
    pub next: Option<u64>,
    /// The pool was closed in order, and the labels of that session say so, too.
    #[serde(default)]
    pub closed: bool,
}

impl SavedSession {
    /// Whether labels may say this that are on the disks which the pool had last.
    pub fn fits(&self, session: u64, clean: bool) -> bool {
        self.next == Some(session) || session == self.session && (clean || !self.closed)
    }
}

/// The disk of a journal that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedLoss {
    /// The array's identity.
    pub array: Uuid,
    /// The disk, as it was called.
    pub disk: String,
}

/// A check or repair as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedCheck {
    /// The array's identity.
    pub array: Uuid,
    /// Whether what differs is made equal.
    pub repair: bool,
    /// Whether the data are believed then, whatever their parities say.
    #[serde(default)]
    pub from_data: bool,
    /// Everything before this byte of the array was gone over.
    pub position_bytes: u64,
    /// Whether it waits, by command.
    pub paused: bool,
    /// Bytes a second that it may read on one member at most; 0: it gives way to clients by itself.
    pub limit_bytes_per_s: u64,
    /// What was found so far.
    pub findings: Findings,
}

/// Damage that a check or repair of an array has found, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedDamage {
    /// The array's identity.
    pub array: Uuid,
    /// Whether a repair found it.
    pub repair: bool,
    /// What was found.
    pub findings: Findings,
    /// With parity: not all of it was looked at since the array was started by force, so that it may be of before the last writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parity_in_doubt: bool,
}

/// An export as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedExport {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// The identity of the array, volume or snapshot.
    pub array: Uuid,
    /// Its name when it was last seen.
    pub array_name: String,
    /// It is of a volume of several nodes, which may be served by another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_nodes: bool,
    /// The pool, of a volume or snapshot.
    #[serde(default)]
    pub pool: Option<Uuid>,
    /// Where it listens.
    pub nbd: String,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether it may listen where others reach it.
    #[serde(default)]
    pub insecure: bool,
    /// Whether it is to be had over TLS. What was saved before there was TLS stays in the clear.
    #[serde(default)]
    pub tls: ExportTls,
    /// Networks that clients may come from.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Most connections at a time.
    #[serde(default)]
    pub connections_max: Option<u32>,
    /// Most requests a second.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes a second.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// A disk as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedDisk {
    /// Its name.
    pub disk: String,
    /// The array that it was a member of.
    pub array: Uuid,
    /// That array's name.
    pub array_name: String,
    /// Its role there.
    pub role: u16,
}

/// A disk of a pool as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPoolDisk {
    /// Its name.
    pub disk: String,
    /// The pool that it was a member of.
    pub pool: Uuid,
    /// That pool's name.
    pub pool_name: String,
    /// Its number there.
    pub member: u8,
}

/// An array that is a member of a pool, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPoolArray {
    /// Its identity.
    pub array: Uuid,
    /// Its name.
    pub array_name: String,
    /// The pool.
    pub pool: Uuid,
    /// That pool's name.
    pub pool_name: String,
    /// Its number there.
    pub member: u8,
}

/// Volumes that were placed on a member of a pool that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedUnplaced {
    /// The pool.
    pub pool: Uuid,
    /// The member's number.
    pub member: u8,
    /// The volumes.
    pub volumes: BTreeSet<Uuid>,
}

/// The folder of the state, held so that no second daemon uses it.
pub struct StateFolder {
    path: PathBuf,
    /// Keeps the lock until the process ends, however it ends.
    lock: Mutex<File>,
}

fn file_of(folder: &Path) -> PathBuf {
    folder.join("state.json")
}

impl StateFolder {
    /// Makes the folder if it is absent, and locks it.
    ///
    /// # Errors
    /// Another daemon has it (and which), or the operating system refuses.
    pub fn open(path: &Path) -> Result<StateFolder, ErrorDetail> {
        Ok(StateFolder { path: path.to_owned(), lock: Mutex::new(StateFolder::take(path)?) })
    }

    fn take(path: &Path) -> Result<File, ErrorDetail> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| os_error(&error, "the state folder cannot be made", path))?;
        let name = path.join("lock");
        let mut lock: File = rustix::fs::open(
            &name,
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::from_raw_mode(0o600),
        )
        .map_err(|error| os_error(&error.into(), "the lock of the state folder cannot be opened", &name))?
        .into();
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut owner = String::new();
                // Only for the message; the lock itself has already answered.
                let _ = (&mut lock).take(64).read_to_string(&mut owner);
                let owner = owner.trim();
                let who = if owner.is_empty() {
                    "another daemon".to_owned()
                } else {
                    format!("the daemon of process {owner}")
                };
                return Err(ErrorDetail::new(
                    Kind::InUse,
                    format!("the state folder {} belongs to {who}, which is running", path.display()),
                )
                .with("path", path.display())
                .with("pid", owner)
                .remedy("use that daemon, stop it first, or give this one a folder of its own with --state"));
            }
            Err(error) => return Err(os_error(&error.into(), "the state folder cannot be locked", &name)),
        }
        // Only so that a second daemon can name this one: on a full disk the lock itself still holds.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(lock)
    }

    /// Makes the folder anew and locks it, if it was deleted or replaced under this daemon. Says whether it was; its files are
    /// not written anew by this.
    ///
    /// # Errors
    /// As [`StateFolder::open`]: another daemon may have the new folder.
    pub fn restore(&self) -> Result<bool, ErrorDetail> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |held: &std::fs::Metadata, found: &std::fs::Metadata| {
            (held.dev(), held.ino()) == (found.dev(), found.ino())
        };
        match (lock.metadata(), std::fs::symlink_metadata(self.path.join("lock"))) {
            (Ok(held), Ok(found)) if same(&held, &found) => return Ok(false),
            // What cannot be looked at may be there.
            (Err(_), _) => return Ok(false),
            (_, Err(error)) if error.kind() != ErrorKind::NotFound => return Ok(false),
            _ => {}
        }
        *lock = StateFolder::take(&self.path)?;
        Ok(true)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self) -> PathBuf {
        file_of(&self.path)
    }

    /// Reads the state; a folder without one has the empty state.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or was written by another version.
    pub fn load(&self) -> Result<State, ErrorDetail> {
        StateFolder::read(&self.path)
    }

    /// The same of a folder that may be another daemon's.
    ///
    /// # Errors
    /// As [`StateFolder::load`].
    pub fn read(folder: &Path) -> Result<State, ErrorDetail> {
        let path = file_of(folder);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(State { version: VERSION, ..State::default() });
            }
            Err(error) => return Err(os_error(&error, "the state cannot be read", &path)),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|error| os_error(&error, "the state cannot be read", &path))?;
        parse(&text, &path)
    }

    /// Replaces the state.
    ///
    /// # Errors
    /// The operating system refuses; the old state is then still there.
    pub fn save(&self, state: &State) -> Result<(), ErrorDetail> {
        let text = serde_json::to_string_pretty(state).expect("the state has string keys and no failing fields");
        replace_file(&self.path, "state.json", &text)
            .map_err(|error| os_error(&error, "the state cannot be written", &self.file()))
    }
}

/// Writes a file that only its owner may read in place of the one that is there, if any: at any moment of a crash it is either the old
/// one or the new one.
///
/// # Errors
/// The operating system's; the old file is then still there.
pub fn replace_file(folder: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let beside = folder.join(format!("{name}.new"));
    let mut file: File = rustix::fs::open(
        &beside,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::from_raw_mode(0o600),
    )?
    .into();
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&beside, folder.join(name))?;
    File::open(folder)?.sync_all()
}

fn parse(text: &str, path: &Path) -> Result<State, ErrorDetail> {
    let damaged = |kind: Kind, message: String| ErrorDetail::new(kind, message).with("path", path.display());
    // The version first: an unknown one explains everything else that might look wrong.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let remedy = "restore it from a backup, or move it away: arrays are found again from their labels, \
                  block devices by themselves and files with `braid array assemble --disk FILE`; exports have to be added again";
    let versioned: Versioned = serde_json::from_str(text).map_err(|error| {
        damaged(Kind::Damaged, format!("the state file {} is damaged: {error}", path.display())).remedy(remedy)
    })?;
    if versioned.version != VERSION {
        return Err(damaged(
            Kind::UnknownVersion,
            format!(
                "the state file {} has version {}, and this daemon knows version {VERSION} only",
                path.display(),
                versioned.version
            ),
        )
        .remedy("run the version of Braid that wrote it"));
    }
    serde_json::from_str(text).map_err(|error| {
        damaged(Kind::Damaged, format!("the state file {} is damaged: {error}", path.display())).remedy(remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::super::control::replicated::saved::{SavedLeft, SavedVoter};
    use super::*;
    use braid_api::ReplicaSeating;
    use std::collections::BTreeMap;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("braid-state-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).expect("the temporary folder can be written");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn some_state() -> State {
        State {
            version: VERSION,
            exports: vec![SavedExport {
                name: "fast".into(),
                uuid: Uuid::from_u128(1),
                array: Uuid::from_u128(2),
                array_name: "fast".into(),
                of_nodes: false,
                pool: Some(Uuid::from_u128(5)),
                nbd: "unix:/x".into(),
                read_only: true,
                insecure: false,
                tls: ExportTls::Required,
                allow: vec!["10.0.0.0/8".into()],
                connections_max: Some(3),
                iops_max: Some(3000),
                bandwidth_bytes_max: None,
            }],
            disks: vec![SavedDisk {
                disk: "/dev/sdb".into(),
                array: Uuid::from_u128(2),
                array_name: "fast".into(),
                role: 0,
            }],
            pool_boots: BTreeMap::from([(Uuid::from_u128(9), Uuid::from_u128(7))]),
            pool_sessions: BTreeMap::from([(
                Uuid::from_u128(5),
                SavedSession { session: u64::MAX, next: Some(3), closed: false },
            )]),
            pool_arrays: vec![SavedPoolArray {
                array: Uuid::from_u128(8),
                array_name: "safe".into(),
                pool: Uuid::from_u128(9),
                pool_name: "tank".into(),
                member: 1,
            }],
            unplaced: vec![SavedUnplaced {
                pool: Uuid::from_u128(9),
                member: 1,
                volumes: BTreeSet::from([Uuid::from_u128(11)]),
            }],
            pool_disks: vec![SavedPoolDisk {
                disk: "/dev/sdd".into(),
                pool: Uuid::from_u128(5),
                pool_name: "tank".into(),
                member: 1,
            }],
            stopped: vec![Uuid::from_u128(3)],
            imported: vec![SavedImport {
                array: Uuid::from_u128(30),
                name: "old".into(),
                disks: vec!["/dev/sde".into(), "/dev/sdf".into()],
                force: false,
                layout: Some("original".into()),
            }],
            replicas: vec![SavedReplica {
                volume: Uuid::from_u128(20),
                name: "db".into(),
                voter: 1,
                voters: 3,
                pool: Some(Uuid::from_u128(5)),
                pool_name: "tank".into(),
                data: Some(Uuid::from_u128(21)),
                companion: Some(Uuid::from_u128(22)),
                size_bytes: 1 << 30,
                head_bytes: 1 << 20,
                tail_bytes: 1 << 20,
                places: vec![ReplicaPlace {
                    voter: 1,
                    node: "node1".into(),
                    pool: Some("tank".into()),
                    since: 0,
                    outside: false,
                }],
                since: 65536,
                version: 65537,
                volume_bytes: 1 << 30,
                block_bytes: 512,
                losses: Uuid::nil(),
                older: true,
                formed: true,
            }],
            forgotten: Vec::new(),
            lost_journals: vec![SavedLoss { array: Uuid::from_u128(2), disk: "/dev/sdc".into() }],
            replicated: vec![SavedReplicated {
                uuid: Uuid::from_u128(9),
                name: "db".into(),
                size_bytes: 1 << 30,
                block_bytes: 512,
                voters: BTreeMap::from([(
                    3,
                    SavedVoter { since: 7, outside: true, ..SavedVoter::of("node1".into(), None) },
                )]),
                seating: ReplicaSeating { version: 65537, voters: 8, before: 1, replicas: 1, further: 0 },
                attached: true,
                controller: Uuid::from_u128(10),
                epoch: 3,
                making: false,
                from: None,
                left: vec![SavedLeft { node: "node2".into(), since: 65536 }],
            }],
            checks: vec![SavedCheck {
                array: Uuid::from_u128(2),
                repair: true,
                from_data: true,
                position_bytes: 4096,
                paused: false,
                limit_bytes_per_s: 7,
                findings: Findings { differing_blocks: 1, places_bytes: vec![0], ..Findings::default() },
            }],
            damage: vec![SavedDamage {
                array: Uuid::from_u128(2),
                repair: false,
                findings: Findings { differing_blocks: 2, places_bytes: vec![4096], ..Findings::default() },
                parity_in_doubt: true,
            }],
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = Folder::new("saved");
        let state = StateFolder::open(&folder.0).expect("it is free");
        assert_eq!(state.load().expect("nothing is the empty state").exports, []);
        state.save(&some_state()).expect("there is room");
        assert_eq!(state.load().expect("it was saved"), some_state());
        // A crash before the rename leaves the new file beside: it is never read.
        std::fs::write(folder.0.join("state.json.new"), "{ half").expect("the folder can be written");
        assert_eq!(state.load().expect("the old one is whole"), some_state());
        state.save(&State { version: VERSION, ..State::default() }).expect("the half one is replaced");
    }

    #[test]
    fn an_older_copy_of_a_disk_has_labels_that_do_not_fit() {
        let serves = SavedSession { session: 2, next: None, closed: false };
        // Killed, or ended in order and killed before that was noted.
        assert!(serves.fits(2, false) && serves.fits(2, true));
        assert!(!serves.fits(1, true) && !serves.fits(3, true));
        let closed = SavedSession { closed: true, ..serves };
        assert!(closed.fits(2, true));
        assert!(!closed.fits(2, false), "a copy that was made while the pool served");
        // Killed before the labels were written, or after that.
        let opens = SavedSession { next: Some(3), ..serves };
        assert!([2, 3].into_iter().all(|session| opens.fits(session, true) && opens.fits(session, false)));
        assert!(!opens.fits(1, true));
        // The same after an end in order: a copy that was made while the pool served before it.
        let opens = SavedSession { closed: true, ..opens };
        assert!(opens.fits(2, true) && !opens.fits(2, false) && opens.fits(3, false));
    }

    #[test]
    fn a_second_daemon_is_told_who_has_it() {
        let folder = Folder::new("second");
        let first = StateFolder::open(&folder.0).expect("it is free");
        let Err(error) = StateFolder::open(&folder.0) else { panic!("two daemons have one folder") };
        assert_eq!(error.kind, Kind::InUse);
        assert_eq!(error.context["pid"], std::process::id().to_string());
        drop(first);
        StateFolder::open(&folder.0).expect("it is free again");
    }

    #[test]
    fn damage_is_refused_and_not_overwritten() {
        let folder = Folder::new("damage");
        let state = StateFolder::open(&folder.0).expect("it is free");
        let path = folder.0.join("state.json");
        for (text, kind) in [
            ("", Kind::Damaged),
            ("{", Kind::Damaged),
            ("[]", Kind::Damaged),
            (r#"{"version":1,"exports":[{}]}"#, Kind::Damaged),
            (r#"{"version":1,"exprots":[]}"#, Kind::Damaged),
            (r#"{"version":2,"anything":[]}"#, Kind::UnknownVersion),
        ] {
            std::fs::write(&path, text).expect("the folder can be written");
            let error = state.load().expect_err(text);
            assert_eq!(error.kind, kind, "{text}");
            assert!(error.message.contains("state.json") && !error.remedy.is_empty());
            assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text);
        }
    }
}

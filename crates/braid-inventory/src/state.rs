//! The state file: what the daemon keeps of exports, disks of earlier members, stopped arrays and replicas. One file,
//! replaced atomically.
//!
//! Everything else is found again from the labels. After a crash the file is either the old one or the new one: the new
//! one is written beside it, made durable, renamed over it, and the folder made durable. A file that cannot be
//! understood is never overwritten: the daemon does not start with it.

use crate::replicated::SavedReplicated;
use braid_advice::errors::os_error;
use braid_api::{ErrorDetail, Kind};
use braid_config::replace_file;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;

mod saved;

pub use saved::{
    SavedCheck, SavedDamage, SavedDisk, SavedExport, SavedImport, SavedLoss, SavedPoolArray, SavedPoolDisk,
    SavedReplica, SavedSession, SavedUnassigned,
};

/// The version of the file that this build writes and reads.
pub(crate) const VERSION: u32 = 2;

/// Maximum length of a file that is accepted as the state, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of the file's format: `VERSION`; this build reads no other one.
    pub version: u32,
    /// The exports, by name.
    #[serde(default)]
    pub exports: Vec<SavedExport>,
    /// Disks that were members of arrays, so that files and wrapped disks are found again.
    #[serde(default)]
    pub disks: Vec<SavedDisk>,
    /// Disks that were members of pools.
    #[serde(default)]
    pub pool_disks: Vec<SavedPoolDisk>,
    /// The boot of the machine in which each pool was last open: what a session left in shared memory exists until the
    /// next boot.
    #[serde(default)]
    pub pool_boots: BTreeMap<Uuid, Uuid>,
    /// The last session of each pool with replicas.
    #[serde(default)]
    pub pool_sessions: BTreeMap<Uuid, SavedSession>,
    /// Arrays that were members of pools.
    #[serde(default)]
    pub pool_arrays: Vec<SavedPoolArray>,
    /// Volumes that were assigned to pool members which are being removed.
    #[serde(default)]
    pub unassigned_volumes: Vec<SavedUnassigned>,
    /// Arrays that a command stopped, and that stay stopped.
    #[serde(default)]
    pub stopped: Vec<Uuid>,
    /// Imported arrays of Linux md.
    #[serde(default)]
    pub imported: Vec<SavedImport>,
    /// Checks and repairs that resume when their array is started again.
    #[serde(default)]
    pub checks: Vec<SavedCheck>,
    /// Damage that checks, repairs and resyncs have found, unless a later check found it corrected; and parity in
    /// doubt.
    #[serde(default)]
    pub damage: Vec<SavedDamage>,
    /// Journal disks that were lost, until an operator has acted on it.
    #[serde(default)]
    pub lost_journals: Vec<SavedLoss>,
    /// Replicas of replicated volumes, and witnesses.
    #[serde(default)]
    pub replicas: Vec<SavedReplica>,
    /// Replicas that were deleted while their pool was missing: their data is removed when the pool returns.
    #[serde(default)]
    pub forgotten: Vec<SavedReplica>,
    /// Replicated volumes that this node serves, or was the last to serve.
    #[serde(default)]
    pub replicated: Vec<SavedReplicated>,
}

/// The folder of the state, locked so that no second daemon uses it.
pub struct StateFolder {
    path: PathBuf,
    /// Holds the lock until the process ends, in whatever way.
    lock: Mutex<File>,
}

impl StateFolder {
    /// Creates the folder if it is absent, and locks it.
    ///
    /// # Errors
    /// Another daemon holds the lock, and the error names it; or the operating system refuses.
    pub fn open(path: &Path) -> Result<StateFolder, ErrorDetail> {
        Ok(StateFolder { path: path.to_owned(), lock: Mutex::new(StateFolder::lock_folder(path)?) })
    }

    /// Creates the folder if it is absent, and returns its lock file, locked.
    fn lock_folder(path: &Path) -> Result<File, ErrorDetail> {
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
                // Read only for the message; the lock has already failed.
                let _ = (&mut lock).take(64).read_to_string(&mut owner);
                let owner = owner.trim();
                let owner_text = if owner.is_empty() {
                    "another daemon".to_owned()
                } else {
                    format!("the daemon of process {owner}")
                };
                return Err(ErrorDetail::new(
                    Kind::InUse,
                    format!("the state folder {} belongs to {owner_text}, which is running", path.display()),
                )
                .with("path", path.display())
                .with("pid", owner)
                .remedy("use that daemon, stop it first, or give this one a folder of its own with --state"));
            }
            Err(error) => return Err(os_error(&error.into(), "the state folder cannot be locked", &name)),
        }
        // Written only for the message of a second daemon: on a full disk the lock holds all the same.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(lock)
    }

    /// Creates the folder again and locks it, if it was deleted or replaced under this daemon. Returns whether it was;
    /// does not write its files.
    ///
    /// # Errors
    /// As [`StateFolder::open`]: another daemon may hold the new folder.
    pub fn restore(&self) -> Result<bool, ErrorDetail> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |held: &std::fs::Metadata, found: &std::fs::Metadata| {
            (held.dev(), held.ino()) == (found.dev(), found.ino())
        };
        match (lock.metadata(), std::fs::symlink_metadata(self.path.join("lock"))) {
            (Ok(held), Ok(found)) if same(&held, &found) => return Ok(false),
            // A file that cannot be examined may exist.
            (Err(_), _) => return Ok(false),
            (_, Err(error)) if error.kind() != ErrorKind::NotFound => return Ok(false),
            _ => {}
        }
        *lock = StateFolder::lock_folder(&self.path)?;
        Ok(true)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the state; a folder without a file has the empty state.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or was written by another version.
    pub fn load(&self) -> Result<State, ErrorDetail> {
        StateFolder::read(&self.path)
    }

    /// Reads the state of a folder without locking it: it may belong to another daemon.
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
    /// The operating system refuses; the old state is then still in place.
    pub fn save(&self, state: &State) -> Result<(), ErrorDetail> {
        let text = serde_json::to_string_pretty(state).expect("the state has string keys and no failing fields");
        replace_file(&self.path, "state.json", &text)
            .map_err(|error| os_error(&error, "the state cannot be written", &file_of(&self.path)))
    }
}

/// Returns the path of the state file in a folder.
fn file_of(folder: &Path) -> PathBuf {
    folder.join("state.json")
}

/// Parses the text of a state file. `path` is for messages.
fn parse(text: &str, path: &Path) -> Result<State, ErrorDetail> {
    let damaged = |kind: Kind, message: String| ErrorDetail::new(kind, message).with("path", path.display());
    // The version first: an unknown version explains everything else that might look wrong.
    #[derive(Deserialize)]
    struct VersionOnly {
        version: u32,
    }
    let remedy = "restore it from a backup, or move it away: arrays are found again from their labels, \
                  block devices by themselves and files with `braid array assemble --disk FILE`; exports have to be added again";
    let versioned: VersionOnly = serde_json::from_str(text).map_err(|error| {
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
    use super::*;
    use crate::replicated::{SavedLeftover, SavedVoter};
    use braid_api::{ExportTls, Findings, ReplicaLocation, ReplicaMembership};
    use std::collections::BTreeSet;

    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> TestFolder {
            let path = std::env::temp_dir().join(format!("braid-state-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).expect("the temporary folder can be written");
            TestFolder(path)
        }
    }

    impl Drop for TestFolder {
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
                replicated: false,
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
                slot: 0,
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
            unassigned_volumes: vec![SavedUnassigned {
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
                metadata: Some(Uuid::from_u128(22)),
                size_bytes: 1 << 30,
                head_bytes: 1 << 20,
                tail_bytes: 1 << 20,
                locations: vec![ReplicaLocation {
                    voter: 1,
                    node: "node1".into(),
                    pool: Some("tank".into()),
                    since: 0,
                    excluded: false,
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
                    SavedVoter { since: 7, excluded: true, ..SavedVoter::of("node1".into(), None) },
                )]),
                membership: ReplicaMembership {
                    version: 65537,
                    voters: 8,
                    previous_voters: 1,
                    replicas: 1,
                    extra_replicas: 0,
                },
                attached: true,
                controller: Uuid::from_u128(10),
                epoch: 3,
                creating: false,
                from: None,
                left: vec![SavedLeftover { node: "node2".into(), since: 65536 }],
            }],
            checks: vec![SavedCheck {
                array: Uuid::from_u128(2),
                repair: true,
                from_data: true,
                position_bytes: 4096,
                paused: false,
                limit_bytes_per_s: 7,
                findings: Findings { differing_blocks: 1, offsets_bytes: vec![0], ..Findings::default() },
            }],
            damage: vec![SavedDamage {
                array: Uuid::from_u128(2),
                repair: false,
                findings: Findings { differing_blocks: 2, offsets_bytes: vec![4096], ..Findings::default() },
                parity_in_doubt: true,
            }],
        }
    }

    #[test]
    fn the_saved_state_is_loaded() {
        let folder = TestFolder::new("saved");
        let state = StateFolder::open(&folder.0).expect("it is free");
        assert_eq!(state.load().expect("nothing is the empty state").exports, []);
        state.save(&some_state()).expect("there is room");
        assert_eq!(state.load().expect("it was saved"), some_state());
        // A crash before the rename leaves the new file beside the old one: it is never read.
        std::fs::write(folder.0.join("state.json.new"), "{ half").expect("the folder can be written");
        assert_eq!(state.load().expect("the old one is whole"), some_state());
        state.save(&State { version: VERSION, ..State::default() }).expect("the half one is replaced");
    }

    #[test]
    fn an_older_copy_of_a_disk_has_labels_that_do_not_fit() {
        let serves = SavedSession { session: 2, next: None, closed: false };
        // The daemon was killed, or closed the pool cleanly and was killed before it recorded that.
        assert!(serves.fits(2, false) && serves.fits(2, true));
        assert!(!serves.fits(1, true) && !serves.fits(3, true));
        let closed = SavedSession { closed: true, ..serves };
        assert!(closed.fits(2, true));
        assert!(!closed.fits(2, false), "a copy that was made while the pool served");
        // The daemon was killed before it wrote the labels, or after that.
        let opens = SavedSession { next: Some(3), ..serves };
        assert!([2, 3].into_iter().all(|session| opens.fits(session, true) && opens.fits(session, false)));
        assert!(!opens.fits(1, true));
        // After a clean stop: a copy that was made while the pool served before that does not fit.
        let opens = SavedSession { closed: true, ..opens };
        assert!(opens.fits(2, true) && !opens.fits(2, false) && opens.fits(3, false));
    }

    #[test]
    fn a_second_daemon_gets_the_pid_of_the_first() {
        let folder = TestFolder::new("second");
        let first = StateFolder::open(&folder.0).expect("it is free");
        let Err(error) = StateFolder::open(&folder.0) else { panic!("two daemons have one folder") };
        assert_eq!(error.kind, Kind::InUse);
        assert_eq!(error.context["pid"], std::process::id().to_string());
        drop(first);
        StateFolder::open(&folder.0).expect("it is free again");
    }

    #[test]
    fn damage_is_refused_and_not_overwritten() {
        let folder = TestFolder::new("damage");
        let state = StateFolder::open(&folder.0).expect("it is free");
        let path = folder.0.join("state.json");
        for (text, kind) in [
            ("", Kind::Damaged),
            ("{", Kind::Damaged),
            ("[]", Kind::Damaged),
            (r#"{"version":2,"exports":[{}]}"#, Kind::Damaged),
            (r#"{"version":2,"exprots":[]}"#, Kind::Damaged),
            (r#"{"version":1,"anything":[]}"#, Kind::UnknownVersion),
        ] {
            std::fs::write(&path, text).expect("the folder can be written");
            let error = state.load().expect_err(text);
            assert_eq!(error.kind, kind, "{text}");
            assert!(error.message.contains("state.json") && !error.remedy.is_empty());
            assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text);
        }
    }
}

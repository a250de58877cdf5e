//! Stores the register of a voter: that of a replica in the last two blocks of its metadata, that of a witness in a
//! file.
//!
//! A register has two slots, and each change is written to both. The first slot is durable before the write of the
//! second begins: at every moment at least one of them is valid.
//!
//! A replica's register has a copy in a file of the state folder, too. If the disk of a replica is exchanged for an
//! older copy of itself, the file still has the epoch and the vote that the voter has acknowledged since. The newer of
//! the two counts. Without a valid register in the replica metadata, the register is lost, whatever the file has: the
//! register belongs to the data.

use braid_engine::replica::{Register, RegisterId, VoterId};
use braid_engine::{DeviceId, DeviceIo};
use braid_format::register::{REGISTER_BYTES, StoredRegister, register_slot};
use braid_ring::RingDevices;
use braid_tasks as tasks;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Length of a register with both slots, in bytes: the last two blocks of the replica metadata.
pub const SLOTS_BYTES: u64 = 2 * REGISTER_BYTES as u64;

/// The content of a slot.
type Bytes = [u8; REGISTER_BYTES];

/// Location of the two slots of a register.
#[derive(Clone)]
pub enum RegisterLocation {
    /// On a device, from this byte on.
    Device(RingDevices, DeviceId, u64),
    /// In a file of its own.
    File(PathBuf),
}

/// Result of reading a register.
pub enum RegisterContent {
    /// The newest valid register.
    Register(Register),
    /// No slot is valid; why.
    Lost(String),
}

impl RegisterLocation {
    /// Writes a slot: 0 or 1. It is durable when this returns.
    async fn write(&self, slot: usize, bytes: &Bytes) -> Result<(), String> {
        let at = slot as u64 * REGISTER_BYTES as u64;
        match self {
            RegisterLocation::Device(io, device, start) => {
                io.write(*device, start + at, bytes.to_vec(), true).await.map_err(|error| error.to_string())?;
                io.flush(*device).await.map_err(|error| error.to_string())
            }
            RegisterLocation::File(path) => {
                let (path, bytes) = (path.clone(), *bytes);
                run_blocking(move || {
                    let file = open(&path, OFlags::WRONLY)?;
                    file.write_all_at(&bytes, at)?;
                    file.sync_data()
                })
                .await
            }
        }
    }

    /// Writes both slots, this one first. The other one must be valid, unless neither is: it stays unchanged until the
    /// first is durable.
    async fn write_both(&self, first_slot: usize, bytes: &Bytes) -> Result<(), String> {
        for slot in [first_slot, 1 - first_slot] {
            #[cfg(test)]
            if tests::crashes() {
                self.write(slot, &tests::TORN).await?;
                return Err("the node has lost its power".to_owned());
            }
            self.write(slot, bytes).await?;
        }
        Ok(())
    }

    /// Reads both slots, valid or not.
    async fn read(&self) -> Result<[Bytes; 2], String> {
        let both = match self {
            RegisterLocation::Device(io, device, start) => {
                let both = io.read(*device, *start, SLOTS_BYTES as usize).await;
                both.map_err(|error| error.to_string())?
            }
            RegisterLocation::File(path) => {
                let path = path.clone();
                run_blocking(move || {
                    // A file that is too short is padded: the padding is no register.
                    let mut both = std::fs::read(&path).or_else(|error| match error.kind() {
                        std::io::ErrorKind::NotFound => Ok(Vec::new()),
                        _ => Err(error),
                    })?;
                    both.resize(SLOTS_BYTES as usize, 0);
                    Ok(both)
                })
                .await?
            }
        };
        let slot = |from: usize| -> Result<Bytes, String> {
            let bytes = both.get(from..from + REGISTER_BYTES).and_then(|bytes| bytes.try_into().ok());
            bytes.ok_or_else(|| "too little was read".to_owned())
        };
        Ok([slot(0)?, slot(REGISTER_BYTES)?])
    }

    /// Creates an empty file for a register if it does not exist. The file is durable when this returns.
    ///
    /// # Errors
    /// The error of the operating system.
    pub async fn create_file(path: &Path) -> Result<(), String> {
        let path = path.to_owned();
        run_blocking(move || {
            let folder = path.parent().ok_or(std::io::ErrorKind::NotFound)?;
            std::fs::create_dir_all(folder)?;
            open(&path, OFlags::WRONLY | OFlags::CREATE)?.sync_all()?;
            File::open(folder)?.sync_all()?;
            folder.parent().map_or(Ok(()), |above| File::open(above)?.sync_all())
        })
        .await
    }
}

/// Returns the slot that has the newest register of the two. The encoding of a register is unique.
fn newest_slot(slots: [&Bytes; 2], newest: &StoredRegister) -> usize {
    usize::from(*slots[0] != newest.encode())
}

/// Opens a file that is no symbolic link; a new one is for its owner only.
fn open(path: &Path, flags: OFlags) -> std::io::Result<File> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))?.into())
}

/// Runs work that waits for the file system on a thread of its own.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = tasks::blocking(work).await.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

/// Writes a voter's register, one change after the other.
pub struct RegisterStore {
    /// The volume and the voter that it belongs to.
    of: RegisterId,
    location: RegisterLocation,
    /// File with the copy of a replica's register.
    copy_file: Option<PathBuf>,
    /// Generation of the last durable write.
    generation: u64,
}

impl RegisterStore {
    /// Creates a register.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn create(
        of: RegisterId,
        location: RegisterLocation,
        copy_file: Option<PathBuf>,
        register: &Register,
    ) -> Result<RegisterStore, String> {
        let mut store = RegisterStore { of, location, copy_file, generation: 0 };
        if let Some(file) = &store.copy_file {
            RegisterLocation::create_file(file).await?;
        }
        // A register that an earlier replica of the volume may have left in the file is overwritten.
        store.write(register).await?;
        Ok(store)
    }

    /// Reads a register, and writes its newest version to both slots, durably: one slot may be older or damaged, and
    /// the one that was read may have been in a cache only. If the file has a copy that is not older, that copy is the
    /// version used. The file gets the same version.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub async fn load(
        of: RegisterId,
        location: RegisterLocation,
        copy_file: Option<PathBuf>,
    ) -> Result<(RegisterContent, RegisterStore), String> {
        let [first, second] = location.read().await?;
        let mut store = RegisterStore { of, location, copy_file, generation: 0 };
        let found = match StoredRegister::newest([&first, &second]) {
            Ok(stored) => stored,
            Err(why) => return Ok((RegisterContent::Lost(why.to_string()), store)),
        };
        if Register::of_stored(&found, &store.of).is_none() {
            return Ok((RegisterContent::Lost("the register is that of another volume or voter".to_owned()), store));
        }
        let copy = store.read_copy().await?;
        let copy_slot = copy.map_or(register_slot(found.generation), |(_, slot)| 1 - slot);
        let copy = copy.map(|(copy, _)| copy).filter(|copy| copy.generation >= found.generation);
        let stored = copy.unwrap_or(found);
        let register = Register::of_stored(&stored, &store.of).expect("it was looked at");
        // The slot with the newest register of the two stays unchanged until the other one is durable, also if the
        // file's copy is newer than both: the other slot may be damaged.
        store.location.write_both(1 - newest_slot([&first, &second], &found), &stored.encode()).await?;
        if let Some(file) = &store.copy_file {
            RegisterLocation::create_file(file).await?;
        }
        store.write_copy(&stored, copy_slot).await?;
        store.generation = stored.generation;
        Ok((RegisterContent::Register(register), store))
    }

    /// Reads the register back after a failed write, and writes its newest version to both slots, as
    /// [`RegisterStore::load`] does. A slot that a late write may still change is not written: that is an error.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub async fn reload(&mut self) -> Result<RegisterContent, String> {
        let (found, store) = RegisterStore::load(self.of, self.location.clone(), self.copy_file.clone()).await?;
        *self = store;
        Ok(found)
    }

    /// Returns the voter that the register belongs to.
    pub fn voter(&self) -> VoterId {
        self.of.voter
    }

    /// Returns the newest register in the file with the copy, and its slot, if it belongs to this voter.
    async fn read_copy(&self) -> Result<Option<(StoredRegister, usize)>, String> {
        let Some(file) = self.copy_file.clone() else { return Ok(None) };
        let [first, second] = RegisterLocation::File(file).read().await?;
        let copy = StoredRegister::newest([&first, &second]).ok();
        let copy = copy.filter(|copy| Register::of_stored(copy, &self.of).is_some());
        Ok(copy.map(|copy| (copy, newest_slot([&first, &second], &copy))))
    }

    /// Writes both slots of the copy, this one first.
    async fn write_copy(&self, stored: &StoredRegister, first_slot: usize) -> Result<(), String> {
        let Some(file) = self.copy_file.clone() else { return Ok(()) };
        RegisterLocation::File(file).write_both(first_slot, &stored.encode()).await
    }

    /// Writes both slots, and those of the copy.
    ///
    /// # Errors
    /// A slot cannot be written: its content is then unknown.
    pub async fn write(&mut self, register: &Register) -> Result<(), String> {
        let stored = register.stored(&self.of, self.generation + 1);
        if !stored.is_sound() {
            return Err("it would make no sense".to_owned());
        }
        // Either may be written first: unless the register is being created, both are valid.
        let slot = register_slot(stored.generation);
        self.location.write_both(slot, &stored.encode()).await?;
        self.write_copy(&stored, slot).await?;
        self.generation = stored.generation;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_engine::replica::{Vote, VoterConfig, Voters};
    use std::cell::Cell;
    use uuid::Uuid;

    const OF: RegisterId = RegisterId { volume: Uuid::from_u128(1), voter: VoterId(0) };

    /// The content of a slot whose write was interrupted.
    pub(super) const TORN: Bytes = [0xff; REGISTER_BYTES];

    thread_local! {
        /// The node loses its power in the write of a slot after this many others.
        static WRITES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Counts the write of a slot. Returns whether the node loses its power in it.
    pub(super) fn crashes() -> bool {
        let left = WRITES_LEFT.get();
        WRITES_LEFT.set(left.and_then(|left| left.checked_sub(1)));
        left == Some(0)
    }

    /// Returns the content of a slot with this generation; torn if it is 0.
    fn slot(generation: u64) -> Bytes {
        let one = Voters::from_bits(1);
        let config = VoterConfig { voters: one, replicas: one, ..VoterConfig::default() };
        let register = Register { vote: Vote { in_sync: one, config, ..Vote::default() }, ..Register::default() };
        if generation == 0 { TORN } else { register.stored(&OF, generation).encode() }
    }

    /// Returns the newest valid generation in a file; 0 if no slot is valid.
    async fn generation(path: &Path) -> u64 {
        let [first, second] = RegisterLocation::File(path.to_owned()).read().await.expect("it can be read");
        StoredRegister::newest([&first, &second]).map_or(0, |stored| stored.generation)
    }

    #[tokio::test]
    async fn a_register_survives_a_crash_in_any_write_of_its_repair() {
        let folder = std::env::temp_dir().join(format!("braid-register-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let [own, file] = ["own", "copy"].map(|name| folder.join(name));
        let load = async || RegisterStore::load(OF, RegisterLocation::File(own.clone()), Some(file.clone())).await;
        for slots in [[5, 0], [0, 5], [5, 6], [6, 5]] {
            for copies in [[0, 0], [4, 0], [7, 0], [0, 7], [6, 7]] {
                for crash in 0..4 {
                    let case = format!("slots {slots:?}, copies {copies:?}, crash in write {crash}");
                    std::fs::write(&own, slots.map(slot).concat()).expect("it can be written");
                    std::fs::write(&file, copies.map(slot).concat()).expect("it can be written");
                    let before = (generation(&own).await, generation(&file).await);
                    WRITES_LEFT.set(Some(crash));
                    assert!(load().await.is_err(), "{case}");
                    let after = (generation(&own).await, generation(&file).await);
                    assert!(after.0 >= before.0 && after.1 >= before.1, "{case}: {before:?}, then {after:?}");
                    let (content, store) = load().await.expect("it can be read and written");
                    assert!(matches!(content, RegisterContent::Register(_)), "{case}");
                    assert_eq!(store.generation, before.0.max(before.1), "{case}");
                    let both = [slot(store.generation), slot(store.generation)].concat();
                    for path in [&own, &file] {
                        assert!(std::fs::read(path).expect("it can be read") == both, "{case}");
                    }
                }
            }
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}

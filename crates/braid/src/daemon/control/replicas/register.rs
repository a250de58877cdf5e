//! Where the register of a voter is: in the last two blocks of a replica's companion, or in a file of a witness.
//!
//! The place that a change is written to first is durable before the other one is begun: at any time one of them is whole.
//!
//! A replica's register stands in such a file, too, beside the companion: a disk may be exchanged for an older copy of itself, and what the voter has
//! promised since must not be forgotten with that. The newer of the two counts. The companion's must be there all the same: it goes with the data.

use braid_engine::DeviceId;
use braid_engine::DeviceIo;
use braid_engine::replica::{Register, RegisterOf, VoterId};
use braid_format::register::{REGISTER_BYTES, StoredRegister, register_slot};
use braid_ring::RingDevices;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a register with both of its places.
pub const PLACES_BYTES: u64 = 2 * REGISTER_BYTES as u64;

type Bytes = [u8; REGISTER_BYTES];

/// Where its two places are.
#[derive(Clone)]
pub enum Place {
    /// On a device, from this byte on.
    Device(RingDevices, DeviceId, u64),
    /// In a file of its own.
    File(PathBuf),
}

/// What was found there.
pub enum Found {
    /// What counts.
    Register(Register),
    /// None that is whole; why.
    Lost(String),
}

impl Place {
    async fn write(&self, slot: usize, bytes: &Bytes) -> Result<(), String> {
        let at = slot as u64 * REGISTER_BYTES as u64;
        match self {
            Place::Device(io, device, start) => {
                io.write(*device, start + at, bytes.to_vec(), true).await.map_err(|error| error.to_string())?;
                io.flush(*device).await.map_err(|error| error.to_string())
            }
            Place::File(path) => {
                let (path, bytes) = (path.clone(), *bytes);
                in_file(move || {
                    let file = open(&path, OFlags::WRONLY)?;
                    file.write_all_at(&bytes, at)?;
                    file.sync_data()
                })
                .await
            }
        }
    }

    async fn read(&self) -> Result<[Bytes; 2], String> {
        let both = match self {
            Place::Device(io, device, start) => {
                let both = io.read(*device, *start, PLACES_BYTES as usize).await;
                both.map_err(|error| error.to_string())?
            }
            Place::File(path) => {
                let path = path.clone();
                in_file(move || {
                    // Shorter than it should be: the rest is no register.
                    let mut both = std::fs::read(&path).or_else(|error| match error.kind() {
                        std::io::ErrorKind::NotFound => Ok(Vec::new()),
                        _ => Err(error),
                    })?;
                    both.resize(PLACES_BYTES as usize, 0);
                    Ok(both)
                })
                .await?
            }
        };
        let place = |from: usize| -> Result<Bytes, String> {
            let bytes = both.get(from..from + REGISTER_BYTES).and_then(|bytes| bytes.try_into().ok());
            bytes.ok_or_else(|| "too little was read".to_owned())
        };
        Ok([place(0)?, place(REGISTER_BYTES)?])
    }

    /// Makes an empty file for a witness, where there is none.
    ///
    /// # Errors
    /// As the operating system says.
    pub async fn make_file(path: &Path) -> Result<(), String> {
        let path = path.to_owned();
        in_file(move || {
            let folder = path.parent().ok_or(std::io::ErrorKind::NotFound)?;
            std::fs::create_dir_all(folder)?;
            open(&path, OFlags::WRONLY | OFlags::CREATE)?.sync_all()?;
            File::open(folder)?.sync_all()?;
            folder.parent().map_or(Ok(()), |above| File::open(above)?.sync_all())
        })
        .await
    }
}

fn open(path: &Path, flags: OFlags) -> std::io::Result<File> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))?.into())
}

async fn in_file<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

/// Writes a voter's register, one change after the other.
pub struct Keeper {
    of: RegisterOf,
    place: Place,
    /// The file that says the same, of a replica.
    beside: Option<PathBuf>,
    generation: u64,
}

impl Keeper {
    /// Begins a register.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn begin(
        of: RegisterOf,
        place: Place,
        beside: Option<PathBuf>,
        register: &Register,
    ) -> Result<Keeper, String> {
        let mut keeper = Keeper { of, place, beside, generation: 0 };
        if let Some(file) = &keeper.beside {
            Place::make_file(file).await?;
        }
        // What an earlier replica of the volume may have left there is overwritten.
        keeper.write(register).await?;
        Ok(keeper)
    }

    /// Reads a register, and makes both of its places hold what counts: one may be older, or damaged, and what was read may still have been
    /// in a cache. The same of the file beside it; without one what the companion has is believed.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub async fn find(of: RegisterOf, place: Place, beside: Option<PathBuf>) -> Result<(Found, Keeper), String> {
        let [first, second] = place.read().await?;
        let mut keeper = Keeper { of, place, beside, generation: 0 };
        let found = match StoredRegister::newest([&first, &second]) {
            Ok(stored) => stored,
            Err(why) => return Ok((Found::Lost(why.to_string()), keeper)),
        };
        if Register::of_stored(&found, &keeper.of).is_none() {
            return Ok((Found::Lost("the register is that of another volume or voter".to_owned()), keeper));
        }
        let noted = keeper.noted().await?.filter(|noted| noted.generation >= found.generation);
        let stored = noted.unwrap_or(found);
        let register = Register::of_stored(&stored, &keeper.of).expect("it was looked at");
        // The other place first: the one that counts stays whole until there are two.
        let bytes = stored.encode();
        let good = usize::from(first != bytes);
        keeper.place.write(1 - good, &bytes).await?;
        keeper.place.write(good, &bytes).await?;
        if let Some(file) = &keeper.beside {
            Place::make_file(file).await?;
        }
        keeper.write_beside(&stored).await?;
        keeper.generation = stored.generation;
        Ok((Found::Register(register), keeper))
    }

    /// Reads it back after a write that failed, and makes both places hold what counts, as [`Keeper::find`] does. A place that a late write
    /// may still change is not written: that is an error.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub async fn find_again(&mut self) -> Result<Found, String> {
        let (found, keeper) = Keeper::find(self.of, self.place.clone(), self.beside.clone()).await?;
        *self = keeper;
        Ok(found)
    }

    /// Which voter's it is.
    pub fn voter(&self) -> VoterId {
        self.of.voter
    }

    /// What the file beside it says, if that is of this voter.
    async fn noted(&self) -> Result<Option<StoredRegister>, String> {
        let Some(file) = self.beside.clone() else { return Ok(None) };
        let [first, second] = Place::File(file).read().await?;
        let noted = StoredRegister::newest([&first, &second]).ok();
        Ok(noted.filter(|noted| Register::of_stored(noted, &self.of).is_some()))
    }

    /// Makes both places of the file beside it hold this, one after the other: at any time one of them is whole.
    async fn write_beside(&self, stored: &StoredRegister) -> Result<(), String> {
        let Some(file) = self.beside.clone() else { return Ok(()) };
        let (place, bytes, slot) = (Place::File(file), stored.encode(), register_slot(stored.generation));
        place.write(slot, &bytes).await?;
        place.write(1 - slot, &bytes).await
    }

    /// Makes this what both places hold, and those of the file beside them.
    ///
    /// # Errors
    /// One of them cannot be written: nobody knows what it holds.
    pub async fn write(&mut self, register: &Register) -> Result<(), String> {
        let stored = register.stored(&self.of, self.generation + 1);
        if !stored.is_sound() {
            return Err("it would make no sense".to_owned());
        }
        let bytes = stored.encode();
        let slot = register_slot(stored.generation);
        self.place.write(slot, &bytes).await?;
        self.place.write(1 - slot, &bytes).await?;
        self.write_beside(&stored).await?;
        self.generation = stored.generation;
        Ok(())
    }
}

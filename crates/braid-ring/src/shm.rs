//! The in-memory logs of pools in shared memory: files that outlive the process, but not a reboot.
//!
//! The name of a log contains the boot, the pool and the session. Logs are in a folder that only its owner may access.
//! All memory of a log is allocated when it is created, so that a full file system is an error then, and a store never
//! raises a signal. The process that serves a pool holds the lock of its log. The lock belongs to the open file, and
//! ends with it however the process ends.

#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use braid_engine::Uuid;
use braid_engine::pool::LogMemory;
use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{RingError, RingErrorKind};
use crate::medium::holder;

/// Identifies the boot of the machine. The same in all its containers.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// A log consists of whole pages.
const PAGE_BYTES: usize = 4096;
/// Length of a boot or pool id as text.
const UUID_LETTERS: usize = 36;

/// The name of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SharedLogName {
    /// The boot of the machine in which it was created. After another boot, its content is useless.
    pub boot: Uuid,
    /// The pool.
    pub pool: Uuid,
    /// The pool's session.
    pub session: u64,
}

impl fmt::Display for SharedLogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.boot, self.pool, self.session)
    }
}

impl SharedLogName {
    /// Parses a file name. `None` if it is not the name of a log.
    fn parse(text: &str) -> Option<SharedLogName> {
        let boot = Uuid::try_parse(text.get(..UUID_LETTERS)?).ok()?;
        let rest = text[UUID_LETTERS..].strip_prefix('-')?;
        let pool = Uuid::try_parse(rest.get(..UUID_LETTERS)?).ok()?;
        let session = rest[UUID_LETTERS..].strip_prefix('-')?.parse().ok()?;
        let name = SharedLogName { boot, pool, session };
        // Accept only the canonical spelling.
        (name.to_string() == text).then_some(name)
    }
}

/// The folder of the logs.
#[derive(Debug)]
pub struct SharedLogFolder {
    path: PathBuf,
    folder: OwnedFd,
    boot: Uuid,
}

impl SharedLogFolder {
    /// Opens the folder. Creates it if it is missing, but not its parent.
    ///
    /// # Errors
    /// The folder is a symbolic link, belongs to another user, or is accessible to others; or the operating system
    /// fails.
    pub fn open(path: &Path) -> Result<SharedLogFolder, RingError> {
        let text = std::fs::read_to_string(BOOT_ID).map_err(|e| RingError::os(e, format!("reading {BOOT_ID}")))?;
        let boot = Uuid::try_parse(text.trim())
            .map_err(|_| RingError::new(RingErrorKind::Unsupported, format!("{BOOT_ID} holds no boot id"), ""))?;
        SharedLogFolder::open_in_boot(path, boot)
    }

    fn open_in_boot(path: &Path, boot: Uuid) -> Result<SharedLogFolder, RingError> {
        let failed = |e: Errno, what: &str| RingError::os(e.into(), format!("{what} the folder {}", path.display()));
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed(e, "making")),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(foreign(path, "is no folder, but a symbolic link or a file"));
            }
            Err(e) => return Err(failed(e, "opening")),
        };
        let stat = rustix::fs::fstat(&folder).map_err(|e| failed(e, "looking at"))?;
        check_owner(path, &stat)?;
        Ok(SharedLogFolder { path: path.to_owned(), folder, boot })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the log of a pool's session in this boot.
    pub fn name(&self, pool: Uuid, session: u64) -> SharedLogName {
        SharedLogName { boot: self.boot, pool, session }
    }

    /// Creates and locks the log of a session, all zeros. `bytes` is a multiple of 4096.
    ///
    /// # Errors
    /// `NoSpace` if the file system or the memory has no room for all of it; `Conflict` if it already exists.
    pub fn create(&self, pool: Uuid, session: u64, bytes: usize) -> Result<SharedLog, RingError> {
        let name = self.name(pool, session);
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            let what = format!("{} of {bytes} bytes", self.describe(&name));
            return Err(RingError::new(RingErrorKind::Limit, what, "give a multiple of 4096"));
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.folder, name.to_string(), flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::EXIST) => {
                let what = format!("{} is there already", self.describe(&name));
                return Err(RingError::new(RingErrorKind::Conflict, what, "open it, and use what it holds"));
            }
            Err(e) => return Err(self.failed(e, "making", &name)),
        };
        self.allocate(file, &name, bytes).inspect_err(|_| {
            // A log that was never complete holds nothing.
            let _ = rustix::fs::unlinkat(&self.folder, name.to_string(), AtFlags::empty());
        })
    }

    fn allocate(&self, file: File, name: &SharedLogName, bytes: usize) -> Result<SharedLog, RingError> {
        self.lock(&file, name)?;
        loop {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM)) => {
                    return Err(RingError {
                        kind: RingErrorKind::NoSpace,
                        context: format!("taking {bytes} bytes of shared memory for {}", self.describe(name)),
                        remedy: format!(
                            "free space in {}, or give its file system more (mount -o remount,size=…)",
                            self.path.display()
                        ),
                        source: Some(e.into()),
                    });
                }
                Err(Errno::OPNOTSUPP) => {
                    let what = format!("the file system of {} cannot reserve space", self.path.display());
                    return Err(RingError::new(RingErrorKind::Unsupported, what, "use a folder on tmpfs"));
                }
                Err(e) => return Err(self.failed(e, "reserving space for", name)),
            }
        }
        self.map(file, name, bytes)
    }

    /// Opens and locks the log that a session of this boot left. `None` if it does not exist or was never complete.
    ///
    /// # Errors
    /// `InUse` while another process serves the pool; `Conflict` if the file is not a log; `Permission` if it belongs
    /// to another user.
    pub fn attach(&self, pool: Uuid, session: u64) -> Result<Option<SharedLog>, RingError> {
        let name = self.name(pool, session);
        let Some((file, stat)) = self.find(&name)? else { return Ok(None) };
        match usize::try_from(stat.st_size) {
            Ok(0) => Ok(None),
            Ok(bytes) if bytes.is_multiple_of(PAGE_BYTES) => self.map(file, &name, bytes).map(Some),
            _ => Err(foreign(&self.path.join(name.to_string()), "has no size that a tail can have")),
        }
    }

    /// Opens and locks a log file that still exists and belongs to this user.
    fn find(&self, name: &SharedLogName) -> Result<Option<(File, Stat)>, RingError> {
        let path = self.path.join(name.to_string());
        let flags = OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match rustix::fs::openat(&self.folder, name.to_string(), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(foreign(&path, "is a symbolic link")),
            Err(Errno::ISDIR | Errno::NXIO) => return Err(foreign(&path, "is no file")),
            Err(e) => return Err(self.failed(e, "opening", name)),
        };
        let look = |file: &File| rustix::fs::fstat(file).map_err(|e| self.failed(e, "looking at", name));
        let stat = look(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(foreign(&path, "is no file"));
        }
        check_owner(&path, &stat)?;
        self.lock(&file, name)?;
        // The previous holder of the lock may have completed or removed it.
        let stat = look(&file)?;
        Ok((stat.st_nlink > 0).then_some((file, stat)))
    }

    fn lock(&self, file: &File, name: &SharedLogName) -> Result<(), RingError> {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => {
                let of = rustix::fs::fstat(file).ok().and_then(|stat| holder::of_file(stat.st_dev, stat.st_ino));
                let user = of.unwrap_or_else(|| "another process".into());
                let what = format!("{} is in use by {user}", self.describe(name));
                Err(RingError::new(RingErrorKind::InUse, what, "stop that first; a pool is served once"))
            }
            Err(e) => Err(self.failed(e, "locking", name)),
        }
    }

    fn map(&self, file: File, name: &SharedLogName, bytes: usize) -> Result<SharedLog, RingError> {
        // All pages of the file have their memory, and all are mapped now, so that no shard waits for a page later.
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory in use.
        let raw = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, flags, &file, 0) };
        let raw = raw.map_err(|e| self.failed(e, "mapping", name))?;
        let base = NonNull::new(raw.cast()).expect("mmap never returns page 0 without MAP_FIXED");
        Ok(SharedLog { base, bytes, file, name: *name })
    }

    /// Lists the logs of a pool, of this boot and of others, in the order of their names.
    ///
    /// # Errors
    /// The operating system's.
    pub fn list(&self, pool: Uuid) -> Result<Vec<SharedLogName>, RingError> {
        let failed = |e: Errno| RingError::os(e.into(), format!("listing {}", self.path.display()));
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            names.extend(
                entry.file_name().to_str().ok().and_then(SharedLogName::parse).filter(|name| name.pool == pool),
            );
        }
        names.sort();
        Ok(names)
    }

    /// Removes a log that is not in use. Its content is lost. Succeeds if the log does not exist.
    ///
    /// # Errors
    /// `InUse` while a process serves it, `Conflict` if the file is not a log; or the operating system's.
    pub fn remove(&self, name: &SharedLogName) -> Result<(), RingError> {
        match self.find(name)? {
            // The lock is held until the name is removed.
            Some(_locked) => self.unlink(name),
            None => Ok(()),
        }
    }

    /// Closes a log that this process serves, and removes its file. The content is lost. A file that was already
    /// removed or truncated ([`SharedLog::is_intact`]) is left alone: another log may have its name by now.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_attached(&self, log: SharedLog) -> Result<(), RingError> {
        let name = log.name;
        if log.is_intact() { self.unlink(&name) } else { Ok(()) }
    }

    fn unlink(&self, name: &SharedLogName) -> Result<(), RingError> {
        match rustix::fs::unlinkat(&self.folder, name.to_string(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.failed(e, "removing", name)),
        }
    }

    fn describe(&self, name: &SharedLogName) -> String {
        format!("the tail of session {} of pool {} in {}", name.session, name.pool, self.path.display())
    }

    fn failed(&self, error: Errno, what: &str, name: &SharedLogName) -> RingError {
        RingError::os(error.into(), format!("{what} {}", self.describe(name)))
    }
}

/// Checks that only this user has access, because the content is trusted.
fn check_owner(path: &Path, stat: &Stat) -> Result<(), RingError> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        let what = format!("{} belongs to user {}, and this process runs as {user}", path.display(), stat.st_uid);
        return Err(RingError::new(RingErrorKind::Permission, what, "remove it, or run as that user"));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::RWXG | Mode::RWXO) {
        let what = format!("{} is open to others than its owner (mode {:03o})", path.display(), stat.st_mode & 0o777);
        return Err(RingError::new(
            RingErrorKind::Permission,
            what,
            "look at what is in it, then take their rights away (chmod go=)",
        ));
    }
    Ok(())
}

fn foreign(path: &Path, what: &str) -> RingError {
    let what = format!("{} {what}", path.display());
    RingError::new(RingErrorKind::Conflict, what, "nothing of Braid's: look at it and move it away")
}

/// A log, mapped and locked. The file outlives its process and the drop of this value, until it is removed.
#[derive(Debug)]
pub struct SharedLog {
    base: NonNull<u8>,
    bytes: usize,
    /// The lock ends with the open file.
    file: File,
    name: SharedLogName,
}

// SAFETY: a mapping belongs to the process, not to a thread; it is read and written through atomics only.
unsafe impl Send for SharedLog {}
// SAFETY: as above.
unsafe impl Sync for SharedLog {}

impl SharedLog {
    /// The name of the log.
    pub fn name(&self) -> &SharedLogName {
        &self.name
    }

    /// Returns whether the next process could recover from the log if this one died: its file was neither removed nor
    /// truncated. After a removal the memory remains usable, but its content dies with this process, as in a crash of
    /// the machine. The pool should then commit, and create another log.
    pub fn is_intact(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| stat.st_nlink > 0 && stat.st_size == self.bytes as i64)
    }
}

impl LogMemory for SharedLog {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and `bytes` long, and the file has all of it;
        // every process that maps it uses atomics only, and any eight bytes are a valid number.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / size_of::<AtomicU64>()) }
    }
}

impl Drop for SharedLog {
    fn drop(&mut self) {
        // SAFETY: the mapping is complete and owned by `self`, and no reference to it outlives `self`. It cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests;

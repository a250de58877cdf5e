//! Examines the content of a disk without locking it.

use braid_engine::{ErrorKind, LeafError, LeafId, MetaIo};
use braid_format::foreign::{self, Signatures};
use rustix::fs::{FileType, Mode, OFlags};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file or block device, opened for reading, or for writing by [`Probe::for_writing`].
pub struct Probe {
    file: File,
    size_bytes: u64,
}

impl Probe {
    /// Opens a file or block device for reading, without blocking and without locking it.
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidInput` if the path is neither a file nor a block device.
    pub fn open(path: &Path) -> io::Result<Probe> {
        Probe::with(path, OFlags::RDONLY)
    }

    /// Opens a file or block device for reading and writing. The caller must ensure that it is not in use.
    ///
    /// # Errors
    /// As [`Probe::open`].
    pub fn for_writing(path: &Path) -> io::Result<Probe> {
        Probe::with(path, OFlags::RDWR)
    }

    fn with(path: &Path, mode: OFlags) -> io::Result<Probe> {
        let flags = mode | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let mut file: File = rustix::fs::open(path, flags, Mode::empty())?.into();
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a block device"));
        }
        let size_bytes = file.seek(SeekFrom::End(0))?;
        Ok(Probe { file, size_bytes })
    }

    /// Returns the size, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads `len` bytes at `offset`, or fewer at the end of the disk.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Identifies the content; `None` if there is no known signature.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn identify(&self) -> io::Result<Option<Signatures>> {
        foreign::identify(self.size_bytes, |offset, len| self.read(offset, len))
    }

    /// Returns whether the first block of the disk, or its last whole block, starts with the magic number of a label,
    /// intact or not. A block that cannot be read counts as one without a label. The copy of a label on a disk that has
    /// grown is not found.
    ///
    /// # Errors
    /// None at present.
    pub fn may_have_label(&self) -> io::Result<bool> {
        let magics = [braid_format::MAGIC, braid_format::pool::POOL_MAGIC];
        let starts =
            |offset: u64| Ok::<bool, io::Error>(magics.iter().any(|m| self.read(offset, 8).is_ok_and(|r| r == m)));
        Ok(starts(0)? || braid_format::copy_offset(self.size_bytes).map_or(Ok(false), starts)?)
    }
}

/// I/O on labels of this disk, for commands that need no daemon. The leaf is ignored, and all functions block.
impl MetaIo for Probe {
    fn size_bytes(&self, _leaf: LeafId) -> u64 {
        self.size_bytes
    }

    async fn read(&self, _leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        let bytes = Probe::read(self, offset, len).map_err(|error| leaf_error(&error))?;
        if bytes.len() == len { Ok(bytes) } else { Err(LeafError::of(ErrorKind::Invalid)) }
    }

    async fn write(&self, _leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        let written = self.file.write_all_at(&data, offset);
        written.and_then(|()| if fua { self.file.sync_data() } else { Ok(()) }).map_err(|error| leaf_error(&error))
    }

    async fn flush(&self, _leaf: LeafId) -> Result<(), LeafError> {
        self.file.sync_data().map_err(|error| leaf_error(&error))
    }
}

fn leaf_error(error: &io::Error) -> LeafError {
    LeafError { kind: ErrorKind::Io, errno: error.raw_os_error().unwrap_or(0) }
}

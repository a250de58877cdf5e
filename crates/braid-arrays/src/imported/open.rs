//! Members of an array of md: examined, and opened so that nothing can be written to them.

use crate::ArrayManager;
use crate::disk_names::without_size;
use braid_api::{ErrorDetail, Kind};
use braid_format::md::{self, BadRange, MdError, SUPERBLOCK_BYTES, Superblock};
use braid_host::host::{FileSystemEntry, Identity};
use braid_host::open::open_disk;
use braid_host::probe::Probe;
use braid_ring::spec::{FaultKind, FaultRule, FaultRules, OpSet};
use braid_ring::{Disk, DiskSpec, OpenOptions};

/// The md metadata on a member's disk.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct MdMemberInfo {
    /// The disk's name.
    pub(crate) name: String,
    /// Its superblock.
    pub(crate) superblock: Superblock,
    /// The ranges in md's bad-block log.
    pub(crate) bad: Vec<BadRange>,
}

/// A member that is open read-only.
pub(crate) struct OpenMdMember {
    /// Its metadata.
    pub(crate) examined: MdMemberInfo,
    /// The disk; reads of its bad ranges fail.
    pub(crate) disk: Disk,
    /// The identity of its file or device.
    pub(crate) identity: Option<Identity>,
    /// Its entry in the file system.
    pub(crate) entry: Option<FileSystemEntry>,
}

/// Examines a disk without taking it. May block.
///
/// # Errors
/// The disk has no superblock that can be read: the error says why.
pub(crate) fn examine(spec: &DiskSpec) -> Result<MdMemberInfo, ErrorDetail> {
    let name = without_size(spec.clone()).to_string();
    let path = spec.path().ok_or_else(|| {
        ErrorDetail::new(Kind::Unsupported, format!("disk {name} is no file and no block device of this machine"))
            .with("disk", &name)
            .remedy("name the members of the array by their paths")
    })?;
    let failed = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
            _ => Kind::DiskError,
        };
        ErrorDetail::new(kind, format!("disk {name} cannot be read: {error}"))
            .with("disk", &name)
            .remedy("check its path, and that the daemon's user may read it")
    };
    let probe = Probe::open(path).map_err(failed)?;
    let (mut found, mut wrong): (Option<Superblock>, Option<MdError>) = (None, None);
    for (minor, at) in md::superblock_offsets(probe.size_bytes()) {
        let bytes = probe.read(at, SUPERBLOCK_BYTES).map_err(failed)?;
        match Superblock::decode(&bytes, minor, at, probe.size_bytes()) {
            // If there are two, which is rare, the one created last.
            Ok(superblock) if found.as_ref().is_none_or(|other| superblock.created_unix_s > other.created_unix_s) => {
                found = Some(superblock);
            }
            Ok(_) | Err(MdError::Missing) => {}
            Err(error) => wrong = Some(error),
        }
    }
    let Some(superblock) = found else {
        let error = wrong.unwrap_or(MdError::Missing);
        return Err(ErrorDetail::new(Kind::InvalidArgument, format!("disk {name} cannot be imported: {error}"))
            .with("disk", &name)
            .remedy("name the members of one array of md alone; mdadm --examine shows what is on a disk"));
    };
    let bad = match &superblock.bad_blocks {
        Some(log) => log.read(&probe.read(log.start, log.bytes as usize).map_err(failed)?),
        None => Vec::new(),
    };
    Ok(MdMemberInfo { name, superblock, bad })
}

impl ArrayManager {
    /// Opens a member read-only and exclusively: no other process may write to it meanwhile. May block.
    ///
    /// # Errors
    /// The disk is in use, has changed, or has an unsupported data offset; and as [`examine`].
    pub(crate) fn open_md_member(&self, spec: &DiskSpec) -> Result<OpenMdMember, ErrorDetail> {
        self.refuse_own_disk(spec)?;
        let before = examine(spec)?;
        let spec = without_size(spec.clone());
        let disk = open_disk(
            &with_bad(spec.clone(), &before.bad),
            &before.name,
            OpenOptions { exclusive: true, write: false },
        )
        .map_err(|error| error.detail)?;
        // Examined again: from now on no other process changes it.
        let examined = examine(&spec)?;
        if examined != before {
            let message = format!("disk {} was changed while it was being opened", examined.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", &examined.name)
                .remedy("stop whatever uses it (mdadm --stop), and try again"));
        }
        let block = u64::from(disk.logical_block_bytes());
        if !examined.superblock.data_start.is_multiple_of(block) {
            let start = examined.superblock.data_start;
            let message =
                format!("disk {} has its data from byte {start} on, and blocks of {block} bytes", examined.name);
            return Err(ErrorDetail::new(Kind::Unsupported, message)
                .with("disk", &examined.name)
                .remedy("let md assemble it (mdadm --assemble --readonly), and copy it from there"));
        }
        let path = disk.spec().path();
        let (identity, entry) = (path.and_then(Identity::of), path.and_then(FileSystemEntry::of));
        Ok(OpenMdMember { examined, disk, identity, entry })
    }
}

/// Returns the disk with md's bad blocks: reads of them fail.
fn with_bad(spec: DiskSpec, bad: &[BadRange]) -> DiskSpec {
    if bad.is_empty() {
        return spec;
    }
    let fails = FaultKind::Error(OpSet::Read);
    let rule =
        |range: &BadRange| FaultRule { kind: fails, probability: 1.0, from: range.start, to: range.end, times: None };
    let rules = FaultRules { rules: bad.iter().map(rule).collect(), seed: 0 };
    DiskSpec::Faulty { disk: Box::new(spec), rules }
}

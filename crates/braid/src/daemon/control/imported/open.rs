//! Members of an array of md: looked at, and opened so that nothing can be written to them.

use crate::daemon::control::Control;
use crate::daemon::control::search::without_size;
use braid_api::{ErrorDetail, Kind};
use braid_format::md::{self, BadRange, MdError, SUPERBLOCK_BYTES, Superblock};
use braid_host::host::{Entry, Identity};
use braid_host::open::open_disk;
use braid_host::probe::Probe;
use braid_ring::spec::{FaultKind, FaultRule, FaultRules, OpSet};
use braid_ring::{Disk, DiskSpec, OpenOptions};

/// What stands on a disk that is a member.
#[derive(Clone, PartialEq, Eq)]
pub struct Looked {
    /// The disk's name.
    pub name: String,
    /// Its superblock.
    pub superblock: Superblock,
    /// What md has noted as bad.
    pub bad: Vec<BadRange>,
}

/// A member that is open for reading alone.
pub struct Opened {
    pub looked: Looked,
    pub disk: Disk,
    pub identity: Option<Identity>,
    pub entry: Option<Entry>,
}

/// Looks at a disk without taking it. May block.
///
/// # Errors
/// It bears no superblock that can be read, and why.
pub fn look(spec: &DiskSpec) -> Result<Looked, ErrorDetail> {
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
            // Of two, which is rare, the one that was made last.
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
            .remedy("name the members of one array of md alone; mdadm --examine shows what stands on a disk"));
    };
    let bad = match &superblock.bad_blocks {
        Some(log) => log.read(&probe.read(log.start, log.bytes as usize).map_err(failed)?),
        None => Vec::new(),
    };
    Ok(Looked { name, superblock, bad })
}

impl Control {
    /// Opens a member for reading, exclusively: nobody else may write to it meanwhile. May block.
    ///
    /// # Errors
    /// Somebody uses it; and as [`look`].
    pub(super) fn open_md_member(&self, spec: &DiskSpec) -> Result<Opened, ErrorDetail> {
        self.not_ours(spec)?;
        let before = look(spec)?;
        let spec = without_size(spec.clone());
        let disk = open_disk(
            &with_bad(spec.clone(), &before.bad),
            &before.name,
            OpenOptions { exclusive: true, write: false },
        )
        .map_err(|error| error.detail)?;
        // Once more: nobody changes it any longer.
        let looked = look(&spec)?;
        if looked != before {
            let message = format!("disk {} was changed while it was being opened", looked.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", &looked.name)
                .remedy("stop whatever uses it (mdadm --stop), and try again"));
        }
        let block = u64::from(disk.logical_block_bytes());
        if !looked.superblock.data_start.is_multiple_of(block) {
            let start = looked.superblock.data_start;
            let message =
                format!("disk {} has its data from byte {start} on, and blocks of {block} bytes", looked.name);
            return Err(ErrorDetail::new(Kind::Unsupported, message)
                .with("disk", &looked.name)
                .remedy("let md assemble it (mdadm --assemble --readonly), and copy it from there"));
        }
        let path = disk.spec().path();
        let (identity, entry) = (path.and_then(Identity::of), path.and_then(Entry::of));
        Ok(Opened { looked, disk, identity, entry })
    }
}

/// The disk with what md has noted as bad: reads of that fail.
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

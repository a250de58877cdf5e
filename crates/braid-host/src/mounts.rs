//! What is mounted in this process' own view of the machine.

use braid_api::{ErrorDetail, Kind};
use braid_fuse::mount::unescaped;
use std::path::{Path, PathBuf};

/// A file system that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its folder.
    pub folder: PathBuf,
    /// What it is of, as the kernel has it.
    pub source: PathBuf,
    /// Its file system.
    pub kind: String,
}

/// What is topmost at a folder.
///
/// # Errors
/// The table cannot be read.
pub fn at(folder: &Path) -> Result<Option<Mount>, ErrorDetail> {
    Ok(all()?.into_iter().rev().find(|mount| mount.folder == folder))
}

/// What a folder is on.
///
/// # Errors
/// As [`at`].
pub fn over(folder: &Path) -> Result<Option<Mount>, ErrorDetail> {
    let above = all()?.into_iter().filter(|mount| folder.starts_with(&mount.folder));
    // Of several at one folder the topmost, which is the last.
    Ok(above.max_by_key(|mount| mount.folder.components().count()))
}

/// Whether a device is mounted anywhere.
///
/// # Errors
/// As [`at`].
pub fn is_mounted(source: &Path) -> Result<bool, ErrorDetail> {
    Ok(all()?.iter().any(|mount| mount.source == source))
}

/// Everything that is mounted, the latest last.
///
/// # Errors
/// As [`at`].
pub fn all() -> Result<Vec<Mount>, ErrorDetail> {
    let table = std::fs::read("/proc/self/mountinfo")
        .map_err(|error| ErrorDetail::new(Kind::Internal, format!("the mounts cannot be listed: {error}")))?;
    Ok(parse(&table))
}

fn parse(table: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        Some(Mount {
            folder: unescaped(fields.get(4)?),
            source: unescaped(fields.get(dash + 2)?),
            kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        })
    };
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let table = b"22 1 8:1 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/loop3 rw\n\
            garbage\n\
            23 1 0:45 /sub /srv/c rw - btrfs /dev/ublkb0 rw\n";
        let mounts = parse(table);
        let mount = |folder: &str, source: &str, kind: &str| Mount {
            folder: folder.into(),
            source: source.into(),
            kind: kind.to_owned(),
        };
        assert_eq!(mounts, [mount("/srv/a b", "/dev/loop3", "ext4"), mount("/srv/c", "/dev/ublkb0", "btrfs")]);
    }
}

//! Identifies the content of a device with libblkid, and scans for data that libblkid does not know. A file system is created only on an empty
//! device. The block size of a file system decides from which devices it can be mounted.

use super::{error_output, run};
use crate::segment;
use braid_api::limits::VOLUME_BLOCK_BYTES;
use braid_api::{ErrorDetail, Kind, Volume};
use braid_client::Client;
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Number of bytes that are scanned at each end of a device.
const ENDS_BYTES: u64 = 1 << 20;
/// Number of samples between the ends, and the size of each in bytes.
const SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 4096;

/// A type of file system that can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
    /// The usual one
    Ext4,
    /// For large files and many processors
    Xfs,
    /// With checksums and snapshots of its own
    Btrfs,
}

impl FileSystem {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }
}

/// The content of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that libblkid knows.
    Nothing,
    /// A file system by type, and its smallest I/O size in bytes, if libblkid reports it (since util-linux 2.36).
    FileSystem(String, Option<u32>),
    /// A partition table by type, and the sector size in bytes that it counts in, if known.
    Partitions(String, Option<u32>),
    /// Something else, as named by libblkid.
    Other(String),
}

/// What to do with a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountDecision {
    /// Mount the file system of this type.
    Mount(String),
    /// Create a file system of this type, and mount it.
    Make(FileSystem),
}

/// Identifies the content of a device.
///
/// # Errors
/// The device cannot be read.
pub fn look(device: &Path) -> Result<Content, ErrorDetail> {
    let out = run("blkid", &["--probe", "--output", "export"], &[device.as_os_str()])?;
    match out.status.code() {
        Some(0) => {
            let content = parse_blkid(&String::from_utf8_lossy(&out.stdout));
            Ok(match content {
                Content::Partitions(table, _) => Content::Partitions(table, table_sector_bytes(device)),
                other => other,
            })
        }
        Some(2) => Ok(Content::Nothing),
        Some(8) => Ok(Content::Other("signatures of several file systems".to_owned())),
        _ => Err(ErrorDetail::new(
            Kind::DiskError,
            format!("{} cannot be identified: {}", device.display(), error_output(&out)),
        )
        .with("device", device.display())),
    }
}

fn parse_blkid(text: &str) -> Content {
    let values: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    match (values.get("TYPE"), values.get("USAGE"), values.get("PTTYPE")) {
        (Some(kind), Some(&"filesystem"), _) => {
            let block_bytes = values.get("BLOCK_SIZE").and_then(|bytes| bytes.parse().ok());
            Content::FileSystem((*kind).to_owned(), block_bytes)
        }
        (Some(kind), _, _) => Content::Other((*kind).to_owned()),
        (None, _, Some(table)) => Content::Partitions((*table).to_owned(), None),
        (None, _, None) => Content::Other("something that libblkid cannot name".to_owned()),
    }
}

/// Returns the sector size that a partition table counts in, in bytes: by the position of the header of a GPT, or, of another table, the one
/// with which all partitions end within the device.
fn table_sector_bytes(device: &Path) -> Option<u32> {
    let mut file = File::open(device).ok()?;
    let size_bytes = file.seek(SeekFrom::End(0)).ok()?;
    let mut first = vec![0; 2 * VOLUME_BLOCK_BYTES as usize];
    file.read_exact_at(&mut first, 0).ok()?;
    sectors_of(&first, size_bytes)
}

fn sectors_of(first: &[u8], size_bytes: u64) -> Option<u32> {
    let sizes = || [512, 1024, 2048, VOLUME_BLOCK_BYTES].into_iter();
    let is_gpt = |bytes: &u32| first.get(*bytes as usize..).is_some_and(|rest| rest.starts_with(b"EFI PART"));
    if let Some(bytes) = sizes().find(is_gpt) {
        return Some(bytes);
    }
    let number = |at: usize| u64::from(u32::from_le_bytes(first[at..][..4].try_into().expect("four bytes")));
    let end = (0..4).map(|place| 446 + 16 * place).map(|at| number(at + 8) + number(at + 12)).max().unwrap_or(0);
    let fitting: Vec<u32> = sizes().filter(|bytes| end * u64::from(*bytes) <= size_bytes).collect();
    // If larger sizes fit, too, the size is unknown.
    (fitting == [512]).then_some(512)
}

/// Returns the logical block size of a block device, in bytes.
///
/// # Errors
/// The device cannot be queried.
pub fn sector_bytes(device: &Path) -> Result<u32, ErrorDetail> {
    let queried = File::open(device).and_then(|file| Ok(rustix::fs::ioctl_blksszget(&file)?));
    queried.map_err(|error| {
        ErrorDetail::new(Kind::DiskError, format!("cannot query the sector size of {}: {error}", device.display()))
            .with("device", device.display())
    })
}

/// Decides what to do with the content of a device.
///
/// # Errors
/// The content is not of the requested type; or there is none, and no file system is to be created.
pub fn decide(
    name: &str,
    found: Content,
    wanted: Option<FileSystem>,
    mkfs: bool,
) -> Result<MountDecision, ErrorDetail> {
    match (found, wanted) {
        (Content::FileSystem(kind, _), Some(wanted)) if kind != wanted.name() => {
            let message = format!("{name} holds a file system {kind}, and {} was requested", wanted.name());
            Err(ErrorDetail::new(Kind::WouldDestroy, message)
                .remedy("leave --fs out to mount the present file system; --mkfs creates one only on an empty device"))
        }
        (Content::FileSystem(kind, _), _) => Ok(MountDecision::Mount(kind)),
        (Content::Partitions(table, sector_bytes), _) => {
            let of =
                sector_bytes.map_or_else(String::new, |bytes| format!(", which counts in sectors of {bytes} bytes"));
            let bytes = sector_bytes.unwrap_or(512);
            Err(ErrorDetail::new(
                Kind::WouldDestroy,
                format!("{name} holds no file system, but a partition table ({table}){of}"),
            )
            .remedy(format!(
                "nothing was written. To attach its partitions, create a file and a loop device with such sectors: `braid export add {name} --fuse FILE`, then `losetup --find --show --partscan --sector-size {bytes} FILE`; to remove the table, run wipefs --all on that device"
            )))
        }
        (Content::Other(what), _) => {
            Err(ErrorDetail::new(Kind::WouldDestroy, format!("{name} holds no file system, but {what}"))
                .remedy("nothing was written; to remove that, run wipefs --all on the device of an export"))
        }
        (Content::Nothing, wanted) if mkfs => Ok(MountDecision::Make(wanted.unwrap_or(FileSystem::Ext4))),
        (Content::Nothing, _) => Err(ErrorDetail::new(Kind::NotFound, format!("{name} holds no file system"))
            .remedy("create one, if it is empty, with --mkfs (and --fs xfs or --fs btrfs instead of ext4)")),
    }
}

/// Refuses a device that is not empty, even if its content is unknown.
///
/// # Errors
/// The device is not empty, or cannot be read.
pub async fn refuse_used(client: &Client, name: &str, device: &Path) -> Result<(), ErrorDetail> {
    let refused = |why: String| {
        ErrorDetail::new(Kind::WouldDestroy, format!("{name} is not empty: {why}"))
            .with("device", device.display())
            .remedy("nothing was written; if its content is not needed, empty it with blkdiscard --zeroout on the device of an export")
    };
    // For a volume, the pool knows every allocated block.
    if name.contains('/') && !name.contains('@') {
        let volume: Volume = client.get(&format!("/v1/volumes/{}", segment(name))).await?;
        if let Some(why) = why_used(&volume) {
            return Err(refused(why));
        }
    }
    match first_byte(device) {
        Ok(None) => Ok(()),
        Ok(Some(at)) => Err(refused(format!("there is data at byte {at}"))),
        Err(error) => Err(ErrorDetail::new(Kind::DiskError, format!("{} cannot be read: {error}", device.display()))),
    }
}

/// Returns why a volume may hold data, by the tables of its pool; `None` if nothing was ever written to it.
fn why_used(volume: &Volume) -> Option<String> {
    let own = |parent: &str| parent.strip_prefix(&volume.name).is_some_and(|rest| rest.starts_with('@'));
    match (volume.allocated_bytes, &volume.parent) {
        (0, None) if volume.snapshots == 0 => None,
        // Blocks that were written before a snapshot belong to the snapshot, and the volume reads them through it.
        (0, None) => Some("it has snapshots".to_owned()),
        (0, Some(parent)) if own(parent) => {
            Some(format!("it has snapshots, and {parent} may hold what was written to it"))
        }
        (0, Some(parent)) => Some(format!("it is a clone of {parent}")),
        (bytes, _) => Some(format!("{bytes} bytes were written to it")),
    }
}

/// Returns the offset of a byte other than zero: scans both ends of the device, and samples between them.
fn first_byte(device: &Path) -> std::io::Result<Option<u64>> {
    let mut file = File::open(device)?;
    let size_bytes = file.seek(SeekFrom::End(0))?;
    let ends = [(0, ENDS_BYTES), (size_bytes.saturating_sub(ENDS_BYTES), ENDS_BYTES)];
    let samples = (1..SAMPLES).map(|place| (size_bytes / SAMPLES * place, SAMPLE_BYTES));
    let mut buffer = vec![0; ENDS_BYTES as usize];
    for (at, bytes) in ends.into_iter().chain(samples) {
        let part = &mut buffer[..bytes.min(size_bytes - at) as usize];
        file.read_exact_at(part, at)?;
        if let Some(found) = part.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + found as u64));
        }
    }
    Ok(None)
}

/// Creates a file system. With `usual_blocks`, its blocks have 4096 bytes even if the device has smaller ones, which the mkfs program would choose.
///
/// # Errors
/// The mkfs program fails.
pub fn make(kind: FileSystem, device: &Path, usual_blocks: bool) -> Result<(), ErrorDetail> {
    let program = format!("mkfs.{}", kind.name());
    let blocks: &[&str] = match kind {
        _ if !usual_blocks => &[],
        FileSystem::Ext4 => &["-b", "4096"],
        FileSystem::Xfs => &["-s", "size=4096"],
        FileSystem::Btrfs => &[],
    };
    let out = run(&program, &[&["-q"], blocks].concat(), &[device.as_os_str()])?;
    if out.status.success() {
        return Ok(());
    }
    Err(ErrorDetail::new(Kind::DiskError, format!("cannot create a file system: {program}: {}", error_output(&out)))
        .with("device", device.display())
        .remedy("check that it is large enough: ext4 takes a few MiB, btrfs 109 MiB, xfs 300 MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_decides() {
        let ext4 = parse_blkid("DEVNAME=/dev/loop0\nUUID=x\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n");
        assert_eq!(ext4, Content::FileSystem("ext4".to_owned(), Some(4096)));
        assert_eq!(parse_blkid("TYPE=swap\nUSAGE=other\n"), Content::Other("swap".to_owned()));
        assert_eq!(parse_blkid("PTUUID=1\nPTTYPE=dos\n"), Content::Partitions("dos".to_owned(), None));
        let mount = Ok(MountDecision::Mount("ext4".to_owned()));
        assert_eq!(decide("a", ext4.clone(), None, false), mount);
        assert_eq!(decide("a", ext4.clone(), Some(FileSystem::Ext4), true), mount, "an existing file system is kept");
        let refused = |found: Content, wanted, mkfs| decide("a", found, wanted, mkfs).map_err(|error| error.kind);
        assert_eq!(refused(ext4, Some(FileSystem::Xfs), true), Err(Kind::WouldDestroy));
        assert_eq!(refused(Content::Other("swap".to_owned()), None, true), Err(Kind::WouldDestroy));
        assert_eq!(refused(Content::Partitions("gpt".to_owned(), Some(512)), None, true), Err(Kind::WouldDestroy));
        assert_eq!(refused(Content::Nothing, Some(FileSystem::Xfs), false), Err(Kind::NotFound));
        assert_eq!(refused(Content::Nothing, None, true), Ok(MountDecision::Make(FileSystem::Ext4)));
        assert_eq!(refused(Content::Nothing, Some(FileSystem::Xfs), true), Ok(MountDecision::Make(FileSystem::Xfs)));
    }

    #[test]
    fn partition_tables_reveal_their_sector_size() {
        let gpt = |at: usize| {
            let mut first = vec![0; 8192];
            first[at..at + 8].copy_from_slice(b"EFI PART");
            sectors_of(&first, 1 << 30)
        };
        assert_eq!((gpt(512), gpt(4096), gpt(0)), (Some(512), Some(4096), None));
        let dos = |place: usize, start: u32, count: u32| {
            let mut first = vec![0; 8192];
            first[446 + 16 * place + 8..][..4].copy_from_slice(&start.to_le_bytes());
            first[446 + 16 * place + 12..][..4].copy_from_slice(&count.to_le_bytes());
            sectors_of(&first, 1 << 30)
        };
        // Partitions that end near the end of the device; a small one reveals nothing.
        assert_eq!((dos(0, 2048, (1 << 21) - 2048), dos(3, 1 << 20, 2048)), (Some(512), Some(512)));
        assert_eq!((dos(0, 2048, 2048), dos(0, u32::MAX, u32::MAX)), (None, None));
    }
}

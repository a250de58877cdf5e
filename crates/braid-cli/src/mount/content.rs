//! What is on a device: asked of libblkid, which knows what anybody might have put there, and looked at where it knows nothing. A file
//! system is only made where there is nothing at all. How small its blocks are decides which devices it can be mounted from.

use super::{run, said};
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

/// At both ends of a device so much is looked at, in bytes.
const ENDS_BYTES: u64 = 1 << 20;
/// In between, so many places.
const PLACES: u64 = 256;
const PLACE_BYTES: u64 = 4096;

/// A file system that can be made.
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
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that anybody knows.
    Nothing,
    /// A file system, and the smallest block that it reads and writes, in bytes, where libblkid says that (util-linux 2.36).
    FileSystem(String, Option<u32>),
    /// A table of partitions, as libblkid calls it, and the sectors that it counts in, in bytes, where that is known.
    Partitions(String, Option<u32>),
    /// Something else, as libblkid calls it.
    Other(String),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is mounted as this.
    Mount(String),
    /// This is made before.
    Make(FileSystem),
}

/// Asks what is on a device.
///
/// # Errors
/// It cannot be read, or bears marks of several.
pub fn look(device: &Path) -> Result<Content, ErrorDetail> {
    let out = run("blkid", &["--probe", "--output", "export"], &[device.as_os_str()])?;
    match out.status.code() {
        Some(0) => {
            let content = read(&String::from_utf8_lossy(&out.stdout));
            Ok(match content {
                Content::Partitions(table, _) => Content::Partitions(table, table_sector_bytes(device)),
                other => other,
            })
        }
        Some(2) => Ok(Content::Nothing),
        Some(8) => Ok(Content::Other("marks of several file systems".to_owned())),
        _ => {
            Err(ErrorDetail::new(Kind::DiskError, format!("{} cannot be looked at: {}", device.display(), said(&out)))
                .with("device", device.display()))
        }
    }
}

fn read(text: &str) -> Content {
    let values: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    match (values.get("TYPE"), values.get("USAGE"), values.get("PTTYPE")) {
        (Some(kind), Some(&"filesystem"), _) => {
            let block_bytes = values.get("BLOCK_SIZE").and_then(|bytes| bytes.parse().ok());
            Content::FileSystem((*kind).to_owned(), block_bytes)
        }
        (Some(kind), _, _) => Content::Other((*kind).to_owned()),
        (None, _, Some(table)) => Content::Partitions((*table).to_owned(), None),
        (None, _, None) => Content::Other("something that libblkid has no name for".to_owned()),
    }
}

/// The sectors that a table of partitions counts in, in bytes: where the header of a GPT stands, or those in which the partitions of
/// another table end within the device.
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
    // Where larger ones fit, too, it is not known.
    (fitting == [512]).then_some(512)
}

/// The logical blocks of a block device, in bytes.
///
/// # Errors
/// It cannot be asked.
pub fn sector_bytes(device: &Path) -> Result<u32, ErrorDetail> {
    let asked = File::open(device).and_then(|file| Ok(rustix::fs::ioctl_blksszget(&file)?));
    asked.map_err(|error| {
        ErrorDetail::new(Kind::DiskError, format!("{} cannot be asked for its sectors: {error}", device.display()))
            .with("device", device.display())
    })
}

/// Decides what is done with what is there.
///
/// # Errors
/// It is something else than was wanted, or nothing and nobody asked for a file system.
pub fn judge(name: &str, found: Content, wanted: Option<FileSystem>, mkfs: bool) -> Result<Verdict, ErrorDetail> {
    match (found, wanted) {
        (Content::FileSystem(kind, _), Some(wanted)) if kind != wanted.name() => {
            let message = format!("{name} holds a file system {kind}, and {} was asked for", wanted.name());
            Err(ErrorDetail::new(Kind::WouldDestroy, message)
                .remedy("leave --fs out to mount what is there; a file system is made only where there is nothing"))
        }
        (Content::FileSystem(kind, _), _) => Ok(Verdict::Mount(kind)),
        (Content::Partitions(table, sector_bytes), _) => {
            let of =
                sector_bytes.map_or_else(String::new, |bytes| format!(", which counts in sectors of {bytes} bytes"));
            let bytes = sector_bytes.unwrap_or(512);
            Err(ErrorDetail::new(
                Kind::WouldDestroy,
                format!("{name} holds no file system, but a table of partitions ({table}){of}"),
            )
            .remedy(format!(
                "nothing was written. Its partitions become devices by a file and a loop device with such sectors: `braid export add {name} --fuse FILE`, then `losetup --find --show --partscan --sector-size {bytes} FILE`; if the table is not needed any more, wipefs --all on that device removes it"
            )))
        }
        (Content::Other(what), _) => Err(ErrorDetail::new(
            Kind::WouldDestroy,
            format!("{name} holds no file system, but {what}"),
        )
        .remedy(
            "nothing was written; if that is not needed any more, wipefs --all on the device of an export removes it",
        )),
        (Content::Nothing, wanted) if mkfs => Ok(Verdict::Make(wanted.unwrap_or(FileSystem::Ext4))),
        (Content::Nothing, _) => Err(ErrorDetail::new(Kind::NotFound, format!("{name} holds no file system"))
            .remedy("add --mkfs (with --fs xfs or btrfs for another one than ext4) to make one, if it is empty")),
    }
}

/// Refuses what holds anything, although nobody knows what.
///
/// # Errors
/// It does, or cannot be read.
pub async fn refuse_used(client: &Client, name: &str, device: &Path) -> Result<(), ErrorDetail> {
    let refused = |why: String| {
        ErrorDetail::new(Kind::WouldDestroy, format!("{name} is not empty: {why}"))
            .with("device", device.display())
            .remedy("nothing was written; blkdiscard --zeroout on the device of an export empties it, if its content is not needed")
    };
    // Of a volume it is known to the last block.
    if name.contains('/') && !name.contains('@') {
        let volume: Volume = client.get(&format!("/v1/volumes/{}", segment(name))).await?;
        if let Some(why) = why_used(&volume) {
            return Err(refused(why));
        }
    }
    match first_byte(device) {
        Ok(None) => Ok(()),
        Ok(Some(at)) => Err(refused(format!("there is something at byte {at}"))),
        Err(error) => Err(ErrorDetail::new(Kind::DiskError, format!("{} cannot be read: {error}", device.display()))),
    }
}

/// Why a volume may hold data, by what its pool knows of it; none where nothing was ever written to it.
fn why_used(volume: &Volume) -> Option<String> {
    let own = |parent: &str| parent.strip_prefix(&volume.name).is_some_and(|rest| rest.starts_with('@'));
    match (volume.allocated_bytes, &volume.parent) {
        (0, None) if volume.snapshots == 0 => None,
        // What was written before a snapshot belongs to the snapshot, and is read through it.
        (0, None) => Some("it has snapshots".to_owned()),
        (0, Some(parent)) if own(parent) => {
            Some(format!("it has snapshots, and {parent} may hold what was written to it"))
        }
        (0, Some(parent)) => Some(format!("it is a clone of {parent}")),
        (bytes, _) => Some(format!("{bytes} bytes were written to it")),
    }
}

/// Where something other than zeros was found: everything at both ends, and samples between them.
fn first_byte(device: &Path) -> std::io::Result<Option<u64>> {
    let mut file = File::open(device)?;
    let size_bytes = file.seek(SeekFrom::End(0))?;
    let ends = [(0, ENDS_BYTES), (size_bytes.saturating_sub(ENDS_BYTES), ENDS_BYTES)];
    let samples = (1..PLACES).map(|place| (size_bytes / PLACES * place, PLACE_BYTES));
    let mut buffer = vec![0; ENDS_BYTES as usize];
    for (at, bytes) in ends.into_iter().chain(samples) {
        let piece = &mut buffer[..bytes.min(size_bytes - at) as usize];
        file.read_exact_at(piece, at)?;
        if let Some(found) = piece.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + found as u64));
        }
    }
    Ok(None)
}

/// Makes a file system. `usual_blocks`: with blocks of 4096 bytes, also where the device has smaller ones and its program would choose
/// those.
///
/// # Errors
/// What its program says.
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
    Err(ErrorDetail::new(Kind::DiskError, format!("no file system could be made: {program}: {}", said(&out)))
        .with("device", device.display())
        .remedy("is it large enough? ext4 takes some MiB, btrfs 109 MiB, xfs 300 MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_decides() {
        let ext4 = read("DEVNAME=/dev/loop0\nUUID=x\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n");
        assert_eq!(ext4, Content::FileSystem("ext4".to_owned(), Some(4096)));
        assert_eq!(read("TYPE=swap\nUSAGE=other\n"), Content::Other("swap".to_owned()));
        assert_eq!(read("PTUUID=1\nPTTYPE=dos\n"), Content::Partitions("dos".to_owned(), None));
        let mount = Ok(Verdict::Mount("ext4".to_owned()));
        assert_eq!(judge("a", ext4.clone(), None, false), mount);
        assert_eq!(judge("a", ext4.clone(), Some(FileSystem::Ext4), true), mount, "asked twice, made once");
        let refused = |found: Content, wanted, mkfs| judge("a", found, wanted, mkfs).map_err(|error| error.kind);
        assert_eq!(refused(ext4, Some(FileSystem::Xfs), true), Err(Kind::WouldDestroy));
        assert_eq!(refused(Content::Other("swap".to_owned()), None, true), Err(Kind::WouldDestroy));
        assert_eq!(refused(Content::Partitions("gpt".to_owned(), Some(512)), None, true), Err(Kind::WouldDestroy));
        assert_eq!(refused(Content::Nothing, Some(FileSystem::Xfs), false), Err(Kind::NotFound));
        assert_eq!(refused(Content::Nothing, None, true), Ok(Verdict::Make(FileSystem::Ext4)));
        assert_eq!(refused(Content::Nothing, Some(FileSystem::Xfs), true), Ok(Verdict::Make(FileSystem::Xfs)));
    }

    #[test]
    fn tables_of_partitions_say_what_they_count_in() {
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
        // To the end of the device, or nearly; a small one says nothing.
        assert_eq!((dos(0, 2048, (1 << 21) - 2048), dos(3, 1 << 20, 2048)), (Some(512), Some(512)));
        assert_eq!((dos(0, 2048, 2048), dos(0, u32::MAX, u32::MAX)), (None, None));
    }
}

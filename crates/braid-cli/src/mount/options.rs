//! The mount options of a file system on a read-only device, such as that of a snapshot: its log cannot be replayed, and its UUID may be in
//! use by the file system of the volume.

use braid_api::{ErrorDetail, Kind};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Returns the options that the file system of a snapshot needs.
///
/// # Errors
/// The device cannot be read.
pub fn of_snapshot(kind: &str, device: &Path) -> Result<Vec<&'static str>, ErrorDetail> {
    let unreadable = |error: io::Error| {
        ErrorDetail::new(Kind::DiskError, format!("{} cannot be read: {error}", device.display()))
            .with("device", device.display())
    };
    let disk = File::open(device).map_err(unreadable)?;
    needed(kind, |at, bytes| disk.read_exact_at(bytes, at)).map_err(unreadable)
}

fn needed(kind: &str, read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Vec<&'static str>> {
    Ok(match kind {
        "ext2" | "ext3" | "ext4" => {
            // The superblock is at byte 1024, with the incompatible features at 0x60; their bit 2 is "needs recovery".
            let mut incompatible = [0; 4];
            read(1024 + 0x60, &mut incompatible)?;
            if u32::from_le_bytes(incompatible) & 4 != 0 { vec!["noload"] } else { Vec::new() }
        }
        // A freeze leaves the log dirty on purpose, so that a mount frees unlinked files that were open. With a clean log the options have no
        // effect.
        "xfs" => vec!["norecovery", "nouuid"],
        "btrfs" => {
            // The first superblock is at 64 KiB, with the root of the log tree at byte 96.
            let mut log_root = [0; 8];
            read((64 << 10) + 96, &mut log_root)?;
            if log_root == [0; 8] { Vec::new() } else { vec!["rescue=nologreplay"] }
        }
        _ => Vec::new(),
    })
}

/// Returns the options of `needed` that the user's own options do not set already.
pub fn missing(needed: Vec<&'static str>, own: Option<&str>) -> Vec<&'static str> {
    let own: Vec<&str> = own.map_or_else(Vec::new, |own| own.split(',').map(str::trim).collect());
    let no_log = |option: &&str| {
        let rescue = option.strip_prefix("rescue=").unwrap_or_default();
        matches!(*option, "noload" | "norecovery" | "nologreplay")
            || rescue.split(':').any(|part| matches!(part, "nologreplay" | "all"))
    };
    let is_set = |option: &&str| match *option {
        "nouuid" => own.contains(option),
        _ => own.iter().any(no_log),
    };
    needed.into_iter().filter(|option| !is_set(option)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_logs_are_found() {
        let disk = |at: usize, byte: u8| {
            let mut disk = vec![0; 128 << 10];
            disk[at] = byte;
            move |from: u64, bytes: &mut [u8]| {
                bytes.copy_from_slice(&disk[from as usize..][..bytes.len()]);
                Ok(())
            }
        };
        let of = |kind: &str, at, byte| needed(kind, disk(at, byte)).expect("it can be read");
        assert_eq!(of("ext4", 1024 + 0x60, 0x46), ["noload"]);
        assert!(of("ext4", 1024 + 0x60, 0x42).is_empty());
        assert_eq!(of("btrfs", (64 << 10) + 99, 1), ["rescue=nologreplay"]);
        assert!(of("btrfs", (64 << 10) + 88, 1).is_empty(), "another root");
        assert_eq!(of("xfs", 0, 0), ["norecovery", "nouuid"]);
        assert!(of("vfat", 1024 + 0x60, 4).is_empty());
    }

    #[test]
    fn options_of_the_user_are_not_added_again() {
        let xfs = || vec!["norecovery", "nouuid"];
        assert_eq!(missing(xfs(), None), xfs());
        assert_eq!(missing(xfs(), Some("noatime,norecovery")), ["nouuid"]);
        assert!(missing(xfs(), Some("nouuid,norecovery")).is_empty());
        assert!(missing(vec!["noload"], Some("norecovery")).is_empty());
        for own in ["rescue=all", "rescue=usebackuproot:nologreplay", "nologreplay"] {
            assert!(missing(vec!["rescue=nologreplay"], Some(own)).is_empty(), "{own}");
        }
        assert_eq!(missing(vec!["rescue=nologreplay"], Some("rescue=usebackuproot")), ["rescue=nologreplay"]);
    }
}

//! Grows the file system that `braid mount` has mounted from a volume, after the volume has grown.
//!
//! Everything that can be refused is refused before the volume changes: no file system of the volume is mounted here, its type cannot grow
//! while it is mounted, its program is not installed, or its block device cannot grow.

use super::{device, error_output, find_program, require_local_root, run};
use crate::ApiArgs;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Export, ExportList, Kind, Status, Volume};
use braid_client::Client;
use braid_geometry::units::format_size;
use braid_host::mounts::{self, Mount};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// Number of checks whether a block device has grown, and the pause after each.
const GROWN_CHECKS: u32 = 50;
const GROWN_PAUSE: Duration = Duration::from_millis(100);

/// The feature of the kernel's ublk driver with which a device can grow.
const UBLK_GROWS: &str = "update_size";

/// How a type of file system grows while it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grower {
    program: &'static str,
    arguments: &'static [&'static str],
    /// The program takes the folder; otherwise the device.
    takes_folder: bool,
    /// The package of the program.
    package: &'static str,
}

impl Grower {
    /// Returns how a type of file system grows.
    fn of(kind: &str) -> Option<Grower> {
        let grower = |program, arguments, takes_folder, package| Grower { program, arguments, takes_folder, package };
        match kind {
            "ext2" | "ext3" | "ext4" => Some(grower("resize2fs", &[], false, "e2fsprogs")),
            "xfs" => Some(grower("xfs_growfs", &["-d"], true, "xfsprogs")),
            "btrfs" => Some(grower("btrfs", &["filesystem", "resize", "max"], true, "btrfs-progs")),
            _ => None,
        }
    }

    /// Returns the command, for people.
    fn command(self, mounted: &Mount) -> String {
        let operand = if self.takes_folder { &mounted.mount_point } else { &mounted.source };
        let words: Vec<&str> = std::iter::once(self.program).chain(self.arguments.iter().copied()).collect();
        format!("{} '{}'", words.join(" "), operand.display())
    }
}

/// A mounted file system that can grow.
pub struct Growing {
    export: Export,
    mounted: Mount,
    grower: Grower,
}

/// Returns the file system that is mounted from a volume here.
///
/// # Errors
/// No file system of the volume is mounted here; the file system or its block device cannot grow while it is mounted;
/// its program is missing; the daemon's error.
pub async fn find(api: &ApiArgs, client: &Client, volume: &Volume, size_bytes: u64) -> Result<Growing, ErrorDetail> {
    require_local_root(api, "volume resize --fs")?;
    if size_bytes < volume.size_bytes {
        return Err(shrinks(volume, size_bytes));
    }
    let exports: ExportList = client.get("/v1/exports").await?;
    let all = mounts::all()?;
    let mut found = exports.exports.into_iter().filter(|export| export.array_uuid == volume.uuid && !export.read_only);
    let mounted = found.find_map(|export| {
        let source = device::device_of(&export)?;
        let mounted = all.iter().rev().find(|mount| mount.source == source)?.clone();
        Some((export, mounted))
    });
    let Some((export, mounted)) = mounted else { return Err(not_mounted(volume, size_bytes)) };
    let folder = mounted.mount_point.display();
    let Some(grower) = Grower::of(&mounted.file_system) else {
        let message = format!("the file system at {folder} is {}, which braid cannot grow", mounted.file_system);
        return Err(ErrorDetail::new(Kind::Unsupported, message).with("path", folder).remedy(format!(
            "grow the volume alone (braid volume resize {} {size_bytes}), then its file system by its own program",
            volume.name
        )));
    };
    if !find_program(grower.program) {
        let message = format!("the program {} is needed and is not installed", grower.program);
        return Err(ErrorDetail::new(Kind::Unsupported, message)
            .with("path", folder)
            .remedy(format!("install the package {}; nothing was changed", grower.package)));
    }
    // A device that has the new size already need not grow.
    if device_bytes(&mounted.source)? < size_bytes {
        refuse_fixed(client, volume, &export, &mounted, size_bytes).await?;
    }
    Ok(Growing { export, mounted, grower })
}

/// Refuses a block device that keeps the size with which it was created.
async fn refuse_fixed(
    client: &Client,
    volume: &Volume,
    export: &Export,
    mounted: &Mount,
    size_bytes: u64,
) -> Result<(), ErrorDetail> {
    let why = match Address::parse(&export.nbd)? {
        Address::Fuse(_) => return Ok(()),
        Address::Ublk { .. } => {
            let status: Status = client.get("/v1/status").await?;
            if status.ublk.is_some_and(|features| features.iter().any(|feature| feature == UBLK_GROWS)) {
                return Ok(());
            }
            "ublk drivers can change it from Linux 6.16 on"
        }
        _ => "the kernel's NBD client cannot change it while it is connected",
    };
    let (name, folder) = (&volume.name, mounted.mount_point.display());
    let message =
        format!("{}, the block device of {name}, keeps its size while it is used: {why}", mounted.source.display());
    Err(ErrorDetail::new(Kind::Unsupported, message).with("device", mounted.source.display()).remedy(format!(
        "nothing was changed. Run: braid umount '{folder}'; braid volume resize {name} {size_bytes}; braid mount {name} '{folder}'; braid volume resize {name} {size_bytes} --fs"
    )))
}

impl Growing {
    /// Grows the file system to the size of the volume, which has grown. Returns what was done, for people.
    ///
    /// # Errors
    /// The block device or the file system does not grow. The volume has its new size.
    pub async fn grow(&self, volume: &Volume) -> Result<String, ErrorDetail> {
        let Growing { export, mounted, grower } = self;
        let failed = |why: String, command: String| {
            let message = format!(
                "volume {} has {} now, but the file system at {} has not grown: {why}",
                volume.name,
                format_size(volume.size_bytes),
                mounted.mount_point.display()
            );
            ErrorDetail::new(Kind::DiskError, message)
                .with("volume", &volume.name)
                .with("path", mounted.mount_point.display())
                .remedy(format!("see the kernel's log (dmesg), then: {command}"))
        };
        let again = || format!("braid volume resize {} {} --fs", volume.name, volume.size_bytes);
        for check in 0.. {
            if let Ok(Address::Fuse(file)) = Address::parse(&export.nbd) {
                // The kernel takes notice of the new size of the file when it is queried.
                let _ = std::fs::metadata(file);
                // The loop device takes the size of its file only on request. The last check reports an error.
                let _ = run("losetup", &["--set-capacity"], &[mounted.source.as_os_str()])?;
            }
            let bytes = device_bytes(&mounted.source)?;
            if bytes >= volume.size_bytes {
                break;
            }
            if check == GROWN_CHECKS {
                let why = format!("its block device {} still has {}", mounted.source.display(), format_size(bytes));
                return Err(failed(why, again()));
            }
            tokio::time::sleep(GROWN_PAUSE).await;
        }
        let operand: &OsStr =
            if grower.takes_folder { mounted.mount_point.as_os_str() } else { mounted.source.as_os_str() };
        let out = run(grower.program, grower.arguments, &[operand])?;
        if !out.status.success() {
            return Err(failed(format!("{}: {}", grower.program, error_output(&out)), grower.command(mounted)));
        }
        Ok(format!(
            "the file system at {} ({}) has grown with it\n",
            mounted.mount_point.display(),
            mounted.file_system
        ))
    }
}

/// Returns the size of a block device.
fn device_bytes(device: &Path) -> Result<u64, ErrorDetail> {
    File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0))).map_err(|error| {
        ErrorDetail::new(Kind::DiskError, format!("cannot query the size of {}: {error}", device.display()))
            .with("device", device.display())
    })
}

fn shrinks(volume: &Volume, size_bytes: u64) -> ErrorDetail {
    let (name, size, wanted) = (&volume.name, format_size(volume.size_bytes), format_size(size_bytes));
    ErrorDetail::new(Kind::InvalidArgument, format!("volume {name} has {size}, and --fs does not shrink it to {wanted}"))
        .with("volume", name)
        .remedy(format!(
            "shrink its file system first by its own program (ext4: resize2fs while it is unmounted; btrfs: btrfs filesystem resize; xfs cannot shrink), then: braid volume resize {name} {size_bytes}"
        ))
}

fn not_mounted(volume: &Volume, size_bytes: u64) -> ErrorDetail {
    let name = &volume.name;
    ErrorDetail::new(Kind::NotFound, format!("no file system of volume {name} is mounted writable on this machine"))
        .with("volume", name)
        .remedy(format!(
            "nothing was changed. Mount it first: braid mount {name} FOLDER. Where another machine mounts it: braid volume resize {name} {size_bytes}, then there resize2fs DEVICE, xfs_growfs FOLDER or btrfs filesystem resize max FOLDER"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_system_grows_by_its_own_program() {
        let mounted = Mount { mount_point: "/srv/a b".into(), source: "/dev/loop3".into(), ..Mount::default() };
        let command = |kind: &str| Grower::of(kind).map(|grower| grower.command(&mounted));
        assert_eq!(command("ext4").as_deref(), Some("resize2fs '/dev/loop3'"));
        assert_eq!(command("xfs").as_deref(), Some("xfs_growfs -d '/srv/a b'"));
        assert_eq!(command("btrfs").as_deref(), Some("btrfs filesystem resize max '/srv/a b'"));
        assert_eq!(command("vfat"), None);
    }
}

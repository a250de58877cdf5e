//! The users of files and block devices, from `/proc` and `/sys`, for error messages only.

use std::fs;
use std::path::Path;

use rustix::fs::{major, minor};

use crate::mounts;

/// Returns the process that holds a lock on this file, as "process 123 (name)".
pub(crate) fn of_file(device: u64, inode: u64) -> Option<String> {
    let id = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|l| l.split_whitespace().any(|word| word == id))?;
    // "1: FLOCK ADVISORY WRITE 1234 fe:00:5678 0 EOF"
    let pid = line.split_whitespace().nth(4)?.parse::<u32>().ok()?;
    if pid == std::process::id() {
        return Some("this process".into());
    }
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => Some(format!("process {pid} ({})", name.trim())),
        Err(_) => Some(format!("process {pid}")),
    }
}

/// Returns the user of a block device or one of its partitions: a mount, swap, or a device on top of it.
pub(super) fn of_block_device(device: u64) -> Option<String> {
    let sys = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let mut numbers = vec![format!("{}:{}", major(device), minor(device))];
    for entry in fs::read_dir(&sys).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists()
            && let Ok(number) = fs::read_to_string(entry.path().join("dev"))
        {
            numbers.push(number.trim().to_owned());
        }
    }
    mounted(&numbers).or_else(|| swapped_on(&numbers)).or_else(|| held(&sys))
}

fn mounted(numbers: &[String]) -> Option<String> {
    let mount = mounts::all().ok()?.into_iter().find(|mount| numbers.contains(&mount.device))?;
    Some(format!("the file system mounted on {}", mount.mount_point.display()))
}

fn swapped_on(numbers: &[String]) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let swaps = fs::read_to_string("/proc/swaps").ok()?;
    swaps.lines().skip(1).find_map(|line| {
        let path = line.split_whitespace().next()?;
        let device = fs::metadata(path).ok()?.rdev();
        let number = format!("{}:{}", major(device), minor(device));
        numbers.contains(&number).then(|| format!("swap on {path}"))
    })
}

fn held(sys: &str) -> Option<String> {
    let holder = fs::read_dir(Path::new(sys).join("holders")).ok()?.flatten().next()?;
    Some(format!("/dev/{}", holder.file_name().to_string_lossy()))
}

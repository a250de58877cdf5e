//! Kernel resources of a scenario: mounts and loop devices. Each is removed when its value is dropped, by its own path,
//! also after a failure.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::{command, run};

/// Longest wait for a loop device that another program has open.
const DETACHING_MAX: Duration = Duration::from_secs(10);

/// The mount point of an export's file. Dropping it unmounts what is left there.
pub struct Mount(pub String);

impl Drop for Mount {
    fn drop(&mut self) {
        let table = fs::read_to_string("/proc/mounts").unwrap_or_default();
        if table.lines().any(|line| line.split(' ').nth(1) == Some(self.0.as_str())) {
            let _ = command("umount").args(["--lazy", &self.0]).output();
        }
    }
}

/// A loop device on a file.
pub struct Loop {
    device: String,
    file: String,
}

impl Loop {
    /// Creates a loop device with sectors of this size.
    pub fn on(file: &str, sector: u64, writes: bool) -> Loop {
        let sector = sector.to_string();
        let mut arguments = vec!["--find", "--show", "--direct-io=on", "--sector-size", sector.as_str()];
        if !writes {
            arguments.push("--read-only");
        }
        arguments.push(file);
        Loop { device: run("losetup", &arguments).trim().to_owned(), file: file.to_owned() }
    }

    pub fn path(&self) -> &str {
        &self.device
    }

    /// Makes the device read the new size of its file.
    pub fn set_capacity(&self) {
        run("losetup", &["--set-capacity", &self.device]);
    }

    /// Returns whether the device still has this file: its number may have been reused.
    fn has_file(&self) -> bool {
        let name = self.device.rsplit('/').next().unwrap_or_default();
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        backing.is_ok_and(|backing| backing.trim_end() == self.file)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = command("losetup").args(["--detach", &self.device]).output();
        // A program that inspects new devices may have it open for a moment, and the file is in use until then.
        let start = Instant::now();
        while self.has_file() && start.elapsed() < DETACHING_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

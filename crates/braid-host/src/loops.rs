//! Loop devices of this machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the loop device on a file, if there is one.
pub fn on(file: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir("/sys/block").ok()?.flatten();
    let mut on = entries.filter(|entry| {
        let backing = std::fs::read(entry.path().join("loop/backing_file")).unwrap_or_default();
        Path::new(OsStr::from_bytes(backing.trim_ascii_end())) == file
    });
    Some(Path::new("/dev").join(on.next()?.file_name()))
}

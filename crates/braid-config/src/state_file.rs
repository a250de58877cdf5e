//! Files in the folder of the daemon's state.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Replaces a file by one that only its owner may read, or creates it: after a crash it is either the old one or the
/// new one.
///
/// # Errors
/// The operating system's; the old file is then still in place.
pub fn replace_file(folder: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let temporary = folder.join(format!("{name}.new"));
    let mut file: File = rustix::fs::open(
        &temporary,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::from_raw_mode(0o600),
    )?
    .into();
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&temporary, folder.join(name))?;
    File::open(folder)?.sync_all()
}

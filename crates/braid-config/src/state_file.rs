//! Files in the folder of the daemon's state.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Replaces the file `name` in `folder`, or creates it, with `text` and a line feed as content. Only its owner may read
/// the file. After a crash the file is either the old one or the new one; once this function has returned, it is the
/// new one. Concurrent calls for one file are not allowed.
///
/// # Errors
/// The operating system's. The old file is then still in place, unless flushing the folder has failed: the new file is
/// then in place and may be lost in a crash.
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

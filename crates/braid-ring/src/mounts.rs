//! The mounted file systems in the mount namespace of this process, from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// The major and minor number of its device, such as `259:0`.
    pub device: String,
    /// The mount point.
    pub mount_point: PathBuf,
    /// The type of the file system.
    pub file_system: String,
    /// The source, as the kernel reports it.
    pub source: PathBuf,
}

/// Returns all mounts, the latest last.
///
/// # Errors
/// The mount table cannot be read.
pub fn all() -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// Parses a mount table. Lines of another form are left out.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    // 36 35 98:0 /root /mnt rw,noatime shared:1 - ext3 /dev/root rw
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let text = |at: usize| Some(String::from_utf8_lossy(fields.get(at)?).into_owned());
        Some(Mount {
            device: text(2)?,
            mount_point: unescaped(fields.get(4)?),
            file_system: text(dash + 1)?,
            source: unescaped(fields.get(dash + 2)?),
        })
    };
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Decodes a path of a table of the kernel, which writes blanks, backslashes and the like as three octal digits. Invalid
/// escapes stay as they are.
pub fn unescaped(mut text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    loop {
        let byte;
        (byte, text) = match text {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                ((a & 3) << 6 | (b & 7) << 3 | (c & 7), after)
            }
            [byte, after @ ..] => (*byte, after),
            [] => return OsString::from_vec(bytes).into(),
        };
        bytes.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn mount_table_is_parsed() {
        let table = b"22 1 8:1 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/loop3 rw\n\
            garbage\n\
            24 1 8:2 / /srv/d rw\n\
            25 1 8:2 / /srv/e rw - ext4\n\
            \n\
            23 1 0:45 /sub /srv/c\xff rw master:1 shared:2 - btrfs /dev/a\\134b rw\n\
            26 1 0:46 / /srv/f rw - tmpfs  rw";
        let mount = |device: &str, folder: &[u8], kind: &str, source: &str| Mount {
            device: device.to_owned(),
            mount_point: OsString::from_vec(folder.to_vec()).into(),
            file_system: kind.to_owned(),
            source: source.into(),
        };
        let expected = [
            mount("8:1", b"/srv/a b", "ext4", "/dev/loop3"),
            mount("0:45", b"/srv/c\xff", "btrfs", "/dev/a\\b"),
            mount("0:46", b"/srv/f", "tmpfs", ""),
        ];
        assert_eq!(parse(table), expected);
        assert_eq!(parse(b""), []);
    }

    #[test]
    fn octal_escapes_are_decoded_and_invalid_ones_left() {
        for (escaped, expected) in [
            (&b""[..], &b""[..]),
            (b"/a\\040\\011\\012\\134\\043b", b"/a \t\n\\#b"),
            (b"\\000\\377", b"\x00\xff"),
            (b"\\134040", b"\\040"),
            (b"\\400\\777", b"\\400\\777"),
            (b"\\04", b"\\04"),
            (b"a\\", b"a\\"),
            (b"\\\\040", b"\\ "),
            (b"\\08 \\+40 \\x20", b"\\08 \\+40 \\x20"),
            (b"\xc3\xa9\xff", b"\xc3\xa9\xff"),
        ] {
            assert_eq!(unescaped(escaped).as_os_str().as_bytes(), expected, "{}", escaped.escape_ascii());
        }
    }
}

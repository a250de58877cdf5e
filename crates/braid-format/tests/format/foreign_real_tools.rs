//! Detects what real programs create. A missing program fails the test and is named: `make tools` installs all of them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use braid_format::foreign::{SignatureClass, Signatures, identify};

struct Image(PathBuf);

impl Image {
    fn new(name: &str, size: u64) -> Image {
        let path = std::env::temp_dir().join(format!("braid-format-{}-{name}", std::process::id()));
        File::create(&path).unwrap().set_len(size).unwrap();
        Image(path)
    }

    /// Runs a program on the image, with `input` on its standard input.
    fn make(&self, program: &str, arguments: &[&str], input: &str) {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let mut command = Command::new(program);
        command.env("PATH", &path).args(arguments).arg(&self.0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|e| panic!("cannot run {program} ({e}): `make tools` installs it"));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn found(&self) -> Option<Signatures> {
        look(&self.0)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn look(path: &Path) -> Option<Signatures> {
    let file = File::open(path).unwrap();
    let read = |offset: u64, len: usize| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset).map(|()| bytes)
    };
    identify(file.metadata().unwrap().len(), read).unwrap()
}

/// Creates it, detects exactly it, zeroes its ranges; then neither this code nor `wipefs` detects anything.
#[track_caller]
fn check(kind: &str, label: Option<&str>, size: u64, program: &str, arguments: &[&str], input: &str) {
    let image = Image::new(kind, size);
    assert_eq!(image.found(), None);
    image.make(program, arguments, input);
    let found = image.found().unwrap_or_else(|| panic!("{program} made no {kind}"));
    assert_eq!(found.signatures.len(), 1, "{found:?}");
    let signature = &found.signatures[0];
    assert_eq!((signature.kind, signature.label.as_deref()), (kind, label), "{found:?}");
    assert!(signature.uuid.is_some() || kind == "vfat", "{found:?}");
    assert_ne!(signature.class, SignatureClass::Braid);
    let file = File::options().write(true).open(&image.0).unwrap();
    for range in &signature.ranges {
        file.write_all_at(&vec![0; range.bytes as usize], range.start).unwrap();
    }
    assert_eq!(image.found(), None);
    // Only btrfs has further copies, which only its own tools look for.
    if kind != "btrfs" {
        let left =
            Command::new("wipefs").arg("--noheadings").arg(&image.0).output().expect("wipefs is installed: util-linux");
        assert_eq!(String::from_utf8_lossy(&left.stdout), "", "wipefs still detects this");
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn ext() {
    check("ext2", Some("two"), 16 * MIB, "mkfs.ext2", &["-q", "-F", "-L", "two"], "");
    check("ext3", None, 64 * MIB, "mkfs.ext3", &["-q", "-F"], "");
    check("ext4", Some("four"), 64 * MIB, "mkfs.ext4", &["-q", "-F", "-L", "four"], "");
    check("ext4", None, 64 * MIB, "mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "^has_journal"], "");
}

#[test]
fn xfs() {
    check("xfs", Some("x"), 512 * MIB, "mkfs.xfs", &["-q", "-L", "x"], "");
}

#[test]
fn btrfs() {
    check("btrfs", Some("b"), 256 * MIB, "mkfs.btrfs", &["-q", "-L", "b"], "");
}

#[test]
fn swap() {
    check("swap", Some("s"), 16 * MIB, "mkswap", &["-q", "-L", "s"], "");
    check("swap", None, 16 * MIB, "mkswap", &["-q", "-p", "65536"], "");
}

#[test]
fn fat() {
    check("vfat", Some("STICK"), 16 * MIB, "mkfs.vfat", &["-n", "STICK"], "");
    check("vfat", None, 64 * MIB, "mkfs.vfat", &["-F", "32"], "");
    check("vfat", None, 2 * MIB, "mkfs.vfat", &["-F", "12"], "");
}

#[test]
fn partition_tables() {
    check("mbr", None, 64 * MIB, "sfdisk", &["-q"], "label: dos\n1M,16M,83\n");
    check("mbr", None, 64 * MIB, "sfdisk", &["-q"], "label: dos\n");
    check("gpt", None, 64 * MIB, "sfdisk", &["-q"], "label: gpt\n1M,16M\n");
    // A size that is not a whole number of blocks: the second table is not detected, and counts as part of the first.
    let image = Image::new("odd", 64 * MIB + 512);
    image.make("sfdisk", &["-q"], "label: gpt\n1M,16M\n");
    assert_eq!(image.found().unwrap().signatures[0].kind, "gpt");
}

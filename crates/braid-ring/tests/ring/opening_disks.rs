//! Opening disks: creation, locking, sizes, and errors that name the object, the reason and the remedy.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::common::{self, Folder, starting_children, without_other_children};
use braid_ring::{Disk, DiskSpec, OpenOptions, RingErrorKind};

fn attempt(name: &str) -> Result<Disk, braid_ring::RingError> {
    Disk::open(&DiskSpec::parse(name).unwrap(), OpenOptions::default())
}

fn refused(name: &str, kind: RingErrorKind, says: &[&str]) {
    let error = attempt(name).expect_err(name);
    let text = error.to_string();
    assert_eq!(error.kind, kind, "{text}");
    assert!(!error.remedy.is_empty(), "{text}: no remedy");
    for part in says {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn files_are_created_sparse_or_full() {
    let _alone = without_other_children();
    let folder = Folder::new("create");
    let sparse = attempt(&format!("file:{},size=4M", folder.path("sparse"))).unwrap();
    let full = attempt(&format!("file:{},size=4M,alloc=full", folder.path("full"))).unwrap();
    assert_eq!((sparse.size_bytes(), full.size_bytes()), (4 << 20, 4 << 20));
    let blocks = |n: &str| fs::metadata(folder.path(n)).unwrap().blocks() * 512;
    assert!(blocks("sparse") < 1 << 20 && blocks("full") >= 4 << 20);
    assert_eq!(fs::metadata(folder.path("full")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!([512, 4096].contains(&sparse.logical_block_bytes()));
    drop(sparse);
    let again = attempt(&format!("file:{},size=4M", folder.path("sparse"))).unwrap();
    assert!(again.is_writable() && !again.is_block_device());
}

#[test]
fn a_disk_has_one_user() {
    let _alone = without_other_children();
    let folder = Folder::new("lock");
    let name = format!("file:{},size=4M", folder.path("disk"));
    let held = attempt(&name).unwrap();
    refused(&name, RingErrorKind::InUse, &["disk is in use by this process", "one user"]);
    refused(&format!("throttled({},iops=5)", folder.path("disk")), RingErrorKind::InUse, &["in use"]);
    let look = OpenOptions { exclusive: false, write: false };
    let looked = Disk::open(&DiskSpec::parse(&folder.path("disk")).unwrap(), look).expect("looking is free");
    assert!(!looked.is_writable());
    drop(held);
    attempt(&name).expect("the lock went with the file");
}

#[test]
fn the_process_that_holds_a_disk_is_named() {
    let _children = starting_children();
    let folder = Folder::new("other");
    let path = folder.path("disk");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let mut other = std::process::Command::new("flock")
        .args(["-x", &path, "sh", "-c", "echo; read x"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("flock(1) is part of util-linux");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(other.stdout.as_mut().unwrap()), &mut line).unwrap();
    let holder = format!("process {}", other.id());
    refused(&path, RingErrorKind::InUse, &[&holder]);
    drop(other.stdin.take());
    other.wait().unwrap();
    attempt(&path).expect("the lock ended with its holder");
}

#[test]
fn unusable_paths_are_explained() {
    let _alone = without_other_children();
    let folder = Folder::new("wrong");
    refused(&folder.path("absent"), RingErrorKind::NotFound, &["absent", "No such file", "file:PATH,size=50G"]);
    refused(&format!("file:{}", folder.path("absent")), RingErrorKind::NotFound, &["absent"]);
    refused(&format!("file:{}/no/disk,size=1M", folder.path("x")), RingErrorKind::NotFound, &["create its folder"]);
    refused(&folder.path(""), RingErrorKind::Conflict, &["is a folder"]);
    refused("/dev/null", RingErrorKind::Conflict, &["/dev/null is neither a file nor a block device"]);
    fs::write(folder.path("empty"), b"").unwrap();
    refused(&folder.path("empty"), RingErrorKind::Conflict, &["has no room", "0 bytes"]);
    fs::write(folder.path("small"), vec![0; 1 << 20]).unwrap();
    let other_size = format!("file:{},size=2M", folder.path("small"));
    refused(&other_size, RingErrorKind::Conflict, &["1048576 bytes long, not size=2M", "leave size="]);
    refused(&format!("file:{},size=4194304T", folder.path("huge")), RingErrorKind::NoSpace, &["huge", "smaller"]);
    assert!(!fs::exists(folder.path("huge")).unwrap(), "an incomplete file is removed");
    assert!(attempt(&folder.path("small")).is_ok());
}

#[test]
fn no_space_leaves_nothing_behind() {
    let folder = Folder::new("space");
    // More than any test machine's file system holds, and less than the maximum size of a file.
    let name = format!("file:{},size=8T,alloc=full", folder.path("big"));
    let error = attempt(&name).expect_err("no test machine has 8 TiB");
    assert_eq!(error.kind, RingErrorKind::NoSpace, "{error}");
    assert!(!fs::exists(folder.path("big")).unwrap());
}

#[test]
fn odd_sizes_are_cut_to_whole_blocks() {
    let folder = Folder::new("odd");
    fs::write(folder.path("odd"), vec![0; (1 << 20) + 5000]).unwrap();
    let disk = attempt(&folder.path("odd")).unwrap();
    let block = u64::from(disk.logical_block_bytes());
    assert_eq!(disk.size_bytes(), ((1 << 20) + 5000) / block * block);
}

#[test]
fn a_read_only_disk_refuses_writes() {
    use braid_engine::{ErrorKind, Flags, Node, Op};
    let folder = Folder::new("readonly");
    fs::write(folder.path("disk"), vec![9; 1 << 20]).unwrap();
    let look = OpenOptions { exclusive: true, write: false };
    let disk = Disk::open(&DiskSpec::parse(&folder.path("disk")).unwrap(), look).unwrap();
    let mut bed = common::TestBed::new(&braid_ring::RingConfig::default());
    let leaf = bed.handle.add_leaf(std::sync::Arc::new(disk)).unwrap();
    let device = bed.publish(&Node::Leaf { leaf, start: 0, len: 1 << 20 });
    assert_eq!(bed.read(0, device, 0, 4096), [9; 4096]);
    for op in [Op::Write, Op::WriteZeroes, Op::Discard] {
        let data = if op == Op::Write { vec![1; 4096] } else { vec![] };
        let error = bed.call(0, device, op, Flags::NONE, 0, 4096, &data).result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ReadOnly, "{op:?}");
    }
    bed.ring.stop();
}

//! Copies that skip holes: any tool that looks for holes, over NBD or in a file, copies the same data as one that reads
//! every byte.

use std::fs;

use crate::growing::size;
use crate::mirrors::{show, wait_for_health};
use crate::nbd::Client;
use crate::support::*;

/// An export with known content.
struct Known<'a> {
    daemon: &'a Daemon,
    /// The name of the export, and its socket.
    name: String,
    socket: String,
    model: Vec<u8>,
}

impl<'a> Known<'a> {
    /// Exports an array or volume without content.
    fn new(daemon: &'a Daemon, name: &str) -> Known<'a> {
        let socket = daemon.nbd_socket("holes");
        daemon.braid(&["export", "add", name, "--nbd", &format!("unix:{socket}")]);
        let mut known = Known { daemon, name: name.to_owned(), socket, model: Vec::new() };
        known.model = vec![0; known.size_over_nbd()];
        known
    }

    /// Returns the same content under another name.
    fn also(&self, name: &str) -> Known<'a> {
        let mut also = Known::new(self.daemon, name);
        also.model.clone_from(&self.model);
        also
    }

    fn uri(&self) -> String {
        let name = self.name.replace('/', "%2F").replace('@', "%40");
        format!("nbd+unix:///{name}?socket={}", self.socket)
    }

    fn client(&self) -> Client {
        wait_for(&format!("export {}", self.name), || Client::open(&self.socket, &self.name).ok())
    }

    fn size_over_nbd(&self) -> usize {
        drop(self.client());
        run("nbdinfo", &["--size", &self.uri()]).trim().parse().expect("a size")
    }

    /// Records the new size, and waits until new clients see it.
    fn grow(&mut self, size: u64) {
        wait_for("clients to see the new size", || (self.size_over_nbd() as u64 == size).then_some(()));
        self.model.resize(size as usize, 0);
    }

    /// Writes in several places: within and across the boundaries of stripes, regions and extents, and at the end.
    fn write(&mut self, seed: u64) {
        let (mut client, end) = (self.client(), self.model.len() as u64);
        let middle = end / 2 / (64 * KIB) * (64 * KIB);
        let places = [
            (0, MIB),
            (3 * MIB + 60 * KIB, 8 * KIB),
            (5 * MIB + 4 * KIB, 4 * KIB),
            (middle + 4 * KIB * (seed % 16), 200 * KIB),
            (middle + 3 * MIB, 64 * KIB),
            (end - 8 * KIB, 8 * KIB),
        ];
        for (k, (offset, len)) in (0..).zip(places) {
            // Each round writes only some of them.
            if seed > 1 && (seed + k).is_multiple_of(3) {
                continue;
            }
            let offset = offset + if k == 2 { seed * 132 * KIB } else { 0 };
            let data = noise(len, seed * 100 + k);
            client.write(offset, &data).expect("it writes");
            self.model[offset as usize..][..len as usize].copy_from_slice(&data);
        }
        client.flush().expect("it flushes");
    }

    /// Discards a part of the written range.
    fn discard(&mut self, offset: u64, len: u64) {
        run("qemu-io", &["-f", "raw", "-c", &format!("write -z -u {offset} {len}"), &self.uri()]);
        self.model[offset as usize..][..len as usize].fill(0);
    }

    #[track_caller]
    fn is_model(&self, what: &str, path: &str) {
        let copy = fs::read(path).expect("it was copied");
        if copy != self.model {
            let wrong = copy.iter().zip(&self.model).position(|(is, should)| is != should);
            panic!("{what} of {}: {} bytes, of which {wrong:?} is the first wrong one", self.name, copy.len());
        }
        fs::remove_file(path).expect("it is there");
    }

    /// Reads every byte, and checks that every tool that skips holes copies the same. Returns how many bytes are
    /// reported as holes.
    #[track_caller]
    fn check(&self) -> u64 {
        let (mut client, uri, folder) = (self.client(), self.uri(), &self.daemon.folder);
        for (at, should) in (0..).step_by(MIB as usize).zip(self.model.chunks(MIB as usize)) {
            assert!(client.read(at, should.len()).expect("it reads") == should, "{} at {at}", self.name);
        }
        let copy = folder.join("copy");
        run("nbdcopy", &[&uri, &copy]);
        self.is_model("nbdcopy", &copy);
        // Copies onto a target with other data, over several connections, in small pieces.
        fs::write(&copy, vec![0xa5; self.model.len()]).expect("there is room");
        run("nbdcopy", &["--connections=2", "--request-size=65536", &uri, &copy]);
        self.is_model("nbdcopy onto data", &copy);
        for more in [&[][..], &["-S", "4k"]] {
            run("qemu-img", &[&["convert", "-f", "raw", "-O", "raw"], more, &[&uri, &copy]].concat());
            self.is_model("qemu-img convert", &copy);
        }
        let empty = folder.sparse("copy", self.model.len() as u64);
        run("qemu-img", &["convert", "-f", "raw", "-O", "raw", "-n", "--target-is-zero", &uri, &empty]);
        self.is_model("qemu-img convert to zeros", &empty);

        let file = folder.join("as-a-file");
        self.daemon.braid(&["export", "add", &self.name, "--fuse", &file, "--name", "as-a-file"]);
        for sparse in ["--sparse=auto", "--sparse=always"] {
            run("cp", &[sparse, &file, &copy]);
            self.is_model(sparse, &copy);
        }
        self.daemon.braid(&["export", "remove", "as-a-file"]);
        let _ = fs::remove_file(&file);

        let map: serde_json::Value =
            serde_json::from_str(&run("nbdinfo", &["--map", "--json", &uri])).expect("nbdinfo prints JSON");
        let holes = map.as_array().expect("a list").iter().filter(|run| run["type"] == 3);
        holes.map(|run| run["length"].as_u64().expect("bytes")).sum()
    }
}

/// Checks arrays of these levels: healthy, degraded, grown, and restarted.
fn arrays(levels: &[(&str, &[u64])]) {
    need_root();
    for (level, mib) in levels {
        let mut daemon = Daemon::start();
        let file = |(k, mib): (usize, &u64)| daemon.folder.sparse(&format!("disk{k}"), mib * MIB);
        let disks: Vec<String> = mib.iter().enumerate().map(file).collect();
        let names: Vec<&str> = disks.iter().map(String::as_str).collect();
        daemon.braid(&[&["array", "create", "data", "--level", level][..], &names].concat());
        let mut known = Known::new(&daemon, "data");
        assert!(known.check() > known.model.len() as u64 / 2, "{level}: nothing was written");
        known.write(1);
        assert!(known.check() > MIB, "{level}: it has holes");

        let tolerates = !matches!(*level, "concat" | "raid0");
        if tolerates {
            daemon.braid(&["array", "fail", "data", "1"]);
            known.write(2);
            assert!(known.check() > MIB, "{level}, degraded");
            daemon.braid(&["array", "add", "data", &disks[1], "--wait"]);
        }
        let before = size(&daemon);
        let further: Vec<String> = (0..3).map(|k| daemon.folder.sparse(&format!("new{k}"), 24 * MIB)).collect();
        let further: Vec<&str> = further.iter().map(String::as_str).collect();
        daemon.braid(&[&["array", "grow", "data"][..], &further].concat());
        assert!(size(&daemon) > before, "{level}");
        known.grow(size(&daemon));
        known.write(3);
        assert!(known.check() > 2 * MIB, "{level}, grown");

        let (model, name, socket) = (known.model, known.name, known.socket);
        daemon.restart(true);
        let mut known = Known { daemon: &daemon, name, socket, model };
        known.write(4);
        assert!(known.check() > MIB, "{level}, started again");
    }
}

#[test]
fn copies_of_arrays_without_redundancy() {
    arrays(&[("concat", &[24, 28]), ("raid0", &[24, 32, 40])]);
}

#[test]
fn copies_of_mirrors() {
    arrays(&[("raid1", &[24, 32]), ("raid10", &[24, 24, 32])]);
}

#[test]
fn copies_of_arrays_with_parity() {
    arrays(&[("raid5", &[24, 24, 24]), ("raid5", &[24, 32, 32, 48]), ("raid6", &[24, 24, 28, 40, 40])]);
}

#[test]
fn copies_of_volumes_snapshots_and_clones() {
    need_root();
    let mut daemon = Daemon::start();
    let disks = ["a", "b"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1]]);
    daemon.braid(&["volume", "create", "tank/db", "32M"]);
    let mut db = Known::new(&daemon, "tank/db");
    assert_eq!(db.check(), db.model.len() as u64);
    db.write(1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    let monday = db.also("tank/db@monday");
    db.write(2);
    db.discard(64 * KIB, 300 * KIB);
    daemon.braid(&["volume", "clone", "tank/db@monday", "tank/clone"]);
    let mut clone = monday.also("tank/clone");
    clone.write(3);
    clone.discard(0, MIB);
    for known in [&db, &monday, &clone] {
        assert!(known.check() > MIB);
    }
    daemon.braid(&["volume", "resize", "tank/db", "40M"]);
    db.grow(40 * MIB);
    db.write(4);
    assert!(db.check() > MIB);
    let all = [db, monday, clone].map(|known| (known.name, known.socket, known.model));
    daemon.restart(true);
    for (name, socket, model) in all {
        assert!(Known { daemon: &daemon, name, socket, model }.check() > MIB);
    }
}

/// A volume on an array with parity, and arrays on volumes.
#[test]
fn copies_of_stacked_arrays_and_volumes() {
    need_root();
    let daemon = Daemon::start();
    let disks: Vec<String> = ["a", "b", "c"].iter().map(|name| daemon.folder.sparse(name, 40 * MIB)).collect();
    let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
    daemon.braid(&[&["array", "create", "below", "--level", "raid5"][..], &disks].concat());
    daemon.braid(&["pool", "create", "tank", "below"]);
    daemon.braid(&["volume", "create", "tank/db", "32M"]);
    let mut volume = Known::new(&daemon, "tank/db");
    volume.write(1);
    assert!(volume.check() > MIB);

    for pool in ["x", "y", "z"] {
        let disk = daemon.folder.sparse(&format!("disk-{pool}"), 96 * MIB);
        daemon.braid(&["pool", "create", pool, &disk]);
        daemon.braid(&["volume", "create", &format!("{pool}/v"), "24M"]);
        daemon.braid(&["volume", "create", &format!("{pool}/w"), "24M"]);
    }
    for (level, volumes) in [("raid0", ["x/v", "y/v", "z/v"]), ("raid5", ["x/w", "y/w", "z/w"])] {
        daemon.braid(&[&["array", "create", level, "--level", level][..], &volumes].concat());
        let mut known = Known::new(&daemon, level);
        known.write(1);
        assert!(known.check() > MIB, "{level}");
        known.write(2);
        known.check();
    }
}

/// A mirror is rebuilt from a member that is the export of another array; the rebuild queries its holes first.
#[test]
fn a_mirror_rebuilt_from_an_export_has_all_data() {
    for (level, members) in [("raid5", 3), ("raid6", 4), ("raid0", 2)] {
        let (far, near) = (Daemon::start(), Daemon::start());
        // All members of a mirror have the same block size: all of them are such exports.
        let export = |name: &&str| {
            let disk = |k| far.folder.sparse(&format!("{name}{k}"), 24 * MIB);
            let disks: Vec<String> = (0..members).map(disk).collect();
            far.array(name, level, &disks.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let [a, b, c] = ["a", "b", "c"].each_ref().map(export);
        near.braid(&["array", "create", "data", "--level", "raid1", "--spare", &c, &a, &b]);
        let mut known = Known::new(&near, "data");
        known.write(1);
        near.braid(&["array", "fail", "data", "1"]);
        wait_for_health(&near, "whole");
        // Reads from the rebuilt member alone.
        near.braid(&["array", "fail", "data", "0"]);
        let shown = show(&near);
        let mut client = known.client();
        for (at, should) in (0..).step_by(MIB as usize).zip(known.model.chunks(MIB as usize)) {
            assert!(client.read(at, should.len()).expect("it reads") == should, "{level} at {at}: {shown}");
        }
    }
}

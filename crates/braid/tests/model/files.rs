//! Exports as files: whole blocks by system calls, one at a time or several in flight, holes by `SEEK_HOLE`, and forced
//! unmounts.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::file_client::FileClient;
use crate::oracle::{BLOCK, Content};
use crate::support::{PATIENCE, run, wait_for};
use crate::world::{Device, ENOSPC, World};

impl World {
    /// Opens the file of a device, if it has one.
    fn file(&mut self, device: usize) -> Option<()> {
        let path = self.devices[device].path()?;
        if self.devices[device].file.is_none() {
            let writes = !self.devices[device].is_snapshot();
            let open = || File::options().read(true).write(writes).open(&path).ok();
            self.devices[device].file = Some(wait_for(&format!("file {path}"), || {
                // Before it is mounted it is an empty file of the folder.
                open().filter(|file| file.metadata().is_ok_and(|meta| meta.len() > 0))
            }));
        }
        Some(())
    }

    /// Adds a client: through the file of a device, or through a loop device on it.
    pub fn open(&mut self, device: usize) -> usize {
        let one = &self.devices[device];
        let (number, writes) = (one.number, !one.is_snapshot());
        let path = one.path().expect("it has a file");
        let open_mode = self.access.open_mode(writes);
        self.record(format!("{path} is opened: {open_mode:?}"));
        // Before it is mounted it is an empty file of the folder.
        wait_for(&format!("file {path}"), || fs::metadata(&path).ok().filter(|meta| meta.len() > 0));
        let connection = Connection::by_file(FileClient::open(&path, open_mode), number);
        self.counts.by_file += 1;
        self.counts.by_loop += u64::from(open_mode.sector.is_some());
        let device = &mut self.devices[device];
        device.blocks = connection.blocks();
        device.connections.push(connection);
        device.connections.len() - 1
    }

    /// Records a new size. Clients of the file see it; NBD clients learn it when they connect.
    pub fn resized(&mut self, device: usize, blocks: u64) {
        let device = &mut self.devices[device];
        device.blocks = blocks;
        for connection in &device.connections {
            connection.grows_to(blocks);
        }
    }

    /// Unmounts the file by force, with requests in flight: these fail. The export reports it, and is created again.
    pub fn unmount_by_force(&mut self, device: usize) {
        let Some(path) = self.devices[device].path() else { return };
        self.burst(device);
        self.record(format!("{path} is unmounted by force"));
        self.counts.unmounts += 1;
        run("umount", &["--force", "--lazy", &path]);
        self.files_end(device);
        let (name, export) = (self.devices[device].name.clone(), self.devices[device].file_export());
        wait_for(&format!("export {export} to say that its file is gone"), || {
            (self.json(&["export", "show", &export])["state"] == "failed").then_some(())
        });
        self.must(&["export", "remove", &export]);
        self.must(&["export", "add", &name, "--fuse", &path, "--name", &export]);
    }

    /// Removes the export of a file that no program has open any more.
    pub fn remove_file_export(&mut self, device: &Device) {
        let (export, start) = (device.file_export(), Instant::now());
        loop {
            let (status, text) = self.braid(&["export", "remove", &export]);
            if status == 0 {
                return;
            }
            // A process that another scenario is starting holds this one's open files until it executes.
            assert!(text.contains("in use") && start.elapsed() < PATIENCE, "export remove {export}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends one request through the file and waits for it.
    pub fn by_file(&mut self, device: usize) {
        use std::os::unix::fs::FileExt as _;
        if self.file(device).is_none() {
            return;
        }
        let (first, count) = self.range(device, 48);
        let number = self.devices[device].number;
        let (offset, len) = (first * BLOCK as u64, count as usize * BLOCK);
        self.counts.requests += 1;
        let name = self.devices[device].name.clone();
        let kind = self.dice.below(5);
        let version = self.oracle.number();
        let file = self.devices[device].file.as_ref().expect("it is open");
        match kind {
            0 | 1 => {
                let mut data = vec![0; len];
                for (block, bytes) in (first..).zip(data.chunks_exact_mut(BLOCK)) {
                    crate::oracle::write_block(number, block, version, bytes);
                }
                let token = self.oracle.begin(number, first, count, Content::Data { device: number, version }, false);
                let result = file.write_all_at(&data, offset);
                self.record(format!("{name} file: write {first}+{count} {result:?}"));
                self.file_done(number, first, count, token, result);
            }
            2 => {
                let mut data = vec![0xdb; len];
                let begun = self.oracle.now();
                let result = file.read_exact_at(&mut data, offset);
                self.record(format!("{name} file: read {first}+{count} {result:?}"));
                if result.is_ok() {
                    for (block, bytes) in (first..).zip(data.chunks_exact(BLOCK)) {
                        self.oracle.read(number, block, begun, bytes).unwrap_or_else(|what| panic!("{what}"));
                    }
                } else {
                    assert!(self.lenient.is_some(), "{name}: a read of its file: {result:?}");
                }
            }
            3 => {
                let result = file.sync_all();
                self.record(format!("{name} file: fsync {result:?}"));
                assert!(result.is_ok() || self.lenient.is_some(), "{name}: fsync of its file: {result:?}");
            }
            _ => self.check_file_map(device),
        }
    }

    fn file_done(&mut self, number: u64, first: u64, count: u64, token: u64, result: std::io::Result<()>) {
        match result {
            Ok(()) => self.oracle.acknowledged(number, first, count, token),
            Err(error) => {
                let full = self.may_fill && error.raw_os_error() == Some(ENOSPC as i32);
                assert!(full || self.lenient.is_some(), "a write to a file: {error}, and no fault is injected");
                self.oracle.abandoned(number, first, count, token);
            }
        }
    }

    /// Checks the holes of the file against the oracle, by `SEEK_HOLE` and `SEEK_DATA`.
    pub fn check_file_map(&mut self, device: usize) {
        if self.without("maps") || self.file(device).is_none() {
            return;
        }
        let number = self.devices[device].number;
        let bytes = self.devices[device].blocks * BLOCK as u64;
        let mut at = 0;
        let begun = self.oracle.now();
        while at < bytes {
            let file = self.devices[device].file.as_ref().expect("it is open");
            let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at)).unwrap_or(bytes);
            let data = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(hole.min(bytes - 1))) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => bytes,
                Err(error) => {
                    assert!(self.lenient.is_some(), "SEEK_DATA: {error}");
                    return;
                }
            };
            if hole >= bytes {
                break;
            }
            for block in hole / BLOCK as u64..data.div_ceil(BLOCK as u64) {
                self.oracle.check_zero(number, block, begun).unwrap_or_else(|what| panic!("by its file: {what}"));
            }
            at = data.max(at + 1);
        }
        self.counts.maps += 1;
    }
}

//! Ends of a daemon, and their effect on its clients: connections end, and files end too, or wait for the next daemon.

use crate::client::{Progress, Refused};
use crate::manager::Manager;
use crate::support::{BRAID, command, places, said};
use crate::world::{EIO, ENOSPC, World};

/// Errors of the kernel for a daemon that is gone.
const ECONNABORTED: u32 = 103;
const ENOTCONN: u32 = 107;

impl World {
    /// Kills the daemon (`kill -9`) with requests in flight. Replies that it has sent still count.
    pub fn kill(&mut self) {
        self.counts.kills += 1;
        self.record("kill -9");
        self.daemon.kill();
        self.disconnect_clients(self.files_outlive());
    }

    /// Stops the daemon in order, with requests in flight.
    pub fn stop(&mut self) {
        self.counts.stops += 1;
        self.record("stop");
        self.daemon.stop();
        self.stopping = true;
        self.disconnect_clients(self.files_outlive());
        self.stopping = false;
    }

    /// Stops the daemon with any exit status, as a fault is injected.
    pub fn stop_any(&mut self) {
        self.counts.stops += 1;
        self.record("stop");
        self.daemon.running.terminate();
        self.daemon.running.wait();
        self.stopping = true;
        self.disconnect_clients(self.files_outlive());
        self.stopping = false;
    }

    /// Returns whether files wait for the next daemon.
    fn files_outlive(&self) -> bool {
        self.manager.as_ref().is_some_and(Manager::stores_files)
    }

    /// Ends the connections after the daemon has ended. With `files_wait`, clients through files only wait, and the
    /// next daemon gets their requests in flight.
    pub fn disconnect_clients(&mut self, files_wait: bool) {
        for device in 0..self.devices.len() {
            if !files_wait {
                self.files_end(device);
            }
            let mut at = 0;
            while at < self.devices[device].connections.len() {
                if self.devices[device].connections[at].is_file() {
                    at += 1;
                    continue;
                }
                let progress = self.devices[device].connections[at].drain(&mut self.oracle);
                match progress.unwrap_or_else(|what| panic!("{what}")) {
                    Progress::Goes(refused) => {
                        self.refused(device, refused);
                        self.ended(device, at, "nothing under way");
                    }
                    Progress::Ended(why) => drop(self.ended(device, at, &why)),
                }
            }
            let device = &self.devices[device];
            let go_on: Vec<u64> = device.connections.iter().flat_map(|one| one.tokens()).collect();
            self.counts.waited += go_on.len() as u64;
            self.oracle.daemon_ended(device.number, &go_on);
        }
    }

    /// Ends the clients of a device's file: their requests in flight fail, or are done.
    pub fn files_end(&mut self, device: usize) {
        self.devices[device].file = None;
        let mut at = 0;
        while at < self.devices[device].connections.len() {
            if !self.devices[device].connections[at].is_file() {
                at += 1;
                continue;
            }
            let progress = self.devices[device].connections[at].drain(&mut self.oracle);
            if let Progress::Goes(refused) = progress.unwrap_or_else(|what| panic!("{what}")) {
                self.check_cut_off(refused);
            }
            self.ended(device, at, "its file is gone");
        }
    }

    /// Checks that requests through a file may fail like this when the file ends.
    fn check_cut_off(&mut self, refused: Vec<Refused>) {
        for one in refused {
            self.record(format!("  cut off: {one}"));
            self.counts.cut_off += 1;
            let is_known = [EIO, ECONNABORTED, ENOTCONN].contains(&one.error) || (self.may_fill && one.error == ENOSPC);
            assert!(is_known || self.lenient.is_some(), "the file is gone, and its client got {one}");
        }
    }

    pub fn start(&mut self) {
        self.record("start");
        match &self.manager {
            None => self.daemon.start_again(),
            Some(manager) => {
                let mut command = manager.serve(&self.daemon.folder);
                self.daemon.start_again_by(&mut command);
            }
        }
    }

    /// Upgrades the daemon to the same binary. Files continue: their clients wait, and nothing fails.
    pub fn upgrade(&mut self) {
        self.counts.upgrades += 1;
        self.record("upgrade");
        let mut command = command(BRAID);
        command.args(["serve", "--upgrade"]);
        places(&mut command, &self.daemon.folder);
        let out = command.output().expect("braid can be started");
        assert!(out.status.success(), "serve --upgrade: {}", said(&out));
        self.stopping = true;
        self.disconnect_clients(true);
        self.stopping = false;
    }

    pub fn restart(&mut self, kill: bool) {
        if kill {
            self.kill()
        } else {
            self.stop()
        }
        self.start();
    }
}

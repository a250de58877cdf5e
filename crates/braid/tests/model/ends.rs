//! Ends of a daemon, and what its clients meet: connections end, and files end with it, or wait for the next one.

use crate::client::{Refused, Turn};
use crate::manager::Manager;
use crate::support::{BRAID, command, places, said};
use crate::world::{EIO, ENOSPC, World};

/// What the kernel answers for a daemon that is gone.
const ECONNABORTED: u32 = 103;
const ENOTCONN: u32 = 107;

impl World {
    /// The daemon ends by `kill -9`, with requests under way. What it had answered was answered.
    pub fn kill(&mut self) {
        self.counts.kills += 1;
        self.say("kill -9");
        self.daemon.kill();
        self.left_alone(self.files_outlive());
    }

    /// The daemon ends in order, with requests under way.
    pub fn stop(&mut self) {
        self.counts.stops += 1;
        self.say("stop");
        self.daemon.stop();
        self.stopping = true;
        self.left_alone(self.files_outlive());
        self.stopping = false;
    }

    /// The same, with whichever status: something is the matter.
    pub fn stop_any(&mut self) {
        self.counts.stops += 1;
        self.say("stop");
        self.daemon.running.terminate();
        self.daemon.running.wait();
        self.stopping = true;
        self.left_alone(self.files_outlive());
        self.stopping = false;
    }

    /// Whether files wait for the next daemon.
    fn files_outlive(&self) -> bool {
        self.manager.as_ref().is_some_and(Manager::keeps)
    }

    /// No daemon answers clients any more: connections end. With `files_wait`, clients by files only wait, and the next daemon is given what
    /// they have under way.
    pub fn left_alone(&mut self, files_wait: bool) {
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
                let turn = self.devices[device].connections[at].drain(&mut self.oracle);
                match turn.unwrap_or_else(|what| panic!("{what}")) {
                    Turn::Goes(refused) => {
                        self.refused(device, refused);
                        self.ended(device, at, "nothing under way");
                    }
                    Turn::Ended(why) => drop(self.ended(device, at, &why)),
                }
            }
            let device = &self.devices[device];
            let go_on: Vec<u64> = device.connections.iter().flat_map(|one| one.tokens()).collect();
            self.counts.waited += go_on.len() as u64;
            self.oracle.over(device.number, &go_on);
        }
    }

    /// The file of a device is of no use any more: what clients have under way fails, or has been done.
    pub fn files_end(&mut self, device: usize) {
        self.devices[device].file = None;
        let mut at = 0;
        while at < self.devices[device].connections.len() {
            if !self.devices[device].connections[at].is_file() {
                at += 1;
                continue;
            }
            let turn = self.devices[device].connections[at].drain(&mut self.oracle);
            if let Turn::Goes(refused) = turn.unwrap_or_else(|what| panic!("{what}")) {
                self.cut_off(refused);
            }
            self.ended(device, at, "its file is gone");
        }
    }

    /// Whether requests by a file may end like this when the file does.
    fn cut_off(&mut self, refused: Vec<Refused>) {
        for one in refused {
            self.say(format!("  cut off: {one}"));
            self.counts.cut_off += 1;
            let is_known = [EIO, ECONNABORTED, ENOTCONN].contains(&one.error) || (self.may_fill && one.error == ENOSPC);
            assert!(is_known || self.lenient.is_some(), "the file is gone, and its client is answered {one}");
        }
    }

    pub fn start(&mut self) {
        self.say("start");
        match &self.manager {
            None => self.daemon.start_again(),
            Some(manager) => {
                let mut command = manager.serve(&self.daemon.folder);
                self.daemon.start_again_by(&mut command);
            }
        }
    }

    /// The daemon becomes the same program again. Files go on in it: their clients wait, and nothing fails.
    pub fn upgrade(&mut self) {
        self.counts.upgrades += 1;
        self.say("upgrade");
        let mut command = command(BRAID);
        command.args(["serve", "--upgrade"]);
        places(&mut command, &self.daemon.folder);
        let out = command.output().expect("braid can be started");
        assert!(out.status.success(), "serve --upgrade: {}", said(&out));
        self.stopping = true;
        self.left_alone(true);
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

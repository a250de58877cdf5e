//! Both kinds of crash: a killed process and a power cut.

use braid_engine::pool::PoolOp;

use super::oracle::Rule;
use super::world::{BLOCK, Io, PendingIo, World};

impl World {
    /// Kills the process. I/O that the kernel has accepted may still reach the disk, in full, in part or not at all.
    fn kill(&mut self) {
        for PendingIo { io, .. } in std::mem::take(&mut self.ios) {
            let lands = self.rng.below(4);
            if lands == 0 {
                continue;
            }
            match io {
                Io::Pool { io, data, .. } => {
                    let disk = &mut self.disks[usize::from(io.member)];
                    match io.op {
                        PoolOp::Write { .. } if lands == 1 => disk.write_torn(io.offset, &data, &mut self.rng),
                        PoolOp::Write { .. } => disk.write(io.offset, &data),
                        PoolOp::Discard => disk.discard(io.offset),
                        PoolOp::Flush | PoolOp::Copy { .. } => {}
                    }
                }
                Io::Write { member, offset, words, .. } => {
                    for (k, word) in (0..).zip(words) {
                        if lands > 1 || self.rng.coin() {
                            self.disks[member].set_block(offset + k * BLOCK, word);
                        }
                    }
                }
                Io::Copied { io, words } => {
                    for (k, word) in (0..).zip(words) {
                        if lands > 1 || self.rng.coin() {
                            self.disks[usize::from(io.member)].set_block(io.offset + k * BLOCK, word);
                        }
                    }
                }
                Io::Read { .. } => {}
            }
        }
        self.forget();
    }

    fn power_cut(&mut self) {
        // An I/O in flight may add one more version of its sectors.
        self.kill();
        let survives = self.parameters.survives;
        for disk in &mut self.disks {
            disk.power_cut(&mut self.rng, survives);
        }
        self.shm.clear();
    }

    pub(super) fn forget(&mut self) {
        self.pool = None;
        self.closed.clear();
        self.closed_by_force.retain(|member| self.removed.contains(&(*member as u8)));
        self.consolidated = (0, 0);
        self.flattened = 0;
        self.failing = None;
        self.adding = None;
        self.jobs.clear();
        self.calls.clear();
        self.barrier = None;
        self.models.values_mut().for_each(|model| model.served = None);
    }

    pub(super) fn crash(&mut self) -> Rule {
        let power = self.rng.coin();
        self.count_crash_without_space(power);
        self.note(|| format!("crash, power {power}"), u64::from(power));
        if power {
            self.count("power cuts");
            self.power_cut();
            Rule::Power
        } else {
            self.count("kills");
            self.kill();
            Rule::Kill
        }
    }
}

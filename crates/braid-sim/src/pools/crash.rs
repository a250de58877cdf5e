//! Both kinds of crash.

use braid_engine::pool::PoolOp;

use super::oracle::Rule;
use super::world::{BLOCK, Io, Out, World};

impl World {
    /// The process dies: what the kernel has may still land, or some of it.
    fn kill(&mut self) {
        for Out { io, .. } in std::mem::take(&mut self.ios) {
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
        // What was under way is one more version of its sectors.
        self.kill();
        let survives = self.nature.survives;
        for disk in &mut self.disks {
            disk.power_cut(&mut self.rng, survives);
        }
        self.shm.clear();
    }

    pub(super) fn forget(&mut self) {
        self.pool = None;
        self.closed.clear();
        self.shut.retain(|member| self.gone.contains(&(*member as u8)));
        self.put_together = (0, 0);
        self.flattened = 0;
        self.ill = None;
        self.growing = None;
        self.jobs.clear();
        self.asked.clear();
        self.barrier = None;
        self.known.values_mut().for_each(|known| known.served = None);
    }

    pub(super) fn crash(&mut self) -> Rule {
        let power = self.rng.coin();
        self.count_crash_of_starved(power);
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

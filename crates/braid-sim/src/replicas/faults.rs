//! What befalls nodes, links and controllers, and what ends it.

use super::nature::{Fault, MS, SECOND};
use super::world::{Event, World};

/// What ends.
#[derive(Clone, Debug)]
pub enum End {
    /// A link works again.
    Link(usize, usize),
    /// All do.
    Links,
    /// A node has power again.
    Power(usize),
    /// A controller is there again.
    Death(usize),
    /// A controller is told to open.
    Told(usize),
    /// A controller dies.
    Dies(usize),
    /// A node loses power.
    Dark(usize),
    /// A controller is cut off.
    CutsOff(usize),
    /// Something is done soon after a moment that matters, to this controller.
    Aimed(usize),
    /// Voters are lost for ever.
    Lost,
    /// The process of a node ends, or its disk is copied.
    OfProcess,
    /// A block is written that was asked for long ago: a bug that is planted.
    LateWrite(usize, u16, u64),
}

impl World {
    /// The next fault, and when another one comes.
    pub fn fault(&mut self) {
        let next = self.now_ns + self.rng.between(self.nature.calm_ns / 10, 2 * self.nature.calm_ns);
        if next < self.nature.faults_ns {
            self.queue.push(next, Event::Fault);
        }
        let fault = Fault::ALL[self.rng.weighted(&self.nature.shares.0)];
        let c = self.rng.index(self.controllers.len());
        self.befall(fault, c);
    }

    fn ends(&mut self, least: u64, most: u64, end: End) {
        let at = self.now_ns + self.rng.between(least, most);
        self.queue.push(at, Event::End(end));
    }

    fn befall(&mut self, fault: Fault, c: usize) {
        self.event(format_args!("{fault:?} {c}"));
        let node = self.rng.index(self.nodes.len());
        let kind = match fault {
            Fault::LinkCut => {
                let (there, back) = *self.rng.pick(&[(false, false), (false, true), (true, false)]);
                self.set_link(c, node, there, back);
                self.ends(100 * MS, 15 * SECOND, End::Link(c, node));
                "links cut"
            }
            Fault::Partition => {
                self.partition();
                self.ends(SECOND, 25 * SECOND, End::Links);
                "partitions"
            }
            Fault::PowerCut => {
                self.power_cut(node);
                "power cuts"
            }
            Fault::Blackout => {
                (0..self.nodes.len()).for_each(|node| self.power_cut(node));
                "blackouts"
            }
            Fault::Death => {
                self.die(c);
                "deaths"
            }
            Fault::Pause => {
                let until = self.now_ns + self.rng.between(100 * MS, 15 * SECOND);
                self.controllers[c].paused_until_ns = until;
                if self.rng.coin() {
                    self.ends(100 * MS, 4 * SECOND, End::Told(1 - c));
                    // The node beside it goes on answering it alone.
                    let beside = c % self.nodes.len();
                    self.set_link(1 - c, beside, false, false);
                    self.ends(SECOND, 30 * SECOND, End::Link(1 - c, beside));
                }
                "pauses"
            }
            Fault::Reset => {
                let open: Vec<u64> = self.nodes[node].connections.keys().copied().collect();
                if !open.is_empty() {
                    let id = *self.rng.pick(&open);
                    self.reset(node, id);
                }
                "resets"
            }
            Fault::SlowDisk => {
                self.nodes[node].slow_until_ns = self.now_ns + self.rng.between(50 * MS, 9 * SECOND);
                self.nodes[node].slow_most_ms = 9000;
                "slow disks"
            }
            Fault::LateDisk => {
                self.nodes[node].slow_until_ns = self.now_ns + 300 * MS;
                self.nodes[node].slow_most_ms = 15_000;
                self.ends(100 * MS, 300 * MS, End::Dies(c));
                self.ends(100 * MS, 600 * MS, End::Told(1 - c));
                "late disks"
            }
            Fault::Handover => {
                if let Some(serving) = self.controllers[c].serving() {
                    serving.stopping = true;
                    self.ends(10 * MS, 4 * SECOND, End::Told(1 - c));
                }
                "handovers asked"
            }
            Fault::Rival => {
                self.controllers[c].told = true;
                "rivals"
            }
            Fault::Change => {
                self.wish(c);
                "wishes for voters"
            }
            Fault::CutOff => {
                self.cut_off(c);
                "controllers cut off"
            }
        };
        self.counters.add("fault", kind, 1);
    }

    /// Two groups: each controller is in that of the node beside it.
    fn partition(&mut self) {
        let groups: Vec<bool> = (0..self.nodes.len()).map(|_| self.rng.coin()).collect();
        for c in 0..self.controllers.len() {
            for node in 0..self.nodes.len() {
                let up = groups[c % groups.len()] == groups[node];
                self.set_link(c, node, up, up);
            }
        }
        if self.rng.coin() {
            let c = self.rng.index(self.controllers.len());
            self.ends(10 * MS, 5 * SECOND, End::Told(c));
        }
    }

    /// A controller reaches the node beside it alone, or some more, and the other controller all but that one.
    fn cut_off(&mut self, c: usize) {
        let beside = c % self.nodes.len();
        for node in 0..self.nodes.len() {
            let reached = node == beside || node >= 2 && self.rng.coin();
            self.set_link(c, node, reached, reached);
            self.set_link(1 - c, node, node != beside, node != beside);
        }
        self.ends(10 * MS, 3 * SECOND, End::Told(1 - c));
        self.ends(4 * SECOND, 30 * SECOND, End::Links);
        if self.rng.coin() {
            self.ends(MS, 8 * SECOND, End::Aimed(c));
        }
    }

    fn power_cut(&mut self, node: usize) {
        if !self.nodes[node].up {
            return;
        }
        self.cut_power(node);
        if self.rng.chance(200_000) {
            self.rot_register(node);
        }
        let most = *self.rng.pick(&[500 * MS, 5 * SECOND, 20 * SECOND]);
        self.ends(50 * MS, most, End::Power(node));
        // The controller beside it stood on the same machine.
        if node < self.controllers.len() && self.rng.coin() {
            self.die(node);
        }
    }

    pub(super) fn die(&mut self, c: usize) {
        if !self.controllers[c].up {
            return;
        }
        self.stop(c, "it died");
        let controller = &mut self.controllers[c];
        (controller.up, controller.rolls_back) = (false, None);
        controller.life += 1;
        self.ends(100 * MS, 15 * SECOND, End::Death(c));
    }

    /// Something has just happened that matters: a fault at once, sometimes.
    pub fn aim(&mut self, c: usize) {
        if self.now_ns < self.nature.faults_ns && self.rng.chance(self.nature.aim) {
            let most = *self.rng.pick(&[MS, 20 * MS, 500 * MS]);
            self.ends(0, most, End::Aimed(c));
        }
    }

    /// A controller is cut off very soon.
    pub fn cuts_off(&mut self, c: usize) {
        let most = *self.rng.pick(&[MS, 20 * MS, 300 * MS]);
        self.ends(0, most, End::CutsOff(c));
    }

    /// A voter has just been raised: it loses power at once, sometimes.
    pub fn aim_at_node(&mut self, node: usize) {
        if self.now_ns < self.nature.faults_ns && self.rng.chance(self.nature.aim / 20) {
            self.ends(0, 20 * MS, End::Dark(node));
        }
    }

    fn aimed(&mut self, c: usize) {
        self.counters.add("fault", "aimed", 1);
        let beside = c % self.nodes.len();
        match self.rng.below(4) {
            0 => self.befall(Fault::CutOff, c),
            1 => {
                // It dies, and the node beside it is cut off from the other one.
                self.die(c);
                self.set_link(1 - c, beside, false, false);
                self.ends(10 * MS, SECOND, End::Told(1 - c));
                self.ends(5 * SECOND, 30 * SECOND, End::Links);
            }
            2 => {
                self.die(c);
                let node = self.rng.index(self.nodes.len());
                self.power_cut(node);
            }
            _ => {
                // One of those that hold everything, where somebody serves.
                let in_sync: Vec<usize> = match self.controllers[c].serving() {
                    Some(serving) => serving.membership.in_sync().iter().map(|voter| usize::from(voter.0)).collect(),
                    None => (0..self.nodes.len()).collect(),
                };
                if !in_sync.is_empty() {
                    let node = *self.rng.pick(&in_sync);
                    self.power_cut(node);
                }
            }
        }
    }

    /// Something ends.
    pub fn end(&mut self, end: End) {
        match end {
            End::Link(c, node) => self.set_link(c, node, true, true),
            End::Links => self.mend_links(),
            End::Lost => self.lose(),
            End::OfProcess => self.end_of_process(),
            End::LateWrite(node, block, value) => self.late_write(node, block, value),
            End::Power(node) => self.start_node(node),
            End::Death(c) => {
                let now = self.clock(c);
                let controller = &mut self.controllers[c];
                if !controller.up {
                    controller.up = true;
                    controller.retry_ns = now;
                    let life = controller.life;
                    self.queue.push(self.now_ns, Event::Tick { controller: c, life });
                }
            }
            End::Dies(c) if self.now_ns < self.nature.faults_ns => self.die(c),
            End::Dark(node) if self.now_ns < self.nature.faults_ns => self.power_cut(node),
            End::CutsOff(c) if self.now_ns < self.nature.faults_ns => self.befall(Fault::CutOff, c),
            End::Dies(_) | End::Dark(_) | End::CutsOff(_) => {}
            End::Told(c) => self.controllers[c].told = self.now_ns < self.nature.faults_ns,
            End::Aimed(c) => {
                if self.now_ns < self.nature.faults_ns {
                    self.aimed(c);
                }
            }
        }
    }

    /// Every link works.
    pub fn mend_links(&mut self) {
        for c in 0..self.controllers.len() {
            for node in 0..self.nodes.len() {
                self.set_link(c, node, true, true);
            }
        }
    }
}

//! Faults of nodes, links and controllers, and their ends.

use super::events::{Event, FaultEnd};
use super::parameters::{Fault, MS, SECOND};
use super::world::World;

impl World {
    /// Injects the next fault, and schedules the one after it.
    pub fn fault(&mut self) {
        let next = self.now_ns + self.rng.between(self.parameters.calm_ns / 10, 2 * self.parameters.calm_ns);
        if next < self.parameters.faults_ns {
            self.queue.push(next, Event::Fault);
        }
        let fault = Fault::ALL[self.rng.weighted(&self.parameters.shares.0)];
        let c = self.rng.index(self.controllers.len());
        self.inject(fault, c);
    }

    fn schedule(&mut self, least: u64, most: u64, end: FaultEnd) {
        let at = self.now_ns + self.rng.between(least, most);
        self.queue.push(at, Event::FaultEnd(end));
    }

    fn inject(&mut self, fault: Fault, c: usize) {
        self.event(format_args!("{fault:?} {c}"));
        let node = self.rng.index(self.nodes.len());
        let kind = match fault {
            Fault::LinkCut => {
                let (forward, backward) = *self.rng.pick(&[(false, false), (false, true), (true, false)]);
                self.set_link(c, node, forward, backward);
                self.schedule(100 * MS, 15 * SECOND, FaultEnd::Link(c, node));
                "links cut"
            }
            Fault::Partition => {
                self.partition();
                self.schedule(SECOND, 25 * SECOND, FaultEnd::Links);
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
                    self.schedule(100 * MS, 4 * SECOND, FaultEnd::OpenOrder(1 - c));
                    // The node beside the controller keeps replying to this controller only.
                    let beside = c % self.nodes.len();
                    self.set_link(1 - c, beside, false, false);
                    self.schedule(SECOND, 30 * SECOND, FaultEnd::Link(1 - c, beside));
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
                self.schedule(100 * MS, 300 * MS, FaultEnd::Death(c));
                self.schedule(100 * MS, 600 * MS, FaultEnd::OpenOrder(1 - c));
                "late disks"
            }
            Fault::Handover => {
                if let Some(serving) = self.controllers[c].serving() {
                    serving.stopping = true;
                    self.schedule(10 * MS, 4 * SECOND, FaultEnd::OpenOrder(1 - c));
                }
                "handovers asked"
            }
            Fault::Rival => {
                self.controllers[c].must_open = true;
                "rivals"
            }
            Fault::Change => {
                self.want_voter_change(c);
                "wishes for voters"
            }
            Fault::CutOff => {
                self.cut_off(c);
                "controllers cut off"
            }
        };
        self.counters.add("fault", kind, 1);
    }

    /// Partitions nodes and controllers into two groups. Each controller is in the group of the node beside it.
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
            self.schedule(10 * MS, 5 * SECOND, FaultEnd::OpenOrder(c));
        }
    }

    /// Cuts a controller off: it reaches the node beside it and perhaps some more. The other controller reaches every
    /// node but that one.
    fn cut_off(&mut self, c: usize) {
        let beside = c % self.nodes.len();
        for node in 0..self.nodes.len() {
            let reached = node == beside || node >= 2 && self.rng.coin();
            self.set_link(c, node, reached, reached);
            self.set_link(1 - c, node, node != beside, node != beside);
        }
        self.schedule(10 * MS, 3 * SECOND, FaultEnd::OpenOrder(1 - c));
        self.schedule(4 * SECOND, 30 * SECOND, FaultEnd::Links);
        if self.rng.coin() {
            self.schedule(MS, 8 * SECOND, FaultEnd::Aimed(c));
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
        self.schedule(50 * MS, most, FaultEnd::Power(node));
        // The controller beside the node ran on the same machine.
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
        self.schedule(100 * MS, 15 * SECOND, FaultEnd::Restart(c));
    }

    /// A critical moment has come: a fault may follow at once.
    pub fn aim(&mut self, c: usize) {
        if self.now_ns < self.parameters.faults_ns && self.rng.chance(self.parameters.aim) {
            let most = *self.rng.pick(&[MS, 20 * MS, 500 * MS]);
            self.schedule(0, most, FaultEnd::Aimed(c));
        }
    }

    /// Cuts a controller off very soon.
    pub fn schedule_cut_off(&mut self, c: usize) {
        let most = *self.rng.pick(&[MS, 20 * MS, 300 * MS]);
        self.schedule(0, most, FaultEnd::CutOff(c));
    }

    /// A voter has just raised its epoch: it may lose power at once.
    pub fn aim_at_node(&mut self, node: usize) {
        if self.now_ns < self.parameters.faults_ns && self.rng.chance(self.parameters.aim / 20) {
            self.schedule(0, 20 * MS, FaultEnd::PowerLoss(node));
        }
    }

    fn inject_aimed(&mut self, c: usize) {
        self.counters.add("fault", "aimed", 1);
        let beside = c % self.nodes.len();
        match self.rng.below(4) {
            0 => self.inject(Fault::CutOff, c),
            1 => {
                // The controller dies, and the node beside it is cut off from the other controller.
                self.die(c);
                self.set_link(1 - c, beside, false, false);
                self.schedule(10 * MS, SECOND, FaultEnd::OpenOrder(1 - c));
                self.schedule(5 * SECOND, 30 * SECOND, FaultEnd::Links);
            }
            2 => {
                self.die(c);
                let node = self.rng.index(self.nodes.len());
                self.power_cut(node);
            }
            _ => {
                // An in-sync replica loses power, if the controller serves.
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

    /// Ends a fault, or injects a scheduled one.
    pub fn end_fault(&mut self, end: FaultEnd) {
        match end {
            FaultEnd::Link(c, node) => self.set_link(c, node, true, true),
            FaultEnd::Links => self.restore_links(),
            FaultEnd::PermanentLoss => self.lose_voters(),
            FaultEnd::ProcessEnd => self.end_process(),
            FaultEnd::LateWrite(node, block, value) => self.late_write(node, block, value),
            FaultEnd::Power(node) => self.start_node(node),
            FaultEnd::Restart(c) => {
                let now = self.clock(c);
                let controller = &mut self.controllers[c];
                if !controller.up {
                    controller.up = true;
                    controller.retry_ns = now;
                    let life = controller.life;
                    self.queue.push(self.now_ns, Event::Tick { controller: c, life });
                }
            }
            FaultEnd::Death(c) if self.now_ns < self.parameters.faults_ns => self.die(c),
            FaultEnd::PowerLoss(node) if self.now_ns < self.parameters.faults_ns => self.power_cut(node),
            FaultEnd::CutOff(c) if self.now_ns < self.parameters.faults_ns => self.inject(Fault::CutOff, c),
            FaultEnd::Death(_) | FaultEnd::PowerLoss(_) | FaultEnd::CutOff(_) => {}
            FaultEnd::OpenOrder(c) => self.controllers[c].must_open = self.now_ns < self.parameters.faults_ns,
            FaultEnd::Aimed(c) => {
                if self.now_ns < self.parameters.faults_ns {
                    self.inject_aimed(c);
                }
            }
        }
    }

    /// Restores every link.
    pub fn restore_links(&mut self) {
        for c in 0..self.controllers.len() {
            for node in 0..self.nodes.len() {
                self.set_link(c, node, true, true);
            }
        }
    }
}

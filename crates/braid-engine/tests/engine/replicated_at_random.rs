//! A replicated device with members that are lost and a lease that expires, at random: whatever a read has returned is
//! on all members in sync, so that no later read finds an older state.

use std::sync::Arc;

use crate::support::*;
use braid_engine::*;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 24;
const ROOM: u64 = 48;

/// A client's request.
#[derive(Clone, Copy)]
struct PendingRequest {
    op: Op,
    first: u64,
    blocks: u64,
    memory: u64,
}

struct Story {
    rig: Rig,
    random: Random,
    lease: Arc<DeviceLease>,
    regions: Arc<RegionMap>,
    roles: [MemberRole; 3],
    version: u32,
    now_ns: u64,
    /// By tag.
    pending: Vec<Option<PendingRequest>>,
    last: u64,
    /// The states of each block, the oldest first.
    states: Vec<Vec<u64>>,
    reads: u64,
    /// Reads of a member that were abandoned for another one.
    slow: u64,
    /// Requests that were answered when the lease was renewed.
    kept: u64,
    lost: u64,
}

fn value(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

impl Story {
    fn new(seed: u64) -> Story {
        // With few words all blocks conflict with each other.
        let rig = Rig::with_table(2, &[2 << 20; 3], if seed.is_multiple_of(2) { 3 } else { 14 });
        let mut story = Story {
            rig,
            random: Random(seed),
            lease: Arc::new(DeviceLease::new(100)),
            regions: regions(0, u64::MAX, u64::MAX, true),
            roles: [MemberRole::InSync; 3],
            version: 0,
            now_ns: 0,
            pending: vec![None; ROOM as usize],
            last: 0,
            states: vec![vec![0]; BLOCKS as usize],
            reads: 0,
            slow: 0,
            kept: 0,
            lost: 0,
        };
        story.publish();
        story
    }

    fn publish(&mut self) {
        self.version += 1;
        let layout = DeviceLayout::new(self.version, 512, &mirror(&self.roles, &self.regions));
        self.rig.publish(0, Some(layout.replicated(Arc::clone(&self.lease))));
    }

    fn submit(&mut self) {
        let Some(tag) = self.pending.iter().position(Option::is_none) else { return };
        let op = [Op::Read, Op::Write][self.random.below(2) as usize];
        let first = self.random.below(BLOCKS);
        let blocks = 1 + self.random.below((BLOCKS - first).min(20));
        let memory = tag as u64 * BLOCKS * BLOCK;
        if op == Op::Write {
            for block in 0..blocks {
                self.last += 1;
                let at = (memory + block * BLOCK) as usize;
                self.rig.memory[at..at + 8].copy_from_slice(&self.last.to_le_bytes());
            }
        }
        let pending = PendingRequest { op, first, blocks, memory };
        let shard = self.random.below(2) as usize;
        let request = Request { tag: tag as u64, ..request(op, first * BLOCK, blocks * BLOCK, memory) };
        if self.rig.submit(shard, request).is_ok() {
            self.pending[tag] = Some(pending);
        }
        self.answers();
    }

    /// Completes one leaf I/O, and records what it wrote.
    fn leaf(&mut self) {
        let shard = self.random.below(2) as usize;
        let queued = self.rig.shards[shard].1.queue.len() as u64;
        if queued == 0 {
            return;
        }
        let at = self.random.below(queued) as usize;
        let io = self.rig.shards[shard].1.queue[at];
        if io.flags.has(Flags::HAS_ALTERNATIVE) && self.random.below(4) == 0 {
            self.slow += 1;
            let (shard, sink) = &mut self.rig.shards[shard];
            sink.queue.remove(at);
            shard.leaf_done(io.cookie, Err(LeafError::of(ErrorKind::Slow)), sink);
            self.answers();
            return;
        }
        self.rig.answer(shard, at);
        if io.op == Op::Write && self.rig.failing != Some(io.leaf.0) {
            for block in io.offset / BLOCK..(io.offset + io.len) / BLOCK {
                let state = self.on_disk(io.leaf.0 as usize, block);
                let states = &mut self.states[block as usize];
                if !states.contains(&state) {
                    states.push(state);
                }
            }
        }
        self.answers();
    }

    fn on_disk(&self, disk: usize, block: u64) -> u64 {
        value(&self.rig.disks[disk][(block * BLOCK) as usize..])
    }

    /// Checks the completions.
    fn answers(&mut self) -> u64 {
        let done: Vec<_> = (0..2).flat_map(|shard| self.rig.done(shard)).collect();
        for completion in &done {
            let pending = self.pending[completion.tag as usize].take().expect("one answer to each request");
            assert_eq!(completion.result, Ok(()));
            assert!(self.now_ns < self.lease.until_ns(), "the lease has run out");
            self.reads += u64::from(pending.op == Op::Read);
            for k in 0..pending.blocks {
                let block = pending.first + k;
                let states = &self.states[block as usize];
                let age = |state: u64| states.iter().position(|s| *s == state).expect("it was written");
                let returned = value(&self.rig.memory[(pending.memory + k * BLOCK) as usize..]);
                for disk in (0..3).filter(|disk| self.roles[*disk] == MemberRole::InSync) {
                    let has = self.on_disk(disk, block);
                    assert!(
                        age(has) >= age(returned),
                        "{:?} returned {returned} of block {block}, disk {disk} has {has}",
                        pending.op
                    );
                }
            }
        }
        done.len() as u64
    }

    /// Acts as the reconciler when a member has failed.
    fn faults(&mut self) {
        let faults = self.rig.faults();
        for fault in faults.iter().filter(|fault| fault.freezes_device()) {
            self.roles[usize::from(fault.role)] = MemberRole::Failed;
        }
        if faults.iter().any(Fault::freezes_device) {
            self.rig.freeze(0);
            self.lost += 1;
            self.rig.failing = None;
            self.publish();
            self.answers();
        }
    }

    fn renew(&mut self, until_ns: u64) {
        if self.lease.renew(until_ns) {
            for shard in 0..2 {
                let (shard, sink) = &mut self.rig.shards[shard];
                shard.lease_renewed(DeviceId(0), sink);
            }
            self.kept += self.answers();
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..20 => self.submit(),
            20..80 => self.leaf(),
            80..92 => drop(self.rig.deliver()),
            92..95 => self.faults(),
            95..98 => {
                self.now_ns += self.random.below(40);
                self.rig.shards.iter_mut().for_each(|(_, sink)| sink.now_ns = self.now_ns);
            }
            98 => {
                let until_ns = self.now_ns + self.random.below(100);
                self.renew(until_ns);
            }
            _ => {
                let in_sync = self.roles.iter().filter(|role| **role == MemberRole::InSync).count();
                if in_sync > 1 && self.rig.failing.is_none() && self.random.below(10) == 0 {
                    let disk = self.random.below(3);
                    self.rig.failing = (self.roles[disk as usize] == MemberRole::InSync).then_some(disk as u32);
                }
            }
        }
        self.answers();
    }

    fn end(&mut self) {
        self.rig.failing = None;
        self.renew(u64::MAX);
        for _ in 0..100_000 {
            if self.pending.iter().all(Option::is_none) {
                break;
            }
            self.rig.deliver();
            self.faults();
            self.leaf();
            self.answers();
        }
        self.rig.deliver();
        assert!(self.pending.iter().all(Option::is_none), "a request is never answered");
        assert!(self.rig.shards.iter().all(|(shard, _)| shard.slots_in_use() == 0));
    }
}

#[test]
fn what_a_read_has_returned_is_on_all_members() {
    let (mut reads, mut slow, mut kept, mut lost) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut story = Story::new(seed);
        for _ in 0..4000 {
            story.step();
        }
        story.end();
        (reads, slow) = (reads + story.reads, slow + story.slow);
        (kept, lost) = (kept + story.kept, lost + story.lost);
    }
    assert!(reads > 5000 && slow > 500, "{reads} reads, {slow} slow");
    assert!(kept > 500 && lost > 40, "{kept} kept, {lost} lost");
}

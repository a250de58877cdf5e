//! After a crash: the pool is opened, with more crashes on the way, and every block in it is read and checked.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use braid_engine::pool::{BlockLocation, ExtentId, LogMemory, OpenPool, Pool, open};
use braid_engine::{DeviceId, DeviceIo, ErrorKind, IoError};
use braid_format::pool::{Checkpoint, OwnerKind};

use super::bugs::{Bug, is_active};
use super::disk::Disk;
use super::missing_members::in_doubt;
use super::oracle::{Block, Rule};
use super::requests::is_of;
use super::world::{Check, Lifecycle, Shm, World};
use crate::rng::Rng;

const BLOCK: u64 = 4096;

/// The disks, until the process dies.
struct DyingDisks {
    disks: RefCell<Vec<Disk>>,
    left: Cell<u64>,
    /// The member whose I/Os fail once `left` is used up; `None`: those of all members.
    only: Option<u32>,
    /// A page of one member that cannot be read.
    unreadable: Option<(u32, u64)>,
    /// The member that has no space, and the number of writes to it that succeed before.
    full: Cell<Option<(u32, u64)>>,
    rng: RefCell<Rng>,
}

impl DyingDisks {
    fn step(&self, device: DeviceId) -> Result<(), IoError> {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        let fails = left == 0 && self.only.is_none_or(|only| only == device.0);
        if fails { Err(IoError::of(ErrorKind::Gone)) } else { Ok(()) }
    }

    fn space(&self, device: DeviceId) -> Result<(), IoError> {
        let Some((of, left)) = self.full.get().filter(|(of, _)| *of == device.0) else { return Ok(()) };
        self.full.set(Some((of, left.saturating_sub(1))));
        if left == 0 { Err(IoError::of(ErrorKind::NoSpace)) } else { Ok(()) }
    }
}

impl DeviceIo for DyingDisks {
    fn size_bytes(&self, _device: DeviceId) -> u64 {
        u64::MAX
    }

    fn block_bytes(&self, _device: DeviceId) -> u32 {
        512
    }

    async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        self.step(device)?;
        if self.unreadable.is_some_and(|(of, at)| of == device.0 && (offset..offset + len as u64).contains(&at)) {
            return Err(IoError::of(ErrorKind::Io));
        }
        Ok(self.disks.borrow()[device.0 as usize].read(offset, len))
    }

    async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, _fua: bool) -> Result<(), IoError> {
        let cut = self.step(device).and_then(|()| self.space(device));
        if cut.is_err() {
            // Some of the write arrives.
            self.disks.borrow_mut()[device.0 as usize].write_torn(offset, &data, &mut self.rng.borrow_mut());
        }
        cut?;
        self.disks.borrow_mut()[device.0 as usize].write(offset, &data);
        Ok(())
    }

    async fn flush(&self, device: DeviceId) -> Result<(), IoError> {
        self.step(device)?;
        let disk = &mut self.disks.borrow_mut()[device.0 as usize];
        let mark = disk.mark();
        disk.flushed(mark);
        Ok(())
    }

    async fn discard(&self, device: DeviceId, _offset: u64, _len: u64) -> Result<(), IoError> {
        self.step(device)
    }
}

/// Polls a future once. It waits for nothing but itself.
fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("everything answers at once"),
    }
}

impl World {
    /// Writes the initial metadata of a new pool.
    pub(super) fn make_disks(&mut self) {
        for device in &self.devices {
            let disk = &mut self.disks[usize::from(device.number)];
            let start = Checkpoint::first(&self.uuid, 1);
            disk.write(device.layout.starts, &start.encode());
            let mark = disk.mark();
            disk.flushed(mark);
        }
    }

    /// Opens the pool after a crash of this kind.
    pub(super) fn reopen(&mut self, mut rule: Rule) -> Check {
        let mut cuts = if self.rng.coin() { self.rng.below(3) } else { 0 };
        loop {
            self.return_members()?;
            self.return_lost_member()?;
            // The labels no longer name some members, and the pool did not learn of it before the crash.
            self.accept_some_losses();
            let left = if cuts > 0 { self.rng.below(60) } else { u64::MAX };
            let only = self.rng.chance(300_000).then(|| u32::from(*self.rng.pick(&self.present_members())));
            self.draw_space_of_start();
            match self.try_open(left, only) {
                Ok((pool, _)) => {
                    self.pool = Some(pool);
                    self.start_found_space();
                    break;
                }
                Err(error) if self.is_refused_return(&error) => {}
                Err(error) if self.start_found_no_space(&error) => {
                    if !self.missing.is_empty() {
                        self.start_participants =
                            self.present_members().into_iter().fold(0, |all, number| all | 1 << number);
                    }
                    // The start is repeated, by the same process or by another one.
                    if self.crashes_without_space() {
                        if let Rule::Power = self.crash() {
                            rule = Rule::Power;
                        }
                        rule = self.lose_member(rule);
                    }
                }
                Err(_) if cuts > 0 => {
                    cuts -= 1;
                    self.count("crashes of starts");
                    if !self.missing.is_empty() {
                        self.start_participants =
                            self.present_members().into_iter().fold(0, |all, number| all | 1 << number);
                    }
                    if let Rule::Power = self.crash() {
                        rule = Rule::Power;
                    }
                    rule = self.lose_member(rule);
                }
                Err(error) => return Err(format!("the pool does not open: {error}")),
            }
        }
        self.count("starts");
        self.start_participants = 0;
        let came = std::mem::take(&mut self.returned).len() as u64;
        self.counters.add("", "members returned", came);
        if !self.missing.is_empty() {
            self.continue_without_missing();
            self.count("starts without a member");
        }
        self.accept_losses()?;
        self.check_all(rule)
    }

    /// Opens the pool. After `left` I/Os all I/Os fail, or those of one member. Returns the pool and the number of I/Os
    /// that it took.
    pub(super) fn try_open(&mut self, left: u64, only: Option<u32>) -> Result<(Pool, u64), String> {
        let run = self.rng.bits() | 1;
        let (disks, rng) = (RefCell::new(std::mem::take(&mut self.disks)), RefCell::new(self.rng.fork()));
        let unreadable = self.unreadable;
        let full = Cell::new(self.full.start_fault.take());
        let io = DyingDisks { disks, left: Cell::new(left), only, unreadable, full, rng };
        let members: Vec<_> = self.devices.iter().filter(|device| self.is_present(device.number)).copied().collect();
        let (uuid, owner_slots, missing_mask) = (self.uuid, self.owner_slots, self.missing_mask());
        let what = OpenPool {
            uuid,
            members: &members,
            owner_slots,
            missing: missing_mask,
            overwrites_unreadable: self.overwrites_unreadable,
            run,
        };
        let old = |session: u64| self.shm.get(&session).map(|memory| Arc::clone(memory) as Arc<dyn LogMemory>);
        let made = RefCell::new(Vec::new());
        let begin = |session: u64, bytes: u64| {
            let memory = Shm::new(bytes);
            made.borrow_mut().push((session, Arc::clone(&memory)));
            Ok(memory as Arc<dyn LogMemory>)
        };
        let result = poll_once(open(&io, &what, old, begin));
        let took = left - io.left.get();
        self.disks = io.disks.into_inner();
        if is_active(Bug::LogDroppedEarly) {
            self.shm.clear();
        }
        for (session, memory) in made.into_inner() {
            self.shm.insert(session, memory);
        }
        let pool = result.map_err(|error| error.to_string())?;
        // The pool is open, and the content of the older in-memory logs is committed: only now may these be freed.
        let newest = self.shm.keys().last().copied();
        self.shm.retain(|session, _| Some(*session) == newest);
        Ok((pool, took))
    }

    /// Reads every block and checks it. The words that are found become the state from which the oracle continues.
    pub(super) fn check_all(&mut self, rule: Rule) -> Check {
        let present: Vec<_> = {
            let owners = &self.pool.as_ref().expect("open").state().owners;
            owners
                .iter()
                .filter(|owner| owner.kind != OwnerKind::Nameless)
                .map(|owner| (owner.uuid, owner.id))
                .collect()
        };
        for (uuid, id) in &present {
            let Some(model) = self.models.get(uuid) else { return Err(format!("owner {id}, {uuid}, is nobody's")) };
            let _ = model;
        }
        let (missing_mask, mut doubtful, mut lost) = (self.missing_mask() | self.rotten, 0, 0);
        // Objects that were requested together take effect together.
        let (mut gone, mut came) = (BTreeSet::new(), BTreeSet::new());
        let uuids: Vec<_> = self.models.keys().copied().collect();
        for uuid in uuids {
            let there = present.iter().find(|(other, _)| *other == uuid).map(|(_, id)| *id);
            let model = &self.models[&uuid];
            let Some(owner) = there else {
                match model.lifecycle {
                    Lifecycle::Creating(group) => {
                        gone.insert(group);
                        self.models.remove(&uuid);
                        continue;
                    }
                    Lifecycle::Deleting => {
                        self.models.remove(&uuid);
                        continue;
                    }
                    _ => return Err(format!("{} is gone", model.name)),
                }
            };
            let words = self.read_all(owner)?;
            let model = self.models.get_mut(&uuid).expect("known");
            if let Lifecycle::Creating(group) = model.lifecycle {
                came.insert(group);
            }
            // A volume whose policy was changed may have blocks anywhere.
            if !self.policy_changed
                && model.member_mask & missing_mask == 0
                && let Some(k) = words.iter().position(Option::is_none)
            {
                return Err(format!(
                    "block {k} of {} is in doubt, and nothing of it is on absent or rotten members",
                    model.name
                ));
            }
            doubtful += words.iter().filter(|word| word.is_none()).count() as u64;
            if model.blocks_before == Some(words.len()) {
                model.blocks.truncate(words.len());
            }
            model.blocks_before = None;
            let is_whole = |blocks: &[Block]| blocks.len() == words.len();
            let fits = |blocks: &[Block], until: u64| {
                let wrong = (0..)
                    .zip(blocks)
                    .zip(&words)
                    .filter_map(|((k, block), word)| Some((k, block, (*word)?)))
                    .find(|(_, block, word)| !block.admissible(until, rule).contains(word));
                wrong
                    .map(|(k, block, word): (usize, &Block, _)| (k, word, block.admissible(until, rule), block.clone()))
            };
            let mut wrong = fits(&model.blocks, model.until);
            // A block whose loss was accepted may read as any earlier content of its own, but never as another
            // volume's.
            let loss_is_accepted =
                self.accepted_losses & model.member_mask != 0 || self.policy_changed && self.accepted_losses != 0;
            if loss_is_accepted {
                let stray = (0..).zip(&words).filter_map(|(k, word)| Some((k, (*word)?)));
                let is_foreign = |(k, word): &(u64, u64)| !is_of(*word, &model.writers, *k);
                if let Some((k, word)) = stray.clone().find(is_foreign) {
                    return Err(format!(
                        "block {k} of {} reads as {word:x}, which is of another block or volume",
                        model.name
                    ));
                }
                lost += u64::from(wrong.take().is_some());
            }
            let turned = match &model.lifecycle {
                Lifecycle::Changing(blocks) => {
                    is_whole(blocks) && (loss_is_accepted || fits(blocks, u64::MAX).is_none())
                }
                _ => false,
            };
            if !is_whole(&model.blocks) && !turned {
                return Err(format!("{} has {} blocks, not {}", model.name, words.len(), model.blocks.len()));
            }
            if let Some((k, word, allowed, block)) = wrong
                && !turned
            {
                if self.trace {
                    self.dump(k as u64);
                }
                let model = &self.models[&uuid];
                return Err(format!(
                    "after {rule:?}, block {k} of {} reads as {word:x}, not one of {allowed:x?}: {block:x?}",
                    model.name
                ));
            }
            let turned = match &model.lifecycle {
                Lifecycle::Changing(blocks) => blocks.as_slice(),
                _ => &[],
            };
            // A block that could not be read may still hold any of its possible contents.
            let block = |(k, word): (usize, Option<u64>)| match word {
                Some(word) => Block::of(word),
                None => {
                    let may: Vec<&Block> = [model.blocks.get(k), turned.get(k)].into_iter().flatten().collect();
                    in_doubt(&may, model.until, rule)
                }
            };
            model.blocks = words.into_iter().enumerate().map(block).collect();
            model.until = u64::MAX;
            model.lifecycle = Lifecycle::Exists;
            if model.snapshot_of.is_none() || self.rng.chance(300_000) {
                let served = self.pool().serve(owner).map_err(|error| error.to_string())?;
                self.models.get_mut(&uuid).expect("known").served = Some(served);
            }
        }
        if let Some(group) = came.intersection(&gone).next() {
            return Err(format!("of the snapshots that were asked for together, {group}, some are there"));
        }
        self.counters.add("", "blocks in doubt", doubtful);
        self.counters.add("rot", "volumes that lost something", lost);
        // A block that cannot be read yet may turn out to be lost with these members.
        if doubtful == 0 {
            self.accepted_losses = 0;
        }
        self.verify_all()
    }

    /// Reads every block of a volume or snapshot; `None` for a block in doubt.
    fn read_all(&mut self, owner: u32) -> Result<Vec<Option<u64>>, String> {
        let served = self.pool().serve(owner).map_err(|error| error.to_string())?;
        let pool = self.pool.as_ref().expect("open");
        let blocks = pool.state().owners.get(owner).expect("there").size_bytes / BLOCK;
        let map = &pool.volume(served).expect("served").map;
        let records = &pool.shared().records;
        let mut words = Vec::with_capacity(blocks as usize);
        while (words.len() as u64) < blocks {
            match map.find(records, words.len() as u64, (blocks - words.len() as u64).min(64) as u32) {
                BlockLocation::Nothing { blocks } => words.extend((0..blocks).map(|_| Some(0))),
                BlockLocation::At { extent: ExtentId::IN_DOUBT, blocks, .. } => words.extend((0..blocks).map(|_| None)),
                BlockLocation::At { extent, position, blocks } => {
                    let offset = pool.extent_offset(extent) + u64::from(position) * BLOCK;
                    let disk = &self.disks[usize::from(extent.member)];
                    words.extend((0..u64::from(blocks)).map(|k| Some(disk.block(offset + k * BLOCK))));
                }
            }
        }
        self.pool().stop_serving(served);
        Ok(words)
    }
}

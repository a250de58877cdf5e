//! The oracle: which versions of each block a read may return, derived from requests, replies and crashes only.
//!
//! Every write has a version. A version is *possible* in a sector until a write that began after it has certainly
//! replaced it. This holds even if the version itself is still in flight: its client may have abandoned it when its
//! connection broke.
//!
//! - While the process lives, and after a kill, an acknowledged write is certain.
//! - After a power cut only a *required* write is certain: it was acknowledged with FUA, or acknowledged before a
//!   flush began that was itself acknowledged, or read after a recovery. Data that was once read after a recovery
//!   never goes back.
//! - Of writes that were all acknowledged and that nothing else orders, the one that is read while nothing is in
//!   flight stays until a power cut: copies must not differ.
//!
//! Every other write (in flight at the crash, failed, unflushed at a power cut) may have taken effect or not, each
//! sector on its own. A read of anything but a possible version is a violation.

use std::collections::BTreeMap;
use std::fmt;

use std::sync::Arc;

use braid_engine::{DeviceLease, MemberSet};

use crate::content::{self, BLOCK_BYTES, BLOCK_SECTORS, Identity, SECTOR_BYTES, Sector};
use crate::stripe_writes::{Excuse, StripeWrites, UnreadableBlocks, UnreadableStripes};
use crate::world::Crash;

/// All sectors of a block.
pub const ALL: u8 = 0xff;

/// The content that a version gives a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// What the disks held when the device was created. A read may return any content except poison and workload data
    /// of this device or of another device that is in use.
    Initial,
    /// As [`Content::Initial`], for blocks that a plain device gained by growing. The number is that of the newest
    /// device at the time of the growth: only devices up to it can have written these blocks before.
    Found(u64),
    /// Blocks that identify themselves.
    Data,
    /// Zeros.
    Zero,
    /// The result of a discard: zeros, or the previous content.
    MaybeZero,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not answered yet.
    Running,
    /// Acknowledged, and no power cut has come since.
    Acknowledged,
    /// It is unknown whether it took effect.
    Unknown,
}

#[derive(Clone, Debug)]
struct Version {
    id: u64,
    content: Content,
    state: State,
    begun: u64,
    ended: u64,
    /// Bit mask of the sectors in which a read may still return this version.
    possible: u8,
    /// Bit mask of the sectors in which this version survives a power cut.
    required: u8,
    /// For each sector, the time from which reads never return this version: a read returned another version while
    /// every write of the block had ended and none of this life had failed. Reads that began earlier may still return
    /// it. A power cut resets the time to [`NEVER`].
    hidden: [u64; BLOCK_SECTORS],
    /// For each sector, when a read of a device that answers under a lease first returned this version. For reads that
    /// begin later, this version has replaced the older ones.
    observed: [u64; BLOCK_SECTORS],
    /// The life of the process that wrote it.
    life: u32,
    /// Bit mask of the sectors that the request covered.
    covers: u8,
}

const NOT_ENDED: u64 = u64::MAX;
const NEVER: [u64; BLOCK_SECTORS] = [u64::MAX; BLOCK_SECTORS];

impl Version {
    /// Returns whether a read that began at `reader` must not return `older` in `sector`, because this version has
    /// replaced it. It has if it covers the sector, is no discard and began after `older`, and if before `reader` it
    /// was certain and ended, or another read of a leased device returned it.
    fn replaced(&self, older: &Version, sector: usize, reader: u64) -> bool {
        let certain = self.state == State::Acknowledged || self.required & (1 << sector) != 0;
        let since = if certain { self.ended } else { NOT_ENDED }.min(self.observed[sector]);
        // Overlapping writes execute in arrival order. So it suffices that `older` began earlier: it may still be in
        // flight.
        let hides = self.content != Content::MaybeZero && self.covers & (1 << sector) != 0;
        hides && self.begun > older.begun && since < reader
    }
}

struct Device {
    name: String,
    redundant: bool,
    may_fail: bool,
    /// The lease under which the device answers: no later read contradicts an earlier one.
    lease: Option<Arc<DeviceLease>>,
    /// The device accepts requests of whole sectors.
    in_sectors: bool,
    blocks: Vec<Vec<Version>>,
    reads: BTreeMap<u64, u32>,
    live: bool,
    /// Blocks that reads do not check because a copy has rotted. For a repaired block: until when reads that began
    /// earlier are not checked.
    rotten: BTreeMap<u64, u64>,
    /// Blocks that no copy can supply. A read that began before this time may fail.
    unreadable: BTreeMap<u64, u64>,
    /// Blocks whose content a crash together with the loss of members destroyed: their stripe cannot be reconstructed,
    /// and reads of them may fail.
    unreadable_stripes: UnreadableBlocks,
    /// The writes that can justify unreadable stripes.
    stripe_writes: StripeWrites,
}

/// A write that has begun. [`Oracle::write_ended`] ends it.
#[derive(Clone, Copy, Debug)]
pub struct WriteToken {
    device: u64,
    first: u64,
    count: u64,
    /// The version number that the client must write into each block.
    pub version: u64,
    /// When the write began, on the oracle's clock, which counts calls.
    pub begun: u64,
    fua: bool,
}

impl WriteToken {
    /// Returns the first block of the write.
    pub fn first_block(&self) -> u64 {
        self.first
    }
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It was acknowledged.
    Done,
    /// It was answered with an error: it may have taken effect in part.
    Failed,
}

/// A guarantee of the engine was broken, for example by a read of wrong content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks all devices of a run.
#[derive(Default)]
pub struct Oracle {
    devices: BTreeMap<u64, Device>,
    clock: u64,
    last_device: u64,
    last_version: u64,
    life: u32,
}

impl Oracle {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Registers a new device of `blocks` blocks. Returns the number of the device.
    pub fn device_made(&mut self, name: &str, blocks: u64) -> u64 {
        self.make(name, blocks, false)
    }

    /// Registers a new redundant array of `blocks` blocks: it reads as zeros, and a discard makes zeros. Returns its
    /// number.
    pub fn redundant_made(&mut self, name: &str, blocks: u64) -> u64 {
        self.make(name, blocks, true)
    }

    /// Returns whether the device is a redundant array.
    pub fn is_redundant(&self, device: u64) -> bool {
        self.devices[&device].redundant
    }

    /// Allows errors: more members may be lost than the array tolerates. Wrong data stays a violation.
    pub fn may_fail(&mut self, device: u64) {
        self.devices.get_mut(&device).expect("a device that was made").may_fail = true;
    }

    /// Returns whether requests to the device may fail after a disk fault: the device has no redundancy, or may lose
    /// more members than it tolerates.
    pub fn fails(&self, device: u64) -> bool {
        self.devices[&device].may_fail
    }

    /// Makes the device answer under this lease, as an array whose members are on several nodes does.
    pub fn answers_under(&mut self, device: u64, lease: Arc<DeviceLease>) {
        self.devices.get_mut(&device).expect("a device that was made").lease = Some(lease);
    }

    /// Makes the device accept requests of whole sectors.
    pub fn takes_sectors(&mut self, device: u64) {
        self.devices.get_mut(&device).expect("a device that was made").in_sectors = true;
    }

    /// Returns whether the device accepts requests of whole sectors.
    pub fn is_in_sectors(&self, device: u64) -> bool {
        self.devices[&device].in_sectors
    }

    /// Returns whether the device answers under a lease.
    pub fn is_leased(&self, device: u64) -> bool {
        self.devices[&device].lease.is_some()
    }

    /// Checks a successful reply of the device against its lease.
    ///
    /// # Errors
    /// The lease has expired.
    pub fn answered(&self, device: u64, now_ns: u64) -> Result<(), Violation> {
        let Device { name, lease, .. } = &self.devices[&device];
        match lease {
            Some(lease) if now_ns >= lease.until_ns() => Err(Violation(format!("{name} answers without a lease"))),
            _ => Ok(()),
        }
    }

    fn make(&mut self, name: &str, blocks: u64, redundant: bool) -> u64 {
        self.last_device += 1;
        let initial = self.first(if redundant { Content::Zero } else { Content::Initial });
        let blocks = (0..blocks).map(|_| vec![initial.clone()]).collect();
        let device = Device {
            name: name.to_owned(),
            redundant,
            may_fail: !redundant,
            lease: None,
            in_sectors: false,
            blocks,
            reads: BTreeMap::new(),
            live: true,
            rotten: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            unreadable_stripes: UnreadableBlocks::default(),
            stripe_writes: StripeWrites::default(),
        };
        self.devices.insert(self.last_device, device);
        self.last_device
    }

    fn first(&mut self, content: Content) -> Version {
        let now = self.tick();
        Version {
            id: 0,
            content,
            state: State::Acknowledged,
            begun: now,
            ended: now,
            possible: ALL,
            required: ALL,
            hidden: NEVER,
            observed: NEVER,
            life: self.life,
            covers: ALL,
        }
    }

    /// Records that the device has grown to `blocks` blocks.
    pub fn grown(&mut self, device: u64, blocks: u64) {
        let redundant = self.is_redundant(device);
        let initial = self.first(if redundant { Content::Zero } else { Content::Found(self.last_device) });
        let of = self.devices.get_mut(&device).expect("a device that was made");
        of.blocks.resize(blocks as usize, vec![initial]);
    }

    /// Records that the device was deleted. A plain array that is created later on the same disks may return the
    /// deleted device's data as its initial content.
    pub fn device_deleted(&mut self, device: u64) {
        self.devices.get_mut(&device).expect("a device that was made").live = false;
    }

    /// Returns the number of blocks of a device.
    pub fn blocks(&self, device: u64) -> u64 {
        self.devices[&device].blocks.len() as u64
    }

    /// Records that a write of `count` blocks from `first` on is about to be submitted.
    pub fn write_begun(&mut self, device: u64, first: u64, count: u64, content: Content, fua: bool) -> WriteToken {
        self.write_begun_in(device, (first, count), &|_| ALL, content, fua)
    }

    /// As [`Oracle::write_begun`], for a write that covers these `sectors` of each block.
    pub fn write_begun_in(
        &mut self,
        device: u64,
        (first, count): (u64, u64),
        sectors: &dyn Fn(u64) -> u8,
        content: Content,
        fua: bool,
    ) -> WriteToken {
        self.last_version += 1;
        let (version, begun, life) = (self.last_version, self.tick(), self.life);
        let of = self.devices.get_mut(&device).expect("a device that was made");
        let oldest_read = of.reads.keys().next().copied().unwrap_or(begun);
        of.stripe_writes.begun(version, first, count, begun, content == Content::Data && !fua);
        for block in first..first + count {
            let versions = &mut of.blocks[block as usize];
            prune(versions, oldest_read);
            versions.push(Version {
                id: version,
                content,
                state: State::Running,
                begun,
                ended: NOT_ENDED,
                possible: sectors(block),
                required: 0,
                hidden: NEVER,
                observed: NEVER,
                life,
                covers: sectors(block),
            });
        }
        WriteToken { device, first, count, version, begun, fua }
    }

    /// Records that the write was answered.
    pub fn write_ended(&mut self, write: &WriteToken, ending: Ending) {
        let now = self.tick();
        let of = self.devices.get_mut(&write.device).expect("a device that was made");
        of.stripe_writes.ended(write.version, now, ending == Ending::Done);
        if ending == Ending::Done {
            of.unreadable_stripes.written(write.first, write.count, now);
        }
        for block in write.first..write.first + write.count {
            let version = of.blocks[block as usize].iter_mut().find(|v| v.id == write.version);
            let version = version.expect("a running version is kept");
            version.ended = now;
            match ending {
                Ending::Done => {
                    version.state = State::Acknowledged;
                    version.required =
                        if write.fua && version.content != Content::MaybeZero { version.covers } else { 0 };
                    if let Some(until) = of.unreadable.get_mut(&block) {
                        *until = now.min(*until);
                    }
                }
                Ending::Failed => version.state = State::Unknown,
            }
        }
    }

    /// Records that the write was refused before it was accepted: it never takes effect.
    pub fn write_refused(&mut self, write: &WriteToken) {
        let of = self.devices.get_mut(&write.device).expect("a device that was made");
        of.stripe_writes.refused(write.version);
        for block in write.first..write.first + write.count {
            of.blocks[block as usize].retain(|v| v.id != write.version);
        }
    }

    /// Records that a flush is about to be submitted. Returns when it begins.
    pub fn flush_begun(&mut self) -> u64 {
        self.tick()
    }

    /// Records that a flush that began at `begun` was acknowledged.
    pub fn flush_done(&mut self, device: u64, begun: u64) {
        let of = self.devices.get_mut(&device).expect("a device that was made");
        of.stripe_writes.flushed(begun);
        for version in of.blocks.iter_mut().flatten() {
            if version.state == State::Acknowledged && version.ended < begun && version.content != Content::MaybeZero {
                version.required = version.possible;
            }
        }
    }

    /// Records that a copy of a block has rotted: reads of the block are not checked.
    pub fn mark_rotten(&mut self, device: u64, block: u64) {
        self.devices.get_mut(&device).expect("a device that was made").rotten.insert(block, u64::MAX);
    }

    /// Returns whether a copy of a block has rotted and is not repaired.
    pub fn is_rotten(&self, device: u64, block: u64) -> bool {
        self.devices[&device].rotten.get(&block) == Some(&u64::MAX)
    }

    /// Records that the copies of a block are equal again: reads that begin from now on are checked.
    pub fn mark_repaired(&mut self, device: u64, block: u64) {
        let now = self.tick();
        self.devices.get_mut(&device).expect("a device that was made").rotten.insert(block, now);
    }

    /// Records that no copy of a block can be read until it is written.
    pub fn mark_unreadable(&mut self, device: u64, block: u64) {
        self.devices.get_mut(&device).expect("a device that was made").unreadable.insert(block, u64::MAX);
    }

    /// Returns whether a read of these blocks that began at `begun` may find one of them unreadable.
    pub fn may_be_unreadable(&self, device: u64, begun: u64, first: u64, count: u64) -> bool {
        self.devices[&device].unreadable.range(first..first + count).any(|(_, until)| begun < *until)
    }

    /// Records which stripes an array with parity cannot read when it begins to serve. `missing` are its members that
    /// are not in sync.
    ///
    /// With `excused.all` no stripe is checked. With `excused.journal_lost` blocks that were unreadable before are not
    /// checked.
    ///
    /// # Errors
    /// A stripe is unreadable without a justification.
    pub fn stripes_unreadable(
        &mut self,
        device: u64,
        unreadable_stripes: &UnreadableStripes,
        missing: MemberSet,
        excused: Excuse,
    ) -> Result<(), Violation> {
        let of = self.devices.get_mut(&device).expect("a device that was made");
        let is_new = |block: &u64| {
            unreadable_stripes.blocks.binary_search(block).is_ok()
                && !of.unreadable_stripes.is_unreadable(*block)
                && !(excused.journal_lost && of.unreadable_stripes.was_unreadable(*block))
        };
        for stripe in
            unreadable_stripes.stripes.iter().filter(|stripe| !excused.all && stripe.blocks.iter().any(is_new))
        {
            of.stripe_writes.check_unreadable(stripe).map_err(|why| Violation(format!("{}: {why}", of.name)))?;
        }
        of.stripe_writes.begin(missing);
        of.unreadable_stripes = UnreadableBlocks::new(&unreadable_stripes.blocks);
        Ok(())
    }

    /// Records that these blocks cannot be read, without a check.
    pub fn mark_stripes_unreadable(&mut self, device: u64, unreadable_stripes: &UnreadableStripes) {
        self.devices.get_mut(&device).expect("a device that was made").unreadable_stripes =
            UnreadableBlocks::new(&unreadable_stripes.blocks);
    }

    /// Returns the writes to an array with parity that the journal may only mark.
    pub fn stripe_writes(&mut self, device: u64) -> &mut StripeWrites {
        &mut self.devices.get_mut(&device).expect("a device that was made").stripe_writes
    }

    /// Returns whether any of these blocks could not be read at time `since` or later because its stripe had lost it.
    pub fn is_stripe_unreadable(&self, device: u64, since: u64, first: u64, count: u64) -> bool {
        self.devices[&device].unreadable_stripes.has(since, first, count)
    }

    /// Returns the ranges that cannot be read because a stripe has lost them, as first block and count: writing them
    /// makes them readable.
    pub fn unreadable_ranges(&self, device: u64) -> Vec<(u64, u64)> {
        self.devices[&device].unreadable_stripes.ranges()
    }

    /// Returns the blocks that no copy can supply.
    pub fn unreadable_blocks(&self, device: u64) -> Vec<u64> {
        let all = self.devices[&device].unreadable.iter();
        all.filter(|(_, until)| **until == u64::MAX).map(|(block, _)| *block).collect()
    }

    /// Records that a read is about to be submitted. Returns when it begins.
    pub fn read_begun(&mut self, device: u64) -> u64 {
        let now = self.tick();
        *self.devices.get_mut(&device).expect("a device that was made").reads.entry(now).or_insert(0) += 1;
        now
    }

    /// Ends a read that began at `begun` and checks its data, which begins at block `first`. `None`: the read failed;
    /// nothing is checked.
    ///
    /// # Errors
    /// As [`Oracle::read_ended_in`].
    pub fn read_ended(&mut self, device: u64, begun: u64, first: u64, data: Option<&[u8]>) -> Result<(), Violation> {
        self.read_ended_in(device, begun, first, &|_| ALL, data)
    }

    /// As [`Oracle::read_ended`], for a read that covers these `sectors` of each block. The other sectors of `data`
    /// are ignored.
    ///
    /// # Errors
    /// A sector holds none of the versions that the read may return.
    pub fn read_ended_in(
        &mut self,
        device: u64,
        begun: u64,
        first: u64,
        sectors: &dyn Fn(u64) -> u8,
        data: Option<&[u8]>,
    ) -> Result<(), Violation> {
        let now = self.tick();
        let live: Vec<u64> = self.devices.iter().filter(|(_, d)| d.live).map(|(n, _)| *n).collect();
        let of = self.devices.get_mut(&device).expect("a device that was made");
        if let Some(readers) = of.reads.get_mut(&begun) {
            *readers -= 1;
            if *readers == 0 {
                of.reads.remove(&begun);
            }
        }
        let Some(data) = data else { return Ok(()) };
        for (i, bytes) in data.chunks_exact(BLOCK_BYTES).enumerate() {
            let block = first + i as u64;
            if of.rotten.get(&block).is_some_and(|until| begun < *until) {
                continue;
            }
            let ordered = of.lease.is_some();
            let check = ReadCheck { device, block, begun, now, life: self.life, live: &live, ordered };
            let versions = &mut of.blocks[block as usize];
            let of_request = |(sector, _): &(usize, &[u8])| sectors(block) & (1 << sector) != 0;
            for (sector, bytes) in bytes.chunks_exact(SECTOR_BYTES).enumerate().filter(of_request) {
                let seen = content::read_sector(bytes, sector);
                check.sector(versions, sector, &seen).map_err(|why| {
                    Violation(format!("block {block} of {} (device {device}), sector {sector}: {why}", of.name))
                })?;
            }
            versions.retain(|v| v.possible != 0 || v.state == State::Running);
        }
        Ok(())
    }

    /// Records the end of the process. On devices in `weak`, more acknowledged data was lost than a crash of this kind
    /// explains, because a flush failed or a disk was pulled: there, as after a power cut, only required versions are
    /// certain.
    pub fn crashed(&mut self, how: Crash, weak: &[u64]) {
        let now = self.tick();
        self.life += 1;
        for (number, device) in &mut self.devices {
            let weak = weak.contains(number);
            device.reads.clear();
            device.stripe_writes.crashed(now);
            for versions in &mut device.blocks {
                for version in versions.iter_mut() {
                    if how == Crash::Power || weak {
                        (version.hidden, version.observed) = (NEVER, NEVER);
                    }
                    match version.state {
                        State::Running => {
                            version.ended = now;
                            version.state = State::Unknown;
                        }
                        State::Acknowledged if how == Crash::Power || weak => version.state = State::Unknown,
                        _ => {}
                    }
                }
                prune(versions, now);
            }
        }
    }
}

/// The check of one block of one read.
struct ReadCheck<'a> {
    device: u64,
    block: u64,
    begun: u64,
    now: u64,
    life: u32,
    live: &'a [u64],
    /// Reads are totally ordered: the device answers under a lease.
    ordered: bool,
}

impl ReadCheck<'_> {
    fn initial(&self, seen: &Sector, last: u64) -> bool {
        match seen {
            Sector::Data(id) | Sector::Damaged(id) => {
                let other = id.device <= last && id.device != self.device;
                other && self.live.binary_search(&id.device).is_err()
            }
            Sector::Poison => false,
            Sector::Zero | Sector::Junk | Sector::Other => true,
        }
    }

    fn shows(&self, version: &Version, seen: &Sector) -> bool {
        match (version.content, seen) {
            (Content::Initial, seen) => self.initial(seen, self.device),
            (Content::Found(last), seen) => self.initial(seen, last),
            (Content::Data, Sector::Data(id)) => {
                *id == Identity { device: self.device, block: self.block, version: version.id }
            }
            (Content::Zero | Content::MaybeZero, Sector::Zero) => true,
            _ => false,
        }
    }

    fn sector(&self, versions: &mut [Version], sector: usize, seen: &Sector) -> Result<(), String> {
        let bit = 1u8 << sector;
        let may_be = |v: &&Version| {
            v.possible & bit != 0
                && v.hidden[sector] > self.begun
                && !versions.iter().any(|newer| newer.replaced(v, sector, self.begun))
        };
        let found: Vec<u64> = versions.iter().filter(may_be).filter(|v| self.shows(v, seen)).map(|v| v.id).collect();
        if found.is_empty() {
            let list = |of: Vec<String>| if of.is_empty() { "nothing".to_owned() } else { of.join(", ") };
            let possible = list(versions.iter().filter(may_be).map(describe).collect());
            let known = list(versions.iter().map(describe).collect());
            return Err(format!("read {seen:?}; possible: {possible}; known: {known}"));
        }
        let shows_through = versions.iter().filter(may_be).any(|v| v.content == Content::MaybeZero);
        if let (true, [version_id]) = (self.ordered, &found[..]) {
            for version in versions.iter_mut().filter(|v| v.id == *version_id) {
                version.observed[sector] = version.observed[sector].min(self.now);
            }
        }
        // If a discard may or may not have made zeros of this sector, the content read does not tell which version is
        // in effect: record nothing.
        if shows_through {
            return Ok(());
        }
        // The initial content of a disk is unknown. If the content read may be initial, it does not tell which version
        // is in effect, either.
        let initial = |v: &Version| matches!(v.content, Content::Initial | Content::Found(_)) && found.contains(&v.id);
        if versions.iter().any(initial) {
            return Ok(());
        }
        // All versions that were found are from earlier lives: the recovery has decided. From now on only these are
        // possible among the versions of earlier lives, and they survive power cuts.
        if found.iter().all(|id| versions.iter().any(|v| v.id == *id && v.life < self.life)) {
            for version in versions.iter_mut().filter(|v| v.life < self.life) {
                if found.contains(&version.id) {
                    version.required |= bit;
                } else {
                    version.possible &= !bit;
                    version.required &= !bit;
                }
            }
        }
        // Every write of the block had ended before the read began, and none of this life had failed: until a power
        // cut, later reads return the same content.
        let calm = |v: &Version| v.ended < self.begun && (v.state == State::Acknowledged || v.life < self.life);
        if versions.iter().all(calm) {
            for version in versions.iter_mut().filter(|v| !found.contains(&v.id)) {
                version.hidden[sector] = version.hidden[sector].min(self.now);
            }
        }
        Ok(())
    }
}

/// Drops versions that no read that began at or after `oldest_read` can return, whatever crashes follow.
fn prune(versions: &mut Vec<Version>, oldest_read: u64) {
    if versions.len() < 2 {
        return;
    }
    for i in 0..versions.len() {
        for sector in 0..BLOCK_SECTORS {
            let bit = 1u8 << sector;
            let (older, newer) = (&versions[i], &versions);
            let gone = newer.iter().any(|n| n.required & bit != 0 && n.replaced(older, sector, oldest_read));
            if gone {
                versions[i].possible &= !bit;
            }
        }
    }
    versions.retain(|v| v.possible != 0 || v.state == State::Running);
}

fn describe(v: &Version) -> String {
    let Version { id, content, state, life, possible, required, .. } = v;
    let hidden = (0..BLOCK_SECTORS).filter(|s| v.hidden[*s] != u64::MAX).fold(0u8, |mask, s| mask | 1 << s);
    format!(
        "{content:?} {id} ({state:?}, life {life}, possible {possible:02x}, required {required:02x}, hidden {hidden:02x})"
    )
}

#[cfg(test)]
mod tests;

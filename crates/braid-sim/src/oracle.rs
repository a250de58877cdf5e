//! Which versions of each block may be read, judged from outside: by requests, answers and crashes only.
//!
//! Every write has a version. A version is *possible* in a sector until one that began after it certainly
//! replaced it, also while it is still in flight: its client may have given it up, as its connection broke.
//!
//! - While the process lives, and after it was killed, an acknowledged write is certain.
//! - After a power cut only a *required* one is: acknowledged with FUA, or acknowledged before a
//!   flush began that was itself acknowledged; or read after a recovery, for what was once read after
//!   a recovery never goes back.
//! - Of writes that were all acknowledged, and whose order nothing else tells, the one that is read when nothing is in
//!   flight is the one that stays, until a power cut: copies must not differ.
//!
//! Everything else (in flight at the crash, failed, unflushed at a power cut) may be there or not,
//! each sector for itself. What is none of the possible versions is a violation.

use std::collections::BTreeMap;
use std::fmt;

use std::sync::Arc;

use braid_engine::{DeviceLease, Roles};

use crate::content::{self, BLOCK_BYTES, BLOCK_SECTORS, Identity, SECTOR_BYTES, Sector};
use crate::rows::{Broken, BrokenRows, Excuse, RowWrites};
use crate::world::Crash;

/// All sectors of a block.
pub const ALL: u8 = 0xff;

/// What a version puts into a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// What stood on the disks when the device was made: anything but data of a device that is in use.
    Initial,
    /// The same of what a device has taken up as it grew, when there were devices up to this number.
    Found(u64),
    /// Blocks that identify themselves.
    Data,
    /// Zeros.
    Zero,
    /// Zeros, or what was there before: a discard.
    MaybeZero,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not answered yet.
    Running,
    /// Answered with success, in this life of the machine.
    Acknowledged,
    /// Whether it happened is not known.
    Unknown,
}

#[derive(Clone, Debug)]
struct Version {
    id: u64,
    content: Content,
    state: State,
    begun: u64,
    ended: u64,
    /// Sectors in which it is still possible.
    possible: u8,
    /// Sectors in which a power cut does not undo it.
    required: u8,
    /// For each sector, since when another is known to stay there until the next power cut: it was
    /// read when nothing was in flight.
    hidden: [u64; BLOCK_SECTORS],
    /// For each sector, since when a reader of a device that is replicated has been told it.
    told: [u64; BLOCK_SECTORS],
    /// Which life of the process wrote it.
    life: u32,
    /// Sectors that the request was about.
    covers: u8,
}

const NOT_ENDED: u64 = u64::MAX;
const NEVER: [u64; BLOCK_SECTORS] = [u64::MAX; BLOCK_SECTORS];

impl Version {
    /// Whether, for a reader that began at `reader`, this version has replaced `older` in `sector`.
    fn replaced(&self, older: &Version, sector: usize, reader: u64) -> bool {
        let certain = self.state == State::Acknowledged || self.required & (1 << sector) != 0;
        let since = if certain { self.ended } else { NOT_ENDED }.min(self.told[sector]);
        // Overlapping writes execute in arrival order, also where the older one is still in flight.
        let hides = self.content != Content::MaybeZero && self.covers & (1 << sector) != 0;
        hides && self.begun > older.begun && since < reader
    }
}

struct Device {
    name: String,
    redundant: bool,
    may_fail: bool,
    /// It answers under this: what a read has told no later one takes back.
    lease: Option<Arc<DeviceLease>>,
    /// It takes requests of whole sectors.
    in_sectors: bool,
    blocks: Vec<Vec<Version>>,
    reads: BTreeMap<u64, u32>,
    live: bool,
    /// Blocks that are not judged: of those trusted again, reads that began before that.
    doubted: BTreeMap<u64, u64>,
    /// Blocks that no copy gives: whoever began to read before this may be told so.
    unreadable: BTreeMap<u64, u64>,
    /// Blocks of rows that a crash and a loss together have made unreadable: whoever asks for them may be refused.
    broken: Broken,
    /// What may be the reason for that.
    rows: RowWrites,
}

/// A write that was begun: to be ended by [`Oracle::write_ended`].
#[derive(Clone, Copy, Debug)]
pub struct WriteToken {
    device: u64,
    first: u64,
    count: u64,
    /// The version that the blocks must bear.
    pub version: u64,
    /// When it began.
    pub begun: u64,
    fua: bool,
}

impl WriteToken {
    /// The first block that was written.
    pub fn first_block(&self) -> u64 {
        self.first
    }
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Acknowledged.
    Done,
    /// Answered with an error: it may have happened in part.
    Failed,
}

/// Something was read that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Judges all devices of a run.
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

    /// A device of `blocks` blocks came into being. Returns the number under which it is known.
    pub fn device_made(&mut self, name: &str, blocks: u64) -> u64 {
        self.make(name, blocks, false)
    }

    /// A redundant array of `blocks` blocks came into being: it reads as zeros, and a discard makes zeros.
    pub fn redundant_made(&mut self, name: &str, blocks: u64) -> u64 {
        self.make(name, blocks, true)
    }

    /// Whether the device is a redundant array.
    pub fn is_redundant(&self, device: u64) -> bool {
        self.devices[&device].redundant
    }

    /// More of its members may be lost than it tolerates: then errors are right, wrong data never.
    pub fn may_fail(&mut self, device: u64) {
        self.devices.get_mut(&device).expect("a device that was made").may_fail = true;
    }

    /// Whether requests to the device may fail when disks do.
    pub fn fails(&self, device: u64) -> bool {
        self.devices[&device].may_fail
    }

    /// From now on the device answers under this lease, as one whose members are on several nodes.
    pub fn answers_under(&mut self, device: u64, lease: Arc<DeviceLease>) {
        self.devices.get_mut(&device).expect("a device that was made").lease = Some(lease);
    }

    /// From now on the device takes requests of whole sectors.
    pub fn takes_sectors(&mut self, device: u64) {
        self.devices.get_mut(&device).expect("a device that was made").in_sectors = true;
    }

    /// Whether the device takes requests of whole sectors.
    pub fn is_in_sectors(&self, device: u64) -> bool {
        self.devices[&device].in_sectors
    }

    /// Whether the device answers under a lease.
    pub fn is_leased(&self, device: u64) -> bool {
        self.devices[&device].lease.is_some()
    }

    /// A request to the device is answered, and not with an error.
    ///
    /// # Errors
    /// Its lease has run out.
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
            doubted: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            broken: Broken::default(),
            rows: RowWrites::default(),
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
            told: NEVER,
            life: self.life,
            covers: ALL,
        }
    }

    /// The device has grown to so many blocks.
    pub fn grown(&mut self, device: u64, blocks: u64) {
        let redundant = self.is_redundant(device);
        let initial = self.first(if redundant { Content::Zero } else { Content::Found(self.last_device) });
        let of = self.devices.get_mut(&device).expect("a device that was made");
        of.blocks.resize(blocks as usize, vec![initial]);
    }

    /// The device was deleted: what stood on it may be seen by a bare array made later.
    pub fn device_deleted(&mut self, device: u64) {
        self.devices.get_mut(&device).expect("a device that was made").live = false;
    }

    /// Blocks of a device.
    pub fn blocks(&self, device: u64) -> u64 {
        self.devices[&device].blocks.len() as u64
    }

    /// A write of `count` blocks from `first` on is about to be submitted.
    pub fn write_begun(&mut self, device: u64, first: u64, count: u64, content: Content, fua: bool) -> WriteToken {
        self.write_begun_in(device, (first, count), &|_| ALL, content, fua)
    }

    /// The same of a write that is about these `sectors` of each block.
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
        of.rows.begun(version, first, count, begun, content == Content::Data && !fua);
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
                told: NEVER,
                life,
                covers: sectors(block),
            });
        }
        WriteToken { device, first, count, version, begun, fua }
    }

    /// The write was answered.
    pub fn write_ended(&mut self, write: &WriteToken, ending: Ending) {
        let now = self.tick();
        let of = self.devices.get_mut(&write.device).expect("a device that was made");
        of.rows.ended(write.version, now, ending == Ending::Done);
        if ending == Ending::Done {
            of.broken.written(write.first, write.count, now);
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

    /// The write was refused before it was accepted: it never happened.
    pub fn write_refused(&mut self, write: &WriteToken) {
        let of = self.devices.get_mut(&write.device).expect("a device that was made");
        of.rows.refused(write.version);
        for block in write.first..write.first + write.count {
            of.blocks[block as usize].retain(|v| v.id != write.version);
        }
    }

    /// A flush is about to be submitted.
    pub fn flush_begun(&mut self) -> u64 {
        self.tick()
    }

    /// A flush that began at `begun` was acknowledged.
    pub fn flush_done(&mut self, device: u64, begun: u64) {
        let of = self.devices.get_mut(&device).expect("a device that was made");
        of.rows.flushed(begun);
        for version in of.blocks.iter_mut().flatten() {
            if version.state == State::Acknowledged && version.ended < begun && version.content != Content::MaybeZero {
                version.required = version.possible;
            }
        }
    }

    /// A copy of a block has rotted: whatever is read there may be that.
    pub fn doubt(&mut self, device: u64, block: u64) {
        self.devices.get_mut(&device).expect("a device that was made").doubted.insert(block, u64::MAX);
    }

    /// Whether a copy of a block has rotted and was not mended.
    pub fn is_doubted(&self, device: u64, block: u64) -> bool {
        self.devices[&device].doubted.get(&block) == Some(&u64::MAX)
    }

    /// The copies of a block are well again, for those who read from now on.
    pub fn trust(&mut self, device: u64, block: u64) {
        let now = self.tick();
        self.devices.get_mut(&device).expect("a device that was made").doubted.insert(block, now);
    }

    /// No copy of a block can be read, until it is written.
    pub fn lose(&mut self, device: u64, block: u64) {
        self.devices.get_mut(&device).expect("a device that was made").unreadable.insert(block, u64::MAX);
    }

    /// Whether a read of these blocks that began then may find one of them unreadable.
    pub fn may_be_unreadable(&self, device: u64, begun: u64, first: u64, count: u64) -> bool {
        self.devices[&device].unreadable.range(first..first + count).any(|(_, until)| begun < *until)
    }

    /// An array with parity begins to serve, all its members but these being in sync; of these rows these blocks cannot be read.
    /// `excused`: nobody asks whether that may be so; of those that could not be read before nobody does where the journal is lost.
    ///
    /// # Errors
    /// One of them has no right to be unreadable.
    pub fn rows_broken(
        &mut self,
        device: u64,
        broken: &BrokenRows,
        missing: Roles,
        excused: Excuse,
    ) -> Result<(), Violation> {
        let of = self.devices.get_mut(&device).expect("a device that was made");
        let is_new = |block: &u64| {
            broken.blocks.binary_search(block).is_ok()
                && !of.broken.knows(*block)
                && !(excused.journal_lost && of.broken.knew(*block))
        };
        for row in broken.rows.iter().filter(|row| !excused.all && row.blocks.iter().any(is_new)) {
            of.rows.judge(row).map_err(|why| Violation(format!("{}: {why}", of.name)))?;
        }
        of.rows.begin(missing);
        of.broken = Broken::new(&broken.blocks);
        Ok(())
    }

    /// These blocks cannot be read, whatever the reason.
    pub fn break_rows(&mut self, device: u64, broken: &BrokenRows) {
        self.devices.get_mut(&device).expect("a device that was made").broken = Broken::new(&broken.blocks);
    }

    /// What was written to an array with parity and may be only marked.
    pub fn rows(&mut self, device: u64) -> &mut RowWrites {
        &mut self.devices.get_mut(&device).expect("a device that was made").rows
    }

    /// Whether any of these blocks could not be read, as a row had lost it, at that time or later.
    pub fn is_broken(&self, device: u64, since: u64, first: u64, count: u64) -> bool {
        self.devices[&device].broken.has(since, first, count)
    }

    /// Such blocks in ranges, each as its first block and how many: what is to be written to make them readable again.
    pub fn broken_ranges(&self, device: u64) -> Vec<(u64, u64)> {
        self.devices[&device].broken.ranges()
    }

    /// Blocks that no copy gives.
    pub fn lost(&self, device: u64) -> Vec<u64> {
        let all = self.devices[&device].unreadable.iter();
        all.filter(|(_, until)| **until == u64::MAX).map(|(block, _)| *block).collect()
    }

    /// A read is about to be submitted.
    pub fn read_begun(&mut self, device: u64) -> u64 {
        let now = self.tick();
        *self.devices.get_mut(&device).expect("a device that was made").reads.entry(now).or_insert(0) += 1;
        now
    }

    /// A read that began at `begun` was answered: with these bytes from block `first` on, or with an error.
    pub fn read_ended(&mut self, device: u64, begun: u64, first: u64, data: Option<&[u8]>) -> Result<(), Violation> {
        self.read_ended_in(device, begun, first, &|_| ALL, data)
    }

    /// The same of a read that is about these `sectors` of each block: what stands in the others of `data` is not looked at.
    ///
    /// # Errors
    /// What was read must not be there.
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
            if of.doubted.get(&block).is_some_and(|until| begun < *until) {
                continue;
            }
            let ordered = of.lease.is_some();
            let judge = Judge { device, block, begun, now, life: self.life, live: &live, ordered };
            let versions = &mut of.blocks[block as usize];
            let of_request = |(sector, _): &(usize, &[u8])| sectors(block) & (1 << sector) != 0;
            for (sector, bytes) in bytes.chunks_exact(SECTOR_BYTES).enumerate().filter(of_request) {
                let seen = content::read_sector(bytes, sector);
                judge.sector(versions, sector, &seen).map_err(|why| {
                    Violation(format!("block {block} of {} (device {device}), sector {sector}: {why}", of.name))
                })?;
            }
            versions.retain(|v| v.possible != 0 || v.state == State::Running);
        }
        Ok(())
    }

    /// The process is gone. Devices in `weak` lost more than the crash explains (a flush of theirs had
    /// failed, or a disk of theirs was pulled): of those only what is required is certain.
    pub fn crashed(&mut self, how: Crash, weak: &[u64]) {
        let now = self.tick();
        self.life += 1;
        for (number, device) in &mut self.devices {
            let weak = weak.contains(number);
            device.reads.clear();
            device.rows.crashed(now);
            for versions in &mut device.blocks {
                for version in versions.iter_mut() {
                    if how == Crash::Power || weak {
                        (version.hidden, version.told) = (NEVER, NEVER);
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

/// One block of one read.
struct Judge<'a> {
    device: u64,
    block: u64,
    begun: u64,
    now: u64,
    life: u32,
    live: &'a [u64],
    /// Reads have one order.
    ordered: bool,
}

impl Judge<'_> {
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
        if let (true, [told]) = (self.ordered, &found[..]) {
            for version in versions.iter_mut().filter(|v| v.id == *told) {
                version.told[sector] = version.told[sector].min(self.now);
            }
        }
        // Where a discard may show through, nothing follows from what was seen.
        if shows_through {
            return Ok(());
        }
        // What a disk held at first is not known: where it may be what was seen, nothing follows either.
        let initial = |v: &Version| matches!(v.content, Content::Initial | Content::Found(_)) && found.contains(&v.id);
        if versions.iter().any(initial) {
            return Ok(());
        }
        // Seen after a recovery: it must never be an older one again.
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
        // Seen while nothing was in flight and nothing had failed: it stays until the power fails.
        let calm = |v: &Version| v.ended < self.begun && (v.state == State::Acknowledged || v.life < self.life);
        if versions.iter().all(calm) {
            for version in versions.iter_mut().filter(|v| !found.contains(&v.id)) {
                version.hidden[sector] = version.hidden[sector].min(self.now);
            }
        }
        Ok(())
    }
}

/// Drops what no read that began at or after `oldest_read` can see, whatever crashes come.
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

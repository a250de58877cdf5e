//! The oracle: which versions of each block of a device a read may return, derived only from requests, replies and ends
//! of sessions.
//!
//! It follows the rule of the simulator's oracle (`braid-sim`), without power cuts: a version is possible until another
//! one, whose write began after it had ended, is acknowledged. A write that failed, or whose connection ended, may have
//! happened or not. A write of an ended connection comes before all writes of the sessions that begin later. It counts
//! as in flight until one of these that overlaps it is acknowledged, or the daemon has ended: a FLUSH does not wait for
//! it, and its copies may differ that long. What a read returned when nothing was in flight stays: no later read goes
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"modeldat");
const NEVER: u64 = u64::MAX;
/// A write of at most this many blocks executes as a whole: the engine claims its range, and an NBD server submits it
/// in one piece.
const CLAIM_BLOCKS: u64 = 256;

/// The content of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    Zero,
    /// Data of write `version` to this device.
    Data {
        device: u64,
        version: u64,
    },
}

fn fill(device: u64, block: u64, version: u64, sector: u64, out: &mut [u8]) {
    let mut x = MAGIC ^ device.rotate_left(48) ^ block.rotate_left(24) ^ version ^ (sector << 60);
    for (at, word) in out.chunks_exact_mut(8).enumerate() {
        let value = match at {
            0 => MAGIC,
            1 => device,
            2 => block,
            3 => version,
            4 => sector,
            _ => {
                x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                x
            }
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Fills in the bytes of a block that identify it.
pub fn write_block(device: u64, block: u64, version: u64, out: &mut [u8]) {
    for (sector, bytes) in out.chunks_exact_mut(SECTOR).enumerate() {
        fill(device, block, version, sector as u64, bytes);
    }
}

/// The content found in a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sector {
    Is(Content),
    /// A block of a write, at another address or with wrong bytes.
    Misplaced {
        device: u64,
        block: u64,
        version: u64,
    },
    Other,
}

fn read_sector(block: u64, sector: u64, bytes: &[u8]) -> Sector {
    if bytes.iter().all(|byte| *byte == 0) {
        return Sector::Is(Content::Zero);
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        return Sector::Other;
    }
    let (device, found, version) = (word(1), word(2), word(3));
    let mut right = [0; SECTOR];
    fill(device, block, version, sector, &mut right);
    if found == block && bytes == right {
        return Sector::Is(Content::Data { device, version });
    }
    Sector::Misplaced { device, block: found, version }
}

/// State of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriteState {
    Running,
    Acknowledged,
    /// It failed, or its outcome is unknown.
    Unknown,
    /// It failed, or its connection ended: until its device's next session it may happen at any moment.
    Late,
}

#[derive(Clone, Debug)]
struct Version {
    token: u64,
    content: Content,
    state: WriteState,
    /// It may have changed nothing: a discard.
    maybe: bool,
    begun: u64,
    ended: u64,
    /// Reads that began later have seen the version that replaced it.
    hidden: u64,
}

impl Version {
    fn replaced_by(&self, newer: &Version, reader: u64) -> bool {
        newer.state == WriteState::Acknowledged && !newer.maybe && newer.begun > self.ended && newer.ended < reader
    }
}

/// A device's blocks. A block without versions is zeros.
#[derive(Clone, Default)]
pub struct Image {
    blocks: BTreeMap<u64, Vec<Version>>,
}

/// The oracle of all devices of a scenario. Its clock counts events.
#[derive(Default)]
pub struct Oracle {
    clock: u64,
    last: u64,
    pub images: BTreeMap<u64, Image>,
}

impl Oracle {
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn device(&mut self) -> u64 {
        let device = self.number();
        self.images.insert(device, Image::default());
        device
    }

    fn image(&mut self, device: u64) -> &mut Image {
        self.images.get_mut(&device).expect("a device of this scenario")
    }

    /// Records the start of a write of `content`. Returns its token.
    pub fn begin(&mut self, device: u64, first: u64, count: u64, content: Content, maybe: bool) -> u64 {
        let (begun, token) = (self.now(), self.number());
        for block in first..first + count {
            let zero = || {
                let (content, state) = (Content::Zero, WriteState::Acknowledged);
                vec![Version { token: 0, content, state, maybe: false, begun: 0, ended: 0, hidden: NEVER }]
            };
            let versions = self.image(device).blocks.entry(block).or_insert_with(zero);
            let state = WriteState::Running;
            versions.push(Version { token, content, state, maybe, begun, ended: NEVER, hidden: NEVER });
        }
        token
    }

    fn end(&mut self, device: u64, first: u64, count: u64, token: u64, state: WriteState) {
        let ended = if state == WriteState::Late { NEVER } else { self.now() };
        for block in first..first + count {
            let versions = self.image(device).blocks.get_mut(&block).expect("it was begun");
            for version in versions.iter_mut().filter(|version| version.token == token) {
                (version.state, version.ended) = (state, ended);
            }
        }
    }

    pub fn acknowledged(&mut self, device: u64, first: u64, count: u64, token: u64) {
        self.end(device, first, count, token, WriteState::Acknowledged);
        self.waited_for(device, first..first + count, token);
    }

    /// Overlapping writes execute one after the other: an acknowledged write has waited for all writes of older
    /// sessions that it overlaps, as a whole. A write longer than [`CLAIM_BLOCKS`] may execute in parts.
    fn waited_for(&mut self, device: u64, range: Range<u64>, token: u64) {
        let blocks = &mut self.image(device).blocks;
        let mut waited = BTreeSet::new();
        for (_, versions) in blocks.range(range) {
            let begun = versions.iter().find(|version| version.token == token).map_or(0, |version| version.begun);
            let before = |version: &&Version| version.state == WriteState::Late && version.ended < begun;
            waited.extend(versions.iter().filter(before).map(|version| version.token));
        }
        for late in waited {
            let is_of = |version: &Version| version.token == late;
            let of: Vec<u64> =
                blocks.iter().filter(|(_, all)| all.iter().any(is_of)).map(|(block, _)| *block).collect();
            let is_short = of.first().zip(of.last()).is_some_and(|(first, last)| last - first < CLAIM_BLOCKS);
            for block in of.iter().filter(|_| is_short) {
                let versions = blocks.get_mut(block).into_iter().flatten();
                versions
                    .filter(|version| version.token == late)
                    .for_each(|version| version.state = WriteState::Unknown);
            }
        }
    }

    /// Records that a write's outcome stays unknown.
    pub fn abandoned(&mut self, device: u64, first: u64, count: u64, token: u64) {
        self.end(device, first, count, token, WriteState::Late);
    }

    /// Records a newer session: its writes come after those left by older sessions.
    pub fn session(&mut self, device: u64) {
        let now = self.now();
        for versions in self.image(device).blocks.values_mut() {
            for version in versions.iter_mut().filter(|version| version.state == WriteState::Late) {
                version.ended = version.ended.min(now);
            }
        }
    }

    /// Records the end of the daemon: writes in flight have happened by now, or never will, except the writes of these
    /// tokens, which the next daemon gets.
    pub fn daemon_ended(&mut self, device: u64, go_on: &[u64]) {
        let now = self.now();
        for versions in self.image(device).blocks.values_mut() {
            for version in versions.iter_mut().filter(|version| !go_on.contains(&version.token)) {
                if matches!(version.state, WriteState::Running | WriteState::Late) {
                    (version.state, version.ended) = (WriteState::Unknown, version.ended.min(now));
                }
            }
        }
    }

    /// Returns a new device with the content of a snapshot that was requested at `begun`.
    pub fn snapshot(&mut self, of: u64, begun: u64) -> u64 {
        let now = self.now();
        let mut image = self.images[&of].clone();
        for versions in image.blocks.values_mut() {
            let all = versions.clone();
            versions.retain(|version| possible(version, &all, begun));
            for version in versions.iter_mut() {
                (version.state, version.ended, version.hidden) = (WriteState::Unknown, now, NEVER);
            }
        }
        let device = self.number();
        self.images.insert(device, image);
        device
    }

    pub fn truncate(&mut self, device: u64, blocks: u64) {
        self.image(device).blocks.retain(|block, _| *block < blocks);
    }

    /// Checks a block returned by a read that began at `begun`.
    pub fn read(&mut self, device: u64, block: u64, begun: u64, bytes: &[u8]) -> Result<(), String> {
        let now = self.now();
        let image = self.image(device);
        let Some(versions) = image.blocks.get_mut(&block) else {
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            return Err(format!(
                "block {block} of device {device} was never written and is {:?}",
                describe(block, bytes)
            ));
        };
        let mut seen = Vec::new();
        for (sector, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
            let found = read_sector(block, sector as u64, bytes);
            let right = match found {
                Sector::Is(content) => {
                    if !seen.contains(&content) {
                        seen.push(content);
                    }
                    versions.iter().any(|version| version.content == content && possible(version, versions, begun))
                }
                _ => false,
            };
            if !right {
                return Err(format!(
                    "block {block} of device {device}, sector {sector}, read since {begun}: it is {found:?}; its versions: {versions:#?}"
                ));
            }
        }
        // Nothing is in flight: what was read stays.
        let settled = |version: &Version| match version.state {
            WriteState::Running => false,
            WriteState::Late => !seen.contains(&version.content),
            WriteState::Acknowledged | WriteState::Unknown => version.ended < begun,
        };
        if seen.len() == 1 && versions.iter().all(settled) {
            for version in versions.iter_mut() {
                if version.content != seen[0] && version.state != WriteState::Late {
                    version.hidden = version.hidden.min(now);
                }
            }
        }
        Ok(())
    }

    /// Checks that a block reported as zeros may be zeros.
    pub fn check_zero(&mut self, device: u64, block: u64, begun: u64) -> Result<(), String> {
        let Some(versions) = self.image(device).blocks.get(&block) else { return Ok(()) };
        let zero = |version: &Version| version.content == Content::Zero && possible(version, versions, begun);
        if versions.iter().any(zero) {
            return Ok(());
        }
        Err(format!("block {block} of device {device} is said to be zeros since {begun}: its versions: {versions:#?}"))
    }

    /// Removes versions that no later read can return. Nothing may be in flight.
    pub fn forget(&mut self, device: u64) {
        let now = self.now();
        for versions in self.image(device).blocks.values_mut() {
            let all = versions.clone();
            versions.retain(|version| possible(version, &all, now) || version.state == WriteState::Late);
        }
    }

    /// Returns a description of what the blocks of a range may hold.
    pub fn describe(&self, device: u64, first: u64, count: u64) -> String {
        let mut text = String::new();
        for (block, versions) in self.images[&device].blocks.range(first..first + count) {
            text += &format!("\n  {block}:");
            for one in versions {
                text += &format!(" {:?} {:?} {}..{}", one.content, one.state, one.begun, one.ended as i64);
            }
        }
        text
    }

    pub fn written(&self, device: u64) -> Vec<u64> {
        self.images[&device].blocks.keys().copied().collect()
    }
}

fn possible(version: &Version, all: &[Version], reader: u64) -> bool {
    version.hidden >= reader && !all.iter().any(|newer| version.replaced_by(newer, reader))
}

fn describe(block: u64, bytes: &[u8]) -> Vec<Sector> {
    let sectors = bytes.chunks_exact(SECTOR).enumerate();
    sectors.map(|(sector, bytes)| read_sector(block, sector as u64, bytes)).collect()
}

#[test]
fn a_write_of_an_ended_connection_is_in_flight_until_an_overlapping_write_is_acknowledged() {
    let mut oracle = Oracle::default();
    let device = oracle.device();
    let content = |version| Content::Data { device, version };
    let bytes = |version| {
        let mut bytes = vec![0; BLOCK];
        write_block(device, 7, version, &mut bytes);
        bytes
    };
    let old = oracle.begin(device, 7, 1, content(1), false);
    oracle.acknowledged(device, 7, 1, old);
    let late = oracle.begin(device, 7, 3, content(2), false);
    oracle.abandoned(device, 7, 3, late);
    oracle.session(device);
    // One copy has it, and the other one not yet.
    for version in [2, 1, 2, 1] {
        let now = oracle.now();
        oracle.read(device, 7, now, &bytes(version)).expect("either copy");
    }
    // It is done once a write is acknowledged that overlaps it.
    let newer = oracle.begin(device, 9, 1, content(3), false);
    oracle.acknowledged(device, 9, 1, newer);
    let now = oracle.now();
    oracle.read(device, 7, now, &bytes(2)).expect("both have it");
    let now = oracle.now();
    oracle.read(device, 7, now, &bytes(1)).expect_err("it was replaced");
}

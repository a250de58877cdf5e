//! The in-memory log: metadata changes that are acknowledged and not yet in the log rings, in one sequence in shared
//! memory.
//!
//! Published units survive the death of the process. Publishing is atomic: the units are written first, then one word
//! that says how far they go.
//! Layout in words of 8 bytes: magic, capacity in units, session, two words of the pool's UUID, published, trimmed;
//! from word 64 on, units of eight words each. Unit n (from 1) is at index (n - 1) modulo the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::Uuid;
use braid_format::limits::COUNTER_MAX;
use braid_format::pool::{Change, LogEntry, UNIT_WORDS};

use super::log_memory::LogMemory;

const MAGIC: u64 = u64::from_le_bytes(*b"BRAIDPT1");
const HEADER_WORDS: usize = 64;
const PUBLISHED: usize = 5;
const TRIMMED: usize = 6;
/// Maximum units of one entry.
pub const ENTRY_UNITS_MAX: usize = 5;
/// Minimum capacity of a log, in units.
pub const LOG_UNITS_MIN: u64 = 256;
/// Maximum units that a log uses.
pub const LOG_UNITS_MAX: u64 = 65_536;

/// Returns the bytes of shared memory for a log of `units` units.
pub const fn log_bytes(units: u64) -> u64 {
    (HEADER_WORDS as u64 + units * UNIT_WORDS as u64) * 8
}

/// The in-memory log of an open pool. Only the home shard changes it.
pub struct MemoryLog {
    memory: Arc<dyn LogMemory>,
    capacity: u64,
    /// The last published unit.
    published: u64,
    /// The last unit that is in the rings: the log is not needed up to here.
    trimmed: u64,
    /// Units reserved for requests whose data are in flight.
    reserved: u64,
}

impl MemoryLog {
    /// Starts an empty log whose next unit is `mark + 1`.
    ///
    /// # Panics
    /// If the memory has no room for [`LOG_UNITS_MIN`] units.
    pub fn begin(memory: Arc<dyn LogMemory>, pool: Uuid, session: u64, mark: u64) -> MemoryLog {
        let words = memory.words();
        let capacity = ((words.len().saturating_sub(HEADER_WORDS)) / UNIT_WORDS) as u64;
        let capacity = capacity.min(LOG_UNITS_MAX);
        assert!(capacity >= LOG_UNITS_MIN, "a log of {capacity} units");
        words[0].store(0, Ordering::Release);
        let (high, low) = pool.as_u64_pair();
        for (word, value) in words[1..=TRIMMED].iter().zip([capacity, session, high, low, mark, mark]) {
            word.store(value, Ordering::Relaxed);
        }
        words[0].store(MAGIC, Ordering::Release);
        MemoryLog { memory, capacity, published: mark, trimmed: mark, reserved: 0 }
    }

    /// Returns the last published unit.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Returns whether every unit is in the rings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many units are not in the rings.
    pub fn len(&self) -> u64 {
        self.published - self.trimmed
    }

    /// Returns whether the log is full enough to be committed.
    pub fn is_quarter_full(&self) -> bool {
        // A commit cannot take out units that are only reserved.
        !self.is_empty() && self.len() + self.reserved >= self.capacity / 4
    }

    /// Reserves room for `units` units. False: there is none until a commit trims the log.
    pub fn reserve(&mut self, units: u64) -> bool {
        if self.len() + self.reserved + units > self.capacity {
            return false;
        }
        self.reserved += units;
        true
    }

    /// Releases reserved units: they are not needed, or are about to be appended.
    pub fn unreserve(&mut self, units: u64) {
        self.reserved = self.reserved.checked_sub(units).expect("released units were reserved");
    }

    /// Returns whether `units` units have room beside the reserved ones.
    pub fn has_room(&self, units: u64) -> bool {
        self.len() + self.reserved + units <= self.capacity
    }

    /// Returns the maximum units in the log at a time.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Appends changes atomically (recovery finds all of them or none), and returns the sequence of the last unit.
    ///
    /// # Panics
    /// If the log has no room: see [`MemoryLog::has_room`].
    pub fn append(&mut self, changes: &[(u8, u32, Change)]) -> u64 {
        let words = self.memory.words();
        let mut sequence = self.published;
        for (k, (member, index, change)) in changes.iter().enumerate() {
            let joined = k + 1 < changes.len();
            let entry =
                LogEntry { member: *member, index: *index, sequence: sequence + 1, joined, change: change.clone() };
            let mut units = [[0u64; UNIT_WORDS]; ENTRY_UNITS_MAX];
            let count = entry.units();
            entry.encode(&mut units[..count]);
            for unit in &units[..count] {
                sequence += 1;
                assert!(sequence - self.trimmed <= self.capacity, "the log has no room");
                let at = word_index(sequence, self.capacity);
                for (word, value) in words[at..at + UNIT_WORDS].iter().zip(unit) {
                    word.store(*value, Ordering::Relaxed);
                }
            }
        }
        self.published = sequence;
        words[PUBLISHED].store(sequence, Ordering::Release);
        sequence
    }

    /// Returns the entry that begins with unit `sequence`, and the unit after it.
    pub fn entry(&self, sequence: u64) -> (LogEntry, u64) {
        debug_assert!(sequence > self.trimmed && sequence <= self.published);
        read(self.memory.words(), self.capacity, sequence).expect("the log holds what was appended")
    }

    /// Returns the member that the entry beginning with unit `sequence` is about (`None`: it is about an owner), and
    /// the unit after the entry.
    #[inline]
    pub fn member_of(&self, sequence: u64) -> (Option<u8>, u64) {
        debug_assert!(sequence > self.trimmed && sequence <= self.published);
        let first = self.memory.words()[word_index(sequence, self.capacity)].load(Ordering::Relaxed);
        let (units, member) = LogEntry::length_and_member(first);
        debug_assert!((1..=ENTRY_UNITS_MAX).contains(&units), "the log holds what was appended");
        (member, sequence + units as u64)
    }

    /// Returns the eight words of unit `sequence`, to be copied.
    pub fn unit(&self, sequence: u64) -> [u64; UNIT_WORDS] {
        unit(self.memory.words(), self.capacity, sequence)
    }

    /// Notes that every unit up to `mark` is in the rings.
    pub fn trim(&mut self, mark: u64) {
        debug_assert!(mark >= self.trimmed && mark <= self.published);
        self.trimmed = mark;
        self.memory.words()[TRIMMED].store(mark, Ordering::Release);
    }
}

fn word_index(sequence: u64, capacity: u64) -> usize {
    HEADER_WORDS + ((sequence - 1) % capacity) as usize * UNIT_WORDS
}

fn unit(words: &[AtomicU64], capacity: u64, sequence: u64) -> [u64; UNIT_WORDS] {
    let at = word_index(sequence, capacity);
    std::array::from_fn(|k| words[at + k].load(Ordering::Relaxed))
}

fn read(words: &[AtomicU64], capacity: u64, sequence: u64) -> Option<(LogEntry, u64)> {
    let mut units = [[0u64; UNIT_WORDS]; ENTRY_UNITS_MAX];
    units[0] = unit(words, capacity, sequence);
    // Nearly all entries take one unit.
    let (count, _) = LogEntry::length_and_member(units[0][0]);
    for (k, into) in units.iter_mut().enumerate().take(count).skip(1) {
        *into = unit(words, capacity, sequence + k as u64);
    }
    let (entry, count) = LogEntry::decode(units.get(..count)?).ok()?;
    (entry.sequence == sequence).then(|| (entry, sequence + count as u64))
}

/// Reads the log that a dead process left behind. Returns the last unit before its entries after `mark`, and these
/// entries, in order; no entries if the memory has no log of this pool and session. `lacks`: the log may begin later
/// than after `mark`, because units in between may be in the ring of a missing member.
///
/// # Errors
/// The log is of this pool and session, but is damaged or does not fit what is on the disks: going on without it might
/// lose acknowledged changes.
pub fn read_old_log(
    memory: &dyn LogMemory,
    pool: Uuid,
    session: u64,
    mark: u64,
    lacks: bool,
) -> Result<(u64, Vec<LogEntry>), &'static str> {
    let words = memory.words();
    if words.len() < HEADER_WORDS || words[0].load(Ordering::Acquire) != MAGIC {
        return Ok((mark, Vec::new()));
    }
    let word = |k: usize| words[k].load(Ordering::Acquire);
    let (high, low) = pool.as_u64_pair();
    let capacity = word(1);
    let fits = capacity >= LOG_UNITS_MIN && (words.len() - HEADER_WORDS) as u64 / UNIT_WORDS as u64 >= capacity;
    if (word(2), word(3), word(4)) != (session, high, low) {
        return Ok((mark, Vec::new()));
    }
    if !fits {
        return Err("its size makes no sense");
    }
    let (published, trimmed) = (word(PUBLISHED), word(TRIMMED));
    if published < trimmed || published - trimmed > capacity || mark > published || published > COUNTER_MAX {
        return Err("its numbers make no sense");
    }
    if trimmed > mark && !lacks {
        return Err("it lacks changes that are not in the rings either");
    }
    let mark = mark.max(trimmed);
    let mut entries = Vec::new();
    let mut sequence = mark + 1;
    while sequence <= published {
        let (entry, next) = read(words, capacity, sequence).ok_or("an entry is damaged")?;
        entries.push(entry);
        sequence = next;
    }
    if sequence == published + 1 { Ok((mark, entries)) } else { Err("its last entry is cut off") }
}

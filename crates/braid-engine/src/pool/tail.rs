//! The tail: changes of metadata that are acknowledged and not yet in the rings, in one sequence in shared memory.
//!
//! What is published survives the death of the process. It is published at once or not at all: the units are written first,
//! then one word that says how far they go. Layout, in words of 8 bytes: magic, capacity in units, session, two words of the pool's
//! UUID, published, trimmed; units of eight words each from word 64 on, unit number n (from 1) at place (n - 1) modulo the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::Uuid;
use braid_format::limits::COUNTER_MAX;
use braid_format::pool::{Change, Entry, UNIT_WORDS};

use super::tail_memory::TailMemory;

const MAGIC: u64 = u64::from_le_bytes(*b"BRAIDPT1");
const HEADER_WORDS: usize = 64;
const PUBLISHED: usize = 5;
const TRIMMED: usize = 6;
/// Most units that one entry takes.
pub const ENTRY_UNITS_MAX: usize = 5;
/// Fewest units that a tail has room for.
pub const TAIL_UNITS_MIN: u64 = 256;
/// Most that are used.
pub const TAIL_UNITS_MAX: u64 = 65_536;

/// Bytes of shared memory for a tail of so many units.
pub const fn tail_bytes(units: u64) -> u64 {
    (HEADER_WORDS as u64 + units * UNIT_WORDS as u64) * 8
}

/// The tail of a pool that is served. Changed by its home alone.
pub struct Tail {
    memory: Arc<dyn TailMemory>,
    capacity: u64,
    /// The last unit that counts.
    published: u64,
    /// The last unit that is in the rings, and so needed no more.
    trimmed: u64,
    /// Units promised to those whose data are on their way.
    reserved: u64,
}

impl Tail {
    /// Begins an empty tail whose next unit is `mark + 1`.
    ///
    /// # Panics
    /// When the memory has no room for [`TAIL_UNITS_MIN`].
    pub fn begin(memory: Arc<dyn TailMemory>, pool: Uuid, session: u64, mark: u64) -> Tail {
        let words = memory.words();
        let capacity = ((words.len().saturating_sub(HEADER_WORDS)) / UNIT_WORDS) as u64;
        let capacity = capacity.min(TAIL_UNITS_MAX);
        assert!(capacity >= TAIL_UNITS_MIN, "a tail of {capacity} units");
        words[0].store(0, Ordering::Release);
        let (high, low) = pool.as_u64_pair();
        for (word, value) in words[1..=TRIMMED].iter().zip([capacity, session, high, low, mark, mark]) {
            word.store(value, Ordering::Relaxed);
        }
        words[0].store(MAGIC, Ordering::Release);
        Tail { memory, capacity, published: mark, trimmed: mark, reserved: 0 }
    }

    /// The last unit that counts.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Whether everything is in the rings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Units that are not in the rings.
    pub fn len(&self) -> u64 {
        self.published - self.trimmed
    }

    /// Whether so much is waiting that it should go into the rings.
    pub fn is_quarter_full(&self) -> bool {
        // What is only promised no commit takes out.
        !self.is_empty() && self.len() + self.reserved >= self.capacity / 4
    }

    /// Promises room for so many units. False: there is none, until more is in the rings.
    pub fn reserve(&mut self, units: u64) -> bool {
        if self.len() + self.reserved + units > self.capacity {
            return false;
        }
        self.reserved += units;
        true
    }

    /// Gives back what was promised and is not needed, or is needed now.
    pub fn unreserve(&mut self, units: u64) {
        self.reserved = self.reserved.checked_sub(units).expect("what is given back was promised");
    }

    /// Whether so many units have room beside those promised.
    pub fn has_room(&self, units: u64) -> bool {
        self.len() + self.reserved + units <= self.capacity
    }

    /// The most units that are in the tail at a time.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Appends changes which count together or not at all, and returns the sequence of the last unit.
    ///
    /// # Panics
    /// Without room: see [`Tail::has_room`].
    pub fn append(&mut self, changes: &[(u8, u32, Change)]) -> u64 {
        let words = self.memory.words();
        let mut sequence = self.published;
        for (k, (member, index, change)) in changes.iter().enumerate() {
            let joined = k + 1 < changes.len();
            let entry =
                Entry { member: *member, index: *index, sequence: sequence + 1, joined, change: change.clone() };
            let mut units = [[0u64; UNIT_WORDS]; ENTRY_UNITS_MAX];
            let count = entry.units();
            entry.encode(&mut units[..count]);
            for unit in &units[..count] {
                sequence += 1;
                assert!(sequence - self.trimmed <= self.capacity, "the tail has no room");
                let at = place(sequence, self.capacity);
                for (word, value) in words[at..at + UNIT_WORDS].iter().zip(unit) {
                    word.store(*value, Ordering::Relaxed);
                }
            }
        }
        self.published = sequence;
        words[PUBLISHED].store(sequence, Ordering::Release);
        sequence
    }

    /// The entry that begins with unit `sequence`, and the unit after it.
    pub fn entry(&self, sequence: u64) -> (Entry, u64) {
        debug_assert!(sequence > self.trimmed && sequence <= self.published);
        read(self.memory.words(), self.capacity, sequence).expect("the tail holds what was appended")
    }

    /// Of the entry that begins with unit `sequence` only the member that it is of, none of an owner's, and the unit after it.
    #[inline]
    pub fn member_of(&self, sequence: u64) -> (Option<u8>, u64) {
        debug_assert!(sequence > self.trimmed && sequence <= self.published);
        let first = self.memory.words()[place(sequence, self.capacity)].load(Ordering::Relaxed);
        let (units, member) = Entry::length_and_member(first);
        debug_assert!((1..=ENTRY_UNITS_MAX).contains(&units), "the tail holds what was appended");
        (member, sequence + units as u64)
    }

    /// Its units as they stand, to be copied: eight words of unit `sequence`.
    pub fn unit(&self, sequence: u64) -> [u64; UNIT_WORDS] {
        unit(self.memory.words(), self.capacity, sequence)
    }

    /// Everything up to this unit is in the rings.
    pub fn trim(&mut self, mark: u64) {
        debug_assert!(mark >= self.trimmed && mark <= self.published);
        self.trimmed = mark;
        self.memory.words()[TRIMMED].store(mark, Ordering::Release);
    }
}

fn place(sequence: u64, capacity: u64) -> usize {
    HEADER_WORDS + ((sequence - 1) % capacity) as usize * UNIT_WORDS
}

fn unit(words: &[AtomicU64], capacity: u64, sequence: u64) -> [u64; UNIT_WORDS] {
    let at = place(sequence, capacity);
    std::array::from_fn(|k| words[at + k].load(Ordering::Relaxed))
}

fn read(words: &[AtomicU64], capacity: u64, sequence: u64) -> Option<(Entry, u64)> {
    let mut units = [[0u64; UNIT_WORDS]; ENTRY_UNITS_MAX];
    units[0] = unit(words, capacity, sequence);
    // Nearly all are of one unit.
    let (count, _) = Entry::length_and_member(units[0][0]);
    for (k, into) in units.iter_mut().enumerate().take(count).skip(1) {
        *into = unit(words, capacity, sequence + k as u64);
    }
    let (entry, count) = Entry::decode(units.get(..count)?).ok()?;
    (entry.sequence == sequence).then(|| (entry, sequence + count as u64))
}

/// What a process that has died left in its tail: the entries after `mark`, in order, and the unit before them; none where this is no tail
/// of this pool and session. `lacks`: what is missing between `mark` and them may be in the ring of a member that is not here.
///
/// # Errors
/// It is, and does not fit what is on the disks, or is damaged: what was acknowledged might be lost by going on without.
pub fn left_behind(
    memory: &dyn TailMemory,
    pool: Uuid,
    session: u64,
    mark: u64,
    lacks: bool,
) -> Result<(u64, Vec<Entry>), &'static str> {
    let words = memory.words();
    if words.len() < HEADER_WORDS || words[0].load(Ordering::Acquire) != MAGIC {
        return Ok((mark, Vec::new()));
    }
    let word = |k: usize| words[k].load(Ordering::Acquire);
    let (high, low) = pool.as_u64_pair();
    let capacity = word(1);
    let fits = capacity >= TAIL_UNITS_MIN && (words.len() - HEADER_WORDS) as u64 / UNIT_WORDS as u64 >= capacity;
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

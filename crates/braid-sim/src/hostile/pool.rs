//! A pool of two members, opened from an edited image, used, killed and opened again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use braid_engine::pool::{
    AdminError, BUFFERS, BlockAllocation, DiscardOutcome, EXTENT_BLOCKS, EXTENT_BYTES, LogMemory, OpenError, OpenPool,
    Pool, PoolDevice, PoolMemory, PoolOp, open,
};
use braid_engine::{DeviceId, DeviceIo, Uuid};
use braid_format::pool::{
    BATCH_BYTES_MAX, Checkpoint, OWNER_BYTES, Owner, OwnerKind, OwnerName, PoolLabel, PoolMember, PoolMemberLayout,
    PoolMemberState, PoolState, RECORD_BYTES, Reserved, UNIT_BYTES,
};
use braid_format::{Features, LABEL_BYTES, Name};

use super::edits::{Edit, Target};
use super::image::{Disks, crc32c, now};

const POOL: Uuid = Uuid::from_bytes(*b"a hostile pool!!");
const MEMBERS: usize = 2;
const MEMBER_BYTES: u64 = 32 << 20;
const OWNER_SLOTS: u32 = 1024;
/// The largest volume whose map is built. Larger volumes exist and are not served.
const SERVED_BYTES_MAX: u64 = 1 << 40;
/// Number of words of the in-memory log's header that an edit may change.
const LOG_WORDS: u16 = 7;
const LOG_HEADER_WORDS: usize = 64;

const LABEL: u8 = 0;
const CHECKPOINT: u8 = 1;
const BATCH: u8 = 2;
const ENTRY: u8 = 3;
const RECORD: u8 = 4;
const OWNER: u8 = 5;
const ADDRESS: u8 = 6;
const LOG: u8 = 7;
const UNIT: u8 = 8;
const BYTES: u8 = 9;
const KINDS: u8 = 10;

/// Fields that hold numbers, by structure.
#[rustfmt::skip]
pub const TARGETS: &[Target] = &[
    t(LABEL, 1, 56, 8), t(LABEL, 1, 132, 4), t(LABEL, 1, 136, 8), t(LABEL, 1, 168, 4), t(LABEL, 1, 172, 4), t(LABEL, 1, 176, 8),
    t(LABEL, 1, 192, 8), t(LABEL, 1, 200, 8), t(LABEL, 1, 216, 8), t(LABEL, 1, 224, 8), t(LABEL, 1, 232, 8), t(LABEL, 1, 248, 8),
    t(LABEL, 1, 256, 8), t(LABEL, 1, 264, 8), t(LABEL, 1, 280, 8), t(LABEL, 1, 288, 8),
    t(CHECKPOINT, 1, 12, 4), t(CHECKPOINT, 1, 16, 8), t(CHECKPOINT, 1, 24, 8), t(CHECKPOINT, 1, 32, 8), t(CHECKPOINT, 1, 40, 8), t(CHECKPOINT, 1, 48, 8),
    t(CHECKPOINT, 1, 56, 8), t(CHECKPOINT, 1, 64, 8), t(CHECKPOINT, 1, 72, 8), t(CHECKPOINT, 1, 80, 8), t(CHECKPOINT, 1, 1096, 1), t(CHECKPOINT, 1, 1104, 8),
    t(CHECKPOINT, 1, 1120, 8), t(CHECKPOINT, 1, 1128, 8), t(CHECKPOINT, 1, 3896, 8),
    t(BATCH, 4, 12, 2), t(BATCH, 4, 14, 2), t(BATCH, 4, 16, 8), t(BATCH, 4, 24, 8), t(BATCH, 4, 32, 8), t(BATCH, 4, 40, 8),
    t(BATCH, 4, 56, 8), t(BATCH, 4, 64, 2), t(BATCH, 4, 66, 2),
    t(ENTRY, 24, 0, 1), t(ENTRY, 24, 1, 1), t(ENTRY, 24, 2, 1), t(ENTRY, 24, 4, 4), t(ENTRY, 24, 8, 8), t(ENTRY, 24, 16, 8),
    t(ENTRY, 24, 24, 1), t(ENTRY, 24, 26, 2), t(ENTRY, 24, 28, 4), t(ENTRY, 24, 32, 4), t(ENTRY, 24, 40, 8), t(ENTRY, 24, 48, 8),
    t(ENTRY, 24, 60, 4),
    t(RECORD, 24, 0, 1), t(RECORD, 24, 2, 2), t(RECORD, 24, 4, 4), t(RECORD, 24, 8, 4), t(RECORD, 24, 16, 8), t(RECORD, 24, 24, 8),
    t(OWNER, 6, 0, 4), t(OWNER, 6, 4, 1), t(OWNER, 6, 5, 1), t(OWNER, 6, 6, 1), t(OWNER, 6, 8, 4), t(OWNER, 6, 32, 8), t(OWNER, 6, 40, 8),
    t(OWNER, 6, 48, 8), t(OWNER, 6, 56, 8), t(OWNER, 6, 64, 8), t(OWNER, 6, 160, 4), t(OWNER, 6, 164, 4), t(OWNER, 6, 168, 8),
    t(ADDRESS, 2, 0, 8), t(ADDRESS, 2, 8, 8),
    t(LOG, 7, 0, 8),
    t(UNIT, 16, 0, 1), t(UNIT, 16, 1, 1), t(UNIT, 16, 4, 4), t(UNIT, 16, 8, 8), t(UNIT, 16, 16, 8), t(UNIT, 16, 24, 1), t(UNIT, 16, 28, 4),
    t(UNIT, 16, 32, 4), t(UNIT, 16, 40, 8), t(UNIT, 16, 48, 8),
    t(BYTES, 4096, 0, 8),
];

const fn t(kind: u8, count: u16, offset: u16, width: u8) -> Target {
    Target { kind, count, offset, width }
}

struct Words(Vec<AtomicU64>);

impl LogMemory for Words {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl Words {
    fn of(words: impl Iterator<Item = u64>) -> Arc<Words> {
        Arc::new(Words(words.map(AtomicU64::new).collect()))
    }

    fn copied(&self) -> Vec<u64> {
        self.0.iter().map(|word| word.load(Ordering::Acquire)).collect()
    }
}

struct Memory(Vec<Vec<u8>>);

impl PoolMemory for Memory {
    fn buffer(&mut self, index: u32) -> &mut [u8] {
        &mut self.0[index as usize]
    }
}

/// A pool that was used and killed: the first bytes of its members, and its in-memory log.
#[derive(Clone)]
struct Image {
    members: Vec<Vec<u8>>,
    log: Vec<u64>,
    places: PoolMemberLayout,
}

/// Opens and uses the pool that the edits of `data` make of a valid one.
///
/// # Panics
/// If the content of the disks makes the engine panic or loop for ever.
pub fn use_pool(data: &[u8]) {
    let mut image = sound().clone();
    Edit::all(data).for_each(|edit| image.edit(&edit));
    use_image(&image);
}

/// Returns how many times that pool could be opened: two if nothing was refused.
pub fn openings(data: &[u8]) -> u32 {
    let mut image = sound().clone();
    Edit::all(data).for_each(|edit| image.edit(&edit));
    use_image(&image)
}

fn use_image(image: &Image) -> u32 {
    let mut rig = Rig::new(image.members.clone(), Some(Words::of(image.log.iter().copied())));
    for begun in 0..2u32 {
        let Some(mut pool) = rig.open(7 + u64::from(begun)) else { return begun };
        rig.use_all(&mut pool, u128::from(begun));
        // The process dies here: the in-memory log survives.
    }
    2
}

fn sound() -> &'static Image {
    static SOUND: OnceLock<Image> = OnceLock::new();
    SOUND.get_or_init(|| {
        let places = PoolMemberLayout::new(MEMBER_BYTES, OWNER_SLOTS).expect("a size that fits");
        let member = |number: u8| {
            let mut bytes = vec![0; places.data.start as usize];
            let label = label(number, places).encode().expect("a sound label");
            bytes[..LABEL_BYTES].copy_from_slice(&label);
            let at = places.checkpoints.start as usize;
            bytes[at..at + 4096].copy_from_slice(&Checkpoint::first(&POOL, 3).encode());
            bytes
        };
        let mut rig = Rig::new((0..MEMBERS as u8).map(member).collect(), None);
        for begun in 0..2u8 {
            let mut pool = rig.open(5 + u64::from(begun)).expect("a new pool opens");
            rig.use_all(&mut pool, 100 + u128::from(begun));
        }
        let log = rig.log.as_ref().map(|log| log.copied()).unwrap_or_default();
        Image { members: rig.disks.kept.into_inner(), log, places }
    })
}

fn label(number: u8, places: PoolMemberLayout) -> PoolLabel {
    let uuid = |number: usize| Uuid::from_u128(0x100 + number as u128);
    let member =
        |number| Some(PoolMember { uuid: uuid(number), size_bytes: MEMBER_BYTES, state: PoolMemberState::InUse });
    PoolLabel {
        features: Features::default(),
        uuid: POOL,
        sequence: 4,
        name: Name::new("hostile").expect("a good name"),
        state: PoolState::Active,
        clean: false,
        created_unix_s: 1_700_000_000,
        session: 9,
        members: (0..MEMBERS).map(member).collect(),
        member: number,
        layout: places,
        reserved: Reserved::NONE,
    }
}

impl Image {
    fn edit(&mut self, edit: &Edit) {
        let kind = edit.kind % KINDS;
        if kind == LOG {
            if let Some(word) = self.log.get_mut(usize::from(edit.index % LOG_WORDS)) {
                *word = if edit.adds { word.wrapping_add(edit.value) } else { edit.value };
            }
            return;
        }
        if kind == UNIT {
            return self.edit_unit(edit);
        }
        for member in 0..MEMBERS {
            for copy in 0..2 {
                if edit.is_for(member, MEMBERS, copy, 2) {
                    self.edit_member(edit, kind, member, copy);
                }
            }
        }
    }

    fn edit_member(&mut self, edit: &Edit, kind: u8, member: usize, copy: usize) {
        let (places, number, bytes) = (self.places, member as u8, &mut self.members[member]);
        let index = u32::from(edit.index);
        match kind {
            LABEL if copy == 0 => {
                let label = &mut bytes[..LABEL_BYTES];
                edit.apply(label);
                label[8..12].fill(0);
                let crc = crc32c(&[&label[..508]]);
                label[508..512].copy_from_slice(&crc.to_le_bytes());
                let crc = crc32c(&[label]);
                label[8..12].copy_from_slice(&crc.to_le_bytes());
            }
            CHECKPOINT => {
                let at = places.checkpoints.start as usize + copy * 4096;
                let start = &mut bytes[at..at + 4096];
                edit.apply(start);
                seal(start, 4, 8);
            }
            BATCH | ENTRY => {
                let batches = batches_of(bytes, &places);
                if batches.is_empty() {
                    return;
                }
                let (at, entry) = match kind {
                    BATCH => (batches[edit.index as usize % batches.len()], None),
                    _ => (batches[copy % batches.len()], Some(edit.index)),
                };
                let blocks = usize::from(bytes[at + 14]).clamp(1, 16);
                let end = (at + blocks * 4096).min((places.ring.start + places.ring.bytes) as usize);
                let batch = &mut bytes[at..end];
                match entry {
                    None => edit.apply(batch),
                    Some(index) => edit_entry(edit, &mut batch[128..], index),
                }
                seal(batch, 4, 8);
            }
            RECORD if copy == 0 => {
                // The records of extents, and the first records of zeros.
                let index = if index < 16 { index } else { places.extents + index % 8 };
                let at = places.record_start(index) as usize;
                let record = &mut bytes[at..at + RECORD_BYTES];
                edit.apply(record);
                record[12..16].fill(0);
                if record.iter().any(|byte| *byte != 0) {
                    let crc = crc32c(&[&record[..12], &record[16..], &[number], &index.to_le_bytes()]);
                    record[12..16].copy_from_slice(&crc.to_le_bytes());
                }
            }
            OWNER if copy == 0 => {
                let slot = index % 8;
                let at = places.owner_start(slot) as usize;
                let owner = &mut bytes[at..at + OWNER_BYTES];
                edit.apply(owner);
                let crc = crc32c(&[&owner[..252], &slot.to_le_bytes()]);
                owner[252..].copy_from_slice(&crc.to_le_bytes());
            }
            ADDRESS if copy == 0 => {
                // Of the first packed extents.
                let packed = |index: &u32| bytes[places.record_start(*index) as usize] == 2;
                let Some(extent) = (0..places.extents).filter(packed).nth(edit.index as usize % 2) else { return };
                let at = places.record_start(extent) as usize;
                let life = u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]);
                let slot = (edit.offset / 8 % EXTENT_BLOCKS as u16) as u8;
                let at = places.addresses_start(extent) as usize + usize::from(slot) * 8;
                let block = edit.value & ((1 << 48) - 1);
                let pieces: [&[u8]; 5] =
                    [&[number], &extent.to_le_bytes(), &[slot], &block.to_le_bytes(), &life.to_le_bytes()];
                let word = block | u64::from(crc32c(&pieces) as u16) << 48;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            BYTES if copy == 0 => {
                let at = edit.index as usize * 512;
                if let Some(sector) = bytes.get_mut(at..) {
                    edit.apply(sector);
                }
            }
            _ => {}
        }
    }

    fn edit_unit(&mut self, edit: &Edit) {
        let units = self.log.len().saturating_sub(LOG_HEADER_WORDS) / 8;
        if units == 0 {
            return;
        }
        // From the first unit that is not in the rings.
        let first = self.log[6] as usize + usize::from(edit.index);
        let at = LOG_HEADER_WORDS + first % units * 8;
        let mut bytes: Vec<u8> = self.log[at..].iter().take(40).flat_map(|word| word.to_le_bytes()).collect();
        edit_entry(edit, &mut bytes, 0);
        for (word, bytes) in self.log[at..].iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
    }
}

/// Applies an edit to entry `index` of these, and makes its checksums valid: of the record in it, and of all its
/// units.
fn edit_entry(edit: &Edit, entries: &mut [u8], index: u16) {
    let mut at = 0;
    for _ in 0..index {
        let units = usize::from(entries.get(at + 3).copied().unwrap_or(0)).max(1);
        if at + 2 * units * UNIT_BYTES > entries.len() {
            break;
        }
        at += units * UNIT_BYTES;
    }
    let units = usize::from(entries[at + 3]).clamp(1, 5).min((entries.len() - at) / UNIT_BYTES);
    let entry = &mut entries[at..at + units * UNIT_BYTES];
    edit.apply(entry);
    if matches!(entry[0], 1 | 2) {
        entry[36..40].fill(0);
        if entry[24..56].iter().any(|byte| *byte != 0) {
            let crc = crc32c(&[&entry[24..36], &entry[40..56], &entry[1..2], &entry[4..8]]);
            entry[36..40].copy_from_slice(&crc.to_le_bytes());
        }
    } else if entry[0] == 3 && units == 5 && entry[64..].iter().any(|byte| *byte != 0) {
        let crc = crc32c(&[&entry[64..64 + 252], &entry[4..8]]);
        entry[64 + 252..].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c(&[&entry[..56], &entry[60..]]);
    entry[56..60].copy_from_slice(&crc.to_le_bytes());
}

fn seal(bytes: &mut [u8], at: usize, from: usize) {
    let crc = crc32c(&[&bytes[from..]]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the offsets of the batches on a member.
fn batches_of(bytes: &[u8], places: &PoolMemberLayout) -> Vec<usize> {
    let ring = places.ring.start as usize..(places.ring.start + places.ring.bytes) as usize;
    ring.step_by(4096).filter(|at| bytes[*at..].starts_with(b"BRPB")).collect()
}

/// A process that uses the disks.
struct Rig {
    disks: Disks,
    log: Option<Arc<Words>>,
    memory: Memory,
}

impl Rig {
    fn new(members: Vec<Vec<u8>>, log: Option<Arc<Words>>) -> Rig {
        let disks = Disks::new(members, MEMBER_BYTES);
        Rig { disks, log, memory: Memory((0..BUFFERS).map(|_| vec![0; BATCH_BYTES_MAX]).collect()) }
    }

    /// Opens the pool as its labels say. Returns `None` if it is refused.
    fn open(&mut self, run: u64) -> Option<Pool> {
        let mut labels = Vec::new();
        for number in 0..MEMBERS {
            let block = self.disks.read_now(DeviceId(number as u32), 0, LABEL_BYTES).ok()?;
            let label = PoolLabel::decode(&block).ok().filter(|label| label.fits(MEMBER_BYTES).is_ok())?;
            labels.push(label);
        }
        // The daemon checks this before it opens a pool: labels of one pool, each of another member.
        let same = |label: &PoolLabel| label.uuid == POOL && label.layout.owner_slots == labels[0].layout.owner_slots;
        if !labels.iter().all(same) || labels[0].member == labels[1].member {
            return None;
        }
        let mut members: Vec<PoolDevice> = (0u32..)
            .zip(&labels)
            .map(|(device, label)| PoolDevice::new(label.member, DeviceId(device), &label.layout))
            .collect();
        members.sort_by_key(|member| member.number);
        let owner_slots = labels[0].layout.owner_slots;
        let what =
            OpenPool { uuid: POOL, members: &members, owner_slots, missing: 0, overwrites_unreadable: false, run };
        let old = self.log.clone();
        let mut made = None;
        let opened = now(open(
            &self.disks,
            &what,
            |_| old.clone().map(|old| old as Arc<dyn LogMemory>),
            |_, bytes| {
                let words = Words::of((0..bytes / 8).map(|_| 0));
                made = Some(Arc::clone(&words));
                Ok(words as Arc<dyn LogMemory>)
            },
        ));
        match opened {
            Ok(pool) => {
                self.log = made;
                Some(pool)
            }
            Err(error) => {
                // The error names the member or the in-memory log, and says what is wrong.
                assert!(error.to_string().len() > 20, "{error:?}");
                assert!(!matches!(error, OpenError::LogMemory(_)), "{error}");
                None
            }
        }
    }

    /// Executes the I/Os and barriers that the pool requests.
    fn pump(&mut self, pool: &mut Pool) {
        loop {
            while let Some(io) = pool.next_io(&mut self.memory) {
                let device = DeviceId(u32::from(io.member));
                let done = match io.op {
                    PoolOp::Write { buffer } => {
                        let data = self.memory.buffer(buffer)[..io.len as usize].to_vec();
                        self.disks.write_now(device, io.offset, &data)
                    }
                    PoolOp::Discard => now(self.disks.discard(device, io.offset, io.len)),
                    PoolOp::Flush | PoolOp::Copy { .. } => Ok(()),
                };
                pool.io_done(io.token, done.map_err(|error| error.kind));
            }
            match pool.next_barrier() {
                Some(number) => pool.barrier_done(number),
                None => return,
            }
        }
    }

    fn commit(&mut self, pool: &mut Pool) {
        let number = pool.request_commit();
        self.pump(pool);
        assert!(pool.is_committed(number) != Ok(false), "a commit ends");
    }

    /// Writes these blocks of a volume, as far as there is space.
    fn write(&mut self, pool: &mut Pool, volume: braid_engine::pool::VolumeId, block: u64, blocks: u64) {
        let (mut at, end) = (block, block + blocks);
        let mut waits = 0;
        while at < end {
            match pool.allocate(volume, at, (end - at).min(64) as u32) {
                BlockAllocation::New(new) => {
                    at += u64::from(new.blocks);
                    pool.map_allocation(&new);
                }
                BlockAllocation::Own { blocks, .. } => at += u64::from(blocks),
                BlockAllocation::LogFull if waits < 4 => {
                    waits += 1;
                    self.commit(pool);
                }
                BlockAllocation::Full | BlockAllocation::LogFull | BlockAllocation::Held => return,
            }
        }
    }

    fn discard(&mut self, pool: &mut Pool, volume: braid_engine::pool::VolumeId, block: u64, blocks: u64) {
        let (mut at, end) = (block, block + blocks);
        let mut waits = 0;
        while at < end {
            match pool.discard(volume, at, end - at) {
                DiscardOutcome::Done(blocks) => at += blocks,
                DiscardOutcome::LogFull if waits < 4 => {
                    waits += 1;
                    self.commit(pool);
                }
                DiscardOutcome::Full(_) | DiscardOutcome::LogFull | DiscardOutcome::Held => return,
            }
        }
    }

    /// Performs client requests and administrative operations of every kind. `round` tells the two uses of an image
    /// apart.
    fn use_all(&mut self, pool: &mut Pool, round: u128) {
        let name = |text: String| OwnerName::new(&text).expect("a good name");
        let uuid = |kind: u128, n: u128| Uuid::from_u128(kind << 64 | round << 32 | (n + 1));
        let _ = pool.create_volume(None, Owner::volume(uuid(1, 0), name(format!("v{round}")), 40 * EXTENT_BYTES));
        let _ = pool.recount();
        let owners: Vec<Owner> = pool.state().owners.iter().cloned().collect();
        for (n, owner) in (0..).zip(owners) {
            if owner.size_bytes > SERVED_BYTES_MAX {
                continue;
            }
            let Ok(volume) = pool.serve(owner.id) else { continue };
            let blocks = owner.size_bytes / 4096;
            if !pool.is_read_only(volume) {
                self.write(pool, volume, 0, 70.min(blocks));
                self.write(pool, volume, blocks / 2, 3.min(blocks - blocks / 2));
                self.write(pool, volume, blocks - 1, 1);
                self.discard(pool, volume, 64.min(blocks - 1), 64.min(blocks - 64.min(blocks - 1)));
                let what = [(owner.id, uuid(2, n), name(format!("s{round}.{n}")))];
                let taken = pool.snapshot(&what, 1_700_000_000);
                self.write(pool, volume, 5.min(blocks - 1), 1);
                self.discard(pool, volume, 0, 300.min(blocks));
                self.write(pool, volume, blocks / 3, 2.min(blocks - blocks / 3));
                if let Ok(taken) = taken {
                    self.commit(pool);
                    let clone = Owner::volume(uuid(3, n), name(format!("c{round}.{n}")), owner.size_bytes);
                    let _ = pool.create_volume(Some(taken[0]), clone);
                }
                pool.compact(vec![pool.owner_of(volume).expect("served")]);
                for _ in 0..20 {
                    if pool.is_compacting() {
                        let _ = pool.compact_step(64);
                    }
                }
                self.pump(pool);
            }
            pool.stop_serving(volume);
            let _ = pool.alter(owner.id, Owner { size_bytes: owner.size_bytes + EXTENT_BYTES, ..owner.clone() });
            self.commit(pool);
        }
        self.administer(pool);
        let number = pool.request_checkpoint();
        self.pump(pool);
        assert!(pool.has_failed() || pool.is_checkpointed(number), "a checkpoint ends");
        let _ = pool.create_volume(None, Owner::volume(uuid(4, 0), name(format!("w{round}")), 8 * EXTENT_BYTES));
        let ids: Vec<u32> = pool.state().owners.iter().map(|owner| owner.id).take(3).collect();
        for id in ids {
            let owner = pool.state().owners.get(id).cloned();
            if let Some(owner) = owner.filter(|owner| owner.size_bytes <= SERVED_BYTES_MAX)
                && let Ok(volume) = pool.serve(id)
            {
                if !pool.is_read_only(volume) {
                    self.write(pool, volume, 0, 9.min(owner.size_bytes / 4096));
                }
                pool.stop_serving(volume);
            }
        }
    }

    /// Rolls back, deletes, merges and flattens, a little of each.
    fn administer(&mut self, pool: &mut Pool) {
        let owners: Vec<Owner> = pool.state().owners.iter().cloned().collect();
        for owner in owners.iter().filter(|owner| owner.kind == OwnerKind::Snapshot).take(2) {
            let of = owners.iter().find(|other| other.kind == OwnerKind::Volume && other.parent == owner.id);
            if let Some(of) = of {
                let _: Result<_, AdminError> = pool.rollback(of.id, owner.id);
            }
        }
        for owner in owners.iter().filter(|owner| owner.size_bytes <= SERVED_BYTES_MAX) {
            if owner.kind == OwnerKind::Volume && owner.id % 2 == 0 {
                let _ = pool.flatten(owner.id);
                (0..20).for_each(|_| {
                    let _ = pool.flatten_step(64);
                    self.pump(pool);
                });
            } else if owner.kind == OwnerKind::Snapshot && owner.id % 3 == 0 {
                let _ = pool.delete_snapshot(owner.id);
            } else if owner.kind == OwnerKind::Volume && owner.id % 5 == 0 {
                let _ = pool.delete_volume(owner.id);
            }
        }
        self.commit(pool);
        for _ in 0..40 {
            let _ = pool.merge_step(64);
            pool.commit_if_due();
            self.pump(pool);
        }
        (0..10).for_each(|_| {
            let _ = pool.move_step(64);
            self.pump(pool);
        });
    }
}

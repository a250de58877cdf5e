//! The write-intent bitmap on the members' disks: written empty at creation, read and merged at a start.

use braid_engine::{LEAF_BYTES_MAX, LeafId, MetaIo};
use braid_format::bitmap::{
    BitmapBlock, REGIONS_PER_BLOCK, SECTORS_PER_BLOCK, WORDS_PER_BLOCK, WORDS_PER_SECTOR, bytes_for, decode, encode,
};
use braid_format::{ArrayPart, BLOCK_BYTES, DiskLayout, MemberState};

use super::array::Array;
use super::error::LifecycleError;
use super::join::{join_all, try_join_all};
use super::write::Target;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Maximum number of blocks read or written at once.
const PIECE_BLOCKS: usize = LEAF_BYTES_MAX as usize / BLOCK;

/// The bitmap of an array: bit *i* of word *w* is region 64 *w* + *i*. It consists of whole bitmap blocks, so it may
/// have more bits than regions; the excess bits are 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArrayBitmap {
    /// Regions written since the array was created.
    pub written: Vec<u64>,
    /// Regions whose copies may differ among members. A region that is dirty and not written: its first write was
    /// interrupted.
    pub dirty: Vec<u64>,
    /// Blocks with a damaged or unreadable copy on some member; they have been rewritten.
    pub damaged_blocks: u64,
}

/// Returns the number of regions of an array.
pub(super) fn regions_of(array_bytes: u64, region_bytes: u32) -> u64 {
    array_bytes.div_ceil(u64::from(region_bytes.max(1)))
}

/// Returns the size in bytes of the largest array with regions of this size whose bitmap fits on this disk.
pub(super) fn largest_bytes(places: &DiskLayout, region_bytes: u32) -> u64 {
    places.bitmap.bytes / BLOCK_BYTES * u64::from(REGIONS_PER_BLOCK) * u64::from(region_bytes)
}

/// Refuses a disk on which the bitmap of such an array does not fit.
pub(super) fn check_room(
    leaf: LeafId,
    places: &DiskLayout,
    array_bytes: u64,
    region_bytes: u32,
) -> Result<(), LifecycleError> {
    let needed_bytes = bytes_for(regions_of(array_bytes, region_bytes));
    let room_bytes = places.bitmap.bytes;
    if region_bytes == 0 || needed_bytes <= room_bytes {
        return Ok(());
    }
    let largest_bytes = largest_bytes(places, braid_format::bitmap::REGION_BYTES_MAX);
    Err(LifecycleError::BitmapRoom { leaf, array_bytes, needed_bytes, room_bytes, largest_bytes })
}

/// Returns the number of bitmap blocks of an array.
fn blocks_of(label: &ArrayPart) -> usize {
    (bytes_for(regions_of(label.array_bytes, label.region_bytes)) / BLOCK_BYTES) as usize
}

/// Writes an empty bitmap to these disks, durably.
pub(super) async fn write_empty<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    targets: &[Target],
) -> Result<(), LifecycleError> {
    let words = vec![0; blocks_of(label) * WORDS_PER_BLOCK];
    let (words, label) = (&words, label);
    try_join_all(targets.iter().map(|target| store_on(io, label, target, words, words))).await?;
    Ok(())
}

/// Writes the empty bitmap blocks that an array gains when it grows to `array_bytes`, durably.
pub(super) async fn write_further<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    target: &Target,
    array_bytes: u64,
) -> Result<(), LifecycleError> {
    let blocks = blocks_of(label)..(bytes_for(regions_of(array_bytes, label.region_bytes)) / BLOCK_BYTES) as usize;
    for first in blocks.clone().step_by(PIECE_BLOCKS) {
        let count = PIECE_BLOCKS.min(blocks.end - first);
        write_blocks(io, label, target, first, &vec![BitmapBlock::EMPTY; count]).await?;
    }
    Ok(())
}

/// Writes the whole bitmap to these members, durably.
///
/// # Errors
/// A disk's error. [`LifecycleError::Slot`] if the disk of a slot is missing, or if `written` or `dirty` does not have
/// as many words as [`load_regions`] returns.
pub async fn store_regions<M: MetaIo>(
    io: &M,
    array: &Array,
    roles: &[u16],
    written: &[u64],
    dirty: &[u64],
) -> Result<(), LifecycleError> {
    let words = blocks_of(&array.label) * WORDS_PER_BLOCK;
    let mut targets = Vec::with_capacity(roles.len());
    for role in roles {
        let target = array.targets.iter().find(|t| t.part.slot == *role).filter(|_| *role < array.slots());
        let wrong = |reason: String| LifecycleError::Slot { slot: *role, reason };
        targets.push(target.ok_or_else(|| wrong("its disk is not here".into()))?);
        if (written.len(), dirty.len()) != (words, words) {
            let given = written.len().min(dirty.len());
            return Err(wrong(format!("a bitmap of {given} words, not of {words}")));
        }
    }
    try_join_all(targets.into_iter().map(|target| store_on(io, &array.label, target, written, dirty))).await?;
    Ok(())
}

async fn store_on<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    target: &Target,
    written: &[u64],
    dirty: &[u64],
) -> Result<(), LifecycleError> {
    let blocks = blocks_of(label);
    for first in (0..blocks).step_by(PIECE_BLOCKS) {
        let count = PIECE_BLOCKS.min(blocks - first);
        let bits: Vec<BitmapBlock> = (first..first + count).map(|block| bits_of(block, written, dirty)).collect();
        write_blocks(io, label, target, first, &bits).await?;
    }
    Ok(())
}

fn bits_of(block: usize, written: &[u64], dirty: &[u64]) -> BitmapBlock {
    let mut bits = BitmapBlock::EMPTY;
    let words = block * WORDS_PER_BLOCK..(block + 1) * WORDS_PER_BLOCK;
    bits.written.copy_from_slice(&written[words.clone()]);
    bits.dirty.copy_from_slice(&dirty[words]);
    bits
}

/// Writes consecutive blocks, at most [`PIECE_BLOCKS`], durably.
async fn write_blocks<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    target: &Target,
    first: usize,
    bits: &[BitmapBlock],
) -> Result<(), LifecycleError> {
    let mut bytes = vec![0; bits.len() * BLOCK];
    for ((block, bits), out) in (first..).zip(bits).zip(bytes.as_chunks_mut::<BLOCK>().0) {
        encode(&label.uuid, block as u32, bits, out);
    }
    let offset = target.part.layout.bitmap.start + (first * BLOCK) as u64;
    let result = io.write(target.leaf, offset, bytes, true).await;
    result.map_err(|source| LifecycleError::Io { leaf: target.leaf, action: "write the bitmap", offset, source })
}

/// One member's copy of a piece: the bits of each block, and one bit for each damaged sector.
struct Copy {
    bits: Vec<BitmapBlock>,
    damaged: Vec<u8>,
}

/// Reads and merges the bitmaps of all members in sync: a bit set on one member is set. Blocks that differ or are
/// damaged are rewritten on all members in sync, durably, before this returns.
///
/// # Errors
/// [`LifecycleError::BitmapDamaged`] if a sector is damaged on every member, unless `force`: then all of its regions
/// count as written and dirty. On a disk's error, drop that member and call this again.
pub async fn load_regions<M: MetaIo>(io: &M, array: &Array, force: bool) -> Result<ArrayBitmap, LifecycleError> {
    let label = &array.label;
    let members: Vec<&Target> =
        array.targets.iter().filter(|t| array.state(t.part.slot) == MemberState::InSync).collect();
    let blocks = blocks_of(label);
    let regions = regions_of(label.array_bytes, label.region_bytes);
    let mut all = ArrayBitmap { written: Vec::new(), dirty: Vec::new(), damaged_blocks: 0 };
    // Nothing is written until everything was read: only then is it known whether the start is refused.
    let mut repairs: Vec<(usize, usize, BitmapBlock)> = Vec::new();
    let mut lost_sectors = Vec::new();
    for first in (0..blocks).step_by(PIECE_BLOCKS) {
        let count = PIECE_BLOCKS.min(blocks - first);
        let copies = try_join_all(members.iter().map(|target| read_blocks(io, label, target, first, count))).await?;
        for at in 0..count {
            let mut merged = BitmapBlock::EMPTY;
            copies.iter().for_each(|copy| merged.merge(&copy.bits[at]));
            let everywhere = copies.iter().fold(0xff, |damaged, copy| damaged & copy.damaged[at]);
            for sector in (0..SECTORS_PER_BLOCK).filter(|sector| everywhere >> sector & 1 == 1) {
                lost_sectors.push((first + at) * SECTORS_PER_BLOCK + sector);
                let words = sector * WORDS_PER_SECTOR..(sector + 1) * WORDS_PER_SECTOR;
                merged.written[words.clone()].fill(u64::MAX);
                merged.dirty[words].fill(u64::MAX);
            }
            keep_regions(&mut merged, first + at, regions);
            all.damaged_blocks += u64::from(copies.iter().any(|copy| copy.damaged[at] != 0));
            let odd = |copy: &Copy| copy.damaged[at] != 0 || copy.bits[at] != merged;
            let odd = copies.iter().enumerate().filter(|(_, copy)| odd(copy));
            repairs.extend(odd.map(|(member, _)| (member, first + at, merged.clone())));
            all.written.extend_from_slice(&merged.written);
            all.dirty.extend_from_slice(&merged.dirty);
        }
    }
    if !lost_sectors.is_empty() && !force {
        let regions_each = (WORDS_PER_SECTOR * 64) as u64;
        let of = |sector: &usize| regions.saturating_sub(*sector as u64 * regions_each).min(regions_each);
        let lost: u64 = lost_sectors.iter().map(of).sum();
        let bytes = (lost * u64::from(label.region_bytes)).min(label.array_bytes);
        return Err(LifecycleError::BitmapDamaged { sectors: lost_sectors.len() as u64, bytes });
    }
    repair(io, label, &members, repairs).await?;
    Ok(all)
}

/// Merges the bitmaps as [`load_regions`] does, then sets the dirty bit of each named region that was ever written, on
/// these members, durably. Returns how many of the named regions were ever written.
///
/// # Errors
/// As for `load_regions`.
pub(super) async fn mark_dirty<M: MetaIo>(
    io: &M,
    array: &Array,
    members: &[&Target],
    is_named: &(dyn Fn(u64) -> bool + Sync),
    force: bool,
) -> Result<u64, LifecycleError> {
    let mut all = load_regions(io, array, force).await?;
    let mut marked = 0;
    let mut blocks = Vec::new();
    for (word, dirty) in all.dirty.iter_mut().enumerate() {
        let named = (0..64).filter(|bit| is_named(word as u64 * 64 + bit)).fold(0u64, |bits, bit| bits | 1 << bit);
        let named = named & all.written[word];
        marked += u64::from(named.count_ones());
        let block = word / WORDS_PER_BLOCK;
        if named != 0 && blocks.last() != Some(&block) {
            blocks.push(block);
        }
        *dirty |= named;
    }
    let all = &all;
    for block in blocks {
        let bits = &[bits_of(block, &all.written, &all.dirty)];
        try_join_all(members.iter().map(|target| write_blocks(io, &array.label, target, block, bits))).await?;
    }
    Ok(marked)
}

/// Clears the bits beyond the array's end.
fn keep_regions(bits: &mut BitmapBlock, block: usize, regions: u64) {
    let first = block as u64 * u64::from(REGIONS_PER_BLOCK);
    for word in 0..WORDS_PER_BLOCK {
        let left = regions.saturating_sub(first + word as u64 * 64);
        if left < 64 {
            let mask = (1u64 << left) - 1;
            bits.written[word] &= mask;
            bits.dirty[word] &= mask;
        }
    }
}

/// Writes merged blocks, contiguous ones together.
async fn repair<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    members: &[&Target],
    repairs: Vec<(usize, usize, BitmapBlock)>,
) -> Result<(), LifecycleError> {
    let of_member = |member: usize| {
        let mut runs: Vec<(usize, Vec<BitmapBlock>)> = Vec::new();
        for (_, block, bits) in repairs.iter().filter(|(of, ..)| *of == member) {
            match runs.last_mut() {
                Some((first, run)) if *first + run.len() == *block && run.len() < PIECE_BLOCKS => {
                    run.push(bits.clone())
                }
                _ => runs.push((*block, vec![bits.clone()])),
            }
        }
        runs
    };
    try_join_all(members.iter().enumerate().map(|(member, target)| {
        let runs = of_member(member);
        async move {
            for (first, run) in runs {
                write_blocks(io, label, target, first, &run).await?;
            }
            Ok::<(), LifecycleError>(())
        }
    }))
    .await?;
    Ok(())
}

/// Reads consecutive blocks. If the disk fails the piece, reads block by block: a block that fails counts as damaged.
async fn read_blocks<M: MetaIo>(
    io: &M,
    label: &ArrayPart,
    target: &Target,
    first: usize,
    count: usize,
) -> Result<Copy, LifecycleError> {
    let start = target.part.layout.bitmap.start;
    let offset = start + (first * BLOCK) as u64;
    let mut bytes = match io.read(target.leaf, offset, count * BLOCK).await {
        Ok(bytes) => bytes,
        Err(_) => {
            let one = |block: usize| io.read(target.leaf, start + (block * BLOCK) as u64, BLOCK);
            let blocks = join_all((first..first + count).map(one)).await;
            // A sector of zeros is no valid sector of a bitmap.
            blocks.into_iter().flat_map(|block| block.unwrap_or_else(|_| vec![0; BLOCK])).collect()
        }
    };
    bytes.resize(count * BLOCK, 0);
    let read =
        (first..).zip(bytes.as_chunks::<BLOCK>().0).map(|(block, bytes)| decode(&label.uuid, block as u32, bytes));
    let (bits, damaged) = read.map(|read| (read.bits, read.damaged)).unzip();
    Ok(Copy { bits, damaged })
}

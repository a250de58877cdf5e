//! The checkpoint: writes committed changes into the tables, so that the log rings can be reused.
//!
//! Records, addresses and owners are written as they were committed last; all members flush. Then each member gets a
//! new ring start, after the commits that its tables hold now; all flush again. Only then the blocks before it are
//! reused. After a crash in between, recovery replays entries that the tables hold already. That changes nothing, as
//! each entry holds a complete image.
//!
//! If a write finds no space below, the checkpoint stays at its stage, with that write still to be made, until it is
//! retried ([`super::starved`]). Table pages are then written with what is committed by that time. Ring starts are
//! written again unchanged: some members may have theirs already, and a different start of the same generation would
//! overwrite a member's newest one.

use braid_format::pool::{
    ADDRESS_SECTOR_BYTES, Checkpoint, OWNER_BYTES, RECORD_BYTES, checkpoint_slot, encode_address,
};

use super::Pool;
use super::device::{MemberLayout, PoolDevice};
use super::pool_io::{IoPurpose, PageRun, PoolIo, PoolMemory, PoolOp};
use super::present_members::PresentMembers;
use super::starved::Attempts;
use super::state::{NO_BLOCK, PoolTables};
use super::units::{EXTENT_BLOCKS, ExtentId, MEMBERS_MAX, RECORDS_EACH, RecordId, SECTORS_EACH};

const BLOCK: u64 = 4096;
const OWNERS_EACH: u32 = (BLOCK as usize / OWNER_BYTES) as u32;
/// Maximum blocks of one write.
const RUN_MAX: u32 = 16;

/// A set of blocks that have to be written.
#[derive(Clone, Default)]
struct Blocks {
    words: Vec<u64>,
    count: u32,
}

impl Blocks {
    fn new(blocks: u32) -> Blocks {
        Blocks { words: vec![0; blocks.div_ceil(64) as usize], count: 0 }
    }

    fn add(&mut self, block: u32) {
        let word = &mut self.words[block as usize / 64];
        self.count += u32::from(*word >> (block % 64) & 1 == 0);
        *word |= 1 << (block % 64);
    }

    /// Puts back a run that was taken.
    fn put_back(&mut self, from: &mut usize, first: u32, count: u32) {
        (first..first + count).for_each(|block| self.add(block));
        *from = (*from).min(first as usize / 64);
    }

    /// Takes the first run of blocks.
    fn take_run(&mut self, from: &mut usize) -> Option<(u32, u32)> {
        if self.count == 0 {
            *from = 0;
            return None;
        }
        while self.words[*from] == 0 {
            *from += 1;
        }
        let first = *from as u32 * 64 + self.words[*from].trailing_zeros();
        let mut next = first;
        while next < first + RUN_MAX
            && self.words.get(next as usize / 64).is_some_and(|word| word >> (next % 64) & 1 == 1)
        {
            self.words[next as usize / 64] &= !(1 << (next % 64));
            self.count -= 1;
            next += 1;
        }
        Some((first, next - first))
    }
}

/// Blocks of one member's tables that are behind what is committed.
struct Dirty {
    table: Blocks,
    addresses: Blocks,
    owners: Blocks,
    from: [usize; 3],
}

/// The stage of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Pages { member: usize },
    Flush { next: usize },
    Starts { next: usize },
    StartsFlush { next: usize },
}

/// The checkpoints of a pool.
pub(super) struct CheckpointWriter {
    /// The present members: all lists are by ordinal.
    pub present: PresentMembers,
    pub places: Vec<MemberLayout>,
    dirty: Vec<Dirty>,
    writing: Vec<Dirty>,
    owner_slots: u32,
    stage: Stage,
    in_flight: u32,
    wanted: bool,
    /// Attempts to write pages, or starts.
    pub attempts: Attempts,
    /// The content of the next ring starts: the last commit, and the last log unit that it covers.
    commit: (u64, u64),
    /// By member number, the last commit that has batches on the member.
    parts: [u64; MEMBERS_MAX],
    /// By ordinal, the position and sequence number of the member's first batch after that commit.
    heads: Vec<(u64, u64)>,
    /// The generation of each member's newest ring start.
    generations: Vec<u64>,
    /// The next starts have generations above this one. A member that was withdrawn may have a start of this
    /// generation, or of a lower one.
    generation_floor: u64,
    done: u64,
}

impl CheckpointWriter {
    /// Returns the checkpoints of a pool whose members have these layouts and numbers of records; `generations` are
    /// those of their ring starts. All by ordinal.
    pub fn new(
        present: PresentMembers,
        places: Vec<MemberLayout>,
        records: &[(u32, u32)],
        owner_slots: u32,
        generations: Vec<u64>,
    ) -> CheckpointWriter {
        let each = |(extents, zero_slots): &(u32, u32)| Dirty::none(*extents, *zero_slots, owner_slots);
        let dirty = || records.iter().map(each).collect::<Vec<_>>();
        CheckpointWriter {
            present,
            places,
            dirty: dirty(),
            writing: dirty(),
            owner_slots,
            stage: Stage::Idle,
            in_flight: 0,
            wanted: false,
            attempts: Attempts::default(),
            commit: (0, 0),
            parts: [0; MEMBERS_MAX],
            heads: vec![(0, 0); records.len()],
            generations,
            generation_floor: 0,
            done: 0,
        }
    }

    fn next_generation(&self, member: usize) -> u64 {
        generation_after(self.generations[member], self.newest_generation() + 1)
    }

    fn newest_generation(&self) -> u64 {
        self.generations.iter().copied().max().unwrap_or(0).max(self.generation_floor)
    }

    /// Whether no checkpoint is under way or wanted.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle && !self.wanted
    }

    /// Removes a member; returns the ordinal that it had.
    pub fn remove_member(&mut self, member: u8) -> Option<usize> {
        let ordinal = self.present.find(member)?;
        self.present.remove(member);
        self.places.remove(ordinal);
        self.dirty.remove(ordinal);
        self.writing.remove(ordinal);
        self.heads.remove(ordinal);
        self.generations.remove(ordinal);
        Some(ordinal)
    }

    /// Restarts the stage under way with the first member. Starts keep their generations, even if a member is removed
    /// before they are written: some of them may be durable. Nothing is in flight.
    pub fn restart_stage(&mut self) {
        debug_assert_eq!(self.in_flight, 0);
        self.generation_floor = self.newest_generation();
        self.stage = match self.stage {
            Stage::Idle => Stage::Idle,
            Stage::Pages { .. } => Stage::Pages { member: 0 },
            Stage::Flush { .. } => Stage::Flush { next: 0 },
            Stage::Starts { .. } => Stage::Starts { next: 0 },
            Stage::StartsFlush { .. } => Stage::StartsFlush { next: 0 },
        };
    }

    /// Requests a checkpoint, which begins now, or when the one under way has ended.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Notes a committed change of a record, and of its address sector if `address`.
    pub fn note_record(&mut self, id: RecordId, address: bool) {
        let dirty = &mut self.dirty[self.present.of(id.member)];
        dirty.table.add(id.index / RECORDS_EACH);
        if address {
            dirty.addresses.add(id.index / SECTORS_EACH);
        }
    }

    /// Notes a committed change of an owner.
    pub fn note_owner(&mut self, slot: u32) {
        self.dirty.iter_mut().for_each(|dirty| dirty.owners.add(slot / OWNERS_EACH));
    }

    /// Adds a member that has nothing but a ring start of this generation. All owners are to be written to it.
    pub fn add_member(&mut self, device: &PoolDevice, generation: u64) {
        self.present.add(device.number);
        self.places.push(device.layout);
        for all in [&mut self.dirty, &mut self.writing] {
            all.push(Dirty::none(device.extents, device.zero_slots, self.owner_slots));
        }
        self.heads.push((0, 0));
        self.generations.push(generation);
        self.note_all_owners(device.number);
    }

    /// Notes that all owners are to be written to a member.
    pub fn note_all_owners(&mut self, member: u8) {
        let owners = &mut self.dirty[self.present.of(member)].owners;
        (0..self.owner_slots.div_ceil(OWNERS_EACH)).for_each(|block| owners.add(block));
    }
}

impl Pool {
    /// Requests a checkpoint, which writes what is committed into the tables. Returns a number for
    /// [`Pool::is_checkpointed`].
    pub fn request_checkpoint(&mut self) -> u64 {
        let checkpoint = &mut self.commits.checkpoint;
        checkpoint.want();
        checkpoint.attempts.retry();
        checkpoint.done + 1 + u64::from(checkpoint.stage != Stage::Idle)
    }

    /// Returns whether the checkpoint with this number has ended.
    pub fn is_checkpointed(&self, number: u64) -> bool {
        self.commits.checkpoint.done >= number
    }

    /// Returns the first byte of an extent on its member.
    pub fn extent_offset(&self, extent: ExtentId) -> u64 {
        let checkpoint = &self.commits.checkpoint;
        let data = checkpoint.places[checkpoint.present.of(extent.member)].data;
        data + u64::from(extent.index) * super::units::EXTENT_BYTES
    }

    pub(super) fn checkpoint_io(&mut self, memory: &mut impl PoolMemory) -> Option<PoolIo> {
        if self.commits.is_failed() {
            return None;
        }
        let members = self.commits.rings.len();
        // I/Os in flight end first; then the checkpoint waits.
        if self.commits.checkpoint.attempts.hit_no_space() || self.commits.checkpoint.attempts.waits() {
            return None;
        }
        loop {
            match self.commits.checkpoint.stage {
                Stage::Idle if self.commits.checkpoint.wanted => self.begin_checkpoint(),
                Stage::Pages { member } if member < members => {
                    if let Some(io) = self.page_io(member, memory)? {
                        return Some(io);
                    }
                    self.commits.checkpoint.stage = Stage::Pages { member: member + 1 };
                    self.next_stage();
                }
                Stage::Flush { next } if next < members => {
                    self.commits.checkpoint.stage = Stage::Flush { next: next + 1 };
                    self.commits.checkpoint.in_flight += 1;
                    return Some(self.flush_io(next, IoPurpose::Checkpoint));
                }
                Stage::Starts { next } if next < members => {
                    let buffer = self.commits.take_buffer()?;
                    self.commits.checkpoint.stage = Stage::Starts { next: next + 1 };
                    return Some(self.start_io(next, buffer, memory));
                }
                Stage::StartsFlush { next } if next < members => {
                    self.commits.checkpoint.stage = Stage::StartsFlush { next: next + 1 };
                    self.commits.checkpoint.in_flight += 1;
                    return Some(self.flush_io(next, IoPurpose::Checkpoint));
                }
                _ => return None,
            }
        }
    }

    fn begin_checkpoint(&mut self) {
        let commits = &mut self.commits;
        let checkpoint = &mut commits.checkpoint;
        checkpoint.wanted = false;
        std::mem::swap(&mut checkpoint.dirty, &mut checkpoint.writing);
        checkpoint.writing.iter_mut().for_each(|dirty| dirty.from = [0; 3]);
        checkpoint.commit = (commits.commit, commits.committed);
        checkpoint.parts = commits.parts;
        for (head, ring) in checkpoint.heads.iter_mut().zip(&commits.rings) {
            *head = ring.committed;
        }
        checkpoint.stage = Stage::Pages { member: 0 };
    }

    /// Returns the next write of a member's tables, if there is one; outer `None`: no buffer is free.
    fn page_io(&mut self, member: usize, memory: &mut impl PoolMemory) -> Option<Option<PoolIo>> {
        let Pool { commits, state, .. } = self;
        if commits.checkpoint.writing[member].is_empty() {
            return Some(None);
        }
        let buffer = commits.take_buffer()?;
        let places = commits.checkpoint.places[member];
        let owner_slots = commits.checkpoint.owner_slots;
        let dirty = &mut commits.checkpoint.writing[member];
        let bytes = memory.buffer(buffer);
        let number = commits.checkpoint.present.member(member);
        let (offset, table, (first, count)) = if let Some((first, count)) = dirty.owners.take_run(&mut dirty.from[0]) {
            for slot in first * OWNERS_EACH..(first + count) * OWNERS_EACH {
                let owner = if slot < owner_slots { state.committed_owner(slot) } else { None };
                let image = owner.map_or([0; OWNER_BYTES], |owner| owner.encode(slot));
                piece(bytes, slot - first * OWNERS_EACH, &image);
            }
            (places.owners, 0, (first, count))
        } else if let Some((first, count)) = dirty.addresses.take_run(&mut dirty.from[1]) {
            for index in first * SECTORS_EACH..(first + count) * SECTORS_EACH {
                piece(bytes, index - first * SECTORS_EACH, &sector(state, number, index));
            }
            (places.addresses, 1, (first, count))
        } else {
            let (first, count) = dirty.table.take_run(&mut dirty.from[2]).expect("checked that there is one");
            let records = state.records.extents(number) + state.zero_slots(number);
            for index in first * RECORDS_EACH..(first + count) * RECORDS_EACH {
                let id = RecordId { member: number, index };
                let image = match index < records {
                    true => image(state, id),
                    false => [0; RECORD_BYTES],
                };
                piece(bytes, index - first * RECORDS_EACH, &image);
            }
            (places.table, 2, (first, count))
        };
        commits.checkpoint.in_flight += 1;
        let run = PageRun { table, first, count: count as u8 };
        let token = commits.take_io(IoPurpose::Page { member: number, run }, Some(buffer)).expect("seen to be free");
        let (op, offset) = (PoolOp::Write { buffer }, offset + u64::from(first) * BLOCK);
        Some(Some(PoolIo { token, member: number, op, offset, len: u64::from(count) * BLOCK }))
    }

    fn start_io(&mut self, member: usize, buffer: u32, memory: &mut impl PoolMemory) -> PoolIo {
        let commits = &mut self.commits;
        let checkpoint = &mut commits.checkpoint;
        let ring = &commits.rings[member];
        let (position, sequence) = checkpoint.heads[member];
        let first_block = super::commit_ring::LogRing::next_position(position, ring.blocks) % ring.blocks;
        let generation = checkpoint.next_generation(member);
        let start = Checkpoint {
            pool_tag: commits.tag,
            session: commits.session,
            run: commits.run,
            sequence,
            position: first_block as u32,
            commit: checkpoint.commit.0,
            mark: checkpoint.commit.1,
            generation,
            previous_run: commits.before,
            last_commits: checkpoint.parts,
            missing: commits.absent,
            hold_outcome: commits.settled,
        };
        let image = start.encode();
        memory.buffer(buffer)[..image.len()].copy_from_slice(&image);
        checkpoint.in_flight += 1;
        let offset = checkpoint.places[member].starts + checkpoint_slot(generation) * BLOCK;
        let number = checkpoint.present.member(member);
        let token = commits.take_io(IoPurpose::Start { member: number }, Some(buffer)).expect("seen to be free");
        PoolIo { token, member: number, op: PoolOp::Write { buffer }, offset, len: BLOCK }
    }

    /// Notes that blocks of a table found no space: they are still to be written.
    pub(super) fn page_found_no_space(&mut self, member: u8, run: PageRun) {
        let checkpoint = &mut self.commits.checkpoint;
        let Dirty { owners, addresses, table, from } = &mut checkpoint.writing[checkpoint.present.of(member)];
        let blocks = [owners, addresses, table].into_iter().nth(usize::from(run.table)).expect("one of three");
        blocks.put_back(&mut from[usize::from(run.table)], run.first, u32::from(run.count));
        checkpoint.attempts.note_no_space(member);
        self.checkpoint_io_done();
    }

    pub(super) fn checkpoint_io_done(&mut self) {
        self.commits.checkpoint.in_flight -= 1;
        self.next_stage();
    }

    /// Advances to the next stage if all I/Os of this one have ended.
    fn next_stage(&mut self) {
        let members = self.commits.rings.len();
        let checkpoint = &mut self.commits.checkpoint;
        if checkpoint.in_flight > 0 {
            return;
        }
        if checkpoint.attempts.hit_no_space() {
            checkpoint.attempts.end();
            checkpoint.stage = match checkpoint.stage {
                Stage::Starts { .. } => Stage::Starts { next: 0 },
                _ => Stage::Pages { member: 0 },
            };
            return;
        }
        checkpoint.stage = match checkpoint.stage {
            Stage::Pages { member } if member == members => Stage::Flush { next: 0 },
            Stage::Flush { next } if next == members => Stage::Starts { next: 0 },
            Stage::Starts { next } if next == members => Stage::StartsFlush { next: 0 },
            Stage::StartsFlush { next } if next == members => Stage::Idle,
            _ => return,
        };
        // Everything that was written found space.
        checkpoint.attempts.end();
        if checkpoint.stage != Stage::Idle {
            return;
        }
        let next = checkpoint.newest_generation() + 1;
        for generation in &mut checkpoint.generations {
            *generation = generation_after(*generation, next);
        }
        checkpoint.done += 1;
        for (ring, (head, _)) in self.commits.rings.iter_mut().zip(&self.commits.checkpoint.heads) {
            ring.start = *head;
        }
        self.write_if_room();
    }
}

/// Returns the lowest generation from `next` on whose start does not overwrite the start of this generation.
pub(super) fn generation_after(generation: u64, next: u64) -> u64 {
    next + u64::from(checkpoint_slot(next) == checkpoint_slot(generation))
}

impl Dirty {
    fn none(extents: u32, zero_slots: u32, owner_slots: u32) -> Dirty {
        Dirty {
            table: Blocks::new((extents + zero_slots).div_ceil(RECORDS_EACH)),
            addresses: Blocks::new(extents.div_ceil(SECTORS_EACH)),
            owners: Blocks::new(owner_slots.div_ceil(OWNERS_EACH)),
            from: [0; 3],
        }
    }

    fn is_empty(&self) -> bool {
        self.table.count + self.addresses.count + self.owners.count == 0
    }
}

fn piece(bytes: &mut [u8], number: u32, image: &[u8]) {
    let at = number as usize * image.len();
    bytes[at..at + image.len()].copy_from_slice(image);
}

/// Returns the committed image of a record, or its bytes on the member if it is damaged.
fn image(state: &PoolTables, id: RecordId) -> [u8; RECORD_BYTES] {
    if let Some(bytes) = state.damage.bytes(id) {
        return *bytes;
    }
    state.committed(id).encode(id.member, id.index)
}

/// Returns the address sector of an extent: the addresses of the slots that its committed record says are in use.
fn sector(state: &PoolTables, member: u8, index: u32) -> [u8; ADDRESS_SECTOR_BYTES] {
    let mut bytes = [0xff; ADDRESS_SECTOR_BYTES];
    let id = RecordId { member, index };
    if index >= state.records.extents(member) {
        return bytes;
    }
    if let Some(words) = state.damage.sector(id) {
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        return bytes;
    }
    let record = state.committed(id);
    let Some(addresses) = state.addresses(id).filter(|_| record.kind == braid_format::pool::RecordKind::Packed) else {
        return bytes;
    };
    for slot in (0..EXTENT_BLOCKS).filter(|slot| record.present >> slot & 1 == 1) {
        let block = addresses.0[slot as usize];
        let word = match block {
            // A slot in use has an address unless it is damaged: then its word stays as it is.
            NO_BLOCK => state.damage.word(id, slot as u8),
            block => encode_address(member, index, slot as u8, block, record.life),
        };
        let at = slot as usize * 8;
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_put_back_is_taken_again_in_its_turn() {
        let (mut blocks, mut from) = (Blocks::new(200), 0);
        [5, 6, 130].into_iter().for_each(|block| blocks.add(block));
        assert_eq!((blocks.take_run(&mut from), blocks.take_run(&mut from)), (Some((5, 2)), Some((130, 1))));
        blocks.put_back(&mut from, 130, 1);
        blocks.put_back(&mut from, 5, 2);
        // Committed again meanwhile: it is still one block.
        blocks.add(6);
        assert_eq!((blocks.take_run(&mut from), blocks.take_run(&mut from)), (Some((5, 2)), Some((130, 1))));
        assert_eq!((blocks.take_run(&mut from), blocks.count), (None, 0));
    }
}

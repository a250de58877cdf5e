//! The ring of a pool's member as it stands on the disk: which batches are whole, and what of it is damaged.
//!
//! A last batch that a crash cut off looks like one that has rotted: it is called damaged only where a batch of a later commit is in the
//! ring, which was begun when all before it was durable. Batches from before the start that counts may be written over in part.

use std::time::Duration;

use braid_format::BLOCK_BYTES;
use braid_format::pool::{
    BATCH_BYTES_MAX, CHECKPOINT_BYTES, Checkpoint, LogBatchHeader, PoolLabel, batch_entries, pool_tag, validate_batch,
};

use braid_host::pool_tables::{Member, pages_and_gaps, steps};

/// A pool that serves may write between two reads: then all is read again, so often.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);
/// No batch begins where the longest one would not fit before the end.
const BATCH_BLOCKS_MAX: u64 = BATCH_BYTES_MAX as u64 / BLOCK_BYTES;

/// What a ring holds.
#[derive(Default)]
pub struct Ring {
    /// Batches of this pool of which the checksum is right, by where they stand; old ones among them.
    pub batches: Vec<Batch>,
    /// Blocks that cannot be read.
    pub unread: Vec<u32>,
    /// Where a batch should begin that counts and cannot be believed, though later ones are there.
    pub rotten: Option<u32>,
}

/// A batch.
pub struct Batch {
    /// The block of the ring in which it begins.
    pub position: u32,
    /// What it says of itself.
    pub header: LogBatchHeader,
    /// How many of its changes make sense, one after the other, and whether all do.
    pub entries: u64,
    pub makes_sense: bool,
}

/// Reads the ring.
///
/// # Errors
/// The member hangs.
pub async fn look_at_ring(member: &(impl Member + Sync), label: &PoolLabel) -> Result<Ring, String> {
    for looks in 1.. {
        let start = newest_start(member, label).await?;
        let mut ring = read(member, label).await?;
        ring.rotten = start.as_ref().and_then(|start| first_lacking(start, label, &ring.batches));
        let still = newest_start(member, label).await? == start;
        if looks == LOOKS || still && ring.rotten.is_none() {
            return Ok(ring);
        }
        tokio::time::sleep(PAUSE).await;
    }
    unreachable!("it looks so often at most")
}

/// The start that counts.
async fn newest_start(member: &(impl Member + Sync), label: &PoolLabel) -> Result<Option<Checkpoint>, String> {
    let (bytes, _) = pages_and_gaps(member, label.layout.checkpoints.start, 2 * CHECKPOINT_BYTES as u64).await?;
    let starts = bytes.as_chunks::<CHECKPOINT_BYTES>().0.iter().filter_map(|block| Checkpoint::decode(block).ok());
    let of_pool = starts.filter(|start| start.pool_tag == pool_tag(&label.uuid));
    Ok(of_pool.max_by_key(|start| start.generation))
}

async fn read(member: &(impl Member + Sync), label: &PoolLabel) -> Result<Ring, String> {
    let (ring, tag) = (&label.layout.ring, pool_tag(&label.uuid));
    let (mut all, mut unread) = (Vec::with_capacity(ring.bytes as usize), Vec::new());
    for (at, len) in steps(ring.bytes) {
        let (bytes, gaps) = pages_and_gaps(member, ring.start + at, len).await?;
        all.extend(bytes);
        unread.extend(gaps.iter().map(|(page, _)| (at / BLOCK_BYTES) as u32 + page));
    }
    let batch = |position: u32| {
        let bytes = &all[position as usize * BLOCK_BYTES as usize..];
        let header = validate_batch(bytes).ok().filter(|header| header.pool_tag == tag)?;
        let makes_sense = batch_entries(bytes, &header).all(|entry| entry.is_ok());
        let entries = batch_entries(bytes, &header).take_while(Result::is_ok).count() as u64;
        Some(Batch { position, header, entries, makes_sense })
    };
    let batches = (0..(ring.bytes / BLOCK_BYTES) as u32).filter_map(batch).collect();
    Ok(Ring { batches, unread, rotten: None })
}

/// Where the first batch should begin that is not there, of those that count, though a later commit is: as a start of the pool judges.
fn first_lacking(start: &Checkpoint, label: &PoolLabel, batches: &[Batch]) -> Option<u32> {
    let blocks = label.layout.ring.bytes / BLOCK_BYTES;
    let of_run = || batches.iter().filter(|batch| batch.header.run == start.run);
    let first = u64::from(start.position);
    let (mut position, mut sequence) = (first, start.sequence);
    loop {
        let left = blocks - position % blocks;
        let place = if left < BATCH_BLOCKS_MAX { position + left } else { position };
        let is_it = |batch: &&Batch| u64::from(batch.position) == place % blocks && batch.header.sequence == sequence;
        let found = of_run().find(is_it).filter(|batch| place + u64::from(batch.header.blocks) <= first + blocks);
        match found {
            Some(batch) if !batch.makes_sense => return Some(batch.position),
            Some(batch) => (position, sequence) = (place + u64::from(batch.header.blocks), sequence + 1),
            None => {
                // The first of its commit: those of one commit are written together.
                let is_later = |header: &LogBatchHeader| header.sequence.saturating_sub(header.index.into()) > sequence;
                return of_run().any(|batch| is_later(&batch.header)).then_some((place % blocks) as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_format::Uuid;
    use braid_format::pool::{
        BatchBuilder, Change, LogEntry, MissingMembers, PoolMemberLayout, PoolState, Record, Reserved,
    };

    const BYTES: u64 = 96 << 20;

    fn label() -> PoolLabel {
        PoolLabel {
            features: braid_format::Features::default(),
            uuid: Uuid::from_u128(7),
            sequence: 1,
            name: braid_format::Name::new("tank").expect("a good name"),
            state: PoolState::Active,
            clean: false,
            created_unix_s: 0,
            session: 1,
            members: Vec::new(),
            member: 0,
            layout: PoolMemberLayout::new(BYTES, 1024).expect("there is room"),
            reserved: Reserved::NONE,
        }
    }

    /// A disk of which nothing but the starts and the ring matters.
    struct Disk {
        bytes: Vec<u8>,
        unreadable: Vec<u64>,
    }

    impl Member for Disk {
        async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
            let range = offset..offset + len as u64;
            if self.unreadable.iter().any(|at| range.contains(at)) {
                return Err("it cannot be read".to_owned());
            }
            Ok(self.bytes[offset as usize..offset as usize + len].to_vec())
        }
    }

    const RUN: u64 = 9;

    /// A start at this block of the ring, from batch 5 on, and four batches of a block each from there on: commits 2, 3, and 4 of two batches.
    fn disk(position: u32) -> Disk {
        let (label, mut bytes) = (label(), vec![0; BYTES as usize]);
        let tag = pool_tag(&label.uuid);
        let start = Checkpoint {
            pool_tag: tag,
            session: 1,
            run: RUN,
            sequence: 5,
            position,
            commit: 1,
            mark: 1,
            generation: 3,
            previous_run: 0,
            last_commits: [0; braid_format::MEMBERS_MAX],
            missing: MissingMembers::NONE,
            hold_outcome: 0,
        };
        let at = label.layout.checkpoints.start as usize;
        bytes[at..at + CHECKPOINT_BYTES].copy_from_slice(&start.encode());
        let mut disk = Disk { bytes, unreadable: Vec::new() };
        let numbers = [(5, 2, 0, 1), (6, 3, 0, 1), (7, 4, 0, 2), (8, 4, 1, 2)];
        for (k, (sequence, commit, index, batches)) in (0..).zip(numbers) {
            let block = disk.at(position, k);
            let record = Record::free(0);
            let change = Change::Record { record };
            let entry = LogEntry { member: 0, index: 0, sequence, joined: false, change };
            let mut composer = BatchBuilder::new(&mut disk.bytes[block..block + BLOCK_BYTES as usize]);
            assert!(composer.push(&entry));
            let header = LogBatchHeader {
                pool_tag: tag,
                run: RUN,
                sequence,
                commit,
                members: 1,
                index,
                batches,
                mark: sequence,
                units: 0,
                blocks: 0,
            };
            composer.seal(header);
        }
        disk
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
    }

    impl Disk {
        /// The block of the ring in which batch `k` behind a start at this position stands.
        fn block(position: u32, k: u32) -> u32 {
            let blocks = (label().layout.ring.bytes / BLOCK_BYTES) as u32;
            let at = position + k;
            // As writing goes round before the longest batch would not fit.
            if at + BATCH_BLOCKS_MAX as u32 > blocks { at - (blocks + 1 - BATCH_BLOCKS_MAX as u32) } else { at }
        }

        fn at(&self, position: u32, k: u32) -> usize {
            (label().layout.ring.start + u64::from(Disk::block(position, k)) * BLOCK_BYTES) as usize
        }

        fn look(&self) -> (usize, Vec<u32>, Option<u32>) {
            let ring = block_on(look_at_ring(self, &label())).expect("it does not hang");
            (ring.batches.len(), ring.unread, ring.rotten)
        }
    }

    /// Somewhere, and so that the ring goes round behind the second batch.
    fn positions() -> [u32; 2] {
        [20, (label().layout.ring.bytes / BLOCK_BYTES) as u32 - BATCH_BLOCKS_MAX as u32 - 1]
    }

    #[test]
    fn a_batch_that_rots_is_damage_where_a_later_commit_is_there() {
        for position in positions() {
            assert_eq!(disk(position).look(), (4, Vec::new(), None));
            for (k, rotten) in [(0, true), (1, true), (2, false), (3, false)] {
                let mut disk = disk(position);
                let at = disk.at(position, k) + 100;
                disk.bytes[at] ^= 1;
                let should = rotten.then(|| Disk::block(position, k));
                assert_eq!(disk.look(), (3, Vec::new(), should), "batch {k} from {position} on");
            }
        }
    }

    #[test]
    fn a_sector_that_cannot_be_read_takes_its_block_with_it_and_no_more() {
        for position in positions() {
            let mut disk = disk(position);
            // One behind all batches, and the last of them, which no later commit tells of.
            let (last, other) = (Disk::block(position, 3), 40);
            let ring = label().layout.ring.start;
            disk.unreadable = [last, other].map(|block| ring + u64::from(block) * BLOCK_BYTES + 512).to_vec();
            let mut unread = vec![last, other];
            unread.sort_unstable();
            assert_eq!(disk.look(), (3, unread, None));
        }
    }

    #[test]
    fn what_was_written_over_before_the_start_that_counts_is_no_damage() {
        let mut disk = disk(20);
        // An old batch of which only the first block is left, and one of another run.
        let at = label().layout.ring.start as usize;
        let (first, block) = (disk.at(20, 0), BLOCK_BYTES as usize);
        let old = disk.bytes[first..first + block].to_vec();
        disk.bytes[at..at + block].copy_from_slice(&old);
        disk.bytes[at + 4000] ^= 1;
        assert_eq!(disk.look(), (4, Vec::new(), None));
        // Batches of a commit behind one that never was: a start that counts more is damaged, or it is.
        let start = label().layout.checkpoints.start as usize;
        let mut told = Checkpoint::decode(disk.bytes[start..].first_chunk().expect("a block")).expect("a start");
        told.sequence = 2;
        disk.bytes[start..start + CHECKPOINT_BYTES].copy_from_slice(&told.encode());
        assert_eq!(disk.look(), (4, Vec::new(), Some(20)));
    }
}

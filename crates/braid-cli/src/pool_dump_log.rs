//! Reads the write-ahead log of a pool's member from the disk: which batches are valid, and what is damaged.
//!
//! A last batch that a crash interrupted looks like a corrupt one. A batch is therefore reported as damaged only if a batch of a later
//! commit is in the log: a commit begins only after all earlier ones are durable. Batches before the current checkpoint may be partly
//! overwritten.

use std::time::Duration;

use braid_format::BLOCK_BYTES;
use braid_format::pool::{
    BATCH_BYTES_MAX, CHECKPOINT_BYTES, Checkpoint, LogBatchHeader, PoolLabel, batch_entries, pool_tag, validate_batch,
};

use braid_host::pool_tables::{MemberReader, read_pages, split_reads};

/// Maximum number of attempts: an active pool may write between two reads, and then the log is read again.
const ATTEMPTS_MAX: u32 = 5;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum length of a batch, in blocks. No batch begins where the longest one would not fit before the end of the log.
const BATCH_BLOCKS_MAX: u64 = BATCH_BYTES_MAX as u64 / BLOCK_BYTES;

/// The content of the log of a member.
#[derive(Default)]
pub struct LogContent {
    /// The batches of this pool with valid checksums, by position; old ones included.
    pub batches: Vec<Batch>,
    /// The blocks that cannot be read.
    pub unreadable: Vec<u32>,
    /// The block where a required batch is missing or invalid while later batches exist.
    pub damaged_batch: Option<u32>,
}

/// A batch.
pub struct Batch {
    /// The block of the log in which it begins.
    pub position: u32,
    /// Its header.
    pub header: LogBatchHeader,
    /// The number of its valid changes, up to the first invalid one.
    pub entries: u64,
    /// Whether all its changes are valid.
    pub is_valid: bool,
}

/// Reads the log.
///
/// # Errors
/// The member hangs.
pub async fn read_log(member: &(impl MemberReader + Sync), label: &PoolLabel) -> Result<LogContent, String> {
    for attempt in 1.. {
        let start = current_checkpoint(member, label).await?;
        let mut log = read(member, label).await?;
        log.damaged_batch = start.as_ref().and_then(|start| first_missing(start, label, &log.batches));
        let is_unchanged = current_checkpoint(member, label).await? == start;
        if attempt == ATTEMPTS_MAX || is_unchanged && log.damaged_batch.is_none() {
            return Ok(log);
        }
        tokio::time::sleep(PAUSE).await;
    }
    unreachable!("the last attempt returns")
}

/// Returns the current checkpoint: the valid one with the largest generation.
async fn current_checkpoint(
    member: &(impl MemberReader + Sync),
    label: &PoolLabel,
) -> Result<Option<Checkpoint>, String> {
    let (bytes, _) = read_pages(member, label.layout.checkpoints.start, 2 * CHECKPOINT_BYTES as u64).await?;
    let checkpoints = bytes.as_chunks::<CHECKPOINT_BYTES>().0.iter().filter_map(|block| Checkpoint::decode(block).ok());
    let of_pool = checkpoints.filter(|start| start.pool_tag == pool_tag(&label.uuid));
    Ok(of_pool.max_by_key(|start| start.generation))
}

/// Reads the batches of the log, and finds the blocks that cannot be read.
async fn read(member: &(impl MemberReader + Sync), label: &PoolLabel) -> Result<LogContent, String> {
    let (ring, tag) = (&label.layout.ring, pool_tag(&label.uuid));
    let (mut all, mut unreadable) = (Vec::with_capacity(ring.bytes as usize), Vec::new());
    for (at, len) in split_reads(ring.bytes) {
        let (bytes, gaps) = read_pages(member, ring.start + at, len).await?;
        all.extend(bytes);
        unreadable.extend(gaps.iter().map(|(page, _)| (at / BLOCK_BYTES) as u32 + page));
    }
    let batch = |position: u32| {
        let bytes = &all[position as usize * BLOCK_BYTES as usize..];
        let header = validate_batch(bytes).ok().filter(|header| header.pool_tag == tag)?;
        let is_valid = batch_entries(bytes, &header).all(|entry| entry.is_ok());
        let entries = batch_entries(bytes, &header).take_while(Result::is_ok).count() as u64;
        Some(Batch { position, header, entries, is_valid })
    };
    let batches = (0..(ring.bytes / BLOCK_BYTES) as u32).filter_map(batch).collect();
    Ok(LogContent { batches, unreadable, damaged_batch: None })
}

/// Returns the position of the first batch after the checkpoint that is missing or invalid although a later commit exists, by the same
/// rule as the recovery of the pool.
fn first_missing(start: &Checkpoint, label: &PoolLabel, batches: &[Batch]) -> Option<u32> {
    let blocks = label.layout.ring.bytes / BLOCK_BYTES;
    let of_run = || batches.iter().filter(|batch| batch.header.run == start.run);
    let first = u64::from(start.position);
    let (mut position, mut sequence) = (first, start.sequence);
    loop {
        let left = blocks - position % blocks;
        let expected = if left < BATCH_BLOCKS_MAX { position + left } else { position };
        let is_it =
            |batch: &&Batch| u64::from(batch.position) == expected % blocks && batch.header.sequence == sequence;
        let found = of_run().find(is_it).filter(|batch| expected + u64::from(batch.header.blocks) <= first + blocks);
        match found {
            Some(batch) if !batch.is_valid => return Some(batch.position),
            Some(batch) => (position, sequence) = (expected + u64::from(batch.header.blocks), sequence + 1),
            None => {
                // The first batch of its commit: the batches of one commit are written together.
                let is_later = |header: &LogBatchHeader| header.sequence.saturating_sub(header.index.into()) > sequence;
                return of_run().any(|batch| is_later(&batch.header)).then_some((expected % blocks) as u32);
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

    /// A disk of which only the checkpoints and the log matter.
    struct Disk {
        bytes: Vec<u8>,
        unreadable: Vec<u64>,
    }

    impl MemberReader for Disk {
        async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
            let range = offset..offset + len as u64;
            if self.unreadable.iter().any(|at| range.contains(at)) {
                return Err("it cannot be read".to_owned());
            }
            Ok(self.bytes[offset as usize..offset as usize + len].to_vec())
        }
    }

    const RUN: u64 = 9;

    /// Returns a disk with a checkpoint whose first batch is batch 5 at this block of the log, and four batches of one block each: commits 2, 3, and
    /// 4 of two batches.
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
            let mut builder = BatchBuilder::new(&mut disk.bytes[block..block + BLOCK_BYTES as usize]);
            assert!(builder.push(&entry));
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
            builder.seal(header);
        }
        disk
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
    }

    impl Disk {
        /// Returns the block of the log of batch `k` after a checkpoint at this position.
        fn block(position: u32, k: u32) -> u32 {
            let blocks = (label().layout.ring.bytes / BLOCK_BYTES) as u32;
            let at = position + k;
            // The log wraps where the longest batch would no longer fit.
            if at + BATCH_BLOCKS_MAX as u32 > blocks { at - (blocks + 1 - BATCH_BLOCKS_MAX as u32) } else { at }
        }

        fn at(&self, position: u32, k: u32) -> usize {
            (label().layout.ring.start + u64::from(Disk::block(position, k)) * BLOCK_BYTES) as usize
        }

        fn result(&self) -> (usize, Vec<u32>, Option<u32>) {
            let log = block_on(read_log(self, &label())).expect("it does not hang");
            (log.batches.len(), log.unreadable, log.damaged_batch)
        }
    }

    /// An arbitrary position, and one with which the log wraps after the second batch.
    fn positions() -> [u32; 2] {
        [20, (label().layout.ring.bytes / BLOCK_BYTES) as u32 - BATCH_BLOCKS_MAX as u32 - 1]
    }

    #[test]
    fn a_corrupt_batch_is_damage_if_a_later_commit_exists() {
        for position in positions() {
            assert_eq!(disk(position).result(), (4, Vec::new(), None));
            for (k, is_damage) in [(0, true), (1, true), (2, false), (3, false)] {
                let mut disk = disk(position);
                let at = disk.at(position, k) + 100;
                disk.bytes[at] ^= 1;
                let damaged = is_damage.then(|| Disk::block(position, k));
                assert_eq!(disk.result(), (3, Vec::new(), damaged), "batch {k} from {position} on");
            }
        }
    }

    #[test]
    fn an_unreadable_sector_affects_only_its_block() {
        for position in positions() {
            let mut disk = disk(position);
            // A block after all batches, and the last batch, after which there is no later commit.
            let (last, other) = (Disk::block(position, 3), 40);
            let ring = label().layout.ring.start;
            disk.unreadable = [last, other].map(|block| ring + u64::from(block) * BLOCK_BYTES + 512).to_vec();
            let mut unreadable = vec![last, other];
            unreadable.sort_unstable();
            assert_eq!(disk.result(), (3, unreadable, None));
        }
    }

    #[test]
    fn overwritten_batches_before_the_current_checkpoint_are_no_damage() {
        let mut disk = disk(20);
        // An old batch that is partly overwritten.
        let at = label().layout.ring.start as usize;
        let (first, block) = (disk.at(20, 0), BLOCK_BYTES as usize);
        let old = disk.bytes[first..first + block].to_vec();
        disk.bytes[at..at + block].copy_from_slice(&old);
        disk.bytes[at + 4000] ^= 1;
        assert_eq!(disk.result(), (4, Vec::new(), None));
        // The checkpoint requires batch 2, which does not exist, although later batches do.
        let start = label().layout.checkpoints.start as usize;
        let mut older = Checkpoint::decode(disk.bytes[start..].first_chunk().expect("a block")).expect("a start");
        older.sequence = 2;
        disk.bytes[start..start + CHECKPOINT_BYTES].copy_from_slice(&older.encode());
        assert_eq!(disk.result(), (4, Vec::new(), Some(20)));
    }
}

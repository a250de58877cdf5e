//! An audit of everything that a pool knows of its tables: is it consistent? In steps, as its home shard has other
//! work.

use super::Pool;
use super::damaged::Page;
use super::records::LOGICAL_PACKED;
use super::state::NO_BLOCK;
use super::units::{BLOCK_BYTES, EXTENT_BLOCKS, RecordId, SECTORS_EACH};
use braid_format::pool::RecordKind;

/// Maximum problems that are described.
const PROBLEMS_MAX: usize = 100;

/// A pass over all records, and what it found.
#[derive(Clone, Debug)]
pub struct Audit {
    next: RecordId,
    /// Records with an extent behind them: free, whole, packed.
    pub extents: [u64; 3],
    /// Records of zeros.
    pub zeros: u64,
    /// How many problems were found.
    pub problems_found: u64,
    /// Descriptions of the first of them.
    pub problems: Vec<String>,
}

impl Default for Audit {
    fn default() -> Audit {
        Audit::new()
    }
}

impl Audit {
    /// Returns an audit of a whole pool.
    pub fn new() -> Audit {
        let next = RecordId { member: 0, index: 0 };
        Audit { next, extents: [0; 3], zeros: 0, problems_found: 0, problems: Vec::new() }
    }

    /// Adds a problem.
    pub fn found(&mut self, problem: String) {
        self.problems_found += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// Continues for up to `records` records. Returns true at the end.
    pub fn step(&mut self, pool: &Pool, records: u32) -> bool {
        let state = pool.state();
        let members: Vec<(u8, u32)> = state.members().skip(usize::from(self.next.member)).collect();
        let mut left = records;
        for (member, extents) in members {
            if self.next.member != member {
                self.next = RecordId { member, index: 0 };
            }
            let all = extents + state.zero_slots(member);
            let end = all.min(self.next.index.saturating_add(left));
            let range = self.next.index..end;
            if let Err(problem) = pool.recount_some(member, range.start.min(extents)..range.end.min(extents)) {
                self.found(problem);
            }
            left -= range.end - range.start;
            range.for_each(|index| self.check_record(pool, RecordId { member, index }));
            self.next.index = end;
            if end < all {
                return false;
            }
        }
        true
    }

    fn check_record(&mut self, pool: &Pool, id: RecordId) {
        let state = pool.state();
        let record = state.record(id);
        match record.kind {
            RecordKind::Zeros => self.zeros += 1,
            RecordKind::Free if !state.is_extent(id) => {}
            RecordKind::Free => self.extents[0] += 1,
            RecordKind::Whole => self.extents[1] += 1,
            RecordKind::Packed => self.extents[2] += 1,
        }
        if record.kind == RecordKind::Free {
            return;
        }
        let RecordId { member, index } = id;
        let at = || format!("record {index} of member {member}");
        let Some(owner) = state.owners.get(record.owner) else {
            return self.found(format!("{} is of owner {}, who is nobody", at(), record.owner));
        };
        if owner.block_members() >> member & 1 == 0 {
            self.found(format!("{} is of owner {}, who is to have nothing there", at(), owner.id));
        }
        if record.kind == RecordKind::Whole && record.present & record.zero != 0 {
            self.found(format!("{} says of blocks that they are there and read as zeros", at()));
        }
        let end = owner.size_bytes.div_ceil(BLOCK_BYTES);
        let beyond = |block: u64| block != NO_BLOCK && block >= end;
        if record.kind == RecordKind::Zeros {
            return;
        }
        let is_beyond = match (record.logical, state.addresses(id)) {
            (LOGICAL_PACKED, Some(addresses)) => {
                (0..EXTENT_BLOCKS as usize).any(|slot| record.present >> slot & 1 == 1 && beyond(addresses.0[slot]))
            }
            (LOGICAL_PACKED, None) => true,
            // Only blocks with data count: a volume that was shrunk may have zeros beyond its end.
            (logical, _) if record.present != 0 => {
                let last = EXTENT_BLOCKS - 1 - record.present.leading_zeros();
                beyond(u64::from(logical) * u64::from(EXTENT_BLOCKS) + u64::from(last))
            }
            _ => false,
        };
        if is_beyond {
            self.found(format!("{} has blocks behind the end of owner {}", at(), owner.id));
        }
    }
}

impl Pool {
    /// Marks records, and the owner lists of members, to be written into the tables again, because the tables differ
    /// from what the pool has in memory. They are written once a checkpoint that is requested after this call has
    /// ended.
    ///
    /// A page of addresses that could not be read is not written: its other content may be readable the next time.
    pub fn rewrite_records(&mut self, records: &[RecordId], owners_of: &[u8]) {
        let (checkpoint, state) = (&mut self.commits.checkpoint, &self.state);
        for id in records {
            if checkpoint.present.find(id.member).is_some() {
                let is_packed = state.is_extent(*id) && state.committed(*id).kind == RecordKind::Packed;
                let page = Page::Addresses(id.index / SECTORS_EACH);
                checkpoint.note_record(*id, is_packed && state.damage.unread(id.member, page).is_none());
            }
        }
        for member in owners_of {
            if checkpoint.present.find(*member).is_some() {
                checkpoint.note_all_owners(*member);
            }
        }
    }
}

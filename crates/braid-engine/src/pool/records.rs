//! What all shards know of the extents of a pool: the records' fields, each in an array of its own.
//!
//! Any shard reads them by one load. Only the pool's home shard changes them: each field is stored with release and loaded
//! with acquire, so that who sees a field also sees what the home did before it. Two fields of one extent are not changed
//! together; who needs both asks the home.
//!
//! 18 bytes an extent, and nothing else: with the word of the map of the volume that has it 26
//! bytes for 256 KiB, 109 MB for a TiB.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::units::{ExtentId, MEMBERS_MAX};

/// The bit of [`Records::owner`] that says: a job holds the extent, and nobody else may change it.
pub const OWNER_HELD: u32 = 1 << 31;

/// What [`Records::logical`] is of a packed extent.
pub const LOGICAL_PACKED: u32 = u32::MAX;

/// The records of all extents of a pool.
#[derive(Debug)]
pub struct Records {
    // A member is added while the others are in use, so the table has room for all from the start.
    members: Box<[OnceLock<MemberRecords>]>,
}

#[derive(Debug)]
struct MemberRecords {
    present: Box<[AtomicU64]>,
    owner: Box<[AtomicU32]>,
    logical: Box<[AtomicU32]>,
    life: Box<[AtomicU16]>,
}

/// Zeroed fields. The memory comes zeroed and is not touched before it is used: a large pool that is nearly empty is cheap.
fn zeroed<N: Copy + Default, A>(count: usize, new: impl Fn(N) -> A) -> Box<[A]> {
    vec![N::default(); count].into_iter().map(new).collect()
}

impl Default for Records {
    fn default() -> Records {
        Records::new()
    }
}

impl Records {
    /// Of a pool without members.
    pub fn new() -> Records {
        Records { members: (0..MEMBERS_MAX).map(|_| OnceLock::new()).collect() }
    }

    /// Makes room for the extents of a member, all free and in their life 0.
    ///
    /// # Panics
    /// When the member's number is too high, or was used before: numbers are not used again as long as the pool serves,
    /// because shards may still look at what had them.
    pub fn add_member(&self, member: u8, extents: u32) {
        let count = extents as usize;
        let records = MemberRecords {
            present: zeroed(count, AtomicU64::new),
            owner: zeroed(count, AtomicU32::new),
            logical: zeroed(count, AtomicU32::new),
            life: zeroed(count, AtomicU16::new),
        };
        assert!(self.members[usize::from(member)].set(records).is_ok(), "member {member} has records already");
    }

    /// How many extents the member has; 0 if it is not there.
    pub fn extents(&self, member: u8) -> u32 {
        self.members.get(usize::from(member)).and_then(OnceLock::get).map_or(0, |records| records.owner.len() as u32)
    }

    /// Whole extents: which blocks are there, each at its own position. Packed ones: which slots are in use.
    ///
    /// This and all that follow panic for an extent that there is not.
    #[inline(always)]
    pub fn present(&self, id: ExtentId) -> u64 {
        self.member(id).present[id.index as usize].load(Ordering::Acquire)
    }

    /// Who owns the extent, 0 for nobody, and [`OWNER_HELD`].
    #[inline]
    pub fn owner(&self, id: ExtentId) -> u32 {
        self.member(id).owner[id.index as usize].load(Ordering::Acquire)
    }

    /// Which logical extent of the volume's this one holds, or [`LOGICAL_PACKED`].
    #[inline]
    pub fn logical(&self, id: ExtentId) -> u32 {
        self.member(id).logical[id.index as usize].load(Ordering::Acquire)
    }

    /// Which life of the extent this is: it counts how often it was handed out.
    #[inline]
    pub fn life(&self, id: ExtentId) -> u16 {
        self.member(id).life[id.index as usize].load(Ordering::Acquire)
    }

    /// See [`Records::present`]; for the home shard. Maps follow this word by themselves: bits
    /// are added after the data has been written.
    #[inline]
    pub fn set_present(&self, id: ExtentId, present: u64) {
        self.member(id).present[id.index as usize].store(present, Ordering::Release);
    }

    /// See [`Records::owner`]; for the home shard.
    #[inline]
    pub fn set_owner(&self, id: ExtentId, owner: u32) {
        self.member(id).owner[id.index as usize].store(owner, Ordering::Release);
    }

    /// See [`Records::logical`]; for the home shard.
    #[inline]
    pub fn set_logical(&self, id: ExtentId, logical: u32) {
        self.member(id).logical[id.index as usize].store(logical, Ordering::Release);
    }

    /// See [`Records::life`]; for the home shard.
    #[inline]
    pub fn set_life(&self, id: ExtentId, life: u16) {
        self.member(id).life[id.index as usize].store(life, Ordering::Release);
    }

    /// Where [`Records::present`] of an extent is, if there is such an extent.
    #[inline]
    pub(super) fn present_at(&self, id: ExtentId) -> Option<*const u8> {
        let member = self.members.get(usize::from(id.member))?.get()?;
        member.present.get(id.index as usize).map(|word| std::ptr::from_ref(word).cast())
    }

    /// The same of [`Records::owner`].
    #[inline]
    pub(super) fn owner_at(&self, id: ExtentId) -> Option<*const u8> {
        let member = self.members.get(usize::from(id.member))?.get()?;
        member.owner.get(id.index as usize).map(|word| std::ptr::from_ref(word).cast())
    }

    /// Bytes of memory that the records take.
    pub fn memory_bytes(&self) -> u64 {
        let extents: u64 = self.members.iter().filter_map(OnceLock::get).map(|m| m.owner.len() as u64).sum();
        let table = self.members.len() * size_of::<OnceLock<MemberRecords>>();
        extents * (8 + 4 + 4 + 2) + table as u64
    }

    #[inline(always)]
    fn member(&self, id: ExtentId) -> &MemberRecords {
        self.members[usize::from(id.member)].get().expect("an extent of a member that there is")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_one_by_one_and_each_extent_has_fields_of_its_own() {
        let records = Records::new();
        let empty = records.memory_bytes();
        assert_eq!((records.extents(0), records.extents(127), records.extents(128)), (0, 0, 0));
        records.add_member(127, 3);
        records.add_member(0, 2);
        assert_eq!((records.extents(0), records.extents(127)), (2, 3));
        assert_eq!(records.memory_bytes() - empty, 5 * 18);

        let all = [(0, 0), (0, 1), (127, 0), (127, 1), (127, 2)].map(|(member, index)| ExtentId { member, index });
        let fields = |id| (records.present(id), records.owner(id), records.logical(id), records.life(id));
        assert!(all.iter().all(|&id| fields(id) == (0, 0, 0, 0)), "free, in the first life");
        for (n, &id) in (1..).zip(&all) {
            records.set_present(id, u64::MAX - u64::from(n));
            records.set_owner(id, n | OWNER_HELD);
            records.set_logical(id, LOGICAL_PACKED - n);
            records.set_life(id, u16::MAX - n as u16);
        }
        for (n, &id) in (1..).zip(&all) {
            let n: u32 = n;
            let expected = (u64::MAX - u64::from(n), n | OWNER_HELD, LOGICAL_PACKED - n, u16::MAX - n as u16);
            assert_eq!(fields(id), expected);
        }
    }

    #[test]
    #[should_panic(expected = "member 3 has records already")]
    fn a_number_is_not_used_again() {
        let records = Records::new();
        records.add_member(3, 1);
        records.add_member(3, 1);
    }
}

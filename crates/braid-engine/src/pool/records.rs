//! What all shards know of a pool's extents: the fields of the records, each in an array of its own.
//!
//! Any shard reads a field with one load. Only the pool's home shard changes them: each field is stored with release
//! and loaded with acquire, so a shard that sees a field also sees what the home shard did before. Two fields of an
//! extent are not changed together; a shard that needs both sends a request to the home shard.
//!
//! 18 bytes an extent, and nothing else: with the word in the map of its volume 26 bytes for 256 KiB, 109 MB for a TiB.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::units::{ExtentId, MEMBERS_MAX};

/// The bit of [`Records::owner`] that marks an extent as held by a job: nothing else may change it.
pub const OWNER_HELD: u32 = 1 << 31;

/// The value of [`Records::logical`] for a packed extent.
pub const LOGICAL_PACKED: u32 = u32::MAX;

/// The records of all extents of a pool.
#[derive(Debug)]
pub struct Records {
    // Members are added while others are in use, so the array has room for all from the start.
    members: Box<[OnceLock<MemberRecords>]>,
}

#[derive(Debug)]
struct MemberRecords {
    present: Box<[AtomicU64]>,
    owner: Box<[AtomicU32]>,
    logical: Box<[AtomicU32]>,
    life: Box<[AtomicU16]>,
}

/// Returns zeroed fields. The memory comes zeroed and is not touched before it is used: a large pool that is nearly
/// empty is cheap.
fn zeroed<N: Copy + Default, A>(count: usize, new: impl Fn(N) -> A) -> Box<[A]> {
    vec![N::default(); count].into_iter().map(new).collect()
}

impl Default for Records {
    fn default() -> Records {
        Records::new()
    }
}

impl Records {
    /// Returns the records of a pool without members.
    pub fn new() -> Records {
        Records { members: (0..MEMBERS_MAX).map(|_| OnceLock::new()).collect() }
    }

    /// Adds the extents of a member, all free and in life 0.
    ///
    /// # Panics
    /// If the member's number is too high, or was used before: numbers are not reused while the pool is open, because
    /// shards may still look at the extents of the earlier member.
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

    /// Returns how many extents the member has; 0 if it has no records.
    pub fn extents(&self, member: u8) -> u32 {
        self.members.get(usize::from(member)).and_then(OnceLock::get).map_or(0, |records| records.owner.len() as u32)
    }

    /// Returns which blocks of a whole extent are present, each at its own position, or which slots of a packed extent
    /// are in use.
    ///
    /// This method and the following ones panic for an extent that does not exist.
    #[inline(always)]
    pub fn present(&self, id: ExtentId) -> u64 {
        self.member(id).present[id.index as usize].load(Ordering::Acquire)
    }

    /// Returns the owner of the extent (0: none), and [`OWNER_HELD`].
    #[inline]
    pub fn owner(&self, id: ExtentId) -> u32 {
        self.member(id).owner[id.index as usize].load(Ordering::Acquire)
    }

    /// Returns the logical extent that this extent holds, or [`LOGICAL_PACKED`].
    #[inline]
    pub fn logical(&self, id: ExtentId) -> u32 {
        self.member(id).logical[id.index as usize].load(Ordering::Acquire)
    }

    /// Returns the life of the extent: how often it was allocated.
    #[inline]
    pub fn life(&self, id: ExtentId) -> u16 {
        self.member(id).life[id.index as usize].load(Ordering::Acquire)
    }

    /// Sets [`Records::present`]; for the home shard. Maps follow this word by themselves: bits are added after the
    /// data have been written.
    #[inline]
    pub fn set_present(&self, id: ExtentId, present: u64) {
        self.member(id).present[id.index as usize].store(present, Ordering::Release);
    }

    /// Sets [`Records::owner`]; for the home shard.
    #[inline]
    pub fn set_owner(&self, id: ExtentId, owner: u32) {
        self.member(id).owner[id.index as usize].store(owner, Ordering::Release);
    }

    /// Sets [`Records::logical`]; for the home shard.
    #[inline]
    pub fn set_logical(&self, id: ExtentId, logical: u32) {
        self.member(id).logical[id.index as usize].store(logical, Ordering::Release);
    }

    /// Sets [`Records::life`]; for the home shard.
    #[inline]
    pub fn set_life(&self, id: ExtentId, life: u16) {
        self.member(id).life[id.index as usize].store(life, Ordering::Release);
    }

    /// Returns the address of an extent's [`Records::present`], if the extent exists.
    #[inline]
    pub(super) fn present_at(&self, id: ExtentId) -> Option<*const u8> {
        let member = self.members.get(usize::from(id.member))?.get()?;
        member.present.get(id.index as usize).map(|word| std::ptr::from_ref(word).cast())
    }

    /// Returns the address of an extent's [`Records::owner`], if the extent exists.
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
        self.members[usize::from(id.member)].get().expect("an extent of a member with records")
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

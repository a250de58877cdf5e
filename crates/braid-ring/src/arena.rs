//! The shard's data memory: a bounded buddy allocator over one mapping.
//!
//! All buffers of frontends come from here, so they are aligned for `O_DIRECT`, can be registered with the driver once,
//! and are bounded. The arena has two parts, each with its own buddy allocator: the part that the driver registered,
//! tried first, and the rest.

#![allow(unsafe_code)]

use braid_engine::{Buf, LEAF_BYTES_MAX, REQUEST_BYTES_MAX};

use crate::map::Map;

/// Smallest unit of allocation in bytes.
pub const ARENA_UNIT_BYTES: usize = 4096;

const UNIT_SHIFT: u32 = ARENA_UNIT_BYTES.trailing_zeros();
/// Orders 0 (4 KiB) to 13 (32 MiB).
const ORDERS: usize = (REQUEST_BYTES_MAX as usize / ARENA_UNIT_BYTES).trailing_zeros() as usize + 1;
const NONE: u32 = u32::MAX;

/// A buddy allocator over `units` units. Holds only indices.
struct Buddy {
    /// Head of the list of free blocks of each order.
    heads: [u32; ORDERS],
    /// For each unit where a free block starts: its neighbours in the list of its order.
    links: Vec<(u32, u32)>,
    /// For each unit: order + 1 where a free block starts there, `USED | order` where a used one starts, else 0.
    state: Vec<u8>,
    free_units: usize,
}

const USED: u8 = 0x80;

impl Buddy {
    fn new(units: usize) -> Buddy {
        let mut buddy =
            Buddy { heads: [NONE; ORDERS], links: vec![(NONE, NONE); units], state: vec![0; units], free_units: 0 };
        // Blocks are cut in ascending order and put into the lists in descending order: `put` prepends, so `alloc` then
        // finds the lowest addresses first.
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < units {
            let aligned = if at == 0 { ORDERS - 1 } else { (at.trailing_zeros() as usize).min(ORDERS - 1) };
            let fits = (units - at).ilog2() as usize;
            let order = aligned.min(fits);
            blocks.push((at as u32, order));
            at += 1 << order;
        }
        for (at, order) in blocks.into_iter().rev() {
            buddy.put(at, order);
        }
        buddy.free_units = units;
        buddy
    }

    #[inline]
    fn put(&mut self, at: u32, order: usize) {
        let head = self.heads[order];
        self.links[at as usize] = (NONE, head);
        if head != NONE {
            self.links[head as usize].0 = at;
        }
        self.heads[order] = at;
        self.state[at as usize] = order as u8 + 1;
    }

    #[inline]
    fn take(&mut self, at: u32, order: usize) {
        let (previous, next) = self.links[at as usize];
        if previous == NONE {
            self.heads[order] = next;
        } else {
            self.links[previous as usize].1 = next;
        }
        if next != NONE {
            self.links[next as usize].0 = previous;
        }
        self.state[at as usize] = 0;
    }

    fn alloc(&mut self, order: usize) -> Option<u32> {
        let found = (order..ORDERS).find(|&o| self.heads[o] != NONE)?;
        let at = self.heads[found];
        self.take(at, found);
        for smaller in (order..found).rev() {
            self.put(at + (1 << smaller), smaller);
        }
        self.state[at as usize] = USED | order as u8;
        self.free_units -= 1 << order;
        Some(at)
    }

    fn free(&mut self, at: u32, order: usize) {
        assert_eq!(self.state[at as usize], USED | order as u8, "freed what was not allocated so");
        self.free_units += 1 << order;
        let (mut at, mut order) = (at, order);
        while order + 1 < ORDERS {
            let buddy = at ^ (1 << order);
            if self.state.get(buddy as usize) != Some(&(order as u8 + 1)) {
                break;
            }
            self.take(buddy, order);
            at = at.min(buddy);
            order += 1;
        }
        self.state[at as usize] = 0;
        self.put(at, order);
    }
}

/// Bounded memory for data buffers; see the module documentation.
pub(crate) struct Arena {
    map: Map,
    base: u64,
    len: u64,
    /// Bytes from the start that the driver registered, as region 0.
    registered: u64,
    /// The registered part, if any, then the rest, if any: start in bytes, and allocator.
    parts: Vec<(u64, Buddy)>,
}

impl Arena {
    /// Creates an arena over a mapping, whose length is a multiple of 4 KiB. The first `registered_bytes` are the
    /// driver's region 0.
    pub(crate) fn new(map: Map, registered_bytes: usize) -> Arena {
        let (base, len) = (map.addr(), map.len() as u64);
        let registered = (registered_bytes as u64).min(len);
        let part = |from: u64, to: u64| (from, Buddy::new(((to - from) >> UNIT_SHIFT) as usize));
        let mut parts = Vec::with_capacity(2);
        if registered > 0 {
            parts.push(part(0, registered));
        }
        if registered < len {
            parts.push(part(registered, len));
        }
        Arena { map, base, len, registered, parts }
    }

    fn order(len: usize) -> Option<usize> {
        let units = len.max(1).div_ceil(ARENA_UNIT_BYTES);
        let order = units.next_power_of_two().trailing_zeros() as usize;
        (order < ORDERS).then_some(order)
    }

    /// Allocates a buffer of at least `len` bytes, aligned to 4 KiB. `None` if `len` is over 32 MiB or no memory is
    /// free.
    pub(crate) fn alloc(&mut self, len: usize) -> Option<Buf> {
        let order = Arena::order(len)?;
        let (start, at) = self.parts.iter_mut().find_map(|(start, buddy)| Some((*start, buddy.alloc(order)?)))?;
        let offset = start + (u64::from(at) << UNIT_SHIFT);
        let region = if offset < self.registered { 0 } else { Buf::UNREGISTERED };
        Some(Buf { addr: self.base + offset, region })
    }

    /// Frees a buffer that [`Arena::alloc`] returned for the same `len`. Panics on anything else.
    pub(crate) fn free(&mut self, buf: Buf, len: usize) {
        let order = Arena::order(len).expect("alloc refuses this length, so nothing of it can come back");
        let offset = self.offset(buf, 0).expect("freed a buffer of another arena");
        let last = self.parts.len() - 1;
        let part = if last > 0 && offset >= self.parts[1].0 { 1 } else { 0 };
        let (start, buddy) = &mut self.parts[part];
        buddy.free(((offset - *start) >> UNIT_SHIFT) as u32, order);
    }

    /// Returns the offset of `buf` in bytes from the start of the arena. `None` unless all its `len` bytes lie within
    /// the arena, and within the registered part if `buf` names region 0.
    #[inline]
    pub(crate) fn offset(&self, buf: Buf, len: u64) -> Option<u64> {
        let offset = buf.addr.wrapping_sub(self.base);
        let fits = offset <= self.len && len <= self.len - offset;
        (fits && (buf.region == Buf::UNREGISTERED || (buf.region == 0 && offset + len <= self.registered)))
            .then_some(offset)
    }

    /// Returns the bytes of a buffer. Panics if they are not all in the arena.
    pub(crate) fn memory(&mut self, buf: Buf, len: usize) -> &mut [u8] {
        let offset = self.offset(buf, len as u64).expect("the buffer lies in this shard's arena");
        // SAFETY: the range is within the mapping, which is readable, writable and initialised (anonymous pages are
        // zeros) and lives as long as `self`; the exclusive borrow of the arena excludes other slices. The kernel may
        // write there only while an I/O that the frontend itself started is in flight, during which the frontend must
        // not access it (see `Cx::memory`); bytes have no invalid values.
        unsafe { std::slice::from_raw_parts_mut(self.map.ptr().add(offset as usize), len) }
    }

    /// Like [`Arena::memory`], for reading.
    pub(crate) fn bytes(&self, buf: Buf, len: usize) -> &[u8] {
        let offset = self.offset(buf, len as u64).expect("the buffer lies in this shard's arena");
        // SAFETY: as in `memory`, with a shared borrow.
        unsafe { std::slice::from_raw_parts(self.map.ptr().add(offset as usize), len) }
    }

    /// Returns two buffers at once. Panics if they are not both in the arena, or overlap.
    pub(crate) fn pair(&mut self, first: (Buf, usize), second: (Buf, usize)) -> (&mut [u8], &mut [u8]) {
        let [one, two] = [first, second].map(|(buf, len)| {
            let offset = self.offset(buf, len as u64).expect("the buffer lies in this shard's arena") as usize;
            (offset, offset + len)
        });
        assert!(one.1 <= two.0 || two.1 <= one.0, "the buffers are apart from each other");
        // SAFETY: as in `memory`, for each of them; they do not overlap, as just checked.
        unsafe {
            let base = self.map.ptr();
            (
                std::slice::from_raw_parts_mut(base.add(one.0), first.1),
                std::slice::from_raw_parts_mut(base.add(two.0), second.1),
            )
        }
    }

    /// Copies within the arena; the ranges may overlap.
    pub(crate) fn copy(&mut self, from: Buf, to: Buf, len: usize) {
        let source = self.offset(from, len as u64).expect("the source lies in this shard's arena");
        let target = self.offset(to, len as u64).expect("the target lies in this shard's arena");
        // SAFETY: both ranges are within the mapping, as just checked; `copy` allows overlap.
        unsafe { std::ptr::copy(self.map.ptr().add(source as usize), self.map.ptr().add(target as usize), len) }
    }

    pub(crate) fn bytes_len(&self) -> u64 {
        self.len
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, buddy)| (buddy.free_units as u64) << UNIT_SHIFT).sum()
    }

    /// Leaks the mapping, because the kernel may still write to it when the shard ends.
    pub(crate) fn leak(self) {
        std::mem::forget(self.map);
    }
}

const _: () = assert!(LEAF_BYTES_MAX <= REQUEST_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(len: usize, registered: usize) -> Arena {
        Arena::new(Map::new(len).unwrap(), registered)
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn whole_arena_can_be_allocated_and_freed() {
        for (len, registered) in [(64 << 20, 64 << 20), (64 << 20, 4 << 20), (33 << 20, 0), (12 << 10, 4 << 10)] {
            let mut arena = arena(len, registered);
            for _ in 0..2 {
                let all: Vec<Buf> = std::iter::from_fn(|| arena.alloc(4096)).collect();
                assert_eq!(all.len(), len / 4096);
                assert_eq!(arena.free_bytes(), 0);
                assert!(all.iter().all(|b| (b.region == 0) == (b.addr - arena.base < registered as u64)));
                all.iter().for_each(|b| arena.free(*b, 4096));
                assert_eq!(arena.free_bytes(), len as u64);
            }
            let largest = if len >= 32 << 20 { 32 << 20 } else { 4096 };
            assert!(arena.alloc(largest).is_some(), "coalesced again");
            assert!(arena.alloc((32 << 20) + 1).is_none());
        }
    }

    #[test]
    fn random_allocations_never_overlap() {
        let mut arena = arena(16 << 20, 4 << 20);
        let (mut seed, mut held): (u64, Vec<(Buf, usize, u8)>) = (7, Vec::new());
        for step in 0..20_000u64 {
            if random(&mut seed).is_multiple_of(2) {
                let len = 1 + (random(&mut seed) as usize) % (1 << (12 + random(&mut seed) % 9));
                if let Some(buf) = arena.alloc(len) {
                    assert_eq!(buf.addr % 4096, 0);
                    arena.memory(buf, len).fill(step as u8);
                    held.push((buf, len, step as u8));
                }
            } else if !held.is_empty() {
                let (buf, len, mark) = held.swap_remove(random(&mut seed) as usize % held.len());
                assert!(arena.bytes(buf, len).iter().all(|&b| b == mark), "another allocation overlaps");
                arena.free(buf, len);
            }
        }
        held.drain(..).for_each(|(buf, len, _)| arena.free(buf, len));
        assert_eq!(arena.free_bytes(), 16 << 20);
    }

    #[test]
    fn foreign_buffers_are_refused() {
        let arena = arena(1 << 20, 8192);
        let at = |offset: u64, region| Buf { addr: arena.base + offset, region };
        assert!(arena.offset(at(0, 0), 8192).is_some());
        assert!(arena.offset(at(4096, 0), 8192).is_none(), "leaves the registered part");
        assert!(arena.offset(at(0, 1), 4096).is_none(), "no such region");
        assert!(arena.offset(at(1 << 20, Buf::UNREGISTERED), 1).is_none());
        assert!(arena.offset(at(u64::MAX - arena.base, Buf::UNREGISTERED), 1).is_none());
        assert!(arena.offset(at(4096, Buf::UNREGISTERED), u64::MAX).is_none());
        assert!(arena.offset(at(4096, 0), u64::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "freed what was not allocated so")]
    fn double_free_is_caught() {
        let mut arena = arena(1 << 20, 0);
        let buf = arena.alloc(4096).unwrap();
        arena.free(buf, 4096);
        arena.free(buf, 4096);
    }
}

//! Memory disks, and access to the memory of leaf I/Os.

use braid_engine::{Buf, ComputeFn, LeafIo, Op};

/// From this size on, zeroing a range releases its pages instead of writing to them.
const RELEASE_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4096;

/// Executes `io` on the memory disk whose memory begins at `disk`.
///
/// # Safety
/// `disk` points to a mapping that holds the whole range of the I/O. The pieces of the I/O are valid memory without any
/// other access during the call. Other shards may access the same bytes of the disk at the same time. The disk's bytes
/// are only copied or filled through raw pointers, so such a race can mix old and new bytes, as on any disk, but has no
/// other effect.
#[inline]
pub(super) unsafe fn carry_out(disk: *mut u8, io: &LeafIo) {
    match io.op {
        Op::Read | Op::Write => {
            let mut at = io.offset;
            for k in 0..io.pieces() {
                let (buf, len) = io.piece(k);
                // SAFETY: guaranteed by the caller, for each piece.
                unsafe { copy(disk, io.op, at, u64::from(len), buf) };
                at += u64::from(len);
            }
        }
        // SAFETY: guaranteed by the caller.
        Op::WriteZeroes | Op::Discard => unsafe { zero(disk, io.offset, io.len) },
        Op::Flush => {}
    }
}

/// Prefetches the cache line at this address.
#[inline(always)]
pub(super) fn fetch(address: *const u8) {
    // SAFETY: a hint without visible effect, which faults at no address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Returns a metadata block of the engine.
///
/// # Safety
/// `at` points to 4096 bytes that live as long as the borrow, without any other access meanwhile.
pub(super) unsafe fn block<'a>(at: *mut u8) -> &'a mut [u8; 4096] {
    // SAFETY: guaranteed by the caller; bytes have no alignment.
    unsafe { &mut *at.cast::<[u8; 4096]>() }
}

/// Executes a read or write with a single piece of memory.
///
/// # Safety
/// As [`carry_out`].
#[inline(never)]
pub(super) unsafe fn copy(disk: *mut u8, op: Op, offset: u64, len: u64, buf: Buf) {
    let piece = buf.addr as *mut u8;
    // SAFETY: the caller guarantees that both ranges are valid, and a mapping never overlaps the arena.
    unsafe {
        let at = disk.add(offset as usize);
        if op == Op::Read {
            std::ptr::copy_nonoverlapping(at, piece, len as usize);
        } else {
            copy_in(piece, at, len as usize);
        }
    }
}

/// Copies bytes of a memory disk. Other shards may access them at the same time.
///
/// # Safety
/// `at` points to at least `into.len()` bytes of a disk's mapping.
#[inline]
pub(super) unsafe fn copy_out(at: *const u8, into: &mut [u8]) {
    // SAFETY: guaranteed by the caller; a mapping never overlaps other memory.
    unsafe { std::ptr::copy_nonoverlapping(at, into.as_mut_ptr(), into.len()) }
}

/// Copies received bytes to the memory of an I/O.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap. Access to the target is exclusive.
pub(super) unsafe fn copy_from(from: *const u8, to_addr: u64, len: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to_addr as *mut u8, len as usize) }
}

/// Copies data of an I/O to a send buffer.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap. Access to the target is exclusive.
pub(super) unsafe fn copy_to(from_addr: u64, to: *mut u8, len: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from_addr as *const u8, to, len as usize) }
}

/// From this size on, writes to a memory disk bypass the processor's cache: the data is unlikely to be read soon, and
/// the processor need not fetch lines that are overwritten completely.
#[cfg(target_arch = "x86_64")]
const STREAM_BYTES: usize = 64 << 10;

/// Copies data onto a memory disk.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap.
#[inline]
unsafe fn copy_in(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_BYTES && (target as usize).is_multiple_of(64) && len.is_multiple_of(64) {
        // SAFETY: guaranteed by the caller, and by the alignment and length just seen.
        return unsafe { stream(source, target, len) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len) }
}

/// # Safety
/// As [`copy_in`]; `target` and `len` are multiples of 64.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..len).step_by(64) {
        // SAFETY: 64 bytes at `at` are inside both ranges; SSE2 is part of x86-64; the stores are aligned to 16, the
        // loads need no alignment.
        unsafe {
            let from = source.add(at).cast::<__m128i>();
            let to = target.add(at).cast::<__m128i>();
            let line = [0, 1, 2, 3].map(|k| _mm_loadu_si128(from.add(k)));
            (0..4).for_each(|k| _mm_stream_si128(to.add(k), line[k]));
        }
    }
    // Nothing else orders streaming stores: without the fence, another shard that sees the completion might read the
    // previous content.
    // SAFETY: a fence accesses no memory, and SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// # Safety
/// `disk` points to an anonymous private mapping, page-aligned, that holds the range.
unsafe fn zero(disk: *mut u8, offset: u64, len: u64) {
    // SAFETY: inside the range, as the caller guarantees.
    let fill = |from: u64, to: u64| unsafe { std::ptr::write_bytes(disk.add(from as usize), 0, (to - from) as usize) };
    let end = offset + len;
    let (first, last) = (offset.next_multiple_of(PAGE_BYTES), end - end % PAGE_BYTES);
    if len < RELEASE_BYTES {
        return fill(offset, end);
    }
    // SAFETY: whole pages of an anonymous private mapping, which read as zeros afterwards.
    let rc = unsafe { libc::madvise(disk.add(first as usize).cast(), (last - first) as usize, libc::MADV_DONTNEED) };
    if rc != 0 {
        return fill(offset, end);
    }
    fill(offset, first);
    fill(last, end);
}

/// Flips one bit in the data that an I/O has read.
///
/// # Safety
/// The pieces of the I/O are valid memory without any other access during the call.
pub(super) unsafe fn flip_bit(io: &LeafIo, bit: u64) {
    let mut byte = bit / 8;
    for k in 0..io.pieces() {
        let (buf, len) = io.piece(k);
        if byte < u64::from(len) {
            let target = (buf.addr + byte) as *mut u8;
            // SAFETY: inside this piece, which is valid as the caller guarantees.
            unsafe { target.write(target.read() ^ 1 << (bit % 8)) };
            return;
        }
        byte -= u64::from(len);
    }
}

/// Fills memory of an I/O with zeros.
///
/// # Safety
/// The range is valid memory without any other access during the call.
pub(super) unsafe fn fill(buf: Buf, len: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::write_bytes(buf.addr as *mut u8, 0, len as usize) }
}

/// Returns whether two ranges hold the same bytes.
///
/// # Safety
/// Both ranges are valid memory that is not written during the call.
pub(super) unsafe fn is_equal(a: Buf, b: Buf, len: u64) -> bool {
    // SAFETY: guaranteed by the caller.
    let bytes = |buf: Buf| unsafe { std::slice::from_raw_parts(buf.addr as *const u8, len as usize) };
    bytes(a) == bytes(b)
}

/// Maximum number of buffers in one computation: the maximum number of members of an array.
const BUFFERS_MAX: usize = braid_engine::layout::COPIES_MAX;

/// Calls `work` with the bytes of these buffers.
///
/// # Safety
/// All are valid memory of `len` bytes without any other access during the call. The outputs overlap neither each other
/// nor an input.
pub(super) unsafe fn compute(inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut ComputeFn<'_>) {
    let mut read: [&[u8]; BUFFERS_MAX] = [&[]; BUFFERS_MAX];
    for (bytes, buf) in read.iter_mut().zip(inputs) {
        // SAFETY: guaranteed by the caller.
        *bytes = unsafe { std::slice::from_raw_parts(buf.addr as *const u8, len as usize) };
    }
    let mut changed: [&mut [u8]; 2] = [&mut [], &mut []];
    for (bytes, buf) in changed.iter_mut().zip(outputs) {
        // SAFETY: guaranteed by the caller.
        *bytes = unsafe { std::slice::from_raw_parts_mut(buf.addr as *mut u8, len as usize) };
    }
    assert!(inputs.len() <= BUFFERS_MAX && outputs.len() <= changed.len(), "{} inputs", inputs.len());
    work(&read[..inputs.len()], &mut changed[..outputs.len()]);
}

/// Iovecs for I/Os with several pieces: blocks of [`braid_engine::PIECES_MAX`], identified by number.
pub(super) struct Iovecs {
    map: crate::map::Map,
    free: Vec<u32>,
    next: u32,
    max: u32,
}

const BLOCK_BYTES: usize = braid_engine::PIECES_MAX as usize * size_of::<libc::iovec>();

impl Iovecs {
    /// Reserves address space for `max` blocks. Pages are allocated on first use.
    pub(super) fn new(max: u32) -> std::io::Result<Iovecs> {
        let map = crate::map::Map::new(max as usize * BLOCK_BYTES)?;
        Ok(Iovecs { map, free: Vec::with_capacity(max as usize), next: 0, max })
    }

    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.next < self.max, "no more jobs are issued than there are blocks");
            self.next += 1;
            self.next - 1
        })
    }

    pub(super) fn give(&mut self, block: u32) {
        self.free.push(block);
    }

    /// Fills a block with the pieces of `io` behind its first `done` bytes. Returns the address and the number of
    /// iovecs.
    pub(super) fn fill(&mut self, block: u32, io: &LeafIo, done: u64) -> (*const libc::iovec, u32) {
        debug_assert!(block < self.max && io.pieces() <= braid_engine::PIECES_MAX);
        // SAFETY: the block lies inside the mapping, is aligned (4 KiB) and belongs to this job alone.
        let first: *mut libc::iovec = unsafe { self.map.ptr().add(block as usize * BLOCK_BYTES) }.cast();
        let (mut skip, mut count) = (done, 0u32);
        for k in 0..io.pieces().min(braid_engine::PIECES_MAX) {
            let (buf, len) = io.piece(k);
            if skip >= u64::from(len) {
                skip -= u64::from(len);
                continue;
            }
            let iov = libc::iovec {
                iov_base: (buf.addr + skip) as *mut libc::c_void,
                iov_len: (u64::from(len) - skip) as usize,
            };
            // SAFETY: `count` stays below PIECES_MAX, so this is inside the block.
            unsafe { first.add(count as usize).write(iov) };
            skip = 0;
            count += 1;
        }
        (first.cast_const(), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_length_are_exact() {
        let source: Vec<u8> = (0..300_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let disk = crate::map::Map::new(1 << 20).unwrap();
        for (from, to, len) in
            [(0, 0, 64), (3, 512, 65_535), (1, 64, 65_536), (0, 4096, 131_072), (5, 100, 200_000), (7, 512, 262_144)]
        {
            // SAFETY: both ranges are inside their memory, to which the test has exclusive access.
            let got = unsafe {
                std::ptr::write_bytes(disk.ptr(), 0xaa, disk.len());
                copy_in(source.as_ptr().add(from), disk.ptr().add(to), len);
                std::slice::from_raw_parts(disk.ptr(), disk.len())
            };
            assert!(got[to..to + len] == source[from..from + len], "{len} bytes");
            assert!(got[..to].iter().chain(&got[to + len..]).all(|&b| b == 0xaa), "nothing around them");
        }
    }
}

//! Memory disks, and the memory that leaf I/Os name.

use braid_engine::{Buf, LeafIo, Op, RowWork};

/// From this many bytes on, zeroing gives the pages back instead of writing to them.
const GIVE_BACK_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4096;

/// Carries out `io` on the memory disk whose bytes begin at `disk`.
///
/// # Safety
/// `disk` points to a mapping that holds all of the I/O's range. The I/O's pieces are valid memory that nobody
/// else uses during the call. Other shards may work on the same bytes of the disk at the same time: they are only
/// ever copied or filled through raw pointers, so that such a race mixes bytes, as on any disk, and nothing more.
#[inline]
pub(super) unsafe fn carry_out(disk: *mut u8, io: &LeafIo) {
    match io.op {
        Op::Read | Op::Write => {
            let mut at = io.offset;
            for k in 0..io.pieces() {
                let (buf, len) = io.piece(k);
                // SAFETY: the caller's promise, for each piece.
                unsafe { copy(disk, io.op, at, u64::from(len), buf) };
                at += u64::from(len);
            }
        }
        // SAFETY: the caller's promise.
        Op::WriteZeroes | Op::Discard => unsafe { zero(disk, io.offset, io.len) },
        Op::Flush => {}
    }
}

/// Lets the processor fetch the line at this address.
#[inline(always)]
pub(super) fn fetch(address: *const u8) {
    // SAFETY: a hint, which reads nothing that the program could see, and faults at no address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A block of the engine's metadata.
///
/// # Safety
/// `at` points to 4096 bytes that live as long as the borrow, and that nobody else reads or writes meanwhile.
pub(super) unsafe fn block<'a>(at: *mut u8) -> &'a mut [u8; 4096] {
    // SAFETY: the caller's promise; bytes have no alignment.
    unsafe { &mut *at.cast::<[u8; 4096]>() }
}

/// Carries out a read or write with one piece of memory.
///
/// # Safety
/// As [`carry_out`].
#[inline(never)]
pub(super) unsafe fn copy(disk: *mut u8, op: Op, offset: u64, len: u64, buf: Buf) {
    let piece = buf.addr as *mut u8;
    // SAFETY: the caller's promise: both ranges are valid, and a mapping never overlaps the arena.
    unsafe {
        let at = disk.add(offset as usize);
        if op == Op::Read {
            std::ptr::copy_nonoverlapping(at, piece, len as usize);
        } else {
            copy_in(piece, at, len as usize);
        }
    }
}

/// Copies bytes of a memory disk, on which others may work at the same time.
///
/// # Safety
/// `at` points to as many bytes of a disk's mapping as `into` is long.
#[inline]
pub(super) unsafe fn copy_out(at: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's promise; a mapping never overlaps other memory.
    unsafe { std::ptr::copy_nonoverlapping(at, into.as_mut_ptr(), into.len()) }
}

/// Copies bytes that were received to where an I/O wants them.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap; nobody else uses the target.
pub(super) unsafe fn copy_from(from: *const u8, to_addr: u64, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to_addr as *mut u8, len as usize) }
}

/// Copies data of an I/O to where they are sent from.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap; nobody else uses the target.
pub(super) unsafe fn copy_to(from_addr: u64, to: *mut u8, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from_addr as *const u8, to, len as usize) }
}

/// From this many bytes on, what is written to a memory disk goes past the processor's cache: nobody reads it soon,
/// and the processor need not fetch each line only to have it overwritten.
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
        // SAFETY: the caller's promise, and the alignment and length just seen.
        return unsafe { stream(source, target, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len) }
}

/// # Safety
/// As [`copy_in`]; `target` and `len` are multiples of 64.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..len).step_by(64) {
        // SAFETY: 64 bytes at `at` are inside both ranges; SSE2 is part of x86-64; stores are aligned to 16, loads need not be.
        unsafe {
            let from = source.add(at).cast::<__m128i>();
            let to = target.add(at).cast::<__m128i>();
            let line = [0, 1, 2, 3].map(|k| _mm_loadu_si128(from.add(k)));
            (0..4).for_each(|k| _mm_stream_si128(to.add(k), line[k]));
        }
    }
    // Streaming stores are not ordered by anything else: without this another shard that learns of the completion might
    // read what was there before.
    // SAFETY: a fence touches no memory, and SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// # Safety
/// `disk` points to an anonymous private mapping, page-aligned, that holds the range.
unsafe fn zero(disk: *mut u8, offset: u64, len: u64) {
    // SAFETY: inside the range, by the caller's promise.
    let fill = |from: u64, to: u64| unsafe { std::ptr::write_bytes(disk.add(from as usize), 0, (to - from) as usize) };
    let end = offset + len;
    let (first, last) = (offset.next_multiple_of(PAGE_BYTES), end - end % PAGE_BYTES);
    if len < GIVE_BACK_BYTES {
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

/// Flips one bit of what an I/O has read.
///
/// # Safety
/// The I/O's pieces are valid memory that nobody else uses during the call.
pub(super) unsafe fn flip_bit(io: &LeafIo, bit: u64) {
    let mut byte = bit / 8;
    for k in 0..io.pieces() {
        let (buf, len) = io.piece(k);
        if byte < u64::from(len) {
            let target = (buf.addr + byte) as *mut u8;
            // SAFETY: inside this piece, which is valid by the caller's promise.
            unsafe { target.write(target.read() ^ 1 << (bit % 8)) };
            return;
        }
        byte -= u64::from(len);
    }
}

/// Fills memory of an I/O with zeros.
///
/// # Safety
/// The range is valid memory that nobody else uses during the call.
pub(super) unsafe fn fill(buf: Buf, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(buf.addr as *mut u8, 0, len as usize) }
}

/// Whether two ranges hold the same bytes.
///
/// # Safety
/// Both are valid memory to which nobody writes during the call.
pub(super) unsafe fn is_equal(a: Buf, b: Buf, len: u64) -> bool {
    // SAFETY: the caller's promise.
    let bytes = |buf: Buf| unsafe { std::slice::from_raw_parts(buf.addr as *const u8, len as usize) };
    bytes(a) == bytes(b)
}

/// Most places of memory that one computation names: as many as an array may have members.
const PLACES_MAX: usize = braid_engine::layout::COPIES_MAX;

/// Calls `work` with the bytes of these places.
///
/// # Safety
/// All are valid memory that nobody else uses during the call, `len` bytes each. The outputs overlap neither each other nor an
/// input.
pub(super) unsafe fn compute(inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut RowWork<'_>) {
    let mut read: [&[u8]; PLACES_MAX] = [&[]; PLACES_MAX];
    for (bytes, buf) in read.iter_mut().zip(inputs) {
        // SAFETY: the caller's promise.
        *bytes = unsafe { std::slice::from_raw_parts(buf.addr as *const u8, len as usize) };
    }
    let mut changed: [&mut [u8]; 2] = [&mut [], &mut []];
    for (bytes, buf) in changed.iter_mut().zip(outputs) {
        // SAFETY: the caller's promise.
        *bytes = unsafe { std::slice::from_raw_parts_mut(buf.addr as *mut u8, len as usize) };
    }
    assert!(inputs.len() <= PLACES_MAX && outputs.len() <= changed.len(), "{} places", inputs.len());
    work(&read[..inputs.len()], &mut changed[..outputs.len()]);
}

/// Iovecs for jobs with several pieces: blocks of [`braid_engine::PIECES_MAX`], handed out by number.
pub(super) struct Iovecs {
    map: crate::map::Map,
    free: Vec<u32>,
    next: u32,
    most: u32,
}

const BLOCK_BYTES: usize = braid_engine::PIECES_MAX as usize * size_of::<libc::iovec>();

impl Iovecs {
    /// Reserves addresses for `most` blocks; memory is touched as needed.
    pub(super) fn new(most: u32) -> std::io::Result<Iovecs> {
        let map = crate::map::Map::new(most as usize * BLOCK_BYTES)?;
        Ok(Iovecs { map, free: Vec::with_capacity(most as usize), next: 0, most })
    }

    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.next < self.most, "no more jobs are issued than there are blocks");
            self.next += 1;
            self.next - 1
        })
    }

    pub(super) fn give(&mut self, block: u32) {
        self.free.push(block);
    }

    /// Fills a block with the pieces of `io` that lie behind its first `done` bytes; where it is, and how many.
    pub(super) fn fill(&mut self, block: u32, io: &LeafIo, done: u64) -> (*const libc::iovec, u32) {
        debug_assert!(block < self.most && io.pieces() <= braid_engine::PIECES_MAX);
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
    fn what_is_copied_in_arrives_whatever_its_length() {
        let source: Vec<u8> = (0..300_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let disk = crate::map::Map::new(1 << 20).unwrap();
        for (from, to, len) in
            [(0, 0, 64), (3, 512, 65_535), (1, 64, 65_536), (0, 4096, 131_072), (5, 100, 200_000), (7, 512, 262_144)]
        {
            // SAFETY: both ranges are inside their memory, which nobody else uses.
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

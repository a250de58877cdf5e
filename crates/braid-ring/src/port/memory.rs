//! Memory disks, and the memory that leaf I/Os name.

use braid_engine::{LeafIo, Op};

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
            // SAFETY: the caller's promise: the range is inside the mapping.
            let mut at = unsafe { disk.add(io.offset as usize) };
            for k in 0..io.pieces() {
                let (buf, len) = io.piece(k);
                let piece = buf.addr as *mut u8;
                let (source, target) =
                    if io.op == Op::Read { (at.cast_const(), piece) } else { (piece.cast_const(), at) };
                // SAFETY: the caller's promise: both ranges are valid, and a mapping never overlaps the arena.
                unsafe {
                    std::ptr::copy_nonoverlapping(source, target, len as usize);
                    at = at.add(len as usize);
                }
            }
        }
        // SAFETY: the caller's promise.
        Op::WriteZeroes | Op::Discard => unsafe { zero(disk, io.offset, io.len) },
        Op::Flush => {}
    }
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

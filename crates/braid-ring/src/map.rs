//! An anonymous memory mapping, unmapped on drop.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// Anonymous, private, zeroed memory. Pages are allocated on first access.
///
/// Only hands out addresses. The code that accesses them is responsible for doing so safely.
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; this type itself never reads or writes it.
unsafe impl Send for Map {}
// SAFETY: as above: a shared `Map` exposes only its address and length.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes, rounded up to whole pages, aligned to 4 KiB, or from 2 MiB on, to 2 MiB. No swap is reserved:
    /// a sparse memory disk may be larger than the memory.
    pub(crate) fn new(len: usize) -> io::Result<Map> {
        const HUGE: usize = 2 << 20;
        let len = len.max(1).next_multiple_of(4096);
        let slack = if len >= HUGE { HUGE } else { 0 };
        let wanted = len.checked_add(slack).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps no memory in use.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                wanted,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = if slack == 0 { raw as usize } else { (raw as usize).next_multiple_of(HUGE) };
        let (before, after) = (start - raw as usize, raw as usize + wanted - (start + len));
        // SAFETY: both ranges are whole pages at the two ends of the new mapping, and have no users yet.
        unsafe {
            if before > 0 {
                libc::munmap(raw, before);
            }
            if after > 0 {
                libc::munmap((start + len) as *mut libc::c_void, after);
            }
        }
        let base = NonNull::new(start as *mut u8).expect("mmap never returns page 0 without MAP_FIXED");
        Ok(Map { base, len })
    }

    pub(crate) fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Gives the kernel advice on the whole mapping. A refusal is harmless and ignored.
    pub(crate) fn advise(&self, advice: i32) {
        // SAFETY: the range is this mapping, and callers pass only advice that keeps its content.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) };
    }
}

/// Returns the memory of this machine in bytes, or 0 if it is unknown.
pub(crate) fn physical_memory_bytes() -> usize {
    // SAFETY: these return numbers and access no memory.
    let (pages, page_bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page_bytes).unwrap_or(0))
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is complete and owned by `self`; users of its addresses have stopped using them.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

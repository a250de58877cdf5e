//! A shard's scratch memory: pages to compute parity from and into, and for the journal's batches.
//!
//! Half of it is a reserve. Memory of an I/O that the kernel does not return, because a disk hangs, must not be reused.
//! Such memory is *lent*, and as many pages of the reserve become available instead. So a disk that hangs takes no
//! memory from arrays that it is no member of, and none from its own array once it is dropped.

use crate::io::Buf;

/// Scratch memory in bytes that a driver gives each shard that serves an array with parity, a pool or a device that
/// takes sectors: 48 MiB, touched as needed (half of it only while disks hang).
pub const SCRATCH_BYTES: u64 = 48 << 20;
/// Minimum scratch memory in bytes with which every step and every batch can be processed: 12 MiB.
pub const SCRATCH_BYTES_MIN: u64 = 12 << 20;

const PAGE_BYTES: u64 = 4096;

/// Divides scratch memory: three sixths for stripes, and one sixth each for the journals' batches, for gathers and
/// partial requests, and for the pools' own writes. A request that holds memory of one kind may wait for memory of
/// another kind: if they shared memory, requests could wait for each other for ever. Half of each is its reserve.
pub(crate) fn divide(base: Buf, bytes: u64) -> [Scratch; 4] {
    assert!(bytes >= SCRATCH_BYTES_MIN && bytes.is_multiple_of(6 << 20), "{bytes} bytes of scratch memory");
    let sixth = bytes / 6;
    let pages = |bytes: u64| (bytes / PAGE_BYTES) as u32;
    let of = |base: Buf, bytes: u64| Scratch::new(base, pages(bytes), pages(bytes) / 2);
    let one = |number: u64| of(base.add(number * sixth), sixth);
    [of(base, 3 * sixth), one(3), one(4), one(5)]
}

/// Contiguous pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRun {
    pub first: u32,
    pub pages: u32,
}

/// An allocator of pages: a bit for each page.
pub(crate) struct Scratch {
    base: Buf,
    used: Box<[u64]>,
    pages: u32,
    /// Maximum number of pages in use, not counting lent pages.
    limit: u32,
    next: u32,
    /// Number of pages that can be allocated now.
    free: u32,
    /// Pages that the kernel does not return for now.
    lent: u32,
}

impl Scratch {
    /// Creates an allocator of `pages` pages, a multiple of 64, from `base` on. All are free; at most `limit` can be in
    /// use at a time.
    pub fn new(base: Buf, pages: u32, limit: u32) -> Scratch {
        Scratch { base, used: vec![0; pages as usize / 64].into(), pages, limit, next: 0, free: limit, lent: 0 }
    }

    /// Returns the maximum number of pages in use, not counting lent pages.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns whether this many pages are free, contiguous or not.
    #[inline]
    pub fn has(&self, pages: u32) -> bool {
        pages <= self.free
    }

    /// Allocates contiguous pages; `None` if there are not so many now.
    pub fn take(&mut self, pages: u32) -> Option<PageRun> {
        if pages == 0 || pages > self.free {
            return None;
        }
        // The search begins where the last one ended and wraps around once. The reserve is used only if necessary.
        let end = self.pages.min(self.limit + self.lent);
        let first = self
            .find(self.next, end, pages)
            .or_else(|| self.find(0, end.min(self.next + pages), pages))
            .or_else(|| self.find(0, self.pages, pages).filter(|_| self.lent > 0))?;
        let run = PageRun { first, pages };
        self.mark(run, true);
        let next = first + pages;
        (self.next, self.free) = (if next < end { next } else { 0 }, self.free - pages);
        Some(run)
    }

    /// Lends pages to the kernel, which does not return them for now: as many of the reserve become available.
    #[cold]
    pub fn lend(&mut self, run: PageRun) {
        self.lent += run.pages;
        self.free += run.pages;
    }

    /// Frees pages that were lent.
    #[cold]
    pub fn regain(&mut self, run: PageRun) {
        self.mark(run, false);
        self.lent -= run.pages;
    }

    /// Frees pages.
    pub fn give(&mut self, run: PageRun) {
        self.mark(run, false);
        self.free += run.pages;
    }

    fn find(&self, from: u32, to: u32, pages: u32) -> Option<u32> {
        let (mut at, mut length) = (from, 0);
        while at < to {
            let word = self.used[at as usize / 64] >> (at % 64);
            if word == u64::MAX >> (at % 64) {
                // The rest of the word is in use.
                (at, length) = ((at / 64 + 1) * 64, 0);
                continue;
            }
            let free = word.trailing_zeros().min(64 - at % 64).min(to - at);
            length += free;
            at += free;
            if length >= pages {
                return Some(at - length);
            }
            if free == 0 {
                (at, length) = (at + 1, 0);
            }
        }
        None
    }

    fn mark(&mut self, run: PageRun, used: bool) {
        for page in run.first..run.first + run.pages {
            let (word, bit) = (&mut self.used[page as usize / 64], 1u64 << (page % 64));
            debug_assert_eq!(*word & bit == 0, used, "a page is taken once and given back once");
            *word = if used { *word | bit } else { *word & !bit };
        }
    }

    /// Returns the buffer of a page.
    pub fn page(&self, page: u32) -> Buf {
        self.base.add(u64::from(page) * PAGE_BYTES)
    }

    /// Returns the number of pages in use, including lent ones.
    pub fn in_use(&self) -> u32 {
        self.used.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the number of free pages.
    #[cfg(test)]
    pub fn free_pages(&self) -> u32 {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 4096;

    /// Compared with a plain list of flags, with a fixed sequence of lengths.
    #[test]
    fn runs_never_meet_and_all_pages_come_back() {
        let mut scratch = Scratch::new(Buf { addr: 1 << 20, region: Buf::UNREGISTERED }, PAGES, PAGES);
        let mut flags = vec![false; PAGES as usize];
        let mut held: Vec<PageRun> = Vec::new();
        let (mut state, mut refused) = (7u64, 0);
        for step in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = (state >> 33) as u32;
            if step % 3 < 2 {
                let pages = 1 + draw % 130;
                match scratch.take(pages) {
                    Some(run) => {
                        assert_eq!(run.pages, pages);
                        for flag in &mut flags[run.first as usize..][..pages as usize] {
                            assert!(!std::mem::replace(flag, true), "given out twice");
                        }
                        held.push(run);
                    }
                    None => {
                        refused += 1;
                        let most = flags.split(|used| *used).map(<[bool]>::len).max();
                        // A gap may extend across the start of the search: both sides of it are searched.
                        assert!(most < Some(pages as usize), "there was room for {pages}");
                    }
                }
            } else if !held.is_empty() {
                let run = held.swap_remove(draw as usize % held.len());
                flags[run.first as usize..][..run.pages as usize].fill(false);
                scratch.give(run);
            }
        }
        assert!(refused > 100, "memory was short {refused} times");
        held.drain(..).for_each(|run| scratch.give(run));
        assert_eq!(scratch.free_pages(), PAGES);
        assert_eq!(scratch.take(PAGES), Some(PageRun { first: 0, pages: PAGES }));
        assert_eq!(scratch.page(3).addr, (1 << 20) + 3 * 4096);
    }

    /// The reserve replaces lent pages, wherever they are, as long as there is some. A lent page is not allocated
    /// before it is returned.
    #[test]
    fn lent_pages_take_no_memory_from_others() {
        for size in [1, 30, 256, 500] {
            let mut scratch = Scratch::new(Buf { addr: 0, region: Buf::UNREGISTERED }, 1024, 512);
            let mut lent = Vec::new();
            while lent.len() as u32 * size < 512 {
                let (late, other) = (scratch.take(size).expect("room"), scratch.take(12).expect("room"));
                scratch.lend(late);
                assert!(scratch.take(501).is_none(), "no more than before");
                scratch.give(other);
                lent.push(late);
            }
            let (a, b) = (scratch.take(512 - size), scratch.take(size.min(12)));
            assert!(b.is_some(), "after {} of {size} were lent", lent.len());
            let here = [a, b].into_iter().flatten();
            here.for_each(|run| {
                assert!(lent.iter().all(|l| l.first + l.pages <= run.first || run.first + run.pages <= l.first));
                scratch.give(run);
            });
            lent.drain(..).for_each(|run| scratch.regain(run));
            assert_eq!(scratch.take(512), Some(PageRun { first: 0, pages: 512 }));
            assert_eq!((scratch.take(1), scratch.free_pages()), (None, 0));
        }
    }
}

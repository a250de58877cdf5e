//! A shard's scratch memory: pages for what parity is computed from and into, and for the journal's batches.
//!
//! Half of it is a reserve: what the kernel keeps of a disk that hangs, nobody may change, and others are given as much of the reserve
//! instead. So a disk that hangs takes nothing from the arrays that it is not in, and nothing from its own once it is left out.

use crate::io::Buf;

/// What a driver gives each shard that serves an array with parity, a pool or a volume with small blocks, in bytes (48 MiB, touched as needed: half of it only while
/// disks hang).
pub const SCRATCH_BYTES: u64 = 48 << 20;
/// The least that any step and any batch can be worked on with, in bytes (12 MiB).
pub const SCRATCH_BYTES_MIN: u64 = 12 << 20;

const PAGE_BYTES: u64 = 4096;

/// Cuts scratch memory in four: for rows, for the journals' batches, for gathers, and for what pools write of their own, as who holds of the one waits for the
/// other. Half of each is its reserve.
pub(crate) fn divide(base: Buf, bytes: u64) -> [Scratch; 4] {
    assert!(bytes >= SCRATCH_BYTES_MIN && bytes.is_multiple_of(6 << 20), "{bytes} bytes of scratch memory");
    let sixth = bytes / 6;
    let pages = |bytes: u64| (bytes / PAGE_BYTES) as u32;
    let of = |base: Buf, bytes: u64| Scratch::new(base, pages(bytes), pages(bytes) / 2);
    let one = |number: u64| of(base.add(number * sixth), sixth);
    [of(base, 3 * sixth), one(3), one(4), one(5)]
}

/// Pages one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub first: u32,
    pub pages: u32,
}

/// Which pages are free: a bit each.
pub(crate) struct Scratch {
    base: Buf,
    used: Box<[u64]>,
    pages: u32,
    /// How many may be in use, those aside that are lent.
    limit: u32,
    next: u32,
    /// How many may be taken now.
    free: u32,
    /// In use by a kernel that does not give them back.
    lent: u32,
}

impl Scratch {
    /// So many pages, a multiple of 64, from `base` on; all of them free, and `limit` of them to be used at a time.
    pub fn new(base: Buf, pages: u32, limit: u32) -> Scratch {
        Scratch { base, used: vec![0; pages as usize / 64].into(), pages, limit, next: 0, free: limit, lent: 0 }
    }

    /// How many may be in use at a time, those aside that are lent.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether so many pages are free, wherever they are.
    #[inline]
    pub fn has(&self, pages: u32) -> bool {
        pages <= self.free
    }

    /// Takes neighbouring pages; none, where there are not so many now.
    pub fn take(&mut self, pages: u32) -> Option<Run> {
        if pages == 0 || pages > self.free {
            return None;
        }
        // From where the last one was found, once around; the reserve is not touched before it must be.
        let end = self.pages.min(self.limit + self.lent);
        let first = self
            .find(self.next, end, pages)
            .or_else(|| self.find(0, end.min(self.next + pages), pages))
            .or_else(|| self.find(0, self.pages, pages).filter(|_| self.lent > 0))?;
        let run = Run { first, pages };
        self.mark(run, true);
        let next = first + pages;
        (self.next, self.free) = (if next < end { next } else { 0 }, self.free - pages);
        Some(run)
    }

    /// The kernel does not give these pages back for now: as many of the reserve may be taken.
    #[cold]
    pub fn lend(&mut self, run: Run) {
        self.lent += run.pages;
        self.free += run.pages;
    }

    /// Pages that were lent are free.
    #[cold]
    pub fn regain(&mut self, run: Run) {
        self.mark(run, false);
        self.lent -= run.pages;
    }

    /// Gives pages back.
    pub fn give(&mut self, run: Run) {
        self.mark(run, false);
        self.free += run.pages;
    }

    fn find(&self, from: u32, to: u32, pages: u32) -> Option<u32> {
        let (mut at, mut length) = (from, 0);
        while at < to {
            let word = self.used[at as usize / 64] >> (at % 64);
            if word == u64::MAX >> (at % 64) {
                // All of the rest of the word is taken.
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

    fn mark(&mut self, run: Run, used: bool) {
        for page in run.first..run.first + run.pages {
            let (word, bit) = (&mut self.used[page as usize / 64], 1u64 << (page % 64));
            debug_assert_eq!(*word & bit == 0, used, "a page is taken once and given back once");
            *word = if used { *word | bit } else { *word & !bit };
        }
    }

    /// Where a page is.
    pub fn page(&self, page: u32) -> Buf {
        self.base.add(u64::from(page) * PAGE_BYTES)
    }

    /// How many are in use, those that are lent among them.
    pub fn in_use(&self) -> u32 {
        self.used.iter().map(|word| word.count_ones()).sum()
    }

    /// Pages that are not in use.
    #[cfg(test)]
    pub fn free_pages(&self) -> u32 {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 4096;

    /// Against a plain list of flags, with a fixed sequence of lengths.
    #[test]
    fn runs_never_meet_and_all_pages_come_back() {
        let mut scratch = Scratch::new(Buf { addr: 1 << 20, region: Buf::UNREGISTERED }, PAGES, PAGES);
        let mut flags = vec![false; PAGES as usize];
        let mut held: Vec<Run> = Vec::new();
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
                        // A gap may lie across where the search begins: both sides of it are looked at.
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
        assert_eq!(scratch.take(PAGES), Some(Run { first: 0, pages: PAGES }));
        assert_eq!(scratch.page(3).addr, (1 << 20) + 3 * 4096);
    }

    /// What is lent is made good by the reserve, wherever it lies, as often as there is some; and is not given out before it is back.
    #[test]
    fn what_is_lent_takes_nothing_from_others() {
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
            assert_eq!(scratch.take(512), Some(Run { first: 0, pages: 512 }));
            assert_eq!((scratch.take(1), scratch.free_pages()), (None, 0));
        }
    }
}

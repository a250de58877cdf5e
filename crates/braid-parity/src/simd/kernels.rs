//! The loops, over vectors of any kind.
//!
//! Blocks are gone through side by side, a column of a few vectors at a time, so that each byte is read once and sums stay
//! in registers until they are written. Q is summed by Horner's rule from the last coefficient to the first: to double is
//! cheaper than to multiply. What is left at the end is done vector by vector, then byte by byte.
//!
//! Chunks of one row often lie a power of two apart, and caches then keep only some of their lines at a time: what was fetched
//! ahead of too many blocks is gone before it is used. So wide rows are gone through a tile at a time, a group of blocks after
//! the other, with the sums of the tile kept beside.
//!
//! All of it is inlined into the functions that [`table`] makes, which are compiled for their processor.

use super::vector::{Byte, Vector};
use super::{Rule, Syndromes};

/// Vectors in a column: as many as leave registers for P, Q and what is being added.
const COLUMN: usize = 4;

/// Blocks that are gone through side by side.
const GROUP: usize = 8;

/// Bytes of each block that are gone through before the next group's turn: with their sums, a part of the nearest cache.
const TILE: usize = 4096;

/// What is done to each column.
pub(super) trait Job {
    /// Does it to `N` vectors of each block.
    ///
    /// # Safety
    /// The processor has `V`, and every block of the job that is not empty has `N` of them from `at` on.
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize);
}

/// Does a job to the bytes from `at` to `end`.
///
/// # Safety
/// The processor has `V`, and every block of the job that is not empty has these bytes.
#[inline(always)]
unsafe fn run<V: Vector>(job: &mut impl Job, mut at: usize, end: usize) {
    // SAFETY: the caller's promise; each column ends at `end` or before.
    unsafe {
        while end - at >= COLUMN * V::BYTES {
            job.column::<V, COLUMN>(at);
            at += COLUMN * V::BYTES;
        }
        while end - at >= V::BYTES {
            job.column::<V, 1>(at);
            at += V::BYTES;
        }
        while at < end {
            job.column::<Byte, 1>(at);
            at += 1;
        }
    }
}

/// The tiles of `len` bytes, each from where to where.
#[inline(always)]
fn tiles(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(TILE).map(move |from| (from, len.min(from + TILE)))
}

/// P' and Q' of a tile, over the groups of data with the higher coefficients.
struct Sums {
    of_p: [u8; TILE],
    of_q: [u8; TILE],
}

/// Where the sums of groups before stand; of a narrow row there are none.
#[derive(Clone, Copy)]
struct Carried<'a> {
    of_p: &'a [u8],
    of_q: &'a [u8],
    /// Where in the blocks the tile begins.
    from: usize,
}

impl Carried<'static> {
    const NONE: Carried<'static> = Carried { of_p: &[], of_q: &[], from: 0 };
}

/// Puts the sums of a group beside, on top of those of the groups before.
struct Gather<'a> {
    sums: &'a mut Sums,
    first: bool,
    from: usize,
    data: &'a [&'a [u8]],
}

impl Job for Gather<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        let Sums { of_p, of_q } = &mut *self.sums;
        let (carried, place) = if self.first {
            (Carried::NONE, at - self.from)
        } else {
            (Carried { of_p, of_q, from: self.from }, at - self.from)
        };
        // SAFETY: the caller's promise; a tile's sums are as long as the tile.
        unsafe {
            let (sum, weighted) = sums::<V, N>(carried, self.data, at);
            store(&sum, of_p, place);
            store(&weighted, of_q, place);
        }
    }
}

/// Does `job` to every byte of a row, with the data of the lowest group and what the groups before carry to it.
///
/// # Safety
/// The processor has `V`, and every block is `len` bytes long or empty.
macro_rules! over_groups {
    ($V:ty, $len:expr, $data:expr, |$carried:ident, $low:ident| $job:expr) => {{
        let (len, data): (usize, &[&[u8]]) = ($len, $data);
        if data.len() <= GROUP {
            let ($carried, $low) = (Carried::NONE, data);
            run::<$V>(&mut $job, 0, len);
        } else {
            let mut sums = Sums { of_p: [0; TILE], of_q: [0; TILE] };
            let ($low, high) = data.split_at((data.len() - 1) % GROUP + 1);
            for (from, to) in tiles(len) {
                for (number, group) in high.rchunks(GROUP).enumerate() {
                    run::<$V>(&mut Gather { sums: &mut sums, first: number == 0, from, data: group }, from, to);
                }
                let $carried = Carried { of_p: &sums.of_p, of_q: &sums.of_q, from };
                run::<$V>(&mut $job, from, to);
            }
        }
    }};
}

/// Adds `N` vectors of a block to sums; an empty one is zeros.
///
/// # Safety
/// As [`Job::column`].
#[inline(always)]
unsafe fn add<V: Vector, const N: usize>(sums: &mut [V; N], block: &[u8], at: usize) {
    if !block.is_empty() {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *sum = unsafe { sum.xor(V::load(block.as_ptr().add(at + i * V::BYTES))) };
        }
    }
}

/// Puts `N` vectors into a block, unless it is empty.
///
/// # Safety
/// As [`Job::column`].
#[inline(always)]
unsafe fn store<V: Vector, const N: usize>(sums: &[V; N], block: &mut [u8], at: usize) {
    if !block.is_empty() {
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { sum.store(block.as_mut_ptr().add(at + i * V::BYTES)) };
        }
    }
}

/// `sums` += `others`.
///
/// # Safety
/// The processor has `V`.
#[inline(always)]
unsafe fn add_all<V: Vector, const N: usize>(sums: &mut [V; N], others: &[V; N]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        // SAFETY: the caller's promise.
        *sum = unsafe { sum.xor(*other) };
    }
}

/// `sums` += factor · `others`.
///
/// # Safety
/// The processor has `V`.
#[inline(always)]
unsafe fn add_times<V: Vector, const N: usize>(sums: &mut [V; N], factor: u8, others: &[V; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        let factor = V::factor(factor);
        for (sum, other) in sums.iter_mut().zip(others) {
            *sum = sum.xor(other.multiply(factor));
        }
    }
}

/// P' and Q' over the data that is there, on top of what is carried from groups before.
///
/// # Safety
/// As [`Job::column`]; a tile that is carried begins at `carried.from`.
#[inline(always)]
unsafe fn sums<V: Vector, const N: usize>(carried: Carried<'_>, data: &[&[u8]], at: usize) -> ([V; N], [V; N]) {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut sum, mut weighted) = ([V::zero(); N], [V::zero(); N]);
        add(&mut sum, carried.of_p, at - carried.from);
        add(&mut weighted, carried.of_q, at - carried.from);
        for block in data.iter().rev() {
            for value in &mut weighted {
                *value = value.double();
            }
            if !block.is_empty() {
                for i in 0..N {
                    let value = V::load(block.as_ptr().add(at + i * V::BYTES));
                    sum[i] = sum[i].xor(value);
                    weighted[i] = weighted[i].xor(value);
                }
            }
        }
        (sum, weighted)
    }
}

struct Xor<'a> {
    out: &'a mut [u8],
    keep: bool,
    extra: &'a [u8],
    sources: &'a [&'a [u8]],
}

impl Job for Xor<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = [V::zero(); N];
            if self.keep {
                add(&mut sum, self.out, at);
            }
            add(&mut sum, self.extra, at);
            for source in self.sources {
                add(&mut sum, source, at);
            }
            store(&sum, self.out, at);
        }
    }
}

struct Combine<'a> {
    rule: Rule,
    first: &'a mut [u8],
    second: &'a mut [u8],
    p: &'a [u8],
    q: &'a [u8],
    carried: Carried<'a>,
    data: &'a [&'a [u8]],
}

impl Job for Combine<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let (mut sum, mut weighted) = sums::<V, N>(self.carried, self.data, at);
            add(&mut sum, self.p, at);
            add(&mut weighted, self.q, at);
            // Which of the two is written first and which second, and what is done to them before.
            match self.rule {
                Rule::Encode => {}
                Rule::TwoData { of_p, of_q } => {
                    let mut first = [V::zero(); N];
                    add_times(&mut first, of_p, &sum);
                    add_times(&mut first, of_q, &weighted);
                    add_all(&mut sum, &first);
                    (sum, weighted) = (first, sum);
                }
                Rule::DataAndP { factor } => {
                    let mut first = [V::zero(); N];
                    add_times(&mut first, factor, &weighted);
                    add_all(&mut sum, &first);
                    (sum, weighted) = (first, sum);
                }
                Rule::DataAndQ { factor } => add_times(&mut weighted, factor, &sum),
            }
            store(&sum, self.first, at);
            store(&weighted, self.second, at);
        }
    }
}

struct Update<'a> {
    p: &'a mut [u8],
    q: &'a mut [u8],
    factor: u8,
    old: &'a [u8],
    new: &'a [u8],
}

impl Job for Update<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut change = [V::zero(); N];
            add(&mut change, self.old, at);
            add(&mut change, self.new, at);
            if !self.q.is_empty() {
                let mut q = [V::zero(); N];
                add(&mut q, self.q, at);
                add_times(&mut q, self.factor, &change);
                store(&q, self.q, at);
            }
            add(&mut change, self.p, at);
            store(&change, self.p, at);
        }
    }
}

struct Check<'a> {
    factor: u8,
    p: &'a [u8],
    q: &'a [u8],
    carried: Carried<'a>,
    data: &'a [&'a [u8]],
    found: &'a mut Syndromes,
}

impl Job for Check<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let (mut sum, mut weighted) = sums::<V, N>(self.carried, self.data, at);
            add(&mut sum, self.p, at);
            add(&mut weighted, self.q, at);
            let mut apart = weighted;
            add_times(&mut apart, self.factor, &sum);
            let not_zero = |values: &[V; N]| {
                let mut all = V::zero();
                for value in values {
                    all = all.or(*value);
                }
                !all.is_zero()
            };
            self.found.of_p |= not_zero(&sum);
            self.found.of_q |= not_zero(&weighted);
            self.found.apart |= not_zero(&apart);
        }
    }
}

/// The length of the longest; all others are as long or empty. The functions that users call have checked it and said what is
/// wrong; here it keeps the loops within the blocks, whatever happens to those.
#[inline(always)]
fn common_len(few: [&[u8]; 4], data: &[&[u8]]) -> usize {
    let len = few.iter().chain(data).map(|block| block.len()).max().unwrap_or(0);
    assert!(few.iter().chain(data).all(|block| block.is_empty() || block.len() == len), "blocks differ in length");
    len
}

/// # Safety
/// The processor has `V`.
#[inline(always)]
pub(super) unsafe fn xor<V: Vector>(out: &mut [u8], keep: bool, extra: &[u8], sources: &[&[u8]]) {
    let len = common_len([out, extra, &[], &[]], sources);
    // SAFETY: the lengths were checked; the rest is the caller's promise.
    unsafe {
        if sources.len() <= GROUP {
            return run::<V>(&mut Xor { out, keep, extra, sources }, 0, len);
        }
        for (from, to) in tiles(len) {
            for (number, sources) in sources.chunks(GROUP).enumerate() {
                // The sum of the groups before is in `out` already.
                let (keep, extra) = if number == 0 { (keep, extra) } else { (true, &[][..]) };
                run::<V>(&mut Xor { out: &mut *out, keep, extra, sources }, from, to);
            }
        }
    }
}

/// # Safety
/// The processor has `V`.
#[inline(always)]
pub(super) unsafe fn combine<V: Vector>(
    rule: Rule,
    first: &mut [u8],
    second: &mut [u8],
    p: &[u8],
    q: &[u8],
    data: &[&[u8]],
) {
    let len = common_len([first, second, p, q], data);
    // SAFETY: the lengths were checked; the rest is the caller's promise.
    unsafe {
        over_groups!(V, len, data, |carried, data| Combine {
            rule,
            first: &mut *first,
            second: &mut *second,
            p,
            q,
            carried,
            data
        });
    }
}

/// # Safety
/// The processor has `V`.
#[inline(always)]
pub(super) unsafe fn update<V: Vector>(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
    let len = common_len([p, q, old, new], &[]);
    // SAFETY: the lengths were checked; the rest is the caller's promise.
    unsafe { run::<V>(&mut Update { p, q, factor, old, new }, 0, len) }
}

/// # Safety
/// The processor has `V`.
#[inline(always)]
pub(super) unsafe fn syndromes<V: Vector>(factor: u8, p: &[u8], q: &[u8], data: &[&[u8]]) -> Syndromes {
    let len = common_len([p, q, &[], &[]], data);
    let mut found = Syndromes { of_p: false, of_q: false, apart: false };
    // SAFETY: the lengths were checked; the rest is the caller's promise.
    unsafe { over_groups!(V, len, data, |carried, data| Check { factor, p, q, carried, data, found: &mut found }) };
    found
}

/// Makes the table of [`super::Kernels`] for a kind of vector: `table!(Vector, "name", "target feature")`.
macro_rules! table {
    ($V:ty, $name:literal $(, $feature:literal)?) => {
        /// What is given out only where the processor has these vectors.
        pub(super) static KERNELS: super::Kernels =
            super::Kernels { name: $name, xor, combine, update, syndromes };

        fn xor(out: &mut [u8], keep: bool, extra: &[u8], sources: &[&[u8]]) {
            $(#[target_feature(enable = $feature)])?
            fn compiled(out: &mut [u8], keep: bool, extra: &[u8], sources: &[&[u8]]) {
                // SAFETY: this function is only called where the processor has these vectors.
                unsafe { kernels::xor::<$V>(out, keep, extra, sources) }
            }
            // SAFETY: the table is given out only where the processor has the feature.
            #[allow(unused_unsafe)] // the portable one needs no feature
            unsafe { compiled(out, keep, extra, sources) }
        }

        fn combine(rule: super::Rule, first: &mut [u8], second: &mut [u8], p: &[u8], q: &[u8], data: &[&[u8]]) {
            $(#[target_feature(enable = $feature)])?
            fn compiled(
                rule: super::Rule,
                first: &mut [u8],
                second: &mut [u8],
                p: &[u8],
                q: &[u8],
                data: &[&[u8]],
            ) {
                // SAFETY: this function is only called where the processor has these vectors.
                unsafe { kernels::combine::<$V>(rule, first, second, p, q, data) }
            }
            // SAFETY: the table is given out only where the processor has the feature.
            #[allow(unused_unsafe)]
            unsafe { compiled(rule, first, second, p, q, data) }
        }

        fn update(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
            $(#[target_feature(enable = $feature)])?
            fn compiled(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
                // SAFETY: this function is only called where the processor has these vectors.
                unsafe { kernels::update::<$V>(p, q, factor, old, new) }
            }
            // SAFETY: the table is given out only where the processor has the feature.
            #[allow(unused_unsafe)]
            unsafe { compiled(p, q, factor, old, new) }
        }

        fn syndromes(factor: u8, p: &[u8], q: &[u8], data: &[&[u8]]) -> super::Syndromes {
            $(#[target_feature(enable = $feature)])?
            fn compiled(factor: u8, p: &[u8], q: &[u8], data: &[&[u8]]) -> super::Syndromes {
                // SAFETY: this function is only called where the processor has these vectors.
                unsafe { kernels::syndromes::<$V>(factor, p, q, data) }
            }
            // SAFETY: the table is given out only where the processor has the feature.
            #[allow(unused_unsafe)]
            unsafe { compiled(factor, p, q, data) }
        }
    };
}
pub(super) use table;

//! The loops, over any vector type.
//!
//! The loops process all blocks in parallel, one column of a few vectors at a time, so that each byte is read once and the sums
//! stay in registers until they are written. Q is summed by Horner's rule from the last coefficient to the first, because doubling
//! is cheaper than multiplying. The remainder of the blocks is processed vector by vector, then byte by byte.
//!
//! The chunks of a stripe are often a power of two apart. Caches then hold only some of their lines at a time, and lines that were
//! prefetched from too many blocks are evicted before they are used. Wide stripes are therefore processed tile by tile, and within
//! a tile group by group of blocks, with the sums of the tile in a buffer.
//!
//! All of this is inlined into the functions that [`table`] generates, which are compiled for their instruction set.

use super::vector::{Byte, Vector};
use super::{Rule, Syndromes};

/// Vectors in a column: as many as leave registers for P, Q and the operand.
const COLUMN: usize = 4;

/// Blocks that are processed in parallel.
const GROUP: usize = 8;

/// Bytes of each block that are processed before the next group. The tile and its sums take a part of the first-level cache.
const TILE: usize = 4096;

/// An operation on one column of blocks.
pub(super) trait ColumnOperation {
    /// Processes `N` vectors of each block.
    ///
    /// # Safety
    /// The processor must have `V`, and every nonempty block of the operation must have `N` vectors from `at` on.
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize);
}

/// Applies an operation to the bytes from `at` to `end`.
///
/// # Safety
/// The processor must have `V`, and every nonempty block of the operation must have these bytes.
#[inline(always)]
unsafe fn run<V: Vector>(operation: &mut impl ColumnOperation, mut at: usize, end: usize) {
    // SAFETY: guaranteed by the caller; each column ends at or before `end`.
    unsafe {
        while end - at >= COLUMN * V::BYTES {
            operation.column::<V, COLUMN>(at);
            at += COLUMN * V::BYTES;
        }
        while end - at >= V::BYTES {
            operation.column::<V, 1>(at);
            at += V::BYTES;
        }
        while at < end {
            operation.column::<Byte, 1>(at);
            at += 1;
        }
    }
}

/// Returns the tiles of `len` bytes, as start and end.
#[inline(always)]
fn tiles(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(TILE).map(move |from| (from, len.min(from + TILE)))
}

/// P' and Q' (see [`Rule`]) of a tile, summed over the groups of data blocks that were processed so far. The groups are
/// processed from the highest coefficients to the lowest, as Horner's rule needs.
struct TileSums {
    of_p: [u8; TILE],
    of_q: [u8; TILE],
}

/// The sums of the preceding groups of a tile. They are empty for the first group, and for a stripe of a single group.
#[derive(Clone, Copy)]
struct CarriedSums<'a> {
    of_p: &'a [u8],
    of_q: &'a [u8],
    /// The offset of the tile in the blocks, in bytes.
    from: usize,
}

impl CarriedSums<'static> {
    const NONE: CarriedSums<'static> = CarriedSums { of_p: &[], of_q: &[], from: 0 };
}

/// Adds the sums of a group to those of the preceding groups, in a buffer.
struct GatherSums<'a> {
    sums: &'a mut TileSums,
    first: bool,
    from: usize,
    data: &'a [&'a [u8]],
}

impl ColumnOperation for GatherSums<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        let TileSums { of_p, of_q } = &mut *self.sums;
        let (carried, offset) = if self.first {
            (CarriedSums::NONE, at - self.from)
        } else {
            (CarriedSums { of_p, of_q, from: self.from }, at - self.from)
        };
        // SAFETY: guaranteed by the caller; the sums are as long as a tile.
        unsafe {
            let (sum, weighted) = partial_pq::<V, N>(carried, self.data, at);
            store(&sum, of_p, offset);
            store(&weighted, of_q, offset);
        }
    }
}

/// Applies `$operation` to every byte of a stripe. The operation gets the data blocks with the lowest coefficients, at
/// most [`GROUP`], as `$low`, and the sums over all other data blocks as `$carried`.
///
/// # Safety
/// The processor must have `V`, and every block must be `len` bytes long or empty.
macro_rules! over_groups {
    ($V:ty, $len:expr, $data:expr, |$carried:ident, $low:ident| $operation:expr) => {{
        let (len, data): (usize, &[&[u8]]) = ($len, $data);
        if data.len() <= GROUP {
            let ($carried, $low) = (CarriedSums::NONE, data);
            run::<$V>(&mut $operation, 0, len);
        } else {
            let mut sums = TileSums { of_p: [0; TILE], of_q: [0; TILE] };
            let ($low, high) = data.split_at((data.len() - 1) % GROUP + 1);
            for (from, to) in tiles(len) {
                for (group_index, group) in high.rchunks(GROUP).enumerate() {
                    run::<$V>(
                        &mut GatherSums { sums: &mut sums, first: group_index == 0, from, data: group },
                        from,
                        to,
                    );
                }
                let $carried = CarriedSums { of_p: &sums.of_p, of_q: &sums.of_q, from };
                run::<$V>(&mut $operation, from, to);
            }
        }
    }};
}

/// Adds `N` vectors of a block to sums. An empty block counts as zeros.
///
/// # Safety
/// As [`ColumnOperation::column`].
#[inline(always)]
unsafe fn add<V: Vector, const N: usize>(sums: &mut [V; N], block: &[u8], at: usize) {
    if !block.is_empty() {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            *sum = unsafe { sum.xor(V::load(block.as_ptr().add(at + i * V::BYTES))) };
        }
    }
}

/// Stores `N` vectors into a block, unless it is empty.
///
/// # Safety
/// As [`ColumnOperation::column`].
#[inline(always)]
unsafe fn store<V: Vector, const N: usize>(sums: &[V; N], block: &mut [u8], at: usize) {
    if !block.is_empty() {
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { sum.store(block.as_mut_ptr().add(at + i * V::BYTES)) };
        }
    }
}

/// Adds `others` to `sums`.
///
/// # Safety
/// The processor must have `V`.
#[inline(always)]
unsafe fn add_all<V: Vector, const N: usize>(sums: &mut [V; N], others: &[V; N]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        // SAFETY: guaranteed by the caller.
        *sum = unsafe { sum.xor(*other) };
    }
}

/// Adds factor · `others` to `sums`.
///
/// # Safety
/// The processor must have `V`.
#[inline(always)]
unsafe fn add_times<V: Vector, const N: usize>(sums: &mut [V; N], factor: u8, others: &[V; N]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let factor = V::factor(factor);
        for (sum, other) in sums.iter_mut().zip(others) {
            *sum = sum.xor(other.multiply(factor));
        }
    }
}

/// Returns P' and Q' over the nonempty data blocks and the sums of the preceding groups. An empty block counts as
/// zeros, but keeps its coefficient.
///
/// # Safety
/// As [`ColumnOperation::column`]; the tile of `carried` must start at `carried.from`.
#[inline(always)]
unsafe fn partial_pq<V: Vector, const N: usize>(
    carried: CarriedSums<'_>,
    data: &[&[u8]],
    at: usize,
) -> ([V; N], [V; N]) {
    // SAFETY: guaranteed by the caller.
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
    accumulate: bool,
    extra: &'a [u8],
    sources: &'a [&'a [u8]],
}

impl ColumnOperation for Xor<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut sum = [V::zero(); N];
            if self.accumulate {
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
    carried: CarriedSums<'a>,
    data: &'a [&'a [u8]],
}

impl ColumnOperation for Combine<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (mut sum, mut weighted) = partial_pq::<V, N>(self.carried, self.data, at);
            add(&mut sum, self.p, at);
            add(&mut weighted, self.q, at);
            // Computes `sum`, which is stored to `first`, and `weighted`, which is stored to `second`.
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

impl ColumnOperation for Update<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: guaranteed by the caller.
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

struct CheckSyndromes<'a> {
    factor: u8,
    p: &'a [u8],
    q: &'a [u8],
    carried: CarriedSums<'a>,
    data: &'a [&'a [u8]],
    found: &'a mut Syndromes,
}

impl ColumnOperation for CheckSyndromes<'_> {
    #[inline(always)]
    unsafe fn column<V: Vector, const N: usize>(&mut self, at: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (mut sum, mut weighted) = partial_pq::<V, N>(self.carried, self.data, at);
            add(&mut sum, self.p, at);
            add(&mut weighted, self.q, at);
            let mut ratio_differs = weighted;
            add_times(&mut ratio_differs, self.factor, &sum);
            let not_zero = |values: &[V; N]| {
                let mut all = V::zero();
                for value in values {
                    all = all.or(*value);
                }
                !all.is_zero()
            };
            self.found.of_p |= not_zero(&sum);
            self.found.of_q |= not_zero(&weighted);
            self.found.ratio_differs |= not_zero(&ratio_differs);
        }
    }
}

/// Returns the common length of the blocks, in bytes. Panics if a block is neither of this length nor empty. The public functions
/// have checked the lengths with more precise messages. This check keeps the loops within the blocks if a public function has a
/// bug.
#[inline(always)]
fn common_len(few: [&[u8]; 4], data: &[&[u8]]) -> usize {
    let len = few.iter().chain(data).map(|block| block.len()).max().unwrap_or(0);
    assert!(few.iter().chain(data).all(|block| block.is_empty() || block.len() == len), "blocks differ in length");
    len
}

/// # Safety
/// The processor must have `V`.
#[inline(always)]
pub(super) unsafe fn xor<V: Vector>(out: &mut [u8], accumulate: bool, extra: &[u8], sources: &[&[u8]]) {
    let len = common_len([out, extra, &[], &[]], sources);
    // SAFETY: the lengths were checked; the rest is guaranteed by the caller.
    unsafe {
        if sources.len() <= GROUP {
            return run::<V>(&mut Xor { out, accumulate, extra, sources }, 0, len);
        }
        for (from, to) in tiles(len) {
            for (group_index, sources) in sources.chunks(GROUP).enumerate() {
                // `out` already contains the sum of the preceding groups.
                let (accumulate, extra) = if group_index == 0 { (accumulate, extra) } else { (true, &[][..]) };
                run::<V>(&mut Xor { out: &mut *out, accumulate, extra, sources }, from, to);
            }
        }
    }
}

/// # Safety
/// The processor must have `V`.
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
    // SAFETY: the lengths were checked; the rest is guaranteed by the caller.
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
/// The processor must have `V`.
#[inline(always)]
pub(super) unsafe fn update<V: Vector>(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
    let len = common_len([p, q, old, new], &[]);
    // SAFETY: the lengths were checked; the rest is guaranteed by the caller.
    unsafe { run::<V>(&mut Update { p, q, factor, old, new }, 0, len) }
}

/// # Safety
/// The processor must have `V`.
#[inline(always)]
pub(super) unsafe fn syndromes<V: Vector>(factor: u8, p: &[u8], q: &[u8], data: &[&[u8]]) -> Syndromes {
    let len = common_len([p, q, &[], &[]], data);
    let mut found = Syndromes { of_p: false, of_q: false, ratio_differs: false };
    // SAFETY: the lengths were checked; the rest is guaranteed by the caller.
    unsafe {
        over_groups!(V, len, data, |carried, data| CheckSyndromes { factor, p, q, carried, data, found: &mut found })
    };
    found
}

/// Defines the [`super::Kernels`] table of a vector type: `table!(Vector, "name", "target feature")`.
macro_rules! table {
    ($V:ty, $name:literal $(, $feature:literal)?) => {
        /// The loops for this vector type. [`super::available`] returns them only if the processor has the vectors.
        pub(super) static KERNELS: super::Kernels =
            super::Kernels { name: $name, xor, combine, update, syndromes };

        fn xor(out: &mut [u8], accumulate: bool, extra: &[u8], sources: &[&[u8]]) {
            $(#[target_feature(enable = $feature)])?
            fn compiled(out: &mut [u8], accumulate: bool, extra: &[u8], sources: &[&[u8]]) {
                // SAFETY: this function is only called if the processor has these vectors.
                unsafe { kernels::xor::<$V>(out, accumulate, extra, sources) }
            }
            // SAFETY: `available` returns the table only if the processor has the feature.
            #[allow(unused_unsafe)] // the portable implementation needs no feature
            unsafe { compiled(out, accumulate, extra, sources) }
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
                // SAFETY: this function is only called if the processor has these vectors.
                unsafe { kernels::combine::<$V>(rule, first, second, p, q, data) }
            }
            // SAFETY: `available` returns the table only if the processor has the feature.
            #[allow(unused_unsafe)]
            unsafe { compiled(rule, first, second, p, q, data) }
        }

        fn update(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
            $(#[target_feature(enable = $feature)])?
            fn compiled(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
                // SAFETY: this function is only called if the processor has these vectors.
                unsafe { kernels::update::<$V>(p, q, factor, old, new) }
            }
            // SAFETY: `available` returns the table only if the processor has the feature.
            #[allow(unused_unsafe)]
            unsafe { compiled(p, q, factor, old, new) }
        }

        fn syndromes(factor: u8, p: &[u8], q: &[u8], data: &[&[u8]]) -> super::Syndromes {
            $(#[target_feature(enable = $feature)])?
            fn compiled(factor: u8, p: &[u8], q: &[u8], data: &[&[u8]]) -> super::Syndromes {
                // SAFETY: this function is only called if the processor has these vectors.
                unsafe { kernels::syndromes::<$V>(factor, p, q, data) }
            }
            // SAFETY: `available` returns the table only if the processor has the feature.
            #[allow(unused_unsafe)]
            unsafe { compiled(factor, p, q, data) }
        }
    };
}
pub(super) use table;

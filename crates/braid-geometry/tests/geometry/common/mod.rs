//! Shared test code: a small, slow model of md's rules, and a generator of random numbers.
//!
//! The model is independent of the crate: it uses no division, no zone arithmetic and no inverse map. It fills a table of
//! chunks cell by cell, in the order in which md fills them, with cursors that advance.

use braid_geometry::{ContentKind, Layout, Level, Spec, ZonePolicy};

/// A splitmix64 sequence: the same numbers in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The content of a block: its kind, and the block of the array or the number of the stripe (0 if unused).
pub type Content = (ContentKind, u64);

pub const UNUSED: Content = (ContentKind::Unused, 0);

/// The content of each member, block by block, and the size of the array in blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    pub members: Vec<Vec<Content>>,
    pub array_blocks: u64,
}

/// A zone in the model: its members, and the range of their blocks.
struct Span {
    members: Vec<usize>,
    from: usize,
    to: usize,
}

/// Returns the table for members whose data areas have `blocks` blocks of 4 KiB.
pub fn model(spec: &Spec, blocks: &[usize]) -> Table {
    let chunk = (spec.chunk_bytes / 4096) as usize;
    let mut filler = Filler {
        table: Table { members: blocks.iter().map(|&count| vec![UNUSED; count]).collect(), array_blocks: 0 },
        chunk,
        chunks_done: 0,
        stripes_done: 0,
    };
    let unit = if spec.level == Level::Raid1 { 1 } else { chunk };
    let mut usable = vec![0; blocks.len()];
    for (member, &count) in blocks.iter().enumerate() {
        while usable[member] + unit <= count {
            usable[member] += unit;
        }
    }
    if spec.level == Level::Concat {
        for (member, &count) in usable.iter().enumerate() {
            for block in 0..count {
                filler.table.members[member][block] = (ContentKind::Data, filler.table.array_blocks);
                filler.table.array_blocks += 1;
            }
        }
        return filler.table;
    }
    for span in spans(spec, &usable) {
        match spec.level {
            Level::Concat => unreachable!("returned above"),
            Level::Raid0 => filler.raid0(&span, spec.layout == Layout::Original),
            Level::Raid1 => filler.mirror(&span),
            Level::Raid10 => filler.near(&span, usize::from(spec.copies)),
            Level::Raid5 => filler.left_symmetric(&span, &[ContentKind::P]),
            Level::Raid6 => filler.left_symmetric(&span, &[ContentKind::P, ContentKind::Q]),
        }
    }
    if spec.level == Level::Raid0 {
        filler.truncate_as_md(&usable);
    }
    filler.table
}

/// Returns the zones from height to height: a span ends where the capacity of a member ends.
fn spans(spec: &Spec, usable: &[usize]) -> Vec<Span> {
    let needed = match spec.level {
        Level::Concat | Level::Raid0 => 1,
        Level::Raid1 | Level::Raid5 => 2,
        Level::Raid6 => 3,
        Level::Raid10 => usize::from(spec.copies),
    };
    let mut spans = Vec::new();
    let mut from = 0;
    loop {
        let members: Vec<usize> = (0..usable.len()).filter(|&m| usable[m] > from).collect();
        if members.len() < needed || members.is_empty() {
            return spans;
        }
        let to = members.iter().map(|&m| usable[m]).min().expect("there is a member");
        spans.push(Span { members, from, to });
        if spec.zones == ZonePolicy::Single {
            return spans;
        }
        from = to;
    }
}

struct Filler {
    table: Table,
    chunk: usize,
    chunks_done: usize,
    stripes_done: u64,
}

impl Filler {
    fn put_data(&mut self, member: usize, at: usize, array_start: u64) {
        for block in 0..self.chunk {
            let block_content = &mut self.table.members[member][at + block];
            assert_eq!(*block_content, UNUSED, "the model uses a block twice");
            *block_content = (ContentKind::Data, array_start + block as u64);
        }
    }

    fn count_chunk(&mut self) {
        self.table.array_blocks += self.chunk as u64;
        self.chunks_done += 1;
    }

    fn raid0(&mut self, span: &Span, original: bool) {
        let mut at = span.from;
        while at < span.to {
            for slot in 0..span.members.len() {
                // md's original layout selects the member by the number of the chunk in the whole array.
                let slot = if original { self.chunks_done % span.members.len() } else { slot };
                self.put_data(span.members[slot], at, self.table.array_blocks);
                self.count_chunk();
            }
            at += self.chunk;
        }
    }

    /// Truncates the array as md does: md adds up the members' sectors with the bits of the chunk size masked off. The sum is
    /// that of whole chunks only if the chunk size is a power of two.
    fn truncate_as_md(&mut self, usable: &[usize]) {
        let chunk_sectors = self.chunk * 8;
        let used_blocks =
            self.table.members.iter().map(|m| m.iter().rposition(|c| *c != UNUSED).map_or(0, |last| last + 1));
        let sectors: usize = used_blocks
            .zip(usable)
            .map(|(used_blocks, usable)| (used_blocks.min(*usable) * 8) & !(chunk_sectors - 1))
            .sum();
        self.table.array_blocks = sectors as u64 / 8;
        for block_content in self.table.members.iter_mut().flatten() {
            if block_content.1 >= self.table.array_blocks {
                *block_content = UNUSED;
            }
        }
    }

    fn mirror(&mut self, span: &Span) {
        for at in span.from..span.to {
            for &member in &span.members {
                self.table.members[member][at] = (ContentKind::Data, self.table.array_blocks);
            }
            self.table.array_blocks += 1;
        }
    }

    fn near(&mut self, span: &Span, copies: usize) {
        // The cells of the span, row by row. Each chunk occupies the next `copies` cells, if as many are left.
        let mut cells = Vec::new();
        let mut at = span.from;
        while at < span.to {
            cells.extend(span.members.iter().map(|&member| (member, at)));
            at += self.chunk;
        }
        for cells_of_chunk in cells.chunks_exact(copies) {
            for &(member, at) in cells_of_chunk {
                self.put_data(member, at, self.table.array_blocks);
            }
            self.count_chunk();
        }
    }

    fn left_symmetric(&mut self, span: &Span, parities: &[ContentKind]) {
        let mut at = span.from;
        let mut p_slot = span.members.len() - 1;
        while at < span.to {
            // P, then Q, then the data, to the right from P's slot, wrapping around.
            let mut order = span.members.clone();
            order.rotate_left(p_slot);
            for (index, &member) in order.iter().enumerate() {
                if let Some(&parity) = parities.get(index) {
                    self.table.members[member][at..at + self.chunk].fill((parity, self.stripes_done));
                } else {
                    self.put_data(member, at, self.table.array_blocks);
                    self.count_chunk();
                }
            }
            self.stripes_done += 1;
            p_slot = if p_slot == 0 { span.members.len() - 1 } else { p_slot - 1 };
            at += self.chunk;
        }
    }
}

/// Expands runs block by block. Panics if a run overlaps another or is outside its member, or if a block is not covered.
pub fn expand(runs: impl Iterator<Item = braid_geometry::Run>, blocks: &[usize]) -> Vec<Vec<Content>> {
    let mut members: Vec<Vec<Option<Content>>> = blocks.iter().map(|&count| vec![None; count]).collect();
    for run in runs {
        for block in 0..run.length_blocks {
            let block_content = &mut members[usize::from(run.member)][(run.member_start_block + block) as usize];
            assert_eq!(*block_content, None, "{run:?} overlaps");
            // All blocks of a parity run belong to one stripe.
            let step = if run.kind == ContentKind::Data { block } else { 0 };
            *block_content = Some((run.kind, run.array_start_block + step));
        }
    }
    members.into_iter().map(|m| m.into_iter().map(|c| c.expect("every block is on the map")).collect()).collect()
}

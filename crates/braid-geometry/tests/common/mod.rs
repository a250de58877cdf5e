//! What several tests share: a small slow model of md's rules, and a generator of numbers.
//!
//! The model is written apart from the crate: it knows no division, no zones' arithmetic and no inverse. It fills a
//! table of chunks cell by cell, in the order in which md would fill them, with cursors that step.

// Each test compiles this file for itself, and none uses all of it.
#![allow(dead_code)]

use braid_geometry::{Kind, Layout, Level, Spec, ZonePolicy};

/// A splitmix64 sequence: the same numbers at every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// What a block holds: its kind, and the block of the array or the number of the stripe (0 where unused).
pub type Content = (Kind, u64);

pub const UNUSED: Content = (Kind::Unused, 0);

/// Each member block by block, and the size of the array in blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    pub members: Vec<Vec<Content>>,
    pub array_blocks: u64,
}

/// One zone in the model: which members, between which blocks of them.
struct Span {
    members: Vec<usize>,
    from: usize,
    to: usize,
}

/// Fills the table for members whose data areas have `blocks` blocks of 4 KiB.
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
                filler.table.members[member][block] = (Kind::Data, filler.table.array_blocks);
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
            Level::Raid5 => filler.left_symmetric(&span, &[Kind::P]),
            Level::Raid6 => filler.left_symmetric(&span, &[Kind::P, Kind::Q]),
        }
    }
    if spec.level == Level::Raid0 {
        filler.cut_as_md(&usable);
    }
    filler.table
}

/// Climbs from height to height; a span ends where some member's room does.
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
            let place = &mut self.table.members[member][at + block];
            assert_eq!(*place, UNUSED, "the model uses a place twice");
            *place = (Kind::Data, array_start + block as u64);
        }
    }

    fn chunk_done(&mut self) {
        self.table.array_blocks += self.chunk as u64;
        self.chunks_done += 1;
    }

    fn raid0(&mut self, span: &Span, original: bool) {
        let mut at = span.from;
        while at < span.to {
            for slot in 0..span.members.len() {
                // md's original layout looks the member up by the number of the chunk in the whole array.
                let slot = if original { self.chunks_done % span.members.len() } else { slot };
                self.put_data(span.members[slot], at, self.table.array_blocks);
                self.chunk_done();
            }
            at += self.chunk;
        }
    }

    /// md adds up the members' sectors with the bits of the chunk masked off. That is the sum of whole chunks only
    /// where the chunk is a power of two.
    fn cut_as_md(&mut self, usable: &[usize]) {
        let chunk_sectors = self.chunk * 8;
        let top = self.table.members.iter().map(|m| m.iter().rposition(|c| *c != UNUSED).map_or(0, |last| last + 1));
        let sectors: usize = top.zip(usable).map(|(top, usable)| (top.min(*usable) * 8) & !(chunk_sectors - 1)).sum();
        self.table.array_blocks = sectors as u64 / 8;
        for place in self.table.members.iter_mut().flatten() {
            if place.1 >= self.table.array_blocks {
                *place = UNUSED;
            }
        }
    }

    fn mirror(&mut self, span: &Span) {
        for at in span.from..span.to {
            for &member in &span.members {
                self.table.members[member][at] = (Kind::Data, self.table.array_blocks);
            }
            self.table.array_blocks += 1;
        }
    }

    fn near(&mut self, span: &Span, copies: usize) {
        // All cells of the span in the order of rows; each chunk takes the next `copies` ones, if there are so many.
        let mut cells = Vec::new();
        let mut at = span.from;
        while at < span.to {
            cells.extend(span.members.iter().map(|&member| (member, at)));
            at += self.chunk;
        }
        for places in cells.chunks_exact(copies) {
            for &(member, at) in places {
                self.put_data(member, at, self.table.array_blocks);
            }
            self.chunk_done();
        }
    }

    fn left_symmetric(&mut self, span: &Span, parities: &[Kind]) {
        let mut at = span.from;
        let mut p_slot = span.members.len() - 1;
        while at < span.to {
            // P, then Q, then the data, to the right from P's slot and around the end.
            let mut order = span.members.clone();
            order.rotate_left(p_slot);
            for (index, &member) in order.iter().enumerate() {
                if let Some(&parity) = parities.get(index) {
                    self.table.members[member][at..at + self.chunk].fill((parity, self.stripes_done));
                } else {
                    self.put_data(member, at, self.table.array_blocks);
                    self.chunk_done();
                }
            }
            self.stripes_done += 1;
            p_slot = if p_slot == 0 { span.members.len() - 1 } else { p_slot - 1 };
            at += self.chunk;
        }
    }
}

/// Lays runs out block by block; none may overlap another or lie outside, and together they cover everything.
pub fn expand(runs: impl Iterator<Item = braid_geometry::Run>, blocks: &[usize]) -> Vec<Vec<Content>> {
    let mut members: Vec<Vec<Option<Content>>> = blocks.iter().map(|&count| vec![None; count]).collect();
    for run in runs {
        for block in 0..run.length_blocks {
            let place = &mut members[usize::from(run.member)][(run.member_start_block + block) as usize];
            assert_eq!(*place, None, "{run:?} overlaps");
            // A run of parity is one chunk of one stripe.
            let step = if run.kind == Kind::Data { block } else { 0 };
            *place = Some((run.kind, run.array_start_block + step));
        }
    }
    members.into_iter().map(|m| m.into_iter().map(|c| c.expect("every block is on the map")).collect()).collect()
}

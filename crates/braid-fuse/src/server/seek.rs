//! Where the next hole, or the next data, begins: what `SEEK_HOLE` and `SEEK_DATA` ask.

use braid_nbd::codec::state;
use braid_nbd::export::Allocation;

/// What came of looking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sought {
    /// Here.
    At(u64),
    /// There is none before the end.
    End,
    /// Not up to here; it has to be looked at further.
    NotBefore(u64),
}

/// Looks from `offset`, which is before the end at `size`, for a hole or for data, as far as the map tells in one go: where it takes much
/// looking, others of the shard have their turn in between. What has no map is all data, which is always true enough.
pub(super) fn seek(map: Option<&dyn Allocation>, offset: u64, (size, block): (u64, u64), hole: bool) -> Sought {
    let from = offset - offset % block;
    let (mut next, mut found) = (from, false);
    if let Some(map) = map {
        map.extents(from, size - from, &mut |len, is| {
            found = (is & state::ZERO != 0) == hole;
            next += if found { 0 } else { len };
            !found && next < size
        });
    }
    match (found, hole) {
        (true, _) => Sought::At(next.max(offset)),
        _ if next >= size => Sought::End,
        _ if next > offset => Sought::NotBefore(next),
        // There is no map, or it says nothing.
        (false, true) => Sought::End,
        (false, false) => Sought::At(offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 8;

    /// A block each; of a range no more than `most` extents are told.
    struct Map(&'static [bool], usize);

    impl Allocation for Map {
        fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
            assert!(offset.is_multiple_of(BLOCK) && len > 0);
            let (from, to) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
            for at in (from..to).take(self.1) {
                let is = if self.0[at as usize] { state::HOLE | state::ZERO } else { 0 };
                if !extent(BLOCK, is) {
                    return;
                }
            }
        }
    }

    #[test]
    fn every_byte_of_a_file_is_found_to_be_what_it_is() {
        let holes: &[bool] = &[false, true, true, false, false, true, false, true, true, true, true, true];
        let size = holes.len() as u64 * BLOCK;
        for most in [1, 2, 100] {
            let map = Map(holes, most);
            for offset in 0..size {
                for hole in [false, true] {
                    let expected = (offset..size).find(|at| holes[(at / BLOCK) as usize] == hole);
                    let mut from = offset;
                    let found = loop {
                        match seek(Some(&map), from, (size, BLOCK), hole) {
                            Sought::At(at) => break Some(at),
                            Sought::End => break None,
                            Sought::NotBefore(at) => {
                                assert!(at > from, "it gets on");
                                from = at;
                            }
                        }
                    };
                    assert_eq!(found, expected, "from {offset}, a hole: {hole}, {most} at a time");
                }
            }
        }
    }

    #[test]
    fn what_has_no_map_is_data() {
        assert_eq!(seek(None, 5, (16, BLOCK), false), Sought::At(5));
        assert_eq!(seek(None, 5, (16, BLOCK), true), Sought::End);
        let silent = Map(&[true, true], 0);
        assert_eq!(seek(Some(&silent), 5, (16, BLOCK), false), Sought::At(5));
        assert_eq!(seek(Some(&silent), 5, (16, BLOCK), true), Sought::End);
    }
}

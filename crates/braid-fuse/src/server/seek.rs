//! Finds the next hole or the next data: `SEEK_HOLE` and `SEEK_DATA`.

use braid_export::Allocation;
use braid_export::extents::state;

/// The outcome of one step of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SeekOutcome {
    /// Found at this offset.
    At(u64),
    /// None before the end of the file.
    End,
    /// None before this offset, from which the search has to go on.
    NotBefore(u64),
}

/// Searches for a hole or for data from `offset` on, which must be below `size`. Makes one call of the map only, which
/// may end before the end of the file: in a long search the shard does other work between the calls. `block` is the
/// logical block in bytes. Without a map everything counts as data, which is always a valid reply.
pub(super) fn seek(map: Option<&dyn Allocation>, offset: u64, (size, block): (u64, u64), hole: bool) -> SeekOutcome {
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
        (true, _) => SeekOutcome::At(next.max(offset)),
        _ if next >= size => SeekOutcome::End,
        _ if next > offset => SeekOutcome::NotBefore(next),
        // There is no map, or it reported nothing.
        (false, true) => SeekOutcome::End,
        (false, false) => SeekOutcome::At(offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 8;

    /// One extent for each block, true for a hole; a call reports at most that many extents.
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
    fn every_hole_and_all_data_are_found_from_every_offset() {
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
                            SeekOutcome::At(at) => break Some(at),
                            SeekOutcome::End => break None,
                            SeekOutcome::NotBefore(at) => {
                                assert!(at > from, "the search makes progress");
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
    fn a_file_without_a_map_is_all_data() {
        assert_eq!(seek(None, 5, (16, BLOCK), false), SeekOutcome::At(5));
        assert_eq!(seek(None, 5, (16, BLOCK), true), SeekOutcome::End);
        let empty = Map(&[true, true], 0);
        assert_eq!(seek(Some(&empty), 5, (16, BLOCK), false), SeekOutcome::At(5));
        assert_eq!(seek(Some(&empty), 5, (16, BLOCK), true), SeekOutcome::End);
    }
}

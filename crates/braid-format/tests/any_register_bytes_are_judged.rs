//! Whatever stands where a voter's register should: it is judged, and nothing of it panics.
#![allow(clippy::unwrap_used)]

use braid_format::fuzz::fuzz_register;
use braid_format::register::{REGISTER_BYTES, StoredRegister};
use proptest::prelude::*;

const KEPT: &[u8] = include_bytes!("../../../fuzz/corpus/register/pair");

/// Puts right checksums into both places.
fn seal(bytes: &mut [u8]) {
    for place in bytes.chunks_exact_mut(REGISTER_BYTES) {
        let crc = crc32c::crc32c(&place[8..]);
        place[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn what_is_kept_for_the_fuzzer_is_accepted() {
    let places = KEPT.as_chunks::<REGISTER_BYTES>().0;
    assert!(places.len() == 2 && places.iter().all(|place| StoredRegister::decode(place).is_ok()));
    let first = include_bytes!("../../../fuzz/corpus/register/first");
    assert!(StoredRegister::decode(first).is_ok_and(|register| register.epoch == 0));
    let torn = include_bytes!("../../../fuzz/corpus/register/torn-first");
    let [first, second] = torn.as_chunks::<REGISTER_BYTES>().0 else { panic!("two places") };
    assert!(StoredRegister::newest([first, second]).is_ok_and(|register| register.generation == 6));
}

proptest! {
    #[test]
    fn any_bytes_are_judged(
        changes in prop::collection::vec((0..128usize, any::<bool>(), any::<u8>()), 0..6),
        len in 0..=KEPT.len(),
        whole in any::<bool>(),
    ) {
        let mut bytes = KEPT.to_vec();
        for (at, second, byte) in changes {
            bytes[at + if second { REGISTER_BYTES } else { 0 }] = byte;
        }
        if !whole {
            bytes.truncate(len);
        }
        fuzz_register(&bytes);
        seal(&mut bytes);
        fuzz_register(&bytes);
    }
}

//! Any bytes in place of a voter's register are validated, and none of them causes a panic.

use braid_format::fuzz::fuzz_register;
use braid_format::register::{REGISTER_BYTES, StoredRegister};
use proptest::prelude::*;

const KEPT: &[u8] = include_bytes!("../../../../fuzz/corpus/register/pair");

/// Sets right checksums in both slots.
fn seal(bytes: &mut [u8]) {
    for slot in bytes.chunks_exact_mut(REGISTER_BYTES) {
        let crc = crc32c::crc32c(&slot[8..]);
        slot[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn the_corpus_of_the_fuzzer_is_accepted() {
    let slots = KEPT.as_chunks::<REGISTER_BYTES>().0;
    assert!(slots.len() == 2 && slots.iter().all(|slot| StoredRegister::decode(slot).is_ok()));
    let first = include_bytes!("../../../../fuzz/corpus/register/first");
    assert!(StoredRegister::decode(first).is_ok_and(|register| register.epoch == 0));
    let torn = include_bytes!("../../../../fuzz/corpus/register/torn-first");
    let [first, second] = torn.as_chunks::<REGISTER_BYTES>().0 else { panic!("two slots") };
    assert!(StoredRegister::newest([first, second]).is_ok_and(|register| register.generation == 6));
}

proptest! {
    #[test]
    fn any_bytes_are_validated(
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

//! One function for fuzzers: everything of this crate that judges bytes from a disk. It must return, whatever it is
//! given, and what it accepts must hold together.

use std::convert::Infallible;

use crate::{Header, LABEL_BYTES, Label, examine, foreign};

/// Takes the bytes as a label, as a disk's two copies, and as a small disk.
///
/// # Panics
/// When a promise is broken: an accepted label that does not encode to the same bytes.
pub fn fuzz_label(data: &[u8]) {
    let _ = Header::decode(data);
    if let Ok(label) = Label::decode(data) {
        let again = label.encode().expect("a decoded label can be encoded");
        assert_eq!(again.as_slice(), &data[..LABEL_BYTES]);
        let _ = label.array.geometry();
    }
    let (start, end) = data.split_at(data.len().min(LABEL_BYTES));
    let _ = examine(start, end, data.len() as u64);
    let place = examine::copy_place(start, data.len() as u64);
    assert!(place.is_none_or(|at| at + LABEL_BYTES as u64 <= data.len() as u64));
    fuzz_disk(data);
}

/// Takes the bytes as a disk, and asks what stands on it.
pub fn fuzz_disk(data: &[u8]) {
    let read = |offset: u64, len: usize| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
        Ok::<_, Infallible>(data[from..data.len().min(from.saturating_add(len))].to_vec())
    };
    for device_bytes in [data.len() as u64, 1 << 30, u64::MAX] {
        if let Ok(Some(found)) = foreign::identify(device_bytes, read) {
            let _ = found.to_string();
            let sound =
                found.signatures.iter().flat_map(|s| &s.ranges).all(|r| r.end().is_some_and(|e| e <= device_bytes));
            assert!(sound, "a signature lies beyond the disk: {found:?}");
        }
    }
}

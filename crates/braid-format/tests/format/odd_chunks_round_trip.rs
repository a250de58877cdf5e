//! A raid0 whose chunk is not a power of two ends before its last zone does; its label still reproduces the geometry.

use crate::support;
use braid_format::Label;
use braid_geometry::{Level, Spec};

#[test]
fn every_chunk_reproduces_the_array() {
    for chunk_blocks in 1..300 {
        let spec = Spec { chunk_bytes: chunk_blocks * 4096, ..Spec::new(Level::Raid0) };
        let label = support::fresh(spec, &[40 << 20, (80 << 20) + 4096, 77 << 20, 40 << 20], 2);
        let back = Label::decode(&label.encode().unwrap()).unwrap();
        let geometry = back.array.geometry().unwrap();
        assert_eq!(geometry.size_bytes(), label.array.array_bytes, "chunk of {chunk_blocks} blocks");
        // With a chunk that is a power of two, an array shorter than its zones is refused.
        let whole: u64 = geometry.zones().iter().map(|zone| zone.member_bytes * zone.members.len() as u64).sum();
        let mut other = back;
        other.array.spec.chunk_bytes = 4096;
        assert_eq!(other.array.geometry().is_ok(), whole == geometry.size_bytes());
    }
}

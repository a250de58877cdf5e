//! The copies of a redundant array on the disks of its members, seen from outside: their data and their labels.

use std::sync::Arc;

use braid_engine::RegionMap;
use braid_format::{DiskLayout, Label};
use braid_geometry::Geometry;
use braid_parity::Parity;

use crate::content::BLOCK_BYTES;
use crate::oracle::{Oracle, Violation};
use crate::world::World;

/// The disks of the in-sync members of a redundant array that is not in use.
pub struct Copies {
    /// The oracle's number of the array.
    pub number: u64,
    /// Maps each byte to its copies.
    pub geometry: Geometry,
    /// The disk of each member and the start of its data area; `None` if the member is not in sync.
    pub members: Vec<Option<(usize, u64)>>,
    /// The region map: which regions may be read.
    pub regions: Arc<RegionMap>,
}

impl Copies {
    /// Reads every copy of each block, checks it against the oracle, and compares the copies. Requires that no request
    /// is in flight.
    ///
    /// # Errors
    /// A copy holds content that no read may return, two copies differ, or the parity of a stripe does not match its
    /// data.
    pub fn verify(&self, world: &World, oracle: &mut Oracle) -> Result<(), Violation> {
        let block_bytes = BLOCK_BYTES as u64;
        for block in 0..oracle.blocks(self.number) {
            let at = block * block_bytes;
            let rotten = oracle.is_rotten(self.number, block)
                || oracle.is_stripe_unreadable(self.number, u64::MAX - 1, block, 1);
            if rotten || !self.regions.readable.has(self.regions.region_at(&self.geometry, at)) {
                continue;
            }
            let mut first: Option<(u16, Vec<u8>)> = None;
            let mut wrong = None;
            self.geometry.copies(at, &mut |piece| {
                let Some((disk, start)) = self.members[usize::from(piece.member)].filter(|_| wrong.is_none()) else {
                    return;
                };
                let mut bytes = vec![0; BLOCK_BYTES];
                if world.disks[disk].gone || !world.disks[disk].read(start + piece.member_offset, &mut bytes) {
                    return;
                }
                let begun = oracle.read_begun(self.number);
                wrong = oracle
                    .read_ended(self.number, begun, block, Some(&bytes))
                    .err()
                    .map(|why| Violation(format!("{why} (on member {})", piece.member)));
                match &first {
                    None => first = Some((piece.member, bytes)),
                    Some((other, same)) if *same != bytes && wrong.is_none() => {
                        let why = format!("members {other} and {} differ in block {block}", piece.member);
                        wrong = Some(Violation(why));
                    }
                    Some(_) => {}
                }
            });
            if let Some(why) = wrong {
                return Err(why);
            }
        }
        (0..self.geometry.stripes()).try_for_each(|stripe| self.verify_stripe(stripe, world))
    }

    /// Checks that the parity of a stripe agrees with its data.
    fn verify_stripe(&self, number: u64, world: &World) -> Result<(), Violation> {
        let Some(stripe) = self.geometry.stripe(number) else { return Ok(()) };
        if !self.regions.readable.has(self.regions.region_of_stripe(&stripe)) {
            return Ok(());
        }
        let cell = |member: u16| {
            let (disk, start) = self.members[usize::from(member)]?;
            let mut bytes = vec![0; stripe.chunk_bytes as usize];
            let of = &world.disks[disk];
            (!of.gone && of.read(start + stripe.member_offset, &mut bytes)).then_some(bytes)
        };
        let data: Option<Vec<Vec<u8>>> = (0..stripe.data_chunks()).map(|index| cell(stripe.data(index))).collect();
        let Some(data) = data else { return Ok(()) };
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; stripe.chunk_bytes as usize], vec![0; stripe.chunk_bytes as usize]);
        Parity::best().pq(&mut p, &mut q, &data);
        for (name, member, right) in [("P", Some(stripe.p()), &p), ("Q", stripe.q(), &q)] {
            if let Some(found) = member.and_then(cell)
                && found != *right
            {
                let block = found.chunks(BLOCK_BYTES).zip(right.chunks(BLOCK_BYTES)).position(|(a, b)| a != b);
                return Err(Violation(format!(
                    "{name} of stripe {number} does not agree with its data in block {block:?}"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the newest valid label on a disk.
pub fn label_on(world: &World, disk: usize) -> Option<Label> {
    let disk = &world.disks[disk];
    let places = DiskLayout::for_device(disk.size_bytes()).ok()?;
    let label_at = |at: u64| {
        let mut bytes = vec![0; 4096];
        disk.read(at, &mut bytes).then(|| Label::decode(&bytes).ok()).flatten()
    };
    let start = label_at(places.label_start);
    // The disk may have grown since the label was written.
    let copy_start = start.as_ref().map_or(places.copy_start, |label| label.member.layout.copy_start);
    [start, label_at(copy_start)].into_iter().flatten().max_by_key(|label| label.array.order())
}

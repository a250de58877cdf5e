//! The copies of a redundant array on its members' disks, seen from outside: what each would answer, and what its label says.

use std::sync::Arc;

use braid_engine::RegionMap;
use braid_format::{DiskLayout, Label, MemberState};
use braid_geometry::Geometry;
use braid_parity::Parity;

use crate::content::BLOCK_BYTES;
use crate::oracle::{Oracle, Violation};
use crate::plot::mirrors::Mirror;
use crate::world::World;

/// What is on the disks of a redundant array's members that are in sync, while nobody uses it.
pub struct Copies {
    /// The oracle's number of it.
    pub number: u64,
    /// Where each copy of each byte lives.
    pub geometry: Geometry,
    /// The disk of each member and where its data area begins; `None` where it is not in sync.
    pub members: Vec<Option<(usize, u64)>>,
    /// Which regions may be read.
    pub regions: Arc<RegionMap>,
}

impl Copies {
    /// Every copy is read as a client might have read it, and all must be equal: nothing is in flight.
    ///
    /// # Errors
    /// What one of them holds must not be there, or two differ.
    pub fn judge(&self, world: &World, oracle: &mut Oracle) -> Result<(), Violation> {
        let block_bytes = BLOCK_BYTES as u64;
        for block in 0..oracle.blocks(self.number) {
            let at = block * block_bytes;
            let rotten = oracle.is_doubted(self.number, block) || oracle.is_broken(self.number, u64::MAX - 1, block, 1);
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
        (0..self.geometry.stripes()).try_for_each(|stripe| self.judge_stripe(stripe, world))
    }

    /// The parity of a stripe must agree with its data.
    fn judge_stripe(&self, number: u64, world: &World) -> Result<(), Violation> {
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

/// The newest whole label on a disk.
pub fn label_on(world: &World, disk: usize) -> Option<Label> {
    let disk = &world.disks[disk];
    let places = DiskLayout::for_device(disk.size_bytes()).ok()?;
    let label_at = |at: u64| {
        let mut bytes = vec![0; 4096];
        disk.read(at, &mut bytes).then(|| Label::decode(&bytes).ok()).flatten()
    };
    let start = label_at(places.label_start);
    // The disk may have become larger since the label was written.
    let copy_start = start.as_ref().map_or(places.copy_start, |label| label.member.layout.copy_start);
    [start, label_at(copy_start)].into_iter().flatten().max_by_key(|label| label.array.order())
}

/// Whether a disk that lost what it had answered (it was pulled, or a flush of it failed) is still called in sync by the
/// newest label, that of the member that is well where there is one: then what was not flushed may be gone, as a crash and a loss came together.
pub fn is_weak(world: &World, mirror: &Mirror) -> bool {
    let broken = |disk: &&usize| world.disks[**disk].gone || world.disks[**disk].flush_failed;
    let mut broken = mirror.disks.iter().chain(&mirror.others).filter(broken).peekable();
    if broken.peek().is_none() {
        return false;
    }
    let all = || mirror.disks.iter().chain(&mirror.others).filter_map(|disk| label_on(world, *disk));
    let newest = match mirror.well {
        Some(well) => label_on(world, well),
        None => all().filter(|label| Some(label.array.uuid) == mirror.uuid).max_by_key(|label| label.array.order()),
    };
    let Some(newest) = newest else { return true };
    broken.any(|disk| {
        let Some(own) = label_on(world, *disk) else { return false };
        let in_sync = |m: &braid_format::MemberEntry| m.id == Some(own.member.id) && m.state == MemberState::InSync;
        own.array.uuid == newest.array.uuid && newest.array.members.iter().any(in_sync)
    })
}

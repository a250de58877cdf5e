//! Arrays with parity: how jobs cut stripes into pieces, and how blocks that a member cannot read are repaired.
//!
//! A piece of a stripe is addressed by an array offset as in [`braid_engine::SyncRequest`]: the start of the stripe, plus the
//! bytes above the piece in each chunk times the number of data cells. So the pieces follow one another like bytes of
//! the array.

use std::sync::Arc;

use braid_engine::{
    COMPARE_BLOCK_BYTES, COMPARE_BYTES_MAX, Fault, LEAF_BYTES_MAX, LeafId, MemberRole, MemberSet, MirrorMember,
    ParityNode, RegionCall, SyncKind, SyncPart, UnreadableBlocks,
};
use braid_format::journal::{LostStripe, RING_OFFSET_BYTES, stripe_bytes};
use braid_geometry::Stripe;

use super::race::{First, first};
use super::{Reconciler, ReconcilerEvent, ReconcilerIo};

/// Maximum number of faults that a stop handles while it settles the journal. After that many the array stops with
/// marks in its journal.
const SETTLE_TRIES_MAX: u32 = 64;

/// A piece of a stripe: a slice across all of its cells.
#[derive(Clone, Debug)]
pub(super) struct StripePiece {
    pub len: u64,
    /// Data cells of the stripe, and all its cells.
    pub data: u16,
    pub cells: u16,
    /// The holders of its cells: member and disk.
    pub holders: Vec<(u16, LeafId)>,
    /// The array offset of its first byte.
    pub array_offset: u64,
}

impl Reconciler {
    /// Returns a view of what cannot be read of an array with parity, which stays up to date while the reconciler
    /// works.
    pub fn unreadable_blocks(&self) -> Option<UnreadableBlocks> {
        let stripe_bytes = u64::from(self.journal.as_ref()?.stripe_bytes);
        Some(UnreadableBlocks::new(Arc::clone(&self.lost), stripe_bytes))
    }

    /// Whether the array has parity.
    pub(super) fn has_parity(&self) -> bool {
        self.journal.is_some()
    }

    /// Returns the stripes with unreadable blocks, as array offset and bytes of each of their parts.
    /// [`Reconciler::unreadable_blocks`] has the unreadable blocks.
    pub fn unreadable_stripes(&self) -> Vec<(u64, u64)> {
        let Some(journal) = &self.journal else { return Vec::new() };
        let geometry = self.array.geometry();
        let stripe_bytes = u64::from(journal.stripe_bytes);
        let of_stripe = |lost: LostStripe| {
            let per_stripe = geometry.spec().chunk_bytes / stripe_bytes;
            let stripe = geometry.stripe(lost.stripe / per_stripe)?;
            let first = stripe.array_start + lost.stripe % per_stripe * stripe_bytes;
            Some((0..stripe.data_chunks() as u64).map(move |cell| (first + cell * stripe.chunk_bytes, stripe_bytes)))
        };
        let mut stripes: Vec<LostStripe> = self.lost.iter().collect();
        stripes.dedup_by_key(|lost| lost.stripe);
        stripes.into_iter().filter_map(of_stripe).flatten().collect()
    }

    /// Returns the journal's part of a layout.
    pub(super) fn parity_node(&self, members: usize) -> Option<ParityNode> {
        let journal = self.journal.as_ref()?;
        let mut rings = vec![0; members];
        for member in self.array.members() {
            if let Some(ring) = rings.get_mut(usize::from(member.number)) {
                *ring = member.part.layout.journal.start + RING_OFFSET_BYTES;
            }
        }
        Some(ParityNode {
            array: self.array.uuid(),
            run: journal.run,
            rings,
            ring_blocks: journal.ring_blocks,
            ring_blocks_min: journal.least_ring_blocks(),
            generation: journal.generation,
            lost_stripes: Arc::clone(&self.lost),
            marks: Arc::clone(&self.marks),
            ring_location: self.ring_place()?,
        })
    }

    /// Returns once everything that was logged before the call is durable in place on all members, and is retired from
    /// the journal: a new member, or a region whose bit is about to be cleared, does not depend on it.
    pub(super) async fn retire_journal<I: ReconcilerIo>(&self, io: &I) {
        if self.has_parity() {
            io.call(self.options.device, self.options.home, RegionCall::Retire).await;
        }
    }

    /// Before a clean end of the service: full-stripe writes become durable in place, so that the next start needs no
    /// marks, whichever member is missing then.
    pub(super) async fn settle_journal<I: ReconcilerIo>(&mut self, io: &I) {
        for _ in 0..SETTLE_TRIES_MAX {
            if !self.has_parity() || self.failed {
                return;
            }
            let layout = self.layout(io);
            let device = self.options.device;
            let settle = async {
                // Then everything in flight has finished.
                io.publish(device, Some(layout)).await;
                self.retire_journal(io).await;
            };
            match first(io.next_fault(device), settle, std::future::pending::<()>()).await {
                First::A(trouble) => self.on_fault(io, trouble).await,
                First::B(()) | First::C(()) => return,
            }
        }
    }

    /// Returns the start of the first stripe that begins at or after this byte of the array.
    pub(super) fn next_stripe(&self, offset: u64) -> u64 {
        let geometry = self.array.geometry();
        match geometry.stripe_of(offset.min(geometry.size_bytes() - 1)) {
            Some(stripe) if stripe.array_start < offset => end_of(&stripe),
            Some(stripe) => stripe.array_start,
            None => offset,
        }
    }

    /// Returns the piece at `at`, at most `most` bytes high.
    pub(super) fn stripe_piece(&self, members: &[MirrorMember], at: u64, most: u64) -> StripePiece {
        let stripe = self.array.geometry().stripe_of(at).expect("inside the array");
        let (data, cells) = (stripe.data_chunks() as u64, stripe.members.len() as u64);
        let column = (at - stripe.array_start) / data;
        let unit = u64::from(stripe_bytes(stripe.chunk_bytes as u32));
        let blocks = |bytes: u64| (bytes / COMPARE_BLOCK_BYTES).max(1) * COMPARE_BLOCK_BYTES;
        let height =
            (unit - column % unit).min(blocks(most.min(COMPARE_BYTES_MAX))).min(blocks(LEAF_BYTES_MAX / cells));
        let successors = self.array.successors();
        let holders = stripe.members.iter().copied().chain(
            successors.filter(|successor| stripe.members.contains(&successor.role)).map(|successor| successor.member),
        );
        StripePiece {
            len: height * data,
            data: data as u16,
            cells: cells as u16,
            holders: holders.map(|member| (member, members[usize::from(member)].leaf)).collect(),
            array_offset: stripe.array_start + column,
        }
    }

    /// Rewrites what a member cannot read in the stripes of this fault, computed from the other members.
    pub(super) async fn repair_stripes<I: ReconcilerIo>(&self, io: &I, trouble: &Fault, role: u16) {
        let members = self.members();
        let Some(data_start) = members.get(usize::from(role)).map(|member| member.start) else { return };
        let geometry = self.array.geometry();
        let mut at = trouble.offset;
        let end = (trouble.offset + trouble.len).min(geometry.size_bytes());
        while at < end {
            let Some(stripe) = geometry.stripe_of(at) else { return };
            let region = self.regions.region_of_stripe(&stripe);
            let holds = stripe.members.contains(&role) && self.regions.written.has(region);
            let place = data_start + stripe.member_offset;
            if holds && !can_read(io, trouble.leaf, place, stripe.chunk_bytes).await {
                for column in (0..stripe.chunk_bytes).step_by(COMPARE_BLOCK_BYTES as usize) {
                    if !can_read(io, trouble.leaf, place + column, COMPARE_BLOCK_BYTES).await {
                        self.restore_block(io, &stripe, column, role).await;
                    }
                }
            }
            at = end_of(&stripe);
        }
    }

    async fn restore_block<I: ReconcilerIo>(&self, io: &I, stripe: &Stripe<'_>, column: u64, role: u16) {
        let (data, cells) = (stripe.data_chunks() as u16, stripe.members.len() as u16);
        let (offset, len) = (stripe.array_start + column * u64::from(data), COMPARE_BLOCK_BYTES * u64::from(data));
        let to = MemberSet::NONE.with(usize::from(role));
        let kind = SyncKind::Rebuild { to, avoid: MemberSet::NONE, data, cells };
        let device = self.options.device;
        if io.sync(SyncPart { device, offset, len, kind }).await.is_ok() {
            io.report(device, ReconcilerEvent::Repaired(role, stripe.array_start + column, COMPARE_BLOCK_BYTES));
        }
    }

    /// Whether every cell of a piece is on a member in sync.
    pub(super) fn is_stripe_in_sync(&self, members: &[MirrorMember], piece: &StripePiece) -> bool {
        piece.holders.iter().all(|(member, _)| members[usize::from(*member)].role == MemberRole::InSync)
    }
}

fn end_of(stripe: &Stripe<'_>) -> u64 {
    stripe.array_start + stripe.data_chunks() as u64 * stripe.chunk_bytes
}

/// Whether a disk can read these bytes.
async fn can_read<I: ReconcilerIo>(io: &I, leaf: LeafId, offset: u64, len: u64) -> bool {
    for at in (0..len).step_by(LEAF_BYTES_MAX as usize) {
        if io.read(leaf, offset + at, (len - at).min(LEAF_BYTES_MAX) as usize).await.is_err() {
            return false;
        }
    }
    true
}

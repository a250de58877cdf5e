//! Regions that a rebuilding member lacks and that no member can read in full. The member is not promoted before it has
//! them: it would return whatever it happens to hold. They are retried from time to time: a write to the unreadable
//! blocks, or a disk that can read them after all, lets the rebuild complete.

use std::collections::BTreeMap;

use braid_engine::{COMPARE_BLOCK_BYTES, MemberSet};

use super::findings::{FINDING_OFFSETS_MAX, Findings};
use super::{Reconciler, ReconcilerEvent, ReconcilerIo};

/// Interval between two retries.
const RETRY_EVERY_NS: u64 = 10_000_000_000;
/// Maximum number of regions in a retry.
const RETRIED_MAX: usize = 64;

/// These regions, with the unreadable runs of each: array offset and bytes.
#[derive(Default)]
pub(super) struct Stuck {
    regions: BTreeMap<u32, Vec<(u64, u64)>>,
    /// When they are retried.
    next_retry_ns: u64,
    /// The next retry continues after this region.
    last_retried: Option<u32>,
}

impl Stuck {
    /// Forgets all regions, so that they are retried: the members have changed.
    pub fn clear(&mut self) {
        *self = Stuck::default();
    }

    /// Returns the stuck regions in `first..end`.
    pub fn within(&self, first: u32, end: u32) -> impl Iterator<Item = u32> {
        self.regions.range(first..end).map(|(region, _)| *region)
    }

    /// Returns the time until the next retry.
    pub fn wait_ns<I: ReconcilerIo>(&self, io: &I) -> u64 {
        if self.regions.is_empty() { u64::MAX } else { self.next_retry_ns.saturating_sub(io.now_ns()) }
    }

    /// Returns what is unreadable in them.
    pub fn findings(&self) -> Option<Findings> {
        let places = || self.regions.values().flatten();
        (!self.regions.is_empty()).then(|| Findings {
            unreadable_blocks: places().map(|(_, bytes)| bytes.div_ceil(COMPARE_BLOCK_BYTES)).sum(),
            offsets: places().map(|(offset, _)| *offset).take(FINDING_OFFSETS_MAX).collect(),
            ..Findings::default()
        })
    }
}

impl Reconciler {
    /// Reports what cannot be read of a region. `lacking`: the members being rebuilt with it; the region is stuck then.
    pub(super) fn note_unreadable<I: ReconcilerIo>(
        &mut self,
        io: &I,
        region: u32,
        mut places: Vec<(u64, u64)>,
        lacking: Option<MemberSet>,
    ) {
        places.sort_unstable();
        let (offset, bytes) = (places[0].0, places.iter().map(|(_, bytes)| bytes).sum());
        let lacking_roles = lacking
            .map_or(Vec::new(), |to| self.rebuilds.keys().copied().filter(|role| to.has(usize::from(*role))).collect());
        let sources = self.sources(offset);
        io.report(
            self.options.device,
            ReconcilerEvent::Unreadable { offset, bytes, sources, rebuilding: lacking_roles.clone() },
        );
        if lacking.is_some() {
            if self.stuck.regions.is_empty() {
                self.stuck.next_retry_ns = io.now_ns() + RETRY_EVERY_NS;
            }
            self.stuck.regions.insert(region, places);
            for role in lacking_roles {
                self.report_job(io, self.rebuild_kind(role), Some(role), true);
            }
        }
    }

    /// Tests whether stuck regions can be read now, if a retry is due. Returns false if it is not.
    pub(super) async fn retry_stuck<I: ReconcilerIo>(&mut self, io: &I) -> bool {
        if self.stuck.wait_ns(io) > 0 {
            return false;
        }
        let from = self.stuck.last_retried.map_or(0, |region| region + 1);
        let mut some: Vec<(u32, u64)> =
            self.stuck.regions.range(from..).map(|(region, places)| (*region, places[0].0)).take(RETRIED_MAX).collect();
        self.stuck.last_retried = some.last().map(|(region, _)| *region).filter(|_| some.len() == RETRIED_MAX);
        self.stuck.next_retry_ns = io.now_ns() + RETRY_EVERY_NS;
        if self.has_parity() {
            // Whether a stripe can be computed is known only by trying.
            some.drain(..).for_each(|(region, _)| drop(self.stuck.regions.remove(&region)));
        }
        let members = self.members();
        let block = u64::from(self.options.block_bytes).max(COMPARE_BLOCK_BYTES);
        for (region, offset) in some.drain(..) {
            let mut places = Vec::new();
            self.copies(offset, &mut |place| {
                let member = &members[usize::from(place.member)];
                if member.role == braid_engine::mirror::MemberRole::InSync {
                    places.push((member.leaf, member.start + place.member_offset, place.len.min(block)));
                }
            });
            for (leaf, at, len) in places {
                if io.read(leaf, at, len as usize).await.is_ok() {
                    self.stuck.regions.remove(&region);
                    break;
                }
            }
        }
        true
    }

    /// Returns the members in sync that should hold this byte of the array.
    fn sources(&self, offset: u64) -> Vec<u16> {
        let (mut sources, in_sync) = (Vec::new(), self.in_sync());
        self.copies(offset, &mut |place| {
            if in_sync.has(usize::from(place.member)) {
                sources.push(place.member);
            }
        });
        sources
    }
}

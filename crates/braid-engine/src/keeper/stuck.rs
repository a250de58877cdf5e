//! Regions that a member which is being filled lacks, and of which some no member can read. It is not promoted before it has
//! them: it would answer with what it happens to hold. They are looked at again from time to time: whoever writes such a
//! place, or a disk that thinks better of it, lets the member become whole.

use std::collections::BTreeMap;

use super::check::{COMPARE_BLOCK_BYTES, Findings, PLACES_MAX};
use super::{Keeper, KeeperIo, Note};
use crate::mirror::Roles;

/// Between two looks.
const LOOK_EVERY_NS: u64 = 10_000_000_000;
/// Regions of a look, at most.
const LOOKED_AT_MAX: usize = 64;

/// Those regions, with what cannot be read of each: where it begins, and bytes.
#[derive(Default)]
pub(super) struct Stuck {
    regions: BTreeMap<u32, Vec<(u64, u64)>>,
    /// When they are looked at again.
    next_look_ns: u64,
    /// The look after this goes on behind this one.
    looked_at: Option<u32>,
}

impl Stuck {
    /// They are all tried again, as the members have changed.
    pub fn clear(&mut self) {
        *self = Stuck::default();
    }

    /// Those from `first` to before `end`.
    pub fn within(&self, first: u32, end: u32) -> impl Iterator<Item = u32> {
        self.regions.range(first..end).map(|(region, _)| *region)
    }

    /// Time until they are looked at again.
    pub fn wait_ns<I: KeeperIo>(&self, io: &I) -> u64 {
        if self.regions.is_empty() { u64::MAX } else { self.next_look_ns.saturating_sub(io.now_ns()) }
    }

    /// What of them cannot be read.
    pub fn findings(&self) -> Option<Findings> {
        let places = || self.regions.values().flatten();
        (!self.regions.is_empty()).then(|| Findings {
            unreadable_blocks: places().map(|(_, bytes)| bytes.div_ceil(COMPARE_BLOCK_BYTES)).sum(),
            places: places().map(|(offset, _)| *offset).take(PLACES_MAX).collect(),
            ..Findings::default()
        })
    }
}

impl Keeper {
    /// Tells of what cannot be read of a region. `lacking`: the members that are being filled with it; it is stuck then.
    pub(super) fn note_unreadable<I: KeeperIo>(
        &mut self,
        io: &I,
        region: u32,
        mut places: Vec<(u64, u64)>,
        lacking: Option<Roles>,
    ) {
        places.sort_unstable();
        let (offset, bytes) = (places[0].0, places.iter().map(|(_, bytes)| bytes).sum());
        let lacking_roles = lacking
            .map_or(Vec::new(), |to| self.fills.keys().copied().filter(|role| to.has(usize::from(*role))).collect());
        let sources = self.sources(offset);
        io.note(self.options.device, Note::Unreadable { offset, bytes, sources, lacking: lacking_roles.clone() });
        if lacking.is_some() {
            if self.stuck.regions.is_empty() {
                self.stuck.next_look_ns = io.now_ns() + LOOK_EVERY_NS;
            }
            self.stuck.regions.insert(region, places);
            for role in lacking_roles {
                self.tell_job(io, self.fill_kind(role), Some(role), true);
            }
        }
    }

    /// Looks whether what is stuck can be read now, if it is time to. False: it is not.
    pub(super) async fn look_at_stuck<I: KeeperIo>(&mut self, io: &I) -> bool {
        if self.stuck.wait_ns(io) > 0 {
            return false;
        }
        let from = self.stuck.looked_at.map_or(0, |region| region + 1);
        let mut some: Vec<(u32, u64)> = self
            .stuck
            .regions
            .range(from..)
            .map(|(region, places)| (*region, places[0].0))
            .take(LOOKED_AT_MAX)
            .collect();
        self.stuck.looked_at = some.last().map(|(region, _)| *region).filter(|_| some.len() == LOOKED_AT_MAX);
        self.stuck.next_look_ns = io.now_ns() + LOOK_EVERY_NS;
        if self.has_parity() {
            // Nothing less than trying tells whether a row can be computed.
            some.drain(..).for_each(|(region, _)| drop(self.stuck.regions.remove(&region)));
        }
        let members = self.members();
        let block = u64::from(self.options.block_bytes).max(COMPARE_BLOCK_BYTES);
        for (region, offset) in some.drain(..) {
            let mut places = Vec::new();
            self.copies(offset, &mut |place| {
                let member = &members[usize::from(place.member)];
                if member.role == crate::mirror::Role::InSync {
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

    /// The members in sync that should have this byte of the array.
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

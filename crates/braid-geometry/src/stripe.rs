//! Stripes of the levels with parity, and the role of each member in a stripe.

use crate::foreign::RowOrder;
use crate::{Geometry, MemberContent};

/// The role of a chunk in its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StripeRole {
    /// The data chunk with this index, counted from 0 in the order of the array. Its coefficient in Q is 2^index in
    /// GF(2^8), unless [`Stripe::first_coefficient`] is not 0.
    Data(u16),
    /// The first parity.
    P,
    /// The second parity.
    Q,
}

/// A stripe: one chunk of each member of a zone, at a level with parity. Borrows only the list of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe<'a> {
    /// The number of the stripe. Stripes are numbered from 0 over the whole array, in the order of the zones.
    pub number: u64,
    /// The zone, counted from 0.
    pub zone: u16,
    /// The number of the stripe within its zone, counted from 0.
    pub index_in_zone: u64,
    /// The offset in the array of the stripe's first byte of data, in bytes.
    pub array_start: u64,
    /// The offset of the stripe's chunk in the data area of each of its members, in bytes.
    pub member_offset: u64,
    /// Size of each chunk, in bytes.
    pub chunk_bytes: u64,
    /// The members of the zone, in slot order.
    pub members: &'a [u16],
    p_slot: u16,
    parity: u16,
    /// The roles of the slots, if Braid only reads the layout.
    row_order: Option<RowOrder>,
}

/// A byte of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePosition<'a> {
    /// Its stripe.
    pub stripe: Stripe<'a>,
    /// The role of its chunk in the stripe.
    pub role: StripeRole,
    /// The offset of the byte in the chunk, in bytes.
    pub chunk_offset: u64,
}

/// A part of one data chunk of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePart {
    /// The index of the data chunk, as in [`StripeRole::Data`].
    pub index: u16,
    /// The offset of the part in the chunk, in bytes.
    pub chunk_offset: u64,
    /// The length of the part, in bytes.
    pub len: u64,
}

impl<'a> Stripe<'a> {
    /// Returns the member that holds P.
    #[must_use]
    #[inline]
    pub fn p(&self) -> u16 {
        match self.row_order {
            None => self.after_p(0),
            Some(row_order) => self.members[usize::from(row_order.p())],
        }
    }

    /// Returns the member that holds Q; `None` with raid5.
    #[must_use]
    #[inline]
    pub fn q(&self) -> Option<u16> {
        match self.row_order {
            None => (self.parity == 2).then(|| self.after_p(1)),
            Some(row_order) => row_order.q().map(|slot| self.members[usize::from(slot)]),
        }
    }

    /// Returns the number of data chunks of the stripe. At least 1.
    #[must_use]
    #[inline]
    pub fn data_chunks(&self) -> usize {
        self.members.len() - usize::from(self.parity)
    }

    /// Returns the number of parity chunks of the stripe: 1 with raid5, 2 with raid6. The stripe tolerates the failure of as many
    /// members.
    #[must_use]
    #[inline]
    pub fn parity_chunks(&self) -> usize {
        usize::from(self.parity)
    }

    /// Returns the number of bytes of data in the stripe.
    #[must_use]
    #[inline]
    pub fn array_bytes(&self) -> u64 {
        self.chunk_bytes * self.data_chunks() as u64
    }

    /// Returns the offset in the array at which the stripe's data ends.
    #[must_use]
    #[inline]
    pub fn array_end(&self) -> u64 {
        self.array_start + self.array_bytes()
    }

    /// Returns the member that holds data chunk `index` of the stripe. `index` must be below [`Stripe::data_chunks`].
    ///
    /// The indices follow the order of the data in the array. The coefficients of Q follow the same order, starting at
    /// [`Stripe::first_coefficient`].
    #[must_use]
    #[inline]
    pub fn data(&self, index: usize) -> u16 {
        debug_assert!(index < self.data_chunks());
        match self.row_order {
            None => self.after_p(usize::from(self.parity) + index),
            Some(row_order) => self.members[usize::from(row_order.data(index as u16))],
        }
    }

    /// Returns the exponent of the Q coefficient of the first data chunk. It is 0 in all layouts that Braid creates. In some
    /// layouts of md, data chunk *i* has the exponent (*i* + this) mod [`Stripe::data_chunks`].
    #[must_use]
    #[inline]
    pub fn first_coefficient(&self) -> usize {
        self.row_order.map_or(0, |row_order| usize::from(row_order.first_coefficient()))
    }

    /// Returns the member with a role; `None` if the stripe has no such role.
    #[must_use]
    #[inline]
    pub fn member(&self, role: StripeRole) -> Option<u16> {
        match role {
            StripeRole::Data(index) => (usize::from(index) < self.data_chunks()).then(|| self.data(usize::from(index))),
            StripeRole::P => Some(self.p()),
            StripeRole::Q => self.q(),
        }
    }

    /// Returns the role of a member in this stripe; `None` if the member does not belong to the zone.
    #[must_use]
    #[inline]
    pub fn role(&self, member: u16) -> Option<StripeRole> {
        // Slot order is ascending order.
        let slot = self.members.binary_search(&member).ok()?;
        if let Some(row_order) = self.row_order {
            let other = || if row_order.p() as usize == slot { StripeRole::P } else { StripeRole::Q };
            return Some(row_order.index(slot as u16).map_or_else(other, StripeRole::Data));
        }
        let p_slot = usize::from(self.p_slot);
        let after_p = if slot >= p_slot { slot - p_slot } else { slot + self.members.len() - p_slot };
        Some(self.role_after_p(after_p))
    }

    /// Returns all roles with their members: P, with raid6 Q, then the data in the order of its indices.
    #[inline]
    pub fn roles(self) -> impl Iterator<Item = (StripeRole, u16)> + use<'a> {
        (0..self.members.len()).filter_map(move |steps| {
            let role = self.role_after_p(steps);
            Some((role, self.member(role)?))
        })
    }

    /// Returns the parts of the stripe's data chunks that hold the `len` bytes of the array from `array_offset` on. Bytes outside
    /// the stripe are omitted.
    #[inline]
    pub fn parts(self, array_offset: u64, len: u64) -> impl Iterator<Item = StripePart> + use<'a> {
        let from = array_offset.max(self.array_start) - self.array_start;
        let to = array_offset.saturating_add(len).min(self.array_end()).saturating_sub(self.array_start);
        let indices = if from < to { from / self.chunk_bytes..to.div_ceil(self.chunk_bytes) } else { 0..0 };
        indices.map(move |index| {
            let start = index * self.chunk_bytes;
            let within = from.max(start) - start;
            StripePart {
                index: index as u16,
                chunk_offset: within,
                len: to.min(start + self.chunk_bytes) - start - within,
            }
        })
    }

    #[inline]
    fn role_after_p(&self, steps: usize) -> StripeRole {
        match (steps, self.parity) {
            (0, _) => StripeRole::P,
            (1, 2) => StripeRole::Q,
            _ => StripeRole::Data(steps as u16 - self.parity),
        }
    }

    #[inline]
    fn after_p(&self, steps: usize) -> u16 {
        let slot = usize::from(self.p_slot) + steps;
        self.members[if slot >= self.members.len() { slot - self.members.len() } else { slot }]
    }
}

impl Geometry {
    /// Returns the number of stripes in all zones. Only meaningful at levels with parity.
    #[must_use]
    pub fn stripes(&self) -> u64 {
        self.compiled.last().map_or(0, |zone| zone.first_stripe + zone.rows)
    }

    /// Returns the stripe with a number; `None` at levels without parity and beyond the last stripe.
    #[must_use]
    #[inline]
    pub fn stripe(&self, number: u64) -> Option<Stripe<'_>> {
        if self.spec().level.parity() == 0 || number >= self.stripes() {
            return None;
        }
        let index = self.compiled.partition_point(|zone| zone.first_stripe <= number) - 1;
        Some(self.stripe_in_zone(index, number - self.compiled[index].first_stripe))
    }

    /// Returns the stripe that holds an offset of the array; `None` at levels without parity and beyond the end.
    #[must_use]
    #[inline]
    pub fn stripe_of(&self, array_offset: u64) -> Option<Stripe<'_>> {
        self.stripe_position(array_offset).map(|place| place.stripe)
    }

    /// Returns the position of an offset of the array in its stripe; `None` at levels without parity and beyond the end.
    #[must_use]
    #[inline]
    pub fn stripe_position(&self, array_offset: u64) -> Option<StripePosition<'_>> {
        if self.spec().level.parity() == 0 || array_offset >= self.size_bytes() {
            return None;
        }
        let index = self.zone_index(array_offset);
        let zone = &self.compiled[index];
        let (row, data_index, within) = zone.row_of(array_offset - zone.array_start);
        Some(StripePosition {
            stripe: self.stripe_in_zone(index, row),
            role: StripeRole::Data(data_index as u16),
            chunk_offset: within,
        })
    }

    /// Returns the stripe at `member_offset` (in bytes) of the data area of a member, and the role of the member in the stripe.
    /// `None` at levels without parity and for unused space.
    #[must_use]
    pub fn stripe_at(&self, member: u16, member_offset: u64) -> Option<StripePosition<'_>> {
        let stripe = match self.content_at(member, member_offset) {
            MemberContent::Data { array_offset, .. } => self.stripe_of(array_offset)?,
            MemberContent::Parity { stripe, .. } => self.stripe(stripe)?,
            MemberContent::Unused { .. } => return None,
        };
        Some(StripePosition { stripe, role: stripe.role(member)?, chunk_offset: member_offset - stripe.member_offset })
    }

    #[inline]
    fn stripe_in_zone(&self, index: usize, row: u64) -> Stripe<'_> {
        let zone = &self.compiled[index];
        Stripe {
            number: zone.first_stripe + row,
            zone: index as u16,
            index_in_zone: row,
            array_start: zone.array_start + row * zone.chunks_per_row() * zone.cell_bytes,
            member_offset: zone.member_start + row * zone.cell_bytes,
            chunk_bytes: zone.cell_bytes,
            members: &self.slots[zone.slots_start..zone.slots_start + zone.width() as usize],
            p_slot: zone.parity_slot(row) as u16,
            parity: zone.parity() as u16,
            row_order: zone.row_order(row),
        }
    }
}

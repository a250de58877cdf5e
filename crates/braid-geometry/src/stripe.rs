//! Stripes: the rows of chunks at the levels with parity, and what each member is to one of them.

use crate::foreign::Order;
use crate::{Geometry, Place};

/// What a chunk is to its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StripeRole {
    /// The data with this index, counted from 0 in the order of the array. Q gives it the coefficient 2^index (but see
    /// [`Stripe::first_coefficient`]).
    Data(u16),
    /// The parity.
    P,
    /// The second parity.
    Q,
}

/// A row of chunks at a level with parity. It borrows the list of its members and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe<'a> {
    /// Its number; stripes count over the whole array, zone after zone.
    pub number: u64,
    /// The zone, counted from 0.
    pub zone: u16,
    /// Its number within the zone.
    pub row: u64,
    /// Where its first byte of data is in the array.
    pub array_start: u64,
    /// Where its chunks are in the data area of each of its members, in bytes.
    pub member_offset: u64,
    /// Bytes of each chunk.
    pub chunk_bytes: u64,
    /// The members of the zone in slot order.
    pub members: &'a [u16],
    p_slot: u16,
    parity: u16,
    /// Where its chunks are, in a layout that only md makes.
    order: Option<Order>,
}

/// A byte of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePlace<'a> {
    /// Its stripe.
    pub stripe: Stripe<'a>,
    /// What its chunk is there.
    pub role: StripeRole,
    /// Bytes from the start of the chunk.
    pub within: u64,
}

/// A part of one chunk of a stripe's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePart {
    /// The index of the data.
    pub index: u16,
    /// Where it begins, in bytes from the start of the chunk.
    pub within: u64,
    /// How long it is, in bytes.
    pub len: u64,
}

impl<'a> Stripe<'a> {
    /// The member that holds P.
    #[must_use]
    #[inline]
    pub fn p(&self) -> u16 {
        match self.order {
            None => self.after_p(0),
            Some(order) => self.members[usize::from(order.p())],
        }
    }

    /// The member that holds Q; `None` at raid5.
    #[must_use]
    #[inline]
    pub fn q(&self) -> Option<u16> {
        match self.order {
            None => (self.parity == 2).then(|| self.after_p(1)),
            Some(order) => order.q().map(|slot| self.members[usize::from(slot)]),
        }
    }

    /// How many chunks of data the stripe has: at least 1.
    #[must_use]
    #[inline]
    pub fn data_chunks(&self) -> usize {
        self.members.len() - usize::from(self.parity)
    }

    /// How many chunks of parity it has: 1 at raid5, 2 at raid6. So many of its members can be lost.
    #[must_use]
    #[inline]
    pub fn parity_chunks(&self) -> usize {
        usize::from(self.parity)
    }

    /// Bytes of data that it holds.
    #[must_use]
    #[inline]
    pub fn array_bytes(&self) -> u64 {
        self.chunk_bytes * self.data_chunks() as u64
    }

    /// Where its data ends in the array.
    #[must_use]
    #[inline]
    pub fn array_end(&self) -> u64 {
        self.array_start + self.array_bytes()
    }

    /// The member that holds chunk `index` of the stripe's data, `index` below [`Stripe::data_chunks`].
    ///
    /// The data stands in this order in the array, and in this order it takes the coefficients of Q, from
    /// [`Stripe::first_coefficient`] on.
    #[must_use]
    #[inline]
    pub fn data(&self, index: usize) -> u16 {
        debug_assert!(index < self.data_chunks());
        match self.order {
            None => self.after_p(usize::from(self.parity) + index),
            Some(order) => self.members[usize::from(order.data(index as u16))],
        }
    }

    /// Which coefficient of Q the first data take. 0 in all that Braid makes; in some layouts of md the data with index *i* take
    /// the one of index (*i* + this) mod [`Stripe::data_chunks`].
    #[must_use]
    #[inline]
    pub fn first_coefficient(&self) -> usize {
        self.order.map_or(0, |order| usize::from(order.first_coefficient()))
    }

    /// The member in a role; `None` where there is no such role.
    #[must_use]
    #[inline]
    pub fn member(&self, role: StripeRole) -> Option<u16> {
        match role {
            StripeRole::Data(index) => (usize::from(index) < self.data_chunks()).then(|| self.data(usize::from(index))),
            StripeRole::P => Some(self.p()),
            StripeRole::Q => self.q(),
        }
    }

    /// What a member is to this stripe; `None` for one that is not of its zone.
    #[must_use]
    #[inline]
    pub fn role(&self, member: u16) -> Option<StripeRole> {
        // In slot order is in rising order.
        let slot = self.members.binary_search(&member).ok()?;
        if let Some(order) = self.order {
            let other = || if order.p() as usize == slot { StripeRole::P } else { StripeRole::Q };
            return Some(order.index(slot as u16).map_or_else(other, StripeRole::Data));
        }
        let p_slot = usize::from(self.p_slot);
        let after_p = if slot >= p_slot { slot - p_slot } else { slot + self.members.len() - p_slot };
        Some(self.role_after_p(after_p))
    }

    /// All roles with their members: P, at raid6 Q, then the data in its order.
    #[inline]
    pub fn roles(self) -> impl Iterator<Item = (StripeRole, u16)> + use<'a> {
        (0..self.members.len()).filter_map(move |steps| {
            let role = self.role_after_p(steps);
            Some((role, self.member(role)?))
        })
    }

    /// The part of each chunk that holds bytes of the array's range from `array_offset` on, `len` bytes long; what lies
    /// outside of the stripe is left out.
    #[inline]
    pub fn parts(self, array_offset: u64, len: u64) -> impl Iterator<Item = StripePart> + use<'a> {
        let from = array_offset.max(self.array_start) - self.array_start;
        let to = array_offset.saturating_add(len).min(self.array_end()).saturating_sub(self.array_start);
        let indices = if from < to { from / self.chunk_bytes..to.div_ceil(self.chunk_bytes) } else { 0..0 };
        indices.map(move |index| {
            let start = index * self.chunk_bytes;
            let within = from.max(start) - start;
            StripePart { index: index as u16, within, len: to.min(start + self.chunk_bytes) - start - within }
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
    /// How many stripes there are in all zones. Meaningful at levels with parity.
    #[must_use]
    pub fn stripes(&self) -> u64 {
        self.compiled.last().map_or(0, |zone| zone.first_stripe + zone.rows)
    }

    /// The stripe with a number; `None` at levels without parity and beyond the last one.
    #[must_use]
    #[inline]
    pub fn stripe(&self, number: u64) -> Option<Stripe<'_>> {
        if self.spec().level.parity() == 0 || number >= self.stripes() {
            return None;
        }
        let index = self.compiled.partition_point(|zone| zone.first_stripe <= number) - 1;
        Some(self.stripe_in_zone(index, number - self.compiled[index].first_stripe))
    }

    /// The stripe that holds an offset of the array; `None` at levels without parity and beyond the end.
    #[must_use]
    #[inline]
    pub fn stripe_of(&self, array_offset: u64) -> Option<Stripe<'_>> {
        self.stripe_place(array_offset).map(|place| place.stripe)
    }

    /// Where an offset of the array is in its stripe; `None` at levels without parity and beyond the end.
    #[must_use]
    #[inline]
    pub fn stripe_place(&self, array_offset: u64) -> Option<StripePlace<'_>> {
        if self.spec().level.parity() == 0 || array_offset >= self.size_bytes() {
            return None;
        }
        let index = self.zone_index(array_offset);
        let zone = &self.compiled[index];
        let (row, data_index, within) = zone.row_of(array_offset - zone.array_start);
        Some(StripePlace { stripe: self.stripe_in_zone(index, row), role: StripeRole::Data(data_index as u16), within })
    }

    /// What stands at `member_offset` (in bytes) of the data area of a member: which stripe, and what the member is to it.
    /// `None` at levels without parity and where nothing stands.
    #[must_use]
    pub fn stripe_at(&self, member: u16, member_offset: u64) -> Option<StripePlace<'_>> {
        let stripe = match self.place(member, member_offset) {
            Place::Data { array_offset, .. } => self.stripe_of(array_offset)?,
            Place::Parity { stripe, .. } => self.stripe(stripe)?,
            Place::Unused { .. } => return None,
        };
        Some(StripePlace { stripe, role: stripe.role(member)?, within: member_offset - stripe.member_offset })
    }

    #[inline]
    fn stripe_in_zone(&self, index: usize, row: u64) -> Stripe<'_> {
        let zone = &self.compiled[index];
        Stripe {
            number: zone.first_stripe + row,
            zone: index as u16,
            row,
            array_start: zone.array_start + row * zone.chunks_per_row() * zone.cell_bytes,
            member_offset: zone.member_start + row * zone.cell_bytes,
            chunk_bytes: zone.cell_bytes,
            members: &self.slots[zone.slots_start..zone.slots_start + zone.width() as usize],
            p_slot: zone.parity_slot(row) as u16,
            parity: zone.parity() as u16,
            order: zone.order(row),
        }
    }
}

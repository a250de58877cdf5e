//! Conversion between the zone table of a label and a [`Geometry`].

use braid_geometry::{Geometry, Zone};

use crate::{ArrayPart, LabelError, ZoneSpan};

/// Returns the zone table of a label for this geometry.
pub fn zone_table(geometry: &Geometry) -> Vec<ZoneSpan> {
    let spans = geometry.zones().iter().map(|zone| ZoneSpan {
        members: zone.members.iter().fold(0, |set, slot| set | 1 << slot),
        start_bytes: zone.member_start,
        height_bytes: zone.member_bytes,
    });
    spans.collect()
}

impl ArrayPart {
    /// Returns the geometry that the label's zones describe.
    ///
    /// The zones are taken as they were read: the geometry validates them, and their sum must equal `array_bytes`. The
    /// geometry's members are the slots up to the highest one in any zone; spares come after them.
    pub fn geometry(&self) -> Result<Geometry, LabelError> {
        let refuse = |field, reason| LabelError::Field { field, reason };
        let mut zones = Vec::with_capacity(self.zones.len());
        let mut array_start = 0u64;
        for (i, span) in self.zones.iter().enumerate() {
            let array_bytes = self.spec.zone_bytes(span.width() as usize, span.height_bytes);
            let array_bytes = array_bytes.ok_or_else(|| refuse("zones", format!("zone {i} is too large")))?;
            zones.push(Zone {
                array_start,
                array_bytes,
                member_start: span.start_bytes,
                member_bytes: span.height_bytes,
                members: span.slots().collect(),
            });
            array_start = array_start
                .checked_add(array_bytes)
                .ok_or_else(|| refuse("zones", format!("the array ends beyond any number at zone {i}")))?;
        }
        // A raid0 array whose chunk is not a power of two may end before its last zone does, by at most
        // `truncated_bytes_max` (see `Spec::raid0_end_bytes`).
        let cut = array_start.saturating_sub(self.array_bytes);
        if let Some(last) = zones.last_mut()
            && cut < last.array_bytes
            && cut <= self.spec.truncated_bytes_max(self.members.len())
        {
            last.array_bytes -= cut;
            array_start -= cut;
        }
        if array_start != self.array_bytes {
            let reason = format!("it is {}, and the zones make {array_start}", self.array_bytes);
            return Err(refuse("array_bytes", reason));
        }
        // Members after the highest one in any zone are spares, which hold no data.
        let set = self.zones.iter().fold(0, |set, zone| set | zone.members);
        let slots = (u128::BITS - set.leading_zeros()) as usize;
        let sizes: Vec<u64> = self.members.iter().take(slots).map(|m| m.data_bytes).collect();
        Geometry::from_zones(self.spec, &sizes, zones).map_err(|e| refuse("zones", e.to_string()))
    }
}

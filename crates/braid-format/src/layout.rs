//! Between the label's table of zones and the geometry that is computed with.

use braid_geometry::{Geometry, Zone};

use crate::{ArrayPart, LabelError, ZoneSpan};

/// The table of zones for a label, from a geometry.
pub fn zone_table(geometry: &Geometry) -> Vec<ZoneSpan> {
    let spans = geometry.zones().iter().map(|zone| ZoneSpan {
        members: zone.members.iter().fold(0, |set, role| set | 1 << role),
        start_bytes: zone.member_start,
        height_bytes: zone.member_bytes,
    });
    spans.collect()
}

impl ArrayPart {
    /// The geometry that this label's zones describe. The zones are facts that were read: the geometry checks them,
    /// and their sum must be the array's size as the label says it. Its members are the roles up to the last one that a
    /// zone names; spares come after them.
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
                members: span.roles().collect(),
            });
            array_start = array_start
                .checked_add(array_bytes)
                .ok_or_else(|| refuse("zones", format!("the array ends beyond any number at zone {i}")))?;
        }
        // The end of a raid0 whose chunk is no power of two lies a little before the last zone's; the geometry knows how
        // far it may.
        let cut = array_start.saturating_sub(self.array_bytes);
        if let Some(last) = zones.last_mut()
            && cut < last.array_bytes
            && cut <= self.spec.cut_bytes_max(self.members.len())
        {
            last.array_bytes -= cut;
            array_start -= cut;
        }
        if array_start != self.array_bytes {
            let reason = format!("it is {}, and the zones make {array_start}", self.array_bytes);
            return Err(refuse("array_bytes", reason));
        }
        // Members after the last one that any zone names are spares: no byte lives there.
        let set = self.zones.iter().fold(0, |set, zone| set | zone.members);
        let seats = (u128::BITS - set.leading_zeros()) as usize;
        let sizes: Vec<u64> = self.members.iter().take(seats).map(|m| m.data_bytes).collect();
        Geometry::from_zones(self.spec, &sizes, zones).map_err(|e| refuse("zones", e.to_string()))
    }
}

//! Arrays of Linux md that are served read-only.

use braid_advice::{self as advice, Case, ObjectNames};
use braid_api::{Attention, Zone};
use braid_format::md::MdArray;
use braid_geometry::Geometry;

/// What is known of an imported array apart from its members.
pub struct Imported {
    /// The array according to its superblocks.
    pub array: MdArray,
}

impl Imported {
    /// Returns the warnings about what is read of the array.
    pub fn sentences(&self) -> Vec<String> {
        self.array.warnings.clone()
    }

    /// Returns its zones in the API's form; none if its members do not tell its geometry.
    pub fn zones(&self) -> Vec<Zone> {
        let zones = self.array.geometry.iter().flat_map(Geometry::zones);
        let zone = |zone: &braid_geometry::Zone| Zone {
            array_start_bytes: zone.array_start,
            array_bytes: zone.array_bytes,
            member_start_bytes: zone.member_start,
            member_bytes: zone.member_bytes,
            members: zone.members.clone(),
        };
        zones.map(zone).collect()
    }

    /// Returns what needs attention: one item for each warning. `name` is the array's name.
    pub fn attention(&self, name: &str) -> Vec<Attention> {
        let item = |message: &String| {
            advice::of(Case::ImportedArray, ObjectNames::of(name)).attention(format!("array {name}"), message.clone())
        };
        self.array.warnings.iter().map(item).collect()
    }
}

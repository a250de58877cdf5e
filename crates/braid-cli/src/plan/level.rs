//! Computes the figures of each level over the disks, before they are printed.

use super::{Disk, PlanRequest, speed};
use braid_geometry::{Geometry, GeometryError, Level, Spec, ZonePolicy};
use serde::Serialize;
use utoipa::ToSchema;

/// The plan: the figures of all requested levels.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Plan)]
pub struct Report {
    /// `disks`, or `data_areas` with `--data-sizes`.
    pub sizes_are: &'static str,
    pub disks: Vec<Disk>,
    pub chunk_bytes: u64,
    pub zone_policy: &'static str,
    /// Present if `--journal` was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<super::journal::Journal>,
    #[schema(value_type = Vec<PlanLevel>)]
    pub levels: Vec<LevelReport>,
}

/// One level over the disks of `braid plan`. The fields of the result are present only if the level is possible.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub struct PlanLevel {
    level: String,
    layout: String,
    /// Only of levels with copies.
    copies: Option<u16>,
    possible: bool,
    /// Why it is not possible.
    reason: Option<String>,
    /// The usable size.
    array_size_bytes: Option<u64>,
    /// The part of the disks that is not usable.
    lost_bytes: Option<u64>,
    /// The parts of `lost_bytes`.
    #[schema(required = false)]
    lost: Vec<Loss>,
    /// The number of disks of which any may fail.
    disks_may_fail: Option<u64>,
    /// Read speed, uniform over the whole array, as a multiple of one disk.
    speedup_reads: Option<f64>,
    /// Write speed, uniform over the whole array, as a multiple of one disk.
    speedup_writes: Option<f64>,
    #[schema(required = false)]
    zones: Vec<ZoneReport>,
}

/// The figures of one level over the disks.
#[derive(Debug, Serialize)]
pub struct LevelReport {
    pub level: &'static str,
    pub layout: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<u16>,
    pub possible: bool,
    /// Why it is not possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip)]
    pub error: Option<GeometryError>,
    #[serde(flatten)]
    pub result: Option<LevelResult>,
}

/// The figures of a level that is possible.
#[derive(Debug, Serialize)]
pub struct LevelResult {
    pub array_size_bytes: u64,
    pub lost_bytes: u64,
    pub lost: Vec<Loss>,
    /// The number of disks of which any may fail.
    pub disks_may_fail: usize,
    /// Uniform over the whole array, as a multiple of one disk.
    pub speedup_reads: f64,
    pub speedup_writes: f64,
    pub zones: Vec<ZoneReport>,
}

/// A part of the disks that is not usable.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PlanLoss)]
pub struct Loss {
    pub bytes: u64,
    /// A stable word: `metadata`, `rounding`, `copies`, `parity`, `last_row`, `too_few_disks`, `zones_single`.
    pub to: &'static str,
    /// The same for people.
    pub why: String,
}

/// One zone.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PlanZone)]
pub struct ZoneReport {
    pub array_start_bytes: u64,
    pub array_size_bytes: u64,
    pub member_start_bytes: u64,
    pub member_size_bytes: u64,
    pub members: Vec<u16>,
    pub disks_may_fail: usize,
    pub speedup_reads: f64,
    pub speedup_writes: f64,
}

pub fn report(request: &PlanRequest) -> Report {
    Report {
        sizes_are: if request.data_sizes { "data_areas" } else { "disks" },
        disks: request.disks.clone(),
        chunk_bytes: request.chunk_bytes,
        zone_policy: request.zones.name(),
        journal: request.journal,
        levels: request.specs.iter().map(|spec| level(request, *spec)).collect(),
    }
}

fn level(request: &PlanRequest, spec: Spec) -> LevelReport {
    let planned = Geometry::plan(spec, &request.data_sizes());
    LevelReport {
        level: spec.level.name(),
        layout: spec.layout.name(),
        copies: (spec.level == Level::Raid10).then_some(spec.copies),
        possible: planned.is_ok(),
        reason: planned.as_ref().err().map(ToString::to_string),
        result: planned.as_ref().ok().map(|geometry| result(request, geometry)),
        error: planned.err(),
    }
}

fn result(request: &PlanRequest, geometry: &Geometry) -> LevelResult {
    let lost = losses(request, geometry);
    let uniform = speed::uniform(geometry);
    let zones = zones(geometry);
    LevelResult {
        array_size_bytes: geometry.size_bytes(),
        lost_bytes: lost.iter().map(|loss| loss.bytes).sum(),
        lost,
        disks_may_fail: zones.iter().map(|zone| zone.disks_may_fail).min().unwrap_or(0),
        speedup_reads: decimals(uniform.reads),
        speedup_writes: decimals(uniform.writes),
        zones,
    }
}

pub fn zones(geometry: &Geometry) -> Vec<ZoneReport> {
    let spec = geometry.spec();
    let each = geometry.zones().iter().map(|zone| {
        let speed = speed::of_zone(geometry, zone);
        ZoneReport {
            array_start_bytes: zone.array_start,
            array_size_bytes: zone.array_bytes,
            member_start_bytes: zone.member_start,
            member_size_bytes: zone.member_bytes,
            members: zone.members.clone(),
            disks_may_fail: usize::from(spec.level.parity()) + spec.copies_over(zone.members.len()) - 1,
            speedup_reads: decimals(speed.reads),
            speedup_writes: decimals(speed.writes),
        }
    });
    each.collect()
}

/// Rounds to four decimals; more would depend on the order of the computation.
fn decimals(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Returns the losses. Their sum and the size of the array are exactly the sum of the disks.
fn losses(request: &PlanRequest, geometry: &Geometry) -> Vec<Loss> {
    let spec = geometry.spec();
    let unit = spec.unit_bytes();
    let sizes: u64 = request.disks.iter().map(|disk| disk.size_bytes).sum();
    let data: u64 = geometry.member_data_bytes().iter().sum();
    let whole: u64 = geometry.member_data_bytes().iter().map(|bytes| bytes - bytes % unit).sum();
    let (mut used, mut redundant, mut last_stripe) = (0, 0, 0);
    for zone in geometry.zones() {
        let width = zone.members.len();
        let taken = zone.member_bytes * width as u64;
        let extra = match spec.level.parity() {
            0 => zone.array_bytes * (spec.copies_over(width) as u64 - 1),
            parity => zone.member_bytes * u64::from(parity),
        };
        used += taken;
        redundant += extra;
        last_stripe += taken - zone.array_bytes - extra;
    }
    let mut losses = Vec::new();
    let mut lose = |bytes: u64, to: &'static str, why: String| {
        if bytes > 0 {
            losses.push(Loss { bytes, to, why });
        }
    };
    let (to, why) = match spec.level {
        Level::Raid5 => ("parity", "parity"),
        Level::Raid6 => ("parity", "parity (P and Q)"),
        _ => ("copies", "additional copies"),
    };
    lose(redundant, to, why.to_owned());
    let (to, why) = unused_reason(spec);
    lose(whole - used, to, why);
    let (to, why) = match spec.level {
        Level::Raid0 => ("rounding", "the end, as md rounds a chunk that is no power of two"),
        _ => ("last_row", "the end of the last stripe, where no whole chunk fits"),
    };
    lose(last_stripe, to, why.to_owned());
    let unit = braid_geometry::units::format_size(unit);
    lose(data - whole, "rounding", format!("whole multiples of {unit} on each disk"));
    lose(sizes - data, "metadata", "label, bitmap and journal on each disk".to_owned());
    losses
}

/// Returns why the space above the last zone is not used.
fn unused_reason(spec: &Spec) -> (&'static str, String) {
    match (spec.zones, spec.level) {
        // Whole zones at the end may be cut off.
        (ZonePolicy::All, Level::Raid0) => {
            ("rounding", "the end, as md rounds a chunk that is no power of two".to_owned())
        }
        (ZonePolicy::Single, _) => ("zones_single", "space that not all disks have (--zones single)".to_owned()),
        _ => ("too_few_disks", format!("space that fewer than {} disks have", spec.min_members())),
    }
}

//! Writes the location of every block: as JSON in the format of `tests/golden/md-layouts`, or as text with a drawing.
//!
//! Each run is written as it is computed, so that disks of 100 TiB need no more memory than small ones.

use super::level::{ZoneReport, zones};
use super::text::{disks, head};
use super::{Disk, PlanRequest};
use braid_geometry::units::format_size;
use braid_geometry::{BLOCK_BYTES, Geometry, Level, MemberContent, StridedRun, Zone};
use serde::Serialize;
use std::io::Write;

/// The fields before the runs.
#[derive(Serialize)]
struct Head<'a> {
    name: String,
    level: &'static str,
    layout: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u16>,
    chunk_bytes: u64,
    zone_policy: &'static str,
    members: &'a [Disk],
    array_size_bytes: u64,
    zones: Vec<ZoneReport>,
}

/// Writes the map as one JSON document, one run on each line.
pub fn json(request: &PlanRequest, geometry: &Geometry, out: &mut impl Write) -> anyhow::Result<()> {
    let spec = geometry.spec();
    let head = Head {
        name: format!("{}_{}_{}_disks", spec.level, spec.layout, request.disks.len()),
        level: spec.level.name(),
        layout: spec.layout.name(),
        copies: (spec.level == Level::Raid10).then_some(spec.copies),
        chunk_bytes: spec.chunk_bytes,
        zone_policy: spec.zones.name(),
        members: &request.disks,
        array_size_bytes: geometry.size_bytes(),
        zones: zones(geometry),
    };
    let head = serde_json::to_string_pretty(&head)?;
    // The runs become the last field of the same object.
    let open = head.strip_suffix("\n}").unwrap_or(&head);
    write!(out, "{open},\n  \"runs_strided\": [")?;
    for (index, run) in geometry.runs_strided().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        let StridedRun { first, count, member_step_blocks, array_step } = run;
        write!(
            out,
            "{separator}\n    [{}, {}, {}, {}, \"{}\", {count}, {member_step_blocks}, {array_step}]",
            first.member,
            first.member_start_block,
            first.array_start_block,
            first.length_blocks,
            first.kind.name()
        )?;
    }
    writeln!(out, "\n  ]\n}}")?;
    Ok(())
}

/// Maximum number of stripes drawn for each zone.
const STRIPES_DRAWN: u64 = 6;
/// Maximum number of disks in a drawing; a zone of more disks is not drawn.
const DISKS_DRAWN: usize = 8;

/// Writes the map for people: each zone with a drawing of its first stripes, then the runs.
pub fn text(request: &PlanRequest, geometry: &Geometry, out: &mut impl Write) -> anyhow::Result<()> {
    let spec = geometry.spec();
    out.write_all(head(request).as_bytes())?;
    let size = format_size(geometry.size_bytes());
    writeln!(out, "{} ({}): {size}, {} bytes.", spec.level, spec.layout, geometry.size_bytes())?;
    for (number, zone) in geometry.zones().iter().enumerate() {
        draw(geometry, number, zone, out)?;
    }
    writeln!(out, "\nA line stands for TIMES runs, STEP blocks apart on the disk, ASTEP in the array.")?;
    writeln!(out, "Blocks of {BLOCK_BYTES} bytes in the data area. At P and Q, ARRAY is the stripe.\n")?;
    writeln!(
        out,
        "{:>4} {:>12} {:>6} {:>13} {:>12} {:>11} {:>7} {:>7}",
        "DISK", "BLOCK", "HOLDS", "ARRAY", "LENGTH", "TIMES", "STEP", "ASTEP"
    )?;
    for run in geometry.runs_strided() {
        let StridedRun { first, count, member_step_blocks, array_step } = run;
        writeln!(
            out,
            "{:>4} {:>12} {:>6} {:>13} {:>12} {count:>11} {member_step_blocks:>7} {array_step:>7}",
            first.member,
            first.member_start_block,
            first.kind.name(),
            first.array_start_block,
            first.length_blocks
        )?;
    }
    Ok(())
}

fn draw(geometry: &Geometry, number: usize, zone: &Zone, out: &mut impl Write) -> anyhow::Result<()> {
    let chunk_bytes = geometry.spec().chunk_bytes;
    writeln!(
        out,
        "\nzone {number}: {} at {} of the array; {} at {}",
        format_size(zone.array_bytes),
        format_size(zone.array_start),
        disks(&zone.members),
        format_size(zone.member_start)
    )?;
    if matches!(geometry.spec().level, Level::Concat | Level::Raid1) || zone.members.len() > DISKS_DRAWN {
        return Ok(());
    }
    write!(out, "  chunk of a disk")?;
    for member in &zone.members {
        write!(out, " {:>7}", format!("disk {member}"))?;
    }
    writeln!(out)?;
    let stripes = zone.member_bytes / chunk_bytes;
    for stripe in 0..stripes.min(STRIPES_DRAWN) {
        write!(out, "  {:>15}", zone.member_start / chunk_bytes + stripe)?;
        for &member in &zone.members {
            let cell = match geometry.content_at(member, zone.member_start + stripe * chunk_bytes) {
                MemberContent::Data { array_offset, .. } => (array_offset / chunk_bytes).to_string(),
                MemberContent::Parity { q, .. } => if q { "Q" } else { "P" }.to_owned(),
                MemberContent::Unused { .. } => "-".to_owned(),
            };
            write!(out, " {cell:>7}")?;
        }
        writeln!(out)?;
    }
    if stripes > STRIPES_DRAWN {
        writeln!(out, "  {:>15}", "...")?;
    }
    Ok(())
}

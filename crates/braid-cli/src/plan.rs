//! `braid plan`: computes the arrays that disks of given sizes would make.
//!
//! It opens no disk and needs no daemon. `--map` prints the location of each block of an array, so that other programs can
//! verify the layouts.

mod journal;
pub mod level;
mod map;
mod speed;
#[cfg(test)]
mod tests;
mod text;

use braid_api::{ErrorDetail, Kind};
use braid_format::DiskLayout;
use braid_geometry::units::{format_size, parse_size};
use braid_geometry::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, Geometry, GeometryError, Layout, Level, MEMBERS_MAX, Spec, ZonePolicy,
};
use clap::Args;
use serde::Serialize;
use std::io::{BufWriter, ErrorKind, Write};
use std::process::ExitCode;
use utoipa::ToSchema;

/// Arguments of `braid plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// The sizes of the disks, such as 50G or 2TB
    #[arg(required = true, value_name = "SIZE", value_parser = size)]
    sizes: Vec<u64>,
    /// Only this level: concat, raid0, raid1, raid10, raid5, raid6; also as a number, or as raid-5, stripe, mirror
    #[arg(long, value_parser = level_name)]
    level: Option<Level>,
    /// Contiguous bytes on one disk before the next disk: a multiple of 4K up to 64M
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = chunk)]
    chunk: u64,
    /// Copies of each chunk at raid10 [default: 2]
    #[arg(long, value_name = "N")]
    copies: Option<u16>,
    /// How chunks are arranged: linear, alternate, original, mirror, near, left-symmetric [default: the level's own]
    #[arg(long, value_name = "NAME", value_parser = layout_name)]
    layout: Option<LayoutName>,
    /// The size of a dedicated disk for the journal of raid5 and raid6
    #[arg(long, value_name = "SIZE", value_parser = size)]
    journal: Option<u64>,
    /// Use all zones, or only the first, which spans all disks
    #[arg(long, default_value = "all", value_name = "all|single")]
    zones: ZonePolicy,
    /// The sizes are those of the data areas, without metadata
    #[arg(long)]
    data_sizes: bool,
    /// Print the location of every block (needs --level)
    #[arg(long, requires = "level")]
    map: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The layout argument: md's names for raid10 near include the number of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayoutName {
    layout: Layout,
    copies: Option<u16>,
}

/// A disk, or a data area without metadata.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = PlanDisk)]
pub struct Disk {
    size_bytes: u64,
    data_offset_bytes: u64,
    data_size_bytes: u64,
}

/// The validated arguments.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    disks: Vec<Disk>,
    /// The given sizes are those of data areas.
    data_sizes: bool,
    /// The specification of each level to show.
    specs: Vec<Spec>,
    chunk_bytes: u64,
    zones: ZonePolicy,
    journal: Option<journal::Journal>,
}

impl PlanRequest {
    fn data_sizes(&self) -> Vec<u64> {
        self.disks.iter().map(|disk| disk.data_size_bytes).collect()
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn chunk(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes > CHUNK_BYTES_MAX || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(GeometryError::BadChunk { chunk_bytes: bytes }.to_string());
    }
    Ok(bytes)
}

fn level_name(text: &str) -> Result<Level, String> {
    Level::parse_name_or_alias(text).map_err(|error| format!("{error}. Example: --level raid5"))
}

fn layout_name(text: &str) -> Result<LayoutName, String> {
    if let Some(copies) = text.strip_prefix('n').and_then(|digits| digits.parse().ok()) {
        return Ok(LayoutName { layout: Layout::Near, copies: Some(copies) });
    }
    match text.parse() {
        Ok(layout) => Ok(LayoutName { layout, copies: None }),
        Err(error) => Err(format!("{error}. Example: --level raid0 --layout original")),
    }
}

/// Returns the error for an invalid argument, with the arguments of a valid example.
fn usage(argument: &str, reason: impl std::fmt::Display, example: &str) -> anyhow::Error {
    ErrorDetail::new(Kind::InvalidArgument, format!("{argument}: {reason}"))
        .with("argument", argument)
        .remedy(format!("Example: braid plan {example}"))
        .into()
}

/// Prints the table of levels, or one level, or its map.
///
/// # Errors
/// An [`ErrorDetail`] that names the argument and gives an example, for arguments that cannot be laid out; an I/O error if
/// standard output cannot be written.
pub fn run(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let written = write_plan(&args, &mut out).and_then(|()| Ok(out.flush()?));
    match written {
        // The reader has closed the pipe, as in `braid plan … | head`.
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => {
            Ok(ExitCode::SUCCESS)
        }
        other => other.map(|()| ExitCode::SUCCESS),
    }
}

fn write_plan(args: &PlanArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let request = check(args)?;
    if args.map {
        let spec = request.specs[0];
        let geometry = Geometry::plan(spec, &request.data_sizes()).map_err(|error| name_argument(&spec, &error))?;
        return if args.json { map::json(&request, &geometry, out) } else { map::text(&request, &geometry, out) };
    }
    let report = level::report(&request);
    if let [only] = report.levels.as_slice()
        && let Some(error) = &only.error
    {
        return Err(name_argument(&request.specs[0], error));
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        out.write_all(text::table(&request, &report).as_bytes())?;
    }
    Ok(())
}

/// Validates what clap cannot, and computes the data areas.
fn check(args: &PlanArgs) -> anyhow::Result<PlanRequest> {
    if args.sizes.len() > MEMBERS_MAX {
        let reason = format!("an array has at most {MEMBERS_MAX} disks, not {}", args.sizes.len());
        return Err(usage("SIZE", reason, "50G 100G 100G"));
    }
    let mut disks = Vec::with_capacity(args.sizes.len());
    for (number, &size_bytes) in args.sizes.iter().enumerate() {
        disks.push(disk(number, size_bytes, args.data_sizes)?);
    }
    let total: u128 = disks.iter().map(|disk| u128::from(disk.data_size_bytes)).sum();
    if total > u128::from(braid_geometry::TOTAL_BYTES_MAX) {
        return Err(usage("SIZE", GeometryError::TooLarge, "50G 100G 100G"));
    }
    let levels = args.level.map_or(Level::ALL.to_vec(), |level| vec![level]);
    let copies = copies(args)?;
    let mut specs = Vec::with_capacity(levels.len());
    for level in levels {
        let mut spec =
            Spec { copies, zones: args.zones, chunk_bytes: chunk_of(level, args.chunk)?, ..Spec::new(level) };
        if let Some(name) = args.layout {
            if args.level.is_none() {
                return Err(usage("--layout", "it needs --level", "--level raid0 --layout original 50G 100G 100G"));
            }
            if !level.layouts().contains(&name.layout) {
                let error = GeometryError::UnsupportedLayout { level, layout: name.layout };
                let example = format!("--level {level} --layout {} 50G 100G 100G", level.layouts()[0]);
                return Err(usage("--layout", error, &example));
            }
            spec.layout = name.layout;
        }
        specs.push(spec);
    }
    let journal = args.journal.map(|size| journal::check(size, &disks, args.data_sizes, args.level)).transpose()?;
    Ok(PlanRequest { disks, data_sizes: args.data_sizes, specs, chunk_bytes: args.chunk, zones: args.zones, journal })
}

fn disk(number: usize, size_bytes: u64, data_size: bool) -> anyhow::Result<Disk> {
    if data_size {
        return Ok(Disk { size_bytes, data_offset_bytes: 0, data_size_bytes: size_bytes });
    }
    match DiskLayout::for_device(size_bytes) {
        Ok(places) => Ok(Disk { size_bytes, data_offset_bytes: places.data.start, data_size_bytes: places.data.bytes }),
        Err(error) => Err(usage(&format!("SIZE (disk {number})"), error, "50G 100G 100G")),
    }
}

fn copies(args: &PlanArgs) -> anyhow::Result<u16> {
    let example = "--level raid10 --copies 2 50G 100G 100G";
    let by_layout = args.layout.and_then(|name| name.copies);
    if let (Some(copies), Some(named)) = (args.copies, by_layout)
        && copies != named
    {
        return Err(usage("--copies", format!("{copies}, but the layout has {named}"), example));
    }
    if args.copies.is_some()
        && let Some(level) = args.level
        && level != Level::Raid10
    {
        return Err(usage(
            "--copies",
            format!("{level} has a fixed number of copies, only raid10 has a choice"),
            example,
        ));
    }
    let copies = args.copies.or(by_layout).unwrap_or(2);
    if copies < 2 || usize::from(copies) > args.sizes.len().max(2) {
        let error = GeometryError::BadCopies { copies, members: args.sizes.len() };
        return Err(usage("--copies", error, example));
    }
    Ok(copies)
}

/// Returns the chunk of a level. Concat and raid1 may have none, as with md: sizes are then only rounded to whole blocks.
fn chunk_of(level: Level, chunk_bytes: u64) -> anyhow::Result<u64> {
    match (level, chunk_bytes) {
        (Level::Concat | Level::Raid1, 0) => Ok(BLOCK_BYTES),
        (_, 0) => Err(usage("--chunk", GeometryError::BadChunk { chunk_bytes }, "--chunk 64K 50G 100G 100G")),
        _ => Ok(chunk_bytes),
    }
}

/// Returns the error for disks that cannot be laid out, with the argument that causes it.
fn name_argument(spec: &Spec, error: &GeometryError) -> anyhow::Error {
    let level = spec.level;
    let example = format!("--level {level} 50G 100G 100G");
    match error {
        GeometryError::BadCopies { .. } => usage("--copies", error, "--level raid10 --copies 2 50G 100G 100G"),
        GeometryError::BadChunk { .. } => {
            usage("--chunk", error, &format!("--level {level} --chunk 64K 50G 100G 100G"))
        }
        GeometryError::MemberTooSmall { member, data_bytes, needed_bytes } => {
            let reason = format!(
                "{} are left for data, and {level} needs at least {} on each disk",
                format_size(*data_bytes),
                format_size(*needed_bytes)
            );
            usage(&format!("SIZE (disk {member})"), reason, &example)
        }
        _ => usage("SIZE", error, &example),
    }
}

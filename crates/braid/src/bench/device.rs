//! What is measured: disks, opened as they are, and for this run only combined.

use std::sync::Arc;

use braid_api::{ErrorDetail, Kind};
use braid_engine::{DeviceLayout, LeafId, Node};
use braid_format::foreign;
use braid_geometry::{Geometry, Level, Spec};
use braid_ring::{Disk, DiskSpec, OpenOptions, RingHandle};

use super::BenchArgs;

/// Opens the disks. Nothing is written to one that carries somebody's data, unless forced.
///
/// # Errors
/// A name that is none, a disk that cannot be opened, one that is somebody's.
pub fn open(args: &BenchArgs) -> anyhow::Result<Vec<Arc<Disk>>> {
    let mut disks = Vec::with_capacity(args.disks.len());
    for name in &args.disks {
        let spec = DiskSpec::parse(name).map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()))?;
        let options = OpenOptions { exclusive: true, write: args.writes() };
        let disk = Disk::open(&spec, options).map_err(|error| {
            ErrorDetail::new(open_failed(&error), format!("disk {name}: {error}")).with("disk", name)
        })?;
        if args.writes() && !args.force {
            refuse_somebodys(name, &spec, &disk)?;
        }
        disks.push(Arc::new(disk));
    }
    Ok(disks)
}

fn open_failed(error: &braid_ring::RingError) -> Kind {
    use braid_ring::RingErrorKind as Ring;
    match error.kind {
        Ring::NotFound => Kind::NotFound,
        Ring::InUse => Kind::InUse,
        Ring::Permission => Kind::PermissionDenied,
        _ => Kind::DiskError,
    }
}

/// Looks for what may stand on a file or block device.
fn refuse_somebodys(name: &str, spec: &DiskSpec, disk: &Disk) -> anyhow::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let Some(path) = spec.path() else { return Ok(()) };
    let file = std::fs::File::open(path)?;
    let found = foreign::identify(disk.size_bytes(), |offset, len| {
        let (mut data, mut at) = (vec![0; len], 0);
        while at < len {
            match file.read_at(&mut data[at..], offset + at as u64)? {
                0 => break,
                n => at += n,
            }
        }
        data.truncate(at);
        Ok::<_, std::io::Error>(data)
    })?;
    let Some(found) = found else { return Ok(()) };
    Err(ErrorDetail::new(Kind::WouldDestroy, format!("disk {name} carries {found}, which this would destroy"))
        .with("disk", name)
        .with("found", found)
        .remedy("measure another disk, or only read; --force writes over it")
        .into())
}

/// How the disks are combined.
pub enum Shape {
    /// One disk, as it is.
    Bare,
    /// Every byte on every disk.
    Mirror,
    /// Every byte on one of them.
    Striped(Geometry),
}

impl Shape {
    /// What the arguments ask for.
    ///
    /// # Errors
    /// Sizes that the level cannot use; several disks without a level; a block that the disks do not have.
    pub fn plan(args: &BenchArgs, disks: &[Arc<Disk>]) -> Result<Shape, ErrorDetail> {
        let wrong = |message: String| ErrorDetail::new(Kind::InvalidArgument, message);
        let unit = block_bytes(disks);
        if !args.block.is_multiple_of(u64::from(unit)) {
            return Err(wrong(format!("--block {} is not a multiple of the disks' own {unit} bytes", args.block)));
        }
        match args.level.as_deref() {
            None if disks.len() == 1 => Ok(Shape::Bare),
            None => {
                let remedy = "say how they are combined, for example: --level raid0";
                Err(wrong(format!("{} disks and no level", disks.len())).remedy(remedy))
            }
            Some("raid1") => Ok(Shape::Mirror),
            Some(level) => {
                let level: Level = level.parse().map_err(|error| wrong(format!("--level {level}: {error}")))?;
                let sizes: Vec<u64> = disks.iter().map(|disk| disk.size_bytes()).collect();
                let spec = Spec { chunk_bytes: args.chunk, ..Spec::new(level) };
                let geometry = Geometry::plan(spec, &sizes);
                Ok(Shape::Striped(
                    geometry.map_err(|error| wrong(error.to_string()).remedy("for example: --chunk 64K"))?,
                ))
            }
        }
    }

    /// Bytes of the device that the disks become.
    pub fn size_bytes(&self, disks: &[Arc<Disk>]) -> u64 {
        match self {
            Shape::Bare | Shape::Mirror => disks.iter().map(|disk| disk.size_bytes()).min().unwrap_or(0),
            Shape::Striped(geometry) => geometry.size_bytes(),
        }
    }

    /// Gives the disks to the ring and compiles the device, each disk from its first byte to its last.
    ///
    /// # Errors
    /// The ring takes no more disks.
    pub fn build(self, handle: &RingHandle, disks: &[Arc<Disk>]) -> anyhow::Result<Arc<DeviceLayout>> {
        let mut members = Vec::with_capacity(disks.len());
        for disk in disks {
            let leaf: LeafId = handle.add_leaf(Arc::clone(disk))?;
            members.push(Node::Leaf { leaf, start: 0, len: disk.size_bytes() });
        }
        let root = match self {
            Shape::Bare => members.remove(0),
            Shape::Mirror => Node::Mirror { members },
            Shape::Striped(geometry) => Node::Striped { geometry, members },
        };
        Ok(Arc::new(DeviceLayout::new(1, block_bytes(disks), &root)))
    }
}

/// The largest logical block of the disks.
fn block_bytes(disks: &[Arc<Disk>]) -> u32 {
    disks.iter().map(|disk| disk.logical_block_bytes()).max().unwrap_or(512)
}

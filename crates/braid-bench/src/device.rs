//! Disks of this machine, opened as they are, and for this run only combined.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_api::{ErrorDetail, Kind};
use braid_engine::{
    DeviceLayout, LeafId, LostRows, MirrorMember, MirrorNode, Node, ParityNode, RegionMap, RingDisk, RingPlace, Role,
    ShardId,
};
use braid_format::{MemberId, Uuid, bitmap, foreign};
use braid_geometry::{Geometry, Level};
use braid_nbd::client::{Client, ClientConfig};
use braid_ring::{Disk, DiskSpec, OpenOptions, RingHandle};

use super::target::{Combination, How};

/// The disks of all targets: one that several targets name is opened once and is the same for all of them.
#[derive(Default)]
pub struct Disks {
    /// By name, and by how many of that name a target had before.
    open: BTreeMap<(String, usize), (Arc<Disk>, Option<LeafId>)>,
}

impl Disks {
    /// Opens the disks of one target. Nothing is written to one that carries somebody's data, unless forced.
    ///
    /// # Errors
    /// A name that is none, a disk that cannot be opened, one that is somebody's.
    pub fn open(&mut self, target: &Combination, write: bool, force: bool) -> anyhow::Result<Members> {
        let mut keys = Vec::with_capacity(target.disks.len());
        for name in &target.disks {
            let nth = keys.iter().filter(|(known, _)| known == name).count();
            let key = (name.clone(), nth);
            if !self.open.contains_key(&key) {
                self.open.insert(key.clone(), (Arc::new(open(name, write, force)?), None));
            }
            keys.push(key);
        }
        Ok(Members { disks: keys.iter().map(|key| Arc::clone(&self.open[key].0)).collect(), keys })
    }

    /// Bytes that the disks of a target have got since the ring has them.
    pub fn written_bytes(&self, handle: &RingHandle, members: &Members) -> u64 {
        let leaves = members.keys.iter().filter_map(|key| self.open.get(key)?.1);
        leaves.filter_map(|leaf| handle.leaf_stats(leaf)).map(|stats| stats.written_bytes).sum()
    }

    /// Gives a disk to the ring, once.
    fn leaf(&mut self, handle: &RingHandle, key: &(String, usize)) -> anyhow::Result<LeafId> {
        let (disk, leaf) = self.open.get_mut(key).expect("members were opened here");
        if leaf.is_none() {
            *leaf = Some(handle.add_leaf(Arc::clone(disk))?);
        }
        Ok(leaf.expect("it was set"))
    }
}

/// The open disks of one target, in order.
pub struct Members {
    keys: Vec<(String, usize)>,
    disks: Vec<Arc<Disk>>,
}

impl Members {
    /// The largest logical block of the disks, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.disks.iter().map(|disk| disk.logical_block_bytes()).max().unwrap_or(512)
    }

    /// Whether what is written is there to be read.
    pub fn keeps_data(&self) -> bool {
        !self.keys.iter().any(|(name, _)| name.contains("null:"))
    }

    /// The name of a disk that another target uses, too.
    pub fn shared_with(&self, other: &Members) -> Option<&str> {
        self.keys.iter().find(|key| other.keys.contains(key)).map(|(name, _)| name.as_str())
    }
}

fn open(name: &str, write: bool, force: bool) -> anyhow::Result<Disk> {
    let spec = DiskSpec::parse(name).map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()))?;
    let disk = braid_host::open::open_disk(&spec, name, OpenOptions { exclusive: true, write })
        .map_err(|error| error.detail)?;
    if write && !force {
        refuse_somebodys(name, &spec, &disk)?;
    }
    Ok(disk)
}

/// Looks for what may stand on a file, a block device or an export.
fn refuse_somebodys(name: &str, spec: &DiskSpec, disk: &Disk) -> anyhow::Result<()> {
    use std::os::unix::fs::FileExt as _;
    if let Some(uri) = spec.remote() {
        let mut client = Client::connect(&uri.parse()?, ClientConfig::default())?;
        let found = foreign::identify(disk.size_bytes(), |offset, len| {
            let mut data = vec![0; len];
            client.read_at(offset, &mut data).map(|()| data)
        })?;
        return refuse_found(name, found);
    }
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
    refuse_found(name, found)
}

fn refuse_found(name: &str, found: Option<foreign::Signatures>) -> anyhow::Result<()> {
    let Some(found) = found else { return Ok(()) };
    Err(ErrorDetail::new(Kind::WouldDestroy, format!("disk {name} carries {found}, which this would destroy"))
        .with("disk", name)
        .with("found", found)
        .remedy("measure another disk, or only read; --force writes over it")
        .into())
}

/// The ring of the journal, as on disks that have a label.
const JOURNAL_BYTES: u64 = 8 << 20;

/// How the disks of a target are combined.
pub enum Shape {
    /// One disk, as it is.
    Bare,
    /// Every disk a device of its own.
    Each,
    /// Every byte on several of them.
    Mirrored(Geometry),
    /// The same at a level with parity, the last disk being for the journal alone.
    WithJournal(Geometry),
    /// Every byte on one of them.
    Striped(Geometry),
}

impl Shape {
    /// What a target asks for. `journal_last`: at a level with parity the last disk is for the journal alone.
    ///
    /// # Errors
    /// Sizes or a chunk that the level cannot use.
    pub fn plan(how: How, members: &Members, journal_last: bool) -> Result<Shape, ErrorDetail> {
        match how {
            How::Bare => Ok(Shape::Bare),
            How::Jbod => Ok(Shape::Each),
            How::Array(spec) => {
                // With parity the journal is at each disk's end.
                let journal = if spec.level.parity() > 0 { JOURNAL_BYTES } else { 0 };
                let sizes = members.disks.iter().map(|disk| disk.size_bytes().saturating_sub(journal));
                let journal_last = journal_last && journal > 0;
                let sizes: Vec<u64> = sizes.take(members.disks.len() - usize::from(journal_last)).collect();
                let geometry = Geometry::plan(spec, &sizes).map_err(|error| {
                    ErrorDetail::new(Kind::InvalidArgument, error.to_string()).remedy("for example: --chunk 64K")
                })?;
                match spec.level {
                    Level::Concat | Level::Raid0 => Ok(Shape::Striped(geometry)),
                    _ if journal_last => Ok(Shape::WithJournal(geometry)),
                    Level::Raid1 | Level::Raid10 | Level::Raid5 | Level::Raid6 => Ok(Shape::Mirrored(geometry)),
                }
            }
        }
    }

    /// Bytes of each device that the disks become.
    pub fn sizes_bytes(&self, members: &Members) -> Vec<u64> {
        let sizes = members.disks.iter().map(|disk| disk.size_bytes());
        match self {
            Shape::Each => sizes.collect(),
            Shape::Bare => vec![sizes.min().unwrap_or(0)],
            Shape::Striped(geometry) | Shape::Mirrored(geometry) | Shape::WithJournal(geometry) => {
                vec![geometry.size_bytes()]
            }
        }
    }

    /// Gives the disks to the ring and compiles the devices, each disk from its first byte to its last. Of a mirror every
    /// region counts as written and dirty, as after a while of use; no bit is ever written to a disk. Of one, a member may be
    /// lost.
    ///
    /// # Errors
    /// The ring takes no more disks.
    pub fn build(
        self,
        handle: &RingHandle,
        disks: &mut Disks,
        members: &Members,
        lost: Option<u16>,
    ) -> anyhow::Result<Vec<Arc<DeviceLayout>>> {
        let mut nodes = Vec::with_capacity(members.disks.len());
        for (key, disk) in members.keys.iter().zip(&members.disks) {
            let leaf = disks.leaf(handle, key)?;
            nodes.push(Node::Leaf { leaf, start: 0, len: disk.size_bytes() });
        }
        let roots = match self {
            Shape::Bare | Shape::Each => nodes,
            Shape::Mirrored(geometry) => vec![mirrored(geometry, &nodes, lost, None)],
            Shape::WithJournal(geometry) => {
                let journal = nodes.pop();
                vec![mirrored(geometry, &nodes, lost, journal.as_ref())]
            }
            Shape::Striped(geometry) => vec![Node::Striped { geometry, members: nodes }],
        };
        let block = members.block_bytes();
        Ok(roots.iter().map(|root| Arc::new(DeviceLayout::new(1, block, root))).collect())
    }
}

fn mirrored(geometry: Geometry, nodes: &[Node], lost: Option<u16>, journal: Option<&Node>) -> Node {
    let member = |node: &Node| match *node {
        Node::Leaf { leaf, start, len } => {
            MirrorMember { leaf, start, len, bitmap_start: 0, role: Role::InSync, write_mostly: false }
        }
        _ => unreachable!("a mirror stands on disks"),
    };
    let region_bytes = bitmap::region_bytes_for(geometry.size_bytes());
    let words = geometry.size_bytes().div_ceil(u64::from(region_bytes)).div_ceil(64);
    let all = vec![u64::MAX; words as usize];
    let regions = RegionMap::new(ShardId(0), Uuid::nil(), geometry.size_bytes(), region_bytes, (&all, &all), true);
    let mut members: Vec<MirrorMember> = nodes.iter().map(member).collect();
    if let Some(member) = lost.and_then(|lost| members.get_mut(usize::from(lost))) {
        member.role = Role::Out;
    }
    let ring_blocks = JOURNAL_BYTES / 4096;
    let ring_on = match journal {
        Some(Node::Leaf { leaf, .. }) => RingPlace::Disk(RingDisk {
            leaf: *leaf,
            role: members.len() as u16,
            ring: 1 << 20,
            id: MemberId::from_random(1),
            member_blocks: ring_blocks as u16,
        }),
        _ => RingPlace::Members,
    };
    let parity = (geometry.spec().level.parity() > 0).then(|| ParityNode {
        array: Uuid::nil(),
        run: 1,
        rings: members.iter().map(|member| (member.len - JOURNAL_BYTES) / 4096 * 4096).collect(),
        ring_blocks,
        least_ring_blocks: ring_blocks,
        ring_on,
        generation: 1,
        lost: Arc::new(LostRows::new(&[])),
        marks: Arc::default(),
    });
    Node::Mirrored(Box::new(MirrorNode {
        geometry,
        members,
        successors: Vec::new(),
        regions: Arc::new(regions),
        parity,
        failed: false,
    }))
}

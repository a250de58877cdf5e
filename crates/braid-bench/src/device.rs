//! Disks of this machine, opened without labels, and combined into devices for one run.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_api::{ErrorDetail, Kind};
use braid_engine::{
    DeviceLayout, LeafId, LostStripes, MemberRole, MirrorMember, MirrorNode, Node, ParityNode, RegionMap, RingDisk,
    RingState, ShardId,
};
use braid_format::{MemberId, Uuid, bitmap, foreign};
use braid_geometry::{Geometry, Level};
use braid_nbd::client::{Client, ClientConfig};
use braid_ring::{Disk, DiskSpec, OpenOptions, RingHandle};

use super::target::{Combination, How};

/// The open disks of all targets. A disk that several targets name is opened once and shared.
#[derive(Default)]
pub struct Disks {
    /// The key is the name of the disk, and how many disks of that name precede it in its target.
    open: BTreeMap<(String, usize), (Arc<Disk>, Option<LeafId>)>,
}

impl Disks {
    /// Opens the disks of one target. With `write`, a disk that carries foreign data is refused, unless `force` is set.
    ///
    /// # Errors
    /// A name is malformed, or a disk cannot be opened, or it carries foreign data.
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

    /// Returns the bytes written to the disks of a target since they were added to the ring.
    pub fn written_bytes(&self, handle: &RingHandle, members: &Members) -> u64 {
        let leaves = members.keys.iter().filter_map(|key| self.open.get(key)?.1);
        leaves.filter_map(|leaf| handle.leaf_stats(leaf)).map(|stats| stats.written_bytes).sum()
    }

    /// Adds a disk to the ring, unless it was added before.
    fn leaf(&mut self, handle: &RingHandle, key: &(String, usize)) -> anyhow::Result<LeafId> {
        let (disk, leaf) = self.open.get_mut(key).expect("members were opened by open()");
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
    /// Returns the largest logical block size of the disks, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.disks.iter().map(|disk| disk.logical_block_bytes()).max().unwrap_or(512)
    }

    /// Returns whether the disks store what is written: whether none is a null disk.
    pub fn keeps_data(&self) -> bool {
        !self.keys.iter().any(|(name, _)| name.contains("null:"))
    }

    /// Returns the name of a disk that another target uses, too.
    pub fn shared_with(&self, other: &Members) -> Option<&str> {
        self.keys.iter().find(|key| other.keys.contains(key)).map(|(name, _)| name.as_str())
    }
}

fn open(name: &str, write: bool, force: bool) -> anyhow::Result<Disk> {
    let spec = DiskSpec::parse(name).map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()))?;
    let disk = braid_host::open::open_disk(&spec, name, OpenOptions { exclusive: true, write })
        .map_err(|error| error.detail)?;
    if write && !force {
        refuse_foreign(name, &spec, &disk)?;
    }
    Ok(disk)
}

/// Refuses a file, a block device or an export that carries foreign data.
fn refuse_foreign(name: &str, spec: &DiskSpec, disk: &Disk) -> anyhow::Result<()> {
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
    Err(ErrorDetail::new(Kind::WouldDestroy, format!("disk {name} carries {found}, which writing would destroy"))
        .with("disk", name)
        .with("found", found)
        .remedy("measure another disk, or only read; --force writes over it")
        .into())
}

/// The size of the journal, as on labelled disks.
const JOURNAL_BYTES: u64 = 8 << 20;

/// The devices into which the disks of a target are combined.
pub enum Shape {
    /// The one disk.
    Bare,
    /// A device for each disk.
    Each,
    /// One redundant device: a mirror, or a level with parity.
    Mirrored(Geometry),
    /// One device at a level with parity, whose journal is on the last disk. That disk holds no data.
    WithJournal(Geometry),
    /// One device without redundancy.
    Striped(Geometry),
}

impl Shape {
    /// Plans the devices of a target. `journal_last`: at a level with parity, the last disk holds the journal and no data.
    ///
    /// # Errors
    /// The level cannot use the sizes of the disks or the chunk.
    pub fn plan(how: How, members: &Members, journal_last: bool) -> Result<Shape, ErrorDetail> {
        match how {
            How::Bare => Ok(Shape::Bare),
            How::Jbod => Ok(Shape::Each),
            How::Array(spec) => {
                // With parity, each disk ends with a part of the journal.
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

    /// Returns the size of each device, in bytes.
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

    /// Adds the disks to the ring and returns the layouts of the devices. Devices use each disk from its first byte to its last. Every region of
    /// a redundant device counts as written and dirty, as in an array in use, and the bitmap is never written to disk. The member in the slot
    /// `missing` of a redundant device is missing.
    ///
    /// # Errors
    /// The ring has no room for more disks.
    pub fn build(
        self,
        handle: &RingHandle,
        disks: &mut Disks,
        members: &Members,
        missing: Option<u16>,
    ) -> anyhow::Result<Vec<Arc<DeviceLayout>>> {
        let mut nodes = Vec::with_capacity(members.disks.len());
        for (key, disk) in members.keys.iter().zip(&members.disks) {
            let leaf = disks.leaf(handle, key)?;
            nodes.push(Node::Leaf { leaf, start: 0, len: disk.size_bytes() });
        }
        let roots = match self {
            Shape::Bare | Shape::Each => nodes,
            Shape::Mirrored(geometry) => vec![redundant(geometry, &nodes, missing, None)],
            Shape::WithJournal(geometry) => {
                let journal = nodes.pop();
                vec![redundant(geometry, &nodes, missing, journal.as_ref())]
            }
            Shape::Striped(geometry) => vec![Node::Striped { geometry, members: nodes }],
        };
        let block = members.block_bytes();
        Ok(roots.iter().map(|root| Arc::new(DeviceLayout::new(1, block, root))).collect())
    }
}

fn redundant(geometry: Geometry, nodes: &[Node], missing: Option<u16>, journal: Option<&Node>) -> Node {
    let member = |node: &Node| match *node {
        Node::Leaf { leaf, start, len } => {
            MirrorMember { leaf, start, len, bitmap_start: 0, role: MemberRole::InSync, write_mostly: false }
        }
        _ => unreachable!("members of a redundant device are disks"),
    };
    let region_bytes = bitmap::region_bytes_for(geometry.size_bytes());
    let words = geometry.size_bytes().div_ceil(u64::from(region_bytes)).div_ceil(64);
    let all = vec![u64::MAX; words as usize];
    let regions = RegionMap::new(ShardId(0), Uuid::nil(), geometry.size_bytes(), region_bytes, (&all, &all), true);
    let mut members: Vec<MirrorMember> = nodes.iter().map(member).collect();
    if let Some(member) = missing.and_then(|slot| members.get_mut(usize::from(slot))) {
        member.role = MemberRole::Failed;
    }
    let ring_blocks = JOURNAL_BYTES / 4096;
    let ring_on = match journal {
        Some(Node::Leaf { leaf, .. }) => RingState::Disk(RingDisk {
            leaf: *leaf,
            role: members.len() as u16,
            ring: 1 << 20,
            id: MemberId::from_random(1),
            member_blocks: ring_blocks as u16,
        }),
        _ => RingState::Members,
    };
    let parity = (geometry.spec().level.parity() > 0).then(|| ParityNode {
        array: Uuid::nil(),
        run: 1,
        rings: members.iter().map(|member| (member.len - JOURNAL_BYTES) / 4096 * 4096).collect(),
        ring_blocks,
        ring_blocks_min: ring_blocks,
        ring_location: ring_on,
        generation: 1,
        lost_stripes: Arc::new(LostStripes::new(&[])),
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

//! The kinds of arrays, and the plain arrays of a run as the administrator knows them: level, chunk size and disks.

use std::sync::Arc;

use braid_engine::io::{LeafId, MetaIo};
use braid_engine::layout::{DeviceLayout, Node};
use braid_geometry::{Geometry, Level, Spec};

use crate::content::BLOCK_BYTES;
use crate::meta::Port;
use crate::rng::Rng;

/// The level of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrayKind {
    /// The members are concatenated.
    Concat,
    /// Striped across the members, in zones if their sizes differ.
    Raid0,
    /// Every byte is on every member.
    Raid1,
    /// Every byte is on some of the members.
    Raid10,
    /// Every byte is on one member; each stripe has one parity block (P).
    Raid5,
    /// Every byte is on one member; each stripe has two parity blocks (P and Q).
    Raid6,
}

impl ArrayKind {
    /// All kinds: the default of a run.
    pub const ALL: [ArrayKind; 6] =
        [ArrayKind::Concat, ArrayKind::Raid0, ArrayKind::Raid1, ArrayKind::Raid10, ArrayKind::Raid5, ArrayKind::Raid6];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ArrayKind::Concat => "concat",
            ArrayKind::Raid0 => "raid0",
            ArrayKind::Raid1 => "raid1",
            ArrayKind::Raid10 => "raid10",
            ArrayKind::Raid5 => "raid5",
            ArrayKind::Raid6 => "raid6",
        }
    }

    /// Returns the level of arrays of this kind.
    pub fn level(self) -> Level {
        match self {
            ArrayKind::Concat => Level::Concat,
            ArrayKind::Raid0 => Level::Raid0,
            ArrayKind::Raid1 => Level::Raid1,
            ArrayKind::Raid10 => Level::Raid10,
            ArrayKind::Raid5 => Level::Raid5,
            ArrayKind::Raid6 => Level::Raid6,
        }
    }

    /// Returns whether arrays of this kind have parity.
    pub fn has_parity(self) -> bool {
        matches!(self, ArrayKind::Raid5 | ArrayKind::Raid6)
    }

    /// Returns whether arrays of this kind survive the failure of a member.
    pub fn is_redundant(self) -> bool {
        !matches!(self, ArrayKind::Concat | ArrayKind::Raid0)
    }
}

/// Offset in bytes at which the data of plain arrays begins on each disk.
const DATA_START: u64 = 64 << 10;

/// An array without labels: the simulator remembers what a label would hold.
#[derive(Clone, Debug)]
pub struct PlainArray {
    /// The level: one without redundancy.
    pub kind: ArrayKind,
    /// The disks, in slot order.
    pub disks: Vec<usize>,
    chunk_bytes: u64,
}

impl PlainArray {
    /// Draws the chunk size of an array over these disks.
    pub fn draw(kind: ArrayKind, disks: Vec<usize>, rng: &mut Rng) -> PlainArray {
        let chunk_bytes = 4096 * rng.between(1, 16).next_power_of_two() + if rng.below(4) == 0 { 4096 } else { 0 };
        PlainArray { kind, disks, chunk_bytes }
    }

    /// Returns its size in blocks on disks of these sizes in bytes.
    pub fn blocks(&self, size_of: impl Fn(usize) -> u64) -> u64 {
        let sizes: Vec<u64> = self.disks.iter().map(|d| size_of(*d) - DATA_START).collect();
        self.node(|d| LeafId(d as u32), &sizes).size_bytes() / BLOCK_BYTES as u64
    }

    fn node(&self, leaf: impl Fn(usize) -> LeafId, sizes: &[u64]) -> Node {
        let members = self.disks.iter().zip(sizes);
        let members = members.map(|(d, len)| Node::Leaf { leaf: leaf(*d), start: DATA_START, len: *len }).collect();
        let spec = Spec { chunk_bytes: self.chunk_bytes, ..Spec::new(self.kind.level()) };
        let geometry = Geometry::plan(spec, sizes).expect("a chunk and sizes that are valid");
        Node::Striped { geometry, members }
    }

    /// Flushes the disks, which makes the array ready to serve.
    ///
    /// # Errors
    /// The error of a disk.
    pub async fn start(&self, port: &Port, order: &[LeafId]) -> Result<(), braid_engine::io::LeafError> {
        // A read may return data that is only in a disk's cache and that a power cut would then take back. The flush
        // makes it durable before the first read.
        for leaf in order {
            port.flush(*leaf).await?;
        }
        Ok(())
    }

    /// Builds its layout with this version.
    pub fn layout(&self, version: u32, order: &[LeafId], sizes: &[u64]) -> Arc<DeviceLayout> {
        let ordered = PlainArray { disks: (0..order.len()).collect(), ..self.clone() };
        let data: Vec<u64> = sizes.iter().map(|s| s - DATA_START).collect();
        let node = ordered.node(|slot| order[slot], &data);
        Arc::new(DeviceLayout::new(version, BLOCK_BYTES as u32, &node))
    }
}

/// A plain array and what is known of it across lives.
pub struct ArrayState {
    /// The array.
    pub plain: PlainArray,
    /// The oracle's number; `None` until the array was first started.
    pub number: Option<u64>,
}

impl ArrayState {
    /// Returns its disks.
    pub fn disks(&self) -> &[usize] {
        &self.plain.disks
    }
}

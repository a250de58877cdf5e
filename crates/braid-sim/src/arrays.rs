//! The arrays of a run, as their administrator knows them: what they are, what stands where.

use std::sync::Arc;

use braid_engine::io::{LeafId, MetaIo};
use braid_engine::layout::{DeviceLayout, Node};
use braid_geometry::{Geometry, Level, Spec};

use crate::content::BLOCK_BYTES;
use crate::meta::Port;
use crate::rng::Rng;

/// How an array is put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One member after the other.
    Concat,
    /// Striped by zones.
    Raid0,
    /// Every byte on every member.
    Raid1,
    /// Every byte on some members.
    Raid10,
    /// Every byte on one member, with a parity.
    Raid5,
    /// The same with two.
    Raid6,
}

impl Kind {
    /// All of them: what a run is about unless it is told.
    pub const ALL: [Kind; 6] = [Kind::Concat, Kind::Raid0, Kind::Raid1, Kind::Raid10, Kind::Raid5, Kind::Raid6];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Concat => "concat",
            Kind::Raid0 => "raid0",
            Kind::Raid1 => "raid1",
            Kind::Raid10 => "raid10",
            Kind::Raid5 => "raid5",
            Kind::Raid6 => "raid6",
        }
    }

    /// The level of arrays of this kind.
    pub fn level(self) -> Level {
        match self {
            Kind::Concat => Level::Concat,
            Kind::Raid0 => Level::Raid0,
            Kind::Raid1 => Level::Raid1,
            Kind::Raid10 => Level::Raid10,
            Kind::Raid5 => Level::Raid5,
            Kind::Raid6 => Level::Raid6,
        }
    }

    /// Whether arrays of this kind have parity.
    pub fn has_parity(self) -> bool {
        matches!(self, Kind::Raid5 | Kind::Raid6)
    }

    /// Whether arrays of this kind go on when members fail.
    pub fn is_redundant(self) -> bool {
        !matches!(self, Kind::Concat | Kind::Raid0)
    }
}

/// Where trial arrays keep their data.
const DATA_START: u64 = 64 << 10;

/// One array without labels: the simulator remembers what the label would.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How it is put together: without redundancy.
    pub kind: Kind,
    /// The disks, in slot order.
    pub disks: Vec<usize>,
    chunk_bytes: u64,
}

impl Trial {
    /// Any array over these disks.
    pub fn draw(kind: Kind, disks: Vec<usize>, rng: &mut Rng) -> Trial {
        let chunk_bytes = 4096 * rng.between(1, 16).next_power_of_two() + if rng.below(4) == 0 { 4096 } else { 0 };
        Trial { kind, disks, chunk_bytes }
    }

    /// Blocks that it offers on disks of these sizes in bytes.
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

    /// Everything that must be done before the array may serve.
    ///
    /// # Errors
    /// As the disks.
    pub async fn start(&self, port: &Port, order: &[LeafId]) -> Result<(), braid_engine::io::LeafError> {
        // What is read from a cache must not be gone after the next power cut.
        for leaf in order {
            port.flush(*leaf).await?;
        }
        Ok(())
    }

    /// The layout of this version.
    pub fn layout(&self, version: u32, order: &[LeafId], sizes: &[u64]) -> Arc<DeviceLayout> {
        let ordered = Trial { disks: (0..order.len()).collect(), ..self.clone() };
        let data: Vec<u64> = sizes.iter().map(|s| s - DATA_START).collect();
        let node = ordered.node(|slot| order[slot], &data);
        Arc::new(DeviceLayout::new(version, BLOCK_BYTES as u32, &node))
    }
}

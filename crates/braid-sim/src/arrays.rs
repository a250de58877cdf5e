//! The arrays of a run, as their administrator knows them: what they are, what stands where.

use std::sync::Arc;

use braid_engine::io::{LeafId, MetaIo, ShardId};
use braid_engine::layout::{DeviceLayout, Node};
use braid_engine::touch::TouchMap;
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
    /// Two copies with a map of touched regions: the engine's trial of fan-out and of the slow path.
    Mirror,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Concat, Kind::Raid0, Kind::Mirror];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Concat => "concat",
            Kind::Raid0 => "raid0",
            Kind::Mirror => "mirror",
        }
    }
}

/// Where the copies of a mirror keep their bits, in bytes from the start of the disk.
const BITS_START: u64 = 0;
/// Where trial arrays keep their data.
const DATA_START: u64 = 64 << 10;

/// One array without labels: the simulator remembers what the label would.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How it is put together.
    pub kind: Kind,
    /// The disks, in slot order.
    pub disks: Vec<usize>,
    chunk_bytes: u64,
    region_bytes: u64,
    /// The members are known to be equal: it was stopped properly, and no write had failed.
    pub clean: bool,
}

impl Trial {
    /// Any array over these disks.
    pub fn draw(kind: Kind, disks: Vec<usize>, rng: &mut Rng) -> Trial {
        let chunk_bytes = 4096 * rng.between(1, 16).next_power_of_two() + if rng.below(4) == 0 { 4096 } else { 0 };
        let region_bytes = 1 << rng.between(14, 20);
        Trial { kind, disks, chunk_bytes, region_bytes, clean: true }
    }

    /// Blocks that it offers on disks of these sizes in bytes.
    pub fn blocks(&self, size_of: impl Fn(usize) -> u64) -> u64 {
        let sizes: Vec<u64> = self.disks.iter().map(|d| size_of(*d) - DATA_START).collect();
        self.node(|d| LeafId(d as u32), &sizes, None).size_bytes() / BLOCK_BYTES as u64
    }

    fn node(&self, leaf: impl Fn(usize) -> LeafId, sizes: &[u64], map: Option<Arc<TouchMap>>) -> Node {
        let members = self.disks.iter().zip(sizes);
        let members = members.map(|(d, len)| Node::Leaf { leaf: leaf(*d), start: DATA_START, len: *len }).collect();
        let level = match self.kind {
            Kind::Concat => Level::Concat,
            Kind::Raid0 => Level::Raid0,
            Kind::Mirror => {
                let mirror = Node::Mirror { members };
                return match map {
                    Some(map) => Node::Touched { child: Box::new(mirror), map },
                    None => mirror,
                };
            }
        };
        let spec = Spec { chunk_bytes: self.chunk_bytes, ..Spec::new(level) };
        let geometry = Geometry::plan(spec, sizes).expect("a chunk and sizes that are valid");
        let members: Vec<Node> = members;
        Node::Striped { geometry, members }
    }

    /// Makes the members ready for their first use: a mirror starts with no region touched.
    ///
    /// # Errors
    /// As the disks.
    pub async fn format(&self, port: &Port, leaf: impl Fn(usize) -> LeafId) -> Result<(), braid_engine::io::LeafError> {
        if self.kind == Kind::Mirror {
            for disk in &self.disks {
                port.write(leaf(*disk), BITS_START, vec![0; 4096], true).await?;
            }
        }
        Ok(())
    }

    /// Everything that must be done before the array may serve, in this order of the members.
    ///
    /// # Errors
    /// As the disks.
    pub async fn start(
        &self,
        port: &Port,
        order: &[LeafId],
        home: ShardId,
    ) -> Result<Started, braid_engine::io::LeafError> {
        // What is read from a cache must not be gone after the next power cut.
        for leaf in order {
            port.flush(*leaf).await?;
        }
        let sizes: Vec<u64> = order.iter().map(|l| port.size_bytes(*l) - DATA_START).collect();
        if self.kind != Kind::Mirror {
            return Ok(Started { map: None });
        }
        let size = *sizes.iter().min().expect("a mirror has members");
        let map = TouchMap::new(home, size, self.region_bytes, order.iter().map(|l| (*l, BITS_START)).collect());
        let mut bits = [0u8; 4096];
        for leaf in order {
            let found = port.read(*leaf, BITS_START, 4096).await?;
            bits.iter_mut().zip(found).for_each(|(all, some)| *all |= some);
        }
        // Bits found on some are rewritten on all.
        for leaf in order {
            port.write(*leaf, BITS_START, bits.to_vec(), true).await?;
        }
        map.load_block(0, &bits);
        if !self.clean {
            self.copy_touched(port, order, &map, size).await?;
        }
        Ok(Started { map: Some(Arc::new(map)) })
    }

    /// Makes every copy of every touched region like the first member's, and durable.
    async fn copy_touched(
        &self,
        port: &Port,
        order: &[LeafId],
        map: &TouchMap,
        size: u64,
    ) -> Result<(), braid_engine::io::LeafError> {
        let mut at = 0;
        while at < size {
            let end = map.region_end(at).min(size);
            if map.is_durable(map.region_of(at)) {
                let data = port.read(order[0], DATA_START + at, (end - at) as usize).await?;
                for leaf in &order[1..] {
                    port.write(*leaf, DATA_START + at, data.clone(), false).await?;
                }
            }
            at = end;
        }
        for leaf in order {
            port.flush(*leaf).await?;
        }
        Ok(())
    }

    /// The layout of this version, members in the order given.
    pub fn layout(&self, version: u32, order: &[LeafId], sizes: &[u64], started: &Started) -> Arc<DeviceLayout> {
        let ordered = Trial { disks: (0..order.len()).collect(), ..self.clone() };
        let data: Vec<u64> = sizes.iter().map(|s| s - DATA_START).collect();
        let node = ordered.node(|slot| order[slot], &data, started.map.clone());
        Arc::new(DeviceLayout::new(version, BLOCK_BYTES as u32, &node))
    }
}

/// What the start of an array yields for as long as it runs.
#[derive(Clone, Debug)]
pub struct Started {
    map: Option<Arc<TouchMap>>,
}

//! A member of a pool as its label describes it: its device, and where its structures begin.

use braid_format::pool::PoolMemberLayout;

use crate::io::DeviceId;

/// Where a member's structures begin, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberLayout {
    /// Two blocks for ring starts.
    pub starts: u64,
    /// Owners.
    pub owners: u64,
    /// Records.
    pub table: u64,
    /// Addresses of packed extents.
    pub addresses: u64,
    /// The first extent.
    pub data: u64,
}

/// One member of a pool, as its label says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolDevice {
    /// Its number in the pool.
    pub number: u8,
    /// Its device.
    pub device: DeviceId,
    /// Its layout.
    pub layout: MemberLayout,
    /// First byte of the ring, and blocks in it.
    pub ring: (u64, u64),
    /// Its extents.
    pub extents: u32,
    /// Records without an extent.
    pub zero_slots: u32,
}

impl PoolDevice {
    /// Returns the member with this number and layout on a device.
    pub fn new(number: u8, device: DeviceId, places: &PoolMemberLayout) -> PoolDevice {
        PoolDevice {
            number,
            device,
            layout: MemberLayout {
                starts: places.checkpoints.start,
                owners: places.owners.start,
                table: places.table.start,
                addresses: places.addresses.start,
                data: places.data.start,
            },
            ring: (places.ring.start, u64::from(places.ring_blocks())),
            extents: places.extents,
            zero_slots: places.zero_slots,
        }
    }
}

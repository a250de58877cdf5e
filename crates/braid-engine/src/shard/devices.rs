//! The table of devices of one shard: current layouts, and old ones that still have users.

use std::sync::Arc;

use crate::io::{DeviceId, Op};
use crate::layout::DeviceLayout;
use crate::limits::{LATE_BYTES_MAX, LATE_MAX};
use crate::mirror::MemberSet;

/// What a device did on one shard since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeviceCounters {
    /// Reads answered.
    pub reads: u64,
    /// Writes, zeroing writes included, answered.
    pub writes: u64,
    /// Discards answered.
    pub discards: u64,
    /// Flushes answered.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written or zeroed.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl DeviceCounters {
    #[inline]
    pub(crate) fn count(&mut self, op: Op, bytes: u64, failed: bool) {
        match op {
            Op::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Op::Write | Op::WriteZeroes => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
            Op::Discard => self.discards += 1,
            Op::Flush => self.flushes += 1,
        }
        self.errors += u64::from(failed);
    }

    /// Returns the number of requests answered, of every kind.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.discards + self.flushes
    }

    /// Adds what the device did on another shard.
    pub fn add(&mut self, other: &DeviceCounters) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.discards += other.discards;
        self.flushes += other.flushes;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.errors += other.errors;
    }
}

// Aligned, so that the lookup is a shift, and the users of neighbouring devices are in different cache lines.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Device {
    pub current: Option<Arc<DeviceLayout>>,
    /// The version that new requests are planned with, or 0.
    pub version: u32,
    /// Number of slots that use the current layout.
    pub users: u32,
    /// Requests answered at their time limit that the kernel still has, and their bytes.
    late: u32,
    late_bytes: u64,
    /// The maximum of late requests is reached: no more requests are accepted.
    pub late_full: bool,
    /// A member failed: no request is answered or begun until a layout without it is published.
    pub frozen: bool,
    /// The current layout is held: no request is answered or begun, but nothing has failed.
    pub held: bool,
    /// Requests are answered under a lease.
    pub replicated: bool,
    /// A member did not complete an I/O inline: the fast path is not tried again.
    pub takes_time: bool,
    /// Members whose failure has been reported to the control plane since the last publish.
    pub reported: MemberSet,
    /// Earlier layouts, oldest first, each with the number of slots that use it. A layout leaves the list when it and
    /// all before it have no users.
    pub retired: Vec<(Arc<DeviceLayout>, u32)>,
    pub counters: DeviceCounters,
}

impl Device {
    /// Counts a request that has become late.
    #[cold]
    pub fn enter_late(&mut self, bytes: u64) {
        self.late += 1;
        self.late_bytes += bytes;
        self.late_full = self.late >= LATE_MAX || self.late_bytes >= LATE_BYTES_MAX;
    }

    /// Counts a late request whose I/O the kernel has returned.
    #[cold]
    pub fn leave_late(&mut self, bytes: u64) {
        self.late -= 1;
        self.late_bytes -= bytes;
        self.late_full = self.late >= LATE_MAX || self.late_bytes >= LATE_BYTES_MAX;
    }

    /// Returns the layout of this version, which has at least one user.
    #[inline]
    pub fn layout(&self, version: u32) -> &Arc<DeviceLayout> {
        match &self.current {
            Some(current) if self.version == version => current,
            _ => &self.retired.iter().find(|(l, _)| l.version() == version).expect("a version with users is kept").0,
        }
    }
}

/// All devices.
pub(crate) struct Devices {
    table: Box<[Device]>,
    drained: Vec<(DeviceId, u32)>,
}

impl Devices {
    pub fn new(count: u32) -> Devices {
        Devices { table: (0..count).map(|_| Device::default()).collect(), drained: Vec::with_capacity(64) }
    }

    /// Returns the maximum number of devices.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub fn get(&self, device: DeviceId) -> Option<&Device> {
        self.table.get(device.index())
    }

    #[inline]
    pub fn get_mut(&mut self, device: DeviceId) -> Option<&mut Device> {
        self.table.get_mut(device.index())
    }

    #[inline]
    pub fn at(&self, device: u32) -> &Device {
        &self.table[DeviceId(device).index()]
    }

    #[inline]
    pub fn at_mut(&mut self, device: u32) -> &mut Device {
        &mut self.table[DeviceId(device).index()]
    }

    /// Makes `layout` the one for new requests. Returns the version that must drain, if there was one.
    pub fn publish(&mut self, id: DeviceId, layout: Option<Arc<DeviceLayout>>) -> Option<u32> {
        let device = &mut self.table[id.index()];
        if let (Some(old), Some(new)) = (&device.current, &layout) {
            assert!(new.version() > old.version(), "layout versions of a device rise");
        }
        device.version = layout.as_ref().map_or(0, |l| l.version());
        (device.frozen, device.reported, device.takes_time) = (false, MemberSet::NONE, false);
        device.held = layout.as_ref().is_some_and(|layout| layout.held);
        // Requests in flight use their own layouts.
        let others = device.replicated && (device.users > 0 || !device.retired.is_empty());
        device.replicated = others || layout.as_ref().is_some_and(|layout| layout.lease.is_some());
        let old = std::mem::replace(&mut device.current, layout)?;
        let users = std::mem::take(&mut device.users);
        let version = old.version();
        if users == 0 && device.retired.is_empty() {
            self.drained.push((id, version));
        }
        if users > 0 || !device.retired.is_empty() {
            // The list reallocates if requests wait for long, for example for voters, while the layout changes often.
            device.retired.push((old, users));
        }
        Some(version)
    }

    #[inline]
    pub fn leave(&mut self, id: u32, version: u32) {
        let device = &mut self.table[DeviceId(id).index()];
        if device.version == version {
            device.users -= 1;
        } else {
            self.leave_retired(id, version);
        }
    }

    #[cold]
    fn leave_retired(&mut self, id: u32, version: u32) {
        let retired = &mut self.table[DeviceId(id).index()].retired;
        let at = retired.iter().position(|(l, _)| l.version() == version).expect("a version with users is kept");
        retired[at].1 -= 1;
        // A version has drained only if all earlier versions have.
        let gone = retired.iter().take_while(|(_, users)| *users == 0).count();
        for (layout, _) in retired.drain(..gone) {
            self.drained.push((DeviceId(id), layout.version()));
        }
    }

    pub fn pop_drained(&mut self) -> Option<(DeviceId, u32)> {
        self.drained.pop()
    }
}

//! Members are added while the pool serves; a crash may come between any two steps of that.

use braid_engine::DeviceId;
use braid_engine::pool::{AddError, EXTENT_BYTES, PoolDevice};

use super::disk::Disk;
use super::world::{BLOCK, World};

/// A member that is on its way into the pool.
pub(super) struct Growing {
    pub device: PoolDevice,
    step: Step,
}

enum Step {
    /// Its start is durable.
    Made,
    /// The pool writes to it; this checkpoint is to end.
    Taken(u64),
    /// The labels name it.
    Named,
}

impl World {
    /// Begins to add a member, or goes on with it.
    pub(super) fn grow_pool(&mut self) {
        if self.has_failed() {
            return;
        }
        let Some(Growing { device, step }) = self.growing.take() else {
            if self.disks.len() < 8 {
                self.make_member();
            }
            return;
        };
        let number = device.number;
        let step = match step {
            Step::Made => match self.pool().add_member(&device) {
                Ok(()) => {
                    self.closed.insert(usize::from(number));
                    Step::Taken(self.pool().request_checkpoint())
                }
                Err(AddError::Again) => Step::Made,
                Err(error) => unreachable!("a member that is refused: {error}"),
            },
            Step::Taken(checkpoint) if self.pool().is_checkpointed(checkpoint) => {
                self.devices.push(device);
                self.lived.insert(number, self.life);
                self.note(|| format!("member {number} is one"), u64::from(number));
                Step::Named
            }
            Step::Taken(checkpoint) => Step::Taken(checkpoint),
            Step::Named => {
                if self.closed.remove(&usize::from(number)) {
                    self.pool().close_member(number, false);
                }
                self.count("members added");
                return;
            }
        };
        self.growing = Some(Growing { device, step });
    }

    /// A disk like one that is there, with zeros, and the start that the pool gives.
    fn make_member(&mut self) {
        // The tail is as large as the rings allow of those who are here.
        let like = *self.rng.pick(&self.here());
        let like = *self.device(like);
        let number = self.disks.len() as u8;
        let device = PoolDevice { number, device: DeviceId(u32::from(number)), ..like };
        let mut disk = Disk::new(like.layout.data, u64::from(like.extents) * EXTENT_BYTES / BLOCK);
        disk.write(like.layout.starts, &self.pool().begin_member().encode());
        let mark = disk.mark();
        disk.flushed(mark);
        self.disks.push(disk);
        self.note(|| format!("member {number} is made"), u64::from(number));
        self.growing = Some(Growing { device, step: Step::Made });
    }
}

//! Members are added while the pool serves. A crash may come between any two steps of it.

use braid_engine::DeviceId;
use braid_engine::pool::{AddError, EXTENT_BYTES, PoolDevice};

use super::disk::Disk;
use super::member_states::{AddStep, AddingMember};
use super::world::{BLOCK, World};

impl World {
    /// Begins to add a member, or continues adding one.
    pub(super) fn add_member_step(&mut self) {
        if self.has_failed() {
            return;
        }
        let Some(AddingMember { device, step }) = self.adding.take() else {
            if self.disks.len() < 8 {
                self.create_member();
            }
            return;
        };
        let number = device.number;
        let step = match step {
            AddStep::Created => match self.pool().add_member(&device) {
                Ok(()) => {
                    self.closed.insert(usize::from(number));
                    AddStep::Added(self.pool().request_checkpoint())
                }
                Err(AddError::Again) => AddStep::Created,
                Err(error) => unreachable!("a member that is refused: {error}"),
            },
            AddStep::Added(checkpoint) if self.pool().is_checkpointed(checkpoint) => {
                self.devices.push(device);
                self.last_life.insert(number, self.life);
                self.note(|| format!("member {number} is one"), u64::from(number));
                AddStep::Labelled
            }
            AddStep::Added(checkpoint) => AddStep::Added(checkpoint),
            AddStep::Labelled => {
                if self.closed.remove(&usize::from(number)) {
                    self.pool().close_member(number, false);
                }
                self.count("members added");
                return;
            }
        };
        self.adding = Some(AddingMember { device, step });
    }

    /// Creates a disk like that of a present member, with zeros and the checkpoint that the pool provides.
    fn create_member(&mut self) {
        // The in-memory log is as large as the rings of the present members allow.
        let like = *self.rng.pick(&self.present_members());
        let like = *self.device(like);
        let number = self.disks.len() as u8;
        let device = PoolDevice { number, device: DeviceId(u32::from(number)), ..like };
        let mut disk = Disk::new(like.layout.data, u64::from(like.extents) * EXTENT_BYTES / BLOCK);
        disk.write(like.layout.starts, &self.pool().begin_member().encode());
        let mark = disk.mark();
        disk.flushed(mark);
        self.disks.push(disk);
        self.note(|| format!("member {number} is made"), u64::from(number));
        self.adding = Some(AddingMember { device, step: AddStep::Created });
    }
}

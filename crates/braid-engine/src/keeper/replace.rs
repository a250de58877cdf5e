//! Replaces members while they serve: a successor is rebuilt like any member, and then takes the slot.

use super::{Keeper, KeeperIo, Note};
use crate::lifecycle::{LifecycleError, Replacement};

impl Keeper {
    /// Lets a disk become the successor of a member.
    pub(super) async fn begin_replacing<I: KeeperIo>(
        &mut self,
        io: &I,
        role: u16,
        by: Replacement,
    ) -> Result<(), LifecycleError> {
        if let Replacement::New { leaf, .. } = by {
            self.check_idle(io, leaf).await?;
        }
        let successor = self.array.begin_replacing(io, role, by).await?;
        io.note(self.options.device, Note::Filling(successor));
        Ok(())
    }

    /// Leaves one holder for every slot, and lets spares take slots that failed and have none.
    pub(super) async fn settle_slots<I: KeeperIo>(&mut self, io: &I) {
        self.settle_successors(io).await;
        self.use_spares(io).await;
    }

    /// Drops members whose successor is in sync; gives the slots of failed members to their successors.
    pub(super) async fn settle_successors<I: KeeperIo>(&mut self, io: &I) {
        while !self.failed {
            if let Some(role) = self.array.to_retire() {
                self.retiring = Some(role);
                self.drop_members(io, &[role], false).await;
                self.retiring = None;
            } else if let Some(role) = self.array.to_seat() {
                match self.array.seat_successor(io, role).await {
                    Err(error @ LifecycleError::Beyond { .. }) => return self.fail(io, error).await,
                    Err(error) => {
                        io.note(self.options.device, Note::Trouble(error));
                        return self.publish_changes(io);
                    }
                    Ok(()) => {
                        self.repairs.remove(&role);
                        if let Some(leaf) = self.array.leaf(role) {
                            io.note(self.options.device, Note::Replaced(role, leaf));
                        }
                    }
                }
                self.publish_changes(io);
            } else {
                break;
            }
        }
    }
}

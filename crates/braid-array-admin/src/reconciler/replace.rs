//! Replaces members while they serve: a successor is rebuilt like any member, and then takes the slot.

use super::{Reconciler, ReconcilerEvent, ReconcilerIo};
use crate::lifecycle::{LifecycleError, Replacement};

impl Reconciler {
    /// Lets a disk become the successor of a member.
    pub(super) async fn begin_replacing<I: ReconcilerIo>(
        &mut self,
        io: &I,
        role: u16,
        by: Replacement,
    ) -> Result<(), LifecycleError> {
        if let Replacement::New { leaf, .. } = by {
            self.check_idle(io, leaf).await?;
        }
        let successor = self.array.begin_replacing(io, role, by).await?;
        io.report(self.options.device, ReconcilerEvent::RebuildStarted(successor));
        Ok(())
    }

    /// Leaves one holder for every slot, and lets spares take slots that failed and have none.
    pub(super) async fn settle_slots<I: ReconcilerIo>(&mut self, io: &I) {
        self.settle_successors(io).await;
        self.use_spares(io).await;
    }

    /// Drops members whose successor is in sync; gives the slots of failed members to their successors.
    pub(super) async fn settle_successors<I: ReconcilerIo>(&mut self, io: &I) {
        while !self.failed {
            if let Some(role) = self.array.to_retire() {
                self.retiring = Some(role);
                self.drop_members(io, &[role], false).await;
                self.retiring = None;
            } else if let Some(role) = self.array.slot_for_successor() {
                match self.array.give_slot_to_successor(io, role).await {
                    Err(error @ LifecycleError::BeyondTolerance { .. }) => return self.fail(io, error).await,
                    Err(error) => {
                        io.report(self.options.device, ReconcilerEvent::OperationFailed(error));
                        return self.publish_changes(io);
                    }
                    Ok(()) => {
                        self.repairs.remove(&role);
                        if let Some(leaf) = self.array.leaf(role) {
                            io.report(self.options.device, ReconcilerEvent::Replaced(role, leaf));
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

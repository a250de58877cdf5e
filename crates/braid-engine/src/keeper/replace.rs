//! Members that are replaced while they serve: a successor is filled as any member is; then it takes the place.

use super::{Keeper, KeeperIo, Note};
use crate::lifecycle::{LifecycleError, Replacement};

impl Keeper {
    /// A disk becomes the successor of a member.
    pub(super) async fn begin_replacing<I: KeeperIo>(
        &mut self,
        io: &I,
        role: u16,
        by: Replacement,
    ) -> Result<(), LifecycleError> {
        if let Replacement::New { leaf, .. } = by {
            self.is_calm(io, leaf).await?;
        }
        let successor = self.array.begin_replacing(io, role, by).await?;
        io.note(self.options.device, Note::Filling(successor));
        Ok(())
    }

    /// Brings every role to one holder, and gives those that are out and have none to spares.
    pub(super) async fn settle_roles<I: KeeperIo>(&mut self, io: &I) {
        self.settle_successors(io).await;
        self.use_spares(io).await;
    }

    /// Who has a successor in sync is left out; who is out gives its role to its successor.
    pub(super) async fn settle_successors<I: KeeperIo>(&mut self, io: &I) {
        while !self.failed {
            if let Some(role) = self.array.to_retire() {
                self.retiring = Some(role);
                self.leave_out(io, &[role], false).await;
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

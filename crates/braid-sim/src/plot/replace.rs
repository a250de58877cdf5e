//! The administrator replaces a member while it still serves.

use braid_engine::io::DeviceId;
use braid_engine::keeper::Order;
use braid_engine::lifecycle::Replacement;
use braid_format::MemberId;

use super::Admin;
use super::drills::Whom;

impl Admin {
    /// The disk that a drill keeps for this is to take the place of the victim, or of the member that is always well.
    pub(super) async fn replace_by_drill(&mut self, index: usize, victim: u16, whom: Whom) {
        let (successor, well) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            (mirror.others[0], mirror.disks.iter().position(|disk| Some(*disk) == mirror.well))
        };
        let Some(leaf) = self.leaves.get(&successor).copied() else { return };
        let role = if whom == Whom::Victim { Some(victim) } else { well.map(|role| role as u16) };
        let Some(role) = role else { return };
        let by = Replacement::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
        self.phase("replacing a member");
        match self.port.give_order(self.kept[&index].id, Order::Replace { slot: role, successor: by }).await {
            Ok(()) => self.count("replace a member"),
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// A disk, or a spare, is to take the place of a member that is not always well: of the first that serves.
    pub(super) async fn replace_member(&mut self, index: usize, id: DeviceId, others: &[usize]) {
        let (mut roles, seats) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            let role = |victim: &usize| mirror.disks.iter().position(|disk| disk == victim);
            (mirror.victims.iter().filter_map(role).collect::<Vec<_>>(), mirror.disks.len() as u16)
        };
        self.rng.shuffle(&mut roles);
        let disk = *self.rng.pick(others);
        let spare = self.rng.below(4) == 0;
        self.phase("replacing a member");
        for role in roles {
            let by = match self.leaves.get(&disk) {
                Some(leaf) if !spare => {
                    Replacement::New { leaf: *leaf, id: MemberId::from_random(self.rng.bits()), force: true }
                }
                _ => Replacement::Spare(seats + self.rng.below(2) as u16),
            };
            match self.port.give_order(id, Order::Replace { slot: role as u16, successor: by }).await {
                Ok(()) => return self.count("replace a member"),
                Err(error) => self.expect_refusal(&error),
            }
        }
    }
}

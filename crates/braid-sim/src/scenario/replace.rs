//! The administrator replaces a member that still serves.

use braid_array_admin::lifecycle::Replacement;
use braid_array_admin::reconciler::Order;
use braid_engine::io::DeviceId;
use braid_format::MemberId;

use super::Admin;
use crate::acts::ReplaceTarget;

impl Admin {
    /// Replaces the victim, or the healthy member, by the disk that the scenario reserves for it.
    pub(super) async fn replace_in_scenario(&mut self, index: usize, victim: u16, target: ReplaceTarget) {
        let (successor, healthy) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            (mirror.others[0], mirror.disks.iter().position(|disk| Some(*disk) == mirror.healthy))
        };
        let Some(leaf) = self.leaves.get(&successor).copied() else { return };
        let slot = if target == ReplaceTarget::Victim { Some(victim) } else { healthy.map(|slot| slot as u16) };
        let Some(slot) = slot else { return };
        let by = Replacement::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
        self.phase("replacing a member");
        match self.port.give_order(self.mirrors[&index].id, Order::Replace { slot, successor: by }).await {
            Ok(()) => self.count("replace a member"),
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// Replaces a member that may fail by a disk or a spare: the first member whose replacement is accepted.
    pub(super) async fn replace_member(&mut self, index: usize, id: DeviceId, others: &[usize]) {
        let (mut victim_slots, slots) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            let slot = |victim: &usize| mirror.disks.iter().position(|disk| disk == victim);
            (mirror.victims.iter().filter_map(slot).collect::<Vec<_>>(), mirror.disks.len() as u16)
        };
        self.rng.shuffle(&mut victim_slots);
        let disk = *self.rng.pick(others);
        let spare = self.rng.below(4) == 0;
        self.phase("replacing a member");
        for slot in victim_slots {
            let by = match self.leaves.get(&disk) {
                Some(leaf) if !spare => {
                    Replacement::New { leaf: *leaf, id: MemberId::from_random(self.rng.bits()), force: true }
                }
                _ => Replacement::Spare(slots + self.rng.below(2) as u16),
            };
            match self.port.give_order(id, Order::Replace { slot: slot as u16, successor: by }).await {
                Ok(()) => return self.count("replace a member"),
                Err(error) => self.expect_refusal(&error),
            }
        }
    }
}

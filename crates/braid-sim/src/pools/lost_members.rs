//! Missing members whose loss is accepted for good: the labels no longer name them, and a crash may come before the
//! pool knows. A start must refuse them when they return nevertheless.

use super::member_states::LostMember;
use super::world::{Check, World};

impl World {
    /// Accepts the loss of some members that the pool has started without: the labels no longer name them. Returns them
    /// as a bit mask.
    pub(super) fn accept_some_losses(&mut self) -> u128 {
        if !self.accepts_losses {
            return 0;
        }
        let mut members = 0;
        for number in self
            .missing
            .iter()
            .filter(|(_, missing)| missing.started_without)
            .map(|(number, _)| *number)
            .collect::<Vec<_>>()
        {
            if !self.rng.chance(500_000) {
                continue;
            }
            let at = self.devices.iter().position(|device| device.number == number).expect("a member that is away");
            let device = self.devices.remove(at);
            self.missing.remove(&number);
            self.closed.remove(&usize::from(number));
            self.lost_members.push(LostMember { device, life: self.life });
            self.count("members given up");
            self.note(|| format!("member {number} is given up"), u64::from(number));
            members |= 1 << number;
        }
        self.accepted_losses |= members;
        // A volume that was placed on the lost member alone may be placed anywhere.
        for model in self.models.values_mut().filter(|model| model.member_mask & members != 0) {
            model.member_mask = u128::MAX;
        }
        members
    }

    /// Tells the open pool which losses were accepted, before any volume is served.
    pub(super) fn accept_losses(&mut self) -> Check {
        let members = self.accept_some_losses();
        if members == 0 {
            return Ok(());
        }
        let accepted = self.pool().accept_loss(members).map_err(|error| format!("a loss is not accepted: {error}"));
        accepted.and_then(|()| self.pool().recount())
    }

    /// Lets a member return whose loss was accepted, as if the labels were not consulted. The start must refuse it.
    pub(super) fn return_lost_member(&mut self) -> Check {
        // Until the pool has been opened once more, its checkpoints may call the member missing.
        let old = |lost_members: &&LostMember| lost_members.life + 1 < self.life;
        let Some(device) = self.lost_members.iter().find(old).map(|lost_members| lost_members.device) else {
            return Ok(());
        };
        if !self.rng.chance(800_000) {
            return Ok(());
        }
        self.devices.push(device);
        self.devices.sort_by_key(|device| device.number);
        let opened = self.try_open(u64::MAX, None);
        self.devices.retain(|other| other.number != device.number);
        if opened.is_ok() {
            return Err(format!("member {} is taken back, which was given up", device.number));
        }
        self.count("members refused that were given up");
        Ok(())
    }
}

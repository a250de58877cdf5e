//! Mirrors that get a role more, which a disk takes, or a spare; and roles that are given up again.

use braid_engine::io::DeviceId;
use braid_engine::keeper::Order;
use braid_engine::lifecycle::{RebuildKind, RebuildTarget};
use braid_format::MemberId;
use braid_geometry::Level;

use super::Admin;

/// More roles a mirror does not get here.
const ROLES_MAX: u16 = 6;

impl Admin {
    /// Makes a mirror wider or narrower, now and then, in seeds in which that happens. Says whether it did.
    pub async fn change_some_width(&mut self) -> bool {
        if self.stage.borrow_mut().widths.as_mut().is_none_or(|widths| widths.below(2) != 0) {
            return false;
        }
        let Some((index, id)) = self.kept.iter().next().map(|(index, kept)| (*index, kept.id)) else { return false };
        if self.stage.borrow().mirrors[index].spec.level != Level::Raid1 {
            return false;
        }
        self.phase("changing the width");
        match self.draw_of_width(5) {
            0 | 1 => self.narrow(index, id).await,
            _ => self.widen(index, id).await,
        }
        true
    }

    fn draw_of_width(&self, below: u64) -> u64 {
        self.stage.borrow_mut().widths.as_mut().map_or(0, |widths| widths.below(below))
    }

    /// One role more. A disk takes it, or whoever comes to think of it.
    async fn widen(&mut self, index: usize, id: DeviceId) {
        let (role, others) = {
            let stage = self.stage.borrow();
            (stage.mirrors[index].roles, stage.mirrors[index].others.clone())
        };
        if role >= ROLES_MAX {
            return;
        }
        self.stage.borrow_mut().mirrors[index].changes_width = true;
        if !self.order_of_width(id, Order::Widen, "widen a mirror").await {
            return;
        }
        {
            let mut stage = self.stage.borrow_mut();
            let mirror = &mut stage.mirrors[index];
            (mirror.roles, mirror.changes_width) = (role + 1, false);
        }
        if let Some(kept) = self.kept.get_mut(&index) {
            // Where its copies are now, the keeper knows: nothing of it rots for the rest of this life.
            kept.copies = None;
        }
        if others.is_empty() || self.draw_of_width(4) == 0 {
            return;
        }
        let disk = others[self.draw_of_width(others.len() as u64) as usize];
        let Some(leaf) = self.leaves.get(&disk).copied() else { return };
        let member = MemberId::from_random(self.draw_of_width(u64::MAX));
        let newcomer = RebuildTarget::New { leaf, id: member, force: true };
        self.order_of_width(
            id,
            Order::Rebuild { slot: role, target: newcomer, kind: RebuildKind::Full },
            "take a new role",
        )
        .await;
    }

    /// The last role is given up; who has it is left out, unless that is the one that is well.
    async fn narrow(&mut self, index: usize, id: DeviceId) {
        let (last, is_well) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            let last = mirror.roles.saturating_sub(1);
            (last, mirror.well.is_some() && mirror.disks.get(usize::from(last)).copied() == mirror.well)
        };
        if is_well || last == 0 {
            return;
        }
        // What is refused was so before, or is told by the next one.
        if self.draw_of_width(2) == 0 {
            self.order_of_width(id, Order::Fail(vec![last]), "fail the last role").await;
        }
        self.order_of_width(id, Order::Remove(last), "remove the last role").await;
        self.stage.borrow_mut().mirrors[index].changes_width = true;
        if self.order_of_width(id, Order::Narrow(last), "narrow a mirror").await {
            let mut stage = self.stage.borrow_mut();
            let mirror = &mut stage.mirrors[index];
            (mirror.roles, mirror.changes_width) = (last, false);
            mirror.disks.truncate(usize::from(last).max(1));
            drop(stage);
            if let Some(kept) = self.kept.get_mut(&index) {
                kept.copies = None;
            }
        }
    }

    async fn order_of_width(&mut self, id: DeviceId, order: Order, what: &str) -> bool {
        match self.port.give_order(id, order).await {
            Ok(()) => {
                self.count(what);
                true
            }
            Err(error) => {
                self.expect_refusal(&error);
                false
            }
        }
    }
}

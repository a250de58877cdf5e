//! Mirrors that get a slot more, which a disk or a spare takes, and slots that are removed again.

use braid_array_admin::lifecycle::{RebuildKind, RebuildTarget};
use braid_array_admin::reconciler::Order;
use braid_engine::io::DeviceId;
use braid_format::MemberId;
use braid_geometry::Level;

use super::Admin;

/// Maximum number of slots of a mirror.
const SLOTS_MAX: u16 = 6;

impl Admin {
    /// Makes a mirror wider or narrower at times, in seeds in which that happens. Returns whether it did.
    pub async fn change_some_width(&mut self) -> bool {
        if self.state.borrow_mut().widths.as_mut().is_none_or(|widths| widths.below(2) != 0) {
            return false;
        }
        let Some((index, id)) = self.mirrors.iter().next().map(|(index, served)| (*index, served.id)) else {
            return false;
        };
        if self.state.borrow().mirrors[index].spec.level != Level::Raid1 {
            return false;
        }
        self.phase("changing the width");
        match self.draw_width(5) {
            0 | 1 => self.narrow(index, id).await,
            _ => self.widen(index, id).await,
        }
        true
    }

    fn draw_width(&self, below: u64) -> u64 {
        self.state.borrow_mut().widths.as_mut().map_or(0, |widths| widths.below(below))
    }

    /// Adds a slot. A disk takes it, or it stays free for a spare or a later rebuild.
    async fn widen(&mut self, index: usize, id: DeviceId) {
        let (slot, others) = {
            let state = self.state.borrow();
            (state.mirrors[index].slots, state.mirrors[index].others.clone())
        };
        if slot >= SLOTS_MAX {
            return;
        }
        self.state.borrow_mut().mirrors[index].changes_width = true;
        if !self.order_width_change(id, Order::Widen, "widen a mirror").await {
            return;
        }
        {
            let mut state = self.state.borrow_mut();
            let mirror = &mut state.mirrors[index];
            (mirror.slots, mirror.changes_width) = (slot + 1, false);
        }
        if let Some(served) = self.mirrors.get_mut(&index) {
            // Only the reconciler knows the new locations of copies: no copy rots for the rest of this life.
            served.copies = None;
        }
        if others.is_empty() || self.draw_width(4) == 0 {
            return;
        }
        let disk = others[self.draw_width(others.len() as u64) as usize];
        let Some(leaf) = self.leaves.get(&disk).copied() else { return };
        let member = MemberId::from_random(self.draw_width(u64::MAX));
        let new_member = RebuildTarget::New { leaf, id: member, force: true };
        self.order_width_change(
            id,
            Order::Rebuild { slot, target: new_member, kind: RebuildKind::Full },
            "take a new slot",
        )
        .await;
    }

    /// Removes the last slot. Its member is dropped first, unless it is the healthy one.
    async fn narrow(&mut self, index: usize, id: DeviceId) {
        let (last, is_healthy) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            let last = mirror.slots.saturating_sub(1);
            (last, mirror.healthy.is_some() && mirror.disks.get(usize::from(last)).copied() == mirror.healthy)
        };
        if is_healthy || last == 0 {
            return;
        }
        // Whether this order is refused or skipped, the next one reports what is wrong.
        if self.draw_width(2) == 0 {
            self.order_width_change(id, Order::Fail(vec![last]), "fail the last slot").await;
        }
        self.order_width_change(id, Order::Remove(last), "remove the last slot").await;
        self.state.borrow_mut().mirrors[index].changes_width = true;
        if self.order_width_change(id, Order::Narrow(last), "narrow a mirror").await {
            let mut state = self.state.borrow_mut();
            let mirror = &mut state.mirrors[index];
            (mirror.slots, mirror.changes_width) = (last, false);
            mirror.disks.truncate(usize::from(last).max(1));
            drop(state);
            if let Some(served) = self.mirrors.get_mut(&index) {
                served.copies = None;
            }
        }
    }

    async fn order_width_change(&mut self, id: DeviceId, order: Order, what: &str) -> bool {
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

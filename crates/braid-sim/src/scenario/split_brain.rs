//! Split brain: halves of a redundant array are used separately from each other.

use std::cell::RefCell;
use std::rc::Rc;

use braid_array_admin::lifecycle::{self, StartOptions};
use braid_array_admin::reconciler::{Order, Reconciler, ReconcilerOptions};
use braid_engine::io::{LeafId, ShardId};
use braid_format::MemberState;

use super::Admin;
use crate::content::BLOCK_BYTES;
use crate::stripe_writes::UnreadableStripes;

impl Admin {
    /// Starts the victims without the healthy member and writes to them, as if the halves of a mirror ran in different
    /// machines.
    pub(super) async fn run_split_brain(&mut self, index: usize) {
        let (uuid, disks) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            if mirror.healthy.is_none()
                || mirror.number.is_none()
                || !mirror.diverged.is_empty()
                || !mirror.old.is_empty()
            {
                return;
            }
            (mirror.uuid, mirror.victims.clone())
        };
        let journal = self.journal_for_half(index);
        let disks: Vec<usize> = disks.into_iter().chain(journal).collect();
        let leaves: Vec<LeafId> = disks.iter().filter_map(|disk| self.leaves.get(disk).copied()).collect();
        self.phase("starting half a mirror");
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let Some(found) = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid) else { return };
        let in_sync = |slot: u16| {
            let own = found.members.get(usize::from(slot)).and_then(|m| m.disk.as_ref());
            own.is_some_and(|disk| {
                let id = disk.label.member.id;
                disk.label.array.members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
            })
        };
        let options = StartOptions { degraded: true, ..StartOptions::new(self.rng.bits(), self.rng.bits()) };
        // From here on the victims may have diverged from the other members, even if the start fails.
        self.state.borrow_mut().mirrors[index].diverged = disks.iter().copied().collect();
        self.state.borrow_mut().mirrors[index].left_behind = false;
        let Ok(array) = lifecycle::start(&self.port, &found, options).await else {
            self.count("half a mirror does not start");
            return;
        };
        self.count("start half a mirror");
        let geometry = array.geometry().clone();
        for at in (0..geometry.size_bytes()).step_by(BLOCK_BYTES) {
            let mut whole = false;
            match geometry.stripe_of(at) {
                // A stripe is whole if at least as many in-sync members hold it as it has data chunks.
                Some(stripe) => {
                    let there = stripe.members.iter().filter(|member| in_sync(**member)).count();
                    whole = there >= stripe.data_chunks();
                }
                None => geometry.copies(at, &mut |piece| whole |= in_sync(piece.member)),
            }
            if !whole {
                let why = format!("half of mirror {index} starts, but no member of it is in sync by its own label");
                return self.report_violation(why);
            }
        }
        let id = self.new_device();
        self.state.borrow_mut().half = Some(id);
        let options = ReconcilerOptions {
            device: id,
            block_bytes: BLOCK_BYTES as u32,
            home: ShardId(0),
            clean: found.newest.as_ref().is_some_and(|newest| newest.clean),
            force: false,
            clear_after_ns: self.rng.between(100_000, 10_000_000),
            lease: None,
            in_sectors: false,
            nearest: None,
        };
        let Ok(reconciler) = Reconciler::start(&self.port, array, options).await else { return };
        let blocks = geometry.size_bytes() / BLOCK_BYTES as u64;
        let stripes = UnreadableStripes::of(&reconciler);
        let number = {
            let mut state = self.state.borrow_mut();
            let number = state.oracle.redundant_made("half a mirror", blocks);
            state.oracle.may_fail(number);
            state.oracle.mark_stripes_unreadable(number, &stripes);
            let requests = self.rng.between(1, 20) as u32;
            state.workload.connect_writer(number, id, 0, blocks, requests);
            number
        };
        let ended = Rc::new(RefCell::new(None));
        let (result, port) = (Rc::clone(&ended), self.port.clone());
        self.state.borrow_mut().spawned.push(Box::pin(async move {
            let stopped = reconciler.run(&port).await;
            *result.borrow_mut() = Some(stopped);
        }));
        self.until(|state| state.workload.is_finished(number)).await;
        self.state.borrow_mut().workload.expect_stop(number);
        drop(self.port.give_order(id, Order::Stop).await);
        self.port.forget(id);
        self.state.borrow_mut().jobs.forget(id);
        let mut array = self.ended(&ended).await.array;
        if self.rng.coin() {
            drop(array.stop(&self.port).await);
        }
        self.state.borrow_mut().half = None;
        self.count("stop half a mirror");
    }
}

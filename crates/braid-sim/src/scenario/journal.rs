//! Journals on disks of their own: the administrator moves the journal of an array with parity to a disk and back.
//! That disk fails, is missing when a life begins, or is replaced by an old copy.
//!
//! No guarantee depends on that disk, with one exception: if it is lost with a crash while a member is missing, too,
//! it is unknown which parity agrees with the data. Then, and only then, the array waits until one of the two is back.

use braid_array_admin::lifecycle::{self, Array, CreateRequest, LifecycleError};
use braid_array_admin::reconciler::Order;
use braid_engine::io::LeafId;
use braid_format::MemberId;

use super::{Admin, AdminHabits};
use crate::acts::DiskFault;
use crate::journal_refusal::JournalRefusal;
use crate::run_state::RunState;

impl RunState {
    /// Records that the ring of an array has moved to this disk, or is known to be there; `None`: it is on the
    /// members.
    pub fn record_ring(&mut self, index: usize, disk: Option<usize>) {
        let mirror = &mut self.mirrors[index];
        mirror.journal.holders = disk.into_iter().collect();
        mirror.journal.old.retain(|old| Some(*old) != disk);
        mirror.diverged.retain(|diverged| Some(*diverged) != disk);
    }
}

impl Admin {
    /// Draws a number from the stream of randomness for journals.
    fn draw_journal(&self, below: u64) -> u64 {
        self.state.borrow_mut().journals.as_mut().map_or(0, |chance| chance.below(below))
    }

    /// Chooses the journal disk of a new array, if it gets one. A disk that is too small must be refused without a
    /// trace. Returns false if the array was created all the same.
    pub(super) async fn journal_for_new(&mut self, index: usize, request: &mut CreateRequest) -> bool {
        let (disks, small) = {
            let state = self.state.borrow();
            let journal = &state.mirrors[index].journal;
            (journal.disks.clone(), journal.small)
        };
        if disks.is_empty() || self.draw_journal(2) == 0 {
            return true;
        }
        let id = MemberId::from_random(self.draw_journal(u64::MAX));
        if let Some(leaf) = small.and_then(|small| self.leaves.get(&small)).filter(|_| self.draw_journal(3) == 0) {
            request.journal = Some((*leaf, id));
            match lifecycle::create(&self.port, request).await {
                Err(LifecycleError::Size { .. } | LifecycleError::JournalRoom { .. }) => {
                    self.count("a journal disk too small is refused");
                }
                _ => {
                    self.report_violation(format!(
                        "mirror {index} is made with a journal on a disk that is too small for it"
                    ));
                    return false;
                }
            }
        }
        let disk = disks[self.draw_journal(disks.len() as u64) as usize];
        request.journal = self.leaves.get(&disk).map(|leaf| (*leaf, id));
        self.state.borrow_mut().record_ring(index, request.journal.map(|_| disk));
        true
    }

    /// Returns the disk of the journal if it goes with one half of the array, in scenarios and at times: only if the
    /// journal is empty, so that the other half can do without it.
    pub(super) fn journal_for_half(&mut self, index: usize) -> Option<usize> {
        let holder = {
            let state = self.state.borrow();
            let journal = &state.mirrors[index].journal;
            journal.holders.first().copied().filter(|_| journal.stopped && self.steps.is_some())
        };
        let disk = holder.filter(|_| self.draw_journal(2) == 0)?;
        self.count("take the journal along with half a mirror");
        Some(disk)
    }

    /// Moves the journal of an array, or lets its disk fail, at times. Returns whether it did.
    pub async fn move_some_journal(&mut self, habits: AdminHabits) -> bool {
        let serving: Vec<usize> = self.mirrors.keys().copied().collect();
        let aimed = matches!(habits.aim, Some("moving the journal" | "ring nowhere" | "ring quiet" | "journal moved"));
        let has = |index: &usize| !self.state.borrow().mirrors[*index].journal.disks.is_empty();
        let Some(index) = serving.into_iter().find(has) else { return false };
        if self.draw_journal(if aimed { 2 } else { 4 }) > 0 {
            return false;
        }
        let holder = self.state.borrow().mirrors[index].journal.holders.first().copied();
        match (holder, self.draw_journal(8)) {
            (Some(_), 0..=2) => self.journal_to_members(index).await,
            (Some(disk), 3 | 4) => self.pull_journal(disk).await,
            (Some(disk), 5) => {
                let often = 20_000 + self.draw_journal(200_000) as u32;
                let fault =
                    if self.draw_journal(2) == 0 { DiskFault::Hang(often) } else { DiskFault::WriteErrors(often) };
                self.state.borrow_mut().disk_faults.push((disk, fault));
            }
            _ => self.journal_on(index).await,
        }
        true
    }

    pub(super) async fn pull_journal(&mut self, disk: usize) {
        self.count("pull the journal");
        self.state.borrow_mut().pull.push(disk);
        self.until(|state| state.pull.is_empty()).await;
    }

    /// Moves the journal to a disk that does not hold it.
    pub(super) async fn journal_on(&mut self, index: usize) {
        self.phase("moving the journal");
        let (id, free, small, before) = {
            let state = self.state.borrow();
            let journal = &state.mirrors[index].journal;
            let is_free = |disk: &usize| !journal.holders.contains(disk) && self.leaves.contains_key(disk);
            let free: Vec<usize> = journal.disks.iter().copied().filter(is_free).collect();
            (self.mirrors[&index].id, free, journal.small, journal.holders.clone())
        };
        if let Some(leaf) =
            small.and_then(|small| self.leaves.get(&small)).copied().filter(|_| self.draw_journal(3) == 0)
        {
            let member = MemberId::from_random(self.draw_journal(u64::MAX));
            match self.port.give_order(id, Order::JournalOn { leaf, id: member, force: true }).await {
                Err(LifecycleError::Size { .. } | LifecycleError::JournalRoom { .. }) => {
                    self.count("a journal disk too small is refused");
                }
                // Only one move is accepted at a time.
                Err(error) => self.expect_refusal(&error),
                Ok(()) => self
                    .report_violation(format!("the journal of mirror {index} is on a disk that is too small for it")),
            }
        }
        let disk = match free.len() {
            // The journal has a disk already, or no disk is present: the order is refused.
            0 => before.first().copied(),
            some => Some(free[self.draw_journal(some as u64) as usize]),
        };
        let Some((disk, leaf)) = disk.and_then(|disk| Some((disk, *self.leaves.get(&disk)?))) else { return };
        if free.contains(&disk) {
            // It may have been pulled, or given up.
            self.port.reopen(leaf).await;
        }
        self.state.borrow_mut().mirrors[index].journal.holders.insert(disk);
        let member = MemberId::from_random(self.draw_journal(u64::MAX));
        let force = self.draw_journal(8) > 0;
        match self.port.give_order(id, Order::JournalOn { leaf, id: member, force }).await {
            Ok(()) => self.count("put the journal on a disk"),
            Err(error) => {
                self.expect_refusal(&error);
                let mut state = self.state.borrow_mut();
                if !state.had_faults && !before.contains(&disk) {
                    // A refused order has written nothing.
                    state.mirrors[index].journal.holders.remove(&disk);
                }
            }
        }
    }

    pub(super) async fn journal_to_members(&mut self, index: usize) {
        self.phase("moving the journal");
        match self.port.give_order(self.mirrors[&index].id, Order::JournalToMembers).await {
            Ok(()) => self.count("put the journal on the members"),
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// Records where the journal of a served array is.
    pub(super) fn note_journal(&self, index: usize, array: &Array) {
        let leaf = array.journal_disk().map(|disk| disk.leaf);
        let disk = leaf.and_then(|leaf| self.leaves.iter().find(|(_, of)| **of == leaf)).map(|(disk, _)| *disk);
        self.state.borrow_mut().record_ring(index, disk);
    }

    /// Handles an array whose status says that it cannot start without its journal.
    pub(super) async fn wait_for_journal(&mut self, index: usize, present: &[LeafId]) {
        let stopped = self.state.borrow().mirrors[index].journal.stopped;
        self.check_refusal(JournalRefusal::new(index, &self.leaves, present, stopped)).await;
    }

    /// Waits until the refusal of a start is checked.
    pub(super) async fn check_refusal(&mut self, refusal: JournalRefusal) {
        let index = refusal.index;
        self.state.borrow_mut().journal_refusals.push(refusal);
        self.until(|state| state.journal_refusals.is_empty()).await;
        self.state.borrow_mut().mirrors[index].journal.waits = true;
        self.count("a mirror waits for its journal");
    }
}

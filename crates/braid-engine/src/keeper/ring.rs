//! Where the ring of an array's journal is: on its members, or on a disk of its own. When that disk fails, is taken away, or comes,
//! the ring moves while the array serves.
//!
//! 1. A layout says that the ring is nowhere: nothing is logged any more.
//! 2. What slots were told to be logged is put in place, and all members flush.
//! 3. A head with a new run is on all members, durably, and on the disk before.
//! 4. A layout says where the ring is: whatever waits is logged there.
//! 5. Where the disk is gone, the label says so.

use std::pin::pin;

use braid_format::MemberId;
use braid_format::journal::{RING_START_BYTES, RingOn};

use super::race::{First, first};
use super::{Keeper, KeeperIo, Note, Ordered};
use crate::io::LeafId;
use crate::lifecycle::{LifecycleError, move_ring, wipe};
use crate::parity::{RingDisk, RingPlace};
use crate::planted::{Planted, planted};
use crate::shard::RegionCall;
use crate::trouble::Trouble;

impl Keeper {
    /// Whether this disk has the ring, or is to have it.
    pub(super) fn is_ring_disk(&self, leaf: LeafId) -> bool {
        self.array.journal_disk().is_some_and(|disk| disk.leaf == leaf)
    }

    /// Whether the ring is on a disk that has been given up.
    pub(super) fn is_ring_astray(&self) -> bool {
        matches!(self.ring_place(), Some(RingPlace::Moving)) && !self.failed
    }

    /// Where the ring is, as a layout has it.
    pub(super) fn ring_place(&self) -> Option<RingPlace> {
        let on = match self.journal.as_ref()?.ring_on {
            _ if self.ring_moves => RingPlace::Moving,
            RingOn::Members => RingPlace::Members,
            RingOn::Disk { id, member_blocks } => {
                let disk = self.array.journal_disk().filter(|disk| disk.part.id == id);
                disk.map_or(RingPlace::Moving, |disk| {
                    let ring = disk.part.places.journal.start + RING_START_BYTES;
                    RingPlace::Disk(RingDisk { leaf: disk.leaf, role: disk.role, ring, id, member_blocks })
                })
            }
        };
        Some(on)
    }

    /// The disk of the ring has failed.
    pub(super) async fn lose_ring_disk<I: KeeperIo>(&mut self, io: &I) {
        self.array.give_up_journal();
        self.move_ring(io, true, None).await;
    }

    /// Moves the ring to the disk that the label names, if that is here, else to the members. `lost`: its disk before has failed.
    /// `leaves`: its disk before is taken away, and its label off it.
    pub(super) async fn move_ring<I: KeeperIo>(&mut self, io: &I, lost: bool, leaves: Option<LeafId>) {
        let device = self.options.device;
        let had_disk = self.array.journal_disk().is_some();
        self.ring_moves = true;
        'again: while self.ring_moves && !self.failed {
            self.post_ring(io);
            let mut quiet = pin!(io.call(device, self.options.home, RegionCall::Quiesce));
            // Troubles may come without end, and each layout is kept until the last I/O with it has ended.
            while let First::A(trouble) = first(io.trouble(device), quiet.as_mut(), std::future::pending::<()>()).await
            {
                if self.trouble_while_moving(io, trouble).await {
                    continue 'again;
                }
            }
            self.write_heads(io).await;
        }
        if self.failed {
            return;
        }
        self.post_ring(io);
        let result = self.array.forget_journal(io).await;
        if let Some(leaf) = leaves.filter(|_| result.is_ok()) {
            // Before it is told that the disk is nobody's: it is let go of then. One that does not take that keeps a label, which
            // nobody believes.
            drop(wipe(io, leaf).await);
        }
        self.after_labels(io, result).await;
        let to = self.array.journal_disk().map(|disk| disk.leaf);
        // One that fails as it takes the ring up is lost as well.
        io.note(device, Note::RingMoved { to, lost: lost || had_disk && to.is_none() });
    }

    fn post_ring<I: KeeperIo>(&mut self, io: &I) {
        let layout = self.layout(io);
        self.posted += 1;
        io.post(self.options.device, Some(layout));
    }

    async fn write_heads<I: KeeperIo>(&mut self, io: &I) {
        let Some(journal) = &self.journal else { return };
        // Another one with each attempt: the generation rises with each head that was begun.
        let random = journal.run.rotate_left(23) ^ journal.generation ^ io.now_ns();
        let lost: Vec<_> = self.lost.iter().collect();
        let written = match planted(Planted::MovedWithoutHead) {
            true => Ok(crate::lifecycle::JournalStart { run: random | 1, ring_on: RingOn::Members, ..journal.clone() }),
            false => move_ring(io, &self.array, random, &lost).await,
        };
        let error = match written {
            Ok(start) => {
                self.array.note_run(&start);
                self.journal = Some(start);
                self.ring_moves = false;
                return;
            }
            Err(error) => error,
        };
        let role = self.array.members().find(|member| Some(member.leaf) == error.leaf()).map(|member| member.role);
        io.note(self.options.device, Note::Trouble(error.clone()));
        match role {
            _ if error.leaf().is_some_and(|leaf| self.is_ring_disk(leaf)) => drop(self.array.give_up_journal()),
            Some(role) => self.leave_out(io, &[role], false).await,
            None => self.fail(io, error).await,
        }
    }

    /// As [`Keeper::on_trouble`]; what a member cannot read is mended later, when somebody reads it again. Whether a disk was given up
    /// by it.
    async fn trouble_while_moving<I: KeeperIo>(&mut self, io: &I, trouble: Trouble) -> bool {
        if !trouble.is_fatal() {
            return false;
        }
        if self.is_ring_disk(trouble.leaf) {
            self.array.give_up_journal();
            return true;
        }
        let role = self.troubled(&trouble);
        if let Some(role) = role {
            self.leave_out(io, &[role], false).await;
        }
        role.is_some()
    }

    /// Puts the journal on a disk.
    pub(super) async fn add_ring_disk<I: KeeperIo>(
        &mut self,
        io: &I,
        leaf: LeafId,
        id: MemberId,
        force: bool,
    ) -> Ordered {
        self.is_calm(io, leaf).await?;
        let added = self.array.add_journal(io, leaf, id, force).await;
        if let Err(error) = added {
            if self.is_frozen() || matches!(error, LifecycleError::Beyond { .. }) {
                self.after_labels(io, Err(error.clone())).await;
            }
            return Err(error);
        }
        // Who failed as the label was written is out by it: that is told now, as the layouts of the move have it already.
        self.after_labels(io, Ok(())).await;
        if self.failed {
            return Err(LifecycleError::Beyond { lost: Vec::new(), source: None });
        }
        self.move_ring(io, false, None).await;
        if self.is_ring_disk(leaf) {
            return Ok(());
        }
        let reason = "it failed as it took up the journal, which is on the members".to_owned();
        Err(LifecycleError::NoReturn { leaf, reason })
    }

    /// Puts the journal back on the members.
    pub(super) async fn remove_ring_disk<I: KeeperIo>(&mut self, io: &I) -> Ordered {
        if !self.has_parity() || self.array.journal_role().is_none() {
            let reason = "its journal is on the members".to_owned();
            return Err(LifecycleError::Role { role: self.array.roles(), reason });
        }
        let leaf = self.array.give_up_journal();
        self.move_ring(io, false, leaf).await;
        match self.array.journal_role() {
            _ if self.failed => Err(LifecycleError::Beyond { lost: Vec::new(), source: None }),
            None => Ok(()),
            Some(role) => {
                let reason = "its journal is on the members, but not all labels say so yet".to_owned();
                Err(LifecycleError::Role { role, reason })
            }
        }
    }
}

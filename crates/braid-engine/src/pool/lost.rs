//! A member that is given up for ever: what it had is lost, and nobody is in doubt because of it any more.
//!
//! A member that is absent may return, so what it may have is an error to read. Here somebody has decided that it does not return, and that
//! what stood there reads as what its volume's parent has, or as zeros. Whoever serves the pool has written labels that lack it before: a
//! start that finds it neither here nor absent knows of no doubt, however little of this was committed.

use braid_format::pool::{Absence, Absences, Change, Owner, Placing};

use super::admin::AdminError;
use super::home::Pool;
use super::owners::OwnerId;

impl Pool {
    /// Whether somebody is served of whom, or of those before him, not all is known; or may be soon. Maps do not change when doubts end.
    pub fn is_doubt_served(&self) -> bool {
        self.volumes.values().any(|volume| self.state.chain_may_lack(volume.owner)) || !self.builds.is_empty()
    }

    /// What these members, by their bits, had is lost: they were absent, and are nobody's any more. The labels lack them already.
    ///
    /// # Errors
    /// `InUse`: somebody is served who is in doubt. `TailFull`: to be called again, when something was committed.
    pub fn accept_loss(&mut self, members: u128) -> Result<(), AdminError> {
        if self.is_doubt_served() {
            return Err(AdminError::InUse);
        }
        self.state.absent &= !members;
        let stays = |absence: &&Absence| members >> absence.member & 1 == 0;
        let absent: Vec<Absence> = self.commits.absent.list().iter().filter(stays).copied().collect();
        self.commits.absent = Absences::new(&absent).expect("no more than there were");
        self.use_no_more(members)?;
        // Nothing was kept as long as nobody knew what stood there.
        self.find_reserves();
        // What nobody could see may be moved now.
        self.moves.begin_anew();
        self.progress += 1;
        Ok(())
    }

    /// No owner is placed on these members, which are not there, from now on. Who had no other is placed on all.
    ///
    /// # Errors
    /// `TailFull`: to be called again, when something was committed.
    pub fn use_no_more(&mut self, members: u128) -> Result<(), AdminError> {
        let named = |owner: &&Owner| (owner.on | owner.also_on) & members != 0;
        let owners: Vec<OwnerId> = self.state.owners.iter().filter(named).map(|owner| owner.id).collect();
        for id in owners {
            if !self.tail.has_room(6) {
                return Err(AdminError::TailFull);
            }
            let (slot, mut owner) = self.slot_of(id)?;
            (owner.on, owner.also_on) = (owner.on & !members, owner.also_on & !members);
            if owner.on == 0 {
                (owner.place, owner.also_on) = (Placing::Spread, 0);
            }
            self.change(&[(0, slot, Change::Owner { owner: Some(owner) })]);
        }
        Ok(())
    }
}

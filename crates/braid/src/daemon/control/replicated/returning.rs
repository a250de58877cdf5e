//! Replicas that come back: with what they had where they can catch up, else filled anew; snapshots that they lack go first.

use super::super::tables::{Condition, OpenDisk};
use super::super::{Control, random};
use super::Voters;
use super::bringing::Brought;
use super::saved::SavedReplicated;
use super::serve::Attached;
use super::snapshots::Serving;
use braid_api::{ErrorDetail, Kind};
use braid_engine::keeper::Order;
use braid_engine::lifecycle::{RebuildKind, RebuildTarget};
use braid_engine::replica::{VoterId, is_of_older_copy};
use braid_format::{MemberId, MemberState};
use std::sync::Arc;
use uuid::Uuid;

/// What a replica that is back has, by the boot of its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Had {
    /// The same one as when it was let in last: all that it has answered since.
    AllAnswered,
    /// Another one: what it had flushed.
    AllFlushed,
    /// That of an older copy of itself.
    Anything,
}

impl Control {
    /// Lets a replica that is out take part again: with what it had where it can catch up, else anew.
    pub(super) async fn bring_back(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
        role: u16,
    ) -> Result<(), ErrorDetail> {
        let (voter, name) = (VoterId(role as u8), volume.voter_name(role as u8));
        // Not while the volume is rolled back, or this one is to go.
        let Ok(_returns) = attached.returning.try_read() else { return Ok(()) };
        if attached.leaving() == Some(role) {
            return Ok(());
        }
        if !voters.meet(voter).await {
            return Err(ErrorDetail::new(Kind::Unreachable, format!("replica {name} does not answer")));
        }
        if voters.seen().forgot.has(voter) {
            return Err(ErrorDetail::new(Kind::Incomplete, format!("replica {name} has to be filled from nothing")));
        }
        let session = attached.next_session();
        let disk = self.reach_replica(volume, voters, voter, session).await?;
        attached.set_session(role, session);
        // Asked for after it was opened: under no older boot than this.
        let boot = voters.session_of(voter).2;
        let kept = attached.boots().get(&voter.0) == Some(&boot);
        // Of an older copy nothing says in what it differs. Let in once under that boot, it was filled, or is to be.
        let had = match kept {
            true => Had::AllAnswered,
            false if is_of_older_copy(boot) => Had::Anything,
            false => Had::AllFlushed,
        };
        let mut to_tell = None;
        let taken = if !volume.is_of_copies() {
            // There are no snapshots of all of them.
            self.take_back_replica(volume.uuid, role, &disk, had, false).await.map(drop)
        } else {
            let serving = Serving::new(volume, attached, voters);
            // Until it takes writes: it is to have all that there are then.
            let _one_at_a_time = attached.snapshots.lock().await;
            match self.settle_snapshots_of(&serving, role, &disk).await {
                Ok(brought) => {
                    let taken = self.take_back_replica(volume.uuid, role, &disk, had, brought.alike).await;
                    taken.map(|is_new| {
                        if is_new {
                            to_tell = Some(brought)
                        }
                    })
                }
                Err(error) => Err(error),
            }
        };
        match taken {
            Ok(()) => drop(attached.boots().insert(voter.0, boot)),
            Err(_) => self.leave(volume.uuid, disk).await,
        }
        if let Some(brought) = to_tell {
            let serving = Serving::new(volume, attached, voters);
            self.tell_what_differs(&serving, role, brought).await;
        }
        taken
    }

    /// Leaves replicas out whose nodes have forgotten the epoch that they had promised: what they have is of a time before, or nothing. They are filled
    /// anew, whatever their labels say.
    ///
    /// # Errors
    /// The others do not have everything: nothing is left to serve.
    pub(super) async fn leave_forgetful_out(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
    ) -> Result<(), ErrorDetail> {
        for voter in voters.seen().forgot.iter() {
            let (role, name) = (u16::from(voter.0), volume.voter_name(voter.0));
            let state = || self.states(volume).get(usize::from(role)).copied();
            if matches!(state(), Some(MemberState::InSync | MemberState::Rebuilding)) {
                let message = format!("replica {name} is not what it was: its node has forgotten what it promised");
                self.events().warning("replica_forgot", message, &[("volume", &volume.name)]);
                self.give_order(volume.uuid, Order::Fail(vec![role])).await?;
            }
            if state() == Some(MemberState::Failed) {
                self.give_order(volume.uuid, Order::Remove(role)).await?;
            }
            attached.forget_replica(role);
            voters.begins_from_nothing(voter);
        }
        Ok(())
    }

    /// Before a replica takes writes, and may come to be believed, it has the snapshots that the others have.
    async fn settle_snapshots_of(
        self: &Arc<Self>,
        serving: &Serving,
        role: u16,
        disk: &Arc<OpenDisk>,
    ) -> Result<Brought, ErrorDetail> {
        self.give_up_snapshots(serving, role).await?;
        self.bring_snapshots(serving, role, disk).await
    }

    /// `alike`: it has most of what the volume is, whatever its label says. True: it is filled anew.
    async fn take_back_replica(
        self: &Arc<Self>,
        uuid: Uuid,
        role: u16,
        disk: &Arc<OpenDisk>,
        had: Had,
        alike: bool,
    ) -> Result<bool, ErrorDetail> {
        match self.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition) {
            Some(Condition::Active(active)) => active.guests.push(Arc::clone(disk)),
            _ => return Err(ErrorDetail::new(Kind::Inactive, "the volume is not served any more")),
        }
        let why = match had {
            Had::Anything => "it is an older copy of itself".to_owned(),
            Had::AllAnswered | Had::AllFlushed => {
                let kept = had == Had::AllAnswered;
                match self.give_order(uuid, Order::Return { leaf: disk.leaf, kept_writes: kept }).await {
                    Ok(()) => return Ok(false),
                    Err(error) => error.message,
                }
            }
        };
        tracing::info!("replica {} is filled anew: {why}", disk.name);
        // Nothing that it has counts by the voters, whatever its label says.
        let newcomer = RebuildTarget::New { leaf: disk.leaf, id: MemberId::from_random(random()?), force: true };
        self.give_order(uuid, Order::Rebuild { slot: role, target: newcomer, kind: RebuildKind::Full }).await?;
        if alike || had == Had::Anything {
            // Whatever comes of it: then all of it is sent.
            let _ = self.give_order(uuid, Order::CompareBeforeCopy(role)).await;
        }
        Ok(true)
    }
}

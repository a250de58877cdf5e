//! Removes members from a pool: their extents move to the other members while volumes are used, then the labels no
//! longer list them.
//!
//! First the labels say that the member is being removed: so a start continues the removal. When the member is empty
//! and the pool does not need it any more, the labels of the other members no longer list it. Only then is its own
//! label removed.

use crate::abandoned::name_list;
use crate::errors::of_admin;
use crate::names::name_in_pool;
use crate::{PoolManager, labels};
use braid_api::{ErrorDetail, Kind, Pool as ShownPool, RemoveMember};
use braid_engine::pool::{AdminError, EXTENT_BYTES, MemberRemoval, Pool};
use braid_engine::{IoError, PoolNext};
use braid_format::pool::PoolMemberState;
use braid_geometry::units::format_size;
use braid_inventory::{MemberPart, PoolCondition, PoolEntry, PoolHandle, PoolWork};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time for a pool to release a member.
pub(crate) const RELEASE_MAX: Duration = Duration::from_secs(10);

/// Why a member cannot be evacuated.
enum RemovalRefusal {
    /// Volumes and snapshots that are allocated on this member only.
    Restricted(Vec<String>),
    /// Extents used on the member, extents free on the others, and extents reserved for thick volumes.
    NoSpace(u64, u64, u64),
    Admin(AdminError),
}

impl PoolManager {
    /// Begins to remove a member, which continues in the background. With `cancel`, ends a removal that has begun: the
    /// member stays.
    ///
    /// # Errors
    /// There is no such member, or it is the only one; volumes are allocated on it alone; the others have no space for
    /// its extents. A missing member is abandoned instead, which needs `force`.
    pub async fn remove_pool_member(self: &Arc<Self>, name: &str, ask: RemoveMember) -> Result<ShownPool, ErrorDetail> {
        let claim = self.claim_pool(name, "changed").await?;
        let pool = self.serving_pool(&claim.uuid.to_string())?;
        let (number, called) = match (self.member_named(&pool, &ask.member), self.missing_named(&pool, &ask.member)) {
            (Err(_), Some(absent)) if !ask.cancel => return self.abandon_member(&pool, absent, ask.force).await,
            (called, _) => called?,
        };
        if ask.force {
            let message = format!("{called} of pool {} is there, and has nothing to be given up", pool.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("pool", &pool.name)
                .remedy("without --force what it has moves to the others"));
        }
        let _one_at_a_time = pool.work.lock().await;
        let parts = self.parts_of(&pool);
        let removing = |part: &MemberPart| state_of(part) == Some(PoolMemberState::Removing);
        let is_removing = self.is_being_removed(&pool, number);
        if ask.cancel {
            if !is_removing {
                let message = format!("{} is not being removed from pool {}", ask.member, pool.name);
                return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                    .with("pool", &pool.name)
                    .remedy(format!("braid pool show {} shows which member leaves", pool.name)));
            }
            self.mark_removing(&pool, number, false).await?;
            let unassigned_volumes = self.take_unassigned(&pool, number).await?;
            let mut message = format!("{} stays in pool {}", called, pool.name);
            if !unassigned_volumes.is_empty() {
                message.push_str(&format!(
                    "; volumes that are not allocated on it any more: {}",
                    name_list(&unassigned_volumes)
                ));
            }
            self.inventory.events().info("pool_member_not_removed", message, &[("pool", &pool.name)]);
            return Ok(ShownPool { unassigned_volumes, ..self.pool(&pool.uuid.to_string()).await? });
        }
        if parts.iter().filter(|part| part.label.member != number && !removing(part)).count() == 0 {
            let message = format!("{} is the last member of pool {}", called, pool.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("pool", &pool.name)
                .remedy(format!("braid pool delete {} removes the pool with all that is in it", pool.name)));
        }
        if !is_removing {
            let refused = self.call(&pool, move |pool| (PoolNext::Done, removal_refusal(pool, number))).await?;
            if let Some(removal_refusal) = refused {
                return Err(removal_refusal.into_detail(&pool, &called));
            }
            self.note_unassigned(&pool, number).await?;
            if let Err(error) = self.mark_removing(&pool, number, true).await {
                // The command fails: so no later start may find a label that says *removing*, and remove the member.
                return Err(self.cancel_failed_removal(&pool, number, &called, error).await);
            }
        }
        let emptied = self.call(&pool, move |pool| match pool.empty_member(number) {
            Err(AdminError::LogFull) => (PoolNext::AfterCommit, Ok(())),
            result => (PoolNext::Commit, result),
        });
        if let Err(error) = emptied.await? {
            let error = RemovalRefusal::Admin(error).into_detail(&pool, &called);
            return Err(self.cancel_failed_removal(&pool, number, &called, error).await);
        }
        self.begin_job(&pool, PoolWork::Evacuation(number), None).await;
        self.move_soon(&pool);
        let message =
            format!("{} is being removed from pool {}: its extents move to the other members", called, pool.name);
        self.inventory.events().info("pool_member_removing", message, &[("pool", &pool.name)]);
        self.pool(&pool.uuid.to_string()).await
    }

    pub(crate) fn parts_of(&self, pool: &PoolHandle) -> Vec<MemberPart> {
        let tables = self.inventory.read();
        tables.pools.get(&pool.uuid).and_then(PoolEntry::served).map(|served| served.parts.clone()).unwrap_or_default()
    }

    /// Records members with their labels; the labels are authoritative.
    pub(crate) fn record_parts(&self, uuid: Uuid, parts: Vec<MemberPart>) {
        let mut tables = self.inventory.write();
        if let Some(entry) = tables.pools.get_mut(&uuid) {
            entry.label = parts.first().map(|part| part.label.clone());
            if let PoolCondition::Serves(served) = &mut entry.condition {
                served.parts = parts;
            }
        }
    }

    /// Cancels a removal that has failed to begin, as far as the labels can be written.
    async fn cancel_failed_removal(
        &self,
        pool: &PoolHandle,
        number: u8,
        called: &str,
        error: ErrorDetail,
    ) -> ErrorDetail {
        if self.mark_removing(pool, number, false).await.is_ok() || !self.is_being_removed(pool, number) {
            return error;
        }
        let message = format!(
            "{}; labels say by now that {called} leaves pool {}, which could not be taken back",
            error.message, pool.name
        );
        ErrorDetail { message, ..error }.remedy(format!(
            "look at the disks and at the kernel's log (dmesg), then let it stay (braid pool remove {} {called} --cancel), or go: it does when all labels \
             can be written",
            pool.name
        ))
    }

    /// Writes to all labels that a member is being removed (`removing`), or that it stays. The member is closed to
    /// allocations before the first label may say that it is being removed. It is opened again only when the state
    /// written last is that it stays; an error in writing the labels does not change that.
    async fn mark_removing(&self, pool: &PoolHandle, number: u8, removing: bool) -> Result<(), ErrorDetail> {
        let left_before = self.is_being_removed(pool, number);
        let close = move |pool: &mut Pool| {
            let was_closed = pool.space().iter().any(|space| space.member == number && space.closed);
            if removing {
                pool.close_member(number, true);
            }
            (PoolNext::Done, was_closed)
        };
        let was_closed = self.call(pool, close).await?;
        let state = if removing { PoolMemberState::Removing } else { PoolMemberState::InUse };
        let written = self.write_member_state(pool, number, state).await;
        // A member that was closed because its addition did not reach all labels stays closed, unless all labels are
        // written now.
        if !self.is_being_removed(pool, number) && (left_before || written.is_ok() || !was_closed) {
            self.call(pool, move |pool| (PoolNext::Done, pool.close_member(number, false))).await?;
        }
        written
    }

    /// Writes a member's state to all labels.
    pub(crate) async fn write_member_state(
        &self,
        pool: &PoolHandle,
        number: u8,
        state: PoolMemberState,
    ) -> Result<(), ErrorDetail> {
        let mut parts = self.parts_of(pool);
        let io = self.ring.devices();
        let written = labels::write(&io, &mut parts, |label| {
            if let Some(Some(member)) = label.members.get_mut(usize::from(number)) {
                member.state = state;
            }
        });
        let written = written.await;
        self.record_parts(pool.uuid, parts);
        written.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))
    }

    /// Runs one step of the removal of one member. Returns true if there was a removal: the caller has to call again.
    pub(crate) async fn continue_removals(self: &Arc<Self>, uuid: Uuid) -> bool {
        let Ok(pool) = self.serving_pool(&uuid.to_string()) else { return false };
        let outgoing =
            self.inventory.read().pools.get(&uuid).and_then(|entry| entry.served()?.outgoing.first().cloned());
        let removing = |part: &&MemberPart| state_of(part) == Some(PoolMemberState::Removing);
        let member = self.parts_of(&pool).iter().find(removing).map(|part| part.label.member);
        if outgoing.is_none() && member.is_none() {
            return false;
        }
        // This does not wait for the pool's lock: its holder may wait for the task that runs this.
        let Ok(_one_at_a_time) = pool.work.try_lock() else { return true };
        if let Some(gone) = outgoing {
            let Some(_claim) = self.inventory.claim_uuid(uuid, "changed") else { return true };
            let mut parts = self.parts_of(&pool);
            if parts.iter().any(|part| part.behind) {
                // The failure was reported before.
                let written = self.unlist(&mut parts, gone.label.member).await;
                self.record_parts(uuid, parts);
                if written.is_err() {
                    return true;
                }
            }
            self.release_member(&pool, gone).await;
        } else if let Some(member) = member {
            let leaves = move |pool: &mut Pool| {
                let leaving = pool.remove_member_step(member);
                if leaving == MemberRemoval::NotEmpty && pool.is_member_empty(member) {
                    // Some owner is still allocated on it: the command was interrupted, or there was no space then.
                    let _ = pool.empty_member(member);
                }
                (PoolNext::Done, leaving)
            };
            let ready = self.call(&pool, leaves).await;
            if ready.is_ok_and(|leaving| leaving == MemberRemoval::Ready) {
                // No other command examines its disks meanwhile.
                let Some(_claim) = self.inventory.claim_uuid(uuid, "changed") else { return true };
                self.finish_removal(&pool, member).await;
            }
        }
        true
    }

    /// Removes an empty member from the labels, as far as they can be written.
    async fn finish_removal(self: &Arc<Self>, pool: &PoolHandle, number: u8) {
        let mut parts = self.parts_of(pool);
        let Some(at) = parts.iter().position(|part| part.label.member == number) else { return };
        let gone = parts.remove(at);
        let written = self.unlist(&mut parts, number).await;
        if parts.iter().any(|part| part.label.lists(&gone.label)) {
            // A label that was behind could not be written, so that the change was not even tried: this device is still
            // a member, and gets the next label as the others do.
            parts.insert(at, gone);
            return self.record_parts(pool.uuid, parts);
        }
        // After an error, some labels may no longer list the member, and the newest label counts at the next start. So
        // the removal is not undone.
        self.record_parts(pool.uuid, parts);
        let called = self.job_name(&gone.backing);
        if let Some(PoolCondition::Serves(served)) =
            self.inventory.write().pools.get_mut(&pool.uuid).map(|e| &mut e.condition)
        {
            served.outgoing.push(gone.clone());
        }
        match written {
            Ok(()) => self.release_member(pool, gone).await,
            Err((member, error)) => {
                let error = labels::failed(&pool.name, "writing the label of", member, error);
                let message = format!(
                    "{called} holds nothing of pool {} any more, but not all labels could be written: {}; that is tried again, and a restart of the \
                     daemon finds out whether it is a member",
                    pool.name, error.message
                );
                self.inventory.events().error("pool_member_not_removed", message, &[("pool", &pool.name)]);
            }
        }
    }

    /// Removes a member from the labels of these members.
    async fn unlist(&self, parts: &mut [MemberPart], number: u8) -> Result<(), (u8, IoError)> {
        let io = self.ring.devices();
        labels::write(&io, parts, |label| label.members[usize::from(number)] = None).await
    }

    /// Releases a removed member: only its own label still lists it.
    async fn release_member(self: &Arc<Self>, pool: &PoolHandle, gone: MemberPart) {
        let (number, called) = (gone.label.member, self.job_name(&gone.backing));
        if !self.drop_from_pool(pool, number).await {
            self.note_stuck(pool, gone);
            // The pool may still flush it: its device stays reserved until the daemon ends.
            let message = format!(
                "{called} was removed from pool {}, but the pool cannot release it, as a disk hangs or has failed: it is free when the daemon \
                 was restarted, then wipe its label (braid disk wipe)",
                pool.name
            );
            return self.inventory.events().warning("pool_member_removed", message, &[("pool", &pool.name)]);
        }
        if let Err(left) = labels::erase(&self.ring.devices(), std::slice::from_ref(&gone)).await {
            for (_, error) in left {
                let message =
                    format!("the label of {called}, which left pool {}, could not be removed: {error}", pool.name);
                self.inventory.events().warning("pool_member_removed", message, &[("pool", &pool.name)]);
            }
        }
        // As long as the device is listed as outgoing, no other component can use it.
        if let Some(served) = self.inventory.write().pools.get_mut(&pool.uuid).and_then(|entry| entry.served_mut()) {
            served.outgoing.retain(|part| part.label.member != number);
        }
        self.forget_member(pool.uuid, number);
        self.drop_parts(vec![gone]).await;
        self.inventory.save_or_warn();
        let message = format!("{called} is not in pool {} any more", pool.name);
        self.inventory.events().info("pool_member_removed", message, &[("pool", &pool.name)]);
    }

    /// Records a member that the pool cannot release: the pool keeps it until the daemon ends.
    pub(crate) fn note_stuck(&self, pool: &PoolHandle, part: MemberPart) {
        if let Some(served) = self.inventory.write().pools.get_mut(&pool.uuid).and_then(|entry| entry.served_mut()) {
            served.outgoing.retain(|other| other.label.member != part.label.member);
            served.stuck.push(part);
        }
    }

    /// Returns true if the pool has released a member.
    async fn drop_from_pool(&self, pool: &PoolHandle, number: u8) -> bool {
        // Possible only between two commits, and commits may follow each other without a gap.
        let dropped = self.call(pool, move |pool| match pool.drop_member(number) {
            true => (PoolNext::Done, true),
            // Without space for a write in progress, each attempt would be a commit, without end.
            false if pool.members_without_space() != 0 => (PoolNext::Done, false),
            false => (PoolNext::AfterCommit, false),
        });
        matches!(tokio::time::timeout(RELEASE_MAX, dropped).await, Ok(Ok(true)))
    }

    /// Returns the number and the name of the member that a user names.
    ///
    /// # Errors
    /// There is no such member.
    pub(crate) fn member_named(&self, pool: &PoolHandle, given: &str) -> Result<(u8, String), ErrorDetail> {
        let members = self.inventory.read().member_names(pool);
        if let Some((number, name)) = members.iter().find(|(n, name)| *name == given || n.to_string() == given) {
            return Ok((*number, name.clone()));
        }
        let known: Vec<String> = members.iter().map(|(number, name)| format!("{number} {name}")).collect();
        Err(ErrorDetail::new(Kind::NotFound, format!("{given} is no member of pool {} that is there", pool.name))
            .with("pool", &pool.name)
            .with("member", given)
            .remedy(format!("its members are: {}", known.join(", "))))
    }

    /// Returns true if a member is being removed.
    pub(crate) fn is_being_removed(&self, pool: &PoolHandle, number: u8) -> bool {
        let leaves =
            |part: &MemberPart| part.label.member == number && state_of(part) == Some(PoolMemberState::Removing);
        self.parts_of(pool).iter().any(leaves)
    }
}

/// Returns the state of a member.
pub(crate) fn state_of(part: &MemberPart) -> Option<PoolMemberState> {
    part.label.own().map(|member| member.state)
}

/// Returns the reason why a member's extents cannot move to the others.
fn removal_refusal(pool: &Pool, member: u8) -> Option<RemovalRefusal> {
    let state = pool.state();
    let restricted: Vec<String> = pool
        .restricted_to(member)
        .into_iter()
        .filter_map(|id| state.owners.get(id))
        .filter(|owner| !owner.name.is_empty())
        .map(|owner| name_in_pool(state, owner))
        .collect();
    if !restricted.is_empty() {
        return Some(RemovalRefusal::Restricted(restricted));
    }
    let (used, free) = pool.used_and_free_elsewhere(member);
    // While a member is missing nothing is reserved.
    let kept = if state.missing == 0 { pool.reserved_extents() } else { 0 };
    if used + kept > free {
        return Some(RemovalRefusal::NoSpace(used, free, kept));
    }
    // The space may suffice in total, but not on the members that some owners are restricted to.
    pool.can_empty(member).err().map(RemovalRefusal::Admin)
}

impl RemovalRefusal {
    fn into_detail(self, pool: &PoolHandle, member: &str) -> ErrorDetail {
        let (kind, message, remedy) = match self {
            RemovalRefusal::Restricted(names) => (
                Kind::InUse,
                format!("{} in pool {} may have blocks on {member} alone", names.join(", "), pool.name),
                format!("move the volumes first: braid volume move {}/VOLUME --place spread", pool.name),
            ),
            RemovalRefusal::NoSpace(used, free, kept) => (
                Kind::NoSpace,
                format!(
                    "{} are used on {member}, and the other members of pool {} have {} free{}",
                    format_size(used * EXTENT_BYTES),
                    pool.name,
                    format_size(free * EXTENT_BYTES),
                    match kept {
                        0 => String::new(),
                        kept => format!(", of which {} are kept for thick volumes", format_size(kept * EXTENT_BYTES)),
                    }
                ),
                "delete snapshots or volumes first".to_owned(),
            ),
            RemovalRefusal::Admin(error) => return of_admin(error, pool, member),
        };
        ErrorDetail::new(kind, message).with("pool", &pool.name).with("member", member).remedy(remedy)
    }
}

//! Members that leave a pool: what stands there moves to the others while volumes are used, then the labels lack it.
//!
//! The labels say first that the member is being removed, so that a start goes on with it; and when nothing stands there any more and the
//! pool does not need it, that it is gone. Only then its own label is taken away.

use super::super::Control;
use super::jobs::Work;
use super::labels;
use super::lost::in_words;
use super::{Condition, Part, PoolEntry, Reach};
use braid_api::{ErrorDetail, Kind, Pool as ShownPool, RemoveMember};
use braid_engine::pool::{AdminError, EXTENT_BYTES, MemberRemoval, Pool};
use braid_engine::{IoError, PoolNext};
use braid_format::pool::PoolMemberState;
use braid_geometry::units::format_size;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Longest that a pool may take to let go of a member.
pub(super) const GOING_MAX: Duration = Duration::from_secs(10);

/// Why a member cannot be emptied.
enum Refusal {
    /// Volumes and snapshots that are placed on it alone.
    Bound(Vec<String>),
    /// Extents that stand on it, those that are free elsewhere, and how many are kept for thick volumes.
    NoSpace(u64, u64, u64),
    Admin(AdminError),
}

impl Control {
    /// Begins to remove a member, or gives that up (`cancel`).
    ///
    /// # Errors
    /// It is none, or the only one; volumes are placed on it alone; the others have no space for what it has. It is absent, and `force` was
    /// not asked for: then it is given up.
    pub async fn remove_pool_member(self: &Arc<Self>, name: &str, ask: RemoveMember) -> Result<ShownPool, ErrorDetail> {
        let claim = self.claim_pool(name, "changed").await?;
        let pool = self.reach(&claim.uuid.to_string())?;
        let (number, called) = match (self.member_called(&pool, &ask.member), self.absent_called(&pool, &ask.member)) {
            (Err(_), Some(absent)) if !ask.cancel => return self.give_up_member(&pool, absent, ask.force).await,
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
        let removing = |part: &Part| state_of(part) == Some(PoolMemberState::Removing);
        let is_removing = self.is_leaving(&pool, number);
        if ask.cancel {
            if !is_removing {
                let message = format!("{} is not being removed from pool {}", ask.member, pool.name);
                return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                    .with("pool", &pool.name)
                    .remedy(format!("braid pool show {} shows which member leaves", pool.name)));
            }
            self.say_it_leaves(&pool, number, false).await?;
            let unplaced = self.take_unplaced(&pool, number).await?;
            let mut message = format!("{} stays in pool {}", called, pool.name);
            if !unplaced.is_empty() {
                message
                    .push_str(&format!("; volumes were placed on it that are not any more: {}", in_words(&unplaced)));
            }
            self.events().info("pool_member_stays", message, &[("pool", &pool.name)]);
            return Ok(ShownPool { unplaced, ..self.pool(&pool.uuid.to_string()).await? });
        }
        if parts.iter().filter(|part| part.label.member != number && !removing(part)).count() == 0 {
            let message = format!("{} is the last member of pool {}", called, pool.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("pool", &pool.name)
                .remedy(format!("braid pool delete {} removes the pool with all that is in it", pool.name)));
        }
        if !is_removing {
            let refused = self.call(&pool, move |pool| (PoolNext::Done, refusal(pool, number))).await?;
            if let Some(refusal) = refused {
                return Err(refusal.into_detail(&pool, &called));
            }
            self.note_unplaced(&pool, number).await?;
            if let Err(error) = self.say_it_leaves(&pool, number, true).await {
                // Whoever asked is told that it failed: it is not to leave behind his back.
                return Err(self.stay_after(&pool, number, &called, error).await);
            }
        }
        let emptied = self.call(&pool, move |pool| match pool.empty_member(number) {
            Err(AdminError::LogFull) => (PoolNext::Again, Ok(())),
            result => (PoolNext::Commit, result),
        });
        if let Err(error) = emptied.await? {
            let error = Refusal::Admin(error).into_detail(&pool, &called);
            return Err(self.stay_after(&pool, number, &called, error).await);
        }
        self.begin_job(&pool, Work::Evacuation(number), None).await;
        self.move_soon(&pool);
        let message = format!("{} is being removed from pool {}: what it has moves to the others", called, pool.name);
        self.events().info("pool_member_leaves", message, &[("pool", &pool.name)]);
        self.pool(&pool.uuid.to_string()).await
    }

    pub(super) fn parts_of(&self, pool: &Reach) -> Vec<Part> {
        let tables = self.read();
        tables.pools.get(&pool.uuid).and_then(PoolEntry::served).map(|served| served.parts.clone()).unwrap_or_default()
    }

    /// What stands in the labels is what counts.
    pub(super) fn keep_parts(&self, uuid: Uuid, parts: Vec<Part>) {
        let mut tables = self.write();
        if let Some(entry) = tables.pools.get_mut(&uuid) {
            entry.label = parts.first().map(|part| part.label.clone());
            if let Condition::Serves(served) = &mut entry.condition {
                served.parts = parts;
            }
        }
    }

    /// A member whose removal has failed stays, as far as the labels can be told.
    async fn stay_after(&self, pool: &Reach, number: u8, called: &str, error: ErrorDetail) -> ErrorDetail {
        if self.say_it_leaves(pool, number, false).await.is_ok() || !self.is_leaving(pool, number) {
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

    /// Says in all labels that a member leaves, or stays. Nothing new goes there from before the first of them may say that it leaves until
    /// what was said last is that it stays, whether all could be told or not.
    async fn say_it_leaves(&self, pool: &Reach, number: u8, leaves: bool) -> Result<(), ErrorDetail> {
        let left_before = self.is_leaving(pool, number);
        let close = move |pool: &mut Pool| {
            let was_closed = pool.space().iter().any(|space| space.member == number && space.closed);
            if leaves {
                pool.close_member(number, true);
            }
            (PoolNext::Done, was_closed)
        };
        let was_closed = self.call(pool, close).await?;
        let state = if leaves { PoolMemberState::Removing } else { PoolMemberState::InUse };
        let written = self.mark(pool, number, state).await;
        // Not one that was closed as not all labels had it yet, and still do not.
        if !self.is_leaving(pool, number) && (left_before || written.is_ok() || !was_closed) {
            self.call(pool, move |pool| (PoolNext::Done, pool.close_member(number, false))).await?;
        }
        written
    }

    /// Says in all labels what the pool thinks of a member.
    pub(super) async fn mark(&self, pool: &Reach, number: u8, state: PoolMemberState) -> Result<(), ErrorDetail> {
        let mut parts = self.parts_of(pool);
        let io = self.ring.devices();
        let written = labels::write(&io, &mut parts, |label| {
            if let Some(Some(member)) = label.members.get_mut(usize::from(number)) {
                member.state = state;
            }
        });
        let written = written.await;
        self.keep_parts(pool.uuid, parts);
        written.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))
    }

    /// Goes on with members that are being removed. True: there is one, to be looked at again.
    pub(super) async fn go_on_removing(self: &Arc<Self>, uuid: Uuid) -> bool {
        let Ok(pool) = self.reach(&uuid.to_string()) else { return false };
        let outgoing = self.read().pools.get(&uuid).and_then(|entry| entry.served()?.outgoing.first().cloned());
        let removing = |part: &&Part| state_of(part) == Some(PoolMemberState::Removing);
        let member = self.parts_of(&pool).iter().find(removing).map(|part| part.label.member);
        if outgoing.is_none() && member.is_none() {
            return false;
        }
        // Whoever has the pool's lock may wait for the task that this is done by.
        let Ok(_one_at_a_time) = pool.work.try_lock() else { return true };
        if let Some(gone) = outgoing {
            let Some(_claim) = self.claim_found(uuid, "changed") else { return true };
            let mut parts = self.parts_of(&pool);
            if parts.iter().any(|part| part.behind) {
                // Told before that it failed.
                let written = self.unlist(&mut parts, gone.label.member).await;
                self.keep_parts(uuid, parts);
                if written.is_err() {
                    return true;
                }
            }
            self.let_go_of_member(&pool, gone).await;
        } else if let Some(member) = member {
            let leaves = move |pool: &mut Pool| {
                let leaving = pool.remove_member_step(member);
                if leaving == MemberRemoval::NotEmpty && pool.is_member_empty(member) {
                    // Somebody is placed there still: the command was cut off, or there was no space then.
                    let _ = pool.empty_member(member);
                }
                (PoolNext::Done, leaving)
            };
            let ready = self.call(&pool, leaves).await;
            if ready.is_ok_and(|leaving| leaving == MemberRemoval::Ready) {
                // Nobody looks at its disks meanwhile.
                let Some(_claim) = self.claim_found(uuid, "changed") else { return true };
                self.take_out(&pool, member).await;
            }
        }
        true
    }

    /// Nothing stands there any more: it is no member from now on, as far as labels can be written.
    async fn take_out(self: &Arc<Self>, pool: &Reach, number: u8) {
        let mut parts = self.parts_of(pool);
        let Some(at) = parts.iter().position(|part| part.label.member == number) else { return };
        let gone = parts.remove(at);
        let written = self.unlist(&mut parts, number).await;
        if parts.iter().any(|part| part.label.lists(&gone.label)) {
            // A label was behind from before, and is still: this one is a member as it was, and has to have what the others have.
            parts.insert(at, gone);
            return self.keep_parts(pool.uuid, parts);
        }
        // Some may lack it now, and a label that is two behind is never believed. So it is not taken back where a disk has failed.
        self.keep_parts(pool.uuid, parts);
        let called = self.name_of(&gone.base);
        if let Some(Condition::Serves(served)) = self.write().pools.get_mut(&pool.uuid).map(|e| &mut e.condition) {
            served.outgoing.push(gone.clone());
        }
        match written {
            Ok(()) => self.let_go_of_member(pool, gone).await,
            Err((member, error)) => {
                let error = labels::failed(&pool.name, "writing the label of", member, error);
                let message = format!(
                    "{called} has nothing of pool {} any more, but not all labels could be told: {}; that is tried again, and a restart of the \
                     daemon finds out whether it is a member",
                    pool.name, error.message
                );
                self.events().error("pool_member_stays", message, &[("pool", &pool.name)]);
            }
        }
    }

    /// The labels of these lack a member from now on.
    async fn unlist(&self, parts: &mut [Part], number: u8) -> Result<(), (u8, IoError)> {
        let io = self.ring.devices();
        labels::write(&io, parts, |label| label.members[usize::from(number)] = None).await
    }

    /// No label but its own has it any more: it is free.
    async fn let_go_of_member(self: &Arc<Self>, pool: &Reach, gone: Part) {
        let (number, called) = (gone.label.member, self.name_of(&gone.base));
        if !self.drops(pool, number).await {
            self.note_stuck(pool, gone);
            // The pool may yet flush it: its device stays what it is until the daemon ends.
            let message = format!(
                "{called} is not in pool {} any more, but the pool does not let go of it, as a disk hangs or has failed: it is free when the daemon \
                 was restarted, then wipe its label (braid disk wipe)",
                pool.name
            );
            return self.events().warning("pool_member_left", message, &[("pool", &pool.name)]);
        }
        if let Err(left) = labels::erase(&self.ring.devices(), std::slice::from_ref(&gone)).await {
            for (_, error) in left {
                let message =
                    format!("the label of {called}, which left pool {}, could not be removed: {error}", pool.name);
                self.events().warning("pool_member_left", message, &[("pool", &pool.name)]);
            }
        }
        // Until here nobody else could have it.
        if let Some(served) = self.write().pools.get_mut(&pool.uuid).and_then(|entry| entry.served_mut()) {
            served.outgoing.retain(|part| part.label.member != number);
        }
        self.forget_member(pool.uuid, number);
        self.drop_parts(vec![gone]).await;
        self.save_or_warn();
        let message = format!("{called} is not in pool {} any more", pool.name);
        self.events().info("pool_member_left", message, &[("pool", &pool.name)]);
    }

    /// The pool does not let go of it: it stays the pool's until the daemon ends.
    pub(super) fn note_stuck(&self, pool: &Reach, part: Part) {
        if let Some(served) = self.write().pools.get_mut(&pool.uuid).and_then(|entry| entry.served_mut()) {
            served.outgoing.retain(|other| other.label.member != part.label.member);
            served.stuck.push(part);
        }
    }

    /// Whether the pool has let go of a member.
    async fn drops(&self, pool: &Reach, number: u8) -> bool {
        // Between two commits, of which there may always be one.
        let dropped = self.call(pool, move |pool| match pool.drop_member(number) {
            true => (PoolNext::Done, true),
            // Without space for what is under way each look would be a commit, and none the last.
            false if pool.members_without_space() != 0 => (PoolNext::Done, false),
            false => (PoolNext::Again, false),
        });
        matches!(tokio::time::timeout(GOING_MAX, dropped).await, Ok(Ok(true)))
    }

    /// The member that a user names, by number, and what it is called.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn member_called(&self, pool: &Reach, given: &str) -> Result<(u8, String), ErrorDetail> {
        let members = self.read().member_names(pool);
        if let Some((number, name)) = members.iter().find(|(n, name)| *name == given || n.to_string() == given) {
            return Ok((*number, name.clone()));
        }
        let known: Vec<String> = members.iter().map(|(number, name)| format!("{number} {name}")).collect();
        Err(ErrorDetail::new(Kind::NotFound, format!("{given} is no member of pool {} that is there", pool.name))
            .with("pool", &pool.name)
            .with("member", given)
            .remedy(format!("its members are: {}", known.join(", "))))
    }

    /// Whether a member is being removed.
    pub(super) fn is_leaving(&self, pool: &Reach, number: u8) -> bool {
        let leaves = |part: &Part| part.label.member == number && state_of(part) == Some(PoolMemberState::Removing);
        self.parts_of(pool).iter().any(leaves)
    }
}

/// What the pool thinks of a member.
pub(super) fn state_of(part: &Part) -> Option<PoolMemberState> {
    part.label.own().map(|member| member.state)
}

/// Why what stands on a member cannot go elsewhere.
fn refusal(pool: &Pool, member: u8) -> Option<Refusal> {
    let state = pool.state();
    let bound: Vec<String> = pool
        .restricted_to(member)
        .into_iter()
        .filter_map(|id| state.owners.get(id))
        .filter(|owner| !owner.name.is_empty())
        .map(|owner| super::volumes::name_in_pool(state, owner))
        .collect();
    if !bound.is_empty() {
        return Some(Refusal::Bound(bound));
    }
    let (used, free) = pool.used_and_free_elsewhere(member);
    // As long as a member is absent nothing is kept.
    let kept = if state.missing == 0 { pool.reserved_extents() } else { 0 };
    if used + kept > free {
        return Some(Refusal::NoSpace(used, free, kept));
    }
    // Also where all of it together would fit, but not what is bound to some of the others.
    pool.can_empty(member).err().map(Refusal::Admin)
}

impl Refusal {
    fn into_detail(self, pool: &Reach, member: &str) -> ErrorDetail {
        let (kind, message, remedy) = match self {
            Refusal::Bound(names) => (
                Kind::InUse,
                format!("{} in pool {} may have blocks on {member} alone", names.join(", "), pool.name),
                format!("move the volumes first: braid volume move {}/VOLUME --place spread", pool.name),
            ),
            Refusal::NoSpace(used, free, kept) => (
                Kind::NoSpace,
                format!(
                    "{} stand on {member}, and the other members of pool {} have {} free{}",
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
            Refusal::Admin(error) => return super::volumes::of_admin(error, pool, member),
        };
        ErrorDetail::new(kind, message).with("pool", &pool.name).with("member", member).remedy(remedy)
    }
}

//! Members that are absent and do not come back: given up in the labels first, and forgotten when somebody accepts that what they had is lost.
//!
//! One that was given up is never taken back, and what volumes may have had there stays an error to read, as before. Only when that is
//! accepted (`pool check --give-up`) the labels lack it: they say so before the pool is told, so that a start after a crash in between
//! knows of no doubt, and one before that of all of it.

use super::super::{Control, counted};
use super::{PoolEntry, Reach, labels, volumes};
use braid_api::{ErrorDetail, Kind, Pool as ShownPool};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, EXTENT_BYTES, Pool};
use braid_format::pool::{PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState};
use braid_geometry::units::format_size;
use std::sync::Arc;

/// So many names of volumes are told in one sentence.
const NAMES_MAX: usize = 8;

impl Control {
    /// The member that is absent and that a user names, by its number or by where it was seen last.
    pub(super) fn absent_called(&self, pool: &Reach, given: &str) -> Option<(u8, PoolMember)> {
        let tables = self.read();
        let label = tables.pools.get(&pool.uuid)?.label.as_ref()?;
        let seen = tables.last_seen_of(pool.uuid);
        let is_meant = |number: u8| {
            let last = seen.get(&number).map(|seen| seen.strip_prefix("array ").unwrap_or(seen));
            number.to_string() == given || last == Some(given)
        };
        let mut absent = label.numbered().filter(|(number, _)| label.missing() >> number & 1 == 1);
        absent.find(|(number, _)| is_meant(*number)).map(|(number, member)| (number, *member))
    }

    /// Gives up a member that is absent. The caller has claimed the pool.
    ///
    /// # Errors
    /// It is there; nobody said `force`; a label cannot be written.
    pub(super) async fn give_up_member(
        self: &Arc<Self>,
        pool: &Reach,
        (number, member): (u8, PoolMember),
        force: bool,
    ) -> Result<ShownPool, ErrorDetail> {
        if member.state == PoolMemberState::Abandoned {
            return self.pool(&pool.uuid.to_string()).await;
        }
        let most = self
            .read()
            .pools
            .get(&pool.uuid)
            .and_then(|entry| entry.label.as_ref())
            .map(|label| most_on(label, &member));
        let most = format_size(most.unwrap_or(member.size_bytes));
        if !force {
            let doubtful = self.doubtful_because_of(pool, 1 << number).await?;
            let message = format!(
                "member {number} of pool {} is absent, and may come back; without it up to {most} are lost, which may be of {}",
                pool.name,
                in_words(&doubtful)
            );
            return Err(ErrorDetail::new(Kind::NeedsConfirmation, message).with("pool", &pool.name).remedy(format!(
                "attach it, and braid pool start {} takes it back; if it is lost for good: braid pool remove {0} {number} --force",
                pool.name
            )));
        }
        if let Some(what) = self.where_is(pool, &member).await {
            let message = format!("member {number} of pool {} is there, as {what}", pool.name);
            return Err(ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).remedy(format!(
                "braid pool start {} takes it back if what is on it fits; else detach it first, or wipe its label (braid disk wipe)",
                pool.name
            )));
        }
        let _one_at_a_time = pool.work.lock().await;
        self.mark(pool, number, PoolMemberState::Abandoned).await?;
        self.save_or_warn();
        let message = format!(
            "member {number} of pool {} is given up, and is not taken back: up to {most} that may have been there read as errors",
            pool.name
        );
        self.events().warning("pool_member_given_up", message, &[("pool", &pool.name)]);
        self.pool(&pool.uuid.to_string()).await
    }

    /// Where a member is that the pool goes on without, if it can be seen.
    async fn where_is(self: &Arc<Self>, pool: &Reach, member: &PoolMember) -> Option<String> {
        let _one_at_a_time = self.assembling.lock().await;
        let (here, _) = self.here_of(pool.uuid).await;
        let what = here.iter().find(|one| one.is(member)).map(|one| self.name_of(&one.base));
        self.close_here(here).await;
        what
    }

    /// Members that were given up and are not forgotten yet, by their bits.
    pub(super) fn given_up_of(&self, pool: &Reach) -> u128 {
        let tables = self.read();
        tables.pools.get(&pool.uuid).and_then(|entry| entry.label.as_ref()).map_or(0, PoolLabel::abandoned)
    }

    /// Volumes and snapshots that may have had something on absent members, by their bits.
    pub(super) async fn doubtful_because_of(&self, pool: &Reach, members: u128) -> Result<Vec<String>, ErrorDetail> {
        let asked = move |pool: &mut Pool| {
            let state = pool.state();
            let on = |id: &u32| state.owners.get(*id).is_some_and(|owner| owner.block_members() & members != 0);
            let named = state.owners.iter().filter(|owner| !owner.name.is_empty());
            let doubtful = named.filter(|owner| state.owners.chain(owner.id).iter().any(on));
            (PoolNext::Done, doubtful.map(|owner| volumes::name_in_pool(state, owner)).collect())
        };
        self.call(pool, asked).await
    }

    /// What members had that were given up is lost from now on: who was in doubt because of them is so no more. The caller has claimed the pool.
    /// Returns their numbers.
    ///
    /// # Errors
    /// Somebody who is in doubt is exported; a label cannot be written.
    pub(super) async fn accept_lost_members(self: &Arc<Self>, pool: &Reach) -> Result<Vec<u8>, ErrorDetail> {
        let members = self.given_up_of(pool);
        if members == 0 {
            return Ok(Vec::new());
        }
        let numbers: Vec<u8> = (0..128u8).filter(|number| members >> number & 1 == 1).collect();
        let doubtful = self.doubtful_because_of(pool, members).await?;
        let in_use = || {
            let message = format!("volumes or snapshots of pool {} are exported that are in doubt", pool.name);
            ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).remedy(format!(
                "remove the exports of those that are exported of {} first (braid export list)",
                in_words(&doubtful)
            ))
        };
        // Nobody is served until it is done.
        let _one_at_a_time = pool.work.lock().await;
        if self.call(pool, |pool| (PoolNext::Done, pool.serves_in_doubt())).await? {
            return Err(in_use());
        }
        let mut parts = self.parts_of(pool);
        let io = self.ring.devices();
        let written = labels::write(&io, &mut parts, |label| {
            numbers.iter().for_each(|number| label.members[usize::from(*number)] = None);
        });
        let written = written.await;
        self.keep_parts(pool.uuid, parts);
        written.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))?;
        let accepted = self.call(pool, move |pool| match pool.accept_loss(members) {
            Err(AdminError::LogFull) => (PoolNext::Again, Ok(())),
            result => (PoolNext::Commit, result),
        });
        accepted.await?.map_err(|error| match error {
            AdminError::InUse => in_use(),
            error => volumes::of_admin(error, pool, &pool.name),
        })?;
        numbers.iter().for_each(|number| self.forget_member(pool.uuid, *number));
        self.save_or_warn();
        let message = format!(
            "what {} of pool {} had is lost: it may have been of {}",
            of_numbers(&numbers),
            pool.name,
            in_words(&doubtful)
        );
        self.events().warning("pool_loss_accepted", message, &[("pool", &pool.name)]);
        self.move_soon(pool);
        Ok(numbers)
    }
}

/// Labels lack these numbers, which owners may still name: the daemon was killed before they were told.
pub(super) fn use_no_more(pool: &mut Pool, label: &PoolLabel) {
    let known = label.numbered().fold(0u128, |all, (number, _)| all | 1 << number);
    let used = (1u128 << (label.members.len() - 1)) | ((1u128 << (label.members.len() - 1)) - 1);
    if let Err(error) = pool.remove_from_placement(used & !known) {
        tracing::warn!("pool {}: volumes are placed on members that are gone: {error}", label.name);
    }
}

/// Bytes of data that may have stood on a member, at most.
pub(super) fn most_on(label: &PoolLabel, member: &PoolMember) -> u64 {
    let places = PoolMemberLayout::new(member.size_bytes, label.layout.owner_slots);
    places.map_or(member.size_bytes, |places| u64::from(places.extents) * EXTENT_BYTES)
}

/// What is said of members of a pool that serves which are absent, by state: each a sentence.
pub(super) fn absent_in_words(entry: &PoolEntry) -> Vec<(u8, bool, String)> {
    let Some(label) = &entry.label else { return Vec::new() };
    let absent = label.numbered().filter(|(number, _)| label.missing() >> number & 1 == 1);
    let say = |(number, member): (u8, &PoolMember)| {
        let given_up = member.state == PoolMemberState::Abandoned;
        let most = format_size(most_on(label, member));
        let message = match given_up {
            false => format!(
                "member {number} is absent, and the pool goes on without it: what volumes may have there, up to {most}, reads as errors"
            ),
            true => {
                format!("member {number} was given up: what volumes may have had there, up to {most}, reads as errors")
            }
        };
        (number, given_up, message)
    };
    absent.map(say).collect()
}

pub(super) fn in_words(names: &[String]) -> String {
    match names {
        [] => "no volume".to_owned(),
        names if names.len() <= NAMES_MAX => names.join(", "),
        names => format!(
            "{} and {}",
            names[..NAMES_MAX].join(", "),
            counted(names.len() - NAMES_MAX, "other volume or snapshot", "other volumes and snapshots")
        ),
    }
}

fn of_numbers(numbers: &[u8]) -> String {
    let all: Vec<String> = numbers.iter().map(u8::to_string).collect();
    format!("member{} {}", if all.len() == 1 { "" } else { "s" }, all.join(", "))
}

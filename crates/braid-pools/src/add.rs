//! Adds members to a pool while it serves.
//!
//! The order, for each new member:
//! 1. Its tables and its ring are zeroed, durably.
//! 2. The pool accepts it: the pool writes to it what it writes to all members, but allocates no blocks there.
//! 3. A checkpoint that began after step 2 completes: the device has every table entry that a start reads from a
//!    member.
//! 4. The device's own label, with the state *joining*, is durable.
//! 5. The labels of all members list it.
//! 6. Blocks may be allocated there.
//!
//! If the addition is interrupted before the label of any other member lists the device, it is not a member, and has no
//! data.

use crate::errors::invalid;
use crate::members::{ClaimedMembers, layout_on, parse_members, write_initial};
use crate::open::{member_location, pool_device};
use crate::remove::RELEASE_MAX;
use crate::{PoolManager, labels};
use braid_api::limits::ARRAY_MEMBERS_MAX;
use braid_api::{AddMembers, ErrorDetail, Kind, Pool as ShownPool};
use braid_engine::pool::{AddError, Pool, log_units_of_ring};
use braid_engine::{DeviceId, DeviceIo, PoolNext};
use braid_format::foreign::Signatures;
use braid_format::pool::{MEMBER_BYTES_MAX, PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState};
use braid_geometry::units::format_size;
use braid_inventory::{MemberBacking, MemberPart, PoolHandle, random_uuid};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time for a pool to write to a new member what a start needs from it.
const WRITING_MAX: Duration = Duration::from_secs(60);

/// Interval at which the removal of the new member is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A disk or array that is about to become a member.
struct Candidate {
    backing: MemberBacking,
    device: DeviceId,
    layout: PoolMemberLayout,
    found: Option<Signatures>,
}

impl PoolManager {
    /// Adds members to a pool, one after the other.
    ///
    /// # Errors
    /// A refusal comes before anything is written. An error after that names the requested disks and arrays that have
    /// become members; these stay.
    pub async fn add_pool_members(self: &Arc<Self>, name: &str, ask: AddMembers) -> Result<ShownPool, ErrorDetail> {
        let claim = self.claim_pool(name, "changed").await?;
        let pool = self.serving_pool(&claim.uuid.to_string())?;
        let requested = parse_members(&pool.name, &ask.members)?;
        let next = usize::from(self.next_number(&pool));
        if requested.is_empty() {
            return Err(invalid(&pool.name, "no disk or array is named".to_owned()));
        }
        if next + requested.len() > ARRAY_MEMBERS_MAX {
            let message = format!(
                "pool {} has given {next} of its {ARRAY_MEMBERS_MAX} numbers to members, and cannot have {} more; numbers of members that were removed are not given again",
                pool.name,
                requested.len()
            );
            return Err(ErrorDetail::new(Kind::LimitReached, message)
                .with("pool", &pool.name)
                .remedy("put several disks into an array, and add that"));
        }
        self.inventory.read().refuse_on_replicated(
            pool.uuid,
            "it moves between nodes, and has no other members",
            "make a pool of its own of them: braid pool create",
        )?;
        self.refuse_remote_under_replicas(&pool, &requested)?;
        let mut taken = self.claim_members(Some(&pool), &requested, "added to a pool").await?;
        let done = match self.check_candidates(&pool, &taken.devices, ask.force).await {
            Ok(candidates) => self.add_candidates(&pool, candidates, &mut taken).await,
            Err(error) => Err(error),
        };
        self.give_back_members(taken).await;
        done?;
        self.pool(&pool.uuid.to_string()).await
    }

    /// Returns the number of the next member. The number of a removed member is never used again; the number of an
    /// addition that did not complete may be used after the pool was reopened.
    fn next_number(&self, pool: &PoolHandle) -> u8 {
        let tables = self.inventory.read();
        let label = tables.pools.get(&pool.uuid).and_then(|entry| entry.label.as_ref());
        let known = label.map_or(0, |label| label.members.len() as u8);
        // A device that was withdrawn since the pool was opened still has its records in memory, and shards may read
        // them.
        (known..)
            .find(|number| pool.shared.records.extents(*number) == 0)
            .expect("beyond the last member there is none")
    }

    /// Runs all checks that may refuse a new member. Writes nothing.
    async fn check_candidates(
        &self,
        pool: &PoolHandle,
        devices: &[(MemberBacking, DeviceId)],
        force: bool,
    ) -> Result<Vec<Candidate>, ErrorDetail> {
        let io = self.ring.devices();
        let (kept, owner_slots) = {
            let tables = self.inventory.read();
            let entry = tables.pool(&pool.uuid.to_string())?;
            let slots =
                entry.served().and_then(|served| served.parts.first()).map(|part| part.label.layout.owner_slots);
            (tables.is_pool_kept(entry), slots.unwrap_or(0))
        };
        let units = self.call(pool, |pool: &mut Pool| (PoolNext::Done, pool.log_units())).await?;
        let mut candidates = Vec::with_capacity(devices.len());
        for (backing, device) in devices {
            let name = self.job_name(backing);
            if kept && !self.keeps(backing) {
                let message = format!("{name} is volatile, and pool {} outlives the daemon", pool.name);
                return Err(invalid(&pool.name, message).remedy("use a file, a block device, or an array of these"));
            }
            let layout = layout_on(&io, &name, *device, io.size_bytes(*device), owner_slots)?;
            if units_of(&layout) < units {
                let least = format_size(least_bytes(units, owner_slots));
                let message = format!("{name} is too small for pool {}: its journal would be, too", pool.name);
                return Err(invalid(&pool.name, message).remedy(format!("a further member must have at least {least}")));
            }
            // An interrupted addition leaves a label that says *joining*: it may be overwritten without `force`. The
            // label of a missing member that is about to return says so, too, and must not be overwritten: no other
            // member has its data.
            let is_member = |label: &PoolLabel| {
                let tables = self.inventory.read();
                tables.pools.get(&pool.uuid).and_then(|e| e.label.as_ref()).is_none_or(|newest| newest.lists(label))
            };
            let left = matches!(labels::read(&io, *device).await, Ok(Some(Ok(label)))
                if label.uuid == pool.uuid && label.is_joining() && !is_member(&label));
            let mut found = self.examine_content(&io, backing, *device, force || left).await?;
            if !force && found.as_ref().is_some_and(Signatures::is_foreign) {
                // There are other signatures beside that label: this call refuses them.
                found = self.examine_content(&io, backing, *device, false).await?;
            }
            candidates.push(Candidate { backing: backing.clone(), device: *device, layout, found });
        }
        Ok(candidates)
    }

    /// Returns true if a member's contents outlive the daemon.
    fn keeps(&self, backing: &MemberBacking) -> bool {
        match backing {
            MemberBacking::Disk(disk) => !disk.disk.spec().is_volatile(),
            MemberBacking::Array(uuid) => {
                let tables = self.inventory.read();
                tables.arrays.get(uuid).and_then(|entry| entry.active()).is_none_or(|active| active.is_kept())
            }
        }
    }

    async fn add_candidates(
        self: &Arc<Self>,
        pool: &PoolHandle,
        candidates: Vec<Candidate>,
        taken: &mut ClaimedMembers<'_>,
    ) -> Result<(), ErrorDetail> {
        let mut added: Vec<String> = Vec::new();
        for candidate in candidates {
            let called = self.job_name(&candidate.backing);
            match self.add_candidate(pool, candidate, taken).await {
                Ok(()) => added.push(called),
                Err(mut error) if !added.is_empty() => {
                    error.message = format!("{}; {} in pool {} by then", error.message, are(&added), pool.name);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn add_candidate(
        self: &Arc<Self>,
        pool: &PoolHandle,
        candidate: Candidate,
        taken: &mut ClaimedMembers<'_>,
    ) -> Result<(), ErrorDetail> {
        let Candidate { backing, device, layout, found } = candidate;
        let (io, called) = (self.ring.devices(), self.job_name(&backing));
        // The pool is not locked during this long operation.
        self.clear_content(&io, &backing, device, found).await?;
        let start = self.call(pool, |pool: &mut Pool| (PoolNext::Done, pool.begin_member())).await?;
        let number = self.next_number(pool);
        write_initial(&io, &backing, device, &layout, &start)
            .await
            .map_err(|error| labels::failed(&pool.name, "writing", number, error))?;

        let _one_at_a_time = pool.work.lock().await;
        let mut parts = self.parts_of(pool);
        if parts.iter().any(|part| part.behind) {
            let written = labels::write(&io, &mut parts, |_| {}).await;
            self.record_parts(pool.uuid, parts.clone());
            written.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))?;
        }
        let mut part = joining(&parts, backing, device, number, layout, random_uuid()?, &pool.name)?;
        self.note_candidate(pool, &part)?;
        let (as_device, location, all) = (pool_device(&part), member_location(&part), Arc::clone(&pool.locations));
        let taken_in = self.call(pool, move |pool: &mut Pool| match pool.add_member(&as_device) {
            Ok(()) => {
                all.add(number, location);
                (PoolNext::Done, Ok(pool.request_checkpoint()))
            }
            // While a write of the pool waits for space, the call is not repeated: each attempt would request a commit
            // that fails at once.
            Err(AddError::Again) if pool.members_without_space() == 0 => (PoolNext::AfterCommit, Err(AddError::Again)),
            Err(error) => (PoolNext::Done, Err(error)),
        });
        let checkpoint = match taken_in.await {
            Ok(Ok(checkpoint)) => checkpoint,
            Ok(Err(AddError::Again)) => {
                self.forget_member(pool.uuid, number);
                return Err(self.why_not_committed(pool).await);
            }
            Ok(Err(error)) => {
                self.forget_member(pool.uuid, number);
                return Err(of_add(error, pool, &called));
            }
            Err(error) => {
                self.forget_member(pool.uuid, number);
                return Err(error);
            }
        };
        if let Err(error) = self.wait_for_checkpoint(pool, checkpoint, WRITING_MAX).await {
            let lacks = move |pool: &mut Pool| (PoolNext::Done, pool.members_without_space() >> number & 1 == 1);
            let lacks = matches!(self.call(pool, lacks).await, Ok(true));
            self.leave_out(pool, &part, taken).await;
            return Err(if error.kind == Kind::NoSpace { without_space(&pool.name, &called, lacks) } else { error });
        }
        if let Err(error) = labels::announce(&io, &mut part).await {
            self.leave_out(pool, &part, taken).await;
            return Err(labels::failed(&pool.name, "writing the label of", number, error));
        }
        let mut members = part.label.members.clone();
        for member in members.iter_mut().flatten().filter(|member| member.state == PoolMemberState::Joining) {
            member.state = PoolMemberState::InUse;
        }
        parts.push(part);
        let written = labels::write(&io, &mut parts, |label| label.members.clone_from(&members)).await;
        // After an error, too, the device stays with the pool: some labels may list it already, and cannot be taken
        // back, as their sequence numbers only rise.
        taken.keep(device);
        self.record_parts(pool.uuid, parts);
        written.map_err(|(member, error)| {
            labels::failed(&pool.name, "writing the label of", member, error).remedy(format!(
                "look at that disk and at the kernel's log (dmesg); nothing is put on {called} until the daemon is started again, which finds out whether it is a member"
            ))
        })?;
        self.call(pool, move |pool: &mut Pool| (PoolNext::Done, pool.close_member(number, false))).await?;
        let message = format!("{called} is member {number} of pool {} now", pool.name);
        self.inventory.events().info("pool_member_added", message, &[("pool", &pool.name)]);
        Ok(())
    }

    /// Records the location of the new member, so that the next start looks there if the labels list it by then.
    fn note_candidate(&self, pool: &PoolHandle, part: &MemberPart) -> Result<(), ErrorDetail> {
        let kept = {
            let tables = self.inventory.read();
            tables.pools.get(&pool.uuid).is_some_and(|entry| tables.is_pool_kept(entry))
        };
        if !kept {
            return Ok(());
        }
        self.remember_pool(std::slice::from_ref(part));
        self.inventory.save().inspect_err(|_| self.forget_member(pool.uuid, part.label.member))
    }

    /// Withdraws a member that the pool accepted but that is not to stay; it has no data. The withdrawal does not wait
    /// for a write to it that finds no space.
    async fn leave_out(self: &Arc<Self>, pool: &PoolHandle, part: &MemberPart, taken: &mut ClaimedMembers<'_>) {
        let number = part.label.member;
        let withdrawn = async {
            loop {
                let withdraw = move |pool: &mut Pool| match pool.withdraw_member(number) {
                    true => (PoolNext::Done, true),
                    // A commit that is requested here would be retried as fast as it finds no space.
                    false if pool.members_without_space() != 0 => (PoolNext::Done, false),
                    // Possible only between two commits, and commits may follow each other without a gap.
                    false => (PoolNext::AfterCommit, false),
                };
                match self.call(pool, withdraw).await {
                    Ok(true) => return true,
                    Err(error) if error.kind != Kind::NoSpace => return false,
                    Ok(false) | Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
                }
            }
        };
        let called = self.job_name(&part.backing);
        if tokio::time::timeout(RELEASE_MAX, withdrawn).await != Ok(true) {
            let message = format!(
                "{called} was not added to pool {}, but the pool cannot release it, as a disk hangs or has failed: it is free when the daemon was restarted",
                pool.name
            );
            self.inventory.events().warning("pool_member_removed", message, &[("pool", &pool.name)]);
            taken.keep(part.device);
            self.note_stuck(pool, part.clone());
        } else if let Err(left) = labels::erase(&self.ring.devices(), std::slice::from_ref(part)).await {
            for (_, error) in left {
                tracing::warn!("{called}, which was not added to pool {}, may bear its label: {error}", pool.name);
            }
        }
        self.forget_member(pool.uuid, number);
        self.inventory.save_or_warn();
    }
}

/// Returns a member with its first label, which says that it is joining.
fn joining(
    parts: &[MemberPart],
    backing: MemberBacking,
    device: DeviceId,
    number: u8,
    layout: PoolMemberLayout,
    uuid: Uuid,
    pool: &str,
) -> Result<MemberPart, ErrorDetail> {
    let newest = labels::newest(parts.iter().map(|part| &part.label));
    let mut label = newest.expect("a pool that serves has members").clone();
    label.members.resize(usize::from(number) + 1, None);
    let own = PoolMember { uuid, size_bytes: layout.device_bytes, state: PoolMemberState::Joining };
    label.members[usize::from(number)] = Some(own);
    (label.member, label.layout) = (number, layout);
    label.encode().map_err(|error| invalid(pool, error.to_string()))?;
    Ok(MemberPart { backing, device, label, behind: false, copy_first: false })
}

/// Returns the maximum size of the pool's in-memory log, in log units, with this member.
fn units_of(layout: &PoolMemberLayout) -> u64 {
    log_units_of_ring(u64::from(layout.ring_blocks()))
}

/// Returns the size of the smallest device, in bytes and rounded to MiB, for a pool whose in-memory log has this size.
fn least_bytes(units: u64, owner_slots: u32) -> u64 {
    let fits = |mib: u64| PoolMemberLayout::new(mib << 20, owner_slots).is_ok_and(|layout| units_of(&layout) >= units);
    let (mut small, mut large) = (0, MEMBER_BYTES_MAX >> 20);
    while large - small > 1 {
        let middle = small + (large - small) / 2;
        if fits(middle) { large = middle } else { small = middle }
    }
    large << 20
}

fn of_add(error: AddError, pool: &PoolHandle, called: &str) -> ErrorDetail {
    let (kind, remedy) = match error {
        AddError::Failed => {
            (Kind::DiskError, "look at the pool's disks and at the kernel's log (dmesg); then restart the daemon")
        }
        AddError::Ring | AddError::Number | AddError::Again => {
            (Kind::Internal, "try again after a restart of the daemon")
        }
    };
    ErrorDetail::new(kind, format!("{called} cannot be added to pool {}: {error}", pool.name))
        .with("pool", &pool.name)
        .remedy(remedy)
}

/// Returns the error of an addition that failed for lack of space: below the new member, or below other members.
fn without_space(pool: &str, called: &str, below_it: bool) -> ErrorDetail {
    let (place, room) = match below_it {
        true => ("it", "make room there".to_owned()),
        false => ("other members", format!("make room on the file system that `braid pool show {pool}` names (df -h)")),
    };
    let message = format!(
        "{called} was not added to pool {pool}: there is no space below {place} for what the pool writes itself; the pool goes on as before"
    );
    ErrorDetail::new(Kind::NoSpace, message).with("pool", pool).remedy(format!("{room}, then add it again"))
}

fn are(added: &[String]) -> String {
    format!("{} {}", added.join(", "), if added.len() == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_bytes_is_the_smallest_sufficient_size() {
        for mib in [64, 160, 900, 2500, 40_000] {
            let layout = PoolMemberLayout::new(mib << 20, 1024).unwrap();
            let least = least_bytes(units_of(&layout), 1024);
            assert!(least <= mib << 20, "{mib} MiB do for themselves");
            let smaller = PoolMemberLayout::new(least - (1 << 20), 1024);
            assert!(smaller.is_err() || smaller.is_ok_and(|layout| units_of(&layout) < units_of(&layout_of(mib))));
        }
    }

    fn layout_of(mib: u64) -> PoolMemberLayout {
        PoolMemberLayout::new(mib << 20, 1024).unwrap()
    }
}

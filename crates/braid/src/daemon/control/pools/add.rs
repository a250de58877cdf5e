//! Further members, while the pool serves.
//!
//! The order, for each: its tables and its ring are zeros, durably; the pool takes it in, and writes to it what it writes to all, but puts
//! nothing there; a checkpoint that began after that has ended, so that it has all that a start needs of it; its own label says that it is
//! being added; the labels of all say that it is a member; only then something is put there. Cut off before the first of the others' labels
//! says so, it is none, and nothing was there.

use super::super::{Control, random_uuid};
use super::create::invalid;
use super::members::{Taken, begin, places_on, understand_members};
use super::open::{pool_device, pool_place};
use super::remove::GOING_MAX;
use super::{Base, Part, Reach, labels};
use braid_api::limits::ARRAY_MEMBERS_MAX;
use braid_api::{AddMembers, ErrorDetail, Kind, Pool as ShownPool};
use braid_engine::pool::{AddError, Pool, log_units_of_ring};
use braid_engine::{DeviceId, DeviceIo, PoolNext};
use braid_format::foreign::Signatures;
use braid_format::pool::{MEMBER_BYTES_MAX, PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState};
use braid_geometry::units::format_size;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Longest that a pool may take to write to a member what a start needs of it.
const WRITING_MAX: Duration = Duration::from_secs(60);
/// Between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A disk or array that is about to be a member.
struct Candidate {
    base: Base,
    device: DeviceId,
    places: PoolMemberLayout,
    found: Option<Signatures>,
}

impl Control {
    /// Takes further members into a pool, one after the other.
    ///
    /// # Errors
    /// Everything that can be refused is, before anything is written. What fails later names those that are members by then.
    pub async fn add_pool_members(self: &Arc<Self>, name: &str, ask: AddMembers) -> Result<ShownPool, ErrorDetail> {
        let claim = self.claim_pool(name, "changed").await?;
        let pool = self.reach(&claim.uuid.to_string())?;
        let asked = understand_members(&pool.name, &ask.members)?;
        let next = usize::from(self.next_number(&pool));
        if asked.is_empty() {
            return Err(invalid(&pool.name, "no disk or array is named".to_owned()));
        }
        if next + asked.len() > ARRAY_MEMBERS_MAX {
            let message = format!(
                "pool {} has given {next} of its {ARRAY_MEMBERS_MAX} numbers to members, and cannot have {} more; numbers of members that were removed are not given again",
                pool.name,
                asked.len()
            );
            return Err(ErrorDetail::new(Kind::LimitReached, message)
                .with("pool", &pool.name)
                .remedy("put several disks into an array, and add that"));
        }
        self.read().refuse_carried(
            pool.uuid,
            "it goes from node to node, and has no other members",
            "make a pool of its own of them: braid pool create",
        )?;
        self.refuse_remote_under_replicas(&pool, &asked)?;
        let mut taken = self.take_members(Some(&pool), &asked, "added to a pool").await?;
        let done = match self.look_at_candidates(&pool, &taken.seats, ask.force).await {
            Ok(candidates) => self.add_candidates(&pool, candidates, &mut taken).await,
            Err(error) => Err(error),
        };
        self.give_members_back(taken).await;
        done?;
        self.pool(&pool.uuid.to_string()).await
    }

    /// The number that the next member gets. None is given twice as long as the pool lives, but those of additions that came to nothing.
    fn next_number(&self, pool: &Reach) -> u8 {
        let tables = self.read();
        let label = tables.pools.get(&pool.uuid).and_then(|entry| entry.label.as_ref());
        let known = label.map_or(0, |label| label.members.len() as u8);
        // What came to nothing in this session has a place in its tables.
        (known..)
            .find(|number| pool.shared.records.extents(*number) == 0)
            .expect("beyond the last member there is none")
    }

    /// Everything for which one of them is refused. Writes nothing.
    async fn look_at_candidates(
        &self,
        pool: &Reach,
        seats: &[(Base, DeviceId)],
        force: bool,
    ) -> Result<Vec<Candidate>, ErrorDetail> {
        let io = self.ring.devices();
        let (kept, owner_slots) = {
            let tables = self.read();
            let entry = tables.pool(&pool.uuid.to_string())?;
            let slots =
                entry.served().and_then(|served| served.parts.first()).map(|part| part.label.layout.owner_slots);
            (tables.is_pool_kept(entry), slots.unwrap_or(0))
        };
        let units = self.call(pool, |pool: &mut Pool| (PoolNext::Done, pool.log_units())).await?;
        let mut candidates = Vec::with_capacity(seats.len());
        for (base, device) in seats {
            let name = self.name_of(base);
            if kept && !self.keeps(base) {
                let message = format!("{name} keeps nothing, and pool {} outlives the daemon", pool.name);
                return Err(invalid(&pool.name, message).remedy("use a file, a block device, or an array of these"));
            }
            let places = places_on(&io, &name, *device, io.size_bytes(*device), owner_slots)?;
            if units_of(&places) < units {
                let least = format_size(least_bytes(units, owner_slots));
                let message = format!("{name} is too small for pool {}: its journal would be, too", pool.name);
                return Err(invalid(&pool.name, message).remedy(format!("a further member must have at least {least}")));
            }
            // Not a member that is on its way back: what it has nobody else has.
            let is_member = |label: &PoolLabel| {
                let tables = self.read();
                tables.pools.get(&pool.uuid).and_then(|e| e.label.as_ref()).is_none_or(|newest| newest.lists(label))
            };
            let left = matches!(labels::read(&io, *device).await, Ok(Some(Ok(label)))
                if label.uuid == pool.uuid && label.is_joining() && !is_member(&label));
            let mut found = self.look_at_content(&io, base, *device, force || left).await?;
            if !force && found.as_ref().is_some_and(Signatures::is_foreign) {
                // Not only what an addition has left.
                found = self.look_at_content(&io, base, *device, false).await?;
            }
            candidates.push(Candidate { base: base.clone(), device: *device, places, found });
        }
        Ok(candidates)
    }

    /// Whether a member outlives the daemon.
    fn keeps(&self, base: &Base) -> bool {
        match base {
            Base::Disk(disk) => !disk.disk.spec().is_volatile(),
            Base::Array(uuid) => {
                let tables = self.read();
                tables.arrays.get(uuid).and_then(|entry| entry.active()).is_none_or(|active| active.is_kept())
            }
        }
    }

    async fn add_candidates(
        self: &Arc<Self>,
        pool: &Reach,
        candidates: Vec<Candidate>,
        taken: &mut Taken<'_>,
    ) -> Result<(), ErrorDetail> {
        let mut added: Vec<String> = Vec::new();
        for candidate in candidates {
            let called = self.name_of(&candidate.base);
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
        pool: &Reach,
        candidate: Candidate,
        taken: &mut Taken<'_>,
    ) -> Result<(), ErrorDetail> {
        let Candidate { base, device, places, found } = candidate;
        let (io, called) = (self.ring.devices(), self.name_of(&base));
        // As long as that takes nobody has to wait for the pool.
        self.clear_content(&io, &base, device, found).await?;
        let start = self.call(pool, |pool: &mut Pool| (PoolNext::Done, pool.begin_member())).await?;
        let number = self.next_number(pool);
        begin(&io, &base, device, &places, &start)
            .await
            .map_err(|error| labels::failed(&pool.name, "writing", number, error))?;

        let _one_at_a_time = pool.work.lock().await;
        let mut parts = self.parts_of(pool);
        if parts.iter().any(|part| part.behind) {
            let written = labels::write(&io, &mut parts, |_| {}).await;
            self.keep_parts(pool.uuid, parts.clone());
            written.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))?;
        }
        let mut part = joining(&parts, base, device, number, places, random_uuid()?, &pool.name)?;
        self.note_candidate(pool, &part)?;
        let (as_device, place, all) = (pool_device(&part), pool_place(&part), Arc::clone(&pool.places));
        let taken_in = self.call(pool, move |pool: &mut Pool| match pool.add_member(&as_device) {
            Ok(()) => {
                all.add(number, place);
                (PoolNext::Done, Ok(pool.request_checkpoint()))
            }
            // Not again and again while there is no space for what is under way: each look is a commit.
            Err(AddError::Again) if pool.members_without_space() == 0 => (PoolNext::Again, Err(AddError::Again)),
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
        // Also where a disk has failed: some may say so already, and numbers of labels only rise.
        taken.keep(device);
        self.keep_parts(pool.uuid, parts);
        written.map_err(|(member, error)| {
            labels::failed(&pool.name, "writing the label of", member, error).remedy(format!(
                "look at that disk and at the kernel's log (dmesg); nothing is put on {called} until the daemon is started again, which finds out whether it is a member"
            ))
        })?;
        self.call(pool, move |pool: &mut Pool| (PoolNext::Done, pool.close_member(number, false))).await?;
        let message = format!("{called} is member {number} of pool {} now", pool.name);
        self.events().info("pool_member_added", message, &[("pool", &pool.name)]);
        Ok(())
    }

    /// Remembers where it is, so that the next start looks there, should the labels say then that it is a member.
    fn note_candidate(&self, pool: &Reach, part: &Part) -> Result<(), ErrorDetail> {
        let kept = {
            let tables = self.read();
            tables.pools.get(&pool.uuid).is_some_and(|entry| tables.is_pool_kept(entry))
        };
        if !kept {
            return Ok(());
        }
        self.remember_pool(std::slice::from_ref(part));
        self.save().inspect_err(|_| self.forget_member(pool.uuid, part.label.member))
    }

    /// The pool was given a member that is to be none: it goes on without it, as it has nothing there. That waits for no write to it which finds
    /// no space.
    async fn leave_out(self: &Arc<Self>, pool: &Reach, part: &Part, taken: &mut Taken<'_>) {
        let number = part.label.member;
        let withdrawn = async {
            loop {
                let withdraw = move |pool: &mut Pool| match pool.withdraw_member(number) {
                    true => (PoolNext::Done, true),
                    // A commit that is requested here would be tried again as fast as it finds no space.
                    false if pool.members_without_space() != 0 => (PoolNext::Done, false),
                    // Between two commits, of which there may always be one.
                    false => (PoolNext::Again, false),
                };
                match self.call(pool, withdraw).await {
                    Ok(true) => return true,
                    Err(error) if error.kind != Kind::NoSpace => return false,
                    Ok(false) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
                }
            }
        };
        let called = self.name_of(&part.base);
        if tokio::time::timeout(GOING_MAX, withdrawn).await != Ok(true) {
            let message = format!(
                "{called} was not added to pool {}, but the pool does not let go of it, as a disk hangs or has failed: it is free when the daemon was restarted",
                pool.name
            );
            self.events().warning("pool_member_left", message, &[("pool", &pool.name)]);
            taken.keep(part.device);
            self.note_stuck(pool, part.clone());
        } else if let Err(left) = labels::erase(&self.ring.devices(), std::slice::from_ref(part)).await {
            for (_, error) in left {
                tracing::warn!("{called}, which was not added to pool {}, may bear its label: {error}", pool.name);
            }
        }
        self.forget_member(pool.uuid, number);
        self.save_or_warn();
    }
}

/// A member as its own label says first: it is being added.
fn joining(
    parts: &[Part],
    base: Base,
    device: DeviceId,
    number: u8,
    places: PoolMemberLayout,
    uuid: Uuid,
    pool: &str,
) -> Result<Part, ErrorDetail> {
    let newest = labels::newest(parts.iter().map(|part| &part.label));
    let mut label = newest.expect("a pool that serves has members").clone();
    label.members.resize(usize::from(number) + 1, None);
    let own = PoolMember { uuid, size_bytes: places.device_bytes, state: PoolMemberState::Joining };
    label.members[usize::from(number)] = Some(own);
    (label.member, label.layout) = (number, places);
    label.encode().map_err(|error| invalid(pool, error.to_string()))?;
    Ok(Part { base, device, label, behind: false, copy_first: false })
}

/// The most that the tail of a pool may hold where this is a member.
fn units_of(places: &PoolMemberLayout) -> u64 {
    log_units_of_ring(u64::from(places.ring_blocks()))
}

/// The smallest device, to a MiB, that is large enough for a pool whose tail holds so much.
fn least_bytes(units: u64, owner_slots: u32) -> u64 {
    let fits = |mib: u64| PoolMemberLayout::new(mib << 20, owner_slots).is_ok_and(|places| units_of(&places) >= units);
    let (mut small, mut large) = (0, MEMBER_BYTES_MAX >> 20);
    while large - small > 1 {
        let middle = small + (large - small) / 2;
        if fits(middle) { large = middle } else { small = middle }
    }
    large << 20
}

fn of_add(error: AddError, pool: &Reach, called: &str) -> ErrorDetail {
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

/// Why a member was not added for want of space: below it, or below others.
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
    fn the_smallest_member_is_named_that_would_do() {
        for mib in [64, 160, 900, 2500, 40_000] {
            let places = PoolMemberLayout::new(mib << 20, 1024).unwrap();
            let least = least_bytes(units_of(&places), 1024);
            assert!(least <= mib << 20, "{mib} MiB do for themselves");
            let smaller = PoolMemberLayout::new(least - (1 << 20), 1024);
            assert!(smaller.is_err() || smaller.is_ok_and(|places| units_of(&places) < units_of(&places_of(mib))));
        }
    }

    fn places_of(mib: u64) -> PoolMemberLayout {
        PoolMemberLayout::new(mib << 20, 1024).unwrap()
    }
}

//! Making a pool of disks and arrays.

use super::super::create::check_name;
use super::super::{Control, counted, random, random_uuid};
use super::members::{Asked, begin, places_on, understand_members};
use super::{Base, Part, labels};
use crate::daemon::state::{SavedPoolArray, SavedPoolDisk};
use braid_api::limits::{ARRAY_MEMBERS_MAX, POOLS_MAX};
use braid_api::{CreatePool, ErrorDetail, Kind, Pool};
use braid_engine::{DeviceId, DeviceIo};
use braid_format::pool::{
    Checkpoint, PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState, PoolState, Reserved, owner_slots_for,
};
use braid_format::{Features, Name};
use braid_ring::RingDevices;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

impl Control {
    /// Makes a pool and serves it.
    ///
    /// Order: everything that can be refused is, before anything is written; the state file remembers the disks; what a pool begins with
    /// is written, and is durable; then the labels say that the pool is being made, everywhere; then that it is there.
    ///
    /// # Errors
    /// The reason, with nothing left behind that could be taken for a pool, or what is left named.
    pub async fn create_pool(self: &Arc<Self>, ask: CreatePool) -> Result<Pool, ErrorDetail> {
        self.is_open()?;
        let asked = understand(&ask)?;
        let name = Name::new(&ask.name).map_err(|error| invalid(&ask.name, error.to_string()))?;
        let _name = self.claim_pool_name(&ask.name)?;
        let taken = self.take_members(None, &asked, "a member of another pool").await?;
        match self.create_pool_on(&name, &taken.seats, ask.force).await {
            Ok(uuid) => self.pool(&uuid.to_string()).await,
            Err(error) => {
                self.give_members_back(taken).await;
                Err(error)
            }
        }
    }

    /// Takes a name for a pool that is about to be.
    fn claim_pool_name(&self, name: &str) -> Result<super::super::create::NameClaim<'_>, ErrorDetail> {
        if self.read().pools.len() >= POOLS_MAX {
            return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {POOLS_MAX} pools already"))
                .remedy("delete one first"));
        }
        self.claim_name(name)
    }

    async fn create_pool_on(
        self: &Arc<Self>,
        name: &Name,
        seats: &[(Base, DeviceId)],
        force: bool,
    ) -> Result<Uuid, ErrorDetail> {
        let io = self.ring.devices();
        let mut sizes = Vec::with_capacity(seats.len());
        let mut contents = Vec::with_capacity(seats.len());
        for (base, device) in seats {
            contents.push(self.look_at_content(&io, base, *device, force).await?);
            sizes.push(io.size_bytes(*device));
        }
        let mut parts = self.plan_pool(&io, name, seats, &sizes)?;
        // Nothing is refused any more.
        for ((base, device), found) in seats.iter().zip(contents) {
            self.clear_content(&io, base, *device, found).await?;
        }
        let uuid = parts[0].label.uuid;
        for part in &parts {
            let start = Checkpoint::first(&part.label.uuid, part.label.session | 1);
            let begun = begin(&io, &part.base, part.device, &part.label.layout, &start).await;
            begun.map_err(|e| labels::failed(name.as_str(), "writing", part.label.member, e))?;
        }
        let kept = parts.iter().all(|part| match &part.base {
            Base::Disk(disk) => !disk.disk.spec().is_volatile(),
            Base::Array(_) => true,
        });
        if kept {
            self.remember_pool(&parts);
            self.save().inspect_err(|_| self.forget_pool(uuid))?;
        }
        let failed = |(member, error)| labels::failed(name.as_str(), "writing the label of", member, error);
        let made = match labels::write(&io, &mut parts, |label| label.state = PoolState::Forming).await {
            Ok(()) => labels::write(&io, &mut parts, |label| label.state = PoolState::Active).await,
            Err(error) => Err(error),
        };
        let opened = match made.map_err(failed) {
            Ok(()) => self.open_pool(parts.clone(), 0, false).await,
            Err(error) => Err(error),
        };
        if let Err(error) = opened {
            // What is half done is finished by the next start.
            labels::doom(&io, &mut parts).await;
            let error = match labels::erase(&io, &parts).await {
                Ok(()) => error,
                Err(left) => {
                    let named = self.left_labels(&parts, &left);
                    let remedy =
                        format!("{}; then: braid disk wipe of {named}, which may bear labels of it", error.remedy);
                    error.remedy(remedy)
                }
            };
            self.remove_tails(uuid);
            self.forget_pool(uuid);
            self.save_or_warn();
            return Err(error);
        }
        let note = if kept { "" } else { "; memory and null disks keep nothing, so it ends with the daemon" };
        self.events().info(
            "pool_created",
            format!("pool {name} was created on {}{note}", counted(parts.len(), "member", "members")),
            &[("pool", name.as_str())],
        );
        Ok(uuid)
    }

    /// The labels that all members are to have.
    fn plan_pool(
        &self,
        io: &RingDevices,
        name: &Name,
        seats: &[(Base, DeviceId)],
        sizes: &[u64],
    ) -> Result<Vec<Part>, ErrorDetail> {
        let smallest = sizes.iter().copied().min().unwrap_or(0);
        let owner_slots = owner_slots_for(smallest);
        let mut places = Vec::with_capacity(sizes.len());
        for ((base, device), size) in seats.iter().zip(sizes) {
            places.push(places_on(io, &self.name_of(base), *device, *size, owner_slots)?);
        }
        let (uuid, session) = (random_uuid()?, random()?);
        let mut members = Vec::with_capacity(sizes.len());
        for size in sizes {
            let member = PoolMember { uuid: random_uuid()?, size_bytes: *size, state: PoolMemberState::InUse };
            members.push(Some(member));
        }
        let label = |member: u8, places: PoolMemberLayout| PoolLabel {
            features: Features::default(),
            uuid,
            sequence: 1,
            name: name.clone(),
            state: PoolState::Forming,
            clean: true,
            created_unix_s: unix_s(),
            session,
            members: members.clone(),
            member,
            layout: places,
            reserved: Reserved::NONE,
        };
        let part = |(number, ((base, device), places)): (u8, (&(Base, DeviceId), PoolMemberLayout))| Part {
            base: base.clone(),
            device: *device,
            label: label(number, places),
            behind: false,
            copy_first: false,
        };
        let parts: Vec<Part> = (0u8..).zip(seats.iter().zip(places)).map(part).collect();
        // Refused before the first write what a label cannot hold.
        for part in &parts {
            part.label.encode().map_err(|error| invalid(name.as_str(), error.to_string()))?;
        }
        Ok(parts)
    }

    /// Notes where a pool's members are.
    pub(super) fn remember_pool(&self, parts: &[Part]) {
        let mut tables = self.write();
        if let Some(label) = parts.first().map(|part| &part.label) {
            // An addition that did not end may have left a place that means nothing.
            let is_one = |number: u8| label.numbered().any(|(other, _)| other == number);
            tables.pool_disks.retain(|_, saved| saved.pool != label.uuid || is_one(saved.member));
            tables.pool_arrays.retain(|saved| saved.pool != label.uuid || is_one(saved.member));
        }
        for part in parts {
            let (uuid, name, member) = (part.label.uuid, part.label.name.to_string(), part.label.member);
            tables.pool_disks.retain(|_, saved| saved.pool != uuid || saved.member != member);
            tables.pool_arrays.retain(|saved| saved.pool != uuid || saved.member != member);
            match &part.base {
                Base::Disk(disk) => {
                    let saved = SavedPoolDisk { disk: disk.name.clone(), pool: uuid, pool_name: name, member };
                    tables.pool_disks.insert(disk.name.clone(), saved);
                }
                Base::Array(array) => {
                    let array_name = tables.arrays.get(array).map(|entry| entry.name.clone()).unwrap_or_default();
                    let saved = SavedPoolArray { array: *array, array_name, pool: uuid, pool_name: name, member };
                    tables.pool_arrays.push(saved);
                }
            }
        }
    }

    /// Forgets where one of them was.
    pub(super) fn forget_member(&self, pool: Uuid, number: u8) {
        let mut tables = self.write();
        tables.pool_disks.retain(|_, saved| saved.pool != pool || saved.member != number);
        tables.pool_arrays.retain(|saved| saved.pool != pool || saved.member != number);
        tables.unplaced.remove(&(pool, number));
    }

    /// Forgets where they were.
    pub(super) fn forget_pool(&self, uuid: Uuid) {
        let mut tables = self.write();
        tables.pool_disks.retain(|_, saved| saved.pool != uuid);
        tables.pool_arrays.retain(|saved| saved.pool != uuid);
        tables.unplaced.retain(|(pool, _), _| *pool != uuid);
        tables.pool_boots.remove(&uuid);
        tables.pool_sessions.remove(&uuid);
    }
}

pub(super) fn invalid(pool: &str, what: String) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, what).with("pool", pool)
}

fn understand(ask: &CreatePool) -> Result<Vec<Asked>, ErrorDetail> {
    check_name(&ask.name)?;
    if ask.members.is_empty() || ask.members.len() > ARRAY_MEMBERS_MAX {
        let message = format!("a pool has 1 to {ARRAY_MEMBERS_MAX} members, not {}", ask.members.len());
        return Err(invalid(&ask.name, message));
    }
    understand_members(&ask.name, &ask.members)
}

/// Now, in seconds of Unix time.
pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

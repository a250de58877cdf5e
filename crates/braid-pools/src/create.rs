//! Creates pools on disks and arrays.

use crate::errors::invalid;
use crate::members::{RequestedMember, layout_on, parse_members, write_initial};
use crate::unix_time::unix_s;
use crate::{PoolManager, labels};
use braid_api::limits::{ARRAY_MEMBERS_MAX, POOLS_MAX};
use braid_api::{CreatePool, ErrorDetail, Kind, Pool};
use braid_arrays::check_name;
use braid_engine::{DeviceId, DeviceIo};
use braid_format::pool::{
    Checkpoint, PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState, PoolState, Reserved, owner_slots_for,
};
use braid_format::{Features, Name};
use braid_inventory::state::{SavedPoolArray, SavedPoolDisk};
use braid_inventory::{MemberBacking, MemberPart, counted, random, random_uuid};
use braid_ring::RingDevices;
use std::sync::Arc;
use uuid::Uuid;

impl PoolManager {
    /// Creates a pool and serves it.
    ///
    /// Order: everything that can be refused is refused before anything is written. The state file records the disks.
    /// The initial tables are written, durably. The labels on all members say that the pool is forming. Then the labels
    /// on all members say that it is active.
    ///
    /// # Errors
    /// The name is taken; a member is in use, unsuitable, or not empty without `force`; a device fails. After an error
    /// no label is left that could be taken for a pool's, or the error names the members whose labels could not be
    /// removed.
    pub async fn create_pool(self: &Arc<Self>, ask: CreatePool) -> Result<Pool, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let requested = parse_request(&ask)?;
        let name = Name::new(&ask.name).map_err(|error| invalid(&ask.name, error.to_string()))?;
        let _name = self.claim_pool_name(&ask.name)?;
        let taken = self.claim_members(None, &requested, "a member of another pool").await?;
        match self.create_pool_on(&name, &taken.devices, ask.force).await {
            Ok(uuid) => self.pool(&uuid.to_string()).await,
            Err(error) => {
                self.give_back_members(taken).await;
                Err(error)
            }
        }
    }

    /// Claims a name for a pool that is about to be created.
    fn claim_pool_name(&self, name: &str) -> Result<braid_arrays::NameClaim<'_>, ErrorDetail> {
        if self.inventory.read().pools.len() >= POOLS_MAX {
            return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {POOLS_MAX} pools already"))
                .remedy("delete one first"));
        }
        self.arrays.claim_name(name)
    }

    async fn create_pool_on(
        self: &Arc<Self>,
        name: &Name,
        devices: &[(MemberBacking, DeviceId)],
        force: bool,
    ) -> Result<Uuid, ErrorDetail> {
        let io = self.ring.devices();
        let mut sizes = Vec::with_capacity(devices.len());
        let mut contents = Vec::with_capacity(devices.len());
        for (backing, device) in devices {
            contents.push(self.examine_content(&io, backing, *device, force).await?);
            sizes.push(io.size_bytes(*device));
        }
        let mut parts = self.plan_pool(&io, name, devices, &sizes)?;
        // From here on nothing is refused.
        for ((backing, device), found) in devices.iter().zip(contents) {
            self.clear_content(&io, backing, *device, found).await?;
        }
        let uuid = parts[0].label.uuid;
        for part in &parts {
            let start = Checkpoint::first(&part.label.uuid, part.label.session | 1);
            let begun = write_initial(&io, &part.backing, part.device, &part.label.layout, &start).await;
            begun.map_err(|e| labels::failed(name.as_str(), "writing", part.label.member, e))?;
        }
        let kept = parts.iter().all(|part| match &part.backing {
            MemberBacking::Disk(disk) => !disk.disk.spec().is_volatile(),
            MemberBacking::Array(_) => true,
        });
        if kept {
            self.remember_pool(&parts);
            self.inventory.save().inspect_err(|_| self.forget_pool(uuid))?;
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
            // If the removal of the labels is interrupted, this mark makes the next start complete it.
            labels::mark_deleting(&io, &mut parts).await;
            let error = match labels::erase(&io, &parts).await {
                Ok(()) => error,
                Err(left) => {
                    let named = self.left_labels(&parts, &left);
                    let remedy =
                        format!("{}; then: braid disk wipe of {named}, which may bear labels of it", error.remedy);
                    error.remedy(remedy)
                }
            };
            self.remove_memory_logs(uuid);
            self.forget_pool(uuid);
            self.inventory.save_or_warn();
            return Err(error);
        }
        let note = if kept { "" } else { "; memory and null disks keep nothing, so it ends with the daemon" };
        self.inventory.events().info(
            "pool_created",
            format!("pool {name} was created on {}{note}", counted(parts.len(), "member", "members")),
            &[("pool", name.as_str())],
        );
        Ok(uuid)
    }

    /// Returns the members with the labels that they are to have.
    fn plan_pool(
        &self,
        io: &RingDevices,
        name: &Name,
        devices: &[(MemberBacking, DeviceId)],
        sizes: &[u64],
    ) -> Result<Vec<MemberPart>, ErrorDetail> {
        let smallest = sizes.iter().copied().min().unwrap_or(0);
        let owner_slots = owner_slots_for(smallest);
        let mut layouts = Vec::with_capacity(sizes.len());
        for ((backing, device), size) in devices.iter().zip(sizes) {
            layouts.push(layout_on(io, &self.job_name(backing), *device, *size, owner_slots)?);
        }
        let (uuid, session) = (random_uuid()?, random()?);
        let mut members = Vec::with_capacity(sizes.len());
        for size in sizes {
            let member = PoolMember { uuid: random_uuid()?, size_bytes: *size, state: PoolMemberState::InUse };
            members.push(Some(member));
        }
        let label = |member: u8, layout: PoolMemberLayout| PoolLabel {
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
            layout,
            reserved: Reserved::NONE,
        };
        let part =
            |(number, ((backing, device), layout)): (u8, (&(MemberBacking, DeviceId), PoolMemberLayout))| MemberPart {
                backing: backing.clone(),
                device: *device,
                label: label(number, layout),
                behind: false,
                copy_first: false,
            };
        let parts: Vec<MemberPart> = (0u8..).zip(devices.iter().zip(layouts)).map(part).collect();
        // Refuses before the first write what a label cannot hold.
        for part in &parts {
            part.label.encode().map_err(|error| invalid(name.as_str(), error.to_string()))?;
        }
        Ok(parts)
    }

    /// Records the locations of a pool's members.
    pub(crate) fn remember_pool(&self, parts: &[MemberPart]) {
        let mut tables = self.inventory.write();
        if let Some(label) = parts.first().map(|part| &part.label) {
            // An addition that did not complete may have left a record without meaning.
            let is_one = |number: u8| label.numbered().any(|(other, _)| other == number);
            tables.pool_disks.retain(|_, saved| saved.pool != label.uuid || is_one(saved.member));
            tables.pool_arrays.retain(|saved| saved.pool != label.uuid || is_one(saved.member));
        }
        for part in parts {
            let (uuid, name, member) = (part.label.uuid, part.label.name.to_string(), part.label.member);
            tables.pool_disks.retain(|_, saved| saved.pool != uuid || saved.member != member);
            tables.pool_arrays.retain(|saved| saved.pool != uuid || saved.member != member);
            match &part.backing {
                MemberBacking::Disk(disk) => {
                    let saved = SavedPoolDisk { disk: disk.name.clone(), pool: uuid, pool_name: name, member };
                    tables.pool_disks.insert(disk.name.clone(), saved);
                }
                MemberBacking::Array(array) => {
                    let array_name = tables.arrays.get(array).map(|entry| entry.name.clone()).unwrap_or_default();
                    let saved = SavedPoolArray { array: *array, array_name, pool: uuid, pool_name: name, member };
                    tables.pool_arrays.push(saved);
                }
            }
        }
    }

    /// Forgets the location of one member.
    pub(crate) fn forget_member(&self, pool: Uuid, number: u8) {
        let mut tables = self.inventory.write();
        tables.pool_disks.retain(|_, saved| saved.pool != pool || saved.member != number);
        tables.pool_arrays.retain(|saved| saved.pool != pool || saved.member != number);
        tables.evacuated_volumes.remove(&(pool, number));
    }

    /// Forgets the locations of all members.
    pub(crate) fn forget_pool(&self, uuid: Uuid) {
        let mut tables = self.inventory.write();
        tables.pool_disks.retain(|_, saved| saved.pool != uuid);
        tables.pool_arrays.retain(|saved| saved.pool != uuid);
        tables.evacuated_volumes.retain(|(pool, _), _| *pool != uuid);
        tables.pool_boots.remove(&uuid);
        tables.pool_sessions.remove(&uuid);
    }
}

fn parse_request(ask: &CreatePool) -> Result<Vec<RequestedMember>, ErrorDetail> {
    check_name(&ask.name)?;
    if ask.members.is_empty() || ask.members.len() > ARRAY_MEMBERS_MAX {
        let message = format!("a pool has 1 to {ARRAY_MEMBERS_MAX} members, not {}", ask.members.len());
        return Err(invalid(&ask.name, message));
    }
    parse_members(&ask.name, &ask.members)
}

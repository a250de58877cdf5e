//! Opening a pool whose members are all here, and serving it.

use super::super::{Control, random};
use super::measure::Vitals;
use super::remove::state_of;
use super::tend::Tending;
use super::{Condition, Part, PoolEntry, Served, labels, starved};
use braid_api::{ErrorDetail, Kind};
use braid_engine::pool::{OpenError, OpenPool, PoolDevice, open};
use braid_engine::{DeviceIo, IoError, PoolMembers, PoolPlace, ShardId};
use braid_format::pool::{PoolLabel, PoolMemberState};
use braid_ring::stack_level_of;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

impl Control {
    /// Opens a pool and serves it, with the exports of its volumes. The members are there, by number, and are devices, but for those by whose
    /// bits in `absent` it is to go on without: the labels say so before anything else is changed. Pages of tables that cannot be read, and that a crash
    /// left something for, are written over only if it `gives_up` what else stands there.
    ///
    /// # Errors
    /// It cannot be opened, or this node cannot note that although it keeps replicas; the devices stay as they are, and nothing is lost.
    pub(super) async fn open_pool(
        self: &Arc<Self>,
        parts: Vec<Part>,
        absent: u128,
        gives_up: bool,
    ) -> Result<(), ErrorDetail> {
        let (uuid, name) = (parts[0].label.uuid, parts[0].label.name.to_string());
        let (session, run) = (random()? | 1, random()? | 1);
        // Whoever served it until now, and what that left, before anything is changed.
        let tails = tokio::task::block_in_place(|| self.tails(uuid))?;
        let io = self.ring.devices();
        let newest = labels::newest(parts.iter().map(|part| &part.label)).expect("a pool has members").clone();
        self.note_opening(uuid, &newest, session)?;
        // Whom the pool went on without is a member again when it was opened with him.
        let (mut parts, back): (Vec<Part>, Vec<Part>) =
            parts.into_iter().partition(|part| newest.lists_as_present(&part.label));
        let written = labels::write(&io, &mut parts, |label| {
            (label.session, label.clean) = (session, false);
            set_states(label, absent & !label.abandoned(), PoolMemberState::Missing);
        });
        let failed = |(member, error)| labels::failed(&name, "writing the label of", member, error);
        written.await.map_err(failed)?;
        let mut members: Vec<PoolDevice> = parts.iter().chain(&back).map(pool_device).collect();
        members.sort_by_key(|member| member.number);
        let what = OpenPool {
            uuid,
            members: &members,
            owner_slots: newest.layout.owner_slots,
            missing: absent,
            overwrites_unreadable: gives_up,
            run,
        };
        let boot = tails.boot();
        let same_boot = self.read().pool_boots.get(&uuid) == Some(&boot);
        // On a volume of several nodes all that was acknowledged is committed.
        let carried = self.read().carrier(parts.iter()).is_some();
        let tail_missed = || tails.missed() && !newest.clean && same_boot && !carried;
        let (label, unnoted) = (parts[0].label.clone(), Mutex::new(None));
        // Before the session is raised: afterwards whoever starts finds the new one's tail, and misses nothing.
        let begun = |session, bytes| {
            let note = |error: ErrorDetail| {
                let why = error.message.clone();
                *unnoted.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                why
            };
            let memory = tokio::task::block_in_place(|| tails.begin(session, bytes))?;
            self.note_session(uuid, &label, boot, tail_missed()).map_err(note)?;
            Ok(memory)
        };
        let opened = open(&io, &what, |session| tails.old(session), begun).await;
        let unnoted = unnoted.into_inner().unwrap_or_else(PoisonError::into_inner);
        let pool = opened.map_err(|error| {
            unnoted.unwrap_or_else(|| {
                let full = starved::of_open(&name, &error, &parts);
                full.unwrap_or_else(|| of_open(&name, uuid, &error, &self.shared_memory))
            })
        })?;
        let tail_missed = tail_missed();
        let tail = tokio::task::block_in_place(|| tails.keep_new());
        let returned: Vec<u8> = back.iter().map(|part| part.label.member).collect();
        let parts = take_back(&io, parts, back).await.map_err(failed)?;
        let (key, shared) = (self.write().take_pool_key(stack_level_of(parts[0].device))?, Arc::clone(pool.shared()));
        let home = ShardId(key.0 % self.ring.shards());
        let places = places(&parts);
        let mut pool = pool;
        let damaged = pool.damaged().len() as u32;
        super::lost::use_no_more(&mut pool, &parts[0].label);
        for part in parts.iter().filter(|part| state_of(part) == Some(PoolMemberState::Removing)) {
            // Where its owners were not told so before the last end they are now. Nothing has to wait: the tail is empty.
            if let Err(error) = pool.empty_member(part.label.member) {
                tracing::warn!("pool {name}: member {} leaves, and is used: {error}", part.label.member);
                pool.close_member(part.label.member, true);
            }
        }
        self.ring.serve_pool(key, home, Box::new(pool), Arc::clone(&places)).await;
        let served = Served {
            key,
            home,
            shared: Arc::clone(&shared),
            places,
            parts: parts.clone(),
            outgoing: Vec::new(),
            stuck: Vec::new(),
            volumes: BTreeMap::new(),
            releasing: BTreeSet::new(),
            work: Arc::default(),
            tending: Tending::default(),
            failed: Arc::new(AtomicBool::new(false)),
            tail_missed,
            damaged: Arc::new(AtomicU32::new(damaged)),
            snapshots: Vec::new(),
            policies: Vec::new(),
            policies_failing: BTreeSet::new(),
            noting: Arc::default(),
            vitals: Vitals::default(),
            contents: Arc::default(),
            counted: Arc::default(),
            jobs: Arc::default(),
            returned: BTreeMap::new(),
        };
        let (label, pool) = (parts[0].label.clone(), name.clone());
        let entry = PoolEntry { uuid, name, label: Some(label), condition: Condition::Serves(Box::new(served)) };
        {
            let mut tables = self.write();
            tables.pools.insert(uuid, entry);
        }
        if damaged != 0 {
            self.events().error("pool_damaged", super::check::in_words(&pool, damaged), &[("pool", &pool)]);
        }
        if tail_missed {
            let message = format!(
                "the last session of pool {pool} did not end in order, and its tail is not in {}: what was acknowledged and not flushed in its last moments is lost, as after a loss of power",
                self.shared_memory.display()
            );
            self.events().error("pool_tail_lost", message, &[("pool", &pool)]);
        }
        self.tell_absent(&pool, absent & !newest.abandoned(), &returned);
        self.save_or_warn();
        self.note_snapshots(uuid).await;
        self.tend(uuid, tail);
        self.restore_pool_exports(uuid).await;
        self.open_replicas_of(uuid).await;
        Ok(())
    }
}

/// Those who return are members again in all labels. Their own says first that they are about to be.
pub(super) async fn take_back(
    io: &impl DeviceIo,
    mut parts: Vec<Part>,
    mut back: Vec<Part>,
) -> Result<Vec<Part>, (u8, IoError)> {
    if back.is_empty() {
        return Ok(parts);
    }
    let mut returned = 0;
    for part in &mut back {
        let (member, places) = (part.label.member, part.label.layout);
        part.label = PoolLabel { member, layout: places, ..parts[0].label.clone() };
        set_states(&mut part.label, 1 << member, PoolMemberState::Joining);
        labels::announce(io, part).await.map_err(|error| (member, error))?;
        returned |= 1 << member;
    }
    parts.append(&mut back);
    parts.sort_by_key(|part| part.label.member);
    labels::write(io, &mut parts, |label| set_states(label, returned, PoolMemberState::InUse)).await?;
    Ok(parts)
}

/// Says of members, by their bits, what the pool thinks of them.
pub(super) fn set_states(label: &mut PoolLabel, members: u128, state: PoolMemberState) {
    for (number, member) in (0u8..).zip(&mut label.members) {
        if let Some(member) = member.as_mut().filter(|_| members >> number & 1 == 1) {
            member.state = state;
        }
    }
}

/// Where the members' extents begin.
fn places(parts: &[Part]) -> Arc<PoolMembers> {
    Arc::new(PoolMembers::new(parts.iter().map(|part| (part.label.member, pool_place(part)))))
}

/// Where a member's extents begin.
pub(super) fn pool_place(part: &Part) -> PoolPlace {
    PoolPlace { device: part.device, data: part.label.layout.data.start }
}

/// What the core knows of a member.
pub(super) fn pool_device(part: &Part) -> PoolDevice {
    let places = &part.label.layout;
    PoolDevice::new(part.label.member, part.device, places)
}

fn of_open(pool: &str, uuid: uuid::Uuid, error: &OpenError, tails: &std::path::Path) -> ErrorDetail {
    let (kind, remedy) = match error {
        OpenError::Io { .. } => (
            Kind::DiskError,
            "look at the disk and at the kernel's log (dmesg); when it reads and writes again: braid array assemble"
                .to_owned(),
        ),
        OpenError::Unread { .. } => (
            Kind::DiskError,
            format!(
                "nothing was changed; look at the disk and at the kernel's log (dmesg), and try again (braid array assemble): often it can be read \
                 the next time. Where it never can: braid pool start {pool} --give-up writes these 4 KiB anew, and what else stood in them, up to 32 MiB of \
                 blocks, is damaged; or detach that member, and: braid pool start {pool} --force"
            ),
        ),
        OpenError::LacksCommit { member, .. } | OpenError::OtherRun(member) => (
            Kind::Damaged,
            format!(
                "nothing was changed; detach member {member} (or wipe its label: braid disk wipe), then: braid pool start {pool} --force, which \
                 goes on without it"
            ),
        ),
        OpenError::LogMemory(_) => (Kind::NoSpace, "make room in shared memory; it is tried again by itself".to_owned()),
        OpenError::OldLog(_) => (
            Kind::Damaged,
            format!(
                "keep a copy of the files in {} that have {uuid} in their name; without them the pool opens (braid array assemble) as after a loss \
                 of power: what was flushed is there, what was not may be gone",
                tails.display()
            ),
        ),
        _ => (
            Kind::Damaged,
            "volumes and tables are as they were, only the labels were marked as in use; look at the members with `braid disk examine DISK`"
                .to_owned(),
        ),
    };
    ErrorDetail::new(kind, format!("pool {pool} cannot be opened: {error}")).with("pool", pool).remedy(remedy)
}

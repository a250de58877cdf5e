//! Opens a pool whose members are all present, and serves it.

use crate::remove::state_of;
use crate::{PoolManager, labels, no_space};
use braid_api::{ErrorDetail, Kind};
use braid_engine::pool::{OpenError, OpenPool, PoolDevice, open};
use braid_engine::{DeviceIo, IoError, PoolMemberLocation, PoolMembers, ShardId};
use braid_format::pool::{PoolLabel, PoolMemberState};
use braid_inventory::{Maintenance, MemberPart, PoolCondition, PoolEntry, ServedPool, Vitals, random};
use braid_ring::stack_level_of;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

impl PoolManager {
    /// Opens a pool and serves it, with the exports of its volumes. `parts`: the present members, as devices, in order
    /// of their numbers. `absent`: bit mask of the members that the pool goes on without; the labels record them as
    /// missing before anything else is changed. `gives_up`: if recovery has to write an entry into a table page that
    /// cannot be read, it overwrites the page, whose other entries are lost. Otherwise such a pool is not opened.
    ///
    /// # Errors
    /// The pool cannot be opened; or the pool has replicas, and this node cannot record the session. The caller keeps
    /// the devices, and no data is lost; the labels may have the new session.
    pub(crate) async fn open_pool(
        self: &Arc<Self>,
        parts: Vec<MemberPart>,
        absent: u128,
        gives_up: bool,
    ) -> Result<(), ErrorDetail> {
        let (uuid, name) = (parts[0].label.uuid, parts[0].label.name.to_string());
        let (session, run) = (random()? | 1, random()? | 1);
        // Checks that no other process serves the pool, and takes over its in-memory log, before anything is changed.
        let memory_logs = tokio::task::block_in_place(|| self.memory_logs(uuid))?;
        let io = self.ring.devices();
        let newest = labels::newest(parts.iter().map(|part| &part.label)).expect("a pool has members").clone();
        self.note_opening(uuid, &newest, session)?;
        // A member that the labels list as missing, but that is present, gets a new label only after the pool was
        // opened with it.
        let (mut parts, back): (Vec<MemberPart>, Vec<MemberPart>) =
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
        let boot = memory_logs.boot();
        let same_boot = self.inventory.read().pool_boots.get(&uuid) == Some(&boot);
        // On a replicated volume all acknowledged writes are committed.
        let on_replicated = self.inventory.read().replicated_member(parts.iter()).is_some();
        let log_missed = || memory_logs.missed() && !newest.clean && same_boot && !on_replicated;
        let (label, unnoted) = (parts[0].label.clone(), Mutex::new(None));
        // Called before the session number is raised on the members. A later start looks for the in-memory log of the
        // new session, and cannot tell that the one before it was lost: so that loss is recorded here.
        let begun = |session, bytes| {
            let note = |error: ErrorDetail| {
                let why = error.message.clone();
                *unnoted.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                why
            };
            let memory = tokio::task::block_in_place(|| memory_logs.begin(session, bytes))?;
            self.note_session(uuid, &label, boot, log_missed()).map_err(note)?;
            Ok(memory)
        };
        let opened = open(&io, &what, |session| memory_logs.old(session), begun).await;
        let unnoted = unnoted.into_inner().unwrap_or_else(PoisonError::into_inner);
        let pool = opened.map_err(|error| {
            unnoted.unwrap_or_else(|| {
                let full = no_space::of_open(&name, &error, &parts);
                full.unwrap_or_else(|| of_open(&name, uuid, &error, &self.shared_memory))
            })
        })?;
        let log_missed = log_missed();
        let memory_log = tokio::task::block_in_place(|| memory_logs.keep_new());
        let returned: Vec<u8> = back.iter().map(|part| part.label.member).collect();
        let parts = take_back(&io, parts, back).await.map_err(failed)?;
        let (key, shared) =
            (self.inventory.write().allocate_pool_key(stack_level_of(parts[0].device))?, Arc::clone(pool.shared()));
        let home = ShardId(key.0 % self.ring.shards());
        let locations = locations(&parts);
        let mut pool = pool;
        let damaged = pool.damaged().len() as u32;
        crate::abandoned::remove_stale_placement(&mut pool, &parts[0].label);
        for part in parts.iter().filter(|part| state_of(part) == Some(PoolMemberState::Removing)) {
            // If the removal was interrupted, the placement of some owners may still name this member: that is changed
            // now. The in-memory log is empty, so that it has room for the change without a commit.
            if let Err(error) = pool.empty_member(part.label.member) {
                tracing::warn!("pool {name}: member {} leaves, and is used: {error}", part.label.member);
                pool.close_member(part.label.member, true);
            }
        }
        self.ring.serve_pool(key, home, Box::new(pool), Arc::clone(&locations)).await;
        let served = ServedPool {
            key,
            home,
            shared: Arc::clone(&shared),
            locations,
            parts: parts.clone(),
            outgoing: Vec::new(),
            stuck: Vec::new(),
            volumes: BTreeMap::new(),
            releasing: BTreeSet::new(),
            work: Arc::default(),
            maintenance: Maintenance::default(),
            failed: Arc::new(AtomicBool::new(false)),
            log_missed,
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
        let entry = PoolEntry { uuid, name, label: Some(label), condition: PoolCondition::Serves(Box::new(served)) };
        {
            let mut tables = self.inventory.write();
            tables.pools.insert(uuid, entry);
        }
        if damaged != 0 {
            self.inventory.events().error(
                "pool_damaged",
                crate::check::describe_damage(&pool, damaged),
                &[("pool", &pool)],
            );
        }
        if log_missed {
            let message = format!(
                "the last session of pool {pool} did not end cleanly, and its in-memory log is not in {}: what was acknowledged and not flushed in its last moments is lost, as after a loss of power",
                self.shared_memory.display()
            );
            self.inventory.events().error("pool_memory_log_lost", message, &[("pool", &pool)]);
        }
        self.report_missing(&pool, absent & !newest.abandoned(), &returned);
        self.inventory.save_or_warn();
        self.note_snapshots(uuid).await;
        self.maintain(uuid, memory_log);
        self.restore_pool_exports(uuid).await;
        self.provider().open_replicas_of(uuid).await;
        Ok(())
    }
}

/// Lists returning members as in use again. First the label of each of them says *joining*, durably; then the labels of
/// all members, returning ones included, say that they are in use.
pub(crate) async fn take_back(
    io: &impl DeviceIo,
    mut parts: Vec<MemberPart>,
    mut back: Vec<MemberPart>,
) -> Result<Vec<MemberPart>, (u8, IoError)> {
    if back.is_empty() {
        return Ok(parts);
    }
    let mut returned = 0;
    for part in &mut back {
        let (member, layout) = (part.label.member, part.label.layout);
        part.label = PoolLabel { member, layout, ..parts[0].label.clone() };
        set_states(&mut part.label, 1 << member, PoolMemberState::Joining);
        labels::announce(io, part).await.map_err(|error| (member, error))?;
        returned |= 1 << member;
    }
    parts.append(&mut back);
    parts.sort_by_key(|part| part.label.member);
    labels::write(io, &mut parts, |label| set_states(label, returned, PoolMemberState::InUse)).await?;
    Ok(parts)
}

/// Sets the state of the members in a bit mask.
pub(crate) fn set_states(label: &mut PoolLabel, members: u128, state: PoolMemberState) {
    for (number, member) in (0u8..).zip(&mut label.members) {
        if let Some(member) = member.as_mut().filter(|_| members >> number & 1 == 1) {
            member.state = state;
        }
    }
}

/// Returns where the members' extents begin.
fn locations(parts: &[MemberPart]) -> Arc<PoolMembers> {
    Arc::new(PoolMembers::new(parts.iter().map(|part| (part.label.member, member_location(part)))))
}

/// Returns where a member's extents begin.
pub(crate) fn member_location(part: &MemberPart) -> PoolMemberLocation {
    PoolMemberLocation { device: part.device, data: part.label.layout.data.start }
}

/// Returns the engine's description of a member.
pub(crate) fn pool_device(part: &MemberPart) -> PoolDevice {
    let layout = &part.label.layout;
    PoolDevice::new(part.label.member, part.device, layout)
}

fn of_open(pool: &str, uuid: uuid::Uuid, error: &OpenError, memory_logs: &std::path::Path) -> ErrorDetail {
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
        OpenError::LogMemory(_) => (Kind::NoSpace, "make room in shared memory; it is retried automatically".to_owned()),
        OpenError::OldLog(_) => (
            Kind::Damaged,
            format!(
                "keep a copy of the files in {} that have {uuid} in their name; without them the pool opens (braid array assemble) as after a loss \
                 of power: what was flushed is there, what was not may be gone",
                memory_logs.display()
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

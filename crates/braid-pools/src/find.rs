//! Finds pools by the labels of disks and arrays, and opens those that are complete.

use crate::{PoolManager, labels};
use braid_api::{ErrorDetail, Kind, Pool, PoolState, StartPool};
use braid_arrays::ScanResults;
use braid_engine::DeviceId;
use braid_format::pool::{PoolLabel, PoolMemberState as MemberState, PoolState as LabelState};
use braid_inventory::{Claim, IdlePool, MemberBacking, MemberPart, PoolCondition, PoolEntry, WITH_POOL};
use braid_ring::stack_level_of;
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;
use uuid::Uuid;

/// A label that is this many sequence numbers behind the newest has missed a change.
const STALE_SEQUENCES: u64 = 2;

/// A member that was found: a disk that is not a device yet, or an array.
pub(crate) struct FoundMember {
    pub(crate) backing: MemberBacking,
    pub(crate) device: Option<DeviceId>,
    pub(crate) label: PoolLabel,
}

impl PoolManager {
    /// Evaluates the pools whose members were found: disks that were just examined, and active arrays.
    pub async fn evaluate_pools(self: &Arc<Self>, harvest: &mut ScanResults) {
        let mut pools: BTreeMap<Uuid, Vec<FoundMember>> = BTreeMap::new();
        for found in std::mem::take(&mut harvest.pools) {
            let present = FoundMember { backing: MemberBacking::Disk(found.disk), device: None, label: *found.label };
            pools.entry(present.label.uuid).or_default().push(present);
        }
        for present in self.arrays_of_pools().await {
            pools.entry(present.label.uuid).or_default().push(present);
        }
        // Pools that do not serve, and of which no member is found now, are removed; `list_missing_pools` lists those
        // again that the saved state knows.
        let gone = |uuid: &Uuid, entry: &mut PoolEntry| entry.served().is_some() || pools.contains_key(uuid);
        self.inventory.write().pools.retain(gone);
        // All at once: a pool whose disk hangs does not delay the others.
        let disk_errors = Arc::new(std::mem::take(&mut harvest.troubles));
        let mut all = JoinSet::new();
        for (uuid, present) in pools {
            let (manager, disk_errors) = (Arc::clone(self), Arc::clone(&disk_errors));
            tasks::spawn_in(&mut all, async move {
                manager.evaluate_pool(uuid, present, &disk_errors, &StartPool::default()).await
            });
        }
        while let Some(evaluated) = all.join_next().await {
            if let Err(error) = evaluated {
                self.inventory.events().error(
                    "pool_failed",
                    format!("evaluating a pool ended unexpectedly: {error}"),
                    &[],
                );
            }
        }
        self.list_missing_pools(&disk_errors);
        harvest.troubles = Arc::unwrap_or_clone(disk_errors);
    }

    /// Returns the active arrays that have the label of a pool which does not serve.
    async fn arrays_of_pools(&self) -> Vec<FoundMember> {
        let arrays: Vec<(Uuid, DeviceId)> = {
            let tables = self.inventory.read();
            let active = tables.arrays.values().filter_map(|entry| Some((entry.uuid, entry.active()?.device)));
            active
                .filter(|(uuid, _)| tables.serving_pool_on(*uuid).is_none() && !tables.busy.contains_key(uuid))
                .collect()
        };
        let io = self.ring.devices();
        let mut present = Vec::new();
        for (uuid, device) in arrays {
            match labels::read(&io, device).await {
                Ok(Some(Ok(label))) => {
                    present.push(FoundMember { backing: MemberBacking::Array(uuid), device: Some(device), label })
                }
                Ok(Some(Err(why))) => {
                    let name = self.job_name(&MemberBacking::Array(uuid));
                    let message = format!("{name} bears the label of a pool that cannot be used: {why}");
                    self.inventory.events().error("pool_label_damaged", message, &[]);
                }
                Ok(None) => {}
                Err(error) => {
                    let name = self.job_name(&MemberBacking::Array(uuid));
                    tracing::warn!("{name}: reading the label of a pool failed: {error}");
                }
            }
        }
        present
    }

    /// Evaluates one pool by the members found: opens it, completes its interrupted deletion, or lists it with the
    /// reason why it does not serve. Closes the disks that the pool does not use. A pool that is being changed is left
    /// alone.
    pub(crate) async fn evaluate_pool(
        self: &Arc<Self>,
        uuid: Uuid,
        present: Vec<FoundMember>,
        disk_errors: &BTreeMap<String, ErrorDetail>,
        ask: &StartPool,
    ) {
        let Some(_claim) = self.inventory.claim_uuid(uuid, "opened") else { return self.close_found(present).await };
        self.evaluate_claimed(uuid, present, disk_errors, ask).await;
    }

    /// As [`PoolManager::evaluate_pool`], for callers that have claimed the pool.
    pub(crate) async fn evaluate_claimed(
        self: &Arc<Self>,
        uuid: Uuid,
        present: Vec<FoundMember>,
        disk_errors: &BTreeMap<String, ErrorDetail>,
        ask: &StartPool,
    ) {
        let (present, _arrays) = self.claim_found_arrays(present).await;
        if present.is_empty() {
            return;
        }
        let serving = |e: &PoolEntry| e.served().is_some().then(|| (e.name.clone(), e.label.clone()));
        let serving = self.inventory.read().pools.get(&uuid).and_then(serving);
        if let Some((name, label)) = serving {
            for member in &present {
                if label.as_ref().is_some_and(|label| is_former_member(label, member)) {
                    if let Some(label) = &label {
                        self.report_former_member(label, member);
                    }
                    continue;
                }
                if label.as_ref().is_some_and(|label| !label.lists_as_present(&member.label)) {
                    self.note_returned(uuid, member);
                    continue;
                }
                let what = self.job_name(&member.backing);
                let message = format!(
                    "{what} bears the label of a member of pool {name}, which is active: it is a copy; wipe its label, or detach it"
                );
                self.inventory.events().warning("disk_is_a_copy", message, &[("pool", &name)]);
            }
            return self.close_found(present).await;
        }
        let newest = labels::newest(present.iter().map(|member| &member.label));
        let label = newest.expect("somebody bears its label").clone();
        let name = label.name.to_string();
        let present = self.without_former_members(&label, present).await;
        if present.is_empty() {
            // By the newest label, no device found is a member.
            return;
        }
        let mut tells = true;
        let idle = match self.decide(&label, &present, disk_errors, ask.force) {
            PoolOutcome::Open { absent } => match self.open_found(present, absent, ask.give_up).await {
                Ok(()) => {
                    self.inventory.events().info("pool_started", format!("pool {name} is active"), &[("pool", &name)]);
                    return self.inventory.save_or_warn();
                }
                Err((error, present)) => {
                    let lacks_space = error.kind == Kind::NoSpace;
                    // The reason for repeated attempts is reported once.
                    tells = !lacks_space || !self.is_starved(uuid);
                    if tells {
                        self.inventory.events().error("pool_failed", &error.message, &[("pool", &name)]);
                    }
                    let idle = IdlePool {
                        state: PoolState::Failed,
                        attention: vec![error.message],
                        remedy: error.remedy,
                        present: self.present(&present),
                        arrays: found_arrays(&present),
                        lacks_space,
                    };
                    self.close_found(present).await;
                    idle
                }
            },
            PoolOutcome::Delete => {
                let (parts, rest) = self.make_devices(present).await;
                self.close_found(rest).await;
                match self.erase_pool(&name, parts).await {
                    Ok(()) => {
                        self.forget_pool(uuid);
                        self.inventory.write().pools.remove(&uuid);
                        let message = format!("the interrupted deletion of pool {name} is done");
                        self.inventory.events().info("pool_deleted", message, &[("pool", &name)]);
                        return self.inventory.save_or_warn();
                    }
                    Err(error) => IdlePool {
                        state: PoolState::Failed,
                        attention: vec![error.message],
                        remedy: error.remedy,
                        present: BTreeMap::new(),
                        arrays: BTreeMap::new(),
                        lacks_space: false,
                    },
                }
            }
            PoolOutcome::Wait(idle) => {
                self.close_found(present).await;
                idle
            }
        };
        let message = format!("pool {name} is not active: {}", idle.attention.first().cloned().unwrap_or_default());
        if tells {
            self.inventory.events().warning("pool_waits", message, &[("pool", &name)]);
        }
        let entry = PoolEntry { uuid, name, label: Some(label), condition: PoolCondition::Idle(idle) };
        self.inventory.write().pools.insert(uuid, entry);
    }

    /// Returns the devices that are members by the newest label. Reports and closes the others: their own label is
    /// older than their removal or abandonment, or their addition did not complete.
    async fn without_former_members(&self, label: &PoolLabel, present: Vec<FoundMember>) -> Vec<FoundMember> {
        let (left, present): (Vec<FoundMember>, Vec<FoundMember>) =
            present.into_iter().partition(|one| is_former_member(label, one));
        for one in &left {
            self.report_former_member(label, one);
        }
        self.close_found(left).await;
        present
    }

    /// Reports a device that has the label of a pool of which it is not a member.
    fn report_former_member(&self, newest: &PoolLabel, one: &FoundMember) {
        let pool = newest.name.as_str();
        let what = self.job_name(&one.backing);
        // There is no command that removes a label from an array.
        let (called, wipe) = match &one.backing {
            MemberBacking::Disk(disk) => (disk.name.clone(), format!("wipe its label (braid disk wipe {})", disk.name)),
            MemberBacking::Array(_) => {
                (what.trim_start_matches("array ").to_owned(), "put it to another use".to_owned())
            }
        };
        let message = if newest.is_joining() {
            format!(
                "{what} was to be added to pool {pool}, or to return to it, and that did not end: only its other members can tell which; attach them, \
                 then: braid array assemble. Do not wipe it before"
            )
        } else if one.label.is_joining() {
            format!(
                "{what} was to be added to pool {pool}, and that did not end: nothing of the pool is on it; add it again (braid pool add {pool} \
                 {called}), or {wipe}"
            )
        } else if newest.has_abandoned(&one.label) {
            let number = one.label.member;
            format!(
                "{what} was member {number} of pool {pool}, and was given up: it is not taken back, and its data are not used any more; {wipe}"
            )
        } else {
            format!("{what} bears the label of pool {pool} still, which it was removed from or given up; {wipe}")
        };
        self.inventory.events().warning("pool_member_removed", message, &[("pool", pool)]);
    }

    /// Decides whether a pool can be opened with the members found.
    fn decide(
        &self,
        label: &PoolLabel,
        present: &[FoundMember],
        disk_errors: &BTreeMap<String, ErrorDetail>,
        force: bool,
    ) -> PoolOutcome {
        let name = label.name.as_str();
        if label.state == LabelState::Deleting {
            return PoolOutcome::Delete;
        }
        let failed = |attention: String, remedy: String| {
            let (present, arrays) = (self.present(present), found_arrays(present));
            let (state, attention) = (PoolState::Failed, vec![attention]);
            PoolOutcome::Wait(IdlePool { state, attention, remedy, present, arrays, lacks_space: false })
        };
        let exported = present.iter().filter_map(|member| match member.backing {
            MemberBacking::Array(uuid) => Some((member, self.inventory.read().exports_of(uuid).first()?.clone())),
            MemberBacking::Disk(_) => None,
        });
        if let Some((member, export)) = exported.last() {
            let what = self.job_name(&member.backing);
            return failed(
                format!("{what} is exported as {export}, and its clients would overwrite the pool"),
                format!("braid export remove {export}, then: braid array assemble"),
            );
        }
        if label.state == LabelState::Forming {
            return failed(
                "its creation was interrupted and never completed".to_owned(),
                format!("braid pool delete {name} --force, then create it again"),
            );
        }
        let clash = {
            let tables = self.inventory.read();
            let array = tables.arrays.values().find(|entry| entry.name == name).map(|entry| ("array", entry.uuid));
            let pool = tables.pools.values().find(|entry| entry.name == name && entry.uuid != label.uuid);
            array.or(pool.map(|entry| ("pool", entry.uuid)))
        };
        if let Some((what, other)) = clash {
            return failed(
                format!("another {what}, {other}, is called {name}, too"),
                format!("rename that one (braid {what} rename {other} NEW-NAME), then: braid array assemble"),
            );
        }
        if !label.features.writable() {
            return failed(
                "it has features of a newer version, with which this one may not write to it".to_owned(),
                "use that version of braid".to_owned(),
            );
        }
        let said = |other: &PoolLabel| PoolLabel { member: label.member, layout: label.layout, ..other.clone() };
        // The label of a returning member says *joining* before the other labels do: it may differ from them at the
        // same sequence number.
        let differs = |h: &&FoundMember| !h.label.is_joining() && said(&h.label) != *label;
        let apart = present.iter().filter(|h| h.label.sequence == label.sequence).find(differs);
        if let Some(one) = apart {
            let what = self.job_name(&one.backing);
            return failed(
                format!(
                    "{what} has a different label with the same sequence number, {}: the members were used separately, as copies of each other",
                    label.sequence
                ),
                "detach the disks of one side (braid disk examine shows session and name), then: braid array assemble"
                    .to_owned(),
            );
        }
        let (mut missing, mut absent) = (Vec::new(), 0);
        for (number, member) in label.numbered() {
            let of: Vec<&FoundMember> = present.iter().filter(|h| h.label.member == number).collect();
            match of.as_slice() {
                // The pool was started without this member, by force.
                [] if label.missing() >> number & 1 == 1 => absent |= 1 << number,
                [] => {
                    missing.push(self.missing(label.uuid, number, member, disk_errors));
                    absent |= u128::from(force) << number;
                }
                // The label of a missing member is old by nature. When the pool is opened, the member's ring tells
                // whether its data is current.
                [one]
                    if member.state != MemberState::Missing
                        && one.label.sequence + STALE_SEQUENCES <= label.sequence =>
                {
                    let what = self.job_name(&one.backing);
                    return failed(
                        format!(
                            "{what} is an old copy of member {number}: its label has sequence {}, the newest has {}",
                            one.label.sequence, label.sequence
                        ),
                        "attach the right disk in its place, then: braid array assemble".to_owned(),
                    );
                }
                [_] => {}
                several => {
                    let names: Vec<String> = several.iter().map(|h| self.job_name(&h.backing)).collect();
                    return failed(
                        format!(
                            "{} say that they are member {number}: one is a copy of the other",
                            names.join(" and ")
                        ),
                        "detach the copy, or wipe its label (braid disk wipe DISK), then: braid array assemble"
                            .to_owned(),
                    );
                }
            }
        }
        if missing.is_empty() || force {
            return PoolOutcome::Open { absent };
        }
        PoolOutcome::Wait(IdlePool {
            state: PoolState::Incomplete,
            attention: missing,
            remedy: format!(
                "attach what is missing (of an array: braid array assemble), or name the disk: braid array assemble --disk DISK; or go on without it: \
                 braid pool start {name} --force"
            ),
            present: self.present(present),
            arrays: found_arrays(present),
            lacks_space: false,
        })
    }

    /// Claims the arrays among the members found: no command stops them, exports them or gives them another use
    /// meanwhile. Arrays that cannot be claimed, or are gone by now, are dropped from the list.
    async fn claim_found_arrays(&self, present: Vec<FoundMember>) -> (Vec<FoundMember>, Vec<Claim<'_>>) {
        let (mut held, mut claims) = (Vec::with_capacity(present.len()), Vec::new());
        for member in present {
            let MemberBacking::Array(uuid) = member.backing else {
                held.push(member);
                continue;
            };
            let Some(claim) = self.inventory.claim_uuid(uuid, WITH_POOL) else { continue };
            let device = self.inventory.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.device));
            if device.is_some() && device == member.device {
                claims.push(claim);
                held.push(member);
            }
        }
        // An export that began before is in the tables by then; an export that begins later sees the claims.
        drop(self.exports.listening_lock.lock().await);
        (held, claims)
    }

    fn missing(
        &self,
        pool: Uuid,
        number: u8,
        member: &braid_format::pool::PoolMember,
        disk_errors: &BTreeMap<String, ErrorDetail>,
    ) -> String {
        let size = braid_geometry::units::format_size(member.size_bytes);
        let mut text = format!("member {number} (id {}, {size}) is missing", member.uuid);
        let tables = self.inventory.read();
        if let Some(seen) = tables.last_seen_of(pool).get(&number) {
            text.push_str(&format!("; it was last seen on {seen}"));
            if let Some(disk_error) = disk_errors.get(seen) {
                text.push_str(&format!(" ({})", disk_error.message));
            }
        }
        text
    }

    /// Returns the names of the members found, by number.
    pub(crate) fn present(&self, present: &[FoundMember]) -> BTreeMap<u8, String> {
        present.iter().map(|member| (member.label.member, self.job_name(&member.backing))).collect()
    }

    /// Makes devices of all members found, and opens the pool.
    async fn open_found(
        self: &Arc<Self>,
        mut present: Vec<FoundMember>,
        absent: u128,
        gives_up: bool,
    ) -> Result<(), (ErrorDetail, Vec<FoundMember>)> {
        if let Err(error) = self.raise_to_highest_level(&mut present).await {
            return Err((error, present));
        }
        let (mut parts, rest) = self.make_devices(present).await;
        if !rest.is_empty() {
            let error = ErrorDetail::new(Kind::LimitReached, "too many devices are in use")
                .remedy("stop arrays, or remove exports of volumes");
            self.release_parts(&parts).await;
            return Err((error, parts.into_iter().map(FoundMember::of).chain(rest).collect()));
        }
        parts.sort_by_key(|part| part.label.member);
        self.remember_pool(&parts);
        match self.open_pool(parts.clone(), absent, gives_up).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.release_parts(&parts).await;
                Err((error, parts.into_iter().map(FoundMember::of).collect()))
            }
        }
    }

    /// Makes devices of all disks; returns also the members that could not become devices.
    async fn make_devices(&self, present: Vec<FoundMember>) -> (Vec<MemberPart>, Vec<FoundMember>) {
        let (mut parts, mut rest) = (Vec::with_capacity(present.len()), Vec::new());
        let stack_level = present.iter().filter_map(|member| member.device).map(stack_level_of).max().unwrap_or(0);
        for member in present {
            let device = match (&member.backing, member.device) {
                (MemberBacking::Disk(disk), None) => self.device_of(disk, stack_level).await.ok(),
                (_, device) => device,
            };
            match device {
                Some(device) => parts.push(MemberPart {
                    backing: member.backing,
                    device,
                    label: member.label,
                    behind: false,
                    copy_first: false,
                }),
                None => rest.push(member),
            }
        }
        (parts, rest)
    }

    async fn release_parts(self: &Arc<Self>, parts: &[MemberPart]) {
        let devices: Vec<_> = parts.iter().map(|part| (part.backing.clone(), part.device)).collect();
        self.release_devices(&devices).await;
    }

    /// Closes the disks among the members.
    pub(crate) async fn close_found(&self, present: Vec<FoundMember>) {
        let disks = present.into_iter().filter_map(|member| match member.backing {
            MemberBacking::Disk(disk) => Some(disk),
            MemberBacking::Array(_) => None,
        });
        self.arrays.close_disks(disks.collect()).await;
    }

    /// Lists pools that are known from the saved state but of which no member was found.
    fn list_missing_pools(&self, disk_errors: &BTreeMap<String, ErrorDetail>) {
        let mut tables = self.inventory.write();
        let mut unknown: BTreeMap<Uuid, String> = BTreeMap::new();
        unknown.extend(tables.pool_disks.values().map(|saved| (saved.pool, saved.pool_name.clone())));
        unknown.extend(tables.pool_arrays.iter().map(|saved| (saved.pool, saved.pool_name.clone())));
        for (uuid, name) in unknown {
            if tables.pools.contains_key(&uuid) {
                continue;
            }
            let replicated_member = tables.pool_arrays.iter().find(|saved| saved.pool == uuid).map(|saved| saved.array);
            if let Some(replicated_member) = replicated_member.filter(|array| tables.replicated.contains_key(array)) {
                let condition = PoolCondition::Idle(tables.waits_for(replicated_member));
                tables.pools.insert(uuid, PoolEntry { uuid, name, label: None, condition });
                continue;
            }
            let seen = tables.last_seen_of(uuid);
            let attention = seen.iter().map(|(member, seen)| {
                let disk_error = disk_errors.get(seen).map(|t| format!(" ({})", t.message)).unwrap_or_default();
                format!("member {member} is missing; it was last seen on {seen}{disk_error}")
            });
            let idle = IdlePool {
                state: PoolState::Incomplete,
                attention: attention.collect(),
                remedy: "attach its disks, or name them: braid array assemble --disk DISK; arrays: braid array assemble NAME"
                    .to_owned(),
                present: BTreeMap::new(),
                arrays: BTreeMap::new(),
                lacks_space: false,
            };
            tables.pools.insert(uuid, PoolEntry { uuid, name, label: None, condition: PoolCondition::Idle(idle) });
        }
    }

    /// Returns the members found of a pool, and the errors of known disks that could not be examined. The caller has
    /// the `assembling` lock.
    pub(crate) async fn find_members(
        self: &Arc<Self>,
        uuid: Uuid,
    ) -> (Vec<FoundMember>, BTreeMap<String, ErrorDetail>) {
        let mut harvest = self.arrays.scan_disks(Vec::new(), |_| true).await;
        let mut present: Vec<FoundMember> = Vec::new();
        let mut others = Vec::new();
        for found in std::mem::take(&mut harvest.pools) {
            if found.label.uuid == uuid {
                present.push(FoundMember {
                    backing: MemberBacking::Disk(found.disk),
                    device: None,
                    label: *found.label,
                });
            } else {
                others.push(found.disk);
            }
        }
        others.extend(harvest.arrays.into_values().flatten().map(|looked| looked.disk));
        self.arrays.close_disks(others).await;
        present.extend(self.arrays_of_pools().await.into_iter().filter(|member| member.label.uuid == uuid));
        (present, harvest.troubles)
    }

    /// Returns the members of a pool that does not serve, as devices, so that the pool can be deleted.
    pub(crate) async fn parts_to_delete(
        self: &Arc<Self>,
        uuid: Uuid,
        shown: &Pool,
        force: bool,
    ) -> Result<(Vec<MemberPart>, Vec<Claim<'_>>), ErrorDetail> {
        if !force {
            let message = format!("pool {} is {}, and not all of it may be here", shown.name, shown.state.word());
            return Err(ErrorDetail::new(Kind::NeedsConfirmation, message)
                .with("pool", &shown.name)
                .remedy("attach what is missing first; --force deletes what is here, and labels on other disks stay"));
        }
        let _one_at_a_time = self.arrays.scan_lock.lock().await;
        let (present, _) = self.find_members(uuid).await;
        let (present, claims) = self.claim_found_arrays(present).await;
        let exported = |member: &FoundMember| match member.backing {
            MemberBacking::Array(uuid) => self.inventory.read().exports_of(uuid).first().cloned(),
            MemberBacking::Disk(_) => None,
        };
        if let Some((what, export)) = present.iter().find_map(|h| Some((self.job_name(&h.backing), exported(h)?))) {
            self.close_found(present).await;
            let message = format!("{what} is exported as {export}: its clients may have other use for it by now");
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("pool", &shown.name)
                .remedy(format!("braid export remove {export} first, if what is there may be overwritten")));
        }
        let (parts, rest) = self.make_devices(present).await;
        self.close_found(rest).await;
        Ok((parts, claims))
    }
}

/// Returns true if a device has the label of a pool but is not a member by the newest label.
fn is_former_member(label: &PoolLabel, one: &FoundMember) -> bool {
    !label.lists(&one.label) || label.is_joining()
}

/// Returns the arrays among the members found.
fn found_arrays(present: &[FoundMember]) -> BTreeMap<Uuid, u8> {
    let array = |member: &FoundMember| match member.backing {
        MemberBacking::Array(uuid) => Some((uuid, member.label.member)),
        MemberBacking::Disk(_) => None,
    };
    present.iter().filter_map(array).collect()
}

/// The outcome of the evaluation of a pool.
enum PoolOutcome {
    /// Open the pool without the members in this bit mask.
    Open {
        absent: u128,
    },
    /// Complete an interrupted deletion.
    Delete,
    Wait(IdlePool),
}

impl FoundMember {
    /// Returns true if this is the given member.
    pub(crate) fn is(&self, member: &braid_format::pool::PoolMember) -> bool {
        self.label.own().is_some_and(|own| own.uuid == member.uuid)
    }

    fn of(part: MemberPart) -> FoundMember {
        let device = match part.backing {
            MemberBacking::Disk(_) => None,
            MemberBacking::Array(_) => Some(part.device),
        };
        FoundMember { backing: part.backing, device, label: part.label }
    }
}

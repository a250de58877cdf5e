//! Finding pools again, from the labels of disks and of arrays, and opening those that are complete.

use super::super::search::Harvest;
use super::super::tables::OpenDisk;
use super::super::{Claim, Control};
use super::{Base, Condition, Idle, Part, PoolEntry, WITH_POOL, labels};
use braid_api::{ErrorDetail, Kind, Pool, PoolState, StartPool};
use braid_engine::DeviceId;
use braid_format::pool::{PoolLabel, PoolMemberState as MemberState, PoolState as LabelState};
use braid_ring::stack_level_of;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Labels that are so far behind the newest have missed a change.
const BEHIND: u64 = 2;

/// A disk that bears the label of a pool.
pub struct FoundPart {
    pub(in super::super) disk: Arc<OpenDisk>,
    pub(in super::super) label: Box<PoolLabel>,
}

/// A member that is here, as a disk that is no device yet, or as an array.
pub(super) struct Here {
    pub(super) base: Base,
    pub(super) device: Option<DeviceId>,
    pub(super) label: PoolLabel,
}

impl Control {
    /// Judges the pools of which members are here: disks that were just looked at, and arrays that are active.
    pub(in super::super) async fn judge_pools(self: &Arc<Self>, harvest: &mut Harvest) {
        let mut pools: BTreeMap<Uuid, Vec<Here>> = BTreeMap::new();
        for found in std::mem::take(&mut harvest.pools) {
            let here = Here { base: Base::Disk(found.disk), device: None, label: *found.label };
            pools.entry(here.label.uuid).or_default().push(here);
        }
        for here in self.arrays_of_pools().await {
            pools.entry(here.label.uuid).or_default().push(here);
        }
        // What was listed as waiting and is not there at all now is told anew.
        let gone = |uuid: &Uuid, entry: &mut PoolEntry| entry.served().is_some() || pools.contains_key(uuid);
        self.write().pools.retain(gone);
        // All at once: one whose disk hangs is no reason for the others.
        let troubles = Arc::new(std::mem::take(&mut harvest.troubles));
        let mut all = JoinSet::new();
        for (uuid, here) in pools {
            let (control, troubles) = (Arc::clone(self), Arc::clone(&troubles));
            all.spawn(async move { control.judge_pool(uuid, here, &troubles, &StartPool::default()).await });
        }
        while let Some(judged) = all.join_next().await {
            if let Err(error) = judged {
                self.events().error("pool_failed", format!("looking at a pool ended unexpectedly: {error}"), &[]);
            }
        }
        self.list_absent_pools(&troubles);
        harvest.troubles = Arc::unwrap_or_clone(troubles);
    }

    /// Active arrays that bear the label of a pool that does not serve.
    async fn arrays_of_pools(&self) -> Vec<Here> {
        let arrays: Vec<(Uuid, DeviceId)> = {
            let tables = self.read();
            let active = tables.arrays.values().filter_map(|entry| Some((entry.uuid, entry.active()?.device)));
            active.filter(|(uuid, _)| tables.served_on(*uuid).is_none() && !tables.busy.contains_key(uuid)).collect()
        };
        let io = self.ring.devices();
        let mut here = Vec::new();
        for (uuid, device) in arrays {
            match labels::read(&io, device).await {
                Ok(Some(Ok(label))) => here.push(Here { base: Base::Array(uuid), device: Some(device), label }),
                Ok(Some(Err(why))) => {
                    let name = self.name_of(&Base::Array(uuid));
                    let message = format!("{name} bears the label of a pool that cannot be used: {why}");
                    self.events().error("pool_label_damaged", message, &[]);
                }
                Ok(None) => {}
                Err(error) => {
                    let name = self.name_of(&Base::Array(uuid));
                    tracing::warn!("{name}: looking for the label of a pool failed: {error}");
                }
            }
        }
        here
    }

    /// Judges one pool: opens it as it is asked for, or lists it with the reason why not.
    pub(super) async fn judge_pool(
        self: &Arc<Self>,
        uuid: Uuid,
        here: Vec<Here>,
        troubles: &BTreeMap<String, ErrorDetail>,
        ask: &StartPool,
    ) {
        let Some(_claim) = self.claim_found(uuid, "opened") else { return self.close_here(here).await };
        self.judge_claimed(uuid, here, troubles, ask).await;
    }

    /// The same for those who have claimed it.
    pub(super) async fn judge_claimed(
        self: &Arc<Self>,
        uuid: Uuid,
        here: Vec<Here>,
        troubles: &BTreeMap<String, ErrorDetail>,
        ask: &StartPool,
    ) {
        let (here, _arrays) = self.hold_arrays(here).await;
        if here.is_empty() {
            return;
        }
        let serving = |e: &PoolEntry| e.served().is_some().then(|| (e.name.clone(), e.label.clone()));
        let serving = self.read().pools.get(&uuid).and_then(serving);
        if let Some((name, label)) = serving {
            for member in &here {
                if label.as_ref().is_some_and(|label| is_left(label, member)) {
                    if let Some(label) = &label {
                        self.tell_left(label, member);
                    }
                    continue;
                }
                if label.as_ref().is_some_and(|label| !label.lists_as_present(&member.label)) {
                    self.note_returned(uuid, member);
                    continue;
                }
                let what = self.name_of(&member.base);
                let message = format!(
                    "{what} bears the label of a member of pool {name}, which is active: it is a copy; wipe its label, or detach it"
                );
                self.events().warning("disk_is_a_copy", message, &[("pool", &name)]);
            }
            return self.close_here(here).await;
        }
        let newest = labels::newest(here.iter().map(|member| &member.label));
        let label = newest.expect("somebody bears its label").clone();
        let name = label.name.to_string();
        let here = self.without_those_that_left(&label, here).await;
        if here.is_empty() {
            // Nobody who is here was ever a member.
            return;
        }
        let mut tells = true;
        let idle = match self.verdict(&label, &here, troubles, ask.force) {
            Verdict::Open { absent } => match self.open_here(here, absent, ask.give_up).await {
                Ok(()) => {
                    self.events().info("pool_started", format!("pool {name} is active"), &[("pool", &name)]);
                    return self.save_or_warn();
                }
                Err((error, here)) => {
                    let lacks_space = error.kind == Kind::NoSpace;
                    // What is tried again and again is said once.
                    tells = !lacks_space || !self.is_starved(uuid);
                    if tells {
                        self.events().error("pool_failed", &error.message, &[("pool", &name)]);
                    }
                    let idle = Idle {
                        state: PoolState::Failed,
                        attention: vec![error.message],
                        remedy: error.remedy,
                        present: self.present(&here),
                        arrays: arrays_of(&here),
                        lacks_space,
                    };
                    self.close_here(here).await;
                    idle
                }
            },
            Verdict::Delete => {
                let (parts, rest) = self.seat_here(here).await;
                self.close_here(rest).await;
                match self.erase_pool(&name, parts).await {
                    Ok(()) => {
                        self.forget_pool(uuid);
                        self.write().pools.remove(&uuid);
                        let message = format!("the interrupted deletion of pool {name} is done");
                        self.events().info("pool_deleted", message, &[("pool", &name)]);
                        return self.save_or_warn();
                    }
                    Err(error) => Idle {
                        state: PoolState::Failed,
                        attention: vec![error.message],
                        remedy: error.remedy,
                        present: BTreeMap::new(),
                        arrays: BTreeMap::new(),
                        lacks_space: false,
                    },
                }
            }
            Verdict::No(idle) => {
                self.close_here(here).await;
                idle
            }
        };
        let message = format!("pool {name} is not active: {}", idle.attention.first().cloned().unwrap_or_default());
        if tells {
            self.events().warning("pool_waits", message, &[("pool", &name)]);
        }
        let entry = PoolEntry { uuid, name, label: Some(label), condition: Condition::Idle(idle) };
        self.write().pools.insert(uuid, entry);
    }

    /// Those that the newest label does not have were removed, and only their own label does not say so yet; or they were to be added, and that
    /// did not end.
    async fn without_those_that_left(&self, label: &PoolLabel, here: Vec<Here>) -> Vec<Here> {
        let (left, here): (Vec<Here>, Vec<Here>) = here.into_iter().partition(|one| is_left(label, one));
        for one in &left {
            self.tell_left(label, one);
        }
        self.close_here(left).await;
        here
    }

    /// A device bears the label of a pool that it is no member of.
    fn tell_left(&self, newest: &PoolLabel, one: &Here) {
        let pool = newest.name.as_str();
        let what = self.name_of(&one.base);
        // An array has no command of its own that takes a label away.
        let (called, wipe) = match &one.base {
            Base::Disk(disk) => (disk.name.clone(), format!("wipe its label (braid disk wipe {})", disk.name)),
            Base::Array(_) => (what.trim_start_matches("array ").to_owned(), "put it to another use".to_owned()),
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
                "{what} was member {number} of pool {pool}, and was given up: it is not taken back, and what it has is used no more; {wipe}"
            )
        } else {
            format!("{what} bears the label of pool {pool} still, which it was removed from or given up; {wipe}")
        };
        self.events().warning("pool_member_left", message, &[("pool", pool)]);
    }

    /// Whether a pool can be opened with what is here.
    fn verdict(
        &self,
        label: &PoolLabel,
        here: &[Here],
        troubles: &BTreeMap<String, ErrorDetail>,
        force: bool,
    ) -> Verdict {
        let name = label.name.as_str();
        if label.state == LabelState::Deleting {
            return Verdict::Delete;
        }
        let failed = |attention: String, remedy: String| {
            let present = self.present(here);
            let (state, attention, arrays) = (PoolState::Failed, vec![attention], arrays_of(here));
            Verdict::No(Idle { state, attention, remedy, present, arrays, lacks_space: false })
        };
        let exported = here.iter().filter_map(|member| match member.base {
            Base::Array(uuid) => Some((member, self.read().exports_of(uuid).first()?.clone())),
            Base::Disk(_) => None,
        });
        if let Some((member, export)) = exported.last() {
            let what = self.name_of(&member.base);
            return failed(
                format!("{what} is exported as {export}, and its clients would write over the pool"),
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
            let tables = self.read();
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
        // Whoever was about to return says of itself alone what the others do not say yet.
        let differs = |h: &&Here| !h.label.is_joining() && said(&h.label) != *label;
        let apart = here.iter().filter(|h| h.label.sequence == label.sequence).find(differs);
        if let Some(one) = apart {
            let what = self.name_of(&one.base);
            return failed(
                format!(
                    "{what} says something else under the same number, {}: the members were used apart, as copies of each other",
                    label.sequence
                ),
                "detach the disks of one side (braid disk examine shows session and name), then: braid array assemble"
                    .to_owned(),
            );
        }
        let (mut missing, mut absent) = (Vec::new(), 0);
        for (number, member) in label.numbered() {
            let of: Vec<&Here> = here.iter().filter(|h| h.label.member == number).collect();
            match of.as_slice() {
                // Somebody has accepted that it is not.
                [] if label.missing() >> number & 1 == 1 => absent |= 1 << number,
                [] => {
                    missing.push(self.missing(label.uuid, number, member, troubles));
                    absent |= u128::from(force) << number;
                }
                // Whoever returns is judged by its ring.
                [one] if member.state != MemberState::Missing && one.label.sequence + BEHIND <= label.sequence => {
                    let what = self.name_of(&one.base);
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
                    let names: Vec<String> = several.iter().map(|h| self.name_of(&h.base)).collect();
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
            return Verdict::Open { absent };
        }
        Verdict::No(Idle {
            state: PoolState::Incomplete,
            attention: missing,
            remedy: format!(
                "attach what is missing (of an array: braid array assemble), or name the disk: braid array assemble --disk DISK; or go on without it: \
                 braid pool start {name} --force"
            ),
            present: self.present(here),
            arrays: arrays_of(here),
            lacks_space: false,
        })
    }

    /// Takes the arrays among what was found: nobody stops them, exports them or gives them to others meanwhile. Those that cannot be had,
    /// or are gone since, are not here.
    async fn hold_arrays(&self, here: Vec<Here>) -> (Vec<Here>, Vec<Claim<'_>>) {
        let (mut held, mut claims) = (Vec::with_capacity(here.len()), Vec::new());
        for member in here {
            let Base::Array(uuid) = member.base else {
                held.push(member);
                continue;
            };
            let Some(claim) = self.claim_found(uuid, WITH_POOL) else { continue };
            let device = self.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.device));
            if device.is_some() && device == member.device {
                claims.push(claim);
                held.push(member);
            }
        }
        // An export that began before is in the tables by then; what begins later sees the claims.
        drop(self.listening.lock().await);
        (held, claims)
    }

    fn missing(
        &self,
        pool: Uuid,
        number: u8,
        member: &braid_format::pool::PoolMember,
        troubles: &BTreeMap<String, ErrorDetail>,
    ) -> String {
        let size = braid_geometry::units::format_size(member.size_bytes);
        let mut text = format!("member {number} (id {}, {size}) is missing", member.uuid);
        let tables = self.read();
        if let Some(seen) = tables.last_seen_of(pool).get(&number) {
            text.push_str(&format!("; it was last seen on {seen}"));
            if let Some(trouble) = troubles.get(seen) {
                text.push_str(&format!(" ({})", trouble.message));
            }
        }
        text
    }

    /// Who is here, by number.
    pub(super) fn present(&self, here: &[Here]) -> BTreeMap<u8, String> {
        here.iter().map(|member| (member.label.member, self.name_of(&member.base))).collect()
    }

    /// Makes devices of all, and opens the pool.
    async fn open_here(
        self: &Arc<Self>,
        mut here: Vec<Here>,
        absent: u128,
        gives_up: bool,
    ) -> Result<(), (ErrorDetail, Vec<Here>)> {
        if let Err(error) = self.raise_to_highest(&mut here).await {
            return Err((error, here));
        }
        let (mut parts, rest) = self.seat_here(here).await;
        if !rest.is_empty() {
            let error = ErrorDetail::new(Kind::LimitReached, "too many devices are in use")
                .remedy("stop arrays, or remove exports of volumes");
            self.unseat(&parts).await;
            return Err((error, parts.into_iter().map(Here::of).chain(rest).collect()));
        }
        parts.sort_by_key(|part| part.label.member);
        self.remember_pool(&parts);
        match self.open_pool(parts.clone(), absent, gives_up).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.unseat(&parts).await;
                Err((error, parts.into_iter().map(Here::of).collect()))
            }
        }
    }

    /// Makes devices of all disks; returns those that could not become one, too.
    async fn seat_here(&self, here: Vec<Here>) -> (Vec<Part>, Vec<Here>) {
        let (mut parts, mut rest) = (Vec::with_capacity(here.len()), Vec::new());
        let tier = here.iter().filter_map(|member| member.device).map(stack_level_of).max().unwrap_or(0);
        for member in here {
            let device = match (&member.base, member.device) {
                (Base::Disk(disk), None) => self.device_of(disk, tier).await.ok(),
                (_, device) => device,
            };
            match device {
                Some(device) => parts.push(Part {
                    base: member.base,
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

    async fn unseat(self: &Arc<Self>, parts: &[Part]) {
        let seats: Vec<_> = parts.iter().map(|part| (part.base.clone(), part.device)).collect();
        self.let_go(&seats).await;
    }

    /// Closes the disks among them.
    pub(super) async fn close_here(&self, here: Vec<Here>) {
        let disks = here.into_iter().filter_map(|member| match member.base {
            Base::Disk(disk) => Some(disk),
            Base::Array(_) => None,
        });
        self.close_disks(disks.collect()).await;
    }

    /// Lists pools of which nobody is here, but which are known from the state.
    fn list_absent_pools(&self, troubles: &BTreeMap<String, ErrorDetail>) {
        let mut tables = self.write();
        let mut unknown: BTreeMap<Uuid, String> = BTreeMap::new();
        unknown.extend(tables.pool_disks.values().map(|saved| (saved.pool, saved.pool_name.clone())));
        unknown.extend(tables.pool_arrays.iter().map(|saved| (saved.pool, saved.pool_name.clone())));
        for (uuid, name) in unknown {
            if tables.pools.contains_key(&uuid) {
                continue;
            }
            let carrier = tables.pool_arrays.iter().find(|saved| saved.pool == uuid).map(|saved| saved.array);
            if let Some(carrier) = carrier.filter(|array| tables.replicated.contains_key(array)) {
                let condition = Condition::Idle(tables.waits_for(carrier));
                tables.pools.insert(uuid, PoolEntry { uuid, name, label: None, condition });
                continue;
            }
            let seen = tables.last_seen_of(uuid);
            let attention = seen.iter().map(|(member, seen)| {
                let trouble = troubles.get(seen).map(|t| format!(" ({})", t.message)).unwrap_or_default();
                format!("member {member} is missing; it was last seen on {seen}{trouble}")
            });
            let idle = Idle {
                state: PoolState::Incomplete,
                attention: attention.collect(),
                remedy: "attach its disks, or name them: braid array assemble --disk DISK; arrays: braid array assemble NAME"
                    .to_owned(),
                present: BTreeMap::new(),
                arrays: BTreeMap::new(),
                lacks_space: false,
            };
            tables.pools.insert(uuid, PoolEntry { uuid, name, label: None, condition: Condition::Idle(idle) });
        }
    }

    /// Those who bear the label of a pool, and why known disks could not be looked at. The caller has the lock of assembling.
    pub(super) async fn here_of(self: &Arc<Self>, uuid: Uuid) -> (Vec<Here>, BTreeMap<String, ErrorDetail>) {
        let mut harvest = self.look(Vec::new(), |_| true).await;
        let mut here: Vec<Here> = Vec::new();
        let mut others = Vec::new();
        for found in std::mem::take(&mut harvest.pools) {
            if found.label.uuid == uuid {
                here.push(Here { base: Base::Disk(found.disk), device: None, label: *found.label });
            } else {
                others.push(found.disk);
            }
        }
        others.extend(harvest.arrays.into_values().flatten().map(|looked| looked.disk));
        self.close_disks(others).await;
        here.extend(self.arrays_of_pools().await.into_iter().filter(|member| member.label.uuid == uuid));
        (here, harvest.troubles)
    }

    /// The members of a pool that does not serve, as devices, to be deleted.
    pub(super) async fn parts_to_delete(
        self: &Arc<Self>,
        uuid: Uuid,
        shown: &Pool,
        force: bool,
    ) -> Result<(Vec<Part>, Vec<Claim<'_>>), ErrorDetail> {
        if !force {
            let message = format!("pool {} is {}, and not all of it may be here", shown.name, shown.state.word());
            return Err(ErrorDetail::new(Kind::NeedsConfirmation, message)
                .with("pool", &shown.name)
                .remedy("attach what is missing first; --force deletes what is here, and labels on other disks stay"));
        }
        let _one_at_a_time = self.assembling.lock().await;
        let (here, _) = self.here_of(uuid).await;
        let (here, claims) = self.hold_arrays(here).await;
        let exported = |member: &Here| match member.base {
            Base::Array(uuid) => self.read().exports_of(uuid).first().cloned(),
            Base::Disk(_) => None,
        };
        if let Some((what, export)) = here.iter().find_map(|h| Some((self.name_of(&h.base), exported(h)?))) {
            self.close_here(here).await;
            let message = format!("{what} is exported as {export}: its clients may have other use for it by now");
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("pool", &shown.name)
                .remedy(format!("braid export remove {export} first, if what is there may be overwritten")));
        }
        let (parts, rest) = self.seat_here(here).await;
        self.close_here(rest).await;
        Ok((parts, claims))
    }
}

/// Whether a device bears the label of a pool that it is no member of by the newest label.
fn is_left(label: &PoolLabel, one: &Here) -> bool {
    !label.lists(&one.label) || label.is_joining()
}

/// The arrays among what is here.
fn arrays_of(here: &[Here]) -> BTreeMap<Uuid, u8> {
    let array = |member: &Here| match member.base {
        Base::Array(uuid) => Some((uuid, member.label.member)),
        Base::Disk(_) => None,
    };
    here.iter().filter_map(array).collect()
}

/// What is to be done with a pool that was found.
enum Verdict {
    /// Without these members, by their bits.
    Open {
        absent: u128,
    },
    /// Its deletion was interrupted.
    Delete,
    No(Idle),
}

impl Here {
    /// Whether it is this member.
    pub(super) fn is(&self, member: &braid_format::pool::PoolMember) -> bool {
        self.label.own().is_some_and(|own| own.uuid == member.uuid)
    }

    fn of(part: Part) -> Here {
        let device = match part.base {
            Base::Disk(_) => None,
            Base::Array(_) => Some(part.device),
        };
        Here { base: part.base, device, label: part.label }
    }
}

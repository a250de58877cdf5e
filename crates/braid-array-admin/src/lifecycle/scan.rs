//! Finds arrays from the labels of the present disks, whatever their order and paths.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::{LeafId, MetaIo};
use braid_format::{ArrayPart, ArrayState, Header, MemberState, Name, Uuid};

use super::disk::{DiskOutcome, FoundDisk, MemberDisk, probe};
use super::found::{FoundArray, FoundMember};
use super::join::join_all;
use super::journal;
use super::lineage::{self, MemberStanding};
use super::member_table::is_redundant;
use super::redundant::Assembly;
use super::status::{ArrayStatus, DiskProblem, MissingMember, Refusal};
use super::twins;

/// The result of a scan.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The arrays, in the order of their UUIDs.
    pub arrays: Vec<FoundArray>,
    /// The disks, in the order given.
    pub disks: Vec<FoundDisk>,
}

impl FoundMember {
    /// Whether its disk has no room for the data area that the newest label records. The size in the disk's own label
    /// is not compared: while an array grows, that label may be one step before or after the change of size.
    fn lacks_room(&self) -> bool {
        let lacks = |disk: &MemberDisk| disk.label.member.layout.with_data(self.entry.data_bytes).is_none();
        self.disk.as_ref().is_some_and(lacks)
    }
}

impl MissingMember {
    fn of(member: &FoundMember, seems: Option<(LeafId, DiskProblem)>) -> MissingMember {
        let is_journal = member.entry.state == MemberState::Journal;
        MissingMember {
            number: member.number,
            id: member.entry.id,
            data_bytes: member.entry.data_bytes,
            is_journal,
            unusable_disk: seems,
        }
    }
}

impl FoundArray {
    /// If the disk of the journal is present and needed, but not trusted: returns the missing members, with that disk
    /// among them. `None` in all other cases.
    async fn lacks_journal<M: MetaIo>(&self, io: &M) -> Option<Vec<MissingMember>> {
        let lost = match &self.status {
            ArrayStatus::Ready => &[][..],
            ArrayStatus::Degraded { missing } | ArrayStatus::Waiting { missing } => missing,
            _ => return None,
        };
        let newest = self.newest.as_ref()?;
        let of_journal = |m: &&FoundMember| m.entry.state == MemberState::Journal;
        let (member, disk) = self.members.iter().filter(of_journal).find_map(|m| Some((m, m.disk.as_ref()?)))?;
        let geometry = newest.geometry().ok()?;
        let needed = Assembly { newest, geometry: &geometry, members: &self.members }.needs_journal();
        if !needed || journal::is_trusted(io, self, disk).await {
            return None;
        }
        let seems = Some((disk.leaf, DiskProblem::OldJournal));
        Some(lost.iter().cloned().chain([MissingMember::of(member, seems)]).collect())
    }

    /// Returns the members that must be present and are missing.
    pub fn missing(&self) -> impl Iterator<Item = &FoundMember> {
        let needed = |m: &&FoundMember| matches!(m.entry.state, MemberState::InSync | MemberState::Rebuilding);
        self.members.iter().filter(needed).filter(|m| m.disk.is_none())
    }
}

/// Probes these disks, in any order, and returns the arrays that they form. Writes nothing.
pub async fn scan<M: MetaIo>(io: &M, leaves: &[LeafId]) -> Scan {
    let disks = join_all(leaves.iter().map(|leaf| probe(io, *leaf))).await;
    let mut arrays: Vec<FoundArray> = groups(&disks).into_iter().map(|(uuid, group)| group.resolve(uuid)).collect();
    for array in &mut arrays {
        // The label may name a disk of the journal that does not hold the ring yet, or no longer: then the array does
        // not need that disk.
        if array.waits_for_journal() && journal::is_on_members(io, array).await {
            array.status = *array.forced.take().expect("without that disk it is something else");
        }
        // Checked before any start: once a start has recorded members as failed, the array would need the journal for
        // good, even if these members return.
        if let Some(missing) = array.lacks_journal(io).await {
            let without = std::mem::replace(&mut array.status, ArrayStatus::Incomplete { missing });
            array.forced = Some(Box::new(without));
        }
    }
    // An array whose creation or deletion was interrupted is never served, and does not block its name.
    let lives = |a: &&FoundArray| !matches!(a.status, ArrayStatus::InterruptedCreate | ArrayStatus::InterruptedDelete);
    let names: Vec<(Uuid, Name)> = arrays.iter().filter(lives).map(|a| (a.uuid, a.name.clone())).collect();
    for array in &mut arrays {
        let namesakes = names.iter().filter(|(uuid, name)| *uuid != array.uuid && *name == array.name);
        array.same_name = namesakes.map(|(uuid, _)| *uuid).collect();
    }
    Scan { arrays, disks }
}

/// Returns the array that the labels of probed disks form. Does not read its journal.
pub fn resolve_labels(disks: &[FoundDisk], uuid: Uuid) -> Option<FoundArray> {
    Some(groups(disks).remove(&uuid)?.resolve(uuid))
}

/// The disks of one array.
#[derive(Default)]
struct Group<'a> {
    members: Vec<&'a MemberDisk>,
    remnants: Vec<(LeafId, &'a Header)>,
    unusable: Vec<(LeafId, &'a DiskProblem, &'a Header)>,
}

fn groups(disks: &[FoundDisk]) -> BTreeMap<Uuid, Group<'_>> {
    let mut groups: BTreeMap<Uuid, Group<'_>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for disk in disks.iter().filter(|disk| seen.insert(disk.leaf)) {
        match &disk.outcome {
            DiskOutcome::Unlabelled | DiskOutcome::Unusable { header: None, .. } => {}
            DiskOutcome::Member(member) => groups.entry(member.label.array.uuid).or_default().members.push(member),
            DiskOutcome::Remnant(header) => {
                groups.entry(header.uuid).or_default().remnants.push((disk.leaf, header.as_ref()));
            }
            DiskOutcome::Unusable { problem, header: Some(header) } => {
                groups.entry(header.uuid).or_default().unusable.push((disk.leaf, problem, header.as_ref()));
            }
        }
    }
    // A disk that cannot be used forms no array alone; it is listed among the disks.
    groups.retain(|_, group| !group.members.is_empty() || !group.remnants.is_empty());
    groups
}

impl Group<'_> {
    fn resolve(mut self, uuid: Uuid) -> FoundArray {
        let older = twins::set_older_aside(&mut self.members);
        let remnants: Vec<_> = self.remnants.iter().map(|(leaf, h)| (*leaf, Box::new((*h).clone()))).collect();
        let Some(newest) = self.newest() else {
            let header = self.remnants[0].1;
            let deleting = self.remnants.iter().any(|(_, h)| h.state == ArrayState::Deleting);
            let status = if deleting { ArrayStatus::InterruptedDelete } else { ArrayStatus::InterruptedCreate };
            let (members, outsiders, same_name) = (Vec::new(), Vec::new(), Vec::new());
            let name = header.name.clone();
            return FoundArray {
                uuid,
                name,
                newest: None,
                members,
                status,
                forced: None,
                outsiders,
                remnants,
                same_name,
            };
        };
        let redundant = is_redundant(newest.spec.level);
        let (mut members, mut outsiders, mut reasons) = self.assign_slots(newest);
        outsiders.extend(older);
        if redundant {
            let present = lineage::present_labels(&self.members);
            for member in &mut members {
                member.standing =
                    member.disk.as_ref().map(|disk| lineage::standing(newest, member.number, disk, &present));
                // A disk without room for the present data area cannot be rebuilt as the member that it was.
                if member.standing == Some(MemberStanding::Returning) && member.lacks_room() {
                    member.standing = Some(MemberStanding::Stale);
                }
            }
        } else {
            reasons.extend(self.diverged());
        }
        reasons.extend(members.iter().filter_map(wrong_size));
        let fatal = !reasons.is_empty();
        if !redundant {
            reasons.extend(members.iter().filter_map(|m| behind(m, newest)));
        }
        if !newest.features.writable() {
            reasons.push(Refusal::ReadOnlyFeatures { bits: newest.features.read_only });
        }
        let geometry = newest.geometry().map_err(|error| reasons.push(Refusal::Zones(error.to_string()))).ok();
        let name = newest.name.clone();
        let newest = Some(newest.clone());
        let same_name = Vec::new();
        let mut found = FoundArray {
            uuid,
            name,
            newest,
            members,
            status: ArrayStatus::Ready,
            forced: None,
            outsiders,
            remnants,
            same_name,
        };
        (found.status, found.forced) = match (&found.newest, geometry) {
            (Some(newest), Some(geometry)) if redundant => {
                let assembly = Assembly { newest, geometry: &geometry, members: &found.members };
                self.status_of_redundant(&found, &assembly, fatal, reasons)
            }
            _ => (self.status(&found, fatal, reasons), None),
        };
        found
    }

    /// Returns the authoritative label.
    fn newest(&self) -> Option<&ArrayPart> {
        let last = self.members.iter().max_by_key(|m| m.label.order()).map(|m| &m.label.array)?;
        if is_redundant(last.spec.level) { lineage::newest(&self.members) } else { Some(last) }
    }

    /// Assigns each disk the slot that the newest label gives its identity.
    fn assign_slots(&self, newest: &ArrayPart) -> (Vec<FoundMember>, Vec<(LeafId, String)>, Vec<Refusal>) {
        let entries = newest.members.iter().enumerate();
        let mut members: Vec<FoundMember> = entries
            .map(|(role, entry)| FoundMember { number: role as u16, entry: *entry, disk: None, standing: None })
            .collect();
        let (mut outsiders, mut reasons) = (Vec::new(), Vec::new());
        let mut claims: BTreeMap<u16, Vec<&MemberDisk>> = BTreeMap::new();
        for disk in &self.members {
            let id = disk.label.member.id;
            match members.iter().find(|m| m.entry.id == Some(id)) {
                Some(member) => claims.entry(member.number).or_default().push(disk),
                None => {
                    outsiders.push((disk.leaf, format!("member {id} was replaced and is no longer part of the array")));
                }
            }
        }
        for (role, disks) in claims {
            match self.choose(newest, role, &disks) {
                Ok(chosen) => {
                    let aside = disks.iter().filter(|disk| chosen.is_none_or(|chosen| chosen.leaf != disk.leaf));
                    outsiders.extend(aside.map(|disk| (disk.leaf, twins::one_of_several(role))));
                    members[usize::from(role)].disk = chosen.cloned();
                }
                Err(twins) => {
                    members[usize::from(role)].disk = disks.first().map(|disk| (*disk).clone());
                    reasons.push(twins);
                }
            }
        }
        (members, outsiders, reasons)
    }

    /// Returns the disk that gets this slot, of those that claim it. Several are refused as twins if the array has no
    /// redundancy, or would use one of them as it is. Otherwise the disk with the latest label gets the slot; none if
    /// two labels are equally late.
    fn choose<'a>(
        &self,
        newest: &ArrayPart,
        role: u16,
        disks: &[&'a MemberDisk],
    ) -> Result<Option<&'a MemberDisk>, Refusal> {
        let [first, _, ..] = disks else { return Ok(disks.first().copied()) };
        let present = lineage::present_labels(&self.members);
        let is_used = |disk: &&MemberDisk| lineage::standing(newest, role, disk, &present).takes_part();
        if !is_redundant(newest.spec.level) || disks.iter().any(is_used) {
            let leaves = disks.iter().map(|disk| disk.leaf).collect();
            return Err(Refusal::Twins { slot: role, id: first.label.member.id, leaves });
        }
        let last = disks.iter().map(|disk| disk.label.order()).max();
        let mut latest = disks.iter().filter(|disk| Some(disk.label.order()) == last);
        Ok(latest.next().filter(|_| latest.next().is_none()).copied())
    }

    /// Two labels with the same sequence number must agree.
    fn diverged(&self) -> Option<Refusal> {
        let mut by_order = BTreeMap::new();
        self.members.iter().find_map(|disk| {
            let other = *by_order.entry(disk.label.order()).or_insert(&disk.label.array);
            (*other != disk.label.array).then_some(Refusal::Diverged { sequence: disk.label.array.sequence })
        })
    }

    fn status(&self, found: &FoundArray, fatal: bool, reasons: Vec<Refusal>) -> ArrayStatus {
        let newest_state = found.newest.as_ref().map(|n| n.state);
        let stale = reasons.iter().any(|r| matches!(r, Refusal::Stale { .. }));
        // Twins, diverged and stale disks are resolved by an administrator before anything is erased.
        if fatal || (stale && newest_state != Some(ArrayState::Forming)) {
            return ArrayStatus::Refused { reasons };
        }
        if newest_state == Some(ArrayState::Deleting) {
            return ArrayStatus::InterruptedDelete;
        }
        // A create is acknowledged once no label is "forming".
        let forming = found.disks().any(|disk| disk.label.array.state == ArrayState::Forming);
        if forming {
            return ArrayStatus::InterruptedCreate;
        }
        if !reasons.is_empty() {
            return ArrayStatus::Refused { reasons };
        }
        let missing: Vec<MissingMember> = found.missing().map(|m| self.missing(m)).collect();
        if missing.is_empty() { ArrayStatus::Ready } else { ArrayStatus::Incomplete { missing } }
    }

    /// Returns the status of a redundant array, and its status with `--force`.
    fn status_of_redundant(
        &self,
        found: &FoundArray,
        assembly: &Assembly<'_>,
        fatal: bool,
        mut reasons: Vec<Refusal>,
    ) -> (ArrayStatus, Option<Box<ArrayStatus>>) {
        let newest = assembly.newest;
        let deleting = newest.state == ArrayState::Deleting;
        // A create is acknowledged once all labels are "active"; only then can there be a third label.
        let forming = found.disks().any(|disk| disk.label.array.state == ArrayState::Forming);
        let interrupted = newest.state == ArrayState::Forming || forming && newest.sequence <= 2;
        if !fatal && interrupted {
            return (ArrayStatus::InterruptedCreate, None);
        }
        let hard = !reasons.is_empty();
        reasons.extend(assembly.refusals());
        let status =
            if deleting && !fatal { ArrayStatus::InterruptedDelete } else { assembly.status(|m| self.missing(m)) };
        if reasons.is_empty() {
            let needs_journal = matches!(status, ArrayStatus::Incomplete { .. }) && !deleting;
            let without = needs_journal.then(|| assembly.status_without_journal(|m| self.missing(m)));
            return (
                status,
                without.filter(|without| !matches!(without, ArrayStatus::Incomplete { .. })).map(Box::new),
            );
        }
        (ArrayStatus::Refused { reasons }, (!hard).then(|| Box::new(status)))
    }

    fn missing(&self, member: &FoundMember) -> MissingMember {
        let seems = self.unusable.iter().find(|(_, _, header)| Some(header.id) == member.entry.id);
        MissingMember::of(member, seems.map(|(leaf, problem, _)| (*leaf, (*problem).clone())))
    }
}

/// Refuses a member that takes part and has no room for its data.
fn wrong_size(member: &FoundMember) -> Option<Refusal> {
    let disk = member.disk.as_ref()?;
    let unused = member.standing.is_some_and(|standing| !standing.takes_part());
    let wrong = member.lacks_room() && !unused;
    let (found, expected) = (disk.label.member.layout.data.bytes, member.entry.data_bytes);
    wrong.then_some(Refusal::WrongSize { role: member.number, leaf: disk.leaf, found, expected })
}

/// Refuses a stale member. A crash leaves labels at most one step apart, and of two sessions only during a start. A
/// member that is still forming is not stale: it was never in use.
fn behind(member: &FoundMember, newest: &ArrayPart) -> Option<Refusal> {
    let disk = member.disk.as_ref()?;
    let label = &disk.label.array;
    let needed = matches!(member.entry.state, MemberState::InSync | MemberState::Rebuilding);
    // Labels with the same number that differ are reported separately.
    let same_number = label.order() == newest.order();
    let near = label.state == ArrayState::Forming || same_number || lineage::is_one_step_before(label, newest);
    (needed && !near && !member.lacks_room()).then_some(Refusal::Stale {
        role: member.number,
        leaf: disk.leaf,
        sequence: label.sequence,
        newest: newest.sequence,
    })
}

//! The API's views of arrays and disks, and what needs attention on them.

use crate::ArrayManager;
use crate::member_state::member_state;
use crate::reconcilers::health;
use crate::reconcilers::replace::replaced_by;
use braid_advice::{self as advice, Advice, ArrayCase, Case, DiskCase, ObjectNames};
use braid_api::{
    Array, ArrayList, ArrayState, Attention, AttentionCode, Disk, DiskActivity, DiskList, DiskState, DiskStats,
    ErrorDetail, Member, MemberState, Zone,
};
use braid_exports::{all_latencies, attention_of_export, buckets};
use braid_format::ArrayPart;
use braid_inventory::job_table::name_of;
use braid_inventory::{
    ActiveArray, ArrayCondition, ArrayEntry, ArraySlot, IdleArray, Imported, OpenDisk, Tables, disk_state,
};
use braid_ring::stats::LeafStats;

impl ArrayManager {
    /// Returns the open disks of arrays and pools, sorted by owner and slot.
    pub fn disks(&self) -> DiskList {
        let tables = self.inventory.read();
        let mut disks: Vec<_> =
            tables.open_disks().map(|(entry, role, disk)| self.show_disk(&entry.name, role, disk)).collect();
        disks.extend(
            tables.pool_disks_open().map(|(pool, number, disk)| self.show_disk(&pool.name, number.into(), disk)),
        );
        disks.sort_by(|a, b| (&a.array, a.slot).cmp(&(&b.array, b.slot)));
        DiskList { disks }
    }

    /// Returns all arrays, sorted by name.
    pub fn arrays(&self) -> ArrayList {
        let tables = self.inventory.read();
        let mut arrays: Vec<Array> = tables.arrays.values().map(|entry| self.show_array(&tables, entry)).collect();
        arrays.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        ArrayList { arrays, incomplete: self.inventory.why_incomplete() }
    }

    /// Returns one array, by name or UUID.
    ///
    /// # Errors
    /// `Kind::NotFound`.
    pub fn array(&self, name: &str) -> Result<Array, ErrorDetail> {
        let tables = self.inventory.read();
        Ok(self.show_array(&tables, tables.array(name)?))
    }

    /// Returns the view of one array. `tables`: those that the entry is of. For an active array above replicas this
    /// calls [`ArrayUsers::replica_reports`](crate::ArrayUsers::replica_reports).
    pub(crate) fn show_array(&self, tables: &Tables, entry: &ArrayEntry) -> Array {
        let exports = tables.exports_of(entry.uuid);
        match &entry.condition {
            ArrayCondition::Active(active) => self.show_active(tables, entry, active, exports),
            ArrayCondition::Idle(idle) => show_idle(tables, entry, idle, exports),
        }
    }

    fn show_active(&self, tables: &Tables, entry: &ArrayEntry, active: &ActiveArray, exports: Vec<String>) -> Array {
        let name = &entry.name;
        let members = active.label.members.iter().zip(0..).map(|(entry, role)| {
            let slot = active.disks.iter().find(|slot| slot.role == role);
            Member {
                slot: role,
                uuid: entry.id.map(|id| id.to_string()).unwrap_or_default(),
                disk: slot.map(|s| s.disk.name.clone()).or_else(|| Some(active.missing.get(&role)?.disk.clone())),
                state: member_state(entry.state, slot.map(|slot| &*slot.disk)),
                data_bytes: entry.data_bytes,
                data_offset_bytes: slot.map(|slot| slot.data_offset_bytes),
                stats: slot.map(|slot| self.stats_of(&slot.disk)),
                write_mostly: entry.write_mostly,
                unfenced: slot.is_some_and(|slot| slot.disk.disk.is_remote()),
                progress: active
                    .reconciler()
                    .filter(|_| entry.state == braid_format::MemberState::Rebuilding)
                    .and_then(|reconciler| reconciler.rebuild_progress(role)),
                job: active
                    .reconciler()
                    .and_then(|reconciler| reconciler.rebuild_job(role))
                    .map(|job| name_of(name, job.number)),
                replaces: replaced_by(&active.label, role),
            }
        });
        let disks = active.disks.iter().filter_map(|ArraySlot { disk, .. }| {
            let (state, fault) = disk_state(disk);
            (state != DiskState::Ok).then(|| describe_fault(disk, state, fault.as_deref()))
        });
        let imported = active.imported();
        let import_sentences = imported.map(Imported::sentences).unwrap_or_default();
        let of_label = of_label(entry, Some(&active.label), exports);
        let missing = match tables.replicated.get(&entry.uuid) {
            Some(volume) => self.users().replica_reports(volume, active),
            None => health::of(active).map(|health| health::sentences(active, health)).unwrap_or_default(),
        };
        Array {
            size_bytes: active.size_bytes,
            logical_block_bytes: active.request_bytes,
            state: if active.has_failed() { ArrayState::Failed } else { ArrayState::Active },
            attention: missing.into_iter().chain(import_sentences).chain(disks).collect(),
            persistent: active.is_kept(),
            read_only: imported.is_some(),
            zones: imported.map_or(of_label.zones, Imported::zones),
            members: members.collect(),
            redundancy: health::redundancy(active),
            ..of_label
        }
    }

    /// Returns the counters of a disk since it was opened.
    pub fn stats_of(&self, disk: &OpenDisk) -> DiskStats {
        self.ring.leaf_stats(disk.leaf).as_ref().map(disk_stats).unwrap_or_default()
    }

    /// Returns the activity of an open disk of an array, which has this slot there.
    pub fn disk_activity(&self, entry: &ArrayEntry, role: u16, disk: &OpenDisk) -> DiskActivity {
        let member = entry.active().and_then(|active| {
            let recorded = active.label.members.get(usize::from(role))?.state;
            Some(member_state(recorded, Some(disk)))
        });
        DiskActivity { member, ..self.activity_of(&entry.name, role, disk) }
    }

    /// Returns the activity of an open disk of the array or pool named `owner`, without its state as a member.
    pub fn activity_of(&self, owner: &str, role: u16, disk: &OpenDisk) -> DiskActivity {
        let stats = self.ring.leaf_stats(disk.leaf).unwrap_or_default();
        DiskActivity {
            name: disk.name.clone(),
            array: owner.to_owned(),
            slot: role,
            state: disk_state(disk).0,
            member: None,
            latency: buckets(&all_latencies(&stats)),
            stats: disk_stats(&stats),
        }
    }

    /// Returns the view of one open disk.
    pub(crate) fn show_disk(&self, owner: &str, role: u16, disk: &OpenDisk) -> Disk {
        let (state, fault) = disk_state(disk);
        Disk {
            name: disk.name.clone(),
            size_bytes: disk.disk.size_bytes(),
            logical_block_bytes: disk.disk.logical_block_bytes(),
            array: owner.to_owned(),
            slot: role,
            state,
            fault,
            persistent: !disk.disk.spec().is_volatile(),
            stats: self.stats_of(disk),
        }
    }
}

fn describe_fault(disk: &OpenDisk, state: DiskState, fault: Option<&str>) -> String {
    format!("disk {} is {}: {}", disk.name, state.word(), fault.unwrap_or("no reason known"))
}

/// Returns the view of an array with the fields that its label determines; the others have defaults.
fn of_label(entry: &ArrayEntry, label: Option<&ArrayPart>, exports: Vec<String>) -> Array {
    let geometry = label.and_then(|label| label.geometry().ok());
    let zones = geometry.iter().flat_map(|geometry| geometry.zones()).map(|zone| Zone {
        array_start_bytes: zone.array_start,
        array_bytes: zone.array_bytes,
        member_start_bytes: zone.member_start,
        member_bytes: zone.member_bytes,
        members: zone.members.clone(),
    });
    let word = |name: Option<String>| name.unwrap_or_else(|| "unknown".to_owned());
    Array {
        name: entry.name.clone(),
        uuid: entry.uuid.to_string(),
        level: word(label.map(|l| l.spec.level.to_string())),
        layout: word(label.map(|l| l.spec.layout.to_string())),
        chunk_bytes: label.map_or(0, |l| l.spec.chunk_bytes),
        size_bytes: label.map_or(0, |l| l.array_bytes),
        logical_block_bytes: 0,
        state: ArrayState::Failed,
        attention: Vec::new(),
        persistent: true,
        read_only: false,
        members: Vec::new(),
        zones: zones.collect(),
        redundancy: None,
        exports,
    }
}

fn show_idle(tables: &Tables, entry: &ArrayEntry, idle: &IdleArray, exports: Vec<String>) -> Array {
    let last_seen = |role: u16| {
        tables.disks.values().find(|saved| saved.array == entry.uuid && saved.slot == role).map(|s| s.disk.clone())
    };
    let members = idle.members.iter().map(|member| Member {
        slot: member.role,
        uuid: member.id.clone(),
        disk: member.disk.clone().or_else(|| last_seen(member.role)),
        state: match member.state {
            braid_format::MemberState::Failed => MemberState::Failed,
            braid_format::MemberState::Empty => MemberState::Vacant,
            _ if !member.present => MemberState::Missing,
            braid_format::MemberState::Rebuilding => MemberState::Rebuilding,
            braid_format::MemberState::Spare => MemberState::Spare,
            braid_format::MemberState::Journal => MemberState::Journal,
            _ => MemberState::InSync,
        },
        data_bytes: member.data_bytes,
        data_offset_bytes: None,
        stats: None,
        write_mostly: false,
        unfenced: false,
        progress: None,
        job: None,
        replaces: None,
    });
    Array {
        state: idle.state,
        attention: idle.attention.clone(),
        read_only: tables.imported.contains_key(&entry.uuid),
        members: members.collect(),
        ..of_label(entry, idle.label.as_ref(), exports)
    }
}

/// Returns what needs attention on arrays, their disks and all exports. Arrays above replicas are left out.
pub fn attention(tables: &Tables) -> Vec<Attention> {
    let arrays = tables.arrays.values().flat_map(|entry| match &entry.condition {
        ArrayCondition::Idle(idle) if idle.state != ArrayState::Stopped => of_idle(tables, entry, idle),
        ArrayCondition::Active(active) => match active.imported() {
            Some(imported) => imported.attention(&entry.name),
            // To its users it is a volume, and the manager of replication reports it: see
            // `health::attention_of_volume`.
            None if tables.replicated.contains_key(&entry.uuid) => Vec::new(),
            None => {
                let pool = tables.serving_pool_on(entry.uuid).map(|(pool, _)| pool.name.as_str());
                health::attention(&entry.name, active, pool)
            }
        },
        ArrayCondition::Idle(_) => Vec::new(),
    });
    let disks = tables.open_disks().filter(|(entry, ..)| !tables.replicated.contains_key(&entry.uuid));
    let disks = disks.filter_map(|(entry, _, disk)| of_disk(entry, disk));
    let exports = tables.exports.values().filter_map(|entry| attention_of_export(tables, entry));
    arrays.chain(disks).chain(exports).collect()
}

/// Returns what needs attention on an array that does not serve.
fn of_idle(tables: &Tables, entry: &ArrayEntry, idle: &IdleArray) -> Vec<Attention> {
    let name = &entry.name;
    let waiting = match tables.exports_of(entry.uuid).len() {
        0 => String::new(),
        count => format!(", and {}", braid_inventory::counted(count, "export of it waits", "exports of it wait")),
    };
    let (case, names) = match (idle.state, tables.serving_pool_on(entry.uuid)) {
        (ArrayState::Incomplete, _) => (ArrayCase::DisksMissing, ObjectNames::of(name)),
        (ArrayState::Failed, Some((pool, _))) => (ArrayCase::FailedUnderPool, ObjectNames::with(name, &pool.name)),
        _ => (ArrayCase::Ready, ObjectNames::of(name)),
    };
    let item = |message: &String| {
        // The remedy depends on more than the state, and was chosen when the array was scanned.
        let Advice { code, impact, commands, .. } = advice::of(Case::Array(case), names);
        let impact = impact.replacen("It serves nothing.", &format!("It serves nothing{waiting}."), 1);
        Advice { code, impact, remedy: idle.remedy.clone(), commands }
            .attention(format!("array {name}"), message.clone())
    };
    idle.attention.iter().map(item).collect()
}

/// Returns what needs attention on an open disk of an array.
fn of_disk(entry: &ArrayEntry, disk: &OpenDisk) -> Option<Attention> {
    let (state, fault) = disk_state(disk);
    let is_full = {
        let watch = disk.watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        watch.is_full && state == DiskState::Failing
    };
    if state == DiskState::Ok {
        return None;
    }
    let redundant = entry.active().is_some_and(|active| active.reconciler().is_some());
    let case = match (disk.disk.is_short(), redundant) {
        (true, true) => DiskCase::TruncatedRedundant,
        (true, false) => DiskCase::Truncated,
        _ if disk.disk.is_deleted() => DiskCase::Deleted,
        (_, true) if is_full => DiskCase::FullRedundant,
        (_, false) if is_full => DiskCase::Full,
        _ => DiskCase::Failing,
    };
    let name = &entry.name;
    let advice = advice::of(Case::Disk(case), ObjectNames::of(name));
    let code = match (case, state) {
        (DiskCase::Failing, DiskState::Hanging) => AttentionCode::DiskHangs,
        (DiskCase::Failing, DiskState::Gone) => AttentionCode::DiskGone,
        _ => advice.code,
    };
    // The effect on clients depends on the kind of the failure.
    let impact = match state {
        DiskState::Failing if disk.disk.is_deleted() || is_full => advice.impact,
        DiskState::Failing if redundant => "What it could not read came from another member.".to_owned(),
        DiskState::Failing => "Some reads or writes of this array get errors.".to_owned(),
        DiskState::Hanging => "Reads and writes that need it wait, and get errors after 30 s.".to_owned(),
        _ => "Reads and writes that need it get errors.".to_owned(),
    };
    let message = format!("{}: {}", state.word(), fault.as_deref().unwrap_or("no reason known"));
    Some(Advice { code, impact, ..advice }.attention(format!("disk {} of array {name}", disk.name), message))
}

/// Returns the counters of a leaf as the API shows them.
fn disk_stats(stats: &LeafStats) -> DiskStats {
    let all = all_latencies(stats);
    DiskStats {
        reads: stats.reads,
        writes: stats.writes + stats.write_zeroes + stats.discards,
        flushes: stats.flushes,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        errors: stats.errors,
        timeouts: stats.late,
        in_flight: stats.in_flight,
        latency_ns_p50: all.quantile_ns(0.5),
        latency_ns_p99: all.quantile_ns(0.99),
        latency_ns_max: all.quantile_ns(1.0),
    }
}

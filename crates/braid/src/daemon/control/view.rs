//! What the API shows of the tables.

use super::Control;
use super::imported::Imported;
use super::keeping::{health, name_of, replaced_by};
use super::tables::{Active, ArrayEntry, Condition, ExportEntry, Idle, OpenDisk, Seat, Serving, Tables};
use crate::daemon::state::SavedExport;
use braid_advice::{self as advice, Advice, ArrayCase, Case, DiskCase, ExportCase, Names};
use braid_api::address::Address;
use braid_api::limits::EXPORT_CONNECTIONS_MAX;
use braid_api::{
    Array, ArrayState, Attention, Disk, DiskActivity, DiskState, DiskStats, Export, ExportState, ExportStats,
    ExportTls, LatencyBucket, Member, MemberState, Zone,
};
use braid_format::ArrayPart;
use braid_nbd::RequestClass;
use braid_ring::stats::{Histogram, LeafStats, bucket_floor_ns};

impl Control {
    /// One array.
    pub(super) fn show_array(&self, tables: &Tables, entry: &ArrayEntry) -> Array {
        let exports = tables.exports_of(entry.uuid);
        match &entry.condition {
            Condition::Active(active) => self.show_active(tables, entry, active, exports),
            Condition::Idle(idle) => show_idle(tables, entry, idle, exports),
        }
    }

    fn show_active(&self, tables: &Tables, entry: &ArrayEntry, active: &Active, exports: Vec<String>) -> Array {
        let name = &entry.name;
        let members = active.label.members.iter().zip(0..).map(|(entry, role)| {
            let seat = active.disks.iter().find(|seat| seat.role == role);
            Member {
                role,
                uuid: entry.id.map(|id| id.to_string()).unwrap_or_default(),
                disk: seat.map(|s| s.disk.name.clone()).or_else(|| Some(active.away.get(&role)?.disk.clone())),
                state: state_of(entry.state, seat.map(|seat| &*seat.disk)),
                data_bytes: entry.data_bytes,
                data_offset_bytes: seat.map(|seat| seat.data_offset_bytes),
                stats: seat.map(|seat| self.stats_of(&seat.disk)),
                write_mostly: entry.write_mostly,
                unfenced: seat.is_some_and(|seat| seat.disk.disk.is_remote()),
                progress: active
                    .keeping()
                    .filter(|_| entry.state == braid_format::MemberState::Rebuilding)
                    .and_then(|keeping| keeping.filled(role)),
                job: active.keeping().and_then(|keeping| keeping.filling(role)).map(|job| name_of(name, job.number)),
                replaces: replaced_by(&active.label, role),
            }
        });
        let disks = active.disks.iter().filter_map(|Seat { disk, .. }| {
            let (state, trouble) = disk_state(disk);
            (state != DiskState::Ok).then(|| trouble_of(disk, state, trouble.as_deref()))
        });
        let imported = active.imported();
        let said = imported.map(Imported::sentences).unwrap_or_default();
        let of_label = of_label(entry, Some(&active.label), exports);
        let missing = match tables.replicated.get(&entry.uuid) {
            Some(volume) => self.sentences_of_replicas(volume, active),
            None => health::of(active).map(|health| health::sentences(active, health)).unwrap_or_default(),
        };
        Array {
            size_bytes: active.size_bytes,
            logical_block_bytes: active.request_bytes,
            state: if active.has_failed() { ArrayState::Failed } else { ArrayState::Active },
            attention: missing.into_iter().chain(said).chain(disks).collect(),
            kept: active.is_kept(),
            read_only: imported.is_some(),
            zones: imported.map_or(of_label.zones, Imported::zones),
            members: members.collect(),
            redundancy: health::redundancy(active),
            ..of_label
        }
    }

    /// A disk's counters.
    pub(super) fn stats_of(&self, disk: &OpenDisk) -> DiskStats {
        self.ring().leaf_stats(disk.leaf).as_ref().map(disk_stats).unwrap_or_default()
    }

    /// What one open disk has done up to now.
    pub(super) fn disk_activity(&self, entry: &ArrayEntry, role: u16, disk: &OpenDisk) -> DiskActivity {
        let member = entry.active().and_then(|active| {
            let said = active.label.members.get(usize::from(role))?.state;
            Some(state_of(said, Some(disk)))
        });
        DiskActivity { member, ..self.activity_of(&entry.name, role, disk) }
    }

    /// The same of a disk, whatever it is to its array or pool.
    pub(super) fn activity_of(&self, owner: &str, role: u16, disk: &OpenDisk) -> DiskActivity {
        let stats = self.ring().leaf_stats(disk.leaf).unwrap_or_default();
        DiskActivity {
            name: disk.name.clone(),
            array: owner.to_owned(),
            role,
            state: disk_state(disk).0,
            member: None,
            latency: buckets(&all_latencies(&stats)),
            stats: disk_stats(&stats),
        }
    }

    /// One open disk.
    pub(super) fn show_disk(&self, owner: &str, role: u16, disk: &OpenDisk) -> Disk {
        let (state, trouble) = disk_state(disk);
        Disk {
            name: disk.name.clone(),
            size_bytes: disk.disk.size_bytes(),
            logical_block_bytes: disk.disk.logical_block_bytes(),
            array: owner.to_owned(),
            role,
            state,
            trouble,
            kept: !disk.disk.spec().is_volatile(),
            stats: self.stats_of(disk),
        }
    }
}

/// How a disk did when it was last looked at.
pub fn disk_state(disk: &OpenDisk) -> (DiskState, Option<String>) {
    let watch = disk.watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    (watch.state, watch.trouble.clone())
}

fn trouble_of(disk: &OpenDisk, state: DiskState, trouble: Option<&str>) -> String {
    format!("disk {} is {}: {}", disk.name, state.word(), trouble.unwrap_or("no reason known"))
}

/// How a member does: what the labels say of it, and its disk.
pub(super) fn state_of(entry: braid_format::MemberState, disk: Option<&OpenDisk>) -> MemberState {
    use braid_format::MemberState as Said;
    match (entry, disk.map(|disk| disk_state(disk).0)) {
        (Said::Failed, _) => MemberState::Out,
        (Said::Empty, _) => MemberState::Absent,
        (_, None) => MemberState::Missing,
        (_, Some(DiskState::Gone)) => MemberState::Gone,
        (Said::Rebuilding, Some(_)) => MemberState::Filling,
        (Said::Spare, Some(DiskState::Ok)) => MemberState::Spare,
        (Said::Journal, Some(DiskState::Ok)) => MemberState::Journal,
        (_, Some(DiskState::Ok)) => MemberState::InSync,
        (_, Some(_)) => MemberState::Failing,
    }
}

/// What a label says of an array, with the rest to be filled in.
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
        kept: true,
        read_only: false,
        members: Vec::new(),
        zones: zones.collect(),
        redundancy: None,
        exports,
    }
}

fn show_idle(tables: &Tables, entry: &ArrayEntry, idle: &Idle, exports: Vec<String>) -> Array {
    let last_seen = |role: u16| {
        tables.disks.values().find(|saved| saved.array == entry.uuid && saved.role == role).map(|s| s.disk.clone())
    };
    let members = idle.members.iter().map(|member| Member {
        role: member.role,
        uuid: member.id.clone(),
        disk: member.disk.clone().or_else(|| last_seen(member.role)),
        state: match member.state {
            braid_format::MemberState::Failed => MemberState::Out,
            braid_format::MemberState::Empty => MemberState::Absent,
            _ if !member.present => MemberState::Missing,
            braid_format::MemberState::Rebuilding => MemberState::Filling,
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

/// One export.
pub fn show_export(tables: &Tables, entry: &ExportEntry) -> Export {
    let saved = &entry.saved;
    let mut stats = None;
    let (state, reason, size_bytes, connections) = match &entry.serving {
        Serving::Listening(export) => {
            stats = Some(export_stats(export));
            (ExportState::Listening, None, Some(export.size_bytes()), export.connections())
        }
        Serving::Waiting if let Some((volume, opens)) = tables.unserved_volume(saved) => match opens {
            true => (ExportState::Waiting, Some(format!("volume {volume} is being opened")), None, 0),
            false => {
                let advice = advice::of(Case::Export(ExportCase::Standby), Names::with(&saved.name, &volume));
                let reason = format!("this node does not serve volume {volume} now; {}", advice.remedy);
                (ExportState::Standby, Some(reason), None, 0)
            }
        },
        Serving::Waiting => {
            let reason = match tables.arrays.get(&saved.array) {
                None if saved.pool.is_some() => pool_reason(tables, saved),
                Some(array) => match &array.condition {
                    Condition::Idle(idle) => format!("array {} is {}", array.name, idle.state.word()),
                    Condition::Active(_) => format!("array {} is just starting", array.name),
                },
                None => format!("array {} was not found", saved.array_name),
            };
            (ExportState::Waiting, Some(reason), None, 0)
        }
        Serving::Failed(error) => (ExportState::Failed, Some(error.message.clone()), None, 0),
    };
    Export {
        name: saved.name.clone(),
        uuid: saved.uuid.to_string(),
        array: tables.arrays.get(&saved.array).map_or_else(|| saved.array_name.clone(), |a| a.name.clone()),
        array_uuid: saved.array.to_string(),
        nbd: saved.nbd.clone(),
        uri: Address::parse(&saved.nbd)
            .map(|address| address.uri(&saved.name, saved.tls == ExportTls::Required))
            .unwrap_or_default(),
        read_only: saved.read_only,
        state,
        reason,
        size_bytes,
        connections,
        connections_max: saved.connections_max.unwrap_or(EXPORT_CONNECTIONS_MAX as u32),
        tls: saved.tls,
        allow: saved.allow.clone(),
        iops_max: saved.iops_max,
        bandwidth_bytes_max: saved.bandwidth_bytes_max,
        stats,
    }
}

/// Why an export of a volume or snapshot waits.
fn pool_reason(tables: &Tables, saved: &SavedExport) -> String {
    let pool = saved.pool.and_then(|uuid| tables.pools.get(&uuid));
    let name = &saved.array_name;
    match pool.map(|pool| (&pool.name, pool.served().is_some())) {
        Some((_, true)) => format!("{name} is just starting"),
        Some((pool, false)) => format!("pool {pool} is not active"),
        None => format!("the pool of {name} was not found"),
    }
}

/// Counters of an export as the API shows them.
fn export_stats(export: &braid_nbd::Export) -> ExportStats {
    let stats = export.stats();
    ExportStats {
        reads: stats.reads,
        writes: stats.writes,
        others: stats.others,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        errors: stats.errors,
        connections_refused: export.refused(),
    }
}

/// The buckets of all requests to an export; none while it does not serve.
pub(super) fn export_latency(entry: &ExportEntry) -> Vec<LatencyBucket> {
    let Serving::Listening(export) = &entry.serving else { return Vec::new() };
    let [reads, writes, others] = RequestClass::ALL.map(|class| export.latency(class));
    buckets(&sum([&reads, &writes, &others]))
}

/// What needs attention.
pub fn attention(tables: &Tables) -> Vec<Attention> {
    let arrays = tables.arrays.values().flat_map(|entry| match &entry.condition {
        Condition::Idle(idle) if idle.state != ArrayState::Stopped => of_idle(tables, entry, idle),
        Condition::Active(active) => match active.imported() {
            Some(imported) => imported.attention(&entry.name),
            // It is a volume to its user, and said of it in Control::attention_of_volumes.
            None if tables.replicated.contains_key(&entry.uuid) => Vec::new(),
            None => health::attention(&entry.name, active),
        },
        Condition::Idle(_) => Vec::new(),
    });
    let disks = tables.open_disks().filter(|(entry, ..)| !tables.replicated.contains_key(&entry.uuid));
    let disks = disks.filter_map(|(entry, _, disk)| of_disk(entry, disk));
    let exports = tables.exports.values().filter_map(|entry| of_export(tables, entry));
    arrays.chain(disks).chain(exports).collect()
}

fn of_idle(tables: &Tables, entry: &ArrayEntry, idle: &Idle) -> Vec<Attention> {
    let name = &entry.name;
    let waiting = match tables.exports_of(entry.uuid).len() {
        0 => String::new(),
        count => format!(", and {}", super::counted(count, "export of it waits", "exports of it wait")),
    };
    let case = match idle.state {
        ArrayState::Incomplete => ArrayCase::DisksMissing,
        _ => ArrayCase::Ready,
    };
    let item = |message: &String| {
        // What is to be done depends on more than the state, and was chosen when the array was looked at.
        let Advice { meaning, commands, .. } = advice::of(Case::Array(case), Names::of(name));
        let meaning = meaning.replacen("It serves nothing.", &format!("It serves nothing{waiting}."), 1);
        Advice { meaning, remedy: idle.remedy.clone(), commands }.attention(format!("array {name}"), message.clone())
    };
    idle.attention.iter().map(item).collect()
}

fn of_disk(entry: &ArrayEntry, disk: &OpenDisk) -> Option<Attention> {
    let (state, trouble) = disk_state(disk);
    let is_full = {
        let watch = disk.watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        watch.is_full && state == DiskState::Failing
    };
    if state == DiskState::Ok {
        return None;
    }
    let redundant = entry.active().is_some_and(|active| active.keeping().is_some());
    let case = match (disk.disk.is_short(), redundant) {
        (true, true) => DiskCase::ShortRedundant,
        (true, false) => DiskCase::Short,
        _ if disk.disk.is_deleted() => DiskCase::Deleted,
        (_, true) if is_full => DiskCase::FullRedundant,
        (_, false) if is_full => DiskCase::Full,
        _ => DiskCase::Failing,
    };
    let name = &entry.name;
    let advice = advice::of(Case::Disk(case), Names::of(name));
    // What follows for clients depends on how it fails.
    let meaning = match state {
        DiskState::Failing if disk.disk.is_deleted() || is_full => advice.meaning,
        DiskState::Failing if redundant => "What it could not read came from another member.".to_owned(),
        DiskState::Failing => "Some reads or writes of this array get errors.".to_owned(),
        DiskState::Hanging => "Reads and writes that need it wait, and get errors after 30 s.".to_owned(),
        _ => "Reads and writes that need it get errors.".to_owned(),
    };
    let message = format!("{}: {}", state.word(), trouble.as_deref().unwrap_or("no reason known"));
    Some(Advice { meaning, ..advice }.attention(format!("disk {} of array {name}", disk.name), message))
}

fn of_export(tables: &Tables, entry: &ExportEntry) -> Option<Attention> {
    let saved = &entry.saved;
    let (message, case) = match &entry.serving {
        Serving::Failed(error) => (error.message.clone(), ExportCase::Failed),
        Serving::Waiting if saved.pool.is_some_and(|pool| tables.pools.contains_key(&pool)) => return None,
        // The volume says by itself what is to be done about it; on standby nothing is.
        Serving::Waiting if tables.unserved_volume(saved).is_some() => return None,
        Serving::Waiting if !tables.stopped.contains(&saved.array) && !tables.arrays.contains_key(&saved.array) => {
            match saved.pool {
                Some(_) => (format!("the pool of {} was not found", saved.array_name), ExportCase::PoolUnknown),
                None => {
                    (format!("array {} ({}) was not found", saved.array_name, saved.array), ExportCase::ArrayUnknown)
                }
            }
        }
        _ => return None,
    };
    let mut advice = advice::of(Case::Export(case), Names::of(&saved.name));
    if let Serving::Failed(error) = &entry.serving {
        advice.remedy.clone_from(&error.remedy);
    }
    Some(advice.attention(format!("export {}", saved.name), message))
}

/// Latencies of all I/Os, whatever they were.
fn all_latencies(stats: &LeafStats) -> Histogram {
    sum([&stats.read_latency, &stats.write_latency, &stats.other_latency])
}

fn sum(histograms: [&Histogram; 3]) -> Histogram {
    let mut all = Histogram::default();
    for histogram in histograms {
        for (into, count) in all.counts.iter_mut().zip(histogram.counts) {
            *into += count;
        }
    }
    all
}

/// A histogram as the API shows it.
fn buckets(histogram: &Histogram) -> Vec<LatencyBucket> {
    let used = histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0);
    used.map(|(bucket, &count)| LatencyBucket { below_ns: bucket_floor_ns(bucket + 1), count }).collect()
}

/// Counters of the ring as the API shows them.
pub fn disk_stats(stats: &LeafStats) -> DiskStats {
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

//! The API's view of exports: state, counters, latencies, and what needs attention.

use crate::ExportManager;
use crate::latencies::{buckets, sum};
use braid_advice::{self as advice, Case, ExportCase, ObjectNames};
use braid_api::address::Address;
use braid_api::limits::EXPORT_CONNECTIONS_MAX;
use braid_api::{Attention, ErrorDetail, Export, ExportList, ExportState, ExportStats, ExportTls, LatencyBucket};
use braid_export::RequestClass;
use braid_inventory::state::SavedExport;
use braid_inventory::{ArrayCondition, ExportCondition, ExportEntry, Tables};

/// Returns the API's view of one export, an entry of `tables`.
pub fn show_export(tables: &Tables, entry: &ExportEntry) -> Export {
    let saved = &entry.saved;
    let mut stats = None;
    let (state, reason, size_bytes, connections) = match &entry.serving {
        ExportCondition::Listening(export) => {
            stats = Some(export_stats(export));
            (ExportState::Listening, None, Some(export.size_bytes()), export.connections())
        }
        ExportCondition::Waiting if let Some((volume, opens)) = tables.unserved_volume(saved) => match opens {
            true => (ExportState::Waiting, Some(format!("volume {volume} is being attached")), None, 0),
            false => {
                let advice = advice::of(Case::Export(ExportCase::Standby), ObjectNames::with(&saved.name, &volume));
                let reason = format!("this node does not serve volume {volume} now; {}", advice.remedy);
                (ExportState::Standby, Some(reason), None, 0)
            }
        },
        ExportCondition::Waiting => {
            let reason = match tables.arrays.get(&saved.array) {
                None if saved.pool.is_some() => pool_reason(tables, saved),
                Some(array) => match &array.condition {
                    ArrayCondition::Idle(idle) => format!("array {} is {}", array.name, idle.state.word()),
                    ArrayCondition::Active(_) => format!("array {} is just starting", array.name),
                },
                None => format!("array {} was not found", saved.array_name),
            };
            (ExportState::Waiting, Some(reason), None, 0)
        }
        ExportCondition::Failed(error) => (ExportState::Failed, Some(error.message.clone()), None, 0),
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

/// Returns why an export of a volume or snapshot waits.
fn pool_reason(tables: &Tables, saved: &SavedExport) -> String {
    let pool = saved.pool.and_then(|uuid| tables.pools.get(&uuid));
    let name = &saved.array_name;
    match pool.map(|pool| (&pool.name, pool.served().is_some())) {
        Some((_, true)) => format!("{name} is just starting"),
        Some((pool, false)) => format!("pool {pool} is not active"),
        None => format!("the pool of {name} was not found"),
    }
}

/// Returns the counters of an export.
fn export_stats(export: &braid_export::Export) -> ExportStats {
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

/// Returns the latency buckets of all requests to an export; none if it does not serve.
pub fn export_latency(entry: &ExportEntry) -> Vec<LatencyBucket> {
    let ExportCondition::Listening(export) = &entry.serving else { return Vec::new() };
    let [reads, writes, others] = RequestClass::ALL.map(|class| export.latency(class));
    buckets(&sum([&reads, &writes, &others]))
}

/// Returns what needs attention on an export: it failed, or what it exports was not found. None if all is well, or if
/// its volume, array or pool reports the cause.
pub fn attention_of_export(tables: &Tables, entry: &ExportEntry) -> Option<Attention> {
    let saved = &entry.saved;
    let (message, case) = match &entry.serving {
        ExportCondition::Failed(error) => (error.message.clone(), ExportCase::Failed),
        ExportCondition::Waiting if saved.pool.is_some_and(|pool| tables.pools.contains_key(&pool)) => return None,
        // The volume itself reports its remedy; an export on standby needs none.
        ExportCondition::Waiting if tables.unserved_volume(saved).is_some() => return None,
        ExportCondition::Waiting
            if !tables.stopped.contains(&saved.array) && !tables.arrays.contains_key(&saved.array) =>
        {
            match saved.pool {
                Some(_) => (format!("the pool of {} was not found", saved.array_name), ExportCase::PoolUnknown),
                None => {
                    (format!("array {} ({}) was not found", saved.array_name, saved.array), ExportCase::ArrayUnknown)
                }
            }
        }
        _ => return None,
    };
    let mut advice = advice::of(Case::Export(case), ObjectNames::of(&saved.name));
    if let ExportCondition::Failed(error) = &entry.serving {
        advice.remedy.clone_from(&error.remedy);
    }
    Some(advice.attention(format!("export {}", saved.name), message))
}

impl ExportManager {
    /// Returns all exports, sorted by name.
    pub fn exports(&self) -> ExportList {
        let tables = self.inventory.read();
        ExportList { exports: tables.exports.values().map(|entry| show_export(&tables, entry)).collect() }
    }

    /// Returns one export, by name or UUID.
    ///
    /// # Errors
    /// `Kind::NotFound`.
    pub fn export(&self, name: &str) -> Result<Export, ErrorDetail> {
        let tables = self.inventory.read();
        Ok(show_export(&tables, tables.export(name)?))
    }
}

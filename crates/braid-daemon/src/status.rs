//! The status and the activity of the daemon, over all of its objects.

use crate::Daemon;
use braid_api::{
    Activity, ArrayActivity, DiskActivity, DiskState, Export, ExportActivity, Limits, ShardStatus, Status, Tally,
};
use braid_arrays::reconcilers::health;
use braid_engine::ShardId;
use braid_exports::{export_latency, show_export};
use braid_inventory::{ExportCondition, disk_state};

impl Daemon {
    /// Returns the status of the daemon.
    pub fn status(&self) -> Status {
        let tables = self.inventory.read();
        let tallies = tables.tallies();
        let listening = |serving: &ExportCondition| match serving {
            ExportCondition::Listening(export) => Some(u64::from(export.connections())),
            _ => None,
        };
        let connections: Vec<u64> = tables.exports.values().filter_map(|e| listening(&e.serving)).collect();
        let open = tables.open_disks().map(|(_, _, disk)| disk);
        let open = open.chain(tables.pool_disks_open().map(|(_, _, disk)| disk));
        let disks: Vec<bool> = open.map(|disk| disk_state(disk).0 == DiskState::Ok).collect();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: self.inventory.started().elapsed().as_millis() as u64,
            start_ms: self.inventory.start_ms().get().copied(),
            starting: self.inventory.is_starting(),
            socket: self.socket.display().to_string(),
            network: self.network.get().map(|(address, _)| format!("https://{address}")),
            node: self.nodes.own_name(),
            state_directory: self.inventory.state().path().display().to_string(),
            shards: self.shards(),
            arrays: tallies.arrays,
            pools: tallies.pools,
            exports: tallies.exports,
            disks: Tally { total: disks.len() as u64, serving: disks.iter().filter(|ok| **ok).count() as u64 },
            connections: connections.iter().sum(),
            ublk: self.exports.blocks.features(),
            upgrade: self.upgrades.last(),
            attention: [
                self.inventory.faults(),
                braid_arrays::attention(&tables),
                braid_pools::attention(&tables),
                braid_replication::attention(&tables),
                self.replication.attention_of_volumes(&tables),
            ]
            .concat(),
            limits: Limits::current(),
        }
    }

    fn shards(&self) -> Vec<ShardStatus> {
        let shard = |shard: u16| {
            let driver = self.ring.driver(ShardId(shard));
            let passed_over = driver.skipped.iter().map(|(kind, why)| format!("{kind} is not used: {why}"));
            let unregistered = driver.unregistered_reason.iter().map(|why| format!("buffers: {why}"));
            let notes: Vec<String> = passed_over.chain(unregistered).collect();
            ShardStatus {
                shard,
                driver: driver.kind.to_string(),
                registered_buffers: driver.registered_buffer_bytes > 0,
                registered_files: driver.registered_files > 0,
                note: (!notes.is_empty()).then(|| notes.join("; ")),
            }
        };
        (0..self.ring.shards()).map(shard).collect()
    }

    /// Returns the counters of disks and exports since the start.
    pub fn activity(&self) -> Activity {
        let tables = self.inventory.read();
        let mut disks: Vec<DiskActivity> =
            tables.open_disks().map(|(entry, role, disk)| self.arrays.disk_activity(entry, role, disk)).collect();
        let of_pools = tables.pool_disks_open();
        disks.extend(of_pools.map(|(pool, number, disk)| self.arrays.activity_of(&pool.name, number.into(), disk)));
        disks.sort_by(|a, b| (&a.array, a.slot).cmp(&(&b.array, b.slot)));
        let exports = tables.exports.values().map(|entry| {
            let Export { name, array, state, connections, stats, .. } = show_export(&tables, entry);
            ExportActivity { name, array, state, connections, stats, latency: export_latency(entry) }
        });
        let mut arrays: Vec<ArrayActivity> = tables
            .arrays
            .values()
            .filter_map(|entry| Some((entry, entry.active()?)))
            .map(|(entry, active)| ArrayActivity {
                name: entry.name.clone(),
                health: health::of(active),
                progress: active.reconciler().and_then(|reconciler| reconciler.least_progress()),
            })
            .collect();
        arrays.sort_by(|a, b| a.name.cmp(&b.name));
        Activity {
            at_ns: self.inventory.started().elapsed().as_nanos() as u64,
            disks,
            exports: exports.collect(),
            arrays,
        }
    }
}

//! Limits of an export in virtual time: two shards share them, and connections take turns.

use std::sync::Arc;

use crate::common::bytes;
use braid_engine::DeviceId;
use braid_export::{ExportInfo, ExportLimits, ExportTable};
use braid_nbd::EventQueue;
use braid_nbd::memory::MemoryHost;
use braid_nbd::server::{Arrival, Server, ServerConfig};
use braid_ring::Rates;

const SIZE: usize = 1 << 20;

/// One shard with clients of an export that other shards serve too.
struct Shard {
    host: MemoryHost,
    server: Server<usize>,
    /// For each client: its socket, and the number of its answered requests.
    clients: Vec<(usize, u64)>,
}

impl Shard {
    fn new(table: &Arc<ExportTable>, clients: usize) -> Shard {
        let mut host = MemoryHost::new(32 << 20, SIZE);
        host.now_ns = 1_000_000_000_000;
        let mut server = Server::new(ServerConfig::default(), Arc::new(EventQueue::new()));
        let sockets: Vec<usize> = (0..clients)
            .map(|_| {
                let socket = host.socket();
                server.connect(&mut host, socket, Arrival::plain("", table.clone()));
                host.run(&mut server);
                host.client_sends(socket, &bytes("00000003 'IHAVEOPT' 00000001 00000001 'a'"));
                host.run(&mut server);
                assert_eq!(host.take_output(socket).len(), 18 + 10);
                socket
            })
            .collect();
        Shard { host, server, clients: sockets.into_iter().map(|socket| (socket, 0)).collect() }
    }

    /// Sends `count` READs of `len` bytes.
    fn ask(&mut self, client: usize, count: usize, len: u32) {
        let request = bytes(&format!("25609513 0000 0000 'a cookie' 0000000000000000 {len:08x}"));
        self.host.client_sends(self.clients[client].0, &request.repeat(count));
    }

    /// Advances the time, and counts the replies to READs of `len` bytes.
    fn pass(&mut self, ns: u64, len: u32) {
        self.host.now_ns += ns;
        self.host.run(&mut self.server);
        for (socket, answered) in &mut self.clients {
            let got = self.host.take_output(*socket).len();
            assert_eq!(got % (16 + len as usize), 0, "whole replies, none of them an error");
            *answered += (got / (16 + len as usize)) as u64;
        }
    }
}

fn export(rates: Rates) -> (Arc<ExportTable>, Arc<braid_export::Export>) {
    let table = Arc::new(ExportTable::new());
    let limits = ExportLimits { rates, ..ExportLimits::default() };
    let export = table.add(ExportInfo { limits, ..ExportInfo::new("a", DeviceId(0), SIZE as u64) }).unwrap();
    (table, export)
}

#[test]
fn the_iops_limit_spans_shards_and_connections_take_turns() {
    let (table, _export) = export(Rates { iops: Some(3000), bandwidth_bytes: None });
    let mut shards = [Shard::new(&table, 2), Shard::new(&table, 1)];
    // The first client has far more requests in flight than the others.
    let depths = [(0, 0, 200), (0, 1, 2), (1, 0, 2)];
    let mut requested = [0u64; 3];
    for _ in 0..20_000 {
        for (k, (shard, client, depth)) in depths.into_iter().enumerate() {
            let open = requested[k] - shards[shard].clients[client].1;
            shards[shard].ask(client, (depth - open) as usize, 512);
            requested[k] += depth - open;
        }
        shards.iter_mut().for_each(|shard| shard.pass(100_000, 512));
    }
    let answered = [shards[0].clients[0].1, shards[0].clients[1].1, shards[1].clients[0].1];
    let sum: u64 = answered.iter().sum();
    // 2 s at 3,000 per second, and 10 ms of unused allowance.
    assert!((5_980..=6_035).contains(&sum), "{answered:?}");
    for n in answered {
        assert!((1_900..=2_150).contains(&n), "connections take turns: {answered:?}");
    }
}

#[test]
fn the_bandwidth_limit() {
    let (table, _export) = export(Rates { iops: None, bandwidth_bytes: Some(16 << 20) });
    let mut shard = Shard::new(&table, 1);
    shard.ask(0, 200, 1 << 20);
    for _ in 0..2000 {
        shard.pass(1_000_000, 1 << 20);
    }
    // 2 s at 16 MiB per second; the first request is free.
    assert!((32..=34).contains(&shard.clients[0].1), "{}", shard.clients[0].1);
}

#[test]
fn new_rates_apply_at_once() {
    let (table, export) = export(Rates { iops: None, bandwidth_bytes: Some(1024) });
    let mut shard = Shard::new(&table, 1);
    shard.ask(0, 100, 1 << 20);
    shard.pass(1_000_000, 1 << 20);
    shard.pass(60_000_000_000, 1 << 20);
    assert_eq!(shard.clients[0].1, 1, "the next one waits for 17 minutes");
    export.set_limits(ExportLimits::default());
    shard.server.exports_changed(&mut shard.host);
    shard.pass(1, 1 << 20);
    assert_eq!(shard.clients[0].1, 100, "it does not wait any more");
}

/// A throttled client can be disconnected, and frees all its resources.
#[test]
fn a_throttled_client_can_be_disconnected() {
    let (table, export) = export(Rates { iops: Some(1), bandwidth_bytes: None });
    let mut shard = Shard::new(&table, 3);
    for client in 0..3 {
        shard.ask(client, 10, 512);
    }
    shard.pass(1_000_000, 512);
    let allow = vec!["10.0.0.0/8".parse().unwrap()];
    export.set_limits(ExportLimits { allow, ..export.limits().as_ref().clone() });
    shard.server.exports_changed(&mut shard.host);
    shard.pass(1, 512);
    assert_eq!(shard.server.connections(), 3, "clients on Unix sockets have no address");
    table.remove("a");
    shard.server.exports_changed(&mut shard.host);
    shard.pass(1, 512);
    assert_eq!((shard.server.connections(), shard.host.used_bytes()), (0, 0));
}

#[test]
fn a_held_export_keeps_its_clients_and_answers_them_later() {
    let (table, export) = export(Rates::default());
    let mut shard = Shard::new(&table, 2);
    shard.ask(0, 3, 512);
    for _ in 0..5 {
        shard.pass(1000, 512);
    }
    assert_eq!(shard.clients[0].1, 3);
    export.hold(true);
    assert_eq!(shard.server.unanswered(&export), 0);
    for client in 0..2 {
        shard.ask(client, 5, 512);
    }
    for _ in 0..20 {
        shard.pass(1_000_000, 512);
    }
    assert_eq!([shard.clients[0].1, shard.clients[1].1], [3, 0], "no request is taken in");
    assert_eq!((shard.server.unanswered(&export), export.connections()), (0, 2));
    export.hold(false);
    for _ in 0..20 {
        shard.pass(1_000_000, 512);
    }
    assert_eq!([shard.clients[0].1, shard.clients[1].1], [8, 5]);
}

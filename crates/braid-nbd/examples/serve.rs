//! Serves a disk on a Unix socket until killed: `serve SOCKET DISK [SHARDS]`. Example: `serve /tmp/a.sock mem:1G`. It
//! is the server alone, without the daemon.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use braid_engine::{DeviceId, DeviceLayout, Node, ShardId};
use braid_export::{ExportInfo, ExportTable};
use braid_nbd::EventQueue;
use braid_nbd::server::{NbdFrontend, NewConnection, ServerConfig};
use braid_ring::{Disk, DiskSpec, OpenOptions, Ring, RingConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, disk, rest @ ..] = &arguments[..] else { return Err("usage: serve SOCKET DISK [SHARDS]".into()) };
    let shards = rest.first().map_or(Ok(1), |text| text.parse())?;
    let (table, events) = (Arc::new(ExportTable::new()), Arc::new(EventQueue::new()));
    let ring = Ring::start(&RingConfig { shards, ..RingConfig::default() }, |_| {
        vec![Box::new(NbdFrontend::new(table.clone(), events.clone(), ServerConfig::default()))]
    })?;
    let handle = ring.handle();
    let disk = Arc::new(Disk::open(&DiskSpec::parse(disk)?, OpenOptions { exclusive: true, write: true })?);
    let (size, block) = (disk.size_bytes(), disk.logical_block_bytes());
    let leaf = handle.add_leaf(disk)?;
    let layout = DeviceLayout::new(1, block, &Node::Leaf { leaf, start: 0, len: size });
    handle.publish(DeviceId(0), Some(Arc::new(layout)), Box::new(|| {}));
    table.add(ExportInfo { block_bytes_min: block, ..ExportInfo::new("disk", DeviceId(0), size) })?;
    let _ = std::fs::remove_file(socket);
    println!("{:?} serves disk on {socket}", handle.driver(ShardId(0)).kind);
    for (k, stream) in UnixListener::bind(socket)?.incoming().enumerate() {
        let new =
            NewConnection { fd: stream?.into(), peer: format!("client {k}"), exports: None, address: None, tls: None };
        handle.post(ShardId(k as u16 % shards), 0, Box::new(new));
        while let Some(event) = events.pop() {
            println!("{event:?}");
        }
    }
    Ok(())
}

//! Servers on a real ring, for end-to-end tests over real sockets.
#![allow(dead_code, clippy::unwrap_used)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_engine::{DeviceId, DeviceLayout, Node, ShardId};
use braid_export::{ExportInfo, ExportTable, ExportTls};
use braid_nbd::client::{Client, ClientConfig};
use braid_nbd::server::{ExportsChanged, NbdFrontend, NewConnection, ServerConfig};
use braid_nbd::{EventQueue, NbdEvent};
use braid_ring::{Disk, DiskSpec, DriverKind, OpenOptions, Ring, RingConfig, RingHandle};

pub struct Bed {
    ring: Option<Ring>,
    pub handle: RingHandle,
    pub table: Arc<ExportTable>,
    pub events: Arc<EventQueue>,
    /// The TLS configuration for clients over TCP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Whether exports created from now on require TLS.
    pub tls_required: bool,
    next: AtomicU16,
    devices: AtomicU32,
}

impl Bed {
    pub fn new(shards: u16, config: ServerConfig) -> Bed {
        Bed::start(RingConfig { shards, ..RingConfig::default() }, config)
    }

    pub fn on(driver: DriverKind, shards: u16) -> Bed {
        Bed::start(RingConfig { shards, driver: Some(driver), ..RingConfig::default() }, ServerConfig::default())
    }

    pub fn start(ring: RingConfig, config: ServerConfig) -> Bed {
        let (table, events) = (Arc::new(ExportTable::new()), Arc::new(EventQueue::new()));
        let ring =
            Ring::start(&ring, |_| vec![Box::new(NbdFrontend::new(table.clone(), events.clone(), config.clone()))])
                .unwrap();
        let handle = ring.handle();
        Bed {
            ring: Some(ring),
            handle,
            table,
            events,
            tls: None,
            tls_required: false,
            next: AtomicU16::new(0),
            devices: AtomicU32::new(0),
        }
    }

    /// Opens a disk and exports it under a name.
    pub fn export(&self, name: &str, disk: &str) -> Arc<Disk> {
        let options = OpenOptions { exclusive: false, write: true };
        let disk = Arc::new(Disk::open(&DiskSpec::parse(disk).unwrap(), options).unwrap());
        let leaf = self.handle.add_leaf(disk.clone()).unwrap();
        let size = disk.size_bytes();
        let layout = DeviceLayout::new(1, 512, &Node::Leaf { leaf, start: 0, len: size });
        let device = DeviceId(self.devices.fetch_add(1, Ordering::Relaxed));
        self.handle.publish_and_drain(device, Some(Arc::new(layout))).wait().unwrap();
        let info = ExportInfo::new(name, device, size);
        let tls = if self.tls_required { ExportTls::Required } else { ExportTls::Optional };
        self.table.add(ExportInfo { tls, ..info }).unwrap();
        disk
    }

    pub fn accept(&self, stream: impl Into<OwnedFd>) {
        let shard = ShardId(self.next.fetch_add(1, Ordering::Relaxed) % self.handle.shards());
        let new = NewConnection { fd: stream.into(), peer: "test".into(), exports: None, address: None, tls: None };
        self.handle.post(shard, 0, Box::new(new));
    }

    /// Returns a raw connection, on the next shard in turn.
    pub fn connect(&self) -> UnixStream {
        let (client, server) = UnixStream::pair().unwrap();
        self.accept(server);
        client
    }

    pub fn client(&self, export: &str, config: ClientConfig) -> Client {
        Client::over_unix(self.connect(), export, config).unwrap()
    }

    pub fn exports_changed(&self) {
        for shard in 0..self.handle.shards() {
            self.handle.post(ShardId(shard), 0, Box::new(ExportsChanged));
        }
    }

    pub fn events(&self) -> Vec<NbdEvent> {
        std::iter::from_fn(|| self.events.pop()).collect()
    }

    pub fn stop(mut self) {
        self.ring.take().unwrap().stop();
    }

    /// Listens on a port of 127.0.0.1 until dropped.
    pub fn listen_tcp(self: &Arc<Bed>) -> TcpListening {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (bed, done) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let done = done.clone();
            move || {
                while let Ok((stream, peer)) = listener.accept() {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let shard = ShardId(bed.next.fetch_add(1, Ordering::Relaxed) % bed.handle.shards());
                    let (fd, address) = (stream.into(), Some(peer.ip()));
                    let peer = peer.to_string();
                    let new = NewConnection { fd, peer, address, exports: None, tls: bed.tls.clone() };
                    bed.handle.post(shard, 0, Box::new(new));
                }
            }
        });
        TcpListening { address, done, thread: Some(thread) }
    }

    /// Listens on a Unix socket until dropped.
    pub fn listen(self: &Arc<Bed>, name: &str) -> Listener {
        let path = std::env::temp_dir().join(format!("braid-nbd-{}-{name}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (bed, done) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let done = done.clone();
            move || {
                for stream in listener.incoming() {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    bed.accept(stream.unwrap());
                }
            }
        });
        Listener { path, done, thread: Some(thread) }
    }
}

pub struct TcpListening {
    address: SocketAddr,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TcpListening {
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for TcpListening {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

pub struct Listener {
    path: PathBuf,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path.display())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.path);
        self.thread.take().unwrap().join().unwrap();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits until a condition is true, at most 10 s.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A small random number generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

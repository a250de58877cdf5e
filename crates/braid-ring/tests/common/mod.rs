//! Shared parts of the ring's tests: a client on each shard, and blocking calls to it.
#![allow(dead_code)] // Each test uses its own part.
#![allow(clippy::unwrap_used, clippy::too_many_arguments)]

pub mod load;
pub mod volume;

use std::any::Any;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use braid_engine::{Buf, Completion, DeviceId, DeviceLayout, Flags, IoError, LeafId, Node, Op, Request, ShardId};
use braid_geometry::{Geometry, Layout, Level, Spec, ZonePolicy};
use braid_ring::{Cx, Disk, DiskSpec, Frontend, OpenOptions, Ring, RingConfig, RingHandle};

/// One request, and where its reply goes.
pub struct Call {
    pub device: DeviceId,
    pub op: Op,
    pub flags: Flags,
    pub offset: u64,
    pub len: u64,
    pub data: Vec<u8>,
    pub reply: Sender<Reply>,
}

/// The end of a request, or the release of its buffer.
#[derive(Debug)]
pub struct Reply {
    pub result: Result<(), IoError>,
    /// The data read.
    pub data: Vec<u8>,
    pub buffer_busy: bool,
    /// Set in the second reply, when the kernel has released a busy buffer.
    pub released: bool,
}

/// Executes calls that are posted to it.
#[derive(Default)]
pub struct Client {
    calls: HashMap<u64, (Call, Buf)>,
    next: u64,
}

impl Client {
    fn space(call: &Call) -> usize {
        if matches!(call.op, Op::Read | Op::Write) { call.len as usize } else { 0 }
    }
}

impl Frontend for Client {
    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let call = *message.downcast::<Call>().expect("clients get calls");
        let space = Client::space(&call);
        let buf = if space > 0 { cx.alloc(space).expect("the arena has room for the tests") } else { Buf::NONE };
        if call.op == Op::Write {
            cx.memory(buf, space).copy_from_slice(&call.data);
        } else if space > 0 {
            cx.memory(buf, space).fill(0xee);
        }
        self.next += 1;
        let Call { device, op, flags, offset, len, .. } = call;
        let submitted = cx.submit(&Request { device, op, flags, offset, len, buf, tag: self.next });
        match submitted {
            Ok(()) => {
                self.calls.insert(self.next, (call, buf));
            }
            Err(e) => {
                if space > 0 {
                    cx.free(buf, space);
                }
                let _ = call.reply.send(Reply { result: Err(e), data: vec![], buffer_busy: false, released: false });
            }
        }
    }

    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        let (call, buf) = self.calls.remove(&completion.tag).expect("each request completes once");
        let space = Client::space(&call);
        let data = if call.op == Op::Read && !completion.buffer_busy { cx.bytes(buf, space).to_vec() } else { vec![] };
        let (result, buffer_busy) = (completion.result, completion.buffer_busy);
        let _ = call.reply.send(Reply { result, data, buffer_busy, released: false });
        if buffer_busy {
            self.calls.insert(completion.tag, (call, buf));
        } else if space > 0 {
            cx.free(buf, space);
        }
    }

    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        let (call, buf) = self.calls.remove(&tag).expect("only busy buffers are released, once");
        if Client::space(&call) > 0 {
            cx.free(buf, Client::space(&call));
        }
        let _ = call.reply.send(Reply { result: Ok(()), data: vec![], buffer_busy: false, released: true });
    }
}

/// A ring with a client on each shard.
pub struct TestBed {
    pub ring: Ring,
    pub handle: RingHandle,
    next_device: u32,
}

impl TestBed {
    pub fn new(config: &RingConfig) -> TestBed {
        let ring = Ring::start(config, |_| vec![Box::new(Client::default()), Box::new(load::Load::default())])
            .expect("the ring starts");
        let handle = ring.handle();
        TestBed { ring, handle, next_device: 0 }
    }

    /// Opens a disk and adds it to the shards.
    pub fn leaf(&self, name: &str) -> LeafId {
        self.handle.add_leaf(open(name)).expect("the table has room")
    }

    pub fn publish(&mut self, root: &Node) -> DeviceId {
        self.publish_blocks(root, 512)
    }

    /// Publishes a device with this block size.
    pub fn publish_blocks(&mut self, root: &Node, block_bytes: u32) -> DeviceId {
        let device = DeviceId(self.next_device);
        self.next_device += 1;
        let layout = DeviceLayout::new(1, block_bytes, root);
        self.handle.publish_and_drain(device, Some(Arc::new(layout))).wait().expect("the shards run");
        device
    }

    /// Publishes a whole disk as a device.
    pub fn bare(&mut self, name: &str) -> (DeviceId, LeafId) {
        let leaf = self.leaf(name);
        let len = self.handle.disk(leaf).unwrap().size_bytes();
        (self.publish(&Node::Leaf { leaf, start: 0, len }), leaf)
    }

    /// Publishes a raid0 of these disks.
    pub fn striped(&mut self, names: &[&str], chunk_bytes: u64) -> DeviceId {
        let leaves: Vec<LeafId> = names.iter().map(|n| self.leaf(n)).collect();
        let sizes: Vec<u64> = leaves.iter().map(|l| self.handle.disk(*l).unwrap().size_bytes()).collect();
        let spec =
            Spec { level: Level::Raid0, layout: Layout::Alternate, chunk_bytes, copies: 1, zones: ZonePolicy::All };
        let geometry = Geometry::plan(spec, &sizes).expect("a raid0 can be laid out");
        let member = |(leaf, len): (&LeafId, &u64)| Node::Leaf { leaf: *leaf, start: 0, len: *len };
        let members = leaves.iter().zip(geometry.member_data_bytes()).map(member).collect();
        self.publish(&Node::Striped { geometry, members })
    }

    pub fn begin(
        &self,
        shard: u16,
        device: DeviceId,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Receiver<Reply> {
        let (reply, receiver) = channel();
        let call = Call { device, op, flags, offset, len, data: data.to_vec(), reply };
        self.handle.post(ShardId(shard), 0, Box::new(call));
        receiver
    }

    pub fn call(
        &self,
        shard: u16,
        device: DeviceId,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Reply {
        self.begin(shard, device, op, flags, offset, len, data).recv().expect("each call gets a reply")
    }

    pub fn read(&self, shard: u16, device: DeviceId, offset: u64, len: u64) -> Vec<u8> {
        let reply = self.call(shard, device, Op::Read, Flags::NONE, offset, len, &[]);
        reply.result.unwrap_or_else(|e| panic!("reading {len} at {offset}: {e}"));
        reply.data
    }

    pub fn write(&self, shard: u16, device: DeviceId, flags: Flags, offset: u64, data: &[u8]) {
        let reply = self.call(shard, device, Op::Write, flags, offset, data.len() as u64, data);
        reply.result.unwrap_or_else(|e| panic!("writing {} at {offset}: {e}", data.len()));
    }
}

pub fn open(name: &str) -> Arc<Disk> {
    let spec = DiskSpec::parse(name).unwrap_or_else(|e| panic!("{e}"));
    Arc::new(Disk::open(&spec, OpenOptions::default()).unwrap_or_else(|e| panic!("{e}")))
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor: the ring depends on no other.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// A child process has copies of all open files of its parent, with their locks, until it executes its program.
static CHILDREN: RwLock<()> = RwLock::new(());

/// Held by a test while it starts processes.
pub fn starting_children() -> RwLockReadGuard<'static, ()> {
    CHILDREN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that opens again what it has just closed: no other test starts a process meanwhile.
pub fn without_other_children() -> RwLockWriteGuard<'static, ()> {
    CHILDREN.write().unwrap_or_else(PoisonError::into_inner)
}

/// A folder for a test, removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        Folder::at(std::env::temp_dir(), name)
    }

    pub fn at(parent: impl AsRef<Path>, name: &str) -> Folder {
        let path = parent.as_ref().join(format!("braid-ring-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("test paths are UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

/// A small reproducible random number generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len as usize).collect()
    }
}

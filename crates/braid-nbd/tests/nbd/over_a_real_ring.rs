//! The server on a real ring: random I/O, flushes, vanishing clients, connection storms.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bed::*;
use braid_nbd::client::{Client, ClientConfig, Replies};
use braid_nbd::codec::{command, command_flags};
use braid_nbd::server::ServerConfig;
use braid_nbd::{Cause, NbdEvent};
use braid_ring::DriverKind;

const DRIVERS: [DriverKind; 3] = DriverKind::ALL;
const MIB: u64 = 1 << 20;

#[test]
fn write_and_read_back() {
    for driver in DRIVERS {
        for structured in [false, true] {
            let bed = Bed::on(driver, 1);
            bed.export("m", "mem:64M");
            let mut client = bed.client("m", ClientConfig { structured, ..ClientConfig::default() });
            assert_eq!(client.size_bytes(), 64 * MIB);
            let data: Vec<u8> = (0..5 * MIB).map(|i| (i / 511) as u8).collect();
            client.write_at(4096, &data, true).unwrap();
            client.flush().unwrap();
            let mut back = vec![0; data.len()];
            client.read_at(4096, &mut back).unwrap();
            assert!(back == data, "{driver:?}");
            client.write_zeroes(8192, 4096, 0).unwrap();
            client.trim(0, 4096).unwrap();
            client.read_at(8192, &mut back[..4096]).unwrap();
            assert!(back[..4096].iter().all(|b| *b == 0));
            if structured {
                assert_eq!(client.block_status(0, 4096).unwrap(), [(64 << 20, 0)]);
            }
            assert!(client.read_at(64 * MIB, &mut back[..512]).is_err());
            client.disconnect().unwrap();
            eventually("the place is free", || bed.table.find("m").unwrap().connections() == 0);
            bed.stop();
        }
    }
}

/// The expected content of each block of 512 bytes.
struct Model {
    base: u64,
    blocks: Vec<u64>,
    next: u64,
}

/// Reads in flight and their expected data.
struct Expected {
    reads: HashMap<u16, Vec<u64>>,
    offsets: HashMap<u16, (u64, u64)>,
    busy: Vec<(u64, u64)>,
    done: u64,
}

fn fill(block: &mut [u8], value: u64) {
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
}

impl Replies for Expected {
    fn data(&mut self, slot: u16, at: u32, data: &[u8]) {
        let want = &self.reads[&slot];
        for (i, byte) in data.iter().enumerate() {
            let at = at as usize + i;
            assert_eq!(*byte, want[at / 512].to_le_bytes()[at % 8], "slot {slot}, byte {at}");
        }
    }

    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        assert_eq!(result, Ok(()));
        self.reads.remove(&slot);
        let range = self.offsets.remove(&slot).unwrap();
        self.busy.retain(|busy| *busy != range);
        self.done += 1;
    }
}

/// Runs random reads, writes and zeroes of one connection on its own part of the disk, many in flight.
fn random_io(client: &mut Client, seed: u64, base: u64, operations: u64) {
    let mut random = Random(seed | 1);
    let blocks = 4 * MIB / 512;
    let mut model = Model { base, blocks: vec![0; blocks as usize], next: 1 };
    let mut expected = Expected { reads: HashMap::new(), offsets: HashMap::new(), busy: Vec::new(), done: 0 };
    let mut queued = 0;
    while expected.done < operations {
        while client.free() > 0 && queued < operations {
            // Mostly small; sometimes longer than the threshold of direct receives, or than a segment.
            let len = match random.below(20) {
                0 => 1 + random.below(2500),
                1..4 => 1 + random.below(200),
                _ => 1 + random.below(16),
            };
            let from = random.below(blocks - len.min(blocks - 1));
            let len = len.min(blocks - from);
            let range = (from, from + len);
            // Overlapping requests in flight have no order.
            if expected.busy.iter().any(|b| b.0 < range.1 && range.0 < b.1) {
                break;
            }
            let slot = queue(client, &mut random, &mut model, &mut expected.reads, range);
            expected.busy.push(range);
            expected.offsets.insert(slot, range);
            queued += 1;
        }
        client.exchange(true, &mut expected).unwrap();
    }
}

fn queue(
    client: &mut Client,
    random: &mut Random,
    model: &mut Model,
    reads: &mut HashMap<u16, Vec<u64>>,
    (from, to): (u64, u64),
) -> u16 {
    let (offset, len) = (model.base + from * 512, ((to - from) * 512) as u32);
    let blocks = &mut model.blocks[from as usize..to as usize];
    match random.below(10) {
        0 => {
            blocks.fill(0);
            client.queue(command::WRITE_ZEROES, 0, offset, len).unwrap()
        }
        1..5 => {
            let mut data = vec![0; len as usize];
            for (block, bytes) in blocks.iter_mut().zip(data.chunks_exact_mut(512)) {
                *block = model.next;
                fill(bytes, model.next);
                model.next += 1;
            }
            let flags = if random.below(8) == 0 { command_flags::FUA } else { 0 };
            if random.below(2) == 0 {
                client.queue_write(offset, &data, flags).unwrap()
            } else {
                client.queue_write_shared(offset, &data.into(), 0, len, flags).unwrap()
            }
        }
        _ => {
            let slot = client.queue_read(offset, len).unwrap();
            reads.insert(slot, blocks.to_vec());
            slot
        }
    }
}

#[test]
fn random_io_over_several_connections() {
    for driver in DRIVERS {
        let operations = 4000;
        let bed = Bed::on(driver, 2);
        bed.export("m", "mem:64M");
        std::thread::scope(|scope| {
            for k in 0..4u64 {
                let bed = &bed;
                scope.spawn(move || {
                    let config = ClientConfig { depth: 64, structured: k % 2 == 0, ..ClientConfig::default() };
                    let mut client = bed.client("m", config);
                    random_io(&mut client, 1234 + k, k * 4 * MIB, operations);
                    client.disconnect().unwrap();
                });
            }
        });
        let stats = bed.table.find("m").unwrap().stats();
        assert_eq!(stats.reads + stats.writes + stats.others, 4 * operations);
        assert_eq!(stats.errors, 0);
        bed.stop();
    }
}

/// A flush makes writes of a connection on another shard durable.
#[test]
fn flush_covers_other_connections() {
    let bed = Bed::new(2, ServerConfig::default());
    let path = std::env::temp_dir().join(format!("braid-nbd-{}-flush.img", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let disk = bed.export("f", &format!("file:{}", path.display()));
    let mut writer = bed.client("f", ClientConfig::default());
    let mut flusher = bed.client("f", ClientConfig::default());
    let leaf = braid_engine::LeafId(0);
    for round in 1..=5 {
        writer.write_at(4096 * round, &[round as u8; 4096], false).unwrap();
        let before = bed.handle.leaf_stats(leaf).unwrap().flushes;
        flusher.flush().unwrap();
        assert!(bed.handle.leaf_stats(leaf).unwrap().flushes > before, "the flush reached the disk");
        assert_eq!(std::fs::read(&path).unwrap()[4096 * round as usize], round as u8);
    }
    drop((writer, flusher, disk));
    bed.stop();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn half_dead_clients_are_cut() {
    let short = ServerConfig {
        handshake_ns: 200_000_000,
        payload_ns: 200_000_000,
        tick_ns: 20_000_000,
        ..ServerConfig::default()
    };
    let bed = Bed::new(1, short);
    bed.export("m", "mem:16M");
    let closed = |mut stream: std::os::unix::net::UnixStream| {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    };
    // Sends nothing.
    let start = Instant::now();
    closed(bed.connect());
    assert!(start.elapsed() >= Duration::from_millis(180));
    // Stops in the middle of an option.
    let mut stream = bed.connect();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0").unwrap();
    closed(stream);
    // Stops in the middle of a payload.
    let mut stream = bed.connect();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01m").unwrap();
    stream.write_all(b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\x10\0\0 and no more").unwrap();
    closed(stream);
    let mut causes = Vec::new();
    eventually("each end is reported", || {
        let ended = |e| if let NbdEvent::Disconnected { cause, .. } = e { Some(cause) } else { None };
        causes.extend(bed.events().into_iter().filter_map(ended));
        causes.len() == 3
    });
    assert_eq!(causes, [Cause::HandshakeTimeout, Cause::HandshakeTimeout, Cause::PayloadTimeout]);
    // An idle client may stay connected, and others are served.
    let mut idle = bed.client("m", ClientConfig::default());
    std::thread::sleep(Duration::from_millis(400));
    idle.flush().unwrap();
    bed.stop();
}

#[test]
fn a_client_that_reads_nothing_does_not_block_others() {
    let bed = Bed::new(1, ServerConfig::default());
    bed.export("m", "mem:16M");
    let mut greedy = bed.client("m", ClientConfig { depth: 1024, ..ClientConfig::default() });
    for k in 0..1000u64 {
        greedy.queue_read(k % 16 * MIB, MIB as u32).unwrap();
    }
    greedy.exchange(false, &mut Count::default()).unwrap();
    let mut client = bed.client("m", ClientConfig::default());
    let mut buf = vec![0; 1 << 20];
    for _ in 0..50 {
        client.read_at(0, &mut buf).unwrap();
    }
    let mut count = Count::default();
    while count.0 < 1000 {
        greedy.exchange(true, &mut count).unwrap();
    }
    bed.stop();
}

#[derive(Default)]
struct Count(u64);

impl Replies for Count {
    fn done(&mut self, _: u16, result: Result<(), u32>) {
        assert_eq!(result, Ok(()));
        self.0 += 1;
    }
}

#[test]
fn a_storm_of_connections() {
    let bed = Arc::new(Bed::new(2, ServerConfig::default()));
    bed.export("m", "mem:16M");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let bed = bed.clone();
            scope.spawn(move || {
                let mut random = Random(99 + thread);
                for round in 0..150 {
                    match random.below(4) {
                        // Disconnects at once.
                        0 => drop(bed.connect()),
                        // Disconnects in the handshake.
                        1 => bed.connect().write_all(b"\0\0\0\x03IHAVE").unwrap(),
                        // Disconnects with requests in flight.
                        2 => {
                            let mut client = bed.client("m", ClientConfig::default());
                            for _ in 0..40 {
                                client
                                    .queue_read(random.below(4) * MIB, 1 + random.below(400) as u32 * 512 + 511)
                                    .unwrap();
                                client.queue_write(random.below(4) * MIB, &[1; 4096], 0).unwrap();
                            }
                            let _ = client.exchange(round % 2 == 0, &mut Ignore);
                        }
                        _ => {
                            let mut client = bed.client("m", ClientConfig::default());
                            client.write_at(8 * MIB, &[7; 4096], false).unwrap();
                            client.disconnect().unwrap();
                        }
                    }
                }
            });
        }
    });
    eventually("all places are free", || bed.table.find("m").unwrap().connections() == 0);
    let mut client = bed.client("m", ClientConfig::default());
    let mut buf = [0; 4096];
    client.read_at(8 * MIB, &mut buf).unwrap();
    assert_eq!(buf, [7; 4096]);
    drop(client);
    Arc::into_inner(bed).unwrap().stop();
}

struct Ignore;

impl Replies for Ignore {
    fn done(&mut self, _: u16, _: Result<(), u32>) {}
}

#[test]
fn a_removed_export_closes_its_connections() {
    let bed = Bed::new(2, ServerConfig::default());
    bed.export("m", "mem:16M");
    bed.export("other", "mem:16M");
    let mut clients: Vec<Client> = (0..4).map(|_| bed.client("m", ClientConfig::default())).collect();
    let mut other = bed.client("other", ClientConfig::default());
    clients.iter_mut().for_each(|client| client.flush().unwrap());
    let export = bed.table.remove("m").unwrap();
    bed.exports_changed();
    eventually("its connections are closed", || export.connections() == 0);
    assert!(clients.iter_mut().all(|client| client.flush().is_err()));
    other.flush().unwrap();
    bed.stop();
}

/// A faulty disk causes errors for its clients and does not affect others.
#[test]
fn a_bad_disk_gives_errors() {
    let bed = Bed::new(1, ServerConfig::default());
    bed.export("good", "mem:16M");
    bed.export("bad", "faulty(mem:16M,read-error)");
    let mut bad = bed.client("bad", ClientConfig::default());
    let mut good = bed.client("good", ClientConfig::default());
    let mut buf = [0; 4096];
    assert!(matches!(bad.read_at(0, &mut buf), Err(braid_nbd::client::ClientError::Request(5))));
    good.read_at(0, &mut buf).unwrap();
    bad.flush().unwrap();
    bed.stop();
}

/// Requests to a hanging disk fail within the time limit and keep their buffers until the disk answers. Other exports
/// are not blocked.
#[test]
fn a_hanging_disk_does_not_block_other_exports() {
    let ring = braid_ring::RingConfig { disk_timeout_ms: 1500, ..braid_ring::RingConfig::default() };
    let bed = Bed::start(ring, ServerConfig::default());
    bed.export("good", "mem:16M");
    let disk = bed.export("bad", "faulty(mem:16M,hang@0-1M)");
    let mut bad = bed.client("bad", ClientConfig::default());
    let mut good = bed.client("good", ClientConfig::default());
    let mut buf = vec![0; 4096];
    bad.write_at(2 * MIB, &[3; 4096], false).unwrap();
    for offset in [0, 2 * MIB] {
        bad.queue_read(offset, 4096).unwrap();
    }
    bad.queue_write(4096, &[7; 4096], 0).unwrap();
    let mut ends = Ends::default();
    bad.exchange(false, &mut ends).unwrap();
    good.read_at(0, &mut buf).unwrap();
    bad.exchange(false, &mut ends).unwrap();
    assert!(!ends.0.iter().any(|end| end.1.is_err()), "the other disk answers at once");
    while ends.0.len() < 3 {
        bad.exchange(true, &mut ends).unwrap();
    }
    ends.0.sort();
    assert_eq!(ends.0, [(0, Err(5)), (1, Ok(())), (2, Err(5))]);
    // The client may disconnect while the disk hangs; then the disk recovers.
    bad.disconnect().unwrap();
    eventually("the place is free", || bed.table.find("bad").unwrap().connections() == 0);
    disk.set_faults(&braid_ring::FaultRules::default()).unwrap();
    let mut bad = bed.client("bad", ClientConfig::default());
    eventually("it answers again", || bad.read_at(0, &mut buf).is_ok());
    bad.read_at(2 * MIB, &mut buf).unwrap();
    assert_eq!(buf, [3; 4096]);
    drop((bad, good));
    bed.stop();
}

#[derive(Default)]
struct Ends(Vec<(u16, Result<(), u32>)>);

impl Replies for Ends {
    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        self.0.push((slot, result));
    }
}

/// When a device stops under its clients, the connection ends without a reply, and so does each further one.
#[test]
fn a_stopped_device() {
    let bed = Bed::new(1, ServerConfig::default());
    bed.export("m", "mem:16M");
    let mut client = bed.client("m", ClientConfig::default());
    client.flush().unwrap();
    let device = bed.table.find("m").unwrap().info().device;
    bed.handle.publish_and_drain(device, None).wait().unwrap();
    for _ in 0..3 {
        let unanswered = client.write_at(0, &[1; 4096], false);
        let is_reply = matches!(unanswered, Err(braid_nbd::client::ClientError::Request(_)));
        assert!(unanswered.is_err() && !is_reply, "{unanswered:?}");
        client = bed.client("m", ClientConfig::default());
    }
    drop(client);
    bed.stop();
}

#[test]
fn over_tcp() {
    let bed = Bed::new(2, ServerConfig::default());
    bed.export("m", "mem:16M");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("nbd://127.0.0.1:{}/m", listener.local_addr().unwrap().port());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                bed.accept(listener.accept().unwrap().0);
            }
        });
        for seed in 0..3 {
            let mut client = Client::connect(&uri.parse().unwrap(), ClientConfig::default()).unwrap();
            random_io(&mut client, 77 + seed, seed * 4 * MIB, 500);
            client.disconnect().unwrap();
        }
    });
    bed.stop();
}

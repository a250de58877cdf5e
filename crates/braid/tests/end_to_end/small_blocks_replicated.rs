//! Replicated volumes with blocks of 512 bytes: writes to parts of blocks, through kills and moves.

use std::fs;

use crate::nbd::{Client, TRIM, WRITE, WRITE_ZEROES, reply};
use crate::replicated::{Cluster, WHOLE, content};
use crate::support::*;

const SECTOR: u64 = 512;

/// Returns the content that a writer puts into a sector, different for each writer.
fn data_of(writer: u64, round: u64, sector: u64) -> Vec<u8> {
    noise(SECTOR, writer << 40 | round << 32 | sector)
}

/// Returns the minimum block size that a node's export announces, in bytes.
fn smallest(name: &str, socket: &str) -> u64 {
    let info = run("nbdinfo", &["--json", &format!("nbd+unix:///{name}?socket={socket}")]);
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    info["exports"][0]["block_size_minimum"].as_u64().expect("a number")
}

/// Both writers write every other sector of the same blocks at the same time, many requests each, and flush.
fn write_in_turn(cluster: &Cluster, of: usize, round: u64, sectors: u64) {
    let write = |writer: u64| {
        let mut client = cluster.client(of);
        let own: Vec<u64> = (0..sectors).filter(|sector| sector % 2 == writer).collect();
        for sectors in own.chunks(32) {
            for sector in sectors {
                let data = data_of(writer, round, *sector);
                client.send(0, WRITE, sector * SECTOR, SECTOR as u32, &data).expect("it is sent");
            }
            for _ in sectors {
                let (error, _) = reply(&mut client.stream).expect("it is answered");
                assert_eq!(error, 0);
            }
        }
        client.flush().expect("it is durable");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| write(0));
        scope.spawn(|| write(1));
    });
}

/// Checks that another client reads what both wrote in that round.
#[track_caller]
fn is_as_in(round: u64, client: &mut Client, sectors: u64) {
    // A range that begins and ends inside a block.
    let found = client.read(SECTOR, ((sectors - 2) * SECTOR) as usize).expect("it can be read");
    for (sector, found) in (1..).zip(found.chunks_exact(SECTOR as usize)) {
        assert!(found == data_of(sector % 2, round, sector), "round {round}, sector {sector}");
    }
}

/// Two clients write to sectors of the same blocks while a replica is present, missing and back; then the serving node
/// dies, and another one serves. No client overwrites the other's data, and the replicas are equal.
#[test]
fn writes_of_two_clients_to_parts_of_the_same_blocks_survive_node_failures() {
    const SECTORS: u64 = 512;
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    let made = cluster.create("one/tank,two/tank,three/tank", &["--block-size", "512"]);
    assert_eq!(made["block_bytes"], 512, "{made}");
    cluster.nodes[0].export("db");
    write_in_turn(&cluster, 0, 1, SECTORS);
    is_as_in(1, &mut cluster.client(0), SECTORS);
    cluster.nodes[2].kill();
    write_in_turn(&cluster, 0, 2, SECTORS);
    is_as_in(2, &mut cluster.client(0), SECTORS);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    write_in_turn(&cluster, 0, 3, SECTORS);
    cluster.nodes[0].kill();
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!((&taken["state"], &taken["block_bytes"]), (&"serving".into(), &512.into()), "{taken}");
    cluster.nodes[1].export("db");
    assert_eq!(smallest("db", &cluster.nodes[1].nbd_socket("db")), 512);
    is_as_in(3, &mut cluster.client(1), SECTORS);
    write_in_turn(&cluster, 1, 4, SECTORS);
    cluster.nodes[0].start_again();
    cluster.wait_for_states(1, &WHOLE);
    is_as_in(4, &mut cluster.client(1), SECTORS);
    let first = content(&cluster.nodes[0]);
    assert!(content(&cluster.nodes[1]) == first && content(&cluster.nodes[2]) == first, "replicas differ");
}

/// Every operation, at every offset within a block, against a copy in memory; the replicas are equal afterwards.
#[test]
fn every_operation_on_replicas_changes_only_its_sectors() {
    let cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank,two/tank", &["--block-size", "512"]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    let mut copy = vec![0; 1 << 20];
    let mut state = 26u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0..800 {
        let from = draw(2048) * SECTOR;
        let most = if draw(10) == 0 { 600 } else { 20 };
        let to = (from + (1 + draw(most)) * SECTOR).min(1 << 20);
        let range = from as usize..to as usize;
        let len = (to - from) as u32;
        let fua = if draw(8) == 0 { 1 } else { 0 };
        match draw(10) {
            0..5 => {
                let data = noise(to - from, step);
                client.call(fua, WRITE, from, len, &data).expect("it is written");
                copy[range].copy_from_slice(&data);
            }
            5 | 6 => {
                client.call(fua | u16::from(draw(2) == 0) << 1, WRITE_ZEROES, from, len, &[]).expect("it is zeroed");
                copy[range].fill(0);
            }
            7 => {
                client.call(fua, TRIM, from, len, &[]).expect("it is taken");
                // Whole blocks read as zeros, others keep their content.
                let whole = (from.next_multiple_of(4096) as usize, (to - to % 4096) as usize);
                if whole.0 < whole.1 {
                    copy[whole.0..whole.1].fill(0);
                }
                assert!(client.read(from, len as usize).expect("it can be read") == copy[range], "step {step}");
            }
            _ => assert!(client.read(from, len as usize).expect("it can be read") == copy[range], "step {step}"),
        }
    }
    assert!(client.read(0, copy.len()).expect("it can be read") == copy);
    let refused = client.read(100, 512).expect_err("no sector begins there");
    assert_eq!(refused.raw_os_error(), Some(22));
    let (first, second) = (content(&cluster.nodes[0]), content(&cluster.nodes[1]));
    assert!(first[0] == copy && first == second, "replicas differ");
}

/// The block size is inherited by snapshots, clones and added replicas, reported by every node, and persistent.
#[test]
fn the_block_size_of_replicas_is_reported_and_persists() {
    let mut cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank", &["--block-size", "512"]);
    cluster.nodes[0].export("db");
    cluster.client(0).write(512, &noise(512, 1)).expect("it is written");
    cluster.nodes[0].braid(&["replica", "add", "db", "two/tank"]);
    cluster.wait_for_states(0, &["in_sync"; 2]);
    cluster.nodes[0].braid(&["snapshot", "create", "db@one"]);
    assert_eq!(cluster.nodes[0].json(&["snapshot", "show", "db@one"])["block_bytes"], 512);
    cluster.nodes[0].braid(&["volume", "clone", "db@one", "copy"]);
    cluster.nodes[0].braid(&["volume", "create", "usual", "64M", "--replicas", "2"]);
    for again in [false, true] {
        for (name, block) in [("db", 512), ("copy", 512), ("usual", 4096)] {
            let shown = wait_for("the volume to be served", || {
                let shown = cluster.nodes[0].json(&["volume", "show", name]);
                (shown["state"] == "serving").then_some(shown)
            });
            assert_eq!(shown["block_bytes"], block, "{shown}");
            let text = cluster.nodes[0].braid(&["volume", "show", name]);
            assert!(text.contains(&format!("blocks      of {block} bytes")), "{text}");
        }
        assert_eq!(smallest("db", &cluster.nodes[0].nbd_socket("db")), 512);
        if !again {
            cluster.nodes.iter_mut().for_each(|node| node.restart(true));
        }
    }
    // A snapshot on a node can be read there by sectors.
    let socket = cluster.nodes[1].folder.join("one.nbd");
    cluster.nodes[1].braid(&["export", "add", "tank/db@one", "--name", "one", "--nbd", &format!("unix:{socket}")]);
    assert_eq!(smallest("one", &socket), 512);
    let mut reader = Client::open(&socket, "one").expect("it is exported");
    assert!(reader.read(512, 512).expect("it can be read") == noise(512, 1));
    // The volume moves, and keeps its block size.
    cluster.nodes[1].braid(&["volume", "attach", "db"]);
    cluster.nodes[1].export("db");
    assert_eq!(smallest("db", &cluster.nodes[1].nbd_socket("db")), 512);
    assert!(cluster.client(1).read(512, 512).expect("it can be read") == noise(512, 1));
    let odd = cluster.nodes[0].refused(
        2,
        &[
            "volume",
            "create",
            "far",
            "64M",
            "--block-size",
            "512",
            "--replicas",
            "one/tank,two/tank,three/tank",
            "--level",
            "raid5",
        ],
    );
    assert!(
        odd.contains("volume far: raid5 keeps parity of blocks of 4096 bytes") && odd.contains("--level raid1"),
        "{odd}"
    );
    cluster.nodes[0].refused(3, &["volume", "show", "far"]);
}

/// A file system with small blocks in a replicated volume is mounted unchanged, on one node and then on the other.
#[test]
fn an_image_with_small_blocks_moves_from_node_to_node() {
    need_root();
    let cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank,two/tank", &["--block-size", "512"]);
    cluster.nodes[0].export("db");
    let image = cluster.nodes[0].folder.sparse("ext4", 64 * MIB);
    run("mkfs.ext4", &["-q", "-b", "1024", &image]);
    let uri = format!("nbd+unix:///db?socket={}", cluster.nodes[0].nbd_socket("db"));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]);
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    for (round, node) in (0..).zip([0, 1, 0]) {
        let daemon = &cluster.nodes[node];
        if round > 0 {
            daemon.braid(&["volume", "attach", "db"]);
        }
        let at = daemon.folder.join("at");
        let _ = fs::create_dir(&at);
        let mounted = daemon.json(&["mount", "db", &at]);
        assert_eq!((&mounted["fs"], &mounted["sector_bytes"]), (&"ext4".into(), &512.into()), "{mounted}");
        for before in 0..round {
            let read = fs::read(format!("{at}/{before}")).expect("it can be read");
            assert!(read == noise(100_000 + before, before), "file {before} in round {round}");
        }
        fs::write(format!("{at}/{round}"), noise(100_000 + round, round)).expect("it can be written");
        daemon.braid(&["umount", &at]);
    }
}

//! Replicated volumes that move between nodes, or lose replicas, under clients that reconnect: no client gets an error.
//!
//! The clients are raw NBD clients that do what QEMU's `reconnect-delay` and the kernel's client do: they replace a
//! connection that ends without a reply, by one to the first address that accepts it, and repeat requests without a
//! reply. A reply with an error counts against the daemon: a file system would see it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::nbd::{self, Client};
use crate::replicated::*;
use crate::support::*;

const CLIENTS: u64 = 6;
/// Requests of one client in flight at a time.
const DEPTH: u64 = 8;
const BLOCK: u64 = 4 * KIB;
/// Bytes of the area that each client has to itself.
const AREA: u64 = MIB;

#[derive(Default)]
struct Counts {
    errors: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
    stop: AtomicBool,
}

/// Clients that run until they are stopped.
struct Crowd {
    counts: Arc<Counts>,
    clients: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Starts clients of an export that is reachable at one of these sockets.
    fn on(sockets: &[String], export: &str) -> Crowd {
        let counts = Arc::new(Counts::default());
        let client = |number: u64| {
            let (sockets, export, counts) = (sockets.to_vec(), export.to_owned(), Arc::clone(&counts));
            std::thread::spawn(move || go_on(number, &sockets, &export, &counts))
        };
        let crowd = Crowd { clients: (0..CLIENTS).map(client).collect(), counts };
        crowd.wait_for_more();
        crowd
    }

    /// Waits until requests that are sent from now on have replies.
    #[track_caller]
    fn wait_for_more(&self) {
        let until = self.counts.answered.load(Ordering::SeqCst) + 20 * CLIENTS * DEPTH;
        wait_for("clients to go on", || (self.counts.answered.load(Ordering::SeqCst) > until).then_some(()));
    }

    /// Stops the clients, and checks that connections were cut and that no reply was an error.
    #[track_caller]
    fn end(self, what: &str) {
        self.counts.stop.store(true, Ordering::SeqCst);
        self.clients.into_iter().for_each(|client| client.join().expect("a client reads what was acknowledged"));
        let (errors, ended) = (&self.counts.errors, &self.counts.ended);
        assert_eq!(errors.load(Ordering::SeqCst), 0, "{what}: replies with errors");
        assert!(ended.load(Ordering::SeqCst) > 0, "{what}: no connection has ended, so that nothing was tried");
    }
}

/// Returns the content of a block in its given version.
fn content_of_block(number: u64, block: u64, version: u64) -> Vec<u8> {
    let mark = (number << 48 | block << 32 | version).to_le_bytes();
    mark.iter().copied().cycle().take(BLOCK as usize).collect()
}

/// Runs one client: batches of writes to blocks of its own, reads, and a flush now and then.
fn go_on(number: u64, sockets: &[String], export: &str, counts: &Counts) {
    // The last acknowledged version of each block, and the last one sent.
    let mut blocks: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let (mut at, mut turn) = (0, 0);
    while !counts.stop.load(Ordering::SeqCst) {
        let Ok(mut client) = Client::open(&sockets[at % sockets.len()], export) else {
            at += 1;
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !counts.stop.load(Ordering::SeqCst) {
            turn += 1;
            if batch(number, turn, &mut client, &mut blocks, counts).is_err() {
                counts.ended.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
    }
}

fn batch(
    number: u64,
    turn: u64,
    client: &mut Client,
    blocks: &mut BTreeMap<u64, (u64, u64)>,
    counts: &Counts,
) -> std::io::Result<()> {
    let mut requests: BTreeMap<u64, (u16, u64)> = BTreeMap::new();
    for k in 0..DEPTH {
        // A write without a reply is repeated as another version: the earlier one may be stored or not.
        let block = (turn * 3 + k * 5) % (AREA / BLOCK);
        let offset = number * AREA + block * BLOCK;
        let command = match k {
            0 if turn.is_multiple_of(5) => nbd::FLUSH,
            1 | 2 => nbd::READ,
            _ => nbd::WRITE,
        };
        let handle = match command {
            nbd::FLUSH => client.send(0, command, 0, 0, &[])?,
            nbd::READ => client.send(0, command, offset, BLOCK as u32, &[])?,
            _ => {
                let state = blocks.entry(block).or_default();
                state.1 += 1;
                let data = content_of_block(number, block, state.1);
                client.send(if k == 3 { nbd::FUA } else { 0 }, command, offset, BLOCK as u32, &data)?
            }
        };
        requests.insert(handle, (command, block));
    }
    while !requests.is_empty() {
        let (error, handle) = nbd::reply(&mut client.stream)?;
        let (command, block) = requests.remove(&handle).expect("each request gets one reply");
        if error != 0 {
            counts.errors.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        counts.answered.fetch_add(1, Ordering::SeqCst);
        match command {
            nbd::READ => {
                let mut data = vec![0; BLOCK as usize];
                client.stream.read_exact(&mut data)?;
                let (acknowledged, sent) = blocks.get(&block).copied().unwrap_or_default();
                let is_whole = |version| data == content_of_block(number, block, version);
                let is_new = acknowledged == 0 && data.iter().all(|byte| *byte == 0);
                // Reads overlap writes of their own batch: they return the acknowledged version, or a later one.
                assert!(is_new || (acknowledged.max(1)..=sent).any(is_whole), "block {block} of client {number}");
            }
            nbd::WRITE => {
                let state = blocks.entry(block).or_default();
                state.0 = state.1;
            }
            _ => {}
        }
    }
    Ok(())
}

fn sockets(cluster: &Cluster, nodes: &[usize], name: &str) -> Vec<String> {
    nodes.iter().map(|node| cluster.nodes[*node].nbd_socket(name)).collect()
}

/// Attaches a volume to a node, and waits until the former node has released it.
fn attach(cluster: &Cluster, to: usize, from: usize) {
    let taken = cluster.nodes[to].json(&["volume", "attach", "db"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    wait_for("the first one to let go", || {
        (cluster.nodes[from].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
}

fn no_panics(cluster: &Cluster) {
    for node in &cluster.nodes {
        assert!(!node.running.log().contains("panicked"), "{}", node.running.log());
    }
}

#[test]
fn a_volume_moves_and_its_clients_get_no_error() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let crowd = Crowd::on(&sockets(&cluster, &[0, 1], "db"), "db");
    attach(&cluster, 1, 0);
    if cluster.nodes[1].json(&["export", "list"])["exports"].as_array().expect("a list").is_empty() {
        cluster.nodes[1].export("db");
    }
    crowd.wait_for_more();
    // Moves it back again, where the export was waiting.
    attach(&cluster, 0, 1);
    crowd.wait_for_more();
    crowd.end("an orderly move");
    no_panics(&cluster);
}

#[test]
fn replicas_are_lost_and_clients_get_no_error() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &["--level", "raid5"]);
    let made = cluster.nodes[0].json(&["volume", "create", "alone", "64M", "--replicas", "two/tank"]);
    assert_eq!(made["state"], "serving", "{made}");
    cluster.nodes[0].export("db");
    cluster.nodes[0].export("alone");
    let many = Crowd::on(&sockets(&cluster, &[0], "db"), "db");
    let single = Crowd::on(&sockets(&cluster, &[0], "alone"), "alone");
    // More replicas than the first volume tolerates; the only replica of the second.
    cluster.nodes[2].kill();
    cluster.nodes[1].kill();
    wait_for("both to stop", || {
        let opens = |name: &str| cluster.nodes[0].json(&["volume", "show", name])["state"] == "opening";
        (opens("db") && opens("alone")).then_some(())
    });
    cluster.nodes[1].start_again();
    cluster.nodes[2].start_again();
    many.wait_for_more();
    single.wait_for_more();
    many.end("more replicas than are tolerated");
    single.end("the only replica");
    no_panics(&cluster);
}

#[test]
fn a_pool_moves_with_its_volume_and_its_clients_get_no_error() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &["--level", "raid5"]);
    let add = |node: &Daemon| {
        let address = format!("unix:{}", node.nbd_socket("v"));
        node.braid(&["export", "add", "deep/v", "--name", "v", "--nbd", &address]);
    };
    cluster.nodes[0].braid(&["pool", "create", "deep", "db"]);
    cluster.nodes[0].braid(&["volume", "create", "deep/v", "32M"]);
    add(&cluster.nodes[0]);
    let crowd = Crowd::on(&sockets(&cluster, &[0, 1], "v"), "v");
    attach(&cluster, 1, 0);
    add(&cluster.nodes[1]);
    crowd.wait_for_more();
    attach(&cluster, 0, 1);
    crowd.wait_for_more();
    // The daemon stops cleanly, and serves again.
    cluster.nodes[0].restart(false);
    crowd.wait_for_more();
    // Fewer replicas than the data need.
    cluster.nodes[2].kill();
    cluster.nodes[1].kill();
    wait_for("it to stop", || (cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "opening").then_some(()));
    cluster.nodes[1].start_again();
    cluster.nodes[2].start_again();
    crowd.wait_for_more();
    crowd.end("a pool that moves");
    no_panics(&cluster);
}

/// The mount survives the move: writers of the file wait, and get no error.
#[test]
fn a_file_of_a_volume_that_moves_away_and_back_fails_no_write() {
    use std::os::unix::fs::FileExt as _;
    need_root();
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    let file = cluster.nodes[0].folder.join("db.file");
    cluster.nodes[0].braid(&["export", "add", "db", "--nbd", &format!("fuse:{file}")]);
    let counts = Arc::new(Counts::default());
    let writers: Vec<JoinHandle<()>> = (0..4u64)
        .map(|number| {
            let (file, counts) = (file.clone(), Arc::clone(&counts));
            std::thread::spawn(move || {
                let file = std::fs::File::options().read(true).write(true).open(file).expect("it is there");
                let mut version = 0;
                while !counts.stop.load(Ordering::SeqCst) {
                    version += 1;
                    let block = version % 32;
                    let (offset, data) = (number * AREA + block * BLOCK, content_of_block(number, block, version));
                    let written = file.write_all_at(&data, offset).and_then(|()| file.sync_data());
                    let mut back = vec![0; BLOCK as usize];
                    match written.and_then(|()| file.read_exact_at(&mut back, offset)) {
                        Ok(()) => assert!(back == data, "block {block} of {number}"),
                        Err(_) => drop(counts.errors.fetch_add(1, Ordering::SeqCst)),
                    }
                    counts.answered.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let crowd = Crowd { counts: Arc::clone(&counts), clients: writers };
    crowd.wait_for_more();
    attach(&cluster, 1, 0);
    attach(&cluster, 0, 1);
    crowd.wait_for_more();
    counts.ended.store(1, Ordering::SeqCst);
    crowd.end("a file of a volume that moves");
    no_panics(&cluster);
    // A mount outlives its daemon.
    cluster.nodes[0].braid(&["export", "remove", "db"]);
}

/// A node that does not serve the volume has its export prepared: a takeover from a dead node is one command.
#[test]
fn a_takeover_is_one_command_if_the_export_is_prepared() {
    let mut cluster = Cluster::of(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let socket = cluster.nodes[1].nbd_socket("db");
    let show = |node: &Daemon| node.json(&["export", "show", "db"]);
    let said = cluster.nodes[1].braid(&["export", "add", "db", "--nbd", &format!("unix:{socket}")]);
    assert!(said.contains("standby") && said.contains("braid volume attach db"), "{said}");
    assert!(cluster.nodes[1].braid(&["export", "list"]).contains("standby"));
    assert!(Client::open(&socket, "db").is_err(), "a prepared export accepts no client");
    // An export that could not listen later is refused now.
    let said =
        cluster.nodes[1].refused_any(&["export", "add", "db", "--name", "other", "--nbd", "unix:/nowhere/at/all"]);
    assert!(said.contains("/nowhere/at/all"), "{said}");
    cluster.nodes[1].refused(3, &["export", "add", "none", "--nbd", "unix:/nowhere/none"]);
    let taken = cluster.nodes[1].refused_any(&["export", "add", "db", "--nbd", &format!("unix:{socket}")]);
    assert!(taken.contains("db"), "{taken}");
    // The prepared export is remembered, and needs no attention.
    for kill in [false, true] {
        cluster.nodes[1].restart(kill);
        wait_for("it to be known", || (show(&cluster.nodes[1])["state"] == "standby").then_some(()));
    }
    cluster.wait_for_states(0, &WHOLE);
    let status = cluster.nodes[1].json(&["status"]);
    let attention = status["attention"].as_array().expect("a list").clone();
    assert!(attention.iter().all(|of| of["subject"] != "export db"), "{status}");

    let crowd = Crowd::on(&[cluster.nodes[0].nbd_socket("db"), socket], "db");
    cluster.nodes[0].kill();
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    assert_eq!(show(&cluster.nodes[1])["state"], "listening");
    crowd.wait_for_more();
    // The first node learns of the takeover, and its export becomes the prepared one.
    cluster.nodes[0].start_again();
    wait_for("the first one to find out", || (show(&cluster.nodes[0])["state"] == "standby").then_some(()));
    cluster.wait_for_states(1, &WHOLE);
    attach(&cluster, 0, 1);
    assert_eq!(show(&cluster.nodes[1])["state"], "standby");
    crowd.wait_for_more();
    crowd.end("a takeover and a move back");

    // A pool that was created on the volume on another node is not overwritten by clients of the prepared export.
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["pool", "create", "deep", "db"]);
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!(taken["pool"], "deep", "{taken}");
    let shown = show(&cluster.nodes[1]);
    assert!(
        shown["state"] == "failed" && shown["reason"].as_str().is_some_and(|why| why.contains("pool deep")),
        "{shown}"
    );
    no_panics(&cluster);
}

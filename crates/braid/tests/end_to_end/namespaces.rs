//! Nodes in network namespaces of their own: links that fail, fail in one direction, or lose packets.
//!
//! The switch is a bridge in one more namespace; the machine's own network stays untouched, and everything is removed
//! with the namespaces.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::nbd::Client;
use crate::proxy::Proxy;
use crate::replicated::{Cluster, SIZE, WHOLE, content, on_loopback};
use crate::support::*;

/// Voter states with one of three replicas out.
const SECOND_OUT: [&str; 3] = ["in_sync", "failed", "in_sync"];
const THIRD_OUT: [&str; 3] = ["in_sync", "in_sync", "failed"];

/// The namespaces, removed when dropped.
struct Net {
    name: String,
    nodes: usize,
}

fn ip(arguments: &[&str]) {
    let out = command("ip").args(arguments).output().expect("ip can be started");
    assert!(out.status.success(), "ip {}: {}", arguments.join(" "), said(&out));
}

impl Net {
    fn of(nodes: usize) -> Net {
        need_root();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("braid{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net = Net { name, nodes };
        let switch = net.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "bridge", "up"]);
        for node in 0..nodes {
            let (own, port) = (net.of_node(node), format!("port{node}"));
            ip(&["netns", "add", &own]);
            ip(&["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &own]);
            ip(&["-n", &switch, "link", "set", &port, "master", "bridge", "up"]);
            ip(&["-n", &own, "address", "add", &format!("{}/24", Net::address(node)), "dev", "eth0"]);
            ip(&["-n", &own, "link", "set", "eth0", "up"]);
            ip(&["-n", &own, "link", "set", "lo", "up"]);
        }
        net
    }

    fn switch(&self) -> String {
        format!("{}s", self.name)
    }

    /// Returns the namespace of a node.
    fn of_node(&self, node: usize) -> String {
        format!("{}n{node}", self.name)
    }

    fn address(node: usize) -> String {
        format!("10.77.0.{}", node + 1)
    }

    /// Takes the link of a node down, or up again.
    fn link(&self, node: usize, way: &str) {
        ip(&["-n", &self.switch(), "link", "set", &format!("port{node}"), way]);
    }

    /// Starts or stops the loss of all packets from one node to another.
    fn one_way(&self, change: &str, from: usize, to: usize) {
        ip(&["-n", &self.of_node(from), "route", change, "blackhole", &format!("{}/32", Net::address(to))]);
    }

    /// Loses this share of a node's outgoing packets.
    fn lossy(&self, node: usize, probability: &str) {
        self.rule(node, &format!("-A OUTPUT -m statistic --mode random --probability {probability} -j DROP"));
    }

    fn rule(&self, node: usize, rule: &str) {
        let mut tables = command("iptables");
        tables.args(rule.split(' '));
        let out = within(&self.of_node(node), &mut tables).output().expect("nsenter can be started");
        assert!(out.status.success(), "{}", said(&out));
    }

    /// Starts or stops the loss of all packets between two groups of nodes, both ways.
    fn split(&self, change: &str, these: &[usize], those: &[usize]) {
        for (&a, &b) in these.iter().flat_map(|a| those.iter().map(move |b| (a, b))) {
            self.one_way(change, a, b);
            self.one_way(change, b, a);
        }
    }

    /// Routes a node's connections to the data port of another one through a proxy.
    fn proxy(&self, from: usize, to: usize) -> Proxy {
        let (near, far) = (Net::address(from), Net::address(to));
        self.rule(from, &format!("-t nat -A OUTPUT -p tcp -d {far} --dport 7002 -j DNAT --to-destination {near}:7777"));
        // The proxy's own connections are exempt from the redirection.
        self.rule(to, "-t nat -A PREROUTING -p tcp --dport 7003 -j REDIRECT --to-ports 7002");
        Proxy::start(&self.of_node(from), &format!("{near}:7777"), &format!("{far}:7003"))
    }

    /// Starts nodes with pools, each in its namespace.
    fn cluster(&self, names: &[&str]) -> Cluster {
        let start = |node: usize, folder: Folder| {
            let mut command = serve(&folder, &["--shards".to_owned(), "1".to_owned()]);
            Daemon::start_with(folder, &mut within(&self.of_node(node), &mut command))
        };
        let place = |node: usize| {
            let address = Net::address(node);
            ["--listen", &format!("{address}:7001"), "--data", &format!("{address}:7002")].map(str::to_owned).to_vec()
        };
        Cluster::made_by(names, start, place)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let all = (0..self.nodes).map(|node| self.of_node(node)).chain([self.switch()]);
        for name in all {
            let _ = command("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Wraps a command so that it runs in a namespace. `ip netns exec` is avoided: it copies all mounts, and a file system
/// that another test unmounts stays busy through the copy.
fn within(namespace: &str, inner: &mut Command) -> Command {
    through(&["nsenter", &format!("--net=/run/netns/{namespace}"), "--"], inner)
}

/// Wraps a command in another one.
fn through(outer: &[&str], inner: &mut Command) -> Command {
    let mut whole = command(outer[0]);
    whole.args(&outer[1..]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        if let Some(value) = value {
            whole.env(name, value);
        }
    }
    whole
}

#[test]
fn a_replica_behind_a_dead_or_one_way_link_is_left_out_and_returns() {
    let net = Net::of(3);
    let cluster = net.cluster(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write(0, &noise(MIB, 1)).expect("it is written");
    // The serving node gets no notice of a dead link: it waits, and then continues without the replica.
    net.link(2, "down");
    client.write(MIB, &noise(MIB, 2)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    net.link(2, "up");
    cluster.wait_for_states(0, &WHOLE);
    // A link in one direction: the other node's packets arrive, and this node's do not.
    net.one_way("add", 0, 1);
    client.write(2 * MIB, &noise(MIB, 3)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "failed", "in_sync"]);
    net.one_way("del", 0, 1);
    cluster.wait_for_states(0, &WHOLE);
    // Packet loss only slows the volume down.
    net.lossy(2, "0.02");
    for at in 0..8 {
        client.write((8 + at) * MIB, &noise(MIB, 8 + at)).expect("it is written");
    }
    client.flush().expect("it is flushed");
    cluster.wait_for_states(0, &WHOLE);
    drop(client);
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for (at, seed) in [(0, 1), (1, 2), (2, 3)].into_iter().chain((8..16).map(|at| (at, at as u64))) {
        assert!(first[at] == noise(MIB, seed), "{at}");
    }
    assert_eq!(first.len() as u64, SIZE / MIB);
    for node in &cluster.nodes[1..] {
        assert!(content(node) == first, "a replica differs");
    }
}

#[test]
fn a_cut_off_node_answers_nothing_once_another_one_serves() {
    let net = Net::of(3);
    let cluster = net.cluster(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut old = cluster.client(0);
    old.write_fua(0, &noise(MIB, 1)).expect("it is written");
    // The cut-off node has a replica of its own and reads from it, but not longer than its lease. A client whose
    // connection is closed reconnects.
    let (overwritten, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let reader = {
        let (overwritten, ends, socket) =
            (Arc::clone(&overwritten), Arc::clone(&ends), cluster.nodes[0].nbd_socket("db"));
        std::thread::spawn(move || {
            let mut answered = 0;
            while !ends.load(Ordering::Acquire) {
                let late = overwritten.load(Ordering::Acquire);
                match old.read(0, 4096) {
                    Ok(read) => {
                        assert!(!late, "a read that began after the block was written elsewhere was answered");
                        assert!(read == noise(MIB, 1)[..4096] || read == noise(MIB, 2)[..4096]);
                        answered += 1;
                    }
                    Err(_) => match Client::open(&socket, "db") {
                        Ok(again) => old = again,
                        Err(_) => std::thread::sleep(Duration::from_millis(20)),
                    },
                }
            }
            answered
        })
    };
    net.link(0, "down");
    cluster.nodes[1].json(&["volume", "attach", "db"]);
    cluster.nodes[1].export("db");
    let mut new = cluster.client(1);
    new.write_fua(0, &noise(MIB, 2)).expect("it is written");
    overwritten.store(true, Ordering::Release);
    std::thread::sleep(Duration::from_secs(2));
    net.link(0, "up");
    wait_for("the first one to stop", || cluster.nodes[0].events().contains("volume_taken_over").then_some(()));
    ends.store(true, Ordering::Release);
    assert!(reader.join().expect("nothing was read that should not be") > 0);
    cluster.wait_for_states(1, &WHOLE);
    assert!(new.read(0, MIB as usize).expect("it is read") == noise(MIB, 2));
}

/// Each half has a controller: the serving one loses the majority of its voters, and the other one takes over.
#[test]
fn of_two_partitions_only_the_majority_serves() {
    let net = Net::of(4);
    let cluster = net.cluster(&["one", "two", "three", "four"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[3].json(&["volume", "attach", "db"]);
    cluster.nodes[3].export("db");
    let mut old = cluster.client(3);
    old.write_fua(0, &noise(MIB, 1)).expect("it is written");
    old.write_fua(MIB, &noise(MIB, 2)).expect("it is written");
    net.split("add", &[0, 1], &[2, 3]);
    // Until its lease ends it may still answer requests; by then no other node serves.
    let taken = Arc::new(AtomicBool::new(false));
    let writer = {
        let (taken, socket) = (Arc::clone(&taken), cluster.nodes[3].nbd_socket("db"));
        std::thread::spawn(move || {
            let answered = old.write_fua(0, &noise(MIB, 9)).is_ok();
            assert!(!answered, "two of three voters are unreachable: no write reaches a quorum");
            // A client that reconnects is refused, or waits.
            if let Ok(mut again) = Client::open(&socket, "db") {
                let late = taken.load(Ordering::Acquire);
                let read = again.read(0, 4096);
                assert!(read.is_err() || !late, "it was read while the other half served");
            }
        })
    };
    let served = cluster.nodes[0].json(&["volume", "attach", "db"]);
    taken.store(true, Ordering::Release);
    assert_eq!(served["state"], "serving", "{served}");
    cluster.nodes[0].export("db");
    let mut new = cluster.client(0);
    let first = new.read(0, MIB as usize).expect("it is read");
    // An unanswered write is there as a whole, in part, or not at all; an answered one is there.
    let is_either = |block: usize| {
        let at = block * 4096..(block + 1) * 4096;
        [1, 9].into_iter().any(|seed| first[at.clone()] == noise(MIB, seed)[at.clone()])
    };
    assert!((0..256).all(is_either));
    assert!(new.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    new.write_fua(0, &noise(MIB, 3)).expect("it is written");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    net.split("del", &[0, 1], &[2, 3]);
    wait_for("the other one to hear of it", || {
        (cluster.nodes[3].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
    writer.join().expect("nothing was answered that should not be");
    cluster.wait_for_states(0, &WHOLE);
    assert!(new.read(0, MIB as usize).expect("it is read") == noise(MIB, 3));
    drop(new);
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for node in &cluster.nodes[1..3] {
        assert!(content(node) == first, "a replica differs");
    }
}

#[test]
fn slow_reset_or_half_open_connections_only_cost_time() {
    let net = Net::of(3);
    let cluster = net.cluster(&["one", "two", "three"]);
    let proxy = net.proxy(0, 2);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    let uri = cluster.nodes[0].export("db");
    let mut fio = command("fio");
    fio.args(["--name=through", "--verify_state_save=0", "--ioengine=nbd", "--uri", &uri, "--rw=randwrite"])
        .args(["--bsrange=4k-64k", "--size=64M", "--time_based", "--runtime=16", "--loops=1000", "--iodepth=8"])
        .args(["--fsync=64", "--verify=crc32c", "--verify_backlog=128", "--verify_fatal=1", "--randseed=13"]);
    let mut fio = Running::start(&cluster.nodes[0].folder, "fio", &mut fio);
    proxy.delay(10);
    std::thread::sleep(Duration::from_secs(2));
    proxy.delay(0);
    assert_eq!(cluster.states(0), WHOLE, "a slow one is not a dead one");
    proxy.reset_after(400 * KIB);
    std::thread::sleep(Duration::from_secs(3));
    proxy.reset_after(0);
    assert!(proxy.resets() > 2, "{}", proxy.resets());
    assert_eq!(cluster.states(0), WHOLE, "unanswered requests are retried");
    // No more packets arrive, and no connection is closed.
    proxy.silence(true);
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    // The replica's node keeps the old connections open; new ones replace them.
    proxy.abandon();
    proxy.silence(false);
    cluster.wait_for_states(0, &WHOLE);
    assert!(fio.wait().success(), "{}", fio.log());
    let events = cluster.nodes[0].events();
    assert_eq!(events.matches("member_dropped").count(), 1, "{events}");
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for node in &cluster.nodes[1..] {
        assert!(content(node) == first, "a replica differs");
    }
}

/// A machine cannot be suspended here, but the clock that stops during a suspend can run differently from the one that
/// does not. A node that took a lease by one clock and checked it by the other would never serve, or serve forever.
#[test]
fn a_lease_uses_the_clock_that_includes_suspend() {
    need_root();
    let start = |node: usize, folder: Folder| {
        let mut inner = serve(&folder, &["--shards".to_owned(), "1".to_owned()]);
        if node > 0 {
            return Daemon::start_with(folder, &mut inner);
        }
        let asleep = ["unshare", "--time", "--boottime", "864000", "--fork", "--kill-child", "--"];
        Daemon::start_with(folder, &mut through(&asleep, &mut inner))
    };
    let mut cluster = Cluster::made_by(&["one", "two", "three"], start, |_| on_loopback(&["--data-plain"]));
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    for node in &mut cluster.nodes[1..] {
        node.kill();
    }
    std::thread::sleep(Duration::from_secs(6));
    let answered = Arc::new(AtomicBool::new(false));
    let reader = {
        let answered = Arc::clone(&answered);
        std::thread::spawn(move || {
            let read = client.read(0, MIB as usize);
            answered.store(true, Ordering::Release);
            read
        })
    };
    std::thread::sleep(Duration::from_secs(1));
    assert!(!answered.load(Ordering::Acquire), "its lease has run out");
    for node in &mut cluster.nodes[1..] {
        node.start_again();
    }
    // The request is answered then, or its connection closed for a retry, as both other nodes failed at once.
    if let Ok(read) = reader.join().expect("it does not panic") {
        assert!(read == noise(MIB, 1));
    }
}

#[test]
fn writes_to_parity_across_nodes_during_link_failures_are_readable_without_any_one_node() {
    let net = Net::of(3);
    let cluster = net.cluster(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &["--level", "raid5"]);
    let one = &cluster.nodes[0];
    one.braid(&["pool", "create", "deep", "db"]);
    one.braid(&["volume", "create", "deep/v", "32M"]);
    let socket = one.nbd_socket("v");
    one.braid(&["export", "add", "deep/v", "--name", "v", "--nbd", &format!("unix:{socket}")]);
    let uri = format!("nbd+unix:///v?socket={socket}");
    let mut fio = command("fio");
    fio.args(["--name=parity", "--verify_state_save=0", "--ioengine=nbd", "--uri", &uri, "--rw=randwrite"])
        .args(["--bsrange=4k-64k", "--size=32M", "--time_based", "--runtime=12", "--loops=1000", "--iodepth=16"])
        .args(["--fsync=64", "--verify=crc32c", "--verify_backlog=256", "--verify_fatal=1", "--randseed=5"]);
    let mut fio = Running::start(&one.folder, "fio", &mut fio);
    for (gone, states) in [(2, THIRD_OUT), (1, SECOND_OUT)] {
        net.link(gone, "down");
        cluster.wait_for_states(0, &states);
        net.link(gone, "up");
        cluster.wait_for_states(0, &WHOLE);
    }
    assert!(fio.wait().success(), "{}", fio.log());
    // Any two nodes together have all data.
    let copy = cluster.nodes[0].folder.join("copy");
    let read = || {
        run("nbdcopy", &[&uri, &copy]);
        checksum(&copy)
    };
    let whole = read();
    for (gone, states) in [(2, THIRD_OUT), (1, SECOND_OUT)] {
        net.link(gone, "down");
        cluster.wait_for_states(0, &states);
        assert_eq!(read(), whole, "without node {gone}");
        net.link(gone, "up");
        cluster.wait_for_states(0, &WHOLE);
    }
}

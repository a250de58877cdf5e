//! Daemons that are nodes of one cluster, each with a pool: replicated volumes are measured on them.

use std::net::TcpListener;

use anyhow::Context as _;

use super::daemon::Daemon;
use super::process::wait_for;

/// The pool of each node.
pub const POOL: &str = "tank";

/// Nodes `n1`, `n2`, …; each has a pool.
pub struct Cluster {
    nodes: Vec<Daemon>,
}

impl Cluster {
    /// Starts `count` nodes of one shard each on loopback, with pools on the disks that `disks` returns for their numbers. Data connections
    /// between the nodes use TLS, or none. Returns when all nodes are connected.
    ///
    /// # Errors
    /// A daemon does not start, or does not join.
    pub fn start(count: usize, tls: bool, disks: impl Fn(usize) -> Vec<String>) -> anyhow::Result<Cluster> {
        Cluster::start_in(count, tls, disks, |_| None)
    }

    /// Starts nodes as [`Cluster::start`] does, but in the network namespaces and at the addresses that `location` returns.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_in(
        count: usize,
        tls: bool,
        disks: impl Fn(usize) -> Vec<String>,
        location: impl Fn(usize) -> Option<(String, String)>,
    ) -> anyhow::Result<Cluster> {
        let mut nodes: Vec<Daemon> = Vec::new();
        for number in 0..count {
            let location = location(number);
            let daemon = Daemon::start_anywhere(1, location.as_ref().map(|(namespace, _)| namespace.as_str()))?;
            let disks = disks(number);
            let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
            daemon.cli(&[&["pool", "create", POOL], &disks[..]].concat())?;
            let (listen, data) = match &location {
                Some((_, address)) => (format!("{address}:7001"), format!("{address}:7002")),
                None => (loopback()?, loopback()?),
            };
            let name = format!("n{}", number + 1);
            let mut addresses = vec!["--listen", &listen, "--data", &data];
            addresses.extend((!tls).then_some("--data-plain"));
            match nodes.first() {
                None => daemon.cli(&[&["node", "init", &name], &addresses[..]].concat())?,
                Some(first) => {
                    let invitation = first.json(&["node", "invite"])?;
                    let token = invitation["token"].as_str().context("the invitation has no token")?.to_owned();
                    daemon.cli(&[&["node", "join", &token, "--name", &name], &addresses[..]].concat())?;
                }
            }
            nodes.push(daemon);
        }
        let cluster = Cluster { nodes };
        wait_for("all nodes to be connected", || {
            let is_connected = |daemon: &Daemon| {
                let list = daemon.json(&["node", "list"]).ok()?;
                let nodes = list["nodes"].as_array()?;
                Some(nodes.len() == count && nodes.iter().all(|node| node["state"] == "reachable"))
            };
            cluster.nodes.iter().all(|daemon| is_connected(daemon) == Some(true)).then_some(())
        })?;
        Ok(cluster)
    }

    /// Returns the daemon of a node, by number from 0.
    pub fn node(&self, number: usize) -> &Daemon {
        &self.nodes[number]
    }

    /// Returns the process ids of all nodes.
    pub fn ids(&self) -> Vec<u32> {
        self.nodes.iter().map(Daemon::id).collect()
    }

    /// Creates a volume with replicas on these nodes, exports it on the first node, and returns the URI of the export.
    ///
    /// # Errors
    /// A command fails.
    pub fn volume(&self, name: &str, size: &str, replicas: &[usize]) -> anyhow::Result<String> {
        self.volume_with(name, size, replicas, &[])
    }

    /// Creates a volume as [`Cluster::volume`] does, with further arguments.
    ///
    /// # Errors
    /// A command fails.
    pub fn volume_with(&self, name: &str, size: &str, replicas: &[usize], options: &[&str]) -> anyhow::Result<String> {
        let locations: Vec<String> = replicas.iter().map(|number| format!("n{}/{POOL}", number + 1)).collect();
        self.nodes[0]
            .cli(&[&["volume", "create", name, size, "--replicas", &locations.join(",")], options].concat())?;
        self.export(name)
    }

    /// Exports an array or a volume on a socket of the first node, and returns the URI of the export.
    ///
    /// # Errors
    /// The command fails.
    pub fn export(&self, name: &str) -> anyhow::Result<String> {
        let short = name.rsplit('/').next().unwrap_or(name);
        let socket = self.nodes[0].join(&format!("{short}.nbd"));
        self.nodes[0].cli(&["export", "add", name, "--name", short, "--nbd", &format!("unix:{socket}")])?;
        Ok(format!("nbd+unix:///{short}?socket={socket}"))
    }
}

/// Returns an address on loopback whose port was free a moment ago.
///
/// # Errors
/// No port can be bound on loopback.
pub fn loopback() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).context("loopback")?.to_string())
}

//! Daemons that are nodes of one cluster on loopback, each with a pool: what volumes of several nodes are measured on.

use std::net::TcpListener;

use anyhow::Context as _;

use super::table::{Daemon, wait_for};

/// The pool of each node.
pub const POOL: &str = "tank";

/// Nodes `n1`, `n2`, …; each with a pool.
pub struct Cluster {
    nodes: Vec<Daemon>,
}

impl Cluster {
    /// Starts so many, of one shard each, whose pools are on the disks that `disks` gives for their numbers. What replicas have goes
    /// over TLS, or in plain.
    ///
    /// # Errors
    /// A daemon does not start, or does not take part.
    pub fn start(count: usize, tls: bool, disks: impl Fn(usize) -> Vec<String>) -> anyhow::Result<Cluster> {
        Cluster::start_in(count, tls, disks, |_| None)
    }

    /// The same, with nodes that have an address in a network namespace.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_in(
        count: usize,
        tls: bool,
        disks: impl Fn(usize) -> Vec<String>,
        place: impl Fn(usize) -> Option<(String, String)>,
    ) -> anyhow::Result<Cluster> {
        let mut nodes: Vec<Daemon> = Vec::new();
        for number in 0..count {
            let place = place(number);
            let daemon = Daemon::start_anywhere(1, place.as_ref().map(|(namespace, _)| namespace.as_str()))?;
            let disks = disks(number);
            let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
            daemon.cli(&[&["pool", "create", POOL], &disks[..]].concat())?;
            let (listen, data) = match &place {
                Some((_, address)) => (format!("{address}:7001"), format!("{address}:7002")),
                None => (loopback()?, loopback()?),
            };
            let name = format!("n{}", number + 1);
            let mut place = vec!["--listen", &listen, "--data", &data];
            place.extend((!tls).then_some("--data-plain"));
            match nodes.first() {
                None => daemon.cli(&[&["node", "init", &name], &place[..]].concat())?,
                Some(first) => {
                    let invited = first.json(&["node", "invite"])?;
                    let token = invited["token"].as_str().context("an invitation without a token")?.to_owned();
                    daemon.cli(&[&["node", "join", &token, "--name", &name], &place[..]].concat())?;
                }
            }
            nodes.push(daemon);
        }
        let cluster = Cluster { nodes };
        wait_for("all nodes to know each other", || {
            let knows = |daemon: &Daemon| {
                let list = daemon.json(&["node", "list"]).ok()?;
                let nodes = list["nodes"].as_array()?;
                Some(nodes.len() == count && nodes.iter().all(|node| node["state"] == "here"))
            };
            cluster.nodes.iter().all(|daemon| knows(daemon) == Some(true)).then_some(())
        })?;
        Ok(cluster)
    }

    /// A node.
    pub fn node(&self, number: usize) -> &Daemon {
        &self.nodes[number]
    }

    /// The processes of all nodes.
    pub fn ids(&self) -> Vec<u32> {
        self.nodes.iter().map(Daemon::id).collect()
    }

    /// Makes a volume with replicas on these nodes, served by the first one; gives the URI of its export.
    ///
    /// # Errors
    /// A command fails.
    pub fn volume(&self, name: &str, size: &str, replicas: &[usize]) -> anyhow::Result<String> {
        self.volume_with(name, size, replicas, &[])
    }

    /// The same, made with these words besides.
    ///
    /// # Errors
    /// A command fails.
    pub fn volume_with(&self, name: &str, size: &str, replicas: &[usize], more: &[&str]) -> anyhow::Result<String> {
        let places: Vec<String> = replicas.iter().map(|number| format!("n{}/{POOL}", number + 1)).collect();
        self.nodes[0].cli(&[&["volume", "create", name, size, "--replicas", &places.join(",")], more].concat())?;
        self.export(name)
    }

    /// Exports something of the first node on a socket; gives its URI.
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

/// A place on loopback that nobody listened on a moment ago.
///
/// # Errors
/// There is no loopback.
pub fn loopback() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).context("loopback")?.to_string())
}

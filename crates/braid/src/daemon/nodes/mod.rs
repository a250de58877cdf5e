//! Nodes: daemons of several machines that know each other, and answer each other over mutual TLS.
//!
//! What it is: who this node is and whom it knows (`file`, `table`), what it shows (`identity`), how it joins and leaves (`join`, `token`,
//! `leave`), how
//! others are called (`call`, `connect`), who may come in (`door`), and what goes on by itself (`tend`).
//! What it promises: what has been answered is durable. Every node has the whole table and the authority's key, so that the
//! loss of any of them takes nothing from the others.
//! What it never does: it knows no replicas. Nothing of a cluster is needed to serve what is on this node's own disks.

mod call;
mod connect;
mod door;
mod file;
pub mod identity;
mod join;
mod known;
mod leave;
mod place;
mod table;
mod tend;
mod token;
mod view;

use super::control::Control;
use axum::Router;
use braid_advice::{self as advice, Advice, Case, Names, NodeCase};
use braid_api::{ErrorDetail, Kind, MemberNode};
use call::Peer;
use file::Cluster;
use identity::Credentials;
use known::{Known, Shown};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};

/// The port of nodes' APIs where none is named.
const NODE_PORT: u16 = braid_config::API_PORT;
/// The port of replicas' data where none is named.
const DATA_PORT: u16 = 10871;

/// The nodes, as this one knows them.
pub struct Nodes {
    folder: PathBuf,
    held: RwLock<Option<Arc<Held>>>,
    /// Whose keys count.
    known: Arc<Known>,
    /// What this node shows.
    shown: Arc<Shown>,
    /// One change at a time, so that the newest is the one that stays.
    changing: tokio::sync::Mutex<()>,
    /// How the others do, and connections to them, by UUID.
    peers: Mutex<BTreeMap<String, Peer>>,
    /// Something is to be told to the others.
    wake: Notify,
    /// What answers requests, once the daemon has it.
    daemon: OnceLock<(Router, Weak<Control>)>,
    /// Ends the listener when it says so, or is dropped.
    listening: Mutex<Option<watch::Sender<bool>>>,
}

/// What the file holds, made ready.
struct Held {
    cluster: Cluster,
    credentials: Credentials,
}

impl Nodes {
    /// Reads what is known.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or was written by another version.
    pub fn open(folder: &Path) -> Result<Arc<Nodes>, ErrorDetail> {
        let (known, shown) = (Arc::<Known>::default(), Arc::<Shown>::default());
        let held = match file::load(folder)? {
            None => None,
            Some(cluster) => {
                known.set(&cluster);
                Some(Arc::new(Held { credentials: cluster.credentials(&known, &shown)?, cluster }))
            }
        };
        Ok(Arc::new(Nodes {
            folder: folder.to_owned(),
            held: RwLock::new(held),
            known,
            shown,
            changing: tokio::sync::Mutex::new(()),
            peers: Mutex::default(),
            wake: Notify::new(),
            daemon: OnceLock::new(),
            listening: Mutex::default(),
        }))
    }

    /// Begins to serve other nodes and to ask how they do, for as long as the daemon runs.
    pub fn begin(self: &Arc<Self>, router: Router, control: &Arc<Control>) {
        // Said once, at the start.
        let _ = self.daemon.set((router, Arc::downgrade(control)));
        tokio::spawn(Arc::clone(self).tend(control.stopping()));
    }

    /// This node's name; none where the daemon belongs to no cluster.
    pub fn own(&self) -> Option<String> {
        self.member().ok().map(|held| held.cluster.own_line().name.clone())
    }

    /// The nodes as the table has them, this one among them: their names, and where they are reached.
    pub fn members(&self) -> Vec<MemberNode> {
        self.member().map(|held| table::present(&held.cluster.members).cloned().collect()).unwrap_or_default()
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is held, of a daemon that belongs to a cluster.
    ///
    /// # Errors
    /// It belongs to none, or was removed from it.
    fn member(&self) -> Result<Arc<Held>, ErrorDetail> {
        let refused = |message: &str| {
            Err(ErrorDetail::new(Kind::NotFound, message).remedy(
                "make a cluster with `braid node init NAME --listen ADDRESS`, or join one with `braid node join TOKEN \
                 --name NAME --listen ADDRESS`",
            ))
        };
        match self.held() {
            None => refused("this daemon belongs to no cluster"),
            Some(held) if held.cluster.is_removed() => refused("this node was removed from its cluster"),
            Some(held) => Ok(held),
        }
    }

    /// Changes what is held, durably; nobody sees the change before it is.
    ///
    /// # Errors
    /// As [`Nodes::member`]; what `change` says; the file cannot be written.
    async fn change<T>(&self, change: impl FnOnce(&mut Cluster) -> Result<T, ErrorDetail>) -> Result<T, ErrorDetail> {
        let _one_at_a_time = self.changing.lock().await;
        let held = self.member()?;
        let mut cluster = held.cluster.clone();
        let result = change(&mut cluster)?;
        if cluster != held.cluster {
            self.keep(cluster).await?;
        }
        Ok(result)
    }

    /// Writes the file, and holds it then. The caller has the right to change.
    async fn keep(&self, cluster: Cluster) -> Result<(), ErrorDetail> {
        let credentials = cluster.credentials(&self.known, &self.shown)?;
        let folder = self.folder.clone();
        let saving = cluster.clone();
        let saved = tokio::task::spawn_blocking(move || file::save(&folder, &saving)).await;
        saved.map_err(|error| ErrorDetail::new(Kind::Internal, format!("a write ended unexpectedly: {error}")))??;
        self.known.set(&cluster);
        let held = Arc::new(Held { cluster, credentials });
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = Some(held);
        Ok(())
    }

    fn control(&self) -> Option<Arc<Control>> {
        self.daemon.get().and_then(|(_, control)| control.upgrade())
    }

    /// Adds an event.
    fn tell(&self, kind: &str, message: String, node: &str) {
        if let Some(control) = self.control() {
            control.events().info(kind, message, &[("node", node)]);
        }
    }

    /// The same of one that somebody should look at.
    fn warn(&self, kind: &str, message: String, node: &str) {
        if let Some(control) = self.control() {
            control.events().warning(kind, message, &[("node", node)]);
        }
    }

    /// Says in the status that something needs attention, or no longer.
    fn trouble(&self, what: &str, trouble: Option<(String, Advice)>) {
        let Some(control) = self.control() else { return };
        let attention = trouble.map(|(message, advice)| advice.attention("node".to_owned(), message));
        control.set_trouble(what, attention);
    }
}

/// What to do about a node.
fn advice_of(case: NodeCase, node: &str) -> Advice {
    advice::of(Case::Node(case), Names::of(node))
}

/// What to do about this one, where an error has a remedy of its own.
fn advice_by(error: &ErrorDetail, meaning: &str) -> Advice {
    let advice = advice_of(NodeCase::TriedAgain, "");
    Advice { meaning: meaning.to_owned(), remedy: format!("{}; {}", error.remedy, advice.remedy), ..advice }
}

/// Whether what is known of other nodes can be read.
///
/// # Errors
/// As [`Nodes::open`].
pub fn check(folder: &Path) -> Result<(), ErrorDetail> {
    file::load(folder).map(drop)
}

/// Now, in seconds of Unix time.
fn unix_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

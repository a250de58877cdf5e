//! The nodes of a cluster: daemons of several machines that know each other, and call each other over mutual TLS.
//!
//! What it is: this node's identity and the table of nodes (`file`, `table`), keys and certificates (`identity`) and the
//! verification of those of other nodes (`trust`); changes of the membership (`join`, `token`, `leave`); requests to
//! other nodes (`call`, `connect`), the listener for theirs (`listener`), and the periodic work (`maintenance`). The
//! daemon provides the rest through the traits of `daemon`.
//!
//! What it guarantees: a change is durable before it is acknowledged. Every node has the whole table and the authority's
//! key, so the loss of any node takes nothing from the others. Nothing is sent to a node, and no request of one is
//! processed, before the other end is authenticated by the authority and by its key in the table; the only exception is
//! the request for admission, which an invitation authorizes.
//!
//! What it never does: it knows no arrays, pools or volumes, and of replicas only that a node has some. It takes part in
//! no I/O: a node needs nothing of the cluster to serve what is on its own disks. It sends no request twice.

#![forbid(unsafe_code)]

mod call;
mod connect;
mod daemon;
mod file;
mod host_port;
mod identity;
mod join;
mod leave;
mod listener;
mod maintenance;
mod table;
mod token;
mod trust;
mod view;

use braid_advice::{self as advice, Advice, Case, NodeCase, ObjectNames};
use braid_api::{AttentionCode, ErrorDetail, Kind, MemberNode, Severity};
use call::Peer;
use file::Cluster;
use identity::Credentials;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};
use trust::{PresentedCertificate, TrustedKeys};

pub use daemon::{
    BoxFuture, DaemonServices, NodeEvents, OwnReply, OwnRequest, PeerService, ReplicaListener, SocketHandover,
};
pub use listener::{PeerAdmission, PeerStanding};

/// Default port of a node's API.
const NODE_PORT: u16 = braid_config::API_PORT;
/// Default port of the replicas' data.
const DATA_PORT: u16 = 10871;

/// The nodes of the cluster, as this node knows them.
pub struct Nodes {
    folder: PathBuf,
    membership: RwLock<Option<Arc<Membership>>>,
    /// Digests of the keys of the nodes in the table.
    trusted_keys: Arc<TrustedKeys>,
    /// The certificate that this node presents.
    presented: Arc<PresentedCertificate>,
    /// Held from reading the membership to replacing it, so that no concurrent change is lost.
    change_lock: tokio::sync::Mutex<()>,
    /// Status of the other nodes, and idle connections to them, by the UUID of the node.
    peers: Mutex<BTreeMap<String, Peer>>,
    /// Wakes the maintenance task: there is something to send to the other nodes.
    wake: Notify,
    /// Set when the daemon starts to serve.
    daemon: OnceLock<DaemonServices>,
    /// Ends the listener for other nodes when `true` is sent or when it is dropped.
    listening: Mutex<Option<watch::Sender<bool>>>,
}

/// The content of `nodes.json`, with the credentials made from it.
struct Membership {
    cluster: Cluster,
    credentials: Credentials,
}

impl Nodes {
    /// Reads `nodes.json` in `folder`, the daemon's state folder. Without the file the daemon belongs to no cluster.
    /// Does not listen or call before [`Nodes::start`].
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or was written by another version.
    pub fn open(folder: &Path) -> Result<Arc<Nodes>, ErrorDetail> {
        let (trusted_keys, presented) = (Arc::<TrustedKeys>::default(), Arc::<PresentedCertificate>::default());
        let membership = match file::load(folder)? {
            None => None,
            Some(cluster) => {
                trusted_keys.set(cluster.accepted_keys());
                Some(Arc::new(Membership { credentials: cluster.credentials(&trusted_keys, &presented)?, cluster }))
            }
        };
        Ok(Arc::new(Nodes {
            folder: folder.to_owned(),
            membership: RwLock::new(membership),
            trusted_keys,
            presented,
            change_lock: tokio::sync::Mutex::new(()),
            peers: Mutex::default(),
            wake: Notify::new(),
            daemon: OnceLock::new(),
            listening: Mutex::default(),
        }))
    }

    /// Starts the maintenance task, which serves and calls other nodes until `daemon.stopping` becomes true. To be
    /// called once, when the daemon serves.
    pub fn start(self: &Arc<Self>, daemon: DaemonServices) {
        let stopping = daemon.stopping.clone();
        // Set once, at the start.
        let _ = self.daemon.set(daemon);
        braid_tasks::spawn(Arc::clone(self).run_maintenance(stopping));
    }

    /// Returns this node's name; `None` if the daemon belongs to no cluster.
    pub fn own_name(&self) -> Option<String> {
        self.member().ok().map(|membership| membership.cluster.own_line().name.clone())
    }

    /// Returns the nodes of the table that were not removed, this node among them.
    pub fn members(&self) -> Vec<MemberNode> {
        self.member()
            .map(|membership| table::present(&membership.cluster.members).cloned().collect())
            .unwrap_or_default()
    }

    fn membership(&self) -> Option<Arc<Membership>> {
        self.membership.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the membership of a daemon that belongs to a cluster.
    ///
    /// # Errors
    /// The daemon belongs to no cluster, or was removed from it.
    fn member(&self) -> Result<Arc<Membership>, ErrorDetail> {
        let refused = |message: &str| {
            Err(ErrorDetail::new(Kind::NotFound, message).remedy(
                "make a cluster with `braid node init NAME --listen ADDRESS`, or join one with `braid node join TOKEN \
                 --name NAME --listen ADDRESS`",
            ))
        };
        match self.membership() {
            None => refused("this daemon belongs to no cluster"),
            Some(membership) if membership.cluster.is_removed() => refused("this node was removed from its cluster"),
            Some(membership) => Ok(membership),
        }
    }

    /// Changes the membership: passes a copy of the cluster to `change`, and stores the copy if it was changed. The
    /// change is durable before it becomes visible in the membership. If `change` or the write fails, the membership
    /// stays as it is.
    ///
    /// # Errors
    /// As [`Nodes::member`]; the error of `change`; the file cannot be written.
    async fn change<T>(&self, change: impl FnOnce(&mut Cluster) -> Result<T, ErrorDetail>) -> Result<T, ErrorDetail> {
        let _one_at_a_time = self.change_lock.lock().await;
        let membership = self.member()?;
        let mut cluster = membership.cluster.clone();
        let result = change(&mut cluster)?;
        if cluster != membership.cluster {
            self.store(cluster).await?;
        }
        Ok(result)
    }

    /// Writes the file, then replaces the membership and the accepted keys. The caller holds `change_lock`.
    async fn store(&self, cluster: Cluster) -> Result<(), ErrorDetail> {
        let credentials = cluster.credentials(&self.trusted_keys, &self.presented)?;
        let folder = self.folder.clone();
        let saving = cluster.clone();
        let saved = braid_tasks::blocking(move || file::save(&folder, &saving)).await;
        saved.map_err(|error| ErrorDetail::new(Kind::Internal, format!("a write ended unexpectedly: {error}")))??;
        self.trusted_keys.set(cluster.accepted_keys());
        let membership = Arc::new(Membership { cluster, credentials });
        *self.membership.write().unwrap_or_else(PoisonError::into_inner) = Some(membership);
        Ok(())
    }

    fn events(&self) -> Option<Arc<dyn NodeEvents>> {
        self.daemon.get().and_then(|daemon| daemon.events.upgrade())
    }

    fn replicas(&self) -> Option<Arc<dyn ReplicaListener>> {
        self.daemon.get().and_then(|daemon| daemon.replicas.upgrade())
    }

    fn sockets(&self) -> Option<Arc<dyn SocketHandover>> {
        self.daemon.get().and_then(|daemon| daemon.sockets.upgrade())
    }

    /// Adds an event of level info.
    fn report_event(&self, kind: &str, message: String, node: &str) {
        if let Some(events) = self.events() {
            events.report(Severity::Info, kind, message, node);
        }
    }

    /// Adds an event of level warning.
    fn report_warning(&self, kind: &str, message: String, node: &str) {
        if let Some(events) = self.events() {
            events.report(Severity::Warning, kind, message, node);
        }
    }

    /// Sets, or clears with `None`, an item of the status that needs attention. `what` identifies the item.
    fn set_fault(&self, what: &str, fault: Option<(String, Advice)>) {
        let Some(events) = self.events() else { return };
        let attention = fault.map(|(message, advice)| advice.attention("node".to_owned(), message));
        events.set_fault(what, attention);
    }
}

/// Returns the advice for a node.
fn advice_of(case: NodeCase, node: &str) -> Advice {
    advice::of(Case::Node(case), ObjectNames::of(node))
}

/// Returns the advice for an operation that failed with `error` and is retried: the remedy of the error, followed by
/// that of [`NodeCase::Retrying`].
fn advice_for_error(code: AttentionCode, error: &ErrorDetail, impact: &str) -> Advice {
    let advice = advice_of(NodeCase::Retrying, "");
    Advice { code, impact: impact.to_owned(), remedy: format!("{}; {}", error.remedy, advice.remedy), ..advice }
}

/// Checks that `nodes.json` can be read.
///
/// # Errors
/// As [`Nodes::open`].
pub fn check(folder: &Path) -> Result<(), ErrorDetail> {
    file::load(folder).map(drop)
}

/// Returns the current Unix time in seconds.
fn unix_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

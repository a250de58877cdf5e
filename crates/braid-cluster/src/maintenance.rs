//! The maintenance task of the nodes: it exchanges tables with the other nodes, and so learns which ones are reachable;
//! it renews certificates in time; and it retries to listen on an address that was taken.

use super::call::{PeerStatus, REPLY_MAX};
use super::connect::{self, Callee};
use super::host_port::HostPort;
use super::table::{self, TableChange};
use super::{Membership, Nodes, advice_for_error, advice_of, unix_s};
use braid_advice::NodeCase;
use braid_api::{AttentionCode, ErrorDetail, Kind, MemberNode, NodeTable};
use hyper::Method;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Time from the end of one exchange of tables to the begin of the next, unless a change wakes the task earlier.
const ROUND_INTERVAL: Duration = Duration::from_secs(2);
/// Clocks that differ by more than this, in seconds, are reported.
const CLOCK_DIFFERENCE_S_MAX: i64 = 60;
/// API path for the exchange of tables.
const TABLE_PATH: &str = "/v1/cluster/table";

impl Nodes {
    /// Runs until the daemon stops.
    pub(super) async fn run_maintenance(self: Arc<Self>, mut stopping: watch::Receiver<bool>) {
        loop {
            self.run_round().await;
            tokio::select! {
                () = tokio::time::sleep(ROUND_INTERVAL) => {}
                () = self.wake.notified() => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }

    async fn run_round(self: &Arc<Self>) {
        let Some(membership) = self.membership() else { return };
        let was_removed = membership.cluster.is_removed();
        self.set_fault(
            "node removed",
            was_removed.then(|| {
                let name = &membership.cluster.own_line().name;
                (format!("this node, {name}, was removed from its cluster"), advice_of(NodeCase::RemovedHere, name))
            }),
        );
        if was_removed {
            // Other nodes refuse this one, so their faults cannot be updated any more.
            for line in membership.cluster.others() {
                self.set_fault(&fault_key(line), None);
                self.set_fault(&clock_fault_key(line), None);
            }
            self.stop_listening();
            return;
        }
        self.renew_if_due(unix_s()).await;
        self.listen_if_needed(&membership).await;
        let mut exchanges = JoinSet::new();
        for line in membership.cluster.others() {
            let (nodes, line) = (Arc::clone(self), line.clone());
            braid_tasks::spawn_in(&mut exchanges, async move { nodes.exchange_table(&line).await });
        }
        while exchanges.join_next().await.is_some() {}
    }

    /// Renews this node's certificate when two thirds of its lifetime are over.
    pub(super) async fn renew_if_due(&self, now_unix_s: i64) {
        let due = self.member().is_ok_and(|membership| membership.credentials.is_due(now_unix_s));
        if !due {
            return;
        }
        if let Err(error) = self.renew_own(now_unix_s).await {
            self.set_fault(
                "node certificate",
                Some((
                    format!("the certificate of this node cannot be renewed: {}", error.message),
                    advice_for_error(
                        AttentionCode::NodeCertificateNotRenewed,
                        &error,
                        "Other nodes refuse one that has expired.",
                    ),
                )),
            );
        }
    }

    /// Makes a new certificate for this node's key.
    pub(super) async fn renew_own(&self, now_unix_s: i64) -> Result<(), ErrorDetail> {
        self.change(|cluster| cluster.renew(now_unix_s)).await?;
        self.set_fault("node certificate", None);
        let membership = self.member()?;
        let name = &membership.cluster.own_line().name;
        self.report_event("node_certificate_renewed", format!("node {name} has a new certificate"), name);
        // The other nodes see it with their next connection.
        self.wake.notify_one();
        Ok(())
    }

    /// Retries to listen on the addresses that were not available before.
    async fn listen_if_needed(self: &Arc<Self>, membership: &Membership) {
        // A task that makes or joins a cluster holds `change_lock` until it serves the sockets that it has bound.
        // Without the lock this task would find the addresses in use.
        let _one_at_a_time = self.change_lock.lock().await;
        self.offer_data_if_needed(membership).await;
        if self.is_listening() {
            return;
        }
        let api = &membership.cluster.own_line().api;
        let address = HostPort::parse(api, 0).expect("lines are checked before they are kept");
        match self.resume_or_bind("the address for other nodes", "nodes", &address).await {
            Ok(listener) => {
                self.set_fault("node listener", None);
                tracing::info!("other nodes are served on {api}");
                self.serve(listener);
            }
            Err(error) => self.set_fault(
                "node listener",
                Some((
                    error.message.clone(),
                    advice_for_error(
                        AttentionCode::NodeAddressUnavailable,
                        &error,
                        "Other nodes do not reach this one. Objects on its own disks are still served.",
                    ),
                )),
            ),
        }
    }

    /// Retries to listen on the address for data.
    async fn offer_data_if_needed(&self, membership: &Membership) {
        if self.offers_data() {
            return;
        }
        let address =
            HostPort::parse(&membership.cluster.own_line().data, 0).expect("lines are checked before they are kept");
        match self.resume_or_bind("the address for data", "data", &address).await {
            Ok(listener) => {
                self.set_fault("node data", None);
                self.serve_data(Some(listener));
            }
            Err(error) => self.set_fault(
                "node data",
                Some((
                    error.message.clone(),
                    advice_for_error(
                        AttentionCode::NodeAddressUnavailable,
                        &error,
                        "Other nodes do not reach the replicas of this one.",
                    ),
                )),
            ),
        }
    }

    /// Sends this node's table to another node, merges the reply, and records the other node's status.
    pub(super) async fn exchange_table(&self, line: &MemberNode) {
        let Ok(membership) = self.member() else { return };
        let own_table = NodeTable {
            cluster: membership.cluster.cluster.to_string(),
            unix_s: unix_s(),
            members: membership.cluster.members.clone(),
        };
        let calling = self.call_member(line, Method::POST, TABLE_PATH, Some(json!(own_table)));
        let reply = connect::with_timeout(&Callee::of(line), REPLY_MAX, calling).await;
        let reply = reply.and_then(|reply| {
            serde_json::from_value::<NodeTable>(reply).map_err(|error| {
                ErrorDetail::new(Kind::Internal, format!("node {} sent an invalid table: {error}", line.name))
            })
        });
        match reply {
            Ok(theirs) => {
                self.compare_clocks(line, theirs.unix_s);
                self.record_status(line, PeerStatus::Reachable);
                // If the merged table cannot be written, the next exchange receives the same lines again.
                if let Err(error) = self.merge_table(&theirs).await {
                    tracing::warn!("the table of node {} was not merged: {}", line.name, error.message);
                }
            }
            Err(error) => {
                self.handle_removal_error(&error).await;
                let since_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
                self.record_status(line, PeerStatus::Unreachable { since_unix_ms, reason: error.message });
            }
        }
    }

    /// Merges the table that another node sends, and returns the merged table.
    ///
    /// # Errors
    /// The table is another cluster's, or is invalid; the file cannot be written.
    pub async fn receive_table(&self, theirs: NodeTable) -> Result<NodeTable, ErrorDetail> {
        self.merge_table(&theirs).await?;
        // `member` would fail if this table has just removed this node, which must reply nevertheless.
        let membership =
            self.membership().ok_or_else(|| ErrorDetail::new(Kind::NotFound, "this daemon belongs to no cluster"))?;
        Ok(NodeTable {
            cluster: membership.cluster.cluster.to_string(),
            unix_s: unix_s(),
            members: membership.cluster.members.clone(),
        })
    }

    async fn merge_table(&self, theirs: &NodeTable) -> Result<(), ErrorDetail> {
        table::check(&theirs.members)?;
        let membership = self.member()?;
        if theirs.cluster != membership.cluster.cluster.to_string() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "this table of nodes is another cluster's"));
        }
        let mut known = membership.cluster.members.clone();
        if table::merge(&mut known, &theirs.members).is_empty() && known == membership.cluster.members {
            return Ok(());
        }
        let changes = self.change(|cluster| Ok(table::merge(&mut cluster.members, &theirs.members))).await?;
        for one in &changes {
            self.report(one);
        }
        // Sends the changes on to the nodes that do not know them yet.
        self.wake.notify_one();
        Ok(())
    }

    fn report(&self, change: &TableChange) {
        match change {
            TableChange::Joined(line) => {
                self.report_event("node_joined", format!("node {} has joined", line.name), &line.name)
            }
            TableChange::Changed(line) => {
                self.report_event("node_changed", format!("node {} has changed", line.name), &line.name)
            }
            TableChange::Removed(line) => self.drop_removed(line),
        }
    }

    /// Drops a node that was removed: its connections end, and its faults are cleared.
    pub(super) fn drop_removed(&self, line: &MemberNode) {
        self.forget_peer(&line.uuid);
        if let Some(replicas) = self.replicas() {
            replicas.sever();
        }
        self.set_fault(&fault_key(line), None);
        self.set_fault(&clock_fault_key(line), None);
        self.report_warning("node_removed", format!("node {} was removed from the cluster", line.name), &line.name);
    }

    /// Records this node's removal if another node's error says so; it then sends no more requests.
    async fn handle_removal_error(&self, error: &ErrorDetail) {
        let Ok(membership) = self.member() else { return };
        let own = membership.cluster.own.to_string();
        if error.kind != Kind::Forbidden || error.context.get("removed") != Some(&own) {
            return;
        }
        if let Err(error) = self.record_own_removal().await {
            tracing::warn!("the removal of this node could not be saved: {}", error.message);
        }
    }

    /// Records durably that this node was removed.
    pub(super) async fn record_own_removal(&self) -> Result<(), ErrorDetail> {
        let line = self
            .change(|cluster| {
                let mut line = cluster.own_line().clone();
                (line.version, line.removed) = (line.version + 1, true);
                table::merge(&mut cluster.members, std::slice::from_ref(&line));
                Ok(line)
            })
            .await?;
        self.report_warning(
            "node_removed",
            format!("this node, {}, was removed from its cluster", line.name),
            &line.name,
        );
        self.wake.notify_one();
        Ok(())
    }

    /// Records a node's status, and reports a change of it.
    fn record_status(&self, line: &MemberNode, now: PeerStatus) {
        let before = self.peer(&line.uuid, |peer| {
            let before = peer.status.clone();
            peer.status = match (&before, &now) {
                // The start of an outage stays; its reason may change.
                (PeerStatus::Unreachable { since_unix_ms, .. }, PeerStatus::Unreachable { reason, .. }) => {
                    PeerStatus::Unreachable { since_unix_ms: *since_unix_ms, reason: reason.clone() }
                }
                _ => now.clone(),
            };
            before
        });
        match (&before, &now) {
            (PeerStatus::Reachable, PeerStatus::Reachable) => {}
            (_, PeerStatus::Reachable) => {
                self.set_fault(&fault_key(line), None);
                self.report_event("node_reachable", format!("node {} is reachable", line.name), &line.name);
            }
            (_, PeerStatus::Unreachable { reason, .. }) => {
                self.set_fault(
                    &fault_key(line),
                    Some((
                        format!("node {} is unreachable: {reason}", line.name),
                        advice_of(NodeCase::Unreachable, &line.name),
                    )),
                );
                if !matches!(before, PeerStatus::Unreachable { .. }) {
                    self.report_warning(
                        "node_unreachable",
                        format!("node {} is unreachable: {reason}", line.name),
                        &line.name,
                    );
                }
            }
            (_, PeerStatus::Unknown) => {}
        }
    }

    fn compare_clocks(&self, line: &MemberNode, theirs_unix_s: i64) {
        let difference_s = (theirs_unix_s - unix_s()).abs();
        self.set_fault(
            &clock_fault_key(line),
            (difference_s > CLOCK_DIFFERENCE_S_MAX).then(|| {
                (
                    format!("the clocks of node {} and of this one differ by {difference_s} s", line.name),
                    advice_of(NodeCase::ClockDiffers, &line.name),
                )
            }),
        );
    }
}

/// Returns the key of the fault "a node is unreachable".
fn fault_key(line: &MemberNode) -> String {
    format!("node {}", line.uuid)
}

/// Returns the key of the fault "a node's clock differs".
fn clock_fault_key(line: &MemberNode) -> String {
    format!("node clock {}", line.uuid)
}

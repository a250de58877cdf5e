//! What goes on by itself: nodes tell each other their tables, and so who is here; certificates are renewed in time; a
//! listener whose address was taken is tried again.

use super::call::{ANSWER_MAX, Seen};
use super::connect::{self, Callee};
use super::place::HostPort;
use super::table::{self, News};
use super::{Held, Nodes, advice_by, advice_of, unix_s};
use braid_advice::NodeCase;
use braid_api::{ErrorDetail, Kind, MemberNode, NodeTable};
use hyper::Method;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two rounds of telling.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// Clocks that differ by more than this are worth a word, in seconds.
const CLOCKS_APART_S: i64 = 60;
/// Where tables are told.
const TABLE: &str = "/v1/cluster/table";

impl Nodes {
    /// Goes on until the daemon stops.
    pub(super) async fn tend(self: Arc<Self>, mut stopping: watch::Receiver<bool>) {
        loop {
            self.round().await;
            tokio::select! {
                () = tokio::time::sleep(ROUND_EVERY) => {}
                () = self.wake.notified() => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }

    async fn round(self: &Arc<Self>) {
        let Some(held) = self.held() else { return };
        let was_removed = held.cluster.is_removed();
        self.trouble(
            "node removed",
            was_removed.then(|| {
                let name = &held.cluster.own_line().name;
                (format!("this node, {name}, was removed from its cluster"), advice_of(NodeCase::RemovedHere, name))
            }),
        );
        if was_removed {
            // Other nodes refuse this one: that they do not answer it is no news of theirs.
            for line in held.cluster.others() {
                self.trouble(&trouble(line), None);
                self.trouble(&clock_trouble(line), None);
            }
            self.stop_listening();
            return;
        }
        self.renew_if_due(unix_s()).await;
        self.listen_if_needed(&held).await;
        let mut asking = JoinSet::new();
        for line in held.cluster.others() {
            let (nodes, line) = (Arc::clone(self), line.clone());
            asking.spawn(async move { nodes.tell_table(&line).await });
        }
        while asking.join_next().await.is_some() {}
    }

    /// Renews this node's certificate when two thirds of its life are over.
    pub(super) async fn renew_if_due(&self, now_unix_s: i64) {
        let due = self.member().is_ok_and(|held| held.credentials.is_due(now_unix_s));
        if !due {
            return;
        }
        if let Err(error) = self.renew_own(now_unix_s).await {
            self.trouble(
                "node certificate",
                Some((
                    format!("the certificate of this node cannot be renewed: {}", error.message),
                    advice_by(&error, "Other nodes refuse one that has expired."),
                )),
            );
        }
    }

    /// Gives this node another certificate for its key.
    pub(super) async fn renew_own(&self, now_unix_s: i64) -> Result<(), ErrorDetail> {
        self.change(|cluster| cluster.renew(now_unix_s)).await?;
        self.trouble("node certificate", None);
        let held = self.member()?;
        let name = &held.cluster.own_line().name;
        self.tell("node_certificate_renewed", format!("node {name} has a new certificate"), name);
        // Others see it with the next connection.
        self.wake.notify_one();
        Ok(())
    }

    /// Takes the address again that could not be had at the start.
    async fn listen_if_needed(self: &Arc<Self>, held: &Held) {
        // Who makes this node a member has its socket already, and is about to serve it.
        let _one_at_a_time = self.changing.lock().await;
        self.offer_data_if_needed(held).await;
        if self.is_listening() {
            return;
        }
        let api = &held.cluster.own_line().api;
        let place = HostPort::parse(api, 0).expect("lines are checked before they are kept");
        match self.bind_again("the address for other nodes", "nodes", &place).await {
            Ok(listener) => {
                self.trouble("node listener", None);
                tracing::info!("other nodes are served on {api}");
                self.serve(listener);
            }
            Err(error) => self.trouble(
                "node listener",
                Some((
                    error.message.clone(),
                    advice_by(&error, "Other nodes do not reach this one. What is on its own disks goes on."),
                )),
            ),
        }
    }

    /// The same of the address for data.
    async fn offer_data_if_needed(&self, held: &Held) {
        if self.offers_data() {
            return;
        }
        let place = HostPort::parse(&held.cluster.own_line().data, 0).expect("lines are checked before they are kept");
        match self.bind_again("the address for data", "data", &place).await {
            Ok(listener) => {
                self.trouble("node data", None);
                self.serve_data(Some(listener));
            }
            Err(error) => self.trouble(
                "node data",
                Some((error.message.clone(), advice_by(&error, "Other nodes do not reach the replicas of this one."))),
            ),
        }
    }

    /// Tells a node what is known of all, learns what it knows, and sees how it does.
    pub(super) async fn tell_table(&self, line: &MemberNode) {
        let Ok(held) = self.member() else { return };
        let told = NodeTable {
            cluster: held.cluster.cluster.to_string(),
            unix_s: unix_s(),
            members: held.cluster.members.clone(),
        };
        let calling = self.call_member(line, Method::POST, TABLE, Some(json!(told)));
        let answer = connect::limited(&Callee::of(line), ANSWER_MAX, calling).await;
        let answer = answer.and_then(|answer| {
            serde_json::from_value::<NodeTable>(answer).map_err(|error| {
                ErrorDetail::new(Kind::Internal, format!("node {} tells no table: {error}", line.name))
            })
        });
        match answer {
            Ok(theirs) => {
                self.compare_clocks(line, theirs.unix_s);
                self.note(line, Seen::Here);
                // What cannot be written is told again with the next round.
                if let Err(error) = self.learn(&theirs).await {
                    tracing::warn!("what node {} knows of others was not taken up: {}", line.name, error.message);
                }
            }
            Err(error) => {
                self.heed_removal(&error).await;
                let since_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
                self.note(line, Seen::Away { since_unix_ms, reason: error.message });
            }
        }
    }

    /// What another node tells; the answer is what this one knows then.
    ///
    /// # Errors
    /// It is of another cluster, or cannot be right; the file cannot be written.
    pub async fn hear(&self, theirs: NodeTable) -> Result<NodeTable, ErrorDetail> {
        self.learn(&theirs).await?;
        // The state of a node that was removed by this very table is an answer, too.
        let held = self.held().ok_or_else(|| ErrorDetail::new(Kind::NotFound, "this daemon belongs to no cluster"))?;
        Ok(NodeTable {
            cluster: held.cluster.cluster.to_string(),
            unix_s: unix_s(),
            members: held.cluster.members.clone(),
        })
    }

    async fn learn(&self, theirs: &NodeTable) -> Result<(), ErrorDetail> {
        table::check(&theirs.members)?;
        let held = self.member()?;
        if theirs.cluster != held.cluster.cluster.to_string() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "this table of nodes is another cluster's"));
        }
        let mut known = held.cluster.members.clone();
        if table::merge(&mut known, &theirs.members).is_empty() && known == held.cluster.members {
            return Ok(());
        }
        let news = self.change(|cluster| Ok(table::merge(&mut cluster.members, &theirs.members))).await?;
        for one in &news {
            self.report(one);
        }
        // To those who do not know it yet.
        self.wake.notify_one();
        Ok(())
    }

    fn report(&self, news: &News) {
        match news {
            News::Joined(line) => self.tell("node_joined", format!("node {} has joined", line.name), &line.name),
            News::Changed(line) => self.tell("node_changed", format!("node {} has changed", line.name), &line.name),
            News::Removed(line) => self.is_gone(line),
        }
    }

    /// A node was removed: its connections end, and nothing is expected of it any more.
    pub(super) fn is_gone(&self, line: &MemberNode) {
        self.forget(&line.uuid);
        if let Some(control) = self.control() {
            control.sever_replicas();
        }
        self.trouble(&trouble(line), None);
        self.trouble(&clock_trouble(line), None);
        self.warn("node_removed", format!("node {} was removed from the cluster", line.name), &line.name);
    }

    /// Another node says that this one was removed: it is asked nothing any more.
    async fn heed_removal(&self, error: &ErrorDetail) {
        let Ok(held) = self.member() else { return };
        let own = held.cluster.own.to_string();
        if error.kind != Kind::Forbidden || error.context.get("removed") != Some(&own) {
            return;
        }
        if let Err(error) = self.note_own_removal().await {
            tracing::warn!("that this node was removed could not be written down: {}", error.message);
        }
    }

    /// Writes down that this node was removed.
    pub(super) async fn note_own_removal(&self) -> Result<(), ErrorDetail> {
        let line = self
            .change(|cluster| {
                let mut line = cluster.own_line().clone();
                (line.version, line.removed) = (line.version + 1, true);
                table::merge(&mut cluster.members, std::slice::from_ref(&line));
                Ok(line)
            })
            .await?;
        self.warn("node_removed", format!("this node, {}, was removed from its cluster", line.name), &line.name);
        self.wake.notify_one();
        Ok(())
    }

    /// Remembers how a node does, and says so when that has changed.
    fn note(&self, line: &MemberNode, now: Seen) {
        let before = self.peer(&line.uuid, |peer| {
            let before = peer.seen.clone();
            peer.seen = match (&before, &now) {
                // Since when it is away does not change while it is; why may.
                (Seen::Away { since_unix_ms, .. }, Seen::Away { reason, .. }) => {
                    Seen::Away { since_unix_ms: *since_unix_ms, reason: reason.clone() }
                }
                _ => now.clone(),
            };
            before
        });
        match (&before, &now) {
            (Seen::Here, Seen::Here) => {}
            (_, Seen::Here) => {
                self.trouble(&trouble(line), None);
                self.tell("node_here", format!("node {} is here", line.name), &line.name);
            }
            (_, Seen::Away { reason, .. }) => {
                self.trouble(
                    &trouble(line),
                    Some((format!("node {} is away: {reason}", line.name), advice_of(NodeCase::Away, &line.name))),
                );
                if !matches!(before, Seen::Away { .. }) {
                    self.warn("node_away", format!("node {} is away: {reason}", line.name), &line.name);
                }
            }
            (_, Seen::Never) => {}
        }
    }

    fn compare_clocks(&self, line: &MemberNode, theirs_unix_s: i64) {
        let apart_s = (theirs_unix_s - unix_s()).abs();
        self.trouble(
            &clock_trouble(line),
            (apart_s > CLOCKS_APART_S).then(|| {
                (
                    format!("the clocks of node {} and of this one differ by {apart_s} s", line.name),
                    advice_of(NodeCase::ClockDiffers, &line.name),
                )
            }),
        );
    }
}

/// By what it is known that a node is away.
fn trouble(line: &MemberNode) -> String {
    format!("node {}", line.uuid)
}

/// The same of its clock.
fn clock_trouble(line: &MemberNode) -> String {
    format!("node clock {}", line.uuid)
}

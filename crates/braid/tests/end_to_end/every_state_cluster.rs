//! Replicated volumes in every state: text, JSON, exit status and the API's reply agree, by the checker of
//! `every_state.rs`; and every node reports the same about the cluster.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api;
use crate::every_state::{CommandChecker, Outcome, flat};
use crate::every_state_words::*;
use crate::replicated::{Cluster, WHOLE};
use crate::support::*;

pub const NAMES: [&str; 3] = ["one", "two", "three"];

/// A report is final when it is unchanged for this long: longer than the interval at which nodes query each other.
const STEADY: Duration = Duration::from_secs(3);

/// Queries that every node with a replica accepts in every state.
const READS: [&str; 11] = [
    "volume list",
    "snapshot list",
    "array list",
    "pool list",
    "replica list",
    "replica show db",
    "node list",
    "export list",
    "job list",
    "status",
    "status --check",
];

/// Refusals on the node that serves the volume, which is exported and has the snapshot `db@one`.
const OF_SERVED: &[Refusal] = &[
    (4, "db", "volume create db 64M --replicas 2"),
    (1, "db", "volume resize db 128M"),
    (1, "db", "volume rename db other"),
    (1, "db", "volume set db --limit iops=100"),
    (1, "db", "volume flatten db"),
    (1, "db", "volume move db --place spread"),
    (1, "db", "volume compact db"),
    (4, "db", "volume detach db"),
    (4, "db", "volume delete db"),
    (4, "db", "volume delete db --yes"),
    (4, "db", "volume attach db --force --yes"),
    (4, "db", "volume rollback db @none --yes"),
    (4, "db@one", "snapshot create db@one"),
    (4, "db@one", "snapshot rename db@one one"),
    (4, "db@one", "snapshot delete db@one"),
    (3, "db@none", "snapshot delete db@none --yes"),
    (3, "db@none", "snapshot show db@none"),
    (4, "db", "replica add db two/tank"),
    (3, "nine", "replica add db nine/tank"),
    (4, "db", "replica remove db two"),
    (3, "nine", "replica remove db nine --yes"),
    (4, "db", "replica rebuild db two"),
    (3, "nine", "replica rebuild db nine --yes"),
    (4, "db", "replica delete db"),
    (4, "db", "replica delete db --yes"),
    (4, "db", "array stop db"),
    (4, "db", "array fail db 1"),
    (4, "db", "array delete db --yes"),
    (4, "db", "export add db --nbd unix:/nowhere/db.sock"),
    (4, "two", "node remove two --yes"),
];

/// Refusals on a node that has a replica and has never served the volume.
const OF_OTHERS: &[Refusal] = &[
    (3, "db", "volume show db"),
    (1, "db", "volume resize db 128M"),
    (1, "db", "volume rename db other"),
    (1, "db", "volume set db --limit iops=100"),
    (4, "db", "volume attach db --force --yes"),
    (3, "db", "volume detach db"),
    (3, "db", "volume delete db --yes"),
    (3, "db", "volume rollback db @one --yes"),
    (3, "db", "snapshot list db"),
    (3, "db", "snapshot show db@one"),
    (3, "db", "snapshot create db@two"),
    (3, "db", "snapshot rename db@one two"),
    (3, "db", "snapshot delete db@one --yes"),
    (4, "tank/db@one", "snapshot delete tank/db@one --yes"),
    (3, "db", "replica add db three/tank"),
    (3, "db", "replica remove db one --yes"),
    (3, "db", "replica rebuild db one --yes"),
    (4, "db", "replica delete db --yes"),
    (3, "nine", "replica show nine"),
    (3, "db", "array show db"),
    (3, "db", "array stop db"),
];

/// Refusals on a node that knows the volume, while another node serves it.
const OF_DETACHED: &[Refusal] = &[
    (4, "db", "volume create db 64M --replicas 2"),
    (1, "db", "volume resize db 128M"),
    (1, "db", "volume detach db"),
    (4, "db", "volume delete db --yes"),
    (1, "db", "volume rollback db @one --yes"),
    (1, "db", "snapshot create db@two"),
    (1, "db", "snapshot rename db@one two"),
    (1, "db", "snapshot delete db@one --yes"),
    (1, "db", "replica add db three/tank"),
    (1, "db", "replica remove db two --yes"),
    (1, "db", "replica rebuild db two --yes"),
    (4, "db", "replica delete db --yes"),
    (3, "db", "array show db"),
];

/// Refusals while the node of the third replica does not answer.
const OF_AWAY: &[Refusal] = &[
    (4, "db", "replica add db three/slow"),
    (6, "three", "replica rebuild db three --yes"),
    (6, "three", "node renew three"),
    (4, "three", "node remove three --yes"),
];

const OF_ENDED: &[Refusal] = &[(1, "db", "volume detach db"), (1, "db", "snapshot create db@two")];

/// Returns the command lines of this file, for the list of all commands.
pub fn templates() -> Vec<&'static str> {
    let refused = [OF_SERVED, OF_OTHERS, OF_DETACHED, OF_AWAY, OF_ENDED].into_iter().flatten();
    READS.into_iter().chain(refused.map(|(.., typed)| *typed)).collect()
}

/// What the commands must report about the volume in a state.
struct Expected {
    /// States of its voters, as the serving node reports them.
    voters: [&'static str; 3],
    /// States of its voters, as the cluster reports them.
    standing: [&'static str; 3],
    /// Health of the array above the replicas.
    health: &'static str,
    /// How many failures that array tolerates now.
    tolerates: u64,
}

const ALL: Expected = Expected { voters: ["in_sync"; 3], standing: ["in_sync"; 3], health: "whole", tolerates: 2 };
const AWAY: Expected = Expected {
    voters: ["in_sync", "in_sync", "failed"],
    standing: ["in_sync", "in_sync", "unavailable"],
    health: "degraded",
    tolerates: 1,
};
const FILLED: Expected = Expected {
    voters: ["in_sync", "in_sync", "rebuilding"],
    standing: ["in_sync", "in_sync", "out_of_sync"],
    health: "rebuilding",
    tolerates: 1,
};
const TAKEN: Expected = Expected {
    voters: ["failed", "in_sync", "in_sync"],
    standing: ["unavailable", "in_sync", "in_sync"],
    health: "degraded",
    tolerates: 1,
};

/// Nodes, each with a checker.
pub struct Walk {
    pub cluster: Cluster,
    checkers: Vec<CommandChecker>,
    state: &'static str,
}

impl Walk {
    pub fn of(cluster: Cluster) -> Walk {
        let checkers = cluster.nodes.iter().map(CommandChecker::of).collect();
        Walk { cluster, checkers, state: "made" }
    }

    fn run(&mut self, node: usize, typed: &str) -> Outcome {
        let state = format!("{}, on node {}", self.state, NAMES[node]);
        self.checkers[node].check(&self.cluster.nodes[node], &state, typed)
    }

    /// Runs a command that changes nothing.
    #[track_caller]
    pub fn query(&mut self, node: usize, typed: &str) -> Outcome {
        let outcome = self.run(node, typed);
        assert!(!outcome.changed && outcome.error().is_none(), "{}: {}", outcome.context, outcome.document);
        outcome
    }

    /// Runs a command that changes something. Returns its JSON.
    #[track_caller]
    pub fn changed(&mut self, node: usize, typed: &str) -> Value {
        let outcome = self.run(node, typed);
        assert!(outcome.changed, "{}: {}", outcome.context, outcome.document);
        outcome.document
    }

    pub fn refused(&mut self, node: usize, refusals: &[Refusal]) {
        for (status, object, typed) in refusals {
            self.refused_one(node, *status, object, typed);
        }
    }

    #[track_caller]
    pub fn refused_one(&mut self, node: usize, status: i32, object: &str, typed: &str) {
        let outcome = self.run(node, typed);
        is_refused(&outcome, status, object);
        is_about_a_volume(&outcome);
    }

    /// Enters a state: the reports of these nodes no longer change.
    pub fn enter(&mut self, state: &'static str, nodes: &[usize]) {
        self.state = state;
        let (mut last, mut since) = (Vec::new(), Instant::now());
        wait_for("what is said to stay the same", || {
            let now: Vec<Value> = nodes.iter().map(|node| report_of(&self.cluster.nodes[*node])).collect();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            thread::sleep(Duration::from_millis(200));
            (since.elapsed() > STEADY).then_some(())
        });
    }

    /// Waits until nothing needs attention on these nodes.
    pub fn wait_until_well(&self, nodes: &[usize]) {
        let is_well = |node: &usize| self.cluster.nodes[*node].json(&["status"])["attention"] == json!([]);
        wait_for("nothing to need attention", || nodes.iter().all(is_well).then_some(()));
    }

    /// Waits until all replicas hold all data, and the copies are equal.
    fn wait_until_whole(&self, by: usize) {
        self.cluster.wait_for_states(by, &WHOLE);
        wait_for("the copies to be equal", || {
            let array = self.cluster.nodes[by].json(&["array", "show", "db"]);
            (array["redundancy"]["health"] == "whole").then_some(())
        });
        self.wait_until_well(&[0, 1, 2]);
    }

    /// Waits until these nodes know that another node is dead: at first the reported reason may be another one.
    pub fn wait_until_away(&self, nodes: &[usize], other: &str) {
        for node in nodes {
            wait_for("a node to be away", || {
                let shown = self.cluster.nodes[*node].json(&["node", "show", other]);
                shown["reason"].as_str()?.contains("no process listens there").then_some(())
            });
        }
    }

    /// Runs the queries of every state, about the replica and the nodes in particular.
    fn reads(&mut self, node: usize, here: &[&str]) {
        for typed in READS {
            self.query(node, typed);
        }
        let shown = self.query(node, "replica show db");
        has_lines(&shown.context, &shown.text, &lines_of_replica(&shown.document));
        let list = self.query(node, "replica list");
        let replica = &items(&list.document, "replicas")[0];
        let (data, epoch) = (text(replica, "data"), &replica["register"]["epoch"]);
        let voter = format!("{} of {}", replica["voter"], replica["voters"]);
        let line = format!("db {voter} ready {data} {SIZE} {epoch} {}", replica["connections"]);
        assert_eq!(lines(&list.text)[1..], [line], "{}", list.context);
        self.nodes(node, here);
    }

    /// Checks what a node reports about all nodes, of which `here` answer.
    pub fn nodes(&mut self, node: usize, here: &[&str]) {
        let list = self.query(node, "node list");
        let printed_lines = lines(&list.text);
        assert_eq!(text(&list.document, "local"), NAMES[node], "{}", list.document);
        for one in items(&list.document, "nodes") {
            let name = text(one, "name");
            let state = if here.contains(&name) { "reachable" } else { "unreachable" };
            assert_eq!(
                (text(one, "state"), one["reason"].is_null()),
                (state, state == "reachable"),
                "{}: {one}",
                list.context
            );
            assert_eq!(one["local"] == true, name == NAMES[node], "{}: {one}", list.context);
            let line = printed_lines.iter().find(|line| line.split(' ').next() == Some(name));
            let line = line.unwrap_or_else(|| panic!("{}: {name} is missing in {}", list.context, list.text));
            assert!(line.contains(state) && line.contains(text(one, "api")), "{}: {line} is not {one}", list.context);
            assert_eq!(line.contains("(this one)"), one["local"] == true, "{}: {line}", list.context);
            let shown = self.query(node, &format!("node show {name}"));
            assert_eq!(shown.document, *one, "{}", shown.context);
            has_lines(&shown.context, &shown.text, &lines_of_node(one));
        }
    }

    /// Checks that exactly these subjects need attention on a node.
    pub fn attention(&mut self, node: usize, subjects: &[&str]) -> Vec<Value> {
        let (status, check) = (self.query(node, "status"), self.query(node, "status --check"));
        let attention = items(&status.document, "attention").to_vec();
        assert_eq!(check.document, status.document["attention"], "{}", check.context);
        let mut said: Vec<&str> = attention.iter().map(|item| text(item, "subject")).collect();
        said.sort_unstable();
        assert_eq!(said, subjects, "{}: {attention:?}", status.context);
        let (summary, expected) = match subjects.len() {
            0 => ("All is well.".to_owned(), 0),
            1 => ("1 thing needs attention.".to_owned(), 5),
            count => (format!("{count} things need attention."), 5),
        };
        assert_eq!((status.status, check.status), (0, expected), "{}", check.context);
        for shown in [&status, &check] {
            assert!(shown.text.starts_with(&summary), "{}: {summary:?} is missing: {}", shown.context, shown.text);
        }
        attention
    }

    /// Checks the reports of the serving node: its replicas, the array above them, the metrics.
    fn served(&mut self, by: usize, how: &Expected) {
        let shown = self.query(by, "volume show db");
        let volume = &shown.document;
        assert_eq!((text(volume, "state"), states(volume)), ("serving", how.voters.to_vec()), "{}", shown.context);
        assert_eq!(items(volume, "attention").is_empty(), how.voters == WHOLE, "{}: {volume}", shown.context);
        has_lines(&shown.context, &shown.text, &lines_of_volume(volume));
        let list = self.query(by, "volume list");
        assert_eq!(items(&list.document, "replicated"), std::slice::from_ref(volume), "{}", list.context);
        has_words_of_voters(&list.context, &list.text, volume);

        let array = self.query(by, "array show db");
        let redundancy = &array.document["redundancy"];
        let counts = [&redundancy["health"], &redundancy["tolerates"], &redundancy["tolerates_now"]];
        assert_eq!(counts, [&json!(how.health), &json!(2), &json!(how.tolerates)], "{}", array.context);
        let printed_lines = lines(&array.text);
        for line in [format!("health {}", how.health), format!("tolerates {}", failures(how.tolerates))] {
            assert!(printed_lines.contains(&line), "{}: no line {line:?} in {}", array.context, array.text);
        }
        for sentence in items(volume, "attention") {
            assert!(items(&array.document, "attention").contains(sentence), "{}: no {sentence}", array.context);
        }
        let (status, measured) = api::ask(&self.cluster.nodes[by], "GET", "/metrics", "");
        let in_sync = how.voters.iter().filter(|state| **state == "in_sync").count();
        let line = format!("braid_replicated_replicas_in_sync{{volume=\"db\"}} {in_sync}.0\n");
        assert!(status == 200 && measured.contains(&line), "{line}: {measured}");
        self.snapshots(by, how.voters.map(|state| state == "in_sync"));
    }

    /// Checks which replicas have the snapshot, as far as this node sees it.
    fn snapshots(&mut self, node: usize, has: [bool; 3]) {
        let list = self.query(node, "snapshot list db");
        let shown = self.query(node, "snapshot show db@one");
        assert_eq!(items(&list.document, "snapshots"), std::slice::from_ref(&shown.document), "{}", list.context);
        let replicas = items(&shown.document, "replicas");
        let reported: Vec<bool> = replicas.iter().map(|replica| replica["has_snapshot"] == true).collect();
        assert_eq!(reported, has, "{}: {}", shown.context, shown.document);
        has_lines(&shown.context, &shown.text, &lines_of_snapshot(&shown.document));
    }

    /// Checks that each of these nodes, all that answer, reports the same about the volume: its serving node and its
    /// voters. Returns that report.
    fn everywhere(&mut self, nodes: &[usize], server: Option<usize>, standing: [&str; 3]) -> Value {
        let mut first = Value::Null;
        let server = server.map(|server| NAMES[server]);
        for node in nodes {
            let Outcome { context, document, text: shown, .. } = self.query(*node, "volume list --all");
            let [volume] = items(&document, "volumes") else { panic!("{context}: one volume is there: {document}") };
            assert_eq!(
                (volume["served_by"].as_str(), states(volume)),
                (server, standing.to_vec()),
                "{context}: {volume}"
            );
            assert_eq!(text(volume, "service"), if server.is_some() { "served" } else { "unserved" }, "{context}");
            let silent = items(&document, "nodes").iter().filter(|node| node["reachable"] == false).count();
            let away = NAMES.len() - nodes.len();
            assert_eq!((silent, items(&document, "incomplete").len()), (away, away), "{context}: {document}");
            let words = flat(&shown);
            for wanted in words_of_cluster(&document, volume) {
                assert!(words.contains(&wanted), "{context}: {wanted:?} is missing in the text: {shown}");
            }
            assert!(first.is_null() || first == *volume, "{context}: {volume} is not {first}");
            first = volume.clone();
        }
        first
    }

    /// Checks the reports of a node that has served the volume and no longer does.
    fn detached(&mut self, node: usize) {
        let shown = self.query(node, "volume show db");
        let volume = &shown.document;
        assert_eq!((text(volume, "state"), states(volume)), ("detached", vec!["unknown"; 3]), "{}", shown.context);
        let rest = [&volume["epoch"], &volume["snapshots"], &volume["attention"]];
        assert_eq!(rest, [&json!(0), &Value::Null, &json!([])], "{}", shown.context);
        has_lines(&shown.context, &shown.text, &lines_of_volume(volume));
        self.snapshots(node, [true; 3]);
    }

    fn exported(&mut self, node: usize, state: &str) {
        let shown = self.query(node, "export show db");
        let export = &shown.document;
        assert_eq!(
            (text(export, "state"), export["reason"].is_null()),
            (state, state == "listening"),
            "{}",
            shown.context
        );
        let printed_lines = lines(&shown.text);
        let reason = export["reason"].as_str().map(|reason| format!("reason {}", flat(reason)));
        for line in [Some(format!("state {state}")), reason].into_iter().flatten() {
            assert!(printed_lines.contains(&line), "{}: no line {line:?} in {}", shown.context, shown.text);
        }
        let list = self.query(node, "export list");
        assert_eq!(text(&items(&list.document, "exports")[0], "state"), state, "{}", list.context);
        let line = lines(&list.text).into_iter().find(|line| line.starts_with("db ")).unwrap_or_default();
        assert!(line.contains(state), "{}: {}", list.context, list.text);
    }
}

/// Returns a node's report, which changes while nodes and voters are queried.
fn report_of(daemon: &Daemon) -> Value {
    let volume = daemon.try_json(&["volume", "show", "db"]).unwrap_or_default();
    json!([daemon.json(&["status"])["attention"], daemon.json(&["node", "list"])["nodes"], volume])
}

/// Pauses the job that rebuilds a replica. Returns its name.
fn hold_rebuilding(cluster: &Cluster) -> String {
    let one = &cluster.nodes[0];
    wait_for("a replica being rebuilt", || {
        let jobs = one.json(&["job", "list"]);
        let goes_on = |job: &Value| job["state"] == "running" || job["state"] == "paused";
        let is_rebuilding = |job: &&Value| job["kind"] == "rebuild" && goes_on(job);
        let name = jobs["jobs"].as_array()?.iter().find(is_rebuilding)?["name"].as_str()?.to_owned();
        let is_held = one.any(&["job", "pause", &name]).status.success();
        (is_held && cluster.states(0)[2] == "rebuilding").then_some(name)
    })
}

#[test]
fn all_reports_agree_while_a_replica_fails_and_returns() {
    let cluster = Cluster::plain(&NAMES);
    let three = &cluster.nodes[2];
    let slow = format!("throttled({},bw=2M)", three.folder.sparse("slow.img", 512 * MIB));
    three.braid(&["pool", "create", "slow", &slow]);
    cluster.create("one/tank,two/tank,three/slow", &[]);
    let mut walk = Walk::of(cluster);
    walk.cluster.nodes[0].export("db");
    walk.cluster.nodes[0].braid(&["snapshot", "create", "db@one"]);
    walk.wait_until_whole(0);
    walk.enter("with all replicas", &[0, 1, 2]);
    walk.served(0, &ALL);
    walk.everywhere(&[0, 1, 2], Some(0), ALL.standing);
    walk.exported(0, "listening");
    for node in 0..3 {
        walk.attention(node, &[]);
        walk.reads(node, &NAMES);
    }
    walk.refused(0, OF_SERVED);
    walk.refused(1, OF_OTHERS);

    walk.cluster.nodes[2].kill();
    let mut client = walk.cluster.client(0);
    for at in 0..16 {
        client.write((8 + at) * MIB, &noise(MIB, at)).expect("the two others have it");
    }
    walk.cluster.wait_for_states(0, &AWAY.voters);
    walk.wait_until_away(&[0, 1], "three");
    walk.enter("with a replica that is away", &[0, 1]);
    walk.served(0, &AWAY);
    walk.everywhere(&[0, 1], Some(0), AWAY.standing);
    let said = json!(walk.attention(0, &["node", "volume db"])).to_string();
    assert!(said.contains("replica three/slow has failed") && said.contains("returns automatically"), "{said}");
    walk.attention(1, &["node"]);
    for node in [0, 1] {
        walk.reads(node, &["one", "two"]);
    }
    walk.refused(0, OF_AWAY);

    walk.cluster.nodes[2].start_again();
    let job = hold_rebuilding(&walk.cluster);
    walk.enter("with a replica that is being rebuilt", &[0, 1, 2]);
    walk.served(0, &FILLED);
    walk.everywhere(&[0, 1, 2], Some(0), FILLED.standing);
    let said = json!(walk.attention(0, &["volume db"])).to_string();
    assert!(said.contains("replica three/slow is being rebuilt") && !said.contains("wait until"), "{said}");
    for words in [format!("job {job} is paused"), format!("braid job resume {job}")] {
        assert!(said.contains(&words), "{words:?} is not said: {said}");
    }
    let jobs = walk.query(0, "job list");
    assert!(lines(&jobs.text).iter().any(|line| line.starts_with(&format!("{job} rebuild 2 paused"))), "{}", jobs.text);
    for node in [1, 2] {
        walk.attention(node, &[]);
        walk.reads(node, &NAMES);
    }
    walk.changed(0, &format!("job resume {job}"));

    walk.wait_until_whole(0);
    walk.enter("with all replicas again", &[0, 1, 2]);
    walk.served(0, &ALL);
    walk.everywhere(&[0, 1, 2], Some(0), ALL.standing);
    walk.attention(0, &[]);
}

/// A volume of three nodes, exported on the serving node and prepared on another one.
fn prepared() -> Walk {
    let cluster = Cluster::plain(&NAMES);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    for node in [0, 1] {
        cluster.nodes[node].export("db");
    }
    cluster.nodes[0].braid(&["snapshot", "create", "db@one"]);
    cluster.client(0).write_fua(0, &noise(MIB, 1)).expect("it is written");
    let walk = Walk::of(cluster);
    walk.wait_until_whole(0);
    walk
}

#[test]
fn all_reports_agree_whichever_node_serves_or_none() {
    let mut walk = prepared();
    walk.enter("served by node one", &[0, 1, 2]);
    walk.exported(1, "standby");

    walk.cluster.nodes[0].kill();
    walk.wait_until_away(&[1, 2], "one");
    for node in [1, 2] {
        wait_for("a volume that no node serves", || {
            let said = walk.cluster.nodes[node].json(&["status"])["attention"].to_string();
            said.contains("no node serves it").then_some(())
        });
    }
    walk.enter("served by none", &[1, 2]);
    let volume = walk.everywhere(&[1, 2], None, ["unknown", "in_sync", "in_sync"]);
    assert_eq!(volume["commands"][0], "braid volume attach db", "{volume}");
    assert!(text(&volume, "reason").contains("node one does not answer"), "{volume}");
    for node in [1, 2] {
        let said = walk.attention(node, &["node", "volume db"]);
        let of_volume = said.iter().find(|item| item["subject"] == "volume db").expect("it is said of the volume");
        assert_eq!(of_volume["commands"][0], "braid volume attach db", "{of_volume}");
        walk.reads(node, &["two", "three"]);
    }
    walk.exported(1, "standby");
    walk.refused(1, OF_OTHERS);

    let taken = walk.changed(1, "volume attach db");
    assert_eq!(taken["state"], "serving", "{taken}");
    walk.cluster.wait_for_states(1, &TAKEN.voters);
    walk.enter("taken over by node two", &[1, 2]);
    walk.served(1, &TAKEN);
    walk.everywhere(&[1, 2], Some(1), TAKEN.standing);
    walk.attention(1, &["node", "volume db"]);
    walk.attention(2, &["node"]);
    walk.exported(1, "listening");
    let shown = walk.query(1, "volume show db");
    let again = walk.cluster.nodes[1].braid(&["volume", "attach", "db"]);
    has_lines("braid volume attach db, where it is served", &again, &lines_of_volume(&shown.document));

    walk.cluster.nodes[0].start_again();
    wait_for("node one to find out", || {
        (walk.cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
    walk.wait_until_whole(1);
    walk.enter("served by node two, and node one is back", &[0, 1, 2]);
    walk.served(1, &ALL);
    walk.everywhere(&[0, 1, 2], Some(1), ALL.standing);
    walk.detached(0);
    walk.exported(0, "standby");
    for node in 0..3 {
        walk.attention(node, &[]);
        walk.reads(node, &NAMES);
    }
    walk.refused_one(0, 1, "not served by this node", "volume detach db");
    walk.changed(0, "export remove db");
    walk.refused(0, OF_DETACHED);
}

#[test]
fn all_reports_agree_after_a_forced_end_and_with_other_voters() {
    let mut walk = prepared();
    walk.changed(0, "export remove db");
    let ended = walk.changed(0, "volume detach db");
    assert_eq!(ended["state"], "detached", "{ended}");
    walk.enter("ended by command", &[0, 1, 2]);
    let volume = walk.everywhere(&[0, 1, 2], None, ALL.standing);
    assert_eq!(text(&volume, "reason"), "every node of the cluster says that it does not serve it");
    for node in 0..3 {
        walk.attention(node, &[]);
        walk.reads(node, &NAMES);
    }
    walk.detached(0);
    walk.refused(0, OF_ENDED);

    walk.changed(0, "volume attach db");
    walk.wait_until_whole(0);
    let fewer = walk.changed(0, "replica remove db three --yes");
    walk.enter("with a replica less", &[0, 1, 2]);
    let shown = walk.query(0, "volume show db");
    assert_eq!((states(&fewer), states(&shown.document)), (vec!["in_sync"; 2], vec!["in_sync"; 2]), "{fewer}");
    has_lines(&shown.context, &shown.text, &lines_of_volume(&shown.document));
    let list = walk.query(2, "replica list");
    has_lines(&list.context, &list.text, &["no replicas or witnesses on this node".to_owned()]);
    walk.refused_one(2, 3, "db", "replica show db");
    walk.changed(0, "replica add db three/tank");
    walk.wait_until_whole(0);
    walk.changed(0, "replica rebuild db two --yes");
    walk.wait_until_whole(0);
    walk.enter("with replicas that were made anew", &[0, 1, 2]);
    walk.served(0, &ALL);
    walk.everywhere(&[0, 1, 2], Some(0), ALL.standing);
    for node in 0..3 {
        walk.attention(node, &[]);
        walk.reads(node, &NAMES);
    }
}

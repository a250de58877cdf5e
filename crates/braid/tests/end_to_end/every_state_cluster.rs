//! Volumes of several nodes in every state: what is printed for people, what is printed with `--json`, the exit status and what the API answered
//! say the same, by the judge of `every_state.rs`; and every node says the same of the cluster.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api;
use crate::every_state::{Judge, Outcome, flat};
use crate::every_state_words::*;
use crate::replicated::{Cluster, WHOLE};
use crate::support::*;

pub const NAMES: [&str; 3] = ["one", "two", "three"];

/// So long nothing changes that is said: longer than nodes wait before they ask each other again.
const STEADY: Duration = Duration::from_secs(3);

/// What every node that has a replica can be asked in every state.
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

/// Of a volume that is exported on the node that serves it, and has the snapshot `db@one`.
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

/// On a node that has a replica and has never served the volume.
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

/// On a node that knows the volume, while another one serves it.
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

/// While the node of the third replica does not answer.
const OF_AWAY: &[Refusal] = &[
    (4, "db", "replica add db three/slow"),
    (6, "three", "replica rebuild db three --yes"),
    (6, "three", "node renew three"),
    (4, "three", "node remove three --yes"),
];

const OF_ENDED: &[Refusal] = &[(1, "db", "volume detach db"), (1, "db", "snapshot create db@two")];

/// What is walked here, for the list of all commands.
pub fn templates() -> Vec<&'static str> {
    let refused = [OF_SERVED, OF_OTHERS, OF_DETACHED, OF_AWAY, OF_ENDED].into_iter().flatten();
    READS.into_iter().chain(refused.map(|(.., typed)| *typed)).collect()
}

/// What is to be told of the volume in a state.
struct Told {
    /// How its voters do, by the word of the node that serves it.
    voters: [&'static str; 3],
    /// By that of the cluster.
    standing: [&'static str; 3],
    /// How the array above them does.
    health: &'static str,
    /// How many failures that one tolerates now.
    tolerates: u64,
}

const ALL: Told = Told { voters: ["in_sync"; 3], standing: ["in_sync"; 3], health: "whole", tolerates: 2 };
const AWAY: Told = Told {
    voters: ["in_sync", "in_sync", "out"],
    standing: ["in_sync", "in_sync", "absent"],
    health: "degraded",
    tolerates: 1,
};
const FILLED: Told = Told {
    voters: ["in_sync", "in_sync", "filling"],
    standing: ["in_sync", "in_sync", "behind"],
    health: "rebuilding",
    tolerates: 1,
};
const TAKEN: Told = Told {
    voters: ["out", "in_sync", "in_sync"],
    standing: ["absent", "in_sync", "in_sync"],
    health: "degraded",
    tolerates: 1,
};

/// Nodes, each with a judge.
pub struct Walk {
    pub cluster: Cluster,
    judges: Vec<Judge>,
    state: &'static str,
}

impl Walk {
    pub fn of(cluster: Cluster) -> Walk {
        let judges = cluster.nodes.iter().map(Judge::of).collect();
        Walk { cluster, judges, state: "made" }
    }

    fn judge(&mut self, node: usize, typed: &str) -> Outcome {
        let state = format!("{}, on node {}", self.state, NAMES[node]);
        self.judges[node].judge(&self.cluster.nodes[node], &state, typed)
    }

    /// A command that changes nothing.
    #[track_caller]
    pub fn told(&mut self, node: usize, typed: &str) -> Outcome {
        let outcome = self.judge(node, typed);
        assert!(!outcome.changed && outcome.error().is_none(), "{}: {}", outcome.tell, outcome.document);
        outcome
    }

    /// One that changes something; gives its answer.
    #[track_caller]
    pub fn changed(&mut self, node: usize, typed: &str) -> Value {
        let outcome = self.judge(node, typed);
        assert!(outcome.changed, "{}: {}", outcome.tell, outcome.document);
        outcome.document
    }

    pub fn refused(&mut self, node: usize, refusals: &[Refusal]) {
        for (status, object, typed) in refusals {
            self.refused_one(node, *status, object, typed);
        }
    }

    #[track_caller]
    pub fn refused_one(&mut self, node: usize, status: i32, object: &str, typed: &str) {
        let outcome = self.judge(node, typed);
        is_refused(&outcome, status, object);
        is_said_of_a_volume(&outcome);
    }

    /// A state begins; nothing that is said on these nodes changes any more.
    pub fn enter(&mut self, state: &'static str, nodes: &[usize]) {
        self.state = state;
        let (mut last, mut since) = (Vec::new(), Instant::now());
        wait_for("what is said to stay the same", || {
            let now: Vec<Value> = nodes.iter().map(|node| said_by(&self.cluster.nodes[*node])).collect();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            thread::sleep(Duration::from_millis(200));
            (since.elapsed() > STEADY).then_some(())
        });
    }

    /// Nothing needs attention on any of these nodes.
    pub fn wait_until_well(&self, nodes: &[usize]) {
        let is_well = |node: &usize| self.cluster.nodes[*node].json(&["status"])["attention"] == json!([]);
        wait_for("nothing to need attention", || nodes.iter().all(is_well).then_some(()));
    }

    /// All replicas hold everything, and the copies are equal.
    fn wait_until_whole(&self, by: usize) {
        self.cluster.wait_for_states(by, &WHOLE);
        wait_for("the copies to be equal", || {
            let array = self.cluster.nodes[by].json(&["array", "show", "db"]);
            (array["redundancy"]["health"] == "whole").then_some(())
        });
        self.wait_until_well(&[0, 1, 2]);
    }

    /// These nodes know that another one is dead; why it does not answer may have been something else at first.
    pub fn wait_until_away(&self, nodes: &[usize], other: &str) {
        for node in nodes {
            wait_for("a node to be away", || {
                let shown = self.cluster.nodes[*node].json(&["node", "show", other]);
                shown["reason"].as_str()?.contains("nobody listens there").then_some(())
            });
        }
    }

    /// What can be asked in every state, of replica and nodes in particular.
    fn reads(&mut self, node: usize, here: &[&str]) {
        for typed in READS {
            self.told(node, typed);
        }
        let shown = self.told(node, "replica show db");
        has_lines(&shown.tell, &shown.text, &lines_of_replica(&shown.document));
        let list = self.told(node, "replica list");
        let replica = &items(&list.document, "replicas")[0];
        let (data, epoch) = (text(replica, "data"), &replica["register"]["epoch"]);
        let voter = format!("{} of {}", replica["voter"], replica["voters"]);
        let row = format!("db {voter} ready {data} {SIZE} {epoch} {}", replica["connections"]);
        assert_eq!(lines(&list.text)[1..], [row], "{}", list.tell);
        self.nodes(node, here);
    }

    /// What a node says of all nodes, of which these answer.
    pub fn nodes(&mut self, node: usize, here: &[&str]) {
        let list = self.told(node, "node list");
        let rows = lines(&list.text);
        assert_eq!(text(&list.document, "own"), NAMES[node], "{}", list.document);
        for one in items(&list.document, "nodes") {
            let name = text(one, "name");
            let state = if here.contains(&name) { "here" } else { "away" };
            assert_eq!((text(one, "state"), one["reason"].is_null()), (state, state == "here"), "{}: {one}", list.tell);
            assert_eq!(one["own"] == true, name == NAMES[node], "{}: {one}", list.tell);
            let row = rows.iter().find(|row| row.split(' ').next() == Some(name));
            let row = row.unwrap_or_else(|| panic!("{}: {name} is missing in {}", list.tell, list.text));
            assert!(row.contains(state) && row.contains(text(one, "api")), "{}: {row} is not {one}", list.tell);
            assert_eq!(row.contains("(this one)"), one["own"] == true, "{}: {row}", list.tell);
            let shown = self.told(node, &format!("node show {name}"));
            assert_eq!(shown.document, *one, "{}", shown.tell);
            has_lines(&shown.tell, &shown.text, &lines_of_node(one));
        }
    }

    /// What needs attention on a node, by its subjects, and that there is no more.
    pub fn attention(&mut self, node: usize, subjects: &[&str]) -> Vec<Value> {
        let (status, check) = (self.told(node, "status"), self.told(node, "status --check"));
        let attention = items(&status.document, "attention").to_vec();
        assert_eq!(check.document, status.document["attention"], "{}", check.tell);
        let mut said: Vec<&str> = attention.iter().map(|item| text(item, "subject")).collect();
        said.sort_unstable();
        assert_eq!(said, subjects, "{}: {attention:?}", status.tell);
        let (verdict, expected) = match subjects.len() {
            0 => ("All is well.".to_owned(), 0),
            1 => ("1 thing needs attention.".to_owned(), 5),
            count => (format!("{count} things need attention."), 5),
        };
        assert_eq!((status.status, check.status), (0, expected), "{}", check.tell);
        for shown in [&status, &check] {
            assert!(shown.text.starts_with(&verdict), "{}: {verdict:?} is not said: {}", shown.tell, shown.text);
        }
        attention
    }

    /// On the node that serves it: its replicas, the array above them, what is measured.
    fn served(&mut self, by: usize, how: &Told) {
        let shown = self.told(by, "volume show db");
        let volume = &shown.document;
        assert_eq!((text(volume, "state"), states(volume)), ("serving", how.voters.to_vec()), "{}", shown.tell);
        assert_eq!(items(volume, "attention").is_empty(), how.voters == WHOLE, "{}: {volume}", shown.tell);
        has_lines(&shown.tell, &shown.text, &lines_of_volume(volume));
        let list = self.told(by, "volume list");
        assert_eq!(items(&list.document, "replicated"), std::slice::from_ref(volume), "{}", list.tell);
        has_words_of_voters(&list.tell, &list.text, volume);

        let array = self.told(by, "array show db");
        let redundancy = &array.document["redundancy"];
        let told = [&redundancy["health"], &redundancy["tolerates"], &redundancy["tolerates_now"]];
        assert_eq!(told, [&json!(how.health), &json!(2), &json!(how.tolerates)], "{}", array.tell);
        let rows = lines(&array.text);
        for row in [format!("health {}", how.health), format!("tolerates {}", failures(how.tolerates))] {
            assert!(rows.contains(&row), "{}: no line {row:?} in {}", array.tell, array.text);
        }
        for sentence in items(volume, "attention") {
            assert!(items(&array.document, "attention").contains(sentence), "{}: no {sentence}", array.tell);
        }
        let (status, measured) = api::ask(&self.cluster.nodes[by], "GET", "/metrics", "");
        let in_sync = how.voters.iter().filter(|state| **state == "in_sync").count();
        let line = format!("braid_replicated_replicas_in_sync{{volume=\"db\"}} {in_sync}.0\n");
        assert!(status == 200 && measured.contains(&line), "{line}: {measured}");
        self.snapshots(by, how.voters.map(|state| state == "in_sync"));
    }

    /// Which replicas have the snapshot, as far as the node that is asked sees that.
    fn snapshots(&mut self, node: usize, has: [bool; 3]) {
        let list = self.told(node, "snapshot list db");
        let shown = self.told(node, "snapshot show db@one");
        assert_eq!(items(&list.document, "snapshots"), std::slice::from_ref(&shown.document), "{}", list.tell);
        let replicas = items(&shown.document, "replicas");
        let told: Vec<bool> = replicas.iter().map(|replica| replica["has"] == true).collect();
        assert_eq!(told, has, "{}: {}", shown.tell, shown.document);
        has_lines(&shown.tell, &shown.text, &lines_of_snapshot(&shown.document));
    }

    /// Each of these nodes, all that answer, says the same of the volume: which node serves it, and how its voters stand. Gives that.
    fn everywhere(&mut self, nodes: &[usize], server: Option<usize>, standing: [&str; 3]) -> Value {
        let mut first = Value::Null;
        let server = server.map(|server| NAMES[server]);
        for node in nodes {
            let Outcome { tell, document, text: shown, .. } = self.told(*node, "volume list --all");
            let [volume] = items(&document, "volumes") else { panic!("{tell}: one volume is there: {document}") };
            assert_eq!((volume["served_by"].as_str(), states(volume)), (server, standing.to_vec()), "{tell}: {volume}");
            assert_eq!(text(volume, "service"), if server.is_some() { "served" } else { "nobody" }, "{tell}");
            let silent = items(&document, "nodes").iter().filter(|node| node["answers"] == false).count();
            let away = NAMES.len() - nodes.len();
            assert_eq!((silent, items(&document, "incomplete").len()), (away, away), "{tell}: {document}");
            let words = flat(&shown);
            for wanted in words_of_cluster(&document, volume) {
                assert!(words.contains(&wanted), "{tell}: {wanted:?} is not told in words: {shown}");
            }
            assert!(first.is_null() || first == *volume, "{tell}: {volume} is not {first}");
            first = volume.clone();
        }
        first
    }

    /// Where another node serves the volume, or none, and this one has served it.
    fn detached(&mut self, node: usize) {
        let shown = self.told(node, "volume show db");
        let volume = &shown.document;
        assert_eq!((text(volume, "state"), states(volume)), ("detached", vec!["unknown"; 3]), "{}", shown.tell);
        let rest = [&volume["epoch"], &volume["snapshots"], &volume["attention"]];
        assert_eq!(rest, [&json!(0), &Value::Null, &json!([])], "{}", shown.tell);
        has_lines(&shown.tell, &shown.text, &lines_of_volume(volume));
        self.snapshots(node, [true; 3]);
    }

    fn exported(&mut self, node: usize, state: &str) {
        let shown = self.told(node, "export show db");
        let export = &shown.document;
        assert_eq!(
            (text(export, "state"), export["reason"].is_null()),
            (state, state == "listening"),
            "{}",
            shown.tell
        );
        let rows = lines(&shown.text);
        let reason = export["reason"].as_str().map(|reason| format!("reason {}", flat(reason)));
        for row in [Some(format!("state {state}")), reason].into_iter().flatten() {
            assert!(rows.contains(&row), "{}: no line {row:?} in {}", shown.tell, shown.text);
        }
        let list = self.told(node, "export list");
        assert_eq!(text(&items(&list.document, "exports")[0], "state"), state, "{}", list.tell);
        let row = lines(&list.text).into_iter().find(|row| row.starts_with("db ")).unwrap_or_default();
        assert!(row.contains(state), "{}: {}", list.tell, list.text);
    }
}

/// What a node says that changes while nodes and voters are asked.
fn said_by(daemon: &Daemon) -> Value {
    let volume = daemon.try_json(&["volume", "show", "db"]).unwrap_or_default();
    json!([daemon.json(&["status"])["attention"], daemon.json(&["node", "list"])["nodes"], volume])
}

/// Lets the job wait that fills a replica, and gives its name.
fn hold_filling(cluster: &Cluster) -> String {
    let one = &cluster.nodes[0];
    wait_for("a replica that is being filled", || {
        let jobs = one.json(&["job", "list"]);
        let goes_on = |job: &Value| job["state"] == "running" || job["state"] == "paused";
        let is_filling = |job: &&Value| job["kind"] == "rebuild" && goes_on(job);
        let name = jobs["jobs"].as_array()?.iter().find(is_filling)?["name"].as_str()?.to_owned();
        let is_held = one.any(&["job", "pause", &name]).status.success();
        (is_held && cluster.states(0)[2] == "filling").then_some(name)
    })
}

#[test]
fn volumes_of_several_nodes_are_told_alike_while_a_replica_goes_and_returns() {
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
    assert!(said.contains("replica three/slow is out") && said.contains("returns by itself"), "{said}");
    walk.attention(1, &["node"]);
    for node in [0, 1] {
        walk.reads(node, &["one", "two"]);
    }
    walk.refused(0, OF_AWAY);

    walk.cluster.nodes[2].start_again();
    let job = hold_filling(&walk.cluster);
    walk.enter("with a replica that is being filled", &[0, 1, 2]);
    walk.served(0, &FILLED);
    walk.everywhere(&[0, 1, 2], Some(0), FILLED.standing);
    let said = json!(walk.attention(0, &["volume db"])).to_string();
    assert!(said.contains("replica three/slow is being filled") && !said.contains("wait until"), "{said}");
    for words in [format!("job {job} waits, by command"), format!("braid job resume {job}")] {
        assert!(said.contains(&words), "{words:?} is not said: {said}");
    }
    let jobs = walk.told(0, "job list");
    assert!(lines(&jobs.text).iter().any(|row| row.starts_with(&format!("{job} rebuild 2 paused"))), "{}", jobs.text);
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

/// A volume of three nodes, exported on the one that serves it and prepared on another one.
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
fn volumes_of_several_nodes_are_told_alike_whichever_node_serves_them_or_none() {
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
    let shown = walk.told(1, "volume show db");
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
fn volumes_of_several_nodes_are_told_alike_when_ended_by_command_and_with_other_voters() {
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
    let shown = walk.told(0, "volume show db");
    assert_eq!((states(&fewer), states(&shown.document)), (vec!["in_sync"; 2], vec!["in_sync"; 2]), "{fewer}");
    has_lines(&shown.tell, &shown.text, &lines_of_volume(&shown.document));
    let list = walk.told(2, "replica list");
    has_lines(&list.tell, &list.text, &["no replicas or witnesses on this node".to_owned()]);
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

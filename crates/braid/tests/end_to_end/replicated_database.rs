//! PostgreSQL on a volume with three replicas: whichever node dies, the database waits and loses no transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use crate::filesystems::Block;
use crate::replicated::*;
use crate::support::*;

/// PostgreSQL does not run as root: this user owns nothing.
const UNPRIVILEGED: &str = "65534";

/// Returns the folder of the programs of the newest version: the package puts few of them on the path.
fn programs() -> String {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is there: `make tools` installs it");
    let numbers = versions.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let newest = numbers.max().expect("PostgreSQL is there: `make tools` installs it");
    format!("/usr/lib/postgresql/{newest}/bin")
}

/// Returns the command of a program, run as its user. Changing the user clears the parent-death signal, so that it is set once more.
fn program(name: &str) -> std::process::Command {
    let mut command = command("setpriv");
    command.args(["--pdeathsig", "KILL", "--reuid", UNPRIVILEGED, "--regid", UNPRIVILEGED, "--clear-groups", "--"]);
    command.arg(format!("{}/{name}", programs())).env("LC_ALL", "C").current_dir("/");
    command
}

/// Runs a program to its end, and checks that it succeeds.
#[track_caller]
fn does(name: &str, arguments: &[&str]) -> String {
    let out = program(name).args(arguments).output().expect("it can be started");
    assert!(out.status.success(), "{name} {}: {}\n{}", arguments.join(" "), out.status, said(&out));
    said(&out)
}

/// A server, and the folder of the socket that it listens on.
struct Postgres {
    running: Running,
    sockets: String,
}

impl Postgres {
    #[track_caller]
    fn start(folder: &Folder, name: &str, data: &str) -> Postgres {
        let sockets = folder.join("postgres");
        std::fs::create_dir_all(&sockets).expect("a folder can be made");
        std::os::unix::fs::chown(&sockets, Some(65534), Some(65534)).expect("it can be given away");
        let mut server = program("postgres");
        server.args(["-D", data, "-k", &sockets, "-c", "listen_addresses="]);
        // Little memory and many checkpoints, so that data are soon written to the volume and read from there.
        let settings = ["fsync=on", "shared_buffers=4MB", "max_wal_size=16MB", "min_wal_size=8MB"];
        server.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let running = Running::start(folder, name, &mut server);
        let postgres = Postgres { running, sockets };
        wait_for("PostgreSQL to begin", || postgres.running.log().contains("ready to accept").then_some(()));
        postgres
    }

    /// Returns the options for its clients.
    fn reach(&self) -> [&str; 4] {
        ["-h", &self.sockets, "-U", "postgres"]
    }

    fn tell(&self, query: &str) -> String {
        let options = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", query];
        does("psql", &[&self.reach()[..], &options].concat()).trim().to_owned()
    }

    fn transactions(&self) -> u64 {
        self.tell("select count(*) from pgbench_history").parse().expect("a count")
    }

    /// Stops the server, and checks that its log reports no problem.
    #[track_caller]
    fn stop(mut self) {
        self.running.interrupt();
        assert!(self.running.wait().success(), "{}", self.running.log());
        let log = self.running.log();
        assert!(!["ERROR:", "FATAL:", "PANIC:", "WARNING:"].iter().any(|word| log.contains(word)), "{log}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // After a failure: ends all its processes, as the volume below is removed next.
        self.running.signal(Signal::QUIT);
        for _ in 0..300 {
            if self.running.ended().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Clients that work without a pause, one run of pgbench after the other, until they are stopped.
struct Clients {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Clients {
    fn start(postgres: &Postgres) -> Clients {
        let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let reach = postgres.reach().map(str::to_owned);
        let thread = {
            let (ends, done) = (Arc::clone(&ends), Arc::clone(&done));
            std::thread::spawn(move || {
                while !ends.load(Ordering::Acquire) {
                    let mut arguments: Vec<&str> = reach.iter().map(String::as_str).collect();
                    // As in TPC-B: three updates, a read and a record of history. Without `-n` pgbench would empty the history.
                    arguments.extend(["-n", "-c", "4", "-b", "tpcb-like", "-T", "5", "postgres"]);
                    let output = does("pgbench", &arguments);
                    assert!(output.contains("number of failed transactions: 0 "), "{output}");
                    let count = output
                        .lines()
                        .find_map(|line| line.strip_prefix("number of transactions actually processed: "));
                    let count: u64 = count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{output}"));
                    done.fetch_add(count, Ordering::AcqRel);
                }
            })
        };
        Clients { ends, done, thread }
    }

    /// Stops the clients. Returns the number of committed transactions.
    fn end(self) -> u64 {
        self.ends.store(true, Ordering::Release);
        self.thread.join().expect("no transaction failed");
        self.done.load(Ordering::Acquire)
    }
}

/// Waits until new transactions are committed.
#[track_caller]
fn works(postgres: &Postgres) {
    let before = postgres.transactions();
    wait_for("transactions", || (postgres.transactions() > before + 20).then_some(()));
}

/// The path of a socket that leads the clients of a volume to the node that serves it.
struct ServingPath {
    path: String,
}

impl ServingPath {
    fn lead_to(&self, daemon: &Daemon) {
        let beside = format!("{}.new", self.path);
        std::os::unix::fs::symlink(daemon.nbd_socket("db"), &beside).expect("a link can be made");
        std::fs::rename(&beside, &self.path).expect("a link can take the place of another one");
    }
}

#[test]
fn postgresql_waits_while_replicas_and_the_serving_node_die_and_loses_nothing() {
    const BYTES: u64 = 160 * MIB;
    need_root();
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    let replicas = "one/tank,two/tank,three/tank";
    cluster.nodes[0].json(&["volume", "create", "db", "160M", "--replicas", replicas]);
    cluster.nodes[0].export("db");
    let rig = Folder::new();
    let serving = ServingPath { path: rig.join("way.sock") };
    serving.lead_to(&cluster.nodes[0]);
    let socket = rig.join("kit.sock");
    // A client that reconnects and repeats its requests, as a kernel or a virtual machine would.
    let mut kit = command("nbdkit");
    kit.args(["-f", "-U", &socket, "--filter=retry", "nbd", &format!("uri=nbd+unix:///db?socket={}", serving.path)]);
    kit.args(["retries=60", "retry-delay=1", "retry-exponential=no"]);
    let kit = Running::start(&rig, "nbdkit", &mut kit);
    wait_for("nbdkit to listen", || std::path::Path::new(&socket).exists().then_some(()));
    let mut block = Block::within(&rig, &format!("nbd+unix:///?socket={socket}"), 4096);
    let owner = format!("root_owner={UNPRIVILEGED}:{UNPRIVILEGED}");
    run("mkfs.ext4", &["-q", "-F", "-E", &owner, &block.device]);
    let data = format!("{}/data", block.mount("ext4"));
    does(
        "initdb",
        &["-D", &data, "-U", "postgres", "-A", "trust", "--locale=C", "-E", "UTF8", "-k", "--wal-segsize=1"],
    );

    let postgres = Postgres::start(&rig, "postgres", &data);
    does("pgbench", &[&postgres.reach()[..], &["-i", "-q", "-s", "2", "postgres"]].concat());
    let clients = Clients::start(&postgres);
    works(&postgres);

    // A replica's node dies and is back; then another one.
    for node in [2, 1] {
        cluster.nodes[node].kill();
        works(&postgres);
        cluster.nodes[node].start_again();
        cluster.wait_for_states(0, &WHOLE);
    }
    // The serving node dies, and is back.
    cluster.nodes[0].restart(true);
    works(&postgres);
    cluster.wait_for_states(0, &WHOLE);
    // The serving node dies, and another one takes the volume over.
    cluster.nodes[0].kill();
    cluster.nodes[1].json(&["volume", "attach", "db"]);
    cluster.nodes[1].export("db");
    serving.lead_to(&cluster.nodes[1]);
    works(&postgres);
    cluster.nodes[0].start_again();
    cluster.wait_for_states(1, &WHOLE);
    works(&postgres);
    let answered = clients.end();
    postgres.stop();

    // The content of the volume, with nothing of it in memory.
    block.unmount();
    run("fsck.ext4", &["-f", "-n", &block.device]);
    block.mount("ext4");
    does("pg_checksums", &["--check", "-D", &data]);
    let postgres = Postgres::start(&rig, "again", &data);
    does("pg_amcheck", &[&postgres.reach()[..], &["--install-missing", "--heapallindexed", "--all"]].concat());
    assert_eq!(postgres.transactions(), answered, "each transaction that was answered is there, and no other");
    let sums =
        "select (select sum(delta) from pgbench_history) = all (array[(select sum(abalance) from pgbench_accounts),
        (select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from pgbench_branches)])";
    assert_eq!(postgres.tell(sums), "t", "what was moved is what is there");
    postgres.stop();
    drop(block);
    drop(kit);

    cluster.nodes[1].braid(&["export", "remove", "db"]);
    cluster.nodes[1].braid(&["volume", "detach", "db"]);
    let first = content_of(&cluster.nodes[0], BYTES);
    for node in &cluster.nodes[1..] {
        assert!(content_of(node, BYTES) == first, "a replica differs");
    }
}

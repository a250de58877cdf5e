//! Clients that exhaust resources: storms of connections, handshakes that never end, floods of options and of requests,
//! requests of the largest length. Memory stays within the documented bounds, all resources are released, and other
//! clients, both connected and new, are served meanwhile.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use crate::nbd::{self, Client};
use crate::support::*;

/// Memory for data in flight, for each of two shards.
const BUFFERS: u64 = 64 * MIB;
/// What docs/reference/nbd.md allows for each client besides, rounded up.
const CLIENT_BYTES: u64 = 48 * KIB;

/// A daemon with an attacked export, on a Unix socket and on TCP, and a second export beside it.
struct Attacked {
    daemon: Daemon,
    neighbour: Client,
    turn: u8,
    resident_before: u64,
    files_before: usize,
}

/// Returns a number of the daemon's memory in /proc, in bytes.
fn memory(daemon: &Daemon, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.running.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with(field)).expect("the kernel reports it");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * KIB
}

fn open_files(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.running.id())).expect("it runs").count()
}

impl Attacked {
    fn start() -> Attacked {
        let daemon = Daemon::start_in(Folder::new(), &["--shards", "2", "--buffers", "64M"]);
        daemon.array("target", "concat", &["mem:64M"]);
        daemon.array("beside", "concat", &["mem:64M"]);
        let neighbour = Client::open(&daemon.nbd_socket("beside"), "beside").expect("it is served");
        let (resident_before, files_before) = (memory(&daemon, "VmRSS:"), open_files(&daemon));
        let mut attacked = Attacked { daemon, neighbour, turn: 0, resident_before, files_before };
        attacked.assert_others_are_served();
        attacked
    }

    fn socket(&self) -> String {
        self.daemon.nbd_socket("target")
    }

    /// Checks that the connected client is served, and that a new client is served and disconnects.
    #[track_caller]
    fn assert_others_are_served(&mut self) {
        self.turn += 1;
        let data = [self.turn; 4096];
        self.neighbour.write(u64::from(self.turn) * 4096, &data).expect("the neighbour writes");
        let offset = u64::from(self.turn) * 4096;
        assert_eq!(self.neighbour.read(offset, 4096).expect("the neighbour reads"), data);
        let socket = self.daemon.nbd_socket("beside");
        let mut new_client = Client::open(&socket, "beside").expect("a new client is served");
        assert_eq!(new_client.read(offset, 4096).expect("the new client reads"), data);
        new_client.send(0, nbd::DISCONNECT, 0, 0, &[]).expect("the new client disconnects");
    }

    /// All buffers may be in use by now; beyond them memory grows only by the cost of the clients.
    #[track_caller]
    fn assert_memory_is_bounded(&self, clients: u64) {
        let bound = self.resident_before + 2 * BUFFERS + clients * CLIENT_BYTES + 64 * MIB;
        let peak = memory(&self.daemon, "VmHWM:");
        assert!(peak <= bound, "{peak} bytes of memory at the peak; {} before, {bound} allowed", self.resident_before);
    }

    /// Checks that nothing of the attackers is left after they disconnect.
    #[track_caller]
    fn assert_all_is_released(&mut self) {
        wait_for("the attackers' places to be free", || {
            let connections = self.daemon.json(&["export", "show", "target"])["connections"].as_u64();
            (connections == Some(0)).then_some(())
        });
        // The command line and a client that is disconnecting may still have files open.
        wait_for("their sockets to be closed", || (open_files(&self.daemon) <= self.files_before + 3).then_some(()));
        self.assert_others_are_served();
        let mut client = Client::open(&self.socket(), "target").expect("the target is served");
        client.write(0, &[9; 512]).expect("it writes");
        assert!(self.daemon.running.ended().is_none());
        let log = self.daemon.running.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// Writes as much as the server accepts at once.
fn pour(stream: &mut UnixStream, bytes: &[u8]) {
    stream.set_nonblocking(true).expect("a socket has that mode");
    let mut rest = bytes;
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(n) => rest = &rest[n..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The server accepts no more for now, or has closed the connection.
            Err(_) => break,
        }
    }
}

#[test]
fn ten_thousand_connections_are_opened_and_dropped() {
    let mut attacked = Attacked::start();
    let socket = attacked.socket();
    let port = attacked.daemon.export_tcp("target", "by-tcp");
    for n in 0..10_000 {
        if n % 2 == 0 {
            // These clients do not wait for the server's greeting.
            let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            if n % 4 == 0 {
                let _ = (&stream).write_all(&3u32.to_be_bytes());
            }
            if n % 6 == 0 {
                let _ = stream.shutdown(Shutdown::Write);
            }
        } else {
            let mut stream = nbd::connect(&socket).expect("it listens");
            match n % 16 {
                1 | 3 | 5 => {}
                7 => drop(stream.write_all(&[0, 0])),
                9 => drop(stream.write_all(&[&3u32.to_be_bytes()[..], &nbd::option(3, &[])].concat())),
                11 => drop(stream.write_all(&[&3u32.to_be_bytes()[..], &nbd::option_go("target")].concat())),
                _ => {
                    // Goes as far as a request, whose reply finds the connection closed.
                    let request = nbd::request(0, nbd::READ, 1, 0, MIB as u32);
                    let all = [&3u32.to_be_bytes()[..], &nbd::option_go("target"), &request].concat();
                    drop(stream.write_all(&all));
                }
            }
        }
        if n % 500 == 0 {
            attacked.assert_others_are_served();
        }
    }
    attacked.assert_memory_is_bounded(2 * 1024);
    attacked.assert_all_is_released();
}

#[test]
fn handshakes_that_never_end_keep_no_client_out() {
    let mut attacked = Attacked::start();
    let socket = attacked.socket();
    let mut slow = Vec::new();
    // More than two shards accept at a time, each a little further than the last.
    for n in 0..2_500 {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        let bytes = [&3u32.to_be_bytes()[..], &nbd::option_go("target")].concat();
        pour(&mut stream, &bytes[..n % (bytes.len() - 1)]);
        slow.push(stream);
        if n % 250 == 0 {
            attacked.assert_others_are_served();
            // Then one more byte from each.
            for stream in &mut slow {
                pour(stream, &[0]);
            }
        }
    }
    attacked.assert_others_are_served();
    // The attacked export, too, serves honest clients.
    let mut honest = Client::open(&socket, "target").expect("it is served");
    honest.write(0, &[1; 4096]).expect("it writes");
    drop(honest);
    attacked.assert_memory_is_bounded(2 * 1024);
    drop(slow);
    attacked.assert_all_is_released();
}

#[test]
fn floods_of_options_are_ended() {
    let mut attacked = Attacked::start();
    let socket = attacked.socket();
    let list = nbd::option(3, &[]);
    let long = nbd::option(77, &vec![b'x'; 16 << 10]);
    let names = nbd::option(7, &[&4096u32.to_be_bytes()[..], &[b'n'; 4096], &[0, 0]].concat());
    let mut floods = Vec::new();
    for n in 0..60 {
        let mut stream = nbd::connect(&socket).expect("it listens");
        stream.write_all(&3u32.to_be_bytes()).expect("it is read");
        let option = [&list, &long, &names][n % 3];
        pour(&mut stream, &option.repeat((4 << 20) / option.len()));
        floods.push(stream);
        if n % 10 == 0 {
            attacked.assert_others_are_served();
        }
    }
    attacked.assert_memory_is_bounded(60);
    for (n, stream) in floods.iter_mut().enumerate() {
        // A client that reads the replies gets as far as the limit, a client that does not as far as the socket buffer;
        // the end is the same.
        let option = [&list, &long, &names][n % 3];
        stream.set_nonblocking(false).expect("a socket has that mode");
        let reader = stream.try_clone().expect("a socket can be cloned");
        std::thread::scope(|scope| {
            let mut reader = reader;
            let closed = scope.spawn(move || nbd::is_closed(&mut reader));
            for _ in 0..2000 {
                if stream.write_all(option).is_err() {
                    break;
                }
            }
            assert!(closed.join().expect("it does not panic"), "flood {n} is left open");
        });
    }
    attacked.assert_all_is_released();
}

#[test]
fn requests_with_unread_replies() {
    let mut attacked = Attacked::start();
    let socket = attacked.socket();
    let mut floods = Vec::new();
    for n in 0..60u32 {
        let mut client = Client::open(&socket, "target").expect("there is room");
        let len = [512, 4096, 65536, MIB as u32][n as usize % 4];
        let flood: Vec<u8> = (0..8192).flat_map(|k| nbd::request(0, nbd::READ, k, (k % 32) * MIB, len)).collect();
        pour(&mut client.stream, &flood);
        floods.push(client);
        if n % 10 == 9 {
            attacked.assert_others_are_served();
        }
    }
    attacked.assert_others_are_served();
    attacked.assert_memory_is_bounded(60);
    drop(floods);
    attacked.assert_all_is_released();
}

#[test]
fn the_longest_requests_from_the_most_connections() {
    let mut attacked = Attacked::start();
    let socket = attacked.socket();
    let mut clients: Vec<Client> = Vec::new();
    while let Ok(client) = Client::open(&socket, "target") {
        clients.push(client);
    }
    assert_eq!(clients.len(), 64, "what docs/reference/nbd.md says of one export");
    const LEN: usize = 32 << 20;
    let data = noise(LEN as u64, 77);
    for (n, client) in clients.iter_mut().enumerate() {
        match n % 4 {
            // Announces a write, and sends a part.
            0 => {
                let mut bytes = nbd::request(0, nbd::WRITE, 1, 0, LEN as u32);
                bytes.extend(&data[..LEN / 2]);
                pour(&mut client.stream, &bytes);
            }
            // Sends reads, and reads no reply.
            1 => pour(&mut client.stream, &nbd::request(0, nbd::READ, 1, 0, LEN as u32).repeat(64)),
            // Both continue below.
            _ => {}
        }
        if n % 16 == 0 {
            attacked.assert_others_are_served();
        }
    }
    // Honest requests get through one after the other, however long they are.
    for n in [2, 3, 62, 63] {
        let client = &mut clients[n];
        client.write(16 * MIB, &data).expect("a write of 32 MiB");
        assert!(client.read(16 * MIB, LEN).expect("a read of 32 MiB") == data);
        attacked.assert_others_are_served();
    }
    attacked.assert_memory_is_bounded(64);
    drop(clients);
    attacked.assert_all_is_released();
}

/// Requests of the announced largest block work with any memory limit; longer ones are refused at once.
#[test]
fn requests_of_the_announced_largest_block_work() {
    for buffers in ["8M", "32M", "64M"] {
        let daemon = Daemon::start_in(Folder::new(), &["--shards", "1", "--buffers", buffers]);
        // On a file: a disk in memory lends its own memory and uses no buffers.
        let disk = daemon.folder.sparse("disk", 64 * MIB);
        let uri = daemon.array("data", "concat", &[&disk]);
        let info: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).expect("JSON");
        let announced = info["exports"][0]["block_size_maximum"].as_u64().expect("it is announced");
        let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
        for _ in 0..3 {
            let read = client.read(0, announced as usize);
            assert_eq!(read.map(|data| data.len() as u64).map_err(|error| error.kind()), Ok(announced), "{buffers}");
        }
        let error = client.read(0, announced as usize + 4096).expect_err("it is longer than what is announced");
        assert_eq!(error.raw_os_error(), Some(nbd::EINVAL as i32), "{buffers}: {error}");
        client.read(0, 4096).expect("it goes on");
    }
}

//! Clients that break the protocol are disconnected; other clients are unaffected.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use crate::nbd::{self, Client};
use crate::support::*;

fn exported() -> Daemon {
    let daemon = Daemon::start();
    daemon.array("data", "concat", &["mem:64M"]);
    daemon
}

/// Returns the resident memory of the daemon, in bytes.
fn resident(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.running.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel reports it");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * KIB
}

#[test]
fn bytes_outside_the_protocol_end_only_their_connection() {
    let mut daemon = exported();
    let socket = daemon.nbd_socket("data");
    let mut honest = Client::open(&socket, "data").expect("an honest client is served");
    honest.write(0, &[7; 4096]).expect("it can write");

    let greeted = || {
        let mut stream = nbd::connect(&socket).expect("it listens");
        nbd::greet(&mut stream).expect("it greets");
        stream
    };
    let served = || Client::open(&socket, "data").expect("an honest handshake is answered").stream;
    type Attack<'a> = (&'a str, UnixStream, Vec<u8>);
    let attacks: Vec<Attack> = vec![
        ("HTTP instead of flags", nbd::connect(&socket).expect("it listens"), b"GET / HTTP/1.1\r\n\r\n".repeat(4)),
        ("unknown client flags", nbd::connect(&socket).expect("it listens"), vec![0xff; 4]),
        ("an option without its magic", greeted(), vec![0x41; 64]),
        ("an option of 4 GiB", greeted(), [b"IHAVEOPT", &7u32.to_be_bytes()[..], &[0xff; 4]].concat()),
        ("a request without its magic", served(), vec![0x42; 280]),
        ("a write of 4 GiB", served(), nbd::request(0, nbd::WRITE, 1, 0, u32::MAX)),
        ("random bytes", served(), noise(4096, 99)),
    ];
    for (what, mut stream, bytes) in attacks {
        // The server may close the connection during the write.
        let _ = stream.write_all(&bytes);
        assert!(nbd::is_closed(&mut stream), "{what}: the connection was left open");
        assert_eq!(honest.read(0, 4096).expect("the honest client goes on"), [7; 4096], "after {what}");
    }
    assert!(daemon.running.ended().is_none());
    let log = daemon.running.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn invalid_requests_get_an_error_and_the_connection_stays() {
    let daemon = exported();
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    let size = client.size_bytes;
    let error = |result: std::io::Result<()>| result.err().and_then(|e| e.raw_os_error());
    let cases: &[(&str, u16, u16, u64, u32)] = &[
        ("a read beyond the end", 0, nbd::READ, size, 4096),
        ("a read across the end", 0, nbd::READ, size - 512, 1024),
        ("a read whose end wraps around", 0, nbd::READ, u64::MAX - 4095, 8192),
        ("a trim beyond the end", 0, nbd::TRIM, size, 4096),
        ("an unknown command", 0, 77, 0, 0),
        ("an unknown flag", 0x8000, nbd::READ, 0, 4096),
    ];
    for &(what, flags, command, offset, length) in cases {
        assert_eq!(error(client.call(flags, command, offset, length, &[])), Some(nbd::EINVAL as i32), "{what}");
    }
    // Writing past the end: the protocol allows EINVAL and ENOSPC; the data that follow are not parsed as requests.
    let errno = error(client.call(0, nbd::WRITE, size - 512, 4096, &[0x25; 4096]));
    assert!(matches!(errno, Some(22 | 28)), "{errno:?}");
    client.write(0, &[1; 512]).expect("the connection lives");
    assert_eq!(client.read(0, 512).expect("and reads"), [1; 512]);
}

#[test]
fn stalled_clients_cost_bounded_memory_and_free_their_slots() {
    let daemon = exported();
    let socket = daemon.nbd_socket("data");
    let before = resident(&daemon);
    // Clients that send reads of megabytes and never read the replies; clients that announce a write and never send it;
    // clients that stop in the middle of the handshake. As many as an export accepts, and some more, which are refused.
    let mut stuck = Vec::new();
    for i in 0..80 {
        let Ok(mut stream) = nbd::connect(&socket) else { continue };
        if i % 3 == 2 {
            let _ = stream.write_all(&[0, 0]);
            stuck.push(stream);
            continue;
        }
        let Ok(mut client) = Client::open(&socket, "data") else { continue };
        client.stream.set_nonblocking(true).expect("a socket has that mode");
        if i % 3 == 0 {
            for n in 0..300 {
                if client.send(0, nbd::READ, (n % 32) * MIB, MIB as u32, &[]).is_err() {
                    break;
                }
            }
        } else {
            let _ = client.stream.write_all(&nbd::request(0, nbd::WRITE, 1, 0, 32 * MIB as u32));
        }
        stuck.push(client.stream);
    }
    assert!(stuck.len() > 40, "only {} connections were taken", stuck.len());
    let during = resident(&daemon);
    // Each connection uses only its share of the shard's arena, which is allocated at the start.
    assert!(during < before + 512 * MIB, "{before} bytes before, {during} with {} stuck clients", stuck.len());
    drop(stuck);
    // The connection slots become free: honest clients are served again.
    let mut honest = wait_for("room for an honest client", || Client::open(&socket, "data").ok());
    honest.write(0, &[5; 4096]).expect("it can write");
    assert_eq!(honest.read(0, 4096).expect("it can read"), [5; 4096]);
    wait_for("the count of connections to fall", || {
        (daemon.json(&["export", "show", "data"])["connections"].as_u64() == Some(1)).then_some(())
    });
}

#[test]
fn requests_arriving_byte_by_byte_are_parsed() {
    let daemon = exported();
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    let data = noise(512, 5);
    let mut bytes = nbd::request(0, nbd::WRITE, 11, 8192, 512);
    bytes.extend(&data);
    bytes.extend(nbd::request(0, nbd::READ, 12, 8192, 512));
    for byte in &bytes[..64] {
        client.stream.write_all(&[*byte]).expect("the server reads on");
    }
    client.stream.write_all(&bytes[64..]).expect("the server reads on");
    // Two requests in flight on overlapping ranges may complete in either order; the read may return either state.
    let mut handles = Vec::new();
    for _ in 0..2 {
        let (error, handle) = nbd::reply(&mut client.stream).expect("a reply");
        assert_eq!(error, 0);
        if handle == 12 {
            client.stream.read_exact(&mut [0; 512]).expect("the read's data");
        }
        handles.push(handle);
    }
    handles.sort_unstable();
    assert_eq!(handles, [11, 12]);
    assert_eq!(client.read(8192, 512).expect("it reads"), data);
}

#[test]
fn writes_before_a_disconnect_are_completed() {
    let daemon = exported();
    let socket = daemon.nbd_socket("data");
    let mut client = Client::open(&socket, "data").expect("it is served");
    client.write(MIB, &[3; 4096]).expect("it writes");
    client.send(0, nbd::DISCONNECT, 0, 0, &[]).expect("it says goodbye");
    assert!(nbd::is_closed(&mut client.stream));
    let mut next = Client::open(&socket, "data").expect("the next one is served");
    assert_eq!(next.read(MIB, 4096).expect("it reads"), [3; 4096]);
    next.call(0, nbd::WRITE_ZEROES, MIB, 4096, &[]).expect("it zeroes");
    assert_eq!(next.read(MIB, 4096).expect("it reads"), [0; 4096]);
}

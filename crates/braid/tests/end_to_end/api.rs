//! The HTTP API over its Unix socket, by hand: requests and replies as any client sees them.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::support::*;

/// Sends bytes and returns the status and body of the reply. The connection is closed after the reply.
fn send(daemon: &Daemon, request: &[u8]) -> (u16, String) {
    send_to(&daemon.folder.join("api.sock"), request)
}

fn send_to(socket: &str, request: &[u8]) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that limit");
    // The daemon may refuse the request before it has read all of it.
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let status = reply.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no HTTP reply: {reply:?}"));
    (status, reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

pub fn ask(daemon: &Daemon, method: &str, path: &str, body: &str) -> (u16, String) {
    ask_at(&daemon.folder.join("api.sock"), method, path, body)
}

/// Sends the same request to the daemon whose API is on this socket.
pub fn ask_at(socket: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: braid\r\nconnection: close\r\ncontent-type: application/json\r\n");
    send_to(socket, format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_api_matches_its_openapi_document() {
    let daemon = Daemon::start();
    let (status, body) = ask(&daemon, "GET", "/v1/openapi.json", "");
    assert_eq!(status, 200);
    let description = json(&body);
    let paths = description["paths"].as_object().expect("there are paths");
    for path in ["/v1/status", "/v1/arrays", "/v1/arrays/{array}", "/v1/exports", "/v1/disks", "/v1/events"] {
        assert!(paths.contains_key(path), "{path} is not described: {:?}", paths.keys());
    }
    // Every documented GET path without a parameter returns 200.
    for (path, methods) in paths.iter().filter(|(path, _)| !path.contains('{')) {
        if methods.get("get").is_some() {
            assert_eq!(ask(&daemon, "GET", path, "").0, 200, "{path}");
        }
    }
}

#[test]
fn bad_requests_get_errors_of_one_format() {
    let daemon = Daemon::start();
    let deep = "[".repeat(100_000);
    let cases: &[(&str, &str, &str, u16)] = &[
        ("GET", "/v1/arrays/absent", "", 404),
        ("GET", "/v1/nothing", "", 404),
        ("GET", "/v1/arrays/%ff", "", 400),
        ("DELETE", "/v1/exports/%00", "", 404),
        ("DELETE", "/v1/arrays/absent?force=maybe", "", 400),
        ("POST", "/v1/exports/absent/rename", r#"{"name": "b"}"#, 404),
        ("POST", "/v1/exports/absent/rename", r#"{"name": "a/b/c"}"#, 400),
        ("PUT", "/v1/arrays", "{}", 405),
        ("POST", "/v1/arrays", "", 400),
        ("POST", "/v1/arrays", "{", 400),
        ("POST", "/v1/arrays", &deep, 400),
        ("POST", "/v1/arrays", r#"{"name": 5}"#, 400),
        ("POST", "/v1/arrays", r#"{"name": "a", "level": "raid0", "disks": ["mem:16M"], "surprise": 1}"#, 400),
        ("POST", "/v1/arrays", r#"{"name": "a/b", "level": "raid0", "disks": ["mem:16M"]}"#, 400),
        ("POST", "/v1/arrays", r#"{"name": "a", "level": "raid7", "disks": ["mem:16M"]}"#, 400),
        ("POST", "/v1/arrays", r#"{"name": "a", "level": "raid0", "disks": []}"#, 400),
        ("POST", "/v1/arrays", r#"{"name": "a", "level": "raid0", "chunk_bytes": 5000, "disks": ["mem:16M"]}"#, 400),
        ("POST", "/v1/arrays", r#"{"name": "a", "level": "raid0", "disks": ["mem:banana"]}"#, 400),
        ("POST", "/v1/exports", r#"{"array": "absent", "nbd": "unix:/x"}"#, 404),
        ("POST", "/v1/exports", r#"{"array": "a", "nbd": "pigeon"}"#, 400),
    ];
    for &(method, path, body, expected) in cases {
        let (status, reply) = ask(&daemon, method, path, body);
        let shown = &body[..body.len().min(80)];
        assert_eq!(status, expected, "{method} {path} {shown}: {reply}");
        let error = json(&reply)["error"].clone();
        for field in ["kind", "message"] {
            assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{method} {path} {shown}: {reply}");
        }
    }
    assert_eq!(json(&ask(&daemon, "GET", "/v1/arrays", "").1)["arrays"], Value::Array(Vec::new()));
}

#[test]
fn hostile_bytes_on_the_api_socket_harm_nothing() {
    let mut daemon = Daemon::start();
    let huge =
        format!("POST /v1/arrays HTTP/1.1\r\nhost: b\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", 64 * MIB);
    let long_head = format!("GET /v1/status HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let mut huge_body = huge.into_bytes();
    huge_body.resize(huge_body.len() + 4 * MIB as usize, b' ');
    let attacks = [noise(4096, 1), long_head.into_bytes(), b"GET / HTTP/9.9\r\n\r\n".to_vec(), vec![0; 100_000]];
    for attack in &attacks {
        let mut stream = UnixStream::connect(daemon.folder.join("api.sock")).expect("the API listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that limit");
        let _ = stream.write_all(attack);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // A body beyond the limit is refused, not stored; a body with a declared length is refused before any of it arrives.
    let (status, _) = send(&daemon, &huge_body);
    assert_eq!(status, 413);
    let announced = b"POST /v1/arrays HTTP/1.1\r\nhost: b\r\nconnection: close\r\ncontent-length: 1000000000\r\n\r\n";
    assert_eq!(send(&daemon, announced).0, 413);
    assert!(daemon.running.ended().is_none());
    assert_eq!(ask(&daemon, "GET", "/v1/status", "").0, 200);
    assert!(!daemon.running.log().contains("panicked"), "{}", daemon.running.log());
}

/// Clients that never finish a request, head or body, do not keep connection slots from others.
#[test]
fn half_sent_requests_keep_no_client_out() {
    let daemon = Daemon::start();
    let halves = ["GET /v1/status HTT", "POST /v1/arrays HTTP/1.1\r\nhost: b\r\ncontent-length: 100\r\n\r\n{"];
    // More connections than the daemon serves at a time. Each stays open.
    let mut held = Vec::new();
    for n in 0..400 {
        let mut stream = UnixStream::connect(daemon.folder.join("api.sock")).expect("the API listens");
        // A connection that was already closed to make room accepts nothing more.
        let _ = stream.write_all(halves[n % 2].as_bytes());
        held.push(stream);
    }
    assert_eq!(ask(&daemon, "GET", "/v1/status", "").0, 200);
    // New connections take the slots of the oldest ones, which are closed before their time limit.
    held[0].set_read_timeout(Some(PATIENCE)).expect("a socket has that limit");
    assert_eq!(held[0].read(&mut [0; 16]).unwrap_or(0), 0, "the oldest connection is closed to make room");
    let last = held.last_mut().expect("there are some");
    last.set_read_timeout(Some(std::time::Duration::from_millis(1))).expect("a socket has that limit");
    let error = last.read(&mut [0; 16]).expect_err("the newest connection stays open");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

/// Like most clients, this one gives up when it cannot send.
#[test]
fn a_client_refused_while_still_sending_reads_the_reason() {
    let daemon = Daemon::start();
    let mut stream = UnixStream::connect(daemon.folder.join("api.sock")).expect("the API listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that limit");
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nhost: braid\r\nx: ").expect("it is taken");
    // Sends twice the largest head: the daemon's reply is ready half way.
    for _ in 0..64 {
        stream.write_all(&[b'x'; KIB as usize]).expect("the daemon accepts what follows its reply");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("no reset");
    assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
}

#[test]
fn metrics_count_written_bytes() {
    let daemon = Daemon::start();
    let uri = daemon.array("data", "concat", &["mem:16M"]);
    run("qemu-io", &["-f", "raw", "-c", "write -P 1 0 1M", "-c", "read -P 1 0 1M", &uri]);
    let open = "GET /metrics HTTP/1.1\r\nhost: b\r\nconnection: close\r\naccept: application/openmetrics-text\r\n\r\n";
    let (status, metrics) = send(&daemon, open.as_bytes());
    assert_eq!(status, 200);
    assert!(metrics.contains("data") && metrics.trim_end().ends_with("# EOF"), "{metrics}");
    assert!(metrics.contains("# UNIT ") && metrics.contains("le=\"+Inf\""), "{metrics}");
    let (status, metrics) = ask(&daemon, "GET", "/metrics", "");
    assert_eq!(status, 200);
    assert!(metrics.contains("# TYPE braid_disk_reads_total counter\n") && !metrics.contains("# EOF"), "{metrics}");
    // The bytes that the client wrote are among the samples.
    let counted = metrics.lines().filter(|line| !line.starts_with('#')).any(|line| {
        line.contains("written_bytes")
            && line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).is_some_and(|n| n >= MIB as f64)
    });
    assert!(counted, "{metrics}");
}

/// Returns the value of one sample.
fn sample(metrics: &str, name: &str) -> Option<u64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[test]
fn an_exports_latencies_are_those_of_its_requests() {
    let daemon = Daemon::start();
    // The latency lies between two bounds of the histogram: every such request is above 20.97 ms, the lower bound.
    let uri = daemon.array("slow", "concat", &["throttled(mem:64M,latency=21ms)"]);
    let mut commands = vec!["-f", "raw", "-t", "none"];
    commands.extend(["-c", "read 0 4k"].repeat(9));
    commands.extend(["-c", "write 4k 4k"].repeat(5));
    commands.push(&uri);
    run("qemu-io", &commands);
    let activity = json(&ask(&daemon, "GET", "/v1/activity", "").1);
    let export = &activity["exports"][0];
    let stats = ["reads", "writes", "others"].map(|of| export["stats"][of].as_u64().expect("a count"));
    assert_eq!((stats[0], stats[1]), (9, 5), "{export}");
    // Each request is in one bucket; no request with data is in a bucket below its latency.
    let buckets = export["latency"].as_array().expect("buckets");
    let number = |bucket: &Value, of: &str| bucket[of].as_u64().expect("a count");
    let sum: u64 = buckets.iter().map(|bucket| number(bucket, "count")).sum();
    assert_eq!(sum, stats.iter().sum::<u64>(), "{export}");
    let slow = buckets.iter().filter(|bucket| number(bucket, "below_ns") > 21_000_000);
    assert!(slow.map(|bucket| number(bucket, "count")).sum::<u64>() >= 14, "{export}");
    let (_, metrics) = ask(&daemon, "GET", "/metrics", "");
    for (of, count) in ["read", "write", "other"].into_iter().zip(stats) {
        let name = format!("braid_export_{of}_latency_seconds");
        let labels = "{export=\"slow\",array=\"slow\"}";
        assert_eq!(sample(&metrics, &format!("{name}_count{labels}")), Some(count), "{metrics}");
        let below = format!("{name}_bucket{{le=\"0.016777216\",export=\"slow\",array=\"slow\"}}");
        let quick = sample(&metrics, &below).unwrap_or_else(|| panic!("{below}: {metrics}"));
        assert!(of == "other" || quick == 0, "{metrics}");
    }
    // `braid top` reports latencies while a bench reads.
    let bench = ["bench", "--op", "read", "--time", "60s", &uri];
    let busy = Running::start(&daemon.folder, "bench", &mut daemon.command(&bench));
    let export = wait_for("reads in an interval", || {
        let export = daemon.json(&["top", "--interval", "300ms"])["exports"][0].clone();
        (export["latency_ns_p50"].as_u64()? > 0).then_some(export)
    });
    drop(busy);
    let quantile = |of: &str| export[of].as_u64().expect("a latency");
    assert!(quantile("latency_ns_p50") >= 20_971_520, "{export}");
    assert!(quantile("latency_ns_p99") >= quantile("latency_ns_p50"), "{export}");
}

#[test]
fn events_can_be_followed_while_they_happen() {
    let daemon = Daemon::start();
    let mut stream = UnixStream::connect(daemon.folder.join("api.sock")).expect("the API listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that limit");
    stream.write_all(b"GET /v1/events?follow=true HTTP/1.1\r\nhost: braid\r\n\r\n").expect("it is sent");
    daemon.braid(&["array", "create", "followed", "--level", "concat", "mem:16M"]);
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while !(seen.contains("array_created") && seen.contains("followed")) {
        let n = stream.read(&mut buffer).expect("the event comes");
        assert!(n > 0, "the stream ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    assert!(seen.contains("text/event-stream"), "{seen}");
}

#[test]
fn each_driver_serves_and_status_names_it() {
    for driver in ["io_uring", "libaio", "threads"] {
        let daemon = Daemon::start_in(Folder::new(), &["--driver", driver]);
        let disks: Vec<String> = (0..2).map(|i| daemon.folder.sparse(&format!("disk{i}"), 16 * MIB)).collect();
        let uri = daemon.array("data", "raid0", &disks.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(daemon.json(&["status"])["shards"][0]["driver"], driver);
        let size = run("nbdinfo", &["--size", &uri]).trim().parse().expect("a size");
        let source = daemon.folder.noise("source", size, 9);
        run("nbdcopy", &["--flush", &source, &uri]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]);
    }
}

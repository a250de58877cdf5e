//! The API on the network: TLS, tokens and certificates, with curl and the command line as clients.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;

use crate::support::*;

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "ffffffffffffffffffffffffffffffff";
const READ: &str = "r-e-a-d-0123456789abcdef01234567";

/// A certificate authority, with its certificate in a file.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub file: String,
}

impl Authority {
    pub fn new(folder: &Folder, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are right, too");
        // Distinct names keep the authorities apart from each other and from the certificates that they sign.
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let file = folder.join(&format!("{name}.crt"));
        fs::write(&file, certificate.pem()).expect("a file can be written");
        Authority { issuer: Issuer::new(params, key), file }
    }

    /// Signs a certificate for these host names, in `NAME.crt` and `NAME.key`.
    pub fn sign(&self, folder: &Folder, name: &str, hosts: &[&str]) -> (String, String) {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = (folder.join(&format!("{name}.crt")), folder.join(&format!("{name}.key")));
        // The files are replaced atomically, as files in use have to be.
        for (file, text) in [(&files.1, key.serialize_pem()), (&files.0, certificate.pem())] {
            let new = format!("{file}.new");
            fs::write(&new, text).expect("a file can be written");
            fs::rename(&new, file).expect("it is ours");
        }
        files
    }
}

/// Writes a file that only its owner may read.
pub fn secret(folder: &Folder, name: &str, text: &str) -> String {
    let new = folder.join("new");
    fs::write(&new, text).expect("a file can be written");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("it is ours");
    fs::rename(&new, folder.join(name)).expect("it is ours");
    folder.join(name)
}

/// A daemon with its API on the network.
struct OnNetwork {
    daemon: Daemon,
    authority: Authority,
    url: String,
}

impl OnNetwork {
    /// Starts the daemon with further arguments, in which `{}` is the folder.
    fn start(further: &[&str]) -> OnNetwork {
        let folder = Folder::new();
        let authority = Authority::new(&folder, "ca");
        let (cert, key) = authority.sign(&folder, "server", &["localhost", "127.0.0.1"]);
        secret(&folder, "tokens", TOKEN);
        secret(&folder, "read-tokens", READ);
        let mut arguments = vec!["--api-listen", "127.0.0.1:0", "--api-cert", &cert, "--api-key", &key];
        let further: Vec<String> = further.iter().map(|a| a.replace("{}", &folder.join("."))).collect();
        arguments.extend(further.iter().map(String::as_str));
        let daemon = Daemon::start_in(folder, &arguments);
        let url = daemon.json(&["status"])["network"].as_str().expect("it is on the network").to_owned();
        OnNetwork { daemon, authority, url }
    }

    fn with_tokens() -> OnNetwork {
        OnNetwork::start(&["--api-token-file", "{}/tokens", "--api-read-token-file", "{}/read-tokens"])
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> Output {
        let url = format!("{}{path}", self.url);
        let mut all = vec!["-sS", "--max-time", "60", "--cacert", &self.authority.file, "-w", "\n%{http_code}"];
        all.extend(arguments);
        all.push(&url);
        run_any("curl", &all)
    }

    /// Sends a request with this token. Returns its status and body.
    #[track_caller]
    fn request(&self, method: &str, path: &str, token: Option<&str>) -> (u16, Value) {
        let header = format!("authorization: Bearer {}", token.unwrap_or_default());
        let mut arguments = vec!["-X", method];
        if token.is_some() {
            arguments.extend(["-H", &header]);
        }
        let out = self.curl(path, &arguments);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{}", said(&out)));
        let status = status.parse().unwrap_or_else(|_| panic!("{}", said(&out)));
        (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {}", said(&out))))
    }

    /// Runs `braid ARGUMENTS` against the daemon over the network.
    fn braid(&self, arguments: &[&str]) -> Output {
        let mut command = self.daemon.command(arguments);
        command.env("BRAID_HOST", &self.url).env("BRAID_CA", &self.authority.file);
        command.output().expect("braid can be started")
    }

    fn address(&self) -> &str {
        self.url.strip_prefix("https://").expect("it is https")
    }
}

#[test]
fn the_api_is_not_on_the_network_without_tls_and_authentication() {
    let folder = Folder::new();
    let authority = Authority::new(&folder, "ca");
    let (cert, key) = authority.sign(&folder, "server", &["localhost"]);
    let (_, other_key) = authority.sign(&folder, "other", &["localhost"]);
    let open = folder.join("open");
    fs::write(&open, TOKEN).expect("a file can be written");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let tokens = secret(&folder, "tokens", TOKEN);
    let listen = ["--api-listen", "127.0.0.1:0"];
    let with = |further: &[&str]| {
        let arguments: Vec<String> = listen.iter().chain(further).map(|&a| a.to_owned()).collect();
        let out = serve(&folder, &arguments).output().expect("braid can be started");
        (out.status.code(), said(&out))
    };
    let cases: [(&[&str], &str); 6] = [
        (&[], "without TLS"),
        (&["--api-token-file", &tokens], "without TLS"),
        (&["--api-cert", &cert, "--api-key", &key], "without authentication"),
        (&["--api-cert", &cert, "--api-key", &key, "--api-token-file", &open], "chmod 0600"),
        (
            &["--api-cert", &cert, "--api-key", &other_key, "--api-token-file", &tokens],
            "does not match the certificate",
        ),
        (&["--api-cert", &cert, "--api-key", &key, "--api-client-ca", &tokens], "certificate"),
    ];
    for (arguments, words) in cases {
        let (status, text) = with(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(words) && !text.contains(TOKEN), "{arguments:?}: {text}");
    }
    // The same settings in the configuration file.
    fs::write(folder.join("braid.toml"), "[api]\nlisten = \"127.0.0.1\"\n").expect("a file can be written");
    let out = serve(&folder, &[]).output().expect("braid can be started");
    assert!(out.status.code() == Some(2) && said(&out).contains("without TLS"), "{}", said(&out));
}

#[test]
fn tokens_authenticate_and_are_replaced_while_the_daemon_runs() {
    let net = OnNetwork::with_tokens();
    net.daemon.braid(&["array", "create", "data", "--level", "concat", "mem:16M"]);
    for token in [None, Some(""), Some(OTHER), Some(&TOKEN[..31])] {
        for (method, path) in
            [("GET", "/v1/status"), ("DELETE", "/v1/arrays/data"), ("GET", "/metrics"), ("GET", "/none")]
        {
            let (status, body) = net.request(method, path, token);
            assert_eq!((status, &body["error"]["kind"]), (401, &Value::from("unauthenticated")), "{method} {path}");
        }
    }
    assert_eq!(net.request("GET", "/v1/status", Some(READ)).0, 200);
    let (status, body) = net.request("DELETE", "/v1/arrays/data", Some(READ));
    assert_eq!((status, &body["error"]["kind"]), (403, &Value::from("forbidden")), "{body}");
    assert_eq!(net.request("POST", "/v1/assemble", Some(READ)).0, 403);
    assert_eq!(net.request("GET", "/v1/arrays/data", Some(TOKEN)).0, 200);

    // The command line, by options and by variables.
    let tokens = net.daemon.folder.join("tokens");
    let out = net.braid(&["array", "list", "--json", "--token-file", &tokens]);
    assert!(out.status.success() && said(&out).contains("data"), "{}", said(&out));
    let read = net.daemon.folder.join("read-tokens");
    let out = net.braid(&["array", "delete", "data", "--yes", "--token-file", &read]);
    assert!(out.status.code() == Some(1) && said(&out).contains("change nothing"), "{}", said(&out));
    let out = net.braid(&["status"]);
    assert!(out.status.code() == Some(1) && said(&out).contains("--token-file"), "{}", said(&out));
    let system = net.daemon.command(&["status", "--host", &net.url, "--token-file", &tokens]).output();
    let system = system.expect("braid can be started");
    assert!(system.status.code() == Some(6) && said(&system).contains("--ca"), "{}", said(&system));
    let name = net.url.replace("127.0.0.1", "127.0.0.2");
    let out = net.braid(&["status", "--host", &name, "--token-file", &tokens]);
    assert_eq!(out.status.code(), Some(6), "{}", said(&out));

    // A second token beside the first, then instead of it; no connection is closed and no restart is needed.
    secret(&net.daemon.folder, "tokens", &format!("{TOKEN}\n{OTHER}\n"));
    wait_for("the second token", || (net.request("GET", "/v1/status", Some(OTHER)).0 == 200).then_some(()));
    assert_eq!(net.request("GET", "/v1/status", Some(TOKEN)).0, 200);
    secret(&net.daemon.folder, "tokens", OTHER);
    wait_for("the first to be forgotten", || (net.request("GET", "/v1/status", Some(TOKEN)).0 == 401).then_some(()));
    assert_eq!(net.request("DELETE", "/v1/arrays/data", Some(OTHER)).0, 200);
    // An invalid token file admits no client, and the status reports it.
    secret(&net.daemon.folder, "tokens", "short");
    wait_for("the token to be refused", || (net.request("GET", "/v1/status", Some(OTHER)).0 == 401).then_some(()));
    let out = net.daemon.any(&["status", "--check"]);
    // The line breaks depend on the length of the file's path.
    let on_one_line = said(&out).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(out.status.code() == Some(5) && on_one_line.contains("at least 32"), "{on_one_line}");
    secret(&net.daemon.folder, "tokens", OTHER);
    wait_for("it to be mended", || (net.request("GET", "/v1/status", Some(OTHER)).0 == 200).then_some(()));
    assert_eq!(net.daemon.any(&["status", "--check"]).status.code(), Some(0));
    let log = net.daemon.running.log();
    for token in [TOKEN, OTHER, READ] {
        assert!(!log.contains(token), "the log shows a token:\n{log}");
    }
}

#[test]
fn certificates_authenticate_and_are_renewed_while_the_daemon_runs() {
    let net = OnNetwork::start(&["--api-client-ca", "{}/ca.crt"]);
    let folder = &net.daemon.folder;
    let (cert, key) = net.authority.sign(folder, "me", &["me"]);
    let stranger = Authority::new(folder, "stranger");
    let (strange_cert, strange_key) = stranger.sign(folder, "them", &["me"]);
    let good = net.curl("/v1/status", &["--cert", &cert, "--key", &key]);
    assert!(said(&good).ends_with("\n200"), "{}", said(&good));
    for arguments in [&[][..], &["--cert", &strange_cert, "--key", &strange_key]] {
        let out = net.curl("/v1/status", arguments);
        assert!(!out.status.success() && said(&out).contains("\n000"), "{}", said(&out));
    }
    let out = net.braid(&["status", "--check", "--cert", &cert, "--key", &key]);
    assert!(out.status.success(), "{}", said(&out));
    let out = net.braid(&["status", "--check"]);
    assert!(out.status.code() == Some(6) && said(&out).contains("--cert"), "{}", said(&out));
    let out = net.braid(&["status", "--check", "--cert", &strange_cert, "--key", &strange_key]);
    assert!(out.status.code() == Some(6) && said(&out).contains("--cert"), "{}", said(&out));
    // A page in a browser cannot use its user's certificate.
    let out =
        net.curl("/v1/assemble", &["--cert", &cert, "--key", &key, "-H", "origin: https://x.example", "-d", "{}"]);
    assert!(said(&out).ends_with("\n403"), "{}", said(&out));

    // A certificate of another authority replaces the server's: clients of the first authority refuse it.
    stranger.sign(folder, "server", &["127.0.0.1"]);
    wait_for("the new certificate", || {
        let out = net.curl("/v1/status", &["--cert", &cert, "--key", &key]);
        (!out.status.success()).then_some(())
    });
    let out = net.curl("/v1/status", &["--cert", &cert, "--key", &key, "--cacert", &stranger.file]);
    assert!(said(&out).ends_with("\n200"), "{}", said(&out));
    // A damaged file leaves the old certificate in use.
    fs::write(folder.join("server.crt"), "broken").expect("a file can be written");
    wait_for("the event", || net.daemon.events().contains("api_files_invalid").then_some(()));
    let out = net.curl("/v1/status", &["--cert", &cert, "--key", &key, "--cacert", &stranger.file]);
    assert!(said(&out).ends_with("\n200"), "{}", said(&out));
}

#[test]
fn hanging_or_invalid_clients_are_closed_and_others_served() {
    let net = OnNetwork::with_tokens();
    // More connections than slots: further ones wait until these are closed, and the Unix socket is unaffected.
    let mut hanging = Vec::new();
    for _ in 0..140 {
        hanging.push(TcpStream::connect(net.address()).expect("the kernel accepts"));
    }
    assert_eq!(net.daemon.any(&["status", "--check"]).status.code(), Some(0));
    let mut plain = TcpStream::connect(net.address()).expect("the kernel accepts");
    plain.set_read_timeout(Some(PATIENCE)).expect("a socket has that limit");
    plain.write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n").expect("the kernel takes it");
    let mut reply = Vec::new();
    let _ = plain.read_to_end(&mut reply);
    assert!(!String::from_utf8_lossy(&reply).contains("HTTP/1.1 200"), "a reply without TLS");
    // The daemon closes all of them, while the test still holds them.
    for stream in &mut hanging {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that limit");
        let mut byte = [0; 64];
        while !matches!(stream.read(&mut byte), Ok(0) | Err(_)) {}
    }
    assert_eq!(net.request("GET", "/v1/status", Some(TOKEN)).0, 200);

    // Heads that trickle, bodies that trickle, heads that are too long: over TLS, with a valid token.
    let authorized = format!("authorization: Bearer {TOKEN}\r\n");
    let long = format!("GET /v1/status HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(64 << 10));
    let many = format!("GET /v1/status HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(200));
    let cases = [
        ("GET /v1/status HTTP/1.1\r\nhost: x\r\n".to_owned(), ""),
        (format!("POST /v1/assemble HTTP/1.1\r\nhost: x\r\n{authorized}content-length: 9\r\n\r\n{{"), "400"),
        (long, "431"),
        (many, "431"),
    ];
    let threads = cases.map(|(request, status)| {
        let (address, ca) = (net.address().to_owned(), net.authority.file.clone());
        thread::spawn(move || {
            let out = command("timeout")
                .args(["60", "openssl", "s_client", "-quiet", "-verify_quiet", "-connect", &address, "-CAfile", &ca])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::null())
                .spawn();
            let mut child = out.expect("openssl can be started");
            let mut stdin = child.stdin.take().expect("it is piped");
            // The daemon may close the connection before it has read everything.
            let _ = stdin.write_all(request.as_bytes());
            let mut reply = String::new();
            let _ = child.stdout.take().expect("it is piped").read_to_string(&mut reply);
            drop(stdin);
            let ended = child.wait().expect("it is our child");
            assert_ne!(ended.code(), Some(124), "the daemon did not end it: {reply}");
            assert!(
                reply.is_empty() && status.is_empty() || reply.contains(&format!("HTTP/1.1 {status}")),
                "{status}: {reply}"
            );
        })
    });
    for thread in threads {
        thread.join().expect("a client that misbehaves is ended");
    }
    assert_eq!(net.request("GET", "/v1/status", Some(TOKEN)).0, 200);
}

#[test]
fn event_streams_resume_where_they_ended() {
    let net = OnNetwork::with_tokens();
    for name in ["one", "two", "three"] {
        net.daemon.braid(&["array", "create", name, "--level", "concat", "mem:16M"]);
    }
    let last = net.daemon.json(&["events"])["next_sequence"].as_u64().expect("a number") - 1;
    // curl ends by its own time limit: the test uses the events received until then.
    let read = |headers: &[&str], query: &str| {
        let mut arguments =
            vec!["-N", "--max-time", "3", "-H", "authorization: Bearer r-e-a-d-0123456789abcdef01234567"];
        headers.iter().for_each(|header| arguments.extend(["-H", header]));
        said(&net.curl(&format!("/v1/events?follow=true{query}"), &arguments))
    };
    let all = read(&[], "");
    for id in 1..=last {
        assert!(all.contains(&format!("id: {id}\n")), "{all}");
    }
    assert!(all.contains("event: array_created\n") && all.contains("\"message\":"), "{all}");
    let rest = read(&[&format!("last-event-id: {}", last - 1)], "");
    assert!(rest.contains(&format!("id: {last}\n")) && !rest.contains(&format!("id: {}\n", last - 1)), "{rest}");
    // A client that reconnects automatically sends the header: it overrides the parameter of its first request.
    let rest = read(&[&format!("last-event-id: {}", last - 1)], "&after=0");
    assert!(!rest.contains("id: 1\n") && rest.contains(&format!("id: {last}\n")), "{rest}");
    // An event number of an earlier daemon: all events are sent.
    assert!(read(&["last-event-id: 999999"], "").contains("id: 1\n"));
}

#[test]
fn unauthenticated_connections_make_room_for_others() {
    let on = OnNetwork::with_tokens();
    // More connections than slots, all of them silent.
    let silent: Vec<TcpStream> = (0..140).map(|_| TcpStream::connect(on.address()).expect("it listens")).collect();
    let out = on.braid(&["status", "--token-file", &on.daemon.folder.join("tokens")]);
    assert!(out.status.success(), "{}", said(&out));
    let log = on.daemon.running.log();
    assert!(log.contains("it was not authenticated yet when all connections were taken by newer clients"), "{log}");
    // The oldest connections are closed.
    let mut oldest = &silent[0];
    oldest.set_read_timeout(Some(PATIENCE)).expect("it is a time");
    assert!(matches!(oldest.read(&mut [0; 1]), Ok(0) | Err(_)), "it is ended");
    // Authenticated clients keep their connections, however many others arrive: a reader of events stays.
    let mut command = on.daemon.command(&["events", "--follow", "--json", "--token-file"]);
    command.arg(on.daemon.folder.join("tokens")).env("BRAID_HOST", &on.url).env("BRAID_CA", &on.authority.file);
    let mut reader = Running::start(&on.daemon.folder, "reader", &mut command);
    wait_for("the reader to read", || reader.log().contains("started").then_some(()));
    let more: Vec<TcpStream> = (0..140).map(|_| TcpStream::connect(on.address()).expect("it listens")).collect();
    on.daemon.array("fast", "concat", &["mem:64M"]);
    wait_for("the reader to go on", || reader.log().contains("array_created").then_some(()));
    assert!(reader.ended().is_none());
    drop((silent, more));
}

#[test]
fn a_local_path_is_not_sent_to_a_remote_daemon() {
    let on = OnNetwork::with_tokens();
    let tokens = on.daemon.folder.join("tokens");
    let cases: [&[&str]; 4] = [
        &["array", "create", "fast", "--level", "concat", "./a.img"],
        &["array", "create", "fast", "--level", "concat", "throttled(file:a.img,size=1G,iops=3000)"],
        &["array", "assemble", "--disk", "a.img"],
        &["export", "add", "fast", "--nbd", "unix:fast.sock"],
    ];
    for case in cases {
        let out = on.braid(&[case, &["--token-file", &tokens]].concat());
        assert_eq!(out.status.code(), Some(2), "{}", said(&out));
        assert!(said(&out).contains("working folder of this machine") && said(&out).contains("from the root"));
    }
    let disk = on.daemon.folder.sparse("a.img", 64 * MIB);
    let out = on.braid(&["array", "create", "fast", "--level", "concat", &disk, "--token-file", &tokens]);
    assert!(out.status.success(), "{}", said(&out));
}

//! Exports on TCP: which clients may connect, with TLS or without, and how many.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::support::*;

/// A certificate authority whose certificate lies in a folder, as NBD clients expect it.
pub struct Authority {
    pub issuer: CertifiedIssuer<'static, KeyPair>,
    pub clients: String,
}

impl Authority {
    pub fn new(folder: &Folder, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are right, too");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let clients = folder.join(name);
        fs::create_dir(&clients).expect("a new folder");
        fs::write(format!("{clients}/ca-cert.pem"), issuer.pem()).expect("a file can be written");
        Authority { issuer, clients }
    }

    /// Signs a certificate for a server called localhost, in `server.crt` and `server.key`. Both files are replaced
    /// atomically.
    pub fn sign(&self, folder: &Folder) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = (folder.join("server.crt"), folder.join("server.key"));
        for (file, text) in [(&files.1, key.serialize_pem()), (&files.0, certificate.pem())] {
            let new = format!("{file}.new");
            fs::write(&new, text).expect("a file can be written");
            fs::rename(&new, file).expect("it is ours");
        }
        files
    }

    pub fn uri(&self, port: u16, export: &str) -> String {
        format!("nbds://localhost:{port}/{export}?tls-certificates={}", self.clients)
    }
}

/// Returns a port that is free at the moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// Connects from this address and reads the greeting. Returns `None` when the server closes the connection.
fn connect_from(source: &str, to: (&str, u16)) -> Option<TcpStream> {
    let source = SocketAddr::new(source.parse().expect("an address"), 0);
    let to = SocketAddr::new(to.0.parse().expect("an address"), to.1);
    let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &source).expect("an address of this machine");
    connect(&socket, &to).expect("a server listens");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).ok()?;
    stream.write_all(&3u32.to_be_bytes()).ok()?;
    Some(stream)
}

pub fn daemon_with_tls() -> (Daemon, Authority) {
    let folder = Folder::new();
    let authority = Authority::new(&folder, "authority");
    let (cert, key) = authority.sign(&folder);
    let daemon = Daemon::start_in(folder, &["--nbd-cert", &cert, "--nbd-key", &key]);
    // The daemon exports the expiry of its certificate. The test's certificate is valid for long.
    wait_for("the certificate's expiry in the metrics", || {
        let metrics = run("curl", &["-sS", "--unix-socket", &daemon.folder.join("api.sock"), "http://braid/metrics"]);
        let line = metrics.lines().find(|line| line.starts_with("braid_nbd_certificate_expiry_seconds{"));
        let end = line.and_then(|line| line.rsplit(' ').next()).and_then(|end| end.parse::<f64>().ok())?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is after 1970");
        (end > now.as_secs_f64()).then_some(())
    });
    daemon.braid(&["array", "create", "a", "--level", "concat", "mem:64M"]);
    (daemon, authority)
}

#[test]
fn tls_is_required_by_a_daemon_with_a_certificate() {
    let (daemon, authority) = daemon_with_tls();
    let port = free_port();
    let added = daemon.json(&["export", "add", "a", "--nbd", &format!("tcp:127.0.0.1:{port}")]);
    assert_eq!((added["tls"].as_str(), added["state"].as_str()), (Some("required"), Some("listening")), "{added}");
    assert_eq!(added["uri"], format!("nbds://127.0.0.1:{port}/a"));
    let listed = run("nbdinfo", &["--json", &authority.uri(port, "a")]);
    assert!(listed.contains("\"TLS\": true"), "{listed}");
    let plain = said(&run_any("nbdinfo", &[&format!("nbd://localhost:{port}/a")]));
    assert!(plain.contains("TLS"), "{plain}");
    // The project's own client reads with the bench what it wrote.
    let bench = ["bench", &authority.uri(port, "a"), "--op", "mixed", "--block", "64K", "--time", "1s", "--verify"];
    let out = daemon.any(&bench);
    assert!(out.status.success(), "{}", said(&out));
    // A server with a certificate of another authority is refused by the client.
    let stranger = Authority::new(&daemon.folder, "stranger");
    let out = daemon.any(&["bench", &stranger.uri(port, "a"), "--time", "1s"]);
    assert!(!out.status.success() && said(&out).contains("certificate"), "{}", said(&out));
    // A Unix socket needs no TLS.
    let socket = daemon.nbd_socket("a");
    let local = daemon.json(&["export", "add", "a", "--nbd", &format!("unix:{socket}"), "--name", "local"]);
    assert_eq!(local["tls"], "off");
    run("nbdinfo", &[&format!("nbd+unix:///local?socket={socket}")]);
}

#[test]
fn the_next_client_gets_a_renewed_certificate() {
    let (daemon, authority) = daemon_with_tls();
    let port = free_port();
    daemon.braid(&["export", "add", "a", "--nbd", &format!("tcp:127.0.0.1:{port}")]);
    run("nbdinfo", &[&authority.uri(port, "a")]);
    // An invalid certificate changes nothing, and is reported.
    fs::write(daemon.folder.join("server.crt"), "no certificate").expect("a file can be written");
    wait_for("the event of the invalid certificate", || {
        daemon.events().contains("nbd_certificate_invalid").then_some(())
    });
    run("nbdinfo", &[&authority.uri(port, "a")]);
    let attention = daemon.json(&["status"])["attention"].to_string();
    assert!(attention.contains("old certificate"), "{attention}");
    let new = Authority::new(&daemon.folder, "new");
    new.sign(&daemon.folder);
    wait_for("the new one", || daemon.events().contains("nbd_certificate_renewed").then_some(()));
    run("nbdinfo", &[&new.uri(port, "a")]);
    assert!(!run_any("nbdinfo", &[&authority.uri(port, "a")]).status.success(), "the old one is gone");
}

#[test]
fn remote_clients_without_tls_need_an_explicit_option() {
    let (daemon, authority) = daemon_with_tls();
    let address = format!("tcp:0.0.0.0:{}", free_port());
    for mode in ["off", "optional"] {
        let said = daemon.refused(4, &["export", "add", "a", "--nbd", &address, "--tls", mode]);
        for part in ["other hosts can reach", "--tls required", "--insecure"] {
            assert!(said.contains(part), "{mode}: {part} is missing: {said}");
        }
    }
    let (_, port) = address.rsplit_once(':').expect("it has a port");
    let port = port.parse().expect("it is a number");
    daemon.braid(&["export", "add", "a", "--nbd", &address]);
    run("nbdinfo", &[&authority.uri(port, "a")]);
    // A second export on the same address needs the confirmation as well.
    daemon.refused(4, &["export", "add", "a", "--nbd", &address, "--name", "b", "--tls", "optional"]);
    daemon.braid(&["export", "add", "a", "--nbd", &address, "--name", "b", "--tls", "optional", "--insecure"]);
    run("nbdinfo", &[&format!("nbd://localhost:{port}/b")]);
    run("nbdinfo", &[&authority.uri(port, "b")]);
    // Without TLS, the list leaves out the export that requires TLS.
    let list = run("nbdinfo", &["--list", &format!("nbd://localhost:{port}")]);
    assert!(list.contains("export=\"b\"") && !list.contains("export=\"a\""), "{list}");
    let list = run("nbdinfo", &["--list", &authority.uri(port, "")]);
    assert!(list.contains("export=\"b\"") && list.contains("export=\"a\""), "{list}");
}

#[test]
fn a_daemon_without_its_certificate_reports_so() {
    let folder = Folder::new();
    let authority = Authority::new(&folder, "authority");
    let (cert, key) = authority.sign(&folder);
    fs::write(folder.join("braid.toml"), format!("[nbd]\ncert = \"{cert}\"\nkey = \"{key}\"\n")).expect("a file");
    let mut daemon = Daemon::start_in(folder, &[]);
    let disk = format!("file:{},size=64M", daemon.folder.join("disk"));
    daemon.braid(&["array", "create", "a", "--level", "concat", &disk]);
    let port = free_port();
    daemon.braid(&["export", "add", "a", "--nbd", &format!("tcp:127.0.0.1:{port}")]);
    daemon.stop();
    let config = daemon.folder.join("braid.toml");
    let with = fs::read(&config).expect("it is there");
    fs::write(&config, "").expect("it is ours");
    daemon.start_again();
    let export = wait_for("the export to fail", || {
        let export = daemon.json(&["export", "show", "a"]);
        (export["state"] == "failed").then_some(export)
    });
    assert!(export["reason"].to_string().contains("no certificate"), "{export}");
    assert!(daemon.events().contains("export_failed"), "{}", daemon.events());
    daemon.stop();
    fs::write(&config, with).expect("it is ours");
    daemon.start_again();
    wait_for("the export to come back", || {
        (daemon.json(&["export", "show", "a"])["state"] == "listening").then_some(())
    });
    run("nbdinfo", &[&authority.uri(port, "a")]);
    // A mode without a certificate is refused when the daemon starts.
    daemon.stop();
    fs::write(&config, "nbd.tls = \"required\"\n").expect("it is ours");
    let out = serve(&daemon.folder, &[]).output().expect("braid can be started");
    assert!(out.status.code() == Some(2) && said(&out).contains("nbd.cert"), "{}", said(&out));
}

#[test]
fn only_allowed_addresses_connect() {
    let daemon = Daemon::start();
    daemon.braid(&["array", "create", "a", "--level", "concat", "mem:64M"]);
    let port = free_port();
    let address = format!("tcp:127.0.0.1:{port}");
    let to = ("127.0.0.1", port);
    daemon.braid(&["export", "add", "a", "--nbd", &address, "--allow", "127.0.0.1"]);
    assert!(connect_from("127.0.0.1", to).is_some());
    assert!(connect_from("127.0.0.2", to).is_none(), "there is nothing for it here");
    let mut staying = connect_from("127.0.0.1", to).expect("it is allowed");
    go(&mut staying, "a");
    daemon.braid(&["export", "set", "a", "--allow", "127.0.0.0/30"]);
    assert!(connect_from("127.0.0.2", to).is_some());
    assert!(connect_from("127.0.0.4", to).is_none());
    flush(&mut staying).expect("it was not disturbed");
    let shown = daemon.json(&["export", "set", "a", "--allow", "10.0.0.0/8,::/0"]);
    assert_eq!(shown["allow"], serde_json::json!(["10.0.0.0/8", "::/0"]));
    assert!(connect_from("127.0.0.1", to).is_none());
    wait_for("it has to go", || flush(&mut staying).err());
    wait_for("the log to say why", || daemon.events().contains("is not allowed").then_some(()));
    daemon.braid(&["export", "set", "a", "--allow", "all"]);
    assert!(connect_from("127.0.0.3", to).is_some());
    // Invalid settings are refused.
    let socket = format!("unix:{}", daemon.folder.join("s"));
    let said = daemon.refused(2, &["export", "add", "a", "--nbd", &socket, "--name", "b", "--allow", "10.0.0.0/8"]);
    assert!(said.contains("Unix socket"), "{said}");
    assert!(daemon.refused(2, &["export", "set", "a", "--allow", "10.0.0.1/8"]).contains("set after its prefix"));
    assert!(daemon.refused(2, &["export", "set", "a"]).contains("no change is requested"));
    daemon.refused(3, &["export", "set", "nowhere", "--max-connections", "1"]);
}

#[test]
fn limits_hold_over_all_connections_and_restarts() {
    let mut daemon = Daemon::start();
    let disk = format!("file:{},size=64M", daemon.folder.join("disk"));
    daemon.braid(&["array", "create", "a", "--level", "concat", &disk]);
    let port = free_port();
    daemon.braid(&["export", "add", "a", "--nbd", &format!("tcp:127.0.0.1:{port}"), "--max-connections", "2"]);
    daemon.braid(&["export", "set", "a", "--limit", "iops=200,bw=100M"]);
    daemon.restart(true);
    let shown = wait_for("the export", || {
        let shown = daemon.json(&["export", "show", "a"]);
        (shown["state"] == "listening").then_some(shown)
    });
    assert_eq!((&shown["iops_max"], &shown["connections_max"]), (&200.into(), &2.into()), "{shown}");
    assert_eq!(shown["bandwidth_bytes_max"], 100 << 20);
    let to = ("127.0.0.1", port);
    let mut clients =
        [connect_from("127.0.0.1", to).expect("a place"), connect_from("127.0.0.1", to).expect("a place")];
    clients.iter_mut().for_each(|client| go(client, "a"));
    let mut third = connect_from("127.0.0.1", to).expect("the handshake goes on");
    assert_eq!(send_go(&mut third, "a"), 0x8000_0002, "NBD_REP_ERR_POLICY");
    // 202 requests at 200 a second; a burst of 10 ms is free.
    let begun = Instant::now();
    for _ in 0..101 {
        clients.iter_mut().for_each(|client| flush(client).expect("requests wait, and do not fail"));
    }
    assert!(begun.elapsed().as_millis() >= 990, "{:?}", begun.elapsed());
    // Without a limit, connected clients are served at once.
    daemon.braid(&["export", "set", "a", "--limit", "none", "--max-connections", "3"]);
    assert_eq!(send_go(&mut third, "a"), 3, "NBD_REP_INFO");
    for _ in 0..2000 {
        clients.iter_mut().for_each(|client| flush(client).expect("requests do not fail"));
    }
    assert!(daemon.braid(&["export", "show", "a"]).contains("of 3"));
    // A renamed export keeps its limits.
    daemon.braid(&["export", "set", "a", "--max-connections", "1"]);
    daemon.braid(&["export", "rename", "a", "b", "--force"]);
    let [mut first, mut second] =
        [connect_from("127.0.0.1", to).expect("a place"), connect_from("127.0.0.1", to).expect("a place")];
    go(&mut first, "b");
    assert_eq!(send_go(&mut second, "b"), 0x8000_0002, "NBD_REP_ERR_POLICY");
}

/// Reads the greeting and requests the export. Returns the type of the first reply.
fn send_go(stream: &mut TcpStream, export: &str) -> u32 {
    let data = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &0u16.to_be_bytes()].concat();
    let option = [b"IHAVEOPT", &7u32.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), &data].concat();
    stream.write_all(&option).expect("it is connected");
    let mut first = 0;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).expect("a reply");
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| head[at + i]));
        let mut rest = vec![0; word(16) as usize];
        stream.read_exact(&mut rest).expect("the rest of it");
        if first == 0 {
            first = word(12);
        }
        if word(12) != 3 {
            return first;
        }
    }
}

fn go(stream: &mut TcpStream, export: &str) {
    assert_eq!(send_go(stream, export), 3, "NBD_REP_INFO");
}

/// Sends a FLUSH and reads its reply.
fn flush(stream: &mut TcpStream) -> std::io::Result<()> {
    let request = [&0x2560_9513u32.to_be_bytes()[..], &3u32.to_be_bytes(), &[0; 20]].concat();
    stream.write_all(&request)?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    assert_eq!(reply[4..8], [0; 4], "no error");
    Ok(())
}

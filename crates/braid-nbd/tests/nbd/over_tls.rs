//! TLS on a real ring: our own client, common clients, and hostile ones.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::bed::*;
use crate::pki::Pki;
use braid_export::ExportLimits;
use braid_nbd::client::{Client, ClientConfig, ClientError};
use braid_nbd::server::ServerConfig;
use braid_nbd::{Cause, NbdEvent};
use rustls::version::{TLS12, TLS13};

const BOTH: &[&rustls::SupportedProtocolVersion] = &[&TLS13, &TLS12];

fn bed(tls: &Arc<rustls::ServerConfig>, required: bool) -> Arc<Bed> {
    let mut bed = Bed::new(2, ServerConfig::default());
    bed.tls = Some(tls.clone());
    bed.tls_required = required;
    bed.export("disk", "mem:64M");
    bed.export("second", "mem:1M");
    Arc::new(bed)
}

fn connect(at: &TcpListening, tls: Arc<rustls::ClientConfig>, host: &str) -> Result<Client, ClientError> {
    let uri = format!("nbds://127.0.0.1:{}/disk?tls-hostname={host}", at.port());
    Client::connect_with(&uri.parse().unwrap(), ClientConfig::default(), Some(tls))
}

/// Writes and reads ranges of various lengths, some longer than a record, and checks every byte.
fn exercise(client: &mut Client, seed: u64) {
    let mut random = Random(seed);
    let mut disk = vec![0u8; 8 << 20];
    client.write_at(0, &disk, false).unwrap();
    let lengths = [512, 4096, 16384, 16896, 65536, 100 * 512, 1 << 20, 3 << 20];
    for k in 0..200 {
        let len = lengths[random.below(lengths.len() as u64) as usize];
        let at = random.below((disk.len() - len) as u64 / 512 + 1) as usize * 512;
        if k % 2 == 0 {
            let fill: Vec<u8> = (0..len).map(|i| (random.0 as usize + i * 7 + i / 251) as u8).collect();
            disk[at..at + len].copy_from_slice(&fill);
            client.write_at(at as u64, &fill, k % 4 == 0).unwrap();
        } else {
            let mut got = vec![0; len];
            client.read_at(at as u64, &mut got).unwrap();
            assert!(got == disk[at..at + len], "seed {seed}: {len} bytes at {at}");
        }
    }
    client.flush().unwrap();
    assert_eq!(client.block_status(0, 1 << 20).unwrap().len(), 1);
}

#[test]
fn our_client_in_both_versions_of_tls() {
    let pki = Pki::new();
    let bed = bed(&pki.server(false), true);
    let at = bed.listen_tcp();
    for version in [&TLS13, &TLS12] {
        let mut client = connect(&at, pki.client(None, &[version]), "localhost").unwrap();
        exercise(&mut client, 11);
        client.disconnect().unwrap();
    }
    eventually("both have left", || {
        bed.events.pop().is_some_and(|e| matches!(e, NbdEvent::Disconnected { cause: Cause::Disconnected, .. }))
    });
}

#[test]
fn many_requests_in_flight() {
    struct Replies {
        ended: usize,
        bytes: usize,
    }
    impl braid_nbd::client::Replies for Replies {
        fn data(&mut self, _: u16, _: u32, data: &[u8]) {
            self.bytes += data.len();
        }
        fn done(&mut self, _: u16, result: Result<(), u32>) {
            result.unwrap();
            self.ended += 1;
        }
    }
    let pki = Pki::new();
    let bed = bed(&pki.server(false), true);
    let at = bed.listen_tcp();
    let mut client = connect(&at, pki.client(None, BOTH), "localhost").unwrap();
    let data: Arc<[u8]> = vec![5; 1 << 20].into();
    let mut replies = Replies { ended: 0, bytes: 0 };
    let mut random = Random(3);
    let (mut begun, mut expected) = (0, 0);
    while replies.ended < 3000 {
        while begun < 3000 && client.free() > 0 {
            let len = [512, 4096, 65536, 1 << 20][random.below(100) as usize / 33];
            let offset = random.below(63 << 20) & !511;
            if random.below(2) == 0 {
                client.queue_read(offset, len).unwrap();
                expected += len as usize;
            } else {
                client.queue_write_shared(offset, &data, 0, len, 0).unwrap();
            }
            begun += 1;
        }
        client.exchange(true, &mut replies).unwrap();
    }
    assert_eq!(replies.bytes, expected);
}

#[test]
fn certificates_are_verified() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    let tls_error = |result: Result<Client, ClientError>, word: &str| match result {
        Err(ClientError::Tls(why)) => assert!(why.to_lowercase().contains(word), "{why}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the certificate was accepted"),
    };
    let bed_of = |config: &Arc<rustls::ServerConfig>| {
        let bed = bed(config, true);
        let at = bed.listen_tcp();
        (bed, at)
    };
    let (_bed, at) = bed_of(&pki.server(false));
    connect(&at, pki.client(None, BOTH), "127.0.0.1").unwrap();
    tls_error(connect(&at, pki.client(None, BOTH), "elsewhere"), "name");
    tls_error(connect(&at, stranger.client(None, BOTH), "localhost"), "certificate");
    let (_bed, at) = bed_of(&pki.server_until(false, 2020));
    tls_error(connect(&at, pki.client(None, BOTH), "localhost"), "expired");
    // Client certificates.
    let (bed, at) = bed_of(&pki.server(true));
    connect(&at, pki.client(Some(&pki), BOTH), "localhost").unwrap();
    connect(&at, pki.client(None, BOTH), "localhost").map(|_| ()).unwrap_err();
    connect(&at, pki.client(Some(&stranger), BOTH), "localhost").map(|_| ()).unwrap_err();
    let refused = |event: NbdEvent| matches!(event, NbdEvent::Disconnected { cause: Cause::Tls(_), .. });
    let mut seen = 0;
    eventually("both refusals are reported", || {
        seen += bed.events().into_iter().filter(|event| refused(event.clone())).count();
        seen == 2
    });
}

#[test]
fn in_the_clear_where_tls_is_required_or_optional() {
    let pki = Pki::new();
    for required in [true, false] {
        let bed = bed(&pki.server(false), required);
        let at = bed.listen_tcp();
        let plain = format!("nbd://127.0.0.1:{}/disk", at.port());
        let client =
            Client::connect(&plain.parse().unwrap(), ClientConfig { structured: false, ..ClientConfig::default() });
        match client {
            Err(ClientError::Refused { code, text }) if required => {
                assert_eq!(code, 0x8000_0005, "NBD_REP_ERR_TLS_REQD");
                assert!(text.contains("TLS is required"), "{text}");
            }
            Ok(_) if !required => {}
            other => panic!("required: {required}: {:?}", other.err()),
        }
        connect(&at, pki.client(None, BOTH), "localhost").unwrap();
    }
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}; install libnbd-bin and qemu-utils"));
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn nbdinfo_nbdcopy_and_qemu_img() {
    let pki = Pki::new();
    let (folder, bed) = (pki.folder(true).to_str().unwrap().to_owned(), bed(&pki.server(true), true));
    let at = bed.listen_tcp();
    let uri = |export: &str| format!("nbds://localhost:{}/{export}?tls-certificates={folder}", at.port());
    let (done, output) = run("nbdinfo", &["--json", &uri("disk")]);
    assert!(done && output.contains("\"TLS\": true") && output.contains("\"export-size\": 67108864"), "{output}");
    let (done, output) = run("nbdinfo", &["--list", &uri("")]);
    assert!(done && output.contains("export=\"disk\"") && output.contains("export=\"second\""), "{output}");
    // In plaintext nothing is disclosed but the reason.
    let (done, output) = run("nbdinfo", &[&format!("nbd://localhost:{}/disk", at.port())]);
    assert!(!done && output.contains("TLS"), "{output}");

    let path = std::env::temp_dir().join(format!("braid-nbd-tls-{}", std::process::id()));
    let (source, back) = (path.with_extension("source"), path.with_extension("back"));
    let mut random = Random(9);
    let mut data = vec![0; 64 << 20];
    for block in data.chunks_exact_mut(65536).step_by(2) {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    }
    std::fs::write(&source, &data).unwrap();
    let (source, back) = (source.to_str().unwrap(), back.to_str().unwrap());
    let (done, output) = run("nbdcopy", &[source, &uri("disk")]);
    assert!(done, "{output}");
    let (done, output) = run("nbdcopy", &[&uri("disk"), back]);
    assert!(done && std::fs::read(back).unwrap() == data, "{output}");

    let secret = format!("tls-creds-x509,id=tls0,endpoint=client,dir={folder}");
    let image = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=tls0", at.port());
    let (done, output) = run("qemu-img", &["convert", "--object", &secret, "--image-opts", &image, "-O", "raw", back]);
    assert!(done && std::fs::read(back).unwrap() == data, "{output}");
    let (done, output) = run(
        "qemu-img",
        &["compare", "--object", &secret, "--image-opts", &image, &format!("driver=raw,file.filename={source}")],
    );
    assert!(done, "{output}");
    std::fs::remove_file(source).unwrap();
    std::fs::remove_file(back).unwrap();

    // A client without a certificate is refused.
    let (done, output) = run(
        "nbdinfo",
        &[&{
            pki.folder(false);
            uri("disk")
        }],
    );
    assert!(!done, "{output}");
}

/// Reads the greeting and sends STARTTLS; `behind` follows in the same write.
fn ask_for_tls(at: &TcpListening, behind: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", at.port())).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    let ask = [&b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0"[..], behind].concat();
    socket.write_all(&ask).unwrap();
    socket
}

fn answer(socket: &mut TcpStream) -> [u8; 20] {
    let mut answer = [0; 20];
    socket.read_exact(&mut answer).unwrap();
    answer
}

fn is_closed(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    // A reset also ends the connection.
    let _ = socket.read_to_end(&mut rest);
    rest.len() < 100
}

#[test]
fn bytes_in_the_clear_behind_starttls_are_refused() {
    let pki = Pki::new();
    let bed = bed(&pki.server(false), false);
    let at = bed.listen_tcp();
    let mut socket = ask_for_tls(&at, b"IHAVEOPT\0\0\0\x03\0\0\0\0");
    let mut got = Vec::new();
    let _ = socket.read_to_end(&mut got);
    assert_eq!(got, b"", "not even the agreement");
    eventually("the end is reported", || {
        bed.events().iter().any(|e| matches!(e, NbdEvent::Disconnected { cause: Cause::TlsInjected, .. }))
    });
}

#[test]
fn hostile_clients() {
    let pki = Pki::new();
    let mut config = ServerConfig::default();
    (config.handshake_ns, config.tick_ns) = (1_500_000_000, 100_000_000);
    let mut new = Bed::new(1, config);
    new.tls = Some(pki.server(false));
    new.export("disk", "mem:64M");
    let bed = Arc::new(new);
    let at = bed.listen_tcp();
    let mut honest = connect(&at, pki.client(None, BOTH), "localhost").unwrap();
    let mut random = Random(5);
    let mut garbage = vec![0; 1 << 20];
    garbage.iter_mut().for_each(|byte| *byte = random.next() as u8);
    // A record of a handshake message of 16 MiB, repeated.
    let mut endless = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff".to_vec();
    endless.resize(5 + 0x4000, 7);
    let endless: Vec<u8> = std::iter::repeat_n(endless, 16).flatten().collect();
    let alerts: Vec<u8> = std::iter::repeat_n(*b"\x15\x03\x03\0\x02\x01\x5a", 10_000).flatten().collect();
    let empty: Vec<u8> = std::iter::repeat_n(*b"\x16\x03\x03\0\0", 10_000).flatten().collect();
    let changes: Vec<u8> = std::iter::repeat_n(*b"\x14\x03\x03\0\x01\x01", 10_000).flatten().collect();
    let long = [&b"\x17\x03\x03\xff\xff"[..], &[0; 65535]].concat();
    for attack in [&garbage[..], &endless, &alerts, &empty, &changes, &long, b"IHAVEOPT\0\0\0\x03\0\0\0\0"] {
        let mut socket = ask_for_tls(&at, b"");
        answer(&mut socket);
        // The server may close the connection during the write.
        let _ = socket.write_all(attack);
        assert!(is_closed(&mut socket), "{:?}", &attack[..9.min(attack.len())]);
        exercise(&mut honest, 21);
    }
    // Half a handshake and then silence: the handshake's time limit ends it.
    let mut silent = ask_for_tls(&at, b"");
    answer(&mut silent);
    silent.write_all(b"\x16\x03\x01\x02\0\x01\0\x01\xfc").unwrap();
    assert!(is_closed(&mut silent));
    eventually("the end is reported", || {
        bed.events().iter().any(|e| matches!(e, NbdEvent::Disconnected { cause: Cause::HandshakeTimeout, .. }))
    });
    drop(silent);
    exercise(&mut honest, 22);
}

#[test]
fn a_client_that_disconnects_within_a_record() {
    let pki = Pki::new();
    let bed = bed(&pki.server(false), true);
    let at = bed.listen_tcp();
    for cut in [1, 6, 100, 400, 2000] {
        let mut relay = Relay::new(&at, Some(cut));
        let uri = format!("nbds://127.0.0.1:{}/disk?tls-hostname=localhost", relay.port);
        let client = Client::connect_with(&uri.parse().unwrap(), ClientConfig::default(), Some(pki.client(None, BOTH)));
        if let Ok(mut client) = client {
            let _ = client.write_at(0, &[1; 1 << 16], false);
        }
        relay.join();
    }
    eventually("no connection is left", || bed.table.list().iter().all(|export| export.connections() == 0));
    connect(&at, pki.client(None, BOTH), "localhost").unwrap();
}

/// Data sent by rustls alone, with frequent key changes, arrives on the disk. A changed byte ends the connection.
#[test]
fn keys_change_and_a_byte_changes() {
    let pki = Pki::new();
    let bed = bed(&pki.server(false), true);
    let at = bed.listen_tcp();
    let mut socket = ask_for_tls(&at, b"");
    answer(&mut socket);
    let session = rustls::ClientConnection::new(pki.client(None, &[&TLS13]), "localhost".try_into().unwrap()).unwrap();
    let mut secure = rustls::StreamOwned::new(session, socket);
    // EXPORT_NAME, without NO_ZEROES.
    secure.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").unwrap();
    let mut granted = [0; 10];
    secure.read_exact(&mut granted).unwrap();
    assert_eq!(granted[..8], (64u64 << 20).to_be_bytes());
    let len = 100 << 10;
    let request = |kind: u8, offset: u64| {
        let head = [&b"\x25\x60\x95\x13\0\0\0"[..], &[kind], b"a cookie", &offset.to_be_bytes()].concat();
        [&head[..], &(len as u32).to_be_bytes()].concat()
    };
    let mut reply = [0; 16];
    for round in 0..100u64 {
        let data: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + at as u64 / 256 + round) as u8).collect();
        secure.conn.refresh_traffic_keys().unwrap();
        secure.write_all(&[request(1, round * 4096), data.clone()].concat()).unwrap();
        secure.read_exact(&mut reply).unwrap();
        assert_eq!(reply, *b"\x67\x44\x66\x98\0\0\0\0a cookie");
        secure.conn.refresh_traffic_keys().unwrap();
        secure.write_all(&request(0, round * 4096)).unwrap();
        secure.read_exact(&mut reply).unwrap();
        assert_eq!(reply, *b"\x67\x44\x66\x98\0\0\0\0a cookie");
        let mut got = vec![0; len];
        secure.read_exact(&mut got).unwrap();
        assert!(got == data, "round {round}");
    }
    // A write, one byte of which is changed in transit.
    secure.conn.writer().write_all(&[request(1, 0), vec![0xee; len]].concat()[..60_000]).unwrap();
    let mut bytes = Vec::new();
    while secure.conn.wants_write() {
        secure.conn.write_tls(&mut bytes).unwrap();
    }
    bytes[20_000] ^= 1;
    secure.sock.write_all(&bytes).unwrap();
    let output = secure.read(&mut reply).unwrap_err().to_string();
    assert!(output.contains("BadRecordMac"), "{output}");
    eventually("the end is reported", || {
        let broken = |cause: &Cause| matches!(cause, Cause::Tls(why) if why.contains("changed"));
        bed.events().iter().any(|e| matches!(e, NbdEvent::Disconnected { cause, .. } if broken(cause)))
    });
    // The incomplete write was not carried out.
    let mut client = connect(&at, pki.client(None, BOTH), "localhost").unwrap();
    let mut got = vec![0; 4096];
    client.read_at(0, &mut got).unwrap();
    assert_eq!(got[..3], [0, 7, 14], "as the first round left it");
}

/// Forwards what the client sends, up to a number of bytes, and everything that the server sends.
struct Relay {
    port: u16,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Relay {
    fn new(at: &TcpListening, cut: Option<usize>) -> Relay {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, to) = (listener.local_addr().unwrap().port(), at.port());
        let thread = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let (mut down_from, mut down_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let down = std::thread::spawn(move || std::io::copy(&mut down_from, &mut down_to));
            let limit = cut.map_or(u64::MAX, |cut| cut as u64);
            let _ = std::io::copy(&mut (&mut client).take(limit), &mut server);
            let _ = server.shutdown(Shutdown::Both);
            let _ = client.shutdown(Shutdown::Both);
            let _ = down.join().unwrap();
        });
        Relay { port, thread: Some(thread) }
    }

    fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn addresses_that_are_not_allowed() {
    let pki = Pki::new();
    let bed = bed(&pki.server(false), false);
    let at = bed.listen_tcp();
    let mut inside = connect(&at, pki.client(None, BOTH), "localhost").unwrap();
    let export = bed.table.find("disk").unwrap();
    export.set_limits(ExportLimits { allow: vec!["127.0.0.0/8".parse().unwrap()], ..ExportLimits::default() });
    bed.exports_changed();
    inside.flush().unwrap();
    export.set_limits(ExportLimits {
        allow: vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()],
        ..ExportLimits::default()
    });
    match connect(&at, pki.client(None, BOTH), "localhost") {
        Err(ClientError::Refused { code, text }) => {
            assert_eq!(code, 0x8000_0002, "NBD_REP_ERR_POLICY");
            assert!(text.contains("address"), "{text}");
        }
        other => panic!("{:?}", other.err()),
    }
    bed.exports_changed();
    eventually("a connected client that is no longer allowed is disconnected", || inside.flush().is_err());
    // Clients on Unix sockets have no address.
    bed.client("disk", ClientConfig::default()).flush().unwrap();
}

/// Plaintext options that an attacker could have injected have no effect after STARTTLS.
#[test]
fn plaintext_negotiation_is_discarded_at_starttls() {
    let pki = Pki::new();
    let bed = bed(&pki.server(false), false);
    let at = bed.listen_tcp();
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let kind = |reply: &[u8; 20]| u32::from_be_bytes(reply[12..16].try_into().unwrap());
    for style in [8, 11] {
        let mut socket = TcpStream::connect(("127.0.0.1", at.port())).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.read_exact(&mut [0; 18]).unwrap();
        socket.write_all(&[&b"\0\0\0\x03"[..], &option(style, b"")].concat()).unwrap();
        assert_eq!(kind(&answer(&mut socket)), 1, "NBD_REP_ACK, in the clear");
        socket.write_all(&option(5, b"")).unwrap();
        assert_eq!(kind(&answer(&mut socket)), 1, "NBD_REP_ACK of STARTTLS");
        let name = "localhost".try_into().unwrap();
        let session = rustls::ClientConnection::new(pki.client(None, BOTH), name).unwrap();
        let mut secure = rustls::StreamOwned::new(session, socket);
        // A context needs structured replies, which were not requested after STARTTLS.
        secure.write_all(&option(10, b"\0\0\0\x04disk\0\0\0\0")).unwrap();
        let mut reply = [0; 20];
        secure.read_exact(&mut reply).unwrap();
        assert_eq!(kind(&reply), 0x8000_0003, "NBD_REP_ERR_INVALID");
        let mut text = vec![0; u32::from_be_bytes(reply[16..20].try_into().unwrap()) as usize];
        secure.read_exact(&mut text).unwrap();
        // STARTTLS cannot be repeated.
        secure.write_all(&option(5, b"")).unwrap();
        secure.read_exact(&mut reply).unwrap();
        assert_eq!(kind(&reply), 0x8000_0003, "NBD_REP_ERR_INVALID");
    }
}

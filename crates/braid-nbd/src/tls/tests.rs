//! Both sides against rustls and openssl, and against hostile peers.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/pki/mod.rs"]
pub(crate) mod pki;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use pki::Pki;
use rustls::CipherSuite::{
    self, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::{ClientConnection, Connection, ServerConnection};

use super::*;

const OF_13: [CipherSuite; 3] = [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
const OF_12: [CipherSuite; 2] =
    [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256];

type Server = Tls<UnbufferedServerConnection>;
type Client = Tls<UnbufferedClientConnection>;

fn name() -> ServerName<'static> {
    "localhost".try_into().unwrap()
}

/// Decrypts all complete records. Returns the last result, and the data.
fn open_all<S: Side>(tls: &mut Tls<S>, bytes: &mut Vec<u8>) -> (Result<Opened, String>, Vec<u8>) {
    let mut data = Vec::new();
    loop {
        let (took, got) = tls.open(bytes, |part| data.extend_from_slice(part));
        bytes.drain(..took);
        if got != Ok(Opened::Data) {
            return (got, data);
        }
    }
}

fn seal<S: Side>(tls: &mut Tls<S>, data: &[u8]) -> Vec<u8> {
    let mut all = std::mem::take(&mut tls.wire);
    for part in data.chunks(RECORD_DATA_MAX) {
        let mut out = vec![0; SEAL_BYTES_MAX];
        let n = tls.seal(part, &mut out).unwrap();
        all.extend_from_slice(&out[..n]);
    }
    all
}

fn own<S: Side>(tls: &mut Tls<S>) -> &mut Records<S> {
    match &mut tls.layer {
        Layer::Own(records) => records,
        _ => panic!("it is rustls's"),
    }
}

/// A connection between one side of ours and one of rustls alone.
struct Peers<S: Side> {
    ours: Tls<S>,
    theirs: Connection,
    /// Bytes in flight to our side.
    inbox: Vec<u8>,
}

impl<S: Side> Peers<S> {
    fn shake(ours: Tls<S>, theirs: Connection) -> Peers<S> {
        let mut two = Peers { ours, theirs, inbox: Vec::new() };
        for _ in 0..10 {
            assert_eq!(two.take(), b"");
            let wire = std::mem::take(&mut two.ours.wire);
            two.give(&wire);
        }
        assert!(!two.ours.is_handshaking() && !two.theirs.is_handshaking());
        two
    }

    /// Receives what rustls has sent.
    fn take(&mut self) -> Vec<u8> {
        while self.theirs.wants_write() {
            self.theirs.write_tls(&mut self.inbox).unwrap();
        }
        let (got, data) = open_all(&mut self.ours, &mut self.inbox);
        assert_eq!(got, Ok(Opened::NeedInput));
        data
    }

    fn give(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        while !bytes.is_empty() {
            self.theirs.read_tls(&mut bytes).unwrap();
            self.theirs.process_new_packets().unwrap();
            match self.theirs.reader().read_to_end(&mut data) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                _ => {}
            }
        }
        data
    }

    fn they_send(&mut self, data: &[u8]) -> Vec<u8> {
        let mut got = Vec::new();
        // rustls buffers at most 64 KiB.
        for part in data.chunks(32 << 10) {
            self.theirs.writer().write_all(part).unwrap();
            got.extend(self.take());
        }
        got
    }

    fn both_ways(&mut self) {
        for len in [1, 2, 15, 16, 17, 1000, 16383, 16384, 16385, 100_000] {
            let data: Vec<u8> = (0..len).map(|at| (at * 31 + at / 256 + len) as u8).collect();
            assert!(self.they_send(&data) == data, "{len} bytes of theirs");
            let sealed = seal(&mut self.ours, &data);
            assert!(self.give(&sealed) == data, "{len} bytes of ours");
        }
    }
}

fn server_and_rustls(suite: CipherSuite) -> Peers<UnbufferedServerConnection> {
    let (server, client) = Pki::new().with_suite(suite);
    Peers::shake(Tls::server(server).unwrap(), ClientConnection::new(client, name()).unwrap().into())
}

fn client_and_rustls(suite: CipherSuite) -> Peers<UnbufferedClientConnection> {
    let (server, client) = Pki::new().with_suite(suite);
    Peers::shake(Tls::client(client, name()).unwrap(), ServerConnection::new(server).unwrap().into())
}

/// Returns two sides of ours, connected.
fn both_ours(suite: CipherSuite) -> (Server, Client) {
    let (server, client) = Pki::new().with_suite(suite);
    let (mut server, mut client) = (Tls::server(server).unwrap(), Tls::client(client, name()).unwrap());
    for _ in 0..10 {
        assert_eq!(open_all(&mut client, &mut server.wire).0, Ok(Opened::NeedInput));
        assert_eq!(open_all(&mut server, &mut client.wire).0, Ok(Opened::NeedInput));
    }
    (server, client)
}

#[test]
fn every_suite_at_both_ends() {
    for suite in OF_13 {
        let mut server = server_and_rustls(suite);
        own(&mut server.ours);
        server.both_ways();
        // The rustls server has sent tickets by now.
        let mut client = client_and_rustls(suite);
        own(&mut client.ours);
        client.both_ways();
    }
    for suite in OF_12 {
        let (mut server, mut client) = (server_and_rustls(suite), client_and_rustls(suite));
        assert!(matches!(server.ours.layer, Layer::Rustls(_)) && matches!(client.ours.layer, Layer::Rustls(_)));
        server.both_ways();
        client.both_ways();
    }
}

#[test]
fn session_tickets_are_stored() {
    let (server, client) = Pki::new().with_suite(TLS13_AES_128_GCM_SHA256);
    for expected in [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed] {
        let theirs = ServerConnection::new(server.clone()).unwrap();
        let mut two = Peers::shake(Tls::client(client.clone(), name()).unwrap(), theirs.into());
        assert_eq!(two.theirs.handshake_kind(), Some(expected));
        two.both_ways();
    }
}

#[test]
fn keys_change_when_the_peer_updates_them() {
    for suite in OF_13 {
        let (mut server, mut client) = (server_and_rustls(suite), client_and_rustls(suite));
        for _ in 0..40 {
            server.theirs.refresh_traffic_keys().unwrap();
            server.both_ways();
            client.theirs.refresh_traffic_keys().unwrap();
            client.both_ways();
        }
    }
}

#[test]
fn keys_change_before_their_limit() {
    for suite in OF_13 {
        let (mut server, mut client) = (server_and_rustls(suite), client_and_rustls(suite));
        for at in [7, 2, 1] {
            own(&mut server.ours).set_rekey_at(at);
            own(&mut client.ours).set_rekey_at(at);
            server.both_ways();
            client.both_ways();
        }
        let before = seal(&mut server.ours, b"one").len();
        own(&mut server.ours).set_rekey_at(u64::MAX);
        assert!(before > seal(&mut server.ours, b"one").len(), "a change of keys was sent behind each record");
    }
}

#[test]
fn a_key_update_reply_is_sent_once() {
    let (mut server, mut client) = both_ours(TLS13_AES_128_GCM_SHA256);
    for round in 0..3 {
        let mut bytes = Vec::new();
        for _ in 0..5 {
            bytes.extend(own(&mut client).forge(&[24, 0, 0, 1, 1, 22]));
            own(&mut client).next_tx();
        }
        bytes.extend(seal(&mut client, b"data"));
        let (got, data) = open_all(&mut server, &mut bytes);
        assert_eq!((got, &data[..]), (Ok(Opened::NeedInput), &b"data"[..]));
        assert_eq!(server.wire.len(), 5 + 5 + 1 + 16, "round {round}");
        let mut back = std::mem::take(&mut server.wire);
        back.extend(seal(&mut server, b"answer"));
        assert_eq!(open_all(&mut client, &mut back), (Ok(Opened::NeedInput), b"answer".to_vec()));
    }
}

/// The result does not depend on where the stream is cut. No data appears before its record is complete, and without a
/// close_notify the connection is not closed.
#[test]
fn cut_at_every_byte() {
    for suite in [TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256, OF_12[0]] {
        let one_stream = || {
            let mut two = server_and_rustls(suite);
            for part in [&b"first"[..], &[7; 300], b"last"] {
                two.theirs.writer().write_all(part).unwrap();
                if suite != OF_12[0] {
                    two.theirs.refresh_traffic_keys().unwrap();
                }
            }
            let mut bytes = Vec::new();
            while two.theirs.wants_write() {
                two.theirs.write_tls(&mut bytes).unwrap();
            }
            two.theirs.send_close_notify();
            two.theirs.write_tls(&mut bytes).unwrap();
            (two.ours, bytes)
        };
        let expected = [&b"first"[..], &[7; 300], b"last"].concat();
        let (mut ours, bytes) = one_stream();
        let (mut inbox, mut data, mut whole_at, mut closed_at) = (Vec::new(), Vec::new(), None, None);
        for (at, byte) in bytes.iter().enumerate() {
            inbox.push(*byte);
            let (got, part) = open_all(&mut ours, &mut inbox);
            data.extend(part);
            if data == expected {
                whole_at = whole_at.or(Some(at + 1));
            }
            match got.unwrap() {
                Opened::Closed => closed_at = closed_at.or(Some(at + 1)),
                got => assert_eq!(got, Opened::NeedInput),
            }
            assert!(expected.starts_with(&data));
        }
        assert!(data == expected && closed_at == Some(bytes.len()));
        for cut in (0..bytes.len()).step_by(if suite == OF_12[0] { 37 } else { 1 }) {
            let (mut ours, bytes) = one_stream();
            let mut inbox = bytes[..cut].to_vec();
            let (got, mut data) = open_all(&mut ours, &mut inbox);
            assert_eq!(got, Ok(Opened::NeedInput), "cut at {cut} of {}", bytes.len());
            assert_eq!(data == expected, Some(cut) >= whole_at);
            inbox.extend_from_slice(&bytes[cut..]);
            let (got, rest) = open_all(&mut ours, &mut inbox);
            data.extend(rest);
            assert!(got == Ok(Opened::Closed) && data == expected, "cut at {cut}");
        }
    }
}

#[test]
fn a_changed_byte_fails_the_record() {
    for suite in [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256, OF_12[0]] {
        for at in 0..26 {
            let mut two = server_and_rustls(suite);
            two.theirs.writer().write_all(b"data").unwrap();
            two.theirs.writer().write_all(&[9; 100]).unwrap();
            let mut bytes = Vec::new();
            while two.theirs.wants_write() {
                two.theirs.write_tls(&mut bytes).unwrap();
            }
            bytes[at] ^= 0x41;
            let (got, data) = open_all(&mut two.ours, &mut bytes);
            assert_eq!(data, b"", "{suite:?}, byte {at}");
            if got == Ok(Opened::NeedInput) {
                assert!(at == 3 || at == 4, "only a longer record is waited for: byte {at} of {suite:?}");
                continue;
            }
            got.unwrap_err();
            // The peer gets an alert, and the connection has failed in both directions.
            assert!(two.ours.dead && !two.ours.wire.is_empty(), "byte {at} of {suite:?}");
            let alert = std::mem::take(&mut two.ours.wire);
            two.theirs.read_tls(&mut &alert[..]).unwrap();
            let reported = two.theirs.process_new_packets().unwrap_err();
            assert!(matches!(reported, Error::AlertReceived(_)), "{reported}");
            open_all(&mut two.ours, &mut vec![0; 64]).0.unwrap_err();
            two.ours.seal(b"more", &mut [0; SEAL_BYTES_MAX]).unwrap_err();
        }
    }
}

#[test]
fn reordered_and_replayed_records_are_refused() {
    let (mut server, mut client) = both_ours(TLS13_AES_128_GCM_SHA256);
    let (first, second) = (seal(&mut client, b"first"), seal(&mut client, b"second"));
    assert_eq!(open_all(&mut server, &mut [&first[..], &first[..]].concat()).1, b"first");
    assert!(server.dead);
    let (mut server, _) = both_ours(TLS13_AES_128_GCM_SHA256);
    open_all(&mut server, &mut second.clone()).0.unwrap_err();
}

#[test]
fn valid_and_invalid_records() {
    // Content, content type and padding; then the data, or the reason and the alert.
    let full = [vec![5; RECORD_DATA_MAX], vec![23]].concat();
    let padded = [&b"data\x17"[..], &[0; 200]].concat();
    let good: [(&[u8], &[u8]); 6] = [
        (b"data\x17", b"data"),
        (&padded, b"data"),
        (b"zeroes\0\0\0\x17\0\0", b"zeroes\0\0\0"),
        (&full, &full[..RECORD_DATA_MAX]),
        (b"\x17", b""),
        (b"\x01\x5a\x15", b""),
    ];
    for (inner, data) in good {
        let (mut server, mut client) = both_ours(TLS13_AES_128_GCM_SHA256);
        let mut record = own(&mut client).forge(inner);
        assert!(open_all(&mut server, &mut record) == (Ok(Opened::NeedInput), data.to_vec()), "{:?}", &inner[..5]);
    }
    let too_much = [vec![5; RECORD_DATA_MAX + 1], vec![23]].concat();
    let padded_too_much = [vec![5; RECORD_DATA_MAX], vec![23, 0]].concat();
    let bad: [(&[u8], &str, &str); 17] = [
        (&too_much, "too much", "RecordOverflow"),
        (&padded_too_much, "too much", "RecordOverflow"),
        (b"\0\0\0", "no kind", "UnexpectedMessage"),
        (b"\x18", "no place", "UnexpectedMessage"),
        (b"\x01\x14", "no place", "UnexpectedMessage"),
        (b"\x16", "empty", "UnexpectedMessage"),
        (b"\x18\0\0\x01\x16", "in parts", "UnexpectedMessage"),
        (b"\x18\0\0\x16", "in parts", "UnexpectedMessage"),
        (b"\x18\0\0\x01\x02\x16", "neither", "IllegalParameter"),
        (b"\x18\0\0\0\x16", "length", "DecodeError"),
        (b"\x18\0\0\x02\0\0\x16", "length", "DecodeError"),
        (b"\x18\0\0\x01\0\x18\0\0\x01\0\x16", "within", "UnexpectedMessage"),
        (b"\x04\0\0\0\x16", "tickets", "UnexpectedMessage"),
        (b"\x01\0\0\0\x16", "no place", "UnexpectedMessage"),
        (b"\x02\x15", "alert", "DecodeError"),
        (b"\x02\0\0\x15", "alert", "DecodeError"),
        (b"\x02\x50\x15", "InternalError", ""),
    ];
    for (inner, why, reported) in bad {
        let (mut server, mut client) = both_ours(TLS13_AES_128_GCM_SHA256);
        let mut record = own(&mut client).forge(inner);
        let (got, data) = open_all(&mut server, &mut record);
        let reason = got.unwrap_err();
        assert!(data.is_empty() && reason.contains(why), "{reason}: {why}");
        match reported {
            "" => assert!(server.wire.is_empty(), "an alert is not answered"),
            reported => {
                let reason = open_all(&mut client, &mut server.wire).0.unwrap_err();
                assert!(reason.ends_with(reported), "{reason}: {why}");
            }
        }
    }
    // Plaintext records and overlong ones are refused before they are complete.
    for header in [b"\x15\x03\x03\0\x02", b"\x14\x03\x03\0\x01", b"\x16\x03\x03\0\x04", b"\x17\x03\x03\x41\x01"] {
        let (mut server, _) = both_ours(TLS13_AES_128_GCM_SHA256);
        open_all(&mut server, &mut header.to_vec()).0.unwrap_err();
    }
    open_all(
        &mut both_ours(TLS13_AES_128_GCM_SHA256).0,
        &mut b"\x17\x03\x03\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec(),
    )
    .0
    .unwrap_err();
}

#[test]
fn records_without_data_are_limited() {
    let (mut server, mut client) = both_ours(TLS13_AES_128_GCM_SHA256);
    for inner in [&b"\x17"[..], b"\x18\0\0\x01\0\x16", b"\x01\x5a\x15"] {
        for more in [32, 33] {
            let mut bytes = Vec::new();
            for _ in 0..more {
                bytes.extend(own(&mut client).forge(inner));
                if inner[0] == 24 {
                    own(&mut client).next_tx();
                }
            }
            bytes.extend(seal(&mut client, b"data"));
            let (got, data) = open_all(&mut server, &mut bytes);
            assert_eq!((got.is_ok(), data.is_empty()), (more == 32, more == 33), "{inner:?}");
        }
        (server, client) = both_ours(TLS13_AES_128_GCM_SHA256);
    }
}

#[test]
fn arbitrary_record_contents() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let interesting = [0, 0, 0, 1, 2, 4, 20, 21, 22, 23, 24, 90, 255];
    let (mut server, mut client) = both_ours(TLS13_AES_128_GCM_SHA256);
    for _ in 0..200 {
        (server, client) = if server.dead { both_ours(TLS13_AES_128_GCM_SHA256) } else { (server, client) };
        let mut stream = Vec::new();
        for _ in 0..20 {
            let inner: Vec<u8> = (0..=random(12)).map(|_| interesting[random(interesting.len())]).collect();
            stream.extend(own(&mut client).forge(&inner));
        }
        let (got, data) = open_all(&mut server, &mut stream);
        assert!(data.len() <= 20 * 12 && server.wire.len() <= 64 && (got.is_ok() || server.dead));
        server.dead |= got.is_ok();
    }
}

#[test]
fn close_notify_ends_one_direction() {
    for suite in [TLS13_AES_256_GCM_SHA384, OF_12[0]] {
        let mut two = server_and_rustls(suite);
        two.theirs.send_close_notify();
        two.theirs.write_tls(&mut two.inbox).unwrap();
        let (got, data) = open_all(&mut two.ours, &mut two.inbox);
        assert_eq!((got, data), (Ok(Opened::Closed), Vec::new()));
        // Only the peer's direction is closed; ours continues until it is closed too.
        let sealed = seal(&mut two.ours, b"the rest");
        assert_eq!(two.give(&sealed), b"the rest");
        two.ours.queue_close_notify();
        let wire = std::mem::take(&mut two.ours.wire);
        two.theirs.read_tls(&mut &wire[..]).unwrap();
        assert!(two.theirs.process_new_packets().unwrap().peer_has_closed());
    }
}

/// openssl requests a key update for a line "K", and updates only its own key for "k".
#[test]
fn openssl_changes_keys() {
    for suite in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"] {
        let pki = Pki::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let mut openssl = Command::new("openssl")
            .args(["s_client", "-connect", &at, "-ciphersuites", suite])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("openssl: {error}; install openssl"));
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        let mut input = openssl.stdin.take().unwrap();
        let mut reported = BufReader::new(openssl.stdout.take().unwrap());
        let mut server = Tls::server(pki.server(false)).unwrap();
        let mut inbox = Vec::new();
        // Reads until there is data, and sends pending replies.
        let mut listen = |socket: &mut std::net::TcpStream, server: &mut Server| loop {
            let (got, data) = open_all(server, &mut inbox);
            assert_eq!(got, Ok(Opened::NeedInput));
            socket.write_all(&std::mem::take(&mut server.wire)).unwrap();
            if !data.is_empty() {
                return data;
            }
            let mut part = [0; 4096];
            let n = socket.read(&mut part).unwrap();
            assert!(n > 0, "openssl went away: {suite}");
            inbox.extend_from_slice(&part[..n]);
        };
        for (round, change) in ["", "K\n", "k\n", "K\n"].into_iter().enumerate() {
            input.write_all(change.as_bytes()).unwrap();
            input.flush().unwrap();
            // openssl treats the input of one read as one line.
            std::thread::sleep(std::time::Duration::from_millis(200));
            input.write_all(format!("question {round}\n").as_bytes()).unwrap();
            input.flush().unwrap();
            assert_eq!(listen(&mut socket, &mut server), format!("question {round}\n").into_bytes(), "{suite}");
            let answer = format!("answer {round}");
            let sealed = seal(&mut server, format!("{answer}\n").as_bytes());
            socket.write_all(&sealed).unwrap();
            let mut line = String::new();
            while !line.contains(&answer) {
                line.clear();
                assert!(reported.read_line(&mut line).unwrap() > 0, "openssl does not understand: {suite}");
            }
        }
        own(&mut server);
        drop(input);
        openssl.wait().unwrap();
    }
}

//! Sessions over TLS: the server uses the rustls side, and the session behaves as without TLS.

use rustls::server::UnbufferedServerConnection;
use rustls::version::{TLS12, TLS13};

use super::super::shared::TlsPeer;
use super::*;
use crate::tls::tests::pki::Pki;
use crate::tls::{Opened, RECORD_DATA_MAX, SEAL_BYTES_MAX, Tls};

struct Server {
    tls: Tls<UnbufferedServerConnection>,
    /// Received bytes that are not decrypted.
    inbox: Vec<u8>,
}

impl Server {
    fn new(pki: &Pki, clients: bool) -> Server {
        Server { tls: Tls::server(pki.server(clients)).unwrap(), inbox: Vec::new() }
    }

    /// Returns what the client has sent, after all of it was delivered.
    fn receive_all(&mut self, bed: &mut Bed) -> Result<Vec<u8>, String> {
        let mut received = Vec::new();
        loop {
            self.inbox.append(&mut bed.shard.sent);
            loop {
                let (took, got) = self.tls.open(&mut self.inbox, |data| received.extend_from_slice(data));
                self.inbox.drain(..took);
                match got? {
                    Opened::Data => {}
                    _ => break,
                }
            }
            let wire = std::mem::take(&mut self.tls.wire);
            if bed.shard.sending == 0 && wire.is_empty() {
                return Ok(received);
            }
            bed.says(&wire);
            bed.sent();
        }
    }

    fn records(&mut self, data: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        for part in data.chunks(RECORD_DATA_MAX) {
            let mut out = vec![0; SEAL_BYTES_MAX];
            let n = self.tls.seal(part, &mut out).unwrap();
            all.extend_from_slice(&out[..n]);
        }
        all
    }
}

fn option_of(kind: u32, option: u8) -> Vec<u8> {
    let mut reply = Bed::option_reply(kind, &[]);
    reply[11] = option;
    reply
}

impl Bed {
    fn over_tls(tls_peer: TlsPeer) -> Bed {
        let shared = Shared { tls_peer: Some(tls_peer), ..shared_of(ALL, false, None) };
        Bed::of(shared, ALL)
    }

    /// Runs the handshake up to STARTTLS.
    fn asks_for_tls(&mut self) {
        self.begins();
        let said = std::mem::take(&mut self.shard.sent);
        assert_eq!(said[4..], [&b"IHAVEOPT"[..], &[0, 0, 0, 5, 0, 0, 0, 0]].concat());
    }

    fn greets_over(&mut self, server: &mut Server) {
        self.asks_for_tls();
        self.says(&option_of(1, 5));
        self.sent();
        let said = server.receive_all(self).unwrap();
        assert_eq!(said[..12], [&b"IHAVEOPT"[..], &[0, 0, 0, 7]].concat());
        let info = [&[0, 0][..], &SIZE.to_be_bytes(), &self.flags.to_be_bytes()].concat();
        let all = server.records(&[Bed::option_reply(3, &info), Bed::option_reply(1, &[])].concat());
        self.says(&all[..30]);
        self.says(&all[30..]);
    }

    /// Returns the requests that the server has received, and the data of writes.
    fn received(&mut self, server: &mut Server) -> (Vec<Said>, Vec<u8>) {
        self.sent();
        let received = server.receive_all(self).unwrap();
        let (mut at, mut data) = (0, Vec::new());
        while at < received.len() {
            let len = u32::from_be_bytes(received[at + 24..at + 28].try_into().unwrap()) as usize;
            at += 28;
            if received[at - 21] == 1 {
                data.extend_from_slice(&received[at..at + len]);
                at += len;
            }
        }
        self.shard.sent = received;
        (self.requests(), data)
    }
}

fn tls_peer(pki: &Pki, identity: Option<&Pki>, version: &'static rustls::SupportedProtocolVersion) -> TlsPeer {
    TlsPeer { config: pki.client(identity, &[version]), name: "localhost".try_into().unwrap() }
}

#[test]
fn requests_and_replies_of_every_length_pass() {
    let pki = Pki::new();
    for (version, identity) in [(&TLS13, None), (&TLS13, Some(&pki)), (&TLS12, Some(&pki))] {
        let mut server = Server::new(&pki, identity.is_some());
        let mut bed = Bed::over_tls(tls_peer(&pki, identity, version));
        let mut ended = 0;
        for len in [512, 4096, RECORD_DATA_MAX as u64, 1 << 20] {
            let write = bed.ask(Op::Write, Flags::NONE, 0, len);
            if ended == 0 {
                bed.greets_over(&mut server);
            }
            let (requests, data) = bed.received(&mut server);
            let [(1, 0, cookie, 0, _)] = requests[..] else { panic!("a write") };
            assert!(data == vec![write as u8; len as usize], "{len}");
            let read = bed.ask(Op::Read, Flags::NONE, len, len);
            let [(0, 0, second, _, _)] = bed.received(&mut server).0[..] else { panic!("a read") };
            let wanted: Vec<u8> = (0..len).map(|n| (n * 7 + n / 251) as u8).collect();
            let replies = [Bed::reply(cookie, 0, &[]), Bed::reply(second, 0, &wanted)].concat();
            let records = server.records(&replies);
            // In one piece, or in small ones.
            for crumb in records.chunks(if len < 100_000 { 1013 } else { 60_000 }) {
                bed.says(crumb);
            }
            assert_eq!(bed.shard.ended[ended..], [(write, Ok(())), (read, Ok(()))], "{len}");
            assert!(bed.shard.memory[&read] == wanted);
            ended += 2;
        }
    }
}

#[test]
fn a_connection_that_breaks_at_any_point_is_reopened() {
    let pki = Pki::new();
    for point in 0..6 {
        let mut server = Server::new(&pki, false);
        let mut bed = Bed::over_tls(tls_peer(&pki, None, &TLS13));
        let io = bed.ask(Op::Write, Flags::NONE, 0, 1 << 20);
        match point {
            0 => bed.begins(),
            1 => bed.asks_for_tls(),
            2 => {
                bed.asks_for_tls();
                bed.says(&option_of(1, 5));
            }
            3 => {
                bed.asks_for_tls();
                bed.says(&option_of(1, 5));
                bed.sent();
            }
            4 => bed.greets_over(&mut server),
            _ => {
                bed.greets_over(&mut server);
                bed.sent();
            }
        }
        bed.breaks();
        assert_eq!(bed.shard.ended, [], "{point}");
        bed.shard.sent.clear();
        bed.passes(SECOND / 2);
        assert_eq!(bed.shard.dialled, 2, "{point}");
        let mut server = Server::new(&pki, false);
        bed.greets_over(&mut server);
        let (requests, data) = bed.received(&mut server);
        assert_eq!((requests.len(), data.len()), (1, 1 << 20));
        let reply = server.records(&Bed::reply(requests[0].2, 0, &[]));
        bed.says(&reply);
        assert_eq!(bed.shard.ended, [(io, Ok(()))], "{point}");
    }
}

#[test]
fn a_server_with_an_untrusted_certificate_receives_no_requests() {
    let (pki, other) = (Pki::new(), Pki::new());
    let mut server = Server::new(&other, false);
    let mut bed = Bed::over_tls(tls_peer(&pki, None, &TLS13));
    let io = bed.ask(Op::Write, Flags::NONE, 0, 512);
    bed.asks_for_tls();
    bed.says(&option_of(1, 5));
    bed.sent();
    server.inbox.append(&mut bed.shard.sent);
    assert_eq!(server.tls.open(&mut server.inbox, |_| panic!("no data")).1, Ok(Opened::NeedInput));
    bed.says(&std::mem::take(&mut server.tls.wire));
    bed.breaks();
    assert_eq!(bed.shard.ended, []);
    bed.passes(31 * SECOND);
    assert_eq!(bed.shard.ended, [(io, Err(TIMEDOUT))]);
    assert!(bed.shard.dialled > 2);
}

#[test]
fn plaintext_after_the_starttls_ack_is_rejected() {
    let pki = Pki::new();
    let mut bed = Bed::over_tls(tls_peer(&pki, None, &TLS13));
    bed.ask(Op::Read, Flags::NONE, 0, 512);
    bed.asks_for_tls();
    bed.says(&[option_of(1, 5), Bed::option_reply(1, &[])].concat());
    bed.breaks();
    assert!(!bed.shard.open);
    assert_eq!(bed.shard.sent, b"");
}

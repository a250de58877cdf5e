//! Sessions over TLS: the server has rustls's own end, and the session sees what it would without.

use rustls::server::UnbufferedServerConnection;
use rustls::version::{TLS12, TLS13};

use super::super::secure::Trust;
use super::*;
use crate::tls::tests::pki::Pki;
use crate::tls::{Got, RECORD_DATA_MAX, SEAL_BYTES_MAX, Tls};

struct Server {
    tls: Tls<UnbufferedServerConnection>,
    /// What has come, and is not decrypted.
    inbox: Vec<u8>,
}

impl Server {
    fn new(pki: &Pki, clients: bool) -> Server {
        Server { tls: Tls::server(pki.server(clients)).unwrap(), inbox: Vec::new() }
    }

    /// What the client has said meanwhile, all of it sent.
    fn hears(&mut self, bed: &mut Bed) -> Result<Vec<u8>, String> {
        let mut heard = Vec::new();
        loop {
            self.inbox.append(&mut bed.shard.sent);
            loop {
                let (took, got) = self.tls.open(&mut self.inbox, |data| heard.extend_from_slice(data));
                self.inbox.drain(..took);
                match got? {
                    Got::Data => {}
                    _ => break,
                }
            }
            let wire = std::mem::take(&mut self.tls.wire);
            if bed.shard.sending == 0 && wire.is_empty() {
                return Ok(heard);
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
    fn over_tls(trust: Trust) -> Bed {
        let shared = Shared { trust: Some(trust), ..shared_of(ALL, false, None) };
        Bed::of(shared, ALL)
    }

    /// To where the server agrees to TLS.
    fn asks_for_tls(&mut self) {
        self.begins();
        let said = std::mem::take(&mut self.shard.sent);
        assert_eq!(said[4..], [&b"IHAVEOPT"[..], &[0, 0, 0, 5, 0, 0, 0, 0]].concat());
    }

    fn greets_over(&mut self, server: &mut Server) {
        self.asks_for_tls();
        self.says(&option_of(1, 5));
        self.sent();
        let said = server.hears(self).unwrap();
        assert_eq!(said[..12], [&b"IHAVEOPT"[..], &[0, 0, 0, 7]].concat());
        let info = [&[0, 0][..], &SIZE.to_be_bytes(), &self.flags.to_be_bytes()].concat();
        let all = server.records(&[Bed::option_reply(3, &info), Bed::option_reply(1, &[])].concat());
        self.says(&all[..30]);
        self.says(&all[30..]);
    }

    /// What the server has got: requests without data of writes, and those data.
    fn heard(&mut self, server: &mut Server) -> (Vec<Said>, Vec<u8>) {
        self.sent();
        let heard = server.hears(self).unwrap();
        let (mut at, mut data) = (0, Vec::new());
        while at < heard.len() {
            let len = u32::from_be_bytes(heard[at + 24..at + 28].try_into().unwrap()) as usize;
            at += 28;
            if heard[at - 21] == 1 {
                data.extend_from_slice(&heard[at..at + len]);
                at += len;
            }
        }
        self.shard.sent = heard;
        (self.requests(), data)
    }
}

fn trust(pki: &Pki, identity: Option<&Pki>, version: &'static rustls::SupportedProtocolVersion) -> Trust {
    Trust { config: pki.client(identity, &[version]), name: "localhost".try_into().unwrap() }
}

#[test]
fn requests_and_replies_of_every_length_pass() {
    let pki = Pki::new();
    for (version, identity) in [(&TLS13, None), (&TLS13, Some(&pki)), (&TLS12, Some(&pki))] {
        let mut server = Server::new(&pki, identity.is_some());
        let mut bed = Bed::over_tls(trust(&pki, identity, version));
        let mut ended = 0;
        for len in [512, 4096, RECORD_DATA_MAX as u64, 1 << 20] {
            let write = bed.ask(Op::Write, Flags::NONE, 0, len);
            if ended == 0 {
                bed.greets_over(&mut server);
            }
            let (requests, data) = bed.heard(&mut server);
            let [(1, 0, cookie, 0, _)] = requests[..] else { panic!("a write") };
            assert!(data == vec![write as u8; len as usize], "{len}");
            let read = bed.ask(Op::Read, Flags::NONE, len, len);
            let [(0, 0, second, _, _)] = bed.heard(&mut server).0[..] else { panic!("a read") };
            let wanted: Vec<u8> = (0..len).map(|n| (n * 7 + n / 251) as u8).collect();
            let replies = [Bed::reply(cookie, 0, &[]), Bed::reply(second, 0, &wanted)].concat();
            let records = server.records(&replies);
            // Whole, or in crumbs.
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
fn a_connection_that_breaks_at_any_point_is_begun_anew() {
    let pki = Pki::new();
    for point in 0..6 {
        let mut server = Server::new(&pki, false);
        let mut bed = Bed::over_tls(trust(&pki, None, &TLS13));
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
        let (requests, data) = bed.heard(&mut server);
        assert_eq!((requests.len(), data.len()), (1, 1 << 20));
        let reply = server.records(&Bed::reply(requests[0].2, 0, &[]));
        bed.says(&reply);
        assert_eq!(bed.shard.ended, [(io, Ok(()))], "{point}");
    }
}

#[test]
fn a_server_that_is_another_is_told_nothing() {
    let (pki, other) = (Pki::new(), Pki::new());
    let mut server = Server::new(&other, false);
    let mut bed = Bed::over_tls(trust(&pki, None, &TLS13));
    let io = bed.ask(Op::Write, Flags::NONE, 0, 512);
    bed.asks_for_tls();
    bed.says(&option_of(1, 5));
    bed.sent();
    server.inbox.append(&mut bed.shard.sent);
    assert_eq!(server.tls.open(&mut server.inbox, |_| panic!("no data")).1, Ok(Got::Nothing));
    bed.says(&std::mem::take(&mut server.tls.wire));
    bed.breaks();
    assert_eq!(bed.shard.ended, []);
    bed.passes(31 * SECOND);
    assert_eq!(bed.shard.ended, [(io, Err(TIMEDOUT))]);
    assert!(bed.shard.dialled > 2);
}

#[test]
fn nothing_in_the_clear_is_believed_behind_the_agreement() {
    let pki = Pki::new();
    let mut bed = Bed::over_tls(trust(&pki, None, &TLS13));
    bed.ask(Op::Read, Flags::NONE, 0, 512);
    bed.asks_for_tls();
    bed.says(&[option_of(1, 5), Bed::option_reply(1, &[])].concat());
    bed.breaks();
    assert!(!bed.shard.open);
    assert_eq!(bed.shard.sent, b"");
}

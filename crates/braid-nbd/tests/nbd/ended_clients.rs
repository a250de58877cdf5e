//! Requests that have not begun end with their connection if the export serves another one: the client may have resent
//! them there, followed by newer writes.

use crate::pki;
use std::io::Write;
use std::sync::Arc;

use crate::common::bytes;
use braid_engine::{DeviceId, Op};
use braid_export::{Export, ExportInfo, ExportLimits, ExportTable, ExportTls};
use braid_nbd::EventQueue;
use braid_nbd::memory::{DiskBehaviour, MemoryHost};
use braid_nbd::server::{Arrival, Server, ServerConfig};
use braid_ring::Rates;

const SIZE: usize = 1 << 20;
const GOODBYE: &str = "25609513 0000 0002 'a cookie' 0000000000000000 00000000";

struct Bed {
    host: MemoryHost,
    server: Server<usize>,
    table: Arc<ExportTable>,
    export: Arc<Export>,
}

impl Bed {
    fn new(rates: Rates) -> Bed {
        let table = Arc::new(ExportTable::new());
        let limits = ExportLimits { rates, ..ExportLimits::default() };
        let export = table
            .add(ExportInfo { limits, tls: ExportTls::Optional, ..ExportInfo::new("a", DeviceId(0), SIZE as u64) })
            .unwrap();
        let mut host = MemoryHost::new(32 << 20, SIZE);
        host.now_ns = 1_000_000_000_000;
        let server = Server::new(ServerConfig::default(), Arc::new(EventQueue::new()));
        Bed { host, server, table, export }
    }

    /// Returns a bed with a limit of one request per second.
    fn slow() -> Bed {
        Bed::new(Rates { iops: Some(1), bandwidth_bytes: None })
    }

    fn run(&mut self) {
        self.host.run(&mut self.server);
    }

    fn client(&mut self) -> usize {
        let socket = self.host.socket();
        self.server.connect(&mut self.host, socket, Arrival::plain("", self.table.clone()));
        self.run();
        self.host.client_sends(socket, &bytes("00000003 'IHAVEOPT' 00000001 00000001 'a'"));
        self.run();
        assert_eq!(self.host.take_output(socket).len(), 18 + 10);
        socket
    }

    /// Writes blocks of 512 bytes, one request each.
    fn write(&mut self, socket: usize, blocks: std::ops::Range<usize>, value: u8) {
        self.send_writes(socket, blocks, value);
        self.run();
    }

    fn send_writes(&mut self, socket: usize, blocks: std::ops::Range<usize>, value: u8) {
        for block in blocks {
            let mut request = bytes(&format!("25609513 0000 0001 'a cookie' {:016x} 00000200", block * 512));
            request.extend([value; 512]);
            self.host.client_sends(socket, &request);
        }
    }

    /// Lifts the limits.
    fn let_all_go(&mut self) {
        self.export.set_limits(ExportLimits::default());
        self.server.exports_changed(&mut self.host);
        self.run();
    }

    fn at(&self, block: usize) -> u8 {
        self.host.disk[block * 512]
    }

    fn writes(&self) -> usize {
        self.host.log.iter().filter(|(op, ..)| *op == Op::Write).count()
    }
}

#[test]
fn throttled_requests_end_with_their_client() {
    let mut bed = Bed::slow();
    let old = bed.client();
    bed.write(old, 0..9, 1);
    assert_eq!((bed.at(0), bed.at(8), bed.writes()), (1, 0, 1), "all but the first wait");
    bed.host.client_ends(old);
    let new = bed.client();
    bed.write(new, 5..6, 2);
    bed.let_all_go();
    assert_eq!([4, 5, 6].map(|block| bed.at(block)), [0, 2, 0]);
    assert_eq!((bed.writes(), bed.host.is_closed(old), bed.host.is_closed(new)), (2, true, false));
}

/// The server checks for the disconnect after the requests have their place in the order of writes. An earlier check
/// would be too early: the shard may be interrupted after it, while the client writes through another connection.
#[test]
fn a_request_entered_during_a_disconnect_changes_nothing() {
    let mut bed = Bed::new(Rates::default());
    let (other, old) = (bed.client(), bed.client());
    bed.host.ends_when_entered = Some(old);
    bed.write(old, 0..3, 1);
    assert_eq!((bed.writes(), bed.at(0), bed.host.is_closed(old)), (0, 0, true));
    assert!(bed.host.take_output(old).is_empty(), "it gets no reply");
    bed.write(other, 0..1, 2);
    assert_eq!((bed.at(0), bed.host.is_closed(other)), (2, false));
}

/// The same over TLS, where a close_notify may follow the requests in the same packet.
#[test]
fn a_request_followed_by_close_notify_changes_nothing() {
    let pki = pki::Pki::new();
    let mut bed = Bed::new(Rates::default());
    let other = bed.client();
    let old = bed.host.socket();
    let arrival = Arrival { tls: Some(pki.server(false)), ..Arrival::plain("", bed.table.clone()) };
    bed.server.connect(&mut bed.host, old, arrival);
    bed.run();
    bed.host.client_sends(old, &bytes("00000003 'IHAVEOPT' 00000005 00000000"));
    bed.run();
    assert_eq!(bed.host.take_output(old).len(), 18 + 20);
    let config = pki.client(None, &[&rustls::version::TLS13]);
    let mut secure = rustls::ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut exchange = |bed: &mut Bed| {
        let mut out = Vec::new();
        while secure.wants_write() {
            secure.write_tls(&mut out).unwrap();
        }
        bed.host.client_sends(old, &out);
        bed.run();
        let answer = bed.host.take_output(old);
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            secure.read_tls(&mut rest).unwrap();
            secure.process_new_packets().unwrap();
        }
        secure.is_handshaking()
    };
    while exchange(&mut bed) {}
    let mut request = bytes("25609513 0000 0001 'a cookie' 0000000000000000 00000200");
    request.extend([1; 512]);
    for (last, sent) in [(false, bytes("'IHAVEOPT' 00000001 00000001 'a'")), (true, request)] {
        secure.writer().write_all(&sent).unwrap();
        if last {
            secure.send_close_notify();
        }
        let mut out = Vec::new();
        while secure.wants_write() {
            secure.write_tls(&mut out).unwrap();
        }
        bed.host.client_sends(old, &out);
        bed.run();
        bed.host.take_output(old);
    }
    assert_eq!((bed.writes(), bed.at(0), bed.host.is_closed(old)), (0, 0, true));
    bed.write(other, 0..1, 2);
    assert_eq!(bed.at(0), 2);
}

/// The same, where the client's other path is another export of the device.
#[test]
fn another_export_of_the_device_counts_as_another_connection() {
    let mut bed = Bed::new(Rates::default());
    let old = bed.client();
    bed.host.ends_when_entered = Some(old);
    bed.write(old, 0..1, 1);
    assert_eq!(bed.at(0), 1, "it has no other way");
    let device_export_count = bed.export.info().device_export_count.clone();
    bed.table.add(ExportInfo { device_export_count, ..ExportInfo::new("b", DeviceId(0), SIZE as u64) }).unwrap();
    let old = bed.client();
    bed.host.ends_when_entered = Some(old);
    bed.write(old, 0..1, 2);
    assert_eq!((bed.at(0), bed.host.is_closed(old)), (1, true));
}

/// The same, where the newer client has connected and disconnected meanwhile.
#[test]
fn requests_are_not_started_after_the_newer_client_has_left() {
    let mut bed = Bed::slow();
    let old = bed.client();
    bed.write(old, 0..9, 1);
    bed.host.client_ends(old);
    let new = bed.client();
    bed.host.client_sends(new, &bytes(GOODBYE));
    bed.run();
    assert!(bed.host.is_closed(new));
    bed.let_all_go();
    assert_eq!((bed.writes(), bed.host.is_closed(old)), (1, true));
}

/// Two connections of one client: requests of the broken one are resent on the other.
#[test]
fn an_older_connection_counts_as_another_one() {
    let mut bed = Bed::slow();
    let (other, old) = (bed.client(), bed.client());
    bed.write(old, 0..9, 1);
    bed.host.client_ends(old);
    bed.write(other, 3..4, 1);
    bed.write(other, 3..4, 2);
    bed.let_all_go();
    assert_eq!((bed.at(3), bed.at(4), bed.writes(), bed.host.is_closed(old)), (2, 0, 3, true));
}

/// The same, where that connection has closed before the server continues with the waiting requests.
#[test]
fn an_older_connection_that_has_closed_counts_as_another_one() {
    let mut bed = Bed::slow();
    let (other, old) = (bed.client(), bed.client());
    bed.write(old, 0..9, 1);
    bed.host.client_ends(old);
    bed.write(other, 3..4, 2);
    bed.host.client_sends(other, &bytes(GOODBYE));
    bed.host.now_ns += 1_500_000_000;
    bed.run();
    bed.let_all_go();
    assert_eq!((bed.at(3), bed.at(4), bed.host.is_closed(old)), (2, 0, true));
}

/// Input beyond the server's limits is still in the socket.
#[test]
fn unread_requests_end_with_their_client() {
    let mut bed = Bed::new(Rates::default());
    bed.host.behaviour = DiskBehaviour::Held;
    let old = bed.client();
    bed.write(old, 0..1000, 1);
    let begun = bed.writes();
    assert!(begun < 900 && bed.host.untaken(old) > 0, "{begun}");
    bed.host.client_ends(old);
    let _new = bed.client();
    bed.host.behaviour = DiskBehaviour::Prompt;
    while bed.host.finish_io(Ok(()), false).is_some() {
        bed.run();
    }
    bed.run();
    assert_eq!((bed.writes(), bed.host.is_closed(old)), (begun, true));
}

/// No other client was served: the requests can harm none, and a client may shut down its side while it waits for
/// replies.
#[test]
fn a_sole_client_is_served_to_the_end() {
    let mut bed = Bed::slow();
    let old = bed.client();
    bed.write(old, 0..9, 1);
    bed.host.client_ends(old);
    bed.let_all_go();
    assert_eq!((bed.writes(), bed.at(8)), (9, 1));
    assert_eq!(bed.host.take_output(old).len(), 9 * 16);
}

#[test]
fn a_client_that_sends_disc_is_served_to_the_end() {
    let mut bed = Bed::slow();
    let (old, _other) = (bed.client(), bed.client());
    bed.send_writes(old, 0..9, 1);
    bed.host.client_sends(old, &bytes(GOODBYE));
    bed.run();
    bed.host.client_ends(old);
    bed.let_all_go();
    assert_eq!((bed.writes(), bed.host.take_output(old).len(), bed.host.is_closed(old)), (9, 9 * 16, true));
}

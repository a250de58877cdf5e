//! Entry points for fuzzers. Any input is valid; none may cause a panic, and every resource must be released at the
//! end.

use std::sync::Arc;

use braid_engine::DeviceId;
use braid_export::{ExportInfo, ExportTable};

use crate::event::EventQueue;
use crate::memory::MemoryHost;
use crate::server::{Arrival, Server, ServerConfig};

/// Size of the fuzzed export in bytes.
pub const EXPORT_BYTES: usize = 1 << 20;

/// The bytes of a client that chooses export "a" without negotiating anything else.
const CHOOSE: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01a";
/// The same, with structured replies and `base:allocation`.
const CHOOSE_STRUCTURED: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x1c\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x01\0\0\0\x01a";

/// The same, with extended headers and GO, since EXPORT_NAME is forbidden with them.
const CHOOSE_EXTENDED: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x0b\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x1c\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01a\0\0";

/// Runs a client that sends these bytes, `step` at a time, and closes. Returns the server's output.
pub fn converse(bytes: &[u8], step: usize) -> Vec<u8> {
    converse_with(bytes, step, false)
}

/// The same, on a disk that lends its memory if `lends` is set. Writes to lent memory show in reads being sent.
fn converse_with(bytes: &[u8], step: usize, lends: bool) -> Vec<u8> {
    let table = Arc::new(ExportTable::new());
    let mut second = ExportInfo::new("second", DeviceId(0), EXPORT_BYTES as u64);
    second.read_only = true;
    second.description = "cannot be written".to_owned();
    for info in [ExportInfo::new("a", DeviceId(0), EXPORT_BYTES as u64), second] {
        table.add(info).expect("a table with room");
    }
    let mut host = MemoryHost::new(8 << 20, EXPORT_BYTES);
    host.lends = lends;
    let mut server =
        Server::new(ServerConfig { connections_max: 1, ..ServerConfig::default() }, Arc::new(EventQueue::new()));
    let socket = host.socket();
    server.connect(&mut host, socket, Arrival::plain("", table));
    host.run(&mut server);
    for part in bytes.chunks(step.max(1)) {
        host.client_sends(socket, part);
        host.run(&mut server);
    }
    host.client_ends(socket);
    host.run(&mut server);
    assert!(host.is_closed(socket), "the client is gone");
    assert_eq!(server.connections(), 0, "and so is its connection");
    assert_eq!(host.used_bytes(), 0, "with all of its memory");
    assert_eq!(host.lent(), 0, "and what the disk lent");
    host.take_output(socket)
}

/// Fuzzes the handshake.
pub fn fuzz_handshake(bytes: &[u8]) {
    converse(bytes, usize::MAX);
}

/// Fuzzes transmission. The first byte selects the size of the pieces, the reply style, and whether the disk lends its
/// memory.
pub fn fuzz_transmission(bytes: &[u8]) {
    let Some((&mode, rest)) = bytes.split_first() else { return };
    let choose = match (mode & 1, mode & 8) {
        (_, 8) => CHOOSE_EXTENDED,
        (0, _) => CHOOSE,
        _ => CHOOSE_STRUCTURED,
    };
    let step = if mode & 2 == 0 { usize::MAX } else { 1 + usize::from(mode >> 4) };
    converse_with(&[choose, rest].concat(), step, mode & 4 != 0);
}

/// Fuzzes the protection of TLS records against rustls: the same records from both, and nothing opens that was changed.
pub fn fuzz_tls_records(bytes: &[u8]) {
    crate::tls::protection::fuzz(bytes);
}

//! A byte-level client: its messages and the expected replies are written by hand.

use std::sync::Arc;

use braid_engine::DeviceId;
use braid_export::{ExportInfo, ExportTable};
use braid_nbd::memory::MemoryHost;
use braid_nbd::server::{Server, ServerConfig};
use braid_nbd::{EventQueue, NbdEvent};

pub const SIZE: usize = 1 << 20;

/// Parses bytes: hex digits in pairs, `'text'` verbatim; spaces are ignored.
pub fn bytes(text: &str) -> Vec<u8> {
    pattern(text).into_iter().map(|p| if let Want::Byte(b) = p { b } else { panic!("only for expectations") }).collect()
}

enum Want {
    Byte(u8),
    /// `??`
    Any,
    /// `~4`, `~2`: a length field of this many bytes, and a text of that length.
    Text(usize),
}

fn pattern(text: &str) -> Vec<Want> {
    let (mut out, mut chars) = (Vec::new(), text.chars().filter(|c| *c != '\n').peekable());
    while let Some(c) = chars.next() {
        match c {
            ' ' => {}
            '\'' => out.extend(chars.by_ref().take_while(|c| *c != '\'').map(|c| Want::Byte(c as u8))),
            '?' => {
                assert_eq!(chars.next(), Some('?'));
                out.push(Want::Any);
            }
            '~' => out.push(Want::Text(chars.next().unwrap().to_digit(10).unwrap() as usize)),
            high => {
                let low = chars.next().unwrap();
                out.push(Want::Byte((high.to_digit(16).unwrap() << 4 | low.to_digit(16).unwrap()) as u8));
            }
        }
    }
    out
}

/// Fails unless `got` matches `expected` to the last byte.
#[track_caller]
pub fn expect(what: &str, got: &[u8], expected: &str) {
    let mut rest = got;
    let mut next = |n: usize| {
        let (front, back) = rest.split_at_checked(n).unwrap_or_else(|| panic!("{what}: too short: {}", show(got)));
        rest = back;
        front.to_vec()
    };
    for want in pattern(expected) {
        match want {
            Want::Byte(byte) => assert_eq!(next(1)[0], byte, "{what}: got {}, expected {expected}", show(got)),
            Want::Any => drop(next(1)),
            Want::Text(n) => {
                let len = next(n).iter().fold(0usize, |len, b| len << 8 | usize::from(*b));
                assert!(std::str::from_utf8(&next(len)).is_ok(), "{what}: text");
            }
        }
    }
    assert!(rest.is_empty(), "{what}: {} bytes too many: {}", rest.len(), show(got));
}

pub fn show(bytes: &[u8]) -> String {
    bytes.iter().take(600).map(|b| format!("{b:02x}")).collect()
}

/// A server with three exports ("a"; "ro", read-only and described; "big", 8 TiB and 4 KiB blocks) and one client.
pub struct Client {
    pub host: MemoryHost,
    pub server: Server<usize>,
    pub table: Arc<ExportTable>,
    pub events: Arc<EventQueue>,
    pub socket: usize,
}

impl Client {
    pub fn connect() -> Client {
        Client::with(ServerConfig::default(), 64 << 20)
    }

    pub fn with(config: ServerConfig, arena_bytes: usize) -> Client {
        let table = Arc::new(ExportTable::new());
        table.add(ExportInfo::new("a", DeviceId(0), SIZE as u64)).unwrap();
        let ro = ExportInfo::new("ro", DeviceId(0), SIZE as u64);
        table.add(ExportInfo { read_only: true, description: "for show".into(), ..ro }).unwrap();
        let big = ExportInfo::new("big", DeviceId(0), 8 << 40);
        table.add(ExportInfo { block_bytes_min: 4096, block_bytes_preferred: 65536, ..big }).unwrap();
        let events = Arc::new(EventQueue::new());
        let mut host = MemoryHost::new(arena_bytes, SIZE);
        for (i, byte) in host.disk.iter_mut().enumerate() {
            *byte = (i / 512 + i % 7) as u8;
        }
        let server = Server::new(config, events.clone());
        let mut client = Client { host, server, table, events, socket: 0 };
        client.reconnect();
        client
    }

    /// Connects another client of the same server and selects it. Returns its socket.
    pub fn reconnect(&mut self) -> usize {
        self.socket = self.host.socket();
        self.server.connect(&mut self.host, self.socket, braid_nbd::server::Arrival::plain("peer", self.table.clone()));
        self.run();
        self.socket
    }

    pub fn run(&mut self) {
        self.host.run(&mut self.server);
    }

    /// Sends bytes and returns the reply.
    pub fn say_raw(&mut self, sent: &[u8]) -> Vec<u8> {
        self.host.client_sends(self.socket, sent);
        self.run();
        self.host.take_output(self.socket)
    }

    pub fn say(&mut self, sent: &str) -> Vec<u8> {
        self.say_raw(&bytes(sent))
    }

    #[track_caller]
    pub fn ask(&mut self, what: &str, sent: &str, expected: &str) {
        let got = self.say(sent);
        expect(what, &got, expected);
    }

    /// Returns a client after a handshake by EXPORT_NAME, with simple replies.
    pub fn simple(export: &str) -> Client {
        let mut client = Client::connect();
        client.choose(export, false);
        client
    }

    /// The same with structured replies and `base:allocation`.
    pub fn structured(export: &str) -> Client {
        let mut client = Client::connect();
        client.choose(export, true);
        client
    }

    pub fn choose(&mut self, export: &str, structured: bool) {
        let name = format!("{:08x} '{export}'", export.len());
        self.say("00000003");
        if structured {
            self.say("'IHAVEOPT' 00000008 00000000");
            let len = 4 + export.len() + 4 + 4 + 15;
            self.say(&format!("'IHAVEOPT' 0000000a {len:08x} {name} 00000001 0000000f 'base:allocation'"));
        }
        self.say(&format!("'IHAVEOPT' 00000001 {name}"));
        assert!(!self.is_closed());
    }

    pub fn is_closed(&self) -> bool {
        self.host.is_closed(self.socket)
    }

    pub fn events(&self) -> Vec<NbdEvent> {
        std::iter::from_fn(|| self.events.pop()).collect()
    }
}

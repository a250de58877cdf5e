//! The server's side of the fixed newstyle handshake: bytes in, bytes and at last a session out.
//!
//! No input can make it hold more than a few kilobytes of its own: an option's data is looked at where it
//! lies and must be there in full, at most [`OPTION_BYTES_MAX`]; longer data is skipped and refused. The
//! clock is the caller's.

mod context;
mod parse;
mod reply;

use std::net::IpAddr;
use std::sync::Arc;

use zerocopy::FromBytes;

use crate::codec::{
    OPTION_MAGIC, OptionHeader, PAYLOAD_BYTES_MAX, client_flags, handshake_flags, option, option_reply,
};
use crate::event::Cause;
use crate::export::{Export, ExportTable, ExportTls, OpenExport};
use crate::gate::{Denied, Pass, Standing};
use crate::transmission::Terms;

pub use context::{Contexts, DIFFERENCES_MAX};
use parse::{Fields, Name};

/// Longest data of one option that is looked at; whoever calls [`Handshake::feed`] can hold this and a header.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
/// Most exports in one part of the answer to LIST: what bounds the memory for a client that reads nothing.
const LIST_PART: usize = 32;
/// Bytes that [`Handshake::feed`] may want to see at once.
pub const INPUT_BYTES_MAX: usize = OPTION_BYTES_MAX + size_of::<OptionHeader>();
/// Most options in one handshake.
pub const OPTIONS_MAX: u32 = 1024;
/// Most bytes of options in one handshake, skipped ones included.
pub const OPTIONS_BYTES_MAX: u64 = 1 << 20;
/// Time that a client has for its handshake unless told otherwise, in nanoseconds (10 s).
pub const HANDSHAKE_NS_MAX: u64 = 10_000_000_000;

/// What a finished handshake agreed on.
#[derive(Debug)]
pub struct Session {
    /// The export, with a place among its connections.
    pub export: OpenExport,
    /// What requests are judged by.
    pub terms: Terms,
    /// What BLOCK_STATUS tells.
    pub contexts: Contexts,
    /// From its export's gate, if it has one.
    pub pass: Option<Arc<Pass>>,
}

/// What comes next.
#[derive(Debug)]
pub enum Step {
    /// More input, once all output is sent.
    More,
    /// The export's gate has not decided yet: the same input again, when it has.
    Wait,
    /// Transmission, once all output is sent.
    Enter(Session),
    /// TLS, once all output is sent. What the client sends until then is not to be believed.
    StartTls,
    /// The end, once all output is sent.
    Close(Cause),
}

/// How far a connection is with TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsState {
    /// There is none here.
    Absent,
    /// The client may begin it.
    Offered,
    /// All that comes and goes is encrypted.
    Active,
}

/// What may be said where everything needs TLS. EXPORT_NAME can only be answered by closing.
const WITHOUT_TLS: [u32; 3] = [option::STARTTLS, option::ABORT, option::EXPORT_NAME];
const CUT_OFF: &str = "another connection, session or controller has taken its place";
const TLS_FIRST: &str = "TLS is required here: use nbds:// and the server's authority";

/// Why a client does not get an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    Unknown,
    TlsFirst,
    Address,
}

impl Refused {
    fn code(self) -> u32 {
        match self {
            Refused::Unknown => option_reply::ERR_UNKNOWN,
            Refused::TlsFirst => option_reply::ERR_TLS_REQD,
            Refused::Address => option_reply::ERR_POLICY,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Refused::Unknown => "there is no such export",
            Refused::TlsFirst => TLS_FIRST,
            Refused::Address => "the export is not for clients at this address",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    ClientFlags,
    Option,
    Skip { option: u32, left: u32 },
}

/// One client's handshake.
#[derive(Debug)]
pub struct Handshake {
    table: Arc<ExportTable>,
    state: State,
    deadline_ns: u64,
    tls: TlsState,
    /// Where the client is; none on a Unix socket.
    address: Option<IpAddr>,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    extended: bool,
    /// The export for which contexts were chosen, and these.
    context: Option<(String, Contexts)>,
    /// The last export of a list that is told in parts.
    listed: Option<String>,
    /// Of the export that is being asked for, where its gate has not decided yet.
    pass: Option<Arc<Pass>>,
    options: u32,
    option_bytes: u64,
    /// Most bytes of a READ that the shard has memory for: announced as the largest block.
    read_bytes_max: u32,
}

impl Handshake {
    /// Begins: puts the greeting into `out`.
    pub fn new(table: Arc<ExportTable>, deadline_ns: u64, out: &mut Vec<u8>) -> Handshake {
        reply::greeting(out, handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES);
        Handshake {
            table,
            state: State::ClientFlags,
            deadline_ns,
            tls: TlsState::Absent,
            address: None,
            fixed: false,
            no_zeroes: false,
            structured: false,
            extended: false,
            context: None,
            listed: None,
            pass: None,
            options: 0,
            option_bytes: 0,
            read_bytes_max: PAYLOAD_BYTES_MAX,
        }
    }

    /// Offers TLS.
    pub fn offer_tls(&mut self) {
        self.tls = TlsState::Offered;
    }

    /// The most bytes of a READ, at most [`PAYLOAD_BYTES_MAX`]: the largest block that is announced.
    pub fn set_read_bytes_max(&mut self, bytes: u32) {
        self.read_bytes_max = bytes.min(PAYLOAD_BYTES_MAX);
    }

    /// Where the client is.
    pub fn set_address(&mut self, address: Option<IpAddr>) {
        self.address = address;
    }

    /// When it must be over.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// The time limit has passed.
    pub fn is_late(&self, now_ns: u64) -> bool {
        now_ns >= self.deadline_ns
    }

    /// Looks at the front of `input`, takes at most one message of it and appends the answer to `out`, some 20 KiB at
    /// most. Returns how many bytes it took. Nothing taken and [`Step::More`]: it needs to see more of them or, if it
    /// put something out, has more to say to the same ones once that is sent.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        match self.state {
            State::ClientFlags => self.feed_flags(input),
            State::Option => self.feed_option(input, out),
            State::Skip { option, left } => {
                let took = input.len().min(left as usize);
                let left = left - took as u32;
                self.state = State::Skip { option, left };
                if left == 0 {
                    self.state = State::Option;
                    reply::error(out, option, option_reply::ERR_TOO_BIG, "the option's data is too long");
                }
                (took, Step::More)
            }
        }
    }

    fn feed_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(bytes) = input.first_chunk::<4>() else { return (0, Step::More) };
        let flags = u32::from_be_bytes(*bytes);
        if flags & !(client_flags::FIXED_NEWSTYLE | client_flags::NO_ZEROES) != 0 {
            return (4, Step::Close(Cause::ClientFlags(flags)));
        }
        self.fixed = flags & client_flags::FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & client_flags::NO_ZEROES != 0;
        self.state = State::Option;
        (4, Step::More)
    }

    fn feed_option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let Ok((header, rest)) = OptionHeader::ref_from_prefix(input) else { return (0, Step::More) };
        let (option, len) = (header.option.get(), header.len.get());
        if header.magic.get() != OPTION_MAGIC {
            return (size_of::<OptionHeader>(), Step::Close(Cause::OptionMagic(header.magic.get())));
        }
        let too_long = len as usize > OPTION_BYTES_MAX;
        if !too_long && rest.len() < len as usize {
            return (0, Step::More);
        }
        if self.listed.is_none() && self.pass.is_none() {
            self.options += 1;
            self.option_bytes += size_of::<OptionHeader>() as u64 + u64::from(len);
        }
        if self.options > OPTIONS_MAX || self.option_bytes > OPTIONS_BYTES_MAX {
            return (size_of::<OptionHeader>(), Step::Close(Cause::OptionFlood));
        }
        if !self.fixed && option != option::EXPORT_NAME {
            return (size_of::<OptionHeader>(), Step::Close(Cause::ClientFlags(0)));
        }
        if too_long {
            if option == option::EXPORT_NAME {
                return (size_of::<OptionHeader>(), Step::Close(Cause::OptionFlood));
            }
            // A failed choice of contexts leaves none chosen.
            if option == option::SET_META_CONTEXT {
                self.context = None;
            }
            self.state = State::Skip { option, left: len };
            return (size_of::<OptionHeader>(), Step::More);
        }
        if self.tls == TlsState::Offered && self.table.all_need_tls() && !WITHOUT_TLS.contains(&option) {
            // All that can be had here needs TLS: nothing is told before.
            reply::error(out, option, option_reply::ERR_TLS_REQD, TLS_FIRST);
            return (size_of::<OptionHeader>() + len as usize, Step::More);
        }
        let step = self.answer(option, &rest[..len as usize], out);
        if self.listed.is_some() || matches!(step, Step::Wait) {
            return (0, step);
        }
        (size_of::<OptionHeader>() + len as usize, step)
    }

    /// Answers one option whose data is all there.
    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        match option {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::ABORT => {
                reply::ack(out, option);
                return Step::Close(Cause::Left);
            }
            option::LIST => self.list(data, out),
            option::STARTTLS => return self.start_tls(data, out),
            option::INFO | option::GO => return self.info(option, data, out),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.style(option, data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, out),
            _ => reply::error(out, option, option_reply::ERR_UNSUP, "the option is not known here"),
        }
        Step::More
    }

    /// What was agreed on in the clear, somebody else may have asked for: nothing of it stays.
    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let (kind, text) = match self.tls {
            TlsState::Absent => (option_reply::ERR_UNSUP, "this server has no certificate, and so no TLS"),
            TlsState::Active => (option_reply::ERR_INVALID, "TLS is in use already"),
            TlsState::Offered if !data.is_empty() => (option_reply::ERR_INVALID, "this option has no data"),
            TlsState::Offered => {
                reply::ack(out, option::STARTTLS);
                self.tls = TlsState::Active;
                self.structured = false;
                self.extended = false;
                self.context = None;
                return Step::StartTls;
            }
        };
        reply::error(out, option::STARTTLS, kind, text);
        Step::More
    }

    /// The export of this name, if this client may use it now.
    fn find(&self, name: &str) -> Result<Arc<Export>, Refused> {
        let export = self.table.find(name);
        let needs_tls = export.as_ref().is_some_and(|export| export.info().tls == ExportTls::Required);
        // Names that exist for TLS only are not told from those that do not exist.
        let hides = export.is_none() && self.table.some_need_tls();
        if self.tls != TlsState::Active && (needs_tls || (hides && self.tls == TlsState::Offered)) {
            return Err(Refused::TlsFirst);
        }
        self.may_have(export.ok_or(Refused::Unknown)?)
    }

    /// The same export, if this client may use it now; a gate has its own word in that.
    fn may_have(&self, export: Arc<Export>) -> Result<Arc<Export>, Refused> {
        if self.tls != TlsState::Active && export.info().tls == ExportTls::Required {
            return Err(Refused::TlsFirst);
        }
        if export.admits(self.address) { Ok(export) } else { Err(Refused::Address) }
    }

    /// Tells the next part of the list; the option is not taken before the last one.
    fn list(&mut self, data: &[u8], out: &mut Vec<u8>) {
        if !data.is_empty() {
            return reply::error(out, option::LIST, option_reply::ERR_INVALID, "this option has no data");
        }
        let part = self.table.list_after(self.listed.as_deref(), LIST_PART);
        let visible = |export: &&Arc<Export>| {
            export.info().gate.is_none()
                && export.admits(self.address)
                && (self.tls == TlsState::Active || export.info().tls != ExportTls::Required)
        };
        for export in part.iter().filter(visible) {
            reply::server(out, &export.info().name, &export.info().description);
        }
        self.listed = part.last().filter(|_| part.len() == LIST_PART).map(|export| export.info().name.clone());
        if self.listed.is_none() {
            reply::ack(out, option::LIST);
        }
    }

    /// How replies look. Extended headers bring structured replies with them, and there is no way back.
    fn style(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let (kind, text) = match option {
            _ if !data.is_empty() => (option_reply::ERR_INVALID, "this option has no data"),
            option::EXTENDED_HEADERS if self.extended => {
                (option_reply::ERR_INVALID, "extended headers are in use already")
            }
            _ if self.extended => (option_reply::ERR_EXT_HEADER_REQD, "extended headers are in use already"),
            _ => {
                self.structured = true;
                self.extended = option == option::EXTENDED_HEADERS;
                return reply::ack(out, option);
            }
        };
        reply::error(out, option, kind, text);
    }

    /// EXPORT_NAME can only succeed or close.
    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        if self.extended {
            return Step::Close(Cause::NameWithExtended);
        }
        let Name::Text(name) = Name::of(data) else {
            return Step::Close(Cause::NoSuchExport(String::from_utf8_lossy(&data[..data.len().min(64)]).into_owned()));
        };
        let export = match self.find(name) {
            Ok(export) => export,
            Err(Refused::Unknown) => return Step::Close(Cause::NoSuchExport(name.to_owned())),
            Err(Refused::TlsFirst) => return Step::Close(Cause::TlsRequired),
            Err(Refused::Address) => return Step::Close(Cause::NotAllowed),
        };
        let Some(open) = export.open() else { return Step::Close(Cause::NoPlace(name.to_owned())) };
        let size_bytes = export.size_bytes();
        out.extend_from_slice(&size_bytes.to_be_bytes());
        out.extend_from_slice(&export.info().transmission_flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Step::Enter(self.session(&export, open, size_bytes))
    }

    /// INFO and GO differ only in what follows.
    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        let refuse = |out: &mut Vec<u8>, kind, text| {
            reply::error(out, option, kind, text);
            Step::More
        };
        let mut fields = Fields::new(data);
        let parsed = fields.string().zip(fields.u16());
        let Some((name, wants)) = parsed.filter(|(_, n)| fields.rest().len() == 2 * usize::from(*n)) else {
            return refuse(out, option_reply::ERR_INVALID, "the option's lengths do not add up");
        };
        let name = match Name::of(name) {
            Name::Text(name) => name,
            Name::Bad(text) => return refuse(out, option_reply::ERR_INVALID, text),
        };
        let gated = if option == option::GO { self.table.find_gated(name) } else { None };
        if let Some((export, terms)) = gated {
            return self.go_gated(&export, terms, fields.rest(), out);
        }
        let export = match self.find(name) {
            Ok(export) => export,
            Err(refused) => return refuse(out, refused.code(), refused.text()),
        };
        let open = match (option, export.open()) {
            (_, None) => return refuse(out, option_reply::ERR_POLICY, "the export has no connection to spare"),
            (option::GO, open) => open,
            _ => None,
        };
        debug_assert_eq!(fields.rest().len(), 2 * usize::from(wants));
        let size_bytes = self.tell(&export, option, fields.rest(), out);
        match open {
            Some(open) => Step::Enter(self.session(&export, open, size_bytes)),
            None => Step::More,
        }
    }

    /// Tells what is wanted of an export. Returns its size.
    fn tell(&self, export: &Export, option: u32, wants: &[u8], out: &mut Vec<u8>) -> u64 {
        let wanted = |info: u16| wants.chunks_exact(2).any(|pair| pair == info.to_be_bytes());
        let size_bytes = export.size_bytes();
        let sizes = (size_bytes, self.read_bytes_max);
        reply::infos(out, option, export.info(), sizes, self.structured, wanted);
        reply::ack(out, option);
        size_bytes
    }

    /// GO of an export with a gate, which may want to be waited for.
    fn go_gated(&mut self, export: &Arc<Export>, terms: &str, wants: &[u8], out: &mut Vec<u8>) -> Step {
        let refuse = |out: &mut Vec<u8>, kind, text: &str| {
            reply::error(out, option::GO, kind, text);
            Step::More
        };
        if let Err(refused) = self.may_have(Arc::clone(export)) {
            return refuse(out, refused.code(), refused.text());
        }
        let asked = match (self.pass.take(), export.info().gate.as_ref()) {
            (Some(pass), _) => Ok(pass),
            (None, Some(gate)) => gate.ask(terms),
            (None, None) => return refuse(out, Refused::Unknown.code(), Refused::Unknown.text()),
        };
        let pass = match asked {
            Ok(pass) => pass,
            Err(Denied::Never(why)) => return refuse(out, option_reply::ERR_POLICY, &why),
            Err(Denied::Now(why)) => return refuse(out, option_reply::ERR_SHUTDOWN, &why),
        };
        match pass.standing() {
            Standing::Waits => {
                self.pass = Some(pass);
                return Step::Wait;
            }
            // Who comes again is told whether that is for good.
            Standing::Cut => return refuse(out, option_reply::ERR_SHUTDOWN, CUT_OFF),
            Standing::Admitted => {}
        }
        let Some(open) = export.open() else {
            return refuse(out, option_reply::ERR_SHUTDOWN, "the export has no connection to spare");
        };
        let size_bytes = self.tell(export, option::GO, wants, out);
        Step::Enter(Session { pass: Some(pass), ..self.session(export, open, size_bytes) })
    }

    /// `size_bytes`: as the client was told; it keeps that.
    fn session(&self, export: &Export, open: OpenExport, size_bytes: u64) -> Session {
        let info = export.info();
        let chosen = self.context.as_ref().filter(|(name, _)| self.structured && *name == info.name);
        let contexts = chosen.map(|(_, contexts)| contexts.clone());
        let terms = Terms {
            size_bytes,
            block_bytes_min: info.block_bytes_min,
            read_bytes_max: self.read_bytes_max,
            read_only: info.read_only,
            structured: self.structured,
            extended: self.extended,
            allocation: contexts.is_some(),
        };
        Session { export: open, terms, contexts: contexts.unwrap_or_default(), pass: None }
    }
}

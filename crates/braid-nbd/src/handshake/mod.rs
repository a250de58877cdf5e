//! The server side of the fixed newstyle handshake, sans-I/O: takes bytes, returns replies and finally a session.
//!
//! No input makes it hold more than a few kilobytes: it parses an option's data in place, which must be complete and at
//! most [`OPTION_BYTES_MAX`] long. Longer data is skipped and refused. The caller supplies the clock.

mod context;
mod parse;
mod reply;

use std::net::IpAddr;
use std::sync::Arc;

use braid_export::admission::{AdmissionDenied, AdmissionPass, AdmissionState};
use braid_export::{Export, ExportTable, ExportTls, OpenExport};
use zerocopy::FromBytes;

use crate::codec::{
    OPTION_MAGIC, OptionHeader, PAYLOAD_BYTES_MAX, client_flags, handshake_flags, option, option_reply,
};
use crate::event::Cause;
use crate::transmission::Terms;

pub use context::{Contexts, DIFFERENCES_MAX};
use parse::{Fields, ProtocolString};

/// Maximum data of one option that is parsed. Callers of [`Handshake::feed`] need a buffer for this and a header.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
/// Maximum number of exports in one part of the reply to LIST. It bounds the memory for a client that reads nothing.
const LIST_PART_EXPORTS: usize = 32;
/// Maximum input that [`Handshake::feed`] may need at once, in bytes.
pub const INPUT_BYTES_MAX: usize = OPTION_BYTES_MAX + size_of::<OptionHeader>();
/// Maximum number of options in one handshake.
pub const OPTIONS_MAX: u32 = 1024;
/// Maximum bytes of options in one handshake, including skipped ones.
pub const OPTIONS_BYTES_MAX: u64 = 1 << 20;
/// Default time limit of a handshake, in nanoseconds (10 s).
pub const HANDSHAKE_NS_MAX: u64 = 10_000_000_000;

/// The result of a finished handshake.
#[derive(Debug)]
pub struct NegotiatedSession {
    /// The opened export.
    pub export: OpenExport,
    /// The terms that requests are validated against.
    pub terms: Terms,
    /// The contexts that BLOCK_STATUS reports.
    pub contexts: Contexts,
    /// The pass from admission control, if the export has it.
    pub pass: Option<Arc<AdmissionPass>>,
}

/// The caller's next action.
#[derive(Debug)]
pub enum HandshakeStep {
    /// Read more input once all output is sent.
    NeedInput,
    /// Admission is pending: pass the same input again once it is decided.
    AwaitAdmission,
    /// Enter transmission once all output is sent.
    Enter(NegotiatedSession),
    /// Begin TLS once all output is sent. Input that the client sends before that is not trusted.
    StartTls,
    /// Close once all output is sent.
    Close(Cause),
}

/// The TLS state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsState {
    /// The listener has no TLS.
    Absent,
    /// The client may begin TLS.
    Offered,
    /// All traffic is encrypted.
    Active,
}

/// Options that are handled before TLS even if every export requires TLS; the others get ERR_TLS_REQD. EXPORT_NAME has
/// no error reply: it is handled, and then closes the connection.
const WITHOUT_TLS: [u32; 3] = [option::STARTTLS, option::ABORT, option::EXPORT_NAME];
const CUT_OFF: &str = "another connection, session or controller has taken over";
const TLS_FIRST: &str = "TLS is required: use nbds:// and the server's certificate authority";

/// Why an export is refused to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AccessRefusal {
    Unknown,
    TlsFirst,
    Address,
}

impl AccessRefusal {
    fn code(self) -> u32 {
        match self {
            AccessRefusal::Unknown => option_reply::ERR_UNKNOWN,
            AccessRefusal::TlsFirst => option_reply::ERR_TLS_REQD,
            AccessRefusal::Address => option_reply::ERR_POLICY,
        }
    }

    fn text(self) -> &'static str {
        match self {
            AccessRefusal::Unknown => "there is no such export",
            AccessRefusal::TlsFirst => TLS_FIRST,
            AccessRefusal::Address => "the export does not allow clients at this address",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HandshakeState {
    ClientFlags,
    Option,
    Skip { option: u32, left: u32 },
}

/// The handshake of one client.
#[derive(Debug)]
pub struct Handshake {
    table: Arc<ExportTable>,
    state: HandshakeState,
    deadline_ns: u64,
    tls: TlsState,
    /// The client's address; `None` on a Unix socket.
    address: Option<IpAddr>,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    extended: bool,
    /// The export that contexts were selected for, and the contexts.
    context: Option<(String, Contexts)>,
    /// The name of the last export of the previous part, while the reply to LIST is sent in parts.
    list_position: Option<String>,
    /// The pass of the requested export while its admission is pending.
    pass: Option<Arc<AdmissionPass>>,
    options: u32,
    option_bytes: u64,
    /// Maximum bytes of a READ, which depends on the shard's memory. Announced as the maximum block size.
    read_bytes_max: u32,
}

impl Handshake {
    /// Begins a handshake and writes the greeting to `out`.
    pub fn new(table: Arc<ExportTable>, deadline_ns: u64, out: &mut Vec<u8>) -> Handshake {
        reply::greeting(out, handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES);
        Handshake {
            table,
            state: HandshakeState::ClientFlags,
            deadline_ns,
            tls: TlsState::Absent,
            address: None,
            fixed: false,
            no_zeroes: false,
            structured: false,
            extended: false,
            context: None,
            list_position: None,
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

    /// Sets the maximum bytes of a READ, at most [`PAYLOAD_BYTES_MAX`]: the announced largest block.
    pub fn set_read_bytes_max(&mut self, bytes: u32) {
        self.read_bytes_max = bytes.min(PAYLOAD_BYTES_MAX);
    }

    /// Sets the client's address.
    pub fn set_address(&mut self, address: Option<IpAddr>) {
        self.address = address;
    }

    /// Returns the deadline in nanoseconds.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Returns whether the deadline has passed.
    pub fn is_late(&self, now_ns: u64) -> bool {
        now_ns >= self.deadline_ns
    }

    /// Takes at most one message from the front of `input` and appends the reply to `out`, at most about 20 KiB.
    /// Returns how many bytes it took.
    ///
    /// If it takes none and returns [`HandshakeStep::NeedInput`]: without output, the message is incomplete; with
    /// output, a reply is sent in parts, and the caller passes the same input again once the output is sent.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        match self.state {
            HandshakeState::ClientFlags => self.feed_flags(input),
            HandshakeState::Option => self.feed_option(input, out),
            HandshakeState::Skip { option, left } => {
                let took = input.len().min(left as usize);
                let left = left - took as u32;
                self.state = HandshakeState::Skip { option, left };
                if left == 0 {
                    self.state = HandshakeState::Option;
                    reply::error(out, option, option_reply::ERR_TOO_BIG, "the option's data is too long");
                }
                (took, HandshakeStep::NeedInput)
            }
        }
    }

    fn feed_flags(&mut self, input: &[u8]) -> (usize, HandshakeStep) {
        let Some(bytes) = input.first_chunk::<4>() else { return (0, HandshakeStep::NeedInput) };
        let flags = u32::from_be_bytes(*bytes);
        if flags & !(client_flags::FIXED_NEWSTYLE | client_flags::NO_ZEROES) != 0 {
            return (4, HandshakeStep::Close(Cause::ClientFlags(flags)));
        }
        self.fixed = flags & client_flags::FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & client_flags::NO_ZEROES != 0;
        self.state = HandshakeState::Option;
        (4, HandshakeStep::NeedInput)
    }

    fn feed_option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        let Ok((header, rest)) = OptionHeader::ref_from_prefix(input) else { return (0, HandshakeStep::NeedInput) };
        let (option, len) = (header.option.get(), header.len.get());
        if header.magic.get() != OPTION_MAGIC {
            return (size_of::<OptionHeader>(), HandshakeStep::Close(Cause::OptionMagic(header.magic.get())));
        }
        let too_long = len as usize > OPTION_BYTES_MAX;
        if !too_long && rest.len() < len as usize {
            return (0, HandshakeStep::NeedInput);
        }
        if self.list_position.is_none() && self.pass.is_none() {
            self.options += 1;
            self.option_bytes += size_of::<OptionHeader>() as u64 + u64::from(len);
        }
        if self.options > OPTIONS_MAX || self.option_bytes > OPTIONS_BYTES_MAX {
            return (size_of::<OptionHeader>(), HandshakeStep::Close(Cause::OptionFlood));
        }
        if !self.fixed && option != option::EXPORT_NAME {
            return (size_of::<OptionHeader>(), HandshakeStep::Close(Cause::ClientFlags(0)));
        }
        if too_long {
            if option == option::EXPORT_NAME {
                return (size_of::<OptionHeader>(), HandshakeStep::Close(Cause::OptionFlood));
            }
            // A failed selection leaves no context selected.
            if option == option::SET_META_CONTEXT {
                self.context = None;
            }
            self.state = HandshakeState::Skip { option, left: len };
            return (size_of::<OptionHeader>(), HandshakeStep::NeedInput);
        }
        if self.tls == TlsState::Offered && self.table.all_need_tls() && !WITHOUT_TLS.contains(&option) {
            // Every export requires TLS: nothing is disclosed before it.
            reply::error(out, option, option_reply::ERR_TLS_REQD, TLS_FIRST);
            return (size_of::<OptionHeader>() + len as usize, HandshakeStep::NeedInput);
        }
        let step = self.handle_option(option, &rest[..len as usize], out);
        if self.list_position.is_some() || matches!(step, HandshakeStep::AwaitAdmission) {
            return (0, step);
        }
        (size_of::<OptionHeader>() + len as usize, step)
    }

    /// Handles one option whose data is complete.
    fn handle_option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        match option {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::ABORT => {
                reply::ack(out, option);
                return HandshakeStep::Close(Cause::Disconnected);
            }
            option::LIST => self.list(data, out),
            option::STARTTLS => return self.start_tls(data, out),
            option::INFO | option::GO => return self.info(option, data, out),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.set_reply_style(option, data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, out),
            _ => reply::error(out, option, option_reply::ERR_UNSUP, "the option is not supported"),
        }
        HandshakeStep::NeedInput
    }

    /// Begins TLS. Everything negotiated in plaintext is discarded, since an attacker may have requested it.
    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        let (kind, text) = match self.tls {
            TlsState::Absent => (option_reply::ERR_UNSUP, "this server has no TLS certificate"),
            TlsState::Active => (option_reply::ERR_INVALID, "TLS is in use already"),
            TlsState::Offered if !data.is_empty() => (option_reply::ERR_INVALID, "this option has no data"),
            TlsState::Offered => {
                reply::ack(out, option::STARTTLS);
                self.tls = TlsState::Active;
                self.structured = false;
                self.extended = false;
                self.context = None;
                return HandshakeStep::StartTls;
            }
        };
        reply::error(out, option::STARTTLS, kind, text);
        HandshakeStep::NeedInput
    }

    /// Returns the named export if this client may use it now.
    fn find(&self, name: &str) -> Result<Arc<Export>, AccessRefusal> {
        let export = self.table.find(name);
        let needs_tls = export.as_ref().is_some_and(|export| export.info().tls == ExportTls::Required);
        // Before TLS, names of exports that require it are indistinguishable from unknown names.
        let hides = export.is_none() && self.table.some_need_tls();
        if self.tls != TlsState::Active && (needs_tls || (hides && self.tls == TlsState::Offered)) {
            return Err(AccessRefusal::TlsFirst);
        }
        self.check_access(export.ok_or(AccessRefusal::Unknown)?)
    }

    /// Checks the client's TLS state and address against the export. Admission control is checked separately.
    fn check_access(&self, export: Arc<Export>) -> Result<Arc<Export>, AccessRefusal> {
        if self.tls != TlsState::Active && export.info().tls == ExportTls::Required {
            return Err(AccessRefusal::TlsFirst);
        }
        if export.admits(self.address) { Ok(export) } else { Err(AccessRefusal::Address) }
    }

    /// Sends the next part of the list. The option is consumed with the last part.
    fn list(&mut self, data: &[u8], out: &mut Vec<u8>) {
        if !data.is_empty() {
            return reply::error(out, option::LIST, option_reply::ERR_INVALID, "this option has no data");
        }
        let part = self.table.list_after(self.list_position.as_deref(), LIST_PART_EXPORTS);
        let visible = |export: &&Arc<Export>| {
            export.info().admission.is_none()
                && export.admits(self.address)
                && (self.tls == TlsState::Active || export.info().tls != ExportTls::Required)
        };
        for export in part.iter().filter(visible) {
            reply::server(out, &export.info().name, &export.info().description);
        }
        self.list_position =
            part.last().filter(|_| part.len() == LIST_PART_EXPORTS).map(|export| export.info().name.clone());
        if self.list_position.is_none() {
            reply::ack(out, option::LIST);
        }
    }

    /// Selects the reply style. Extended headers imply structured replies and cannot be undone.
    fn set_reply_style(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
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

    /// Handles EXPORT_NAME, which either succeeds or closes the connection.
    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        if self.extended {
            return HandshakeStep::Close(Cause::NameWithExtended);
        }
        let ProtocolString::Text(name) = ProtocolString::of(data) else {
            return HandshakeStep::Close(Cause::NoSuchExport(
                String::from_utf8_lossy(&data[..data.len().min(64)]).into_owned(),
            ));
        };
        let export = match self.find(name) {
            Ok(export) => export,
            Err(AccessRefusal::Unknown) => return HandshakeStep::Close(Cause::NoSuchExport(name.to_owned())),
            Err(AccessRefusal::TlsFirst) => return HandshakeStep::Close(Cause::TlsRequired),
            Err(AccessRefusal::Address) => return HandshakeStep::Close(Cause::NotAllowed),
        };
        let Some(open) = export.open() else { return HandshakeStep::Close(Cause::ConnectionLimit(name.to_owned())) };
        let size_bytes = export.size_bytes();
        out.extend_from_slice(&size_bytes.to_be_bytes());
        out.extend_from_slice(&reply::transmission_flags(export.info(), self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        HandshakeStep::Enter(self.session(&export, open, size_bytes))
    }

    /// Handles INFO and GO, which differ only in the step that follows.
    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        let refuse = |out: &mut Vec<u8>, kind, text| {
            reply::error(out, option, kind, text);
            HandshakeStep::NeedInput
        };
        let mut fields = Fields::new(data);
        let parsed = fields.string().zip(fields.u16());
        let Some((name, wants)) = parsed.filter(|(_, n)| fields.rest().len() == 2 * usize::from(*n)) else {
            return refuse(out, option_reply::ERR_INVALID, "the option's length fields are inconsistent");
        };
        let name = match ProtocolString::of(name) {
            ProtocolString::Text(name) => name,
            ProtocolString::Bad(text) => return refuse(out, option_reply::ERR_INVALID, text),
        };
        let with_admission = if option == option::GO { self.table.find_with_admission(name) } else { None };
        if let Some((export, terms)) = with_admission {
            return self.go_with_admission(&export, terms, fields.rest(), out);
        }
        let export = match self.find(name) {
            Ok(export) => export,
            Err(refused) => return refuse(out, refused.code(), refused.text()),
        };
        let open = match (option, export.open()) {
            (_, None) => return refuse(out, option_reply::ERR_POLICY, "the export has reached its connection limit"),
            (option::GO, open) => open,
            _ => None,
        };
        debug_assert_eq!(fields.rest().len(), 2 * usize::from(wants));
        let size_bytes = self.describe_export(&export, option, fields.rest(), out);
        match open {
            Some(open) => HandshakeStep::Enter(self.session(&export, open, size_bytes)),
            None => HandshakeStep::NeedInput,
        }
    }

    /// Sends the requested information on an export. Returns the size that was sent.
    fn describe_export(&self, export: &Export, option: u32, wants: &[u8], out: &mut Vec<u8>) -> u64 {
        let wanted = |info: u16| wants.chunks_exact(2).any(|pair| pair == info.to_be_bytes());
        let size_bytes = export.size_bytes();
        let sizes = (size_bytes, self.read_bytes_max);
        reply::infos(out, option, export.info(), sizes, self.structured, wanted);
        reply::ack(out, option);
        size_bytes
    }

    /// Handles GO for an export with admission control, which may keep the client waiting.
    fn go_with_admission(
        &mut self,
        export: &Arc<Export>,
        terms: &str,
        wants: &[u8],
        out: &mut Vec<u8>,
    ) -> HandshakeStep {
        let refuse = |out: &mut Vec<u8>, kind, text: &str| {
            reply::error(out, option::GO, kind, text);
            HandshakeStep::NeedInput
        };
        if let Err(refused) = self.check_access(Arc::clone(export)) {
            return refuse(out, refused.code(), refused.text());
        }
        let admission = match (self.pass.take(), export.info().admission.as_ref()) {
            (Some(pass), _) => Ok(pass),
            (None, Some(gate)) => gate.request(terms),
            (None, None) => return refuse(out, AccessRefusal::Unknown.code(), AccessRefusal::Unknown.text()),
        };
        let pass = match admission {
            Ok(pass) => pass,
            Err(AdmissionDenied::Permanently(why)) => return refuse(out, option_reply::ERR_POLICY, &why),
            Err(AdmissionDenied::Temporarily(why)) => return refuse(out, option_reply::ERR_SHUTDOWN, &why),
        };
        match pass.state() {
            AdmissionState::Waits => {
                self.pass = Some(pass);
                return HandshakeStep::AwaitAdmission;
            }
            // A temporary refusal: if admission will never be granted, the client's next attempt gets ERR_POLICY.
            AdmissionState::Cut => return refuse(out, option_reply::ERR_SHUTDOWN, CUT_OFF),
            AdmissionState::Admitted => {}
        }
        let Some(open) = export.open() else {
            return refuse(out, option_reply::ERR_SHUTDOWN, "the export has reached its connection limit");
        };
        let size_bytes = self.describe_export(export, option::GO, wants, out);
        HandshakeStep::Enter(NegotiatedSession { pass: Some(pass), ..self.session(export, open, size_bytes) })
    }

    /// Builds the session. `size_bytes` is the size that was sent to the client, which keeps it.
    fn session(&self, export: &Export, open: OpenExport, size_bytes: u64) -> NegotiatedSession {
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
        NegotiatedSession { export: open, terms, contexts: contexts.unwrap_or_default(), pass: None }
    }
}

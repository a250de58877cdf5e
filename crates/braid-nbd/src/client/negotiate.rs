//! The client side of the handshake, sans-I/O: STRUCTURED_REPLY, SET_META_CONTEXT and GO, or EXPORT_NAME for servers
//! without GO.

use zerocopy::{FromBytes, IntoBytes};

use super::ClientError;
use crate::codec::{
    BASE_ALLOCATION, Greeting, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    STRING_BYTES_MAX, client_flags, handshake_flags, info, option, option_reply,
};

/// What the client requests.
#[derive(Clone, Debug)]
pub struct NegotiationOptions {
    /// The export's name.
    pub export: String,
    /// TLS before all other options. Without it the handshake fails.
    pub tls: bool,
    /// Extended headers, if the server supports them. Requires `structured`.
    pub extended: bool,
    /// Structured replies, if the server supports them.
    pub structured: bool,
    /// `base:allocation`, if the server supports it. Requires `structured`.
    pub allocation: bool,
}

/// The result of the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Size in bytes.
    pub size_bytes: u64,
    /// [`crate::codec::transmission_flags`].
    pub flags: u16,
    /// Smallest block, preferred block and maximum payload in bytes, if the server sent them.
    pub block_bytes: Option<[u32; 3]>,
    /// Replies are structured.
    pub structured: bool,
    /// Headers are extended.
    pub extended: bool,
    /// The id of `base:allocation`, if it was selected.
    pub allocation: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NegotiationState {
    Greeting,
    /// Waiting for replies to this option.
    Option(u32),
    /// Waiting for the TLS handshake.
    Tls,
    /// Waiting for the reply to EXPORT_NAME.
    Name,
    Done,
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Negotiation {
    wishes: NegotiationOptions,
    state: NegotiationState,
    no_zeroes: bool,
    negotiated: Negotiated,
    has_export_info: bool,
}

/// Maximum length of an option reply in bytes.
const REPLY_BYTES_MAX: usize = 2 * STRING_BYTES_MAX + 64;

impl Negotiation {
    /// Begins a handshake. The server sends first.
    pub fn new(wishes: NegotiationOptions) -> Negotiation {
        Negotiation {
            wishes,
            state: NegotiationState::Greeting,
            no_zeroes: false,
            negotiated: Negotiated::default(),
            has_export_info: false,
        }
    }

    /// Takes at most one message from the front of `input` and appends what to send to `out`. Returns how many bytes it
    /// took, and the result once the handshake is done.
    ///
    /// # Errors
    /// The server refused the request or violated the protocol.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Option<Negotiated>), ClientError> {
        let took = match self.state {
            NegotiationState::Greeting => self.greeting(input, out)?,
            NegotiationState::Option(option) => self.reply(option, input, out)?,
            NegotiationState::Name => self.name(input)?,
            NegotiationState::Done | NegotiationState::Tls => 0,
        };
        Ok((took, (self.state == NegotiationState::Done).then_some(self.negotiated)))
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, ClientError> {
        let Ok((greeting, _)) = Greeting::ref_from_prefix(input) else { return Ok(0) };
        if greeting.init_magic.get() != INIT_MAGIC || greeting.option_magic.get() != OPTION_MAGIC {
            return Err(ClientError::Protocol("its greeting is not that of a newstyle NBD server"));
        }
        let flags = greeting.flags.get();
        if flags & handshake_flags::FIXED_NEWSTYLE == 0 {
            return Err(ClientError::Protocol("it does not speak the fixed newstyle handshake"));
        }
        self.no_zeroes = flags & handshake_flags::NO_ZEROES != 0;
        let mut mine = client_flags::FIXED_NEWSTYLE;
        if self.no_zeroes {
            mine |= client_flags::NO_ZEROES;
        }
        out.extend_from_slice(&mine.to_be_bytes());
        if self.wishes.tls {
            self.send_option(out, option::STARTTLS, &[]);
        } else {
            self.send_first_option(out);
        }
        Ok(size_of::<Greeting>())
    }

    fn send_first_option(&mut self, out: &mut Vec<u8>) {
        if self.wishes.structured && self.wishes.extended {
            self.send_option(out, option::EXTENDED_HEADERS, &[]);
        } else if self.wishes.structured {
            self.send_option(out, option::STRUCTURED_REPLY, &[]);
        } else {
            self.send_go(out);
        }
    }

    /// Returns whether the server waits for the TLS handshake. Plaintext that arrives from then on is not trusted.
    pub fn waits_for_tls(&self) -> bool {
        self.state == NegotiationState::Tls
    }

    /// Continues after the TLS handshake.
    pub fn tls_established(&mut self, out: &mut Vec<u8>) {
        debug_assert!(self.waits_for_tls(), "STARTTLS was sent");
        self.send_first_option(out);
    }

    fn send_option(&mut self, out: &mut Vec<u8>, option: u32, data: &[u8]) {
        let header =
            OptionHeader { magic: OPTION_MAGIC.into(), option: option.into(), len: (data.len() as u32).into() };
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(data);
        self.state =
            if option == option::EXPORT_NAME { NegotiationState::Name } else { NegotiationState::Option(option) };
    }

    fn send_context_query(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export.as_bytes();
        let query = BASE_ALLOCATION.as_bytes();
        let length = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
        let data = [&length(name)[..], name, &1u32.to_be_bytes(), &length(query), query].concat();
        self.send_option(out, option::SET_META_CONTEXT, &data);
    }

    fn send_go(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        let data = [&length[..], name, &1u16.to_be_bytes(), &info::BLOCK_SIZE.to_be_bytes()].concat();
        self.send_option(out, option::GO, &data);
    }

    fn reply(&mut self, option: u32, input: &[u8], out: &mut Vec<u8>) -> Result<usize, ClientError> {
        let Ok((header, rest)) = OptionReplyHeader::ref_from_prefix(input) else { return Ok(0) };
        if header.magic.get() != OPTION_REPLY_MAGIC || header.option.get() != option {
            return Err(ClientError::Protocol("its reply belongs to no option that was sent"));
        }
        let len = header.len.get() as usize;
        if len > REPLY_BYTES_MAX {
            return Err(ClientError::Protocol("its reply to an option is too long"));
        }
        let Some(data) = rest.get(..len) else { return Ok(0) };
        let kind = header.kind.get();
        match (option, kind) {
            (option::STARTTLS, option_reply::ACK) => self.state = NegotiationState::Tls,
            // Continue without an unsupported option.
            (option::EXTENDED_HEADERS, kind) if kind & option_reply::ERROR_BIT != 0 => {
                self.send_option(out, option::STRUCTURED_REPLY, &[]);
            }
            (option::STRUCTURED_REPLY | option::EXTENDED_HEADERS, option_reply::ACK) => {
                self.negotiated.structured = true;
                self.negotiated.extended = option == option::EXTENDED_HEADERS;
                if self.wishes.allocation { self.send_context_query(out) } else { self.send_go(out) }
            }
            (option::SET_META_CONTEXT, option_reply::META_CONTEXT) => {
                let (id, name) =
                    data.split_first_chunk::<4>().ok_or(ClientError::Protocol("a context without a number"))?;
                if name == BASE_ALLOCATION.as_bytes() {
                    self.negotiated.allocation = Some(u32::from_be_bytes(*id));
                }
            }
            (option::SET_META_CONTEXT, option_reply::ACK) => self.send_go(out),
            (option::GO, option_reply::INFO) => self.info(data)?,
            (option::GO, option_reply::ACK) if self.has_export_info => self.state = NegotiationState::Done,
            // Continue without an unsupported option.
            (option::STRUCTURED_REPLY | option::SET_META_CONTEXT, kind) if kind & option_reply::ERROR_BIT != 0 => {
                self.negotiated.allocation = None;
                self.send_go(out);
            }
            // EXPORT_NAME is forbidden with extended headers, and servers that support these support GO.
            (option::GO, option_reply::ERR_UNSUP) if !self.negotiated.extended => {
                let name = self.wishes.export.clone();
                self.send_option(out, option::EXPORT_NAME, name.as_bytes());
            }
            (_, code) if code & option_reply::ERROR_BIT != 0 => {
                return Err(ClientError::Refused { code, text: String::from_utf8_lossy(data).into_owned() });
            }
            _ => return Err(ClientError::Protocol("a reply of a kind that its option does not have")),
        }
        Ok(size_of::<OptionReplyHeader>() + len)
    }

    fn info(&mut self, data: &[u8]) -> Result<(), ClientError> {
        let (kind, rest) = data.split_first_chunk::<2>().ok_or(ClientError::Protocol("information without a type"))?;
        match (u16::from_be_bytes(*kind), rest.len()) {
            (info::EXPORT, 10) => self.export(rest),
            (info::BLOCK_SIZE, 12) => {
                let size = |k: usize| u32::from_be_bytes(std::array::from_fn(|i| rest[4 * k + i]));
                self.negotiated.block_bytes = Some([size(0), size(1), size(2)]);
            }
            (info::EXPORT | info::BLOCK_SIZE, _) => {
                return Err(ClientError::Protocol("information of a wrong length"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Parses size and flags, ten bytes.
    fn export(&mut self, data: &[u8]) {
        self.negotiated.size_bytes = u64::from_be_bytes(std::array::from_fn(|i| data[i]));
        self.negotiated.flags = u16::from_be_bytes([data[8], data[9]]);
        self.has_export_info = true;
    }

    fn name(&mut self, input: &[u8]) -> Result<usize, ClientError> {
        let len = if self.no_zeroes { 10 } else { 134 };
        if input.len() < len {
            return Ok(0);
        }
        self.export(&input[..10]);
        self.state = NegotiationState::Done;
        Ok(len)
    }
}

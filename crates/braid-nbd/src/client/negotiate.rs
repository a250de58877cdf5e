//! The client's side of the handshake, sans-I/O: STRUCTURED_REPLY, SET_META_CONTEXT and GO, with EXPORT_NAME for
//! servers that do not know GO.

use zerocopy::{FromBytes, IntoBytes};

use super::ClientError;
use crate::codec::{
    BASE_ALLOCATION, Greeting, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    STRING_BYTES_MAX, client_flags, handshake_flags, info, option, option_reply,
};

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// The export's name.
    pub export: String,
    /// TLS before anything else is told; without it there is no connection.
    pub tls: bool,
    /// Extended headers, if the server has them. They need structured replies.
    pub extended: bool,
    /// Structured replies, if the server has them.
    pub structured: bool,
    /// `base:allocation`, if the server has it. Needs structured replies.
    pub allocation: bool,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Size in bytes.
    pub size_bytes: u64,
    /// [`crate::codec::transmission_flags`].
    pub flags: u16,
    /// Smallest block, preferred block, longest payload, if the server told.
    pub block_bytes: Option<[u32; 3]>,
    /// Replies are structured.
    pub structured: bool,
    /// Headers are extended.
    pub extended: bool,
    /// The number of `base:allocation`, if it was chosen.
    pub allocation: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Greeting,
    /// Waiting for replies to this option.
    Option(u32),
    /// Waiting for TLS.
    Tls,
    /// Waiting for the answer to EXPORT_NAME.
    Name,
    Done,
}

/// One handshake.
#[derive(Debug)]
pub struct Negotiation {
    wishes: Wishes,
    state: State,
    no_zeroes: bool,
    so_far: Negotiated,
    told: bool,
}

/// Longest reply that makes sense, in bytes.
const REPLY_BYTES_MAX: usize = 2 * STRING_BYTES_MAX + 64;

impl Negotiation {
    /// Begins. The server speaks first.
    pub fn new(wishes: Wishes) -> Negotiation {
        Negotiation { wishes, state: State::Greeting, no_zeroes: false, so_far: Negotiated::default(), told: false }
    }

    /// Looks at the front of `input`, takes at most one message and appends what to send to `out`. Returns how many
    /// bytes it took, and what was agreed on once it is done.
    ///
    /// # Errors
    /// The server refused, or broke the protocol.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Option<Negotiated>), ClientError> {
        let took = match self.state {
            State::Greeting => self.greeting(input, out)?,
            State::Option(option) => self.reply(option, input, out)?,
            State::Name => self.name(input)?,
            State::Done | State::Tls => 0,
        };
        Ok((took, (self.state == State::Done).then_some(self.so_far)))
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
            self.ask(out, option::STARTTLS, &[]);
        } else {
            self.ask_first(out);
        }
        Ok(size_of::<Greeting>())
    }

    fn ask_first(&mut self, out: &mut Vec<u8>) {
        if self.wishes.structured && self.wishes.extended {
            self.ask(out, option::EXTENDED_HEADERS, &[]);
        } else if self.wishes.structured {
            self.ask(out, option::STRUCTURED_REPLY, &[]);
        } else {
            self.ask_go(out);
        }
    }

    /// Whether the server waits for TLS. What it sends in the clear from then on is not its own.
    pub fn waits_for_tls(&self) -> bool {
        self.state == State::Tls
    }

    /// TLS stands: goes on.
    pub fn tls_stands(&mut self, out: &mut Vec<u8>) {
        debug_assert!(self.waits_for_tls(), "TLS was asked for");
        self.ask_first(out);
    }

    fn ask(&mut self, out: &mut Vec<u8>, option: u32, data: &[u8]) {
        let header =
            OptionHeader { magic: OPTION_MAGIC.into(), option: option.into(), len: (data.len() as u32).into() };
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(data);
        self.state = if option == option::EXPORT_NAME { State::Name } else { State::Option(option) };
    }

    fn ask_context(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export.as_bytes();
        let query = BASE_ALLOCATION.as_bytes();
        let length = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
        let data = [&length(name)[..], name, &1u32.to_be_bytes(), &length(query), query].concat();
        self.ask(out, option::SET_META_CONTEXT, &data);
    }

    fn ask_go(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        let data = [&length[..], name, &1u16.to_be_bytes(), &info::BLOCK_SIZE.to_be_bytes()].concat();
        self.ask(out, option::GO, &data);
    }

    fn reply(&mut self, option: u32, input: &[u8], out: &mut Vec<u8>) -> Result<usize, ClientError> {
        let Ok((header, rest)) = OptionReplyHeader::ref_from_prefix(input) else { return Ok(0) };
        if header.magic.get() != OPTION_REPLY_MAGIC || header.option.get() != option {
            return Err(ClientError::Protocol("its reply answers no option that was asked"));
        }
        let len = header.len.get() as usize;
        if len > REPLY_BYTES_MAX {
            return Err(ClientError::Protocol("its reply to an option is too long"));
        }
        let Some(data) = rest.get(..len) else { return Ok(0) };
        let kind = header.kind.get();
        match (option, kind) {
            (option::STARTTLS, option_reply::ACK) => self.state = State::Tls,
            // What it does not have is done without.
            (option::EXTENDED_HEADERS, kind) if kind & option_reply::ERROR_BIT != 0 => {
                self.ask(out, option::STRUCTURED_REPLY, &[]);
            }
            (option::STRUCTURED_REPLY | option::EXTENDED_HEADERS, option_reply::ACK) => {
                self.so_far.structured = true;
                self.so_far.extended = option == option::EXTENDED_HEADERS;
                if self.wishes.allocation { self.ask_context(out) } else { self.ask_go(out) }
            }
            (option::SET_META_CONTEXT, option_reply::META_CONTEXT) => {
                let (id, name) =
                    data.split_first_chunk::<4>().ok_or(ClientError::Protocol("a context without a number"))?;
                if name == BASE_ALLOCATION.as_bytes() {
                    self.so_far.allocation = Some(u32::from_be_bytes(*id));
                }
            }
            (option::SET_META_CONTEXT, option_reply::ACK) => self.ask_go(out),
            (option::GO, option_reply::INFO) => self.info(data)?,
            (option::GO, option_reply::ACK) if self.told => self.state = State::Done,
            // What it does not have is done without.
            (option::STRUCTURED_REPLY | option::SET_META_CONTEXT, kind) if kind & option_reply::ERROR_BIT != 0 => {
                self.so_far.allocation = None;
                self.ask_go(out);
            }
            // EXPORT_NAME is forbidden with extended headers, and every server that has these has GO.
            (option::GO, option_reply::ERR_UNSUP) if !self.so_far.extended => {
                let name = self.wishes.export.clone();
                self.ask(out, option::EXPORT_NAME, name.as_bytes());
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
                self.so_far.block_bytes = Some([size(0), size(1), size(2)]);
            }
            (info::EXPORT | info::BLOCK_SIZE, _) => {
                return Err(ClientError::Protocol("information of a wrong length"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Size and flags, ten bytes.
    fn export(&mut self, data: &[u8]) {
        self.so_far.size_bytes = u64::from_be_bytes(std::array::from_fn(|i| data[i]));
        self.so_far.flags = u16::from_be_bytes([data[8], data[9]]);
        self.told = true;
    }

    fn name(&mut self, input: &[u8]) -> Result<usize, ClientError> {
        let len = if self.no_zeroes { 10 } else { 134 };
        if input.len() < len {
            return Ok(0);
        }
        self.export(&input[..10]);
        self.state = State::Done;
        Ok(len)
    }
}

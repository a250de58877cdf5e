//! Writes the server's option replies.

use braid_export::ExportInfo;
use zerocopy::IntoBytes;

use crate::codec::{
    Greeting, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionReplyHeader, info, option, option_reply,
    transmission_flags,
};

pub(super) fn greeting(out: &mut Vec<u8>, flags: u16) {
    let greeting = Greeting { init_magic: INIT_MAGIC.into(), option_magic: OPTION_MAGIC.into(), flags: flags.into() };
    out.extend_from_slice(greeting.as_bytes());
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: len.into(),
    };
    out.extend_from_slice(header.as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

pub(super) fn ack(out: &mut Vec<u8>, option: u32) {
    reply(out, option, option_reply::ACK, &[]);
}

pub(super) fn error(out: &mut Vec<u8>, option: u32, kind: u32, text: &str) {
    reply(out, option, kind, &[text.as_bytes()]);
}

/// Writes one entry of LIST.
pub(super) fn server(out: &mut Vec<u8>, name: &str, description: &str) {
    let len = (name.len() as u32).to_be_bytes();
    reply(out, option::LIST, option_reply::SERVER, &[&len, name.as_bytes(), description.as_bytes()]);
}

pub(super) fn context(out: &mut Vec<u8>, option: u32, id: u32, name: &str) {
    reply(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
}

/// Returns the transmission flags of an export. `structured`: structured replies were negotiated.
pub(super) fn transmission_flags(export: &ExportInfo, structured: bool) -> u16 {
    use transmission_flags::*;
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
    if export.read_only {
        flags |= READ_ONLY;
    } else {
        flags |= SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
    }
    if structured {
        flags |= SEND_DF;
    }
    flags
}

/// Writes the information on an export: size and flags always, the rest if requested.
pub(super) fn infos(
    out: &mut Vec<u8>,
    option: u32,
    export: &ExportInfo,
    (size_bytes, block_bytes_max): (u64, u32),
    structured: bool,
    wanted: impl Fn(u16) -> bool,
) {
    let mut put_info = |kind: u16, parts: &[&[u8]]| {
        let body = parts.concat();
        reply(out, option, option_reply::INFO, &[&kind.to_be_bytes(), &body]);
    };
    let flags = transmission_flags(export, structured);
    put_info(info::EXPORT, &[&size_bytes.to_be_bytes(), &flags.to_be_bytes()]);
    if wanted(info::NAME) {
        put_info(info::NAME, &[export.name.as_bytes()]);
    }
    if wanted(info::DESCRIPTION) && !export.description.is_empty() {
        put_info(info::DESCRIPTION, &[export.description.as_bytes()]);
    }
    if wanted(info::BLOCK_SIZE) {
        let sizes = [export.block_bytes_min, export.block_bytes_preferred, block_bytes_max];
        put_info(info::BLOCK_SIZE, &[&sizes.map(u32::to_be_bytes).concat()]);
    }
}

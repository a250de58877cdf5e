//! LIST_META_CONTEXT and SET_META_CONTEXT: one context is known, `base:allocation`.

use super::Handshake;
use super::parse::{Fields, Name};
use super::reply;
use crate::codec::{BASE_ALLOCATION, BASE_ALLOCATION_ID, option, option_reply};

/// What the queries of one option ask for.
struct Queries<'a> {
    export: &'a str,
    /// There were none.
    none: bool,
    /// `base:allocation` was named.
    exact: bool,
    /// A wildcard that covers it was given.
    wild: bool,
}

impl<'a> Queries<'a> {
    fn parse(data: &'a [u8]) -> Result<Queries<'a>, &'static str> {
        const LENGTHS: &str = "the option's lengths do not add up";
        let mut fields = Fields::new(data);
        let (name, count) = fields.string().zip(fields.u32()).ok_or(LENGTHS)?;
        let export = match Name::of(name) {
            Name::Text(name) => name,
            Name::Bad(text) => return Err(text),
        };
        let mut queries = Queries { export, none: count == 0, exact: false, wild: false };
        // Each query takes at least four bytes, so that a false count ends with the data.
        for _ in 0..count {
            match Name::of(fields.string().ok_or(LENGTHS)?) {
                Name::Text(BASE_ALLOCATION) => queries.exact = true,
                Name::Text("" | "base:") => queries.wild = true,
                Name::Text(_) => {}
                Name::Bad(text) => return Err(text),
            }
        }
        if fields.rest().is_empty() { Ok(queries) } else { Err(LENGTHS) }
    }
}

impl Handshake {
    pub(super) fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // Also when this one fails, the earlier choice is gone.
            self.context = None;
        }
        if !self.structured {
            let text = "structured replies come first";
            return reply::error(out, option, option_reply::ERR_INVALID, text);
        }
        let queries = match Queries::parse(data) {
            Ok(queries) => queries,
            Err(text) => return reply::error(out, option, option_reply::ERR_INVALID, text),
        };
        let export = match self.find(queries.export) {
            Ok(export) => export,
            Err(refused) => return reply::error(out, option, refused.code(), refused.text()),
        };
        if set && queries.exact {
            self.context = Some(export.info().name.clone());
            reply::context(out, option, BASE_ALLOCATION_ID, BASE_ALLOCATION);
        }
        if !set && (queries.none || queries.exact || queries.wild) {
            reply::context(out, option, 0, BASE_ALLOCATION);
        }
        reply::ack(out, option);
    }
}

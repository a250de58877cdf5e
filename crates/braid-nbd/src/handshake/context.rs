//! LIST_META_CONTEXT and SET_META_CONTEXT: `base:allocation`, and differences from snapshots, `braid:diff:NAME`.

use std::fmt;
use std::sync::Arc;

use braid_export::Difference;

use super::Handshake;
use super::parse::{Fields, ProtocolString};
use super::reply;
use crate::codec::{BASE_ALLOCATION, BASE_ALLOCATION_ID, DIFFERENCE, DIFFERENCE_ID, option, option_reply};

/// Maximum number of difference contexts of one connection.
pub const DIFFERENCES_MAX: usize = 4;

/// Maximum number of difference contexts in one list.
const NAMES_MAX: usize = 64;

/// The selected contexts.
#[derive(Clone, Default)]
pub struct Contexts {
    /// `base:allocation`.
    pub allocation: bool,
    /// The `braid:diff:` contexts, in order of their ids.
    pub differences: Vec<Arc<dyn Difference>>,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.differences.len();
        f.debug_struct("Contexts").field("allocation", &self.allocation).field("differences", &count).finish()
    }
}

/// The parsed queries of one option.
struct Queries<'a> {
    export: &'a str,
    /// The option has no queries.
    none: bool,
    /// A query names `base:allocation`.
    exact: bool,
    /// A wildcard query covers `base:allocation`.
    wild: bool,
    /// Names after `braid:diff:`.
    differences: Vec<&'a str>,
    /// A wildcard query covers all differences.
    wild_differences: bool,
}

impl<'a> Queries<'a> {
    fn parse(data: &'a [u8]) -> Result<Queries<'a>, &'static str> {
        const LENGTHS: &str = "the option's length fields are inconsistent";
        let mut fields = Fields::new(data);
        let (name, count) = fields.string().zip(fields.u32()).ok_or(LENGTHS)?;
        let export = match ProtocolString::of(name) {
            ProtocolString::Text(name) => name,
            ProtocolString::Bad(text) => return Err(text),
        };
        let (differences, none) = (Vec::new(), count == 0);
        let mut queries = Queries { export, none, exact: false, wild: false, differences, wild_differences: false };
        // Each query takes at least four bytes, so a false count ends with the data.
        for _ in 0..count {
            match ProtocolString::of(fields.string().ok_or(LENGTHS)?) {
                ProtocolString::Text(BASE_ALLOCATION) => queries.exact = true,
                ProtocolString::Text("") => (queries.wild, queries.wild_differences) = (true, true),
                ProtocolString::Text("base:") => queries.wild = true,
                ProtocolString::Text("braid:" | DIFFERENCE) => queries.wild_differences = true,
                ProtocolString::Text(text) => {
                    let name = text.strip_prefix(DIFFERENCE).filter(|name| !queries.differences.contains(name));
                    queries.differences.extend(name.filter(|_| queries.differences.len() < DIFFERENCES_MAX));
                }
                ProtocolString::Bad(text) => return Err(text),
            }
        }
        if fields.rest().is_empty() { Ok(queries) } else { Err(LENGTHS) }
    }
}

impl Handshake {
    pub(super) fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // An earlier selection is dropped even if this one fails.
            self.context = None;
        }
        if !self.structured {
            let text = "negotiate structured replies first";
            return reply::error(out, option, option_reply::ERR_INVALID, text);
        }
        let queries = match Queries::parse(data) {
            Ok(queries) => queries,
            Err(text) => return reply::error(out, option, option_reply::ERR_INVALID, text),
        };
        let with_admission = self.table.find_with_admission(queries.export).map(|(export, _)| export);
        let export = match with_admission.map_or_else(|| self.find(queries.export), |export| self.check_access(export))
        {
            Ok(export) => export,
            Err(refused) => return reply::error(out, option, refused.code(), refused.text()),
        };
        if set {
            let mut chosen = Contexts { allocation: queries.exact, differences: Vec::new() };
            if queries.exact {
                reply::context(out, option, BASE_ALLOCATION_ID, BASE_ALLOCATION);
            }
            for name in &queries.differences {
                if let Some(difference) = export.info().differences.as_ref().and_then(|all| all.begin(name)) {
                    let id = DIFFERENCE_ID + chosen.differences.len() as u32;
                    reply::context(out, option, id, &format!("{DIFFERENCE}{name}"));
                    chosen.differences.push(difference);
                }
            }
            if chosen.allocation || !chosen.differences.is_empty() {
                self.context = Some((export.info().name.clone(), chosen));
            }
        } else {
            if queries.none || queries.exact || queries.wild {
                reply::context(out, option, 0, BASE_ALLOCATION);
            }
            let all = export.info().differences.as_ref().map(|all| all.names()).unwrap_or_default();
            let wanted = |name: &&String| {
                queries.none || queries.wild_differences || queries.differences.contains(&name.as_str())
            };
            for name in all.iter().filter(wanted).take(NAMES_MAX) {
                reply::context(out, option, 0, &format!("{DIFFERENCE}{name}"));
            }
        }
        reply::ack(out, option);
    }
}

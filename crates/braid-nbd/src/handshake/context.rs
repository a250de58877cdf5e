//! LIST_META_CONTEXT and SET_META_CONTEXT: `base:allocation`, and what differs from a snapshot, `braid:diff:NAME`.

use std::fmt;
use std::sync::Arc;

use super::Handshake;
use super::parse::{Fields, Name};
use super::reply;
use crate::codec::{BASE_ALLOCATION, BASE_ALLOCATION_ID, DIFFERENCE, DIFFERENCE_ID, option, option_reply};
use crate::export::Difference;

/// Most differences that one connection is told.
pub const DIFFERENCES_MAX: usize = 4;

/// Most of them in one list.
const NAMES_MAX: usize = 64;

/// The contexts that were chosen.
#[derive(Clone, Default)]
pub struct Contexts {
    /// `base:allocation`.
    pub allocation: bool,
    /// `braid:diff:`, by number.
    pub differences: Vec<Arc<dyn Difference>>,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.differences.len();
        f.debug_struct("Contexts").field("allocation", &self.allocation).field("differences", &count).finish()
    }
}

/// What the queries of one option ask for.
struct Queries<'a> {
    export: &'a str,
    /// There were none.
    none: bool,
    /// `base:allocation` was named.
    exact: bool,
    /// A wildcard that covers it was given.
    wild: bool,
    /// Names after `braid:diff:`.
    differences: Vec<&'a str>,
    /// A wildcard that covers all of these was given.
    wild_differences: bool,
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
        let (differences, none) = (Vec::new(), count == 0);
        let mut queries = Queries { export, none, exact: false, wild: false, differences, wild_differences: false };
        // Each query takes at least four bytes, so that a false count ends with the data.
        for _ in 0..count {
            match Name::of(fields.string().ok_or(LENGTHS)?) {
                Name::Text(BASE_ALLOCATION) => queries.exact = true,
                Name::Text("") => (queries.wild, queries.wild_differences) = (true, true),
                Name::Text("base:") => queries.wild = true,
                Name::Text("braid:" | DIFFERENCE) => queries.wild_differences = true,
                Name::Text(text) => {
                    let name = text.strip_prefix(DIFFERENCE).filter(|name| !queries.differences.contains(name));
                    queries.differences.extend(name.filter(|_| queries.differences.len() < DIFFERENCES_MAX));
                }
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
        let gated = self.table.find_gated(queries.export).map(|(export, _)| export);
        let export = match gated.map_or_else(|| self.find(queries.export), |export| self.may_have(export)) {
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

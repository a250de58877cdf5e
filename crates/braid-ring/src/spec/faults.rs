//! The rules of `faulty(DISK,RULE…)`.
//!
//! ```text
//! rule  = kind ["=" value] [":" probability] ["@" from "-" to] ["*" times]   |   "seed=" number
//! kind  = [("read" | "write" | "flush") "-"] ("error" | "delay" | "hang")
//!       | "torn" | "corrupt" | "bad" | "gone" | "gone-after"
//! ```
//! `delay` and `gone-after` have a value (a time, a number of I/Os); for the others `=` is short for `:`.

use std::fmt;

use braid_engine::Op;
use braid_geometry::units;

use super::{ExactSize, ExactTime, SpecError, time_ns};

pub(super) const EXAMPLE: &str = "faulty(mem:1G,read-error=0.01,write-error@512M-1G,delay=50ms:0.1,seed=7)";

/// Maximum number of rules on one disk.
const RULES_MAX: usize = 32;

/// Maximum size of a `bad` range in bytes: the sectors written are tracked one by one.
pub(crate) const BAD_BYTES_MAX: u64 = 256 << 20;

/// The operations that a rule applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpSet {
    /// All of them.
    Any,
    /// Reads.
    Read,
    /// Writes, zeroing and discards.
    Write,
    /// Flushes.
    Flush,
}

impl OpSet {
    /// Returns whether `op` is one of them.
    pub fn has(self, op: Op) -> bool {
        match self {
            OpSet::Any => true,
            OpSet::Read => op == Op::Read,
            OpSet::Write => matches!(op, Op::Write | Op::WriteZeroes | Op::Discard),
            OpSet::Flush => op == Op::Flush,
        }
    }
}

/// The kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The I/O fails with EIO; nothing was read or written.
    Error(OpSet),
    /// The I/O starts this many nanoseconds late.
    Delay(OpSet, u64),
    /// The I/O does not start until the rules change. Its time limit still applies.
    Hang(OpSet),
    /// A write stores only its first 512-byte sectors, a random number from 0 to all but one, and reports success.
    Torn,
    /// A read returns data with one flipped bit. The data on the disk is unharmed.
    Corrupt,
    /// A read of the range fails with EIO while any 512-byte sector that it touches has not been written since the disk
    /// was opened, as on a disk with an unreadable sector.
    Bad,
    /// From the time when the disk has received this many I/Os, counted over all shards, its I/Os fail with ENODEV.
    GoneAfter(u64),
}

/// One fault rule of a disk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FaultRule {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The probability, from 0 to 1.
    pub probability: f64,
    /// First byte of the range that an I/O must touch. Flushes touch every range.
    pub from: u64,
    /// The byte after the range.
    pub to: u64,
    /// Maximum number of I/Os, over all shards, to which the rule applies; `None`: unlimited.
    pub times: Option<u64>,
}

/// All fault rules of one disk.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FaultRules {
    /// The rules. Every rule is evaluated for each I/O, in order, and the effects of all that apply are combined.
    pub rules: Vec<FaultRule>,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl FaultRules {
    /// Returns whether there are no rules and no seed.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.seed == 0
    }

    /// Parses rules, one per item.
    ///
    /// # Errors
    /// Names the wrong rule, and shows an example.
    pub fn parse(items: &[&str]) -> Result<FaultRules, SpecError> {
        let (mut out, mut seed) = (FaultRules::default(), None);
        for item in items {
            let bad = |problem: String| SpecError { argument: (*item).to_owned(), problem, example: EXAMPLE };
            if let Some(value) = item.strip_prefix("seed=") {
                if seed.is_some() {
                    return Err(bad("is given twice".into()));
                }
                seed = Some(value.parse().map_err(|_| bad("seed is a whole number".into()))?);
            } else if out.rules.len() == RULES_MAX {
                return Err(bad(format!("more than {RULES_MAX} rules on one disk")));
            } else {
                out.rules.push(rule(item).map_err(bad)?);
            }
        }
        out.seed = seed.unwrap_or(0);
        Ok(out)
    }
}

/// Removes the part after the last `mark` from `text`, and returns it.
fn suffix<'a>(text: &mut &'a str, mark: char) -> Option<&'a str> {
    let (head, tail) = text.rsplit_once(mark)?;
    *text = head;
    Some(tail)
}

fn rule(item: &str) -> Result<FaultRule, String> {
    let mut text = item;
    let times = match suffix(&mut text, '*') {
        None => None,
        Some(n) => Some(n.parse::<u64>().map_err(|_| "after * comes how often at most, a whole number".to_owned())?),
    };
    let (from, to) = match suffix(&mut text, '@') {
        None => (0, u64::MAX),
        Some(range) => range_of(range)?,
    };
    let mut chance = suffix(&mut text, ':');
    let (name, mut value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let (ops, kind) = match name.split_once('-') {
        Some(("read", kind)) => (OpSet::Read, kind),
        Some(("write", kind)) => (OpSet::Write, kind),
        Some(("flush", kind)) => (OpSet::Flush, kind),
        _ => (OpSet::Any, name),
    };
    let kind = match kind {
        "delay" => FaultKind::Delay(ops, time_ns(value.take().ok_or("a delay needs its time, as in delay=50ms")?)?),
        "gone-after" => {
            let n = value.take().ok_or("gone-after needs a number of I/Os, as in gone-after=1000")?;
            FaultKind::GoneAfter(n.parse().map_err(|_| "gone-after needs a whole number of I/Os".to_owned())?)
        }
        "error" => FaultKind::Error(ops),
        "hang" => FaultKind::Hang(ops),
        "torn" if ops == OpSet::Any => FaultKind::Torn,
        "corrupt" if ops == OpSet::Any => FaultKind::Corrupt,
        "bad" if ops == OpSet::Any => match (from, to) {
            (0, u64::MAX) => return Err("bad needs the range that cannot be read, as in bad@1M-1028K".into()),
            _ if to - from > BAD_BYTES_MAX => {
                return Err(format!("the range of bad is {} at most", units::format_size(BAD_BYTES_MAX)));
            }
            _ => FaultKind::Bad,
        },
        "gone" if ops == OpSet::Any => FaultKind::GoneAfter(0),
        _ => {
            return Err("is not a rule; those are error, delay, hang (also read-, write-, flush-), torn, corrupt, \
                        bad, gone, gone-after and seed"
                .into());
        }
    };
    if let Some(value) = value {
        if chance.is_some() {
            return Err("has its probability twice".into());
        }
        chance = Some(value);
    }
    let probability = match chance {
        None => 1.0,
        Some(p) => p.parse::<f64>().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or("a probability is from 0 to 1")?,
    };
    Ok(FaultRule { kind, probability, from, to, times })
}

fn range_of(text: &str) -> Result<(u64, u64), String> {
    let bad = || "a range is FROM-TO in bytes, as in @1G-2G".to_owned();
    let (from, to) = text.split_once('-').ok_or_else(bad)?;
    let from = if from == "0" { 0 } else { units::parse_size(from).map_err(|_| bad())? };
    let to = units::parse_size(to).map_err(|_| bad())?;
    if from >= to { Err(bad()) } else { Ok((from, to)) }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops = match self.kind {
            FaultKind::Error(ops) | FaultKind::Delay(ops, _) | FaultKind::Hang(ops) => ops,
            _ => OpSet::Any,
        };
        f.write_str(match ops {
            OpSet::Any => "",
            OpSet::Read => "read-",
            OpSet::Write => "write-",
            OpSet::Flush => "flush-",
        })?;
        match self.kind {
            FaultKind::Error(_) => f.write_str("error")?,
            FaultKind::Delay(_, ns) => write!(f, "delay={}", ExactTime(ns))?,
            FaultKind::Hang(_) => f.write_str("hang")?,
            FaultKind::Torn => f.write_str("torn")?,
            FaultKind::Corrupt => f.write_str("corrupt")?,
            FaultKind::Bad => f.write_str("bad")?,
            FaultKind::GoneAfter(n) => write!(f, "gone-after={n}")?,
        }
        if self.probability != 1.0 {
            write!(f, ":{}", self.probability)?;
        }
        if (self.from, self.to) != (0, u64::MAX) {
            write!(f, "@{}-{}", ExactSize(self.from), ExactSize(self.to))?;
        }
        if let Some(times) = self.times {
            write!(f, "*{times}")?;
        }
        Ok(())
    }
}

impl fmt::Display for FaultRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for rule in &self.rules {
            write!(f, "{comma}{rule}")?;
            comma = ",";
        }
        if self.seed != 0 {
            write!(f, "{comma}seed={}", self.seed)?;
        }
        Ok(())
    }
}

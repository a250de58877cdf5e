//! The grammar of disk names.
//!
//! ```text
//! disk   = "throttled(" disk *("," limit) ")" | "faulty(" disk *("," rule) ")"
//!        | "file:" path *("," file-option) | "mem:" size | "null:" size | "volume:" pool "/" volume
//!        | ("nbd://" | "nbds://" | "nbd+unix://" | "nbds+unix://") address | path
//! limit  = "iops=" number | "bw=" rate | "latency=" time
//! file-option = "size=" size | "alloc=" ("sparse" | "full")
//! ```
//! In the address of an export, comma, parentheses and backslash are percent-encoded. In a path, they are escaped by a
//! backslash. Options named `size` or `alloc` after an unparenthesised `file:` inside a wrapper belong to the file.

use std::path::PathBuf;

use braid_geometry::units;

use super::{Alloc, DiskSpec, FaultRules, SpecError, ThrottleLimits, time_ns};

/// Maximum nesting of wrappers.
const NESTING_MAX: usize = 8;
/// Maximum length of a name in bytes: a path of 4,096 bytes, and room for wrappers and options.
const NAME_BYTES_MAX: usize = 16 << 10;
/// Maximum size of a disk: file offsets are signed 64-bit numbers.
const SIZE_BYTES_MAX: u64 = 1 << 62;

const ANY: &str = "/dev/sdb, ./a.img, file:a.img,size=50G, mem:1G, null:1T";
const REMOTE: &str = "nbd+unix:///disk?socket=/run/nbd.sock";
const FILE: &str = "file:/data/a.img,size=50G,alloc=sparse";
const THROTTLED: &str = "throttled(file:a.img,size=50G,iops=3000,bw=125M,latency=600us)";

pub(super) fn disk(text: &str) -> Result<DiskSpec, SpecError> {
    if text.len() > NAME_BYTES_MAX {
        let start: String = text.chars().take(60).collect();
        return Err(error(&start, format!("is longer than {NAME_BYTES_MAX} bytes"), ANY));
    }
    nested(text, NESTING_MAX)
}

fn error(argument: &str, problem: impl Into<String>, example: &'static str) -> SpecError {
    SpecError { argument: argument.to_owned(), problem: problem.into(), example }
}

fn nested(text: &str, depth: usize) -> Result<DiskSpec, SpecError> {
    if let Some(inside) = wrapped(text, "throttled")? {
        let (disk, options) = inner(inside, depth, THROTTLED)?;
        return Ok(DiskSpec::Throttled { disk: Box::new(disk), limits: limits(&options)? });
    }
    if let Some(inside) = wrapped(text, "faulty")? {
        let (disk, options) = inner(inside, depth, super::faults::EXAMPLE)?;
        return Ok(DiskSpec::Faulty { disk: Box::new(disk), rules: FaultRules::parse(&options)? });
    }
    if text.split_once("://").is_some_and(|(scheme, _)| scheme.starts_with("nbd")) {
        return remote(text);
    }
    for scheme in ["mem:", "null:"] {
        let Some(rest) = text.strip_prefix(scheme) else { continue };
        let size_bytes = size(text, rest, if scheme == "mem:" { "mem:1G" } else { "null:1T" })?;
        return Ok(if scheme == "mem:" { DiskSpec::Mem { size_bytes } } else { DiskSpec::Null { size_bytes } });
    }
    if let Some(rest) = text.strip_prefix("file:") {
        return file(text, rest);
    }
    if let Some(name) = text.strip_prefix("volume:") {
        return volume(text, name);
    }
    if let Some((scheme, _)) = text.split_once(':')
        && scheme.len() > 1
        && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+')
    {
        return Err(error(
            text,
            format!("there is no kind of disk called {scheme} (a file of that name is ./{text})"),
            ANY,
        ));
    }
    Ok(DiskSpec::Path(path(text, text)?))
}

/// Parses the address of an export. The code that connects to the server interprets it.
fn remote(text: &str) -> Result<DiskSpec, SpecError> {
    if !["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"].iter().any(|scheme| text.starts_with(scheme)) {
        return Err(error(text, "the schemes of NBD are nbd, nbds, nbd+unix and nbds+unix", REMOTE));
    }
    if let Some(c) = text.chars().find(|c| matches!(c, ',' | '(' | ')' | '\\') || !c.is_ascii_graphic()) {
        return Err(error(text, format!("`{}` in an address is percent-encoded", c.escape_default()), REMOTE));
    }
    Ok(DiskSpec::Remote { uri: text.to_owned() })
}

/// Parses the name of a volume: pool, slash, volume. Snapshots have an `@`, and cannot be written.
fn volume(text: &str, name: &str) -> Result<DiskSpec, SpecError> {
    let good = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    match name.split_once('/') {
        Some((pool, volume)) if good(pool) && good(volume) => Ok(DiskSpec::Volume { name: name.to_owned() }),
        Some((_, volume)) if volume.contains('@') => {
            Err(error(text, "is a snapshot, which cannot be written (a clone of it can)", "volume:tank/db"))
        }
        _ => Err(error(text, "a volume is named by its pool and itself", "volume:tank/db")),
    }
}

/// Returns the text inside `name(…)`, or `None` if the text does not start with `name(`.
fn wrapped<'a>(text: &'a str, name: &str) -> Result<Option<&'a str>, SpecError> {
    let Some(rest) = text.strip_prefix(name).and_then(|r| r.strip_prefix('(')) else { return Ok(None) };
    let example = if name == "faulty" { super::faults::EXAMPLE } else { THROTTLED };
    let Some(inside) = rest.strip_suffix(')') else {
        return Err(error(text, format!("{name}( is not closed by a parenthesis at the end"), example));
    };
    Ok(Some(inside))
}

/// Splits the text inside a wrapper into the disk and the wrapper's own options.
fn inner<'a>(inside: &'a str, depth: usize, example: &'static str) -> Result<(DiskSpec, Vec<&'a str>), SpecError> {
    if depth == 0 {
        return Err(error(inside, format!("more than {NESTING_MAX} wrappers around one disk"), example));
    }
    let parts = split(inside, example)?;
    let mut first = parts[0].len();
    let mut options = &parts[1..];
    if inside.starts_with("file:") {
        while let Some(option) = options.first()
            && (option.starts_with("size=") || option.starts_with("alloc="))
        {
            first += 1 + option.len();
            options = &options[1..];
        }
    }
    Ok((nested(&inside[..first], depth - 1)?, options.to_vec()))
}

/// Splits at commas that are neither escaped nor inside parentheses. Never returns an empty vector.
fn split<'a>(text: &'a str, example: &'static str) -> Result<Vec<&'a str>, SpecError> {
    let (mut parts, mut start, mut depth, mut escaped) = (Vec::new(), 0, 0usize, false);
    for (at, c) in text.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match c {
            '\\' => escaped = true,
            '(' => depth += 1,
            ')' if depth == 0 => return Err(error(text, "has a closing parenthesis too many", example)),
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(error(text, "has a parenthesis that is not closed", example));
    }
    parts.push(&text[start..]);
    Ok(parts)
}

/// Parses a path with escapes.
fn path(whole: &str, text: &str) -> Result<PathBuf, SpecError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ (',' | '(' | ')' | '\\')) => out.push(escaped),
                _ => {
                    return Err(error(
                        whole,
                        "a backslash stands only before a comma, a parenthesis or a backslash",
                        r"./a\,b.img",
                    ));
                }
            },
            ',' | '(' | ')' => {
                return Err(error(whole, format!("`{c}` in a path needs a backslash before it"), r"./a\,b.img"));
            }
            '\0' => return Err(error(&whole.replace('\0', "?"), "a path holds no zero byte", ANY)),
            c => out.push(c),
        }
    }
    if out.is_empty() {
        return Err(error(whole, "the path is missing", ANY));
    }
    Ok(PathBuf::from(out))
}

fn size(whole: &str, text: &str, example: &'static str) -> Result<u64, SpecError> {
    let size = units::parse_size(text).map_err(|e| error(whole, e.to_string(), example))?;
    if size == 0 || size % 4096 != 0 {
        return Err(error(whole, "the size must be a multiple of 4096 bytes, and not 0", example));
    }
    if size > SIZE_BYTES_MAX {
        return Err(error(whole, "the size is beyond what the operating system can address", example));
    }
    Ok(size)
}

fn file(whole: &str, rest: &str) -> Result<DiskSpec, SpecError> {
    let parts = split(rest, FILE)?;
    let path = path(whole, parts[0])?;
    let (mut size_bytes, mut alloc) = (None, None);
    for option in &parts[1..] {
        match option.split_once('=') {
            Some(("size", value)) if size_bytes.is_none() => size_bytes = Some(size(option, value, FILE)?),
            Some(("alloc", "sparse")) if alloc.is_none() => alloc = Some(Alloc::Sparse),
            Some(("alloc", "full")) if alloc.is_none() => alloc = Some(Alloc::Full),
            Some(("alloc", _)) if alloc.is_none() => return Err(error(option, "alloc is sparse or full", FILE)),
            Some(("size" | "alloc", _)) => return Err(error(option, "is given twice", FILE)),
            _ => return Err(error(option, "is not an option of a file; those are size and alloc", FILE)),
        }
    }
    if alloc.is_some() && size_bytes.is_none() {
        return Err(error(whole, "alloc matters only when a file is created, which needs size", FILE));
    }
    Ok(DiskSpec::File { path, size_bytes, alloc: alloc.unwrap_or_default() })
}

fn limits(options: &[&str]) -> Result<ThrottleLimits, SpecError> {
    let (mut iops, mut bandwidth_bytes, mut latency_ns) = (None, None, None);
    for option in options {
        let bad = |problem: String| error(option, problem, THROTTLED);
        let twice = |given: bool| if given { Err(bad("is given twice".into())) } else { Ok(()) };
        match option.split_once('=') {
            Some(("iops", value)) => {
                twice(iops.is_some())?;
                let n: u64 = value.parse().map_err(|_| bad("iops is a whole number".into()))?;
                iops = Some(n).filter(|n| (1..=1_000_000_000).contains(n));
                iops.ok_or_else(|| bad("iops is between 1 and 1000000000".into()))?;
            }
            Some(("bw", value)) => {
                twice(bandwidth_bytes.is_some())?;
                let n = units::parse_rate(value).map_err(|e| bad(e.to_string()))?;
                bandwidth_bytes = Some(n).filter(|n| (4096..=1 << 40).contains(n));
                bandwidth_bytes.ok_or_else(|| bad("bw is between 4K and 1T a second".into()))?;
            }
            Some(("latency", value)) => {
                twice(latency_ns.is_some())?;
                latency_ns = Some(time_ns(value).map_err(bad)?).filter(|&ns| ns > 0);
                latency_ns.ok_or_else(|| bad("latency is more than 0".into()))?;
            }
            _ => return Err(bad("is not a limit; those are iops, bw and latency".into())),
        }
    }
    if iops.is_none() && bandwidth_bytes.is_none() && latency_ns.is_none() {
        return Err(error("throttled(…)", "no limit is given", THROTTLED));
    }
    Ok(ThrottleLimits { iops, bandwidth_bytes, latency_ns: latency_ns.unwrap_or(0) })
}

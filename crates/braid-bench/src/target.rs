//! Names of targets.
//!
//! ```text
//! target = uri | combination | disk | name
//! uri    = "nbd://" … | "nbd+unix://" … | "nbds://" … | "nbds+unix://" …
//! combination = ("concat" | "raid0" | "raid1" | "raid10" | "raid5" | "raid6" | "jbod") "(" disk *("," disk) *("," option) ")"
//! option = "chunk=" size | "zones=" ("all" | "single")
//! ```
//! A disk is what `braid array create` accepts. A name is that of an array, a volume (`tank/db`), a snapshot (`tank/db@monday`) or an export
//! of the daemon.

use std::fmt;

use braid_api::limits::NAME_BYTES_MAX;
use braid_api::names::VolumeName;
use braid_api::{ErrorDetail, Kind};
use braid_geometry::units::parse_size;
use braid_geometry::{Level, Spec, ZonePolicy};
use braid_ring::DiskSpec;

/// A target of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Disks, opened by this process.
    Local(Combination),
    /// An NBD export.
    Nbd(String),
    /// An object of the daemon, whose export is looked up by this name.
    Named(String),
}

/// Disks, and how they are combined for the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Combination {
    /// The names of the disks.
    pub disks: Vec<String>,
    /// How they are combined.
    pub how: How,
}

/// How disks are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// One disk, not combined.
    Bare,
    /// Each disk is a device with jobs of its own.
    Jbod,
    /// All disks form one array.
    Array(Spec),
}

const EXAMPLE: &str =
    "for example: null:1T, ./a.img, 'raid0(./a.img,./b.img,chunk=64K)', 'nbd+unix:///fast?socket=/run/braid/fast.sock'";

fn wrong(message: String) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, message).remedy(EXAMPLE)
}

/// Returns whether a name is the URI of an NBD export.
pub fn is_uri(name: &str) -> bool {
    ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"].iter().any(|scheme| name.starts_with(scheme))
}

impl Target {
    /// Parses the name of a target.
    ///
    /// # Errors
    /// The name is malformed. The error names the malformed part and examples.
    pub fn parse(text: &str) -> Result<Target, ErrorDetail> {
        if is_uri(text) {
            return Ok(Target::Nbd(text.to_owned()));
        }
        for (word, level) in [
            ("concat", Some(Level::Concat)),
            ("raid0", Some(Level::Raid0)),
            ("raid1", Some(Level::Raid1)),
            ("raid10", Some(Level::Raid10)),
            ("raid5", Some(Level::Raid5)),
            ("raid6", Some(Level::Raid6)),
            ("jbod", None),
        ] {
            if let Some(inside) = text.strip_prefix(word).and_then(|rest| rest.strip_prefix('(')) {
                let inside = inside.strip_suffix(')').ok_or_else(|| {
                    wrong(format!("target {text}: {word}( is not closed by a parenthesis at the end"))
                })?;
                return Ok(Target::Local(combination(text, level, inside)?));
            }
        }
        if may_be_a_name(text) {
            return Ok(Target::Named(text.to_owned()));
        }
        disk(text)?;
        Ok(Target::Local(Combination { disks: vec![text.to_owned()], how: How::Bare }))
    }

    /// Returns the target of the disks of one array, as `--level` requires.
    ///
    /// # Errors
    /// As [`Target::parse`].
    pub fn of_level(level: Level, chunk_bytes: Option<u64>, disks: &[String]) -> Result<Target, ErrorDetail> {
        for name in disks {
            if is_uri(name) {
                return Err(wrong(format!(
                    "--level {level} combines disks of this machine, and {name} is an NBD export"
                )));
            }
            disk(name)?;
        }
        let mut spec = Spec::new(level);
        spec.chunk_bytes = chunk_bytes.unwrap_or(spec.chunk_bytes);
        Ok(Target::Local(Combination { disks: disks.to_vec(), how: How::Array(spec) }))
    }
}

/// Returns whether a word may be the name or UUID of an object of the daemon, and is not the path of an existing file.
fn may_be_a_name(text: &str) -> bool {
    if VolumeName::parse(text).is_some() {
        return !std::path::Path::new(text).exists();
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.bytes().all(fits)
        && text.len() <= NAME_BYTES_MAX
        && !std::path::Path::new(text).exists()
}

fn disk(text: &str) -> Result<DiskSpec, ErrorDetail> {
    DiskSpec::parse(text).map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("disk", text))
}

fn combination(whole: &str, level: Option<Level>, inside: &str) -> Result<Combination, ErrorDetail> {
    let mut disks: Vec<String> = Vec::new();
    let mut spec = level.map(Spec::new);
    let mut options = false;
    for part in split(inside).ok_or_else(|| wrong(format!("target {whole}: its parentheses do not match")))? {
        match part.split_once('=') {
            // Options of a file belong to the disk before them, as in throttled(…).
            Some(("size" | "alloc", _)) if !options && disks.last().is_some_and(|disk| disk.starts_with("file:")) => {
                let last = disks.last_mut().expect("there is one");
                last.push(',');
                last.push_str(part);
            }
            Some(("chunk", value)) => {
                options = true;
                let spec = spec.as_mut().filter(|spec| spec.level != Level::Raid1);
                let spec = spec.ok_or_else(|| wrong(format!("target {whole}: {part} is for levels that stripe")))?;
                spec.chunk_bytes =
                    parse_size(value).map_err(|error| wrong(format!("target {whole}: {part}: {error}")))?;
            }
            Some(("zones", value)) => {
                options = true;
                let spec = spec.as_mut().filter(|spec| spec.level == Level::Raid0);
                let spec = spec.ok_or_else(|| wrong(format!("target {whole}: {part} is for raid0")))?;
                spec.zones =
                    value.parse::<ZonePolicy>().map_err(|error| wrong(format!("target {whole}: {part}: {error}")))?;
            }
            _ if options => {
                return Err(wrong(format!("target {whole}: {part} stands behind the options chunk and zones")));
            }
            _ => disks.push(part.to_owned()),
        }
    }
    for name in &disks {
        if is_uri(name) {
            return Err(wrong(format!(
                "target {whole}: {name} is an NBD export, and only disks of this machine are combined"
            )));
        }
        disk(name)?;
    }
    Ok(Combination { disks, how: spec.map_or(How::Jbod, How::Array) })
}

/// Splits at commas that are neither escaped nor inside parentheses. Returns none if the parentheses do not match.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut depth, mut escaped) = (Vec::new(), 0, 0usize, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (depth == 0).then_some(parts)
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Nbd(name) | Target::Named(name) => f.write_str(name),
            Target::Local(Combination { disks, how }) => {
                let disks = disks.join(",");
                match how {
                    How::Bare => f.write_str(&disks),
                    How::Jbod => write!(f, "jbod({disks})"),
                    How::Array(spec) if spec.level == Level::Raid1 => write!(f, "raid1({disks})"),
                    How::Array(spec) => {
                        write!(f, "{}({disks},chunk={}K", spec.level, spec.chunk_bytes / 1024)?;
                        if spec.zones == ZonePolicy::Single {
                            f.write_str(",zones=single")?;
                        }
                        f.write_str(")")
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> Combination {
        match Target::parse(text) {
            Ok(Target::Local(combination)) => combination,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn targets_are_parsed_and_formatted() {
        assert_eq!(local("null:1T"), Combination { disks: vec!["null:1T".into()], how: How::Bare });
        let striped = local("raid0(file:a.img,size=1G,throttled(mem:1G,iops=5,bw=1M),chunk=128K,zones=single)");
        assert_eq!(striped.disks, ["file:a.img,size=1G", "throttled(mem:1G,iops=5,bw=1M)"]);
        let How::Array(spec) = striped.how else { panic!("{striped:?}") };
        assert_eq!((spec.chunk_bytes, spec.zones), (128 << 10, ZonePolicy::Single));
        assert_eq!(local("jbod(mem:1G,mem:1G)").how, How::Jbod);
        for text in [
            "null:1T",
            "jbod(mem:1G,mem:1G)",
            "raid1(mem:1G,mem:1G)",
            "raid10(mem:1G,mem:1G,mem:1G,chunk=64K)",
            "raid6(mem:1G,mem:1G,mem:1G,mem:1G,chunk=128K)",
            "concat(mem:1G,mem:2G,chunk=64K)",
        ] {
            assert_eq!(Target::parse(text).expect("it is right").to_string(), text);
        }
        assert_eq!(Target::parse("nbd://host/x"), Ok(Target::Nbd("nbd://host/x".into())));
        assert_eq!(Target::parse("fast"), Ok(Target::Named("fast".into())));
        for name in ["tank/db", "tank/db@monday"] {
            assert_eq!(Target::parse(name), Ok(Target::Named(name.into())), "a name, and no file");
        }
        for path in ["a b", "a?b", "-a", "ä", ".hidden"] {
            assert_eq!(local(path).disks, [path], "it can only be a file");
        }
    }

    #[test]
    fn malformed_targets_are_named() {
        for (text, words) in [
            ("raid0(null:1T", "not closed"),
            ("raid0(null:1T))", "do not match"),
            ("raid0()", "disk name"),
            ("raid0(null:1T,chunk=5x)", "chunk=5x"),
            ("raid1(null:1T,null:1T,chunk=4K)", "for levels that stripe"),
            ("concat(null:1T,zones=single)", "for raid0"),
            ("raid0(null:1T,zones=some)", "zones=some"),
            ("raid0(null:1T,chunk=4K,null:1T)", "stands behind"),
            ("raid0(null:1T,nbd://host/x)", "NBD export"),
            ("tape:1T", "tape"),
        ] {
            let error = Target::parse(text).expect_err(text);
            assert!(error.message.contains(words) && error.kind == Kind::InvalidArgument, "{text}: {error}");
        }
        let error = Target::of_level(Level::Raid0, None, &["nbd://host/x".to_owned()]).expect_err("it is none");
        assert!(error.message.contains("NBD export"), "{error}");
    }
}

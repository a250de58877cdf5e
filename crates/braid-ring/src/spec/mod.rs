//! Disk names as users type them: `/dev/sdb`, `file:a.img,size=50G`, `throttled(mem:1G,iops=3000)`.
//!
//! [`DiskSpec::parse`] parses them; `Display` prints them so that they parse to the same value. Nothing here opens
//! anything.

mod faults;
mod parse;

use std::fmt;
use std::path::PathBuf;

pub use faults::{FaultKind, FaultRule, FaultRules, OpSet};

/// How the space of a new file is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Alloc {
    /// Space is allocated as it is written.
    #[default]
    Sparse,
    /// All space is allocated at creation.
    Full,
}

/// The limits of `throttled(…)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThrottleLimits {
    /// I/Os per second.
    pub iops: Option<u64>,
    /// Bytes per second, reads and writes together.
    pub bandwidth_bytes: Option<u64>,
    /// Minimum latency of an I/O in nanoseconds.
    pub latency_ns: u64,
}

/// A disk by name. The notation is described in `docs/reference/disks.md`.
#[derive(Clone, PartialEq, Debug)]
pub enum DiskSpec {
    /// A block device or an existing file.
    Path(PathBuf),
    /// A file. Created if it is missing and a size is given.
    File {
        /// Its path.
        path: PathBuf,
        /// Its size in bytes.
        size_bytes: Option<u64>,
        /// How its space is allocated at creation.
        alloc: Alloc,
    },
    /// Memory. Its data is lost when it is closed.
    Mem {
        /// Its size in bytes.
        size_bytes: u64,
    },
    /// Stores nothing and completes at once. Reads leave the buffer unchanged.
    Null {
        /// Its size in bytes.
        size_bytes: u64,
    },
    /// A volume of a pool of the same daemon.
    Volume {
        /// `POOL/VOLUME`.
        name: String,
    },
    /// An export of an NBD server: a remote disk.
    Remote {
        /// Its address, as `nbd://host:port/export`.
        uri: String,
    },
    /// A disk with rate limits.
    Throttled {
        /// The disk inside.
        disk: Box<DiskSpec>,
        /// The limits.
        limits: ThrottleLimits,
    },
    /// A disk with fault injection.
    Faulty {
        /// The disk inside.
        disk: Box<DiskSpec>,
        /// The fault rules.
        rules: FaultRules,
    },
}

/// The error for an invalid disk name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError {
    /// The invalid argument, as it was typed.
    pub argument: String,
    /// What is wrong with it.
    pub problem: String,
    /// A valid example.
    pub example: &'static str,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk name `{}`: {}; for example: {}", self.argument, self.problem, self.example)
    }
}

impl std::error::Error for SpecError {}

impl DiskSpec {
    /// Parses a disk name.
    ///
    /// # Errors
    /// Names the wrong part, says why it is wrong, and shows a valid example.
    pub fn parse(text: &str) -> Result<DiskSpec, SpecError> {
        parse::disk(text)
    }

    /// Returns whether data is lost when the disk is closed (`mem`, `null`, and wrappers of them).
    pub fn is_volatile(&self) -> bool {
        match self {
            DiskSpec::Path(_) | DiskSpec::File { .. } | DiskSpec::Volume { .. } | DiskSpec::Remote { .. } => false,
            DiskSpec::Mem { .. } | DiskSpec::Null { .. } => true,
            DiskSpec::Throttled { disk, .. } | DiskSpec::Faulty { disk, .. } => disk.is_volatile(),
        }
    }

    /// Returns the volume beneath, as `POOL/VOLUME`, if there is one.
    pub fn volume(&self) -> Option<&str> {
        match self {
            DiskSpec::Volume { name } => Some(name),
            DiskSpec::Throttled { disk, .. } | DiskSpec::Faulty { disk, .. } => disk.volume(),
            _ => None,
        }
    }

    /// Returns the address of the export beneath, if there is one.
    pub fn remote(&self) -> Option<&str> {
        match self {
            DiskSpec::Remote { uri } => Some(uri),
            DiskSpec::Throttled { disk, .. } | DiskSpec::Faulty { disk, .. } => disk.remote(),
            _ => None,
        }
    }

    /// Returns the path of the file or device beneath, if there is one.
    pub fn path(&self) -> Option<&std::path::Path> {
        match self {
            DiskSpec::Path(path) | DiskSpec::File { path, .. } => Some(path),
            DiskSpec::Throttled { disk, .. } | DiskSpec::Faulty { disk, .. } => disk.path(),
            _ => None,
        }
    }
}

impl std::str::FromStr for DiskSpec {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<DiskSpec, SpecError> {
        DiskSpec::parse(text)
    }
}

/// Writes a path, with reserved characters escaped.
fn write_path(f: &mut fmt::Formatter<'_>, path: &std::path::Path) -> fmt::Result {
    for c in path.to_string_lossy().chars() {
        if matches!(c, ',' | '(' | ')' | '\\') {
            f.write_str("\\")?;
        }
        write!(f, "{c}")?;
    }
    Ok(())
}

/// Displays an exact size in the largest unit that divides it.
pub(crate) struct ExactSize(pub(crate) u64);

impl fmt::Display for ExactSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(50, 'P'), (40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Displays an exact duration in the largest unit that divides it.
pub(crate) struct ExactTime(pub(crate) u64);

impl fmt::Display for ExactTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (ns, unit) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
            if self.0.is_multiple_of(ns) {
                return write!(f, "{}{unit}", self.0 / ns);
            }
        }
        write!(f, "{}ns", self.0)
    }
}

/// Parses a duration: a whole number with `ns`, `us`, `ms` or `s`, at most an hour.
fn time_ns(text: &str) -> Result<u64, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let ns = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000u64,
        _ => return Err("a time is a whole number with ns, us, ms or s".into()),
    };
    let number: u64 = number.parse().map_err(|_| "a time is a whole number with ns, us, ms or s".to_owned())?;
    let total = number.checked_mul(ns).filter(|&t| t <= 3_600_000_000_000);
    total.ok_or_else(|| "a time here is at most one hour (3600s)".into())
}

impl fmt::Display for DiskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskSpec::Path(path) => write_path(f, path),
            DiskSpec::File { path, size_bytes, alloc } => {
                f.write_str("file:")?;
                write_path(f, path)?;
                if let Some(size) = size_bytes {
                    write!(f, ",size={}", ExactSize(*size))?;
                }
                if *alloc == Alloc::Full {
                    f.write_str(",alloc=full")?;
                }
                Ok(())
            }
            DiskSpec::Mem { size_bytes } => write!(f, "mem:{}", ExactSize(*size_bytes)),
            DiskSpec::Null { size_bytes } => write!(f, "null:{}", ExactSize(*size_bytes)),
            DiskSpec::Volume { name } => write!(f, "volume:{name}"),
            DiskSpec::Remote { uri } => f.write_str(uri),
            DiskSpec::Throttled { disk, limits } => {
                write!(f, "throttled({disk}")?;
                if let Some(iops) = limits.iops {
                    write!(f, ",iops={iops}")?;
                }
                if let Some(bandwidth) = limits.bandwidth_bytes {
                    write!(f, ",bw={}", ExactSize(bandwidth))?;
                }
                if limits.latency_ns != 0 {
                    write!(f, ",latency={}", ExactTime(limits.latency_ns))?;
                }
                f.write_str(")")
            }
            DiskSpec::Faulty { disk, rules } => {
                write!(f, "faulty({disk}")?;
                if !rules.is_empty() {
                    write!(f, ",{rules}")?;
                }
                f.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests;

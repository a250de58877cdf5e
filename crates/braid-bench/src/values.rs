//! Parsers of option values: times, block sizes, and lists or ranges of numbers to sweep over.

use std::time::Duration;

use braid_geometry::units::parse_size;

/// The largest block, in bytes: the largest request of the engine.
pub const BLOCK_BYTES_MAX: u64 = 32 << 20;
/// The most I/Os in flight of one job.
pub const DEPTH_MAX: u64 = 2048;
/// The most values of one sweep.
const SWEEP_MAX: usize = 64;

/// The values of a sweep, in the given order. A single value is a sweep of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep(pub Vec<u64>);

/// Parses a size in bytes, which may be 0.
///
/// # Errors
/// The text is malformed. The error says why, and shows an example.
pub fn size(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    parse_size(text).map_err(|error| error.to_string())
}

/// Parses block sizes: one, a list, or a range that doubles.
///
/// # Errors
/// As [`size`].
pub fn blocks(text: &str) -> Result<Sweep, String> {
    sweep(text, "1K..512K", |word| {
        let bytes = size(word)?;
        if bytes == 0 || !bytes.is_multiple_of(512) || bytes > BLOCK_BYTES_MAX {
            return Err(format!("{word}: a block is a multiple of 512 bytes up to 32M, for example 4K"));
        }
        Ok(bytes)
    })
}

/// Parses depths: one, a list, or a range that doubles.
///
/// # Errors
/// As [`size`].
pub fn depths(text: &str) -> Result<Sweep, String> {
    sweep(text, "1..128", |word| {
        let depth: u64 = word.parse().map_err(|_| format!("{word:?} is not a whole number, for example 32"))?;
        if depth == 0 || depth > DEPTH_MAX {
            return Err(format!("{depth}: a depth is between 1 and {DEPTH_MAX}"));
        }
        Ok(depth)
    })
}

fn sweep(text: &str, example: &str, one: impl Fn(&str) -> Result<u64, String>) -> Result<Sweep, String> {
    let values = if let Some((first, last)) = text.split_once("..") {
        let (first, last) = (one(first)?, one(last)?);
        if first > last {
            return Err(format!("the range {text} goes down; for example {example}"));
        }
        let mut values: Vec<u64> =
            std::iter::successors(Some(first), |n| n.checked_mul(2)).take_while(|&n| n < last).collect();
        // The end of the range is included, even if doubling does not reach it.
        values.push(last);
        values
    } else {
        text.split(',').map(&one).collect::<Result<Vec<u64>, String>>()?
    };
    let mut sorted = values.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < values.len() {
        return Err(format!("{text} names a value twice; for example {example}"));
    }
    if values.len() > SWEEP_MAX {
        return Err(format!("{} values are more than {SWEEP_MAX}; for example {example}", values.len()));
    }
    Ok(Sweep(values))
}

/// Parses a length of time from 1 ms to 24 hours.
///
/// # Errors
/// As [`size`].
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a time is a whole number with ms, s or m, for example 5s".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let ms = match &text[at..] {
        "ms" => number,
        "s" => number.checked_mul(1000).ok_or_else(wrong)?,
        "m" => number.checked_mul(60_000).ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    if ms == 0 || ms > 24 * 3_600_000 {
        return Err("a time is between 1ms and 24 hours".to_owned());
    }
    Ok(Duration::from_millis(ms))
}

/// Parses the exponent of a Zipf distribution.
///
/// # Errors
/// As [`size`].
pub fn theta(text: &str) -> Result<f64, String> {
    let theta: f64 = text.parse().map_err(|_| format!("{text:?} is not a number, for example 0.99"))?;
    if !(0.01..=5.0).contains(&theta) {
        return Err(format!("{text}: theta is between 0.01 (almost even) and 5, for example 0.99"));
    }
    Ok(theta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_block_sizes() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "5", "s", "0s", "5h", "99999999999999999999s", "18446744073709551615m"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(blocks("128K"), Ok(Sweep(vec![131_072])));
        for wrong in ["0", "5000", "33M", "x", "", "4K,", "8K..4K", "4K..", "4K,4K"] {
            assert!(blocks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sweeps_double_and_include_their_end() {
        assert_eq!(depths("1..128"), Ok(Sweep(vec![1, 2, 4, 8, 16, 32, 64, 128])));
        assert_eq!(depths("3..20"), Ok(Sweep(vec![3, 6, 12, 20])));
        assert_eq!(depths("1,4,16"), Ok(Sweep(vec![1, 4, 16])));
        assert_eq!(depths("7..7"), Ok(Sweep(vec![7])));
        assert_eq!(blocks("1K..4K"), Ok(Sweep(vec![1024, 2048, 4096])));
        for wrong in ["0", "2049", "128..1", "-1", "1..x", "1,1", "..", "a"] {
            assert!(depths(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn theta_has_bounds() {
        assert_eq!(theta("1"), Ok(1.0));
        for wrong in ["0", "-1", "nan", "inf", "6", ""] {
            assert!(theta(wrong).is_err(), "{wrong}");
        }
    }
}

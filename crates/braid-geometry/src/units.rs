//! Parsing and formatting of sizes and rates.
//!
//! `K M G T P E` (also `Ki`, `KiB`) are powers of 1024, `KB MB GB TB PB EB` powers of 1000. Case is not significant. A rate is
//! a size per second, with or without `/s`. Fractions such as `1.5G` are rounded down to whole bytes. Decimals after the
//! twelfth are ignored.

use std::fmt;

/// The error of parsing a size or a rate. Its message quotes the input and gives a valid example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    argument: Option<String>,
    what: &'static str,
    input: String,
    reason: String,
    example: &'static str,
}

impl UnitError {
    /// Returns the error with the name of the argument that the input was for, such as `size` or `--chunk`.
    #[must_use]
    pub fn for_argument(mut self, argument: &str) -> UnitError {
        self.argument = Some(argument.to_owned());
        self
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(argument) = &self.argument {
            write!(f, "{argument}: ")?;
        }
        // The input may be hostile: it is quoted, escaped and truncated.
        let excerpt: String = self.input.chars().take(40).collect();
        write!(f, "{excerpt:?} is not a {}: {}; write for example {}", self.what, self.reason, self.example)
    }
}

impl std::error::Error for UnitError {}

const SIZE_EXAMPLE: &str = "50G, 64K, 1.5TB or 1048576";
const RATE_EXAMPLE: &str = "125M (125 MiB a second) or 100MB/s";

/// Parses a size, such as `50G`, `64KiB`, `1.5TB` or `4096`, and returns it in bytes.
///
/// # Errors
/// The input is empty, does not start with a number, has an unknown unit, or is more than 2^64 - 1 bytes.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    parse(text.trim()).map_err(|reason| UnitError {
        argument: None,
        what: "size",
        input: text.to_owned(),
        reason,
        example: SIZE_EXAMPLE,
    })
}

/// Parses a rate, such as `125M` or `100MB/s`, and returns it in bytes per second.
///
/// # Errors
/// As [`parse_size`].
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    let size = text.trim();
    parse(size.strip_suffix("/s").unwrap_or(size)).map_err(|reason| UnitError {
        argument: None,
        what: "rate",
        input: text.to_owned(),
        reason,
        example: RATE_EXAMPLE,
    })
}

fn parse(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && (fraction.is_empty() || fraction.contains('.'))) {
        return Err("it must begin with a number".to_owned());
    }
    let scale = scale(unit.trim()).ok_or_else(|| {
        let excerpt: String = unit.trim().chars().take(12).collect();
        format!("unknown unit {excerpt:?} (known: K M G T P E, also KiB.. of 1024 and KB.. of 1000)")
    })?;
    let too_large = || "more than 16 EiB".to_owned();
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = whole.checked_mul(scale).ok_or_else(too_large)?;
    // Twelve decimals resolve one byte of a TB, and further ones are ignored. The product is below 10^12 · 2^60, which
    // fits in 128 bits.
    let decimals = &fraction[..fraction.len().min(12)];
    if !decimals.is_empty() {
        let value: u128 = decimals.parse().map_err(|_| too_large())?;
        let part = value * scale / 10u128.pow(decimals.len() as u32);
        bytes = bytes.checked_add(part).ok_or_else(too_large)?;
    }
    u64::try_from(bytes).map_err(|_| too_large())
}

fn scale(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(1);
    }
    let power = 1 + "KMGTPE".find(unit.chars().next()?)? as u32;
    match &unit[1..] {
        "" | "I" | "IB" => Some(1024u128.pow(power)),
        "B" => Some(1000u128.pow(power)),
        _ => None,
    }
}

const BINARY_UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Formats a size in binary units with two decimals, such as `250.00 GiB`; below 1 KiB in whole bytes, such as `512 B`.
///
/// Rounds down: the formatted size is never larger than the actual size.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (63 - bytes.leading_zeros()) / 10;
    let hundredths = (u128::from(bytes) * 100) >> (10 * power);
    format!("{}.{:02} {}", hundredths / 100, hundredths % 100, BINARY_UNITS[power as usize - 1])
}

/// Formats a rate in binary units per second, such as `125.00 MiB/s`.
#[must_use]
pub fn format_rate(bytes_per_second: u64) -> String {
    format!("{}/s", format_size(bytes_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        let cases: [(&str, u64); 22] = [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64Ki", 65_536),
            ("64KiB", 65_536),
            ("64kib", 65_536),
            ("64KB", 64_000),
            ("1M", 1 << 20),
            ("1MB", 1_000_000),
            ("50G", 50 << 30),
            ("50 GiB", 50 << 30),
            (" 50G ", 50 << 30),
            ("2TB", 2_000_000_000_000),
            ("1.5T", 3 << 39),
            ("0.1K", 102),
            ("1.5", 1),
            ("3P", 3 << 50),
            ("1PB", 1_000_000_000_000_000),
            ("1.000000000000999T", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected_with_an_example() {
        let texts =
            ["", " ", "G", "x", "-1", "+1", "1.", ".5G", "1..2", "1.2.3", "5X", "5KK", "5KiBB", "5iB", "1e9", "5 0"]
                .into_iter()
                .chain([
                    "18446744073709551616",
                    "16384P",
                    "99999999999999999999999999999999999999999999",
                    "५G",
                    "5µ",
                    "0x10",
                ]);
        for text in texts {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains("write for example 50G"), "{text}: {error}");
            assert!(error.len() < 250, "{error}");
        }
    }

    #[test]
    fn errors_name_the_argument() {
        assert_eq!(
            parse_size("50X").expect_err("no unit").for_argument("--chunk").to_string(),
            "--chunk: \"50X\" is not a size: unknown unit \"X\" (known: K M G T P E, also KiB.. of 1024 and KB.. of 1000); \
             write for example 50G, 64K, 1.5TB or 1048576"
        );
    }

    #[test]
    fn rates_are_parsed_and_formatted() {
        assert_eq!(parse_rate("125M"), Ok(125 << 20));
        assert_eq!(parse_rate("100MB/s"), Ok(100_000_000));
        assert!(parse_rate("125M/m").expect_err("no rate").to_string().contains("125M (125 MiB a second)"));
        assert_eq!(format_rate(125 << 20), "125.00 MiB/s");
    }

    #[test]
    fn sizes_are_rounded_down_to_two_decimals() {
        let cases: [(u64, &str); 10] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (65_536, "64.00 KiB"),
            ((1 << 20) - 1, "1023.99 KiB"),
            (1 << 20, "1.00 MiB"),
            (250 << 30, "250.00 GiB"),
            ((250 << 30) - 1, "249.99 GiB"),
            (1 << 40, "1.00 TiB"),
            (u64::MAX, "15.99 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn formatted_size_is_never_larger_than_the_size() {
        let mut bytes: u64 = 1;
        for step in 0..4000u64 {
            bytes = bytes.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step) >> (step % 50);
            let formatted = parse_size(&format_size(bytes)).expect("a formatted size can be parsed");
            assert!(formatted <= bytes, "{bytes}");
            assert!(bytes - formatted <= bytes / 100 + 1, "{bytes}");
        }
    }
}

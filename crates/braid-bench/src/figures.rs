//! Formats figures for people: times, rates, counts and block sizes.

/// Formats a time.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Formats a rate of bytes, in powers of 1000.
pub fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        b if b < 1e6 => format!("{:.2} kB/s", b / 1e3),
        b if b < 1e9 => format!("{:.2} MB/s", b / 1e6),
        b => format!("{:.2} GB/s", b / 1e9),
    }
}

/// Formats a count.
pub fn count(n: f64) -> String {
    match n {
        n if n < 100.0 => format!("{n:.1}"),
        n => braid_terminal::output::thousands(n.round() as u64),
    }
}

/// Formats a block size in the notation of the command line.
pub fn short_size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{}M", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

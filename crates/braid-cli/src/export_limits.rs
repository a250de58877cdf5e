//! `--allow`, `--max-connections` and `--limit` of exports.

use braid_api::limits::EXPORT_CONNECTIONS_MAX;
use braid_geometry::units::parse_rate;
use clap::Args;

/// The limits of an export's clients.
#[derive(Args, Clone, Debug, Default)]
pub struct LimitArgs {
    /// Allow clients only from these networks, or from all: a list such as 10.0.0.0/8,fd00::/8, or all
    #[arg(long, value_name = "NETWORKS", value_parser = allow)]
    pub allow: Option<Allow>,
    /// The maximum number of connections, from 1 to 64
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=EXPORT_CONNECTIONS_MAX as i64))]
    pub max_connections: Option<u32>,
    /// The maximum requests and bytes per second over all connections: iops=3000,bw=125M, one of them, or none
    #[arg(long, value_name = "LIMITS", value_parser = limit)]
    pub limit: Option<Limit>,
}

/// The allowed networks, as text. Empty: all networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow(pub Vec<String>);

/// The maximum requests and bytes per second; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub iops: u64,
    pub bandwidth_bytes: u64,
}

fn allow(text: &str) -> Result<Allow, String> {
    if text == "all" {
        return Ok(Allow(Vec::new()));
    }
    let network = |part: &str| part.parse().map(|n: braid_export::Network| n.to_string()).map_err(|e| e.to_string());
    text.split(',').map(network).collect::<Result<_, _>>().map(Allow)
}

/// Parses limits, for clap.
pub fn limit(text: &str) -> Result<Limit, String> {
    const EXAMPLES: &str = "Examples: iops=3000,bw=125M; iops=500; bw=1G; none";
    let mut limit = Limit { iops: 0, bandwidth_bytes: 0 };
    if text == "none" {
        return Ok(limit);
    }
    for part in text.split(',') {
        let (limit_field, value) = match part.split_once('=') {
            Some(("iops", value)) => {
                (&mut limit.iops, value.parse().map_err(|_| format!("iops={value} is not an integer. {EXAMPLES}"))?)
            }
            Some(("bw", value)) => {
                (&mut limit.bandwidth_bytes, parse_rate(value).map_err(|error| format!("{error}. {EXAMPLES}"))?)
            }
            _ => return Err(format!("{part:?} does not begin with iops= or bw=. {EXAMPLES}")),
        };
        if value == 0 || *limit_field != 0 {
            return Err(format!("{part:?} is 0 or is given twice. {EXAMPLES}"));
        }
        *limit_field = value;
    }
    Ok(limit)
}

/// Returns the limits, for people.
pub fn words(iops: Option<u64>, bandwidth_bytes: Option<u64>) -> String {
    let iops = iops.map(|iops| format!("{iops} requests a second"));
    let bandwidth = bandwidth_bytes.map(|bytes| format!("{} a second", braid_geometry::units::format_size(bytes)));
    let words: Vec<String> = iops.into_iter().chain(bandwidth).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed() {
        let right = |text: &str, iops, bandwidth_bytes| assert_eq!(limit(text), Ok(Limit { iops, bandwidth_bytes }));
        right("iops=3000,bw=125M", 3000, 125 << 20);
        right("bw=1G/s", 0, 1 << 30);
        right("iops=1", 1, 0);
        right("none", 0, 0);
        for wrong in
            ["", "iops", "iops=", "iops=0", "iops=x", "bw=0", "bw=fast", "iops=1,iops=2", "latency=5ms", "iops=1,"]
        {
            let error = limit(wrong).expect_err(wrong);
            assert!(error.contains("Examples: "), "{wrong}: {error}");
        }
    }

    #[test]
    fn networks_are_parsed() {
        assert_eq!(
            allow("10.0.0.0/8,fd00::/8,::1"),
            Ok(Allow(vec!["10.0.0.0/8".into(), "fd00::/8".into(), "::1/128".into()]))
        );
        assert_eq!(allow("all"), Ok(Allow(Vec::new())));
        for wrong in ["", "10.0.0.0/8,", "10.0.0.7/8", "host"] {
            assert!(allow(wrong).expect_err(wrong).contains("10.0.0.0/8"), "{wrong}");
        }
    }
}

//! Latency histograms of the shards as the API shows them.

use braid_api::LatencyBucket;
use braid_ring::stats::{Histogram, LeafStats, bucket_floor_ns};

/// Returns the latencies of all I/Os of a disk: reads, writes and others.
pub fn all_latencies(stats: &LeafStats) -> Histogram {
    sum([&stats.read_latency, &stats.write_latency, &stats.other_latency])
}

/// Returns the sum of histograms of different kinds of requests.
pub(crate) fn sum(histograms: [&Histogram; 3]) -> Histogram {
    let mut all = Histogram::default();
    for histogram in histograms {
        for (into, count) in all.counts.iter_mut().zip(histogram.counts) {
            *into += count;
        }
    }
    all
}

/// Returns a histogram as the API shows it: the buckets that are not empty, from the shortest latency to the longest.
pub fn buckets(histogram: &Histogram) -> Vec<LatencyBucket> {
    let used = histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0);
    used.map(|(bucket, &count)| LatencyBucket { below_ns: bucket_floor_ns(bucket + 1), count }).collect()
}

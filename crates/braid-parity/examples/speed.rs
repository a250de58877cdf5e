//! Measures the throughput of each implementation outside the caches: XOR and P + Q of stripes, and copying the same data.
//!
//! `cargo run --release -p braid-parity --example speed [working set in MiB] [chunk in KiB]`

use std::hint::black_box;
use std::time::Instant;

use braid_parity::Parity;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the throughput of a pass, in GiB of data per second.
fn rate(data_bytes: usize, mut pass: impl FnMut()) -> f64 {
    let started = Instant::now();
    pass();
    data_bytes as f64 / started.elapsed().as_secs_f64() / f64::from(1 << 30)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let data_bytes = arguments.next().unwrap_or(128) << 20;
    let chunk = arguments.next().unwrap_or(64) << 10;
    let source: Vec<u8> = (0..data_bytes).map(|i| ((i * 31) >> 7) as u8).collect();
    let mut target = vec![1u8; data_bytes];
    for width in [4, 8, 16, 32] {
        let stripe_bytes = width * chunk;
        for parity in Parity::available() {
            let (mut copies, mut whole, mut xors, mut pqs) = (vec![], vec![], vec![], vec![]);
            for _ in 0..9 {
                whole.push(rate(data_bytes, || black_box(&mut target).copy_from_slice(black_box(&source))));
                copies.push(rate(data_bytes, || {
                    for (to, from) in target.chunks_exact_mut(chunk).zip(source.chunks_exact(chunk)) {
                        black_box(to).copy_from_slice(black_box(from));
                    }
                }));
                let mut blocks: Vec<&[u8]> = vec![&[]; width];
                xors.push(rate(data_bytes, || {
                    for (out, data) in target.chunks_exact_mut(2 * chunk).zip(source.chunks_exact(stripe_bytes)) {
                        blocks.iter_mut().zip(data.chunks_exact(chunk)).for_each(|(block, part)| *block = part);
                        parity.xor(black_box(&mut out[..chunk]), black_box(&blocks));
                    }
                }));
                pqs.push(rate(data_bytes, || {
                    for (out, data) in target.chunks_exact_mut(2 * chunk).zip(source.chunks_exact(stripe_bytes)) {
                        blocks.iter_mut().zip(data.chunks_exact(chunk)).for_each(|(block, part)| *block = part);
                        let (p, q) = out.split_at_mut(chunk);
                        parity.pq(black_box(p), black_box(q), black_box(&blocks));
                    }
                }));
            }
            let [copies, whole, xors, pqs] = [copies, whole, xors, pqs].map(median);
            println!(
                "{width:2} of {:4} KiB, {:8}: xor {xors:5.1} ({:.2}), P+Q {pqs:5.1} ({:.2}) GiB/s; copy {copies:.1}, in one call {whole:.1}",
                chunk >> 10,
                parity.name(),
                xors / copies.max(whole),
                pqs / copies.max(whole),
            );
        }
    }
}

//! Parity arithmetic on one core, over data that is in no cache, against copying the same data in memory.

use std::hint::black_box;
use std::time::Duration;

use braid_bench::cpu;
use braid_bench::process::SERVER_CORE;
use braid_bench::statistics::median;
use braid_parity::{BlockRole, Parity};

use super::{Effort, Measurement, Target};

/// The default chunk of arrays.
const CHUNK_BYTES: usize = braid_geometry::CHUNK_BYTES_DEFAULT as usize;
/// The data is this many times as large as the last-level cache.
const WORKING_SET_CACHES: usize = 4;

/// Returns the size of the last-level cache in bytes, or 32 MiB if the kernel does not report it.
fn last_cache_bytes() -> usize {
    let size = |index: usize| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    (0..8).filter_map(size).max().map_or(32 << 20, |kib| kib << 10)
}

/// The working set: data, and as much memory for output.
pub struct Memory {
    data: Vec<u8>,
    out: Vec<u8>,
}

/// The work on each stripe, given its data blocks and an output as long as all of them.
type Work<'a> = &'a dyn Fn(&[&[u8]], &mut [u8]);

impl Memory {
    /// Allocates data of four times the last-level cache.
    pub fn new() -> Memory {
        let bytes = (last_cache_bytes() * WORKING_SET_CACHES).next_multiple_of(16 * CHUNK_BYTES);
        // Every page is written: untouched pages all map to one page of zeros.
        let data = (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        Memory { data, out: vec![1; bytes] }
    }

    /// Returns how many GiB a second of CPU time copies, with this many data blocks a stripe.
    pub fn copies(&mut self, slice: Duration, width: usize) -> f64 {
        self.rate(slice, width, &copy)
    }

    /// Returns how many GiB of data a second of CPU time combines by XOR, with this many data blocks a stripe.
    pub fn xors(&mut self, slice: Duration, width: usize) -> f64 {
        let best = Parity::best();
        self.rate(slice, width, &|data, out| xor(best, data, out))
    }

    /// Returns how many GiB of data a second of CPU time processes.
    fn rate(&mut self, slice: Duration, width: usize, work: Work) -> f64 {
        let mut blocks: Vec<&[u8]> = vec![&[]; width];
        let (mut bytes, begun) = (0, cpu::own_thread());
        loop {
            let stripes = self.data.chunks_exact(width * CHUNK_BYTES);
            for (data, out) in stripes.zip(self.out.chunks_exact_mut(width * CHUNK_BYTES)) {
                blocks.iter_mut().zip(data.chunks_exact(CHUNK_BYTES)).for_each(|(block, chunk)| *block = chunk);
                work(black_box(&blocks), black_box(out));
            }
            bytes += self.data.len();
            let used = cpu::own_thread() - begun;
            if used >= slice {
                return bytes as f64 / used.as_secs_f64() / f64::from(1 << 30);
            }
        }
    }
}

fn copy(data: &[&[u8]], out: &mut [u8]) {
    for (to, from) in out.chunks_exact_mut(CHUNK_BYTES).zip(data) {
        to.copy_from_slice(from);
    }
}

fn xor(parity: Parity, data: &[&[u8]], out: &mut [u8]) {
    parity.xor(&mut out[..CHUNK_BYTES], data);
}

fn pq(parity: Parity, data: &[&[u8]], out: &mut [u8]) {
    let (p, q) = out[..2 * CHUNK_BYTES].split_at_mut(CHUNK_BYTES);
    parity.pq(p, q, data);
}

/// Recovers two data blocks from P, Q and the others. Any data serves as P and Q.
fn two_missing(parity: Parity, data: &[&[u8]], out: &mut [u8]) {
    let (first, second) = out[..2 * CHUNK_BYTES].split_at_mut(CHUNK_BYTES);
    let mut present = [&[][..]; 8];
    present[2..].copy_from_slice(&data[2..]);
    let mut missing = [(BlockRole::Data(0), first), (BlockRole::Data(1), second)];
    parity.recover(&present, data[0], data[1], &mut missing).expect("P and Q are present");
}

/// Measures the fastest implementation, and the others for comparison, on a thread of its own: no other thread is pinned.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // Sending fails only if the receiver was dropped, when this program ends.
        let measured = scope.spawn(move || measure_here(effort, &mut |line| drop(sender.send(line))));
        lines.iter().for_each(&mut *found);
        measured.join().map_err(|_| anyhow::anyhow!("the thread that measures has panicked"))
    })
}

/// Runs `work` on a thread of its own, pinned to the servers' core: no other thread is pinned.
pub fn on_core<T: Send>(work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            pin();
            work()
        });
        there.join().map_err(|_| anyhow::anyhow!("the thread that measures has panicked"))
    })
}

fn measure_here(effort: &Effort, found: &mut dyn FnMut(Measurement)) {
    pin();
    let mut memory = Memory::new();
    let mut pairs = |measure: String, target: Target, width: usize, work: Work| {
        let (mut ours, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            ours.push(memory.rate(effort.short_slice, width, work));
            copies.push(memory.rate(effort.short_slice, width, &copy));
        }
        let detail = format!("{:.1} against {:.1} GiB of data a second", median(&ours), median(&copies));
        found(Measurement::of_pairs(measure, target, &ours, &copies, detail));
    };
    let best = Parity::best();
    let name = best.name();
    pairs(format!("XOR of 4, {name} / memory copy"), Target::AtLeast(0.7), 4, &|data, out| xor(best, data, out));
    pairs(format!("P + Q of 8, {name} / memory copy"), Target::AtLeast(0.4), 8, &|data, out| pq(best, data, out));
    pairs(format!("P + Q of 16, {name} / memory copy"), Target::Shown, 16, &|data, out| pq(best, data, out));
    pairs(format!("two blocks of 8 missing, {name} / memory copy"), Target::Shown, 8, &|d, out| {
        two_missing(best, d, out)
    });
    for other in Parity::available().skip(1) {
        let measure = format!("P + Q of 8, {} / memory copy", other.name());
        pairs(measure, Target::Shown, 8, &|data, out| pq(other, data, out));
    }
}

/// Pins the calling thread to the servers' core, if the process may use it.
fn pin() {
    let mut core = rustix::thread::CpuSet::new();
    core.set(SERVER_CORE as usize);
    // If it may not, the scheduler chooses a core.
    let _ = rustix::thread::sched_setaffinity(None, &core);
}

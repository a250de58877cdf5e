//! The arithmetic of parity on one core, over data that is in no cache, against copying the same data in memory.

use std::hint::black_box;
use std::time::Duration;

use braid_parity::{Parity, Role};

use super::child::SERVER_CORE;
use super::{Effort, Row, Target};
use crate::cpu;
use crate::statistics::median;

/// The chunk that arrays have where nothing else is asked for.
const CHUNK_BYTES: usize = braid_geometry::CHUNK_BYTES_DEFAULT as usize;
/// Data of so many times the cache of the last level.
const WORKING_SET_CACHES: usize = 4;

/// The size of the cache of the last level, in bytes; 32 MiB where the kernel does not say.
fn last_cache_bytes() -> usize {
    let size = |index: usize| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    (0..8).filter_map(size).max().map_or(32 << 20, |kib| kib << 10)
}

/// The memory that is gone through: data, and as much again to be written.
pub struct Memory {
    data: Vec<u8>,
    out: Vec<u8>,
}

/// What is done to each row: its blocks of data, and a place as long as they are together.
type Work<'a> = &'a dyn Fn(&[&[u8]], &mut [u8]);

impl Memory {
    /// Four times the cache of the last level.
    pub fn new() -> Memory {
        let bytes = (last_cache_bytes() * WORKING_SET_CACHES).next_multiple_of(16 * CHUNK_BYTES);
        // Touched, all of it: pages that nobody wrote are all the same one.
        let data = (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        Memory { data, out: vec![1; bytes] }
    }

    /// GiB of data that copying takes a second of processor time for, at this many blocks a row.
    pub fn copies(&mut self, slice: Duration, width: usize) -> f64 {
        self.rate(slice, width, &copy)
    }

    /// The same of an XOR of so many blocks.
    pub fn xors(&mut self, slice: Duration, width: usize) -> f64 {
        let best = Parity::best();
        self.rate(slice, width, &|data, out| xor(best, data, out))
    }

    /// GiB of data that a second of processor time is enough for.
    fn rate(&mut self, slice: Duration, width: usize, work: Work) -> f64 {
        let mut blocks: Vec<&[u8]> = vec![&[]; width];
        let (mut bytes, begun) = (0, cpu::own_thread());
        loop {
            let rows = self.data.chunks_exact(width * CHUNK_BYTES);
            for (data, out) in rows.zip(self.out.chunks_exact_mut(width * CHUNK_BYTES)) {
                blocks.iter_mut().zip(data.chunks_exact(CHUNK_BYTES)).for_each(|(block, part)| *block = part);
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

/// Two blocks of data from P, Q and the others. What stands for P and Q is data, as good as any.
fn two_lost(parity: Parity, data: &[&[u8]], out: &mut [u8]) {
    let (first, second) = out[..2 * CHUNK_BYTES].split_at_mut(CHUNK_BYTES);
    let mut left = [&[][..]; 8];
    left[2..].copy_from_slice(&data[2..]);
    let mut lost = [(Role::Data(0), first), (Role::Data(1), second)];
    parity.recover(&left, data[0], data[1], &mut lost).expect("P and Q are there");
}

/// With the fastest implementation; the others for comparison. By a thread of its own, so that pinning it pins nobody else.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let (sender, rows) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // Who listens is gone only if this program is ending.
        let measured = scope.spawn(move || measure_here(effort, &mut |row| drop(sender.send(row))));
        rows.iter().for_each(&mut *found);
        measured.join().map_err(|_| anyhow::anyhow!("the thread that measures has panicked"))
    })
}

/// Runs this on a thread of its own on the core of what is measured, so that pinning it pins nobody else.
pub fn on_core<T: Send>(work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            pin();
            work()
        });
        there.join().map_err(|_| anyhow::anyhow!("the thread that measures has panicked"))
    })
}

fn measure_here(effort: &Effort, found: &mut dyn FnMut(Row)) {
    pin();
    let mut memory = Memory::new();
    let mut pairs = |measure: String, target: Target, width: usize, work: Work| {
        let (mut ours, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            ours.push(memory.rate(effort.short_slice, width, work));
            copies.push(memory.rate(effort.short_slice, width, &copy));
        }
        let detail = format!("{:.1} against {:.1} GiB of data a second", median(&ours), median(&copies));
        found(Row::of_pairs(measure, target, &ours, &copies, detail));
    };
    let best = Parity::best();
    let name = best.name();
    pairs(format!("XOR of 4, {name} / memory copy"), Target::AtLeast(0.7), 4, &|data, out| xor(best, data, out));
    pairs(format!("P + Q of 8, {name} / memory copy"), Target::AtLeast(0.4), 8, &|data, out| pq(best, data, out));
    pairs(format!("P + Q of 16, {name} / memory copy"), Target::Shown, 16, &|data, out| pq(best, data, out));
    pairs(format!("two blocks lost of 8, {name} / memory copy"), Target::Shown, 8, &|d, out| two_lost(best, d, out));
    for other in Parity::available().skip(1) {
        let measure = format!("P + Q of 8, {} / memory copy", other.name());
        pairs(measure, Target::Shown, 8, &|data, out| pq(other, data, out));
    }
}

/// To the core of whatever is measured in one process, if that may be used.
fn pin() {
    let mut core = rustix::thread::CpuSet::new();
    core.set(SERVER_CORE as usize);
    // Where it may not, the scheduler's choice is as good.
    let _ = rustix::thread::sched_setaffinity(None, &core);
}

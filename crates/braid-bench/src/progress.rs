//! The progress line of a run, on standard error if that is a terminal.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::figures::{rate, time};
use super::live::LiveCell;

/// The interval at which the line is drawn.
const TICK: Duration = Duration::from_millis(250);

/// The measurement in progress.
#[derive(Default)]
struct Now {
    what: String,
    block_bytes: u64,
    live: Vec<Arc<LiveCell>>,
    /// The counts at the last drawing.
    before: (u64, u64),
    /// When the line was drawn last.
    at: Option<Instant>,
    step: usize,
}

struct Shared {
    now: Mutex<Now>,
    over: AtomicBool,
    bar: ProgressBar,
    steps: usize,
    begun: Instant,
    expected: Option<Duration>,
}

/// The progress line. It is cleared when this is dropped.
pub struct Progress {
    shared: Option<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts drawing, if standard error is a terminal. The run has `steps` slices and is expected to take `expected`.
    pub fn start(steps: usize, expected: Option<Duration>) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress { shared: None, thread: None };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        let shared = Arc::new(Shared {
            now: Mutex::default(),
            over: AtomicBool::new(false),
            bar,
            steps,
            begun: Instant::now(),
            expected,
        });
        let of_thread = Arc::clone(&shared);
        // Without a thread for the line, the run goes on.
        let thread = std::thread::Builder::new().name("bench-progress".into()).spawn(move || draw(&of_thread)).ok();
        Progress { shared: Some(shared), thread }
    }

    /// Sets the measurement in progress.
    pub fn step(&self, what: impl FnOnce() -> String, block_bytes: u64, live: &[Arc<LiveCell>]) {
        let Some(shared) = &self.shared else { return };
        // The pass that begins now has no counts yet.
        live.iter().for_each(|cell| cell.show(0, 0));
        let mut now = shared.now.lock().unwrap_or_else(PoisonError::into_inner);
        let step = now.step + 1;
        *now = Now { what: what(), block_bytes, live: live.to_vec(), before: (0, 0), at: Some(Instant::now()), step };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.over.store(true, Ordering::Release);
        }
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        if let Some(shared) = &self.shared {
            shared.bar.finish_and_clear();
        }
    }
}

fn draw(shared: &Shared) {
    while !shared.over.load(Ordering::Acquire) {
        std::thread::park_timeout(TICK);
        let mut now = shared.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(at), false) = (now.at, now.live.is_empty()) else { continue };
        let seen = now.live.iter().map(|cell| cell.seen()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (ios, latency) = (seen.0.saturating_sub(now.before.0), seen.1.saturating_sub(now.before.1));
        let seconds = at.elapsed().as_secs_f64();
        if seconds < 0.05 {
            continue;
        }
        let left = shared.expected.map_or(String::new(), |all| {
            format!(", about {} s left", all.saturating_sub(shared.begun.elapsed()).as_secs())
        });
        shared.bar.set_message(line(
            &now.what,
            ios,
            latency,
            now.block_bytes,
            seconds,
            (now.step, shared.steps),
            &left,
        ));
        (now.before, now.at) = (seen, Some(Instant::now()));
    }
}

/// Formats the line.
fn line(what: &str, ios: u64, latency_sum: u64, block: u64, seconds: f64, step: (usize, usize), left: &str) -> String {
    let iops = ios as f64 / seconds;
    let mean = latency_sum as f64 / ios.max(1) as f64;
    format!("[{}/{}{left}] {what}: {iops:.0} IOPS, {}, {}", step.0, step.1, rate(iops * block as f64), time(mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_target_and_the_rates() {
        let text = line("null:1T, random read 4K", 1000, 5_000_000, 4096, 0.5, (3, 20), ", about 7 s left");
        assert_eq!(text, "[3/20, about 7 s left] null:1T, random read 4K: 2000 IOPS, 8.19 MB/s, 5.00 µs");
    }
}

//! Progress of whatever takes longer than a second: the line of a wait, and the live lines of jobs, on standard error.
//!
//! What it guarantees: nothing is drawn within the first second, nor unless standard error is a terminal, nor with `--json`; what was drawn is
//! erased before this process prints anything else.
//! What it never does: use color.

use crate::{requests, width};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::any::Any;
use std::io::{IsTerminal, Stderr, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time in which nothing is drawn.
const DELAY: Duration = Duration::from_secs(1);
/// Erases the line of the cursor, and moves the cursor to its start.
const ERASE: &str = "\r\x1b[K";
/// Number of characters within a bar.
const BAR_WIDTH: usize = 16;

/// Whether `--json` was given.
static IS_QUIET: AtomicBool = AtomicBool::new(false);
/// Whether a wait or live lines exist. Further waits are not shown.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);
/// Standard error, as the lines of waits are drawn on it.
static SCREEN: LazyLock<Mutex<Painter<Stderr>>> =
    LazyLock::new(|| Mutex::new(Painter { stream: std::io::stderr(), is_drawn: false }));

/// Disables all progress of this process if the command prints JSON.
pub fn choose(is_json: bool) {
    IS_QUIET.store(is_json, Ordering::Relaxed);
}

/// Returns whether progress is shown.
pub fn is_wanted() -> bool {
    let term = std::env::var("TERM").ok();
    is_wanted_at(std::io::stderr().is_terminal(), term.as_deref(), IS_QUIET.load(Ordering::Relaxed))
}

/// Returns whether progress is shown at a terminal, or elsewhere. A dumb terminal cannot erase a line.
fn is_wanted_at(is_terminal: bool, term: Option<&str>, is_quiet: bool) -> bool {
    is_terminal && term != Some("dumb") && !is_quiet
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Erases the line of a wait. No line is drawn until the returned guard is dropped.
pub(crate) fn hold() -> Hold {
    let mut screen = lock(&SCREEN);
    screen.erase();
    Hold { _screen: screen }
}

/// See [`hold`].
pub(crate) struct Hold {
    _screen: MutexGuard<'static, Painter<Stderr>>,
}

/// Draws the line of a wait on a stream.
struct Painter<W> {
    stream: W,
    is_drawn: bool,
}

impl<W: Write> Painter<W> {
    /// Replaces the line. Errors are ignored: progress is no result.
    fn draw(&mut self, line: &str) {
        let _ = write!(self.stream, "{ERASE}{line}").and_then(|()| self.stream.flush());
        self.is_drawn = true;
    }

    /// Erases the line, if it is drawn.
    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(self.stream, "{ERASE}").and_then(|()| self.stream.flush());
        }
    }
}

/// Returns what a wait is for. Called once, and only if the wait takes longer than [`DELAY`].
type Description = Box<dyn FnOnce() -> String + Send>;

/// The text of the line of a wait, at times that the caller measures.
struct WaitLine {
    description: Option<Description>,
    what: String,
}

impl WaitLine {
    fn new(description: Description) -> WaitLine {
        WaitLine { description: Some(description), what: String::new() }
    }

    /// Returns the line after a wait of `elapsed`, at most `columns` wide; `None` within [`DELAY`].
    fn after(&mut self, elapsed: Duration, columns: usize) -> Option<String> {
        if elapsed < DELAY {
            return None;
        }
        if let Some(description) = self.description.take() {
            self.what = description();
        }
        let seconds = format!(" … {} s", elapsed.as_secs());
        // The last column stays empty: some terminals wrap after it.
        let room = columns.saturating_sub(seconds.chars().count() + 1);
        Some(width::truncate(&format!("waiting for {}", self.what), room) + &seconds)
    }
}

/// Returns the time from `elapsed` until the line of a wait changes.
fn until_change(elapsed: Duration) -> Duration {
    let next = DELAY.max(Duration::from_secs(elapsed.as_secs() + 1));
    next.saturating_sub(elapsed)
}

/// Whether a wait is over, and the signal of its end.
#[derive(Default)]
struct End {
    is_over: Mutex<bool>,
    signal: Condvar,
}

/// A wait, whose line is shown from its second second until this is dropped.
#[must_use]
pub struct Waiting {
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Begins a wait. `what` completes the sentence "waiting for …". If another wait or a job is shown already, this one is not.
    pub fn begin(what: impl FnOnce() -> String + Send + 'static) -> Waiting {
        let end = Arc::new(End::default());
        if !is_wanted() || IS_SHOWN.swap(true, Ordering::AcqRel) {
            return Waiting { end, thread: None };
        }
        let (of_thread, mut line) = (Arc::clone(&end), WaitLine::new(Box::new(what)));
        // Without a thread, the command continues without progress.
        let thread =
            std::thread::Builder::new().name("progress".into()).spawn(move || draw_until(&of_thread, &mut line)).ok();
        if thread.is_none() {
            IS_SHOWN.store(false, Ordering::Release);
        }
        Waiting { end, thread }
    }

    /// Begins the wait for a disk that the command itself reads or writes.
    pub fn for_disk(disk: &str) -> Waiting {
        let disk = disk.to_owned();
        Waiting::begin(move || format!("the disk {disk}"))
    }

    /// Begins the wait for the daemon's reply to a request. Ends when the returned value is dropped.
    pub fn for_reply(method: &str, path: &str, body: &[u8]) -> Box<dyn Any + Send> {
        if !is_wanted() {
            return Box::new(());
        }
        let (method, path, body) = (method.to_owned(), path.to_owned(), body.to_vec());
        Box::new(Waiting::begin(move || format!("the daemon: {}", requests::describe(&method, &path, &body))))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        *lock(&self.end.is_over) = true;
        self.end.signal.notify_one();
        let _ = thread.join();
        lock(&SCREEN).erase();
        IS_SHOWN.store(false, Ordering::Release);
    }
}

fn draw_until(end: &End, line: &mut WaitLine) {
    let begun = Instant::now();
    let mut is_over = lock(&end.is_over);
    loop {
        let pause = until_change(begun.elapsed());
        is_over = end
            .signal
            .wait_timeout_while(is_over, pause, |is_over| !*is_over)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        if *is_over {
            return;
        }
        if let Some(text) = line.after(begun.elapsed(), width::columns_of(&std::io::stderr())) {
            lock(&SCREEN).draw(&text);
        }
    }
}

/// Lines that a command updates in place while it follows jobs. They are erased when this is dropped.
pub struct LiveLines {
    bar: ProgressBar,
    begun: Instant,
}

impl LiveLines {
    /// Returns the lines; `None` if no progress is shown.
    pub fn begin() -> Option<LiveLines> {
        if !is_wanted() || IS_SHOWN.swap(true, Ordering::AcqRel) {
            return None;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Some(LiveLines { bar, begun: Instant::now() })
    }

    /// Shows these lines instead of those before, each at most as wide as the terminal.
    pub fn show(&self, lines: &[String]) {
        if self.begun.elapsed() >= DELAY {
            let columns = width::columns_of(&std::io::stderr());
            let lines: Vec<String> = lines.iter().map(|line| width::truncate(line, columns)).collect();
            self.bar.set_message(lines.join("\n"));
        }
    }
}

impl Drop for LiveLines {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        IS_SHOWN.store(false, Ordering::Release);
    }
}

/// Returns a bar that shows which part of `total` is done: `[====>...........]`.
pub fn bar(done: u64, total: u64) -> String {
    let filled = (BAR_WIDTH as u128 * u128::from(done.min(total)) / u128::from(total.max(1))) as usize;
    let head = if filled < BAR_WIDTH { ">" } else { "" };
    let left = BAR_WIDTH - filled - head.len();
    format!("[{}{head}{}]", "=".repeat(filled), ".".repeat(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws the line of a wait at these times, in milliseconds, and erases it. Returns what was written up to each time, and in total.
    fn written(times_ms: &[u64]) -> (Vec<String>, String) {
        let mut painter = Painter { stream: Vec::new(), is_drawn: false };
        let mut line = WaitLine::new(Box::new(|| "the daemon: creating pool tank".to_owned()));
        let text = |painter: &Painter<Vec<u8>>| String::from_utf8(painter.stream.clone()).expect("it is text");
        let mut parts = Vec::new();
        for &ms in times_ms {
            if let Some(text) = line.after(Duration::from_millis(ms), 80) {
                painter.draw(&text);
            }
            parts.push(text(&painter));
        }
        painter.erase();
        let all = text(&painter);
        painter.erase();
        assert_eq!(text(&painter), all, "it is erased once");
        (parts, all)
    }

    #[test]
    fn the_line_is_drawn_after_the_delay_updated_in_place_and_erased() {
        let (parts, all) = written(&[0, 500, 999, 1000, 3200]);
        assert_eq!(parts[..3], ["", "", ""]);
        let first = "\r\x1b[Kwaiting for the daemon: creating pool tank … 1 s";
        assert_eq!(parts[3], first);
        let second = format!("{first}\r\x1b[Kwaiting for the daemon: creating pool tank … 3 s");
        assert_eq!(parts[4], second);
        assert_eq!(all, format!("{second}\r\x1b[K"));
    }

    #[test]
    fn a_short_wait_writes_nothing_and_needs_no_description() {
        assert_eq!(written(&[0, 400, 999]).1, "");
        let mut line = WaitLine::new(Box::new(|| -> String { unreachable!("the wait is short") }));
        assert_eq!(line.after(Duration::from_millis(999), 80), None);
    }

    #[test]
    fn the_line_changes_each_second() {
        let check = |elapsed_ms: u64, pause_ms: u64| {
            let pause = until_change(Duration::from_millis(elapsed_ms));
            assert_eq!(pause, Duration::from_millis(pause_ms), "{elapsed_ms}");
        };
        check(0, 1000);
        check(300, 700);
        check(1000, 1000);
        check(2950, 50);
    }

    #[test]
    fn the_line_fits_the_terminal_and_its_seconds_are_not_cut() {
        for columns in [20, 40, 80] {
            let mut line = WaitLine::new(Box::new(|| "a name ".repeat(30)));
            let text = line.after(Duration::from_secs(75), columns).expect("it is late enough");
            assert!(text.chars().count() < columns && text.ends_with("… 75 s"), "{columns}: {text}");
        }
    }

    #[test]
    fn nothing_is_shown_without_a_terminal_or_with_json() {
        assert!(is_wanted_at(true, Some("xterm"), false) && is_wanted_at(true, None, false));
        assert!(!is_wanted_at(false, Some("xterm"), false), "a pipe or a file");
        assert!(!is_wanted_at(true, Some("dumb"), false));
        assert!(!is_wanted_at(true, Some("xterm"), true), "--json");
        choose(true);
        let waiting = Waiting::begin(|| "nothing".to_owned());
        assert!(waiting.thread.is_none() && LiveLines::begin().is_none());
    }

    #[test]
    fn bars_are_filled_in_proportion() {
        assert_eq!(bar(0, 100), "[>...............]");
        assert_eq!(bar(50, 100), "[========>.......]");
        assert_eq!(bar(100, 100), "[================]");
        assert_eq!(bar(u64::MAX, 1), "[================]");
        assert_eq!(bar(0, 0), "[>...............]");
    }
}

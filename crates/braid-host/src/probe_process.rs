//! Probes files and devices that this process does not own from a separate process, the *probe process*: `braid
//! look-aside`.
//!
//! A file system or a device may never reply to a request. The kernel then blocks the requesting thread, in some states
//! even against SIGKILL: while the thread waits for a request that a FUSE server has accepted, or closes a device with
//! a read in flight, for example. A process exits only with the last of its threads, and keeps its locks, sockets and
//! disks until then. The daemon therefore does not itself touch paths that may or may not be Braid's, or paths that
//! other programs serve: a probe process does.
//!
//! | requesting process | probe process |
//! |---|---|
//! | writes its requests to the standard input: a letter, a number, a space, a path, a zero byte; a single zero byte ends them | probes the paths with a few threads |
//! | reads the results | writes a line for each: the number, a space, the result |
//! | closes the standard input, or exits | exits as soon as the kernel permits |
//!
//! The probe process has no open files except the paths that it probes. If no process can be started, threads of this process probe
//! the paths. Results arrive in any order, and some never arrive: callers must set their own time limits.

use super::identity::Identity;
use super::probe::Probe;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The argument that makes this program a probe process.
const ARGUMENT: &str = "look-aside";
/// Whether this program handles the argument, so that probe processes can be started.
static CAN_START_PROCESSES: AtomicBool = AtomicBool::new(false);
/// Maximum number of paths that one process probes concurrently.
const THREADS_MAX: usize = 64;
/// Maximum number of concurrent probe processes, including those that the kernel blocks.
const PROCESSES_MAX: usize = 64;
/// A path whose probe has had no result for this long is not probed again while that probe is pending.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(30);
/// Interval of checking whether probe processes have exited.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A request to probe a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeRequest {
    /// Whether the path may have a Braid label.
    Label(PathBuf),
    /// The identity of the file or device. The probe queries the file system, so that the kernel's cache has the
    /// current attributes (the size, for example) afterwards.
    Identity(PathBuf),
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The path may have a label.
    Label,
    /// The path has no label.
    NoLabel,
    /// The identity of the file or device.
    Identity(Identity),
    /// The probe failed with this error number of the operating system, or 0 for another error.
    Failed(i32),
}

/// A callback that receives the number of a request and its result.
type ResultHandler = dyn Fn(usize, ProbeResult) + Send + Sync;

impl ProbeRequest {
    fn path(&self) -> &Path {
        match self {
            ProbeRequest::Label(path) | ProbeRequest::Identity(path) => path,
        }
    }

    /// Probes the path. May never return.
    fn execute(&self) -> ProbeResult {
        let answer = match self {
            ProbeRequest::Label(path) => {
                let has_label = Probe::open(path).and_then(|probe| probe.may_have_label());
                has_label.map(|has_label| if has_label { ProbeResult::Label } else { ProbeResult::NoLabel })
            }
            ProbeRequest::Identity(path) => {
                std::fs::metadata(path).map(|found| ProbeResult::Identity(Identity::in_metadata(&found)))
            }
        };
        answer.unwrap_or_else(|error| ProbeResult::Failed(error.raw_os_error().unwrap_or(0)))
    }

    /// Encodes the request for the probe process, ended by a zero byte, which no path can contain.
    fn encode(&self, number: usize) -> Vec<u8> {
        let letter = match self {
            ProbeRequest::Label(_) => 'L',
            ProbeRequest::Identity(_) => 'I',
        };
        let mut bytes = format!("{letter}{number} ").into_bytes();
        bytes.extend_from_slice(self.path().as_os_str().as_bytes());
        bytes.push(0);
        bytes
    }

    /// Decodes an encoded request, without the zero byte. Returns its number and the request.
    fn decode(bytes: &[u8]) -> Option<(usize, ProbeRequest)> {
        let (letter, rest) = bytes.split_first()?;
        let blank = rest.iter().position(|byte| *byte == b' ')?;
        let number = std::str::from_utf8(&rest[..blank]).ok()?.parse().ok()?;
        let path = PathBuf::from(OsStr::from_bytes(&rest[blank + 1..]));
        match letter {
            b'L' => Some((number, ProbeRequest::Label(path))),
            b'I' => Some((number, ProbeRequest::Identity(path))),
            _ => None,
        }
    }
}

impl ProbeResult {
    fn encode(self, number: usize) -> String {
        match self {
            ProbeResult::Label => format!("{number} label"),
            ProbeResult::NoLabel => format!("{number} none"),
            ProbeResult::Identity(Identity::Device(device)) => format!("{number} device {device}"),
            ProbeResult::Identity(Identity::File(system, inode)) => format!("{number} file {system} {inode}"),
            ProbeResult::Failed(errno) => format!("{number} failed {errno}"),
        }
    }

    fn decode(line: &str) -> Option<(usize, ProbeResult)> {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match *words.get(1..)? {
            ["label"] => ProbeResult::Label,
            ["none"] => ProbeResult::NoLabel,
            ["device", device] => ProbeResult::Identity(Identity::Device(device.parse().ok()?)),
            ["file", system, inode] => ProbeResult::Identity(Identity::File(system.parse().ok()?, inode.parse().ok()?)),
            ["failed", errno] => ProbeResult::Failed(errno.parse().ok()?),
            _ => return None,
        };
        Some((words[0].parse().ok()?, answer))
    }
}

/// Returns whether this process was started as a probe process. A program that calls this at its start can also start probe processes,
/// which run the same program. A program that does not call this (a unit test, for example) probes in its own threads.
pub fn is_probe_process() -> bool {
    CAN_START_PROCESSES.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|first| first == ARGUMENT) && arguments.next().is_none()
}

/// Probes the paths that are requested on the standard input, and returns after the standard input is closed.
pub fn run() -> ExitCode {
    let mut input = io::stdin().lock();
    let Ok(questions) = read_all(&mut input) else { return ExitCode::FAILURE };
    let on_result = |number: usize, answer: ProbeResult| {
        let mut out = io::stdout().lock();
        // If the output has no reader, the standard input is closed as well.
        let _ = writeln!(out, "{}", answer.encode(number)).and_then(|()| out.flush());
    };
    if probe_in_threads(questions, Arc::new(on_result)).is_err() {
        return ExitCode::FAILURE;
    }
    let _ = io::copy(&mut input, &mut io::sink());
    ExitCode::SUCCESS
}

fn read_all(input: &mut impl BufRead) -> io::Result<Vec<(usize, ProbeRequest)>> {
    let mut questions = Vec::new();
    loop {
        let mut bytes = Vec::new();
        input.read_until(0, &mut bytes)?;
        if bytes.pop() != Some(0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if bytes.is_empty() {
            return Ok(questions);
        }
        questions.push(ProbeRequest::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?);
    }
}

/// Starts a few threads of this process that probe the paths. Does not wait for them.
fn probe_in_threads(questions: Vec<(usize, ProbeRequest)>, on_result: Arc<ResultHandler>) -> io::Result<()> {
    let count = questions.len().min(THREADS_MAX);
    let queue = Arc::new(Mutex::new(VecDeque::from(questions)));
    for nth in 0..count {
        let (queue, on_result) = (Arc::clone(&queue), Arc::clone(&on_result));
        let worker = move || {
            while let Some((number, question)) = next(&queue) {
                on_result(number, question.execute());
            }
        };
        match thread::Builder::new().name(ARGUMENT.to_owned()).spawn(worker) {
            Err(error) if nth == 0 => return Err(error),
            // The other threads process its share.
            _ => {}
        }
    }
    Ok(())
}

fn next(queue: &Mutex<VecDeque<(usize, ProbeRequest)>>) -> Option<(usize, ProbeRequest)> {
    lock(queue).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A probe process and its pending requests.
struct ProbeProcess {
    /// The child process, from its start until `exchange` waits for its exit.
    child: Mutex<Option<Child>>,
    /// The process id, or 0 if the process has not been started.
    id: AtomicU32,
    started_at: Instant,
    /// The paths without a result, by request number.
    pending: Mutex<BTreeMap<usize, PathBuf>>,
    cancelled: AtomicBool,
}

/// All probe processes of this process.
static PROBE_PROCESSES: Mutex<Vec<Arc<ProbeProcess>>> = Mutex::new(Vec::new());

/// Requests in progress. Dropping this cancels them.
#[must_use = "requests are cancelled when this is dropped"]
pub struct PendingProbes(Option<Arc<ProbeProcess>>);

impl PendingProbes {
    /// Lets the requests complete without this handle.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for PendingProbes {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            process.cancel();
        }
    }
}

/// Starts a probe process for the requests, and returns without waiting. `on_result` is called, on another thread, with
/// each result and the index of its request in `questions`; it is dropped when no more results will arrive.
///
/// A request may have no result: its path does not reply, its path has been unresponsive for 30 seconds and is skipped,
/// 64 probe processes are running already, or the returned handle was dropped.
pub fn start_probes(
    questions: Vec<ProbeRequest>,
    on_result: impl Fn(usize, ProbeResult) + Send + Sync + 'static,
) -> PendingProbes {
    let unresponsive_paths = unresponsive_paths();
    let responsive =
        questions.into_iter().enumerate().filter(|(_, question)| !unresponsive_paths.contains(question.path()));
    let questions: Vec<(usize, ProbeRequest)> = responsive.collect();
    if questions.is_empty() {
        return PendingProbes(None);
    }
    let pending = questions.iter().map(|(number, question)| (*number, question.path().to_owned())).collect();
    let process = Arc::new(ProbeProcess {
        child: Mutex::new(None),
        id: AtomicU32::new(0),
        started_at: Instant::now(),
        pending: Mutex::new(pending),
        cancelled: AtomicBool::new(false),
    });
    let count = {
        let mut processes = lock(&PROBE_PROCESSES);
        processes.push(Arc::clone(&process));
        processes.len()
    };
    if count > PROCESSES_MAX {
        unregister(&process);
        tracing::warn!(
            "{PROCESSES_MAX} processes wait for unresponsive disks or file systems: no others are probed; see \
             what hangs (dmesg, losetup --list)"
        );
        return PendingProbes(None);
    }
    let serving = Arc::clone(&process);
    let serve = move || {
        serving.serve(questions, Arc::new(on_result));
        unregister(&serving);
    };
    match thread::Builder::new().name("aside".to_owned()).spawn(serve) {
        Ok(_) => PendingProbes(Some(process)),
        Err(error) => {
            unregister(&process);
            tracing::warn!("cannot probe disks: {error}");
            PendingProbes(None)
        }
    }
}

/// Probes, and waits for the results for at most `limit`. Returns the results by the index of the request.
pub fn probe_all(questions: Vec<ProbeRequest>, limit: Duration) -> BTreeMap<usize, ProbeResult> {
    let count = questions.len();
    let (on_result, received) = mpsc::channel();
    let requests = start_probes(questions, move |number, answer| {
        // The receiver may have been dropped after the limit.
        let _ = on_result.send((number, answer));
    });
    let until = Instant::now() + limit;
    let mut answers = BTreeMap::new();
    while answers.len() < count {
        match received.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((number, answer)) => {
                answers.insert(number, answer);
            }
            Err(_) => break,
        }
    }
    drop(requests);
    answers
}

/// Returns the identity of a path, or the error of probing it; `None` if there is no result within `limit`.
pub fn identity(path: &Path, limit: Duration) -> Option<ProbeResult> {
    probe_all(vec![ProbeRequest::Identity(path.to_owned())], limit).remove(&0)
}

/// Returns those of the disks that reply within `limit`, with data or with an error.
pub fn responsive_paths(paths: Vec<PathBuf>, limit: Duration) -> BTreeSet<PathBuf> {
    let answers = probe_all(paths.iter().cloned().map(ProbeRequest::Label).collect(), limit);
    paths.into_iter().enumerate().filter(|(number, _)| answers.contains_key(number)).map(|(_, path)| path).collect()
}

/// Starts to update the kernel's cached attributes of files, in a probe process, and returns without waiting.
pub fn refresh(paths: Vec<PathBuf>) {
    start_probes(paths.into_iter().map(ProbeRequest::Identity).collect(), |_, _| ()).detach();
}

/// Cancels all requests, at the end of this process, and waits for at most `limit` until the probe processes exit. Returns the ids of
/// the remaining processes, with the paths that have no result.
pub fn shut_down(limit: Duration) -> Vec<(u32, Vec<PathBuf>)> {
    let until = Instant::now() + limit;
    let processes: Vec<Arc<ProbeProcess>> = lock(&PROBE_PROCESSES).clone();
    processes.iter().for_each(|process| process.cancel());
    while !lock(&PROBE_PROCESSES).is_empty() && Instant::now() < until {
        thread::sleep(POLL_INTERVAL);
    }
    let pending: Vec<Arc<ProbeProcess>> = lock(&PROBE_PROCESSES).clone();
    let started = pending.iter().filter(|process| process.id.load(Ordering::SeqCst) != 0);
    let unfinished = started.map(|process| {
        let paths: Vec<PathBuf> = lock(&process.pending).values().cloned().collect();
        (process.id.load(Ordering::SeqCst), paths)
    });
    unfinished.filter(|(_, paths)| !paths.is_empty()).collect()
}

/// Returns the paths that have had no result for [`UNRESPONSIVE_AFTER`].
fn unresponsive_paths() -> BTreeSet<PathBuf> {
    let processes: Vec<Arc<ProbeProcess>> = lock(&PROBE_PROCESSES).clone();
    let long = processes.iter().filter(|process| process.started_at.elapsed() >= UNRESPONSIVE_AFTER);
    long.flat_map(|process| lock(&process.pending).values().cloned().collect::<Vec<PathBuf>>()).collect()
}

fn unregister(process: &Arc<ProbeProcess>) {
    lock(&PROBE_PROCESSES).retain(|other| !Arc::ptr_eq(other, process));
}

/// Starts a probe process.
fn start() -> io::Result<Child> {
    if !CAN_START_PROCESSES.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // `/proc/self/exe` is the running program, even if its file was replaced by now. The process gets a process group
    // of its own, so that an interrupt from the terminal does not reach it.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("braid").arg(ARGUMENT).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

impl ProbeProcess {
    /// Executes the requests, and returns when no more results will arrive.
    fn serve(&self, questions: Vec<(usize, ProbeRequest)>, on_result: Arc<ResultHandler>) {
        match start() {
            Ok(child) => self.exchange(child, &questions, &*on_result),
            Err(error) => {
                if CAN_START_PROCESSES.load(Ordering::Relaxed) {
                    tracing::warn!(
                        "cannot start a probe process ({error}): this process probes the disks, and may not exit before \
                         they answer"
                    );
                }
                // If no thread can be started either, there are no results.
                let _ = probe_in_threads(questions, on_result);
            }
        }
    }

    fn exchange(&self, mut child: Child, questions: &[(usize, ProbeRequest)], on_result: &ResultHandler) {
        let (input, output) = (child.stdin.take(), child.stdout.take());
        self.id.store(child.id(), Ordering::SeqCst);
        *lock(&self.child) = Some(child);
        if self.cancelled.load(Ordering::SeqCst) {
            self.kill();
        }
        if let (Some(mut input), Some(output)) = (input, output) {
            let mut written: Vec<u8> =
                questions.iter().flat_map(|(number, question)| question.encode(*number)).collect();
            written.push(0);
            // If the process has exited, there is no output to read.
            let _ = input.write_all(&written);
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                let Some((number, answer)) = ProbeResult::decode(&line) else { continue };
                let is_new = lock(&self.pending).remove(&number).is_some();
                if is_new {
                    on_result(number, answer);
                }
                if lock(&self.pending).is_empty() {
                    break;
                }
            }
        }
        let pending: Vec<String> = lock(&self.pending).values().map(|path| path.display().to_string()).collect();
        if !pending.is_empty() && !self.cancelled.load(Ordering::SeqCst) {
            tracing::warn!(
                "the probe process exited before it had probed {}: `braid array assemble` probes them \
                 again",
                pending.join(", ")
            );
        }
        // The standard input of the process is closed by now.
        let child = lock(&self.child).take();
        if let Some(mut child) = child {
            let _ = child.wait();
        }
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.kill();
    }

    fn kill(&self) {
        if let Some(child) = lock(&self.child).as_mut() {
            // The process may have exited.
            let _ = child.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_results_round_trip() {
        let questions = [
            ProbeRequest::Label("/dev/loop3".into()),
            ProbeRequest::Identity(PathBuf::from(OsStr::from_bytes(b"/srv/a b\n\xff"))),
        ];
        let mut written: Vec<u8> =
            questions.iter().enumerate().flat_map(|(number, question)| question.encode(7 + number)).collect();
        assert!(read_all(&mut written.as_slice()).is_err(), "it is truncated");
        written.push(0);
        let [first, second] = questions;
        assert_eq!(read_all(&mut written.as_slice()).expect("it is whole"), [(7, first), (8, second)]);
        for answer in [
            ProbeResult::Label,
            ProbeResult::NoLabel,
            ProbeResult::Identity(Identity::Device(1793)),
            ProbeResult::Identity(Identity::File(64_769, u64::MAX)),
            ProbeResult::Failed(107),
        ] {
            assert_eq!(ProbeResult::decode(&answer.encode(12)), Some((12, answer)));
        }
        for line in ["", "label", "1", "x label", "1 device", "1 file 2", "1 label 2", "running 0 tests"] {
            assert_eq!(ProbeResult::decode(line), None, "{line:?}");
        }
        assert_eq!(ProbeRequest::decode(b"X1 /dev/sda"), None);
        assert_eq!(ProbeRequest::decode(b"L /dev/sda"), None);
    }

    #[test]
    fn existing_paths_are_probed_and_missing_ones_fail() {
        let path = std::env::temp_dir().join(format!("braid-aside-{}", std::process::id()));
        std::fs::write(&path, [0; 8192]).expect("a file can be written");
        let absent = path.with_extension("absent");
        let questions = vec![
            ProbeRequest::Label(path.clone()),
            ProbeRequest::Identity(path.clone()),
            ProbeRequest::Identity(absent.clone()),
        ];
        let found = probe_all(questions, Duration::from_secs(60));
        let own = Identity::of(&path).expect("it is there");
        assert_eq!(found.get(&0), Some(&ProbeResult::NoLabel));
        assert_eq!(found.get(&1), Some(&ProbeResult::Identity(own)));
        assert_eq!(found.get(&2), Some(&ProbeResult::Failed(libc::ENOENT)));
        // If another program mounts a file system at the same time, the kernel's cached lookup must be retried.
        let in_memory = (0..1000).find_map(|_| Identity::in_memory(&path).ok());
        assert_eq!(in_memory, Some(own), "the kernel has just looked at it");
        let both = responsive_paths(vec![path.clone(), absent.clone()], Duration::from_secs(60));
        assert_eq!(both, BTreeSet::from([path.clone(), absent]), "an error is an answer");
        assert_eq!(probe_all(Vec::new(), Duration::from_secs(60)), BTreeMap::new());
        std::fs::remove_file(&path).expect("it is ours");
    }
}

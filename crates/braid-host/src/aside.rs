//! Looks at files and devices that are not this process' own, from a process beside it: `braid look-aside`.
//!
//! A file system or a device may never answer. The kernel then holds the thread that asked, often against SIGKILL, too: one that waits
//! for a request which a FUSE server has taken, or that closes a device with a read under way. A process ends with the last of its
//! threads, and has its locks, sockets and disks until then. So what a daemon only guesses at, and what other programs serve, is
//! looked at by another process.
//!
//! | the one that asks | the process beside it |
//! |---|---|
//! | writes its questions to the standard input: a letter, a number, a blank, a path, a zero byte; a lone zero byte ends them | has a few threads look |
//! | reads the answers | writes a line for each: the number, a blank, what was found |
//! | closes the standard input, or ends | ends, as soon as the kernel lets it |
//!
//! The process has nothing open but what it looks at. Where none can be started, threads of this process look. Answers come in any
//! order, and some never: those that ask have limits of their own.

use super::host::Identity;
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

/// The argument that makes this program such a process.
const NAME: &str = "look-aside";
/// This program knows the argument.
static CAN_LOOK_ASIDE: AtomicBool = AtomicBool::new(false);
/// Paths that one process looks at, at a time.
const THREADS_MAX: usize = 64;
/// Processes at a time. Those that the kernel holds count.
const PROCESSES_MAX: usize = 64;
/// A path that has not answered for so long is not asked about again until it has.
const SILENT: Duration = Duration::from_secs(30);
/// Between two looks whether processes have ended.
const BETWEEN: Duration = Duration::from_millis(5);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether it may bear a label of Braid.
    Label(PathBuf),
    /// What it is. Its file system is asked, so that the kernel knows its size afterwards.
    Identity(PathBuf),
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It may bear a label.
    Label,
    /// It bears none.
    NoLabel,
    /// It is this.
    Is(Identity),
    /// The number of an error of the operating system; 0: another error.
    Failed(i32),
}

/// Takes the answer to the question of a number.
type Tell = dyn Fn(usize, Answer) + Send + Sync;

impl Question {
    fn path(&self) -> &Path {
        match self {
            Question::Label(path) | Question::Identity(path) => path,
        }
    }

    /// Looks. May never return.
    fn answer(&self) -> Answer {
        let answer = match self {
            Question::Label(path) => {
                let bears = Probe::open(path).and_then(|probe| probe.may_bear_label());
                bears.map(|bears| if bears { Answer::Label } else { Answer::NoLabel })
            }
            Question::Identity(path) => std::fs::metadata(path).map(|found| Answer::Is(Identity::in_metadata(&found))),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.raw_os_error().unwrap_or(0)))
    }

    /// As it is written to the process. Paths of the kernel's have no zero bytes.
    fn written(&self, number: usize) -> Vec<u8> {
        let letter = match self {
            Question::Label(_) => 'L',
            Question::Identity(_) => 'I',
        };
        let mut bytes = format!("{letter}{number} ").into_bytes();
        bytes.extend_from_slice(self.path().as_os_str().as_bytes());
        bytes.push(0);
        bytes
    }

    /// The question that was written so, without the zero byte, and its number.
    fn read(bytes: &[u8]) -> Option<(usize, Question)> {
        let (letter, rest) = bytes.split_first()?;
        let blank = rest.iter().position(|byte| *byte == b' ')?;
        let number = std::str::from_utf8(&rest[..blank]).ok()?.parse().ok()?;
        let path = PathBuf::from(OsStr::from_bytes(&rest[blank + 1..]));
        match letter {
            b'L' => Some((number, Question::Label(path))),
            b'I' => Some((number, Question::Identity(path))),
            _ => None,
        }
    }
}

impl Answer {
    fn written(self, number: usize) -> String {
        match self {
            Answer::Label => format!("{number} label"),
            Answer::NoLabel => format!("{number} none"),
            Answer::Is(Identity::Device(device)) => format!("{number} device {device}"),
            Answer::Is(Identity::File(system, inode)) => format!("{number} file {system} {inode}"),
            Answer::Failed(errno) => format!("{number} failed {errno}"),
        }
    }

    fn read(line: &str) -> Option<(usize, Answer)> {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match *words.get(1..)? {
            ["label"] => Answer::Label,
            ["none"] => Answer::NoLabel,
            ["device", device] => Answer::Is(Identity::Device(device.parse().ok()?)),
            ["file", system, inode] => Answer::Is(Identity::File(system.parse().ok()?, inode.parse().ok()?)),
            ["failed", errno] => Answer::Failed(errno.parse().ok()?),
            _ => return None,
        };
        Some((words[0].parse().ok()?, answer))
    }
}

/// Returns whether this process was started to look. Called at the start of the program, it also lets the program start such processes: they are
/// the same program, and a program that does not call it (a unit test, say) looks by itself.
pub fn is_wanted() -> bool {
    CAN_LOOK_ASIDE.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|first| first == NAME) && arguments.next().is_none()
}

/// Looks at what is asked for on the standard input, until that ends.
pub fn run() -> ExitCode {
    let mut input = io::stdin().lock();
    let Ok(questions) = read_all(&mut input) else { return ExitCode::FAILURE };
    let tell = |number: usize, answer: Answer| {
        let mut out = io::stdout().lock();
        // Where nothing reads it, the standard input has ended, too.
        let _ = writeln!(out, "{}", answer.written(number)).and_then(|()| out.flush());
    };
    if look(questions, Arc::new(tell)).is_err() {
        return ExitCode::FAILURE;
    }
    let _ = io::copy(&mut input, &mut io::sink());
    ExitCode::SUCCESS
}

fn read_all(input: &mut impl BufRead) -> io::Result<Vec<(usize, Question)>> {
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
        questions.push(Question::read(&bytes).ok_or(io::ErrorKind::InvalidData)?);
    }
}

/// Has a few threads of this process look. Does not wait for them.
fn look(questions: Vec<(usize, Question)>, tell: Arc<Tell>) -> io::Result<()> {
    let count = questions.len().min(THREADS_MAX);
    let line = Arc::new(Mutex::new(VecDeque::from(questions)));
    for nth in 0..count {
        let (line, tell) = (Arc::clone(&line), Arc::clone(&tell));
        let look = move || {
            while let Some((number, question)) = next(&line) {
                tell(number, question.answer());
            }
        };
        match thread::Builder::new().name(NAME.to_owned()).spawn(look) {
            Err(error) if nth == 0 => return Err(error),
            // The others do its part.
            _ => {}
        }
    }
    Ok(())
}

fn next(line: &Mutex<VecDeque<(usize, Question)>>) -> Option<(usize, Question)> {
    lock(line).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that looks, and what it was asked.
struct Looker {
    /// Until it is waited for.
    child: Mutex<Option<Child>>,
    /// Its number; 0: it has not been started.
    id: AtomicU32,
    since: Instant,
    /// What it has not answered, by number.
    left: Mutex<BTreeMap<usize, PathBuf>>,
    given_up: AtomicBool,
}

/// All of this process'.
static LOOKERS: Mutex<Vec<Arc<Looker>>> = Mutex::new(Vec::new());

/// Questions that were asked. Dropped, they are given up.
#[must_use = "questions are given up when this is dropped"]
pub struct Asked(Option<Arc<Looker>>);

impl Asked {
    /// Lets them be answered without waiting for it.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(looker) = &self.0 {
            looker.give_up();
        }
    }
}

/// Asks, and has `tell` called with each answer, by its question's place in the list. `tell` is dropped when no more answers come.
pub fn ask(questions: Vec<Question>, tell: impl Fn(usize, Answer) + Send + Sync + 'static) -> Asked {
    let silent = silent();
    let asked = questions.into_iter().enumerate().filter(|(_, question)| !silent.contains(question.path()));
    let questions: Vec<(usize, Question)> = asked.collect();
    if questions.is_empty() {
        return Asked(None);
    }
    let left = questions.iter().map(|(number, question)| (*number, question.path().to_owned())).collect();
    let looker = Arc::new(Looker {
        child: Mutex::new(None),
        id: AtomicU32::new(0),
        since: Instant::now(),
        left: Mutex::new(left),
        given_up: AtomicBool::new(false),
    });
    let count = {
        let mut lookers = lock(&LOOKERS);
        lookers.push(Arc::clone(&looker));
        lookers.len()
    };
    if count > PROCESSES_MAX {
        forget(&looker);
        tracing::warn!(
            "{PROCESSES_MAX} processes wait for disks or file systems that do not answer: no others are looked at; see \
             what hangs (dmesg, losetup --list)"
        );
        return Asked(None);
    }
    let serving = Arc::clone(&looker);
    let serve = move || {
        serving.serve(questions, Arc::new(tell));
        forget(&serving);
    };
    match thread::Builder::new().name("aside".to_owned()).spawn(serve) {
        Ok(_) => Asked(Some(looker)),
        Err(error) => {
            forget(&looker);
            tracing::warn!("disks of others are not looked at: {error}");
            Asked(None)
        }
    }
}

/// Asks, and waits for the answers, no longer than `limit`.
pub fn answers(questions: Vec<Question>, limit: Duration) -> BTreeMap<usize, Answer> {
    let count = questions.len();
    let (tell, heard) = mpsc::channel();
    let asked = ask(questions, move |number, answer| {
        // The one that asked may have given up.
        let _ = tell.send((number, answer));
    });
    let until = Instant::now() + limit;
    let mut answers = BTreeMap::new();
    while answers.len() < count {
        match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((number, answer)) => {
                answers.insert(number, answer);
            }
            Err(_) => break,
        }
    }
    drop(asked);
    answers
}

/// What a path is, or the error in its place; none: it has not answered within `limit`.
pub fn identity(path: &Path, limit: Duration) -> Option<Answer> {
    answers(vec![Question::Identity(path.to_owned())], limit).remove(&0)
}

/// Those of some disks that can be read within `limit`, or cannot be and say so.
pub fn answering(paths: Vec<PathBuf>, limit: Duration) -> BTreeSet<PathBuf> {
    let answers = answers(paths.iter().cloned().map(Question::Label).collect(), limit);
    paths.into_iter().enumerate().filter(|(number, _)| answers.contains_key(number)).map(|(_, path)| path).collect()
}

/// Has the kernel ask what these files are by now. Waits for nothing.
pub fn refresh(paths: Vec<PathBuf>) {
    ask(paths.into_iter().map(Question::Identity).collect(), |_, _| ()).detach();
}

/// Gives up everything, at the end of this process, and waits for the processes to end, no longer than `limit`. Returns those that are
/// left, with the paths that have not answered.
pub fn end(limit: Duration) -> Vec<(u32, Vec<PathBuf>)> {
    let until = Instant::now() + limit;
    let lookers: Vec<Arc<Looker>> = lock(&LOOKERS).clone();
    lookers.iter().for_each(|looker| looker.give_up());
    while !lock(&LOOKERS).is_empty() && Instant::now() < until {
        thread::sleep(BETWEEN);
    }
    let left: Vec<Arc<Looker>> = lock(&LOOKERS).clone();
    let started = left.iter().filter(|looker| looker.id.load(Ordering::SeqCst) != 0);
    let named = started.map(|looker| {
        let paths: Vec<PathBuf> = lock(&looker.left).values().cloned().collect();
        (looker.id.load(Ordering::SeqCst), paths)
    });
    named.filter(|(_, paths)| !paths.is_empty()).collect()
}

/// Paths that have not answered for long.
fn silent() -> BTreeSet<PathBuf> {
    let lookers: Vec<Arc<Looker>> = lock(&LOOKERS).clone();
    let long = lookers.iter().filter(|looker| looker.since.elapsed() >= SILENT);
    long.flat_map(|looker| lock(&looker.left).values().cloned().collect::<Vec<PathBuf>>()).collect()
}

fn forget(looker: &Arc<Looker>) {
    lock(&LOOKERS).retain(|other| !Arc::ptr_eq(other, looker));
}

/// Starts a process that looks.
fn start() -> io::Result<Child> {
    if !CAN_LOOK_ASIDE.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // Of the program that runs, also where another one is at its path by now; and in a group of processes of its own, which a terminal
    // does not interrupt.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("braid").arg(NAME).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

impl Looker {
    /// Has the questions answered, and returns when that is over.
    fn serve(&self, questions: Vec<(usize, Question)>, tell: Arc<Tell>) {
        match start() {
            Ok(child) => self.converse(child, &questions, &*tell),
            Err(error) => {
                if CAN_LOOK_ASIDE.load(Ordering::Relaxed) {
                    tracing::warn!(
                        "no process can be started that looks at disks of others ({error}): this one looks, and may not end before \
                         they answer"
                    );
                }
                // Nothing is told then.
                let _ = look(questions, tell);
            }
        }
    }

    fn converse(&self, mut child: Child, questions: &[(usize, Question)], tell: &Tell) {
        let (input, output) = (child.stdin.take(), child.stdout.take());
        self.id.store(child.id(), Ordering::SeqCst);
        *lock(&self.child) = Some(child);
        if self.given_up.load(Ordering::SeqCst) {
            self.kill();
        }
        if let (Some(mut input), Some(output)) = (input, output) {
            let mut written: Vec<u8> =
                questions.iter().flat_map(|(number, question)| question.written(*number)).collect();
            written.push(0);
            // What has ended says nothing.
            let _ = input.write_all(&written);
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                let Some((number, answer)) = Answer::read(&line) else { continue };
                let is_new = lock(&self.left).remove(&number).is_some();
                if is_new {
                    tell(number, answer);
                }
                if lock(&self.left).is_empty() {
                    break;
                }
            }
        }
        let left: Vec<String> = lock(&self.left).values().map(|path| path.display().to_string()).collect();
        if !left.is_empty() && !self.given_up.load(Ordering::SeqCst) {
            tracing::warn!(
                "the process that looks at disks of others has ended by itself, before it had looked at {}: `braid array assemble` looks \
                 again",
                left.join(", ")
            );
        }
        // Its standard input has ended.
        let child = lock(&self.child).take();
        if let Some(mut child) = child {
            let _ = child.wait();
        }
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.kill();
    }

    fn kill(&self) {
        if let Some(child) = lock(&self.child).as_mut() {
            // It may have ended.
            let _ = child.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        let questions = [
            Question::Label("/dev/loop3".into()),
            Question::Identity(PathBuf::from(OsStr::from_bytes(b"/srv/a b\n\xff"))),
        ];
        let mut written: Vec<u8> =
            questions.iter().enumerate().flat_map(|(number, question)| question.written(7 + number)).collect();
        assert!(read_all(&mut written.as_slice()).is_err(), "it is cut off");
        written.push(0);
        let [first, second] = questions;
        assert_eq!(read_all(&mut written.as_slice()).expect("it is whole"), [(7, first), (8, second)]);
        for answer in [
            Answer::Label,
            Answer::NoLabel,
            Answer::Is(Identity::Device(1793)),
            Answer::Is(Identity::File(64_769, u64::MAX)),
            Answer::Failed(107),
        ] {
            assert_eq!(Answer::read(&answer.written(12)), Some((12, answer)));
        }
        for line in ["", "label", "1", "x label", "1 device", "1 file 2", "1 label 2", "running 0 tests"] {
            assert_eq!(Answer::read(line), None, "{line:?}");
        }
        assert_eq!(Question::read(b"X1 /dev/sda"), None);
        assert_eq!(Question::read(b"L /dev/sda"), None);
    }

    #[test]
    fn what_is_asked_is_found_out_and_what_is_not_there_says_so() {
        let path = std::env::temp_dir().join(format!("braid-aside-{}", std::process::id()));
        std::fs::write(&path, [0; 8192]).expect("a file can be written");
        let absent = path.with_extension("absent");
        let questions =
            vec![Question::Label(path.clone()), Question::Identity(path.clone()), Question::Identity(absent.clone())];
        let found = answers(questions, Duration::from_secs(60));
        let own = Identity::of(&path).expect("it is there");
        assert_eq!(found.get(&0), Some(&Answer::NoLabel));
        assert_eq!(found.get(&1), Some(&Answer::Is(own)));
        assert_eq!(found.get(&2), Some(&Answer::Failed(libc::ENOENT)));
        // Another program that mounts something just then has the kernel look again.
        let in_memory = (0..1000).find_map(|_| Identity::in_memory(&path).ok());
        assert_eq!(in_memory, Some(own), "the kernel has just looked at it");
        let both = answering(vec![path.clone(), absent.clone()], Duration::from_secs(60));
        assert_eq!(both, BTreeSet::from([path.clone(), absent]), "an error is an answer");
        assert_eq!(answers(Vec::new(), Duration::from_secs(60)), BTreeMap::new());
        std::fs::remove_file(&path).expect("it is ours");
    }
}

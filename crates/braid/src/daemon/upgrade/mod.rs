//! `braid serve --upgrade`: the daemon becomes another build of itself, in its own process.
//!
//! Order: the new program is tried on the present configuration and state while everything serves (`candidate`); changes that are
//! under way end, and no others begin; everything stops as at any end of the daemon; the process becomes the new program by `execve`,
//! which starts as any start. What somebody waits at stays open through that: sockets that listen, and channels of files. Block devices are
//! the kernel's and wait by themselves. The process keeps its number, so that a service manager notices nothing.
//!
//! What it promises: a program that would not start is refused, and nothing has stopped. If the process cannot become it after all, it
//! becomes what it was. What it never does: nothing is handed over in memory. All that the next one knows it reads from the disks and from the state file,
//! as after any end, so that there is no second way to start that could go wrong.

pub mod ask;
mod candidate;

use super::control::Control;
use super::held;
use braid_api::{ErrorDetail, Kind, Upgrade, Upgraded, Upgrading};
use braid_ring::kept::{self, InheritedFds};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch as signal;

pub use candidate::{Candidate, trial};

/// The variable that says what the daemon before has to say, beside what it has left ([`kept::EXEC_FDS_VARIABLE`]).
const BEFORE: &str = "BRAID_UPGRADED";
/// The program of this process.
const OWN: &str = "/proc/self/exe";
/// Longest that changes under way, and a start, are waited for before it is refused.
const CHANGES_MAX: Duration = Duration::from_secs(10);
/// A thread that the kernel has held for so long may be held for ever.
const HELD_MAX: Duration = Duration::from_secs(3);
/// Sockets that were left, and that nothing has asked for since, are closed after this: volumes of several nodes are served some seconds
/// after a start.
const UNCLAIMED_MAX: Duration = Duration::from_secs(30);

/// What the daemon before has said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Before {
    pid: u32,
    number: u64,
    from: String,
    /// When it began to put its exports aside, on the clock that never jumps.
    since_ns: u64,
    failed: Option<String>,
}

impl Before {
    /// What was said to this process; none: it was started, and is no upgrade.
    pub fn read() -> Option<Before> {
        let before: Before = serde_json::from_str(&std::env::var(BEFORE).ok()?).ok()?;
        (before.pid == std::process::id()).then_some(before)
    }
}

/// A socket that listens.
type Listening = dyn AsFd + Send + Sync;

/// Upgrades, as the daemon knows them.
#[derive(Default)]
pub struct Upgrades {
    before: Option<Before>,
    pause_ms: OnceLock<u64>,
    /// What the daemon before has left and nobody has asked for yet.
    left: Mutex<InheritedFds>,
    /// What listens now, by the same names.
    listening: Mutex<Vec<(String, Weak<Listening>)>>,
    /// One is under way.
    busy: AtomicBool,
    /// No change begins any more.
    closed: AtomicBool,
    ordered: signal::Sender<Option<Arc<Candidate>>>,
}

impl Upgrades {
    /// Those of a daemon that was left something, or nothing.
    pub fn new(before: Option<Before>, left: InheritedFds) -> Upgrades {
        Upgrades { before, left: Mutex::new(left), ..Upgrades::default() }
    }

    /// A socket that the daemon before has left under this name.
    pub fn take(&self, name: &str) -> Option<OwnedFd> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).remove(name)?.pop()
    }

    /// A socket listens, and is left to the next daemon as long as it does.
    pub fn note(&self, name: String, socket: Weak<Listening>) {
        let mut listening = self.listening();
        listening.retain(|(_, other)| other.strong_count() > 0);
        listening.push((name, socket));
    }

    fn listening(&self) -> MutexGuard<'_, Vec<(String, Weak<Listening>)>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses changes from now on, or no longer.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::Release);
    }

    /// Whether changes are refused, as they would hold up what is about to be handed over.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The program that the daemon is to become, as soon as it is known.
    pub async fn ordered(&self) -> Arc<Candidate> {
        let mut ordered = self.ordered.subscribe();
        loop {
            if let Some(candidate) = ordered.borrow_and_update().clone() {
                return candidate;
            }
            // The sender is here, and so never gone.
            if ordered.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The last upgrade.
    pub fn last(&self) -> Option<Upgraded> {
        let before = self.before.as_ref()?;
        Some(Upgraded {
            number: before.number,
            from: before.from.clone(),
            to: env!("CARGO_PKG_VERSION").to_owned(),
            pause_ms: self.pause_ms.get().copied(),
            failed: before.failed.clone(),
        })
    }

    fn number(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.number) + 1
    }
}

/// One upgrade while it is being prepared; dropped, everything is as it was.
struct Preparing<'a>(&'a Upgrades);

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::Release);
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Control {
    /// Looks at the program that the daemon is to become, and has the daemon begin with it.
    ///
    /// # Errors
    /// It would not start here; another one is under way; a change goes on and on. Nothing has stopped then.
    pub async fn upgrade(&self, ask: &Upgrade) -> Result<Upgrading, ErrorDetail> {
        let upgrades = self.upgrades();
        if upgrades.busy.load(Ordering::Acquire) {
            return Err(under_way());
        }
        self.refuse_while_stopping()?;
        if upgrades.busy.swap(true, Ordering::AcqRel) {
            return Err(under_way());
        }
        let preparing = Preparing(upgrades);
        let candidate = Arc::new(candidate::look(Path::new(&ask.binary)).await?);
        refuse_held().await?;
        self.wait_for_changes(CHANGES_MAX).await?;
        // From here on it is the daemon's.
        std::mem::forget(preparing);
        let (number, to) = (upgrades.number(), candidate.version.clone());
        tracing::info!("the daemon hands over to {} ({to})", candidate.path.display());
        upgrades.ordered.send_replace(Some(candidate));
        Ok(Upgrading { pid: std::process::id(), number, from: env!("CARGO_PKG_VERSION").to_owned(), to })
    }

    /// Everything that can be started is: says so if the daemon was upgraded, and lets go of what nobody has asked for.
    pub fn end_upgrade(self: &Arc<Self>) {
        let upgrades = self.upgrades();
        let Some(before) = &upgrades.before else { return };
        let pause_ms = monotonic_ns().saturating_sub(before.since_ns) / 1_000_000;
        // Said once.
        let _ = upgrades.pause_ms.set(pause_ms);
        let version = env!("CARGO_PKG_VERSION");
        match &before.failed {
            None => {
                let message = format!("braid {version} went on with what {} served, {pause_ms} ms later", before.from);
                self.events().info("upgraded", message, &[]);
            }
            Some(why) => {
                let message =
                    format!("the daemon was not upgraded and went on as {version}, {pause_ms} ms later: {why}");
                self.events().error("upgrade_failed", message, &[]);
            }
        }
        let control = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(UNCLAIMED_MAX).await;
            if let Some(control) = control.upgrade() {
                control.upgrades().left.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
        });
    }
}

/// What goes to the next program.
pub struct Handover {
    candidate: Arc<Candidate>,
    number: u64,
    since_ns: u64,
    sockets: Vec<(String, Arc<Listening>)>,
    files: Vec<(String, OwnedFd)>,
}

impl Handover {
    /// Begins: holds every socket that listens, so that whoever connects from now on waits for the next daemon.
    pub fn begin(upgrades: &Upgrades, candidate: Arc<Candidate>) -> Handover {
        let listening = upgrades.listening();
        let now = listening.iter().filter_map(|(name, socket)| Some((name.clone(), socket.upgrade()?)));
        // What nothing has asked for yet may be asked for by the next one.
        let left = std::mem::take(&mut *upgrades.left.lock().unwrap_or_else(PoisonError::into_inner));
        let left = left.into_iter().flat_map(|(name, all)| {
            all.into_iter().map(move |socket| (name.clone(), Arc::new(socket) as Arc<Listening>))
        });
        let sockets = now.chain(left).collect();
        Handover { candidate, number: upgrades.number(), since_ns: monotonic_ns(), sockets, files: Vec::new() }
    }

    /// Channels of files go on, too.
    pub fn add_files(&mut self, files: Vec<(String, OwnedFd)>) {
        self.files.extend(files);
    }

    /// Becomes the other program, or, if that cannot be, this one again. Returns only if neither can be.
    pub fn replace(self) -> std::io::Error {
        let error = match self.candidate.place() {
            Ok(place) => self.exec(place.as_os_str(), None),
            Err(error) => error,
        };
        let why = format!("{} cannot be run: {error}", self.candidate.path.display());
        tracing::error!("{why}; the daemon goes on as it was");
        self.exec(OsStr::new(OWN), Some(why))
    }

    fn exec(&self, program: &OsStr, failed: Option<String>) -> std::io::Error {
        let sockets = self.sockets.iter().map(|(name, socket)| (name.as_str(), socket.as_fd()));
        let files = self.files.iter().map(|(name, fd)| (name.as_str(), fd.as_fd()));
        let left = match kept::keep_open_across_exec(sockets.chain(files)) {
            Ok(left) => left,
            Err(error) => return error,
        };
        let before = Before {
            pid: std::process::id(),
            number: self.number,
            from: env!("CARGO_PKG_VERSION").to_owned(),
            since_ns: self.since_ns,
            failed,
        };
        let before = serde_json::to_string(&before).expect("plain data is JSON");
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        if let Some(own) = arguments.next() {
            command.arg0(own);
        }
        command.args(arguments).env(kept::EXEC_FDS_VARIABLE, left).env(BEFORE, before);
        for name in kept::SERVICE_MANAGER_VARIABLES {
            command.env_remove(name);
        }
        command.exec()
    }
}

/// Refuses where the kernel holds a thread: `execve` waits for all of them to end, and everything would have stopped by then.
async fn refuse_held() -> Result<(), ErrorDetail> {
    let held = tokio::task::spawn_blocking(|| held::threads(HELD_MAX)).await.unwrap_or_default();
    let Some(held) = held.first() else { return Ok(()) };
    let seconds = HELD_MAX.as_secs();
    let message = format!(
        "the kernel has held {held} of the daemon for {seconds} s, and the process cannot become another program before it lets go: nothing \
         has stopped"
    );
    Err(ErrorDetail::new(Kind::InUse, message).remedy(
        "look for a disk or a file system that does not answer (braid status, dmesg), and try again when it does",
    ))
}

fn under_way() -> ErrorDetail {
    ErrorDetail::new(Kind::InUse, "the daemon is being upgraded already")
        .remedy("wait until that is done (braid status)")
}

/// Now, on the clock that goes on through an upgrade.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

//! `braid serve --upgrade`: the daemon becomes another build of itself, in its own process.
//!
//! Order: the new program is tried on the present configuration and state while everything serves (`candidate`);
//! changes in progress end, and no others begin; everything stops as at any end of the daemon; the process becomes the
//! new program by `execve`, which starts as at any start. What clients wait on stays open through that: listening
//! sockets, and FUSE channels. Block devices belong to the kernel and wait by themselves. The process keeps its PID, so
//! that a service manager notices nothing.
//!
//! Guarantees: a program that would not start is refused before anything has stopped. If the process cannot become the
//! new program after all, it becomes the old one again.
//! Never: nothing is handed over in memory. The next program reads all it knows from the disks and the state file, as
//! after any end, so that there is no second way to start that could go wrong.

mod candidate;

use braid_api::Upgraded;
use braid_inventory::{ListeningSocket, ListeningSockets};
use braid_ring::kept::{self, InheritedFds};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch as signal;

pub use candidate::{Candidate, check, trial};

/// The variable with the data of the previous daemon, beside its descriptors ([`kept::EXEC_FDS_VARIABLE`]).
const PREVIOUS_DAEMON_VARIABLE: &str = "BRAID_UPGRADED";
/// The program of this process.
const OWN: &str = "/proc/self/exe";

/// The data of the previous daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreviousDaemon {
    pid: u32,
    number: u64,
    /// Its version.
    pub from: String,
    /// When it began to stop its exports, on the monotonic clock.
    since_ns: u64,
    /// Why it could not become the new program, if so: then this is the same program again.
    pub failed: Option<String>,
}

impl PreviousDaemon {
    /// Returns the data for this process; none if it was started without an upgrade.
    pub fn read() -> Option<PreviousDaemon> {
        let previous: PreviousDaemon = serde_json::from_str(&std::env::var(PREVIOUS_DAEMON_VARIABLE).ok()?).ok()?;
        (previous.pid == std::process::id()).then_some(previous)
    }
}

/// The state of upgrades in this daemon.
#[derive(Default)]
pub struct Upgrades {
    previous: Option<PreviousDaemon>,
    pause_ms: OnceLock<u64>,
    sockets: Arc<ListeningSockets>,
    /// An upgrade is in progress.
    busy: AtomicBool,
    /// Changes are refused.
    closed: Arc<AtomicBool>,
    ordered: signal::Sender<Option<Arc<Candidate>>>,
}

impl Upgrades {
    /// Creates the state of a daemon with these inherited sockets.
    pub fn new(previous: Option<PreviousDaemon>, inherited: InheritedFds, closed: Arc<AtomicBool>) -> Upgrades {
        Upgrades { previous, sockets: Arc::new(ListeningSockets::new(inherited)), closed, ..Upgrades::default() }
    }

    /// Returns the listening sockets that outlive an upgrade.
    pub fn sockets(&self) -> &Arc<ListeningSockets> {
        &self.sockets
    }

    /// Refuses changes from now on, or accepts them again.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::Release);
    }

    /// Returns whether changes are refused because they would delay the handover.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits for an order to upgrade, and returns the program that the daemon is to become.
    pub async fn ordered(&self) -> Arc<Candidate> {
        let mut ordered = self.ordered.subscribe();
        loop {
            if let Some(candidate) = ordered.borrow_and_update().clone() {
                return candidate;
            }
            // `self` owns the sender, so it exists.
            if ordered.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the last upgrade.
    pub fn last(&self) -> Option<Upgraded> {
        let previous = self.previous.as_ref()?;
        Some(Upgraded {
            number: previous.number,
            from: previous.from.clone(),
            to: env!("CARGO_PKG_VERSION").to_owned(),
            pause_ms: self.pause_ms.get().copied(),
            failed: previous.failed.clone(),
        })
    }

    /// Returns whether an upgrade is in progress.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Begins to prepare an upgrade; [`None`] if one is in progress.
    pub fn prepare(&self) -> Option<Preparation<'_>> {
        (!self.busy.swap(true, Ordering::AcqRel)).then(|| Preparation(self))
    }

    /// Ends the upgrade by which this daemon was started, if one was: records the pause, which it returns in
    /// milliseconds, with the previous daemon.
    pub fn end(&self) -> Option<(&PreviousDaemon, u64)> {
        let previous = self.previous.as_ref()?;
        let pause_ms = monotonic_ns().saturating_sub(previous.since_ns) / 1_000_000;
        // Set once.
        let _ = self.pause_ms.set(pause_ms);
        Some((previous, pause_ms))
    }

    /// Returns the number of the next upgrade, counted from the start of the process.
    pub fn number(&self) -> u64 {
        self.previous.as_ref().map_or(0, |previous| previous.number) + 1
    }
}

/// An upgrade in preparation; dropping it undoes the preparation.
pub struct Preparation<'a>(&'a Upgrades);

impl Preparation<'_> {
    /// Orders the upgrade to this program: from here on the daemon's main task performs it.
    pub fn order(self, candidate: Arc<Candidate>) {
        self.0.ordered.send_replace(Some(candidate));
        std::mem::forget(self);
    }
}

impl Drop for Preparation<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::Release);
        self.0.busy.store(false, Ordering::Release);
    }
}

/// What is handed over to the next program.
pub struct Handover {
    candidate: Arc<Candidate>,
    number: u64,
    since_ns: u64,
    sockets: Vec<(String, Arc<ListeningSocket>)>,
    files: Vec<(String, OwnedFd)>,
}

impl Handover {
    /// Begins the handover: holds every listening socket, so that clients that connect from now on wait for the next
    /// daemon.
    pub fn begin(upgrades: &Upgrades, candidate: Arc<Candidate>) -> Handover {
        let listening = upgrades.sockets.listening();
        let current = listening.iter().filter_map(|(name, socket)| Some((name.clone(), socket.upgrade()?)));
        // Sockets that nothing has claimed yet may be claimed in the next daemon.
        let inherited = upgrades.sockets.take_unclaimed();
        let inherited = inherited.into_iter().flat_map(|(name, all)| {
            all.into_iter().map(move |socket| (name.clone(), Arc::new(socket) as Arc<ListeningSocket>))
        });
        let sockets = current.chain(inherited).collect();
        Handover { candidate, number: upgrades.number(), since_ns: monotonic_ns(), sockets, files: Vec::new() }
    }

    /// Adds the channels of files to the handover.
    pub fn add_files(&mut self, files: Vec<(String, OwnedFd)>) {
        self.files.extend(files);
    }

    /// Becomes the other program, or, if that fails, this one again. Returns only if both fail.
    pub fn replace(self) -> std::io::Error {
        let error = match self.candidate.exec_path() {
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
        let inherited = match kept::keep_open_across_exec(sockets.chain(files)) {
            Ok(inherited) => inherited,
            Err(error) => return error,
        };
        let previous = PreviousDaemon {
            pid: std::process::id(),
            number: self.number,
            from: env!("CARGO_PKG_VERSION").to_owned(),
            since_ns: self.since_ns,
            failed,
        };
        let previous = serde_json::to_string(&previous).expect("plain data is JSON");
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        if let Some(own) = arguments.next() {
            command.arg0(own);
        }
        command.args(arguments).env(kept::EXEC_FDS_VARIABLE, inherited).env(PREVIOUS_DAEMON_VARIABLE, previous);
        for name in kept::SERVICE_MANAGER_VARIABLES {
            command.env_remove(name);
        }
        command.exec()
    }
}

/// Returns the monotonic time, which continues through an upgrade.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

//! The guard: a process that freezes one file system, and thaws it whatever becomes of the command that wants it frozen.
//!
//! A file system stays frozen when the process ends that froze it. So the command starts a guard for each file system: `braid freeze-guard`,
//! with a folder of the file system as its standard input and one end of a socket as its standard output.
//!
//! | the guard | the command |
//! |---|---|
//! | freezes the file system; says `frozen` or `refused ERRNO` | waits for that, up to [`FREEZING_MAX`] |
//! | waits for a byte, up to [`HELD_MAX`] | takes the snapshot, and sends a byte |
//! | thaws the file system; says `thawed`, or `late` if that was before the byte | waits for that, up to [`THAWING_MAX`] |
//!
//! The guard thaws early when its time is over, when the socket ends (the command was killed), and when a signal tells it to end. Between
//! freezing and thawing it opens, reads and writes no file. Where the guard was killed the command thaws the file system. Where both were
//! killed in one instant it stays frozen until `fsfreeze --unfreeze`.
//!
//! Freezing writes what is dirty, through the daemon where the file system is on a volume: neither the guard nor the command has a thread
//! that the daemon waits for.

use braid_api::{ErrorDetail, Kind};
use braid_ring::disk::freeze::{freeze, thaw};
use futures_util::future::select_all;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

/// The argument that makes this program a guard.
const NAME: &str = "freeze-guard";
/// Longest that a file system is frozen.
pub const HELD_MAX: Duration = Duration::from_secs(10);
/// Longest that the command waits until it is.
const FREEZING_MAX: Duration = Duration::from_secs(10);
/// Longest that the command waits until it is thawed.
const THAWING_MAX: Duration = Duration::from_secs(10);
/// How often, and with what between, the guard tries to thaw what cannot be thawed.
const TRIES: u32 = 300;
const BETWEEN: Duration = Duration::from_millis(200);
/// Longest line that the guard says, in bytes.
const LINE_BYTES_MAX: usize = 64;

/// Whether this process is to be a guard.
pub fn is_wanted() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|first| first == NAME) && arguments.next().is_none()
}

/// Runs the guard to its end.
pub fn run() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(guard())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn guard() -> io::Result<()> {
    // Before anything is frozen: from here on no signal that can be caught ends this process.
    let ending = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let mut signals = ending.into_iter().map(signal).collect::<io::Result<Vec<Signal>>>()?;
    let folder = io::stdin();
    let channel = std::os::unix::net::UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    channel.set_nonblocking(true)?;
    let mut channel = UnixStream::from_std(channel)?;
    if let Err(error) = freeze(&folder) {
        return say(&mut channel, &format!("refused {}", error.raw_os_error().unwrap_or_default())).await;
    }
    // A command that is gone, or waits no more, has closed its end.
    let is_told = match say(&mut channel, "frozen").await {
        Ok(()) => {
            let signals = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
            tokio::select! {
                told = channel.read_u8() => told.is_ok(),
                () = sleep(HELD_MAX) => false,
                _ = select_all(signals) => false,
            }
        }
        Err(_) => false,
    };
    let said = match thaw_surely(&folder).await {
        Ok(true) if is_told => "thawed".to_owned(),
        Ok(_) => "late".to_owned(),
        Err(error) => format!("stuck {}", error.raw_os_error().unwrap_or_default()),
    };
    say(&mut channel, &said).await
}

/// Says whether it was frozen until then.
async fn thaw_surely(folder: &io::Stdin) -> io::Result<bool> {
    let mut tries = 0;
    loop {
        match thaw(folder) {
            Ok(()) => return Ok(true),
            Err(error) if is_thawed(&error) => return Ok(false),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => {
                tries += 1;
                sleep(BETWEEN).await;
            }
        }
    }
}

/// Whether the kernel says of a file system that it is not frozen.
fn is_thawed(error: &Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::INVAL)
}

async fn say(channel: &mut UnixStream, line: &str) -> io::Result<()> {
    channel.write_all(format!("{line}\n").as_bytes()).await
}

async fn hear(channel: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        match channel.read_u8().await? {
            b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
            _ if line.len() == LINE_BYTES_MAX => return Err(io::ErrorKind::InvalidData.into()),
            byte => line.push(byte),
        }
    }
}

/// A file system that is frozen, as long as its guard does not thaw it. Dropping this thaws it soon.
pub struct Guard {
    folder: PathBuf,
    file: File,
    channel: UnixStream,
}

impl Guard {
    /// Freezes the file system that a folder is on.
    ///
    /// # Errors
    /// It cannot be frozen, or not in time. It is thawed then, or will be as soon as the kernel has frozen it.
    pub async fn freeze(folder: &Path) -> Result<Guard, ErrorDetail> {
        let broken = |error: Error| {
            ErrorDetail::new(Kind::Internal, format!("the guard of a frozen file system cannot be started: {error}"))
                .with("path", folder.display())
                .remedy("try again, or take the snapshot with --no-freeze")
        };
        let file = File::open(folder).map_err(|error| refused(folder, error))?;
        let channel = start(&file).map_err(broken)?;
        let mut guard = Guard { folder: folder.to_owned(), file, channel };
        match timeout(FREEZING_MAX, hear(&mut guard.channel)).await {
            Ok(Ok(said)) if said == "frozen" => Ok(guard),
            Ok(Ok(said)) => {
                let errno = said.strip_prefix("refused ").and_then(|errno| errno.parse().ok()).unwrap_or_default();
                Err(refused(folder, Error::from_raw_os_error(errno)))
            }
            Ok(Err(error)) => {
                // It was killed, in the midst of freezing perhaps.
                let _ = thaw(&guard.file);
                Err(broken(error))
            }
            Err(_) => {
                let message = format!(
                    "the file system at {} could not be frozen within {} s",
                    folder.display(),
                    FREEZING_MAX.as_secs()
                );
                Err(ErrorDetail::new(Kind::TimedOut, message)
                    .with("path", folder.display())
                    .remedy("what was written to it cannot reach its device: look at that (braid status, dmesg); --no-freeze takes a crash-consistent snapshot"))
            }
        }
    }

    /// Thaws it. Says whether it was frozen all the time until now.
    ///
    /// # Errors
    /// It cannot be thawed, or not in time.
    pub async fn thaw(mut self) -> Result<bool, ErrorDetail> {
        // A guard that has ended takes no byte, and what it has said can still be read.
        let _ = self.channel.write_u8(0).await;
        let stuck = |why: String| {
            let folder = self.folder.display();
            ErrorDetail::new(Kind::DiskError, format!("the file system at {folder} is still frozen: {why}"))
                .with("path", &folder)
                .remedy(format!("fsfreeze --unfreeze '{folder}'"))
        };
        match timeout(THAWING_MAX, hear(&mut self.channel)).await {
            Ok(Ok(said)) => match said.strip_prefix("stuck ") {
                None => Ok(said == "thawed"),
                Some(errno) => Err(stuck(Error::from_raw_os_error(errno.parse().unwrap_or_default()).to_string())),
            },
            // The guard was killed.
            Ok(Err(_)) => match thaw(&self.file) {
                Err(error) if !is_thawed(&error) => Err(stuck(error.to_string())),
                _ => Ok(false),
            },
            Err(_) => Err(stuck(format!("that takes longer than {} s", THAWING_MAX.as_secs()))),
        }
    }
}

/// Starts a guard. Gives the command's end of its socket.
fn start(folder: &File) -> io::Result<UnixStream> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    // Of the program that runs, also where another one is at its path by now; and in a group of processes of its own, which a terminal
    // does not interrupt.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("braid").arg(NAME).current_dir("/").process_group(0);
    command.stdin(folder.try_clone()?).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
    command.spawn()?;
    // The command's copy of the other end goes with `command`.
    UnixStream::from_std(ours)
}

/// The kernel refuses to freeze it.
fn refused(folder: &Path, error: Error) -> ErrorDetail {
    let at = folder.display();
    let (kind, why, remedy) = match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => (
            Kind::InUse,
            "is frozen already".to_owned(),
            format!("end what froze it (fsfreeze --unfreeze '{at}' thaws it), or take the snapshot with --no-freeze"),
        ),
        Some(Errno::OPNOTSUPP | Errno::NOTTY) => (
            Kind::Unsupported,
            "cannot be frozen: its kind of file system does not know that".to_owned(),
            "take the snapshot with --no-freeze, of a file system that is unmounted or not written to".to_owned(),
        ),
        Some(Errno::PERM | Errno::ACCESS) => (
            Kind::PermissionDenied,
            "cannot be frozen: that takes root".to_owned(),
            "run it as root, or take the snapshot with --no-freeze".to_owned(),
        ),
        _ => (
            Kind::DiskError,
            format!("cannot be frozen: {error}"),
            "the kernel's log (dmesg) says more; --no-freeze takes a crash-consistent snapshot".to_owned(),
        ),
    };
    ErrorDetail::new(kind, format!("the file system at {at} {why}")).with("path", at).remedy(remedy)
}

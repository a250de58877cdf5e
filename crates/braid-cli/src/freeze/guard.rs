//! The guard: a process that freezes one file system, and thaws it whatever happens to the command that requested the freeze.
//!
//! A file system stays frozen when the process that froze it ends. The command therefore starts a guard for each file system:
//! `braid freeze-guard`, with a folder of the file system as its standard input and one end of a socket as its standard output.
//!
//! | the guard | the command |
//! |---|---|
//! | freezes the file system; sends `frozen` or `refused ERRNO` | waits for the line, up to [`FREEZING_MAX`] |
//! | waits for a byte, up to [`HELD_MAX`] | takes the snapshot, and sends a byte |
//! | thaws the file system; sends `thawed`, or `late` if it was thawed before the byte | waits for the line, up to [`THAWING_MAX`] |
//!
//! The guard thaws early when its time is over, when the socket closes (the command was killed), and when a signal requests its end. Between
//! freezing and thawing it opens, reads and writes no file. If the guard is killed, the command thaws the file system. If both are killed at
//! the same time, the file system stays frozen until `fsfreeze --unfreeze`.
//!
//! Freezing writes dirty pages, through the daemon if the file system is on a volume: the daemon waits neither for the guard nor for the
//! command.

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

/// The argument that runs this program as a guard.
const NAME: &str = "freeze-guard";
/// Maximum time that a file system is frozen.
pub const HELD_MAX: Duration = Duration::from_secs(10);
/// Maximum time that the command waits for the freeze.
const FREEZING_MAX: Duration = Duration::from_secs(10);
/// Maximum time that the command waits for the thaw.
const THAWING_MAX: Duration = Duration::from_secs(10);
/// Number of retries of a thaw that fails, and the pause between them.
const THAW_RETRIES: u32 = 300;
const THAW_PAUSE: Duration = Duration::from_millis(200);
/// Maximum length of a line that the guard sends, in bytes.
const LINE_BYTES_MAX: usize = 64;

/// Whether the arguments of this process make it a guard.
pub fn is_wanted() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|first| first == NAME) && arguments.next().is_none()
}

/// Runs the guard until it ends.
pub fn run() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(guard())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn guard() -> io::Result<()> {
    // Before the freeze: from here on, no signal that can be caught ends this process.
    let ending = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let mut signals = ending.into_iter().map(signal).collect::<io::Result<Vec<Signal>>>()?;
    let folder = io::stdin();
    let channel = std::os::unix::net::UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    channel.set_nonblocking(true)?;
    let mut channel = UnixStream::from_std(channel)?;
    if let Err(error) = freeze(&folder) {
        return send_line(&mut channel, &format!("refused {}", error.raw_os_error().unwrap_or_default())).await;
    }
    // A command that has ended, or no longer waits, has closed its end.
    let is_released = match send_line(&mut channel, "frozen").await {
        Ok(()) => {
            let signals = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
            tokio::select! {
                byte = channel.read_u8() => byte.is_ok(),
                () = sleep(HELD_MAX) => false,
                _ = select_all(signals) => false,
            }
        }
        Err(_) => false,
    };
    let line = match thaw_with_retries(&folder).await {
        Ok(true) if is_released => "thawed".to_owned(),
        Ok(_) => "late".to_owned(),
        Err(error) => format!("stuck {}", error.raw_os_error().unwrap_or_default()),
    };
    send_line(&mut channel, &line).await
}

/// Thaws the file system, with retries. Returns whether it was frozen until then.
async fn thaw_with_retries(folder: &io::Stdin) -> io::Result<bool> {
    let mut retries = 0;
    loop {
        match thaw(folder) {
            Ok(()) => return Ok(true),
            Err(error) if is_thawed(&error) => return Ok(false),
            Err(error) if retries == THAW_RETRIES => return Err(error),
            Err(_) => {
                retries += 1;
                sleep(THAW_PAUSE).await;
            }
        }
    }
}

/// Whether the error of a thaw means that the file system is not frozen.
fn is_thawed(error: &Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::INVAL)
}

async fn send_line(channel: &mut UnixStream, line: &str) -> io::Result<()> {
    channel.write_all(format!("{line}\n").as_bytes()).await
}

async fn receive_line(channel: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        match channel.read_u8().await? {
            b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
            _ if line.len() == LINE_BYTES_MAX => return Err(io::ErrorKind::InvalidData.into()),
            byte => line.push(byte),
        }
    }
}

/// A file system that is frozen until its guard thaws it. Dropping this value makes the guard thaw it.
pub struct Guard {
    folder: PathBuf,
    file: File,
    channel: UnixStream,
}

impl Guard {
    /// Freezes the file system that a folder is on.
    ///
    /// # Errors
    /// The file system cannot be frozen, or not in time. After an error it is not frozen; if the kernel is still
    /// freezing it, the guard thaws it as soon as that has ended.
    pub async fn freeze(folder: &Path) -> Result<Guard, ErrorDetail> {
        let broken = |error: Error| {
            ErrorDetail::new(Kind::Internal, format!("cannot start the guard of a frozen file system: {error}"))
                .with("path", folder.display())
                .remedy("try again, or take the snapshot with --no-freeze")
        };
        let file = File::open(folder).map_err(|error| refused(folder, error))?;
        let channel = start(&file).map_err(broken)?;
        let mut guard = Guard { folder: folder.to_owned(), file, channel };
        match timeout(FREEZING_MAX, receive_line(&mut guard.channel)).await {
            Ok(Ok(line)) if line == "frozen" => Ok(guard),
            Ok(Ok(line)) => {
                let errno = line.strip_prefix("refused ").and_then(|errno| errno.parse().ok()).unwrap_or_default();
                Err(refused(folder, Error::from_raw_os_error(errno)))
            }
            Ok(Err(error)) => {
                // The guard was killed, possibly while freezing.
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
                    .remedy("its dirty data cannot be written to its device: check the device (braid status, dmesg), or take a crash-consistent snapshot with --no-freeze"))
            }
        }
    }

    /// Thaws the file system. Returns whether it was frozen all the time from [`Guard::freeze`] until now.
    ///
    /// # Errors
    /// The file system cannot be thawed, or not in time.
    pub async fn thaw(mut self) -> Result<bool, ErrorDetail> {
        // Writing to a guard that has ended fails, but the line that it sent before can still be read.
        let _ = self.channel.write_u8(0).await;
        let stuck = |why: String| {
            let folder = self.folder.display();
            ErrorDetail::new(Kind::DiskError, format!("the file system at {folder} is still frozen: {why}"))
                .with("path", &folder)
                .remedy(format!("fsfreeze --unfreeze '{folder}'"))
        };
        match timeout(THAWING_MAX, receive_line(&mut self.channel)).await {
            Ok(Ok(line)) => match line.strip_prefix("stuck ") {
                None => Ok(line == "thawed"),
                Some(errno) => Err(stuck(Error::from_raw_os_error(errno.parse().unwrap_or_default()).to_string())),
            },
            // The guard was killed.
            Ok(Err(_)) => match thaw(&self.file) {
                Err(error) if !is_thawed(&error) => Err(stuck(error.to_string())),
                _ => Ok(false),
            },
            Err(_) => Err(stuck(format!("thawing takes longer than {} s", THAWING_MAX.as_secs()))),
        }
    }
}

/// Starts a guard. Returns the command's end of its socket.
fn start(folder: &File) -> io::Result<UnixStream> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    // Runs the present program, even if the file at its path has been replaced, in a process group of its own, which a terminal does not
    // interrupt.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("braid").arg(NAME).current_dir("/").process_group(0);
    command.stdin(folder.try_clone()?).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
    command.spawn()?;
    // Dropping `command` closes the command's copy of the other end.
    UnixStream::from_std(ours)
}

/// Returns the error of a freeze that the kernel refused.
fn refused(folder: &Path, error: Error) -> ErrorDetail {
    let at = folder.display();
    let (kind, why, remedy) = match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => (
            Kind::InUse,
            "is frozen already".to_owned(),
            format!("thaw it first (fsfreeze --unfreeze '{at}'), or take the snapshot with --no-freeze"),
        ),
        Some(Errno::OPNOTSUPP | Errno::NOTTY) => (
            Kind::Unsupported,
            "cannot be frozen: its type of file system does not support it".to_owned(),
            "take the snapshot with --no-freeze, of a file system that is unmounted or not written to".to_owned(),
        ),
        Some(Errno::PERM | Errno::ACCESS) => (
            Kind::PermissionDenied,
            "cannot be frozen: only root may freeze it".to_owned(),
            "run it as root, or take the snapshot with --no-freeze".to_owned(),
        ),
        _ => (
            Kind::DiskError,
            format!("cannot be frozen: {error}"),
            "see the kernel's log (dmesg), or take a crash-consistent snapshot with --no-freeze".to_owned(),
        ),
    };
    ErrorDetail::new(kind, format!("the file system at {at} {why}")).with("path", at).remedy(remedy)
}

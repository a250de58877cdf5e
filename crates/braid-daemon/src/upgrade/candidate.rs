//! The program that the daemon is to become: who may change it, and whether it would start here. The file is held open
//! from then on, so that the checked program is the one that runs.

use braid_api::{ErrorDetail, Kind};
use braid_tasks as tasks;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The version of the handover that both builds must share: the names of inherited descriptors, and the variables that
/// list them.
const HANDOVER: u32 = 1;
/// Maximum time in which the program has to report whether it would start.
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// Maximum time of the whole check, including finding and opening the file.
const CHECK_MAX: Duration = Duration::from_secs(15);
/// Maximum bytes of its output that are read.
const OUTPUT_BYTES_MAX: u64 = 4096;

/// A program that would start here.
pub struct Candidate {
    file: File,
    /// The path where it was found.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
}

/// The output of a trial.
#[derive(Debug, Serialize, Deserialize)]
struct TrialOutput {
    version: String,
    handover: u32,
}

impl Candidate {
    /// Returns the path to run it by: that of the open file, whatever is at its path by now.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn exec_path(&self) -> std::io::Result<PathBuf> {
        let exec_path = fd_path(&self.file);
        std::fs::metadata(&exec_path).map(|_| exec_path)
    }
}

fn fd_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns what the daemon expects a candidate to print as JSON: which build this is. Settings and state were read before.
pub fn trial() -> impl Serialize {
    TrialOutput { version: env!("CARGO_PKG_VERSION").to_owned(), handover: HANDOVER }
}

/// Checks a program.
///
/// # Errors
/// The file does not exist, others could change it, or it would not start as the daemon was started.
pub async fn check(path: &Path) -> Result<Candidate, ErrorDetail> {
    let at = path.to_owned();
    let checked = tasks::blocking(move || {
        let file = open(&at)?;
        let version = run_trial(&file, &at)?;
        Ok(Candidate { file, path: at, version })
    });
    match tokio::time::timeout(CHECK_MAX, checked).await {
        Ok(Ok(checked)) => checked,
        Ok(Err(error)) => Err(ErrorDetail::new(Kind::Internal, error.to_string())),
        Err(_) => Err(refused(Kind::TimedOut, path, "could not be checked in time")
            .remedy("check whether its file system answers")),
    }
}

fn refused(kind: Kind, path: &Path, why: &str) -> ErrorDetail {
    ErrorDetail::new(kind, format!("{} {why}: the daemon goes on as it is", path.display()))
        .with("path", path.display())
}

fn open(path: &Path) -> Result<File, ErrorDetail> {
    if !path.is_absolute() {
        return Err(
            refused(Kind::InvalidArgument, path, "is no path from the root").remedy("for example /usr/bin/braid")
        );
    }
    // The open must not wait if the file is a pipe.
    let opened = File::options().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path);
    let file = opened.map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
            _ => Kind::InvalidArgument,
        };
        refused(kind, path, &format!("cannot be opened ({error})")).remedy("name the program as the daemon sees it")
    })?;
    let found = file.metadata().map_err(|error| refused(Kind::Internal, path, &error.to_string()))?;
    if !found.is_file() {
        return Err(
            refused(Kind::InvalidArgument, path, "is no program").remedy("run the new program: braid serve --upgrade")
        );
    }
    let own = rustix::process::geteuid().as_raw();
    if (found.uid() != 0 && found.uid() != own) || found.mode() & 0o022 != 0 {
        // A client that may request an upgrade must not thereby gain the rights of the daemon.
        return Err(refused(
            Kind::PermissionDenied,
            path,
            "is a program that others than root and the daemon's own user may change",
        )
        .remedy(
            "install it as what the daemon may run, for example: install -o root -g root -m 755 braid /usr/bin/braid",
        ));
    }
    Ok(file)
}

/// Runs the program's check of the present configuration and state, with the options of the daemon.
fn run_trial(file: &File, path: &Path) -> Result<String, ErrorDetail> {
    let internal = |error: std::io::Error| refused(Kind::Internal, path, &format!("cannot be tried ({error})"));
    let memory = || memfd_create("trial", MemfdFlags::CLOEXEC).map(File::from).map_err(|error| internal(error.into()));
    // Not pipes: processes that it leaves running could keep them open.
    let (mut out, mut err) = (memory()?, memory()?);
    let mut command = Command::new(fd_path(file));
    command.args(std::env::args_os().skip(1)).arg("--check").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command.stdout(out.try_clone().map_err(internal)?).stderr(err.try_clone().map_err(internal)?);
    let not_run = |why: String| {
        refused(Kind::InvalidArgument, path, &format!("does not run here ({why})"))
            .remedy("is it a program of this machine, and of Braid?")
    };
    let mut child = command.spawn().map_err(|error| not_run(error.to_string()))?;
    let until = Instant::now() + TRIAL_MAX;
    let status = loop {
        match child.try_wait().map_err(internal)? {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                let seconds = TRIAL_MAX.as_secs();
                return Err(refused(
                    Kind::TimedOut,
                    path,
                    &format!("has not said within {seconds} s whether it would start"),
                )
                .remedy("is it a program of Braid?"));
            }
        }
    };
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        let _ = file.rewind().and_then(|()| file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    let (output_text, error_text) = (text(&mut out), text(&mut err));
    if !status.success() {
        let why = if error_text.is_empty() { status.to_string() } else { error_text };
        return Err(refused(Kind::InvalidArgument, path, &format!("would not start here ({why})")).remedy(
            "it has to accept the present configuration and state, and the options that the daemon runs with",
        ));
    }
    let Ok(output) = serde_json::from_str::<TrialOutput>(&output_text) else {
        return Err(not_run("its output is not that of a Braid that supports upgrades".to_owned()));
    };
    if output.handover != HANDOVER {
        let version = &output.version;
        return Err(refused(
            Kind::Unsupported,
            path,
            &format!("({version}) has a handover that this daemon does not support"),
        )
        .remedy("stop the daemon and start the new program"));
    }
    Ok(output.version)
}

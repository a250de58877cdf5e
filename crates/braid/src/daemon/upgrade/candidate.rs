//! The program that the daemon is to become: whose it is, and whether it would start here. It is held open from then on, so that what was
//! looked at is what is run.

use braid_api::{ErrorDetail, Kind};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What builds have to have in common to hand over to each other: the names of what is left, and the variables that say so.
const HANDOVER: u32 = 1;
/// Longest that it may take to say whether it would start.
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// The same with finding and opening it.
const LOOK_MAX: Duration = Duration::from_secs(15);
/// Most of what it says that is read.
const SAID_BYTES_MAX: u64 = 4096;

/// A program that would start here.
pub struct Candidate {
    file: File,
    /// Where it was found.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
}

/// What a trial says.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    version: String,
    handover: u32,
}

impl Candidate {
    /// Where it is run: by the open file, whatever its path is by now.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn place(&self) -> std::io::Result<PathBuf> {
        let place = own_place(&self.file);
        std::fs::metadata(&place).map(|_| place)
    }
}

fn own_place(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Prints what the daemon asks of a program that it might become: which build this is. Settings and state were read before.
pub fn trial() {
    let verdict = Verdict { version: env!("CARGO_PKG_VERSION").to_owned(), handover: HANDOVER };
    braid_terminal::output::json(&verdict);
}

/// Looks at a program.
///
/// # Errors
/// It is not there, others could change it, or it would not start as the daemon was started.
pub async fn look(path: &Path) -> Result<Candidate, ErrorDetail> {
    let at = path.to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        let file = open(&at)?;
        let version = try_out(&file, &at)?;
        Ok(Candidate { file, path: at, version })
    });
    match tokio::time::timeout(LOOK_MAX, looked).await {
        Ok(Ok(looked)) => looked,
        Ok(Err(error)) => Err(ErrorDetail::new(Kind::Internal, error.to_string())),
        Err(_) => {
            Err(refused(Kind::TimedOut, path, "was not to be looked at in time").remedy("is its file system well?"))
        }
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
    // Not waiting, should it be a pipe.
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
        // Whoever may ask the daemon for this should not thereby become who the daemon is.
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

/// Has it read the present configuration and state, as the daemon was told where they are.
fn try_out(file: &File, path: &Path) -> Result<String, ErrorDetail> {
    let internal = |error: std::io::Error| refused(Kind::Internal, path, &format!("cannot be tried ({error})"));
    let memory = || memfd_create("trial", MemfdFlags::CLOEXEC).map(File::from).map_err(|error| internal(error.into()));
    // Not pipes: whatever it leaves running could keep them open.
    let (mut out, mut err) = (memory()?, memory()?);
    let mut command = Command::new(own_place(file));
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
        let _ = file.rewind().and_then(|()| file.take(SAID_BYTES_MAX).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    let (said, complained) = (text(&mut out), text(&mut err));
    if !status.success() {
        let why = if complained.is_empty() { status.to_string() } else { complained };
        return Err(refused(Kind::InvalidArgument, path, &format!("would not start here ({why})")).remedy(
            "it has to accept the present configuration and state, and the options that the daemon runs with",
        ));
    }
    let Ok(verdict) = serde_json::from_str::<Verdict>(&said) else {
        return Err(not_run("it does not say what a Braid says that can be upgraded to".to_owned()));
    };
    if verdict.handover != HANDOVER {
        let version = &verdict.version;
        return Err(refused(
            Kind::Unsupported,
            path,
            &format!("({version}) hands over in another way than this daemon"),
        )
        .remedy("stop the daemon and start the new program"));
    }
    Ok(verdict.version)
}

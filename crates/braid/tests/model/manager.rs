//! A service manager: it stores the FUSE descriptors of files while one daemon ends and the next begins, so that
//! clients of these files only wait.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::support::{BRAID, Folder, command, places, wait_for};

/// Messages of the manager to itself: all earlier messages are processed, and the thread ends.
const SYNC: &str = "SYNC";
const END: &str = "END";

/// Becomes the daemon, with descriptors of another process from number 3 on: the same open files, which opening them by
/// `/proc` would not give.
const LAUNCHER: &str = "
import ctypes, fcntl, os, sys
process = os.pidfd_open(int(sys.argv[1]))
get = lambda number: ctypes.CDLL(None).syscall(438, process, int(number), 0)
high = [fcntl.fcntl(get(number), fcntl.F_DUPFD_CLOEXEC, 100) for number in sys.argv[2].split(',') if number]
for at, number in enumerate(high):
    os.dup2(number, 3 + at)
os.environ['LISTEN_PID'] = str(os.getpid())
os.execv(sys.argv[3], sys.argv[3:])
";

/// The stored descriptors, by name.
#[derive(Default)]
struct StoredDescriptors {
    files: Mutex<Vec<(String, OwnedFd)>>,
    processed: AtomicU64,
}

impl StoredDescriptors {
    fn with<T>(&self, look: impl FnOnce(&mut Vec<(String, OwnedFd)>) -> T) -> T {
        look(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Receives messages until the end message.
    fn listen(&self, socket: &UnixDatagram) {
        loop {
            let mut bytes = [0u8; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
            let Ok(got) = got else { return };
            let text = String::from_utf8_lossy(&bytes[..got.bytes]).into_owned();
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default().to_owned();
            self.with(|kept| {
                let is_new = !kept.iter().any(|(other, _)| *other == name);
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(files) = message {
                        // A name that is stored already is not stored twice, as in systemd.
                        files.filter(|_| is_new).for_each(|file| kept.push((name.clone(), file)));
                    }
                }
                if text.starts_with("FDSTOREREMOVE=1") {
                    kept.retain(|(other, _)| *other != name);
                }
            });
            match text.as_str() {
                SYNC => drop(self.processed.fetch_add(1, Ordering::SeqCst)),
                END => return,
                _ => {}
            }
        }
    }
}

pub struct Manager {
    place: String,
    kept: Arc<StoredDescriptors>,
    thread: Option<JoinHandle<()>>,
    /// The arguments of `serve`, for every daemon.
    arguments: Vec<String>,
}

impl Manager {
    pub fn new(folder: &Folder, arguments: &[&str]) -> Manager {
        let place = folder.join("notify");
        let socket = UnixDatagram::bind(&place).expect("a socket can be made");
        let kept = Arc::new(StoredDescriptors::default());
        let listening = Arc::clone(&kept);
        let thread = Some(std::thread::spawn(move || listening.listen(&socket)));
        Manager { place, kept, thread, arguments: arguments.iter().map(|&word| word.to_owned()).collect() }
    }

    /// Returns whether files survive a daemon: before Linux 6.9 the kernel does not resend requests, and nothing is stored.
    pub fn stores_files(&self) -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6u32, 9u32)
    }

    fn send(&self, what: &str) -> std::io::Result<usize> {
        UnixDatagram::unbound()?.send_to(what.as_bytes(), &self.place)
    }

    /// Builds `braid serve` with the stored descriptors. Waits until all messages of the daemon before are processed.
    pub fn serve(&self, folder: &Folder) -> Command {
        let before = self.kept.processed.load(Ordering::SeqCst);
        self.send(SYNC).expect("the manager listens");
        wait_for("the manager", || (self.kept.processed.load(Ordering::SeqCst) > before).then_some(()));
        self.kept.with(|kept| {
            let numbers: Vec<String> = kept.iter().map(|(_, file)| file.as_raw_fd().to_string()).collect();
            let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
            let mut launcher = command("python3");
            launcher.args(["-c", LAUNCHER, &std::process::id().to_string(), &numbers.join(","), BRAID, "serve"]);
            launcher.args(&self.arguments);
            places(&mut launcher, folder);
            launcher.env("NOTIFY_SOCKET", &self.place).env("LISTEN_FDS", kept.len().to_string());
            launcher.env("LISTEN_FDNAMES", names.join(":"));
            launcher
        })
    }
}

impl Drop for Manager {
    /// Closes everything: requests that wait for a daemon fail then.
    fn drop(&mut self) {
        if self.send(END).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
        self.kept.with(Vec::clear);
    }
}

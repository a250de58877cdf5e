//! Descriptors that outlive a daemon. The service manager kept them and gives them to the next daemon at its start
//! (`sd_listen_fds(3)`), or the daemon before, which became this one by `execve`, has left them open and said so.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_acceptconn;

/// The variable that says what a daemon has left to the one that it becomes.
pub const LEFT: &str = "BRAID_LEFT";
/// What a service manager says the same with, which holds for the process that it has started, and not for what that becomes.
pub const MANAGERS: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The first descriptor that a service manager gives.
const FIRST: i32 = 3;
/// The device `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// Descriptors by the name that they were kept under.
pub type Kept = BTreeMap<String, Vec<OwnedFd>>;

/// What this process was given at its start: channels of FUSE, sockets that listen, and nothing else.
///
/// Called once, before anything is opened: it takes the descriptors as its own.
pub fn take() -> Kept {
    let variable = |name: &str| std::env::var(name).ok();
    let mut list: Vec<(i32, String)> = Vec::new();
    if variable(MANAGERS[0]).and_then(|pid| pid.parse().ok()) == Some(std::process::id()) {
        let count: i32 = variable(MANAGERS[1]).and_then(|count| count.parse().ok()).unwrap_or(0);
        let names = variable(MANAGERS[2]).unwrap_or_default();
        let numbers = FIRST..FIRST.saturating_add(count.clamp(0, 1 << 20));
        list.extend(numbers.zip(names.split(':')).map(|(number, name)| (number, name.to_owned())));
    }
    list.extend(variable(LEFT).map(|text| left(&text, std::process::id())).unwrap_or_default());
    let mut kept = Kept::new();
    for (number, name) in list {
        if let Some(fd) = adopt(number) {
            kept.entry(name).or_default().push(fd);
        }
    }
    kept
}

/// Leaves descriptors open for the program that this process is about to become. Returns what [`LEFT`] is to say to it.
///
/// # Errors
/// What the operating system says; the others are left open then, too.
pub fn leave<'a>(all: impl IntoIterator<Item = (&'a str, BorrowedFd<'a>)>) -> io::Result<String> {
    let mut text = std::process::id().to_string();
    for (name, fd) in all {
        fcntl_setfd(fd, FdFlags::empty())?;
        text.push_str(&format!("\n{} {}", fd.as_raw_fd(), name.replace('%', "%25").replace('\n', "%0A")));
    }
    Ok(text)
}

/// What was left to this process; nothing where it was another one's.
fn left(text: &str, pid: u32) -> Vec<(i32, String)> {
    let mut lines = text.split('\n');
    if lines.next().and_then(|first| first.parse().ok()) != Some(pid) {
        return Vec::new();
    }
    let read = |line: &str| {
        let (number, name) = line.split_once(' ')?;
        let number = number.parse().ok().filter(|number| *number >= FIRST)?;
        Some((number, name.replace("%0A", "\n").replace("%25", "%")))
    };
    lines.filter_map(read).collect()
}

/// Takes a descriptor of this number, if it is one that may be kept.
#[allow(unsafe_code)]
fn adopt(number: i32) -> Option<OwnedFd> {
    // SAFETY: whoever started this process has opened it for this process, which is told so by the process' own number; nobody else
    // in it has looked at what was there at its start. One that is not open fails at the first use of it below, and is let go.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let stat = fstat(fd).ok()?;
    let may_be_kept = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => (major(stat.st_rdev), minor(stat.st_rdev)) == FUSE_DEVICE,
        FileType::Socket => socket_acceptconn(fd).is_ok_and(|listens| listens),
        _ => false,
    };
    if !may_be_kept || fcntl_setfd(fd, FdFlags::CLOEXEC).is_err() {
        return None;
    }
    // SAFETY: it is open, as was just seen, and nobody else owns it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_left_is_read_again() {
        let (one, two) = (std::fs::File::open("/dev/null").unwrap(), std::fs::File::open("/dev/null").unwrap());
        let text = leave([("unix:/a b\n%0A", one.as_fd()), ("tcp:h:1", two.as_fd())]).unwrap();
        let read = left(&text, std::process::id());
        let want = [(one.as_raw_fd(), "unix:/a b\n%0A".to_owned()), (two.as_raw_fd(), "tcp:h:1".to_owned())];
        assert_eq!(read, want);
        assert_eq!(left(&text, std::process::id() + 1), []);
        assert_eq!(left("", 1), []);
        assert_eq!(left("1\n-1 a\n1 b\nx c\n7", 1), []);
        assert!(rustix::io::fcntl_getfd(&one).unwrap().is_empty());
    }
}

//! Descriptors that outlive a daemon: the service manager keeps them and passes them to the next daemon at its start
//! (`sd_listen_fds(3)`), or the previous program of this process leaves them open across `execve` and lists them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_acceptconn;

/// The environment variable in which a daemon lists the descriptors for its successor across `execve`.
pub const EXEC_FDS_VARIABLE: &str = "BRAID_LEFT";
/// The variables in which a service manager lists them. They are meant for the process that it started, and not for a
/// successor across `execve`.
pub const SERVICE_MANAGER_VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The first descriptor that a service manager passes.
const FIRST: i32 = 3;
/// The device number of `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// Descriptors by the names under which they were kept.
pub type InheritedFds = BTreeMap<String, Vec<OwnedFd>>;

/// Takes the descriptors that this process inherited: FUSE channels and listening sockets, and nothing else.
///
/// Must be called once, before anything is opened: it takes ownership of the descriptors.
pub fn take() -> InheritedFds {
    let variable = |name: &str| std::env::var(name).ok();
    let mut list: Vec<(i32, String)> = Vec::new();
    if variable(SERVICE_MANAGER_VARIABLES[0]).and_then(|pid| pid.parse().ok()) == Some(std::process::id()) {
        let count: i32 = variable(SERVICE_MANAGER_VARIABLES[1]).and_then(|count| count.parse().ok()).unwrap_or(0);
        let names = variable(SERVICE_MANAGER_VARIABLES[2]).unwrap_or_default();
        let numbers = FIRST..FIRST.saturating_add(count.clamp(0, 1 << 20));
        list.extend(numbers.zip(names.split(':')).map(|(number, name)| (number, name.to_owned())));
    }
    list.extend(variable(EXEC_FDS_VARIABLE).map(|text| parse(&text, std::process::id())).unwrap_or_default());
    let mut kept = InheritedFds::new();
    for (number, name) in list {
        if let Some(fd) = adopt(number) {
            kept.entry(name).or_default().push(fd);
        }
    }
    kept
}

/// Keeps descriptors open across `execve`. Returns the value of [`EXEC_FDS_VARIABLE`] for the new program.
///
/// # Errors
/// The operating system's. Descriptors already processed stay open across `execve` then.
pub fn keep_open_across_exec<'a>(all: impl IntoIterator<Item = (&'a str, BorrowedFd<'a>)>) -> io::Result<String> {
    let mut text = std::process::id().to_string();
    for (name, fd) in all {
        fcntl_setfd(fd, FdFlags::empty())?;
        text.push_str(&format!("\n{} {}", fd.as_raw_fd(), name.replace('%', "%25").replace('\n', "%0A")));
    }
    Ok(text)
}

/// Parses the value of [`EXEC_FDS_VARIABLE`]. Returns nothing if it was meant for another process.
fn parse(text: &str, pid: u32) -> Vec<(i32, String)> {
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

/// Takes ownership of a descriptor, if it is of a kind that may be kept.
#[allow(unsafe_code)]
fn adopt(number: i32) -> Option<OwnedFd> {
    // SAFETY: the parent opened the descriptor for this process, as the process id in the variable confirms, and no
    // other code of this process has used inherited descriptors yet. If it is not open, the first call below fails and
    // it is skipped.
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
    // SAFETY: it is open, as the calls above have shown, and has no other owner.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_left_open_are_parsed_again() {
        let (one, two) = (std::fs::File::open("/dev/null").unwrap(), std::fs::File::open("/dev/null").unwrap());
        let text = keep_open_across_exec([("unix:/a b\n%0A", one.as_fd()), ("tcp:h:1", two.as_fd())]).unwrap();
        let read = parse(&text, std::process::id());
        let want = [(one.as_raw_fd(), "unix:/a b\n%0A".to_owned()), (two.as_raw_fd(), "tcp:h:1".to_owned())];
        assert_eq!(read, want);
        assert_eq!(parse(&text, std::process::id() + 1), []);
        assert_eq!(parse("", 1), []);
        assert_eq!(parse("1\n-1 a\n1 b\nx c\n7", 1), []);
        assert!(rustix::io::fcntl_getfd(&one).unwrap().is_empty());
    }
}

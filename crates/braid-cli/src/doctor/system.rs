//! What checks read of the system: files of the kernel, under roots that tests replace.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The folders that checks read.
pub struct System {
    /// Processes and settings of the kernel: `/proc`.
    pub proc: PathBuf,
    /// Devices and modules: `/sys`.
    pub sys: PathBuf,
    /// Device files: `/dev`.
    pub dev: PathBuf,
    /// The modules that are installed: `/lib/modules`.
    pub modules: PathBuf,
}

impl Default for System {
    fn default() -> System {
        System { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into(), modules: "/lib/modules".into() }
    }
}

impl System {
    /// Returns the content of a file of `/proc`, trimmed; `None` if it cannot be read.
    pub fn proc_text(&self, name: &str) -> Option<String> {
        text(&self.proc.join(name))
    }

    /// Returns the content of a file of `/sys`, trimmed; `None` if it cannot be read.
    pub fn sys_text(&self, name: &str) -> Option<String> {
        text(&self.sys.join(name))
    }

    /// Returns the version of the kernel, such as `6.12.1-amd64`.
    pub fn release(&self) -> Option<String> {
        self.proc_text("sys/kernel/osrelease")
    }

    /// Returns a field of the status of a process, such as `CapEff`. `process` is a number, or `self`.
    pub fn status_field(&self, process: &str, field: &str) -> Option<String> {
        let text = self.proc_text(&format!("{process}/status"))?;
        let value = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned());
        text.lines().find_map(value)
    }

    /// Returns whether this process has the effective user root; `None` if unknown.
    pub fn is_root(&self) -> Option<bool> {
        let users = self.status_field("self", "Uid")?;
        Some(users.split_whitespace().nth(1)? == "0")
    }

    /// Returns the effective capabilities of a process, a bit for each.
    pub fn capabilities(&self, process: &str) -> Option<u64> {
        u64::from_str_radix(&self.status_field(process, "CapEff")?, 16).ok()
    }
}

/// Returns the content of a file, trimmed; `None` if it cannot be read.
pub fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Runs `work` on a thread of its own, and returns its result; `None` if there is none within `limit`.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        // The receiver may have been dropped after the limit.
        let _ = sender.send(work());
    };
    thread::Builder::new().name("doctor".to_owned()).spawn(run).ok()?;
    receiver.recv_timeout(limit).ok()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A machine of made-up files.
    pub struct Machine(pub PathBuf);

    impl Machine {
        pub fn new(files: &[(&str, &str)]) -> Machine {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("braid-doctor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let machine = Machine(std::env::temp_dir().join(name));
            fs::create_dir_all(&machine.0).expect("it can be written");
            for (path, content) in files {
                machine.write(path, content);
            }
            machine
        }

        pub fn write(&self, path: &str, content: &str) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("files have folders")).expect("it can be written");
            fs::write(&path, content).expect("it can be written");
            path
        }

        pub fn system(&self) -> System {
            let at = |name: &str| self.0.join(name);
            System { proc: at("proc"), sys: at("sys"), dev: at("dev"), modules: at("modules") }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn fields_of_a_process_are_read() {
        let machine = Machine::new(&[(
            "proc/self/status",
            "Name:\tbraid\nUid:\t1000\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t2\n",
        )]);
        let system = machine.system();
        assert_eq!(system.is_root(), Some(true));
        assert_eq!(system.capabilities("self"), Some((1 << 41) - 1));
        assert_eq!(system.status_field("self", "Seccomp").as_deref(), Some("2"));
        assert_eq!(system.status_field("self", "Sec"), None);
        assert_eq!(system.capabilities("7"), None);
        assert_eq!(Machine::new(&[]).system().is_root(), None);
    }

    #[test]
    fn what_takes_too_long_is_given_up() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let late = within(Duration::from_millis(10), || thread::sleep(Duration::from_secs(2)));
        assert_eq!(late, None);
    }
}

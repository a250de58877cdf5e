//! Limits of processes, and memory.

use super::Subject;
use super::system::System;
use braid_api::{DoctorCheck, DoctorGroup};
use braid_config::OPEN_FILES_FEW;
use braid_geometry::units::format_size;

/// The bit of `CAP_IPC_LOCK` in a set of capabilities. A process with it may lock any amount of memory.
const IPC_LOCK: u64 = 1 << 14;

/// A process whose limits are checked.
pub struct Process<'a> {
    /// The end of the names of its checks: empty, or ` of the daemon`.
    pub whose: &'a str,
    /// Its folder below `/proc`.
    pub folder: &'a str,
}

impl Process<'_> {
    /// Returns the soft and the hard limit with this name. [`u64::MAX`] stands for no limit.
    fn limit(&self, system: &System, name: &str) -> Option<(u64, u64)> {
        let text = system.proc_text(&format!("{}/limits", self.folder))?;
        let values = text.lines().find_map(|line| line.strip_prefix(name))?;
        let value = |text: &str| if text == "unlimited" { Some(u64::MAX) } else { text.parse().ok() };
        let mut values = values.split_whitespace();
        Some((value(values.next()?)?, value(values.next()?)?))
    }

    /// Checks that `needed_bytes` of buffers may be locked.
    pub fn locked_memory(&self, system: &System, needed_bytes: u64) -> DoctorCheck {
        let subject = Subject::new(DoctorGroup::Limits, &format!("locked memory{}", self.whose));
        let Some((soft, _)) = self.limit(system, "Max locked memory") else {
            return subject.skipped(format!("/proc/{}/limits cannot be read", self.folder));
        };
        if system.capabilities(self.folder).is_some_and(|capabilities| capabilities & IPC_LOCK != 0) {
            return subject.ok("unlimited (CAP_IPC_LOCK)");
        }
        let needed = format_size(needed_bytes);
        match soft {
            u64::MAX => subject.ok("unlimited"),
            bytes if bytes >= needed_bytes => subject.ok(format!("{} of {needed}", format_size(bytes))),
            bytes => {
                let found = format!("{} may be locked, and the buffers have {needed}", format_size(bytes));
                let impact =
                    "Buffers beyond the limit are not registered with the kernel, and their I/O takes more CPU time.";
                let unit = "systemctl edit braid   # [Service] LimitMEMLOCK=infinity";
                subject.warning(found, impact, ["ulimit -l unlimited", unit])
            }
        }
    }

    /// Checks how many files may be open. The daemon raises its limit to the hard one.
    pub fn open_files(&self, system: &System) -> DoctorCheck {
        let subject = Subject::new(DoctorGroup::Limits, &format!("open files{}", self.whose));
        let Some((_, hard)) = self.limit(system, "Max open files") else {
            return subject.skipped(format!("/proc/{}/limits cannot be read", self.folder));
        };
        match hard {
            u64::MAX => subject.ok("unlimited"),
            files if files >= OPEN_FILES_FEW => subject.ok(files.to_string()),
            files => {
                let found = format!("{files}, fewer than {OPEN_FILES_FEW}");
                let impact = "Each disk, client and address needs an open file: more of them are refused.";
                let unit = "systemctl edit braid   # [Service] LimitNOFILE=524288";
                subject.warning(found, impact, ["ulimit -Hn 524288", unit])
            }
        }
    }
}

/// Checks that the memory suffices. `needed_bytes` is what a daemon that is started takes for buffers; 0 if one runs.
pub fn memory(system: &System, needed_bytes: u64) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Limits, "memory");
    let text = system.proc_text("meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let (Some(available), Some(total)) = (bytes("MemAvailable:"), bytes("MemTotal:")) else {
        return subject.skipped("/proc/meminfo cannot be read");
    };
    let found = format!("{} of {} available", format_size(available), format_size(total));
    let commands = ["ps aux --sort=-rss | head", "braid serve --buffers 16M --shards 1"];
    if needed_bytes > available {
        let found = format!("{found}, and the buffers take {}", format_size(needed_bytes));
        return subject.problem(found, "The daemon does not start, or the kernel ends it.", commands);
    }
    if available < total / 20 {
        let impact = "The kernel may end the daemon, or make it slow by reclaiming memory.";
        return subject.warning(found, impact, commands);
    }
    subject.ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::DoctorState;

    const OWN: Process<'static> = Process { whose: "", folder: "self" };

    fn limits(locked: &str, files: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1024                 {files}              files     \n\
             Max locked memory         {locked}             {locked}             bytes     \n"
        )
    }

    #[test]
    fn locked_memory_is_compared_with_the_buffers() {
        let check = |locked: &str, capabilities: &str| {
            let machine = Machine::new(&[
                ("proc/self/limits", &limits(locked, "4096")),
                ("proc/self/status", &format!("CapEff:\t{capabilities}\n")),
            ]);
            OWN.locked_memory(&machine.system(), 64 << 20)
        };
        assert_eq!(check("unlimited", "0").state, DoctorState::Ok);
        assert_eq!(check("67108864", "0").state, DoctorState::Ok);
        let short = check("8388608", "0");
        assert_eq!(short.state, DoctorState::Warning);
        assert!(short.found.contains("8.00 MiB") && short.found.contains("64.00 MiB"), "{short:?}");
        assert_eq!(check("8388608", "4000").state, DoctorState::Ok);
        assert_eq!(OWN.locked_memory(&Machine::new(&[]).system(), 1).state, DoctorState::Skipped);
    }

    #[test]
    fn few_open_files_are_warned_of() {
        let check = |files: &str| {
            let machine = Machine::new(&[("proc/7/limits", &limits("0", files))]);
            Process { whose: " of the daemon", folder: "7" }.open_files(&machine.system())
        };
        assert_eq!(check("524288").state, DoctorState::Ok);
        assert_eq!(check("unlimited").state, DoctorState::Ok);
        let few = check("1024");
        assert_eq!((few.state, few.name.as_str()), (DoctorState::Warning, "open files of the daemon"));
        assert!(few.found.starts_with("1024"), "{few:?}");
    }

    #[test]
    fn memory_has_to_suffice_for_the_buffers() {
        let check = |available: &str, needed: u64| {
            let text = format!("MemTotal:       16384000 kB\nMemFree: 1 kB\nMemAvailable:   {available} kB\n");
            memory(&Machine::new(&[("proc/meminfo", &text)]).system(), needed)
        };
        assert_eq!(check("8000000", 64 << 20).state, DoctorState::Ok);
        assert_eq!(check("500000", 64 << 20).state, DoctorState::Warning);
        assert_eq!(check("50000", 64 << 20).state, DoctorState::Problem);
        assert_eq!(memory(&Machine::new(&[]).system(), 0).state, DoctorState::Skipped);
    }
}

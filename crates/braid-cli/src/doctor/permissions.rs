//! Permissions: the user, its capabilities, and the folder of the state.

use super::Subject;
use super::system::System;
use braid_api::{DoctorCheck, DoctorGroup};
use braid_host::probe_process::{self, ProbeResult};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Maximum time to wait for the file system of the state folder.
const FILE_SYSTEM_MAX: Duration = Duration::from_secs(3);

/// Capabilities that the daemon needs: the bit, the name, and what it is for.
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (1, "CAP_DAC_OVERRIDE", "disks and files of other users"),
    (14, "CAP_IPC_LOCK", "buffers that are registered beyond the limit of locked memory"),
    (21, "CAP_SYS_ADMIN", "exports with --ublk and --fuse, and `braid mount`"),
];

/// Checks the user and its capabilities.
pub fn capabilities(system: &System) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Permissions, "capabilities");
    let (Some(is_root), Some(effective)) = (system.is_root(), system.capabilities("self")) else {
        return subject.skipped("/proc/self/status cannot be read");
    };
    let user = if is_root { "root" } else { "not root" };
    let missing: Vec<&(u32, &str, &str)> =
        CAPABILITIES.iter().filter(|(bit, ..)| effective & (1 << bit) == 0).collect();
    if missing.is_empty() {
        return subject.ok(format!("{user}, with all capabilities that Braid uses"));
    }
    let names: Vec<&str> = missing.iter().map(|(_, name, _)| *name).collect();
    let uses: Vec<&str> = missing.iter().map(|(.., what)| *what).collect();
    let found = format!("{user}, without {}", names.join(", "));
    let impact = format!("A daemon that this user starts lacks: {}.", uses.join("; "));
    match is_root {
        true => subject.warning(found, impact, ["podman run --privileged -v /dev:/dev IMAGE"]),
        false => subject.warning(found, impact, ["sudo braid doctor", "sudo systemctl start braid"]),
    }
}

/// Checks that the folder of the state can be written to, or made. `is_served`: a daemon answers, and has it.
pub fn state_folder(folder: &Path, is_served: bool) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Permissions, "state folder");
    let impact = "The daemon does not start: it cannot keep its state.";
    let commands = |at: &Path| {
        let braid_state = "BRAID_STATE=FOLDER braid serve".to_owned();
        [format!("ls -ld {}", at.display()), braid_state]
    };
    for at in folder.ancestors() {
        // Another process looks first: a file system that hangs would keep this one.
        match probe_process::identity(at, FILE_SYSTEM_MAX) {
            None => {
                let found = format!("{}: the file system does not answer", at.display());
                return subject.problem(found, impact, ["dmesg | tail", "findmnt"]);
            }
            Some(ProbeResult::Failed(errno)) if errno == Errno::NOENT.raw_os_error() => {}
            Some(ProbeResult::Failed(errno)) => {
                let found = format!("{}: {}", at.display(), io::Error::from_raw_os_error(errno));
                return denied_or_problem(subject, found, impact, commands(at), is_served);
            }
            Some(_) => {
                let is_new = at != folder;
                let found = match is_new {
                    true => format!("{} does not exist; the daemon makes it", folder.display()),
                    false => format!("{} can be written to", folder.display()),
                };
                if !at.is_dir() {
                    let found = format!("{} is not a folder", at.display());
                    return subject.problem(found, impact, commands(at));
                }
                return match access(at, Access::WRITE_OK | Access::EXEC_OK) {
                    Ok(()) => subject.ok(found),
                    Err(error) => {
                        let found = format!("{}: {}", at.display(), io::Error::from(error));
                        denied_or_problem(subject, found, impact, commands(at), is_served)
                    }
                };
            }
        }
    }
    subject.skipped(format!("{} is no path", folder.display()))
}

/// A folder that this user may not write to is the daemon's own, if one answers.
fn denied_or_problem(
    subject: Subject,
    found: String,
    impact: &str,
    commands: [String; 2],
    is_served: bool,
) -> DoctorCheck {
    if is_served {
        return subject.skipped(format!("{found}; the daemon that answers has it"));
    }
    subject.problem(found, impact, commands)
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::DoctorState;

    #[test]
    fn missing_capabilities_are_named_with_their_use() {
        let check = |user: &str, effective: &str| {
            let text = format!("Uid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{effective}\n");
            capabilities(&Machine::new(&[("proc/self/status", &text)]).system())
        };
        assert_eq!(check("0", "000001ffffffffff").state, DoctorState::Ok);
        let container = check("0", "00000000a80425fb");
        assert_eq!(container.state, DoctorState::Warning);
        assert!(container.found.contains("CAP_SYS_ADMIN") && container.impact.contains("--ublk"), "{container:?}");
        let user = check("1000", "0");
        assert_eq!(user.state, DoctorState::Warning);
        assert!(user.found.starts_with("not root") && user.commands[0].starts_with("sudo"), "{user:?}");
        assert_eq!(capabilities(&Machine::new(&[]).system()).state, DoctorState::Skipped);
    }

    #[test]
    fn the_state_folder_exists_or_can_be_made() {
        let machine = Machine::new(&[("state/file", "")]);
        let well = state_folder(&machine.0.join("state"), false);
        assert_eq!(well.state, DoctorState::Ok, "{well:?}");
        let absent = state_folder(&machine.0.join("not/there"), false);
        assert_eq!(absent.state, DoctorState::Ok, "{absent:?}");
        assert!(absent.found.contains("the daemon makes it"), "{absent:?}");
        let wrong = state_folder(&machine.0.join("state/file"), false);
        assert_eq!(wrong.state, DoctorState::Problem, "{wrong:?}");
        let below = machine.0.join("state/file/below");
        assert_eq!(state_folder(&below, false).state, DoctorState::Problem);
        assert_eq!(state_folder(&below, true).state, DoctorState::Skipped);
    }
}

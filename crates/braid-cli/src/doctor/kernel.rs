//! The kernel: its version, io_uring, and the driver of the shards.

use super::Subject;
use super::system::{System, within};
use braid_api::{DoctorCheck, DoctorGroup, ShardStatus};
use braid_engine::ShardId;
use braid_geometry::units::format_size;
use braid_ring::{DriverInfo, DriverKind, Ring, RingConfig};
use std::time::Duration;

/// Maximum time to wait for a driver to start.
const TRIAL_MAX: Duration = Duration::from_secs(10);

/// The oldest kernel that is supported.
const OLDEST: (u32, u32) = (5, 15);
/// A kernel before this version gets a warning. What only later kernels have, by [`FEATURES`], is an extra.
const BEST: (u32, u32) = (6, 1);

/// What newer kernels add: the version, and what older ones lack.
const FEATURES: [((u32, u32), &str); 5] = [
    ((5, 19), "cooperative task work of io_uring"),
    ((6, 0), "block devices (ublk)"),
    ((6, 1), "deferred task work of io_uring, and ublk devices that outlive the daemon"),
    ((6, 9), "FUSE files whose requests outlive a killed daemon"),
    ((6, 16), "ublk devices that change their size while in use"),
];

/// The outcome of starting a driver: its description or the error; `None` if it did not start in time.
pub type Trial = Option<Result<DriverInfo, String>>;

/// Starts a shard as the daemon would, and stops it. `driver` is the configured one; `None`: the best that works.
pub fn trial(driver: Option<DriverKind>, arena_bytes: u64) -> Trial {
    within(TRIAL_MAX, move || {
        let arena_bytes = usize::try_from(arena_bytes).unwrap_or(usize::MAX);
        let config = RingConfig { driver, arena_bytes, ..RingConfig::default() };
        let ring = Ring::start(&config, |_| Vec::new())
            .map_err(|error| braid_advice::errors::ring_error(&error, "").message)?;
        let info = ring.handle().driver(ShardId(0)).clone();
        ring.stop();
        Ok(info)
    })
}

/// Reads major and minor number of a version.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Checks the version of the kernel.
pub fn version(system: &System) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Kernel, "version");
    let Some(release) = system.release() else {
        return subject.skipped("the version of the kernel cannot be read");
    };
    let Some(version) = version_of(&release) else {
        return subject.skipped(format!("{release:?} is no version of Linux"));
    };
    let lacks: Vec<&str> = FEATURES.iter().filter(|(from, _)| version < *from).map(|(_, what)| *what).collect();
    let found = if lacks.is_empty() { release } else { format!("{release}, which lacks: {}", lacks.join("; ")) };
    let commands = ["apt install -t stable-backports linux-image-amd64", "systemctl reboot"];
    if version < OLDEST {
        let impact = format!("Braid needs Linux {}.{} and is not tested on older ones.", OLDEST.0, OLDEST.1);
        return subject.problem(found, impact, commands);
    }
    if version < BEST {
        let impact = "Each I/O takes more CPU time, and exports as block devices (ublk) do not outlive the daemon.";
        return subject.warning(found, impact, commands);
    }
    subject.ok(found)
}

/// Checks that io_uring works. `trial` is of the best driver.
pub fn io_uring(system: &System, trial: &Trial) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Kernel, "io_uring");
    let why = match trial {
        None => format!("no driver has started within {} s", TRIAL_MAX.as_secs()),
        Some(Err(error)) => error.clone(),
        Some(Ok(info)) if info.kind == DriverKind::Uring => {
            let features =
                if info.features.is_empty() { String::new() } else { format!(" ({})", info.features.join(", ")) };
            return subject.ok(format!("works{features}"));
        }
        Some(Ok(info)) => {
            let skipped = info.skipped.iter().find(|(kind, _)| *kind == DriverKind::Uring);
            skipped.map_or_else(|| "it is not available".to_owned(), |(_, why)| why.clone())
        }
    };
    let switch = system.proc_text("sys/kernel/io_uring_disabled").unwrap_or_else(|| "absent".to_owned());
    let is_filtered = system.status_field("self", "Seccomp").is_some_and(|mode| mode != "0");
    let filter = if is_filtered { "active" } else { "none" };
    let found = format!("{why} (kernel.io_uring_disabled: {switch}; system call filter: {filter})");
    let impact =
        "I/O goes through libaio or threads, which are slower, and nothing can be exported with --ublk or --fuse.";
    let commands = match switch.as_str() {
        "1" | "2" => vec![
            "sysctl -w kernel.io_uring_disabled=0".to_owned(),
            "echo kernel.io_uring_disabled=0 > /etc/sysctl.d/braid.conf".to_owned(),
        ],
        _ if is_filtered => vec![
            "podman run --security-opt seccomp=PROFILE IMAGE   # PROFILE permits io_uring_setup, _enter, _register"
                .to_owned(),
        ],
        _ => vec!["ulimit -l unlimited".to_owned(), "uname -r   # io_uring needs Linux 5.11".to_owned()],
    };
    subject.warning(found, impact, commands)
}

/// Checks which driver the daemon would use. `trial` is of the configured driver, which `configured` names; `commands` make
/// io_uring work.
pub fn driver(configured: Option<DriverKind>, trial: &Trial, commands: &[String]) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Kernel, "driver");
    let is_named = if configured.is_some() { ", as the configuration says" } else { "" };
    let info = match trial {
        Some(Ok(info)) => info,
        Some(Err(error)) => {
            let commands = match configured {
                Some(_) => vec!["${EDITOR:-vi} /etc/braid/braid.toml   # remove the line `driver`".to_owned()],
                None => vec!["ulimit -n 4096; ulimit -u unlimited".to_owned()],
            };
            return subject.problem(error.clone(), "The daemon does not start.", commands);
        }
        None => {
            let found = format!("no driver has started within {} s", TRIAL_MAX.as_secs());
            return subject.problem(found, "The daemon does not start.", ["dmesg | tail"]);
        }
    };
    let found = format!("{}{is_named}", info.kind);
    match info.kind {
        DriverKind::Uring => subject.ok(found),
        _ if configured.is_some() => subject.ok(found),
        _ => {
            let impact = "Each I/O takes more system calls than with io_uring.";
            subject.warning(found, impact, commands.to_vec())
        }
    }
}

/// Checks whether the buffers of a shard are registered. `trial` is of the driver that the daemon would use.
pub fn buffers(trial: &Trial) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Kernel, "registered buffers");
    let Some(Ok(info)) = trial else { return subject.skipped("no driver works") };
    if info.kind != DriverKind::Uring {
        return subject.skipped(format!("the driver {} registers none", info.kind));
    }
    let found = format!("{} of each shard", format_size(info.registered_buffer_bytes));
    match &info.unregistered_reason {
        None => subject.ok(found),
        Some(why) => {
            let impact = "I/O in buffers that are not registered takes more CPU time.";
            let unit = "systemctl edit braid   # [Service] LimitMEMLOCK=infinity".to_owned();
            subject.warning(format!("{found}: {why}"), impact, ["ulimit -l unlimited".to_owned(), unit])
        }
    }
}

/// Checks the drivers of the daemon that runs; `None`: no daemon answers.
pub fn daemon_driver(shards: Option<&[ShardStatus]>) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Kernel, "driver of the daemon");
    let Some(shards) = shards else { return subject.skipped("no daemon answers") };
    let mut kinds: Vec<&str> = shards.iter().map(|shard| shard.driver.as_str()).collect();
    kinds.dedup();
    let found = format!("{} on {} shard{}", kinds.join(", "), shards.len(), if shards.len() == 1 { "" } else { "s" });
    match shards.iter().find_map(|shard| shard.note.as_ref()) {
        None => subject.ok(found),
        Some(note) => {
            let impact = "The daemon's I/O takes more CPU time than it could.";
            subject.warning(
                format!("{found}: {note}"),
                impact,
                ["systemctl edit braid   # [Service] LimitMEMLOCK=infinity", "systemctl restart braid"],
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::DoctorState;

    fn info(kind: DriverKind, skipped: &[(DriverKind, &str)]) -> DriverInfo {
        DriverInfo {
            kind,
            skipped: skipped.iter().map(|(kind, why)| (*kind, (*why).to_owned())).collect(),
            features: vec!["defer_taskrun"],
            registered_buffer_bytes: 64 << 20,
            unregistered_reason: None,
            registered_files: 64,
        }
    }

    #[test]
    fn old_kernels_are_named_with_what_they_lack() {
        let check = |release: &str, state: DoctorState, lacks: &str| {
            let machine = Machine::new(&[("proc/sys/kernel/osrelease", release)]);
            let check = version(&machine.system());
            assert_eq!(check.state, state, "{release}: {check:?}");
            assert!(check.found.contains(lacks), "{check:?}");
            assert_eq!(check.commands.is_empty(), matches!(state, DoctorState::Ok | DoctorState::Skipped));
        };
        check("6.18.5\n", DoctorState::Ok, "6.18.5");
        check("6.12.1-amd64\n", DoctorState::Ok, "change their size");
        check("6.1.0\n", DoctorState::Ok, "killed daemon");
        check("5.15.0-91-generic\n", DoctorState::Warning, "outlive the daemon");
        check("5.10.0\n", DoctorState::Problem, "cooperative");
        check("plan9\n", DoctorState::Skipped, "plan9");
        assert_eq!(version(&Machine::new(&[]).system()).state, DoctorState::Skipped);
    }

    #[test]
    fn io_uring_says_what_forbids_it() {
        let works = Some(Ok(info(DriverKind::Uring, &[])));
        let machine = Machine::new(&[]);
        let check = io_uring(&machine.system(), &works);
        assert_eq!((check.state, check.found.as_str()), (DoctorState::Ok, "works (defer_taskrun)"));
        let forbidden = Some(Ok(info(DriverKind::Libaio, &[(DriverKind::Uring, "it is forbidden")])));
        let machine =
            Machine::new(&[("proc/sys/kernel/io_uring_disabled", "2\n"), ("proc/self/status", "Seccomp:\t0\n")]);
        let check = io_uring(&machine.system(), &forbidden);
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.contains("it is forbidden") && check.found.contains("disabled: 2"), "{check:?}");
        assert!(check.commands[0].starts_with("sysctl"), "{check:?}");
        let machine =
            Machine::new(&[("proc/sys/kernel/io_uring_disabled", "0\n"), ("proc/self/status", "Seccomp:\t2\n")]);
        let check = io_uring(&machine.system(), &forbidden);
        assert!(check.commands[0].contains("seccomp") && check.found.contains("active"), "{check:?}");
        assert_eq!(io_uring(&machine.system(), &None).state, DoctorState::Warning);
    }

    #[test]
    fn the_driver_is_that_of_the_trial() {
        let uring = Some(Ok(info(DriverKind::Uring, &[])));
        let threads = Some(Ok(info(DriverKind::Threads, &[])));
        assert_eq!(driver(None, &uring, &[]).state, DoctorState::Ok);
        assert_eq!(driver(None, &threads, &[]).state, DoctorState::Warning);
        assert_eq!(driver(Some(DriverKind::Threads), &threads, &[]).state, DoctorState::Ok);
        let wrong = Some(Err("the driver io_uring does not work here".to_owned()));
        assert_eq!(driver(Some(DriverKind::Uring), &wrong, &[]).state, DoctorState::Problem);
        assert_eq!(driver(None, &None, &[]).state, DoctorState::Problem);
    }

    #[test]
    fn buffers_that_are_not_registered_are_warned_of() {
        assert_eq!(buffers(&Some(Ok(info(DriverKind::Uring, &[])))).state, DoctorState::Ok);
        let mut few = info(DriverKind::Uring, &[]);
        few.unregistered_reason = Some("only 8 MiB may be locked".to_owned());
        let check = buffers(&Some(Ok(few)));
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.contains("only 8 MiB"), "{check:?}");
        assert_eq!(buffers(&Some(Ok(info(DriverKind::Threads, &[])))).state, DoctorState::Skipped);
        assert_eq!(buffers(&None).state, DoctorState::Skipped);
    }

    #[test]
    fn the_daemons_own_driver_is_checked() {
        let shard = |note: Option<&str>| ShardStatus {
            shard: 0,
            driver: "io_uring".to_owned(),
            registered_buffers: true,
            registered_files: true,
            note: note.map(str::to_owned),
        };
        assert_eq!(daemon_driver(None).state, DoctorState::Skipped);
        let check = daemon_driver(Some(&[shard(None), shard(None)]));
        assert_eq!((check.state, check.found.as_str()), (DoctorState::Ok, "io_uring on 2 shards"));
        let check = daemon_driver(Some(&[shard(Some("buffers are short"))]));
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.contains("buffers are short"), "{check:?}");
    }

    #[test]
    fn a_trial_starts_a_shard() {
        let info = trial(None, 1 << 20).expect("it ends").expect("a driver works");
        assert!(DriverKind::ALL.contains(&info.kind), "{info:?}");
    }
}

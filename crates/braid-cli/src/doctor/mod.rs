//! `braid doctor`: checks what Braid needs of this machine, what each fault costs, and the command that mends it.
//!
//! Every check reads only, and is bounded in time: disks and file systems that may hang are examined by another process
//! ([`braid_host::probe_process`]). What checks read of `/proc`, `/sys` and `/dev` goes through [`System`], so that tests substitute a machine.
//!
//! Modules: one for each group of checks; `system` has the files that they read.

mod certificates;
mod clocks;
mod daemon;
mod disks;
mod kernel;
mod limits;
mod modules;
mod permissions;
mod ports;
mod system;

use crate::color::{BAD, GOOD, STRONG, WARNING, paint};
use crate::{failure, output};
use braid_api::{DoctorCheck, DoctorGroup, DoctorReport, DoctorState, HostDisk};
use braid_config::paths::DaemonPaths;
use braid_config::{BUFFERS_BYTES_DEFAULT, Config, SHARDS_DEFAULT_MAX};
use braid_host::host::{BlockDevice, SystemRoots};
use braid_terminal::progress::Waiting;
use clap::Args;
use daemon::{Daemon, Reports};
use limits::Process;
use modules::{FUSE, LOOP, NBD, UBLK};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use system::{System, within};

/// Maximum time to wait for the list of disks. Each disk has a limit of its own.
const DISKS_MAX: Duration = Duration::from_secs(15);
/// Maximum time to wait for a module to be used.
const MODULE_MAX: Duration = Duration::from_secs(5);
/// Maximum time to wait for certificates to be read.
const CERTIFICATES_MAX: Duration = Duration::from_secs(5);

/// Arguments of `braid doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// The daemon's socket [default: BRAID_SOCKET, else that of braid.toml, else the user's own place]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The folder of the daemon's state [default: BRAID_STATE, else that of braid.toml, else the user's own place]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// The configuration [default: BRAID_CONFIG, else the user's own place]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// A check that has not been made yet: its group and name.
pub(crate) struct Subject {
    group: DoctorGroup,
    name: String,
}

impl Subject {
    fn new(group: DoctorGroup, name: &str) -> Subject {
        Subject { group, name: name.to_owned() }
    }

    fn with(self, state: DoctorState, found: String, impact: String, commands: Vec<String>) -> DoctorCheck {
        DoctorCheck { group: self.group, name: self.name, state, found, impact, commands }
    }

    fn ok(self, found: impl Into<String>) -> DoctorCheck {
        self.with(DoctorState::Ok, found.into(), String::new(), Vec::new())
    }

    fn skipped(self, why: impl Into<String>) -> DoctorCheck {
        self.with(DoctorState::Skipped, why.into(), String::new(), Vec::new())
    }

    fn warning<C: Into<String>>(
        self,
        found: impl Into<String>,
        impact: impl Into<String>,
        commands: impl IntoIterator<Item = C>,
    ) -> DoctorCheck {
        let commands = commands.into_iter().map(Into::into).collect();
        self.with(DoctorState::Warning, found.into(), impact.into(), commands)
    }

    fn problem<C: Into<String>>(
        self,
        found: impl Into<String>,
        impact: impl Into<String>,
        commands: impl IntoIterator<Item = C>,
    ) -> DoctorCheck {
        let commands = commands.into_iter().map(Into::into).collect();
        self.with(DoctorState::Problem, found.into(), impact.into(), commands)
    }
}

/// Runs the command.
pub async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let loaded = Config::load(args.config.as_deref());
    let (config, config_error) = match loaded {
        Ok(config) => (config, None),
        Err(error) => (Config::default(), Some(error)),
    };
    let places = DaemonPaths::find(args.socket.as_deref(), args.state.as_deref(), &config);
    let waiting = Waiting::begin(|| "the checks of this machine".to_owned());
    let daemon = Daemon::at(&places.socket).await;
    let system = System::default();
    let mut checks = of_kernel(&system, &config, daemon.reports());
    checks.extend(of_modules(&system));
    checks.extend(of_limits(&system, &config, daemon.reports()));
    checks.push(clocks::synchronised(braid_ring::clock_state()));
    let reports = daemon.reports();
    checks.push(clocks::other_nodes(reports.map(|r| (&r.status.attention[..], r.status.node.as_deref()))));
    checks.push(permissions::capabilities(&system));
    checks.push(permissions::state_folder(&places.state, reports.is_some()));
    checks.push(daemon::configuration(args.config.as_deref(), config_error.as_ref()));
    checks.push(daemon::socket(&places.socket, &daemon));
    checks.extend(of_disks(&system, reports));
    checks.extend(of_certificates(&config, reports));
    let (exports, process) = (reports.map(|r| &r.exports[..]), reports.map(|r| r.status.pid));
    checks.extend(ports::all(&system, config.api.listen.as_ref(), exports, process));
    drop(waiting);
    let report = report(checks);
    output::show(args.json, &report, people);
    Ok(ExitCode::from(if report.problems == 0 { 0 } else { failure::ATTENTION }))
}

fn of_kernel(system: &System, config: &Config, reports: Option<&Reports>) -> Vec<DoctorCheck> {
    let buffers_bytes = config.buffers_bytes.unwrap_or(BUFFERS_BYTES_DEFAULT);
    let best = kernel::trial(None, buffers_bytes);
    let named = config.driver.map(|driver| kernel::trial(Some(driver), buffers_bytes));
    let trial = named.as_ref().unwrap_or(&best);
    let io_uring = kernel::io_uring(system, &best);
    let driver = kernel::driver(config.driver, trial, &io_uring.commands);
    let of_daemon = kernel::daemon_driver(reports.map(|r| &r.status.shards[..]));
    vec![kernel::version(system), io_uring, driver, kernel::buffers(trial), of_daemon]
}

fn of_modules(system: &System) -> Vec<DoctorCheck> {
    let late = || Some(Err(format!("no answer within {} s", MODULE_MAX.as_secs())));
    let ublk = within(MODULE_MAX, modules::try_ublk).map(Some).unwrap_or_else(late);
    let fuse = within(MODULE_MAX, modules::try_fuse).map(Some).unwrap_or_else(late);
    let nbd = within(MODULE_MAX, modules::try_nbd).map(Some).unwrap_or_else(late);
    vec![UBLK.check(system, ublk), FUSE.check(system, fuse), NBD.check(system, nbd), LOOP.check(system, None)]
}

fn of_limits(system: &System, config: &Config, reports: Option<&Reports>) -> Vec<DoctorCheck> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let configured = config.shards.map_or_else(|| processors.min(SHARDS_DEFAULT_MAX), usize::from);
    let shards = reports.map_or(configured, |reports| reports.status.shards.len());
    let buffers_bytes = (shards as u64).saturating_mul(config.buffers_bytes.unwrap_or(BUFFERS_BYTES_DEFAULT));
    let own = Process { whose: "", folder: "self" };
    let mut checks = vec![own.locked_memory(system, buffers_bytes), own.open_files(system)];
    if let Some(reports) = reports {
        let folder = reports.status.pid.to_string();
        let daemon = Process { whose: " of the daemon", folder: &folder };
        checks.push(daemon.locked_memory(system, buffers_bytes));
        checks.push(daemon.open_files(system));
    }
    checks.push(limits::memory(system, if reports.is_some() { 0 } else { buffers_bytes }));
    checks
}

fn of_disks(system: &System, reports: Option<&Reports>) -> Vec<DoctorCheck> {
    let open = reports.map(|r| &r.disks[..]);
    let ours: BTreeMap<PathBuf, String> = open
        .unwrap_or_default()
        .iter()
        .filter_map(|disk| Some((disks::device_of(&disk.name)?, disk.array.clone())))
        .collect();
    let find_disks = move || {
        let roots = SystemRoots::default();
        let devices = roots.block_devices();
        (roots.list(&|path: &Path| ours.get(path).cloned()), devices)
    };
    let found: Option<(Vec<HostDisk>, Vec<BlockDevice>)> = within(DISKS_MAX, find_disks);
    let Some((all, devices)) = found else {
        let subject = Subject::new(DoctorGroup::Disks, "disks that answer");
        let found = format!("the disks of this machine could not be listed within {} s", DISKS_MAX.as_secs());
        let impact = "I/O to a disk that hangs waits for 30 s, and the start of the daemon is slow.";
        return vec![subject.warning(found, impact, ["dmesg --level err,warn | tail", "lsblk"])];
    };
    let is_root = system.is_root().unwrap_or(false);
    vec![
        disks::unused(&all),
        disks::readable(&all, is_root),
        disks::properties(system, &all),
        disks::shared(&devices, open),
    ]
}

fn of_certificates(config: &Config, reports: Option<&Reports>) -> Vec<DoctorCheck> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let config = config.clone();
    let mut checks = within(CERTIFICATES_MAX, move || certificates::configured(&config, now)).unwrap_or_else(|| {
        let subject = Subject::new(DoctorGroup::Certificates, "certificates");
        let found = format!("their files could not be read within {} s", CERTIFICATES_MAX.as_secs());
        vec![subject.problem(found, "The daemon does not start.", ["findmnt", "dmesg | tail"])]
    });
    checks.push(certificates::nodes(reports.map(|r| &r.nodes[..]), now));
    checks
}

fn report(checks: Vec<DoctorCheck>) -> DoctorReport {
    let count = |state: DoctorState| checks.iter().filter(|check| check.state == state).count() as u64;
    let (problems, warnings) = (count(DoctorState::Problem), count(DoctorState::Warning));
    DoctorReport { problems, warnings, checks }
}

/// Returns the summary in one line.
fn summary(report: &DoctorReport) -> String {
    let counted = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    match (report.problems, report.warnings) {
        (0, 0) => "No problem found.".to_owned(),
        (0, warnings) => format!("No problem found, {}.", counted(warnings, "warning")),
        (problems, 0) => format!("{}.", counted(problems, "problem")),
        (problems, warnings) => format!("{}, {}.", counted(problems, "problem"), counted(warnings, "warning")),
    }
}

fn people(report: &DoctorReport) -> String {
    const STATE_WIDTH: usize = 8;
    let style = match (report.problems, report.warnings) {
        (0, 0) => GOOD,
        (0, _) => WARNING,
        _ => BAD,
    };
    let mut text = paint(style, &summary(report)) + "\n";
    let width = report.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let indent = " ".repeat(2 + STATE_WIDTH + 1 + width + 2);
    let mut group = None;
    for check in &report.checks {
        if group != Some(check.group) {
            group = Some(check.group);
            text.push_str(&format!("\n{}\n", paint(STRONG, check.group.word())));
        }
        let word = format!("{:<STATE_WIDTH$}", check.state.word());
        let word = match check.state {
            DoctorState::Ok => paint(GOOD, &word),
            DoctorState::Warning => paint(WARNING, &word),
            DoctorState::Problem => paint(BAD, &word),
            _ => word,
        };
        let found = output::wrap(&check.found, &indent);
        text.push_str(&format!("  {word} {:<width$}  {}\n", check.name, found.trim()));
        if !check.impact.is_empty() {
            text.push_str(&output::wrap(&check.impact, "           "));
        }
        for command in &check.commands {
            // Whole, however long: it is to be copied.
            text.push_str(&format!("             {}\n", paint(STRONG, command)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Vec<DoctorCheck> {
        vec![
            Subject::new(DoctorGroup::Kernel, "version").ok("6.12.1"),
            Subject::new(DoctorGroup::Modules, "ublk").warning("not loaded", "No devices.", ["modprobe ublk_drv"]),
            Subject::new(DoctorGroup::Modules, "nbd").skipped("no list"),
        ]
    }

    #[test]
    fn the_report_counts_problems_and_warnings() {
        let found = report(checks());
        assert_eq!((found.problems, found.warnings), (0, 1));
        assert_eq!(summary(&found), "No problem found, 1 warning.");
        let mut more = checks();
        more.push(Subject::new(DoctorGroup::Ports, "API").problem("taken", "No start.", ["ss -ltnp"]));
        assert_eq!(summary(&report(more)), "1 problem, 1 warning.");
        assert_eq!(summary(&report(Vec::new())), "No problem found.");
    }

    #[test]
    fn people_see_cost_and_command_of_each_warning() {
        let text = people(&report(checks()));
        let plain = anstream::adapter::strip_str(&text).to_string();
        let lines: Vec<&str> = plain.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "No problem found, 1 warning.",
                "",
                "kernel",
                "  ok       version  6.12.1",
                "",
                "modules",
                "  warning  ublk     not loaded",
                "           No devices.",
                "             modprobe ublk_drv",
                "  skipped  nbd      no list",
            ]
        );
    }

    #[test]
    fn an_empty_found_keeps_its_line() {
        let text = people(&report(vec![Subject::new(DoctorGroup::Kernel, "version").ok("")]));
        assert!(text.ends_with('\n'), "{text:?}");
    }
}

//! The daemon: its configuration, its socket, and what it reports.

use super::Subject;
use braid_api::{
    Disk, DiskList, DoctorCheck, DoctorGroup, ErrorDetail, Export, ExportList, Kind, Node, NodeList, Status,
};
use braid_client::Client;
use braid_config::paths::{braid_group, config_file};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Maximum time to wait for all replies of the daemon.
const REPLIES_MAX: Duration = Duration::from_secs(5);

/// What the daemon reports.
pub struct Reports {
    /// Its status.
    pub status: Status,
    /// The disks that it has open.
    pub disks: Vec<Disk>,
    /// Its exports.
    pub exports: Vec<Export>,
    /// The nodes of its cluster.
    pub nodes: Vec<Node>,
}

/// Whether the daemon answers at its socket.
pub enum Daemon {
    /// It does.
    Serves(Box<Reports>),
    /// It cannot be reached, or refuses.
    Fails(ErrorDetail),
    /// It accepts connections, and has not replied in time.
    Silent,
}

impl Daemon {
    /// Requests the reports from the daemon at `socket`.
    pub async fn at(socket: &Path) -> Daemon {
        let client = Client::at_socket(socket);
        let requests = async {
            let status: Status = client.get("/v1/status").await?;
            // A daemon that starts may not know these yet.
            let disks = client.get::<DiskList>("/v1/disks").await.map(|list| list.disks).unwrap_or_default();
            let exports = client.get::<ExportList>("/v1/exports").await.map(|list| list.exports).unwrap_or_default();
            let nodes = client.get::<NodeList>("/v1/nodes").await.map(|list| list.nodes).unwrap_or_default();
            Ok::<Reports, ErrorDetail>(Reports { status, disks, exports, nodes })
        };
        match tokio::time::timeout(REPLIES_MAX, requests).await {
            Ok(Ok(reports)) => Daemon::Serves(Box::new(reports)),
            Ok(Err(error)) => Daemon::Fails(error),
            Err(_) => Daemon::Silent,
        }
    }

    /// Returns the reports, if the daemon answers.
    pub fn reports(&self) -> Option<&Reports> {
        match self {
            Daemon::Serves(reports) => Some(reports),
            Daemon::Fails(_) | Daemon::Silent => None,
        }
    }
}

/// Checks that the configuration is valid. `named` is the file of the command line.
pub fn configuration(named: Option<&Path>, error: Option<&ErrorDetail>) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Daemon, "configuration");
    let path = named.map_or_else(|| config_file().0, Path::to_owned);
    match error {
        None if path.exists() => subject.ok(path.display().to_string()),
        None => subject.ok(format!("{} does not exist; the defaults apply", path.display())),
        Some(error) => {
            let found = format!("{}; {}", error.message, error.remedy);
            let edit = format!("${{EDITOR:-vi}} {}", path.display());
            subject.problem(found, "The daemon does not start with it.", [edit, "braid doctor".to_owned()])
        }
    }
}

/// Checks that the daemon answers at its socket, and who may use it.
pub fn socket(path: &Path, daemon: &Daemon) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Daemon, "socket");
    let place = path.display();
    let mode = std::fs::metadata(path).ok().map(|found| found.permissions().mode() & 0o7777);
    match daemon {
        Daemon::Serves(reports) => {
            let mode = mode.unwrap_or(0);
            let status = &reports.status;
            let found =
                format!("{place} has mode {mode:04o}; braid {} answers, process {}", status.version, status.pid);
            if mode & 0o006 != 0 {
                let impact = "Every user of this machine may do everything with its disks.";
                return subject.warning(found, impact, [format!("chmod o-rwx {place}")]);
            }
            subject.ok(found)
        }
        Daemon::Silent => {
            let found = format!("{place}: no reply within {} s", REPLIES_MAX.as_secs());
            let commands = ["systemctl status braid", "journalctl -u braid -n 50", "dmesg | tail"];
            subject.problem(found, "No command reaches the daemon.", commands)
        }
        Daemon::Fails(error) => {
            let found = error.message.clone();
            if error.kind == Kind::Unreachable && is_denied(path) {
                let command = match braid_group() {
                    Some(_) => "adduser $USER braid   # then log in again",
                    None => "groupadd --system braid && adduser $USER braid && systemctl restart braid",
                };
                return subject.problem(found, "No command of this user reaches the daemon.", [command]);
            }
            let impact = "Nothing is served: no array, no pool and no export.";
            subject.warning(found, impact, ["systemctl start braid", "braid serve   # or in the foreground"])
        }
    }
}

/// Returns whether the socket exists and this user may not connect to it.
fn is_denied(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    matches!(access(path, Access::WRITE_OK), Err(rustix::io::Errno::ACCESS))
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::{DoctorState, Limits};
    use serde_json::json;

    /// The reports of a daemon that has nothing.
    pub fn reports() -> Reports {
        let none = json!({"total": 0, "serving": 0});
        let status = json!({
            "version": "0.0.1", "pid": 7, "uptime_ms": 1, "start_ms": 1, "socket": "/s", "state_directory": "/t",
            "shards": [], "arrays": none, "exports": none, "disks": none, "connections": 0, "attention": [],
            "limits": Limits::current(),
        });
        let status = serde_json::from_value(status).expect("it is a status");
        Reports { status, disks: Vec::new(), exports: Vec::new(), nodes: Vec::new() }
    }

    #[test]
    fn a_wrong_configuration_is_a_problem() {
        let machine = Machine::new(&[("braid.toml", "")]);
        let path = machine.0.join("braid.toml");
        assert_eq!(configuration(Some(&path), None).state, DoctorState::Ok);
        let absent = configuration(Some(&machine.0.join("absent")), None);
        assert!(absent.found.contains("defaults"), "{absent:?}");
        let error =
            ErrorDetail::new(Kind::InvalidArgument, "line 1: there is no such key").remedy("a valid line: shards = 4");
        let check = configuration(Some(&path), Some(&error));
        assert_eq!(check.state, DoctorState::Problem);
        assert!(check.found.contains("line 1") && check.found.contains("shards = 4"), "{check:?}");
    }

    #[test]
    fn the_socket_answers_or_says_why_not() {
        let machine = Machine::new(&[("open.sock", ""), ("closed.sock", "")]);
        let at = |name: &str, mode: u32| {
            let path = machine.0.join(name);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
            path
        };
        let serves = Daemon::Serves(Box::new(reports()));
        let well = socket(&at("closed.sock", 0o660), &serves);
        assert_eq!(well.state, DoctorState::Ok, "{well:?}");
        assert!(well.found.contains("mode 0660") && well.found.contains("process 7"), "{well:?}");
        let open = socket(&at("open.sock", 0o666), &serves);
        assert_eq!(open.state, DoctorState::Warning, "{open:?}");
        assert!(open.commands[0].starts_with("chmod o-rwx"), "{open:?}");
        let path = machine.0.join("closed.sock");
        assert_eq!(socket(&path, &Daemon::Silent).state, DoctorState::Problem);
        let error = ErrorDetail::new(Kind::Unreachable, "no daemon listens there");
        let none = socket(&machine.0.join("absent.sock"), &Daemon::Fails(error));
        assert_eq!(none.state, DoctorState::Warning);
        assert!(none.commands[0].contains("start braid"), "{none:?}");
    }
}

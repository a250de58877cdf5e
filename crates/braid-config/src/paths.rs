//! The paths of the socket, the state and the configuration, for root and for other users.

use crate::Config;
use crate::environment::{Environment, with_environment};
use braid_api::ErrorDetail;
use std::path::{Path, PathBuf};

pub use crate::environment::config_file;

/// The paths of the daemon's state and socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPaths {
    /// The socket of the daemon's API.
    pub socket: PathBuf,
    /// The directory of the daemon's state.
    pub state: PathBuf,
}

impl DaemonPaths {
    /// Returns the paths for this user: those of the command line, else `BRAID_SOCKET` and `BRAID_STATE`, else those of the
    /// configuration, else the defaults.
    pub fn find(socket: Option<&Path>, state: Option<&Path>, config: &Config) -> DaemonPaths {
        let mut paths = with_environment(|environment| paths(environment, config));
        if let Some(socket) = socket {
            paths.socket = socket.to_owned();
        }
        if let Some(state) = state {
            paths.state = state.to_owned();
        }
        paths
    }

    /// Returns the socket of the daemon for a command that connects to it. The configuration is read only if neither the command line
    /// nor `BRAID_SOCKET` sets the socket.
    ///
    /// # Errors
    /// The errors of [`Config::load`].
    pub fn find_socket(socket: Option<&Path>) -> Result<PathBuf, ErrorDetail> {
        let named = socket
            .map(Path::to_owned)
            .or_else(|| with_environment(|environment| (environment.variable)("BRAID_SOCKET")));
        match named {
            Some(socket) => Ok(socket),
            None => Ok(DaemonPaths::find(None, None, &Config::load(None)?).socket),
        }
    }
}

fn paths(environment: &Environment<'_>, config: &Config) -> DaemonPaths {
    let var = environment.variable;
    let (socket, state) = if environment.root {
        (PathBuf::from("/run/braid/braid.sock"), PathBuf::from("/var/lib/braid"))
    } else {
        let runtime =
            var("XDG_RUNTIME_DIR").unwrap_or_else(|| std::env::temp_dir().join(format!("braid-{}", environment.uid)));
        let state = var("XDG_STATE_HOME")
            .or_else(|| var("HOME").map(|home| home.join(".local/state")))
            .unwrap_or_else(|| runtime.clone());
        (runtime.join("braid/braid.sock"), state.join("braid"))
    };
    DaemonPaths {
        socket: var("BRAID_SOCKET").or_else(|| config.socket.clone()).unwrap_or(socket),
        state: var("BRAID_STATE").or_else(|| config.state.clone()).unwrap_or(state),
    }
}

/// Returns the directory of data that survives a restart of the daemon but not a reboot: `BRAID_SHARED_MEMORY`, else a
/// directory in `/dev/shm`, one for root and one for each other user.
pub fn shared_memory_dir() -> PathBuf {
    with_environment(|environment| {
        let default_path = || match environment.root {
            true => PathBuf::from("/dev/shm/braid"),
            false => PathBuf::from(format!("/dev/shm/braid-{}", environment.uid)),
        };
        (environment.variable)("BRAID_SHARED_MEMORY").unwrap_or_else(default_path)
    })
}

/// Mode of sockets if the group `braid` exists: its members may use them.
pub const GROUP_MODE: u32 = 0o660;
/// Mode of sockets if the group `braid` does not exist: only the daemon's user may use them.
pub const OWNER_MODE: u32 = 0o600;

/// Returns the id of the group `braid`, if it exists.
pub fn braid_group() -> Option<u32> {
    group_in(&std::fs::read_to_string("/etc/group").ok()?)
}

fn group_in(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix("braid:")?.split(':').nth(1)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(root: bool, variables: &[(&str, &str)], socket: &str, state: &str) {
        check_with(&Config::default(), root, variables, socket, state);
    }

    fn check_with(config: &Config, root: bool, variables: &[(&str, &str)], socket: &str, state: &str) {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value));
        let found = paths(&Environment { root, uid: 1000, variable: &variable }, config);
        assert_eq!(found, DaemonPaths { socket: socket.into(), state: state.into() });
    }

    #[test]
    fn root_has_system_paths_and_other_users_their_own() {
        check(true, &[], "/run/braid/braid.sock", "/var/lib/braid");
        let user = [("XDG_RUNTIME_DIR", "/run/user/1000"), ("HOME", "/home/a")];
        check(false, &user, "/run/user/1000/braid/braid.sock", "/home/a/.local/state/braid");
        check(
            false,
            &[("XDG_RUNTIME_DIR", "/run/user/1000"), ("XDG_STATE_HOME", "/s"), ("HOME", "/home/a")],
            "/run/user/1000/braid/braid.sock",
            "/s/braid",
        );
    }

    #[test]
    fn group_id_is_found() {
        assert_eq!(group_in("root:x:0:\nbraids:x:7:\nbraid:x:998:alice,bob\n"), Some(998));
        assert_eq!(group_in("root:x:0:\nbraid:x:\n"), None);
    }

    #[test]
    fn environment_variables_override_the_defaults() {
        check(true, &[("BRAID_SOCKET", "/x/s"), ("BRAID_STATE", "/x/t")], "/x/s", "/x/t");
    }

    #[test]
    fn configuration_overrides_defaults_but_not_variables() {
        let config = Config { socket: Some("/c/s".into()), state: Some("/c/t".into()), ..Config::default() };
        check_with(&config, true, &[], "/c/s", "/c/t");
        check_with(&config, true, &[("BRAID_SOCKET", "/x/s")], "/x/s", "/c/t");
        check_with(&Config { state: None, ..config }, true, &[], "/c/s", "/var/lib/braid");
    }
}

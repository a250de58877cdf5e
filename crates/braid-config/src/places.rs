//! Where things are: the socket, the state, the configuration, and how a user's folders differ from root's.

use crate::Config;
use braid_api::ErrorDetail;
use std::path::{Path, PathBuf};

/// Where the state lies and the socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The socket of the daemon's API.
    pub socket: PathBuf,
    /// The folder of the daemon's state.
    pub state: PathBuf,
}

/// What of the process's surroundings decides about places.
struct Surroundings<'a> {
    root: bool,
    uid: u32,
    variable: &'a dyn Fn(&str) -> Option<PathBuf>,
}

impl Places {
    /// The places for this user: what was given on the command line, else `BRAID_SOCKET` and `BRAID_STATE`, else what
    /// the configuration says, else the usual ones.
    pub fn find(socket: Option<&Path>, state: Option<&Path>, config: &Config) -> Places {
        let mut places = with_surroundings(|around| places(around, config));
        if let Some(socket) = socket {
            places.socket = socket.to_owned();
        }
        if let Some(state) = state {
            places.state = state.to_owned();
        }
        places
    }

    /// The socket of the daemon for a command that asks it. The configuration is looked at only where neither the
    /// command line nor `BRAID_SOCKET` says it.
    ///
    /// # Errors
    /// The configuration's.
    pub fn find_socket(socket: Option<&Path>) -> Result<PathBuf, ErrorDetail> {
        let named =
            socket.map(Path::to_owned).or_else(|| with_surroundings(|around| (around.variable)("BRAID_SOCKET")));
        match named {
            Some(socket) => Ok(socket),
            None => Ok(Places::find(None, None, &Config::load(None)?).socket),
        }
    }
}

/// The configuration's file, and whether `BRAID_CONFIG` names it.
pub fn config_file() -> (PathBuf, bool) {
    with_surroundings(config_of)
}

fn with_surroundings<R>(work: impl FnOnce(&Surroundings<'_>) -> R) -> R {
    let uid = rustix::process::geteuid();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    work(&Surroundings { root: uid.is_root(), uid: uid.as_raw(), variable: &variable })
}

fn config_of(around: &Surroundings<'_>) -> (PathBuf, bool) {
    let var = around.variable;
    if let Some(named) = var("BRAID_CONFIG") {
        return (named, true);
    }
    if around.root {
        return (PathBuf::from("/etc/braid/braid.toml"), false);
    }
    let folder = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|home| home.join(".config")));
    // Without a home there is no configuration: a place where others may write would be theirs to fill.
    (folder.map_or_else(|| PathBuf::from("/dev/null"), |folder| folder.join("braid/braid.toml")), false)
}

fn places(around: &Surroundings<'_>, config: &Config) -> Places {
    let var = around.variable;
    let (socket, state) = if around.root {
        (PathBuf::from("/run/braid/braid.sock"), PathBuf::from("/var/lib/braid"))
    } else {
        let runtime =
            var("XDG_RUNTIME_DIR").unwrap_or_else(|| std::env::temp_dir().join(format!("braid-{}", around.uid)));
        let state = var("XDG_STATE_HOME")
            .or_else(|| var("HOME").map(|home| home.join(".local/state")))
            .unwrap_or_else(|| runtime.clone());
        (runtime.join("braid/braid.sock"), state.join("braid"))
    };
    Places {
        socket: var("BRAID_SOCKET").or_else(|| config.socket.clone()).unwrap_or(socket),
        state: var("BRAID_STATE").or_else(|| config.state.clone()).unwrap_or(state),
    }
}

/// The folder of what outlives the process and no boot.
pub fn shared_memory() -> PathBuf {
    with_surroundings(|around| {
        let usual = || match around.root {
            true => PathBuf::from("/dev/shm/braid"),
            false => PathBuf::from(format!("/dev/shm/braid-{}", around.uid)),
        };
        (around.variable)("BRAID_SHARED_MEMORY").unwrap_or_else(usual)
    })
}

/// Mode of sockets where the group `braid` exists: its members may use them.
pub const GROUP_MODE: u32 = 0o660;
/// Mode of sockets where it does not: only the daemon's user may.
pub const OWNER_MODE: u32 = 0o600;

/// The number of the group `braid`, where it exists.
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
        let found = places(&Surroundings { root, uid: 1000, variable: &variable }, config);
        assert_eq!(found, Places { socket: socket.into(), state: state.into() });
    }

    #[test]
    fn root_has_the_machines_places_and_others_their_own() {
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
    fn the_group_is_found() {
        assert_eq!(group_in("root:x:0:\nbraids:x:7:\nbraid:x:998:alice,bob\n"), Some(998));
        assert_eq!(group_in("root:x:0:\nbraid:x:\n"), None);
    }

    #[test]
    fn variables_override() {
        check(true, &[("BRAID_SOCKET", "/x/s"), ("BRAID_STATE", "/x/t")], "/x/s", "/x/t");
    }

    #[test]
    fn the_configuration_is_between_variables_and_the_usual_places() {
        let config = Config { socket: Some("/c/s".into()), state: Some("/c/t".into()), ..Config::default() };
        check_with(&config, true, &[], "/c/s", "/c/t");
        check_with(&config, true, &[("BRAID_SOCKET", "/x/s")], "/x/s", "/c/t");
        check_with(&Config { state: None, ..config }, true, &[], "/c/s", "/var/lib/braid");
    }

    #[test]
    fn the_configuration_has_its_place() {
        let find = |root: bool, variables: &[(&str, &str)]| {
            let variable =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value));
            let (path, named) = config_of(&Surroundings { root, uid: 1000, variable: &variable });
            (path.display().to_string(), named)
        };
        assert_eq!(find(true, &[("HOME", "/root")]), ("/etc/braid/braid.toml".into(), false));
        assert_eq!(find(false, &[("HOME", "/home/a")]), ("/home/a/.config/braid/braid.toml".into(), false));
        let user = [("HOME", "/home/a"), ("XDG_CONFIG_HOME", "/c")];
        assert_eq!(find(false, &user), ("/c/braid/braid.toml".into(), false));
        assert_eq!(find(true, &[("BRAID_CONFIG", "/x.toml")]), ("/x.toml".into(), true));
        assert_eq!(find(false, &[]), ("/dev/null".into(), false));
    }
}

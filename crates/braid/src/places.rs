//! Where things are: the socket, the state, and how a user's folders differ from root's.

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
    /// The places for this user, with `BRAID_SOCKET` and `BRAID_STATE` respected, and above those what was
    /// given on the command line.
    pub fn find(socket: Option<&Path>, state: Option<&Path>) -> Places {
        let uid = rustix::process::geteuid();
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let mut places = defaults(&Surroundings { root: uid.is_root(), uid: uid.as_raw(), variable: &variable });
        if let Some(socket) = socket {
            places.socket = socket.to_owned();
        }
        if let Some(state) = state {
            places.state = state.to_owned();
        }
        places
    }
}

fn defaults(around: &Surroundings<'_>) -> Places {
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
    Places { socket: var("BRAID_SOCKET").unwrap_or(socket), state: var("BRAID_STATE").unwrap_or(state) }
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
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value));
        let places = defaults(&Surroundings { root, uid: 1000, variable: &variable });
        assert_eq!(places, Places { socket: socket.into(), state: state.into() });
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
}

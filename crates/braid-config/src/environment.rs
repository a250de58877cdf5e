//! The environment of the process, as far as paths depend on it, and the path of the configuration file.

use std::path::PathBuf;

/// The properties of the process that determine the paths.
pub(crate) struct Environment<'a> {
    /// Whether the user is root.
    pub root: bool,
    /// The id of the user.
    pub uid: u32,
    /// Returns a variable, unless it is unset or empty.
    pub variable: &'a dyn Fn(&str) -> Option<PathBuf>,
}

/// Returns the path of the configuration file, and whether `BRAID_CONFIG` names it.
pub fn config_file() -> (PathBuf, bool) {
    with_environment(config_path)
}

/// Calls `work` with the environment of this process.
pub(crate) fn with_environment<R>(work: impl FnOnce(&Environment<'_>) -> R) -> R {
    let uid = rustix::process::geteuid();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    work(&Environment { root: uid.is_root(), uid: uid.as_raw(), variable: &variable })
}

fn config_path(environment: &Environment<'_>) -> (PathBuf, bool) {
    let var = environment.variable;
    if let Some(named) = var("BRAID_CONFIG") {
        return (named, true);
    }
    if environment.root {
        return (PathBuf::from("/etc/braid/braid.toml"), false);
    }
    let directory = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|home| home.join(".config")));
    // Without a home directory there is no configuration: other users could write one in a shared directory.
    (directory.map_or_else(|| PathBuf::from("/dev/null"), |directory| directory.join("braid/braid.toml")), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_file_path_depends_on_the_user() {
        let find = |root: bool, variables: &[(&str, &str)]| {
            let variable =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value));
            let (path, named) = config_path(&Environment { root, uid: 1000, variable: &variable });
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

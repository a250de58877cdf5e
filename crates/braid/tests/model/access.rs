//! How clients access an export. The seed decides, with random numbers of its own, so that all other choices stay the same.

use std::path::Path;

use crate::dice::Dice;
use crate::file_client::OpenMode;
use crate::support::need_root;

/// Separates the random numbers of files from all others.
const SALT: u64 = u64::from_le_bytes(*b"by_files");

/// How the clients of a scenario access an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Over NBD, and now and then through a file, one request at a time.
    Nbd,
    /// Over NBD and through a file, with requests in flight.
    File,
    /// Over NBD, and mostly through loop devices on a file.
    Loop,
    /// Over NBD, through a file and through loop devices on it, with daemons whose service manager stores the
    /// descriptors of files.
    ServiceManager,
}

impl Access {
    /// Returns the access of a seed: about one in four through a file, one in four through loop devices; scenarios of
    /// three nodes use NBD only.
    ///
    /// A service manager is used only on request: this process keeps the descriptors, uses the files, and starts
    /// daemons. A child process that it starts while no daemon runs closes the files before it executes its program,
    /// and that waits for the daemon, which may be this very child.
    pub fn of(seed: u64) -> Access {
        if crate::kind(seed) == crate::nodes::KIND {
            return Access::Nbd;
        }
        let only = std::env::var("BRAID_MODEL_CLIENTS").unwrap_or_default();
        let if_named = |access: Access| if only == access.name() { access } else { Access::Nbd };
        let all = [Access::Nbd, Access::File, Access::Loop, if_named(Access::ServiceManager)];
        all[((seed + seed / 8 + seed / 32) % 4) as usize]
    }

    /// Returns its name in `BRAID_MODEL_CLIENTS`.
    pub fn name(self) -> &'static str {
        match self {
            Access::Nbd => "nbd",
            Access::File => "file",
            Access::Loop => "loop",
            Access::ServiceManager => "kept",
        }
    }

    /// Panics with the reason if such a scenario cannot run here; there is no silent skip.
    pub fn require(self) {
        if self == Access::Nbd {
            return;
        }
        need_root();
        let need = |path: &str, what: &str| {
            let left_out = "BRAID_MODEL_CLIENTS=nbd runs the scenarios that need neither";
            assert!(Path::new(path).exists(), "this test uses {what}, and {path} is not there; {left_out}");
        };
        need("/dev/fuse", "exports as files");
        if self != Access::File {
            need("/dev/loop-control", "loop devices");
        }
    }
}

/// The access of one scenario, and its choices.
pub struct AccessChoices {
    pub access: Access,
    dice: Dice,
}

impl AccessChoices {
    pub fn new(seed: u64) -> AccessChoices {
        AccessChoices { access: Access::of(seed), dice: Dice::new(seed ^ SALT) }
    }

    /// Returns whether clients use files with requests in flight.
    pub fn has_files(&self) -> bool {
        self.access != Access::Nbd
    }

    /// Returns whether an export gets a file, if the scenario has not given it one.
    pub fn adds_file(&mut self, is_snapshot: bool) -> bool {
        self.has_files() && (!is_snapshot || self.dice.one_in(2))
    }

    /// Returns whether the next client uses the file.
    pub fn by_file(&mut self) -> bool {
        self.has_files() && self.dice.one_in(2)
    }

    /// Returns whether the next disconnect removes the file, and not an NBD connection.
    pub fn breaks_file(&mut self) -> bool {
        self.has_files() && self.dice.one_in(6)
    }

    /// Returns how the next client through a file opens it.
    pub fn open_mode(&mut self, writes: bool) -> OpenMode {
        let by_loop = match self.access {
            Access::Nbd | Access::File => false,
            Access::Loop => !self.dice.one_in(4),
            Access::ServiceManager => self.dice.one_in(2),
        };
        let sector = if by_loop { Some(*self.dice.pick(&[512, 4096])) } else { None };
        OpenMode { sector, direct: by_loop || self.dice.one_in(2), writes }
    }
}

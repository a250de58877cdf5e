//! How clients come to what is exported: the seed says so, and choices about it have dice of their own, so that others stay as they were.

use std::path::Path;

use crate::dice::Dice;
use crate::opener::Manner;
use crate::support::need_root;

/// What makes the dice of files unlike those of everything else.
const SALT: u64 = u64::from_le_bytes(*b"by_files");

/// How clients of a life come to what is exported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By NBD, and now and then by a file, one request at a time.
    Nbd,
    /// By NBD and by a file, with requests under way.
    File,
    /// By NBD, and mostly by loop devices on a file.
    Loop,
    /// By NBD, a file and loop devices on it, of daemons that have a service manager, which keeps files.
    Kept,
}

impl Way {
    /// The way of a seed: about one in four is by a file, one in four by loop devices; lives of three nodes are by NBD only.
    ///
    /// A service manager only where it is asked for by name: this process keeps the channels, uses the files, and starts daemons. A child
    /// that it starts while no daemon is there closes the files before it becomes another program, which waits for the daemon: that may be
    /// this very child.
    pub fn of(seed: u64) -> Way {
        if crate::kind(seed) == crate::nodes::KIND {
            return Way::Nbd;
        }
        let only = std::env::var("BRAID_MODEL_CLIENTS").unwrap_or_default();
        let by_name = |way: Way| if only == way.word() { way } else { Way::Nbd };
        let ways = [Way::Nbd, Way::File, Way::Loop, by_name(Way::Kept)];
        ways[((seed + seed / 8 + seed / 32) % 4) as usize]
    }

    /// As `BRAID_MODEL_CLIENTS` names it.
    pub fn word(self) -> &'static str {
        match self {
            Way::Nbd => "nbd",
            Way::File => "file",
            Way::Loop => "loop",
            Way::Kept => "kept",
        }
    }

    /// Says why such a life cannot be had here; there is no silent skip.
    pub fn need(self) {
        if self == Way::Nbd {
            return;
        }
        need_root();
        let need = |path: &str, what: &str| {
            let left_out = "BRAID_MODEL_CLIENTS=nbd runs the lives that need neither";
            assert!(Path::new(path).exists(), "this test uses {what}, and {path} is not there; {left_out}");
        };
        need("/dev/fuse", "exports as files");
        if self != Way::File {
            need("/dev/loop-control", "loop devices");
        }
    }
}

/// The way of one life, and its choices.
pub struct Ways {
    pub way: Way,
    dice: Dice,
}

impl Ways {
    pub fn new(seed: u64) -> Ways {
        Ways { way: Way::of(seed), dice: Dice::new(seed ^ SALT) }
    }

    /// Whether clients use files with requests under way.
    pub fn has_files(&self) -> bool {
        self.way != Way::Nbd
    }

    /// Whether an export gets a file that has none by the life's own choice.
    pub fn adds_file(&mut self, is_snapshot: bool) -> bool {
        self.has_files() && (!is_snapshot || self.dice.one_in(2))
    }

    /// Whether the next client comes by the file.
    pub fn by_file(&mut self) -> bool {
        self.has_files() && self.dice.one_in(2)
    }

    /// Whether a break is one of the file, and not of a connection.
    pub fn breaks_file(&mut self) -> bool {
        self.has_files() && self.dice.one_in(6)
    }

    /// How the next client by a file opens it.
    pub fn manner(&mut self, writes: bool) -> Manner {
        let by_loop = match self.way {
            Way::Nbd | Way::File => false,
            Way::Loop => !self.dice.one_in(4),
            Way::Kept => self.dice.one_in(2),
        };
        let sector = if by_loop { Some(*self.dice.pick(&[512, 4096])) } else { None };
        Manner { sector, direct: by_loop || self.dice.one_in(2), writes }
    }
}

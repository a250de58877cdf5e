//! Modules of the kernel: loaded, installed, and usable through their device files.

use super::Subject;
use super::system::System;
use braid_api::{DoctorCheck, DoctorGroup};
use braid_host::kernel_nbd;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::path::Path;

/// A module, and what Braid uses it for.
pub struct Module {
    /// The name of the check.
    name: &'static str,
    /// The name of the module.
    module: &'static str,
    /// Its device file, below `/dev`.
    node: &'static str,
    /// What does not work without it.
    impact: &'static str,
}

/// The kernel's driver for block devices in user space.
pub const UBLK: Module = Module {
    name: "ublk",
    module: "ublk_drv",
    node: "ublk-control",
    impact: "Nothing can be exported as a block device (--ublk); --nbd works.",
};
/// File systems in user space.
pub const FUSE: Module = Module {
    name: "fuse",
    module: "fuse",
    node: "fuse",
    impact: "Nothing can be exported as a file (--fuse); --nbd works.",
};
/// The kernel's NBD client.
pub const NBD: Module = Module {
    name: "nbd",
    module: "nbd",
    node: "nbd0",
    impact: "`braid mount` cannot use NBD, and this machine cannot attach exports with nbd-client.",
};
/// Block devices of files.
pub const LOOP: Module = Module {
    name: "loop",
    module: "loop",
    node: "loop-control",
    impact: "`braid mount --via fuse` does not work, and no file can be made a block device (losetup).",
};

/// Opens the control device of ublk, and returns the features of the driver in words.
pub fn try_ublk() -> Result<String, String> {
    let control = braid_ublk::Control::open().map_err(|error| error.to_string())?;
    Ok(control.features().words().join(", "))
}

/// Opens a channel of FUSE.
pub fn try_fuse() -> Result<String, String> {
    braid_fuse::mount::probe().map(|()| String::new()).map_err(|error| format!("/dev/fuse: {error}"))
}

/// Connects to the kernel's NBD client.
pub fn try_nbd() -> Result<String, String> {
    kernel_nbd::check_available().map(|()| String::new()).map_err(|error| error.to_string())
}

impl Module {
    fn is_loaded(&self, system: &System) -> bool {
        system.sys.join("module").join(self.module).is_dir()
    }

    /// Returns whether the running kernel has the module, built in or as a file.
    fn is_installed(&self, system: &System) -> Option<bool> {
        let folder = system.modules.join(system.release()?);
        let text = |name: &str| super::system::text(&folder.join(name));
        let (files, built_in) = (text("modules.dep"), text("modules.builtin"));
        if files.is_none() && built_in.is_none() {
            return None;
        }
        let file = format!("/{}.ko", self.module);
        Some([files, built_in].iter().flatten().any(|text| text.contains(&file)))
    }

    /// Checks the module. `trial` is the outcome of using it: the features or the error; `None` if it was not used.
    pub fn check(&self, system: &System, trial: Option<Result<String, String>>) -> DoctorCheck {
        let subject = Subject::new(DoctorGroup::Modules, self.name);
        let node = system.dev.join(self.node);
        let is_loaded = self.is_loaded(system);
        if let Some(Ok(features)) = &trial {
            let features = if features.is_empty() { String::new() } else { format!(", with {features}") };
            return subject.ok(format!("{} works{features}", self.module));
        }
        let accessible = access(&node, Access::READ_OK | Access::WRITE_OK);
        if trial.is_none() && accessible.is_ok() {
            return subject.ok(format!("{} exists", node.display()));
        }
        if is_denied(&node, accessible) {
            let found = format!("{} exists, and this user may not open it", node.display());
            return subject.warning(found, self.impact, ["sudo braid doctor", "systemctl start braid   # as root"]);
        }
        if let (Some(Err(why)), true) = (&trial, node.exists()) {
            let found = format!("{} exists, but: {why}", node.display());
            let list = format!("ls -l {}", node.display());
            return subject.warning(found, self.impact, [list, "sudo braid doctor".to_owned()]);
        }
        let load =
            [format!("modprobe {}", self.module), format!("echo {} >> /etc/modules-load.d/braid.conf", self.module)];
        if is_loaded {
            let why = match trial {
                Some(Err(error)) => error,
                _ => format!("{} is missing", node.display()),
            };
            let reload = [format!("modprobe -r {}", self.module), format!("modprobe {}", self.module)];
            return subject.warning(format!("{} is loaded, but: {why}", self.module), self.impact, reload);
        }
        match self.is_installed(system) {
            Some(true) => subject.warning(format!("{} is not loaded", self.module), self.impact, load),
            Some(false) => {
                let install = "apt install linux-modules-extra-$(uname -r)".to_owned();
                let found = format!("this kernel has no module {}", self.module);
                subject.warning(found, self.impact, [install, format!("modprobe {}", self.module)])
            }
            None => {
                let found =
                    format!("{} is not loaded, and {} has no list of modules", self.module, system.modules.display());
                subject.warning(found, self.impact, load)
            }
        }
    }
}

fn is_denied(node: &Path, accessible: Result<(), Errno>) -> bool {
    matches!(accessible, Err(Errno::ACCESS | Errno::PERM)) && node.exists()
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::DoctorState;

    const RELEASE: (&str, &str) = ("proc/sys/kernel/osrelease", "6.12.1\n");

    #[test]
    fn a_module_that_works_is_well() {
        let machine = Machine::new(&[RELEASE, ("sys/module/ublk_drv/refcnt", "0"), ("dev/ublk-control", "")]);
        let check = UBLK.check(&machine.system(), Some(Ok("user_recovery".to_owned())));
        assert_eq!((check.state, check.found.as_str()), (DoctorState::Ok, "ublk_drv works, with user_recovery"));
        let machine = Machine::new(&[RELEASE, ("dev/loop-control", "")]);
        assert_eq!(LOOP.check(&machine.system(), None).state, DoctorState::Ok);
        let machine = Machine::new(&[RELEASE, ("dev/fuse", "")]);
        let check = FUSE.check(&machine.system(), Some(Err("not permitted".to_owned())));
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.ends_with("exists, but: not permitted"), "{check:?}");
    }

    #[test]
    fn a_module_that_is_installed_is_to_be_loaded() {
        let dep =
            ("modules/6.12.1/modules.dep", "kernel/drivers/block/ublk_drv.ko.xz:\nkernel/drivers/block/nbd.ko:\n");
        let machine = Machine::new(&[RELEASE, dep]);
        let system = machine.system();
        let check = UBLK.check(&system, Some(Err("it is not there".to_owned())));
        assert_eq!(check.state, DoctorState::Warning);
        assert_eq!(check.commands[0], "modprobe ublk_drv");
        assert!(check.found.contains("not loaded") && check.impact.contains("--ublk"), "{check:?}");
        assert_eq!(NBD.check(&system, Some(Err("no".to_owned()))).commands[0], "modprobe nbd");
        let check = FUSE.check(&system, Some(Err("no".to_owned())));
        assert!(check.found.contains("has no module fuse"), "{check:?}");
        assert!(check.commands[0].contains("linux-modules-extra"), "{check:?}");
    }

    #[test]
    fn a_loaded_module_without_its_device_file_says_so() {
        let machine = Machine::new(&[RELEASE, ("sys/module/loop/refcnt", "0")]);
        let check = LOOP.check(&machine.system(), None);
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.contains("loaded, but") && check.found.contains("loop-control"), "{check:?}");
    }

    #[test]
    fn without_a_list_of_modules_loading_is_proposed() {
        let check = NBD.check(&Machine::new(&[RELEASE]).system(), Some(Err("no".to_owned())));
        assert!(check.found.contains("no list of modules"), "{check:?}");
        assert_eq!(check.commands[0], "modprobe nbd");
    }
}

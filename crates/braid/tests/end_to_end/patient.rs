//! fio that writes and verifies through kills of the daemon: nbdkit's retry filter repeats requests that got no reply.

use crate::support::*;

/// An fio run that does not notice when its server was down.
pub struct PatientFio {
    pub fio: Running,
    _nbdkit: Running,
}

impl PatientFio {
    pub fn start(daemon: &Daemon, uri: &str) -> PatientFio {
        let between = daemon.folder.join("retry.nbd");
        let mut nbdkit = command("nbdkit");
        nbdkit.args(["-f", "-U", &between, "--filter=retry", "nbd", &format!("uri={uri}")]);
        nbdkit.args(["retries=60", "retry-delay=1", "retry-exponential=no"]);
        let nbdkit = Running::start(&daemon.folder, "nbdkit", &mut nbdkit);
        wait_for("nbdkit's socket", || std::fs::metadata(&between).ok());
        let mut fio = command("fio");
        fio.args(["--name=writer", "--ioengine=nbd", &format!("--uri=nbd+unix:///?socket={between}")]);
        // Slow enough to be interrupted in the middle, and writes each block several times.
        fio.args(["--rw=randwrite", "--bssplit=4k/70:16k/20:64k/10", "--iodepth=8", "--size=16M", "--io_size=40M"]);
        fio.args(["--rate_iops=500", "--norandommap", "--randseed=11", "--fsync=64", "--serialize_overlap=1"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--verify_backlog=128"]);
        fio.arg("--do_verify=1");
        PatientFio { fio: Running::start(&daemon.folder, "fio", &mut fio), _nbdkit: nbdkit }
    }

    /// Checks that fio has ended and found what it wrote.
    #[track_caller]
    pub fn succeeds(&mut self) {
        assert!(self.fio.wait().success() && self.fio.log().contains("err= 0"), "{}", self.fio.log());
    }
}

//! Clocks: that of this machine, and those of other nodes.

use super::Subject;
use braid_api::{Attention, AttentionCode, DoctorCheck, DoctorGroup};
use braid_ring::ClockState;
use std::io;

const SYNCHRONISE: [&str; 2] = ["timedatectl set-ntp true", "timedatectl timesync-status"];

/// Checks that a time service keeps the clock. `state` is the kernel's.
pub fn synchronised(state: io::Result<ClockState>) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Clocks, "clock");
    match state {
        Err(error) => subject.skipped(format!("the kernel does not say whether it is synchronised: {error}")),
        Ok(state) if state.is_synchronised => {
            subject.ok(format!("synchronised, within {} ms", state.max_error_us.div_ceil(1000)))
        }
        Ok(_) => {
            let impact = "Certificates of nodes may count as expired or not valid yet, and times of events are wrong.";
            subject.warning("not synchronised by any time service", impact, SYNCHRONISE)
        }
    }
}

/// Checks that the clocks of other nodes agree with this one, by what the daemon says. `node` is its name in the cluster.
pub fn other_nodes(attention: Option<(&[Attention], Option<&str>)>) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Clocks, "clocks of other nodes");
    let (attention, node) = match attention {
        None => return subject.skipped("no daemon answers"),
        Some((_, None)) => return subject.skipped("the daemon belongs to no cluster"),
        Some((attention, Some(node))) => (attention, node),
    };
    let differ: Vec<&str> = attention
        .iter()
        .filter(|item| item.code == AttentionCode::NodeClockDiffers)
        .map(|item| item.message.as_str())
        .collect();
    if differ.is_empty() {
        return subject.ok(format!("node {node} has found no difference"));
    }
    let impact = "Certificates of nodes may be refused, and scheduled snapshots come at other times than meant.";
    subject.warning(differ.join("; "), impact, SYNCHRONISE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::DoctorState;

    #[test]
    fn a_clock_that_no_service_sets_is_warned_of() {
        let state = |is_synchronised| Ok(ClockState { is_synchronised, max_error_us: 12_345 });
        let well = synchronised(state(true));
        assert_eq!((well.state, well.found.as_str()), (DoctorState::Ok, "synchronised, within 13 ms"));
        assert_eq!(synchronised(state(false)).state, DoctorState::Warning);
        let forbidden = synchronised(Err(io::Error::from(io::ErrorKind::PermissionDenied)));
        assert_eq!(forbidden.state, DoctorState::Skipped);
    }

    #[test]
    fn differences_that_the_daemon_reports_are_shown() {
        assert_eq!(other_nodes(None).state, DoctorState::Skipped);
        assert_eq!(other_nodes(Some((&[], None))).state, DoctorState::Skipped);
        assert_eq!(other_nodes(Some((&[], Some("one")))).state, DoctorState::Ok);
        let item = |code| Attention {
            code,
            subject: "node two".to_owned(),
            message: "the clocks of node two and of this one differ by 60 s".to_owned(),
            impact: String::new(),
            remedy: String::new(),
            commands: Vec::new(),
        };
        let check = other_nodes(Some((&[item(AttentionCode::NodeClockDiffers)], Some("one"))));
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.contains("60 s"), "{check:?}");
        assert_eq!(other_nodes(Some((&[item(AttentionCode::DiskHangs)], Some("one")))).state, DoctorState::Ok);
    }
}

//! Servers of disks that are away: they are asked, ever more seldom, whether they are there again.
//!
//! A file that has gone is seen to be there again; a server has to be connected to. A member returns by itself when that is
//! possible, unless nobody knows what its server may do yet: one that was given up with writes is for its user to add.

use super::super::Control;
use super::super::tables::{Condition, Tables};
use super::away::AwayDisk;
use braid_api::{ArrayState, Assemble};
use braid_host::open::open_disk;
use braid_ring::{DiskSpec, OpenOptions};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Between two questions: at first, and at most.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A server that was not asked for so long has been well.
const WELL: Duration = Duration::from_secs(300);

/// When servers are asked again, by their disks' names.
#[derive(Default)]
pub(in super::super) struct Questions(BTreeMap<String, Question>);

struct Question {
    /// It was asked, and has not answered.
    asked: bool,
    wait: Duration,
    next: Instant,
}

impl Questions {
    /// Whether it is time to ask for a disk; then it counts as asked.
    fn is_due(&mut self, disk: &str, now: Instant) -> bool {
        self.0.retain(|_, question| question.asked || now < question.next + WELL);
        let new = || Question { asked: false, wait: WAIT.0, next: now };
        let question = self.0.entry(disk.to_owned()).or_insert_with(new);
        let due = !question.asked && now >= question.next;
        question.asked |= due;
        due
    }

    /// It has answered, or not. A server that comes and goes is asked more seldom, too.
    fn ended(&mut self, disk: &str, now: Instant) {
        if let Some(question) = self.0.get_mut(disk) {
            (question.asked, question.next) = (false, now + question.wait);
            question.wait = (2 * question.wait).min(WAIT.1);
        }
    }
}

impl Control {
    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the servers of members that are away, where it is time: one that answers has its disk return.
    pub(super) fn ask_for_members(self: &Arc<Self>, away: Vec<AwayDisk>) {
        for (uuid, role, spec) in away {
            let disk = spec.to_string();
            if !self.questions().is_due(&disk, Instant::now()) {
                continue;
            }
            let control = Arc::clone(self);
            tokio::spawn(async move {
                match control.open_disk(spec, Duration::from_secs(1)).await {
                    Ok(disk) => {
                        if control.return_disk(uuid, disk).await.is_err() {
                            control.do_not_ask(uuid, role);
                        }
                    }
                    Err(error) => tracing::debug!("member {role} does not return: {}", error.message),
                }
                control.questions().ended(&disk, Instant::now());
            });
        }
    }

    /// What is on a disk does not fit: asking again would tell nothing new.
    fn do_not_ask(&self, uuid: Uuid, role: u16) {
        if let Some(Condition::Active(active)) = self.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition)
            && let Some(away) = active.away.get_mut(&role)
        {
            away.gone = false;
        }
    }

    /// Asks the servers of disks that arrays wait for which cannot start, where it is time. One that answers makes all that wait be
    /// looked at again.
    pub(super) fn ask_for_waiting(self: &Arc<Self>) {
        for spec in waited_for(&self.read()) {
            let disk = spec.to_string();
            if !self.questions().is_due(&disk, Instant::now()) {
                continue;
            }
            let control = Arc::clone(self);
            tokio::spawn(async move {
                let (looked, name) = (spec, disk.clone());
                let look = move || open_disk(&looked, &name, OpenOptions { exclusive: false, write: false }).is_ok();
                if matches!(tokio::task::spawn_blocking(look).await, Ok(true))
                    && let Err(error) = control.assemble(Assemble::default()).await
                {
                    tracing::warn!("{}", error.message);
                }
                control.questions().ended(&disk, Instant::now());
            });
        }
    }
}

/// The disks of servers that belong to arrays of which too little was found, or nothing.
fn waited_for(tables: &Tables) -> Vec<DiskSpec> {
    let waits = |uuid: &Uuid| match tables.arrays.get(uuid).map(|entry| &entry.condition) {
        Some(Condition::Idle(idle)) => idle.state == ArrayState::Incomplete,
        Some(Condition::Active(_)) => false,
        None => true,
    };
    let saved = tables.disks.values().filter(|saved| waits(&saved.array));
    saved.filter_map(|saved| DiskSpec::parse(&saved.disk).ok()).filter(|spec| spec.remote().is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_ever_more_seldom() {
        let mut questions = Questions::default();
        let start = Instant::now();
        let (mut asked, mut last) = (Vec::new(), 0);
        for second in 0..120 {
            let now = start + Duration::from_secs(second);
            if questions.is_due("disk", now) {
                assert!(!questions.is_due("disk", now), "one question at a time");
                asked.push(second - last);
                last = second;
                questions.ended("disk", now);
            }
        }
        assert_eq!(asked, [0, 1, 2, 4, 8, 16, 30, 30]);
        // Whoever has been well for long is asked at once.
        let later = start + Duration::from_secs(1000);
        assert!(questions.is_due("disk", later));
        questions.ended("disk", later);
        assert!(questions.is_due("disk", later + Duration::from_secs(1)));
    }
}

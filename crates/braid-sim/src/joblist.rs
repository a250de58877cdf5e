//! The jobs of arrays, as their keepers tell of them, and whether what they tell makes sense.

use std::collections::BTreeMap;

use braid_engine::io::DeviceId;
use braid_engine::keeper::{JobInfo, JobStage};

use crate::oracle::Violation;

/// What is known of the jobs of all arrays that serve.
#[derive(Default)]
pub struct JobList {
    jobs: BTreeMap<u32, BTreeMap<u64, JobInfo>>,
}

impl JobList {
    /// A keeper tells of a job.
    ///
    /// # Errors
    /// What it tells cannot be.
    pub fn told(&mut self, device: DeviceId, info: &JobInfo) -> Result<(), Violation> {
        let wrong = |why: &str| Err(Violation(format!("device {} tells of a job that {why}: {info:?}", device.0)));
        if info.done_bytes > info.total_bytes {
            return wrong("has done more than there is");
        }
        let of = self.jobs.entry(device.0).or_default();
        let newest = of.last_key_value().map_or(0, |(number, _)| *number);
        match of.get(&info.number) {
            None if info.number <= newest => return wrong("has a number that was used before"),
            Some(before) if before.stage.is_over() => return wrong("has ended before"),
            Some(before) if (before.kind, before.member) != (info.kind, info.member) => {
                return wrong("was another one");
            }
            _ => {}
        }
        of.insert(info.number, info.clone());
        Ok(())
    }

    /// The newest job of a device.
    pub fn newest(&self, device: DeviceId) -> Option<&JobInfo> {
        self.jobs.get(&device.0)?.last_key_value().map(|(_, info)| info)
    }

    /// A job, whether it has ended or not.
    pub fn job(&self, device: DeviceId, number: u64) -> Option<&JobInfo> {
        self.jobs.get(&device.0)?.get(&number)
    }

    /// The jobs of a device that have not ended.
    pub fn of(&self, device: DeviceId) -> Vec<JobInfo> {
        let all = self.jobs.get(&device.0).into_iter().flat_map(BTreeMap::values);
        all.filter(|info| !info.stage.is_over()).cloned().collect()
    }

    /// Those of them that wait for a person.
    pub fn paused(&self, device: DeviceId) -> Vec<u64> {
        self.of(device).iter().filter(|info| info.stage == JobStage::Paused).map(|info| info.number).collect()
    }

    /// Another array may get the number.
    pub fn forget(&mut self, device: DeviceId) {
        self.jobs.remove(&device.0);
    }

    /// The process is gone.
    pub fn clear(&mut self) {
        self.jobs.clear();
    }
}

//! The jobs of arrays as their reconcilers report them, and a check that the reports are consistent.

use std::collections::BTreeMap;

use braid_array_admin::reconciler::{JobInfo, JobStage};
use braid_engine::io::DeviceId;

use crate::oracle::Violation;

/// The jobs of all arrays that serve.
#[derive(Default)]
pub struct JobList {
    jobs: BTreeMap<u32, BTreeMap<u64, JobInfo>>,
}

impl JobList {
    /// Records a report of a reconciler about a job.
    ///
    /// # Errors
    /// The report contradicts earlier ones or itself.
    pub fn report(&mut self, device: DeviceId, info: &JobInfo) -> Result<(), Violation> {
        let wrong = |why: &str| Err(Violation(format!("device {} reports a job that {why}: {info:?}", device.0)));
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

    /// Returns the newest job of a device.
    pub fn newest(&self, device: DeviceId) -> Option<&JobInfo> {
        self.jobs.get(&device.0)?.last_key_value().map(|(_, info)| info)
    }

    /// Returns a job, whether it has ended or not.
    pub fn job(&self, device: DeviceId, number: u64) -> Option<&JobInfo> {
        self.jobs.get(&device.0)?.get(&number)
    }

    /// Returns the jobs of a device that have not ended.
    pub fn of(&self, device: DeviceId) -> Vec<JobInfo> {
        let all = self.jobs.get(&device.0).into_iter().flat_map(BTreeMap::values);
        all.filter(|info| !info.stage.is_over()).cloned().collect()
    }

    /// Returns the numbers of the jobs of a device that are paused.
    pub fn paused(&self, device: DeviceId) -> Vec<u64> {
        self.of(device).iter().filter(|info| info.stage == JobStage::Paused).map(|info| info.number).collect()
    }

    /// Forgets the jobs of a device: another array may get its number.
    pub fn forget(&mut self, device: DeviceId) {
        self.jobs.remove(&device.0);
    }

    /// Forgets all jobs: the process has ended.
    pub fn clear(&mut self) {
        self.jobs.clear();
    }
}

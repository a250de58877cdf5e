//! Disks that were gone and are there again: members return by themselves, and arrays that waited for them start.

use super::super::Control;
use super::super::tables::{Active, Away, Condition};
use braid_api::{ArrayState, Assemble};
use braid_engine::lifecycle;
use braid_host::host::Entry;
use braid_ring::DiskSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Longest that looking at paths may take; what does not answer by then is looked at again later.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A member that is away, and where its disk was.
pub(super) type AwayDisk = (Uuid, u16, DiskSpec);

impl Control {
    /// Looks once for members that arrays wait for: who was not there and is now makes all arrays that wait be looked at
    /// again.
    pub(in super::super) async fn watch_waiting(self: &Arc<Self>, absent: &mut BTreeSet<String>) {
        self.ask_for_waiting();
        let waited: BTreeMap<String, DiskSpec> = {
            let tables = self.read();
            let waits = |uuid: &Uuid| match tables.arrays.get(uuid).map(|entry| &entry.condition) {
                Some(Condition::Idle(idle)) if idle.state == ArrayState::Incomplete => {
                    idle.label.as_ref().is_some_and(|label| lifecycle::is_redundant(label.spec.level))
                }
                _ => false,
            };
            let saved = tables.disks.values().filter(|saved| waits(&saved.array));
            let saved = saved.filter_map(|saved| Some((saved.disk.clone(), DiskSpec::parse(&saved.disk).ok()?)));
            saved.filter(|(_, spec)| spec.remote().is_none()).collect()
        };
        if waited.is_empty() {
            return absent.clear();
        }
        let looked = tokio::task::spawn_blocking(move || {
            let there = |spec: &DiskSpec| spec.path().is_some_and(std::path::Path::exists);
            waited.into_iter().filter(|(_, spec)| !there(spec)).map(|(name, _)| name).collect::<BTreeSet<_>>()
        });
        let Ok(Ok(now)) = tokio::time::timeout(LOOK_MAX, looked).await else { return };
        let appeared = absent.iter().any(|name| !now.contains(name));
        *absent = now;
        if appeared {
            let control = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = control.assemble(Assemble::default()).await {
                    tracing::warn!("{}", error.message);
                }
            });
        }
    }

    /// Looks once for disks that had gone.
    pub(in super::super) async fn watch_away(self: &Arc<Self>) {
        let (far, away): (Vec<_>, Vec<_>) = self.away().into_iter().partition(|away| away.2.remote().is_some());
        self.ask_for_members(far);
        if away.is_empty() {
            return;
        }
        // A path may lie on a file system that does not answer.
        let looked = tokio::task::spawn_blocking(move || {
            away.into_iter().map(|away| (away.2.path().and_then(Entry::of), away)).collect::<Vec<_>>()
        });
        let Ok(Ok(looked)) = tokio::time::timeout(LOOK_MAX, looked).await else { return };
        for (uuid, role, spec) in self.appeared(looked) {
            let control = Arc::clone(self);
            tokio::spawn(async move {
                // A disk that somebody else uses, or that is not ready yet, is tried again when it has gone and come.
                match control.open_disk(spec, Duration::from_secs(1)).await {
                    Ok(disk) => drop(control.return_disk(uuid, disk).await),
                    Err(error) => tracing::warn!("member {role} does not return: {}", error.message),
                }
            });
        }
    }

    /// Members without a disk that was let go of entirely; those with a server only if they are to return by themselves.
    fn away(&self) -> Vec<AwayDisk> {
        // The lock order of `on_recorded`: a disk that is seen as away is also seen as leaving, until it is closed.
        let tables = self.read();
        let leaving: Vec<String> =
            self.leaving.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let serving = |active: &&Active| active.keeping().is_some() && !active.has_failed();
        let active = tables.arrays.values().filter_map(|e| Some((e.uuid, e.active().filter(serving)?)));
        let away = active.flat_map(|(uuid, active)| active.away.iter().map(move |(role, away)| (uuid, *role, away)));
        let away = away.filter(|(_, _, away)| !away.disk.is_empty() && !leaving.contains(&away.disk));
        let spec = |away: &Away| DiskSpec::parse(&away.disk).ok().filter(|spec| away.gone || spec.remote().is_none());
        away.filter_map(|(uuid, role, away)| Some((uuid, role, spec(away)?))).collect()
    }

    /// Of these, those that had gone and are there again: they were not there at the look before, or something else is at
    /// their place. Each is told of once.
    fn appeared(&self, looked: Vec<(Option<Entry>, AwayDisk)>) -> Vec<AwayDisk> {
        let mut tables = self.write();
        let mut appeared = Vec::new();
        for (entry, (uuid, role, spec)) in looked {
            let Some(Condition::Active(active)) = tables.arrays.get_mut(&uuid).map(|entry| &mut entry.condition) else {
                continue;
            };
            let Some(away) = active.away.get_mut(&role) else { continue };
            if entry.is_none() {
                "its disk is not there any more".clone_into(&mut away.why);
            }
            let was_gone = std::mem::replace(&mut away.gone, entry.is_none());
            let is_another = entry.is_some() && away.entry.is_some_and(|before| Some(before) != entry);
            if entry.is_some() {
                away.entry = entry;
            }
            if entry.is_some() && (was_gone || is_another) {
                appeared.push((uuid, role, spec));
            }
        }
        appeared
    }
}

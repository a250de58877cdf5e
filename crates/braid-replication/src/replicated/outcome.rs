//! Decides the outcome of a snapshot that exists on some replicas only: solely by the state of the replicas in sync.

use braid_api::{ReplicaChange, ReplicaSnapshot};
use std::collections::BTreeMap;

/// State of a snapshot on a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotState {
    Absent,
    Pending,
    Named(String),
}

/// Outcome of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotOutcome {
    /// It exists, under this name.
    Complete(String),
    /// It was never completed, or is deleted.
    Remove,
}

/// Decides by the replicas in sync: a snapshot that has its name on one of them was taken on all; one without a name
/// was acknowledged to no user.
fn outcome(has: &[SnapshotState]) -> SnapshotOutcome {
    let named = has.iter().find_map(|has| match has {
        SnapshotState::Named(name) => Some(name.clone()),
        _ => None,
    });
    named.map_or(SnapshotOutcome::Remove, SnapshotOutcome::Complete)
}

/// Returns the change that brings a replica to the outcome.
pub(crate) fn change_for(outcome: &SnapshotOutcome, has: &SnapshotState, snapshot: &str) -> Option<ReplicaChange> {
    let snapshot = snapshot.to_owned();
    match (outcome, has) {
        (_, SnapshotState::Absent) => None,
        (SnapshotOutcome::Complete(name), SnapshotState::Named(own)) if own == name => None,
        (SnapshotOutcome::Complete(name), _) => Some(ReplicaChange::Name { snapshot, name: name.clone() }),
        (SnapshotOutcome::Remove, _) => Some(ReplicaChange::Remove { snapshot }),
    }
}

/// The snapshots of some replicas, by number.
pub(crate) struct SnapshotLists(pub(crate) BTreeMap<u16, Vec<ReplicaSnapshot>>);

impl SnapshotLists {
    /// Returns every snapshot, in the order in which they were taken.
    pub(crate) fn snapshots(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        // The replica with the most snapshots has them in order; others may lack some.
        let mut lists: Vec<&Vec<ReplicaSnapshot>> = self.0.values().collect();
        lists.sort_by_key(|list| std::cmp::Reverse(list.len()));
        for snapshot in lists.into_iter().flatten() {
            if !all.contains(&snapshot.uuid.as_str()) {
                all.push(&snapshot.uuid);
            }
        }
        all
    }

    pub(crate) fn entry(&self, slot: u16, snapshot: &str) -> Option<&ReplicaSnapshot> {
        self.0.get(&slot)?.iter().find(|one| one.uuid == snapshot)
    }

    pub(crate) fn state_on(&self, slot: u16, snapshot: &str) -> SnapshotState {
        match self.entry(slot, snapshot).map(|one| &one.name) {
            None => SnapshotState::Absent,
            Some(None) => SnapshotState::Pending,
            Some(Some(name)) => SnapshotState::Named(name.clone()),
        }
    }

    /// Returns whether the volume's file system was frozen while the snapshot was taken: that is recorded afterwards,
    /// on the replicas that could do it.
    pub(crate) fn is_frozen(&self, snapshot: &str) -> bool {
        self.0.keys().any(|slot| self.entry(*slot, snapshot).is_some_and(|one| one.frozen))
    }

    pub(crate) fn outcome(&self, snapshot: &str) -> SnapshotOutcome {
        let has: Vec<SnapshotState> = self.0.keys().map(|slot| self.state_on(*slot, snapshot)).collect();
        outcome(&has)
    }

    /// Returns the snapshot with this name or UUID.
    pub(crate) fn named(&self, text: &str) -> Option<&str> {
        let is = |one: &&str| match self.outcome(one) {
            SnapshotOutcome::Complete(name) => name == text || *one == text,
            SnapshotOutcome::Remove => false,
        };
        self.snapshots().into_iter().find(is)
    }

    pub(crate) fn count(&self) -> u64 {
        self.snapshots().into_iter().filter(|one| self.outcome(one) != SnapshotOutcome::Remove).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "51a90000-0000-8000-8000-000000000001";

    fn listed(has: &[SnapshotState]) -> SnapshotLists {
        let one = |has: &SnapshotState| {
            let name = match has {
                SnapshotState::Absent => return Vec::new(),
                SnapshotState::Pending => None,
                SnapshotState::Named(name) => Some(name.clone()),
            };
            vec![ReplicaSnapshot {
                uuid: UUID.to_owned(),
                name,
                size_bytes: 0,
                allocated_bytes: 0,
                created_unix_s: 0,
                frozen: false,
            }]
        };
        SnapshotLists((0..).zip(has.iter().map(one)).collect())
    }

    /// Applies the outcome to the state of three replicas. Returns the outcome, and the state afterwards.
    fn decided(mut has: Vec<SnapshotState>) -> (SnapshotOutcome, Vec<SnapshotState>) {
        let outcome = listed(&has).outcome(UUID);
        for has in &mut has {
            match change_for(&outcome, has, UUID) {
                Some(ReplicaChange::Name { name, .. }) => *has = SnapshotState::Named(name),
                Some(ReplicaChange::Remove { .. }) => *has = SnapshotState::Absent,
                _ => {}
            }
        }
        (outcome, has)
    }

    #[test]
    fn wherever_a_controller_ends_a_snapshot_is_on_all_replicas_or_on_none() {
        let monday = || SnapshotState::Named("monday".to_owned());
        let complete = SnapshotOutcome::Complete("monday".to_owned());
        // Each step is done by some of the replicas: all subsets.
        let steps = [
            ("take", SnapshotState::Absent, SnapshotState::Pending),
            ("name", SnapshotState::Pending, monday()),
            ("hide", monday(), SnapshotState::Pending),
            ("remove", SnapshotState::Pending, SnapshotState::Absent),
        ];
        for (step, from, to) in steps {
            for subset in 0u32..8 {
                let has = (0..3).map(|slot| if subset >> slot & 1 == 1 { to.clone() } else { from.clone() });
                let has: Vec<SnapshotState> = has.collect();
                let any_named = has.contains(&monday());
                let (outcome, after) = decided(has);
                let (expected, all) = if any_named {
                    (complete.clone(), monday())
                } else {
                    (SnapshotOutcome::Remove, SnapshotState::Absent)
                };
                assert_eq!((outcome, after), (expected, vec![all; 3]), "{step} {subset:03b}");
                // A snapshot whose creation was acknowledged stays, one whose deletion was acknowledged is not seen
                // again.
                let acknowledged = subset == 7;
                assert!(!(acknowledged && step == "name") || any_named);
                assert!(!(acknowledged && step == "hide" && any_named));
            }
        }
    }

    #[test]
    fn a_replica_without_a_snapshot_removes_it_nowhere_and_a_rename_has_one_outcome() {
        let named = |name: &str| SnapshotState::Named(name.to_owned());
        let (outcome, after) = decided(vec![SnapshotState::Absent, named("a"), SnapshotState::Pending]);
        assert_eq!(
            (outcome, after),
            (SnapshotOutcome::Complete("a".to_owned()), vec![SnapshotState::Absent, named("a"), named("a")])
        );
        let (_, after) = decided(vec![named("b"), named("a"), named("b")]);
        assert_eq!(after, vec![named("b"); 3]);
        assert_eq!(listed(&[named("a"), SnapshotState::Absent]).named("a"), Some(UUID));
        assert_eq!(listed(&[named("a"), SnapshotState::Absent]).named(UUID), Some(UUID));
        assert_eq!(listed(&[SnapshotState::Pending, SnapshotState::Absent]).named(UUID), None);
        assert_eq!(listed(&[SnapshotState::Pending, SnapshotState::Pending]).count(), 0);
    }
}

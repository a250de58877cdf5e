//! What is to become of a snapshot that some replicas have, and others not: decided by what those in sync have, and by nothing else.

use braid_api::{ReplicaChange, ReplicaSnapshot};
use std::collections::BTreeMap;

/// What one replica has of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Nothing,
    Pending,
    Named(String),
}

/// What is to become of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is there, under this name.
    Complete(String),
    /// It never was, or is deleted.
    Remove,
}

/// By what the replicas in sync have: one that bears its name is on all that had it taken; one that does nowhere was promised to nobody.
fn verdict(has: &[Has]) -> Verdict {
    let named = has.iter().find_map(|has| match has {
        Has::Named(name) => Some(name.clone()),
        _ => None,
    });
    named.map_or(Verdict::Remove, Verdict::Complete)
}

/// What a replica that has this is to do.
pub(super) fn change_for(verdict: &Verdict, has: &Has, snapshot: &str) -> Option<ReplicaChange> {
    let snapshot = snapshot.to_owned();
    match (verdict, has) {
        (_, Has::Nothing) => None,
        (Verdict::Complete(name), Has::Named(own)) if own == name => None,
        (Verdict::Complete(name), _) => Some(ReplicaChange::Name { snapshot, name: name.clone() }),
        (Verdict::Remove, _) => Some(ReplicaChange::Remove { snapshot }),
    }
}

/// What some replicas have, by number.
pub(super) struct Listed(pub(super) BTreeMap<u16, Vec<ReplicaSnapshot>>);

impl Listed {
    /// Every snapshot, in the order in which they were taken.
    pub(super) fn snapshots(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        // Whoever has the most has them in order; others may lack some.
        let mut lists: Vec<&Vec<ReplicaSnapshot>> = self.0.values().collect();
        lists.sort_by_key(|list| std::cmp::Reverse(list.len()));
        for snapshot in lists.into_iter().flatten() {
            if !all.contains(&snapshot.uuid.as_str()) {
                all.push(&snapshot.uuid);
            }
        }
        all
    }

    pub(super) fn one(&self, role: u16, snapshot: &str) -> Option<&ReplicaSnapshot> {
        self.0.get(&role)?.iter().find(|one| one.uuid == snapshot)
    }

    pub(super) fn has(&self, role: u16, snapshot: &str) -> Has {
        match self.one(role, snapshot).map(|one| &one.name) {
            None => Has::Nothing,
            Some(None) => Has::Pending,
            Some(Some(name)) => Has::Named(name.clone()),
        }
    }

    /// Whether the file system of the volume was frozen while it was taken: it is noted afterwards, where a replica could.
    pub(super) fn is_frozen(&self, snapshot: &str) -> bool {
        self.0.keys().any(|role| self.one(*role, snapshot).is_some_and(|one| one.frozen))
    }

    pub(super) fn verdict(&self, snapshot: &str) -> Verdict {
        let has: Vec<Has> = self.0.keys().map(|role| self.has(*role, snapshot)).collect();
        verdict(&has)
    }

    /// The snapshot that a user calls so.
    pub(super) fn named(&self, text: &str) -> Option<&str> {
        let is = |one: &&str| match self.verdict(one) {
            Verdict::Complete(name) => name == text || *one == text,
            Verdict::Remove => false,
        };
        self.snapshots().into_iter().find(is)
    }

    pub(super) fn count(&self) -> u64 {
        self.snapshots().into_iter().filter(|one| self.verdict(one) != Verdict::Remove).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "51a90000-0000-8000-8000-000000000001";

    fn listed(has: &[Has]) -> Listed {
        let one = |has: &Has| {
            let name = match has {
                Has::Nothing => return Vec::new(),
                Has::Pending => None,
                Has::Named(name) => Some(name.clone()),
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
        Listed((0..).zip(has.iter().map(one)).collect())
    }

    /// What three replicas have after what was wanted of them was done, as far as this says; then everything is decided.
    fn decided(mut has: Vec<Has>) -> (Verdict, Vec<Has>) {
        let verdict = listed(&has).verdict(UUID);
        for has in &mut has {
            match change_for(&verdict, has, UUID) {
                Some(ReplicaChange::Name { name, .. }) => *has = Has::Named(name),
                Some(ReplicaChange::Remove { .. }) => *has = Has::Nothing,
                _ => {}
            }
        }
        (verdict, has)
    }

    #[test]
    fn wherever_a_controller_ends_all_replicas_have_a_snapshot_or_none() {
        let monday = || Has::Named("monday".to_owned());
        let complete = Verdict::Complete("monday".to_owned());
        // Each step is done by some of the replicas: all subsets.
        let steps = [
            ("take", Has::Nothing, Has::Pending),
            ("name", Has::Pending, monday()),
            ("hide", monday(), Has::Pending),
            ("remove", Has::Pending, Has::Nothing),
        ];
        for (step, from, to) in steps {
            for subset in 0u32..8 {
                let has = (0..3).map(|role| if subset >> role & 1 == 1 { to.clone() } else { from.clone() });
                let has: Vec<Has> = has.collect();
                let any_named = has.contains(&monday());
                let (verdict, after) = decided(has);
                let (expected, all) =
                    if any_named { (complete.clone(), monday()) } else { (Verdict::Remove, Has::Nothing) };
                assert_eq!((verdict, after), (expected, vec![all; 3]), "{step} {subset:03b}");
                // Whoever was told that it is there keeps it, whoever was told that it is gone does not see it again.
                let told = subset == 7;
                assert!(!(told && step == "name") || any_named);
                assert!(!(told && step == "hide" && any_named));
            }
        }
    }

    #[test]
    fn one_that_lacks_a_snapshot_takes_it_from_nobody_and_a_rename_has_one_end() {
        let named = |name: &str| Has::Named(name.to_owned());
        let (verdict, after) = decided(vec![Has::Nothing, named("a"), Has::Pending]);
        assert_eq!((verdict, after), (Verdict::Complete("a".to_owned()), vec![Has::Nothing, named("a"), named("a")]));
        let (_, after) = decided(vec![named("b"), named("a"), named("b")]);
        assert_eq!(after, vec![named("b"); 3]);
        assert_eq!(listed(&[named("a"), Has::Nothing]).named("a"), Some(UUID));
        assert_eq!(listed(&[named("a"), Has::Nothing]).named(UUID), Some(UUID));
        assert_eq!(listed(&[Has::Pending, Has::Nothing]).named(UUID), None);
        assert_eq!(listed(&[Has::Pending, Has::Pending]).count(), 0);
    }
}

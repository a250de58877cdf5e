//! For every kind of object and state: the advice names only commands of that kind, and only such as the command line
//! has.

use crate::commands::command;
use braid_advice::*;
use std::path::Path;

/// Returns every case.
fn all() -> Vec<Case> {
    fn each<T: Copy>(states: &[T], case: fn(T) -> Case) -> Vec<Case> {
        states.iter().map(|state| case(*state)).collect()
    }
    [
        each(ArrayCase::ALL, Case::Array),
        each(Redundant::ALL, Case::Redundant),
        vec![Case::ImportedArray],
        each(Redundant::ALL, Case::ServedVolume),
        each(VolumeCase::ALL, Case::ReplicatedVolume),
        each(ReplicaOfServed::ALL, Case::ServedReplica),
        each(ReplicaCase::ALL, Case::Replica),
        each(PoolCase::ALL, Case::Pool),
        each(PoolCase::ALL, Case::PoolOnReplicatedVolume),
        each(PoolMemberCase::ALL, Case::PoolMember),
        each(PoolVolumeCase::ALL, Case::PoolVolume),
        each(ExportCase::ALL, Case::Export),
        each(DiskCase::ALL, Case::Disk),
        each(JobCase::ALL, Case::Job),
        each(NodeCase::ALL, Case::Node),
    ]
    .concat()
}

/// Returns the commands that the advice of a kind may name: those of its own noun, and of objects that it stands on or
/// belongs to.
fn nouns(case: Case) -> &'static [&'static str] {
    match case {
        Case::Array(ArrayCase::FailedUnderPool) => &["array", "pool"],
        Case::Array(_) => &["array", "disk"],
        Case::Redundant(_) => &["array", "job"],
        Case::ImportedArray | Case::Disk(_) => &["array"],
        Case::ServedReplica(ReplicaOfServed::RebuildPaused) => &["volume", "job"],
        Case::ServedVolume(_) | Case::ReplicatedVolume(_) | Case::ServedReplica(_) => &["volume", "replica", "node"],
        Case::Replica(_) => &["replica", "pool"],
        // Members of a pool are found by a scan of disks, which is `array assemble`.
        Case::Pool(_) => &["pool", "snapshot", "events", "array assemble --disk"],
        Case::PoolOnReplicatedVolume(_) => &["pool", "snapshot", "events", "volume"],
        Case::PoolMember(_) => &["pool", "volume"],
        Case::PoolVolume(_) => &["volume", "snapshot", "export"],
        Case::Export(ExportCase::Failed) => &["export"],
        Case::Export(ExportCase::ArrayUnknown | ExportCase::PoolUnknown) => &["export", "array assemble --disk"],
        Case::Export(ExportCase::Standby) => &["export", "volume"],
        Case::Job(_) => &["job"],
        Case::Node(_) => &["node"],
    }
}

/// Returns the commands that a sentence names: each up to the punctuation after it.
fn named_in(text: &str) -> Vec<String> {
    let begins = |at: usize| at == 0 || text[..at].ends_with([' ', '`', '(']);
    let starts = text.match_indices("braid ").map(|(at, _)| at).filter(|at| begins(*at));
    starts
        .map(|at| {
            let rest = &text[at..];
            let end = rest.find([';', ',', ':', '(', ')', '`', '\n']).unwrap_or(rest.len());
            rest[..end].trim().to_owned()
        })
        .collect()
}

fn names(case: Case) -> ObjectNames<'static> {
    match case {
        Case::PoolMember(_) => ObjectNames::with("tank", "3"),
        Case::PoolOnReplicatedVolume(_) => ObjectNames::with("deep", "db"),
        Case::Job(_) => ObjectNames::with("data", "data:1"),
        Case::ServedReplica(ReplicaOfServed::RebuildPaused) => ObjectNames::with("db", "db:2"),
        Case::ServedReplica(_) => ObjectNames::with("db", "three"),
        _ => ObjectNames::with("data", "db"),
    }
}

#[test]
fn advice_names_commands_of_the_kind_that_the_command_line_has() {
    for case in all() {
        let Advice { impact, remedy, commands, .. } = of(case, names(case));
        assert!(!impact.is_empty() && !remedy.is_empty() && !commands.is_empty(), "{case:?} has no advice");
        for text in [&impact, &remedy] {
            assert!(!text.contains("  ") && !text.contains('{'), "{case:?}: {text}");
        }
        let named = commands.iter().cloned().chain(named_in(&remedy)).chain(named_in(&impact));
        for line in named {
            let Some(words) = line.strip_prefix("braid ") else {
                assert!(
                    matches!(case, Case::Disk(_)) && (line.starts_with("dmesg") || line == "df -h")
                        || matches!(case, Case::PoolMember(PoolMemberCase::Full)) && line == "df -h 3",
                    "{case:?}: {line}"
                );
                continue;
            };
            let is_own = |noun: &&str| words == *noun || words.starts_with(&format!("{noun} "));
            assert!(nouns(case).iter().any(is_own), "{case:?} names a command of another kind: {line}");
            if let Err(error) = command().try_get_matches_from(line.split_whitespace()) {
                panic!("{case:?} names {line:?}, which is no command: {error}");
            }
        }
    }
}

#[test]
fn advice_on_replicated_volumes_names_no_array() {
    let is_of_volume = |case: &Case| {
        matches!(
            case,
            Case::ServedVolume(_)
                | Case::ReplicatedVolume(_)
                | Case::ServedReplica(_)
                | Case::PoolOnReplicatedVolume(_)
                | Case::Export(ExportCase::Standby)
        )
    };
    let cases: Vec<Case> = all().into_iter().filter(is_of_volume).collect();
    assert!(cases.len() > 30, "{}", cases.len());
    for case in cases {
        let advice = of(case, names(case));
        let text = format!("{} {} {:?}", advice.impact, advice.remedy, advice.commands);
        for word in ["braid array", "DISK", "attach its disks", "braid pool add"] {
            assert!(!text.contains(word), "{case:?}: {text}");
        }
    }
    for case in [ReplicaOfServed::NodeUnreachable, ReplicaOfServed::Returning, ReplicaOfServed::Failing] {
        let advice = of(Case::ServedReplica(case), ObjectNames::with("db", "three"));
        let text = format!("{} {} {:?}", advice.impact, advice.remedy, advice.commands);
        assert!(text.contains("returns automatically") && !text.contains("replica add"), "{case:?}: {text}");
    }
    let away = remedy(Case::ServedReplica(ReplicaOfServed::NodeUnreachable), ObjectNames::with("db", "three"));
    assert!(away.contains("returns automatically when node three is reachable"), "{away}");
    // Nothing happens automatically while the job is paused.
    let paused = remedy(Case::ServedReplica(ReplicaOfServed::RebuildPaused), ObjectNames::with("db", "db:2"));
    assert!(paused.contains("braid job resume db:2") && !paused.contains("wait until"), "{paused}");
}

/// Collects the source below a folder, without comments.
fn source(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("the source is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            source(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            into.push((path.display().to_string(), code.join("\n")));
        }
    }
}

/// Every command that any message names exists, and none is given a name that it does not take.
#[test]
fn every_command_that_the_source_names_exists() {
    let mut files = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in std::fs::read_dir(crates).expect("it is a folder") {
        source(&entry.expect("it can be listed").path().join("src"), &mut files);
    }
    let line = command();
    let mut count = 0;
    for (path, code) in files {
        for (at, _) in code.match_indices("braid ") {
            let rest = &code[at + "braid ".len()..];
            let word = |from: usize| {
                let rest = rest.get(from..).unwrap_or_default();
                let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-').unwrap_or(rest.len());
                &rest[..end]
            };
            let Some(noun) = line.find_subcommand(word(0)).filter(|noun| noun.has_subcommands()) else { continue };
            let verb = word(noun.get_name().len() + 1);
            // The verb is formatted in, or left to the reader.
            if verb.is_empty() || !rest[noun.get_name().len()..].starts_with(' ') {
                continue;
            }
            let found = noun.find_subcommand(verb);
            let found = found.unwrap_or_else(|| panic!("{path} names braid {} {verb}", noun.get_name()));
            let after = &rest[noun.get_name().len() + 1 + verb.len()..];
            let has_name = found.get_positionals().next().is_some();
            assert!(has_name || !after.starts_with(" {"), "{path}: braid {} {verb} takes no name", noun.get_name());
            count += 1;
        }
    }
    assert!(count > 500, "only {count} were found");
}

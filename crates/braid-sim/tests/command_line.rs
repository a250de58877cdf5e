//! What the command prints for valid and invalid arguments.

use std::process::{Command, Output};

fn braid_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_braid-sim")).args(arguments).output().expect("the command starts")
}

const SIMULATIONS: [&str; 4] = ["arrays", "pools", "volumes", "replicas"];

#[track_caller]
fn is_refused(arguments: &[&str], names: &str, example: &str) {
    let output = braid_sim(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(said.contains(names) && said.contains(example), "{arguments:?}: {said}");
    assert!(said.contains("usage: braid-sim"), "{arguments:?}: {said}");
}

#[test]
fn a_wrong_argument_is_named_with_a_right_example() {
    is_refused(&["arrays", "--sedes", "1..2"], "\"--sedes\"", "--seeds 0..100");
    is_refused(&["arrays", "--seeds"], "--seeds", "for example --seeds 0..100");
    is_refused(&["arrays", "--seeds", "1-2"], "--seeds \"1-2\"", "for example --seeds 0..100");
    is_refused(&["arrays", "--seeds", "9..3"], "--seeds \"9..3\"", "for example --seeds 0..100");
    is_refused(&["arrays", "--seed", "x"], "--seed \"x\"", "for example --seed 907");
    is_refused(
        &["arrays", "--levels", "raid1,raid7"],
        "--levels names no level \"raid7\"",
        "for example --levels concat,raid0",
    );
    is_refused(&["arrays", "--scenario", "rows"], "\"rows\"", "--scenario \"stripes torn\"");
    let example =
        if cfg!(feature = "mutations") { "--mutation FlushSkipsMember" } else { "scripts/mutations.sh build" };
    is_refused(&["arrays", "--mutation", "Nothing"], "--mutation", example);
    is_refused(&["pools", "--focus", "nothing"], "--focus knows no \"nothing\"", "--focus folds");
    is_refused(&["pools", "--steps", "many"], "--steps \"many\"", "--steps 5");
    is_refused(&["volumes", "--levels", "raid1"], "unknown argument \"--levels\"", "--seeds 0..100");
    is_refused(&["replicas", "--sweep"], "unknown argument \"--sweep\"", "--seeds 0..100");
}

#[test]
fn without_a_simulation_the_usage_lists_them() {
    for arguments in [&[][..], &["--seed", "8"], &["disks"]] {
        is_refused(arguments, "no simulation", "braid-sim arrays --seeds 0..100");
    }
    let output = braid_sim(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    for name in SIMULATIONS {
        assert!(said.contains(&format!("\n  {name} ")), "{said}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn every_simulation_runs_a_seed() {
    for name in SIMULATIONS {
        let output = braid_sim(&[name, "--seed", "3"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {said}");
        assert!(said.starts_with("1 seeds, ") && said.contains(", 0 failed\n"), "{name}: {said}");
    }
}

#[test]
fn one_seed_runs_and_its_counters_are_printed() {
    let output = braid_sim(&["arrays", "--seed", "8"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("1 seeds, ") && said.contains(" events, 0 failed"), "{said}");
    for group in ["actions:", "crashes:", "requests:"] {
        assert!(said.contains(group), "{said}");
    }
}

#[test]
fn a_trace_prints_a_seed_step_by_step() {
    let output = braid_sim(&["arrays", "--seed", "7", "--trace"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("a life with"), "{said}");
}

/// Arrays with parity have their own counters and requirements.
#[test]
fn arrays_with_parity_are_counted_separately() {
    let output = braid_sim(&["arrays", "--seeds", "0..12", "--levels", "raid5,raid6"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.starts_with("12 seeds, "), "{said}");
    for group in ["parity: requests: ", "parity: crashes: ", "parity: journal: "] {
        assert!(said.contains(group), "{said}");
    }
    assert!(!said.lines().any(|line| line.starts_with("requests:")), "{said}");
    let refused = braid_sim(&["arrays", "--seeds", "0..12", "--levels", "raid5,raid4"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// One level cannot exercise what belongs to the others: only ordinary ranges have requirements.
#[test]
fn a_restricted_range_need_not_exercise_everything() {
    let output = braid_sim(&["arrays", "--seeds", "0..4", "--levels", "raid1"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("4 seeds, "), "{said}");
    assert!(!said.contains("actions: assemble"), "{said}");
}

#[test]
fn a_sweep_cuts_a_seed_at_every_step() {
    let output = braid_sim(&["arrays", "--seed", "3", "--sweep"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("runs, each cut at another step"), "{said}");
}

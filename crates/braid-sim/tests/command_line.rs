//! What the command says to those who use it rightly and wrongly.

use std::process::{Command, Output};

fn braid_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_braid-sim")).args(arguments).output().expect("the command starts")
}

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
    is_refused(&["--sedes", "1..2"], "\"--sedes\"", "--seeds 0..100");
    is_refused(&["--seeds"], "--seeds", "for example --seeds 0..100");
    is_refused(&["--seeds", "1-2"], "--seeds \"1-2\"", "for example --seeds 0..100");
    is_refused(&["--seeds", "9..3"], "--seeds \"9..3\"", "for example --seeds 0..100");
    is_refused(&["--seed", "x"], "--seed \"x\"", "for example --seed 907");
    is_refused(&["--levels", "raid1,raid7"], "--levels names no level \"raid7\"", "for example --levels concat,raid0");
    is_refused(&["--drill", "rows"], "\"rows\"", "--drill \"rows torn\"");
    let planted = if cfg!(feature = "planted") { "NoRangeLock" } else { "--features planted" };
    is_refused(&["--plant", "Nothing"], "--plant", planted);
}

#[test]
fn one_seed_is_run_and_what_it_exercised_is_counted() {
    let output = braid_sim(&["--seed", "8"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("1 seeds, ") && said.contains(" events, 0 failed"), "{said}");
    for group in ["actions:", "crashes:", "requests:"] {
        assert!(said.contains(group), "{said}");
    }
}

#[test]
fn a_seed_can_be_told_step_by_step() {
    let output = braid_sim(&["--seed", "7", "--trace"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("a life with"), "{said}");
}

/// What arrays with parity have exercised is told, and demanded, apart from the rest.
#[test]
fn arrays_with_parity_are_counted_apart() {
    let output = braid_sim(&["--seeds", "0..12", "--levels", "raid5,raid6"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.starts_with("12 seeds, "), "{said}");
    for group in ["parity: requests: ", "parity: crashes: ", "parity: journal: "] {
        assert!(said.contains(group), "{said}");
    }
    assert!(!said.lines().any(|line| line.starts_with("requests:")), "{said}");
    let refused = braid_sim(&["--seeds", "0..12", "--levels", "raid5,raid4"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// One level cannot exercise what belongs to the others: the demand is on ordinary ranges alone.
#[test]
fn a_restricted_range_need_not_exercise_everything() {
    let output = braid_sim(&["--seeds", "0..4", "--levels", "raid1"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("4 seeds, "), "{said}");
    assert!(!said.contains("actions: assemble"), "{said}");
}

#[test]
fn a_sweep_cuts_a_seed_at_every_step() {
    let output = braid_sim(&["--seed", "3", "--sweep"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("runs, each cut at another step"), "{said}");
}

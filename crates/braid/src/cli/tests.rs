//! What holds of the command line as a whole.

use super::examples::{EXAMPLES, command, for_arguments};
use clap::Command;

/// Every command that can be run, with its path.
fn leaves(command: &Command, path: &str, into: &mut Vec<(String, Command)>) {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let path = format!("{path} {}", inner.get_name()).trim().to_owned();
        if inner.has_subcommands() {
            leaves(inner, &path, into);
        } else {
            into.push((path, inner.clone()));
        }
    }
}

fn all() -> Vec<(String, Command)> {
    let mut all = Vec::new();
    leaves(&command(), "", &mut all);
    all
}

#[test]
fn the_command_line_is_consistent() {
    command().debug_assert();
}

#[test]
fn every_command_has_json_and_examples() {
    let all = all();
    assert!(all.len() >= 18, "{}", all.len());
    for (path, command) in &all {
        // The daemon answers nobody; its log has a format of its own.
        let json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
        assert!(json || path == "serve", "{path} has no --json");
        assert!(EXAMPLES.iter().any(|(known, _)| known == path), "{path} has no examples");
    }
    for (path, _) in EXAMPLES {
        assert!(all.iter().any(|(known, _)| known == path), "there is no command {path}");
    }
}

/// The words of an example up to the first that is the shell's.
fn words(example: &str) -> Vec<String> {
    let end = example.find(" || ").unwrap_or(example.len());
    example[..end].split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect()
}

#[test]
fn every_example_is_right() {
    for (path, examples) in EXAMPLES {
        for example in *examples {
            let words = words(example);
            assert!(words.join(" ").starts_with(&format!("braid {path}")), "{example}");
            if let Err(error) = command().try_get_matches_from(words) {
                panic!("{example}: {error}");
            }
        }
    }
}

#[test]
fn a_wrong_command_finds_a_right_one() {
    let example = |words: &[&str]| for_arguments(words.iter().map(|word| (*word).to_owned()));
    assert!(example(&["array", "create", "--nonsense"]).is_some_and(|e| e.starts_with("braid array create")));
    assert!(example(&["array", "nonsense"]).is_some_and(|e| e.starts_with("braid array")));
    assert!(example(&["export"]).is_some_and(|e| e.starts_with("braid export")));
    assert_eq!(example(&["nonsense"]), None);
    assert_eq!(example(&[]), None);
}

#[test]
fn help_fits_a_terminal() {
    for (path, mut command) in all() {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:"), "{path}");
        let long = help.lines().find(|line| line.chars().count() > 130);
        assert_eq!(long, None, "{path}");
    }
}

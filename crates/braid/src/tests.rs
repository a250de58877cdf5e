//! What holds of the command line as a whole.

use crate::commands::{command, documents};
use braid_cli::examples::{EXAMPLES, for_arguments};
use braid_cli::schema::{self, COMMANDS, references};
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
        // The daemon answers nobody, and its log has a format of its own; these print what others read.
        let other = ["serve", "completions", "man", "schema"].contains(&path.as_str());
        let json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
        assert!(json || other, "{path} has no --json");
        assert!(EXAMPLES.iter().any(|(known, _)| known == path), "{path} has no examples");
    }
    for (path, _) in EXAMPLES {
        assert!(all.iter().any(|(known, _)| known == path), "there is no command {path}");
    }
}

#[test]
fn every_list_takes_a_form_and_leaves_headings_out() {
    let lists: Vec<String> = all().into_iter().map(|(path, _)| path).filter(|path| path.ends_with(" list")).collect();
    assert!(lists.len() >= 9, "{lists:?}");
    let read = |path: &str, more: &str| {
        let words = format!("braid {path} {more}");
        command().try_get_matches_from(words.split(' ')).map(drop).map_err(|error| error.to_string())
    };
    for path in lists {
        for more in ["-o wide", "-o json --json", "-ojson", "--output name", "--output=name --no-headers"] {
            assert_eq!(read(&path, more), Ok(()), "{path} {more}");
            let by_alias = path.replace(" list", " ls");
            assert_eq!(read(&by_alias, more), Ok(()), "{by_alias} {more}");
        }
        let error = read(&path, "-o yaml").expect_err("there is no such form");
        assert!(error.contains("wide, json, name"), "{path}: {error}");
    }
}

#[test]
fn aliases_are_shown_by_the_help_of_their_noun() {
    let mut command = command();
    let noun = command.find_subcommand_mut("array").expect("a noun");
    let help = noun.render_long_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    for alias in ["[aliases: ls]", "[aliases: rm]", "[aliases: destroy]", "[aliases: scrub]"] {
        let singular = alias.replace("aliases", "alias");
        assert!(help.contains(alias) || help.contains(&singular), "{alias}: {help}");
    }
}

#[test]
fn levels_are_taken_by_number_and_by_other_names_wherever_there_are_any() {
    for line in [
        "array create a --level 5 x y z",
        "array create a --level raid-5 x y z",
        "array create a --level RAID5 x y z",
        "array create a --level stripe x y",
        "array create a --level linear x y",
        "plan --level 10 1G 1G",
        "plan --level Mirror 1G 1G",
        "bench --level 0 x y",
        "bench --level mirror x y",
        "volume create db 1G --replicas 3 --level mirror",
        "volume create db 1G --replicas 3 --level 6",
    ] {
        let words = std::iter::once("braid").chain(line.split(' '));
        if let Err(error) = command().try_get_matches_from(words) {
            panic!("{line}: {error}");
        }
    }
    for line in ["array create a --level 7 x y", "volume create db 1G --replicas 3 --level stripe"] {
        let words = std::iter::once("braid").chain(line.split(' '));
        assert!(command().try_get_matches_from(words).is_err(), "{line}");
    }
}

/// The words of an example up to the first that is the shell's.
fn words(example: &str) -> Vec<String> {
    let end = [" || ", " > "].into_iter().filter_map(|mark| example.find(mark)).min().unwrap_or(example.len());
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
    assert!(example(&["pool", "ls", "--nonsense"]).is_some_and(|e| e.starts_with("braid pool list")));
    assert!(example(&["array", "rm", "x"]).is_some_and(|e| e.starts_with("braid array remove")));
    assert!(example(&["volume", "rm"]).is_some_and(|e| e.starts_with("braid volume delete")));
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

/// A paragraph that names the aliases of a command, if it has any.
fn also(path: &str, command: &Command) -> String {
    let noun = path.rsplit_once(' ').map_or("", |(noun, _)| noun);
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`braid {noun} {alias}`")).collect();
    if aliases.is_empty() { String::new() } else { format!("Also {}.\n\n", aliases.join(", ")) }
}

/// `docs/cli.md`, made of what clap knows.
fn reference() -> String {
    let mut text = String::from(
        "# The command line\n\n\
         Made from the program itself; a test keeps it so (`BRAID_WRITE_DOCS=1 cargo test -p braid docs_cli` writes it anew).\n\n\
         Every command takes `--help`, and `--json` for one JSON document on standard output; then errors are printed there, too, in the\n\
         shape of the API; what the documents look like says `docs/json.md`. Every `list` takes `-o wide|json|name` and `--no-headers`. Tables fit\n\
         the terminal; where there is none, nothing is wrapped or cut. `braid serve` answers nobody, but for `--upgrade`: its log goes to standard error. Sizes: `K M G T P` are powers of 1024,\n\
         `KB MB GB TB PB` powers of 1000.\n\n\
         ## Exit status\n\n| status | meaning |\n|---|---|\n",
    );
    for (status, meaning) in braid_cli::man::EXIT_STATUS {
        text.push_str(&format!("| {status} | {meaning} |\n"));
    }
    text.push_str(
        "\n\
         ## Environment\n\n\
         | variable | meaning |\n|---|---|\n\
         | `BRAID_SOCKET` | the socket of the daemon's API, else `/run/braid/braid.sock` for root and `$XDG_RUNTIME_DIR/braid/braid.sock` for others |\n\
         | `BRAID_HOST` | a daemon on another machine instead (`https://NODE:10870`); it wins over `BRAID_SOCKET`, and `--socket` over both |\n\
         | `BRAID_CA`, `BRAID_TOKEN_FILE`, `BRAID_CERT`, `BRAID_KEY` | files for that daemon: its authority, the token, the certificate and key to show it |\n\
         | `BRAID_STATE` | the folder of the daemon's state, else `/var/lib/braid` for root and `$XDG_STATE_HOME/braid` (`~/.local/state/braid`) for others |\n\
         | `BRAID_SHARED_MEMORY` | the folder in shared memory of the tails of pools, else `/dev/shm/braid` for root and `/dev/shm/braid-UID` for others |\n\
         | `BRAID_CONFIG` | the configuration, else `/etc/braid/braid.toml` for root and `$XDG_CONFIG_HOME/braid/braid.toml` (`~/.config/braid/braid.toml`) for others |\n\
         | `NO_COLOR` | no colour, unless `--color` says otherwise |\n\
         | `COLUMNS` | how wide tables are at a terminal, instead of its own width |\n",
    );
    for (path, command) in all() {
        let help = command.clone().term_width(100).render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        let usage = help.join("\n").replace(&format!("Usage: {}", command.get_name()), &format!("Usage: braid {path}"));
        text.push_str(&format!("\n## braid {path}\n\n{}```text\n{}\n```\n", also(&path, &command), usage.trim()));
    }
    text
}

#[test]
fn docs_cli_is_what_the_program_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let made = reference();
    if std::env::var_os("BRAID_WRITE_DOCS").is_some() {
        std::fs::write(path, &made).expect("the docs can be written");
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(there == made, "docs/cli.md is not up to date: BRAID_WRITE_DOCS=1 cargo test -p braid docs_cli");
}

#[test]
fn docs_errors_lists_every_kind_with_its_statuses() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md")).expect("it is there");
    for kind in braid_api::Kind::ALL {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{kind}` |")));
        let row = row.unwrap_or_else(|| panic!("{kind} is not in docs/errors.md"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[3], kind.http_status().to_string(), "{row}");
        assert_eq!(cells[4], kind.exit_status().to_string(), "{row}");
    }
}

#[test]
fn every_command_has_a_schema_that_is_whole() {
    let documents = documents();
    let all = schema::definitions(&documents);
    for (command, name) in COMMANDS {
        assert!(all.contains_key(*name), "{command}: there is no schema {name}: {:?}", all.keys());
        let schema = schema::of(name, &documents);
        let mut needed = Vec::new();
        references(&schema, &mut needed);
        for name in needed {
            assert!(schema["$defs"].get(&name).is_some(), "{command}: {name} is missing");
        }
    }
}

//! Properties of the command line as a whole.

use crate::commands::{command, documents};
use braid_cli::examples::{EXAMPLES, for_arguments};
use braid_cli::schema::{self, COMMANDS, references};
use clap::Command;
use std::path::PathBuf;

/// Collects every command that can be run, with its path.
fn collect_commands(command: &Command, path: &str, into: &mut Vec<(String, Command)>) {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let path = format!("{path} {}", inner.get_name()).trim().to_owned();
        if inner.has_subcommands() {
            collect_commands(inner, &path, into);
        } else {
            into.push((path, inner.clone()));
        }
    }
}

fn all() -> Vec<(String, Command)> {
    let mut all = Vec::new();
    collect_commands(&command(), "", &mut all);
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
        // The daemon prints no result, and its log has a format of its own; the others print text for other programs.
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

/// Returns the words of an example, up to the first one of the shell.
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
fn every_command_of_the_runbooks_is_right() {
    let mut count = 0;
    for page in braid_cli::explain::pages() {
        for line in page.text().lines().filter(|line| line.starts_with("braid ")) {
            if let Err(error) = command().try_get_matches_from(words(line)) {
                panic!("{}: {line}: {error}", page.name());
            }
            count += 1;
        }
    }
    assert!(count > 60, "only {count} were found");
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

/// Returns a paragraph that names the aliases of a command, if it has any.
fn alias_paragraph(path: &str, command: &Command) -> String {
    let noun = path.rsplit_once(' ').map_or("", |(noun, _)| noun);
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`braid {noun} {alias}`")).collect();
    if aliases.is_empty() { String::new() } else { format!("Also {}.\n\n", aliases.join(", ")) }
}

/// What every page of the reference begins with, below its title.
const GENERATED: &str =
    "Generated from the program; do not edit. `BRAID_WRITE_DOCS=1 cargo test -p braid docs_cli` writes it.\n";

/// Returns the page of a command: the page of its noun, or `general` for a command without one.
fn page_of(path: &str) -> &str {
    path.split_once(' ').map_or("general", |(noun, _)| noun)
}

/// Returns a help text without the options that the overview lists once: those of the daemon's address, `--json` and `--help`.
fn without_common(help: &str) -> String {
    let mut text = String::new();
    let (mut section, mut printed) = ("", true);
    for paragraph in help.split("\n\n") {
        let mut body = paragraph;
        if let Some((first, rest)) = paragraph.split_once('\n')
            && first.ends_with(':')
            && !first.starts_with(' ')
        {
            (section, printed, body) = (first, false, rest);
        }
        let option = body.lines().next().unwrap_or_default().trim();
        if section == "Which daemon:" || ["--json", "-h, --help"].contains(&option) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        if !printed {
            text.push_str(section);
            text.push('\n');
            printed = true;
        }
        text.push_str(body);
    }
    text
}

/// Returns the overview of the command line: common options, exit statuses and variables of the environment.
fn overview(pages: &[String]) -> String {
    let mut text = format!("# The command line\n\n{GENERATED}\n");
    text.push_str(
        "Commands are `braid NOUN VERB`. Each noun has a page:\n\n\
         | page | commands |\n|---|---|\n",
    );
    for page in pages {
        let all = all();
        let verbs: Vec<&str> = all
            .iter()
            .filter(|(path, _)| page_of(path) == page)
            .map(|(path, _)| path.split_once(' ').map_or(path.as_str(), |(_, verb)| verb))
            .collect();
        text.push_str(&format!("| [{page}]({page}.md) | {} |\n", verbs.join(", ")));
    }
    text.push_str(
        "\n\
         Every `list` takes `-o wide|json|name` and `--no-headers`. Tables use the width of the terminal; piped tables are neither\n\
         wrapped nor cut. Sizes: `K M G T P` are powers of 1024, `KB MB GB TB PB` powers of 1000.\n\n\
         ## Common options\n\n\
         Every command takes `--help`. Every command except `serve`, `completions`, `man` and `schema` takes `--json`: it prints one\n\
         JSON document to standard output, and errors in the shape of the API. [JSON](../json.md) describes the documents.\n\
         `--color never|always|auto` is accepted everywhere. Commands that talk to the daemon also take:\n\n\
         | option | meaning |\n|---|---|\n\
         | `--socket PATH` | the daemon's socket; default: `BRAID_SOCKET`, else the one in `braid.toml`, else the user's own |\n\
         | `--host URL` | a daemon on another machine, over TLS: `https://NODE:10870`; default: `BRAID_HOST` |\n\
         | `--ca FILE` | the authority of that daemon's certificate (PEM); default: `BRAID_CA`, else those that the system trusts |\n\
         | `--token-file FILE` | a file with the token to show that daemon; default: `BRAID_TOKEN_FILE` |\n\
         | `--cert FILE`, `--key FILE` | the certificate to show and its private key (PEM); default: `BRAID_CERT`, `BRAID_KEY` |\n\n\
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
         | `BRAID_HOST` | a daemon on another machine instead (`https://NODE:10870`); it takes precedence over `BRAID_SOCKET`, and `--socket` over both |\n\
         | `BRAID_CA`, `BRAID_TOKEN_FILE`, `BRAID_CERT`, `BRAID_KEY` | files for that daemon: its certificate authority, the token, the client certificate and its private key |\n\
         | `BRAID_STATE` | the folder of the daemon's state, else `/var/lib/braid` for root and `$XDG_STATE_HOME/braid` (`~/.local/state/braid`) for others |\n\
         | `BRAID_SHARED_MEMORY` | the folder in shared memory of the in-memory logs of pools, else `/dev/shm/braid` for root and `/dev/shm/braid-UID` for others |\n\
         | `BRAID_CONFIG` | the configuration, else `/etc/braid/braid.toml` for root and `$XDG_CONFIG_HOME/braid/braid.toml` (`~/.config/braid/braid.toml`) for others |\n\
         | `NO_COLOR` | no colour, unless `--color` says otherwise |\n\
         | `COLUMNS` | how wide tables are at a terminal, instead of its own width |\n",
    );
    text
}

/// Returns the pages of `docs/reference/cli`, made of what clap knows: the name of each file, and its text.
fn reference() -> Vec<(String, String)> {
    let mut names: Vec<String> = all().iter().map(|(path, _)| page_of(path).to_owned()).collect();
    names.sort();
    names.dedup();
    let mut pages = vec![("README.md".to_owned(), overview(&names))];
    for name in &names {
        let title = if name == "general" { "Commands without a noun".to_owned() } else { format!("braid {name}") };
        let mut text =
            format!("# {title}\n\n{GENERATED}Options that all commands share are in [the overview](README.md).\n");
        for (path, command) in all().into_iter().filter(|(path, _)| page_of(path) == name) {
            let help = command.clone().term_width(100).render_long_help().to_string();
            let help: Vec<&str> = help.lines().map(str::trim_end).collect();
            let usage =
                help.join("\n").replace(&format!("Usage: {}", command.get_name()), &format!("Usage: braid {path}"));
            let usage = without_common(usage.trim());
            text.push_str(&format!("\n## braid {path}\n\n{}```text\n{usage}\n```\n", alias_paragraph(&path, &command)));
        }
        pages.push((format!("{name}.md"), text));
    }
    pages
}

#[test]
fn docs_cli_is_what_the_program_says() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli");
    for (name, made) in reference() {
        let path = format!("{folder}/{name}");
        if std::env::var_os("BRAID_WRITE_DOCS").is_some() {
            std::fs::write(&path, &made).expect("the docs can be written");
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == made,
            "docs/reference/cli/{name} is not up to date: BRAID_WRITE_DOCS=1 cargo test -p braid docs_cli"
        );
    }
}

#[test]
fn docs_errors_lists_every_kind_with_its_statuses() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md"))
        .expect("it is there");
    for kind in braid_api::Kind::ALL {
        let line = text.lines().find(|line| line.starts_with(&format!("| `{kind}` |")));
        let line = line.unwrap_or_else(|| panic!("{kind} is not in docs/reference/errors.md"));
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells[3], kind.http_status().to_string(), "{line}");
        assert_eq!(cells[4], kind.exit_status().to_string(), "{line}");
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

/// Returns whether a text of the source is the kind of an event, not a message.
fn is_kind(text: &str) -> bool {
    text.contains('_') && text.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
}

/// Every event kind in the source is in the document's table, and has a runbook.
#[test]
fn the_reference_lists_every_event() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let text = std::fs::read_to_string(format!("{crates}/../docs/reference/events.md")).expect("it is there");
    let mut kinds = 0;
    let all = std::fs::read_dir(crates).expect("it is a folder");
    let mut folders: Vec<PathBuf> = all.map(|entry| entry.expect("it can be listed").path().join("src")).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("it is a folder") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("it is text");
            let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            // Nodes add events through two short functions of their own, the server through one.
            let source = source
                .replace("reports.report(Severity::Info, ", ".events().info(")
                .replace("reports.report(Severity::Error, ", ".events().error(")
                .replace("self.report_event(", ".events().info(")
                .replace("self.report_warning(", ".events().warn(")
                .replace(".events.", ".events().");
            for call in source.split(".events()").skip(1) {
                let head = call.split(';').next().unwrap_or_default();
                let Some(kind) = head.split('"').nth(1) else { continue };
                if head.trim_start().trim_start_matches('.').starts_with(['i', 'w', 'e']) && is_kind(kind) {
                    kinds += 1;
                    assert!(
                        text.contains(&format!("`{kind}`")),
                        "{}: docs/reference/events.md does not list the event {kind}",
                        path.display()
                    );
                }
            }
        }
    }
    assert!(kinds > 100, "only {kinds} events were found in the source");
    let mut explained = 0;
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cell = line.split('|').nth(1).unwrap_or_default();
        for kind in cell.split('`').skip(1).step_by(2) {
            assert!(braid_cli::explain::find(kind).is_some(), "no runbook is about the event {kind}");
            explained += 1;
        }
    }
    assert!(explained > 100, "only {explained} events were found in docs/reference/events.md");
}

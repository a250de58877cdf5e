//! Aliases of verbs, which users know from other tools: one table, applied to every noun.

use clap::Command;

/// Each alias, with the verbs that it may stand for: the first of them that a noun has. A noun without any of them has no such alias.
///
/// `rm` is `remove` of arrays, pools, exports, nodes and replicas, where it removes a member or an entry and differs from `delete`. It is
/// `delete` of volumes and snapshots, which have no `remove`. `destroy` is always `delete`. An alias is never the name of a verb.
const ALIASES: [(&str, &[&str]); 4] =
    [("ls", &["list"]), ("rm", &["remove", "delete"]), ("destroy", &["delete"]), ("scrub", &["check"])];

/// Returns the command line with the aliases, which are shown in help.
#[must_use]
pub fn added_to(command: Command) -> Command {
    command.mut_subcommands(|noun| ALIASES.into_iter().fold(noun, with_alias))
}

fn with_alias(noun: Command, (alias, verbs): (&'static str, &[&str])) -> Command {
    match first_existing(verbs, |verb| noun.find_subcommand(verb).is_some()) {
        Some(verb) => noun.mut_subcommand(verb, |verb| verb.visible_alias(alias)),
        None => noun,
    }
}

/// Returns the first of these verbs that exists.
fn first_existing<'a>(verbs: &[&'a str], exists: impl Fn(&str) -> bool) -> Option<&'a str> {
    verbs.iter().copied().find(|verb| exists(verb))
}

/// Returns the verb that an alias stands for, of a noun that has the verbs for which `exists` is true.
pub(crate) fn verb_of(alias: &str, exists: impl Fn(&str) -> bool) -> Option<&'static str> {
    let (_, verbs) = ALIASES.into_iter().find(|(known, _)| *known == alias)?;
    first_existing(verbs, exists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Parser)]
    #[command(name = "braid")]
    struct Whole {
        #[command(subcommand)]
        _command: crate::Command,
    }

    /// Returns each alias as it is typed, with its command.
    fn all(command: &Command) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for noun in command.get_subcommands() {
            for verb in noun.get_subcommands() {
                for alias in verb.get_visible_aliases() {
                    let path = |verb: &str| format!("{} {verb}", noun.get_name());
                    assert_eq!(all.insert(path(alias), path(verb.get_name())), None, "{} is twice", path(alias));
                }
            }
        }
        all
    }

    #[test]
    fn every_alias_is_of_the_verb_that_the_rule_says() {
        let found = all(&added_to(Whole::command()));
        let lists = ["array", "disk", "export", "job", "node", "pool", "replica", "snapshot", "volume"];
        let mut wanted: BTreeMap<String, String> =
            lists.iter().map(|noun| (format!("{noun} ls"), format!("{noun} list"))).collect();
        for (alias, command) in [
            ("array rm", "array remove"),
            ("export rm", "export remove"),
            ("node rm", "node remove"),
            ("pool rm", "pool remove"),
            ("replica rm", "replica remove"),
            ("snapshot rm", "snapshot delete"),
            ("volume rm", "volume delete"),
            ("array destroy", "array delete"),
            ("pool destroy", "pool delete"),
            ("replica destroy", "replica delete"),
            ("snapshot destroy", "snapshot delete"),
            ("volume destroy", "volume delete"),
            ("array scrub", "array check"),
            ("pool scrub", "pool check"),
        ] {
            wanted.insert(alias.to_owned(), command.to_owned());
        }
        assert_eq!(found, wanted);
    }

    #[test]
    fn every_list_delete_remove_and_check_has_an_alias() {
        let command = added_to(Whole::command());
        for noun in command.get_subcommands() {
            for verb in noun.get_subcommands() {
                let is_meant = ["list", "delete", "remove", "check"].contains(&verb.get_name());
                let has_alias = verb.get_visible_aliases().next().is_some();
                assert_eq!(has_alias, is_meant, "{} {}", noun.get_name(), verb.get_name());
            }
        }
    }

    #[test]
    fn every_alias_resolves_to_its_command_and_shadows_none() {
        let command = added_to(Whole::command());
        for (alias, wanted) in all(&command) {
            let (noun, typed) = alias.split_once(' ').expect("two words");
            let noun = command.find_subcommand(noun).expect("a noun");
            let names: BTreeSet<&str> = noun.get_subcommands().map(Command::get_name).collect();
            assert!(!names.contains(typed), "{alias} is a command");
            let found = noun.find_subcommand(typed).expect("it resolves");
            assert_eq!(format!("{} {}", noun.get_name(), found.get_name()), wanted, "{alias}");
            assert_eq!(verb_of(typed, |verb| names.contains(verb)), Some(found.get_name()), "{alias}");
        }
    }

    #[test]
    fn an_alias_takes_the_arguments_of_its_command() {
        for line in ["volume rm tank/db --yes", "snapshot destroy tank/db@monday", "array scrub safe --wait"] {
            let words = std::iter::once("braid").chain(line.split(' '));
            let matches = added_to(Whole::command()).try_get_matches_from(words);
            let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
            let (_, noun) = matches.subcommand().expect("a noun");
            let (verb, _) = noun.subcommand().expect("a verb");
            assert!(["delete", "check"].contains(&verb), "{line} is {verb}");
        }
    }
}

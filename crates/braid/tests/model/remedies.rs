//! Runs the commands that `braid status` recommends, with their placeholders filled in.

use std::time::Duration;

use crate::world::World;

/// The values of the placeholders, and which commands may run.
pub struct Remedies<'a> {
    /// The value of DISK.
    pub disk: &'a str,
    /// Whether commands with `--force` may run: they lose nothing here.
    pub force: bool,
}

impl Remedies<'_> {
    /// Runs every recommended command of every item. Of each item with commands other than `show` and `list`, at least
    /// one has to succeed, unless the item has disappeared.
    pub fn run(&self, world: &mut World) {
        let items = world.json(&["status"])["attention"].as_array().cloned().unwrap_or_default();
        for item in &items {
            let subject = item["subject"].as_str().unwrap_or_default().to_owned();
            world.record(format!("  attention: {subject}: {}", item["message"].as_str().unwrap_or_default()));
            let mut commands: Vec<String> = Vec::new();
            let named = item["commands"].as_array().cloned().unwrap_or_default();
            commands.extend(named.iter().filter_map(|command| command.as_str()).map(str::to_owned));
            // Prose names commands, too, and so do refusals.
            commands.extend(named_in(item["remedy"].as_str().unwrap_or_default()));
            let mut outcomes = Vec::new();
            let mut at = 0;
            while let Some(command) = commands.get(at).cloned() {
                at += 1;
                // The pool lacks space, and not a disk that it had.
                let fresh = command.starts_with("braid pool add").then(|| world.new_file(64));
                let Some(words) = self.fill(&command, fresh.as_deref().unwrap_or(self.disk)) else { continue };
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                world.counts.remedies += 1;
                let (status, text) = world.braid(&words);
                let looks = matches!(words.get(1), Some(&("show" | "list")));
                if looks {
                    assert!(status == 0 || text.contains("no "), "what the status names: {command}: {text}");
                } else {
                    let mut further = if status == 0 { Vec::new() } else { named_in(&text) };
                    // A refusal names the missing option.
                    for option in ["--force", "--yes"] {
                        if status != 0 && text.contains(option) && !command.contains(option) {
                            further.push(format!("{command} {option}"));
                        }
                    }
                    commands.extend(further.into_iter().filter(|one| !commands.contains(one)).collect::<Vec<_>>());
                    outcomes.push((command, status, text));
                }
                if status == 0 && !looks {
                    break;
                }
            }
            if outcomes.is_empty() || outcomes.iter().any(|(_, status, _)| *status == 0) {
                continue;
            }
            // The item may have disappeared meanwhile.
            std::thread::sleep(Duration::from_millis(100));
            let now = world.json(&["status"])["attention"].as_array().cloned().unwrap_or_default();
            assert!(!now.contains(item), "none of what the status names is accepted: {item:#}\n{outcomes:#?}");
        }
    }

    /// Returns the arguments of a `braid` command; `None` for another program's command, and for one that must not run.
    fn fill(&self, command: &str, disk: &str) -> Option<Vec<String>> {
        let mut words = command.split_whitespace();
        if words.next() != Some("braid") {
            return None;
        }
        let mut filled = Vec::new();
        for word in words {
            match word {
                "DISK" | "DISK-or-ARRAY" => filled.push(disk.to_owned()),
                "--force" if !self.force => return None,
                // A remedy that gives data up would remove what the oracle checks.
                "--give-up" => return None,
                word => filled.push(word.to_owned()),
            }
        }
        (filled.first().map(String::as_str) != Some("events")).then_some(filled)
    }
}

/// Returns the commands in a text: in backticks, or up to the end of the clause.
fn named_in(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for (at, _) in text.match_indices("braid ") {
        let is_word = at == 0 || text[..at].ends_with([' ', '`', '\n']);
        let rest = &text[at..];
        let end = rest.find(['`', ';', '\n', ',', '(']).unwrap_or(rest.len());
        let command = rest[..end].trim_end_matches([' ', '.']).split(": ").next().unwrap_or_default();
        let verbs = ["array ", "pool ", "volume ", "snapshot ", "export ", "job ", "disk "];
        if is_word && verbs.iter().any(|verb| command["braid ".len()..].starts_with(verb)) {
            commands.push(command.to_owned());
        }
    }
    commands
}

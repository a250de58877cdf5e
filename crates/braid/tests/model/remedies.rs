//! Does what `braid status` says: each command that it names, with its placeholders filled in.

use std::time::Duration;

use crate::world::World;

/// What stands for the words in capitals, and what may be done.
pub struct Remedies<'a> {
    /// The disk that is meant by DISK.
    pub disk: &'a str,
    /// Whether commands with `--force` may be used: nothing is lost by them here.
    pub force: bool,
}

impl Remedies<'_> {
    /// Runs every command of every item that is not only there to look; of each item at least one has to be accepted, or the item has gone
    /// by itself.
    pub fn run(&self, world: &mut World) {
        let items = world.json(&["status"])["attention"].as_array().cloned().unwrap_or_default();
        for item in &items {
            let subject = item["subject"].as_str().unwrap_or_default().to_owned();
            world.say(format!("  attention: {subject}: {}", item["message"].as_str().unwrap_or_default()));
            let mut commands: Vec<String> = Vec::new();
            let named = item["commands"].as_array().cloned().unwrap_or_default();
            commands.extend(named.iter().filter_map(|command| command.as_str()).map(str::to_owned));
            // Prose names commands, too, and so do refusals.
            commands.extend(named_in(item["remedy"].as_str().unwrap_or_default()));
            let mut outcomes = Vec::new();
            let mut at = 0;
            while let Some(command) = commands.get(at).cloned() {
                at += 1;
                // What the pool lacks is space, and not a disk that it had.
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
                    // A refusal names the option that is missing.
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
            // It may have gone by itself in the meantime.
            std::thread::sleep(Duration::from_millis(100));
            let now = world.json(&["status"])["attention"].as_array().cloned().unwrap_or_default();
            assert!(!now.contains(item), "none of what the status names is accepted: {item:#}\n{outcomes:#?}");
        }
    }

    /// The words of a command of ours; none where it is another program's, or not to be run.
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
                // A remedy for good would take away what is judged.
                "--give-up" => return None,
                word => filled.push(word.to_owned()),
            }
        }
        (filled.first().map(String::as_str) != Some("events")).then_some(filled)
    }
}

/// The commands in a text for people: in backticks, or to the end of the clause.
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

//! Clients that were disconnected because something was wrong: the first few are events of their own, the others are told
//! together, so that a flood of them does not push out of the events what else happened.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So many of one export are told one by one,
const ONE_BY_ONE: u32 = 16;
/// within so much time.
const WINDOW: Duration = Duration::from_secs(60);

/// What was told and what was not, by export; those that had chosen none are together.
#[derive(Default)]
pub struct Complaints(BTreeMap<String, Window>);

struct Window {
    begun: Instant,
    told: u32,
    more: u64,
    last: String,
}

impl Complaints {
    /// A client of `export` (empty: of none yet) was disconnected; `sentence` is what there is to say of it. True: say it;
    /// else it is counted.
    pub fn is_to_be_told(&mut self, export: &str, sentence: &str, now: Instant) -> bool {
        let window = self.0.entry(export.to_owned()).or_insert_with(|| Window {
            begun: now,
            told: 0,
            more: 0,
            last: String::new(),
        });
        if window.told < ONE_BY_ONE {
            window.told += 1;
            return true;
        }
        window.more += 1;
        sentence.clone_into(&mut window.last);
        false
    }

    /// What was only counted and is to be said now, with its export: once a minute, and `all` of it at the end.
    pub fn summaries(&mut self, now: Instant, all: bool) -> Vec<(String, u64, String)> {
        let mut due = Vec::new();
        self.0.retain(|export, window| {
            let over = all || now.saturating_duration_since(window.begun) >= WINDOW;
            if over && window.more > 0 {
                let of = if export.is_empty() { String::new() } else { format!(" of export {export}") };
                let clients = super::counted(window.more as usize, "more client", "more clients");
                let were = if window.more == 1 { "was" } else { "were" };
                let message =
                    format!("{clients}{of} {were} disconnected within a minute; the last one: {}", window.last);
                due.push((export.clone(), window.more, message));
            }
            // An export that is quiet again, or gone, is forgotten.
            !over
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_as_a_few_and_a_number() {
        let (mut complaints, begun) = (Complaints::default(), Instant::now());
        let told = (0..1000).filter(|n| complaints.is_to_be_told("", &format!("client {n}"), begun)).count();
        assert_eq!(told, ONE_BY_ONE as usize);
        // Another export's are not hidden behind it.
        assert!(complaints.is_to_be_told("fast", "client x of export fast", begun));
        assert!(complaints.summaries(begun + WINDOW / 2, false).is_empty());
        let said = complaints.summaries(begun + WINDOW, false);
        let message = "984 more clients were disconnected within a minute; the last one: client 999";
        assert_eq!(said, [(String::new(), 984, message.to_owned())]);
        // Then it begins anew.
        assert!(complaints.is_to_be_told("", "client y", begun + WINDOW) && complaints.0.len() == 1);
        let told = (0..ONE_BY_ONE).filter(|_| complaints.is_to_be_told("", "client z", begun + WINDOW)).count();
        assert_eq!((told as u32, complaints.summaries(begun + WINDOW, true).len()), (ONE_BY_ONE - 1, 1));
    }
}

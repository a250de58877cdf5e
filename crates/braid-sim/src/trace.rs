//! The trace: what happened, as one hash and, on request, as text.
//!
//! Every event passes through [`Trace::event`]: the hash covers exactly the text.

use std::fmt::{self, Write as _};

/// FNV-1a over 64 bits, eight bytes a step where possible. It is not for security: it compares two runs of one seed.
#[derive(Clone, Debug)]
struct Hash64(u64);

impl Hash64 {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
}

impl fmt::Write for Hash64 {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let (words, rest) = s.as_bytes().as_chunks();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.add(u64::from_le_bytes(word));
        }
        Ok(())
    }
}

/// Collects the events of one run.
#[derive(Debug)]
pub struct Trace {
    hash: Hash64,
    events: u64,
    text: Option<String>,
    print: bool,
}

impl Trace {
    /// Creates an empty trace. `print` also writes each line to standard output as it happens, so that a run that
    /// panics has shown how it got there.
    pub fn new(print: bool) -> Trace {
        Trace { hash: Hash64(0xcbf2_9ce4_8422_2325), events: 0, text: None, print }
    }

    /// Creates a trace that keeps its lines.
    pub fn recording() -> Trace {
        Trace { text: Some(String::new()), ..Trace::new(false) }
    }

    /// Records an event at a time in nanoseconds since the start of the run.
    pub fn event(&mut self, now_ns: u64, what: fmt::Arguments<'_>) {
        self.events += 1;
        self.hash.add(now_ns);
        // Neither the hash nor a string can fail to be written to.
        let _ = self.hash.write_fmt(what);
        if self.print {
            println!("{:>14} {what}", Micros(now_ns));
        }
        if let Some(text) = &mut self.text {
            let _ = writeln!(text, "{:>14} {what}", Micros(now_ns));
        }
    }

    /// Returns the hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.hash.0
    }

    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the lines, if they were kept.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or("")
    }
}

/// Shows nanoseconds as microseconds with three decimals.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:03}us", self.0 / 1000, self.0 % 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_tells_traces_apart() {
        let run = |n: u64, t: u64| {
            let mut trace = Trace::recording();
            trace.event(t, format_args!("write {n}"));
            (trace.hash(), trace.text().to_owned())
        };
        assert_eq!(run(1, 5), run(1, 5));
        assert_ne!(run(1, 5).0, run(2, 5).0);
        assert_ne!(run(1, 5).0, run(1, 6).0);
        assert_eq!(run(1, 1500).1.trim(), "1.500us write 1");
    }
}

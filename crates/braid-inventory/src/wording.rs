//! Counts in sentences.

/// Formats a count with the singular or plural of its noun: `1 block`, `2 blocks`.
pub fn counted(count: usize, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}

//! When there is colour: at a terminal, unless somebody says otherwise.

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use std::ffi::OsString;

/// What `--color` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// At a terminal that shows colour, unless NO_COLOR is set
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

/// Takes `--color` from these arguments, whatever else is among them, and holds to it from then on.
pub fn choose(arguments: impl Iterator<Item = OsString>) {
    let choice = match wanted(arguments) {
        Some(Color::Always) => ColorChoice::Always,
        Some(Color::Never) => ColorChoice::Never,
        Some(Color::Auto) | None => ColorChoice::Auto,
    };
    choice.write_global();
}

fn wanted(arguments: impl Iterator<Item = OsString>) -> Option<Color> {
    let mut found = None;
    let mut arguments = arguments.take_while(|argument| argument != "--");
    while let Some(argument) = arguments.next() {
        let argument = argument.to_string_lossy().into_owned();
        let value = match argument.strip_prefix("--color") {
            Some("") => arguments.next().map(|value| value.to_string_lossy().into_owned()),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        found = value.and_then(|value| Color::from_str(&value, false).ok()).or(found);
    }
    found
}

/// What is well.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// What needs attention.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// What stands out: headings, commands to type.
pub const STRONG: Style = Style::new().bold();

/// Text in a style; printed where there is no colour, the style is left out.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_counts_and_what_is_wrong_is_left_to_clap() {
        let check =
            |words: &[&str], expected| assert_eq!(wanted(words.iter().map(OsString::from)), expected, "{words:?}");
        check(&["status"], None);
        check(&["status", "--color", "always"], Some(Color::Always));
        check(&["--color=never", "status"], Some(Color::Never));
        check(&["--color=never", "status", "--color", "auto"], Some(Color::Auto));
        check(&["--color"], None);
        check(&["--color", "loud"], None);
        check(&["--colors=always"], None);
        check(&["array", "--", "--color=always"], None);
    }
}

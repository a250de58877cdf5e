//! The parser of `--level`.

use braid_geometry::Level;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Returns a parser of `--level` that accepts these levels, by name or by alias. Help and completions show the names.
///
/// The argument must set `ignore_case`, so that capital letters are accepted as well.
pub fn parser(levels: &'static [Level]) -> impl TypedValueParser<Value = Level> {
    let value = |level: &Level| PossibleValue::new(level.name()).aliases(level.aliases().iter().copied());
    PossibleValuesParser::new(levels.iter().map(value)).try_map(|word: String| Level::parse_name_or_alias(&word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    /// Parses a `--level` value of a command that accepts raid1 and raid6 only.
    fn parse(word: &str) -> Result<Level, String> {
        let parser = parser(&[Level::Raid1, Level::Raid6]);
        let level = Arg::new("level").long("level").ignore_case(true).value_parser(parser);
        let matches = Command::new("braid").arg(level).try_get_matches_from(["braid", "--level", word]);
        let mut matches = matches.map_err(|error| error.to_string())?;
        Ok(matches.remove_one::<Level>("level").expect("it was given"))
    }

    #[test]
    fn levels_are_accepted_by_name_and_alias() {
        for (word, level) in
            [("raid1", Level::Raid1), ("mirror", Level::Raid1), ("Mirror", Level::Raid1), ("RAID-6", Level::Raid6)]
        {
            assert_eq!(parse(word), Ok(level), "{word}");
        }
    }

    #[test]
    fn other_levels_are_rejected_with_the_valid_names() {
        for word in ["raid0", "stripe", "5", "7"] {
            let error = parse(word).expect_err(word);
            assert!(error.contains("raid1, raid6") && !error.contains("mirror"), "{word}: {error}");
        }
    }
}

//! The rules of names.

use crate::limits::NAME_BYTES_MAX;
use std::fmt;
use time::{Date, Duration, Month, Time, UtcDateTime};

/// The days of 400 years of the Gregorian calendar.
const CYCLE_DAYS: u64 = 146_097;

/// Why a name is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// It is empty.
    Empty,
    /// It is longer than [`NAME_BYTES_MAX`].
    TooLong(usize),
    /// Its first character is neither a letter nor a digit.
    FirstCharacter(char),
    /// It contains this character.
    Character(char),
    /// It has the shape of a UUID. Commands accept UUIDs in place of names, and would take it for another object's.
    LooksLikeUuid,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameError::Empty => write!(f, "a name cannot be empty")?,
            NameError::TooLong(len) => write!(f, "a name has at most {NAME_BYTES_MAX} characters, this one has {len}")?,
            NameError::FirstCharacter(c) => write!(f, "a name starts with a letter or digit, not with {c:?}")?,
            NameError::Character(c) => {
                write!(f, "a name consists of letters, digits, '.', '_' and '-'; it cannot contain {c:?}")?;
            }
            NameError::LooksLikeUuid => write!(f, "a name cannot have the shape of a UUID")?,
        }
        write!(f, " (a right one: backup-2)")
    }
}

impl std::error::Error for NameError {}

/// Checks the name of an array, pool, volume, snapshot, export or node: an ASCII letter or digit, then up to
/// 62 of letters, digits, `.`, `_`, `-`; and not of the shape of a UUID.
///
/// # Errors
/// The first rule that it breaks.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let first = name.chars().next().ok_or(NameError::Empty)?;
    if !first.is_ascii_alphanumeric() {
        return Err(NameError::FirstCharacter(first));
    }
    if let Some(bad) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        return Err(NameError::Character(bad));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong(name.len()));
    }
    if is_uuid(name) {
        return Err(NameError::LooksLikeUuid);
    }
    Ok(())
}

/// The parts of the name of a volume or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeName<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The volume.
    pub volume: &'a str,
    /// The snapshot's own name, if it is a snapshot.
    pub snapshot: Option<&'a str>,
}

impl<'a> VolumeName<'a> {
    /// Parses `POOL/VOLUME` or `POOL/VOLUME@SNAPSHOT`; `None` if the text has neither form. Each part is a name or a UUID.
    pub fn parse(text: &'a str) -> Option<VolumeName<'a>> {
        let (pool, rest) = text.split_once('/')?;
        let (volume, snapshot) = match rest.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(snapshot)),
            None => (rest, None),
        };
        let is_valid = |part: &str| is_uuid(part) || check_name(part).is_ok();
        let all = is_valid(pool) && is_valid(volume) && snapshot.is_none_or(is_valid);
        all.then_some(VolumeName { pool, volume, snapshot })
    }
}

/// Checks the name of an export: a name as [`check_name`] accepts it, or that of a volume or snapshot (`tank/db`,
/// `tank/db@monday`).
///
/// # Errors
/// The first rule that it breaks.
pub fn check_export_name(name: &str) -> Result<(), NameError> {
    if name.contains('/') && VolumeName::parse(name).is_some() { Ok(()) } else { check_name(name) }
}

/// Whether `text` has the shape of a UUID in its usual form of 8-4-4-4-12 hexadecimal digits.
pub fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Returns the name of a snapshot that a schedule takes at this time, in seconds of Unix time: `auto-20261122T140000Z`,
/// in UTC.
pub fn policy_name(unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / 86_400);
    let (h, m, s) = (unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60);
    format!("auto-{year:04}{month:02}{day:02}T{h:02}{m:02}{s:02}Z")
}

/// Returns when a scheduled snapshot with this name was taken, in seconds of Unix time; `None`: the name is not one
/// that a schedule gives. No other snapshot may have such a name.
pub fn policy_time(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("auto-")?.strip_suffix('Z')?;
    let (date, time) = digits.split_once('T').filter(|(date, time)| date.len() == 8 && time.len() == 6)?;
    if !date.bytes().chain(time.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |two: &str| two.parse::<u8>().ok();
    let month = Month::try_from(number(&date[4..6])?).ok()?;
    let date = Date::from_calendar_date(date[..4].parse().ok()?, month, number(&date[6..])?).ok()?;
    let time = Time::from_hms(number(&time[..2])?, number(&time[2..4])?, number(&time[4..])?).ok()?;
    u64::try_from(UtcDateTime::new(date, time).unix_timestamp()).ok()
}

/// Returns year, month and day of a number of days since 1970-01-01.
pub fn civil(days: u64) -> (u64, u64, u64) {
    // `time` ends with the year 9999, and the calendar repeats itself every 400 years.
    let (cycles, day) = (days / CYCLE_DAYS, days % CYCLE_DAYS);
    let date = UtcDateTime::UNIX_EPOCH.date() + Duration::days(day as i64);
    (date.year() as u64 + 400 * cycles, u8::from(date.month()).into(), date.day().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule() {
        for good in ["a", "0", "vm-disk_1.old", "A9", &"x".repeat(63)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_name(""), Err(NameError::Empty));
        assert_eq!(check_name(&"x".repeat(64)), Err(NameError::TooLong(64)));
        assert_eq!(check_name("-x"), Err(NameError::FirstCharacter('-')));
        assert_eq!(check_name(".x"), Err(NameError::FirstCharacter('.')));
        assert_eq!(check_name("é"), Err(NameError::FirstCharacter('é')));
        for (bad, c) in [("a/b", '/'), ("a b", ' '), ("a\0", '\0'), ("a@b", '@'), ("aé", 'é'), ("a\n", '\n')] {
            assert_eq!(check_name(bad), Err(NameError::Character(c)), "{bad:?}");
        }
        assert_eq!(check_name("123e4567-e89b-12d3-a456-426614174000"), Err(NameError::LooksLikeUuid));
    }

    #[test]
    fn a_refusal_shows_a_valid_name() {
        let text = check_name("a/b").expect_err("a slash is refused").to_string();
        assert!(text.contains("'/'") && text.contains("backup-2"), "{text}");
        assert_eq!(check_name("backup-2"), Ok(()));
    }

    #[test]
    fn names_of_volumes_and_snapshots_have_parts() {
        let parse = VolumeName::parse;
        assert_eq!(parse("tank/db"), Some(VolumeName { pool: "tank", volume: "db", snapshot: None }));
        let snapshot = VolumeName { pool: "tank", volume: "db", snapshot: Some("monday") };
        assert_eq!(parse("tank/db@monday"), Some(snapshot));
        for wrong in
            ["tank", "tank/", "/db", "tank/db/x", "tank/db@", "tank/@monday", "tank@monday", "tank/db@a@b", "t k/db"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(check_export_name("tank/db@monday"), Ok(()));
        assert_eq!(check_export_name("fast"), Ok(()));
        assert!(check_export_name("tank/db/x").is_err());
    }

    #[test]
    fn uuids_are_recognised() {
        assert!(is_uuid("123E4567-e89b-12d3-a456-426614174000"));
        assert!(!is_uuid("123E4567-e89b-12d3-a456-42661417400g"));
        assert!(!is_uuid("123E4567e89b-12d3-a456-426614174000a"));
    }

    #[test]
    fn names_of_policy_snapshots_contain_their_time() {
        assert_eq!(policy_name(0), "auto-19700101T000000Z");
        assert_eq!(policy_name(1_795_356_000), "auto-20261122T140000Z");
        for unix_s in (0..4_102_444_800).step_by(86_400 * 30 + 12_345) {
            assert_eq!(policy_time(&policy_name(unix_s)), Some(unix_s));
            assert_eq!(check_name(&policy_name(unix_s)), Ok(()));
        }
        for other in [
            "auto-",
            "auto-20261122T140000",
            "monday",
            "auto-20261322T140000Z",
            "auto-20260230T000000Z",
            "auto-2026112xT140000Z",
            "auto-20261122T240000Z",
            "auto-99991122T146000Z",
            "auto-19691231T235959Z",
            "auto-00000101T000000Z",
            "auto-100000101T000000Z",
            "auto-20260229T000000Z",
            "auto-20260001T000000Z",
            "auto-20260100T000000Z",
            "auto-20261122T000060Z",
            "auto-+0261122T140000Z",
            "auto-202611éT140000Z",
        ] {
            assert_eq!(policy_time(other), None, "{other}");
        }
    }

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_778, (2026, 11, 21)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (CYCLE_DAYS - 1, (2369, 12, 31)),
            (CYCLE_DAYS, (2370, 1, 1)),
            (2_932_896, (9999, 12, 31)),
            (2_932_897, (10_000, 1, 1)),
            (2_932_897 + 59, (10_000, 2, 29)),
            (u64::MAX / 86_400, (584_554_051_223, 11, 9)),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
        assert_eq!(policy_time(&policy_name(253_402_300_799)), Some(253_402_300_799));
        assert_eq!(policy_name(253_402_300_800), "auto-100000101T000000Z");
        assert_eq!(policy_time("auto-20000229T235959Z"), Some(951_868_799));
    }
}

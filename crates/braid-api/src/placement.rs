//! The allocation policy of volumes, and the members of pools.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// The allocation policy of a volume: the members of its pool on which its blocks are allocated.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// All members, in proportion to their free space.
    #[default]
    Spread,
    /// One member: the one with the most free space at the time of the request.
    Single,
    /// These members: disks and arrays as the pool shows them, or their member numbers.
    On(Vec<String>),
}

/// The error of parsing a [`Place`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePlaceError(String);

impl fmt::Display for ParsePlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no place: write spread, single, or on=MEMBER,…", self.0)
    }
}

impl std::error::Error for ParsePlaceError {}

impl FromStr for Place {
    type Err = ParsePlaceError;

    /// Parses `spread`, `single`, or `on=/dev/sdb,0`. Members with a comma in their name are named by their numbers.
    fn from_str(text: &str) -> Result<Place, ParsePlaceError> {
        match text.split_once('=') {
            None if text == "spread" => Ok(Place::Spread),
            None if text == "single" => Ok(Place::Single),
            Some(("on", members)) if members.split(',').all(|member| !member.is_empty()) => {
                Ok(Place::On(members.split(',').map(str::to_owned).collect()))
            }
            _ => Err(ParsePlaceError(text.to_owned())),
        }
    }
}

/// `POST /v1/volumes/{volume}/move`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"place": "spread"}))]
pub struct MoveVolume {
    /// The new allocation policy, for its blocks and those of its snapshots.
    pub place: Place,
}

/// `POST /v1/pools/{pool}/members`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"members": ["/dev/sdd"]}))]
pub struct AddMembers {
    /// Disks, and arrays by name, as for a new pool.
    pub members: Vec<String>,
    /// Use disks and arrays that already carry data, and destroy it.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/pools/{pool}/start`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"force": true}))]
pub struct StartPool {
    /// Start without missing members: blocks that volumes may have on them read as errors until the members return.
    #[serde(default)]
    pub force: bool,
    /// Where 4 KiB of a table cannot be read, and recovery has to write an entry there: rewrite the table block. Its other entries, of up
    /// to 32 MiB of blocks, are damaged from then on.
    #[serde(default)]
    pub give_up: bool,
}

/// `POST /v1/pools/{pool}/remove`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "/dev/sdb"}))]
pub struct RemoveMember {
    /// The member: the disk or the array as the pool shows it, or its member number.
    pub member: String,
    /// Cancel its removal: data that have moved already are not moved back.
    #[serde(default)]
    pub cancel: bool,
    /// Give up a missing member: it cannot return, and what volumes may have had on it stays in doubt.
    #[serde(default)]
    pub force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_parsed_and_other_texts_refused() {
        let on = |members: &[&str]| Ok(Place::On(members.iter().map(|&member| member.to_owned()).collect()));
        assert_eq!(("spread".parse(), "single".parse()), (Ok(Place::Spread), Ok(Place::Single)));
        assert_eq!(("on=0".parse(), "on=/dev/sdb,fast".parse()), (on(&["0"]), on(&["/dev/sdb", "fast"])));
        for text in ["", "on", "on=", "on=a,,b", "Spread", "single=1", "spread "] {
            assert_eq!(text.parse::<Place>(), Err(ParsePlaceError(text.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn json_is_as_documented() {
        let of = |place: &Place| serde_json::to_string(place).unwrap_or_default();
        assert_eq!(of(&Place::Spread), r#""spread""#);
        assert_eq!(of(&Place::On(vec!["1".to_owned()])), r#"{"on":["1"]}"#);
    }
}

//! Codes of levels, layouts and states in labels, and the words to display them with.
//!
//! The meaning of a code never changes.

use braid_geometry::{Layout, Level, ZonePolicy};

use crate::states::{ArrayState, JobKind, JobState, MemberState, PoolMemberState, PoolState, StartPolicy};

/// Form of a zone table: each entry is a set of members.
pub(crate) const FORM_SETS: u8 = 1;
/// Form of a zone table: each entry is one member.
pub(crate) const FORM_SPANS: u8 = 2;

/// Defines the conversions from a type to its codes and back, and from a code to its word.
macro_rules! codes {
    ($type:ident, $to:ident, $from:ident, $word:ident: $($variant:ident = $code:literal $text:literal),*
        $(; else $other:literal)? $(,)?) => {
        pub(crate) fn $to(value: $type) -> u8 {
            match value { $($type::$variant => $code,)* $(_ => $other,)? }
        }
        pub(crate) fn $from(code: u8) -> Option<$type> {
            match code { $($code => Some($type::$variant),)* _ => None }
        }
        pub(crate) fn $word(code: u8) -> Option<&'static str> {
            match code { $($code => Some($text),)* _ => None }
        }
    };
}

codes!(Level, level_code, level_from, level_word:
    Concat = 1 "concat", Raid0 = 2 "raid0", Raid1 = 3 "raid1", Raid10 = 4 "raid10", Raid5 = 5 "raid5", Raid6 = 6 "raid6");
// Layouts that only md creates are never in a label: their code is 0.
codes!(Layout, layout_code, layout_from, layout_word:
    Linear = 1 "linear", Alternate = 2 "alternate", Original = 3 "original", Mirror = 4 "mirror", Near = 5 "near",
    LeftSymmetric = 6 "left-symmetric"; else 0);
codes!(ZonePolicy, zone_policy_code, zone_policy_from, zone_policy_word: All = 1 "all", Single = 2 "single");
codes!(ArrayState, array_state_code, array_state_from, array_state_word:
    Forming = 1 "forming", Active = 2 "active", Deleting = 3 "deleting");
codes!(MemberState, member_state_code, member_state_from, member_state_word:
    Empty = 0 "vacant", InSync = 1 "in sync", Rebuilding = 2 "rebuilding", Failed = 3 "failed", Spare = 4 "spare",
    Journal = 5 "journal");
codes!(StartPolicy, start_policy_code, start_policy_from, start_policy_word:
    ByLevel = 0 "by level", Auto = 1 "auto");
codes!(JobKind, job_kind_code, job_kind_from, job_kind_word:
    Rebuild = 1 "rebuild", Resync = 2 "resync", Check = 3 "check", Repair = 4 "repair", Replace = 5 "replace",
    Evacuate = 6 "evacuate", Grow = 7 "grow");
codes!(JobState, job_state_code, job_state_from, job_state_word: Running = 1 "running", Paused = 2 "paused");
codes!(PoolState, pool_state_code, pool_state_from, pool_state_word:
    Forming = 1 "forming", Active = 2 "active", Deleting = 3 "deleting");
codes!(PoolMemberState, pool_member_state_code, pool_member_state_from, pool_member_state_word:
    InUse = 1 "in use", Removing = 2 "being removed", Missing = 3 "missing, accepted", Joining = 4 "being added",
    Abandoned = 5 "given up");

pub(crate) fn clean_word(code: u8) -> Option<&'static str> {
    match code {
        0 => Some("no"),
        1 => Some("yes"),
        _ => None,
    }
}

pub(crate) fn zone_form_word(code: u8) -> Option<&'static str> {
    match code {
        FORM_SETS => Some("sets of members"),
        FORM_SPANS => Some("single members"),
        _ => None,
    }
}

/// Implements `Display` with the word of each state.
macro_rules! display_words {
    ($($type:ident, $to:ident, $word:ident;)*) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad($word($to(*self)).unwrap_or("unknown"))
            }
        }
    )*};
}

display_words! {
    ArrayState, array_state_code, array_state_word;
    MemberState, member_state_code, member_state_word;
    StartPolicy, start_policy_code, start_policy_word;
    JobKind, job_kind_code, job_kind_word;
    JobState, job_state_code, job_state_word;
    PoolState, pool_state_code, pool_state_word;
    PoolMemberState, pool_member_state_code, pool_member_state_word;
}

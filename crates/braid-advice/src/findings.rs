//! Formats the findings of a job. Events, `braid status` and `braid job watch` use the same sentence.

use braid_api::{Findings, WrongMember};
use braid_geometry::units::format_size;

/// Maximum number of offsets that a sentence lists.
const NAMED_MAX: usize = 3;

/// Returns a sentence about findings, without its full stop: how many blocks were compared, differ, could not be
/// compared and cannot be read; the first three offsets, in bytes; and the members that had wrong blocks.
pub fn sentence(found: &Findings) -> String {
    let mut parts = Vec::new();
    if (found.compared_blocks, found.uncompared_blocks, found.unreadable_blocks) == (0, 0, 0) {
        return "nothing was ever written, and nothing was compared".to_owned();
    }
    if found.compared_blocks > 0 {
        parts.push(format!("{} of {} compared", count(found.compared_blocks), format_size(found.block_bytes)));
        parts.push(differing(found));
    }
    if found.uncompared_blocks > 0 {
        let why = "could not be compared, as too few members with a copy are in sync";
        parts.push(format!("{} {why}", count(found.uncompared_blocks)));
    }
    if found.unreadable_blocks > 0 {
        parts.push(format!("{} cannot be read", count(found.unreadable_blocks)));
    }
    let mut text = parts.join(", ");
    let offsets: Vec<String> = found.offsets_bytes.iter().take(NAMED_MAX).map(u64::to_string).collect();
    if !offsets.is_empty() {
        let more = if found.offsets_bytes.len() > NAMED_MAX { ", …" } else { "" };
        text.push_str(&format!(", at byte {}{more}", offsets.join(", ")));
    }
    let member_text = |of: &WrongMember| format!("member {} had {} wrong", of.member, count(of.blocks));
    let wrong: Vec<String> = found.wrong_members.iter().map(member_text).collect();
    if !wrong.is_empty() {
        text.push_str(&format!("; {}", wrong.join(", ")));
    }
    text
}

fn differing(found: &Findings) -> String {
    let differing = found.differing_blocks;
    let verb = if differing == 1 { "differs" } else { "differ" };
    match found.repaired_blocks {
        _ if differing == 0 => "nothing differs".to_owned(),
        0 => format!("{} {verb}", count(differing)),
        mended if mended >= differing => {
            format!("{} differed and {} equal now", count(differing), if differing == 1 { "is" } else { "are" })
        }
        mended => format!("{} {verb}, {mended} of them equal now", count(differing)),
    }
}

fn count(blocks: u64) -> String {
    if blocks == 1 { "1 block".to_owned() } else { format!("{blocks} blocks") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_formatted() {
        let found = |differing, mended, unreadable, places: &[u64]| Findings {
            block_bytes: 4096,
            compared_blocks: 100,
            uncompared_blocks: 0,
            differing_blocks: differing,
            repaired_blocks: mended,
            unreadable_blocks: unreadable,
            offsets_bytes: places.to_vec(),
            wrong_members: Vec::new(),
        };
        assert_eq!(sentence(&found(0, 0, 0, &[])), "100 blocks of 4.00 KiB compared, nothing differs");
        assert_eq!(
            sentence(&found(1, 0, 0, &[8192])),
            "100 blocks of 4.00 KiB compared, 1 block differs, at byte 8192"
        );
        assert_eq!(
            sentence(&found(5, 5, 1, &[0, 4096, 8192, 12288])),
            "100 blocks of 4.00 KiB compared, 5 blocks differed and are equal now, 1 block cannot be read, at byte 0, 4096, 8192, …"
        );
        let named = Findings { wrong_members: vec![WrongMember { member: 3, blocks: 1 }], ..found(1, 1, 0, &[0]) };
        assert_eq!(
            sentence(&named),
            "100 blocks of 4.00 KiB compared, 1 block differed and is equal now, at byte 0; member 3 had 1 block wrong"
        );
        let partial = Findings { uncompared_blocks: 50, ..found(0, 0, 0, &[]) };
        assert_eq!(
            sentence(&partial),
            "100 blocks of 4.00 KiB compared, nothing differs, 50 blocks could not be compared, as too few members with a copy are in sync"
        );
        let nothing = Findings { compared_blocks: 0, ..found(0, 0, 0, &[]) };
        assert_eq!(sentence(&nothing), "nothing was ever written, and nothing was compared");
        let rebuild = Findings { compared_blocks: 0, ..found(0, 0, 2, &[4096]) };
        assert_eq!(sentence(&rebuild), "2 blocks cannot be read, at byte 4096");
    }
}

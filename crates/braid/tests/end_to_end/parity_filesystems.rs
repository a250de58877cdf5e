//! File systems of the real kernel on arrays with parity that lose a member, get another one and are filled, while files are
//! written.

use crate::mirror_filesystems::{EXT4, XFS, story};

#[test]
fn ext4_lives_on_a_raid5_whose_member_is_replaced() {
    story("raid5", 3, 180, EXT4);
}

#[test]
fn xfs_lives_on_a_raid6_whose_member_is_replaced() {
    story("raid6", 4, 180, XFS);
}

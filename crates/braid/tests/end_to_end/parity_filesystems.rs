//! Kernel file systems on arrays with parity that lose a member and rebuild a new one while files are written.

use crate::mirror_filesystems::{EXT4, XFS, story};

#[test]
fn ext4_works_on_a_raid5_whose_member_is_replaced() {
    story("raid5", 3, 180, EXT4);
}

#[test]
fn xfs_works_on_a_raid6_whose_member_is_replaced() {
    story("raid6", 4, 180, XFS);
}

//! Disks that bear a pool's label.

use braid_engine::LeafId;
use braid_format::pool::{POOL_MAGIC, PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState, PoolState, Reserved};
use braid_format::{Features, Uuid, copy_offset};

use super::disks::Disks;
use super::{CreateRequest, create, create_raid0, leaves, name, raid0, run, three_disks};
use crate::lifecycle::wipe;

#[test]
fn a_member_of_a_pool_is_taken_by_force_only_and_then_wholly() {
    let disks = three_disks();
    let size_bytes = 4 << 20;
    let end = copy_offset(size_bytes).unwrap();
    let label = PoolLabel {
        features: Features::default(),
        uuid: Uuid::from_u128(1),
        sequence: 1,
        name: name("tank"),
        state: PoolState::Active,
        clean: true,
        created_unix_s: 0,
        session: 0,
        members: vec![Some(PoolMember { uuid: Uuid::from_u128(2), size_bytes, state: PoolMemberState::InUse })],
        member: 0,
        layout: PoolMemberLayout::new(size_bytes, 1024).unwrap(),
        reserved: Reserved::NONE,
    };
    let bytes = label.encode().unwrap();
    let put = || [0, end].into_iter().for_each(|at| disks.poke(LeafId(1), at, &bytes));
    put();
    let before = disks.changed(LeafId(1));
    let refused = create_raid0(&disks, "fast", 1, leaves(3)).unwrap_err();
    assert_eq!(refused.to_string(), "the disk holds Braid pool label \"tank\"; use --force to overwrite it");
    assert_eq!(disks.changed(LeafId(1)), before);
    // Nothing is left that could be mistaken for a pool later.
    drop(run(create(&disks, &CreateRequest { force: true, ..raid0("fast", 1, leaves(3)) })).unwrap());
    assert!([0, end].into_iter().all(|at| !disks.peek(LeafId(1), at, 4096).starts_with(&POOL_MAGIC)));
    // Wiped: whole, torn, and at a wrong location.
    let other = three_disks();
    other.poke(LeafId(1), 0, &bytes);
    other.poke(LeafId(1), end, &bytes[..512]);
    assert_eq!(run(wipe(&other, LeafId(1))).unwrap().erased, [0, end]);
    assert_eq!(other.peek(LeafId(1), end, 4096), [0; 4096]);
    let whole = Disks::new(&[64 << 20]);
    whole.poke(LeafId(0), (64 << 20) - 4096, &bytes);
    let wiped = run(wipe(&whole, LeafId(0))).unwrap();
    assert_eq!((wiped.erased, wiped.left), (vec![], vec![(64 << 20) - 4096]));
}

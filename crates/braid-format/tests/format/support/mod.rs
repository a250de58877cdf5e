//! Labels for tests: those of the golden files, and random ones.

use braid_format::bitmap::region_bytes_for;
use braid_format::limits::COUNTER_MAX;
use braid_format::pool::{
    PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState, PoolState, Reserved, owner_slots_for,
};
use braid_format::{
    Ancestor, ArrayPart, ArrayState, DiskLayout, Features, Job, JobKind, JobState, Label, Lineage, MemberEntry,
    MemberId, MemberPart, MemberState, Name, RetiredMarks, StartPolicy, zone_table,
};
use braid_geometry::{Geometry, Level, Spec};
use proptest::prelude::*;
use uuid::Uuid;

/// Returns the label of the member in slot `slot` of a new array of this level over disks of these sizes.
pub fn fresh(spec: Spec, device_bytes: &[u64], slot: u16) -> Label {
    let places: Vec<DiskLayout> = device_bytes.iter().map(|size| DiskLayout::for_device(*size).unwrap()).collect();
    let data: Vec<u64> = places.iter().map(|p| p.data.bytes).collect();
    let geometry = Geometry::plan(spec, &data).unwrap();
    let members = data.iter().enumerate().map(|(i, data_bytes)| MemberEntry {
        id: Some(MemberId::from_random(0x1000 + i as u64)),
        data_bytes: *data_bytes,
        state: MemberState::InSync,
        write_mostly: false,
    });
    Label {
        array: ArrayPart {
            features: Features::default(),
            uuid: Uuid::from_bytes(*b"braid-test-array"),
            sequence: 1,
            name: Name::new("fast").unwrap(),
            state: ArrayState::Forming,
            spec,
            clean: true,
            start_policy: StartPolicy::ByLevel,
            region_bytes: match spec.level {
                Level::Concat | Level::Raid0 => 0,
                _ => region_bytes_for(geometry.size_bytes()),
            },
            array_bytes: geometry.size_bytes(),
            created_unix_s: 1_700_000_000,
            lineage: Lineage { id: 0x11, ancestors: vec![] },
            session: 0,
            previous_session: 0,
            epoch: 0,
            controller: Uuid::nil(),
            jobs: vec![],
            members: members.collect(),
            zones: zone_table(&geometry),
            reserved: [0; 2],
        },
        member: MemberPart {
            id: MemberId::from_random(0x1000 + u64::from(slot)),
            slot,
            layout: places[usize::from(slot)],
            retired: RetiredMarks::default(),
            reserved: [0; 4],
        },
    }
}

/// 50 + 100 + 100 GiB as raid0.
pub fn raid0_of_three() -> Label {
    let mut label = fresh(Spec::new(Level::Raid0), &[50 << 30, 100 << 30, 100 << 30], 1);
    label.array.state = ArrayState::Active;
    label.array.sequence = 7;
    label.array.session = 0x0123_4567_89ab_cdef;
    label
}

/// The maximum number of members, each a zone.
pub fn concat_of_128() -> Label {
    let sizes: Vec<u64> = (0..128u64).map(|i| (64 << 20) + i * 65536).collect();
    fresh(Spec::new(Level::Concat), &sizes, 127)
}

/// Every field of redundancy and replication is set.
pub fn raid10_with_everything() -> Label {
    let spec = Spec { copies: 3, chunk_bytes: 512 << 10, ..Spec::new(Level::Raid10) };
    let mut label = fresh(spec, &[2 << 30, 3 << 30, 4 << 30, 4 << 30, 4 << 30], 3);
    let array = &mut label.array;
    array.state = ArrayState::Deleting;
    array.features.compatible = 0x8000_0000_0000_0001;
    array.features.read_only = 2;
    array.clean = false;
    array.start_policy = StartPolicy::Auto;
    array.sequence = COUNTER_MAX;
    array.epoch = 12;
    array.controller = Uuid::from_bytes(*b"the-controller-7");
    array.session = u64::MAX;
    array.previous_session = 0xfedc_ba98_7654_3210;
    array.region_bytes = 4 << 20;
    array.lineage = Lineage { id: 0x99, ancestors: (1..=8).map(Ancestor::all_accepted).collect() };
    array.lineage.ancestors[1].accepted_from = 0x0102_0304_0506;
    array.lineage.ancestors[7].accepted_from = Ancestor::NONE_ACCEPTED;
    array.members[0].state = MemberState::Empty;
    array.members[0].id = None;
    array.members[1].state = MemberState::Rebuilding;
    array.members[2].state = MemberState::Failed;
    array.members[4].state = MemberState::Spare;
    array.members[4].write_mostly = true;
    array.jobs = vec![
        Job {
            kind: JobKind::Rebuild,
            state: JobState::Running,
            target: Some(1),
            source: Some(3),
            number: 77,
            position_bytes: 1 << 30,
            end_bytes: 3 << 30,
            rate_bytes_per_s: 0,
        },
        Job {
            kind: JobKind::Check,
            state: JobState::Paused,
            target: None,
            source: None,
            number: 78,
            position_bytes: 4096,
            end_bytes: 8192,
            rate_bytes_per_s: 50_000_000,
        },
    ];
    array.reserved = std::array::from_fn(|i| i as u8);
    label.member.reserved = std::array::from_fn(|i| 0xf0 | i as u8);
    label
}

/// Generates labels that this version writes.
pub fn any_label() -> impl Strategy<Value = Label> {
    let shape = (prop::sample::select(Level::ALL.to_vec()), prop::collection::vec(1u64 << 21..1 << 33, 3..24));
    let words = (any::<[u64; 6]>(), any::<[u8; 16]>(), "[A-Za-z0-9][A-Za-z0-9._-]{0,62}", 0u8..3, any::<bool>());
    let chunk = prop::sample::select(vec![4096u64, 12288, 65536, 1 << 20]);
    (shape, words, chunk, any::<prop::sample::Index>()).prop_map(|((level, mut sizes), words, chunk_bytes, slot)| {
        let ([seq, epoch, session, created, lineage, random], uuid, name, state, clean) = words;
        sizes.iter_mut().for_each(|s| *s = *s / 512 * 512);
        let slot = slot.index(sizes.len()) as u16;
        let mut label = fresh(Spec { chunk_bytes, ..Spec::new(level) }, &sizes, slot);
        let array = &mut label.array;
        array.sequence = (seq >> 2).max(1);
        array.epoch = epoch >> 18;
        array.session = session;
        array.previous_session = session.rotate_left(17);
        array.created_unix_s = created >> 24;
        let from = |id: u64| Ancestor { id, accepted_from: random.rotate_left(id as u32 * 7) >> 16 };
        array.lineage = Lineage { id: lineage, ancestors: (0..lineage % 9).map(from).collect() };
        array.uuid = Uuid::from_bytes(uuid);
        if array.uuid.is_nil() {
            array.uuid = Uuid::max();
        }
        array.name = Name::new(&name).unwrap();
        array.state = [ArrayState::Forming, ArrayState::Active, ArrayState::Deleting][usize::from(state)];
        array.clean = clean;
        for (i, member) in array.members.iter_mut().enumerate() {
            member.write_mostly = random >> i & 1 == 1;
            let states = [MemberState::InSync, MemberState::Rebuilding, MemberState::Failed, MemberState::Spare];
            member.state = states[(random as usize >> i) % 4];
        }
        label
    })
}

/// A pool with three member numbers, of which number 1 is no longer used; this is number 2.
pub fn pool_of_three() -> PoolLabel {
    let member =
        |number: u128, size_bytes, state| Some(PoolMember { uuid: Uuid::from_u128(number), size_bytes, state });
    PoolLabel {
        features: Features::default(),
        uuid: Uuid::from_bytes(*b"braid-test-pool!"),
        sequence: 7,
        name: Name::new("tank").unwrap(),
        state: PoolState::Active,
        clean: true,
        created_unix_s: 1_700_000_000,
        session: 0x1122_3344_5566_7788,
        members: vec![
            member(11, 50 << 30, PoolMemberState::Missing),
            None,
            member(13, 100 << 30, PoolMemberState::Removing),
        ],
        member: 2,
        layout: PoolMemberLayout::new(100 << 30, owner_slots_for(50 << 30)).unwrap(),
        reserved: Reserved::NONE,
    }
}

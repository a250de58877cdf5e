//! Arrays of Linux md: superblocks that mdadm wrote, layouts that md filled, and superblocks that are made here, with
//! every kind of problem.

use braid_format::md::{self, AssembleOptions, AssembleProblem, MdError, Role, SlotState, Superblock};
use braid_geometry::{Layout, MemberContent};
use serde_json::Value;
use std::path::PathBuf;

fn golden(folder: &str) -> Vec<Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/md-layouts").join(folder);
    let files =
        std::fs::read_dir(&folder).expect("the folder is in the checkout").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    files
        .iter()
        .map(|path| serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON"))
        .collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"))
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// Superblocks that mdadm wrote decode to the values that mdadm shows, and give the array that md served.
#[test]
fn superblocks_that_mdadm_wrote() {
    let mut seen = 0;
    for golden in golden("superblocks") {
        let name = golden["name"].as_str().expect("a name");
        let mut devices = Vec::new();
        for member in golden["members"].as_array().expect("members") {
            let parsed = &member["parsed"];
            let mut bytes = bytes_of(member["first_512_hex"].as_str().expect("bytes"));
            bytes.resize(4096, 0);
            let end = (number(&parsed["data_offset_sectors"]) + number(&parsed["data_size_sectors"])) * 512;
            let found = Superblock::decode(&bytes, 2, 4096, end).expect("mdadm wrote it");
            assert_eq!(found.array.simple().to_string(), parsed["set_uuid"].as_str().expect("an identity"));
            assert_eq!(found.device.simple().to_string(), parsed["device_uuid"].as_str().expect("an identity"));
            assert_eq!(found.name, parsed["set_name"].as_str().expect("a name"));
            assert_eq!(i64::from(found.level), parsed["level"].as_i64().expect("a number"));
            for (ours, theirs) in [
                (found.created_unix_s, "ctime"),
                (u64::from(found.layout), "layout"),
                (found.used_bytes / 512, "size_sectors"),
                (found.chunk_bytes / 512, "chunksize_sectors"),
                (u64::from(found.members), "raid_disks"),
                (found.data_start / 512, "data_offset_sectors"),
                (found.data_bytes / 512, "data_size_sectors"),
                (u64::from(found.device_number), "dev_number"),
                (found.updated_unix_s, "utime"),
                (found.events, "events"),
                (found.resync_bytes.unwrap_or(u64::MAX), "resync_offset"),
                (u64::from(found.features), "feature_map"),
            ] {
                assert_eq!(ours, number(&parsed[theirs]), "{name}: {theirs}");
            }
            let roles: Vec<u64> = parsed["dev_roles"].as_array().expect("roles").iter().map(number).collect();
            for (ours, theirs) in found.roles.iter().zip(roles) {
                let code = match ours {
                    Role::Member(member) => u64::from(*member),
                    Role::Spare => 0xffff,
                    Role::Faulty => 0xfffe,
                    Role::Journal => 0xfffd,
                };
                assert_eq!(code, theirs, "{name}");
            }
            // A single wrong bit is detected.
            for bit in (0..512 * 8).step_by(7) {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Superblock::decode(&bytes, 2, 4096, end).is_err(), "{name}: bit {bit}");
            }
            devices.push(found);
            seen += 1;
        }
        // In any order.
        devices.reverse();
        let array = md::assemble(&devices, AssembleOptions::default());
        assert_eq!((&array.problems[..], &array.warnings[..]), (&[][..], &[][..]), "{name}");
        assert!(array.clean && !array.is_degraded() && array.non_members.is_empty(), "{name}");
        let examined = golden["members"][0]["mdadm_examine"].as_str().expect("text");
        let layout = array.layout.as_str();
        assert!(layout.is_empty() || examined.contains(&format!("Layout : {layout}")), "{name}: {layout}");
        assert!(examined.contains(&format!("Raid Level : {}", array.level)), "{name}");
        let known = golden_array(name);
        let geometry = array.geometry.expect("it can be read");
        assert_eq!(geometry.size_bytes(), number(&known["array_size_bytes"]), "{name}");
    }
    assert_eq!(seen, 24);
}

fn golden_array(name: &str) -> Value {
    golden("").into_iter().find(|golden| golden["name"] == name).expect("an array of that name")
}

/// A superblock to make: for an array of `members`, this one of them.
#[derive(Clone)]
struct Made {
    level: i32,
    layout: u32,
    features: u32,
    chunk_bytes: u64,
    used_bytes: u64,
    members: u32,
    number: u32,
    data_bytes: u64,
    events: u64,
    resync_sectors: u64,
    recovery_sectors: u64,
    roles: Vec<u16>,
    array: u8,
}

const DATA_START: u64 = 1 << 20;

impl Made {
    fn of(level: i32, layout: u32, chunk_bytes: u64, members: u32, data_bytes: u64) -> Made {
        Made {
            level,
            layout,
            features: 0,
            chunk_bytes,
            used_bytes: if level > 0 { data_bytes } else { 0 },
            members,
            number: 0,
            data_bytes,
            events: 20,
            resync_sectors: u64::MAX,
            recovery_sectors: 0,
            roles: (0..members as u16).collect(),
            array: 7,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; 4096];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &0xa92b_4efcu32.to_le_bytes());
        put(4, &1u32.to_le_bytes());
        put(8, &self.features.to_le_bytes());
        put(16, &[self.array; 16]);
        put(32, b"host:data");
        put(72, &self.level.to_le_bytes());
        put(76, &self.layout.to_le_bytes());
        put(80, &(self.used_bytes / 512).to_le_bytes());
        put(88, &((self.chunk_bytes / 512) as u32).to_le_bytes());
        put(92, &self.members.to_le_bytes());
        put(128, &(DATA_START / 512).to_le_bytes());
        put(136, &(self.data_bytes / 512).to_le_bytes());
        put(144, &8u64.to_le_bytes());
        put(152, &self.recovery_sectors.to_le_bytes());
        put(160, &self.number.to_le_bytes());
        put(168, &[self.number as u8 + 1; 16]);
        put(186, &8u16.to_le_bytes());
        put(188, &16u32.to_le_bytes());
        put(200, &self.events.to_le_bytes());
        put(208, &self.resync_sectors.to_le_bytes());
        put(220, &(self.roles.len() as u32).to_le_bytes());
        for (index, role) in self.roles.iter().enumerate() {
            put(256 + 2 * index, &role.to_le_bytes());
        }
        let sum: u64 = out[..256 + 2 * self.roles.len()]
            .chunks(4)
            .map(|word| word.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
            .sum();
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        out[216..220].copy_from_slice(&(sum as u32).to_le_bytes());
        out
    }

    fn superblock(&self) -> Superblock {
        Superblock::decode(&self.bytes(), 2, 4096, DATA_START + self.data_bytes).expect("it is right")
    }
}

/// Returns all members of an array after `change`, by role.
fn members(of: &Made, change: impl Fn(&mut Made)) -> Vec<Superblock> {
    let one = |number: u32| {
        let mut made = Made { number, ..of.clone() };
        change(&mut made);
        made.superblock()
    };
    (0..of.members).map(one).collect()
}

/// Every array that md filled has the same layout here, assembled from superblocks with md's numbers.
#[test]
fn every_layout_that_md_filled() {
    let mut compared = 0;
    for golden in golden("").into_iter().chain(golden("only-read")) {
        let name = golden["name"].as_str().expect("a name");
        let sizes: Vec<u64> =
            golden["members"].as_array().expect("members").iter().map(|m| number(&m["data_size_bytes"])).collect();
        let level = golden["level_sb"].as_i64().expect("a number") as i32;
        let layout = number(&golden["layout_sb"]) as u32;
        let made = Made {
            used_bytes: golden["used_dev_size_bytes"].as_u64().unwrap_or(0),
            // mdadm sets it where members differ in size.
            features: if level == 0 && layout > 0 { 4096 } else { 0 },
            ..Made::of(level, layout, number(&golden["chunk_bytes"]), sizes.len() as u32, sizes[0])
        };
        let devices: Vec<Superblock> = sizes
            .iter()
            .zip(0..)
            .map(|(&data_bytes, number)| Made { number, data_bytes, ..made.clone() }.superblock())
            .collect();
        let mut wishes = AssembleOptions::default();
        if golden["layout"] == "dangerous" {
            assert_eq!(md::assemble(&devices, wishes).problems, [AssembleProblem::Raid0Layout], "{name}");
            let second = golden["raid0_modparam"] == "default_layout=2";
            wishes.layout = Some(if second { Layout::Alternate } else { Layout::Original });
        }
        let array = md::assemble(&devices, wishes);
        assert_eq!(array.problems, [], "{name}");
        let geometry = array.geometry.expect("it can be laid out");
        assert_eq!(geometry.size_bytes(), number(&golden["array_size_bytes"]), "{name}");
        for row in golden["runs_strided"].as_array().expect("runs") {
            let field = |index: usize| number(&row[index]);
            let data = row[4] == "data";
            let mut check = |at: u64, what: u64| {
                let place = geometry.content_at(field(0) as u16, at * 4096);
                let matches = match (row[4].as_str().expect("a kind"), place) {
                    ("data", MemberContent::Data { array_offset, .. }) => array_offset == what * 4096,
                    ("P", MemberContent::Parity { stripe, q: false, .. })
                    | ("Q", MemberContent::Parity { stripe, q: true, .. }) => stripe == what,
                    ("unused", MemberContent::Unused { .. }) => true,
                    _ => false,
                };
                assert!(matches, "{name}: member {} block {at}: {place:?}, not {row}", field(0));
                compared += 1;
            };
            for run in 0..field(5) {
                let (at, what) = (field(1) + run * field(6), field(2) + run * field(7));
                // The last part of a chunk, which md's raid1 leaves unused, is not part of the geometry.
                for block in (0..field(3)).filter(|block| *block == 0 || *block + 1 == field(3) || field(3) < 64) {
                    check(at + block, if data { what + block } else { what });
                }
            }
        }
    }
    assert!(compared > 50_000, "{compared}");
}

/// Version 1.1 is at the start, 1.2 at 4 KiB, 1.0 eight KiB before the end, rounded down to 4 KiB.
#[test]
fn offsets_of_superblocks() {
    assert_eq!(md::superblock_offsets((1 << 20) + 5 * 512), [(2, 4096), (1, 0), (0, (1 << 20) - 8192)]);
    assert_eq!(md::superblock_offsets(4096), [(1, 0)]);
    assert_eq!(md::superblock_offsets(0), []);
    let end = DATA_START + (1 << 24) + 16_384;
    for (minor, at) in md::superblock_offsets(end) {
        let mut bytes = Made::of(1, 0, 0, 2, 1 << 24).bytes();
        bytes[144..152].copy_from_slice(&(at / 512).to_le_bytes());
        bytes[216..220].fill(0);
        let sum: u64 =
            bytes[..260].chunks(4).map(|word| word.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))).sum();
        bytes[216..220].copy_from_slice(&((sum as u32).wrapping_add((sum >> 32) as u32)).to_le_bytes());
        let found = Superblock::decode(&bytes, minor, at, end).expect("it stands where it says");
        assert_eq!(found.minor, minor);
    }
}

#[test]
fn invalid_superblocks() {
    let right = Made::of(5, 2, 65_536, 4, 1 << 24);
    let end = DATA_START + (1 << 24);
    let decode = |bytes: &[u8], at: u64, end: u64| Superblock::decode(bytes, 2, at, end);
    assert!(decode(&right.bytes(), 4096, end).is_ok());
    assert_eq!(decode(&[0; 4096], 4096, end), Err(MdError::Missing));
    assert_eq!(decode(&right.bytes()[..200], 4096, end), Err(MdError::Missing));
    assert_eq!(decode(&right.bytes(), 0, end), Err(MdError::Misplaced { found: 0, said: 4096 }));
    let cut = decode(&right.bytes(), 4096, end - 512);
    assert_eq!(cut, Err(MdError::BeyondDisk { start: DATA_START, said: 1 << 24, device_bytes: end - 512 }));
    let mut torn = right.bytes();
    torn[200] ^= 1;
    assert!(matches!(decode(&torn, 4096, end), Err(MdError::Checksum { .. })));
    let mut other = right.bytes();
    other[4] = 0;
    assert_eq!(decode(&other, 4096, end), Err(MdError::Version { major: 0 }));
    // More devices than fit.
    let mut many = right.bytes();
    many[220..224].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(decode(&many, 4096, end), Err(MdError::Field { .. })));
    // Sizes that overflow.
    let huge = Made { used_bytes: u64::MAX / 512 * 512, ..right.clone() };
    let mut bytes = huge.bytes();
    bytes[136..144].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(decode(&bytes, 4096, end).is_err());
}

#[test]
fn missing_stale_and_rebuilding_members() {
    let raid5 = Made::of(5, 2, 65_536, 4, 1 << 24);
    let all = members(&raid5, |_| ());
    let without = |lost: &[usize]| -> Vec<Superblock> {
        all.iter().enumerate().filter(|(role, _)| !lost.contains(role)).map(|(_, device)| device.clone()).collect()
    };
    let assembled = |devices: &[Superblock]| md::assemble(devices, AssembleOptions::default());
    let one = assembled(&without(&[2]));
    assert_eq!((one.problems.len(), one.is_degraded()), (0, true));
    assert_eq!(one.warnings, ["member 2 is missing"]);
    assert_eq!(assembled(&without(&[1, 2])).problems, [AssembleProblem::TooFew { missing: vec![1, 2] }]);
    // raid6 tolerates the loss of two, raid4 of one, a mirror of all but one, linear of none.
    for (level, layout, lost, fine) in [
        (6, 2, &[0, 3][..], true),
        (6, 2, &[0, 2, 3], false),
        (4, 0, &[3], true),
        (1, 0, &[0, 1, 3], true),
        (-1, 0, &[1], false),
        (0, 0, &[1], false),
        (10, 0x102, &[0, 2], true),
        (10, 0x102, &[0, 1], false),
        (10, 0x201, &[0, 2], true),
        (10, 0x201, &[0, 1], false),
        (10, 0x1_0201, &[1, 3], true),
        (10, 0x1_0201, &[3, 0], false),
    ] {
        let chunk = if level == 1 || level == -1 { 0 } else { 65_536 };
        let all = members(&Made::of(level, layout, chunk, 4, 1 << 24), |_| ());
        let left: Vec<Superblock> =
            all.iter().enumerate().filter(|(role, _)| !lost.contains(role)).map(|(_, device)| device.clone()).collect();
        assert_eq!(assembled(&left).problems.is_empty(), fine, "level {level} layout {layout:#x} without {lost:?}");
    }
    // One event behind is current, two are not.
    let behind = |events: u64| members(&raid5, |made| made.events -= if made.number == 1 { events } else { 0 });
    assert!(!assembled(&behind(1)).is_degraded());
    let old = assembled(&behind(2));
    assert_eq!((old.slots[1].state, old.slots[1].used), (SlotState::Stale { behind: 2 }, false));
    // Where another member is missing, the stale one is needed, which takes `force`.
    let mut needed = behind(3);
    needed.remove(3);
    assert_eq!(assembled(&needed).problems, [AssembleProblem::Stale { devices: vec![(1, 3)] }]);
    let forced = md::assemble(&needed, AssembleOptions { force: true, ..AssembleOptions::default() });
    assert_eq!((forced.problems.len(), forced.slots[1].used), (0, true));
    assert!(forced.warnings[0].contains("old"), "{:?}", forced.warnings);
    // The others have marked it as failed, however many events it has.
    let left_out = members(&raid5, |made| {
        if made.number != 1 {
            (made.events, made.roles[1]) = (21, 0xfffe);
        }
    });
    assert_eq!(assembled(&left_out).slots[1].state, SlotState::Stale { behind: 1 });
    // Being rebuilt.
    let rebuilding = members(&raid5, |made| {
        if made.number == 3 {
            (made.features, made.recovery_sectors) = (2, 64);
        }
    });
    assert_eq!(assembled(&rebuilding).slots[3].state, SlotState::Rebuilding { done_bytes: 64 * 512 });
    assert!(assembled(&rebuilding).is_degraded() && assembled(&rebuilding).problems.is_empty());
    // A spare is not a member.
    let mut spare = without(&[]);
    spare.push(Made { number: 4, roles: vec![0, 1, 2, 3, 0xffff], ..raid5.clone() }.superblock());
    assert_eq!((assembled(&spare).non_members, assembled(&spare).problems.len()), (vec![4], 0));
}

#[test]
fn refused_arrays_and_their_reasons() {
    let raid5 = Made::of(5, 2, 65_536, 4, 1 << 24);
    let problems =
        |change: &dyn Fn(&mut Made)| md::assemble(&members(&raid5, change), AssembleOptions::default()).problems;
    assert_eq!(problems(&|made| made.features = 4), [AssembleProblem::Reshape]);
    assert_eq!(problems(&|made| made.features = 512), [AssembleProblem::Journal]);
    assert_eq!(problems(&|made| made.features = 256), [AssembleProblem::Clustered]);
    assert_eq!(problems(&|made| made.features = 1 << 20), [AssembleProblem::Features(1 << 20)]);
    assert_eq!(problems(&|made| made.layout = 9), [AssembleProblem::Layout { level: "raid5", layout: 9 }]);
    assert_eq!(problems(&|made| made.layout = 18), [AssembleProblem::Layout { level: "raid5", layout: 18 }]);
    assert_eq!(problems(&|made| made.level = -4), [AssembleProblem::Level(-4)]);
    assert!(matches!(problems(&|made| made.chunk_bytes = 98_304)[..], [AssembleProblem::Numbers(_)]));
    assert!(matches!(problems(&|made| made.members = 200)[..], [AssembleProblem::Numbers(_)]));
    assert!(matches!(problems(&|made| made.used_bytes = 1 << 25)[..], [AssembleProblem::Numbers(_)]));
    // Both near and far copies, or sets far apart: mdadm does not create these.
    let raid10 = Made::of(10, 0x202, 65_536, 4, 1 << 24);
    for layout in [0x202, 0x101, 0x4_0201] {
        let found = md::assemble(&members(&raid10, |made| made.layout = layout), AssembleOptions::default()).problems;
        assert_eq!(found, [AssembleProblem::Layout { level: "raid10", layout }]);
    }
    // Copies of one device.
    let mut twice = members(&raid5, |_| ());
    twice.push(twice[2].clone());
    let found = md::assemble(&twice, AssembleOptions::default()).problems;
    assert_eq!(found, [AssembleProblem::DuplicateRole { role: 2, one: 2, other: 4 }]);
    // Two halves that were both written.
    let raid1 = Made::of(1, 0, 0, 2, 1 << 24);
    let halves = members(&raid1, |made| made.roles[1 - made.number as usize] = 0xfffe);
    let found = md::assemble(&halves, AssembleOptions::default()).problems;
    assert_eq!(found, [AssembleProblem::Diverged { one: 0, other: 1 }]);
    for problem in
        [found[0].clone(), AssembleProblem::Reshape, AssembleProblem::DirtyDegraded, AssembleProblem::Raid0Layout]
    {
        assert!(!problem.text(&|device| format!("disk {device}")).is_empty() && !problem.remedy().is_empty());
    }
}

#[test]
fn arrays_that_were_not_stopped_cleanly() {
    let dirty = |level: i32, layout: u32| Made { resync_sectors: 0, ..Made::of(level, layout, 65_536, 4, 1 << 24) };
    let assembled = |devices: &[Superblock], force: bool| {
        md::assemble(devices, AssembleOptions { force, ..AssembleOptions::default() })
    };
    let raid5 = members(&dirty(5, 2), |_| ());
    let whole = assembled(&raid5, false);
    assert_eq!((whole.problems.len(), whole.warnings.len(), whole.clean), (0, 1, false));
    assert_eq!(assembled(&raid5[1..], false).problems, [AssembleProblem::DirtyDegraded]);
    let forced = assembled(&raid5[1..], true);
    assert_eq!((forced.problems.len(), forced.warnings.len()), (0, 2), "{:?}", forced.warnings);
    let raid10 = assembled(&members(&dirty(10, 0x102), |_| ())[1..], false);
    assert_eq!((raid10.problems.len(), raid10.warnings.len()), (0, 2));
    // A raid0 has no redundancy that could be inconsistent.
    assert!(assembled(&members(&dirty(0, 0), |_| ()), false).clean);
}

#[test]
fn logs_of_bad_blocks() {
    let mut bytes = Made { features: 8, ..Made::of(1, 0, 0, 2, 1 << 24) }.bytes();
    let log = Superblock::decode(&bytes, 2, 4096, DATA_START + (1 << 24)).expect("it is right").bad_blocks;
    let log = log.expect("there is one");
    assert_eq!((log.start, log.bytes), (4096 + 16 * 512, 4096));
    let entry = |sector: u64, count: u64| (sector << 10 | count).to_le_bytes();
    let mut entries = [entry(5000, 8), entry(4000, 1), [0xff; 8], entry(1, 1)].concat();
    entries.resize(4096, 0);
    let ranges: Vec<(u64, u64)> = log.read(&entries).iter().map(|range| (range.start / 512, range.end / 512)).collect();
    assert_eq!(ranges, [(4000, 4001), (5000, 5008)]);
    // Beyond the disk.
    bytes[188..192].copy_from_slice(&(-100i32).to_le_bytes());
    assert!(Superblock::decode(&bytes, 2, 4096, DATA_START + (1 << 24)).is_err());
}

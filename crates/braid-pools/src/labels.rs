//! Labels of pools on devices: validated, written, removed.
//!
//! Every change is written to all members twice, under two consecutive sequence numbers. The first write begins when
//! the label before it is durable on every member; the second begins when the first is durable on every member. So the
//! labels of two members are at most one sequence number apart. A label that is two behind the newest has missed a
//! change: it is an old copy.
//!
//! A device that is being added, and a missing member that returns, first get a label of their own that says *joining*,
//! under the sequence number that the other labels have. Only after that do the other labels list it.

use braid_api::{ErrorDetail, Kind};
use braid_engine::{DeviceId, DeviceIo, IoError};
use braid_format::pool::PoolLabel;
use braid_format::{BLOCK_BYTES, LABEL_BYTES, examine};
use braid_inventory::{MemberPart, combine_copies};
use braid_ring::RingDevices;

/// Returns the newest valid copy of a device's label. [`None`]: the device has no label. The inner error says why the
/// label is not valid.
///
/// # Errors
/// The device's.
pub async fn read(io: &RingDevices, device: DeviceId) -> Result<Option<Result<PoolLabel, String>>, IoError> {
    let size = io.size_bytes(device);
    if size < 2 * BLOCK_BYTES {
        return Ok(None);
    }
    let start = io.read(device, 0, LABEL_BYTES).await?;
    let copy_offset = examine::recorded_copy_offset(&start, size).unwrap_or(BLOCK_BYTES);
    let end = io.read(device, copy_offset, LABEL_BYTES).await?;
    Ok(combine_copies(size, &start, &end))
}

/// Changes the labels of all members: they become the newest label as modified by `change`, each with its own member
/// number and layout. First, labels that are behind get the content of the newest: so no label is ever more than one
/// sequence number behind another, however often a change is interrupted or fails. All labels are durable when this
/// returns.
///
/// A sequence number never stands for two contents. After an error `parts` have the label that was written last, as
/// some members may have it on the disk. The next change begins by writing that label to all members.
///
/// # Errors
/// The number of a member whose device failed, and the error of the device.
pub async fn write(
    io: &impl DeviceIo,
    parts: &mut [MemberPart],
    change: impl Fn(&mut PoolLabel),
) -> Result<(), (u8, IoError)> {
    let Some(newest) = newest(parts.iter().map(|part| &part.label)).cloned() else { return Ok(()) };
    for part in parts.iter_mut().filter(|part| newest.lists_as_present(&part.label)) {
        let label = of_member(&newest, part);
        part.behind |= part.label != label;
        part.label = label;
        part.copy_first = is_copy_doubtful(io, part).await;
    }
    put_where(io, parts, |part| part.behind).await?;
    let mut changed = newest;
    change(&mut changed);
    for _ in 1..=2 {
        changed.sequence += 1;
        for part in parts.iter_mut() {
            (part.label, part.behind) = (of_member(&changed, part), true);
        }
        put_where(io, parts, |_| true).await?;
    }
    Ok(())
}

/// Returns the newest label, apart from the labels of devices that are only about to become members.
pub fn newest<'a>(labels: impl Iterator<Item = &'a PoolLabel>) -> Option<&'a PoolLabel> {
    labels.max_by_key(|label| (!label.is_joining(), label.sequence))
}

/// Writes the label of a device that is about to become a member, durably: the others' labels are written next.
///
/// # Errors
/// The device's.
pub(crate) async fn announce(io: &impl DeviceIo, part: &mut MemberPart) -> Result<(), IoError> {
    // An earlier interrupted write may have left one copy torn. That copy is written first: the whole one stays until
    // then.
    part.copy_first = is_copy_doubtful(io, part).await;
    put(io, part).await?;
    io.flush(part.device).await
}

/// Returns a label with this member's number and layout.
fn of_member(label: &PoolLabel, part: &MemberPart) -> PoolLabel {
    PoolLabel { member: part.label.member, layout: part.label.layout, ..label.clone() }
}

/// Writes the labels of some members, and makes them durable.
async fn put_where(
    io: &impl DeviceIo,
    parts: &mut [MemberPart],
    which: impl Fn(&MemberPart) -> bool,
) -> Result<(), (u8, IoError)> {
    let chosen: Vec<usize> = (0..parts.len()).filter(|at| which(&parts[*at])).collect();
    for at in &chosen {
        put(io, &parts[*at]).await.map_err(|error| (parts[*at].label.member, error))?;
    }
    for at in chosen {
        io.flush(parts[at].device).await.map_err(|error| (parts[at].label.member, error))?;
        parts[at].behind = false;
    }
    Ok(())
}

async fn put(io: &impl DeviceIo, part: &MemberPart) -> Result<(), IoError> {
    let bytes = part.label.encode().map_err(|_| IoError::of(braid_engine::ErrorKind::Invalid))?;
    let layout = part.label.layout;
    let both = [layout.label_start, layout.copy_start];
    // A torn or older copy is written first, and the first write is durable before the second begins. So a crash always
    // leaves one copy whole.
    for offset in if part.copy_first { [both[1], both[0]] } else { both } {
        io.write(part.device, offset, bytes.to_vec(), true).await?;
    }
    Ok(())
}

/// Returns true if a member's label is whole, and its copy is torn or older.
async fn is_copy_doubtful(io: &impl DeviceIo, part: &MemberPart) -> bool {
    let layout = part.label.layout;
    let mut sequences = [None; 2];
    for (found, offset) in sequences.iter_mut().zip([layout.label_start, layout.copy_start]) {
        let bytes = io.read(part.device, offset, LABEL_BYTES).await.unwrap_or_default();
        *found = PoolLabel::decode(&bytes).ok().filter(|label| label.uuid == part.label.uuid).map(|l| l.sequence);
    }
    sequences[0] > sequences[1]
}

/// Removes the labels: the copies first, as the label at the start says where they are. Goes on if a device fails.
///
/// # Errors
/// Every member whose label may still exist, with the error of its device.
pub(crate) async fn erase(io: &impl DeviceIo, parts: &[MemberPart]) -> Result<(), Vec<(u8, IoError)>> {
    let mut left = Vec::new();
    for part in parts {
        if let Err(error) = erase_one(io, part).await {
            left.push((part.label.member, error));
        }
    }
    if left.is_empty() { Ok(()) } else { Err(left) }
}

async fn erase_one(io: &impl DeviceIo, part: &MemberPart) -> Result<(), IoError> {
    for offset in [part.label.layout.copy_start, part.label.layout.label_start] {
        io.write(part.device, offset, vec![0; LABEL_BYTES], true).await?;
    }
    io.flush(part.device).await
}

/// Marks the pool as being deleted in all labels. Goes on if a device fails: the mark on one member counts for all.
pub(crate) async fn mark_deleting(io: &impl DeviceIo, parts: &mut [MemberPart]) {
    let deleting = |label: &mut PoolLabel| label.state = braid_format::pool::PoolState::Deleting;
    if write(io, parts, deleting).await.is_ok() {
        return;
    }
    for part in parts.iter_mut() {
        part.label.state = braid_format::pool::PoolState::Deleting;
        if let Err(error) = put(io, part).await {
            tracing::warn!("the label of member {} of a pool that is being deleted: {error}", part.label.member);
        }
    }
}

/// Converts the error of a member's device.
pub fn failed(pool: &str, doing: &str, member: u8, error: IoError) -> ErrorDetail {
    let kind = match error.kind {
        braid_engine::ErrorKind::TimedOut => Kind::TimedOut,
        braid_engine::ErrorKind::NoSpace => Kind::NoSpace,
        _ => Kind::DiskError,
    };
    let remedy = match kind {
        Kind::NoSpace => "make room on the file system that its file is on (df -h)",
        _ => "check the disk and the kernel log (dmesg); replace the disk if it is faulty",
    };
    let message = format!("pool {pool}: {doing} member {member} failed: {error}");
    ErrorDetail::new(kind, message).with("pool", pool).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_engine::ErrorKind;
    use braid_format::pool::{PoolMember, PoolMemberLayout, PoolMemberState, PoolState, Reserved};
    use braid_format::{Features, Name, Uuid};
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    const BYTES: u64 = 64 << 20;
    const MEMBERS: u8 = 3;

    /// Devices in memory. After a given number of writes the power fails: the write in progress is torn, and all later
    /// requests fail.
    #[derive(Default)]
    struct Disks {
        blocks: RefCell<BTreeMap<(u32, u64), Vec<u8>>>,
        left: Cell<u32>,
        /// The only device that refuses writes.
        broken: Cell<Option<u32>>,
    }

    impl DeviceIo for Disks {
        fn size_bytes(&self, _device: DeviceId) -> u64 {
            BYTES
        }

        fn block_bytes(&self, _device: DeviceId) -> u32 {
            512
        }

        async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
            let blocks = self.blocks.borrow();
            Ok(blocks.get(&(device.0, offset)).cloned().unwrap_or_else(|| vec![0; len]))
        }

        async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, _fua: bool) -> Result<(), IoError> {
            if self.broken.get() == Some(device.0) {
                return Err(IoError::of(ErrorKind::Io));
            }
            let mut blocks = self.blocks.borrow_mut();
            match self.left.get() {
                0 => return Err(IoError::of(ErrorKind::Io)),
                1 => {
                    let old = blocks.entry((device.0, offset)).or_insert_with(|| vec![0; LABEL_BYTES]);
                    old[..512].copy_from_slice(&data[..512]);
                    old[512..].iter_mut().for_each(|byte| *byte ^= 0x55);
                    self.left.set(0);
                    return Err(IoError::of(ErrorKind::Io));
                }
                left => self.left.set(left - 1),
            }
            blocks.insert((device.0, offset), data);
            Ok(())
        }

        async fn flush(&self, _device: DeviceId) -> Result<(), IoError> {
            if self.left.get() == 0 { Err(IoError::of(ErrorKind::Io)) } else { Ok(()) }
        }

        async fn discard(&self, _device: DeviceId, _offset: u64, _len: u64) -> Result<(), IoError> {
            Ok(())
        }
    }

    fn label(member: u8) -> PoolLabel {
        let member_of = |n: u8| {
            let uuid = Uuid::from_u128(u128::from(n) + 10);
            Some(PoolMember { uuid, size_bytes: BYTES, state: PoolMemberState::InUse })
        };
        PoolLabel {
            features: Features::default(),
            uuid: Uuid::from_u128(1),
            sequence: 1,
            name: Name::new("tank").unwrap(),
            state: PoolState::Active,
            clean: true,
            created_unix_s: 0,
            session: 1,
            members: (0..MEMBERS).map(member_of).collect(),
            member,
            layout: PoolMemberLayout::new(BYTES, 1024).unwrap(),
            reserved: Reserved::NONE,
        }
    }

    /// Returns the members as a start finds them: each must have a label.
    fn found(disks: &Disks) -> Vec<MemberPart> {
        let one = |member: u8| {
            let layout = PoolMemberLayout::new(BYTES, 1024).unwrap();
            let copies = [layout.label_start, layout.copy_start]
                .map(|at| disks.blocks.borrow().get(&(u32::from(member), at)).cloned().unwrap_or_default());
            let combined = combine_copies(BYTES, &copies[0], &copies[1]).expect("there is a label");
            let label = combined.unwrap_or_else(|why| panic!("member {member}: {why}"));
            let device = DeviceId(member.into());
            MemberPart {
                backing: braid_inventory::MemberBacking::Array(Uuid::nil()),
                device,
                label,
                behind: false,
                copy_first: false,
            }
        };
        (0..MEMBERS).map(one).collect()
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn interrupted_changes_leave_every_member_with_a_label_at_most_one_behind() {
        for (first, second, third) in (1..16).flat_map(|a| (1..16).flat_map(move |b| (1..8).map(move |c| (a, b, c)))) {
            let disks = Disks::default();
            disks.left.set(u32::MAX);
            let mut parts: Vec<MemberPart> = (0..MEMBERS)
                .map(|member| MemberPart {
                    backing: braid_inventory::MemberBacking::Array(Uuid::nil()),
                    device: DeviceId(member.into()),
                    label: label(member),
                    behind: true,
                    copy_first: false,
                })
                .collect();
            block_on(write(&disks, &mut parts, |_| {})).unwrap();
            for (session, cut) in (2..).zip([first, second, third]) {
                let mut parts = found(&disks);
                disks.left.set(cut);
                let _ = block_on(write(&disks, &mut parts, |label| label.session = session));
                disks.left.set(u32::MAX);
                let parts = found(&disks);
                let sequences: Vec<u64> = parts.iter().map(|part| part.label.sequence).collect();
                let (least, most) = (sequences.iter().min().unwrap(), sequences.iter().max().unwrap());
                assert!(most - least <= 1, "cut at {first}, {second}, {third}: {sequences:?}");
                for one in &parts {
                    let same = parts.iter().filter(|other| other.label.sequence == one.label.sequence);
                    assert!(
                        same.clone().all(|other| of_member(&other.label, one) == one.label),
                        "one number, one label"
                    );
                }
            }
        }
    }

    /// Returns a member before anything was written.
    fn part(member: u8, label: PoolLabel) -> MemberPart {
        let backing = braid_inventory::MemberBacking::Array(Uuid::nil());
        MemberPart { backing, device: DeviceId(member.into()), label, behind: true, copy_first: false }
    }

    /// Returns those of the three devices that a start takes for members; none of them has missed a change.
    fn members_at_a_start(disks: &Disks) -> Vec<MemberPart> {
        let bears = |member: &u8| {
            let at = [0, PoolMemberLayout::new(BYTES, 1024).unwrap().copy_start];
            at.iter().any(|at| disks.blocks.borrow().get(&(u32::from(*member), *at)).is_some_and(|b| b[0] != 0))
        };
        let one = |member: u8| {
            let copies = [0, PoolMemberLayout::new(BYTES, 1024).unwrap().copy_start]
                .map(|at| disks.blocks.borrow().get(&(u32::from(member), at)).cloned().unwrap_or_default());
            Some(part(member, combine_copies(BYTES, &copies[0], &copies[1])?.ok()?))
        };
        let here: Vec<MemberPart> = (0..MEMBERS).filter(bears).filter_map(one).collect();
        let newest = newest(here.iter().map(|part| &part.label)).unwrap().clone();
        let here: Vec<MemberPart> = here.into_iter().filter(|part| newest.lists(&part.label)).collect();
        assert_eq!(here.len(), newest.numbered().count(), "who is a member has a label");
        assert!(here.iter().all(|part| part.label.sequence + 1 >= newest.sequence), "and has missed nothing");
        here
    }

    #[test]
    fn an_interrupted_addition_leaves_a_member_or_none() {
        let (mut joined, mut left) = (0, 0);
        for (first, second) in (1..24).flat_map(|a| (1..12).map(move |b| (a, b))) {
            let disks = Disks::default();
            disks.left.set(u32::MAX);
            let short = |member| PoolLabel { members: label(0).members[..2].to_vec(), ..label(member) };
            let mut parts: Vec<MemberPart> = [0, 1].map(|member| part(member, short(member))).into();
            block_on(write(&disks, &mut parts, |_| {})).unwrap();
            let mut joining = PoolLabel { sequence: parts[0].label.sequence, ..label(2) };
            joining.members[2].as_mut().unwrap().state = PoolMemberState::Joining;
            let mut joining = part(2, joining);
            disks.left.set(first);
            if block_on(announce(&disks, &mut joining)).is_ok() {
                parts.push(joining);
                let _ = block_on(write(&disks, &mut parts, |l| l.members = label(0).members));
            }
            // Two starts after that, the first of them interrupted as well.
            disks.left.set(u32::MAX);
            let mut parts = members_at_a_start(&disks);
            let count = parts.len();
            disks.left.set(second);
            let _ = block_on(write(&disks, &mut parts, |label| label.session = 2));
            disks.left.set(u32::MAX);
            let mut parts = members_at_a_start(&disks);
            assert_eq!(parts.len(), count, "cut at {first}, {second}: what it was it stays");
            block_on(write(&disks, &mut parts, |label| label.session = 3)).unwrap();
            let parts = members_at_a_start(&disks);
            assert!(parts.len() == count && parts.iter().all(|part| !part.label.is_joining()));
            if count == 3 { joined += 1 } else { left += 1 }
        }
        assert!(joined > 50 && left > 50, "{joined} and {left}");
    }

    /// Opens a pool of three members as far as labels are concerned: missing members that are back are taken back.
    fn open_again(disks: &Disks, session: u64) -> Result<Vec<MemberPart>, (u8, IoError)> {
        use crate::open::take_back;
        let here = found(disks);
        let newest = newest(here.iter().map(|part| &part.label)).unwrap().clone();
        for part in &here {
            let may_be_late = !newest.lists_as_present(&part.label);
            assert!(newest.lists(&part.label), "it is a member, or was one");
            assert!(may_be_late || part.label.sequence + 1 >= newest.sequence, "who was there has missed nothing");
        }
        let (mut parts, back): (Vec<MemberPart>, Vec<MemberPart>) =
            here.into_iter().partition(|part| newest.lists_as_present(&part.label));
        block_on(write(disks, &mut parts, |label| label.session = session))?;
        block_on(take_back(disks, parts, back))
    }

    #[test]
    fn an_interrupted_return_is_completed_by_the_next_start() {
        use crate::open::set_states;
        for (first, second) in (1..30).flat_map(|a| (1..30).map(move |b| (a, b))) {
            let disks = Disks::default();
            disks.left.set(u32::MAX);
            let mut parts: Vec<MemberPart> = (0..MEMBERS).map(|member| part(member, label(member))).collect();
            block_on(write(&disks, &mut parts, |_| {})).unwrap();
            let mut others = found(&disks);
            others.remove(1);
            for session in [2, 3] {
                let without = |label: &mut PoolLabel| {
                    label.session = session;
                    set_states(label, 1 << 1, PoolMemberState::Missing);
                };
                block_on(write(&disks, &mut others, without)).unwrap();
            }
            for (session, cut) in (4..).zip([first, second]) {
                disks.left.set(cut);
                let _ = open_again(&disks, session);
                disks.left.set(u32::MAX);
            }
            let parts = open_again(&disks, 6).unwrap();
            let in_use =
                |part: &MemberPart| part.label.missing() == 0 && !part.label.is_joining() && part.label.session == 6;
            assert!(parts.len() == 3 && parts.iter().all(in_use), "cut at {first}, {second}");
            let sequences: Vec<u64> = found(&disks).iter().map(|part| part.label.sequence).collect();
            assert!(sequences.iter().all(|sequence| *sequence == sequences[0]), "{sequences:?}");
        }
    }

    #[test]
    fn a_member_that_cannot_be_written_stays_one_behind_and_is_raised_first() {
        let disks = Disks::default();
        disks.left.set(u32::MAX);
        let mut parts: Vec<MemberPart> = (0..MEMBERS)
            .map(|member| MemberPart {
                backing: braid_inventory::MemberBacking::Array(Uuid::nil()),
                device: DeviceId(member.into()),
                label: label(member),
                behind: true,
                copy_first: false,
            })
            .collect();
        block_on(write(&disks, &mut parts, |_| {})).unwrap();
        disks.broken.set(Some(1));
        let named = |name: &'static str| move |label: &mut PoolLabel| label.name = Name::new(name).unwrap();
        for name in ["one", "two", "three"] {
            assert_eq!(block_on(write(&disks, &mut parts, named(name))).unwrap_err().0, 1);
        }
        // The first change tried is what the next change has to complete.
        assert!(parts.iter().all(|part| part.label.name.as_str() == "one"));
        let sequences: Vec<u64> = found(&disks).iter().map(|part| part.label.sequence).collect();
        assert_eq!(sequences, [4, 3, 3]);
        disks.broken.set(None);
        block_on(write(&disks, &mut parts, |label| label.clean = false)).unwrap();
        assert!(found(&disks).iter().all(|part| part.label.sequence == 6 && part.label.name.as_str() == "one"));
        // A failing member does not keep the others from losing their labels.
        disks.broken.set(Some(0));
        block_on(mark_deleting(&disks, &mut parts));
        assert_eq!(block_on(erase(&disks, &parts)).unwrap_err().iter().map(|left| left.0).collect::<Vec<_>>(), [0]);
        let start = parts[2].label.layout.label_start;
        assert!(disks.blocks.borrow()[&(2, start)].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_label_with_a_copy_of_another_member_is_rejected() {
        let (one, other) = (label(0), label(1));
        let text = combine_copies(BYTES, &one.encode().unwrap(), &other.encode().unwrap()).unwrap().unwrap_err();
        assert!(text.contains("member 0 of pool tank") && text.contains("member 1"), "{text}");
        let renamed = PoolLabel { name: Name::new("deep").unwrap(), ..one.clone() };
        assert!(combine_copies(BYTES, &one.encode().unwrap(), &renamed.encode().unwrap()).unwrap().is_err());
        let newer = PoolLabel { sequence: 2, ..renamed };
        assert_eq!(
            combine_copies(BYTES, &one.encode().unwrap(), &newer.encode().unwrap()).unwrap().unwrap().sequence,
            2
        );
    }
}

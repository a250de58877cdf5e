//! The label as the rest of Braid uses it: a description of the array, and one of the disk that it is on.

use std::fmt;

use braid_geometry::{Spec, TOTAL_BYTES_MAX};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::limits::{COUNTER_MAX, too_large};
use crate::raw::{RawJob, RawLabel, RawMember, get48, put48};
use crate::{
    ANCESTORS_MAX, BLOCK_BYTES, DiskLayout, HEADER_BYTES, JOBS_MAX, LABEL_BYTES, LabelError, MAGIC, MEMBERS_MAX, Name,
    VERSION, ZoneSpan, crc, validate, words, zones,
};

/// A label: a description of the array, identical on every member, and a description of this member.
#[derive(Clone, PartialEq, Debug)]
pub struct Label {
    /// Identical on every member.
    pub array: ArrayPart,
    /// This member's own.
    pub member: MemberPart,
}

/// A label's description of the array.
#[derive(Clone, PartialEq, Debug)]
pub struct ArrayPart {
    /// Features of the format in use.
    pub features: Features,
    /// The array's identity.
    pub uuid: Uuid,
    /// Increases with every change of the label; from 1.
    pub sequence: u64,
    /// The array's name.
    pub name: Name,
    /// Lifecycle state of the array.
    pub state: ArrayState,
    /// Level, layout, chunk, copies, zone policy.
    pub spec: Spec,
    /// Whether the array was stopped cleanly.
    pub clean: bool,
    /// When the array may start degraded.
    pub start_policy: StartPolicy,
    /// Size of a region of the write-intent bitmap, in bytes; 0: no bitmap.
    pub region_bytes: u32,
    /// Usable capacity, in bytes.
    pub array_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// The lineage of this label.
    pub lineage: Lineage,
    /// Random id of the array's last session (from a start to the next stop); 0: never started.
    pub session: u64,
    /// The `session` of the label from which that session was started; 0: never started.
    pub previous_session: u64,
    /// Replication epoch, which fences older controllers.
    pub epoch: u64,
    /// The controller that raised the epoch; nil: none.
    pub controller: Uuid,
    /// Checkpoints of jobs, at most [`JOBS_MAX`].
    pub jobs: Vec<Job>,
    /// Every member, by slot.
    pub members: Vec<MemberEntry>,
    /// The zones, in the order of the array's bytes.
    pub zones: Vec<ZoneSpan>,
    /// Bytes that a newer version may use under a compatible feature; preserved.
    pub reserved: [u8; 2],
}

/// A label's description of the disk it is on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberPart {
    /// This disk's identity as a member.
    pub id: MemberId,
    /// This disk's slot: its index in the member table.
    pub slot: u16,
    /// The layout of this disk.
    pub layout: DiskLayout,
    /// The journal marks that the last drop of a member retired.
    pub retired: RetiredMarks,
    /// As in [`ArrayPart::reserved`].
    pub reserved: [u8; 4],
}

/// Journal marks that recovery ignores: the stripes that they name were durable in place on all survivors when a label
/// recorded the drop of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RetiredMarks {
    /// The journal run; 0: no marks are retired.
    pub run: u64,
    /// Marks of batches up to this one are retired.
    pub batch: u64,
}

impl RetiredMarks {
    /// Returns whether the marks of this batch are retired.
    pub fn covers(&self, run: u64, batch: u64) -> bool {
        self.run != 0 && self.run == run && batch <= self.batch
    }
}

/// Three words of feature bits. This version defines none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// An older program may ignore these.
    pub compatible: u64,
    /// An older program may read an array with these, not write it.
    pub read_only: u64,
    /// An older program must refuse.
    pub incompatible: u64,
}

/// The random identity of a member: 48 bits, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemberId(u64);

impl MemberId {
    /// Returns the id made of the low 48 bits of a random number, or 1 if those are 0.
    pub fn from_random(bits: u64) -> MemberId {
        MemberId((bits & 0xffff_ffff_ffff).max(1))
    }

    /// Returns the id of this value; `None` when it is 0 or wider than 48 bits.
    pub fn new(value: u64) -> Option<MemberId> {
        (value != 0 && value >> 48 == 0).then_some(MemberId(value))
    }

    /// Returns the value.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

/// Lifecycle state of an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArrayState {
    /// Being created: not yet on every member, never served.
    Forming,
    /// In use.
    Active,
    /// Being deleted: labels are being wiped.
    Deleting,
}

/// State of a member of an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemberState {
    /// The slot has no member.
    Empty,
    /// Holds all data that it should.
    InSync,
    /// Being rebuilt or resynced; receives every write.
    Rebuilding,
    /// Failed, removed or stale.
    Failed,
    /// Waits to take over a slot.
    Spare,
    /// A dedicated journal disk of an array with parity: holds the journal's ring and no data.
    Journal,
}

/// When an array may start degraded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StartPolicy {
    /// Where the level makes it safe.
    ByLevel,
    /// Whenever it is possible.
    Auto,
}

/// One slot of the array and its member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberEntry {
    /// The member; `None` exactly when the state is [`MemberState::Empty`].
    pub id: Option<MemberId>,
    /// Size of the member's data area in bytes.
    pub data_bytes: u64,
    /// State of the member.
    pub state: MemberState,
    /// Read only when no other member can serve the read.
    pub write_mostly: bool,
}

/// The generation identifier of an array: a random id, renewed whenever the array goes on without one of its in-sync
/// members, and its ancestors. Members with the same id share one history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lineage {
    /// Random id of the current lineage.
    pub id: u64,
    /// Earlier lineages, the nearest first; at most [`ANCESTORS_MAX`].
    pub ancestors: Vec<Ancestor>,
}

/// An earlier lineage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ancestor {
    /// Its id.
    pub id: u64,
    /// A returning member with a label of this lineage is accepted if the label's sequence number is at least this:
    /// every later write is still dirty in the bitmap. 0: any label is accepted; [`Ancestor::NONE_ACCEPTED`]: none. Below 2^48.
    pub accepted_from: u64,
}

impl Ancestor {
    /// The value of `believed_from` for a lineage from which no returning member is accepted.
    pub const NONE_ACCEPTED: u64 = (1 << 48) - 1;

    /// Returns a lineage from which no returning member is accepted.
    pub fn none_accepted(id: u64) -> Ancestor {
        Ancestor { id, accepted_from: Ancestor::NONE_ACCEPTED }
    }

    /// Returns a lineage from which every returning member is accepted.
    pub fn all_accepted(id: u64) -> Ancestor {
        Ancestor { id, accepted_from: 0 }
    }

    /// Returns whether a returning member with a label of this lineage and sequence number is accepted.
    pub fn accepts(&self, sequence: u64) -> bool {
        self.accepted_from != Ancestor::NONE_ACCEPTED && sequence >= self.accepted_from
    }
}

impl Lineage {
    /// Returns the ancestor with this id.
    pub fn ancestor(&self, id: u64) -> Option<&Ancestor> {
        self.ancestors.iter().find(|ancestor| ancestor.id == id)
    }

    /// Returns the id of the nearest ancestor.
    pub fn parent(&self) -> Option<u64> {
        self.ancestors.first().map(|ancestor| ancestor.id)
    }

    /// Returns whether `id` is this lineage or one of its ancestors.
    pub fn knows(&self, id: u64) -> bool {
        self.id == id || self.ancestor(id).is_some()
    }
}

/// The kind of a job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobKind {
    /// Rebuilds a member.
    Rebuild,
    /// Resyncs dirty regions after a crash.
    Resync,
    /// Reads all copies and compares them (scrub).
    Check,
    /// As [`JobKind::Check`], and repairs what differs.
    Repair,
    /// Copies a member to its replacement while the member still serves.
    Replace,
    /// Moves data off a member.
    Evacuate,
    /// Adds new space to the array.
    Grow,
}

/// Whether a job runs or is paused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobState {
    /// Continues by itself after a start.
    Running,
    /// Waits to be resumed by a command.
    Paused,
}

/// The checkpoint of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The kind of job.
    pub kind: JobKind,
    /// Whether it runs.
    pub state: JobState,
    /// The member that it works on.
    pub target: Option<u16>,
    /// The member that it copies from.
    pub source: Option<u16>,
    /// The job's number.
    pub number: u64,
    /// Everything before this byte is done.
    pub position_bytes: u64,
    /// Where it ends, in bytes.
    pub end_bytes: u64,
    /// Limit in bytes a second; 0: the default.
    pub rate_bytes_per_s: u64,
}

/// The content of a label's first sector. It survives a write of the label that was torn between sectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The array.
    pub uuid: Uuid,
    /// Its name.
    pub name: Name,
    /// The lifecycle state that the label records.
    pub state: ArrayState,
    /// The label's sequence number.
    pub sequence: u64,
    /// The identity of this disk as a member.
    pub id: MemberId,
    /// Its slot.
    pub slot: u16,
    /// The disk's layout, which says where the label and its copy belong.
    pub layout: DiskLayout,
}

const NO_MEMBER: u16 = u16::MAX;

impl ArrayPart {
    /// Returns the key that orders the labels of one lineage: the epoch, then the sequence number.
    pub fn order(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }
}

impl Label {
    /// Decodes a label.
    ///
    /// Validates both checksums, then version and features, then every field against the others.
    /// [`ArrayPart::geometry`] validates the zones, [`Label::fits`] the layout against the actual size of the disk.
    pub fn decode(bytes: &[u8]) -> Result<Label, LabelError> {
        let raw = raw_of(bytes)?;
        validate::checksum(raw)?;
        validate::version(raw)?;
        let mut first = None;
        let label = validate::fields(raw, &mut |problem| {
            first.get_or_insert(problem);
        });
        match first {
            Some(problem) => Err(LabelError::Field { field: problem.field, reason: problem.reason }),
            None => label.ok_or_else(|| LabelError::Field { field: "version", reason: "unreadable".into() }),
        }
    }

    /// Encodes the label. Fails when the format cannot represent a field, or when `decode` would refuse it.
    pub fn encode(&self) -> Result<[u8; LABEL_BYTES], LabelError> {
        let too_much = |field: &'static str, reason: String| LabelError::Field { field, reason };
        let (array, member) = (&self.array, &self.member);
        for (field, len, limit) in [
            ("member_count", array.members.len(), MEMBERS_MAX),
            ("zone_count", array.zones.len(), zones::form_limit(zones::form_of(&array.zones))),
            ("ancestor_count", array.lineage.ancestors.len(), ANCESTORS_MAX),
            ("jobs", array.jobs.len(), JOBS_MAX),
        ] {
            if len > limit {
                return Err(too_much(field, format!("the label has room for {limit}, not for {len}")));
            }
        }
        let mut zone_table = [0; 1792];
        zones::write(&array.zones, &mut zone_table)
            .ok_or_else(|| too_much("zones", "a place is not a whole number of blocks, or too large".into()))?;
        let raw = RawLabel {
            magic: MAGIC,
            crc: U32::ZERO,
            version: U32::new(VERSION),
            features_compatible: U64::new(array.features.compatible),
            features_read_only: U64::new(array.features.read_only),
            features_incompatible: U64::new(array.features.incompatible),
            array_uuid: array.uuid.into_bytes(),
            sequence: U64::new(array.sequence),
            name: pad(array.name.as_str().as_bytes()),
            array_state: words::array_state_code(array.state),
            level: words::level_code(array.spec.level),
            layout: words::layout_code(array.spec.layout),
            zone_policy: words::zone_policy_code(array.spec.zones),
            copies: U16::new(array.spec.copies),
            member_count: U16::new(array.members.len() as u16),
            zone_count: U16::new(array.zones.len() as u16),
            zone_form: zones::form_of(&array.zones),
            clean: u8::from(array.clean),
            start_policy: words::start_policy_code(array.start_policy),
            ancestor_count: array.lineage.ancestors.len() as u8,
            reserved_a: array.reserved,
            chunk_bytes: U32::new(
                u32::try_from(array.spec.chunk_bytes)
                    .map_err(|_| too_much("chunk_bytes", format!("{} is too large", array.spec.chunk_bytes)))?,
            ),
            region_bytes: U32::new(array.region_bytes),
            array_bytes: U64::new(array.array_bytes),
            created_unix_s: U64::new(array.created_unix_s),
            lineage: U64::new(array.lineage.id),
            ancestors: std::array::from_fn(|i| U64::new(array.lineage.ancestors.get(i).map_or(0, |a| a.id))),
            session: U64::new(array.session),
            epoch: U64::new(array.epoch),
            controller: array.controller.into_bytes(),
            jobs: std::array::from_fn(|i| array.jobs.get(i).map_or(RawJob::new_zeroed_job(), |job| job.to_raw())),
            believed_from: raw_believed_from(&array.lineage)?,
            member_id: put48(member.id.0).ok_or_else(|| too_much("member_id", "wider than 48 bits".into()))?,
            role: U16::new(member.slot),
            device_bytes: U64::new(member.layout.device_bytes),
            label_start: U64::new(member.layout.label_start),
            copy_start: U64::new(member.layout.copy_start),
            data_start: U64::new(member.layout.data.start),
            data_bytes: U64::new(member.layout.data.bytes),
            bitmap_start: U64::new(member.layout.bitmap.start),
            bitmap_bytes: U64::new(member.layout.bitmap.bytes),
            journal_start: U64::new(member.layout.journal.start),
            journal_bytes: U64::new(member.layout.journal.bytes),
            retired_run: U64::new(member.retired.run),
            retired_batch: U64::new(member.retired.batch),
            reserved_c: member.reserved,
            session_before: U64::new(array.previous_session),
            header_crc: U32::ZERO,
            members: raw_members(&array.members)?,
            zones: zone_table,
        };
        let mut bytes = [0; LABEL_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        crc::seal(&mut bytes);
        Label::decode(&bytes)?;
        Ok(bytes)
    }

    /// Returns whether this label belongs at this byte of the disk.
    pub fn belongs_at(&self, offset: u64) -> bool {
        offset == self.member.layout.label_start || offset == self.member.layout.copy_start
    }

    /// Checks that a disk of this size holds everything that the label describes. The error is a sentence that says why
    /// not.
    pub fn fits(&self, device_bytes: u64) -> Result<(), String> {
        let places = &self.member.layout;
        let needed = places.data.end().unwrap_or(u64::MAX).max(places.copy_start + BLOCK_BYTES);
        if needed <= device_bytes {
            return Ok(());
        }
        Err(format!(
            "the disk has {device_bytes} bytes, {} when it was labelled; Braid's data and label reach to byte {needed}",
            places.device_bytes
        ))
    }

    /// Returns what the first sector holds.
    pub fn header(&self) -> Header {
        let (array, member) = (&self.array, &self.member);
        Header {
            uuid: array.uuid,
            name: array.name.clone(),
            state: array.state,
            sequence: array.sequence,
            id: member.id,
            slot: member.slot,
            layout: member.layout,
        }
    }

    /// Returns the key that orders the labels of one lineage; see [`ArrayPart::order`].
    pub fn order(&self) -> (u64, u64) {
        self.array.order()
    }
}

/// Returns the newest of the labels of one array: the highest epoch, then the highest sequence number.
pub fn newest<'a>(labels: impl IntoIterator<Item = &'a Label>) -> Option<&'a Label> {
    labels.into_iter().max_by_key(|label| label.order())
}

impl Header {
    /// Decodes the first sector of a label, even if the rest is damaged. `None` when the sector itself is damaged, its
    /// version is unknown or its fields are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let raw = raw_of(bytes).ok()?;
        let whole: &[u8; LABEL_BYTES] = raw.as_bytes().try_into().ok()?;
        const _: () = assert!(core::mem::offset_of!(RawLabel, members) == HEADER_BYTES);
        if crc::header_crc(whole) != raw.header_crc.get() || validate::version(raw).is_err() {
            return None;
        }
        validate::header(raw, &mut |_| {})
    }
}

/// Returns the bytes as a raw label if they begin with the magic.
pub(crate) fn raw_of(bytes: &[u8]) -> Result<&RawLabel, LabelError> {
    let (raw, _) = RawLabel::ref_from_prefix(bytes).map_err(|_| LabelError::Short { len: bytes.len() })?;
    if raw.magic == MAGIC { Ok(raw) } else { Err(LabelError::NoMagic) }
}

pub(crate) fn pad<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}

fn raw_believed_from(lineage: &Lineage) -> Result<[[u8; 6]; ANCESTORS_MAX], LabelError> {
    let mut numbers = [[0; 6]; ANCESTORS_MAX];
    for (ancestor, raw) in lineage.ancestors.iter().zip(&mut numbers) {
        *raw = put48(ancestor.accepted_from).ok_or_else(|| LabelError::Field {
            field: "believed_from",
            reason: format!("{} is wider than 48 bits", ancestor.accepted_from),
        })?;
    }
    Ok(numbers)
}

fn raw_members(members: &[MemberEntry]) -> Result<[RawMember; MEMBERS_MAX], LabelError> {
    let mut table = [RawMember { id: [0; 6], data_blocks: [0; 6], state: 0, flags: 0 }; MEMBERS_MAX];
    for (slot, (entry, raw)) in members.iter().zip(&mut table).enumerate() {
        let data_blocks = put48(entry.data_bytes / BLOCK_BYTES).filter(|_| entry.data_bytes % BLOCK_BYTES == 0);
        let data_blocks = data_blocks.ok_or_else(|| LabelError::Field {
            field: "members",
            reason: format!("member {slot}: {} bytes of data are not whole blocks", entry.data_bytes),
        })?;
        *raw = RawMember {
            id: entry.id.and_then(|id| put48(id.0)).unwrap_or_default(),
            data_blocks,
            state: words::member_state_code(entry.state),
            flags: u8::from(entry.write_mostly),
        };
    }
    Ok(table)
}

impl RawJob {
    fn new_zeroed_job() -> RawJob {
        zerocopy::FromZeros::new_zeroed()
    }
}

impl Job {
    fn to_raw(self) -> RawJob {
        RawJob {
            kind: words::job_kind_code(self.kind),
            state: words::job_state_code(self.state),
            target: U16::new(self.target.unwrap_or(NO_MEMBER)),
            source: U16::new(self.source.unwrap_or(NO_MEMBER)),
            reserved: U16::ZERO,
            number: U64::new(self.number),
            position_bytes: U64::new(self.position_bytes),
            end_bytes: U64::new(self.end_bytes),
            rate_bytes_per_s: U64::new(self.rate_bytes_per_s),
        }
    }

    /// Decodes one checkpoint; `Ok(None)` where there is no job.
    pub(crate) fn from_raw(raw: &RawJob, member_count: usize) -> Result<Option<Job>, String> {
        if raw.kind == 0 {
            let empty = raw.as_bytes().iter().all(|b| *b == 0);
            return if empty { Ok(None) } else { Err("an entry without a kind is not zero".into()) };
        }
        let member = |slot: u16| match slot {
            NO_MEMBER => Ok(None),
            slot if usize::from(slot) < member_count => Ok(Some(slot)),
            slot => Err(format!("there is no member {slot}")),
        };
        let job = Job {
            kind: words::job_kind_from(raw.kind).ok_or(format!("kind {} is unknown", raw.kind))?,
            state: words::job_state_from(raw.state).ok_or(format!("state {} is unknown", raw.state))?,
            target: member(raw.target.get())?,
            source: member(raw.source.get())?,
            number: raw.number.get(),
            position_bytes: raw.position_bytes.get(),
            end_bytes: raw.end_bytes.get(),
            rate_bytes_per_s: raw.rate_bytes_per_s.get(),
        };
        if job.end_bytes > TOTAL_BYTES_MAX {
            return Err(format!("it ends at byte {}, and no array has so many", job.end_bytes));
        }
        if job.number > COUNTER_MAX {
            return Err(format!("its number: {}", too_large(job.number)));
        }
        if job.rate_bytes_per_s > TOTAL_BYTES_MAX {
            return Err(format!("its rate of {} bytes a second is beyond every limit", job.rate_bytes_per_s));
        }
        if job.position_bytes > job.end_bytes {
            return Err(format!("it stands at byte {}, after its end at {}", job.position_bytes, job.end_bytes));
        }
        if raw.reserved.get() != 0 {
            return Err("its reserved bytes are not zero".into());
        }
        Ok(Some(job))
    }
}

impl MemberEntry {
    /// Decodes one entry of the member table.
    pub(crate) fn from_raw(raw: &RawMember) -> Result<MemberEntry, String> {
        let state = words::member_state_from(raw.state).ok_or(format!("state {} is unknown", raw.state))?;
        let id = MemberId::new(get48(raw.id));
        if (state == MemberState::Empty) != id.is_none() {
            return Err(format!("its state is \"{state}\" and its id {:#x}", get48(raw.id)));
        }
        if raw.flags > 1 {
            return Err(format!("flags {:#x} are unknown", raw.flags));
        }
        let data_bytes = get48(raw.data_blocks) * BLOCK_BYTES;
        Ok(MemberEntry { id, data_bytes, state, write_mostly: raw.flags & 1 == 1 })
    }
}

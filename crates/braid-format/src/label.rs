//! The label as the rest of Braid uses it: what it says of the array, and what it says of the disk it stands on.

use std::fmt;

use braid_geometry::{Spec, TOTAL_BYTES_MAX};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::limits::{COUNTER_MAX, too_large};
use crate::raw::{RawJob, RawLabel, RawMember, get48, put48};
use crate::{
    ANCESTORS_MAX, BLOCK_BYTES, HEADER_BYTES, JOBS_MAX, LABEL_BYTES, LabelError, MAGIC, MEMBERS_MAX, Name, Places,
    VERSION, ZoneSpan, check, crc, words, zones,
};

/// A label: the same words about the array on every member, and words about this member.
#[derive(Clone, PartialEq, Debug)]
pub struct Label {
    /// What every member says alike.
    pub array: ArrayPart,
    /// What only this member says.
    pub member: MemberPart,
}

/// What a label says of the array.
#[derive(Clone, PartialEq, Debug)]
pub struct ArrayPart {
    /// Features of the format in use.
    pub features: Features,
    /// The array's identity.
    pub uuid: Uuid,
    /// Raised with every change of the label; from 1.
    pub sequence: u64,
    /// The array's name.
    pub name: Name,
    /// Where the array is in its life.
    pub state: ArrayState,
    /// Level, layout, chunk, copies, zone policy.
    pub spec: Spec,
    /// Whether the last run stopped in order.
    pub clean: bool,
    /// When it may start with members missing.
    pub start_policy: StartPolicy,
    /// What one bit of the write-intent bitmap covers, in bytes; 0: no bitmap.
    pub region_bytes: u32,
    /// What the user can write, in bytes.
    pub array_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// The line of members that this label belongs to.
    pub lineage: Lineage,
    /// Random id of the run that last started the array; 0: never started.
    pub session: u64,
    /// The `session` of the label from which that run was started; 0: never started.
    pub session_before: u64,
    /// Fences an older controller (replication).
    pub epoch: u64,
    /// The controller that raised the epoch; nil: none.
    pub controller: Uuid,
    /// Checkpoints of jobs, at most [`JOBS_MAX`].
    pub jobs: Vec<Job>,
    /// Every member, by role.
    pub members: Vec<MemberEntry>,
    /// The zones, in the order of the array's bytes.
    pub zones: Vec<ZoneSpan>,
    /// Bytes that a newer version may use under a compatible feature; kept as they are.
    pub reserved: [u8; 2],
}

/// What a label says of the disk it stands on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberPart {
    /// This disk's identity as a member.
    pub id: MemberId,
    /// Its place in the table of members.
    pub role: u16,
    /// Where everything lies on it.
    pub places: Places,
    /// The marks of the journal that the last drop of a member has retired.
    pub retired: RetiredMarks,
    /// As in [`ArrayPart::reserved`].
    pub reserved: [u8; 4],
}

/// Marks of a journal that a recovery ignores: the rows that they name were in place on all survivors, durably, when a label
/// recorded the drop of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RetiredMarks {
    /// The run of the journal; 0: no marks are retired.
    pub run: u64,
    /// Marks of batches up to this one are retired.
    pub batch: u64,
}

impl RetiredMarks {
    /// Whether the marks of this batch are retired.
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
    /// The id made of the low 48 bits of a random number; those being 0, it is 1.
    pub fn from_random(bits: u64) -> MemberId {
        MemberId((bits & 0xffff_ffff_ffff).max(1))
    }

    /// The id of this value; `None` when it is 0 or wider than 48 bits.
    pub fn new(value: u64) -> Option<MemberId> {
        (value != 0 && value >> 48 == 0).then_some(MemberId(value))
    }

    /// Its value.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

/// Where an array is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArrayState {
    /// Being created: not yet on every member, never served.
    Forming,
    /// In use.
    Active,
    /// Being deleted: labels are on their way out.
    Deleting,
}

/// What the array thinks of a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemberState {
    /// Nobody holds this role.
    Absent,
    /// Holds everything that it should.
    InSync,
    /// Being brought up to date; takes every write.
    Filling,
    /// Left out: failed, removed or stale.
    Out,
    /// Waits to take over a role.
    Spare,
    /// Holds no data: the ring of the journal of an array with parity.
    Journal,
}

/// When an array may start with members missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StartPolicy {
    /// Where the level makes it safe.
    ByLevel,
    /// Whenever it is possible.
    Auto,
}

/// One role of the array and who holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberEntry {
    /// Who; `None` exactly when the state is [`MemberState::Absent`].
    pub id: Option<MemberId>,
    /// Size of the member's data area in bytes.
    pub data_bytes: u64,
    /// What the array thinks of it.
    pub state: MemberState,
    /// Read from it only when no other can answer.
    pub write_mostly: bool,
}

/// A line of members that know the same history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lineage {
    /// Random id of the present line.
    pub id: u64,
    /// Lines before it, the nearest first; at most [`ANCESTORS_MAX`].
    pub ancestors: Vec<Ancestor>,
}

/// A line that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ancestor {
    /// Its id.
    pub id: u64,
    /// A member that returns with a label of this line is believed from this sequence number on: what was written since
    /// then is still dirty. 0: with any; [`Ancestor::NEVER`]: with none. Below 2^48.
    pub believed_from: u64,
}

impl Ancestor {
    /// Nobody is believed who returns from such a line.
    pub const NEVER: u64 = (1 << 48) - 1;

    /// A line from which nobody is believed who returns.
    pub fn closed(id: u64) -> Ancestor {
        Ancestor { id, believed_from: Ancestor::NEVER }
    }

    /// A line of which every member is believed who returns.
    pub fn open(id: u64) -> Ancestor {
        Ancestor { id, believed_from: 0 }
    }

    /// Whether a label of this line and sequence number is believed.
    pub fn believes(&self, sequence: u64) -> bool {
        self.believed_from != Ancestor::NEVER && sequence >= self.believed_from
    }
}

impl Lineage {
    /// What is said of a line before this one.
    pub fn ancestor(&self, id: u64) -> Option<&Ancestor> {
        self.ancestors.iter().find(|ancestor| ancestor.id == id)
    }

    /// The line just before this one.
    pub fn parent(&self) -> Option<u64> {
        self.ancestors.first().map(|ancestor| ancestor.id)
    }

    /// Whether this is the line, or one before it.
    pub fn knows(&self, id: u64) -> bool {
        self.id == id || self.ancestor(id).is_some()
    }
}

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobKind {
    /// Brings a member up to date.
    Rebuild,
    /// Makes dirty regions equal after a crash.
    Resync,
    /// Compares the copies.
    Check,
    /// Compares and mends.
    Repair,
    /// Copies a member to its successor while it still serves.
    Replace,
    /// Moves data off a member.
    Evacuate,
    /// Takes up new space.
    Grow,
}

/// Whether a job is to go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobState {
    /// Goes on by itself after a start.
    Running,
    /// Waits for a person.
    Paused,
}

/// How far a job has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// What it does.
    pub kind: JobKind,
    /// Whether it goes on.
    pub state: JobState,
    /// The member that it works on.
    pub target: Option<u16>,
    /// The member that it copies from.
    pub source: Option<u16>,
    /// Its number.
    pub number: u64,
    /// Everything before this byte is done.
    pub position_bytes: u64,
    /// Where it will end, in bytes.
    pub end_bytes: u64,
    /// Limit in bytes a second; 0: the default.
    pub rate_bytes_per_s: u64,
}

/// What the first sector alone says of a label. It survives a write that was torn between sectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The array.
    pub uuid: Uuid,
    /// Its name.
    pub name: Name,
    /// Where it was going to be in its life.
    pub state: ArrayState,
    /// The label's sequence number.
    pub sequence: u64,
    /// The member that this disk was to be.
    pub id: MemberId,
    /// Its role.
    pub role: u16,
    /// Where the label and its copy belong.
    pub places: Places,
}

const NO_MEMBER: u16 = u16::MAX;

impl ArrayPart {
    /// By this the labels of one line are ordered: the epoch, then the sequence number.
    pub fn order(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }
}

impl Label {
    /// Reads a label. Checks both checksums, then version and features, then every field against the others.
    /// The geometry of the zones is checked by [`ArrayPart::geometry`], the places against the real disk by
    /// whoever knows its size.
    pub fn decode(bytes: &[u8]) -> Result<Label, LabelError> {
        let raw = raw_of(bytes)?;
        check::checksum(raw)?;
        check::version(raw)?;
        let mut first = None;
        let label = check::fields(raw, &mut |problem| {
            first.get_or_insert(problem);
        });
        match first {
            Some(problem) => Err(LabelError::Field { field: problem.field, reason: problem.reason }),
            None => label.ok_or_else(|| LabelError::Field { field: "version", reason: "unreadable".into() }),
        }
    }

    /// The label's bytes. Fails when a field holds what the format cannot say, or what `decode` would refuse.
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
            role: U16::new(member.role),
            device_bytes: U64::new(member.places.device_bytes),
            label_start: U64::new(member.places.label_start),
            copy_start: U64::new(member.places.copy_start),
            data_start: U64::new(member.places.data.start),
            data_bytes: U64::new(member.places.data.bytes),
            bitmap_start: U64::new(member.places.bitmap.start),
            bitmap_bytes: U64::new(member.places.bitmap.bytes),
            journal_start: U64::new(member.places.journal.start),
            journal_bytes: U64::new(member.places.journal.bytes),
            retired_run: U64::new(member.retired.run),
            retired_batch: U64::new(member.retired.batch),
            reserved_c: member.reserved,
            session_before: U64::new(array.session_before),
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

    /// Whether this label belongs at this byte of the disk.
    pub fn belongs_at(&self, offset: u64) -> bool {
        offset == self.member.places.label_start || offset == self.member.places.copy_start
    }

    /// Whether a disk of this size still holds everything that the label says; if not, a sentence that says why.
    pub fn fits(&self, device_bytes: u64) -> Result<(), String> {
        let places = &self.member.places;
        let needed = places.data.end().unwrap_or(u64::MAX).max(places.copy_start + BLOCK_BYTES);
        if needed <= device_bytes {
            return Ok(());
        }
        Err(format!(
            "the disk has {device_bytes} bytes, {} when it was labelled; Braid's data and label reach to byte {needed}",
            places.device_bytes
        ))
    }

    /// What the first sector says of it.
    pub fn header(&self) -> Header {
        let (array, member) = (&self.array, &self.member);
        Header {
            uuid: array.uuid,
            name: array.name.clone(),
            state: array.state,
            sequence: array.sequence,
            id: member.id,
            role: member.role,
            places: member.places,
        }
    }

    /// Sequence numbers order the labels of an array: first by epoch, then by sequence.
    pub fn order(&self) -> (u64, u64) {
        self.array.order()
    }
}

/// The label that counts among those of one array: the highest epoch, then the highest sequence number.
pub fn newest<'a>(labels: impl IntoIterator<Item = &'a Label>) -> Option<&'a Label> {
    labels.into_iter().max_by_key(|label| label.order())
}

impl Header {
    /// Reads the first sector of a label, also where the rest is damaged. `None` when the sector itself is, when
    /// its version is unknown or its fields make no sense.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let raw = raw_of(bytes).ok()?;
        let whole: &[u8; LABEL_BYTES] = raw.as_bytes().try_into().ok()?;
        const _: () = assert!(core::mem::offset_of!(RawLabel, members) == HEADER_BYTES);
        if crc::header_crc(whole) != raw.header_crc.get() || check::version(raw).is_err() {
            return None;
        }
        check::header(raw, &mut |_| {})
    }
}

/// The bytes as a raw label, if the magic is there.
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
        *raw = put48(ancestor.believed_from).ok_or_else(|| LabelError::Field {
            field: "believed_from",
            reason: format!("{} is wider than 48 bits", ancestor.believed_from),
        })?;
    }
    Ok(numbers)
}

fn raw_members(members: &[MemberEntry]) -> Result<[RawMember; MEMBERS_MAX], LabelError> {
    let mut table = [RawMember { id: [0; 6], data_blocks: [0; 6], state: 0, flags: 0 }; MEMBERS_MAX];
    for (role, (entry, raw)) in members.iter().zip(&mut table).enumerate() {
        let data_blocks = put48(entry.data_bytes / BLOCK_BYTES).filter(|_| entry.data_bytes % BLOCK_BYTES == 0);
        let data_blocks = data_blocks.ok_or_else(|| LabelError::Field {
            field: "members",
            reason: format!("member {role}: {} bytes of data are not whole blocks", entry.data_bytes),
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

    /// Reads one checkpoint; `Ok(None)` where there is no job.
    pub(crate) fn from_raw(raw: &RawJob, member_count: usize) -> Result<Option<Job>, String> {
        if raw.kind == 0 {
            let empty = raw.as_bytes().iter().all(|b| *b == 0);
            return if empty { Ok(None) } else { Err("an entry without a kind is not zero".into()) };
        }
        let member = |role: u16| match role {
            NO_MEMBER => Ok(None),
            role if usize::from(role) < member_count => Ok(Some(role)),
            role => Err(format!("there is no member {role}")),
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
    /// Reads one entry of the table.
    pub(crate) fn from_raw(raw: &RawMember) -> Result<MemberEntry, String> {
        let state = words::member_state_from(raw.state).ok_or(format!("state {} is unknown", raw.state))?;
        let id = MemberId::new(get48(raw.id));
        if (state == MemberState::Absent) != id.is_none() {
            return Err(format!("its state is \"{state}\" and its id {:#x}", get48(raw.id)));
        }
        if raw.flags > 1 {
            return Err(format!("flags {:#x} are unknown", raw.flags));
        }
        let data_bytes = get48(raw.data_blocks) * BLOCK_BYTES;
        Ok(MemberEntry { id, data_bytes, state, write_mostly: raw.flags & 1 == 1 })
    }
}

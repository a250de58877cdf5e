//! The label as the rest of Braid uses it: a description of the array, and one of the disk that it is on.

use std::fmt;

use braid_geometry::{Spec, TOTAL_BYTES_MAX};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::limits::{COUNTER_MAX, too_large};
use crate::raw::{RawJob, RawLabel, RawMember, get48};
use crate::states::{ArrayState, JobKind, JobState, MemberState, StartPolicy};
use crate::{BLOCK_BYTES, DiskLayout, LabelError, MAGIC, Name, ZoneSpan, words};

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
    /// Random id of the array's last session (from a start to the next stop); 0: never started. Its lowest bit is clear
    /// while the start is in progress, and set once the array may have served.
    pub session: u64,
    /// The `session` of the label from which the last start began; 0: never started before.
    pub previous_session: u64,
    /// Replication epoch, which fences older controllers.
    pub epoch: u64,
    /// The controller that raised the epoch; nil: none.
    pub controller: Uuid,
    /// Checkpoints of jobs, at most [`JOBS_MAX`](crate::JOBS_MAX).
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

/// Journal marks ([`EntryKind::Mark`](crate::journal::EntryKind::Mark)) that recovery ignores. When a member is
/// dropped, the stripes that these marks name are durable in place on all remaining members before the label records
/// the drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RetiredMarks {
    /// The journal run; 0: no marks are retired.
    pub run: u64,
    /// Sequence number of the last batch of that run whose marks are retired.
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
    /// Earlier lineages, the nearest first; at most [`ANCESTORS_MAX`](crate::ANCESTORS_MAX).
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
    /// The value of `accepted_from` for a lineage from which no returning member is accepted.
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

/// The checkpoint of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The kind of job.
    pub kind: JobKind,
    /// Whether it runs.
    pub state: JobState,
    /// The slot of the member that it works on.
    pub target: Option<u16>,
    /// The slot of the member that it copies from.
    pub source: Option<u16>,
    /// The job's number.
    pub number: u64,
    /// Offset in the array, in bytes: everything before it is done.
    pub position_bytes: u64,
    /// Offset in the array at which the job ends, in bytes.
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

/// Returns the bytes as a raw label if they begin with the magic.
pub(crate) fn raw_of(bytes: &[u8]) -> Result<&RawLabel, LabelError> {
    let (raw, _) = RawLabel::ref_from_prefix(bytes).map_err(|_| LabelError::Short { len: bytes.len() })?;
    if raw.magic == MAGIC { Ok(raw) } else { Err(LabelError::NoMagic) }
}

impl Job {
    /// Encodes one checkpoint.
    pub(crate) fn to_raw(self) -> RawJob {
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

//! One disk: reads both copies of its label and combines them.

use braid_engine::{LeafError, LeafId, MetaIo};
use braid_format::{ArrayState, BLOCK_BYTES, Header, LABEL_BYTES, Label, LabelError, copy_offset, examine};

use super::status::DiskProblem;
use super::write::LabelCopy;

/// A disk that was probed.
#[derive(Clone, Debug)]
pub struct FoundDisk {
    /// The disk.
    pub leaf: LeafId,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What its labels say.
    pub outcome: DiskOutcome,
}

/// What the two copies of a disk's label say together.
#[derive(Clone, Debug)]
pub enum DiskOutcome {
    /// No label.
    Unlabelled,
    /// A member of an array.
    Member(Box<MemberDisk>),
    /// The remains of an interrupted create or delete: only the first sector of a label is readable.
    Remnant(Box<Header>),
    /// The disk has a label and cannot be used.
    Unusable {
        /// The reason.
        problem: DiskProblem,
        /// The array and member that it belongs to, if still readable.
        header: Option<Box<Header>>,
    },
}

/// A disk with a valid label.
#[derive(Clone, Debug)]
pub struct MemberDisk {
    /// The disk.
    pub leaf: LeafId,
    /// The newer of its copies.
    pub label: Label,
    /// The copy to write first at the next change: the damaged or older one.
    pub doubtful: LabelCopy,
    /// What is wrong with the other copy, if anything.
    pub other_copy: Option<String>,
    /// The other copy is damaged or unreadable. It may be the remains of a label newer than this one.
    pub damaged: bool,
    /// Whether the disk is larger than when it was labelled.
    pub grown: bool,
    /// The copy at the end is all zeros: the disk was truncated and extended again. The lost part reads as zeros.
    pub truncated: bool,
}

/// One copy, as it was read.
enum Read {
    Nothing,
    Failed(LeafError),
    Whole(Box<Label>),
    Broken(LabelError, Option<Box<Header>>),
}

/// Reads both copies and combines them. Writes nothing.
pub(super) async fn probe<M: MetaIo>(io: &M, leaf: LeafId) -> FoundDisk {
    let size_bytes = io.size_bytes(leaf);
    if copy_offset(size_bytes).is_none() {
        return FoundDisk { leaf, size_bytes, outcome: DiskOutcome::Unlabelled };
    }
    let start = io.read(leaf, 0, LABEL_BYTES).await;
    let end_offset = examine::recorded_copy_offset(start.as_deref().unwrap_or(&[]), size_bytes).unwrap_or(BLOCK_BYTES);
    let end = io.read(leaf, end_offset, LABEL_BYTES).await;
    let zeros = end.as_ref().is_ok_and(|block| block.iter().all(|byte| *byte == 0));
    let verdict = combine(leaf, size_bytes, read(start, 0), (read(end, end_offset), zeros));
    FoundDisk { leaf, size_bytes, outcome: verdict }
}

fn read(block: Result<Vec<u8>, LeafError>, offset: u64) -> Read {
    let block = match block {
        Ok(block) => block,
        Err(error) => return Read::Failed(error),
    };
    match Label::decode(&block) {
        Ok(label) if label.belongs_at(offset) => Read::Whole(Box::new(label)),
        // A valid label that records another location: it belongs to a partition that ends here, or came here with an
        // image of a whole disk.
        Ok(_) => Read::Nothing,
        Err(error) if !error.is_label() => Read::Nothing,
        Err(error) => Read::Broken(error, Header::decode(&block).map(Box::new)),
    }
}

fn combine(leaf: LeafId, size_bytes: u64, start: Read, (end, cut): (Read, bool)) -> DiskOutcome {
    let unusable = |problem, header| DiskOutcome::Unusable { problem, header };
    // A copy of a newer format version forbids using an older copy beside it.
    for copy in [&start, &end] {
        if let Read::Broken(error, header) = copy
            && !matches!(error, LabelError::Checksum { .. })
        {
            return unusable(DiskProblem::Unsupported(error.clone()), header.clone());
        }
    }
    let damaged = [&start, &end].iter().any(|copy| matches!(copy, Read::Broken(..) | Read::Failed(_)));
    let member = |label: Box<Label>, doubtful, other_copy| {
        if let Err(reason) = label.fits(size_bytes) {
            return unusable(DiskProblem::TooSmall(reason), Some(Box::new(label.header())));
        }
        let grown = size_bytes > label.member.layout.device_bytes;
        DiskOutcome::Member(Box::new(MemberDisk {
            leaf,
            label: *label,
            doubtful,
            other_copy,
            damaged,
            grown,
            truncated: cut,
        }))
    };
    match (start, end) {
        (Read::Whole(start), Read::Whole(end)) => {
            let same_member = (start.array.uuid, start.member.id) == (end.array.uuid, end.member.id);
            // A label may record another slot or layout than its predecessor; two with one sequence number must agree.
            let one_number = start.order() == end.order();
            if !same_member || one_number && start.member != end.member {
                unusable(DiskProblem::TwoMembers, None)
            } else if start.order() > end.order() {
                let other = format!("the copy at the end is older (sequence {})", end.array.sequence);
                member(start, LabelCopy::End, Some(other))
            } else if start.order() < end.order() {
                let other = format!("the label at the start is older (sequence {})", start.array.sequence);
                member(end, LabelCopy::Start, Some(other))
            } else if start.array != end.array {
                unusable(DiskProblem::Contradiction, Some(Box::new(start.header())))
            } else {
                member(start, LabelCopy::Start, None)
            }
        }
        (Read::Whole(label), other) => {
            member(label, LabelCopy::End, Some(format!("the copy at the end: {}", why(&other))))
        }
        (other, Read::Whole(label)) => {
            member(label, LabelCopy::Start, Some(format!("the label at the start: {}", why(&other))))
        }
        (Read::Broken(error, header), end) => {
            let from_end = if let Read::Broken(_, header) = end { header } else { None };
            broken(error, header.or(from_end))
        }
        (start, Read::Broken(error, header)) => match (start, header) {
            // Nothing identifies the array, and the copy at the start may be intact behind the read error: the disk is
            // unreadable rather than damaged.
            (Read::Failed(failed), None) => unusable(DiskProblem::Unreadable(failed), None),
            (_, header) => broken(error, header),
        },
        (Read::Failed(error), _) | (_, Read::Failed(error)) => unusable(DiskProblem::Unreadable(error), None),
        (Read::Nothing, Read::Nothing) => DiskOutcome::Unlabelled,
    }
}

/// No copy is valid. While an array is in use, a crash cannot cause that: it is damage. During a create or delete, a
/// crash can.
fn broken(error: LabelError, header: Option<Box<Header>>) -> DiskOutcome {
    match header {
        Some(header) if header.state != ArrayState::Active => DiskOutcome::Remnant(header),
        header => DiskOutcome::Unusable { problem: DiskProblem::Damaged(error), header },
    }
}

fn why(copy: &Read) -> String {
    match copy {
        Read::Nothing => "there is none".into(),
        Read::Failed(error) => error.to_string(),
        Read::Broken(error, _) => error.to_string(),
        Read::Whole(_) => "it is whole".into(),
    }
}

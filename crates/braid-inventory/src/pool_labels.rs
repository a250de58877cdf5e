//! Labels of pools on disks: two copies each, of which one may be torn or older.

use crate::disks::OpenDisk;
use braid_format::examine;
use braid_format::pool::{POOL_MAGIC, PoolLabel};
use std::sync::Arc;

/// A disk that has the label of a pool.
pub struct FoundPoolDisk {
    /// The disk that the label was found on.
    pub disk: Arc<OpenDisk>,
    /// The newest valid copy of its label.
    pub label: Box<PoolLabel>,
}

/// Combines the two copies of a label, as read from the start of a disk of `device_bytes` bytes and from the offset of
/// the second copy. Returns `None` if the disk has no label; otherwise the newest valid copy, or the reason why the
/// label cannot be used, as the end of a sentence.
pub fn combine_copies(device_bytes: u64, start: &[u8], end: &[u8]) -> Option<Result<PoolLabel, String>> {
    let copy_offset = examine::recorded_copy_offset(start, device_bytes).unwrap_or(0);
    let copies = [(0, start), (copy_offset, end)];
    let decoded = copies.map(|(offset, bytes)| (offset, PoolLabel::decode(bytes)));
    // A copy that only a newer version understands rules out the use of an older one beside it.
    let newer = decoded.iter().find_map(|(_, label)| match label {
        Err(error) if error.is_label() && !matches!(error, braid_format::LabelError::Checksum { .. }) => {
            Some(error.to_string())
        }
        _ => None,
    });
    if let Some(newer) = newer {
        return Some(Err(newer));
    }
    let whole = decoded.iter().filter_map(|(offset, label)| label.as_ref().ok().filter(|l| l.belongs_at(*offset)));
    let whole: Vec<&PoolLabel> = whole.collect();
    if let [one, other] = whole.as_slice() {
        let of_one = (one.uuid, one.member, one.layout) == (other.uuid, other.member, other.layout);
        if !of_one || one.sequence == other.sequence && one != other {
            let who = |label: &PoolLabel| format!("member {} of pool {} ({})", label.member, label.name, label.uuid);
            return Some(Err(format!(
                "its label and the copy of it say different things: {}, and {}",
                who(one),
                who(other)
            )));
        }
    }
    if let Some(label) = whole.into_iter().max_by_key(|label| label.sequence) {
        return Some(label.fits(device_bytes).map(|()| label.clone()));
    }
    let damaged = decoded.iter().any(|(_, label)| label.as_ref().is_err_and(braid_format::LabelError::is_label));
    (damaged && copies.iter().any(|(_, bytes)| bytes.starts_with(&POOL_MAGIC)))
        .then(|| Err("both copies of its label are damaged".to_owned()))
}

//! Labels of pools on devices: judged, written, removed.
//!
//! Every change is written to all members twice, under two numbers, the second only when the first is durable everywhere. So a crash
//! leaves labels that are one apart at most, and one that is two behind has missed a change: it is an old copy.

use super::Part;
use braid_api::{ErrorDetail, Kind};
use braid_engine::{DeviceId, DeviceIo, IoError};
use braid_format::pool::{POOL_MAGIC, PoolLabel};
use braid_format::{BLOCK_BYTES, LABEL_BYTES, examine};
use braid_ring::RingDevices;

/// What the two places of a label hold together: none, a label, or why there is one that cannot be believed.
pub fn judge(device_bytes: u64, start: &[u8], end: &[u8]) -> Option<Result<PoolLabel, String>> {
    let place = examine::copy_place(start, device_bytes).unwrap_or(0);
    let copies = [(0, start), (place, end)];
    let decoded = copies.map(|(offset, bytes)| (offset, PoolLabel::decode(bytes)));
    // One that only a newer version understands forbids to believe an older one beside it.
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
    if let Some(label) = whole.max_by_key(|label| label.sequence) {
        return Some(label.fits(device_bytes).map(|()| label.clone()));
    }
    let damaged = decoded.iter().any(|(_, label)| label.as_ref().is_err_and(braid_format::LabelError::is_label));
    (damaged && copies.iter().any(|(_, bytes)| bytes.starts_with(&POOL_MAGIC)))
        .then(|| Err("both copies of its label are damaged".to_owned()))
}

/// Reads the label of a device.
///
/// # Errors
/// The device's.
pub async fn read(io: &RingDevices, device: DeviceId) -> Result<Option<Result<PoolLabel, String>>, IoError> {
    let size = io.size_bytes(device);
    if size < 2 * BLOCK_BYTES {
        return Ok(None);
    }
    let start = io.read(device, 0, LABEL_BYTES).await?;
    let place = examine::copy_place(&start, size).unwrap_or(BLOCK_BYTES);
    let end = io.read(device, place, LABEL_BYTES).await?;
    Ok(judge(size, &start, &end))
}

/// Changes the labels of all members: what `change` makes of each.
///
/// # Errors
/// A device's; then some members may have the new label.
pub async fn write(io: &RingDevices, parts: &mut [Part], change: impl Fn(&mut PoolLabel)) -> Result<(), (u8, IoError)> {
    let newest = parts.iter().map(|part| part.label.sequence).max().unwrap_or(0);
    for round in 1..=2 {
        for part in parts.iter_mut() {
            change(&mut part.label);
            part.label.sequence = newest + round;
            put(io, part).await.map_err(|error| (part.label.member, error))?;
        }
        for part in parts.iter() {
            io.flush(part.device).await.map_err(|error| (part.label.member, error))?;
        }
    }
    Ok(())
}

async fn put(io: &RingDevices, part: &Part) -> Result<(), IoError> {
    let bytes = part.label.encode().map_err(|_| IoError::of(braid_engine::ErrorKind::Invalid))?;
    let places = part.label.places;
    // One after the other, with a flush between: a crash tears one of them at most.
    for offset in [places.label_start, places.copy_start] {
        io.write(part.device, offset, bytes.to_vec(), true).await?;
    }
    Ok(())
}

/// Removes the labels: the copies first, as the label at the start says where they are.
///
/// # Errors
/// A device's.
pub async fn erase(io: &RingDevices, parts: &[Part]) -> Result<(), (u8, IoError)> {
    for part in parts {
        let failed = |error| (part.label.member, error);
        for offset in [part.label.places.copy_start, part.label.places.label_start] {
            io.write(part.device, offset, vec![0; LABEL_BYTES], true).await.map_err(failed)?;
        }
        io.flush(part.device).await.map_err(failed)?;
    }
    Ok(())
}

/// What a device's error is to whoever asked.
pub fn failed(pool: &str, doing: &str, member: u8, error: IoError) -> ErrorDetail {
    let kind = match error.kind {
        braid_engine::ErrorKind::TimedOut => Kind::TimedOut,
        braid_engine::ErrorKind::NoSpace => Kind::NoSpace,
        _ => Kind::DiskError,
    };
    ErrorDetail::new(kind, format!("pool {pool}: {doing} member {member} failed: {error}"))
        .with("pool", pool)
        .remedy("look at the disk and at the kernel's log (dmesg); replace the disk if it is broken")
}

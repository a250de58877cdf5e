//! `braid pool dump`: prints the tables of a pool's member, even if they are damaged; needs no daemon.

use std::fmt::Write as _;
use std::process::ExitCode;

use braid_api::{ErrorDetail, Kind};
use braid_format::examine::recorded_copy_offset;
use braid_format::pool::{AllocationPolicy, Checkpoint, Owner, OwnerKind, PoolLabel, Record, RecordKind};
use braid_format::{LABEL_BYTES, examine_pool};
use braid_geometry::units::format_size;
use braid_ring::DiskSpec;
use serde::Serialize;
use utoipa::ToSchema;

use super::examine::cannot_read;
use super::pool_dump_log::{Batch, read_log};
use braid_host::pool_tables::read_tables;
use braid_host::probe::Probe;
use braid_terminal::output;
use braid_terminal::progress::Waiting;

/// Maximum number of damage lines in the text output.
const LINES_MAX: usize = 40;

/// Arguments of `braid pool dump`.
#[derive(clap::Args)]
pub struct DumpArgs {
    /// The member: a block device or a file
    disk: String,
    /// Include every record of the extent table that is not free
    #[arg(long)]
    records: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The tables of a pool's member: `braid pool dump`.
#[derive(Serialize, ToSchema)]
pub struct DumpedMember {
    /// The disk, as it was named.
    disk: String,
    /// The pool.
    pool: String,
    /// Its UUID.
    uuid: String,
    /// The number of the member.
    member: u8,
    /// The session in the label: each opening of the pool has a new one.
    session: u64,
    /// Whether the last session ended cleanly, by the label.
    clean: bool,
    /// The valid checkpoints; the one with the largest generation is current.
    ring_starts: Vec<DumpedStart>,
    /// The valid batches in the log, by position; old ones included.
    batches: Vec<DumpedBatch>,
    /// Volumes, snapshots and remains of deleted ones, by the tables alone: the changes in the batches are not applied.
    owners: Vec<DumpedOwner>,
    /// The number of records of free extents.
    free_records: u64,
    /// The number of records of whole extents.
    whole_records: u64,
    /// The number of records of packed extents.
    packed_records: u64,
    /// The number of records of ranges of zeros.
    zero_records: u64,
    /// The damaged objects.
    damaged: Vec<DumpedDamage>,
    /// With `--records`: the records that are not free.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    records: Vec<DumpedRecord>,
}

/// A checkpoint.
#[derive(Serialize, ToSchema)]
struct DumpedStart {
    generation: u64,
    session: u64,
    run: u64,
    /// The first batch after the checkpoint. `position` is the block of the log in which it begins.
    sequence: u64,
    position: u32,
    /// The last commit in the tables.
    commit: u64,
    /// The members without which the pool was opened.
    absent: Vec<u8>,
}

/// A batch of the log.
#[derive(Serialize, ToSchema)]
struct DumpedBatch {
    /// The block of the log in which it begins.
    position: u32,
    run: u64,
    sequence: u64,
    commit: u64,
    /// Its index among the `batches` of this commit on this member.
    index: u16,
    batches: u16,
    /// The number of its valid changes, up to the first invalid one.
    entries: u64,
}

/// An owner: a volume, a snapshot, or the remains of one.
#[derive(Serialize, ToSchema)]
struct DumpedOwner {
    slot: u32,
    id: u32,
    /// `volume`, `snapshot`, `nameless` or `deleting`.
    kind: &'static str,
    name: String,
    parent: u32,
    uuid: String,
    size_bytes: u64,
    thick: bool,
    /// Whether it is being flattened.
    flattening: bool,
    /// Of a snapshot: whether its file system was frozen while it was taken.
    frozen: bool,
    /// Whether its logical block has 512 bytes; otherwise 4096.
    in_sectors: bool,
    /// The members on which it may have blocks, by number; not present: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    on: Option<Vec<u8>>,
}

/// A damaged object.
#[derive(Serialize, ToSchema)]
struct DumpedDamage {
    /// `label` (0 at the start of the disk, 1 its copy), `ring_start` (a checkpoint), `ring` (a block of the log that cannot be read), `batch` (by
    /// the block of the log where a required batch is missing while later ones exist), `owner`, `record` or `addresses`.
    what: &'static str,
    /// The number of the damaged object.
    index: u32,
}

/// A record of the extent table.
#[derive(Serialize, ToSchema)]
struct DumpedRecord {
    index: u32,
    /// `whole`, `packed` or `zeros`.
    kind: &'static str,
    owner: u32,
    /// The extent of the volume, or the first extent of a range of zeros; 4294967295: several.
    logical: u32,
    life: u16,
    /// The blocks or slots in use, lowest bit first; of zeros the number of extents.
    present: u64,
    /// The blocks that read as zeros.
    zero: u64,
}

/// Runs the command. Exit status 7 if something is damaged, 3 if there is no valid label of a pool.
///
/// # Errors
/// The disk cannot be read, or has no valid label of a pool.
pub async fn run(args: DumpArgs) -> anyhow::Result<ExitCode> {
    let invalid = |message: String| ErrorDetail::new(Kind::InvalidArgument, message).with("disk", &args.disk);
    let spec = DiskSpec::parse(&args.disk).map_err(|error| invalid(error.to_string()))?;
    let path = spec.path().ok_or_else(|| {
        invalid(format!("{spec} keeps nothing, so it has no tables"))
            .remedy("name a block device or a file. Example: braid pool dump /dev/sdb")
    })?;
    let waiting = Waiting::for_disk(&args.disk);
    let probe = Probe::open(path).map_err(|error| cannot_read(&error, path))?;
    let read = |offset, len| probe.read(offset, len);
    let found = label_on(read, probe.size_bytes()).map_err(|error| cannot_read(&error, path))?;
    let (label, bad_labels) = found.ok_or_else(|| {
        ErrorDetail::new(Kind::NotFound, format!("{} has no valid label of a pool", path.display()))
            .with("disk", &args.disk)
            .remedy("see its content with braid disk examine; if the pool is on an array, its tables are in the array")
    })?;
    let mut records = Vec::new();
    let keep = args.records;
    let found = read_tables(&probe, &label, |index, record| {
        if keep {
            records.push(dumped_record(index, record));
        }
    });
    let failed = |error: String| {
        ErrorDetail::new(Kind::DiskError, format!("{}: {error}", path.display()))
            .with("disk", &args.disk)
            .remedy("check the disk and the kernel's log (dmesg)")
    };
    let found = found.await.map_err(failed)?;
    let log = read_log(&probe, &label).await.map_err(failed)?;
    drop(waiting);
    let labels = bad_labels.into_iter().map(|copy| ("label", copy));
    let blocks = log.unreadable.iter().map(|block| ("ring", *block));
    let batches = log.damaged_batch.into_iter().map(|block| ("batch", block));
    let damaged = labels.chain(blocks).chain(batches).chain(found.damaged.iter().map(|bad| bad.api_name()));
    let [free_records, whole_records, packed_records, zero_records] = found.records;
    let dumped = DumpedMember {
        disk: args.disk.clone(),
        pool: label.name.to_string(),
        uuid: label.uuid.to_string(),
        member: label.member,
        session: label.session,
        clean: label.clean,
        ring_starts: found.checkpoints.iter().flatten().map(dumped_start).collect(),
        batches: log.batches.iter().map(dumped_batch).collect(),
        owners: found.owners.iter().map(|(slot, owner)| dumped_owner(*slot, owner)).collect(),
        free_records,
        whole_records,
        packed_records,
        zero_records,
        damaged: damaged.map(|(what, index)| DumpedDamage { what, index }).collect(),
        records,
    };
    output::show(args.json, &dumped, show);
    Ok(ExitCode::from(if dumped.damaged.is_empty() { 0 } else { Kind::Damaged.exit_status() }))
}

/// Returns the newer of the valid copies of the label, and the numbers of the copies that are invalid or cannot be read.
///
/// # Errors
/// No copy is valid, and not both can be read.
fn label_on(
    read: impl Fn(u64, usize) -> std::io::Result<Vec<u8>>,
    size: u64,
) -> std::io::Result<Option<(PoolLabel, Vec<u32>)>> {
    let start = read(0, LABEL_BYTES);
    let first = start.as_deref().unwrap_or_default();
    let end = recorded_copy_offset(first, size).map_or(Ok(Vec::new()), |offset| read(offset, LABEL_BYTES));
    let examined = examine_pool(first, end.as_deref().unwrap_or_default(), size);
    let copies = [examined.start.label.ok(), examined.end.label.ok()];
    let Some(label) = copies.iter().flatten().max_by_key(|label| label.sequence).cloned() else {
        return start.and(end).map(|_| None);
    };
    let is_bad = |copy: &Option<PoolLabel>| copy.as_ref().is_none_or(|copy| copy.uuid != label.uuid);
    let bad = (0..).zip(&copies).filter(|(_, copy)| is_bad(copy)).map(|(number, _)| number).collect();
    Ok(Some((label, bad)))
}

fn dumped_batch(batch: &Batch) -> DumpedBatch {
    let (header, position, entries) = (&batch.header, batch.position, batch.entries);
    let (run, sequence, commit) = (header.run, header.sequence, header.commit);
    DumpedBatch { position, run, sequence, commit, index: header.index, batches: header.batches, entries }
}

fn numbers(bits: u128) -> Vec<u8> {
    (0..128).filter(|number| bits >> number & 1 == 1).collect()
}

fn dumped_start(start: &Checkpoint) -> DumpedStart {
    DumpedStart {
        generation: start.generation,
        session: start.session,
        run: start.run,
        sequence: start.sequence,
        position: start.position,
        commit: start.commit,
        absent: start.missing.list().iter().map(|absence| absence.member).collect(),
    }
}

fn dumped_owner(slot: u32, owner: &Owner) -> DumpedOwner {
    DumpedOwner {
        slot,
        id: owner.id,
        kind: match owner.kind {
            OwnerKind::Volume => "volume",
            OwnerKind::Snapshot => "snapshot",
            OwnerKind::Nameless => "nameless",
            OwnerKind::Deleting => "deleting",
        },
        name: owner.name.to_string(),
        parent: owner.parent,
        uuid: owner.uuid.to_string(),
        size_bytes: owner.size_bytes,
        thick: owner.thick,
        flattening: owner.flattening,
        frozen: owner.frozen,
        in_sectors: owner.sectors_of_512,
        on: (owner.allocation != AllocationPolicy::Spread).then(|| numbers(owner.block_members())),
    }
}

fn dumped_record(index: u32, record: &Record) -> DumpedRecord {
    let kind = match record.kind {
        RecordKind::Free => "free",
        RecordKind::Whole => "whole",
        RecordKind::Packed => "packed",
        RecordKind::Zeros => "zeros",
    };
    let Record { owner, logical, life, present, zero, .. } = *record;
    DumpedRecord { index, kind, owner, logical, life, present, zero }
}

fn show(member: &DumpedMember) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}: member {} of pool \"{}\" ({})", member.disk, member.member, member.pool, member.uuid);
    let ended = if member.clean { "which ended cleanly" } else { "which is still open or did not end cleanly" };
    let _ = writeln!(text, "session {:016x}, {ended}", member.session);
    for start in &member.ring_starts {
        let _ = writeln!(
            text,
            "checkpoint {}: run {:016x}, from batch {} at block {}; the tables hold commits up to {}",
            start.generation, start.run, start.sequence, start.position, start.commit
        );
        if !start.absent.is_empty() {
            let _ = writeln!(text, "  opened without members {:?}", start.absent);
        }
    }
    let _ = writeln!(
        text,
        "{} extents whole, {} packed, {} free; {} records of zeros",
        output::thousands(member.whole_records),
        output::thousands(member.packed_records),
        output::thousands(member.free_records),
        output::thousands(member.zero_records)
    );
    for damage in member.damaged.iter().take(LINES_MAX) {
        let index = damage.index;
        let _ = match damage.what {
            "label" if index == 0 => writeln!(text, "! the label at the start of the disk is damaged"),
            "label" => writeln!(text, "! the copy of the label at the end of the disk is damaged"),
            "ring" => writeln!(text, "! block {index} of the log cannot be read"),
            "batch" => writeln!(text, "! the batch at block {index} of the log is damaged: later ones exist"),
            "ring_start" => writeln!(text, "! checkpoint {index} is damaged"),
            what => writeln!(text, "! {} {index} is damaged", what.replace('_', " ")),
        };
    }
    if member.damaged.len() > LINES_MAX {
        let _ = writeln!(text, "! and {} more (--json)", member.damaged.len() - LINES_MAX);
    }
    let mut table = output::table(["SLOT", "OWNER", "KIND", "NAME", "PARENT", "SIZE", "ON"]);
    for owner in &member.owners {
        table.add_row([
            owner.slot.to_string(),
            owner.id.to_string(),
            owner.kind.to_owned(),
            owner.name.clone(),
            owner.parent.to_string(),
            format_size(owner.size_bytes) + if owner.thick { " thick" } else { "" },
            owner.on.as_ref().map_or_else(|| "all".to_owned(), |on| format!("{on:?}")),
        ]);
    }
    let _ = write!(text, "\n{}", output::render(&table));
    let mut table = output::table(["BLOCK", "RUN", "BATCH", "COMMIT", "PART", "CHANGES"]);
    for batch in &member.batches {
        table.add_row([
            batch.position.to_string(),
            format!("{:016x}", batch.run),
            batch.sequence.to_string(),
            batch.commit.to_string(),
            format!("{} of {}", batch.index + 1, batch.batches),
            batch.entries.to_string(),
        ]);
    }
    let _ = write!(text, "\n{}", output::render(&table));
    if !member.records.is_empty() {
        let mut table = output::table(["RECORD", "KIND", "OWNER", "EXTENT", "LIFE", "PRESENT", "ZERO"]);
        for record in &member.records {
            table.add_row([
                record.index.to_string(),
                record.kind.to_owned(),
                record.owner.to_string(),
                if record.kind == "packed" { "-".to_owned() } else { record.logical.to_string() },
                record.life.to_string(),
                format!("{:016x}", record.present),
                format!("{:016x}", record.zero),
            ]);
        }
        let _ = write!(text, "\n{}", output::render(&table));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_format::Uuid;
    use braid_format::pool::{PoolMember, PoolMemberLayout, PoolMemberState, PoolState, Reserved};

    const BYTES: u64 = 96 << 20;

    #[test]
    fn if_one_copy_of_the_label_cannot_be_read_the_other_is_used() {
        let places = PoolMemberLayout::new(BYTES, 1024).expect("there is room");
        let label = PoolLabel {
            features: braid_format::Features::default(),
            uuid: Uuid::from_u128(7),
            sequence: 1,
            name: braid_format::Name::new("tank").expect("a good name"),
            state: PoolState::Active,
            clean: false,
            created_unix_s: 0,
            session: 1,
            members: vec![Some(PoolMember {
                uuid: Uuid::from_u128(8),
                size_bytes: BYTES,
                state: PoolMemberState::InUse,
            })],
            member: 0,
            layout: places,
            reserved: Reserved::NONE,
        };
        let image = label.encode().expect("it makes sense").to_vec();
        let at = [places.label_start, places.copy_start];
        let found = |unreadable: &[u64], spoilt: &[u64]| {
            let read = |offset: u64, len: usize| {
                assert!(at.contains(&offset) && len == LABEL_BYTES, "only the labels are read");
                if unreadable.contains(&offset) {
                    return Err(std::io::Error::from_raw_os_error(5));
                }
                let mut bytes = image.clone();
                bytes[700] ^= u8::from(spoilt.contains(&offset));
                Ok(bytes)
            };
            label_on(read, BYTES).map(|found| found.map(|(label, bad)| (label.member, bad)))
        };
        assert_eq!(found(&[], &[]).ok(), Some(Some((0, Vec::new()))));
        for (k, copy) in (0..).zip(at) {
            assert_eq!(found(&[copy], &[]).ok(), Some(Some((0, vec![k]))));
            assert_eq!(found(&[], &[copy]).ok(), Some(Some((0, vec![k]))));
            assert!(found(&[copy], &[at[1 - k as usize]]).is_err(), "the unreadable copy may be a valid label");
        }
        assert_eq!(found(&[], &at).ok(), Some(None));
    }
}

//! `braid pool dump`: what the tables of a pool's member hold, without a daemon, also where some of it is damaged.

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
use super::pool_dump_ring::{Batch, look_at_ring};
use braid_host::pool_tables::look;
use braid_host::probe::Probe;
use braid_terminal::output;

/// Lines of damage that people are shown.
const LINES_MAX: usize = 40;

/// Arguments of `braid pool dump`.
#[derive(clap::Args)]
pub struct DumpArgs {
    /// The member: a block device or a file
    disk: String,
    /// Also every record of the table that is not free
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
    /// Of the label: each opening of the pool has another one.
    session: u64,
    /// Of the label: whether the last session ended in order.
    clean: bool,
    /// The starts of the ring that can be believed; the one with the larger generation counts.
    ring_starts: Vec<DumpedStart>,
    /// Batches in the ring that are whole, by where they stand; old ones among them.
    batches: Vec<DumpedBatch>,
    /// Volumes, snapshots and what is left of deleted ones, as the tables have them: what is in batches comes on top.
    owners: Vec<DumpedOwner>,
    /// Records of extents that are free, whole and packed, and of ranges of zeros.
    free_records: u64,
    /// See `free_records`.
    whole_records: u64,
    /// See `free_records`.
    packed_records: u64,
    /// See `free_records`.
    zero_records: u64,
    /// What cannot be believed.
    damaged: Vec<DumpedDamage>,
    /// With `--records`: those that are not free.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    records: Vec<DumpedRecord>,
}

/// A ring start.
#[derive(Serialize, ToSchema)]
struct DumpedStart {
    generation: u64,
    session: u64,
    run: u64,
    /// The first batch that counts, and the block of the ring in which it stands.
    sequence: u64,
    position: u32,
    /// The last commit that the tables hold.
    commit: u64,
    /// Members that the pool was opened without.
    absent: Vec<u8>,
}

/// A batch of the ring.
#[derive(Serialize, ToSchema)]
struct DumpedBatch {
    /// The block of the ring in which it begins.
    position: u32,
    run: u64,
    sequence: u64,
    commit: u64,
    /// Which of how many of this commit on this member.
    index: u16,
    batches: u16,
    /// How many changes it holds; fewer than were written where one cannot be read.
    entries: u64,
}

/// An owner.
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
    /// It is being made independent of its parent.
    flattens: bool,
    /// Of a snapshot: its file system was frozen while it was taken.
    frozen: bool,
    /// Its logical block has 512 bytes, otherwise 4096.
    in_sectors: bool,
    /// Members on which it may have blocks, by number; absent: on all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    on: Option<Vec<u8>>,
}

/// What cannot be believed.
#[derive(Serialize, ToSchema)]
struct DumpedDamage {
    /// `label` (0 at the start of the disk, 1 its copy), `ring_start`, `ring` (a block that cannot be read), `batch` (by the block of the ring where
    /// one should begin that counts, as later ones are there), `owner`, `record` or `addresses`.
    what: &'static str,
    /// Which.
    index: u32,
}

/// A record.
#[derive(Serialize, ToSchema)]
struct DumpedRecord {
    index: u32,
    /// `whole`, `packed` or `zeros`.
    kind: &'static str,
    owner: u32,
    /// The extent of the volume, or the first of a range of zeros; 4294967295: several.
    logical: u32,
    life: u16,
    /// Blocks, or slots, that are in use, lowest bit first; of zeros how many extents.
    present: u64,
    /// Blocks that read as zeros.
    zero: u64,
}

/// Runs the command. Exit status 7 where something is damaged, 3 where there is no label of a pool.
///
/// # Errors
/// The disk cannot be read, or bears no label of a pool that can be believed.
pub async fn run(args: DumpArgs) -> anyhow::Result<ExitCode> {
    let invalid = |message: String| ErrorDetail::new(Kind::InvalidArgument, message).with("disk", &args.disk);
    let spec = DiskSpec::parse(&args.disk).map_err(|error| invalid(error.to_string()))?;
    let path = spec.path().ok_or_else(|| {
        invalid(format!("{spec} keeps nothing, so it has no tables"))
            .remedy("name a block device or a file, for example: braid pool dump /dev/sdb")
    })?;
    let probe = Probe::open(path).map_err(|error| cannot_read(&error, path))?;
    let read = |offset, len| probe.read(offset, len);
    let found = label_on(read, probe.size_bytes()).map_err(|error| cannot_read(&error, path))?;
    let (label, bad_labels) = found.ok_or_else(|| {
        ErrorDetail::new(Kind::NotFound, format!("{} bears no label of a pool that is whole", path.display()))
            .with("disk", &args.disk)
            .remedy(
                "braid disk examine shows what is there; where a pool stands on an array, its tables are in the array",
            )
    })?;
    let mut records = Vec::new();
    let keep = args.records;
    let found = look(&probe, &label, |index, record| {
        if keep {
            records.push(dumped_record(index, record));
        }
    });
    let failed = |error: String| {
        ErrorDetail::new(Kind::DiskError, format!("{}: {error}", path.display()))
            .with("disk", &args.disk)
            .remedy("look at that disk and at the kernel's log (dmesg)")
    };
    let found = found.await.map_err(failed)?;
    let ring = look_at_ring(&probe, &label).await.map_err(failed)?;
    let labels = bad_labels.into_iter().map(|copy| ("label", copy));
    let blocks = ring.unread.iter().map(|block| ("ring", *block));
    let rotten = ring.rotten.into_iter().map(|block| ("batch", block));
    let damaged = labels.chain(blocks).chain(rotten).chain(found.bad.iter().map(|bad| bad.word()));
    let [free_records, whole_records, packed_records, zero_records] = found.records;
    let dumped = DumpedMember {
        disk: args.disk.clone(),
        pool: label.name.to_string(),
        uuid: label.uuid.to_string(),
        member: label.member,
        session: label.session,
        clean: label.clean,
        ring_starts: found.starts.iter().flatten().map(dumped_start).collect(),
        batches: ring.batches.iter().map(dumped_batch).collect(),
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

/// The newer of the two copies that are whole, and which of them are not, or cannot be read.
///
/// # Errors
/// None of them is whole, and not all can be read.
fn label_on(
    read: impl Fn(u64, usize) -> std::io::Result<Vec<u8>>,
    size: u64,
) -> std::io::Result<Option<(PoolLabel, Vec<u32>)>> {
    let start = read(0, LABEL_BYTES);
    let first = start.as_deref().unwrap_or_default();
    let end = recorded_copy_offset(first, size).map_or(Ok(Vec::new()), |place| read(place, LABEL_BYTES));
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
        flattens: owner.flattening,
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
    let ended = if member.clean { "which ended in order" } else { "which has not ended in order, or goes on" };
    let _ = writeln!(text, "session {:016x}, {ended}", member.session);
    for start in &member.ring_starts {
        let _ = writeln!(
            text,
            "ring start {}: run {:016x}, from batch {} at block {}; the tables hold commits up to {}",
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
            "ring" => writeln!(text, "! block {index} of the ring cannot be read"),
            "batch" => writeln!(text, "! the batch at block {index} of the ring is damaged: later ones are there"),
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
    fn of_a_label_that_cannot_be_read_the_other_copy_counts() {
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
            assert!(found(&[copy], &[at[1 - k as usize]]).is_err(), "nobody knows what the other one is");
        }
        assert_eq!(found(&[], &at).ok(), Some(None));
    }
}

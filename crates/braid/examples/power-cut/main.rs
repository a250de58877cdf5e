//! What power cuts are judged by, in the guest (`tests/vm/power-cut`): writers that know what was acknowledged to them, disks
//! with a volatile cache, the disk that a log of device-mapper's `log-writes` leaves at a mark, and the comparison.
//!
//! ```text
//! power-cut serve FOLDER BYTES DISK…        disks with a cache, over NBD at FOLDER/nbd, until it is killed
//! power-cut cut FOLDER ACKS TO SEED         their images and the acknowledgements of one moment, into the folder TO
//! power-cut write FOLDER ACKS WRITER        until there is a file ACKS/enough
//! power-cut replay LOG TARGET MARK          what is on the disk for certain at that mark
//! power-cut check FOLDER ACKS               0: everything that was acknowledged is there
//! power-cut check FOLDER ACKS or-later      the same, of what is as it was some time later: it may be overwritten by then
//! power-cut nbd connect|reconnect ADDRESS EXPORT INDEX CONNECTIONS      /dev/nbdINDEX
//! ```
//!
//! The log has a write only once it was flushed (or was FUA), so that a disk up to a mark is one that has lost everything it was
//! free to lose.

mod disks;
mod kernel_nbd;

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{FallocateFlags, fallocate};

/// Records that a writer appends to a file before it begins another one.
const RECORDS_A_FILE: u64 = 25;
/// Blocks that a writer goes round in, overwriting.
const SLOTS: u64 = 64;
const SLOT_BYTES: u64 = 4096;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["write", folder, acks, writer] => number(writer).and_then(|writer| write(folder, acks, writer)),
        ["replay", log, target, mark] => replay(log, target, mark),
        ["check", folder, acks] => check(folder, acks, false),
        ["check", folder, acks, "or-later"] => check(folder, acks, true),
        ["serve", folder, bytes, ref names @ ..] => number(bytes).and_then(|bytes| disks::serve(folder, bytes, names)),
        ["cut", folder, acks, to, seed] => number(seed).and_then(|seed| disks::cut(folder, acks, to, seed)),
        ["nbd", "connect", at, export, index, connections] => {
            number(index).and_then(|index| kernel_nbd::connect(at, export, index, number(connections)?))
        }
        ["nbd", "reconnect", at, export, index, connections] => {
            number(index).and_then(|index| kernel_nbd::reconnect(at, export, index, number(connections)?))
        }
        _ => Err(io::Error::other("write, replay, check, serve, cut or nbd, as the beginning of its source says")),
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("power-cut {}: {error}", args.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::Error::other(format!("{text:?} is no number")))
}

/// The bytes of a record: nothing that another writer or another record has.
fn record(writer: u64, nth: u64, bytes: u64) -> Vec<u8> {
    let mut state = (writer << 40 | nth).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes as usize + 8);
    out.extend_from_slice(&writer.to_le_bytes());
    out.extend_from_slice(&nth.to_le_bytes());
    while (out.len() as u64) < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes as usize);
    out
}

/// Bytes of an appended record: from less than a sector to several blocks, never whole ones.
fn length(writer: u64, nth: u64) -> u64 {
    300 + (writer * 7919 + nth * 104_729) % 15_000
}

/// Where in its file an appended record begins.
fn place(writer: u64, nth: u64) -> u64 {
    (nth / RECORDS_A_FILE * RECORDS_A_FILE..nth).map(|before| length(writer, before)).sum()
}

fn appended(folder: &str, writer: u64, nth: u64) -> String {
    format!("{folder}/appended-{writer}-{}", nth / RECORDS_A_FILE)
}

fn overwritten(folder: &str, writer: u64) -> String {
    format!("{folder}/overwritten-{writer}")
}

/// Every second writer overwrites in place; the others append, and begin files.
fn overwrites(writer: u64) -> bool {
    writer % 2 == 1
}

fn write(folder: &str, acks: &str, writer: u64) -> io::Result<String> {
    let counter = OpenOptions::new().create(true).truncate(true).write(true).open(format!("{acks}/{writer}"))?;
    let acknowledged = |count: u64| counter.write_all_at(format!("{count:020}\n").as_bytes(), 0);
    acknowledged(0)?;
    let mut file = None;
    let mut nth = 0;
    while !Path::new(&format!("{acks}/enough")).exists() {
        if overwrites(writer) {
            let file = match &mut file {
                Some(file) => file,
                None => {
                    let made =
                        OpenOptions::new().create(true).truncate(true).write(true).open(overwritten(folder, writer))?;
                    made.write_all_at(&vec![0; (SLOTS * SLOT_BYTES) as usize], 0)?;
                    made.sync_all()?;
                    File::open(folder)?.sync_all()?;
                    file.insert(made)
                }
            };
            file.write_all_at(&record(writer, nth, SLOT_BYTES), nth % SLOTS * SLOT_BYTES)?;
            file.sync_data()?;
        } else {
            if nth % RECORDS_A_FILE == 0 {
                file = Some(OpenOptions::new().create_new(true).append(true).open(appended(folder, writer, nth))?);
            }
            let file = file.as_mut().expect("the first record begins one");
            file.write_all(&record(writer, nth, length(writer, nth)))?;
            file.sync_all()?;
            if nth % RECORDS_A_FILE == 0 {
                File::open(folder)?.sync_all()?;
            }
        }
        nth += 1;
        acknowledged(nth)?;
    }
    Ok(format!("writer {writer}: {nth} records"))
}

/// What was found in place of a record, for whoever looks into it.
fn what_is(found: &[u8]) -> String {
    let word = |at: usize| found.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    match (word(0), word(8)) {
        _ if found.iter().all(|byte| *byte == 0) => "zeros".to_owned(),
        (Some(writer), Some(nth)) if found == record(writer, nth, found.len() as u64) => {
            format!("record {nth} of writer {writer}")
        }
        (Some(writer), Some(nth)) => format!("other bytes, which begin as record {nth} of writer {writer} would,"),
        _ => "other bytes".to_owned(),
    }
}

/// Whether these are the bytes of a later record in the same place.
fn is_later(found: &[u8], writer: u64, nth: u64) -> bool {
    let Some(bytes) = found.get(8..16).and_then(|bytes| bytes.try_into().ok()) else { return false };
    let other = u64::from_le_bytes(bytes);
    other > nth && (other - nth).is_multiple_of(SLOTS) && found == record(writer, other, SLOT_BYTES)
}

fn check(folder: &str, acks: &str, or_later: bool) -> io::Result<String> {
    let (mut records, mut missing) = (0, Vec::new());
    for entry in fs::read_dir(acks)? {
        let entry = entry?;
        let Ok(writer) = number(&entry.file_name().to_string_lossy()) else { continue };
        let count = number(&fs::read_to_string(entry.path())?)?;
        records += count;
        // Of a place that is overwritten, only the last record counts; of one that was under way, neither.
        let first = if overwrites(writer) { (count + 1).saturating_sub(SLOTS) } else { 0 };
        for nth in first..count {
            let (path, at, bytes) = if overwrites(writer) {
                (overwritten(folder, writer), nth % SLOTS * SLOT_BYTES, SLOT_BYTES)
            } else {
                (appended(folder, writer, nth), place(writer, nth), length(writer, nth))
            };
            let mut found = vec![0; bytes as usize];
            match File::open(&path).and_then(|file| file.read_exact_at(&mut found, at)) {
                Ok(()) if found == record(writer, nth, bytes) => {}
                Ok(()) if or_later && overwrites(writer) && is_later(&found, writer, nth) => {}
                Ok(()) => {
                    let what = what_is(&found);
                    missing.push(format!("record {nth} of writer {writer} of {count}: {path} has {what} at {at}"))
                }
                Err(error) => {
                    missing.push(format!("record {nth} of writer {writer} of {count}: {path} at {at}: {error}"))
                }
            }
        }
    }
    match &missing[..] {
        [] => Ok(format!("{records} acknowledged records are there")),
        [first, ..] => {
            Err(io::Error::other(format!("{} of {records} acknowledged records are not there: {first}", missing.len())))
        }
    }
}

/// Documentation/admin-guide/device-mapper/log-writes.rst of Linux, and the structures that it names.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;

fn replay(log: &str, target: &str, mark: &str) -> io::Result<String> {
    let log = File::open(log)?;
    let target = OpenOptions::new().write(true).open(target)?;
    let word =
        |bytes: &[u8], nth: usize| u64::from_le_bytes(bytes[nth * 8..nth * 8 + 8].try_into().expect("eight bytes"));
    let mut head = [0; 512];
    log.read_exact_at(&mut head, 0)?;
    let (magic, version, entries, sector) =
        (word(&head, 0), word(&head, 1), word(&head, 2), word(&head, 3) & 0xffff_ffff);
    if magic != MAGIC || version != 1 || !(512..=65536).contains(&sector) {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("no log of writes: {magic:#x} {version} {sector}")));
    }
    let (mut at, mut writes, mut bytes) = (sector, 0, 0);
    for _ in 0..entries {
        log.read_exact_at(&mut head, at)?;
        let (to, length) = (word(&head, 0) * sector, word(&head, 1) * sector);
        let (flags, said) = (word(&head, 2), word(&head, 3) as usize);
        at += sector;
        if flags & MARK != 0 {
            if head.get(32..32 + said).is_some_and(|found| found == mark.as_bytes()) {
                return Ok(format!("{mark}: {writes} writes, {bytes} bytes"));
            }
        } else if flags & DISCARD != 0 {
            // Without data in the log. What a disk has there afterwards is its own affair: zeros, here.
            fallocate(&target, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, to, length)?;
        } else {
            let mut data = vec![0; length as usize];
            log.read_exact_at(&mut data, at)?;
            target.write_all_at(&data, to)?;
            at += length;
            writes += 1;
            bytes += length;
        }
    }
    Err(io::Error::new(ErrorKind::NotFound, format!("the log has {entries} entries, and no mark {mark}")))
}

//! The doors through which bytes from outside come in, each with what must hold whatever they are.
//!
//! Every function returns for every input; a panic is a finding. Called by the fuzz targets, and by the test that
//! replays the kept corpus.

use std::sync::Arc;

use braid_export::{ExportInfo, ExportTable};
use braid_nbd::codec::DecodedRequest;
use braid_nbd::handshake::{Handshake, HandshakeStep, INPUT_BYTES_MAX};
use braid_nbd::transmission::{Command, RequestDecision, Terms, validate};

/// One entry: its name (that of its folder in the corpus) and the function.
pub type Entry = (&'static str, fn(&[u8]));

/// All entries.
pub const ALL: &[Entry] = &[
    ("label", label),
    ("journal", journal),
    ("pool_label", pool_label),
    ("pool", pool),
    ("register", register),
    ("pool_use", pool_use),
    ("array_use", array_use),
    ("md", md),
    ("nbd_handshake", nbd_handshake),
    ("nbd_transmission", nbd_transmission),
    ("nbd_server", nbd_server),
    ("nbd_client", nbd_client),
    ("tls_records", tls_records),
    ("fuse_ask", fuse_ask),
    ("sizes", sizes),
    ("disk_names", disk_names),
    ("api_bodies", api_bodies),
];

/// Edits of a sound pool, with right checksums: it is opened, written, committed, administered, killed and opened again.
pub fn pool_use(data: &[u8]) {
    braid_sim::hostile::pool::use_pool(data);
}

/// Edits of the disks of a sound array: it is started, its journal recovered, a member dropped, stopped and started again.
pub fn array_use(data: &[u8]) {
    braid_sim::hostile::array::use_array(data);
}

/// Entries whose inputs take milliseconds each: they get fewer of them where time is short.
pub const SLOW: &[&str] = &["pool_use", "array_use"];

/// Labels, and whatever else stands on a disk: as they are, and once more with right checksums, so that what lies behind
/// those is reached too.
pub fn label(data: &[u8]) {
    braid_format::fuzz::fuzz_label(data);
    if data.len() >= 4096 {
        let mut sealed = data.to_vec();
        seal(&mut sealed[..4096]);
        braid_format::fuzz::fuzz_label(&sealed);
    }
}

/// Puts right checksums into a label, as `docs/internals/format/label.md` draws them: of the first sector at byte 508, of all at byte 8.
pub fn seal(label: &mut [u8]) {
    label[8..12].fill(0);
    let header = crc32c(&label[..508]);
    label[508..512].copy_from_slice(&header.to_le_bytes());
    let all = crc32c(label);
    label[8..12].copy_from_slice(&all.to_le_bytes());
}

/// Heads and batches of a journal: as they are, and once more with a right checksum for a batch, and for a head.
pub fn journal(data: &[u8]) {
    braid_format::fuzz::fuzz_journal(data);
    for end in journal_ends(data) {
        let mut sealed = data.to_vec();
        let crc = crc32c(&sealed[4..end]);
        sealed[..4].copy_from_slice(&crc.to_le_bytes());
        braid_format::fuzz::fuzz_journal(&sealed);
    }
}

/// Where the bytes end that a checksum covers, as `docs/internals/format/bitmap-and-journal.md` draws them: a batch's header after 4096 bytes, a head after its
/// list, of which the length stands at byte 52.
pub fn journal_ends(data: &[u8]) -> Vec<usize> {
    let count = data.get(52..56).map_or(0, |bytes| bytes.iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte)));
    let ends = [4096, 64 + 16 * count.min(2000)];
    ends.into_iter().filter(|end| *end <= data.len()).collect()
}

/// Labels of pools: as they are, and once more with right checksums, which stand where those of an array's label do.
pub fn pool_label(data: &[u8]) {
    braid_format::fuzz::fuzz_pool_label(data);
    if data.len() >= 4096 {
        let mut sealed = data.to_vec();
        seal(&mut sealed[..4096]);
        braid_format::fuzz::fuzz_pool_label(&sealed);
    }
}

/// What pools write beside that: as it is, and once more with right checksums, taken for each of the structures.
pub fn pool(data: &[u8]) {
    braid_format::fuzz::fuzz_pool(data);
    for seal in POOL_SEALS {
        let mut sealed = data.to_vec();
        if seal(&mut sealed).is_some() {
            braid_format::fuzz::fuzz_pool(&sealed);
        }
    }
}

/// The two places of a voter's register: as they are, and once more with right checksums.
pub fn register(data: &[u8]) {
    braid_format::fuzz::fuzz_register(data);
    let mut sealed = data.to_vec();
    sealed.chunks_exact_mut(4096).for_each(seal_register);
    braid_format::fuzz::fuzz_register(&sealed);
}

/// Superblocks of Linux md: as they are, and once more with right checksums.
pub fn md(data: &[u8]) {
    braid_format::fuzz::fuzz_md(data);
    let mut sealed = data.to_vec();
    sealed.chunks_exact_mut(4096).for_each(seal_md);
    braid_format::fuzz::fuzz_md(&sealed);
}

/// Puts the right checksum into a superblock of md: at byte 216, the folded sum of all words before the end of its roles.
pub fn seal_md(bytes: &mut [u8]) {
    let devices = bytes[220..224].iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte));
    bytes[216..220].fill(0);
    let end = devices.saturating_mul(2).saturating_add(256).min(bytes.len());
    let word = |word: &[u8]| word.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let sum: u64 = bytes[..end].chunks(4).map(word).sum();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    bytes[216..220].copy_from_slice(&(sum as u32).to_le_bytes());
}

/// Puts the right checksum into a register, as `docs/internals/format/registers.md` draws it: at byte 4, of what follows in its block.
pub fn seal_register(bytes: &mut [u8]) {
    let crc = crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Puts right checksums into bytes; `None` where they cannot be what it seals.
pub type Seal = fn(&mut [u8]) -> Option<()>;

/// One for each of the structures of a pool.
pub const POOL_SEALS: [Seal; 5] = [seal_record, seal_owner, seal_entry, seal_batch, seal_start];

/// Puts the right checksum into a record, as `docs/internals/format/pools.md` draws it: at byte 12, of all else, the member and the index.
fn seal_record_of(bytes: &mut [u8], member: u8, index: [u8; 4]) -> Option<()> {
    let bytes = bytes.get_mut(..32)?;
    let crc = crc32c(&[&bytes[..12], &bytes[16..], &[member], &index].concat());
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

/// The same for an owner: at its end, of all before it and its slot.
fn seal_owner_of(bytes: &mut [u8], slot: [u8; 4]) -> Option<()> {
    let bytes = bytes.get_mut(..256)?;
    // A slot that is free is all zeros, its checksum too.
    if bytes.iter().any(|byte| *byte != 0) {
        let crc = crc32c(&[&bytes[..252], &slot].concat());
        bytes[252..].copy_from_slice(&crc.to_le_bytes());
    }
    Some(())
}

fn seal_record(bytes: &mut [u8]) -> Option<()> {
    seal_record_of(bytes, braid_format::fuzz::POOL_MEMBER, braid_format::fuzz::POOL_INDEX.to_le_bytes())
}

fn seal_owner(bytes: &mut [u8]) -> Option<()> {
    seal_owner_of(bytes, braid_format::fuzz::POOL_INDEX.to_le_bytes())
}

/// An entry: at byte 56 of its first unit, of all else in its units; before that what it holds.
fn seal_entry(bytes: &mut [u8]) -> Option<()> {
    let head = *bytes.first_chunk::<8>()?;
    let (kind, index) = (head[0], [head[4], head[5], head[6], head[7]]);
    let units = if kind == 3 { 5 } else { 1 };
    let bytes = bytes.get_mut(..units * 64)?;
    match kind {
        // A record of zeros is a free one, its checksum zero, too.
        1 | 2 if bytes[24..56].iter().any(|byte| *byte != 0) => seal_record_of(&mut bytes[24..56], head[1], index)?,
        3 => seal_owner_of(&mut bytes[64..], index)?,
        _ => {}
    }
    let crc = crc32c(&[&bytes[..56], &bytes[60..]].concat());
    bytes[56..60].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

/// A batch: at byte 4, of what follows to the end of its blocks; before that its entries.
fn seal_batch(bytes: &mut [u8]) -> Option<()> {
    let head = bytes.first_chunk::<16>().filter(|head| head.starts_with(b"BRPB"))?;
    let (units, blocks) = (u16::from_le_bytes([head[12], head[13]]), u16::from_le_bytes([head[14], head[15]]));
    let (mut at, end) = (128, 128 + usize::from(units) * 64);
    while at < end {
        seal_entry(bytes.get_mut(at..)?)?;
        at += usize::from(bytes[at + 3]).max(1) * 64;
    }
    let crc = crc32c(bytes.get(8..usize::from(blocks) * 4096)?);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

/// A ring start: at byte 4, of what follows in its block.
fn seal_start(bytes: &mut [u8]) -> Option<()> {
    let bytes = bytes.get_mut(..4096).filter(|bytes| bytes.starts_with(b"BRPS"))?;
    let crc = crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

/// CRC-32C by its definition, bit by bit: slow, and nobody else's code.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

fn exports() -> Arc<ExportTable> {
    let table = Arc::new(ExportTable::new());
    for (index, (name, size)) in [("data", 64 << 20), ("", 4096), ("read-only", 1 << 40)].into_iter().enumerate() {
        let mut info = ExportInfo::new(name, braid_engine::DeviceId(index as u32), size);
        info.read_only = name == "read-only";
        table.add(info).expect("these exports are in order");
    }
    table
}

/// A client's side of the handshake, arriving in pieces; what follows it is taken for requests.
pub fn nbd_handshake(data: &[u8]) {
    let Some((&first, stream)) = data.split_first() else { return };
    // How much arrives at a time: everything, or a few bytes.
    let step = if first == 0 { usize::MAX } else { usize::from(first) };
    let mut out = Vec::new();
    let mut handshake = Handshake::new(exports(), u64::MAX, &mut out);
    let (mut taken, mut arrived) = (0, 0);
    loop {
        let (took, next) = handshake.feed(&stream[taken..arrived], &mut out);
        taken += took;
        assert!(taken <= arrived, "it took what was not there");
        // One message has one bounded answer, however it is meant; the answers are sent before more is read.
        assert!(out.len() <= 64 << 10, "an answer of {} bytes", out.len());
        out.clear();
        match next {
            // No export here has a gate.
            HandshakeStep::Close(_) | HandshakeStep::StartTls | HandshakeStep::AwaitAdmission => return,
            HandshakeStep::Enter(session) => {
                requests(&stream[taken..], &session.terms);
                return;
            }
            HandshakeStep::NeedInput if took > 0 => {}
            HandshakeStep::NeedInput => {
                assert!(arrived - taken <= INPUT_BYTES_MAX, "it wants more than it said");
                if arrived == stream.len() {
                    return;
                }
                arrived = arrived.saturating_add(step).min(stream.len());
            }
        }
    }
}

/// Requests, under terms that the first bytes choose.
pub fn nbd_transmission(data: &[u8]) {
    let [flags, size @ .., blocks] = match data.first_chunk::<8>() {
        Some(head) => *head,
        None => return,
    };
    let block_bytes_min = 1u32 << (blocks % 17);
    let size = size.iter().fold(0u64, |size, &byte| size << 8 | u64::from(byte));
    let terms = Terms {
        size_bytes: size / u64::from(block_bytes_min) * u64::from(block_bytes_min),
        block_bytes_min,
        read_bytes_max: 32 << 20,
        read_only: flags & 1 != 0,
        structured: flags & 10 != 0,
        extended: flags & 8 != 0,
        allocation: flags & 4 != 0,
    };
    requests(&data[8..], &terms);
}

/// The protection of TLS records against rustls: the same bytes from both, and nothing opens that was changed, cut or
/// taken out of order.
pub fn tls_records(data: &[u8]) {
    braid_nbd::fuzz::fuzz_tls_records(data);
}

/// The whole server over a memory, from connect to close: everything is given back at the end.
pub fn nbd_server(data: &[u8]) {
    braid_nbd::fuzz::fuzz_handshake(data);
    braid_nbd::fuzz::fuzz_transmission(data);
}

/// What a hostile server says to our client: the handshake, then replies to requests in flight.
pub fn nbd_client(data: &[u8]) {
    use braid_nbd::client::negotiate::{Negotiated, Negotiation, NegotiationOptions};
    use braid_nbd::client::pipeline::{Pipeline, Replies};

    /// Remembers which requests have ended.
    struct Ended(Vec<u16>);
    impl Replies for Ended {
        fn data(&mut self, _: u16, at: u32, data: &[u8]) {
            assert!(at as usize + data.len() <= 4096, "data beyond what was asked");
        }
        fn done(&mut self, slot: u16, _: Result<(), u32>) {
            assert!(!self.0.contains(&slot), "a request ended twice");
            self.0.push(slot);
        }
    }

    let Some((&how, stream)) = data.split_first() else { return };
    let mut terms =
        Negotiated { structured: how & 9 != 0, extended: how & 8 != 0, allocation: Some(1), ..Negotiated::default() };
    let mut rest = stream;
    if how & 2 != 0 {
        let wishes = NegotiationOptions {
            export: "data".to_owned(),
            tls: false,
            extended: how & 8 != 0,
            structured: how & 1 != 0,
            allocation: how & 4 != 0,
        };
        let (mut negotiation, mut out) = (Negotiation::new(wishes), Vec::new());
        loop {
            let Ok((took, agreed)) = negotiation.feed(rest, &mut out) else { return };
            rest = &rest[took..];
            assert!(out.len() <= 64 << 10, "it answers with {} bytes", out.len());
            match agreed {
                Some(agreed) => {
                    terms = agreed;
                    break;
                }
                None if took == 0 => return,
                None => {}
            }
        }
    }
    let (mut pipeline, mut ended) = (Pipeline::new(4, &terms), Ended(Vec::new()));
    for (kind, len) in [(0, 4096), (1, 4096), (3, 0), (7, 4096)] {
        pipeline.begin(kind, 0, 0, len).expect("four slots are free");
    }
    while let Ok(took) = pipeline.feed(rest, &mut ended) {
        rest = &rest[took..];
        if took == 0 {
            break;
        }
    }
    assert_eq!(pipeline.in_flight(), 4 - ended.0.len());
}

fn requests(mut stream: &[u8], terms: &Terms) {
    while let Some((bytes, rest)) = stream.split_at_checked(if terms.extended { 32 } else { 28 }) {
        let header = &request_header(bytes);
        let (offset, len) = (header.offset, header.len);
        let payload = match validate(header, terms) {
            RequestDecision::Close(_) => return,
            RequestDecision::Serve(Command::Disconnect) => return,
            RequestDecision::Serve(Command::Flush) => 0,
            RequestDecision::Serve(command) => {
                assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= terms.size_bytes), "{command:?}");
                assert_eq!((offset | len) % u64::from(terms.block_bytes_min), 0, "{command:?}");
                let changes = matches!(command, Command::Write(_) | Command::Trim(_) | Command::WriteZeroes(_));
                assert!(!(changes && terms.read_only), "{command:?}");
                match command {
                    Command::Write(_) => len as usize,
                    Command::BlockStatus { .. } => {
                        assert!(terms.allocation);
                        0
                    }
                    _ => 0,
                }
            }
            RequestDecision::Refuse(refusal, payload) => {
                assert!(refusal.text.len() <= 38 && u64::from(payload) <= len);
                payload as usize
            }
        };
        stream = rest.get(payload..).unwrap_or_default();
    }
}

/// A header from its 28 or 32 bytes, as the protocol's document lays them out.
fn request_header(bytes: &[u8]) -> DecodedRequest {
    let number = |from: usize, to: usize| bytes[from..to].iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    DecodedRequest {
        magic: number(0, 4) as u32,
        flags: number(4, 6) as u16,
        kind: number(6, 8) as u16,
        cookie: number(8, 16),
        offset: number(16, 24),
        len: number(24, bytes.len()),
    }
}

/// Sizes and rates, as people type them.
pub fn sizes(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(bytes) = braid_geometry::units::parse_size(&text) {
        let shown = braid_geometry::units::format_size(bytes);
        let again = braid_geometry::units::parse_size(&shown).expect("what is shown can be typed");
        // Cut to two decimals, never more than there is: a hundredth of a unit, and a byte for the cut of that.
        assert!(again <= bytes && bytes - again <= bytes / 100 + 1, "{bytes} is shown as {shown}");
    } else if let Err(error) = braid_geometry::units::parse_size(&text) {
        assert!(!error.to_string().is_empty());
    }
    let _ = braid_geometry::units::parse_rate(&text);
}

/// Names of disks, as people type them.
pub fn disk_names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match braid_ring::spec::DiskSpec::parse(&text) {
        Ok(spec) => {
            let shown = spec.to_string();
            let again = braid_ring::spec::DiskSpec::parse(&shown);
            assert_eq!(again.as_ref(), Ok(&spec), "{text:?} is shown as {shown:?}");
            let _ = (spec.is_volatile(), spec.path());
        }
        Err(error) => {
            assert!(!error.problem.is_empty() && !error.example.is_empty());
            let example = error.example;
            assert!(error.to_string().contains(example));
        }
    }
}

/// Bodies of requests to the API: the first byte says for which.
pub fn api_bodies(data: &[u8]) {
    use braid_api::{AddExport, Assemble, CreateArray, RenameArray, StopArray, names};
    let Some((which, body)) = data.split_first() else { return };
    match which % 6 {
        0 => {
            if let Ok(request) = serde_json::from_slice::<CreateArray>(body) {
                let _ = names::check_name(&request.name);
                let _ = request.level.parse::<braid_geometry::Level>();
                for disk in &request.disks {
                    disk_names(disk.as_bytes());
                }
                again(&request, serde_json::to_vec::<CreateArray>, |b| serde_json::from_slice(b));
            }
        }
        1 => {
            if let Ok(request) = serde_json::from_slice::<AddExport>(body) {
                let _ = request.name.as_deref().map(names::check_name);
                again(&request, serde_json::to_vec::<AddExport>, |b| serde_json::from_slice(b));
            }
        }
        2 => drop(serde_json::from_slice::<RenameArray>(body).map(|request| names::check_name(&request.name))),
        3 => drop(serde_json::from_slice::<Assemble>(body)),
        4 => drop(serde_json::from_slice::<StopArray>(body)),
        // An answer, as a client reads it from a daemon that is not its own.
        _ => drop(serde_json::from_slice::<braid_api::ErrorBody>(body).map(|body| body.error.kind.exit_status())),
    }
}

/// What was understood can be written down, and is then understood again.
fn again<T>(
    value: &T,
    write: impl Fn(&T) -> serde_json::Result<Vec<u8>>,
    read: impl Fn(&[u8]) -> serde_json::Result<T>,
) {
    let written = write(value).expect("a request can be written");
    let read = read(&written).expect("what was written can be read");
    assert_eq!(write(&read).expect("a request can be written"), written);
}

/// Messages of the kernel to the server of a file.
pub fn fuse_ask(data: &[u8]) {
    braid_fuse::ask::fuzz(data);
}

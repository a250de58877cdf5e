//! Both copies of a disk's label, field by field, even if they are damaged.

use uuid::Uuid;

use crate::pool::{POOL_FIELDS, PoolHeader, PoolLabel};
use crate::raw::{FIELDS, FieldKind, LabelField};
use crate::validate::Validated;
use crate::{Ancestor, BLOCK_BYTES, Header, LABEL_BYTES, Label, LabelError, copy_offset, crc, pool, validate};

/// The labels of one kind that `examine` found on one disk.
#[derive(Clone, Debug)]
pub struct Examined<L = Label, H = Header> {
    /// The disk's size in bytes.
    pub device_bytes: u64,
    /// The block at the start of the disk.
    pub start: CopyReport<L, H>,
    /// The block where the copy belongs.
    pub end: CopyReport<L, H>,
    /// Fields in which the two copies differ, in the order of the bytes, without checksums; empty unless both are
    /// present.
    pub differences: Vec<Difference>,
    /// Contradictions between the labels and the disk's size, as sentences.
    pub size_problems: Vec<String>,
}

/// One copy of the label.
#[derive(Clone, Debug)]
pub struct CopyReport<L = Label, H = Header> {
    /// Where it was read, in bytes from the start of the disk.
    pub offset: u64,
    /// The label, if it is valid.
    pub label: Result<L, LabelError>,
    /// The label as its fields describe it, even if a checksum is wrong; `None` if a field prevents that. Only for
    /// display: its content may be damaged.
    pub readable: Option<L>,
    /// The content of the first sector, if that sector is valid.
    pub header: Option<H>,
    /// The checksum of the whole label; `None` when there is no label.
    pub checksum: Option<Checksum>,
    /// The checksum of the first sector.
    pub header_checksum: Option<Checksum>,
    /// Every field; empty when there is no label.
    pub fields: Vec<FieldReport>,
}

/// A stored checksum and the expected one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum {
    /// Computed from the bytes.
    pub expected: u32,
    /// Stored in the label.
    pub found: u32,
}

impl Checksum {
    /// Returns whether both are the same.
    pub fn good(&self) -> bool {
        self.expected == self.found
    }
}

/// One field of one copy.
#[derive(Clone, Debug)]
pub struct FieldReport {
    /// Which field.
    pub field: &'static LabelField,
    /// Its value, for display.
    pub value: String,
    /// What is wrong with it, if anything; several reasons are joined by `; `.
    pub problem: Option<String>,
}

/// A field in which the two copies differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Its name.
    pub field: &'static str,
    /// Its value in the copy at the start.
    pub start: String,
    /// Its value in the copy at the end.
    pub end: String,
}

impl<L, H> Examined<L, H> {
    /// Returns whether any label is present, valid or damaged.
    pub fn any_label(&self) -> bool {
        self.start.is_label() || self.end.is_label()
    }

    /// Returns whether both copies are valid, identical, where they belong, and fit the disk.
    pub fn sound(&self) -> bool {
        self.start.label.is_ok()
            && self.end.label.is_ok()
            && self.differences.is_empty()
            && self.size_problems.is_empty()
    }
}

impl<L, H> CopyReport<L, H> {
    /// Returns whether a label is present, valid or damaged.
    pub fn is_label(&self) -> bool {
        match &self.label {
            Ok(_) => true,
            Err(e) => e.is_label(),
        }
    }
}

/// Returns the offset, in bytes, at which to read the copy of the label of an array or a pool: the `copy_start` of the
/// label in the disk's first block if that label is readable and the offset is on the disk, else the disk's last whole
/// block. `None` when the disk is too small for two blocks.
pub fn recorded_copy_offset(start_block: &[u8], device_bytes: u64) -> Option<u64> {
    let last = copy_offset(device_bytes)?;
    let said = Label::decode(start_block).map(|label| label.member.layout.copy_start);
    let said = said.ok().or_else(|| Header::decode(start_block).map(|header| header.layout.copy_start));
    let said = said.or_else(|| PoolLabel::decode(start_block).map(|label| label.layout.copy_start).ok());
    let said = said.or_else(|| PoolHeader::decode(start_block).map(|header| header.layout.copy_start));
    Some(said.filter(|at| *at <= last && *at >= BLOCK_BYTES && at.is_multiple_of(BLOCK_BYTES)).unwrap_or(last))
}

/// Examines the two blocks of a disk of `device_bytes`: its first 4 KiB, and those at [`recorded_copy_offset`]. Either may be
/// short or empty if it could not be read.
pub fn examine(start_block: &[u8], end_block: &[u8], device_bytes: u64) -> Examined {
    examine_as(start_block, end_block, device_bytes)
}

/// Examines the label of a pool; see [`examine()`].
pub fn examine_pool(start_block: &[u8], end_block: &[u8], device_bytes: u64) -> Examined<PoolLabel, PoolHeader> {
    examine_as(start_block, end_block, device_bytes)
}

/// What `examine` needs of a kind of label.
trait Kind: Sized {
    type LabelHeader;
    const FIELDS: &'static [LabelField];
    fn decode(block: &[u8]) -> Result<Self, LabelError>;
    fn header(block: &[u8]) -> Option<Self::LabelHeader>;
    /// Validates all fields; `None` where there is no label.
    fn validate(block: &[u8]) -> Option<Validated<Self>>;
    fn fits(&self, device_bytes: u64) -> Result<(), String>;
    /// Returns the offsets where the label and its copy belong.
    fn label_offsets(&self) -> [u64; 2];
}

impl Kind for Label {
    type LabelHeader = Header;
    const FIELDS: &'static [LabelField] = FIELDS;

    fn decode(block: &[u8]) -> Result<Label, LabelError> {
        Label::decode(block)
    }

    fn header(block: &[u8]) -> Option<Header> {
        Header::decode(block)
    }

    fn validate(block: &[u8]) -> Option<Validated<Label>> {
        validate::every_problem(block)
    }

    fn fits(&self, device_bytes: u64) -> Result<(), String> {
        Label::fits(self, device_bytes)
    }

    fn label_offsets(&self) -> [u64; 2] {
        [self.member.layout.label_start, self.member.layout.copy_start]
    }
}

impl Kind for PoolLabel {
    type LabelHeader = PoolHeader;
    const FIELDS: &'static [LabelField] = POOL_FIELDS;

    fn decode(block: &[u8]) -> Result<PoolLabel, LabelError> {
        PoolLabel::decode(block)
    }

    fn header(block: &[u8]) -> Option<PoolHeader> {
        PoolHeader::decode(block)
    }

    fn validate(block: &[u8]) -> Option<Validated<PoolLabel>> {
        pool::every_problem(block)
    }

    fn fits(&self, device_bytes: u64) -> Result<(), String> {
        PoolLabel::fits(self, device_bytes)
    }

    fn label_offsets(&self) -> [u64; 2] {
        [self.layout.label_start, self.layout.copy_start]
    }
}

fn examine_as<L: Kind>(start_block: &[u8], end_block: &[u8], device_bytes: u64) -> Examined<L, L::LabelHeader> {
    let start = report::<L>(start_block, 0);
    let end = report::<L>(end_block, recorded_copy_offset(start_block, device_bytes).unwrap_or(0));
    let differences = differences(&start.fields, &end.fields);
    let mut size_problems = Vec::new();
    for copy in [&start, &end] {
        if let Ok(label) = &copy.label {
            size_problems.extend(size_problem(label, copy.offset, device_bytes));
        }
    }
    size_problems.dedup();
    Examined { device_bytes, start, end, differences, size_problems }
}

/// Returns why a label cannot belong to this offset of a disk of this size; `None` if it can.
fn size_problem<L: Kind>(label: &L, offset: u64, device_bytes: u64) -> Option<String> {
    let misplaced = || {
        let [start, copy] = label.label_offsets();
        format!("a label stands at byte {offset} that belongs at byte {start} or {copy}: it was copied there")
    };
    label.fits(device_bytes).err().or_else(|| (!label.label_offsets().contains(&offset)).then(misplaced))
}

fn report<L: Kind>(block: &[u8], offset: u64) -> CopyReport<L, L::LabelHeader> {
    let label = L::decode(block);
    let whole = block.first_chunk::<LABEL_BYTES>();
    let (Some(whole), Some(validated)) = (whole, L::validate(block)) else {
        let (readable, header, checksum, header_checksum, fields) = (None, None, None, None, Vec::new());
        return CopyReport { offset, label, readable, header, checksum, header_checksum, fields };
    };
    let mut fields: Vec<FieldReport> = L::FIELDS
        .iter()
        .map(|field| {
            let reasons: Vec<&str> =
                validated.problems.iter().filter(|p| p.field == field.name).map(|p| p.reason.as_str()).collect();
            let problem = (!reasons.is_empty()).then(|| reasons.join("; "));
            FieldReport { field, value: value(field, field.of(block)), problem }
        })
        .collect();
    let sum = |name, expected| {
        let field = L::FIELDS.iter().find(|field| field.name == name)?;
        Some(Checksum { expected, found: number(field.of(whole)) as u32 })
    };
    let checksum = sum("crc", crc::label_crc(whole));
    let header_checksum = sum("header_crc", crc::header_crc(whole));
    mark(&mut fields, "crc", checksum);
    mark(&mut fields, "header_crc", header_checksum);
    mark_version(&mut fields, validated.version);
    CopyReport { offset, label, readable: validated.label, header: L::header(block), checksum, header_checksum, fields }
}

fn mark(fields: &mut [FieldReport], name: &str, sum: Option<Checksum>) {
    if let Some(sum) = sum.filter(|sum| !sum.good()) {
        set_problem(fields, name, format!("the bytes make 0x{:08x}", sum.expected));
    }
}

fn mark_version(fields: &mut [FieldReport], version: Result<(), LabelError>) {
    if let Err(error) = version {
        let name = if matches!(error, LabelError::Incompatible { .. }) { "features_incompatible" } else { "version" };
        set_problem(fields, name, error.to_string());
    }
}

fn set_problem(fields: &mut [FieldReport], name: &str, problem: String) {
    if let Some(report) = fields.iter_mut().find(|f| f.field.name == name) {
        report.problem = Some(problem);
    }
}

/// Returns the fields that differ; empty if one of the copies is no label and so has no fields.
fn differences(start: &[FieldReport], end: &[FieldReport]) -> Vec<Difference> {
    let pairs = start.iter().zip(end);
    pairs
        .filter(|(a, b)| a.value != b.value && !a.field.name.ends_with("crc"))
        .map(|(a, b)| Difference { field: a.field.name, start: a.value.clone(), end: b.value.clone() })
        .collect()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Formats a field's bytes for display. A table is shown as the CRC of its bytes, which tells whether two tables
/// differ; its entries are in [`CopyReport::label`].
fn value(field: &LabelField, bytes: &[u8]) -> String {
    match field.kind {
        FieldKind::Text => text(bytes),
        FieldKind::Number => number(bytes).to_string(),
        FieldKind::Bytes => number(bytes).to_string(),
        FieldKind::Time => number(bytes).to_string(),
        FieldKind::Hex => format!("{:#0width$x}", number(bytes), width = 2 + 2 * bytes.len()),
        FieldKind::Uuid => Uuid::from_slice(bytes).map_or_else(|_| "?".into(), |uuid| uuid.to_string()),
        FieldKind::Word(word) => {
            let code = number(bytes) as u8;
            word(code).map_or_else(|| format!("unknown ({code})"), str::to_owned)
        }
        FieldKind::Ids => {
            let ids: Vec<String> =
                bytes.chunks(8).map(number).filter(|id| *id != 0).map(|id| format!("{id:#018x}")).collect();
            if ids.is_empty() { "none".into() } else { ids.join(" ") }
        }
        FieldKind::Sequences => {
            let numbers = bytes.chunks(6).map(|bytes| match number(bytes) {
                Ancestor::NONE_ACCEPTED => "never".to_owned(),
                number => number.to_string(),
            });
            numbers.collect::<Vec<_>>().join(" ")
        }
        FieldKind::Jobs | FieldKind::Table | FieldKind::Reserved => {
            if bytes.iter().all(|b| *b == 0) {
                "empty".into()
            } else {
                format!("{} bytes with CRC {:#010x}", bytes.len(), crc32c::crc32c(bytes))
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    bytes[..end].escape_ascii().to_string()
}

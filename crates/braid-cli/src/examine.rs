//! `braid disk examine`: prints a disk's label field by field, even if it is damaged; needs no daemon.

use std::path::Path;
use std::process::ExitCode;

use braid_api::{ErrorDetail, Kind};
use braid_format::examine::{CopyReport, FieldReport, recorded_copy_offset};
use braid_format::pool::{POOL_MAGIC, PoolHeader, PoolLabel};
use braid_format::{Examined, FieldKind, LABEL_BYTES, Label, LabelError, examine, examine_pool};
use braid_geometry::units::format_size;
use braid_ring::DiskSpec;
use serde_json::{Value, json};

use braid_advice::errors::os_error;
use braid_host::probe::Probe;
use braid_terminal::output;
use braid_terminal::progress::Waiting;

#[derive(clap::Args)]
pub struct ExamineArgs {
    /// The disk: a block device or a file
    disk: String,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command. Exit status 7 if a label is damaged, 3 if there is none, 1 if the disk cannot be read.
pub fn run(args: ExamineArgs) -> anyhow::Result<ExitCode> {
    let spec = DiskSpec::parse(&args.disk)
        .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("disk", &args.disk))?;
    if spec.remote().is_some() {
        return Err(ErrorDetail::new(Kind::Unsupported, format!("{spec} is a disk over the network"))
            .remedy("see its label with `braid array show` of its array")
            .into());
    }
    let path = spec.path().ok_or_else(|| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{spec} keeps nothing, so it has no label"))
            .remedy("name a block device or a file. Example: braid disk examine /dev/sdb")
    })?;
    let waiting = Waiting::for_disk(&args.disk);
    let probe = Probe::open(path).map_err(|error| cannot_read(&error, path))?;
    let found = read_labels(|offset, len| probe.read(offset, len), probe.size_bytes());
    drop(waiting);
    let status = match found.map_err(|error| unreadable(&error, path))? {
        FoundLabels::Array(examined) if !examined.any_label() => return Err(no_label(&probe, path).into()),
        FoundLabels::Array(examined) => show(&args, &examined),
        FoundLabels::Pool(examined) => show(&args, &examined),
    };
    Ok(ExitCode::from(status))
}

fn show<L: LabelView, H>(args: &ExamineArgs, examined: &Examined<L, H>) -> u8 {
    if args.json {
        output::json(&to_json(&args.disk, examined));
    } else {
        output::text(&format!("{} ({})\n{}", args.disk, format_size(examined.device_bytes), render(examined)));
    }
    exit_status(examined)
}

/// The labels of a disk of an array, or of a disk of a pool.
enum FoundLabels {
    Array(Box<Examined>),
    Pool(Box<Examined<PoolLabel, PoolHeader>>),
}

/// Reads both copies of the label. A copy that cannot be read counts as missing if the other copy is a label.
///
/// # Errors
/// No label was found, and not all of both copies could be read: one may exist.
fn read_labels(read: impl Fn(u64, usize) -> std::io::Result<Vec<u8>>, size: u64) -> std::io::Result<FoundLabels> {
    let start = read(0, LABEL_BYTES);
    let first = start.as_deref().unwrap_or_default();
    let end = recorded_copy_offset(first, size).map_or(Ok(Vec::new()), |offset| read(offset, LABEL_BYTES));
    let last = end.as_deref().unwrap_or_default();
    let (array, pool) = (examine(first, last, size), examine_pool(first, last, size));
    // If the remains of both kinds exist, the first block decides.
    let of_pool = pool.any_label() && (first.starts_with(&POOL_MAGIC) || !array.any_label());
    if !pool.any_label() && !array.any_label() {
        start.and(end)?;
    }
    Ok(if of_pool { FoundLabels::Pool(Box::new(pool)) } else { FoundLabels::Array(Box::new(array)) })
}

/// How a label of one kind is shown, besides its fields.
pub(super) trait LabelView {
    /// Returns the member, and the array or pool, that the label belongs to.
    fn title(&self) -> String;
    /// Returns the key that orders the labels of one array or pool, newest last.
    fn order(&self) -> (u64, u64);
    /// Returns the sequence number of the label.
    fn sequence(&self) -> u64;
    /// Returns the tables of the label, for people.
    fn tables(&self) -> String;
    /// Returns the tables of the label, for programs, in the order of [`TABLES`].
    fn tables_json(&self) -> [Value; 3];
}

/// The names of the tables in the JSON document.
const TABLES: [&str; 3] = ["members", "zones", "jobs"];

impl LabelView for Label {
    fn title(&self) -> String {
        let (array, slot) = (&self.array, self.member.slot);
        format!("member {slot} of {} array \"{}\" ({})", array.spec.level, array.name, array.uuid)
    }

    fn order(&self) -> (u64, u64) {
        Label::order(self)
    }

    fn sequence(&self) -> u64 {
        self.array.sequence
    }

    fn tables(&self) -> String {
        format!("{}\n{}{}", members(self), zones(self), jobs(self))
    }

    fn tables_json(&self) -> [Value; 3] {
        [members_json(self), zones_json(self), jobs_json(self)]
    }
}

pub(super) fn cannot_read(error: &std::io::Error, path: &Path) -> ErrorDetail {
    let detail = os_error(error, "the disk cannot be read", path);
    match detail.kind {
        Kind::NotFound => {
            detail.remedy("name a block device or a file; `braid disk list` shows the disks of this machine")
        }
        Kind::PermissionDenied => detail.remedy("run it as root, or as a user who may read the disk"),
        _ => detail,
    }
}

/// Returns the error of a read that failed.
fn unreadable(error: &std::io::Error, path: &Path) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("{} cannot be read: {error}", path.display()))
        .with("path", path.display())
        .remedy("check the disk and the kernel's log (dmesg)")
}

fn no_label(probe: &Probe, path: &Path) -> ErrorDetail {
    let holds = match probe.identify() {
        Ok(Some(found)) => format!("; it holds {found}"),
        Ok(None) => "; it holds no known signature".to_owned(),
        Err(_) => String::new(),
    };
    ErrorDetail::new(Kind::NotFound, format!("{} has no Braid label{holds}", path.display()))
        .with("path", path.display())
}

fn exit_status<L, H>(examined: &Examined<L, H>) -> u8 {
    let newer = |copy: &CopyReport<L, H>| {
        matches!(copy.label, Err(LabelError::NewerVersion { .. } | LabelError::Incompatible { .. }))
    };
    if examined.sound() {
        0
    } else if newer(&examined.start) || newer(&examined.end) {
        Kind::UnknownVersion.exit_status()
    } else {
        Kind::Damaged.exit_status()
    }
}

/// Returns both copies with their names, in the order in which they are shown.
fn copies<L, H>(examined: &Examined<L, H>) -> [(&'static str, &CopyReport<L, H>); 2] {
    [("label", &examined.start), ("copy", &examined.end)]
}

/// Returns the copy whose fields are shown: the newest valid copy, or else a readable one.
fn displayed_copy<L: LabelView, H>(examined: &Examined<L, H>) -> &CopyReport<L, H> {
    let (start, end) = (&examined.start, &examined.end);
    let newer = |a: &L, b: &L| b.order() > a.order();
    match (&start.label, &end.label) {
        (Ok(a), Ok(b)) if newer(a, b) => end,
        (Ok(_), _) => start,
        (_, Ok(_)) => end,
        _ if start.fields.is_empty() => end,
        _ => start,
    }
}

/// Returns the label, for people.
pub(super) fn render<L: LabelView, H>(examined: &Examined<L, H>) -> String {
    let mut text = String::new();
    let this = displayed_copy(examined);
    if let Some(label) = this.label.as_ref().ok().or(this.readable.as_ref()) {
        text.push_str(&format!("{}\n", label.title()));
    }
    for (name, copy) in copies(examined) {
        text.push_str(&format!("{name} at byte {}: {}\n", copy.offset, state(copy)));
    }
    for problem in problems(examined) {
        text.push_str(&format!("! {problem}\n"));
    }
    text.push('\n');
    text.push_str(&fields(this, &examined.differences));
    if let Some(label) = this.label.as_ref().ok().or(this.readable.as_ref()) {
        text.push('\n');
        text.push_str(&label.tables());
    }
    text
}

fn state<L: LabelView, H>(copy: &CopyReport<L, H>) -> String {
    match &copy.label {
        Ok(label) => format!("valid, sequence {}", label.sequence()),
        Err(error @ LabelError::Checksum { .. }) => match copy.header_checksum {
            Some(sum) if sum.good() => format!("{error}; its first sector is valid"),
            _ => format!("{error}; its first sector is damaged, too"),
        },
        Err(error) => error.to_string(),
    }
}

fn problems<L, H>(examined: &Examined<L, H>) -> Vec<String> {
    let mut problems = examined.size_problems.clone();
    for (name, copy) in copies(examined) {
        let bad = copy.fields.iter().filter_map(|f| Some((f.field, f.problem.as_ref()?)));
        problems.extend(
            bad.map(|(field, problem)| format!("{name}: field {} (byte {}): {problem}", field.name, field.offset)),
        );
    }
    let differ = |d: &braid_format::examine::Difference| {
        format!("the copies differ in {}: {} in the label, {} in the copy", d.field, d.start, d.end)
    };
    problems.extend(examined.differences.iter().map(differ));
    problems
}

fn fields<L, H>(copy: &CopyReport<L, H>, differences: &[braid_format::examine::Difference]) -> String {
    let mut text = format!("{:<24}{:>5} {:>5}  {}\n", "FIELD", "BYTE", "SIZE", "VALUE");
    for report in &copy.fields {
        let differs = differences.iter().any(|d| d.field == report.field.name);
        let mark = if report.problem.is_some() || differs { "  !" } else { "" };
        let (field, value) = (report.field, value(report));
        text.push_str(&format!("{:<24}{:>5} {:>5}  {value}{mark}\n", field.name, field.offset, field.size));
    }
    text
}

/// Formats a value with its unit.
fn value(report: &FieldReport) -> String {
    let raw = &report.value;
    match (report.field.kind, raw.parse::<u64>()) {
        (FieldKind::Bytes, Ok(bytes)) if bytes >= 1024 => format!("{raw} ({})", format_size(bytes)),
        // A time after the year 9999 is damage, not a date.
        (FieldKind::Time, Ok(seconds)) if seconds < 253_402_300_800 => {
            format!("{} UTC", output::utc_time(seconds * 1000))
        }
        (FieldKind::Table, _) if raw != "empty" => format!("{raw}; see below"),
        _ => raw.clone(),
    }
}

fn members(label: &Label) -> String {
    let mut text = format!("{:<6}{:<14}{:<12}{}\n", "SLOT", "ID", "STATE", "DATA");
    for (slot, member) in label.array.members.iter().enumerate() {
        let id = member.id.map_or("-".to_owned(), |id| id.to_string());
        let this = if slot == usize::from(label.member.slot) { "  (this disk)" } else { "" };
        let data = format_size(member.data_bytes);
        text.push_str(&format!("{slot:<6}{id:<14}{:<12}{data}{this}\n", member.state));
    }
    text
}

fn zones(label: &Label) -> String {
    let mut text = format!("{:<6}{:<14}{:<14}{}\n", "ZONE", "START", "HEIGHT", "MEMBERS");
    for (number, zone) in label.array.zones.iter().enumerate() {
        let slots: Vec<String> = zone.slots().map(|slot| slot.to_string()).collect();
        let (from, height) = (format_size(zone.start_bytes), format_size(zone.height_bytes));
        text.push_str(&format!("{number:<6}{from:<14}{height:<14}{}\n", slots.join(" ")));
    }
    text
}

fn jobs(label: &Label) -> String {
    let line = |job: &braid_format::Job| {
        let member = |slot: Option<u16>| slot.map_or("-".to_owned(), |slot| slot.to_string());
        format!(
            "job {}: {}, {}, on member {}, from member {}, at {} of {}\n",
            job.number,
            job.kind,
            job.state,
            member(job.target),
            member(job.source),
            format_size(job.position_bytes),
            format_size(job.end_bytes)
        )
    };
    let lines: String = label.array.jobs.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

fn jobs_json(label: &Label) -> Value {
    let job = |job: &braid_format::Job| {
        json!({
            "number": job.number,
            "kind": job.kind.to_string(),
            "state": job.state.to_string(),
            "target": job.target,
            "source": job.source,
            "position_bytes": job.position_bytes,
            "end_bytes": job.end_bytes,
            "rate_bytes_per_s": job.rate_bytes_per_s,
        })
    };
    label.array.jobs.iter().map(job).collect()
}

/// Returns the label, for programs.
pub(super) fn to_json<L: LabelView, H>(disk: &str, examined: &Examined<L, H>) -> Value {
    let copies: Vec<Value> = copies(examined).into_iter().map(|(name, copy)| copy_json(name, copy)).collect();
    let differences: Vec<Value> =
        examined.differences.iter().map(|d| json!({ "field": d.field, "label": d.start, "copy": d.end })).collect();
    json!({
        "disk": disk,
        "size_bytes": examined.device_bytes,
        "sound": examined.sound(),
        "problems": problems(examined),
        "differences": differences,
        "copies": copies,
    })
}

fn copy_json<L: LabelView, H>(name: &str, copy: &CopyReport<L, H>) -> Value {
    let sum = |sum: Option<braid_format::examine::Checksum>| match sum {
        Some(sum) => json!({
            "expected": format!("{:08x}", sum.expected),
            "found": format!("{:08x}", sum.found),
            "good": sum.good(),
        }),
        None => Value::Null,
    };
    let fields: serde_json::Map<String, Value> = copy
        .fields
        .iter()
        .map(|f| {
            let (field, value) = (f.field, json_value(f));
            let entry = json!({ "offset": field.offset, "size": field.size, "value": value, "problem": f.problem });
            (field.name.to_owned(), entry)
        })
        .collect();
    let label = copy.label.as_ref().ok().or(copy.readable.as_ref());
    let tables = label.map_or([Value::Null, Value::Null, Value::Null], LabelView::tables_json);
    let mut json = json!({
        "place": name,
        "offset_bytes": copy.offset,
        "present": copy.is_label(),
        "whole": copy.label.is_ok(),
        "error": copy.label.as_ref().err().map(ToString::to_string),
        "checksum": sum(copy.checksum),
        "header_checksum": sum(copy.header_checksum),
        "fields": fields,
    });
    for (name, table) in TABLES.into_iter().zip(tables) {
        json[name] = table;
    }
    json
}

/// Returns a number as a number, everything else as text.
fn json_value(report: &FieldReport) -> Value {
    let number = matches!(report.field.kind, FieldKind::Number | FieldKind::Bytes | FieldKind::Time);
    match report.value.parse::<u64>() {
        Ok(value) if number => json!(value),
        _ => json!(report.value),
    }
}

fn members_json(label: &Label) -> Value {
    let member = |(slot, m): (usize, &braid_format::MemberEntry)| {
        json!({
            "slot": slot,
            "id": m.id.map(|id| id.to_string()),
            "state": m.state.to_string(),
            "data_bytes": m.data_bytes,
            "write_mostly": m.write_mostly,
        })
    };
    label.array.members.iter().enumerate().map(member).collect()
}

fn zones_json(label: &Label) -> Value {
    let zone = |z: &braid_format::ZoneSpan| {
        json!({
            "member_start_bytes": z.start_bytes,
            "member_bytes": z.height_bytes,
            "members": z.slots().collect::<Vec<u16>>(),
        })
    };
    label.array.zones.iter().map(zone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The golden label of a raid0 over disks of 50, 100 and 100 GiB.
    const LABEL: &[u8; 4096] = include_bytes!("../../../tests/golden/labels/raid0_50_100_100_member1.bin");
    const SIZE: u64 = 100 << 30;

    #[test]
    fn a_valid_label_is_shown_in_full() {
        let examined = examine(LABEL, LABEL, SIZE);
        let text = render(&examined);
        assert!(
            text.starts_with("member 1 of raid0 array \"fast\" (62726169-642d-7465-7374-2d6172726179)\n"),
            "{text}"
        );
        assert!(text.contains("label at byte 0: valid, sequence 7\n"), "{text}");
        assert!(text.contains("array_bytes               152     8  268384927744 (249.95 GiB)\n"), "{text}");
        assert!(text.contains("created_unix_s            160     8  2023-11-14 22:13:20 UTC\n"), "{text}");
        assert!(text.contains("1     000000001001  in sync     99.98 GiB  (this disk)\n"), "{text}");
        assert!(text.contains("1     49.98 GiB     50.00 GiB     1 2\n"), "{text}");
        assert!(!text.contains('!'), "{text}");
        assert_eq!(exit_status(&examined), 0);
        let json = to_json("x", &examined);
        assert_eq!(json["sound"], true);
        assert_eq!(json["copies"][1]["fields"]["name"]["value"], "fast");
        assert_eq!(json["copies"][0]["fields"]["sequence"]["value"], 7);
        assert_eq!(json["copies"][0]["zones"][1]["members"], json!([1, 2]));
    }

    #[test]
    fn damage_is_reported_with_copy_and_field() {
        let mut bad = *LABEL;
        bad[129] = 77;
        let examined = examine(&bad, LABEL, SIZE);
        let text = render(&examined);
        assert!(text.contains("label at byte 0: the label is damaged"), "{text}");
        assert!(text.contains("its first sector is damaged, too"), "{text}");
        assert!(text.contains("! label: field level (byte 129): code 77 is unknown\n"), "{text}");
        assert!(
            text.contains("! the copies differ in level: unknown (77) in the label, raid0 in the copy\n"),
            "{text}"
        );
        assert!(text.contains("copy at byte 107374178304: valid"), "{text}");
        assert_eq!(exit_status(&examined), 7);
        let json = to_json("x", &examined);
        assert_eq!((&json["copies"][0]["whole"], &json["copies"][1]["whole"]), (&json!(false), &json!(true)));
        assert_eq!(json["copies"][0]["checksum"]["good"], false);
        assert_eq!(json["differences"][0]["field"], "level");
    }

    #[test]
    fn jobs_are_shown_if_there_are_any() {
        let label = include_bytes!("../../../tests/golden/labels/raid10_everything_member3.bin");
        let examined = examine(label, label, 4 << 30);
        let text = render(&examined);
        assert!(
            text.contains("job 77: rebuild, running, on member 1, from member 3, at 1.00 GiB of 3.00 GiB\n"),
            "{text}"
        );
        assert!(text.contains("1     000000001001  rebuilding  "), "{text}");
        assert_eq!(to_json("x", &examined)["copies"][0]["jobs"][1]["kind"], "check");
    }

    #[test]
    fn a_missing_copy_and_a_disk_that_shrank_are_damage() {
        let gone = examine(LABEL, &[0; 4096], SIZE);
        assert!(render(&gone).contains("copy at byte 107374178304: there is no Braid label here\n"));
        assert_eq!(exit_status(&gone), 7);
        let shrunk = examine(LABEL, &[], 50 << 30);
        assert!(render(&shrunk).contains("! the disk has 53687091200 bytes"), "{}", render(&shrunk));
        assert_eq!(exit_status(&shrunk), 7);
    }

    #[test]
    fn a_member_of_a_pool_is_shown_in_full() {
        let label = include_bytes!("../../../tests/golden/pools/label_member2.bin");
        let examined = examine_pool(label, label, SIZE);
        let text = render(&examined);
        assert!(text.starts_with("member 2 of pool \"tank\" (62726169-642d-7465-7374-2d706f6f6c21)\n"), "{text}");
        assert!(text.contains("label at byte 0: valid, sequence 7\n"), "{text}");
        assert!(text.contains("ring_bytes                224     8  67108864 (64.00 MiB)\n"), "{text}");
        assert!(text.contains("0      00000000-0000-0000-0000-00000000000b  missing, accepted 50.00 GiB\n"), "{text}");
        assert!(
            text.contains("2      00000000-0000-0000-0000-00000000000d  being removed     100.00 GiB  (this disk)\n"),
            "{text}"
        );
        assert!(!text.contains('!'), "{text}");
        assert_eq!(exit_status(&examined), 0);
        let json = to_json("x", &examined);
        assert_eq!((&json["sound"], &json["copies"][1]["zones"]), (&json!(true), &Value::Null));
        assert_eq!(json["copies"][0]["members"][1]["number"], 2);
        assert_eq!(json["copies"][0]["fields"]["extents"]["value"], 408_444);
        let mut torn = *label;
        torn[512..].fill(0);
        let torn = examine_pool(&torn, label, SIZE);
        assert!(render(&torn).contains("its first sector is valid\n"), "{}", render(&torn));
        assert_eq!(exit_status(&torn), 7);
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_not_one_without_a_label() {
        let end = SIZE - 4096;
        let examine_with = |unreadable: &[u64], image: &[u8; 4096]| {
            let read = |offset: u64, len: usize| {
                assert!((offset == 0 || offset == end) && len == LABEL_BYTES, "only the labels are read");
                let failed = || std::io::Error::from_raw_os_error(5);
                if unreadable.contains(&offset) { Err(failed()) } else { Ok(image.to_vec()) }
            };
            match read_labels(read, SIZE) {
                Ok(FoundLabels::Array(examined)) => Ok((examined.any_label(), exit_status(&examined))),
                Ok(FoundLabels::Pool(_)) => panic!("it is no disk of a pool"),
                Err(error) => Err(error.raw_os_error()),
            }
        };
        let empty = [0; 4096];
        for unreadable in [&[0][..], &[end], &[0, end]] {
            assert_eq!(examine_with(unreadable, &empty), Err(Some(5)), "a label may be there");
        }
        assert_eq!(examine_with(&[], &empty), Ok((false, 7)));
        assert_eq!(examine_with(&[], LABEL), Ok((true, 0)));
        for one in [0, end] {
            assert_eq!(examine_with(&[one], LABEL), Ok((true, 7)));
        }
        assert_eq!(examine_with(&[0, end], LABEL), Err(Some(5)));
        let error = unreadable(&std::io::Error::from_raw_os_error(5), Path::new("/dev/x"));
        assert!(error.message.contains("/dev/x cannot be read") && error.kind.exit_status() == 1, "{error}");
    }
}

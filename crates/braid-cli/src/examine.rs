//! `braid disk examine`: a disk's label field by field, without a daemon, also when it is damaged.

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

#[derive(clap::Args)]
pub struct ExamineArgs {
    /// The disk: a block device or a file
    disk: String,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command. Exit status 7 where a label is damaged, 3 where there is none, 1 where that cannot be read.
pub fn run(args: ExamineArgs) -> anyhow::Result<ExitCode> {
    let spec = DiskSpec::parse(&args.disk)
        .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("disk", &args.disk))?;
    if spec.remote().is_some() {
        return Err(ErrorDetail::new(Kind::Unsupported, format!("{spec} is on the other side of a network"))
            .remedy("what its label says is in `braid array show` of its array")
            .into());
    }
    let path = spec.path().ok_or_else(|| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{spec} keeps nothing, so it has no label"))
            .remedy("name a block device or a file, for example: braid disk examine /dev/sdb")
    })?;
    let probe = Probe::open(path).map_err(|error| cannot_read(&error, path))?;
    let looked = look(|offset, len| probe.read(offset, len), probe.size_bytes());
    let status = match looked.map_err(|error| unreadable(&error, path))? {
        Looked::Array(examined) if !examined.any_label() => return Err(no_label(&probe, path).into()),
        Looked::Array(examined) => show(&args, &examined),
        Looked::Pool(examined) => show(&args, &examined),
    };
    Ok(ExitCode::from(status))
}

fn show<L: Shown, H>(args: &ExamineArgs, examined: &Examined<L, H>) -> u8 {
    if args.json {
        output::json(&to_json(&args.disk, examined));
    } else {
        output::text(&format!("{} ({})\n{}", args.disk, format_size(examined.device_bytes), render(examined)));
    }
    exit_status(examined)
}

/// A disk of an array, or one of a pool.
enum Looked {
    Array(Box<Examined>),
    Pool(Box<Examined<PoolLabel, PoolHeader>>),
}

/// Reads both copies. One that cannot be read counts as absent where the other one is a label.
///
/// # Errors
/// No label was found, and not all could be read: one may be there.
fn look(read: impl Fn(u64, usize) -> std::io::Result<Vec<u8>>, size: u64) -> std::io::Result<Looked> {
    let start = read(0, LABEL_BYTES);
    let first = start.as_deref().unwrap_or_default();
    let end = recorded_copy_offset(first, size).map_or(Ok(Vec::new()), |place| read(place, LABEL_BYTES));
    let last = end.as_deref().unwrap_or_default();
    let (array, pool) = (examine(first, last, size), examine_pool(first, last, size));
    // Where both have left something, the first block decides.
    let of_pool = pool.any_label() && (first.starts_with(&POOL_MAGIC) || !array.any_label());
    if !pool.any_label() && !array.any_label() {
        start.and(end)?;
    }
    Ok(if of_pool { Looked::Pool(Box::new(pool)) } else { Looked::Array(Box::new(array)) })
}

/// What is shown of a label of one kind beside its fields.
pub(super) trait Shown {
    /// Whose label it is.
    fn title(&self) -> String;
    /// By this the labels of one array or pool are ordered.
    fn order(&self) -> (u64, u64);
    fn sequence(&self) -> u64;
    /// Its tables, for people.
    fn tables(&self) -> String;
    /// Its tables, for programs, each with its name.
    fn tables_json(&self) -> [Value; 3];
}

/// The names of the tables.
const TABLES: [&str; 3] = ["members", "zones", "jobs"];

impl Shown for Label {
    fn title(&self) -> String {
        let (array, role) = (&self.array, self.member.slot);
        format!("member {role} of {} array \"{}\" ({})", array.spec.level, array.name, array.uuid)
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
        Kind::PermissionDenied => detail.remedy("ask as root, or as a user who may read it"),
        _ => detail,
    }
}

/// What the operating system says of a read.
fn unreadable(error: &std::io::Error, path: &Path) -> ErrorDetail {
    ErrorDetail::new(Kind::DiskError, format!("{} cannot be read: {error}", path.display()))
        .with("path", path.display())
        .remedy("look at that disk and at the kernel's log (dmesg)")
}

fn no_label(probe: &Probe, path: &Path) -> ErrorDetail {
    let holds = match probe.identify() {
        Ok(Some(found)) => format!("; it holds {found}"),
        Ok(None) => "; nothing known is on it".to_owned(),
        Err(_) => String::new(),
    };
    ErrorDetail::new(Kind::NotFound, format!("{} bears no Braid label{holds}", path.display()))
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

/// The copies in the order in which they are shown, with their names.
fn copies<L, H>(examined: &Examined<L, H>) -> [(&'static str, &CopyReport<L, H>); 2] {
    [("label", &examined.start), ("copy", &examined.end)]
}

/// The copy whose fields are shown: the newest whole one, else whichever can be read.
fn shown<L: Shown, H>(examined: &Examined<L, H>) -> &CopyReport<L, H> {
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

/// The label for people.
pub(super) fn render<L: Shown, H>(examined: &Examined<L, H>) -> String {
    let mut text = String::new();
    let this = shown(examined);
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

fn state<L: Shown, H>(copy: &CopyReport<L, H>) -> String {
    match &copy.label {
        Ok(label) => format!("whole, sequence {}", label.sequence()),
        Err(error @ LabelError::Checksum { .. }) => match copy.header_checksum {
            Some(sum) if sum.good() => format!("{error}; its first sector is whole"),
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

/// A value with its unit.
fn value(report: &FieldReport) -> String {
    let raw = &report.value;
    match (report.field.kind, raw.parse::<u64>()) {
        (FieldKind::Bytes, Ok(bytes)) if bytes >= 1024 => format!("{raw} ({})", format_size(bytes)),
        // A moment beyond the year 9999 is damage, not a date.
        (FieldKind::Time, Ok(seconds)) if seconds < 253_402_300_800 => {
            format!("{} UTC", output::moment(seconds * 1000))
        }
        (FieldKind::Table, _) if raw != "empty" => format!("{raw}; see below"),
        _ => raw.clone(),
    }
}

fn members(label: &Label) -> String {
    let mut text = format!("{:<6}{:<14}{:<10}{}\n", "ROLE", "ID", "STATE", "DATA");
    for (role, member) in label.array.members.iter().enumerate() {
        let id = member.id.map_or("-".to_owned(), |id| id.to_string());
        let this = if role == usize::from(label.member.slot) { "  (this disk)" } else { "" };
        let data = format_size(member.data_bytes);
        text.push_str(&format!("{role:<6}{id:<14}{:<10}{data}{this}\n", member.state));
    }
    text
}

fn zones(label: &Label) -> String {
    let mut text = format!("{:<6}{:<14}{:<14}{}\n", "ZONE", "FROM", "OF EACH", "MEMBERS");
    for (number, zone) in label.array.zones.iter().enumerate() {
        let roles: Vec<String> = zone.slots().map(|role| role.to_string()).collect();
        let (from, height) = (format_size(zone.start_bytes), format_size(zone.height_bytes));
        text.push_str(&format!("{number:<6}{from:<14}{height:<14}{}\n", roles.join(" ")));
    }
    text
}

fn jobs(label: &Label) -> String {
    let line = |job: &braid_format::Job| {
        let member = |role: Option<u16>| role.map_or("-".to_owned(), |role| role.to_string());
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

/// The label for programs.
pub(super) fn to_json<L: Shown, H>(disk: &str, examined: &Examined<L, H>) -> Value {
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

fn copy_json<L: Shown, H>(name: &str, copy: &CopyReport<L, H>) -> Value {
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
    let tables = label.map_or([Value::Null, Value::Null, Value::Null], Shown::tables_json);
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

/// Numbers as numbers, everything else as text.
fn json_value(report: &FieldReport) -> Value {
    let number = matches!(report.field.kind, FieldKind::Number | FieldKind::Bytes | FieldKind::Time);
    match report.value.parse::<u64>() {
        Ok(value) if number => json!(value),
        _ => json!(report.value),
    }
}

fn members_json(label: &Label) -> Value {
    let member = |(role, m): (usize, &braid_format::MemberEntry)| {
        json!({
            "role": role,
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

    /// The label of the array, kept as a file.
    const LABEL: &[u8; 4096] = include_bytes!("../../../tests/golden/labels/raid0_50_100_100_member1.bin");
    const SIZE: u64 = 100 << 30;

    #[test]
    fn a_whole_label_is_shown_in_full() {
        let examined = examine(LABEL, LABEL, SIZE);
        let text = render(&examined);
        assert!(
            text.starts_with("member 1 of raid0 array \"fast\" (62726169-642d-7465-7374-2d6172726179)\n"),
            "{text}"
        );
        assert!(text.contains("label at byte 0: whole, sequence 7\n"), "{text}");
        assert!(text.contains("array_bytes               152     8  268384927744 (249.95 GiB)\n"), "{text}");
        assert!(text.contains("created_unix_s            160     8  2023-11-14 22:13:20 UTC\n"), "{text}");
        assert!(text.contains("1     000000001001  in sync   99.98 GiB  (this disk)\n"), "{text}");
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
    fn damage_is_said_with_copy_and_field() {
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
        assert!(text.contains("copy at byte 107374178304: whole"), "{text}");
        assert_eq!(exit_status(&examined), 7);
        let json = to_json("x", &examined);
        assert_eq!((&json["copies"][0]["whole"], &json["copies"][1]["whole"]), (&json!(false), &json!(true)));
        assert_eq!(json["copies"][0]["checksum"]["good"], false);
        assert_eq!(json["differences"][0]["field"], "level");
    }

    #[test]
    fn jobs_are_shown_where_there_are_some() {
        let label = include_bytes!("../../../tests/golden/labels/raid10_everything_member3.bin");
        let examined = examine(label, label, 4 << 30);
        let text = render(&examined);
        assert!(
            text.contains("job 77: rebuild, running, on member 1, from member 3, at 1.00 GiB of 3.00 GiB\n"),
            "{text}"
        );
        assert!(text.contains("1     000000001001  filling   "), "{text}");
        assert_eq!(to_json("x", &examined)["copies"][0]["jobs"][1]["kind"], "check");
    }

    #[test]
    fn a_copy_that_is_gone_and_a_disk_that_shrank_are_damage() {
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
        assert!(text.contains("label at byte 0: whole, sequence 7\n"), "{text}");
        assert!(text.contains("ring_bytes                224     8  67108864 (64.00 MiB)\n"), "{text}");
        assert!(text.contains("0      00000000-0000-0000-0000-00000000000b  absent, accepted  50.00 GiB\n"), "{text}");
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
        assert!(render(&torn).contains("its first sector is whole\n"), "{}", render(&torn));
        assert_eq!(exit_status(&torn), 7);
    }

    #[test]
    fn what_cannot_be_read_is_not_a_disk_without_a_label() {
        let end = SIZE - 4096;
        let looked = |unreadable: &[u64], image: &[u8; 4096]| {
            let read = |offset: u64, len: usize| {
                assert!((offset == 0 || offset == end) && len == LABEL_BYTES, "only the labels are read");
                let failed = || std::io::Error::from_raw_os_error(5);
                if unreadable.contains(&offset) { Err(failed()) } else { Ok(image.to_vec()) }
            };
            match look(read, SIZE) {
                Ok(Looked::Array(examined)) => Ok((examined.any_label(), exit_status(&examined))),
                Ok(Looked::Pool(_)) => panic!("it is of no pool"),
                Err(error) => Err(error.raw_os_error()),
            }
        };
        let empty = [0; 4096];
        for unreadable in [&[0][..], &[end], &[0, end]] {
            assert_eq!(looked(unreadable, &empty), Err(Some(5)), "a label may be there");
        }
        assert_eq!(looked(&[], &empty), Ok((false, 7)));
        assert_eq!(looked(&[], LABEL), Ok((true, 0)));
        for one in [0, end] {
            assert_eq!(looked(&[one], LABEL), Ok((true, 7)));
        }
        assert_eq!(looked(&[0, end], LABEL), Err(Some(5)));
        let said = unreadable(&std::io::Error::from_raw_os_error(5), Path::new("/dev/x"));
        assert!(said.message.contains("/dev/x cannot be read") && said.kind.exit_status() == 1, "{said}");
    }
}

//! `braid array …`.

use super::confirm::{YesArgs, confirm};
use super::disk_names::absolute_for;
use super::import_md::{ImportMdArgs, import_md};
use super::object_names::{name, name_or_uuid};
use super::redundant::{self, AddArgs, CheckArgs, JournalArgs, MemberArgs, RemoveArgs, ReplaceArgs, SpareArgs};
use super::{ApiArgs, ApiListArgs, color, output, replicated};
use braid_api::{
    Array, ArrayList, ArrayState, Assemble, Assembled, CheckArray, CreateArray, ErrorDetail, GrowArray, Growth, Kind,
    Member, MemberState, RenameArray, StopArray, Zone,
};
use braid_geometry::Level;
use braid_geometry::units::{format_size, parse_size};
use braid_terminal::levels;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// Create an array of disks
    Create(CreateArgs),
    /// List the arrays
    List(ApiListArgs),
    /// Show everything about an array
    Show(NameArgs),
    /// Rename an array
    Rename(RenameArgs),
    /// Stop an array and release its disks
    Stop(StopArgs),
    /// Search for members, and start the arrays that are complete
    Assemble(AssembleArgs),
    /// Describe an array of Linux md, or serve it read-only with --name; never writes to its disks
    ImportMd(ImportMdArgs),
    /// Mark a member of a redundant array as failed
    Fail(MemberArgs),
    /// Remove a failed or missing member, or a spare; with --copy also its slot, which leaves a mirror with one copy less
    Remove(RemoveArgs),
    /// Add a disk to a redundant array: a former member returns, any other disk fills a vacant slot, becomes a spare, or one more copy
    Add(AddArgs),
    /// Replace a member of a redundant array by a disk; the member serves until the disk holds a full copy
    Replace(ReplaceArgs),
    /// Add a spare to a redundant array, or remove one
    Spare(SpareArgs),
    /// Move the journal of a raid5 or raid6 to a fast disk, or back to the members, while the array serves
    Journal(JournalArgs),
    /// Grow an array onto space that its disks have gained, and onto new disks; existing stripes keep their width
    Grow(GrowArgs),
    /// Scrub a redundant array: compare all copies of written data, or stripes with their parity; exit status 7 if some differ, 5 if some could not be compared
    Check(CheckArgs),
    /// Scrub a redundant array and repair what differs, by the majority of copies or by the parities (`docs/operating/array-maintenance.md`)
    Repair(RepairArgs),
    /// Delete an array: erase its labels; its content is lost
    Delete(DeleteArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Name of the new array
    #[arg(value_parser = name)]
    name: String,
    /// How the disks are combined: concatenated, striped, mirrored, striped over mirrors, with one parity, with two; also as a
    /// number, or as raid-5, stripe, mirror
    #[arg(long, ignore_case = true, value_parser = levels::parser(&Level::ALL))]
    level: Level,
    /// Copies of every byte at raid10 [default: 2]
    #[arg(long, value_name = "N")]
    copies: Option<u16>,
    /// A spare: a disk that replaces a failed member of a redundant array (may be repeated)
    #[arg(long = "spare", value_name = "DISK")]
    spares: Vec<String>,
    /// A fast disk that holds the journal of a raid5 or raid6 instead of the members. The array survives its loss; if it is lost in a
    /// crash, parity is recomputed
    #[arg(long, value_name = "DISK")]
    journal: Option<String>,
    /// A disk of a raid1 or raid10 that is read only if no other copy can be read (may be repeated)
    #[arg(long, value_name = "DISK")]
    write_mostly: Vec<String>,
    /// Whether the array starts automatically without missing members that may hold newer data [default: wait]
    #[arg(long, value_parser = ["auto", "wait"])]
    start_degraded: Option<String>,
    /// Contiguous bytes on one disk before the next disk
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = chunk)]
    chunk: u64,
    /// Use disks that hold data, and destroy it
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// The disks: /dev/sdb, ./a.img, tank/db (a volume), file:a.img,size=50G, nbd://HOST/EXPORT, mem:1G, null:1T, throttled(DISK,…), faulty(DISK,…)
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct NameArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// The new name of the array
    #[arg(value_parser = name)]
    new_name: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct StopArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    #[command(flatten)]
    _yes: YesArgs,
    /// Stop it although it is exported; its clients are disconnected, and its exports wait
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct AssembleArgs {
    /// Only this array, by name or UUID; a stopped array is started only if it is named
    #[arg(value_parser = name_or_uuid)]
    array: Option<String>,
    /// A disk to search besides the known disks and the block devices of the machine (may be repeated)
    #[arg(long = "disk", value_name = "DISK")]
    disks: Vec<String>,
    /// Use stale members as they are; data written while they were missing may be lost. A redundant array drops them instead
    #[arg(long, requires = "array")]
    force: bool,
    /// Start a redundant array without missing members that may hold newer data; what was written only to those is lost
    #[arg(long, requires = "array")]
    degraded: bool,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct GrowArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// Disks that become new members: at redundant levels as many as a zone needs (raid1 and raid5 2, raid6 3, raid10 the number of
    /// copies); without any, only space that the present disks have gained is added
    #[arg(value_name = "DISK")]
    disks: Vec<String>,
    /// Change nothing, and show the result
    #[arg(long)]
    dry_run: bool,
    /// Destroy the content of the new disks; accept new space with fewer copies than the rest
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RepairArgs {
    /// With parity: trust the data and recompute the parities from it; for use after a start without the journal
    #[arg(long)]
    from_data: bool,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    what: CheckArgs,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// Delete it although it is exported; its exports are removed
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

fn chunk(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Create(args) => create(args).await,
        Verb::List(api) => list(api).await,
        Verb::Show(args) => {
            let array: Array = args.api.client()?.get(&format!("/v1/arrays/{}", args.array)).await?;
            output::show(args.api.json, &array, show);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Rename(args) => {
            let body = RenameArray { name: args.new_name };
            let array: Array = args.api.client()?.post(&format!("/v1/arrays/{}/rename", args.array), &body).await?;
            output::show(args.api.json, &array, |array| {
                format!("renamed array {} to {}; the names of its exports are unchanged\n", args.array, array.name)
            });
            Ok(ExitCode::SUCCESS)
        }
        Verb::Stop(args) => {
            let body = StopArray { force: args.force };
            let array: Array = args.api.client()?.post(&format!("/v1/arrays/{}/stop", args.array), &body).await?;
            output::show(args.api.json, &array, |array| {
                if array.persistent {
                    format!("stopped array {0}; start it again with: braid array assemble {0}\n", array.name)
                } else {
                    format!("stopped and removed array {}: memory and null disks are not persistent\n", array.name)
                }
            });
            Ok(ExitCode::SUCCESS)
        }
        Verb::Assemble(args) => assemble(args).await,
        Verb::ImportMd(args) => import_md(args).await,
        Verb::Fail(args) => redundant::fail(args).await,
        Verb::Remove(args) => redundant::remove(args).await,
        Verb::Add(args) => redundant::add(args).await,
        Verb::Replace(args) => redundant::replace(args).await,
        Verb::Spare(args) => redundant::spare(args).await,
        Verb::Journal(args) => redundant::journal(args).await,
        Verb::Grow(args) => grow(args).await,
        Verb::Check(args) => redundant::check(args, CheckArray::default()).await,
        Verb::Repair(RepairArgs { from_data, what, .. }) => {
            redundant::check(what, CheckArray { repair: true, from_data }).await
        }
        Verb::Delete(args) => delete(args).await,
    }
}

async fn grow(args: GrowArgs) -> anyhow::Result<ExitCode> {
    let absolute = |disk: &String| Ok(absolute_for(&args.api.endpoint, disk)?.to_string());
    let disks = args.disks.iter().map(absolute).collect::<anyhow::Result<Vec<String>>>()?;
    let GrowArgs { force, yes, .. } = args;
    if force && !args.dry_run && !disks.is_empty() && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        confirm(&format!("All data on {} will be lost", args.disks.join(", ")), yes)?;
    }
    let body = GrowArray { disks, force, dry_run: args.dry_run };
    let growth: Growth = args.api.client()?.post(&format!("/v1/arrays/{}/grow", args.array), &body).await?;
    output::show(args.api.json, &growth, growth_text);
    Ok(ExitCode::SUCCESS)
}

fn growth_text(growth: &Growth) -> String {
    let verb = if growth.dry_run { "would grow" } else { "has grown" };
    let mut text = format!(
        "array {} {verb} from {} to {} ({} bytes)\n",
        growth.array,
        format_size(growth.before_bytes),
        format_size(growth.size_bytes),
        growth.size_bytes
    );
    text.push_str(&zones(&growth.zones));
    if let Some(advice) = &growth.advice {
        let _ = writeln!(text, "{advice}");
    }
    if !growth.dry_run {
        text.push_str("connected clients of its exports see the new size when they reconnect\n");
    }
    text
}

async fn create(args: CreateArgs) -> anyhow::Result<ExitCode> {
    let absolute_names = |disks: &[String]| {
        let absolute = |disk: &String| Ok(absolute_for(&args.api.endpoint, disk)?.to_string());
        disks.iter().map(absolute).collect::<anyhow::Result<Vec<String>>>()
    };
    let (disks, spares, write_mostly) =
        (absolute_names(&args.disks)?, absolute_names(&args.spares)?, absolute_names(&args.write_mostly)?);
    let journal = args.journal.as_ref().map(|disk| absolute_for(&args.api.endpoint, disk)).transpose()?;
    if args.force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let all: Vec<&str> = args.disks.iter().chain(&args.spares).chain(&args.journal).map(String::as_str).collect();
        confirm(&format!("All data on {} will be lost", all.join(", ")), args.yes)?;
    }
    let body = CreateArray {
        name: args.name,
        level: args.level.name().to_owned(),
        copies: args.copies,
        chunk_bytes: Some(args.chunk),
        disks,
        spares,
        journal: journal.map(|disk| disk.to_string()),
        write_mostly,
        start_degraded: args.start_degraded,
        force: args.force,
    };
    let array: Array = args.api.client()?.post("/v1/arrays", &body).await?;
    output::show(args.api.json, &array, |array| {
        let mut text = format!(
            "created array {} ({}, {} on {} disk{})\n",
            array.name,
            format_size(array.size_bytes),
            array.level,
            array.members.len(),
            if array.members.len() == 1 { "" } else { "s" }
        );
        if !array.persistent {
            text.push_str("it is lost when the daemon ends: memory and null disks are not persistent\n");
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "export it with: braid export add {} --nbd unix:/path/of/a.sock", array.name);
        text
    });
    Ok(ExitCode::SUCCESS)
}

async fn list(api: ApiListArgs) -> anyhow::Result<ExitCode> {
    let list: ArrayList = api.client()?.get("/v1/arrays").await?;
    let names = list.arrays.iter().map(|array| array.name.as_str());
    api.print(&list, names, &list.incomplete, |style| table(&list, style));
    Ok(ExitCode::SUCCESS)
}

fn table(list: &ArrayList, style: ListStyle) -> String {
    if list.arrays.is_empty() {
        return output::empty_list("arrays", &list.incomplete, "braid array create NAME --level raid0 DISK…");
    }
    let columns = ["NAME", "LEVEL", "SIZE", "CHUNK", "STATE", "HEALTH", "MEMBERS", "EXPORTS"];
    let mut table = style.table(columns, ["LAYOUT", "UUID"]);
    for array in &list.arrays {
        table.row(
            [
                output::cell(&array.name, 24),
                array.level.clone(),
                format_size(array.size_bytes),
                format_size(array.chunk_bytes),
                state(array),
                health(array).unwrap_or("-").to_owned(),
                member_counts(array),
                array.exports.len().to_string(),
            ],
            [array.layout.clone(), array.uuid.clone()],
        );
    }
    table.align_right([2, 3, 7]);
    table.states([4, 5]);
    table.render()
}

/// Returns the number of members in sync, of how many, and the number of spares.
fn member_counts(array: &Array) -> String {
    let present = array.members.iter().filter(|m| m.state == MemberState::InSync).count();
    let spares = array.members.iter().filter(|m| m.state == MemberState::Spare).count();
    let all = array.members.iter().filter(|member| !is_journal(array, member)).count() - spares;
    let mut members = if present == all { present.to_string() } else { format!("{present} of {all}") };
    if spares > 0 {
        members.push_str(&format!(" + {spares}"));
    }
    members
}

/// Whether the member holds the journal and no data.
fn is_journal(array: &Array, member: &Member) -> bool {
    let journal = array.redundancy.as_ref().and_then(|redundancy| redundancy.journal.as_ref()?.member);
    member.state == MemberState::Journal || journal == Some(member.slot)
}

/// Returns the health of a redundant array in the word of the API; `None` for other arrays.
fn health(array: &Array) -> Option<&'static str> {
    array.redundancy.as_ref().map(|redundancy| redundancy.health.word())
}

fn state(array: &Array) -> String {
    let word = array.state.word();
    if array.state == ArrayState::Active && !array.attention.is_empty() { format!("{word}!") } else { word.to_owned() }
}

/// Returns everything about an array, for people.
pub fn show(array: &Array) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<12}{value}");
    };
    line("array", array.name.clone());
    line("uuid", array.uuid.clone());
    line("level", format!("{} ({})", array.level, array.layout));
    line("size", format!("{} ({} bytes)", format_size(array.size_bytes), output::thousands(array.size_bytes)));
    line("chunk", format_size(array.chunk_bytes));
    if array.logical_block_bytes > 0 {
        line("block", format!("{} bytes", array.logical_block_bytes));
    }
    line("state", color::state(array.state.word()));
    if let Some(health) = health(array) {
        line("health", color::state(health));
    }
    if let Some(redundancy) = &array.redundancy {
        redundant::show(array, redundancy, &mut line);
    }
    if array.read_only {
        line("access", "read-only: an array of Linux md".to_owned());
    }
    if !array.persistent {
        line("persistent", "no: memory and null disks are not persistent".to_owned());
    }
    line("exports", if array.exports.is_empty() { "none".to_owned() } else { array.exports.join(", ") });
    for sentence in &array.attention {
        line("attention", sentence.clone());
    }
    text.push('\n');
    text.push_str(&members(array));
    text.push('\n');
    text.push_str(&zones(&array.zones));
    text
}

fn members(array: &Array) -> String {
    let mut table = output::table(["SLOT", "DISK", "STATE", "DATA", "READ", "WRITTEN", "ERRORS"]);
    for member in &array.members {
        let stats = member.stats.as_ref();
        let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_size);
        table.add_row([
            member.slot.to_string(),
            member.disk.clone().unwrap_or_else(|| missing_disk(&member.uuid)),
            redundant::member_state(member),
            format_size(member.data_bytes),
            bytes(stats.map(|s| s.read_bytes)),
            bytes(stats.map(|s| s.written_bytes)),
            stats.map_or("-".to_owned(), |s| s.errors.to_string()),
        ]);
    }
    output::align_right(&mut table, [0, 3, 4, 5, 6]);
    output::states(&mut table, [2]);
    output::render(&table)
}

/// Returns what is shown as the disk of a missing member: its identity, if it has one.
fn missing_disk(uuid: &str) -> String {
    if uuid.is_empty() { "(none)".to_owned() } else { format!("(member {uuid})") }
}

fn zones(zones: &[Zone]) -> String {
    let mut table = output::table(["ZONE", "START", "SIZE", "MEMBERS", "MEMBER START", "MEMBER SIZE"]);
    for (number, zone) in zones.iter().enumerate() {
        let members: Vec<String> = zone.members.iter().map(u16::to_string).collect();
        table.add_row([
            number.to_string(),
            format_size(zone.array_start_bytes),
            format_size(zone.array_bytes),
            output::cell(&members.join(" "), 24),
            format_size(zone.member_start_bytes),
            format_size(zone.member_bytes),
        ]);
    }
    output::align_right(&mut table, [0, 1, 2, 4, 5]);
    output::render(&table)
}

async fn assemble(args: AssembleArgs) -> anyhow::Result<ExitCode> {
    let mut disks = Vec::with_capacity(args.disks.len());
    for disk in &args.disks {
        disks.push(absolute_for(&args.api.endpoint, disk)?.to_string());
    }
    let body = Assemble { array: args.array, disks, force: args.force, degraded: args.degraded };
    let done: Assembled = args.api.client()?.post("/v1/assemble", &body).await?;
    output::show(args.api.json, &done, |done| {
        let mut text = String::new();
        for name in &done.started {
            let _ = writeln!(text, "array {name} is {}", color::state("active"));
        }
        for array in done.arrays.iter().filter(|array| array.state != ArrayState::Active) {
            let _ = writeln!(text, "array {} is {}", array.name, color::state(array.state.word()));
            for sentence in &array.attention {
                let _ = writeln!(text, "  {sentence}");
            }
        }
        if text.is_empty() {
            text.push_str("nothing to do: all arrays that were found are active\n");
        }
        text
    });
    let waiting = done.arrays.iter().any(|a| !matches!(a.state, ArrayState::Active | ArrayState::Stopped));
    Ok(ExitCode::from(if waiting { super::failure::ATTENTION } else { 0 }))
}

async fn delete(args: DeleteArgs) -> anyhow::Result<ExitCode> {
    let client = args.api.client()?;
    let path = format!("/v1/arrays/{}", args.array);
    let array: Array = client.get(&path).await?;
    replicated::refuse_array(&client, &array).await?;
    if !array.exports.is_empty() && !args.force {
        // Checked before the prompt: the user must not confirm what would be refused.
        return Err(ErrorDetail::new(
            Kind::InUse,
            format!("array {} is exported as {}", array.name, array.exports.join(", ")),
        )
        .with("array", &array.name)
        .remedy(format!("remove the export first (braid export remove {}), or add --force", array.exports[0]))
        .into());
    }
    if !array.read_only {
        confirm(
            &format!("Array {} with {} of content will be lost", array.name, format_size(array.size_bytes)),
            args.yes,
        )?;
    }
    let array: Array = client.delete(&format!("{path}?force={}", args.force)).await?;
    output::show(args.api.json, &array, |array| match array.read_only {
        true => format!("removed array {}; its disks are unchanged\n", array.name),
        false => format!("deleted array {}; its disks are free\n", array.name),
    });
    Ok(ExitCode::SUCCESS)
}

//! `braid array …`.

use super::confirm::confirm;
use super::disk_names::absolute_for;
use super::import_md::{ImportMdArgs, import_md};
use super::watch::Wait;
use super::{Ask, AskList, output, redundant, replicated};
use braid_api::{
    Array, ArrayList, ArrayState, Assemble, Assembled, CheckArray, CreateArray, ErrorDetail, GrowArray, Growth, Kind,
    Member, MemberState, RenameArray, StopArray, Zone, names,
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
    /// Make an array of disks
    Create(CreateArgs),
    /// List the arrays
    List(AskList),
    /// Show everything about an array
    Show(NameArgs),
    /// Give an array another name
    Rename(RenameArgs),
    /// Stop an array; its disks become free
    Stop(StopArgs),
    /// Look for members, and start the arrays that are complete
    Assemble(AssembleArgs),
    /// Describe an array of Linux md, or with --name serve it read-only: nothing is written to its disks
    ImportMd(ImportMdArgs),
    /// Leave a member of a redundant array out, as if it had failed
    Fail(MemberArgs),
    /// Take a member that is out, or a spare, off the table; of a mirror with --copy its role, too
    Remove(RemoveArgs),
    /// Give a disk to a redundant array: a member returns, any other takes a vacant role or becomes a spare; or a copy more
    Add(AddArgs),
    /// Let a disk take the place of a member of a redundant array, which serves until the disk holds everything
    Replace(ReplaceArgs),
    /// Give a redundant array a spare, or take one away
    Spare(SpareArgs),
    /// Put the journal of a raid5 or raid6 on a fast disk, or back on the members, while the array serves
    Journal(JournalArgs),
    /// Take up what an array's disks have gained, and further disks; rows that are there keep their width
    Grow(GrowArgs),
    /// Compare all copies of what was ever written to a redundant array, or rows with their parity; 7 if some differ, 5 if some could not be compared
    Check(CheckArgs),
    /// The same, and make right what differs: as most copies have it, or as the parities tell (`docs/failures.md`)
    Repair(RepairArgs),
    /// Delete an array: its labels are removed, its content is lost
    Delete(DeleteArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Name of the new array
    #[arg(value_parser = name)]
    name: String,
    /// How the disks are combined: one after the other, striped, mirrored, mirrored and striped, with one parity, with two; also as a
    /// number, or as raid-5, stripe, mirror
    #[arg(long, ignore_case = true, value_parser = levels::parser(&Level::ALL))]
    level: Level,
    /// Copies of every byte at raid10 [default: 2]
    #[arg(long, value_name = "N")]
    copies: Option<u16>,
    /// A further disk that takes over when a member of an array with redundancy fails (may be repeated)
    #[arg(long = "spare", value_name = "DISK")]
    spares: Vec<String>,
    /// A fast disk that holds the journal of a raid5 or raid6 instead of the members. Its loss is survived; of one that is lost in a
    /// crash, parity is computed anew
    #[arg(long, value_name = "DISK")]
    journal: Option<String>,
    /// One of the disks of a raid1 or raid10, read only when no other can answer (may be repeated)
    #[arg(long, value_name = "DISK")]
    write_mostly: Vec<String>,
    /// Whether it starts by itself without members that may have gone on apart [default: wait]
    #[arg(long, value_parser = ["auto", "wait"])]
    start_degraded: Option<String>,
    /// Contiguous bytes on one disk before the next disk's turn
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = chunk)]
    chunk: u64,
    /// Take disks that carry somebody's data, and destroy it
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// The disks: /dev/sdb, ./a.img, tank/db (a volume), file:a.img,size=50G, nbd://HOST/EXPORT, mem:1G, null:1T, throttled(DISK,…), faulty(DISK,…)
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct NameArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// Its new name
    #[arg(value_parser = name)]
    new_name: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct StopArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// Stop it although it is exported; clients are cut off, and its exports wait
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct AssembleArgs {
    /// Only this array, by name or UUID; a stopped one is started only when it is named
    #[arg(value_parser = name_or_uuid)]
    array: Option<String>,
    /// A disk to look at beside those known and those in the machine (may be repeated)
    #[arg(long = "disk", value_name = "DISK")]
    disks: Vec<String>,
    /// Use stale members as they are; what was written while they were away may be lost. A redundant array leaves them out
    #[arg(long, requires = "array")]
    force: bool,
    /// Start a redundant array without absent members that may have gone on apart; what was written to them alone is lost
    #[arg(long, requires = "array")]
    degraded: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct MemberArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pub(super) array: String,
    /// The member: its number, or its disk
    pub(super) member: String,
    #[command(flatten)]
    pub(super) ask: Ask,
}

#[derive(Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    pub(super) what: MemberArgs,
    /// Of raid1: its role goes with it, and the array has a copy less from then on
    #[arg(long)]
    pub(super) copy: bool,
}

/// Whether what is on a disk is destroyed.
#[derive(Args, Clone, Copy)]
pub struct Overwrite {
    /// Destroy what is on the disk; a former member is filled anew
    #[arg(long)]
    pub(super) force: bool,
    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Args)]
pub struct AddArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pub(super) array: String,
    /// The disk
    pub(super) disk: String,
    /// Of raid1: one copy more, on this disk
    #[arg(long)]
    pub(super) copy: bool,
    #[command(flatten)]
    pub(super) what: Overwrite,
    #[command(flatten)]
    pub(super) wait: Wait,
    #[command(flatten)]
    pub(super) ask: Ask,
}

#[derive(Args)]
pub struct ReplaceArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pub(super) array: String,
    /// The member: its number, its disk or its identity
    pub(super) member: String,
    /// The disk that takes its place, or a spare [default: the smallest spare that is large enough]
    pub(super) disk: Option<String>,
    #[command(flatten)]
    pub(super) what: Overwrite,
    #[command(flatten)]
    pub(super) wait: Wait,
    #[command(flatten)]
    pub(super) ask: Ask,
}

#[derive(Args)]
pub struct SpareArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pub(super) array: String,
    /// The disk; with --remove a spare's number will do
    pub(super) disk: String,
    /// Take it away
    #[arg(long, conflicts_with = "force")]
    pub(super) remove: bool,
    #[command(flatten)]
    pub(super) what: Overwrite,
    #[command(flatten)]
    pub(super) ask: Ask,
}

#[derive(Args)]
pub struct JournalArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pub(super) array: String,
    /// The disk that is to hold it; or --members
    #[arg(conflicts_with = "members")]
    pub(super) disk: Option<String>,
    /// On the members; after the loss of the journal's disk: it is to stay there
    #[arg(long, conflicts_with = "force")]
    pub(super) members: bool,
    /// Destroy what is on the disk
    #[arg(long)]
    pub(super) force: bool,
    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) ask: Ask,
}

#[derive(Args)]
pub struct GrowArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    array: String,
    /// Disks that become further members, at levels with redundancy as many as a zone needs (raid1, raid5 2, raid6 3, raid10 as
    /// many as there are copies); none: only what its disks have gained is taken up
    #[arg(value_name = "DISK")]
    disks: Vec<String>,
    /// Change nothing, and say what would come of it
    #[arg(long)]
    dry_run: bool,
    /// Destroy what is on further disks; take new room with fewer copies than the rest
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct CheckArgs {
    /// The array, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pub(super) array: String,
    #[command(flatten)]
    pub(super) wait: Wait,
    #[command(flatten)]
    pub(super) ask: Ask,
}

#[derive(Args)]
pub struct RepairArgs {
    /// With parity: believe the data, and compute the parities from them, whatever these say; for after a start without the journal
    #[arg(long)]
    from_data: bool,
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
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Reads a name for clap.
pub fn name(text: &str) -> Result<String, names::NameError> {
    names::check_name(text).map(|()| text.to_owned())
}

/// Reads a name or a UUID for clap.
pub fn name_or_uuid(text: &str) -> Result<String, names::NameError> {
    if names::is_uuid(text) { Ok(text.to_owned()) } else { name(text) }
}

fn chunk(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Create(args) => create(args).await,
        Verb::List(ask) => list(ask).await,
        Verb::Show(args) => {
            let array: Array = args.ask.client()?.get(&format!("/v1/arrays/{}", args.array)).await?;
            output::show(args.ask.json, &array, show);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Rename(args) => {
            let body = RenameArray { name: args.new_name };
            let array: Array = args.ask.client()?.post(&format!("/v1/arrays/{}/rename", args.array), &body).await?;
            output::show(args.ask.json, &array, |array| {
                format!("array {} is now called {}; names of exports stay\n", args.array, array.name)
            });
            Ok(ExitCode::SUCCESS)
        }
        Verb::Stop(args) => {
            let body = StopArray { force: args.force };
            let array: Array = args.ask.client()?.post(&format!("/v1/arrays/{}/stop", args.array), &body).await?;
            output::show(args.ask.json, &array, |array| {
                if array.kept {
                    format!("array {0} is stopped; `braid array assemble {0}` starts it again\n", array.name)
                } else {
                    format!("array {} is stopped and gone: memory and null disks keep nothing\n", array.name)
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
        Verb::Repair(RepairArgs { from_data, what }) => {
            redundant::check(what, CheckArray { repair: true, from_data }).await
        }
        Verb::Delete(args) => delete(args).await,
    }
}

async fn grow(args: GrowArgs) -> anyhow::Result<ExitCode> {
    let absolute = |disk: &String| Ok(absolute_for(&args.ask.reach, disk)?.to_string());
    let disks = args.disks.iter().map(absolute).collect::<anyhow::Result<Vec<String>>>()?;
    let GrowArgs { force, yes, .. } = args;
    if force && !args.dry_run && !disks.is_empty() && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        confirm(&format!("Whatever is on {} will be lost", args.disks.join(", ")), yes)?;
    }
    let body = GrowArray { disks, force, dry_run: args.dry_run };
    let growth: Growth = args.ask.client()?.post(&format!("/v1/arrays/{}/grow", args.array), &body).await?;
    output::show(args.ask.json, &growth, grown);
    Ok(ExitCode::SUCCESS)
}

fn grown(growth: &Growth) -> String {
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
        text.push_str("clients that are connected to its exports learn it when they connect again\n");
    }
    text
}

async fn create(args: CreateArgs) -> anyhow::Result<ExitCode> {
    let named = |disks: &[String]| {
        let absolute = |disk: &String| Ok(absolute_for(&args.ask.reach, disk)?.to_string());
        disks.iter().map(absolute).collect::<anyhow::Result<Vec<String>>>()
    };
    let (disks, spares, write_mostly) = (named(&args.disks)?, named(&args.spares)?, named(&args.write_mostly)?);
    let journal = args.journal.as_ref().map(|disk| absolute_for(&args.ask.reach, disk)).transpose()?;
    if args.force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let all: Vec<&str> = args.disks.iter().chain(&args.spares).chain(&args.journal).map(String::as_str).collect();
        confirm(&format!("Whatever is on {} will be lost", all.join(", ")), args.yes)?;
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
    let array: Array = args.ask.client()?.post("/v1/arrays", &body).await?;
    output::show(args.ask.json, &array, |array| {
        let mut text = format!(
            "array {} is active: {} of {} on {} disk{}\n",
            array.name,
            format_size(array.size_bytes),
            array.level,
            array.members.len(),
            if array.members.len() == 1 { "" } else { "s" }
        );
        if !array.kept {
            text.push_str("it is gone when the daemon ends: memory and null disks keep nothing\n");
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "let clients use it with: braid export add {} --nbd unix:/path/of/a.sock", array.name);
        text
    });
    Ok(ExitCode::SUCCESS)
}

async fn list(ask: AskList) -> anyhow::Result<ExitCode> {
    let list: ArrayList = ask.client()?.get("/v1/arrays").await?;
    let names = list.arrays.iter().map(|array| array.name.as_str());
    ask.print(&list, names, &list.incomplete, |style| table(&list, style));
    Ok(ExitCode::SUCCESS)
}

fn table(list: &ArrayList, style: ListStyle) -> String {
    if list.arrays.is_empty() {
        return output::none("arrays", &list.incomplete, "braid array create NAME --level raid0 DISK…");
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
                members_counted(array),
                array.exports.len().to_string(),
            ],
            [array.layout.clone(), array.uuid.clone()],
        );
    }
    table.right([2, 3, 7]);
    table.render()
}

/// How many members an array has in sync, of how many, and how many spares.
fn members_counted(array: &Array) -> String {
    let present = array.members.iter().filter(|m| m.state == MemberState::InSync).count();
    let spares = array.members.iter().filter(|m| m.state == MemberState::Spare).count();
    let all = array.members.iter().filter(|member| !is_journal(array, member)).count() - spares;
    let mut members = if present == all { present.to_string() } else { format!("{present} of {all}") };
    if spares > 0 {
        members.push_str(&format!(" + {spares}"));
    }
    members
}

/// Whether it holds no data, but the journal.
fn is_journal(array: &Array, member: &Member) -> bool {
    let journal = array.redundancy.as_ref().and_then(|redundancy| redundancy.journal.as_ref()?.member);
    member.state == MemberState::Journal || journal == Some(member.role)
}

/// The health of a redundant array that serves, in the word of the API; none of others.
fn health(array: &Array) -> Option<&'static str> {
    array.redundancy.as_ref().map(|redundancy| redundancy.health.word())
}

fn state(array: &Array) -> String {
    let word = array.state.word();
    if array.state == ArrayState::Active && !array.attention.is_empty() { format!("{word}!") } else { word.to_owned() }
}

/// Everything about an array, for people.
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
    line("state", array.state.word().to_owned());
    if let Some(health) = health(array) {
        line("health", health.to_owned());
    }
    if let Some(redundancy) = &array.redundancy {
        redundant::show(array, redundancy, &mut line);
    }
    if array.read_only {
        line("access", "read only: an array of Linux md".to_owned());
    }
    if !array.kept {
        line("kept", "no: memory and null disks keep nothing".to_owned());
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
    let mut table = output::table(["ROLE", "DISK", "STATE", "DATA", "READ", "WRITTEN", "ERRORS"]);
    for member in &array.members {
        let stats = member.stats.as_ref();
        let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_size);
        table.add_row([
            member.role.to_string(),
            member.disk.clone().unwrap_or_else(|| absent(&member.uuid)),
            redundant::member_state(member),
            format_size(member.data_bytes),
            bytes(stats.map(|s| s.read_bytes)),
            bytes(stats.map(|s| s.written_bytes)),
            stats.map_or("-".to_owned(), |s| s.errors.to_string()),
        ]);
    }
    output::right(&mut table, [0, 3, 4, 5, 6]);
    output::render(&table)
}

/// What stands in place of the disk of a member that has none: its identity, if there is one.
fn absent(uuid: &str) -> String {
    if uuid.is_empty() { "(none)".to_owned() } else { format!("(member {uuid})") }
}

fn zones(zones: &[Zone]) -> String {
    let mut table = output::table(["ZONE", "FROM", "SIZE", "MEMBERS", "ON EACH MEMBER FROM", "HEIGHT"]);
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
    output::right(&mut table, [0, 1, 2, 4, 5]);
    output::render(&table)
}

async fn assemble(args: AssembleArgs) -> anyhow::Result<ExitCode> {
    let mut disks = Vec::with_capacity(args.disks.len());
    for disk in &args.disks {
        disks.push(absolute_for(&args.ask.reach, disk)?.to_string());
    }
    let body = Assemble { array: args.array, disks, force: args.force, degraded: args.degraded };
    let done: Assembled = args.ask.client()?.post("/v1/assemble", &body).await?;
    output::show(args.ask.json, &done, |done| {
        let mut text = String::new();
        for name in &done.started {
            let _ = writeln!(text, "array {name} is active");
        }
        for array in done.arrays.iter().filter(|array| array.state != ArrayState::Active) {
            let _ = writeln!(text, "array {} is {}", array.name, array.state.word());
            for sentence in &array.attention {
                let _ = writeln!(text, "  {sentence}");
            }
        }
        if text.is_empty() {
            text.push_str("nothing to do: every array that was found is active\n");
        }
        text
    });
    let waiting = done.arrays.iter().any(|a| !matches!(a.state, ArrayState::Active | ArrayState::Stopped));
    Ok(ExitCode::from(if waiting { super::failure::ATTENTION } else { 0 }))
}

async fn delete(args: DeleteArgs) -> anyhow::Result<ExitCode> {
    let client = args.ask.client()?;
    let path = format!("/v1/arrays/{}", args.array);
    let array: Array = client.get(&path).await?;
    replicated::refuse_array(&client, &array).await?;
    if !array.exports.is_empty() && !args.force {
        // Said before asking, so that nobody confirms what cannot be done.
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
    output::show(args.ask.json, &array, |array| match array.read_only {
        true => format!("array {} is forgotten; its disks are as they were\n", array.name),
        false => format!("array {} is deleted; its disks are free\n", array.name),
    });
    Ok(ExitCode::SUCCESS)
}

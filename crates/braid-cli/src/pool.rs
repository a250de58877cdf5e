//! `braid pool …`.

use super::array::{name, name_or_uuid};
use super::confirm::confirm;
use super::disk_names::absolute_for;
use super::watch::{Wait, follow_newest};
use super::{Ask, AskList, output};
use braid_api::{
    AddMembers, CreatePool, ErrorDetail, Job, Kind, NamedSpace, Pool, PoolList, PoolMember, PoolSpace, RemoveMember,
    RenamePool, StartPool, names,
};
use braid_geometry::units::format_size;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// Make a pool of disks and arrays
    Create(CreateArgs),
    /// List the pools
    List(AskList),
    /// Show everything about a pool
    Show(NameArgs),
    /// Start a pool that waits (--force: without members that are lost), or have it take members back
    Start(StartArgs),
    /// Add disks and arrays to a pool, while its volumes are used
    Add(AddArgs),
    /// Remove a disk or array from a pool, while its volumes are used: what it has moves to the others
    Remove(RemoveArgs),
    /// Check the tables of a pool while its volumes are used, also what is on the disks; data are not compared
    Check(super::pool_check::CheckArgs),
    /// Print what the tables of one of its disks hold, without a daemon: for those who look for what went wrong
    Dump(crate::pool_dump::DumpArgs),
    /// Give a pool another name
    Rename(RenameArgs),
    /// Delete a pool with all of its volumes and snapshots: its labels are removed, its content is lost
    Delete(DeleteArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Name of the new pool
    #[arg(value_parser = name)]
    name: String,
    /// Take disks and arrays that carry somebody's data, and destroy it
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// The members: disks as for arrays, and arrays by name. A file in this folder is written ./FILE
    #[arg(required = true, value_name = "DISK-OR-ARRAY")]
    members: Vec<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct NameArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct StartArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Go on without members that are not there: what volumes may have on them reads as errors until they return
    #[arg(long)]
    force: bool,
    /// Where tables cannot be read, and a crash left something to be written there, write them anew: all else that stood in these 4 KiB, up to
    /// 32 MiB of blocks, is damaged from then on
    #[arg(long)]
    give_up: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct AddArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Take disks and arrays that carry somebody's data, and destroy it
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// The new members: disks as for arrays, and arrays by name. A file in this folder is written ./FILE
    #[arg(required = true, value_name = "DISK-OR-ARRAY")]
    members: Vec<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// The member: its disk, its array, or its number in the pool
    member: String,
    /// Let it stay after all
    #[arg(long)]
    cancel: bool,
    /// Give up one that is absent: it is never taken back, and what volumes may have had there reads as errors
    #[arg(long, conflicts_with_all = ["cancel", "wait"])]
    force: bool,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Its new name
    #[arg(value_parser = name)]
    new_name: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Delete it although volumes of it are exported (their exports are removed), or members are missing
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Create(args) => create(args).await?,
        Verb::List(ask) => {
            let list: PoolList = ask.client()?.get("/v1/pools").await?;
            let names = list.pools.iter().map(|pool| pool.name.as_str());
            ask.print(&list, names, &list.incomplete, |style| table(&list, style));
        }
        Verb::Show(args) => {
            let pool: Pool = args.ask.client()?.get(&format!("/v1/pools/{}", args.pool)).await?;
            output::show(args.ask.json, &pool, show);
        }
        Verb::Start(args) => {
            let body = StartPool { force: args.force, give_up: args.give_up };
            let pool: Pool = args.ask.client()?.post(&format!("/v1/pools/{}/start", args.pool), &body).await?;
            output::show(args.ask.json, &pool, |pool| {
                let mut text = format!("pool {} is {}\n", pool.name, pool.state.word());
                pool.attention.iter().for_each(|sentence| text.push_str(&format!("{sentence}\n")));
                text
            });
        }
        Verb::Add(args) => add(args).await?,
        Verb::Remove(args) => {
            let member = match names::check_name(&args.member) {
                // An array, a number, or what cannot be a member: the daemon says which.
                Ok(()) => args.member.clone(),
                Err(_) => absolute_for(&args.ask.reach, &args.member)?.to_string(),
            };
            let body = RemoveMember { member, cancel: args.cancel, force: args.force };
            let client = args.ask.client()?;
            let pool: Pool = client.post(&format!("/v1/pools/{}/remove", args.pool), &body).await?;
            output::show(args.ask.json, &pool, |pool| match args.cancel {
                _ if args.force => format!(
                    "{} is given up; what volumes of pool {} may have had there reads as errors, until that is accepted as lost: braid pool check {1} --give-up\n",
                    args.member, pool.name
                ),
                true => {
                    let mut text = format!("{} stays in pool {}\n", args.member, pool.name);
                    if !pool.unplaced.is_empty() {
                        text.push_str(&format!(
                            "placed on it before, and not any more: {} (braid volume move VOLUME --place on=DISK,…)\n",
                            pool.unplaced.join(", ")
                        ));
                    }
                    text
                }
                false => format!(
                    "{} leaves pool {}: what it has moves to the others (braid pool show {1})\n",
                    args.member, pool.name
                ),
            });
            if !args.cancel && !args.force {
                let of = |job: &Job| job.kind == "evacuation" && job.pool.as_ref() == Some(&pool.name);
                return follow_newest(&client, args.wait, args.ask.json, of).await;
            }
        }
        Verb::Rename(args) => {
            let body = RenamePool { name: args.new_name };
            let pool: Pool = args.ask.client()?.post(&format!("/v1/pools/{}/rename", args.pool), &body).await?;
            output::show(args.ask.json, &pool, |pool| {
                format!("pool {} is now called {}; names of exports stay\n", args.pool, pool.name)
            });
        }
        Verb::Check(args) => return super::pool_check::run(args).await,
        Verb::Dump(args) => return crate::pool_dump::run(args).await,
        Verb::Delete(args) => delete(args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Members as the daemon is to know them. Asks before it is to destroy what is on them.
fn asked_members(given: &[String], ask: &Ask, force: bool, yes: bool) -> anyhow::Result<Vec<String>> {
    let is_volume = |text: &str| names::VolumeName::parse(text).is_some() && !std::path::Path::new(text).exists();
    let member = |text: &String| match names::is_uuid(text) || names::check_name(text).is_ok() || is_volume(text) {
        // An array, or what cannot be a member: the daemon says which.
        true => Ok(text.clone()),
        false => anyhow::Ok(absolute_for(&ask.reach, text)?.to_string()),
    };
    let members = given.iter().map(member).collect::<anyhow::Result<Vec<String>>>()?;
    if force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        confirm(&format!("Whatever is on {} will be lost", given.join(", ")), yes)?;
    }
    Ok(members)
}

async fn add(args: AddArgs) -> anyhow::Result<()> {
    let members = asked_members(&args.members, &args.ask, args.force, args.yes)?;
    let body = AddMembers { members, force: args.force };
    let pool: Pool = args.ask.client()?.post(&format!("/v1/pools/{}/members", args.pool), &body).await?;
    output::show(args.ask.json, &pool, |pool| {
        let (size, free) = (format_size(pool.size_bytes), format_size(pool.free_bytes));
        format!("pool {} has {} members now: {size}, {free} free\n", pool.name, pool.members.len())
    });
    Ok(())
}

async fn create(args: CreateArgs) -> anyhow::Result<()> {
    let members = asked_members(&args.members, &args.ask, args.force, args.yes)?;
    let body = CreatePool { name: args.name, members, force: args.force };
    let pool: Pool = args.ask.client()?.post("/v1/pools", &body).await?;
    output::show(args.ask.json, &pool, |pool| {
        let members = pool.members.len();
        let plural = if members == 1 { "" } else { "s" };
        let mut text =
            format!("pool {} is active: {} on {members} member{plural}\n", pool.name, format_size(pool.size_bytes));
        if !pool.kept {
            text.push_str("it is gone when the daemon ends: memory and null disks keep nothing\n");
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "make a volume with: braid volume create {}/NAME SIZE", pool.name);
        text
    });
    Ok(())
}

fn table(list: &PoolList, style: ListStyle) -> String {
    if list.pools.is_empty() {
        return output::none("pools", &list.incomplete, "braid pool create NAME DISK…");
    }
    let columns = ["NAME", "SIZE", "FREE", "PROMISED", "STATE", "MEMBERS", "VOLUMES", "SNAPSHOTS"];
    let mut table = style.table(columns, ["ALLOCATED", "UUID"]);
    for pool in &list.pools {
        let here = pool.members.iter().filter(|member| member.present).count();
        let all = pool.members.len();
        let mark = if pool.attention.is_empty() || pool.state != braid_api::PoolState::Active { "" } else { "!" };
        table.row(
            [
                output::cell(&pool.name, 20),
                format_size(pool.size_bytes),
                format_size(pool.free_bytes),
                format_size(pool.promised_bytes),
                format!("{}{mark}", pool.state.word()),
                if here == all { all.to_string() } else { format!("{here} of {all}") },
                pool.volumes.to_string(),
                pool.snapshots.to_string(),
            ],
            [format_size(pool.allocated_bytes), pool.uuid.clone()],
        );
    }
    table.right([1, 2, 3, 5, 6, 7, 8]);
    table.render()
}

/// Everything about a pool, for people.
fn show(pool: &Pool) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<12}{value}");
    };
    let bytes = |bytes: u64| format!("{} ({} bytes)", format_size(bytes), output::thousands(bytes));
    line("pool", pool.name.clone());
    line("uuid", pool.uuid.clone());
    line("state", pool.state.word().to_owned());
    line("raw", bytes(pool.raw_bytes));
    line("size", bytes(pool.size_bytes));
    line("allocated", bytes(pool.allocated_bytes));
    line("free", bytes(pool.free_bytes));
    if pool.reserved_bytes > 0 {
        line("reserved", format!("{} for thick volumes", bytes(pool.reserved_bytes)));
    }
    if let Some(space) = &pool.space {
        line("stored", format!("{} in blocks", bytes(space.stored_bytes)));
        line("shared", format!("{} by several volumes and snapshots", bytes(space.shared_bytes)));
        line("exclusive", format!("{} to one of them each", bytes(space.exclusive_bytes)));
        if space.unseen_bytes > 0 {
            line("deleted", format!("{} not free yet", bytes(space.unseen_bytes)));
        }
        if space.in_doubt_bytes > 0 {
            line(
                "in doubt",
                format!("{} of volumes and snapshots, at most: they read as errors", bytes(space.in_doubt_bytes)),
            );
        }
        line("zeros", format!("{} of {} records", space.zero_ranges, output::thousands(space.zero_ranges_max)));
    }
    line("promised", format!("{} to volumes", bytes(pool.promised_bytes)));
    line("volumes", pool.volumes.to_string());
    line("snapshots", pool.snapshots.to_string());
    if pool.created_unix_s > 0 {
        line("created", output::moment(pool.created_unix_s * 1000));
    }
    if !pool.kept {
        line("kept", "no: memory and null disks keep nothing".to_owned());
    }
    for sentence in &pool.attention {
        line("attention", sentence.clone());
    }
    text.push('\n');
    text.push_str(&members(&pool.members));
    if let Some(space) = pool.space.as_ref().filter(|space| !space.volumes.is_empty()) {
        text.push('\n');
        text.push_str(&spaces(space));
    }
    text
}

fn members(members: &[PoolMember]) -> String {
    let mut table = output::table(["NUMBER", "DISK OR ARRAY", "STATE", "SIZE", "DATA", "ALLOCATED", "ERRORS"]);
    for member in members {
        let name = match (&member.array, &member.disk) {
            (Some(array), _) => format!("array {array}"),
            (None, Some(disk)) => disk.clone(),
            (None, None) => format!("(member {})", member.uuid),
        };
        let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_size);
        table.add_row([
            member.number.to_string(),
            name,
            match (member.present, member.leaves) {
                (false, _) if member.given_up => "given_up",
                (false, _) => "missing",
                (true, true) => "leaves",
                (true, false) => "in_use",
            }
            .to_owned()
                + if member.unfenced { " (unfenced)" } else { "" },
            format_size(member.size_bytes),
            bytes(member.data_bytes),
            bytes(member.allocated_bytes),
            member.stats.as_ref().map_or("-".to_owned(), |stats| stats.errors.to_string()),
        ]);
    }
    output::right(&mut table, [0, 3, 4, 5, 6]);
    output::render(&table)
}

/// The volumes and snapshots of a pool, with what each has.
fn spaces(space: &PoolSpace) -> String {
    let mut table = output::table(["VOLUME OR SNAPSHOT", "DATA", "EXCLUSIVE", "SHARED", "ALLOCATED", "WITH SNAPSHOTS"]);
    let mut all: Vec<&NamedSpace> = space.volumes.iter().chain(&space.snapshots).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    for one in all {
        table.add_row([
            one.name.clone(),
            format_size(one.space.data_bytes),
            format_size(one.space.exclusive_bytes),
            format_size(one.space.shared_bytes),
            format_size(one.allocated_bytes),
            output::counted(one.with_snapshots_bytes),
        ]);
    }
    output::right(&mut table, [1, 2, 3, 4, 5]);
    output::render(&table)
}

async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let client = args.ask.client()?;
    let path = format!("/v1/pools/{}", args.pool);
    let pool: Pool = client.get(&path).await?;
    let exported: braid_api::ExportList = client.get("/v1/exports").await?;
    let of = format!("{}/", pool.name);
    if let Some(export) = exported.exports.iter().find(|export| export.array.starts_with(&of)).filter(|_| !args.force) {
        // Said before asking, so that nobody confirms what cannot be done.
        return Err(ErrorDetail::new(
            Kind::InUse,
            format!("{} of pool {} is exported as {}", export.array, pool.name, export.name),
        )
        .with("pool", &pool.name)
        .remedy(format!("remove the export first (braid export remove {}), or add --force", export.name))
        .into());
    }
    let what =
        format!("Pool {} with {} volumes and {} snapshots will be lost", pool.name, pool.volumes, pool.snapshots);
    confirm(&what, args.yes)?;
    let pool: Pool = client.delete(&format!("{path}?force={}", args.force)).await?;
    output::show(args.ask.json, &pool, |pool| format!("pool {} is deleted; its members are free\n", pool.name));
    Ok(())
}

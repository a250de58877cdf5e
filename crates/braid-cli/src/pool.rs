//! `braid pool …`.

use super::confirm::{YesArgs, confirm};
use super::disk_names::absolute_for;
use super::object_names::{name, name_or_uuid};
use super::watch::{Wait, follow_newest};
use super::{ApiArgs, ApiListArgs, color, output};
use braid_api::{
    AddMembers, Array, ArrayList, CreateArray, CreatePool, ErrorDetail, Job, Kind, NamedSpace, Pool, PoolList,
    PoolMember, PoolSpace, RemoveMember, RenamePool, StartPool, names,
};
use braid_client::Client;
use braid_geometry::Level;
use braid_geometry::units::format_size;
use braid_terminal::levels;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// Create a pool of disks and arrays, or with --level on an array of disks that is created with it
    Create(CreateArgs),
    /// List the pools
    List(ApiListArgs),
    /// Show everything about a pool
    Show(NameArgs),
    /// Start a pool that waits, with --force without lost members; or let an active pool take returned members back
    Start(StartArgs),
    /// Add disks and arrays to a pool, online
    Add(AddArgs),
    /// Remove a disk or array from a pool, online; its blocks move to the other members
    Remove(RemoveArgs),
    /// Scrub the tables of a pool, in memory and on its disks, online; does not compare data
    Check(super::pool_check::CheckArgs),
    /// Print the tables on one disk of a pool, for diagnosis; needs no daemon
    Dump(crate::pool_dump::DumpArgs),
    /// Rename a pool
    Rename(RenameArgs),
    /// Delete a pool with all its volumes and snapshots: erase its labels; its content is lost
    Delete(DeleteArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Name of the new pool
    #[arg(value_parser = name)]
    name: String,
    /// Combine the disks to an array of this level, NAME-array, and create the pool on it; without it each disk is a member without redundancy. Also
    /// as a number, or as raid-5, stripe, mirror
    #[arg(long, ignore_case = true, value_parser = levels::parser(&Level::ALL))]
    level: Option<Level>,
    /// Use disks and arrays that hold data, and destroy it
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// The members: disks as for arrays, and arrays by name. Write a file in this folder as ./FILE
    #[arg(required = true, value_name = "DISK-OR-ARRAY")]
    members: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct NameArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct StartArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Start without missing members: what volumes may have on them reads as errors until they return
    #[arg(long)]
    force: bool,
    /// Rewrite parts of the tables that recovery has to write and cannot read: all other records in these 4 KiB, for up to 32 MiB of
    /// blocks, are damaged from then on
    #[arg(long)]
    give_up: bool,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct AddArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Use disks and arrays that hold data, and destroy it
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// The new members: disks as for arrays, and arrays by name. Write a file in this folder as ./FILE
    #[arg(required = true, value_name = "DISK-OR-ARRAY")]
    members: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// The member: its disk, its array, or its number in the pool
    member: String,
    /// Cancel the removal
    #[arg(long)]
    cancel: bool,
    /// Give up a missing member for good: what volumes may have had on it reads as errors
    #[arg(long, conflicts_with_all = ["cancel", "wait"])]
    force: bool,
    #[command(flatten)]
    _yes: YesArgs,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RenameArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// The new name of the pool
    #[arg(value_parser = name)]
    new_name: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Delete it although volumes of it are exported (their exports are removed), or members are missing
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Create(args) => create(args).await?,
        Verb::List(api) => {
            let list: PoolList = api.client()?.get("/v1/pools").await?;
            let names = list.pools.iter().map(|pool| pool.name.as_str());
            api.print(&list, names, &list.incomplete, |style| table(&list, style));
        }
        Verb::Show(args) => {
            let pool: Pool = args.api.client()?.get(&format!("/v1/pools/{}", args.pool)).await?;
            output::show(args.api.json, &pool, show);
        }
        Verb::Start(args) => {
            let body = StartPool { force: args.force, give_up: args.give_up };
            let pool: Pool = args.api.client()?.post(&format!("/v1/pools/{}/start", args.pool), &body).await?;
            output::show(args.api.json, &pool, |pool| {
                let mut text = format!("pool {} is {}\n", pool.name, color::state(pool.state.word()));
                pool.attention.iter().for_each(|sentence| text.push_str(&format!("{sentence}\n")));
                text
            });
        }
        Verb::Add(args) => add(args).await?,
        Verb::Remove(args) => {
            let member = match names::check_name(&args.member) {
                // An array, a number, or no member at all: the daemon tells them apart.
                Ok(()) => args.member.clone(),
                Err(_) => absolute_for(&args.api.endpoint, &args.member)?.to_string(),
            };
            let body = RemoveMember { member, cancel: args.cancel, force: args.force };
            let client = args.api.client()?;
            let pool: Pool = client.post(&format!("/v1/pools/{}/remove", args.pool), &body).await?;
            output::show(args.api.json, &pool, |pool| match args.cancel {
                _ if args.force => format!(
                    "{} is given up; what volumes of pool {} may have had there reads as errors, until you accept the loss: braid pool check {1} --give-up\n",
                    args.member, pool.name
                ),
                true => {
                    let mut text = format!("{} stays in pool {}\n", args.member, pool.name);
                    if !pool.unassigned_volumes.is_empty() {
                        text.push_str(&format!(
                            "no longer placed on it: {} (braid volume move VOLUME --place on=DISK,…)\n",
                            pool.unassigned_volumes.join(", ")
                        ));
                    }
                    text
                }
                false => format!(
                    "removing {} from pool {}: its blocks move to the other members; see: braid pool show {1}\n",
                    args.member, pool.name
                ),
            });
            if !args.cancel && !args.force {
                let of = |job: &Job| job.kind == "evacuation" && job.pool.as_ref() == Some(&pool.name);
                return follow_newest(&client, args.wait, args.api.json, of).await;
            }
        }
        Verb::Rename(args) => {
            let body = RenamePool { name: args.new_name };
            let pool: Pool = args.api.client()?.post(&format!("/v1/pools/{}/rename", args.pool), &body).await?;
            output::show(args.api.json, &pool, |pool| {
                format!("renamed pool {} to {}; the names of its exports are unchanged\n", args.pool, pool.name)
            });
        }
        Verb::Check(args) => return super::pool_check::run(args).await,
        Verb::Dump(args) => return crate::pool_dump::run(args).await,
        Verb::Delete(args) => delete(args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the members as the daemon names them. Asks for confirmation before their content is to be destroyed.
fn member_names(given: &[String], api: &ApiArgs, force: bool, yes: bool) -> anyhow::Result<Vec<String>> {
    let is_volume = |text: &str| names::VolumeName::parse(text).is_some() && !std::path::Path::new(text).exists();
    let member = |text: &String| match names::is_uuid(text) || names::check_name(text).is_ok() || is_volume(text) {
        // An array, or no member at all: the daemon tells them apart.
        true => Ok(text.clone()),
        false => anyhow::Ok(absolute_for(&api.endpoint, text)?.to_string()),
    };
    let members = given.iter().map(member).collect::<anyhow::Result<Vec<String>>>()?;
    if force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        confirm(&format!("All data on {} will be lost", given.join(", ")), yes)?;
    }
    Ok(members)
}

async fn add(args: AddArgs) -> anyhow::Result<()> {
    let members = member_names(&args.members, &args.api, args.force, args.yes)?;
    let body = AddMembers { members, force: args.force };
    let pool: Pool = args.api.client()?.post(&format!("/v1/pools/{}/members", args.pool), &body).await?;
    output::show(args.api.json, &pool, |pool| {
        let (size, free) = (format_size(pool.size_bytes), format_size(pool.free_bytes));
        format!("pool {} has {} members now: {size}, {free} free\n", pool.name, pool.members.len())
    });
    Ok(())
}

async fn create(args: CreateArgs) -> anyhow::Result<()> {
    let client = args.api.client()?;
    let pool: Pool = match args.level {
        Some(level) => create_on_array(&client, &args, level).await?,
        None => {
            let members = member_names(&args.members, &args.api, args.force, args.yes)?;
            let body = CreatePool { name: args.name.clone(), members, force: args.force };
            client.post("/v1/pools", &body).await?
        }
    };
    output::show(args.api.json, &pool, |pool| {
        let members = pool.members.len();
        let plural = if members == 1 { "" } else { "s" };
        let mut text =
            format!("created pool {} ({} on {members} member{plural})\n", pool.name, format_size(pool.size_bytes));
        if !pool.persistent {
            text.push_str("it is lost when the daemon ends: memory and null disks are not persistent\n");
        }
        if let Some(level) = args.level {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "its member is array {} ({})", array_name(&pool.name), level.name());
        }
        let _ = writeln!(text, "create a volume with: braid volume create {}/NAME SIZE", pool.name);
        text
    });
    Ok(())
}

/// Returns the name of the array that is created with a pool. Arrays and pools share one space of names.
fn array_name(pool: &str) -> String {
    format!("{pool}-array")
}

/// Creates an array of disks, and a pool on it. If the pool cannot be created, the array is deleted again.
async fn create_on_array(client: &Client, args: &CreateArgs, level: Level) -> anyhow::Result<Pool> {
    let array = array_name(&args.name);
    names::check_name(&array).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("the array of the pool would be called {array}: {error}"))
            .with("name", &args.name)
            .remedy("choose a shorter name, or create the array first (braid array create), and the pool on it")
    })?;
    let disks = args.members.iter().map(|disk| Ok(absolute_for(&args.api.endpoint, disk)?.to_string()));
    let disks = disks.collect::<anyhow::Result<Vec<String>>>()?;
    // Before anything is written: a pool with this name would be refused only after the array is created.
    let pools: PoolList = client.get("/v1/pools").await?;
    let arrays: ArrayList = client.get("/v1/arrays").await?;
    if let Some(what) = holder_of_name(&args.name, &pools, &arrays) {
        return Err(ErrorDetail::new(Kind::Exists, format!("there is {what} {} already", args.name))
            .with("name", &args.name)
            .remedy("choose another name, or rename that one first")
            .into());
    }
    if args.force && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        confirm(&format!("All data on {} will be lost", args.members.join(", ")), args.yes)?;
    }
    let body = CreateArray {
        name: array.clone(),
        level: level.name().to_owned(),
        copies: None,
        chunk_bytes: None,
        disks,
        spares: Vec::new(),
        journal: None,
        write_mostly: Vec::new(),
        start_degraded: None,
        force: args.force,
    };
    let created: Array = client.post("/v1/arrays", &body).await?;
    let body = CreatePool { name: args.name.clone(), members: vec![array], force: args.force };
    let error = match client.post::<Pool>("/v1/pools", &body).await {
        Ok(pool) => return Ok(pool),
        Err(error) => error,
    };
    let removed = client.delete::<Array>(&format!("/v1/arrays/{}?force=false", created.uuid)).await;
    Err(match removed {
        Ok(_) => {
            let message = format!("{}; array {} was deleted again", error.message, created.name);
            ErrorDetail { message, ..error }
        }
        Err(left) => {
            let message =
                format!("{}; and array {} could not be deleted again: {}", error.message, created.name, left.message);
            let remedy = format!("{}; delete the array with: braid array delete {}", error.remedy, created.name);
            ErrorDetail { message, ..error }.remedy(remedy)
        }
    }
    .into())
}

/// Returns what has a name already, a pool or an array.
fn holder_of_name(name: &str, pools: &PoolList, arrays: &ArrayList) -> Option<&'static str> {
    let is_pool = pools.pools.iter().any(|pool| pool.name == name);
    let is_array = arrays.arrays.iter().any(|array| array.name == name);
    if is_pool { Some("a pool") } else { is_array.then_some("an array") }
}

fn table(list: &PoolList, style: ListStyle) -> String {
    if list.pools.is_empty() {
        return output::empty_list("pools", &list.incomplete, "braid pool create NAME DISK…");
    }
    let columns = ["NAME", "SIZE", "FREE", "PROVISIONED", "STATE", "MEMBERS", "VOLUMES", "SNAPSHOTS"];
    let mut table = style.table(columns, ["ALLOCATED", "UUID"]);
    for pool in &list.pools {
        let present = pool.members.iter().filter(|member| member.present).count();
        let all = pool.members.len();
        let mark = if pool.attention.is_empty() || pool.state != braid_api::PoolState::Active { "" } else { "!" };
        table.row(
            [
                output::cell(&pool.name, 20),
                format_size(pool.size_bytes),
                format_size(pool.free_bytes),
                format_size(pool.provisioned_bytes),
                format!("{}{mark}", pool.state.word()),
                if present == all { all.to_string() } else { format!("{present} of {all}") },
                pool.volumes.to_string(),
                pool.snapshots.to_string(),
            ],
            [format_size(pool.allocated_bytes), pool.uuid.clone()],
        );
    }
    table.align_right([1, 2, 3, 5, 6, 7, 8]);
    table.states([4]);
    table.render()
}

/// Returns everything about a pool, for people.
fn show(pool: &Pool) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<12}{value}");
    };
    let bytes = |bytes: u64| format!("{} ({} bytes)", format_size(bytes), output::thousands(bytes));
    line("pool", pool.name.clone());
    line("uuid", pool.uuid.clone());
    line("state", color::state(pool.state.word()));
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
        if space.freeing_bytes > 0 {
            line("deleted", format!("{} not freed yet", bytes(space.freeing_bytes)));
        }
        if space.in_doubt_bytes > 0 {
            line(
                "in doubt",
                format!("{} of volumes and snapshots, at most: they read as errors", bytes(space.in_doubt_bytes)),
            );
        }
        line("zeros", format!("{} of {} records", space.zero_ranges, output::thousands(space.zero_ranges_max)));
    }
    line("provisioned", format!("{} to volumes", bytes(pool.provisioned_bytes)));
    line("volumes", pool.volumes.to_string());
    line("snapshots", pool.snapshots.to_string());
    if pool.created_unix_s > 0 {
        line("created", output::utc_time(pool.created_unix_s * 1000));
    }
    if !pool.persistent {
        line("persistent", "no: memory and null disks are not persistent".to_owned());
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
            match (member.present, member.removing) {
                (false, _) if member.given_up => "given_up",
                (false, _) => "missing",
                (true, true) => "removing",
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
    output::align_right(&mut table, [0, 3, 4, 5, 6]);
    output::states(&mut table, [2]);
    output::render(&table)
}

/// Returns the table of the volumes and snapshots of a pool, with the space of each.
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
            output::size_or_dash(one.with_snapshots_bytes),
        ]);
    }
    output::align_right(&mut table, [1, 2, 3, 4, 5]);
    output::render(&table)
}

async fn delete(args: DeleteArgs) -> anyhow::Result<()> {
    let client = args.api.client()?;
    let path = format!("/v1/pools/{}", args.pool);
    let pool: Pool = client.get(&path).await?;
    let exported: braid_api::ExportList = client.get("/v1/exports").await?;
    let of = format!("{}/", pool.name);
    if let Some(export) = exported.exports.iter().find(|export| export.array.starts_with(&of)).filter(|_| !args.force) {
        // Checked before the prompt: the user must not confirm what would be refused.
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
    output::show(args.api.json, &pool, |pool| format!("deleted pool {}; its members are free\n", pool.name));
    Ok(())
}

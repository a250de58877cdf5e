//! `braid array import-md`: arrays of Linux md, described and read.

use super::disk_names::absolute_for;
use super::{Ask, array, output};
use braid_api::{ImportMd, MdArray, MdImport};
use braid_geometry::units::format_size;
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Args)]
pub struct ImportMdArgs {
    /// Serve the array read-only under this name; without, it is only described
    #[arg(long, value_parser = array::name)]
    name: Option<String>,
    /// Read members that are old where it takes them, and compute from parity that may be wrong (`docs/import.md`)
    #[arg(long)]
    force: bool,
    /// The layout of a raid0 over unequal disks that does not say which it has
    #[arg(long, value_parser = ["original", "alternate"])]
    layout: Option<String>,
    /// The members of the array, in any order: /dev/sdb, ./a.img
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<String>,
    #[command(flatten)]
    ask: Ask,
}

pub async fn import_md(args: ImportMdArgs) -> anyhow::Result<ExitCode> {
    let mut disks = Vec::with_capacity(args.disks.len());
    for disk in &args.disks {
        disks.push(absolute_for(&args.ask.reach, disk)?.to_string());
    }
    let body = ImportMd { disks, name: args.name, force: args.force, layout: args.layout };
    let done: MdImport = args.ask.client()?.post("/v1/import-md", &body).await?;
    output::show(args.ask.json, &done, shown);
    let unreadable = done.found.iter().any(|array| !array.readable);
    Ok(ExitCode::from(if unreadable { super::failure::ATTENTION } else { 0 }))
}

fn shown(done: &MdImport) -> String {
    let mut text = String::new();
    for array in &done.found {
        text.push_str(&describe(array));
    }
    if let Some(array) = &done.array {
        let _ = writeln!(
            text,
            "array {0} is active, {1} to be read; `braid export add {0}` lets clients read it, `braid array delete {0}` forgets it",
            array.name,
            format_size(array.size_bytes)
        );
    } else if done.found.iter().any(|array| array.readable) {
        text.push_str("nothing was changed; --name NAME serves it read-only\n");
    }
    text
}

fn describe(array: &MdArray) -> String {
    let chunk = match array.chunk_bytes {
        0 => String::new(),
        bytes => format!(", chunk {}", format_size(bytes)),
    };
    let layout = if array.layout.is_empty() { String::new() } else { format!(" {}", array.layout) };
    let size = array.size_bytes.map_or_else(|| "of unknown size".to_owned(), format_size);
    let state = match (array.clean, array.degraded) {
        (true, false) => "clean",
        (true, true) => "clean, degraded",
        (false, false) => "not stopped in order",
        (false, true) => "not stopped in order, degraded",
    };
    let mut text = format!(
        "{} ({}): {}{layout}{chunk}, {size}, {state}, md {} with {} events\n",
        array.name, array.uuid, array.level, array.metadata, array.events
    );
    let mut table = output::table(["ROLE", "DISK", "STATE", "READ", "EVENTS", "DATA FROM"]);
    for member in &array.members {
        table.add_row([
            member.role.to_string(),
            member.disk.clone().unwrap_or_else(|| "-".to_owned()),
            member.state.clone(),
            if member.used { "yes" } else { "no" }.to_owned(),
            member.events.map_or_else(|| "-".to_owned(), |events| events.to_string()),
            member.data_offset_bytes.map_or_else(|| "-".to_owned(), format_size),
        ]);
    }
    output::right(&mut table, [0, 4, 5]);
    text.push_str(&output::render(&table));
    for other in &array.others {
        let _ = writeln!(text, "disk {other} is no member: a spare, or failed");
    }
    for warning in &array.warnings {
        let _ = writeln!(text, "note: {warning}");
    }
    for problem in &array.problems {
        let _ = writeln!(text, "cannot be read: {}\n  {}", problem.message, problem.remedy);
    }
    text
}

//! `braid array import-md`: describes arrays of Linux md, and serves them read-only.

use super::disk_names::absolute_for;
use super::{ApiArgs, object_names, output};
use braid_api::{ImportMd, MdArray, MdImport};
use braid_geometry::units::format_size;
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Args)]
pub struct ImportMdArgs {
    /// Serve the array read-only under this name; without this option, only describe it
    #[arg(long, value_parser = object_names::name)]
    name: Option<String>,
    /// Read stale members if they are needed, and reconstruct from parity that may be wrong (`docs/guide/importing-md.md`)
    #[arg(long)]
    force: bool,
    /// The layout of a raid0 over unequal disks whose superblock does not record it
    #[arg(long, value_parser = ["original", "alternate"])]
    layout: Option<String>,
    /// The members of the array, in any order: /dev/sdb, ./a.img
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

pub async fn import_md(args: ImportMdArgs) -> anyhow::Result<ExitCode> {
    let mut disks = Vec::with_capacity(args.disks.len());
    for disk in &args.disks {
        disks.push(absolute_for(&args.api.endpoint, disk)?.to_string());
    }
    let body = ImportMd { disks, name: args.name, force: args.force, layout: args.layout };
    let done: MdImport = args.api.client()?.post("/v1/import-md", &body).await?;
    output::show(args.api.json, &done, import_text);
    let unreadable = done.found.iter().any(|array| !array.readable);
    Ok(ExitCode::from(if unreadable { super::failure::ATTENTION } else { 0 }))
}

fn import_text(done: &MdImport) -> String {
    let mut text = String::new();
    for array in &done.found {
        text.push_str(&describe(array));
    }
    if let Some(array) = &done.array {
        let _ = writeln!(
            text,
            "array {0} is active, read-only, {1}; export it with: braid export add {0} --nbd unix:PATH; remove it with: braid array delete {0}",
            array.name,
            format_size(array.size_bytes)
        );
    } else if done.found.iter().any(|array| array.readable) {
        text.push_str("nothing was changed; serve it read-only with --name NAME\n");
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
        (false, false) => "not stopped cleanly",
        (false, true) => "not stopped cleanly, degraded",
    };
    let mut text = format!(
        "{} ({}): {}{layout}{chunk}, {size}, {state}, md {} with {} events\n",
        array.name, array.uuid, array.level, array.metadata, array.events
    );
    let mut table = output::table(["SLOT", "DISK", "STATE", "READ", "EVENTS", "DATA OFFSET"]);
    for member in &array.members {
        table.add_row([
            member.slot.to_string(),
            member.disk.clone().unwrap_or_else(|| "-".to_owned()),
            member.state.clone(),
            if member.used { "yes" } else { "no" }.to_owned(),
            member.events.map_or_else(|| "-".to_owned(), |events| events.to_string()),
            member.data_offset_bytes.map_or_else(|| "-".to_owned(), format_size),
        ]);
    }
    output::align_right(&mut table, [0, 4, 5]);
    output::states(&mut table, [2]);
    text.push_str(&output::render(&table));
    for other in &array.others {
        let _ = writeln!(text, "disk {other} is not an active member: a spare, or failed");
    }
    for warning in &array.warnings {
        let _ = writeln!(text, "note: {warning}");
    }
    for problem in &array.problems {
        let _ = writeln!(text, "cannot be read: {}\n  {}", problem.message, problem.remedy);
    }
    text
}

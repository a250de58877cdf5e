//! `braid demo`: shows an array from creation to verified data in a minute, in a folder of its own, without root and without a spare disk.
//!
//! Each step is printed as the command that a user would type, and the daemon is a process of its own.

mod check;
mod sandbox;

use anyhow::Context;
use braid_api::{Array, ErrorDetail, Kind};
use braid_geometry::units::format_size;
use braid_terminal::output;
use check::Check;
use clap::Args;
use sandbox::Sandbox;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use utoipa::ToSchema;

/// Names and sizes of the disks.
const DISKS: [(&str, &str); 3] = [("a.img", "50G"), ("b.img", "100G"), ("c.img", "100G")];
/// Name of the array and of its export.
const NAME: &str = "demo";
/// The most bytes that are written and read back in the first check.
const BYTES_MAX: u64 = 192 << 20;
/// The fewest bytes of the first check.
const BYTES_MIN: u64 = 8 << 20;

/// Arguments of `braid demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Leave the daemon running and the disks in place
    #[arg(long)]
    keep: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// What `braid demo --json` prints.
#[derive(Serialize, ToSchema)]
#[schema(as = Demo)]
pub struct Report {
    /// The array after the writes, with each member's counters.
    array: Array,
    uri: String,
    checks: Vec<Check>,
    /// Allocated bytes of each disk's file, in the order of the slots.
    allocated_bytes: Vec<u64>,
    /// What is left running; only with `--keep`.
    kept: Option<Kept>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DemoKept)]
struct Kept {
    folder: String,
    socket: String,
    pid: u32,
}

/// Runs `braid demo`. An interruption cleans up, too.
pub fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the demo cannot start")?;
    let sandbox = Arc::new(Sandbox::new(args.json)?);
    let result = runtime.block_on(async {
        let show = {
            let (sandbox, args) = (Arc::clone(&sandbox), args.clone());
            tokio::task::spawn_blocking(move || show(&sandbox, &args))
        };
        tokio::select! {
            shown = show => shown.context("the demo ended unexpectedly").and_then(|shown| shown),
            _ = tokio::signal::ctrl_c() => {
                Err(ErrorDetail::new(Kind::Stopping, "interrupted; everything is cleaned up").into())
            }
        }
    });
    let keep = args.keep && result.is_ok();
    if !keep {
        sandbox.clear();
        if result.is_ok() {
            sandbox.say("\nThe daemon has stopped and its folder is removed; `braid demo --keep` keeps both.\n");
        }
    }
    // An interrupted step may still run. Its process ends with this one's terminal.
    runtime.shutdown_background();
    result
}

fn show(sandbox: &Sandbox, args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let socket = sandbox.path("nbd.sock");
    sandbox.say("Three disks of different sizes become one array. They are sparse files, which use only the space that is written.\n\n");
    sandbox.start_daemon()?;
    let disks: Vec<String> =
        DISKS.iter().map(|(file, size)| format!("file:{},size={size}", sandbox.path(file).display())).collect();
    let mut create = vec!["array", "create", NAME, "--level", "raid0"];
    create.extend(disks.iter().map(String::as_str));
    sandbox.braid(&create)?;
    sandbox.braid(&["export", "add", NAME, "--nbd", &format!("unix:{}", socket.display())])?;
    let before: Array = sandbox.get(&format!("/v1/arrays/{NAME}"))?;
    let uri = braid_api::address::Address::Unix(socket).uri(NAME, false);

    sandbox.say(&capacity(&before));
    let bytes = sandbox.bytes_to_write(BYTES_MIN, BYTES_MAX)?;
    let checks = vec![check::copy(sandbox, &uri, bytes)?, check::random(sandbox, &uri, &before, bytes / 4)?];
    sandbox.say("\nWhere the bytes went:\n\n");
    sandbox.braid(&["array", "show", NAME])?;
    let after: Array = sandbox.get(&format!("/v1/arrays/{NAME}"))?;
    let allocated: Vec<u64> = DISKS.iter().map(|(file, _)| allocated(&sandbox.path(file))).collect();
    let kept = args.keep.then(|| Kept {
        folder: sandbox.folder().display().to_string(),
        socket: sandbox.socket().display().to_string(),
        pid: sandbox.daemon_pid(),
    });
    sandbox.say(&usage(&after, &allocated, &checks));
    sandbox.say(&next_steps(kept.as_ref(), &uri));
    if args.json {
        output::json(&Report { array: after, uri, checks, allocated_bytes: allocated, kept });
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of this executable, unless a shell finds it as `braid`.
fn unless_on_path() -> Option<String> {
    let this = std::env::current_exe().ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("braid")).find(|file| file.is_file());
    let same = found.and_then(|found| found.canonicalize().ok()) == this.canonicalize().ok();
    (!same).then(|| this.display().to_string())
}

fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(0, |found| found.blocks() * 512)
}

/// Formats the capacity and the zones.
fn capacity(array: &Array) -> String {
    // Writing to a String never fails.
    let mut text = String::new();
    let disks: u64 = DISKS.iter().filter_map(|(_, size)| braid_geometry::units::parse_size(size).ok()).sum();
    let _ = writeln!(
        text,
        "\n{} of disks: {} can be used, {} is kept for labels and later redundancy.",
        format_size(disks),
        format_size(array.size_bytes),
        format_size(disks - array.size_bytes)
    );
    for (number, zone) in array.zones.iter().enumerate() {
        let members: Vec<&str> =
            zone.members.iter().filter_map(|role| DISKS.get(usize::from(*role)).map(|(file, _)| *file)).collect();
        let _ = writeln!(
            text,
            "  zone {number}: {} striped over {} disks ({})",
            format_size(zone.array_bytes),
            members.len(),
            members.join(", ")
        );
    }
    text.push('\n');
    text
}

/// Formats where data was written, and the results of the checks.
fn usage(array: &Array, allocated: &[u64], checks: &[Check]) -> String {
    let mut text = String::from("\n");
    for (member, allocated) in array.members.iter().zip(allocated) {
        let written = member.stats.as_ref().map_or(0, |stats| stats.written_bytes);
        let file = DISKS.get(usize::from(member.slot)).map_or("?", |(file, _)| *file);
        let _ =
            writeln!(text, "  {file}: {} written, its file takes {}", format_size(written), format_size(*allocated));
    }
    for check in checks {
        let _ = writeln!(text, "Verified: {} through {} ({})", format_size(check.bytes), check.tool, check.what);
    }
    text
}

/// Formats commands to go on with.
fn next_steps(kept: Option<&Kept>, uri: &str) -> String {
    let mut text = String::from("\nTo go on:\n");
    if let Some(program) = unless_on_path() {
        let _ = writeln!(text, "  alias braid={program}");
    }
    match kept {
        Some(Kept { folder, socket, pid }) => {
            let _ = writeln!(text, "  export BRAID_SOCKET={socket}");
            let _ = writeln!(text, "  braid status");
            let _ = writeln!(text, "  nbdinfo '{uri}'");
            let _ = writeln!(text, "  qemu-img info '{uri}'");
            let _ =
                writeln!(text, "  mkdir -p {folder}/mnt && nbdfuse {folder}/mnt '{uri}' &    # the array as a file");
            let _ = writeln!(text, "  braid events --follow");
            let _ = writeln!(text, "and to end it:\n  kill {pid} && sleep 1 && rm -r {folder}");
        }
        None => text.push_str(
            "  braid demo --keep                       # the same, to be played with\n\
             \x20 braid plan 50G 100G 100G                # what disks of these sizes can become\n\
             \x20 braid disk list                         # the disks of this machine\n\
             \x20 braid serve                             # a daemon of your own\n\
             \x20 braid array create NAME --level raid0 DISK…\n\
             \x20 braid export add NAME --nbd unix:/path/of/a.sock\n",
        ),
    }
    text
}

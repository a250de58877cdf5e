//! `braid bench`: what disks, arrays and exports can do, and what it costs.
//!
//! `args` parses the command line, and `plan` turns it into targets and points, each of which is measured on every target.
//! `run` executes a plan in slices in which the targets take turns: in this process on a ring of its own (`in_process`,
//! `frontend`), or as a client of an NBD export (`over_nbd`). `model` is the document of results; `report` prints it, `html`
//! draws it, `fio` writes the same loads as a job file. `profile` holds the loads of published measurements, `published` their
//! figures. `demo` is `braid demo`.
//!
//! The harness of `make bench`, which measures the table of targets, is the crate `xtask`. What it shares with the load generator
//! is public here: the load itself (`frontend`, `device`, `Variant`), processes and daemons (`process`, `daemon`, `cluster`), CPU time
//! and statistics.

#![forbid(unsafe_code)]

mod ahead;
mod args;
pub mod cluster;
pub mod cpu;
pub mod daemon;
pub mod demo;
pub mod device;
mod figures;
mod fio;
pub mod frontend;
mod html;
mod in_process;
mod interrupt;
pub mod latency;
mod ledger;
pub mod live;
pub mod machine;
pub mod model;
mod over_nbd;
mod pattern;
mod plan;
pub mod process;
mod profile;
mod progress;
mod published;
mod report;
mod resolve;
mod run;
mod schedule;
mod slice;
pub mod statistics;
pub mod target;
pub mod values;
mod variant;
pub mod verify;
mod zipf;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use braid_api::{ErrorDetail, Kind};

pub use args::BenchArgs;
pub use over_nbd::connect;
pub use pattern::{Order, Random, Visit};
pub use variant::{MakeDevice, MakeFrontend, Variant};

use plan::Plan;

/// Exit status of a run with mismatches.
const DAMAGE: u8 = 7;

/// Runs `braid bench`.
///
/// # Errors
/// The plan is invalid, or a target cannot be measured. I/O errors are counted in the report instead; they make the exit status 1, as an
/// interruption does.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    run_variant(args, Variant::default())
}

/// Runs `braid bench` with variations of its targets of disks.
///
/// # Errors
/// As [`run`].
pub fn run_variant(args: BenchArgs, variant: Variant) -> anyhow::Result<ExitCode> {
    if args.nop {
        return nop(&args);
    }
    let of_nodes = args.profile.as_deref().filter(|name| published::PROFILES_OF_NODES.contains(name));
    if let (Some(name), true) = (of_nodes, args.emit_fio) {
        return Err(ErrorDetail::new(Kind::InvalidArgument, format!("the nodes of profile {name} end with it"))
            .remedy("export a volume of your own, and name it: braid bench --emit-fio nbd+unix:///NAME?socket=PATH")
            .into());
    }
    // The daemons of the nodes are killed when this is dropped.
    let nodes = of_nodes.map(|name| profile::nodes::Nodes::start(name, !args.targets.is_empty())).transpose()?;
    let mut plan = match (&args.profile, &nodes) {
        (Some(name), Some(nodes)) => profile::plan_on(name, &args, nodes)?,
        (Some(name), None) => profile::plan(name, &args)?,
        (None, _) => Plan::of(&args)?,
    };
    plan.variant = variant;
    if args.emit_fio {
        braid_terminal::output::text(&fio::job_file(&plan));
        return Ok(ExitCode::SUCCESS);
    }
    interrupt::watch()?;
    let page = args.html.as_deref().map(Page::open).transpose()?;
    let document = run::run(&plan, args.socket.as_deref())?;
    let measured = !document.results.is_empty();
    // Without results there is nothing to draw: an earlier page is kept.
    if let Some(page) = page
        && measured
    {
        page.write(&html::page(&document))?;
    }
    if args.json {
        braid_terminal::output::json(&document);
    } else {
        braid_terminal::output::text(&report::text(&document));
        if let Some(file) = args.html.as_ref().filter(|_| measured) {
            braid_terminal::output::text(&format!("charts are in {}\n", file.display()));
        }
    }
    Ok(if document.mismatch_count() > 0 {
        ExitCode::from(DAMAGE)
    } else if document.errors() > 0 || document.interrupted {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The file of the page. It is opened before the run, so that a wrong path is not detected after a long run only.
struct Page {
    path: PathBuf,
    /// Whether this run created the file: then it is removed if the run fails.
    is_new: bool,
}

impl Page {
    fn open(path: &Path) -> anyhow::Result<Page> {
        let is_new = !path.exists();
        std::fs::File::options().append(true).create(true).open(path).map_err(|error| {
            ErrorDetail::new(Kind::InvalidArgument, format!("--html {}: {error}", path.display()))
                .remedy("name a file in a folder that is there and can be written")
        })?;
        Ok(Page { path: path.to_owned(), is_new })
    }

    fn write(mut self, text: &str) -> anyhow::Result<()> {
        std::fs::write(&self.path, text).with_context(|| format!("writing {}", self.path.display()))?;
        self.is_new = false;
        Ok(())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Runs `--nop`: measures no-operations instead of targets.
fn nop(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let [depth] = args.depth.0[..] else {
        return Err(ErrorDetail::new(Kind::InvalidArgument, "--nop is measured at one depth")
            .remedy("for example: braid bench --nop --depth 128")
            .into());
    };
    let slice = in_process::nop(depth as u32, args.count, args.time.unwrap_or(Duration::from_secs(5)))?;
    let cost = slice.cpu_ns as f64 / slice.ios.max(1) as f64;
    let rate = slice.ios as f64 * 1e9 / slice.elapsed_ns.max(1) as f64;
    if args.json {
        braid_terminal::output::json(&serde_json::json!({
            "depth": depth, "ios": slice.ios, "elapsed_ns": slice.elapsed_ns, "cpu_ns": slice.cpu_ns, "cpu_ns_per_io": cost,
            "iops": rate,
        }));
    } else {
        let text = format!(
            "no-operations of the kernel's ring, {depth} at a time: {} each, {rate:.0} a second\n",
            figures::time(cost)
        );
        braid_terminal::output::text(&text);
    }
    Ok(ExitCode::SUCCESS)
}

//! `braid bench`: what disks, arrays and exports can do, and what it costs.
//!
//! `args` is the command line and `plan` what comes of it: targets, and points that are measured on each of them. `run`
//! carries a plan out, in slices in which the targets take turns: in this process on a ring of its own (`in_process`,
//! `frontend`), or as a client of an NBD export (`over_nbd`). `model` is what was found, as one document; `report` prints it,
//! `html` draws it, `fio` says the same to fio. `profile` holds what others have published. With `--table`, every row of
//! the table of targets is measured in pairs against its rival (`make bench`).

#![forbid(unsafe_code)]

mod ahead;
mod args;
mod bare;
mod cluster;
mod cpu;
pub mod demo;
mod device;
mod fio;
mod frontend;
mod html;
mod in_process;
mod interrupt;
mod latency;
mod ledger;
mod live;
mod machine;
pub mod model;
mod over_nbd;
mod pattern;
mod plan;
mod pool;
mod profile;
mod progress;
mod report;
mod resolve;
mod run;
mod scenes;
mod schedule;
mod slice;
mod statistics;
mod table;
mod target;
mod values;
pub mod verify;
mod volume;
mod zipf;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use braid_api::{ErrorDetail, Kind};

pub use args::BenchArgs;

use plan::Plan;

/// Exit status of a run whose data was wrong.
const DAMAGE: u8 = 7;

/// Runs `braid bench`.
///
/// # Errors
/// Whatever keeps it from measuring. I/O errors are counted in the report, and make the exit status 1, as an interruption
/// does.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.table {
        return table::run(&args, file);
    }
    if let Some(scene) = &args.scene {
        let slice = args.time.unwrap_or(Duration::from_millis(400));
        return scenes::run(scene, scenes::Pace { pairs: usize::from(args.slices.unwrap_or(7)), slice });
    }
    if args.nop {
        return nop(&args);
    }
    let of_nodes = args.profile.as_deref().filter(|name| profile::nodes::NAMES.contains(name));
    if let (Some(name), true) = (of_nodes, args.emit_fio) {
        return Err(ErrorDetail::new(Kind::InvalidArgument, format!("the nodes of profile {name} end with it"))
            .remedy("export a volume of your own, and name it: braid bench --emit-fio nbd+unix:///NAME?socket=PATH")
            .into());
    }
    // They end with this.
    let nodes = of_nodes.map(|name| profile::nodes::Nodes::start(name, !args.targets.is_empty())).transpose()?;
    let plan = match (&args.profile, &nodes) {
        (Some(name), Some(nodes)) => profile::plan_on(name, &args, nodes)?,
        (Some(name), None) => profile::plan(name, &args)?,
        (None, _) => Plan::of(&args)?,
    };
    if args.emit_fio {
        braid_terminal::output::text(&fio::job_file(&plan));
        return Ok(ExitCode::SUCCESS);
    }
    interrupt::watch()?;
    let page = args.html.as_deref().map(Page::open).transpose()?;
    let document = run::run(&plan, args.socket.as_deref())?;
    let measured = !document.results.is_empty();
    // Without a single figure there is nothing to draw: a page of before stays.
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
            braid_terminal::output::text(&format!("plots are in {}\n", file.display()));
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

/// The file of the page: opened before anything is measured, so that a wrong name is not found out after a long run.
struct Page {
    path: PathBuf,
    /// It is there because of this run, and goes again if that fails.
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

/// `--nop`: no target at all.
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
            report::time(cost)
        );
        braid_terminal::output::text(&text);
    }
    Ok(ExitCode::SUCCESS)
}

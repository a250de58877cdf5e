//! `braid bench`: what a disk, an array or an export can do, and what it costs.
//!
//! In this process, on a ring of its own, or as a client of an NBD export. With `--table`, every row of the table of
//! targets, measured in pairs against its rival (`make bench`).

mod args;
mod cpu;
mod device;
mod frontend;
mod in_process;
mod latency;
mod over_nbd;
mod pattern;
mod report;
mod statistics;
mod table;
pub mod verify;

use std::process::ExitCode;

use braid_api::{ErrorDetail, Kind};

pub use args::BenchArgs;

use report::Report;

/// Exit status of a run whose data was wrong.
const DAMAGE: u8 = 7;

/// Runs `braid bench`.
///
/// # Errors
/// Whatever keeps it from measuring. I/O errors are counted in the report, and make the exit status 1.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.table {
        return table::run(&args, file);
    }
    let report = if args.nop {
        in_process::nop(&args)?
    } else if args.disks.is_empty() {
        return Err(ErrorDetail::new(Kind::InvalidArgument, "no disk is named")
            .remedy("for example: braid bench --level raid0 null:50G null:100G null:100G")
            .into());
    } else if args.disks.iter().any(|disk| over_nbd::is_uri(disk)) {
        over_nbd::run(&args)?
    } else {
        in_process::run(&args)?
    };
    show(&args, &report);
    Ok(if report.mismatch_count > 0 {
        ExitCode::from(DAMAGE)
    } else if report.errors > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn show(args: &BenchArgs, report: &Report) {
    if args.json {
        crate::cli::output::json(report);
    } else {
        crate::cli::output::text(&report.text());
    }
}

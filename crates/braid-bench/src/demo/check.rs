//! Writes data and reads it back: with nbdcopy and fio if they are installed, else with the built-in client.

use super::sandbox::Sandbox;
use crate::verify;
use anyhow::Context;
use braid_api::{Array, ErrorDetail, Kind};
use braid_geometry::units::format_size;
use braid_nbd::client::{Client, ClientConfig, Endpoint};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::process::{Command, Stdio};

/// Request size of the sequential check, in bytes.
const SEQUENTIAL_BYTES: usize = 1 << 20;
/// Request size of the built-in client in the second check, in bytes.
const RANDOM_BYTES: usize = 4096;
/// The seeds of the data of the two checks.
const SEEDS: [u64; 2] = [50, 100];

/// A check that wrote data and read back the same data.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = DemoCheck)]
pub struct Check {
    /// The tool: `nbdcopy`, `fio`, or `the built-in client`.
    pub tool: &'static str,
    /// The order and the place of the writes.
    pub what: &'static str,
    /// Bytes written and read back.
    pub bytes: u64,
}

/// Writes `bytes` at the beginning of the array, and reads them back.
///
/// # Errors
/// A tool fails. [`Kind::Damaged`]: other data was read than written.
pub fn copy(sandbox: &Sandbox, uri: &str, bytes: u64) -> anyhow::Result<Check> {
    if !installed("nbdcopy", &["--version"]) {
        sandbox.say(&format!(
            "nbdcopy is not installed: the built-in client writes {} and reads it back.\n",
            format_size(bytes)
        ));
        built_in(uri, 0, bytes, SEQUENTIAL_BYTES, SEEDS[0])?;
        return Ok(Check { tool: "the built-in client", what: "sequential, from the beginning", bytes });
    }
    let (source, back) = (sandbox.path("source"), sandbox.path("back"));
    let mut file = BufWriter::new(File::create(&source).context("the data cannot be made")?);
    let mut data = vec![0; SEQUENTIAL_BYTES];
    for at in (0..bytes).step_by(SEQUENTIAL_BYTES) {
        verify::fill(&mut data, at, SEEDS[0]);
        file.write_all(&data).context("the data cannot be made")?;
    }
    file.into_inner().context("the data cannot be made")?;
    let (source_name, back_name) = (source.display().to_string(), back.display().to_string());
    run(sandbox, "nbdcopy", &["--flush", &source_name, uri])?;
    run(sandbox, "nbdcopy", &[uri, &back_name])?;
    let mut file = File::open(&back).context("what was read back is not there")?;
    for at in (0..bytes).step_by(SEQUENTIAL_BYTES) {
        file.read_exact(&mut data).context("what was read back is too short")?;
        compare(&data, at, SEEDS[0])?;
    }
    // The file is as long as the whole array, though sparse.
    let _ = std::fs::remove_file(&back);
    let _ = std::fs::remove_file(&source);
    sandbox.say(&format!("(all {} came back as they were written)\n", format_size(bytes)));
    Ok(Check { tool: "nbdcopy", what: "in and out again, from the beginning", bytes })
}

/// Writes `bytes` in blocks of 4 KiB at the beginning of the last zone, in random order with fio, and reads them back.
///
/// # Errors
/// As [`copy`].
pub fn random(sandbox: &Sandbox, uri: &str, array: &Array, bytes: u64) -> anyhow::Result<Check> {
    let offset = array.zones.last().map_or(0, |zone| zone.array_start_bytes);
    if !installed("fio", &["--enghelp=nbd"]) {
        // The client has one request in flight: less data keeps the demo short.
        let bytes = (bytes / 4).next_multiple_of(RANDOM_BYTES as u64);
        sandbox.say(&format!(
            "fio with its NBD engine is not installed: the built-in client writes {} and reads it back.\n",
            format_size(bytes)
        ));
        built_in(uri, offset, bytes, RANDOM_BYTES, SEEDS[1])?;
        return Ok(Check { tool: "the built-in client", what: "4 KiB blocks, in the last zone", bytes });
    }
    let arguments = [
        "--name=demo",
        "--ioengine=nbd",
        &format!("--uri={uri}"),
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=64",
        &format!("--offset={offset}"),
        &format!("--size={bytes}"),
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--output-format=terse",
        "--verify_state_save=0",
    ];
    run(sandbox, "fio", &arguments)?;
    sandbox.say(&format!("(fio found all {} as it had written them)\n", format_size(bytes)));
    Ok(Check { tool: "fio", what: "4 KiB blocks in random order, in the last zone", bytes })
}

fn installed(program: &str, arguments: &[&str]) -> bool {
    let status =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn run(sandbox: &Sandbox, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let shown: Vec<String> = arguments
        .iter()
        .map(|a| if a.contains(['?', '&', ' ']) { format!("'{a}'") } else { (*a).to_owned() })
        .collect();
    sandbox.say(&format!("$ {program} {}\n", shown.join(" ")));
    let out = Command::new(program)
        .args(arguments)
        .current_dir(sandbox.folder())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} cannot be run"))?;
    anyhow::ensure!(
        out.status.success(),
        "{program} failed ({}):\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(())
}

/// Writes all blocks with the built-in client, then reads all of them back and checks them.
fn built_in(uri: &str, offset: u64, bytes: u64, block: usize, seed: u64) -> anyhow::Result<()> {
    let endpoint: Endpoint = uri.parse().context("the export's address is not understood")?;
    let mut client = Client::connect(&endpoint, ClientConfig::default()).context("the export cannot be reached")?;
    let mut data = vec![0; block];
    for at in (offset..offset + bytes).step_by(block) {
        verify::fill(&mut data, at, seed);
        client.write_at(at, &data, false).with_context(|| format!("writing at byte {at}"))?;
    }
    client.flush().context("flushing")?;
    for at in (offset..offset + bytes).step_by(block) {
        client.read_at(at, &mut data).with_context(|| format!("reading at byte {at}"))?;
        compare(&data, at, seed)?;
    }
    client.disconnect().context("saying goodbye")
}

fn compare(data: &[u8], at: u64, seed: u64) -> Result<(), ErrorDetail> {
    match verify::check(data, at, seed) {
        None => Ok(()),
        Some(mismatch) => {
            Err(ErrorDetail::new(Kind::Damaged, format!("what was read back is not what was written: {mismatch}"))
                .remedy("this is a mistake in Braid, or the machine's memory or disk is broken"))
        }
    }
}

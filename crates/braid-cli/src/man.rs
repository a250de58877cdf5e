//! `braid man --dir DIR`: generates a manual page for each command from its `--help`.

use super::examples::EXAMPLES;
use super::output;
use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use roff::{Roff, bold, roman};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The date on the pages: that of the last release that changed the command line.
const DATE: &str = "2026-11-21";

/// The environment variables that every command reads.
const ENVIRONMENT: [(&str, &str); 11] = [
    ("BRAID_SOCKET", "the socket of the daemon's API"),
    ("BRAID_HOST", "a daemon on another machine instead, as https://NODE:10870"),
    ("BRAID_CA", "the certificate authority of that daemon"),
    ("BRAID_TOKEN_FILE", "a file with the token for that daemon"),
    ("BRAID_CERT", "the client certificate for that daemon"),
    ("BRAID_KEY", "the private key of the client certificate"),
    ("BRAID_STATE", "the folder of the daemon's state"),
    ("BRAID_SHARED_MEMORY", "the folder for the pools' in-memory logs, in shared memory"),
    ("BRAID_CONFIG", "the configuration"),
    ("NO_COLOR", "no colour, unless --color requests it"),
    ("COLUMNS", "the width of tables at a terminal, instead of the terminal's width"),
];

/// The exit statuses and their meanings.
pub const EXIT_STATUS: [(u8, &str); 8] = [
    (0, "done"),
    (1, "failed"),
    (2, "invalid arguments"),
    (3, "not found"),
    (4, "refused: in use, would destroy, or needs `--force` or `--yes`"),
    (5, "done, but something needs attention"),
    (6, "the daemon cannot be reached, is stopping, or does not know all disks yet"),
    (7, "damage found"),
];

/// Arguments of `braid man`.
#[derive(Args)]
pub struct ManArgs {
    /// The folder to write the pages to; it is created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
}

/// Writes the pages.
pub fn run(args: &ManArgs, root: Command) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("cannot create the folder {}", args.dir.display()))?;
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    collect(&root, "", &mut pages)?;
    for (name, page) in &pages {
        let path = args.dir.join(name);
        std::fs::write(&path, page).with_context(|| format!("cannot write the page {}", path.display()))?;
    }
    output::text(&format!("wrote {} manual pages to {}\n", pages.len(), args.dir.display()));
    Ok(ExitCode::SUCCESS)
}

/// Adds the pages of a command and its subcommands, with the names of their files.
fn collect(command: &Command, path: &str, into: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    let name = format!("braid{}", path.replace(' ', "-"));
    into.push((format!("{name}.1"), page(command, path, &name)?));
    for inner in command.get_subcommands() {
        collect(inner, &format!("{path} {}", inner.get_name()), into)?;
    }
    Ok(())
}

fn page(command: &Command, path: &str, name: &str) -> std::io::Result<Vec<u8>> {
    let command = command.clone().after_help("").after_long_help("");
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section("1")
        .date(DATE)
        .source(concat!("Braid ", env!("CARGO_PKG_VERSION")))
        .manual("Braid");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    let mut more = Roff::new();
    let below: Vec<&Command> = command.get_subcommands().collect();
    if !below.is_empty() {
        more.control("SH", ["COMMANDS"]);
        for inner in below {
            let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
            entry(&mut more, &format!("{name}-{}(1)", inner.get_name()), &(about + &also(inner)));
        }
    }
    let examples = EXAMPLES.iter().find(|(known, _)| *known == path.trim()).map(|(_, examples)| *examples);
    if let Some(examples) = examples {
        more.control("SH", ["EXAMPLES"]);
        more.control("nf", []);
        for example in examples {
            more.text([roman(*example)]);
        }
        more.control("fi", []);
    }
    more.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in EXIT_STATUS {
        entry(&mut more, &status.to_string(), &meaning.replace('`', ""));
    }
    more.control("SH", ["ENVIRONMENT"]);
    for (variable, meaning) in ENVIRONMENT {
        entry(&mut more, variable, meaning);
    }
    if let Some((above, _)) = name.rsplit_once('-') {
        more.control("SH", ["SEE ALSO"]);
        more.text([bold(above), roman("(1)")]);
    }
    out.write_all(more.render().as_bytes())?;
    Ok(tidy(&out))
}

/// Returns a note with the aliases of a command; empty if it has none.
fn also(command: &Command) -> String {
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if aliases.is_empty() { String::new() } else { format!(" (also: {})", aliases.join(", ")) }
}

fn entry(page: &mut Roff, term: &str, text: &str) {
    page.control("TP", []);
    page.text([bold(term)]);
    page.text([roman(text)]);
}

/// Returns the page without what checkers of manual pages report in the renderer's output: empty lines, trailing spaces,
/// paragraph breaks before a heading, characters beyond ASCII.
fn tidy(page: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(page);
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let breaks = |line: &str| matches!(line, ".PP" | ".br" | ".sp");
    let mut at = 1;
    while at < lines.len() {
        let heading = lines[at].starts_with(".SH") || lines[at].starts_with(".SS");
        let twice = breaks(lines[at]) && breaks(lines[at - 1]);
        if (heading && breaks(lines[at - 1])) || twice || (breaks(lines[at]) && lines[at - 1].starts_with(".S")) {
            lines.remove(if heading { at - 1 } else { at });
            at = at.saturating_sub(1).max(1);
        } else {
            at += 1;
        }
    }
    let mut tidy = String::with_capacity(page.len());
    for line in lines {
        for c in line.chars() {
            // Every roff reads these, whatever input encoding it assumes.
            if c.is_ascii() { tidy.push(c) } else { tidy.push_str(&format!("\\[u{:04X}]", u32::from(c))) }
        }
        tidy.push('\n');
    }
    tidy.into_bytes()
}

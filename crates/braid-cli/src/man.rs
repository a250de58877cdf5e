//! `braid man --dir DIR`: a manual page for each command, made of what `--help` says.

use super::examples::EXAMPLES;
use super::output;
use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use roff::{Roff, bold, roman};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The date on the pages: of the last release that changed the command line.
const DATE: &str = "2026-11-21";

/// What of the environment every command heeds.
const ENVIRONMENT: [(&str, &str); 11] = [
    ("BRAID_SOCKET", "the socket of the daemon's API"),
    ("BRAID_HOST", "a daemon on another machine instead, as https://NODE:10870"),
    ("BRAID_CA", "the authority of that daemon's certificate"),
    ("BRAID_TOKEN_FILE", "a file with the token to show it"),
    ("BRAID_CERT", "the certificate to show it"),
    ("BRAID_KEY", "the certificate's private key"),
    ("BRAID_STATE", "the folder of the daemon's state"),
    ("BRAID_SHARED_MEMORY", "the folder in shared memory of the tails of pools"),
    ("BRAID_CONFIG", "the configuration"),
    ("NO_COLOR", "no colour, unless --color says otherwise"),
    ("COLUMNS", "how wide tables are at a terminal, instead of its own width"),
];

/// What the exit status says.
pub const EXIT_STATUS: [(u8, &str); 8] = [
    (0, "done"),
    (1, "failed"),
    (2, "the arguments are wrong"),
    (3, "there is no such thing"),
    (4, "refused: in use, would destroy, or needs `--force` or `--yes`"),
    (5, "done, but something needs attention"),
    (6, "the daemon is not reachable, is stopping, or does not know all disks yet"),
    (7, "damage found"),
];

/// Arguments of `braid man`.
#[derive(Args)]
pub struct ManArgs {
    /// The folder that the pages are written to; it is made if need be
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
}

/// Writes the pages.
pub fn run(args: &ManArgs, root: Command) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("the folder {} cannot be made", args.dir.display()))?;
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    collect(&root, "", &mut pages)?;
    for (name, page) in &pages {
        let path = args.dir.join(name);
        std::fs::write(&path, page).with_context(|| format!("the page {} cannot be written", path.display()))?;
    }
    output::text(&format!("{} manual pages are in {}\n", pages.len(), args.dir.display()));
    Ok(ExitCode::SUCCESS)
}

/// The pages of a command and of those below it, by the names of their files.
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

/// The aliases of a command, if it has any.
fn also(command: &Command) -> String {
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if aliases.is_empty() { String::new() } else { format!(" (also: {})", aliases.join(", ")) }
}

fn entry(page: &mut Roff, term: &str, text: &str) {
    page.control("TP", []);
    page.text([bold(term)]);
    page.text([roman(text)]);
}

/// The page without what the renderer leaves behind and checkers of manual pages complain of: empty lines, spaces at ends
/// of lines, paragraphs before a heading, letters beyond ASCII.
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
            // Any roff reads these, whatever it takes its input to be.
            if c.is_ascii() { tidy.push(c) } else { tidy.push_str(&format!("\\[u{:04X}]", u32::from(c))) }
        }
        tidy.push('\n');
    }
    tidy.into_bytes()
}

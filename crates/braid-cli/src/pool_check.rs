//! `braid pool check`.

use super::array::name_or_uuid;
use super::confirm::confirm;
use super::failure::{ATTENTION, DAMAGE};
use super::{Ask, output};
use braid_api::{CheckPool, PoolChecked, PoolDamage};
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;

/// Lines of damage that people are shown.
const LINES_MAX: usize = 40;

#[derive(Args)]
pub struct CheckArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Write again what the pool knows although its table on a disk is damaged
    #[arg(long)]
    repair: bool,
    /// Give up what nobody knows: what stood there is lost, its space is free, and who was in doubt can be written again
    #[arg(long)]
    give_up: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Runs the command. Exit status 7 where something is damaged or unknown, 5 where something is in doubt, or a member was not looked at.
pub async fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let client = args.ask.client()?;
    let path = format!("/v1/pools/{}/check", args.pool);
    if args.give_up {
        let before: PoolChecked = client.post(&path, &CheckPool::default()).await?;
        if before.misread > 0 {
            return Err(PoolChecked::refuse_give_up(&before.pool, before.misread).into());
        }
        if before.unknown > 0 || !before.members_lost.is_empty() {
            let places = (before.unknown > 0).then(|| format!("in {} damaged places", before.unknown));
            let lost = (!before.members_lost.is_empty())
                .then(|| format!("on members that were given up ({})", members(&before.members_lost)));
            let both: Vec<String> = places.into_iter().chain(lost).collect();
            let what = format!(
                "What stood {} of pool {} is lost; it may have been of {}",
                both.join(" and "),
                before.pool,
                before.in_doubt.join(", ")
            );
            confirm(&what, args.yes)?;
        }
    }
    let checked: PoolChecked = client.post(&path, &CheckPool { repair: args.repair, give_up: args.give_up }).await?;
    output::show(args.ask.json, &checked, show);
    Ok(ExitCode::from(status(&checked)))
}

fn status(checked: &PoolChecked) -> u8 {
    match (checked.is_damaged(), checked.is_complete()) {
        (true, _) => DAMAGE,
        (false, false) => ATTENTION,
        (false, true) => 0,
    }
}

fn show(checked: &PoolChecked) -> String {
    let mut text = String::new();
    let used = checked.whole_records + checked.packed_records;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "pool {}: {} extents in use ({} with scattered blocks), {} free, {} ranges of zeros, {} volumes, snapshots and what of them is being deleted",
        checked.pool,
        output::thousands(used),
        output::thousands(checked.packed_records),
        output::thousands(checked.free_records),
        output::thousands(checked.zero_records),
        checked.owners
    );
    if checked.repaired > 0 {
        let _ = writeln!(text, "{} damaged places were written again", checked.repaired);
    }
    if checked.given_up > 0 {
        let _ = writeln!(text, "{} damaged places were given up", checked.given_up);
    }
    if !checked.members_given_up.is_empty() {
        let _ = writeln!(text, "what members had that were given up is lost: {}", members(&checked.members_given_up));
    }
    for problem in &checked.problems {
        let _ = writeln!(text, "wrong: {problem}");
    }
    if checked.problems_found > checked.problems.len() as u64 {
        let _ = writeln!(text, "{} are wrong in all", checked.problems_found);
    }
    for damage in checked.damage.iter().take(LINES_MAX) {
        let word = if damage.reads { "misread" } else { "damaged" };
        let _ = writeln!(text, "{word}: {}", line(damage));
    }
    let places = checked.damaged + checked.misread;
    if places > LINES_MAX as u64 {
        let _ = writeln!(text, "{places} places in all (--json names more)");
    }
    if !checked.members_absent.is_empty() {
        let _ = writeln!(text, "not looked at: members that are absent ({})", members(&checked.members_absent));
    }
    if !checked.members_lost.is_empty() {
        let _ = writeln!(text, "not looked at: members that were given up ({})", members(&checked.members_lost));
    }
    if !checked.in_doubt.is_empty() {
        let _ = writeln!(text, "in doubt, and read-only: {}", checked.in_doubt.join(", "));
    }
    if !checked.in_doubt_absent.is_empty() {
        let _ = writeln!(
            text,
            "in doubt, and read-only, until the members that are absent are back: {}",
            checked.in_doubt_absent.join(", ")
        );
    }
    text.push_str(&advice(checked));
    if checked.damage.iter().any(|damage| damage.known) {
        let _ = writeln!(
            text,
            "what is known although it is damaged there can be written again: braid pool check {} --repair",
            checked.pool
        );
    }
    if !checked.is_damaged() {
        text.push_str(match checked.is_complete() {
            true => "nothing is damaged. ",
            false => "what was read is whole. ",
        });
        text.push_str("Data are not compared: volumes have no checksums of their own\n");
    }
    text
}

/// What to do about doubts.
fn advice(checked: &PoolChecked) -> String {
    let PoolChecked { pool, misread, .. } = checked;
    let mut text = String::new();
    // Writing to a String cannot fail.
    if *misread > 0 {
        let _ = writeln!(
            text,
            "{misread} of the places were misread when the pool was opened, and can be read now: restart the daemon, and they are there again.\nNothing is given up before that"
        );
    } else if !checked.in_doubt.is_empty() {
        let _ = writeln!(
            text,
            "{} copy off what can be read,\nremove the exports, then: braid pool check {pool} --give-up",
            match checked.members_lost.is_empty() {
                true => "What a disk or a cable only misread is there again when the daemon is started anew. Else"
                    .to_owned(),
                false => format!(
                    "They may have had something on members that were given up ({}):",
                    members(&checked.members_lost)
                ),
            }
        );
    }
    if checked.in_doubt.is_empty() && !checked.members_lost.is_empty() {
        let _ = writeln!(text, "members that were given up are forgotten by: braid pool check {pool} --give-up");
    }
    if !checked.members_absent.is_empty() {
        let _ = writeln!(
            text,
            "attach what is absent, then: braid pool start {pool} (or, if it is lost: braid pool remove {pool} NUMBER --force)"
        );
    }
    text
}

fn members(numbers: &[u8]) -> String {
    numbers.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")
}

fn line(damage: &PoolDamage) -> String {
    let what = match damage.what.as_str() {
        "owner" => "place {} in the list of volumes",
        "ring_start" => "start {} of the ring",
        "addresses" => "addresses of extent {}",
        _ => "record {}",
    };
    let mut text = format!("member {}, {}", damage.member, what.replace("{}", &damage.index.to_string()));
    if damage.reads {
        text.push_str(": could not be believed when the pool was opened, and can be read now");
    } else if damage.known {
        text.push_str(": the pool knows what it is");
    } else if let Some(name) = &damage.name {
        let _ = write!(text, ", of {name}");
    } else if let Some(hint) = &damage.hint {
        let _ = write!(text, ": nobody knows whose it was (its bytes, not to be believed, say: {hint})");
    }
    text
}

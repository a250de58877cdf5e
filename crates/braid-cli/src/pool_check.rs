//! `braid pool check`.

use super::confirm::confirm;
use super::failure::{ATTENTION, DAMAGE};
use super::object_names::name_or_uuid;
use super::{ApiArgs, output};
use braid_api::{CheckPool, PoolChecked, PoolDamage};
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;

/// Maximum number of damage lines in the text output.
const LINES_MAX: usize = 40;

#[derive(Args)]
pub struct CheckArgs {
    /// The pool, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    pool: String,
    /// Rewrite damaged table entries on a disk whose content the pool still knows
    #[arg(long)]
    repair: bool,
    /// Give up damaged entries whose content is unknown: it is lost, its space is freed, and the volumes in doubt become writable again
    #[arg(long)]
    give_up: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs the command. Exit status 7 if something is damaged or unknown, 5 if a volume is in doubt or a member was not checked.
pub async fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let client = args.api.client()?;
    let path = format!("/v1/pools/{}/check", args.pool);
    if args.give_up {
        let before: PoolChecked = client.post(&path, &CheckPool::default()).await?;
        if before.misread > 0 {
            return Err(PoolChecked::refuse_give_up(&before.pool, before.misread).into());
        }
        if before.unknown > 0 || !before.members_lost.is_empty() {
            let entries = (before.unknown > 0).then(|| format!("in {} damaged table entries", before.unknown));
            let lost = (!before.members_lost.is_empty())
                .then(|| format!("on members that were given up ({})", members(&before.members_lost)));
            let both: Vec<String> = entries.into_iter().chain(lost).collect();
            let what = format!(
                "The content {} of pool {} will be lost; it may belong to {}",
                both.join(" and "),
                before.pool,
                before.in_doubt.join(", ")
            );
            confirm(&what, args.yes)?;
        }
    }
    let checked: PoolChecked = client.post(&path, &CheckPool { repair: args.repair, give_up: args.give_up }).await?;
    output::show(args.api.json, &checked, show);
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
        "pool {}: {} extents in use ({} packed), {} free, {} ranges of zeros, {} volumes and snapshots, including those being deleted",
        checked.pool,
        output::thousands(used),
        output::thousands(checked.packed_records),
        output::thousands(checked.free_records),
        output::thousands(checked.zero_records),
        checked.owners
    );
    if checked.repaired > 0 {
        let _ = writeln!(text, "rewrote {} damaged table entries", checked.repaired);
    }
    if checked.given_up > 0 {
        let _ = writeln!(text, "gave up {} damaged table entries", checked.given_up);
    }
    if !checked.members_given_up.is_empty() {
        let _ = writeln!(text, "the content of given-up members is lost: {}", members(&checked.members_given_up));
    }
    for problem in &checked.problems {
        let _ = writeln!(text, "wrong: {problem}");
    }
    if checked.problems_found > checked.problems.len() as u64 {
        let _ = writeln!(text, "{} problems in total", checked.problems_found);
    }
    for damage in checked.damage.iter().take(LINES_MAX) {
        let word = if damage.reads { "misread" } else { "damaged" };
        let _ = writeln!(text, "{word}: {}", line(damage));
    }
    let entries = checked.damaged + checked.misread;
    if entries > LINES_MAX as u64 {
        let _ = writeln!(text, "{entries} damaged entries in total (--json lists more)");
    }
    if !checked.members_missing.is_empty() {
        let _ = writeln!(text, "not checked: missing members ({})", members(&checked.members_missing));
    }
    if !checked.members_lost.is_empty() {
        let _ = writeln!(text, "not checked: given-up members ({})", members(&checked.members_lost));
    }
    if !checked.in_doubt.is_empty() {
        let _ = writeln!(text, "in doubt, and read-only: {}", checked.in_doubt.join(", "));
    }
    if !checked.in_doubt_missing.is_empty() {
        let _ = writeln!(
            text,
            "in doubt, and read-only, until the missing members return: {}",
            checked.in_doubt_missing.join(", ")
        );
    }
    text.push_str(&advice(checked));
    if checked.damage.iter().any(|damage| damage.known) {
        let _ = writeln!(
            text,
            "rewrite the damaged entries whose content the pool knows: braid pool check {} --repair",
            checked.pool
        );
    }
    if !checked.is_damaged() {
        text.push_str(match checked.is_complete() {
            true => "nothing is damaged. ",
            false => "what was read is sound. ",
        });
        text.push_str("Data is not compared: volumes have no checksums\n");
    }
    text
}

/// Returns what to do about volumes in doubt and missing members.
fn advice(checked: &PoolChecked) -> String {
    let PoolChecked { pool, misread, .. } = checked;
    let mut text = String::new();
    // Writing to a String cannot fail.
    if *misread > 0 {
        let _ = writeln!(
            text,
            "{misread} of the entries were misread when the pool was opened, and can be read now: restart the daemon to recover them.\nNothing is given up before that"
        );
    } else if !checked.in_doubt.is_empty() {
        let _ = writeln!(
            text,
            "{} copy off what can be read,\nremove the exports, then: braid pool check {pool} --give-up",
            match checked.members_lost.is_empty() {
                true =>
                    "What a disk or a cable only misread is recovered when the daemon restarts. Otherwise".to_owned(),
                false =>
                    format!("They may have data on members that were given up ({}):", members(&checked.members_lost)),
            }
        );
    }
    if checked.in_doubt.is_empty() && !checked.members_lost.is_empty() {
        let _ = writeln!(text, "remove the given-up members from the pool: braid pool check {pool} --give-up");
    }
    if !checked.members_missing.is_empty() {
        let _ = writeln!(
            text,
            "attach the missing members, then: braid pool start {pool} (or, if a member is lost: braid pool remove {pool} NUMBER --force)"
        );
    }
    text
}

fn members(numbers: &[u8]) -> String {
    numbers.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")
}

fn line(damage: &PoolDamage) -> String {
    let what = match damage.what.as_str() {
        "owner" => "entry {} of the volume table",
        "ring_start" => "checkpoint {}",
        "addresses" => "addresses of extent {}",
        _ => "record {}",
    };
    let mut text = format!("member {}, {}", damage.member, what.replace("{}", &damage.index.to_string()));
    if damage.reads {
        text.push_str(": misread when the pool was opened, and can be read now");
    } else if damage.known {
        text.push_str(": its content is known to the pool");
    } else if let Some(name) = &damage.name {
        let _ = write!(text, ", of {name}");
    } else if let Some(hint) = &damage.hint {
        let _ = write!(text, ": its owner is unknown (its bytes, not validated, say: {hint})");
    }
    text
}

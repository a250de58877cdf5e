//! `braid replica …`: what this node keeps of volumes that are kept on several nodes; and who votes in one that this node serves.

use super::confirm::confirm;
use super::{Ask, AskList, output, segment};
use braid_api::{AddVoter, ErrorDetail, Kind, RebuildVoter, Replica, ReplicaList, ReplicatedVolume, Voter};
use braid_geometry::units::format_size;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// List the replicas and witnesses of this node
    List(AskList),
    /// Show everything about a replica or witness, with what it has promised
    Show(NameArgs),
    /// Delete a replica with its data, or a witness, that its volume does not need any more
    Delete(DeleteArgs),
    /// Keep a volume that this node serves on one more node, or have one more node vote
    ///
    /// The new voter votes when this returns; a replica is filled from then on, while clients go on. Of each step of the volume (to open it, to
    /// drop a replica) more voters may be needed then: docs/replication.md has the numbers.
    Add(AddArgs),
    /// Keep a volume that this node serves on one node less, for good
    ///
    /// What the replica had is removed on its node. A node that is gone for ever is left out all the same: most of the other voters have to answer.
    Remove(RemoveArgs),
    /// Make a replica of a volume that this node serves anew, from nothing
    ///
    /// For a replica whose disks were lost, or whose data are not to be trusted. It is left out, removed, made again and filled, with its
    /// snapshots; meanwhile the volume has one replica less.
    Rebuild(RebuildArgs),
}

#[derive(Args)]
pub struct AddArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// Where the replica is to be
    #[arg(value_name = "NODE/POOL", required_unless_present = "witness", conflicts_with = "witness")]
    place: Option<String>,
    /// A node that votes, and keeps no data
    #[arg(long, value_name = "NODE")]
    witness: Option<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// The node of the replica or witness
    #[arg(value_name = "NODE")]
    node: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RebuildArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// The node of the replica
    #[arg(value_name = "NODE")]
    node: String,
    /// Another pool of that node
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct NameArgs {
    /// The replica or witness, by name or by the volume's UUID
    #[arg(value_name = "REPLICA")]
    replica: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The replica or witness, by name or by the volume's UUID
    #[arg(value_name = "REPLICA")]
    replica: String,
    /// Delete it although a controller is connected, or it has promised a controller something
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List(ask) => {
            let list: ReplicaList = ask.client()?.get("/v1/replicas").await?;
            let names = list.replicas.iter().map(|replica| replica.name.as_str());
            ask.print(&list, names, &list.incomplete, |style| table(&list, style));
        }
        Verb::Show(args) => {
            let replica: Replica = args.ask.client()?.get(&path(&args.replica)).await?;
            output::show(args.ask.json, &replica, show);
        }
        Verb::Delete(args) => {
            let lost = "will be lost here with its vote, and with its data, if it has any";
            confirm(&format!("Replica {} {lost}", args.replica), args.yes)?;
            let url = format!("{}?force={}", path(&args.replica), args.force);
            let replica: Replica = args.ask.client()?.delete(&url).await?;
            output::show(args.ask.json, &replica, |replica| format!("replica {} is deleted here\n", replica.name));
        }
        Verb::Add(args) => {
            let (node, pool) = match (&args.place, &args.witness) {
                (Some(place), _) => match place.split_once('/') {
                    Some((node, pool)) if !node.is_empty() && !pool.is_empty() => {
                        (node.to_owned(), Some(pool.to_owned()))
                    }
                    _ => anyhow::bail!(wrong_place(place)),
                },
                (None, witness) => (witness.clone().unwrap_or_default(), None),
            };
            let body = AddVoter { node, pool };
            let path = format!("/v1/replicated/{}/voters", segment(&args.volume));
            let volume: ReplicatedVolume = args.ask.client()?.post(&path, &body).await?;
            output::show(args.ask.json, &volume, |volume| {
                let what = if body.pool.is_some() { "is being filled" } else { "votes" };
                format!(
                    "volume {}: {} {what}\n{}",
                    volume.name,
                    args.place.as_ref().unwrap_or(&body.node),
                    seats(volume)
                )
            });
        }
        Verb::Remove(args) => {
            let what = format!(
                "The replica or witness of volume {} on {} will be removed, with its data",
                args.volume, args.node
            );
            confirm(&what, args.yes)?;
            let path = format!("/v1/replicated/{}/voters/{}", segment(&args.volume), segment(&args.node));
            let volume: ReplicatedVolume = args.ask.client()?.delete(&path).await?;
            output::show(args.ask.json, &volume, |volume| {
                format!("volume {}: {} is out for good\n{}", volume.name, args.node, seats(volume))
            });
        }
        Verb::Rebuild(args) => {
            let what = format!(
                "The replica of volume {} on {} will be made anew: what it has is lost",
                args.volume, args.node
            );
            confirm(&what, args.yes)?;
            let path = format!("/v1/replicated/{}/voters/{}/rebuild", segment(&args.volume), segment(&args.node));
            let volume: ReplicatedVolume = args.ask.client()?.post(&path, &RebuildVoter { pool: args.pool }).await?;
            output::show(args.ask.json, &volume, |volume| {
                format!("volume {}: the replica on {} is being filled\n{}", volume.name, args.node, seats(volume))
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn wrong_place(place: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("{place:?} is no place of a replica"))
        .remedy("write NODE/POOL, for example node4/tank; a witness is --witness node4")
}

/// Who votes now, a line each.
fn seats(volume: &ReplicatedVolume) -> String {
    let place = |voter: &Voter| match &voter.pool {
        Some(pool) => format!("{}/{pool}", voter.node),
        None => voter.node.clone(),
    };
    volume.voters.iter().map(|voter| format!("  {}: {}\n", place(voter), voter.state.word())).collect()
}

fn path(replica: &str) -> String {
    format!("/v1/replicas/{}", segment(replica))
}

/// Which voters these bits name.
fn voters(bits: u16) -> String {
    let voters: Vec<String> = (0..16).filter(|voter| bits >> voter & 1 == 1).map(|voter| voter.to_string()).collect();
    if voters.is_empty() { "none".to_owned() } else { voters.join(", ") }
}

fn table(list: &ReplicaList, style: ListStyle) -> String {
    if list.replicas.is_empty() {
        let known = if list.incomplete.is_empty() { "on this node" } else { "are known on this node yet" };
        return format!("no replicas or witnesses {known}\n");
    }
    let columns = ["NAME", "VOTER", "STATE", "DATA", "SIZE", "EPOCH", "CONNECTIONS"];
    let mut table = style.table(columns, ["VOLUME UUID"]);
    for replica in &list.replicas {
        let cells = [
            replica.name.clone(),
            format!("{} of {}", replica.voter, replica.voters),
            replica.state.word().to_owned(),
            replica.data.clone().unwrap_or_else(|| "witness".to_owned()),
            if replica.witness { "-".to_owned() } else { format_size(replica.size_bytes) },
            replica.register.as_ref().map_or_else(|| "-".to_owned(), |register| register.epoch.to_string()),
            replica.connections.to_string(),
        ];
        table.row(cells, [replica.volume.clone()]);
    }
    table.right([4, 5, 6]);
    table.render()
}

fn show(replica: &Replica) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<13}{value}");
    };
    let bytes = |bytes: u64| format!("{} ({} bytes)", format_size(bytes), output::thousands(bytes));
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
    line(if replica.witness { "witness" } else { "replica" }, replica.name.clone());
    line("of volume", replica.volume.clone());
    line("voter", format!("{} of {}", replica.voter, replica.voters));
    let why = replica.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    line("state", format!("{}{why}", replica.state.word()));
    if !replica.witness {
        line("data", or_none(&replica.data));
        line("size", bytes(replica.size_bytes));
        line("beside them", format!("{} in front, {} behind", bytes(replica.head_bytes), bytes(replica.tail_bytes)));
        line("connections", replica.connections.to_string());
    }
    line("boot", if replica.boot.is_empty() { "not known".to_owned() } else { replica.boot.clone() });
    if let Some(register) = &replica.register {
        let let_go = if register.released { ", which has let go" } else { "" };
        let controller = format!("of controller {}{let_go}", or_none(&register.controller));
        line("epoch", format!("{} {controller}", register.epoch));
        let vote = &register.vote;
        let when = format!("vote {} of epoch {}, line {}", vote.sequence, vote.epoch, vote.lineage);
        line("in sync", format!("{} ({when})", voters(vote.in_sync)));
        if vote.epoch > 0 && (vote.seating.voters | vote.seating.before) >> replica.voter & 1 == 0 {
            line("votes no more", "its volume goes on without it; what it has is not believed".to_owned());
        }
        line("believed in", register.boot.as_ref().map_or_else(|| "no boot".to_owned(), |boot| format!("boot {boot}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voters_are_named() {
        assert_eq!((voters(0), voters(0b1), voters(0x8005)), ("none".into(), "0".into(), "0, 2, 15".into()));
    }
}

//! `braid replica …`: the replicas and witnesses on this node, and the voters of a replicated volume that this node serves.

use super::confirm::confirm;
use super::{ApiArgs, ApiListArgs, color, output, segment};
use braid_api::{AddVoter, ErrorDetail, Kind, RebuildVoter, Replica, ReplicaList, ReplicatedVolume, Voter};
use braid_geometry::units::format_size;
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// List the replicas and witnesses of this node
    List(ApiListArgs),
    /// Show everything about a replica or witness, with its vote and epoch
    Show(NameArgs),
    /// Delete a replica with its data, or a witness, that its volume no longer needs
    Delete(DeleteArgs),
    /// Add a replica or a witness to a volume that this node serves
    ///
    /// The new voter votes when this command returns; a new replica is then rebuilt, online. A quorum of the volume (to attach it, to drop a
    /// replica) may take more voters from then on: see docs/guide/replication.md.
    Add(AddArgs),
    /// Remove a replica or a witness of a volume that this node serves
    ///
    /// The data of the replica is deleted on its node. The node may be lost for good; a majority of the other voters has to reply.
    Remove(RemoveArgs),
    /// Rebuild a replica of a volume that this node serves, from nothing
    ///
    /// For a replica whose disks are lost, or whose data cannot be trusted. It is dropped, deleted, created again and filled, with its
    /// snapshots; meanwhile the volume has one replica less.
    Rebuild(RebuildArgs),
}

#[derive(Args)]
pub struct AddArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// The node and the pool of the new replica
    #[arg(value_name = "NODE/POOL", required_unless_present = "witness", conflicts_with = "witness")]
    place: Option<String>,
    /// A node that votes and keeps no data
    #[arg(long, value_name = "NODE")]
    witness: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// The node of the replica or witness
    #[arg(value_name = "NODE")]
    node: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RebuildArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// The node of the replica
    #[arg(value_name = "NODE")]
    node: String,
    /// The pool of that node for the new replica [default: the present one]
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct NameArgs {
    /// The replica or witness, by name or by the volume's UUID
    #[arg(value_name = "REPLICA")]
    replica: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The replica or witness, by name or by the volume's UUID
    #[arg(value_name = "REPLICA")]
    replica: String,
    /// Delete it although a controller is connected, or its vote is granted to a controller
    #[arg(long)]
    force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs one of the commands.
pub async fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List(api) => {
            let list: ReplicaList = api.client()?.get("/v1/replicas").await?;
            let names = list.replicas.iter().map(|replica| replica.name.as_str());
            api.print(&list, names, &list.incomplete, |style| table(&list, style));
        }
        Verb::Show(args) => {
            let replica: Replica = args.api.client()?.get(&path(&args.replica)).await?;
            output::show(args.api.json, &replica, show);
        }
        Verb::Delete(args) => {
            let lost = "will be deleted on this node, with its vote and its data";
            confirm(&format!("Replica {} {lost}", args.replica), args.yes)?;
            let url = format!("{}?force={}", path(&args.replica), args.force);
            let replica: Replica = args.api.client()?.delete(&url).await?;
            output::show(args.api.json, &replica, |replica| format!("deleted replica {} on this node\n", replica.name));
        }
        Verb::Add(args) => {
            let (node, pool) = match (&args.place, &args.witness) {
                (Some(place), _) => match place.split_once('/') {
                    Some((node, pool)) if !node.is_empty() && !pool.is_empty() => {
                        (node.to_owned(), Some(pool.to_owned()))
                    }
                    _ => anyhow::bail!(invalid_place(place)),
                },
                (None, witness) => (witness.clone().unwrap_or_default(), None),
            };
            let body = AddVoter { node, pool };
            let path = format!("/v1/replicated/{}/voters", segment(&args.volume));
            let volume: ReplicatedVolume = args.api.client()?.post(&path, &body).await?;
            output::show(args.api.json, &volume, |volume| {
                let what = if body.pool.is_some() { "is being rebuilt" } else { "votes" };
                format!(
                    "volume {}: {} {what}\n{}",
                    volume.name,
                    args.place.as_ref().unwrap_or(&body.node),
                    voter_lines(volume)
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
            let volume: ReplicatedVolume = args.api.client()?.delete(&path).await?;
            output::show(args.api.json, &volume, |volume| {
                format!("volume {}: {} was removed\n{}", volume.name, args.node, voter_lines(volume))
            });
        }
        Verb::Rebuild(args) => {
            let what = format!(
                "The replica of volume {} on {} will be deleted and rebuilt: its present data will be lost",
                args.volume, args.node
            );
            confirm(&what, args.yes)?;
            let path = format!("/v1/replicated/{}/voters/{}/rebuild", segment(&args.volume), segment(&args.node));
            let volume: ReplicatedVolume = args.api.client()?.post(&path, &RebuildVoter { pool: args.pool }).await?;
            output::show(args.api.json, &volume, |volume| {
                format!(
                    "volume {}: the replica on {} is being rebuilt\n{}",
                    volume.name,
                    args.node,
                    voter_lines(volume)
                )
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn invalid_place(place: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("{place:?} does not name the node and the pool of a replica"))
        .remedy("write NODE/POOL, or --witness NODE for a witness. Examples: node4/tank; --witness node4")
}

/// Returns a line for each voter of the volume.
fn voter_lines(volume: &ReplicatedVolume) -> String {
    let place = |voter: &Voter| match &voter.pool {
        Some(pool) => format!("{}/{pool}", voter.node),
        None => voter.node.clone(),
    };
    volume.voters.iter().map(|voter| format!("  {}: {}\n", place(voter), color::state(voter.state.word()))).collect()
}

fn path(replica: &str) -> String {
    format!("/v1/replicas/{}", segment(replica))
}

/// Returns the voters that these bits name.
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
    table.align_right([4, 5, 6]);
    table.states([2]);
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
    line("state", format!("{}{why}", color::state(replica.state.word())));
    if !replica.witness {
        line("data", or_none(&replica.data));
        line("size", bytes(replica.size_bytes));
        line("around it", format!("{} in front, {} behind", bytes(replica.head_bytes), bytes(replica.tail_bytes)));
        line("connections", replica.connections.to_string());
    }
    line("boot", if replica.boot.is_empty() { "not known".to_owned() } else { replica.boot.clone() });
    if let Some(register) = &replica.register {
        let released = if register.released { ", which has released it" } else { "" };
        let controller = format!("of controller {}{released}", or_none(&register.controller));
        line("epoch", format!("{} {controller}", register.epoch));
        let vote = &register.vote;
        let when = format!("vote {} of epoch {}, lineage {}", vote.sequence, vote.epoch, vote.lineage);
        line("in sync", format!("{} ({when})", voters(vote.in_sync)));
        if vote.epoch > 0 && (vote.membership.voters | vote.membership.previous_voters) >> replica.voter & 1 == 0 {
            line("no vote", "its volume continues without it; its data is not trusted".to_owned());
        }
        line("trusted in", register.boot.as_ref().map_or_else(|| "no boot".to_owned(), |boot| format!("boot {boot}")));
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

//! `braid replica …`: what this node keeps of volumes that are kept on several nodes.

use super::confirm::confirm;
use super::{Ask, output, segment};
use braid_api::{Replica, ReplicaList};
use braid_geometry::units::format_size;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// List the replicas and witnesses of this node
    List(Ask),
    /// Show everything about a replica or witness, with what it has promised
    Show(NameArgs),
    /// Delete a replica with its data, or a witness, that its volume does not need any more
    Delete(DeleteArgs),
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
            output::show(ask.json, &list, table);
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
    }
    Ok(ExitCode::SUCCESS)
}

fn path(replica: &str) -> String {
    format!("/v1/replicas/{}", segment(replica))
}

/// Which voters these bits name.
fn voters(bits: u16) -> String {
    let voters: Vec<String> = (0..16).filter(|voter| bits >> voter & 1 == 1).map(|voter| voter.to_string()).collect();
    if voters.is_empty() { "none".to_owned() } else { voters.join(", ") }
}

fn table(list: &ReplicaList) -> String {
    if list.replicas.is_empty() {
        return "no replicas or witnesses on this node\n".to_owned();
    }
    let mut table = output::table(["NAME", "VOTER", "STATE", "DATA", "SIZE", "EPOCH", "CONNECTIONS"]);
    for replica in &list.replicas {
        table.add_row([
            replica.name.clone(),
            format!("{} of {}", replica.voter, replica.voters),
            replica.state.word().to_owned(),
            replica.data.clone().unwrap_or_else(|| "witness".to_owned()),
            if replica.witness { "-".to_owned() } else { format_size(replica.size_bytes) },
            replica.register.as_ref().map_or_else(|| "-".to_owned(), |register| register.epoch.to_string()),
            replica.connections.to_string(),
        ]);
    }
    output::right(&mut table, [4, 5, 6]);
    output::render(&table)
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

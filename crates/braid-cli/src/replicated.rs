//! `braid volume` for replicated volumes, whose names have no pool.

use super::confirm::confirm;
use super::{ApiArgs, ApiListArgs, color, output, segment};
use braid_api::{
    Array, ClusterVolumeList, ClusterVoter, ClusterVoterState, CreateReplicated, ErrorDetail, ForcedOpening, Kind,
    ReplicatedList, ReplicatedVolume, RollbackReplicated, Service,
};
use braid_client::Client;
use braid_geometry::units::format_size;
use braid_terminal::listing::ListStyle;
use std::fmt::Write;

/// The value of `--replicas`: where the replicas are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// This many replicas, on the nodes with the most free space.
    Count(u8),
    /// One replica in each of these pools, each named NODE/POOL.
    At(Vec<String>),
}

/// Parses `--replicas`, for clap.
pub fn replicas(text: &str) -> Result<Replicas, String> {
    if let Ok(count) = text.parse() {
        return Ok(Replicas::Count(count));
    }
    let named: Vec<String> = text.split(',').map(str::to_owned).collect();
    match named.iter().find(|place| place.split('/').filter(|part| !part.is_empty()).count() != 2) {
        None => Ok(Replicas::At(named)),
        Some(wrong) => {
            Err(format!("{wrong:?}: write NODE/POOL,NODE/POOL,… or a number. Examples: node1/tank,node2/tank; 3"))
        }
    }
}

/// Whether the name is that of a replicated volume: it has no pool and is not a UUID.
pub fn is_replicated(name: &str) -> bool {
    !name.contains('/') && !braid_api::names::is_uuid(name)
}

fn path(volume: &str) -> String {
    format!("/v1/replicated/{}", segment(volume))
}

pub async fn create(
    api: &ApiArgs,
    name: String,
    size_bytes: u64,
    replicas: Replicas,
    witnesses: Vec<String>,
    level: Option<String>,
    block_bytes: u32,
) -> anyhow::Result<()> {
    let (count, replicas) = match replicas {
        Replicas::Count(count) => (count, Vec::new()),
        Replicas::At(places) => (0, places),
    };
    // A daemon of an earlier version supports only the usual block size, and does not know this field.
    let block_bytes = Some(block_bytes).filter(|bytes| *bytes != braid_api::block_bytes_usual());
    let body = CreateReplicated { name, size_bytes, replicas, count, witnesses, level, block_bytes, snapshot: None };
    let volume: ReplicatedVolume = api.client()?.post("/v1/replicated", &body).await?;
    output::show(api.json, &volume, |volume| {
        let mut text = show(volume);
        if volume.level != "raid1" {
            let _ = writeln!(
                text,
                "create a pool on it, which moves with it from node to node: braid pool create NAME {}",
                volume.name
            );
        }
        if volume.voters.len() == 2 {
            text.push_str("two replicas without a witness: after the loss of one node the other has no quorum to attach the volume, except by force (braid volume attach --force), which may lose acknowledged writes; --witness NODE adds a third vote\n");
        }
        if volume.voters.len() == 1 {
            text.push_str(
                "one replica: while its node is away the volume is unavailable, and its data has no second copy\n",
            );
        }
        let _ = writeln!(text, "export it with: braid export add {} --nbd unix:PATH", volume.name);
        text
    });
    Ok(())
}

pub async fn clone(api: &ApiArgs, snapshot: String, name: String) -> anyhow::Result<()> {
    let body = CreateReplicated { name, snapshot: Some(snapshot), ..CreateReplicated::default() };
    let volume: ReplicatedVolume = api.client()?.post("/v1/replicated", &body).await?;
    output::show(api.json, &volume, show);
    Ok(())
}

pub async fn rollback(api: &ApiArgs, name: &str, snapshot: String) -> anyhow::Result<()> {
    let body = RollbackReplicated { snapshot };
    let volume: ReplicatedVolume = api.client()?.post(&format!("{}/rollback", path(name)), &body).await?;
    output::show(api.json, &volume, |volume| {
        format!("rolled back volume {} to {}; its other replicas are rebuilt\n", volume.name, body.snapshot)
    });
    Ok(())
}

pub async fn attach(api: &ApiArgs, name: &str, force: bool, yes: bool) -> anyhow::Result<()> {
    let client = api.client()?;
    let mut query = String::new();
    if force {
        let forced: ForcedOpening = client.get(&format!("{}/forced", path(name))).await?;
        // Printed with --yes, too, so that the log of a script contains it.
        forced.losses.iter().for_each(|loss| eprintln!("volume {}: {loss}", forced.name));
        confirm(&format!("Volume {} will be attached by force, with the loss named above", forced.name), yes)?;
        let nodes: Vec<String> = forced.without.iter().map(|node| segment(node)).collect();
        query = format!("?force=true&without={}", nodes.join(","));
    }
    let volume: ReplicatedVolume = client.post(&format!("{}/attach{query}", path(name)), &()).await?;
    output::show(api.json, &volume, show);
    Ok(())
}

pub async fn detach(api: &ApiArgs, name: &str, force: bool) -> anyhow::Result<()> {
    let volume: ReplicatedVolume = api.client()?.post(&format!("{}/detach?force={force}", path(name)), &()).await?;
    output::show(api.json, &volume, |volume| {
        format!("detached volume {0}; serve it on any of its nodes with: braid volume attach {0}\n", volume.name)
    });
    Ok(())
}

pub async fn print_volume(api: &ApiArgs, name: &str) -> anyhow::Result<()> {
    let volume: ReplicatedVolume = api.client()?.get(&path(name)).await?;
    output::show(api.json, &volume, show);
    Ok(())
}

pub async fn delete(api: &ApiArgs, name: &str, force: bool, yes: bool) -> anyhow::Result<()> {
    let client = api.client()?;
    let volume: ReplicatedVolume = client.get(&path(name)).await?;
    let size = format_size(volume.size_bytes);
    confirm(&format!("Volume {} of {size} will be lost, on all of its nodes", volume.name), yes)?;
    let volume: ReplicatedVolume = client.delete(&format!("{}?force={force}", path(name))).await?;
    output::show(api.json, &volume, |volume| format!("deleted volume {}\n", volume.name));
    Ok(())
}

/// Refuses to delete the array above the replicas of a volume, before the prompt for confirmation.
pub async fn refuse_array(client: &Client, array: &Array) -> anyhow::Result<()> {
    // A daemon of an earlier version has no replicated volumes, and refuses the request.
    let list: ReplicatedList = client.get("/v1/replicated").await.unwrap_or_default();
    let name = &array.name;
    if list.volumes.iter().all(|volume| volume.uuid != array.uuid) {
        return Ok(());
    }
    let message = format!("{name} is a replicated volume, and the array above its replicas cannot be deleted alone");
    Err(ErrorDetail::new(Kind::InUse, message)
        .with("volume", name)
        .remedy(format!("delete the volume on all of its nodes: braid volume delete {name}"))
        .into())
}

/// Prints the replicated volumes of the whole cluster. The list is the same on every node.
pub async fn list_all(api: &ApiListArgs) -> anyhow::Result<()> {
    let list: ClusterVolumeList = api.client()?.get("/v1/cluster/volumes").await?;
    let names = list.volumes.iter().map(|volume| volume.name.as_str());
    api.print(&list, names, &list.incomplete, |style| table_of_cluster(&list, style));
    Ok(())
}

fn table_of_cluster(list: &ClusterVolumeList, style: ListStyle) -> String {
    if list.nodes.is_empty() {
        return "this daemon belongs to no cluster; create one with: braid node init NAME --listen ADDRESS\n"
            .to_owned();
    }
    if list.volumes.is_empty() {
        let make = "braid volume create NAME SIZE --replicas NODE/POOL,NODE/POOL";
        return output::empty_list("replicated volumes", &list.incomplete, make);
    }
    let mut table = style.table(["NAME", "SIZE", "SERVED BY", "REPLICAS"], ["UUID"]);
    for volume in &list.volumes {
        let place = |voter: &ClusterVoter| {
            let pool = voter.pool.iter().map(|pool| format!("/{pool}")).collect::<String>();
            // The reason of an unusable replica is only in the JSON. That of a replica in sync is shown: it may be the last full copy.
            let reason = voter.reason.iter().filter(|_| voter.state == ClusterVoterState::InSync);
            let reason = reason.map(|why| format!("; {why}")).collect::<String>();
            format!("{}{pool} ({}{reason})", voter.node, voter.state.word())
        };
        let voters: Vec<String> = volume.voters.iter().map(place).collect();
        let cells = [
            volume.name.clone(),
            format_size(volume.size_bytes),
            volume.served_by.clone().unwrap_or_else(|| format!("({})", volume.service.word())),
            voters.join(", "),
        ];
        table.row(cells, [volume.uuid.clone()]);
    }
    table.align_right([1]);
    table.states([3]);
    let mut text = table.render();
    for volume in list.volumes.iter().filter(|volume| volume.served_by.is_some()) {
        if let Some(why) = &volume.reason {
            text.push_str(&output::wrap(&format!("volume {}: {why}", volume.name), ""));
        }
    }
    for volume in list.volumes.iter().filter(|volume| volume.served_by.is_none()) {
        let service = match volume.service {
            Service::Unserved => "no node serves it",
            _ => "whether a node serves it is unknown",
        };
        let why = volume.reason.iter().map(|why| format!(": {why}")).collect::<String>();
        text.push_str(&output::wrap(&format!("volume {}: {service}{why}", volume.name), ""));
        if let Some(remedy) = &volume.remedy {
            text.push_str(&output::wrap(remedy, "  "));
            // Never wrapped: the commands are to be copied.
            volume.commands.iter().for_each(|command| text.push_str(&format!("    {command}\n")));
        }
    }
    text
}

/// Returns the table of replicated volumes; empty if there are none.
pub fn table(volumes: &[ReplicatedVolume], style: ListStyle) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let mut table = style.table(["NAME", "SIZE", "STATE", "REPLICAS", "EXPORTS"], ["LEVEL", "UUID"]);
    for volume in volumes {
        let cells = [
            volume.name.clone(),
            format_size(volume.size_bytes),
            volume.state.word().to_owned(),
            voters(volume),
            volume.exports.len().to_string(),
        ];
        table.row(cells, [volume.level.clone(), volume.uuid.clone()]);
    }
    table.align_right([1, 4]);
    table.states([2, 3]);
    table.render()
}

fn place(voter: &braid_api::Voter) -> String {
    match &voter.pool {
        Some(pool) => format!("{}/{pool}", voter.node),
        None => voter.node.clone(),
    }
}

fn voters(volume: &ReplicatedVolume) -> String {
    let words: Vec<String> =
        volume.voters.iter().map(|voter| format!("{} ({})", place(voter), voter.state.word())).collect();
    words.join(", ")
}

/// Returns everything about a replicated volume, for people.
pub fn show(volume: &ReplicatedVolume) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<12}{value}");
    };
    line("volume", volume.name.clone());
    line("uuid", volume.uuid.clone());
    line("size", format!("{} ({} bytes)", format_size(volume.size_bytes), output::thousands(volume.size_bytes)));
    line("blocks", format!("of {} bytes", volume.block_bytes));
    line("level", volume.level.clone());
    line("state", color::state(volume.state.word()));
    if let Some(pool) = &volume.pool {
        line("pool", pool.clone());
    }
    for voter in &volume.voters {
        let (what, state) = match voter.pool {
            Some(_) => ("replica", format!(" {}", color::state(voter.state.word()))),
            None => ("witness", String::new()),
        };
        let reason = voter.reason.iter().map(|why| format!("; {why}")).collect::<String>();
        line(what, format!("{}{state}{reason}", place(voter)));
    }
    line("exports", if volume.exports.is_empty() { "none".to_owned() } else { volume.exports.join(", ") });
    if let Some(count) = volume.snapshots {
        line("snapshots", count.to_string());
    }
    for sentence in &volume.attention {
        line("attention", sentence.clone());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_is_shown_without_a_state_and_with_the_reason_why_it_does_not_reply() {
        let voter = |node: &str, pool: Option<&str>, state: &str, reason: Option<&str>| {
            let reachable = reason.is_none();
            serde_json::json!({"voter": 0, "node": node, "pool": pool, "state": state, "reachable": reachable, "reason": reason})
        };
        let volume: ReplicatedVolume = serde_json::from_value(serde_json::json!({
            "uuid": "", "name": "db", "size_bytes": 4096, "level": "raid1", "state": "serving", "epoch": 1, "exports": [], "attention": [],
            "voters": [
                voter("one", Some("tank"), "in_sync", None),
                voter("two", Some("tank"), "failed", Some("no answer")),
                voter("three", None, "witness", None),
                voter("four", None, "witness", Some("no answer")),
            ],
        }))
        .expect("it is one");
        let text = anstream::adapter::strip_str(&show(&volume)).to_string();
        let voters: Vec<&str> =
            text.lines().filter(|line| line.starts_with("replica") || line.starts_with("witness")).collect();
        let wanted = [
            "replica     one/tank in sync",
            "replica     two/tank failed; no answer",
            "witness     three",
            "witness     four; no answer",
        ];
        assert_eq!(voters, wanted);
    }

    #[test]
    fn replicas_are_named_or_counted() {
        assert_eq!(replicas("3"), Ok(Replicas::Count(3)));
        let named = vec!["node1/tank".to_owned(), "node2/fast".to_owned()];
        assert_eq!(replicas("node1/tank,node2/fast"), Ok(Replicas::At(named)));
        for wrong in ["", "node1", "node1/", "/tank", "node1/tank,", "a/b/c"] {
            assert!(replicas(wrong).is_err(), "{wrong:?}");
        }
    }
}

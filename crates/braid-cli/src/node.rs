//! `braid node …`.

use super::array::{name, name_or_uuid};
use super::{Ask, AskList, confirm, output, segment};
use braid_api::{InitCluster, Invitation, Invite, JoinCluster, Node, NodeList, NodeState};
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// Make a cluster, of this daemon alone
    Init(InitArgs),
    /// Invite one more node: prints what it has to be told, which is a secret
    Invite(InviteArgs),
    /// Join the cluster of an invitation
    Join(JoinArgs),
    /// List the nodes, and how they do
    List(AskList),
    /// Show everything about a node
    Show(NodeArgs),
    /// Take a node out of the cluster
    Remove(RemoveArgs),
    /// Give a node a new certificate now; it does so by itself in time
    Renew(RenewArgs),
}

/// Where this node is reached.
#[derive(Args)]
pub struct PlaceArgs {
    /// Where to listen for other nodes, and where they reach this one; the port is 10870 unless named
    #[arg(long, value_name = "HOST[:PORT]")]
    listen: String,
    /// The same for the data of replicas [default: the host of --listen, port 10871]
    #[arg(long, value_name = "HOST[:PORT]")]
    data: Option<String>,
    /// Offer the data of replicas without TLS, on a network that is trusted: whoever is on it can read and write them
    #[arg(long)]
    data_plain: bool,
}

#[derive(Args)]
pub struct InitArgs {
    /// The name of this node
    #[arg(value_parser = name)]
    name: String,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct InviteArgs {
    /// For how long the invitation holds [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = super::snapshot::every)]
    expires: Option<u32>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct JoinArgs {
    /// The invitation, as `braid node invite` has printed it on a node of the cluster
    token: String,
    /// The name of this node
    #[arg(long, value_parser = name)]
    name: String,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct NodeArgs {
    /// The node, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    node: String,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RenewArgs {
    /// The node, by name or UUID [default: the one that is asked]
    #[arg(value_parser = name_or_uuid)]
    node: Option<String>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// The node, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    node: String,
    /// Remove it although it keeps replicas, or cannot be asked whether it does; or, where it is the one that is asked, although
    /// none of the others can be told
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
        Verb::Init(args) => {
            let PlaceArgs { listen, data, data_plain } = args.place;
            let body = InitCluster { name: args.name, listen, data, data_plain };
            let node: Node = args.ask.client()?.post("/v1/cluster/init", &body).await?;
            output::show(args.ask.json, &node, |node| {
                format!(
                    "node {} has made a cluster; other nodes reach it at {}\ninvite one with: braid node invite\n",
                    node.name, node.api
                )
            });
        }
        Verb::Invite(args) => {
            let body = Invite { expires_s: args.expires.map(u64::from) };
            let invitation: Invitation = args.ask.client()?.post("/v1/cluster/invite", &body).await?;
            output::show(args.ask.json, &invitation, |invitation| {
                // The invitation alone on standard output, so that it can be handed on by a script.
                let until = moment(invitation.expires_unix_s);
                output::complain(&format!(
                    "one node may join with this until {until} UTC; whoever has it can: keep it secret\n\
                     on the new node: braid node join TOKEN --name NAME --listen ADDRESS\n"
                ));
                format!("{}\n", invitation.token)
            });
        }
        Verb::Join(args) => {
            let PlaceArgs { listen, data, data_plain } = args.place;
            let body = JoinCluster { token: args.token, name: args.name, listen, data, data_plain };
            let node: Node = args.ask.client()?.post("/v1/cluster/join", &body).await?;
            output::show(args.ask.json, &node, |node| {
                format!("node {} has joined; other nodes reach it at {}\n", node.name, node.api)
            });
        }
        Verb::List(ask) => {
            let list: NodeList = ask.client()?.get("/v1/nodes").await?;
            let names = list.nodes.iter().map(|node| node.name.as_str());
            ask.print(&list, names, &[], |style| table(&list, style));
        }
        Verb::Show(args) => {
            let node: Node = args.ask.client()?.get(&format!("/v1/nodes/{}", segment(&args.node))).await?;
            output::show(args.ask.json, &node, show);
        }
        Verb::Remove(args) => {
            confirm::confirm(&format!("node {} will belong to the cluster no more", args.node), args.yes)?;
            let path = format!("/v1/nodes/{}?force={}", segment(&args.node), args.force);
            let node: Node = args.ask.client()?.delete(&path).await?;
            output::show(args.ask.json, &node, |node| format!("node {} is removed\n", node.name));
        }
        Verb::Renew(args) => {
            let client = args.ask.client()?;
            let node = match args.node {
                Some(node) => node,
                None => {
                    let list: NodeList = client.get("/v1/nodes").await?;
                    let own = list.nodes.into_iter().find(|node| node.own);
                    own.map(|node| node.uuid).unwrap_or_else(|| "own".to_owned())
                }
            };
            let node: Node = client.post(&format!("/v1/nodes/{}/renew", segment(&node)), &()).await?;
            output::show(args.ask.json, &node, |node| {
                format!("node {} has a new certificate, which ends {}\n", node.name, ends(node))
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn moment(unix_s: i64) -> String {
    output::moment(u64::try_from(unix_s).unwrap_or(0).saturating_mul(1000))
}

fn ends(node: &Node) -> String {
    node.certificate_ends_unix_s.map_or_else(|| "unknown".to_owned(), moment)
}

fn state(node: &Node) -> String {
    match (node.state, node.away_since_unix_ms) {
        (NodeState::Away, Some(since)) => format!("away since {}", output::moment(since)),
        (state, _) => state.word().to_owned(),
    }
}

fn table(list: &NodeList, style: ListStyle) -> String {
    if list.nodes.is_empty() {
        return "this daemon belongs to no cluster; make one with: braid node init NAME --listen ADDRESS\n".to_owned();
    }
    let mut table = style.table(["NAME", "ADDRESS", "STATE", "CERTIFICATE ENDS"], ["DATA", "UUID"]);
    for node in &list.nodes {
        let own = if node.own { " (this one)" } else { "" };
        let name = format!("{}{own}", output::cell(&node.name, 20));
        table.row([name, node.api.clone(), state(node), ends(node)], [node.data.clone(), node.uuid.clone()]);
    }
    table.render()
}

fn show(node: &Node) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<13}{value}");
    };
    line("node", format!("{}{}", node.name, if node.own { " (this one)" } else { "" }));
    line("uuid", node.uuid.clone());
    line("address", node.api.clone());
    line("data", format!("{}, {}", node.data, if node.tls_data { "over TLS" } else { "without TLS" }));
    line("state", state(node));
    if let Some(reason) = &node.reason {
        line("reason", reason.clone());
    }
    line("certificate", format!("ends {}", ends(node)));
    line("key", format!("{} (SHA-256)", node.key_sha256));
    text
}

//! `braid node …`.

use super::object_names::{name, name_or_uuid};
use super::{ApiArgs, ApiListArgs, color, confirm, output, segment};
use braid_api::{InitCluster, Invitation, Invite, JoinCluster, Node, NodeList, NodeState};
use braid_terminal::listing::ListStyle;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Verb {
    /// Create a cluster with this daemon as its only node
    Init(InitArgs),
    /// Invite one more node: prints the invitation token, which is a secret
    Invite(InviteArgs),
    /// Join the cluster of an invitation token
    Join(JoinArgs),
    /// List the nodes and their states
    List(ApiListArgs),
    /// Show everything about a node
    Show(NodeArgs),
    /// Remove a node from the cluster
    Remove(RemoveArgs),
    /// Renew the certificate of a node now; it is renewed automatically before it expires
    Renew(RenewArgs),
}

/// The addresses of this node.
#[derive(Args)]
pub struct AddressArgs {
    /// The address at which this node listens, and at which other nodes connect to it [default port: 10870]
    #[arg(long, value_name = "HOST[:PORT]")]
    listen: String,
    /// The address for the data of replicas [default: the host of --listen, port 10871]
    #[arg(long, value_name = "HOST[:PORT]")]
    data: Option<String>,
    /// Offer the data of replicas without TLS, on a trusted network: every host on it can read and write the data
    #[arg(long)]
    data_plain: bool,
}

#[derive(Args)]
pub struct InitArgs {
    /// The name of this node
    #[arg(value_parser = name)]
    name: String,
    #[command(flatten)]
    addresses: AddressArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct InviteArgs {
    /// How long the invitation is valid [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = super::snapshot::every)]
    expires: Option<u32>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct JoinArgs {
    /// The invitation token that `braid node invite` printed on a node of the cluster
    token: String,
    /// The name of this node
    #[arg(long, value_parser = name)]
    name: String,
    #[command(flatten)]
    addresses: AddressArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct NodeArgs {
    /// The node, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    node: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RenewArgs {
    /// The node, by name or UUID [default: the node of this daemon]
    #[arg(value_parser = name_or_uuid)]
    node: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// The node, by name or UUID
    #[arg(value_parser = name_or_uuid)]
    node: String,
    /// Remove it although it holds replicas, or does not reply whether it does; or, if it is the node of this daemon, although none of
    /// the other nodes can be notified
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
        Verb::Init(args) => {
            let AddressArgs { listen, data, data_plain } = args.addresses;
            let body = InitCluster { name: args.name, listen, data, data_plain };
            let node: Node = args.api.client()?.post("/v1/cluster/init", &body).await?;
            output::show(args.api.json, &node, |node| {
                format!(
                    "created a cluster with node {}; other nodes connect to it at {}\ninvite a node with: braid node invite\n",
                    node.name, node.api
                )
            });
        }
        Verb::Invite(args) => {
            let body = Invite { expires_s: args.expires.map(u64::from) };
            let invitation: Invitation = args.api.client()?.post("/v1/cluster/invite", &body).await?;
            output::show(args.api.json, &invitation, |invitation| {
                // Only the token goes to standard output, so that a script can pass it on.
                let until = moment(invitation.expires_unix_s);
                output::error_text(&format!(
                    "one node may join with this token until {until} UTC; keep it secret: it is all that a node needs to join\n\
                     on the new node: braid node join TOKEN --name NAME --listen ADDRESS\n"
                ));
                format!("{}\n", invitation.token)
            });
        }
        Verb::Join(args) => {
            let AddressArgs { listen, data, data_plain } = args.addresses;
            let body = JoinCluster { token: args.token, name: args.name, listen, data, data_plain };
            let node: Node = args.api.client()?.post("/v1/cluster/join", &body).await?;
            output::show(args.api.json, &node, |node| {
                format!("node {} has joined the cluster; other nodes connect to it at {}\n", node.name, node.api)
            });
        }
        Verb::List(api) => {
            let list: NodeList = api.client()?.get("/v1/nodes").await?;
            let names = list.nodes.iter().map(|node| node.name.as_str());
            api.print(&list, names, &[], |style| table(&list, style));
        }
        Verb::Show(args) => {
            let node: Node = args.api.client()?.get(&format!("/v1/nodes/{}", segment(&args.node))).await?;
            output::show(args.api.json, &node, show);
        }
        Verb::Remove(args) => {
            confirm::confirm(&format!("Node {} will be removed from the cluster", args.node), args.yes)?;
            let path = format!("/v1/nodes/{}?force={}", segment(&args.node), args.force);
            let node: Node = args.api.client()?.delete(&path).await?;
            output::show(args.api.json, &node, |node| format!("removed node {}\n", node.name));
        }
        Verb::Renew(args) => {
            let client = args.api.client()?;
            let node = match args.node {
                Some(node) => node,
                None => {
                    let list: NodeList = client.get("/v1/nodes").await?;
                    let own = list.nodes.into_iter().find(|node| node.local);
                    own.map(|node| node.uuid).unwrap_or_else(|| "own".to_owned())
                }
            };
            let node: Node = client.post(&format!("/v1/nodes/{}/renew", segment(&node)), &()).await?;
            output::show(args.api.json, &node, |node| {
                format!("node {} has a new certificate, which expires {}\n", node.name, ends(node))
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn moment(unix_s: i64) -> String {
    output::utc_time(u64::try_from(unix_s).unwrap_or(0).saturating_mul(1000))
}

fn ends(node: &Node) -> String {
    node.certificate_expires_unix_s.map_or_else(|| "unknown".to_owned(), moment)
}

fn state(node: &Node) -> String {
    match (node.state, node.unreachable_since_unix_ms) {
        (NodeState::Unreachable, Some(since)) => format!("unreachable since {}", output::utc_time(since)),
        (state, _) => state.word().to_owned(),
    }
}

fn table(list: &NodeList, style: ListStyle) -> String {
    if list.nodes.is_empty() {
        return "this daemon belongs to no cluster; create one with: braid node init NAME --listen ADDRESS\n"
            .to_owned();
    }
    let mut table = style.table(["NAME", "ADDRESS", "STATE", "CERTIFICATE EXPIRES"], ["DATA", "UUID"]);
    for node in &list.nodes {
        let own = if node.local { " (this one)" } else { "" };
        let name = format!("{}{own}", output::cell(&node.name, 20));
        table.row([name, node.api.clone(), state(node), ends(node)], [node.data.clone(), node.uuid.clone()]);
    }
    table.states([2]);
    table.render()
}

fn show(node: &Node) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<13}{value}");
    };
    line("node", format!("{}{}", node.name, if node.local { " (this one)" } else { "" }));
    line("uuid", node.uuid.clone());
    line("address", node.api.clone());
    line("data", format!("{}, {}", node.data, if node.tls_data { "over TLS" } else { "without TLS" }));
    line("state", color::state(&state(node)));
    if let Some(reason) = &node.reason {
        line("reason", reason.clone());
    }
    line("certificate", format!("ends {}", ends(node)));
    line("key", format!("{} (SHA-256)", node.key_sha256));
    text
}

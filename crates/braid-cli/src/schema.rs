//! `braid schema [COMMAND]`: the JSON schemas of the documents that commands print with `--json`.

use super::output;
use crate::pool_dump::DumpedMember;
use braid_api::{
    Activity, Array, ArrayList, Assembled, Attention, ClusterVolumeList, DiskList, DoctorReport, ErrorBody,
    ErrorDetail, Event, EventList, Export, ExportList, Growth, HostDiskList, Invitation, JobList, Kind, Limits,
    MdImport, Node, NodeList, OrphanList, Pool, PoolChecked, PoolList, Replica, ReplicaList, Snapshot, SnapshotDiff,
    SnapshotList, Status, Upgraded, Volume, VolumeList,
};
use clap::Args;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use utoipa::openapi::OpenApi as OpenApiDocument;
use utoipa::{OpenApi, ToSchema};

/// Each command with `--json`, and the name of the schema of its document. An option that changes the document is part of the command.
pub const COMMANDS: &[(&str, &str)] = &[
    ("serve --upgrade", "Upgraded"),
    ("status", "Status"),
    ("status --check", "AttentionList"),
    ("status --limits", "Limits"),
    ("top", "Rates"),
    ("events", "EventList"),
    ("events --follow", "Event"),
    ("doctor", "DoctorReport"),
    ("explain", "RunbookList"),
    ("plan", "Plan"),
    ("plan --map", "PlanMap"),
    ("disk list", "HostDiskList"),
    ("disk examine", "ExaminedDisk"),
    ("disk wipe", "Wiped"),
    ("array create", "Array"),
    ("array list", "ArrayList"),
    ("array show", "Array"),
    ("array rename", "Array"),
    ("array stop", "Array"),
    ("array assemble", "Assembled"),
    ("array import-md", "MdImport"),
    ("array delete", "Array"),
    ("array fail", "Array"),
    ("array remove", "Array"),
    ("array add", "Array"),
    ("array replace", "Array"),
    ("array spare", "Array"),
    ("array journal", "Array"),
    ("array grow", "Growth"),
    ("array check", "Job"),
    ("array repair", "Job"),
    ("pool create", "Pool"),
    ("pool list", "PoolList"),
    ("pool show", "Pool"),
    ("pool start", "Pool"),
    ("pool add", "Pool"),
    ("pool remove", "Pool"),
    ("pool check", "PoolChecked"),
    ("pool dump", "DumpedMember"),
    ("pool rename", "Pool"),
    ("pool delete", "Pool"),
    ("volume create", "Volume"),
    ("volume list", "VolumeList"),
    ("volume list --all", "ClusterVolumeList"),
    ("volume show", "Volume"),
    ("volume set", "Volume"),
    ("volume move", "Volume"),
    ("volume compact", "Volume"),
    ("volume flatten", "Volume"),
    ("volume rename", "Volume"),
    ("volume resize", "Volume"),
    ("volume clone", "Volume"),
    ("volume rollback", "Volume"),
    ("volume create --replicas", "ReplicatedVolume"),
    ("volume attach", "ReplicatedVolume"),
    ("volume detach", "ReplicatedVolume"),
    ("volume delete", "Volume"),
    ("snapshot create", "SnapshotsTaken"),
    ("snapshot list", "SnapshotList"),
    ("snapshot show", "Snapshot"),
    ("snapshot rename", "Snapshot"),
    ("snapshot policy", "Volume"),
    ("snapshot diff", "SnapshotDiff"),
    ("snapshot delete", "Snapshot"),
    ("node init", "Node"),
    ("node invite", "Invitation"),
    ("node join", "Node"),
    ("node list", "NodeList"),
    ("node show", "Node"),
    ("node remove", "Node"),
    ("node renew", "Node"),
    ("replica list", "ReplicaList"),
    ("replica show", "Replica"),
    ("replica delete", "Replica"),
    ("replica add", "ReplicatedVolume"),
    ("replica remove", "ReplicatedVolume"),
    ("replica rebuild", "ReplicatedVolume"),
    ("job list", "JobList"),
    ("job watch", "JobList"),
    ("job pause", "Job"),
    ("job resume", "Job"),
    ("job limit", "Job"),
    ("job cancel", "Job"),
    ("export add", "Export"),
    ("export set", "Export"),
    ("export list", "ExportList"),
    ("export show", "Export"),
    ("export rename", "Export"),
    ("export remove", "Export"),
    ("export repair", "OrphanList"),
    ("mount", "Mounted"),
    ("umount", "Unmounted"),
    ("demo", "Demo"),
    ("bench", "Bench"),
];

/// Arguments of `braid schema`.
#[derive(Args)]
pub struct SchemaArgs {
    /// The command; without it, the schemas of all commands. Example: array list
    #[arg(value_name = "COMMAND", num_args = 0.., allow_hyphen_values = true)]
    command: Vec<String>,
}

/// What needs attention: `braid status --check`.
#[derive(ToSchema)]
#[schema(value_type = Vec<Attention>)]
#[allow(dead_code, reason = "only its schema is used")]
struct AttentionList(Vec<Attention>);

/// A disk's label, both copies of it, field by field: `braid disk examine`.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct ExaminedDisk {
    /// The disk, as it was named.
    disk: String,
    /// Its size, in bytes.
    size_bytes: u64,
    /// Whether both copies are valid and equal.
    sound: bool,
    /// The problems, one sentence each.
    problems: Vec<String>,
    /// Fields in which the copies differ.
    differences: Vec<Value>,
    /// The copies, with every field: offset, size, value, problem.
    copies: Vec<Value>,
}

/// The location of every block: `braid plan --map`.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct PlanMap {
    name: String,
    level: String,
    layout: String,
    #[schema(required = false)]
    copies: Option<u16>,
    chunk_bytes: u64,
    zone_policy: String,
    members: Vec<Value>,
    array_size_bytes: u64,
    zones: Vec<crate::plan::level::ZoneReport>,
    /// Runs of blocks: member, first block there, first block in the array, length in blocks, what it is, count, step on the
    /// member, step in the array; all in blocks of 4 KiB.
    runs_strided: Vec<Vec<Value>>,
}

#[derive(OpenApi)]
#[openapi(components(schemas(
    Activity,
    Array,
    ArrayList,
    Assembled,
    Attention,
    AttentionList,
    DiskList,
    DoctorReport,
    DumpedMember,
    ErrorBody,
    Event,
    EventList,
    ExaminedDisk,
    Export,
    ExportList,
    Growth,
    JobList,
    HostDiskList,
    Invitation,
    Limits,
    MdImport,
    Node,
    NodeList,
    OrphanList,
    PlanMap,
    Pool,
    PoolChecked,
    PoolList,
    Replica,
    ReplicaList,
    Snapshot,
    SnapshotDiff,
    SnapshotList,
    Status,
    Upgraded,
    Volume,
    VolumeList,
    ClusterVolumeList,
    super::disk::Wiped,
    super::explain::RunbookList,
    super::mount::Mounted,
    super::mount::Unmounted,
    super::snapshot::SnapshotsTaken,
    super::top::rates::Rates,
    crate::plan::level::Report
)))]
struct Documents;

/// Returns the schema of one document, with all definitions it refers to.
///
/// `more` contains the documents of commands outside this crate.
#[must_use]
pub fn of(name: &str, more: &OpenApiDocument) -> Value {
    let mut definitions = definitions(more);
    let mut needed = Map::new();
    let mut next = vec![name.to_owned()];
    while let Some(name) = next.pop() {
        if let Some(definition) = definitions.remove(&name) {
            references(&definition, &mut next);
            needed.insert(name, definition);
        }
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": format!("#/$defs/{name}"),
        "$defs": needed,
    })
}

/// Returns every definition, with references as in a stand-alone schema.
///
/// `more` contains the documents of commands outside this crate.
#[must_use]
pub fn definitions(more: &OpenApiDocument) -> Map<String, Value> {
    let mut all = definitions_of(&Documents::openapi());
    all.extend(definitions_of(more));
    all
}

fn definitions_of(document: &OpenApiDocument) -> Map<String, Value> {
    let text = serde_json::to_string(document).expect("the description is JSON");
    let text = text.replace("#/components/schemas/", "#/$defs/");
    let mut value: Value = serde_json::from_str(&text).expect("it was JSON");
    match value["components"]["schemas"].take() {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Adds the names of the definitions that a schema refers to.
pub fn references(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str().and_then(|text| text.strip_prefix("#/$defs/")) {
                    Some(name) if key == "$ref" => into.push(name.to_owned()),
                    _ => references(value, into),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, into)),
        _ => {}
    }
}

/// Runs the command.
///
/// # Errors
/// There is no such command, or it prints no JSON.
pub fn run(args: &SchemaArgs, more: &OpenApiDocument) -> anyhow::Result<ExitCode> {
    if args.command.is_empty() {
        let all: Map<String, Value> =
            COMMANDS.iter().map(|(command, name)| ((*command).to_owned(), Value::from(*name))).collect();
        output::json(&json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "description": "The documents that commands print with --json: `commands` contains the names of their definitions; errors are an ErrorBody.",
            "commands": all,
            "$defs": definitions(more),
        }));
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = args.command.join(" ");
    let wanted = wanted.strip_prefix("braid ").unwrap_or(&wanted);
    if wanted == "error" {
        output::json(&of("ErrorBody", more));
        return Ok(ExitCode::SUCCESS);
    }
    let Some((_, name)) = COMMANDS.iter().find(|(command, _)| *command == wanted) else {
        let known: Vec<&str> = COMMANDS.iter().map(|(command, _)| *command).collect();
        return Err(ErrorDetail::new(Kind::NotFound, format!("no command `{wanted}` prints JSON"))
            .remedy(format!("name one of these: {}, `error`", known.join(", ")))
            .into());
    };
    output::json(&of(name, more));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_json_lists_every_command() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/json.md"))
            .expect("docs/reference/json.md can be read");
        for (command, name) in COMMANDS {
            assert!(
                text.contains(&format!("| `braid {command}` | `{name}` |")),
                "docs/reference/json.md has no line for {command}"
            );
        }
    }
}

//! Resolution of names of the daemon's objects to exports: only the daemon may open their disks.

use std::path::Path;

use braid_api::names::VolumeName;
use braid_api::{ErrorDetail, Export, ExportList, ExportState, Kind};

use braid_api::address::escaped as segment;
use braid_client::Client;
use braid_config::paths::DaemonPaths;
use braid_terminal::progress::Waiting;

/// Returns the URI of the export of this name, or of the best export of the object of this name.
///
/// # Errors
/// The daemon cannot be reached, or it has no such object, or no export of it is served.
pub fn uri(name: &str, socket: Option<&Path>, writes: bool) -> anyhow::Result<String> {
    let client = Client::at_socket(&DaemonPaths::find_socket(socket)?).observed(Waiting::for_reply);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found: Result<Export, ErrorDetail> = runtime.block_on(async {
        let list: ExportList = client.get("/v1/exports").await?;
        if let Some(export) = choose(name, list.exports, writes)? {
            return Ok(export);
        }
        // The reply is not used: the request fails if there is no such object.
        let (what, path) = match VolumeName::parse(name) {
            Some(VolumeName { snapshot: Some(_), .. }) => ("snapshot", "snapshots"),
            Some(_) => ("volume", "volumes"),
            None => ("array", "arrays"),
        };
        client.get::<serde_json::Value>(&format!("/v1/{path}/{}", segment(name))).await?;
        Err(ErrorDetail::new(
            Kind::NotFound,
            format!("{what} {name} is served by no export, and only the daemon may touch its disks"),
        )
        .with(what, name)
        .remedy(format!("add one: braid export add {name} --nbd unix:PATH")))
    });
    found.map(|export| export.uri).map_err(|error| unknown(name, error).into())
}

/// Returns the error for a word that is neither a file nor the name of an object of the daemon.
fn unknown(name: &str, error: ErrorDetail) -> ErrorDetail {
    match error.kind {
        Kind::Unreachable => ErrorDetail::new(
            Kind::NotFound,
            format!(
                "{name} is neither a file nor a disk's name, and the daemon cannot be reached to look up an array of that name: {}",
                error.message
            ),
        )
        .with("target", name)
        .remedy("name a disk (null:1T, ./a.img), or start the daemon with `braid serve`"),
        Kind::NotFound if !error.remedy.starts_with("add one: ") => ErrorDetail::new(
            Kind::NotFound,
            format!("{name} is neither a file nor a disk's name, and the daemon has no array, volume, snapshot or export of that name"),
        )
        .with("target", name)
        .remedy("see `braid array list`, `braid volume list` and `braid export list`; a disk is null:1T or ./a.img"),
        _ => error,
    }
}

/// Chooses the export of that name, or the best export of the object of that name: a writable one if `writes` is set, and a Unix socket rather than
/// TCP. Returns none if there is no candidate.
fn choose(name: &str, exports: Vec<Export>, writes: bool) -> Result<Option<Export>, ErrorDetail> {
    let is_named = |export: &Export| export.name == name || export.uuid == name;
    let of_array = |export: &Export| export.array == name || export.array_uuid == name;
    let mut candidates: Vec<Export> = match exports.iter().find(|export| is_named(export)) {
        Some(export) => vec![export.clone()],
        // A ublk export is not an NBD server: it is named by the path of its block device.
        None => exports.into_iter().filter(|export| of_array(export) && !export.nbd.starts_with("ublk:")).collect(),
    };
    if candidates.is_empty() {
        return Ok(None);
    }
    candidates.sort_by_key(|export| {
        (export.state != ExportState::Listening, writes && export.read_only, !export.nbd.starts_with("unix:"))
    });
    let best = candidates.swap_remove(0);
    if best.state != ExportState::Listening {
        let reason = best.reason.clone().unwrap_or_else(|| "no reason known".to_owned());
        return Err(ErrorDetail::new(
            Kind::Inactive,
            format!("export {} of array {} is {}: {reason}", best.name, best.array, best.state.word()),
        )
        .with("export", &best.name)
        .remedy(format!("see `braid export show {}`", best.name)));
    }
    Ok(Some(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, array: &str, nbd: &str, read_only: bool, state: ExportState) -> Export {
        let json = serde_json::json!({
            "name": name, "uuid": format!("uuid-{name}"), "array": array, "array_uuid": format!("uuid-{array}"), "nbd": nbd,
            "uri": format!("uri-{name}"), "read_only": read_only, "state": state, "reason": null, "size_bytes": 1,
            "connections": 0,
        });
        serde_json::from_value(json).expect("an export may leave out what newer daemons say")
    }

    #[test]
    fn the_export_of_a_name_comes_first_then_the_best_of_an_array() {
        use ExportState::{Listening, Waiting};
        let all = || {
            vec![
                export("ro", "fast", "unix:/a", true, Listening),
                export("tcp", "fast", "tcp:localhost:1", false, Listening),
                export("unix", "fast", "unix:/b", false, Listening),
                export("fast2", "slow", "unix:/c", false, Waiting),
            ]
        };
        let name = |wanted: &str, writes| choose(wanted, all(), writes).map(|found| found.map(|export| export.name));
        assert_eq!(name("fast", true), Ok(Some("unix".into())));
        assert_eq!(name("fast", false), Ok(Some("ro".into())));
        assert_eq!(name("tcp", true), Ok(Some("tcp".into())));
        assert_eq!(name("uuid-fast", true), Ok(Some("unix".into())));
        assert_eq!(name("nothing", true), Ok(None));
        assert_eq!(name("slow", true).map_err(|error| error.kind), Err(Kind::Inactive));
    }
}

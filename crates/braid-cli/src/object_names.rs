//! Parses the names of objects, for clap.

use braid_api::names;

/// Parses a name.
pub fn name(text: &str) -> Result<String, names::NameError> {
    names::check_name(text).map(|()| text.to_owned())
}

/// Parses a name or a UUID.
pub fn name_or_uuid(text: &str) -> Result<String, names::NameError> {
    if names::is_uuid(text) { Ok(text.to_owned()) } else { name(text) }
}

/// Parses the name of a volume or a UUID.
pub fn volume(text: &str) -> Result<String, String> {
    let named = names::VolumeName::parse(text).is_some_and(|name| name.snapshot.is_none());
    if named || names::is_uuid(text) { Ok(text.to_owned()) } else { Err("write POOL/VOLUME. Example: tank/db".into()) }
}

/// Parses what [`volume`] does, or the name of a replicated volume. The daemon refuses commands that a replicated volume does not support.
pub fn volume_or_name(text: &str) -> Result<String, String> {
    if names::check_name(text).is_ok() { Ok(text.to_owned()) } else { volume(text) }
}

/// Parses the name of a volume or of a snapshot.
pub fn volume_or_snapshot(text: &str) -> Result<String, String> {
    if text.contains('@') { snapshot(text) } else { volume_or_name(text) }
}

/// Parses the name of a snapshot or a UUID.
pub fn snapshot(text: &str) -> Result<String, String> {
    let is_of_replicated = text.split_once('@').is_some_and(|(volume, own)| {
        names::check_name(volume).is_ok() && (names::is_uuid(own) || names::check_name(own).is_ok())
    });
    let named = is_of_replicated || names::VolumeName::parse(text).is_some_and(|name| name.snapshot.is_some());
    let expected =
        || "write POOL/VOLUME@SNAPSHOT, or VOLUME@SNAPSHOT of a replicated volume. Example: tank/db@monday".to_owned();
    if named || names::is_uuid(text) { Ok(text.to_owned()) } else { Err(expected()) }
}

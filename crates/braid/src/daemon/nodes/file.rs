//! `nodes.json` in the folder of the state: who this node is, and whom it knows. One file with everything in it, replaced at
//! once, so that certificate, key and table always belong together; only its owner may read it.

use super::identity::{Credentials, Identity, Subject, certify};
use super::known::{Known, Shown};
use super::place::HostPort;
use super::table;
use crate::daemon::state::replace_file;
use braid_advice::errors::os_error;
use braid_api::{ErrorDetail, Kind, MemberNode};
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// The file's name.
pub const FILE: &str = "nodes.json";
/// The version of the file that this build writes and reads.
const VERSION: u32 = 1;
/// Longest file that is believed to be ours.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// [`VERSION`].
    pub version: u32,
    /// The cluster's identity.
    pub cluster: Uuid,
    /// This node's.
    pub own: Uuid,
    /// The authority.
    pub authority: Identity,
    /// What this node shows.
    pub identity: Identity,
    /// Whoever knows one of their secrets may join.
    #[serde(default)]
    pub invitations: Vec<SavedInvitation>,
    /// The table of nodes, this one among them.
    pub members: Vec<MemberNode>,
}

/// An invitation: not the secret, but what it is recognised by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedInvitation {
    /// The digest (SHA-256) of the secret.
    pub secret_sha256: String,
    /// When it ends, in Unix time.
    pub expires_unix_s: i64,
}

impl Cluster {
    /// A cluster as it is now.
    pub fn new(cluster: Uuid, own: Uuid, authority: Identity, identity: Identity, members: Vec<MemberNode>) -> Cluster {
        Cluster { version: VERSION, cluster, own, authority, identity, invitations: Vec::new(), members }
    }

    /// This node's own line.
    pub fn own_line(&self) -> &MemberNode {
        let own = self.own.to_string();
        self.members.iter().find(|line| line.uuid == own).expect("a file without the node's own line is refused")
    }

    /// The others that were not removed.
    pub fn others(&self) -> impl Iterator<Item = &MemberNode> {
        let own = self.own.to_string();
        table::present(&self.members).filter(move |line| line.uuid != own)
    }

    /// Whether this node was removed.
    pub fn is_removed(&self) -> bool {
        self.own_line().removed
    }

    /// A new certificate for the key that this node has.
    ///
    /// # Errors
    /// [`Kind::Damaged`].
    pub fn renew(&mut self, now_unix_s: i64) -> Result<(), ErrorDetail> {
        let key = KeyPair::from_pem(&self.identity.key).map_err(|error| {
            ErrorDetail::new(Kind::Damaged, format!("the key of this node cannot be used: {error}"))
        })?;
        let line = self.own_line();
        let subject = Subject { uuid: self.own, name: &line.name, hosts: hosts(line) };
        self.identity.certificate = certify(&self.authority, self.cluster, &subject, &key, now_unix_s)?;
        Ok(())
    }

    /// Certificate and key made ready for connections.
    ///
    /// # Errors
    /// [`Kind::Damaged`].
    pub fn credentials(&self, known: &Arc<Known>, shown: &Arc<Shown>) -> Result<Credentials, ErrorDetail> {
        Credentials::new(&self.authority, &self.identity, known, shown)
    }
}

/// The hosts of a line.
pub fn hosts(line: &MemberNode) -> Vec<String> {
    [&line.api, &line.data].into_iter().filter_map(|place| Some(HostPort::parse(place, 0).ok()?.host)).collect()
}

/// Reads the file; none where there is none.
///
/// # Errors
/// It cannot be read, is damaged, or was written by another version.
pub fn load(folder: &Path) -> Result<Option<Cluster>, ErrorDetail> {
    let path = folder.join(FILE);
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(os_error(&error, "what is known of other nodes cannot be read", &path)),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| os_error(&error, "what is known of other nodes cannot be read", &path))?;
    parse(&text, &path).map(Some)
}

fn parse(text: &str, path: &Path) -> Result<Cluster, ErrorDetail> {
    let damaged = |why: String| {
        ErrorDetail::new(Kind::Damaged, format!("the file of nodes {} is damaged: {why}", path.display()))
            .with("path", path.display())
            .remedy(
                "restore it from a backup; or move it away, which takes this node out of its cluster, and let it join again \
                 under a new invitation",
            )
    };
    // The version first: an unknown one explains everything else that might look wrong.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let versioned: Versioned = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    if versioned.version != VERSION {
        let message = format!(
            "the file of nodes {} has version {}, and this daemon knows version {VERSION} only",
            path.display(),
            versioned.version
        );
        return Err(ErrorDetail::new(Kind::UnknownVersion, message)
            .with("path", path.display())
            .remedy("run the version of Braid that wrote it"));
    }
    let cluster: Cluster = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    table::check(&cluster.members).map_err(|error| damaged(error.message))?;
    let own = cluster.own.to_string();
    if !cluster.members.iter().any(|line| line.uuid == own) {
        return Err(damaged("the node itself is not in its table".to_owned()));
    }
    Ok(cluster)
}

/// Replaces the file.
///
/// # Errors
/// The operating system refuses; the old file is then still there.
pub fn save(folder: &Path, cluster: &Cluster) -> Result<(), ErrorDetail> {
    let text = serde_json::to_string_pretty(cluster).expect("it has string keys and no failing fields");
    replace_file(folder, FILE, &text)
        .map_err(|error| os_error(&error, "what is known of other nodes cannot be written", &folder.join(FILE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::nodes::identity::{digest_of_key, digest_text, make_authority, make_key};

    fn some_cluster() -> Cluster {
        let (cluster, own) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let key = make_key().expect("a key");
        let line = MemberNode {
            uuid: own.to_string(),
            version: 1,
            removed: false,
            name: "node1".to_owned(),
            api: "127.0.0.1:1".to_owned(),
            data: "[::1]:2".to_owned(),
            tls_data: true,
            key_sha256: digest_text(&digest_of_key(&key)),
        };
        let authority = make_authority(cluster, 1_790_000_000).expect("an authority");
        let identity = Identity { certificate: String::new(), key: key.serialize_pem() };
        let mut made = Cluster::new(cluster, own, authority, identity, vec![line]);
        made.renew(1_790_000_000).expect("a certificate");
        made
    }

    #[test]
    fn it_is_read_as_it_was_written_by_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("braid-nodes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        assert_eq!(load(&folder), Ok(None));
        let cluster = some_cluster();
        save(&folder, &cluster).expect("it can be written");
        let mode = std::fs::metadata(folder.join(FILE)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(load(&folder), Ok(Some(cluster.clone())));
        assert!(cluster.credentials(&Arc::default(), &Arc::default()).is_ok());
        assert!(!format!("{cluster:?}").contains("PRIVATE"));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        let good = serde_json::to_value(some_cluster()).expect("JSON");
        let kind = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut changed = good.clone();
            change(&mut changed);
            parse(&changed.to_string(), Path::new("/x")).err().map(|error| error.kind)
        };
        assert_eq!(kind(&|_| {}), None);
        assert_eq!(kind(&|file| file["version"] = 2.into()), Some(Kind::UnknownVersion));
        assert_eq!(kind(&|file| file["further"] = 2.into()), Some(Kind::Damaged));
        assert_eq!(kind(&|file| file["members"] = serde_json::json!([])), Some(Kind::Damaged));
        assert_eq!(kind(&|file| file["members"][0]["api"] = "".into()), Some(Kind::Damaged));
        for text in ["", "{", "[]", "{}"] {
            assert_eq!(parse(text, Path::new("/x")).err().map(|error| error.kind), Some(Kind::Damaged), "{text}");
        }
    }
}

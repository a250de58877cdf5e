//! `nodes.json` in the state folder: this node's identity and the table of nodes.
//!
//! One file holds everything and is replaced atomically, so that certificate, key and table always belong together.
//! Only its owner may read it.

use super::host_port::HostPort;
use super::identity::{Credentials, Identity, Subject, certify};
use super::table;
use super::token::from_hex;
use super::trust::{PresentedCertificate, TrustedKeys};
use braid_advice::errors::os_error;
use braid_api::{ErrorDetail, Kind, MemberNode};
use braid_config::replace_file;
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// Name of the file.
pub const FILE: &str = "nodes.json";
/// Version of the file that this build writes and reads.
const VERSION: u32 = 1;
/// Maximum length of the file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// [`VERSION`].
    pub version: u32,
    /// The cluster's identity.
    pub cluster: Uuid,
    /// This node's identity.
    pub own: Uuid,
    /// The authority.
    pub authority: Identity,
    /// The certificate that this node presents, and its key.
    pub identity: Identity,
    /// Open invitations: a node that presents the secret of one of them may join.
    #[serde(default)]
    pub invitations: Vec<SavedInvitation>,
    /// The table of nodes, this one among them.
    pub members: Vec<MemberNode>,
}

/// An invitation. Only the digest of its secret is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedInvitation {
    /// The digest (SHA-256) of the secret.
    pub secret_sha256: String,
    /// When it expires, in Unix time.
    pub expires_unix_s: i64,
}

impl Cluster {
    /// Makes a cluster of the current version, without invitations.
    pub fn new(cluster: Uuid, own: Uuid, authority: Identity, identity: Identity, members: Vec<MemberNode>) -> Cluster {
        Cluster { version: VERSION, cluster, own, authority, identity, invitations: Vec::new(), members }
    }

    /// Returns this node's own line.
    pub fn own_line(&self) -> &MemberNode {
        let own = self.own.to_string();
        self.members.iter().find(|line| line.uuid == own).expect("a file without the node's own line is refused")
    }

    /// Returns the other nodes that were not removed.
    pub fn others(&self) -> impl Iterator<Item = &MemberNode> {
        let own = self.own.to_string();
        table::present(&self.members).filter(move |line| line.uuid != own)
    }

    /// Returns whether this node was removed.
    pub fn is_removed(&self) -> bool {
        self.own_line().removed
    }

    /// Returns the digests of the keys that this node accepts, by UUID: those of the nodes in the table, this one among them. A node
    /// that was removed accepts no key.
    pub fn accepted_keys(&self) -> BTreeMap<String, [u8; 32]> {
        if self.is_removed() {
            return BTreeMap::new();
        }
        let with_key = |line: &MemberNode| Some((line.uuid.clone(), from_hex(&line.key_sha256)?));
        table::present(&self.members).filter_map(with_key).collect()
    }

    /// Makes a new certificate for this node's existing key.
    ///
    /// # Errors
    /// [`Kind::Damaged`] if this node's key or the authority's cannot be read; [`Kind::Internal`] if no certificate can
    /// be made.
    pub fn renew(&mut self, now_unix_s: i64) -> Result<(), ErrorDetail> {
        let key = KeyPair::from_pem(&self.identity.key).map_err(|error| {
            ErrorDetail::new(Kind::Damaged, format!("the key of this node cannot be used: {error}"))
        })?;
        let line = self.own_line();
        let subject = Subject { uuid: self.own, name: &line.name, hosts: hosts(line) };
        self.identity.certificate = certify(&self.authority, self.cluster, &subject, &key, now_unix_s)?;
        Ok(())
    }

    /// Makes the TLS configurations from certificate, key and authority; see [`Credentials::new`].
    ///
    /// # Errors
    /// As [`Credentials::new`].
    pub fn credentials(
        &self,
        trusted_keys: &Arc<TrustedKeys>,
        presented: &Arc<PresentedCertificate>,
    ) -> Result<Credentials, ErrorDetail> {
        Credentials::new(&self.authority, &self.identity, trusted_keys, presented)
    }
}

/// Returns the host names and IP addresses of a node's two addresses, for its certificate.
pub fn hosts(line: &MemberNode) -> Vec<String> {
    [&line.api, &line.data].into_iter().filter_map(|address| Some(HostPort::parse(address, 0).ok()?.host)).collect()
}

/// Reads the file; `None` if there is no file.
///
/// # Errors
/// It cannot be read, is damaged, or was written by another version.
pub fn load(folder: &Path) -> Result<Option<Cluster>, ErrorDetail> {
    let path = folder.join(FILE);
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(os_error(&error, "the file of nodes cannot be read", &path)),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| os_error(&error, "the file of nodes cannot be read", &path))?;
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
    // The version is checked first: to a daemon that does not know it, a file of another version may look damaged.
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
/// The operating system refuses; see [`replace_file`] for what is then on disk.
pub fn save(folder: &Path, cluster: &Cluster) -> Result<(), ErrorDetail> {
    let text = serde_json::to_string_pretty(cluster).expect("it has string keys and no failing fields");
    replace_file(folder, FILE, &text)
        .map_err(|error| os_error(&error, "the file of nodes cannot be written", &folder.join(FILE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{digest_of_key, digest_text, make_authority, make_key};

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
    fn the_file_round_trips_and_only_its_owner_may_read_it() {
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
    fn invalid_files_are_refused() {
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

//! Replicas as disks: where they are, and in whose name they are opened.

use super::super::Control;
use super::super::tables::OpenDisk;
use super::Voters;
use super::saved::SavedReplicated;
use braid_advice::errors::of_ring;
use braid_api::{ErrorDetail, Kind, replica_export, snapshot_export};
use braid_engine::replica::VoterId;
use braid_nbd::client::remote::{Fenced, RemoteConfig, open_remote};
use braid_nbd::client::{Address, Endpoint, TlsWishes};
use braid_ring::OpenOptions;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Longest that an opening may take, what older connections had asked for included.
const OPENING_MAX: Duration = Duration::from_secs(15);
/// Longest that the node of a snapshot may be silent while something is asked of it: what is read of it is given up then, and begun anew later.
const SNAPSHOT_SILENT_MAX: Duration = Duration::from_secs(10);

impl Control {
    /// Opens a replica as a disk. Within an epoch each opening has a higher session than those before: what these had asked for has
    /// ended when this returns.
    ///
    /// # Errors
    /// Its node does not answer, has rebooted since it was asked, or answers another controller.
    pub(super) async fn reach_replica(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        voters: &Arc<Voters>,
        voter: VoterId,
        session: u64,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let name = volume.voter_name(voter.0);
        let unknown = || ErrorDetail::new(Kind::NotFound, format!("replica {name}: this node does not know that node"));
        let node = volume.voters.get(&voter.0).ok_or_else(unknown)?;
        let (epoch, controller, boot) = voters.session_of(voter);
        let terms = Fenced { epoch, controller, boot, session };
        if self.nodes().own().as_ref() == Some(&node.node)
            && let Some(disk) = self.open_replica_here(volume.uuid, &name, &terms).await?
        {
            return Ok(disk);
        }
        let config = self.way_to(volume, voter, replica_export(&volume.uuid.to_string()))?;
        let config = RemoteConfig { fenced: Some(terms), ..config };
        self.open_export(config, OpenOptions { exclusive: true, write: true }, name).await
    }

    /// Opens a snapshot of a replica as a disk, which its node offers this controller.
    ///
    /// # Errors
    /// Its node does not answer, does not offer it, or answers another controller.
    pub(super) async fn reach_snapshot(
        &self,
        volume: &SavedReplicated,
        voters: &Voters,
        voter: VoterId,
        snapshot: Uuid,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let (epoch, controller, _) = voters.session_of(voter);
        let export = snapshot_export(&volume.uuid.to_string(), &snapshot.to_string());
        let config = self.way_to(volume, voter, format!("{export}?epoch={epoch}&controller={controller}"))?;
        let config = RemoteConfig { limit: Some(SNAPSHOT_SILENT_MAX), ..config };
        let name = volume.voter_name(voter.0);
        self.open_export(config, OpenOptions { exclusive: false, write: false }, name).await
    }

    /// How an export of a replica's node is reached.
    fn way_to(&self, volume: &SavedReplicated, voter: VoterId, export: String) -> Result<RemoteConfig, ErrorDetail> {
        let name = volume.voter_name(voter.0);
        let unknown = || ErrorDetail::new(Kind::NotFound, format!("replica {name}: this node does not know that node"));
        let node = volume.voters.get(&voter.0).ok_or_else(unknown)?;
        let member = self.nodes().members().into_iter().find(|member| member.name == node.node).ok_or_else(unknown)?;
        let (host, port) = member.data.rsplit_once(':').ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        let host = host.trim_matches(['[', ']']).to_owned();
        // Over TLS just that node is believed, by its identity.
        let wishes = member.tls_data.then(|| TlsWishes { host: Some(member.uuid.clone()), ..TlsWishes::default() });
        let tls = if member.tls_data { Some(self.nodes().data_client()?) } else { None };
        let endpoint = Endpoint { address: Address::Tcp(host, port), export, tls: wishes, connections: None };
        Ok(RemoteConfig { tls, ..RemoteConfig::new(endpoint) })
    }

    async fn open_export(
        &self,
        config: RemoteConfig,
        options: OpenOptions,
        name: String,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let opening = name.clone();
        let opened = tokio::task::spawn_blocking(move || {
            open_remote(&config, options).map_err(|error| of_ring(&error, &opening))
        });
        let late = || ErrorDetail::new(Kind::TimedOut, format!("replica {name} could not be opened in time"));
        let disk = tokio::time::timeout(OPENING_MAX, opened).await.map_err(|_| late())?;
        let disk = disk.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("opening replica {name} ended unexpectedly: {error}"))
        })??;
        let disk = Arc::new(disk);
        let leaf = self.ring.add_leaf(Arc::clone(&disk)).map_err(|error| of_ring(&error, &name))?;
        Ok(Arc::new(OpenDisk {
            name,
            disk,
            identity: None,
            entry: None,
            volume: None,
            leaf,
            watch: Default::default(),
            here: None,
        }))
    }
}

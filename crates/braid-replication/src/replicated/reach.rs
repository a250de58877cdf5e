//! Opens replicas as disks: their location, and the terms of their sessions.

use crate::ReplicationManager;
use crate::voters::VolumeVoters;
use braid_advice::errors::ring_error;
use braid_api::{ErrorDetail, Kind, replica_export, snapshot_export};
use braid_engine::replica::VoterId;
use braid_inventory::{OpenDisk, SavedReplicated};
use braid_nbd::client::remote::{Fenced, RemoteConfig, open_remote};
use braid_nbd::client::{Address, Endpoint, TlsOptions};
use braid_ring::OpenOptions;
use braid_tasks as tasks;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time for opening a replica, including the wait for the requests of older connections.
const OPEN_MAX: Duration = Duration::from_secs(15);

/// Maximum time without a reply of a snapshot's node: the read is then given up, and begun anew later.
const SNAPSHOT_SILENT_MAX: Duration = Duration::from_secs(10);

impl ReplicationManager {
    /// Opens a replica as a disk. Within an epoch each opening has a higher session than those before: their requests
    /// have ended when this returns.
    ///
    /// # Errors
    /// Its node does not reply, has rebooted since the voter last replied, or its voter replies to another controller.
    pub(crate) async fn reach_replica(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        voters: &Arc<VolumeVoters>,
        voter: VoterId,
        session: u64,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let name = volume.voter_name(voter.0);
        let unknown = || ErrorDetail::new(Kind::NotFound, format!("replica {name}: this node does not know that node"));
        let node = volume.voters.get(&voter.0).ok_or_else(unknown)?;
        let (epoch, controller, boot) = voters.session_of(voter);
        let terms = Fenced { epoch, controller, boot, session };
        if self.nodes.own_name().as_ref() == Some(&node.node)
            && let Some(disk) = self.open_replica_locally(volume.uuid, &name, &terms).await?
        {
            return Ok(disk);
        }
        let config = self.remote_config(volume, voter, replica_export(&volume.uuid.to_string()))?;
        let config = RemoteConfig { fenced: Some(terms), ..config };
        self.open_export(config, OpenOptions { exclusive: true, write: true }, name).await
    }

    /// Opens a snapshot of a replica as a disk, which its node offers to this controller.
    ///
    /// # Errors
    /// Its node does not reply, does not offer it, or its voter replies to another controller.
    pub(crate) async fn reach_snapshot(
        &self,
        volume: &SavedReplicated,
        voters: &VolumeVoters,
        voter: VoterId,
        snapshot: Uuid,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let (epoch, controller, _) = voters.session_of(voter);
        let export = snapshot_export(&volume.uuid.to_string(), &snapshot.to_string());
        let config = self.remote_config(volume, voter, format!("{export}?epoch={epoch}&controller={controller}"))?;
        let config = RemoteConfig { reply_timeout: Some(SNAPSHOT_SILENT_MAX), ..config };
        let name = volume.voter_name(voter.0);
        self.open_export(config, OpenOptions { exclusive: false, write: false }, name).await
    }

    /// Returns how an export of a replica's node is reached.
    fn remote_config(
        &self,
        volume: &SavedReplicated,
        voter: VoterId,
        export: String,
    ) -> Result<RemoteConfig, ErrorDetail> {
        let name = volume.voter_name(voter.0);
        let unknown = || ErrorDetail::new(Kind::NotFound, format!("replica {name}: this node does not know that node"));
        let node = volume.voters.get(&voter.0).ok_or_else(unknown)?;
        let member = self.nodes.members().into_iter().find(|member| member.name == node.node).ok_or_else(unknown)?;
        let (host, port) = member.data.rsplit_once(':').ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        let host = host.trim_matches(['[', ']']).to_owned();
        // Over TLS only that node is accepted, by its identity.
        let wishes = member.tls_data.then(|| TlsOptions { host: Some(member.uuid.clone()), ..TlsOptions::default() });
        let tls = if member.tls_data { Some(self.nodes.data_client()?) } else { None };
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
        let opened =
            tasks::blocking(move || open_remote(&config, options).map_err(|error| ring_error(&error, &opening)));
        let late = || ErrorDetail::new(Kind::TimedOut, format!("replica {name} could not be opened in time"));
        let disk = tokio::time::timeout(OPEN_MAX, opened).await.map_err(|_| late())?;
        let disk = disk.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("opening replica {name} ended unexpectedly: {error}"))
        })??;
        let disk = Arc::new(disk);
        let leaf = self.ring.add_leaf(Arc::clone(&disk)).map_err(|error| ring_error(&error, &name))?;
        Ok(Arc::new(OpenDisk {
            name,
            disk,
            identity: None,
            entry: None,
            volume: None,
            leaf,
            watch: Default::default(),
            local_replica: None,
        }))
    }
}

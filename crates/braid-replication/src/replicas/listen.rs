//! The listener on which controllers reach the replicas of this node.

use crate::ReplicationManager;
use braid_api::ErrorDetail;
use braid_api::address::Address;
use braid_exports::listen::{self, ListenerContext, Socket};
use braid_tasks as tasks;
use braid_tls::ServerTls;
use std::sync::{Arc, PoisonError};

impl ReplicationManager {
    /// Offers the replicas at an address, instead of the previous one. With `tls`, only over TLS. The certificate
    /// decides which clients may connect; the replica decides which of them is its controller.
    ///
    /// # Errors
    /// The address is in use, or is no address of this machine.
    pub async fn listen_for_replicas(
        self: &Arc<Self>,
        address: &Address,
        tls: Option<Arc<ServerTls>>,
    ) -> Result<(), ErrorDetail> {
        if tls.is_none() {
            listen::refuse_public_address(address).await?;
        }
        let socket = self.exports.socket_at(address).await?;
        self.offer_replicas(socket, tls);
        Ok(())
    }

    /// Offers the replicas on a bound socket.
    pub fn offer_replicas(&self, socket: Arc<Socket>, tls: Option<Arc<ServerTls>>) {
        self.replica_exports.set_needs_tls(tls.is_some());
        let endpoint = ListenerContext {
            table: Arc::clone(&self.replica_exports),
            tls,
            events: Arc::clone(&self.exports.clients),
        };
        let task = tasks::spawn(listen::accept(socket, endpoint, self.ring.clone()));
        let mut listens = self.replica_accept_task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = listens.replace(task.abort_handle()) {
            before.abort();
        }
    }

    /// Returns whether the replicas are offered on any socket.
    pub fn offers_replicas(&self) -> bool {
        self.replica_accept_task.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Cuts off all connections to replicas, since one of the clients may not be admitted any more and connections do
    /// not tell their client. The other clients reconnect at once, and send again the requests without a reply.
    pub fn sever_replicas(&self) {
        let tables = self.inventory.read();
        let admissions: Vec<_> =
            tables.replicas.values().filter_map(|entry| Some(Arc::clone(&entry.ready()?.admission))).collect();
        drop(tables);
        admissions.iter().for_each(|admission| admission.sever());
        self.sever_offered();
    }

    /// Stops offering the replicas. Existing connections stay: the replica decides about them.
    pub fn withdraw_replicas(&self) {
        if let Some(before) = self.replica_accept_task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            before.abort();
        }
    }
}

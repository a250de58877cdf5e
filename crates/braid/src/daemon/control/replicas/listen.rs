//! Where controllers reach the replicas of this node.

use crate::daemon::control::Control;
use crate::daemon::listen::{self, Door, Socket};
use braid_api::ErrorDetail;
use braid_api::address::Address;
use braid_tls::ServerTls;
use std::sync::{Arc, PoisonError};

impl Control {
    /// Offers the replicas at an address, instead of where they were before: with a certificate over TLS only. Whom it lets in, the certificate
    /// decides; which of them is a replica's controller, the replica.
    ///
    /// # Errors
    /// Somebody has the address, or it is none of this machine's.
    pub async fn listen_for_replicas(
        self: &Arc<Self>,
        address: &Address,
        tls: Option<Arc<ServerTls>>,
    ) -> Result<(), ErrorDetail> {
        if tls.is_none() {
            listen::refuse_open(address).await?;
        }
        let socket = self.socket_at(address).await?;
        self.offer_replicas(socket, tls);
        Ok(())
    }

    /// The same on a socket that is there already.
    pub fn offer_replicas(&self, socket: Arc<Socket>, tls: Option<Arc<ServerTls>>) {
        self.replica_exports.set_needs_tls(tls.is_some());
        let door = Door { table: Arc::clone(&self.replica_exports), tls, events: Arc::clone(&self.clients) };
        let task = tokio::spawn(listen::accept(socket, door, self.ring.clone()));
        let mut listens = self.replicas_listen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = listens.replace(task.abort_handle()) {
            before.abort();
        }
    }

    /// Whether the replicas are offered anywhere.
    pub fn offers_replicas(&self) -> bool {
        self.replicas_listen.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Cuts off all connections to replicas, as somebody who has one may be let in no more: which of them are his nothing tells. The others
    /// come again at once, and ask again what was not answered.
    pub fn sever_replicas(&self) {
        let tables = self.read();
        let doors: Vec<_> =
            tables.replicas.values().filter_map(|entry| Some(Arc::clone(&entry.ready()?.door))).collect();
        drop(tables);
        doors.iter().for_each(|door| door.sever());
        self.sever_offered();
    }

    /// Offers them no more. Who is connected stays so: the replica decides.
    pub fn withdraw_replicas(&self) {
        if let Some(before) = self.replicas_listen.lock().unwrap_or_else(PoisonError::into_inner).take() {
            before.abort();
        }
    }
}

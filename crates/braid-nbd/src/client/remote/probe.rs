//! Connects to a server for the first time, to learn the properties of its export.

use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use braid_ring::{OpenOptions, REMOTE_CONNECTIONS_MAX, RingError, RingErrorKind};
use rustls::pki_types::ServerName;

use super::dial::Target;
use super::session::FIRST_ATTEMPT;
use super::shared::{FLAGS, Shared, TlsPeer};
use super::{RemoteConfig, error, self_connection};
use crate::client::stream::Stream;
use crate::client::{Address, Client, ClientConfig, ClientError, Endpoint};
use crate::codec::{PAYLOAD_BYTES_MAX, option_reply, transmission_flags};

/// Maximum wait for each message of the server while opening.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Default number of connections per shard.
const CONNECTIONS_DEFAULT: u32 = 1;

/// Minimum payload size that a server must accept, in bytes.
const PAYLOAD_BYTES_MIN: u32 = 4096;

/// Returns the properties of an export.
pub(super) fn probe(uri: &str, config: &RemoteConfig, options: OpenOptions) -> Result<Shared, RingError> {
    let endpoint = &config.endpoint;
    let export = match &config.fenced {
        Some(fenced) => fenced.name(&endpoint.export, 0, FIRST_ATTEMPT),
        None => endpoint.export.clone(),
    };
    let tls_peer = tls_peer(uri, config)?;
    let (targets, client) = connect(uri, endpoint, &export, tls_peer.as_ref())?;
    let terms = *client.terms();
    // A replica is stored on its node's disks, never on something made of replicas, so it may belong to this process.
    if config.fenced.is_none() && self_connection::is_same_process(client.socket()) {
        return Err(error(
            RingErrorKind::Conflict,
            format!("{uri} is an export of this very process"),
            "name what it exports itself, such as volume:POOL/VOLUME",
        ));
    }
    let unfit = |what: String, remedy: &str| Err(error(RingErrorKind::Unsupported, format!("{uri} {what}"), remedy));
    if options.write && terms.flags & transmission_flags::READ_ONLY != 0 {
        return unfit("is read-only".into(), "let its server export it for writing");
    }
    let connections = config.connections.or(endpoint.connections).unwrap_or(CONNECTIONS_DEFAULT);
    if terms.flags & transmission_flags::CAN_MULTI_CONN == 0 && connections > 1 {
        return unfit(
            "does not say that several connections see the same (multi-conn)".into(),
            "leave the number of connections out: it is used with one",
        );
    }
    let [least, _, payload] = terms.block_bytes.unwrap_or([1, 4096, PAYLOAD_BYTES_MAX]);
    if !least.is_power_of_two() || least > 4096 || payload < PAYLOAD_BYTES_MIN {
        return unfit(
            format!("has blocks of {least} bytes and takes {payload} at once"),
            "let its server offer blocks of at most 4096 bytes",
        );
    }
    let block_bytes = least.max(512);
    if terms.size_bytes < u64::from(block_bytes) || terms.size_bytes > i64::MAX as u64 {
        return unfit(
            format!("is {} bytes long", terms.size_bytes),
            "let its server export a disk of a supported size",
        );
    }
    // A failed disconnect loses nothing.
    let _ = client.disconnect();
    Ok(Shared {
        export: endpoint.export.clone(),
        targets,
        tls_peer,
        connections: connections.clamp(1, REMOTE_CONNECTIONS_MAX as u32),
        fenced: config.fenced,
        limit_ns: config.reply_timeout.map(|limit| limit.as_nanos() as u64),
        export_bytes: terms.size_bytes,
        block_bytes,
        payload_bytes: u64::from(payload) / 4096 * 4096,
        flags: terms.flags & FLAGS,
        allocation: terms.allocation.is_some(),
        replaceable: AtomicBool::new(false),
        lost: OnceLock::new(),
        unsettled: AtomicBool::new(false),
        written: AtomicU64::new(0),
        flushed: AtomicU64::new(0),
        last_reply_ns: AtomicU64::new(0),
    })
}

fn tls_peer(uri: &str, config: &RemoteConfig) -> Result<Option<TlsPeer>, RingError> {
    let endpoint = &config.endpoint;
    match (&endpoint.tls, &config.tls) {
        (None, _) => Ok(None),
        (Some(_), None) => {
            let context = format!("{uri} requires TLS, and no certificate authority is configured");
            Err(error(
                RingErrorKind::Unsupported,
                context,
                "name the folder of certificates by tls-certificates=FOLDER",
            ))
        }
        (Some(_), Some(tls)) => {
            let host = endpoint.tls_host().to_owned();
            let name = ServerName::try_from(host.clone()).map_err(|_| {
                let context = format!("{uri}: {host:?} is not a valid certificate name");
                error(
                    RingErrorKind::Conflict,
                    context,
                    "give the name in the server's certificate by tls-hostname=NAME",
                )
            })?;
            Ok(Some(TlsPeer { config: Arc::clone(tls), name }))
        }
    }
}

/// Performs the handshake with the first address that answers. Returns the addresses, that one first.
fn connect(
    uri: &str,
    endpoint: &Endpoint,
    export: &str,
    tls_peer: Option<&TlsPeer>,
) -> Result<(Vec<Target>, Client), RingError> {
    let tls = tls_peer.map(|tls_peer| (Arc::clone(&tls_peer.config), endpoint.tls_host()));
    let timeout_ms = OPEN_TIMEOUT.as_millis() as u64;
    let config = ClientConfig { depth: 1, structured: true, extended: false, input_bytes: 64 << 10, timeout_ms };
    let refused = |e: ClientError| {
        let (kind, remedy) = match &e {
            ClientError::Refused { code: option_reply::ERR_POLICY, .. } => {
                (RingErrorKind::Permission, "see what its server says")
            }
            ClientError::Refused { .. } => (RingErrorKind::NotFound, "check the name of the export"),
            ClientError::Socket(_) | ClientError::Closed | ClientError::TimedOut(_) => {
                (RingErrorKind::NotFound, "check its address, and that its server runs")
            }
            ClientError::Tls(_) => (
                RingErrorKind::Permission,
                "check that each side's certificate is signed by an authority that the other one trusts (docs/reference/disks.md)",
            ),
            _ => (RingErrorKind::Unsupported, "check its address"),
        };
        error(kind, format!("opening {uri}: {e}"), remedy)
    };
    match &endpoint.address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(|e| refused(e.into()))?;
            let client = Client::over_socket(Stream::Unix(stream), export, config, tls).map_err(refused)?;
            Ok((vec![Target::Unix(path.clone())], client))
        }
        Address::Tcp(host, port) => {
            let found = (host.as_str(), *port).to_socket_addrs().map_err(|e| refused(e.into()))?;
            let mut addresses: Vec<_> = found.collect();
            let mut last = ClientError::Closed;
            for at in 0..addresses.len() {
                let stream = TcpStream::connect_timeout(&addresses[at], OPEN_TIMEOUT).map_err(ClientError::from);
                match stream.and_then(|stream| Client::over_socket(Stream::Tcp(stream), export, config, tls.clone())) {
                    Ok(client) => {
                        addresses.swap(0, at);
                        return Ok((addresses.into_iter().map(Target::Tcp).collect(), client));
                    }
                    Err(error) => last = error,
                }
            }
            Err(refused(last))
        }
    }
}

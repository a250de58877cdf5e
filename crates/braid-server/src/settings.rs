//! How the API is offered on the network: options, configuration, files and the listening socket.
//!
//! Guarantees: the API never listens on a network without TLS, nor without a means to authenticate clients.

use crate::access::Access;
use crate::listen::{Network, RefusedClients};
use braid_api::{ErrorDetail, Kind};
use braid_config::{Config, ListenAddress, listen_address};
use braid_tls::{ClientCertificates, ServerFiles, ServerTls};
use clap::Args;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Maximum time of a host name lookup.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Arguments of `braid serve` about the API on the network.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The API on the network")]
pub struct ApiArgs {
    /// Offer the API on this address, too, with TLS; the port is 10870 unless named
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = listen_address)]
    api_listen: Option<ListenAddress>,
    /// The server's certificate, with those between it and its authority (PEM)
    #[arg(long, value_name = "FILE")]
    api_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE")]
    api_key: Option<PathBuf>,
    /// Accept clients that show a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE")]
    api_client_ca: Option<PathBuf>,
    /// Accept clients that show one of the tokens in this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    api_token_file: Option<PathBuf>,
    /// Accept clients with one of the tokens in this file as read-only, such as Prometheus
    #[arg(long, value_name = "FILE")]
    api_read_token_file: Option<PathBuf>,
}

/// How the API is offered on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSettings {
    listen: ListenAddress,
    tls: ServerFiles,
    token_file: Option<PathBuf>,
    read_token_file: Option<PathBuf>,
}

impl ApiSettings {
    /// Combines options and configuration. Returns none if the API is not to be on the network.
    ///
    /// # Errors
    /// It would be offered without TLS, or without a means to authenticate clients; an option has no effect.
    pub fn of(args: ApiArgs, config: &Config) -> Result<Option<ApiSettings>, ErrorDetail> {
        let file = config.api.clone();
        let certificate = args.api_cert.or(file.cert);
        let key = args.api_key.or(file.key);
        let client_authorities = args.api_client_ca.or(file.client_ca);
        let token_file = args.api_token_file.or(file.token_file);
        let read_token_file = args.api_read_token_file.or(file.read_token_file);
        let refused =
            |message: &str, remedy: &str| Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy));
        let Some(listen) = args.api_listen.or(file.listen) else {
            let others = [&certificate, &key, &client_authorities, &token_file, &read_token_file];
            if others.into_iter().any(Option::is_some) {
                return refused(
                    "the API is not on the network, so certificates and tokens for it have no effect",
                    "name its address with --api-listen ADDRESS, or leave the other options out",
                );
            }
            return Ok(None);
        };
        let (Some(certificate), Some(key)) = (certificate, key) else {
            return refused(
                "the API is not offered on the network without TLS",
                "name its certificate and key with --api-cert FILE --api-key FILE (docs/operating/running.md shows how to make them)",
            );
        };
        let tokens = token_file.is_some() || read_token_file.is_some();
        let client_certificates = match (&client_authorities, tokens) {
            (None, false) => {
                return refused(
                    "the API is not offered on the network without authentication",
                    "name its clients with --api-token-file FILE or --api-client-ca FILE",
                );
            }
            (None, true) => ClientCertificates::None,
            (Some(_), true) => ClientCertificates::Optional,
            (Some(_), false) => ClientCertificates::Required,
        };
        let tls = ServerFiles { certificate, key, client_authorities, client_certificates };
        Ok(Some(ApiSettings { listen, tls, token_file, read_token_file }))
    }

    /// Returns the name under which its socket is handed over to the next daemon.
    pub fn inherited_name(&self) -> String {
        format!("api:{}:{}", self.listen.host, self.listen.port)
    }

    /// Reads the files without binding the address.
    ///
    /// # Errors
    /// A file is invalid.
    pub fn check(&self) -> Result<(), ErrorDetail> {
        ServerTls::load(self.tls.clone())?;
        Access::load(self.token_file.as_deref(), self.read_token_file.as_deref())?;
        Ok(())
    }

    /// Reads the files and binds the address; or resumes the socket that the previous daemon has handed over.
    ///
    /// # Errors
    /// A file is invalid; the address is in use, or is no address of this machine.
    pub async fn open(&self, inherited: Option<OwnedFd>) -> Result<Network, ErrorDetail> {
        let tls = ServerTls::load(self.tls.clone())?;
        let access = Access::load(self.token_file.as_deref(), self.read_token_file.as_deref())?;
        let listener = match inherited.and_then(|socket| TcpListener::from_std(socket.into()).ok()) {
            Some(listener) => listener,
            None => bind(&self.listen).await?,
        };
        Ok(Network {
            listener: Arc::new(listener),
            tls: Arc::new(tls),
            access: Arc::new(access),
            refusals: Arc::new(RefusedClients::default()),
        })
    }
}

/// Binds an address and listens on it.
async fn bind(listen: &ListenAddress) -> Result<TcpListener, ErrorDetail> {
    let address = if listen.host.contains(':') {
        format!("[{}]:{}", listen.host, listen.port)
    } else {
        format!("{}:{}", listen.host, listen.port)
    };
    let refused = |kind: Kind, why: String, remedy: &str| {
        ErrorDetail::new(kind, format!("the API cannot listen on {address}: {why}"))
            .with("address", &address)
            .remedy(remedy)
    };
    let lookup = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((listen.host.as_str(), listen.port)));
    let unknown = |why: String| refused(Kind::InvalidArgument, why, "write a number, for example 0.0.0.0:10870");
    let found: Vec<SocketAddr> = match lookup.await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(unknown(error.to_string())),
        Err(_) => return Err(unknown("its name was not found in time".to_owned())),
    };
    TcpListener::bind(&found[..]).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => refused(
            Kind::InUse,
            "another process listens there".to_owned(),
            "choose another port with --api-listen, or stop that process (`ss -ltnp` shows it)",
        ),
        std::io::ErrorKind::AddrNotAvailable => refused(
            Kind::InvalidArgument,
            "it is no address of this machine".to_owned(),
            "`ip address` shows those there are; 0.0.0.0 and [::] stand for all",
        ),
        std::io::ErrorKind::PermissionDenied => {
            refused(Kind::PermissionDenied, error.to_string(), "choose a port from 1024 on")
        }
        _ => refused(Kind::Internal, error.to_string(), "choose another address with --api-listen"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let check = |text: &str, host: &str, port: u16| {
            let expected = ListenAddress { host: host.to_owned(), port };
            assert_eq!(listen_address(text), Ok(expected), "{text}");
        };
        check("192.0.2.7", "192.0.2.7", 10870);
        check("192.0.2.7:1", "192.0.2.7", 1);
        check("0.0.0.0:0", "0.0.0.0", 0);
        check("::", "::", 10870);
        check("[::1]:5", "::1", 5);
        check("node-1.example:99", "node-1.example", 99);
        check("localhost", "localhost", 10870);
        for wrong in ["", ":5", "a b", "host:x", "host:70000", "https://host", "[::1", "a:b:c", "unix:/x"] {
            let error = listen_address(wrong).expect_err(wrong);
            assert!(error.contains("valid ones"), "{wrong}: {error}");
        }
    }

    #[test]
    fn neither_without_tls_nor_without_authentication() {
        let listen = || Some(listen_address("127.0.0.1").expect("it is one"));
        let cert = || ApiArgs {
            api_listen: listen(),
            api_cert: Some("c".into()),
            api_key: Some("k".into()),
            ..ApiArgs::default()
        };
        let refused = |args: ApiArgs, words: &str| {
            let error = ApiSettings::of(args, &Config::default()).expect_err(words);
            assert!(error.kind == Kind::InvalidArgument && error.message.contains(words), "{error}");
            assert!(error.remedy.contains("--api-"), "{error}");
        };
        assert_eq!(ApiSettings::of(ApiArgs::default(), &Config::default()), Ok(None));
        refused(ApiArgs { api_listen: listen(), ..ApiArgs::default() }, "without TLS");
        refused(ApiArgs { api_key: None, ..cert() }, "without TLS");
        refused(ApiArgs { api_token_file: Some("t".into()), api_cert: None, ..cert() }, "without TLS");
        refused(cert(), "without authentication");
        refused(ApiArgs { api_listen: None, ..cert() }, "have no effect");
        refused(ApiArgs { api_read_token_file: Some("t".into()), ..ApiArgs::default() }, "have no effect");
        let wanted = |args: ApiArgs| {
            let settings = ApiSettings::of(args, &Config::default()).expect("it is allowed").expect("it is wanted");
            settings.tls.client_certificates
        };
        let token = || Some(PathBuf::from("t"));
        assert_eq!(wanted(ApiArgs { api_token_file: token(), ..cert() }), ClientCertificates::None);
        assert_eq!(wanted(ApiArgs { api_read_token_file: token(), ..cert() }), ClientCertificates::None);
        assert_eq!(wanted(ApiArgs { api_client_ca: token(), ..cert() }), ClientCertificates::Required);
        let both = ApiArgs { api_client_ca: token(), api_token_file: token(), ..cert() };
        assert_eq!(wanted(both), ClientCertificates::Optional);
    }
}

//! The door of the API: where it listens, and who may come in. What is asked there is `http`'s.
//!
//! What it promises: there is no listening on a network without TLS and without a means to know who asks.

pub mod access;
mod client;
pub mod listen;

use crate::daemon::control::Control;
use crate::daemon::expiry;
use crate::daemon::listen::resume_tcp;
use access::Access;
use braid_api::{Attention, ErrorDetail, Kind};
use braid_config::{Config, ListenAddress, listen_address};
use braid_ring::kept::InheritedFds;
use braid_tls::{ClientCertificates, ServerFiles, ServerTls};
use clap::Args;
use listen::{Network, Refusals};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Longest that a host's name may take to be looked up.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// Between two looks at the files of tokens and certificates.
const LOOK_EVERY: Duration = Duration::from_secs(2);

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
    /// Let clients in that show a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE")]
    api_client_ca: Option<PathBuf>,
    /// Let clients in that show one of the tokens in this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    api_token_file: Option<PathBuf>,
    /// The same for clients that may look at everything and change nothing, such as Prometheus
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
    /// What options and configuration say together; none where the API is not to be on the network.
    ///
    /// # Errors
    /// It would be there without TLS, or without a means to know who asks; an option that does nothing.
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
                    "the API is not on the network, so that certificates and tokens for it do nothing",
                    "say where it is to listen with --api-listen ADDRESS, or leave the others out",
                );
            }
            return Ok(None);
        };
        let (Some(certificate), Some(key)) = (certificate, key) else {
            return refused(
                "the API is not offered on the network without TLS",
                "name its certificate and key with --api-cert FILE --api-key FILE (docs/operations.md shows how to make them)",
            );
        };
        let tokens = token_file.is_some() || read_token_file.is_some();
        let client_certificates = match (&client_authorities, tokens) {
            (None, false) => {
                return refused(
                    "the API is not offered on the network to everybody",
                    "say who may come in with --api-token-file FILE or --api-client-ca FILE",
                );
            }
            (None, true) => ClientCertificates::None,
            (Some(_), true) => ClientCertificates::Optional,
            (Some(_), false) => ClientCertificates::Required,
        };
        let tls = ServerFiles { certificate, key, client_authorities, client_certificates };
        Ok(Some(ApiSettings { listen, tls, token_file, read_token_file }))
    }

    /// What its socket is left under to the next daemon.
    pub fn left_as(&self) -> String {
        format!("api:{}:{}", self.listen.host, self.listen.port)
    }

    /// Reads the files, and takes no address.
    ///
    /// # Errors
    /// A file is not as it should be.
    pub fn check(&self) -> Result<(), ErrorDetail> {
        ServerTls::load(self.tls.clone())?;
        Access::load(self.token_file.as_deref(), self.read_token_file.as_deref())?;
        Ok(())
    }

    /// Reads the files and takes the address.
    ///
    /// # Errors
    /// A file is not as it should be; the address is taken or none of this machine's.
    pub async fn open(&self, kept: &mut InheritedFds) -> Result<Network, ErrorDetail> {
        let tls = ServerTls::load(self.tls.clone())?;
        let access = Access::load(self.token_file.as_deref(), self.read_token_file.as_deref())?;
        // What the daemon before has left there goes on.
        let left = kept.remove(&self.left_as()).and_then(|mut left| left.pop());
        let listener = match left.and_then(resume_tcp) {
            Some(listener) => listener,
            None => bind(&self.listen).await?,
        };
        Ok(Network {
            listener: Arc::new(listener),
            tls: Arc::new(tls),
            access: Arc::new(access),
            refusals: Arc::new(Refusals::default()),
        })
    }
}

/// Listens on an address.
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

/// Looks at the files of tokens and certificates until the daemon stops; what has changed holds from then on.
pub async fn keep_fresh(control: Arc<Control>, tls: Arc<ServerTls>, access: Arc<Access>) {
    let mut stopping = control.stopping();
    watch_expiry(&control, &tls, true);
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let (renewed, tokens) = (Arc::clone(&tls), Arc::clone(&access));
        let looked = tokio::task::spawn_blocking(move || {
            let certificate = match renewed.refresh(false) {
                Ok(true) => Some(Ok(renewed.certificate().to_owned())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
            (certificate, tokens.refresh())
        });
        let Ok((certificate, tokens)) = looked.await else { continue };
        watch_expiry(&control, &tls, certificate.as_ref().is_some_and(Result::is_ok));
        if let Some(news) = certificate {
            tell(&control, "certificate", "the old one goes on until the daemon ends", news);
        }
        for news in tokens {
            tell(&control, "tokens", "until that is mended, nobody comes in by it", news);
        }
    }
}

/// Says in time that the certificate has to be renewed. `anew`: it is another one than at the last look.
fn watch_expiry(control: &Control, tls: &ServerTls, anew: bool) {
    if anew {
        let expiry = tokio::task::block_in_place(|| expiry::of_file(tls.certificate()));
        control.set_certificate_expiry(expiry.unwrap_or(0));
    }
    let meaning = "Clients on the network refuse one that has expired; the socket goes on.";
    let attention = control
        .certificate_expiry_unix_s()
        .and_then(|expiry| expiry::attention("the API's certificate", meaning, tls.certificate(), expiry));
    control.set_trouble("api expiry", attention);
}

fn tell(control: &Control, what: &str, meanwhile: &str, news: Result<PathBuf, ErrorDetail>) {
    match news {
        Ok(path) => {
            let path = path.display().to_string();
            control.set_trouble(&trouble(what, &path), None);
            let message = format!("the API's {what} were read anew: {path}");
            control.events().info("api_renewed", message, &[("path", &path)]);
        }
        Err(error) => {
            let path = error.context.get("path").cloned().unwrap_or_default();
            let message = format!("{}; {meanwhile}", error.message);
            control.events().error("api_files_wrong", &message, &[("path", &path)]);
            let attention = Attention {
                subject: "daemon".to_owned(),
                message,
                meaning: String::new(),
                remedy: error.remedy,
                commands: vec![format!("ls -l {path}")],
            };
            control.set_trouble(&trouble(what, &path), Some(attention));
        }
    }
}

/// By what a trouble is known: there is one certificate, whichever of its files is wrong, and several files of tokens.
fn trouble(what: &str, path: &str) -> String {
    if what == "tokens" { format!("api tokens {path}") } else { format!("api {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
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
            assert!(error.contains("right ones"), "{wrong}: {error}");
        }
    }

    #[test]
    fn neither_without_tls_nor_without_knowing_who_asks() {
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
        refused(cert(), "to everybody");
        refused(ApiArgs { api_listen: None, ..cert() }, "do nothing");
        refused(ApiArgs { api_read_token_file: Some("t".into()), ..ApiArgs::default() }, "do nothing");
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

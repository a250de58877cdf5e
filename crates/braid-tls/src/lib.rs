//! Certificates, keys and authorities, from PEM files to what a TLS connection needs.
//!
//! What it is: the one place that reads such files, for the daemon's exports, its API and the clients of both.
//! What it promises: an error names the file, the reason and the remedy. Certificates are renewed under a running
//! daemon: [`ServerTls`] notices changed files and gives new connections the new ones; while the new ones are wrong it
//! keeps the old ones and says so.
//! What it never does: no TLS 1.1 or older, no renegotiation, no OpenSSL, no password-protected keys.

#![forbid(unsafe_code)]

use braid_api::{ErrorDetail, Kind};
use braid_nbd::client::TlsWishes;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, ProtocolVersion, RootCertStore, ServerConfig, SignatureScheme,
    SupportedCipherSuite,
};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Longest file of certificates or keys that is read, in bytes. Bundles of all public authorities take some 250 KiB.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Where systems keep the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked.
    #[default]
    None,
    /// Whoever shows one has to show a right one.
    Optional,
    /// Nobody comes in without.
    Required,
}

/// The files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The server's certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authorities of clients' certificates.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients have to show a certificate; anything but none needs `client_authorities`.
    pub client_certificates: ClientCertificates,
}

/// The files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities that the server's certificate may come from; none: those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// The client's certificate and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Reads a server's files.
///
/// # Errors
/// A file is not there, cannot be read or holds something else; the key is another certificate's.
pub fn server(files: &ServerFiles) -> Result<Arc<ServerConfig>, ErrorDetail> {
    let provider = provider();
    let chain = certificates(&files.certificate)?;
    let key = private_key(&files.key)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| internal(&error))?;
    let builder = match (files.client_certificates, &files.client_authorities) {
        (ClientCertificates::None, _) => builder.with_no_client_auth(),
        (_, None) => {
            let message = "clients are to show a certificate, and no file says whose certificates count";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("name the file with the authority's certificate (tls_ca)"));
        }
        (wanted, Some(path)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), provider);
            let verifier = match wanted {
                ClientCertificates::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build().map_err(|error| {
                wrong(path, &format!("its certificates cannot be used for clients: {error}"))
                    .remedy("put the certificate of the clients' authority there, in PEM")
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config =
        builder.with_single_cert(chain, key).map_err(|error| does_not_fit(&error, &files.certificate, &files.key))?;
    config.ignore_client_order = true;
    // Connections last. Each one shows its certificate anew, so that what is no longer trusted stays out.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Reads a client's files.
///
/// # Errors
/// A file is not there, cannot be read or holds something else; the key is another certificate's.
pub fn client(files: &ClientFiles) -> Result<Arc<ClientConfig>, ErrorDetail> {
    let authorities = match &files.authorities {
        Some(path) => authorities(path)?,
        None => system_authorities()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| internal(&error))?
        .with_root_certificates(authorities);
    let config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| does_not_fit(&error, certificate, key))?,
    };
    Ok(Arc::new(config))
}

/// Reads what the address of an NBD server says of TLS: a folder with `ca-cert.pem` (without it, what the system trusts),
/// and perhaps `client-cert.pem` and `client-key.pem`.
///
/// # Errors
/// As [`client`].
pub fn client_of_nbd(wishes: &TlsWishes) -> Result<Arc<ClientConfig>, ErrorDetail> {
    let there = |name: &str| wishes.certificates.as_ref().map(|folder| folder.join(name)).filter(|path| path.exists());
    if let Some(folder) = &wishes.certificates
        && !folder.is_dir()
    {
        return Err(ErrorDetail::new(
            Kind::NotFound,
            format!("tls-certificates: there is no folder {}", folder.display()),
        )
        .with("path", folder.display())
        .remedy("name a folder with ca-cert.pem, and client-cert.pem and client-key.pem if the server asks for them"));
    }
    let files = ClientFiles {
        authorities: there("ca-cert.pem"),
        identity: there("client-cert.pem").zip(there("client-key.pem")),
    };
    if wishes.verify {
        return client(&files);
    }
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| internal(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider())));
    match &files.identity {
        None => Ok(Arc::new(builder.with_no_client_auth())),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map(Arc::new)
            .map_err(|error| does_not_fit(&error, certificate, key)),
    }
}

/// Believes every certificate, for who asks for that (`tls-verify-peer=0`): whoever is in between can read and change
/// everything.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What rustls takes by itself, but AES with keys of 128 bits before that with 256: as safe for what is known, and a third
/// faster.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    let short = |suite: &SupportedCipherSuite| {
        matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    };
    // TLS 1.3 stays before 1.2: the order is kept but for this.
    provider.cipher_suites.sort_by_key(|suite| (suite.version().version == ProtocolVersion::TLSv1_2, !short(suite)));
    Arc::new(provider)
}

fn internal(error: &rustls::Error) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, format!("TLS cannot be set up: {error}"))
}

fn wrong(path: &Path, why: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("{}: {why}", path.display())).with("path", path.display())
}

/// Reads a file whole, if it is one and of a sane length.
fn read(path: &Path) -> Result<(Vec<u8>, std::fs::Metadata), ErrorDetail> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => ErrorDetail::new(Kind::NotFound, format!("there is no file {}", path.display()))
            .with("path", path.display())
            .remedy("make it, or name another one"),
        ErrorKind::PermissionDenied => {
            ErrorDetail::new(Kind::PermissionDenied, format!("{} cannot be read: {error}", path.display()))
                .with("path", path.display())
                .remedy("let this user read it (chown, chmod 0640 and a group)")
        }
        _ => ErrorDetail::new(Kind::Internal, format!("{} cannot be read: {error}", path.display()))
            .with("path", path.display()),
    };
    // Opening a pipe would wait for somebody who writes to it.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(wrong(path, "it is not a file").remedy("name a file in PEM"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(path, "it is longer than 4 MiB").remedy("name a file in PEM; is it another one?"));
    }
    Ok((bytes, metadata))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ErrorDetail> {
    let remedy = "a certificate in PEM begins with -----BEGIN CERTIFICATE-----";
    let (bytes, _) = read(path)?;
    let found: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| wrong(path, &format!("it is no PEM: {error}")).remedy(remedy))?;
    if found.is_empty() {
        return Err(wrong(path, "there is no certificate in it").remedy(remedy));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ErrorDetail> {
    let (bytes, metadata) = read(path)?;
    if metadata.mode() & 0o004 != 0 {
        // Not refused: secrets mounted into a container look like this, where nobody else is.
        tracing::warn!("the private key {} can be read by every user; chmod o-rwx it", path.display());
    }
    let remedy = "a key in PEM begins with -----BEGIN PRIVATE KEY----- (or RSA or EC PRIVATE KEY)";
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        PemError::NoItemsFound if bytes.windows(17).any(|part| part == b"BEGIN ENCRYPTED P") => {
            wrong(path, "the key is protected by a password, which nobody is here to type")
                .remedy("store it without: openssl pkey -in KEY -out NEWKEY, and chmod 0600 it")
        }
        PemError::NoItemsFound => wrong(path, "there is no private key in it").remedy(remedy),
        error => wrong(path, &format!("it is no PEM: {error}")).remedy(remedy),
    })
}

fn authorities(path: &Path) -> Result<RootCertStore, ErrorDetail> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| {
            wrong(path, &format!("one of its certificates is no authority's: {error}"))
                .remedy("put the authority's own certificate there, in PEM")
        })?;
    }
    Ok(store)
}

/// What the system trusts. Some of it may be of a kind that is not understood here, which is left out.
fn system_authorities() -> Result<RootCertStore, ErrorDetail> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let Some(path) = named.or(known) else {
        return Err(ErrorDetail::new(Kind::NotFound, "this system has no list of trusted authorities")
            .remedy("install ca-certificates, or name the server's authority"));
    };
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(certificates(&path)?);
    Ok(store)
}

fn does_not_fit(error: &rustls::Error, certificate: &Path, key: &Path) -> ErrorDetail {
    let detail = match error {
        rustls::Error::InconsistentKeys(_) => ErrorDetail::new(
            Kind::InvalidArgument,
            format!("the key {} is not that of the certificate {}", key.display(), certificate.display()),
        )
        .remedy("name the key and the certificate that were made together"),
        error => ErrorDetail::new(
            Kind::InvalidArgument,
            format!("the certificate {} with the key {} cannot be used: {error}", certificate.display(), key.display()),
        )
        .remedy("ECDSA P-256 and P-384, Ed25519, and RSA of 2048 to 8192 bits can be used"),
    };
    detail.with("certificate", certificate.display()).with("key", key.display())
}

/// What tells a file from the one that takes its place, or from itself rewritten.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamps(files: &ServerFiles) -> Vec<Stamp> {
    let all = [Some(&files.certificate), Some(&files.key), files.client_authorities.as_ref()];
    let stamp = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    all.into_iter().flatten().map(stamp).collect()
}

/// A server's certificate and key, which may be renewed while it runs.
#[derive(Debug)]
pub struct ServerTls {
    /// None where it is somebody else's to renew it.
    files: Option<ServerFiles>,
    current: RwLock<Arc<ServerConfig>>,
    /// The files as they were last looked at.
    seen: Mutex<Vec<Stamp>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Those of [`server`].
    pub fn load(files: ServerFiles) -> Result<ServerTls, ErrorDetail> {
        // Looked at before they are read: what changes meanwhile is read once more.
        let seen = stamps(&files);
        let current = server(&files)?;
        Ok(ServerTls { files: Some(files), current: RwLock::new(current), seen: Mutex::new(seen) })
    }

    /// What is made ready already, and renews itself.
    pub fn ready(current: Arc<ServerConfig>) -> ServerTls {
        ServerTls { files: None, current: RwLock::new(current), seen: Mutex::default() }
    }

    /// What new connections are to use. Does not touch the files.
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where the certificate comes from; nowhere where it is from no file.
    pub fn certificate(&self) -> &Path {
        self.files.as_ref().map_or(Path::new(""), |files| &files.certificate)
    }

    /// Reads the files again if they are not those that were read last, or if `anyway`. True: new connections use new
    /// ones. It reads files, and so may take its time.
    ///
    /// # Errors
    /// Those of [`server`]; the old ones go on. The same wrong files are an error once, not each time.
    pub fn refresh(&self, anyway: bool) -> Result<bool, ErrorDetail> {
        let Some(files) = &self.files else { return Ok(false) };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(files);
        if *seen == now && !anyway {
            return Ok(false);
        }
        *seen = now;
        let new = server(files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;

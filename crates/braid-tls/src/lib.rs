//! TLS configuration from PEM files: certificates, keys and authorities.
//!
//! What it is: the only code that reads such files, for the daemon's exports, its API and the clients of both.
//! What it guarantees: an error names the file, the reason and the remedy. Certificates can be renewed while the daemon
//! runs: [`ServerTls::refresh`] detects changed files and uses them for new connections. If the new files are invalid,
//! it keeps the old configuration and returns the error.
//! What it never does: support TLS 1.1 or older, renegotiation, OpenSSL or password-protected keys.

#![forbid(unsafe_code)]

pub mod digest;
pub mod expiry;

use braid_api::{ErrorDetail, Kind};
use braid_nbd::client::TlsOptions;
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

/// Maximum size of a file of certificates or keys, in bytes. Bundles of all public authorities have about 250 KiB.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The common paths of the system's trusted authorities.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No certificate is requested.
    #[default]
    None,
    /// A certificate is requested. A client without one is accepted, and one with an invalid certificate is rejected.
    Optional,
    /// A valid certificate is required.
    Required,
}

/// The TLS files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The server's certificate, followed by the intermediate certificates up to its authority.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authorities of clients' certificates.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients must present a certificate. All values except `None` need `client_authorities`.
    pub client_certificates: ClientCertificates,
}

/// The TLS files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The trusted authorities of the server's certificate, or `None` for those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// The client's certificate and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Reads the files of a server, and returns its TLS configuration.
///
/// # Errors
/// A file is missing, cannot be read or has invalid content; the key does not match the certificate; client
/// certificates are requested without `client_authorities`.
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
            let message = "client certificates are requested, and no file names their authority";
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
                invalid_file(path, &format!("its certificates cannot be used for clients: {error}"))
                    .remedy("put the certificate of the clients' authority there, in PEM")
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| unusable_certificate(&error, &files.certificate, &files.key))?;
    config.ignore_client_order = true;
    // TLS sessions are not resumed: each connection presents its certificate again, so that a client whose certificate
    // is no longer trusted is rejected. Connections are long-lived, so the full handshake costs little.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Reads the files of a client, and returns its TLS configuration.
///
/// # Errors
/// A file is missing, cannot be read or has invalid content; the key does not match the certificate.
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
            .map_err(|error| unusable_certificate(&error, certificate, key))?,
    };
    Ok(Arc::new(config))
}

/// Returns the TLS configuration that the address of an NBD server specifies. Its directory (`tls-certificates`) may
/// have `ca-cert.pem` (without it, the system's authorities are trusted), and `client-cert.pem` with `client-key.pem`
/// (without both, the client presents no certificate).
///
/// # Errors
/// As [`client`], or the directory does not exist.
pub fn nbd_client(request: &TlsOptions) -> Result<Arc<ClientConfig>, ErrorDetail> {
    let existing =
        |name: &str| request.certificates.as_ref().map(|directory| directory.join(name)).filter(|path| path.exists());
    if let Some(directory) = &request.certificates
        && !directory.is_dir()
    {
        return Err(ErrorDetail::new(
            Kind::NotFound,
            format!("tls-certificates: there is no folder {}", directory.display()),
        )
        .with("path", directory.display())
        .remedy("name a folder with ca-cert.pem, and client-cert.pem and client-key.pem if the server asks for them"));
    }
    let files = ClientFiles {
        authorities: existing("ca-cert.pem"),
        identity: existing("client-cert.pem").zip(existing("client-key.pem")),
    };
    if request.verify {
        return client(&files);
    }
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| internal(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider())));
    match &files.identity {
        None => Ok(Arc::new(builder.with_no_client_auth())),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map(Arc::new)
            .map_err(|error| unusable_certificate(&error, certificate, key)),
    }
}

/// Accepts every server certificate, as `tls-verify-peer=0` in the address requests. An attacker on the network path
/// can then read and change all data.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
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

/// Returns rustls' `ring` provider, but with AES-128-GCM preferred: no practical attack on it is known, and it is a
/// third faster than AES-256-GCM.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    let is_aes_128 = |suite: &SupportedCipherSuite| {
        matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    };
    // TLS 1.3 suites stay before those of TLS 1.2. The sort is stable: the order is otherwise unchanged.
    provider
        .cipher_suites
        .sort_by_key(|suite| (suite.version().version == ProtocolVersion::TLSv1_2, !is_aes_128(suite)));
    Arc::new(provider)
}

fn internal(error: &rustls::Error) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, format!("TLS cannot be set up: {error}"))
}

fn invalid_file(path: &Path, why: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("{}: {why}", path.display())).with("path", path.display())
}

/// Reads a whole file. Fails if the path is not a regular file or the file is too long.
fn read(path: &Path) -> Result<(Vec<u8>, std::fs::Metadata), ErrorDetail> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => ErrorDetail::new(Kind::NotFound, format!("there is no file {}", path.display()))
            .with("path", path.display())
            .remedy("create it, or name another one"),
        ErrorKind::PermissionDenied => {
            ErrorDetail::new(Kind::PermissionDenied, format!("{} cannot be read: {error}", path.display()))
                .with("path", path.display())
                .remedy("let this user read it (chown, chmod 0640 and a group)")
        }
        _ => ErrorDetail::new(Kind::Internal, format!("{} cannot be read: {error}", path.display()))
            .with("path", path.display()),
    };
    // Opening a pipe without this flag would wait for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(invalid_file(path, "it is not a file").remedy("name a file in PEM"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(invalid_file(path, "it is longer than 4 MiB").remedy("name a file in PEM; is it another one?"));
    }
    Ok((bytes, metadata))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ErrorDetail> {
    let remedy = "a certificate in PEM begins with -----BEGIN CERTIFICATE-----";
    let (bytes, _) = read(path)?;
    let found: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| invalid_file(path, &format!("it is not PEM: {error}")).remedy(remedy))?;
    if found.is_empty() {
        return Err(invalid_file(path, "there is no certificate in it").remedy(remedy));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ErrorDetail> {
    let (bytes, metadata) = read(path)?;
    if metadata.mode() & 0o004 != 0 {
        // Not an error: secrets that are mounted into a container have such modes, and a container has no other users.
        tracing::warn!("the private key {} can be read by every user; chmod o-rwx it", path.display());
    }
    let remedy = "a key in PEM begins with -----BEGIN PRIVATE KEY----- (or RSA or EC PRIVATE KEY)";
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        PemError::NoItemsFound if bytes.windows(17).any(|part| part == b"BEGIN ENCRYPTED P") => {
            invalid_file(path, "the key is protected by a password, which is not supported")
                .remedy("store it without: openssl pkey -in KEY -out NEWKEY, and chmod 0600 it")
        }
        PemError::NoItemsFound => invalid_file(path, "there is no private key in it").remedy(remedy),
        error => invalid_file(path, &format!("it is not PEM: {error}")).remedy(remedy),
    })
}

fn authorities(path: &Path) -> Result<RootCertStore, ErrorDetail> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| {
            invalid_file(path, &format!("one of its certificates is not an authority's: {error}"))
                .remedy("put the authority's own certificate there, in PEM")
        })?;
    }
    Ok(store)
}

/// Returns the authorities that the system trusts. Unsupported certificates are omitted.
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

fn unusable_certificate(error: &rustls::Error, certificate: &Path, key: &Path) -> ErrorDetail {
    let detail = match error {
        rustls::Error::InconsistentKeys(_) => ErrorDetail::new(
            Kind::InvalidArgument,
            format!("the key {} does not match the certificate {}", key.display(), certificate.display()),
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

/// The attributes that change if a file is replaced or rewritten: device, inode, size in bytes, and modification time
/// in seconds and nanoseconds. `None` if the file cannot be examined.
type FileAttributes = Option<(u64, u64, u64, i64, i64)>;

fn attributes_of(files: &ServerFiles) -> Vec<FileAttributes> {
    let all = [Some(&files.certificate), Some(&files.key), files.client_authorities.as_ref()];
    let attributes = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    all.into_iter().flatten().map(attributes).collect()
}

/// The TLS configuration of a server, whose files can be renewed while the server runs.
#[derive(Debug)]
pub struct ServerTls {
    /// The files; `None` if the configuration does not come from files: see [`ServerTls::from_config`].
    files: Option<ServerFiles>,
    current: RwLock<Arc<ServerConfig>>,
    /// The attributes of the files at the last check.
    last_attributes: Mutex<Vec<FileAttributes>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// As [`server`].
    pub fn load(files: ServerFiles) -> Result<ServerTls, ErrorDetail> {
        // The attributes are read before the files: if a file changes in between, the next refresh reads it again.
        let last_attributes = attributes_of(&files);
        let current = server(&files)?;
        Ok(ServerTls {
            files: Some(files),
            current: RwLock::new(current),
            last_attributes: Mutex::new(last_attributes),
        })
    }

    /// Returns a server's TLS from a complete configuration that looks up its current certificate itself. It has no
    /// files, so [`ServerTls::refresh`] does nothing.
    pub fn from_config(current: Arc<ServerConfig>) -> ServerTls {
        ServerTls { files: None, current: RwLock::new(current), last_attributes: Mutex::default() }
    }

    /// Returns the configuration for new connections. Does not access the files.
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the path of the certificate; an empty path if the configuration does not come from files.
    pub fn certificate(&self) -> &Path {
        self.files.as_ref().map_or(Path::new(""), |files| &files.certificate)
    }

    /// Reads the files again if they have changed since the last check, or if `force` is set. Returns whether new
    /// connections use a new configuration; established ones keep theirs. May block on file I/O.
    ///
    /// # Errors
    /// As [`server`]. The old configuration stays in use. Unchanged invalid files are not reported again, unless
    /// `force` is set.
    pub fn refresh(&self, force: bool) -> Result<bool, ErrorDetail> {
        let Some(files) = &self.files else { return Ok(false) };
        let mut last_attributes = self.last_attributes.lock().unwrap_or_else(PoisonError::into_inner);
        let current_attributes = attributes_of(files);
        if *last_attributes == current_attributes && !force {
            return Ok(false);
        }
        *last_attributes = current_attributes;
        let new = server(files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;

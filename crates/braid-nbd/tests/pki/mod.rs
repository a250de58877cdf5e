//! A certificate authority and certificates for one test.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig};

pub struct Pki {
    authority: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Pki {
    pub fn new() -> Pki {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("braid-nbd-pki-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::DigitalSignature];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pki = Pki { authority, folder };
        std::fs::write(pki.folder.join("ca-cert.pem"), pki.authority.pem()).unwrap();
        pki
    }

    /// Returns a directory as libnbd and qemu expect it, with a client certificate if `client` is set.
    pub fn folder(&self, client: bool) -> &Path {
        let (cert, key) = (self.folder.join("client-cert.pem"), self.folder.join("client-key.pem"));
        if client {
            let (chain, secret) = self.issue("a client", ExtendedKeyUsagePurpose::ClientAuth);
            std::fs::write(cert, chain).unwrap();
            std::fs::write(key, secret).unwrap();
        } else {
            let _ = std::fs::remove_file(cert);
            let _ = std::fs::remove_file(key);
        }
        &self.folder
    }

    fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        self.issue_for(name, purpose, 2040)
    }

    fn issue_for(&self, name: &str, purpose: ExtendedKeyUsagePurpose, until: i32) -> (String, String) {
        let mut names = vec![name.to_owned()];
        if name == "localhost" {
            names.push("127.0.0.1".to_owned());
        }
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.authority).unwrap().pem(), key.serialize_pem())
    }

    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// Returns the configuration of a server called localhost; with `clients` it requires client certificates.
    pub fn server(&self, clients: bool) -> Arc<ServerConfig> {
        self.server_until(clients, 2040)
    }

    /// The same, with a certificate that expires at the beginning of this year.
    pub fn server_until(&self, clients: bool, until: i32) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = match clients {
            false => builder.unwrap().with_no_client_auth(),
            true => builder.unwrap().with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(self.roots(), provider).build().unwrap(),
            ),
        };
        let (chain, key) = self.issue_for("localhost", ExtendedKeyUsagePurpose::ServerAuth, until);
        Arc::new(builder.with_single_cert(chain_of(&chain), key_of(&key)).unwrap())
    }

    /// Returns server and client configurations with a single cipher suite.
    pub fn with_suite(&self, suite: CipherSuite) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let mut provider: CryptoProvider = rustls::crypto::ring::default_provider();
        provider.cipher_suites.retain(|known| known.suite() == suite);
        let version = [provider.cipher_suites[0].version()];
        let provider = Arc::new(provider);
        let (chain, key) = self.issue("localhost", ExtendedKeyUsagePurpose::ServerAuth);
        let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&version).unwrap();
        let server = server.with_no_client_auth().with_single_cert(chain_of(&chain), key_of(&key)).unwrap();
        let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&version).unwrap();
        let client = client.with_root_certificates(self.roots()).with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    }

    pub fn client(
        &self,
        identity: Option<&Pki>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(self.roots());
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(pki) => {
                let (chain, key) = pki.issue("a client", ExtendedKeyUsagePurpose::ClientAuth);
                builder.with_client_auth_cert(chain_of(&chain), key_of(&key)).unwrap()
            }
        })
    }
}

fn chain_of(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap()
}

fn key_of(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}

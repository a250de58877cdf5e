//! What connections of nodes go by, made once and true from then on: whose keys count, and which certificate is shown.
//!
//! What it promises: a certificate of the cluster's authority is not enough. Who connects has the key of a node that is in the
//! table now; who answers has the key of just the node that was asked for.

use super::identity::digest_of_certificates_key;
use super::token::from_hex;
use super::{file::Cluster, table};
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The digests of the keys of the nodes that are in the table, by UUID.
#[derive(Debug, Default)]
pub struct Known(RwLock<BTreeMap<String, [u8; 32]>>);

impl Known {
    /// From now on these count.
    pub fn set(&self, cluster: &Cluster) {
        let keys = table::present(&cluster.members)
            .filter_map(|line| Some((line.uuid.clone(), from_hex(&line.key_sha256)?)))
            // Nobody comes in to a node that was removed.
            .filter(|_| !cluster.is_removed());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys.collect();
    }

    fn has(&self, certificate: &[u8], of: Option<&str>) -> Result<(), Error> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = digest_of_certificates_key(certificate);
        let counts = found.is_some_and(|found| match of {
            Some(uuid) => known.get(uuid) == Some(&found),
            None => known.values().any(|key| *key == found),
        });
        if counts {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }
}

/// The certificate that this node shows, on either side, and its key. Connections that are made later show a renewed one.
#[derive(Debug, Default)]
pub struct Shown(RwLock<Option<Arc<CertifiedKey>>>);

impl Shown {
    /// From now on this is shown.
    pub fn set(&self, certificate: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(certificate));
    }

    fn now(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.now()
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.now()
    }

    fn has_certs(&self) -> bool {
        self.now().is_some()
    }
}

/// Lets nodes of the table in.
#[derive(Debug)]
pub struct Guests {
    /// Checks certificates against the authority.
    pub inner: Arc<dyn ClientCertVerifier>,
    /// Whose keys count.
    pub known: Arc<Known>,
}

impl ClientCertVerifier for Guests {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, between, now)?;
        self.known.has(certificate, None)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Believes just the node whose UUID is asked for.
#[derive(Debug)]
pub struct Hosts {
    /// Checks certificates against the authority, and for the name.
    pub inner: Arc<dyn ServerCertVerifier>,
    /// Whose keys count.
    pub known: Arc<Known>,
}

impl ServerCertVerifier for Hosts {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(certificate, between, name, ocsp, now)?;
        self.known.has(certificate, Some(&name.to_str()))?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

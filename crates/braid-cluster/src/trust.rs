//! Trust between nodes: which keys are accepted, and which certificate is presented. Both are shared by all TLS
//! configurations, so that a change applies to every later handshake.
//!
//! Guarantees: a certificate of the cluster's authority is not enough. A client must have the key of a node that is in
//! the table now; a server must have the key of exactly the node that was requested.

use braid_tls::digest::digest_of_certificates_key;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Digests of the keys of the nodes in the table, by UUID.
#[derive(Debug, Default)]
pub struct TrustedKeys(RwLock<BTreeMap<String, [u8; 32]>>);

impl TrustedKeys {
    /// Replaces the accepted keys, each with the UUID of its node.
    pub fn set(&self, keys: BTreeMap<String, [u8; 32]>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    fn verify_key(&self, certificate: &[u8], of: Option<&str>) -> Result<(), Error> {
        let trusted_keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = digest_of_certificates_key(certificate);
        let is_trusted = found.is_some_and(|found| match of {
            Some(uuid) => trusted_keys.get(uuid) == Some(&found),
            None => trusted_keys.values().any(|key| *key == found),
        });
        if is_trusted {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }
}

/// The certificate that this node presents, as client and as server, and its key. Later handshakes present a renewed
/// one.
#[derive(Debug, Default)]
pub struct PresentedCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl PresentedCertificate {
    /// Replaces the presented certificate.
    pub fn set(&self, certificate: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(certificate));
    }

    fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for PresentedCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

impl ResolvesClientCert for PresentedCertificate {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        self.current().is_some()
    }
}

/// Accepts clients that are nodes of the table.
#[derive(Debug)]
pub struct MemberClientVerifier {
    /// Checks certificates against the authority.
    pub inner: Arc<dyn ClientCertVerifier>,
    /// The accepted keys.
    pub trusted_keys: Arc<TrustedKeys>,
}

impl ClientCertVerifier for MemberClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, intermediates, now)?;
        self.trusted_keys.verify_key(certificate, None)?;
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

/// Accepts only the server whose UUID is the requested host name.
#[derive(Debug)]
pub struct MemberServerVerifier {
    /// Checks certificates against the authority, and for the name.
    pub inner: Arc<dyn ServerCertVerifier>,
    /// The accepted keys.
    pub trusted_keys: Arc<TrustedKeys>,
}

impl ServerCertVerifier for MemberServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now)?;
        self.trusted_keys.verify_key(certificate, Some(&name.to_str()))?;
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

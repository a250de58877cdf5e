//! Digests of certificates and of their keys.

use ring::digest::{SHA256, digest};
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

/// Returns the SHA-256 digest of a certificate's public key (its DER-encoded SubjectPublicKeyInfo). The certificate is
/// in DER. `None` if it cannot be parsed.
pub fn digest_of_certificates_key(certificate: &[u8]) -> Option<[u8; 32]> {
    let certificate = Certificate::from_der(certificate).ok()?;
    Some(sha256(&certificate.tbs_certificate.subject_public_key_info.to_der().ok()?))
}

/// Returns the SHA-256 digest of these bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

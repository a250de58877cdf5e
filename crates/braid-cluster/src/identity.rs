//! Identities of nodes: the cluster's authority, certificates, and digests of keys.
//!
//! Guarantees: a node keeps its key for as long as it belongs to the cluster, and other nodes identify it by that key,
//! whose digest is in their tables. A certificate of the authority alone is not enough: another holder of the
//! authority's key, such as a node that was removed, cannot pass for a member. Every node has the authority's key, and
//! issues and renews its own certificate with it.
//!
//! TLS below 1.3 and session tickets are never used.

use super::token::hex;
use super::trust::{MemberClientVerifier, MemberServerVerifier, PresentedCertificate, TrustedKeys};
use braid_api::{ErrorDetail, Kind};
use braid_tls::digest::{digest_of_certificates_key, sha256};
use braid_tls::expiry;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SerialNumber,
};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A day, in seconds.
const DAY_S: i64 = 86_400;
/// Lifetime of a node's certificate, in seconds.
pub const CERTIFICATE_S: i64 = 365 * DAY_S;
/// Lifetime of the authority's certificate, in seconds. It is never renewed, so this is the maximum lifetime of a
/// cluster.
const AUTHORITY_S: i64 = 50 * 365 * DAY_S;
/// Certificates are valid from this many seconds before they are made, since clocks differ.
const CLOCK_TOLERANCE_S: i64 = DAY_S;

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Subject of a certificate: what stays the same when the certificate is renewed.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The node.
    pub uuid: Uuid,
    /// Its name.
    pub name: &'a str,
    /// Hosts at which the node is reached.
    pub hosts: Vec<String>,
}

fn failed(error: &dyn std::fmt::Display) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, format!("a certificate cannot be made: {error}"))
}

fn damaged(what: &str, error: &dyn std::fmt::Display) -> ErrorDetail {
    ErrorDetail::new(Kind::Damaged, format!("{what} of this node cannot be used: {error}"))
        .remedy("restore nodes.json from a backup; or move it away, and join the cluster again under a new invitation")
}

/// Returns the parameters that both kinds of certificates share.
fn params(
    names: Vec<String>,
    common_name: &str,
    now_unix_s: i64,
    lifetime_s: i64,
) -> Result<CertificateParams, ErrorDetail> {
    let mut params = CertificateParams::new(names).map_err(|error| failed(&error))?;
    let from = u64::try_from(now_unix_s - CLOCK_TOLERANCE_S).unwrap_or(0);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(u64::try_from(now_unix_s + lifetime_s).unwrap_or(0));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Braid");
    params.distinguished_name.push(DnType::CommonName, common_name);
    let mut serial = [0; 16];
    getrandom::fill(&mut serial).map_err(|error| failed(&error))?;
    // A positive number of constant length.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn authority_params(cluster: Uuid, now_unix_s: i64) -> Result<CertificateParams, ErrorDetail> {
    let mut params = params(Vec::new(), &format!("cluster {cluster}"), now_unix_s, AUTHORITY_S)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// Makes the authority of a new cluster.
///
/// # Errors
/// There are no random numbers.
pub fn make_authority(cluster: Uuid, now_unix_s: i64) -> Result<Identity, ErrorDetail> {
    let key = make_key()?;
    let certificate = authority_params(cluster, now_unix_s)?.self_signed(&key).map_err(|error| failed(&error))?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a new key.
///
/// # Errors
/// There are no random numbers.
pub fn make_key() -> Result<KeyPair, ErrorDetail> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|error| failed(&error))
}

/// Returns the digest of a key, by which other nodes identify a node.
pub fn digest_of_key(key: &KeyPair) -> [u8; 32] {
    sha256(&key.subject_public_key_info())
}

/// Makes a certificate for a node.
///
/// # Errors
/// The authority's key cannot be read.
pub fn certify(
    authority: &Identity,
    cluster: Uuid,
    subject: &Subject<'_>,
    key: &KeyPair,
    now_unix_s: i64,
) -> Result<String, ErrorDetail> {
    let authority_key = KeyPair::from_pem(&authority.key).map_err(|error| damaged("the authority's key", &error))?;
    // Names that TLS cannot express as a host name are left out. Nodes request the UUID, which always can.
    let mut names = vec![subject.uuid.to_string(), subject.name.to_owned()];
    names.extend(subject.hosts.iter().cloned());
    names.retain(|name| ServerName::try_from(name.as_str()).is_ok());
    names.sort();
    names.dedup();
    let mut params = params(names, subject.name, now_unix_s, CERTIFICATE_S)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    // Of the issuer's parameters only name and key enter the certificate, so they need not be those of the stored
    // certificate of the authority.
    let issuer = Issuer::new(authority_params(cluster, now_unix_s)?, authority_key);
    let certificate = params.signed_by(key, &issuer).map_err(|error| failed(&error))?;
    Ok(certificate.pem())
}

/// Returns the digest of a certificate, by which an invitation names the authority.
///
/// # Errors
/// The text is no PEM.
pub fn digest_of(certificate: &str) -> Result<[u8; 32], ErrorDetail> {
    Ok(sha256(&parse(certificate)?))
}

fn parse(certificate: &str) -> Result<CertificateDer<'static>, ErrorDetail> {
    CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| damaged("a certificate", &error))
}

/// Returns whether the identity's certificate is for its key.
pub fn key_matches(identity: &Identity) -> bool {
    let Ok(key) = KeyPair::from_pem(&identity.key) else { return false };
    parse(&identity.certificate).is_ok_and(|found| digest_of_certificates_key(&found) == Some(digest_of_key(&key)))
}

/// A node's certificate and the authority's, made ready for connections.
#[derive(Clone)]
pub struct Credentials {
    /// For clients of this node's API. A client without a certificate is accepted, so that it can request admission.
    pub server: Arc<ServerConfig>,
    /// For clients of the data of this node's replicas.
    pub data: Arc<ServerConfig>,
    /// For connections to other nodes, whose host name is their UUID.
    pub client: Arc<ClientConfig>,
    /// From when and until when the certificate is valid, in seconds of Unix time.
    pub validity_unix_s: (i64, i64),
}

impl Credentials {
    /// Makes the TLS configurations, and sets `own` as the certificate that all later handshakes present (through
    /// `presented`), also those of earlier configurations.
    ///
    /// # Errors
    /// [`Kind::Damaged`]: a part cannot be read, or the parts do not belong together. [`Kind::Internal`]: TLS cannot be
    /// set up.
    pub fn new(
        authority: &Identity,
        own: &Identity,
        trusted_keys: &Arc<TrustedKeys>,
        presented: &Arc<PresentedCertificate>,
    ) -> Result<Credentials, ErrorDetail> {
        let root = parse(&authority.certificate)?;
        let certificate = parse(&own.certificate)?;
        let validity_unix_s = expiry::of_certificate(&certificate)
            .ok_or_else(|| damaged("the certificate", &"it does not say for how long it is good"))?;
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).map_err(|error| damaged("the key", &error))?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).map_err(|error| damaged("the authority's certificate", &error))?;
        let roots = Arc::new(roots);
        let provider = braid_tls::provider();
        let certified = CertifiedKey::from_der(vec![certificate, root], key, &provider)
            .map_err(|error| damaged("the certificate", &error))?;
        presented.set(certified);
        let client_verifier = || WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let unusable = |error: VerifierBuilderError| damaged("the authority's certificate", &error);
        let server = |verifier: Arc<dyn ClientCertVerifier>| -> Result<Arc<ServerConfig>, ErrorDetail> {
            let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&TLS13])
                .map_err(|error| failed(&error))?
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(Arc::clone(presented) as _);
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
            Ok(Arc::new(server))
        };
        // The API authorizes each request, so that a refused client receives the reason.
        let api = server(client_verifier().allow_unauthenticated().build().map_err(unusable)?)?;
        let inner = client_verifier().build().map_err(unusable)?;
        let data = server(Arc::new(MemberClientVerifier { inner, trusted_keys: Arc::clone(trusted_keys) }))?;
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let inner = inner.build().map_err(|error| damaged("the authority's certificate", &error))?;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(MemberServerVerifier {
                inner,
                trusted_keys: Arc::clone(trusted_keys),
            }))
            .with_client_cert_resolver(Arc::clone(presented) as _);
        client.resumption = Resumption::disabled();
        Ok(Credentials { server: api, data, client: Arc::new(client), validity_unix_s })
    }

    /// Returns whether the certificate is to be renewed: two thirds of its lifetime are over, or it is not valid yet
    /// because the clock was wrong when it was made.
    pub fn is_due(&self, now_unix_s: i64) -> bool {
        let (from, to) = self.validity_unix_s;
        now_unix_s < from || now_unix_s - from >= (to - from) / 3 * 2
    }
}

/// Returns a digest as text, for tables and output.
pub fn digest_text(digest: &[u8; 32]) -> String {
    hex(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_790_000_000;

    fn subject(name: &str) -> Subject<'_> {
        Subject { uuid: Uuid::from_u128(7), name, hosts: vec!["192.0.2.7".to_owned(), "::1".to_owned()] }
    }

    fn node(authority: &Identity, now: i64) -> Identity {
        let key = make_key().expect("a key");
        let certificate = certify(authority, Uuid::from_u128(1), &subject("node_1"), &key, now).expect("a certificate");
        Identity { certificate, key: key.serialize_pem() }
    }

    #[test]
    fn credentials_match_and_are_renewed_in_time() {
        let authority = make_authority(Uuid::from_u128(1), NOW).expect("an authority");
        let own = node(&authority, NOW);
        assert!(key_matches(&authority) && key_matches(&own));
        assert!(!key_matches(&Identity { key: authority.key.clone(), ..own.clone() }));
        let ready = Credentials::new(&authority, &own, &Arc::default(), &Arc::default()).expect("it fits");
        assert_eq!(ready.validity_unix_s, (NOW - CLOCK_TOLERANCE_S, NOW + CERTIFICATE_S));
        let life = CERTIFICATE_S + CLOCK_TOLERANCE_S;
        for (at, due) in [
            (NOW, false),
            (NOW - CLOCK_TOLERANCE_S, false),
            (NOW - CLOCK_TOLERANCE_S - 1, true),
            (NOW - CLOCK_TOLERANCE_S + life / 3 * 2 - 1, false),
            (NOW - CLOCK_TOLERANCE_S + life / 3 * 2, true),
            (NOW + 10 * CERTIFICATE_S, true),
        ] {
            assert_eq!(ready.is_due(at), due, "{}", at - NOW);
        }
        let key = KeyPair::from_pem(&own.key).expect("a key");
        let found = digest_of_certificates_key(&parse(&own.certificate).expect("a certificate"));
        assert_eq!(found, Some(digest_of_key(&key)), "a key is known by its certificate");
    }

    #[test]
    fn damaged_parts_are_reported() {
        let authority = make_authority(Uuid::from_u128(1), NOW).expect("an authority");
        let own = node(&authority, NOW);
        let text = || "nothing".to_owned();
        for (authority, own) in [
            (Identity { certificate: text(), ..authority.clone() }, own.clone()),
            (authority.clone(), Identity { certificate: text(), ..own.clone() }),
            (authority.clone(), Identity { key: text(), ..own.clone() }),
            (authority.clone(), Identity { key: authority.key.clone(), ..own.clone() }),
        ] {
            let error =
                Credentials::new(&authority, &own, &Arc::default(), &Arc::default()).err().expect("it is damaged");
            assert!(error.kind == Kind::Damaged && !error.remedy.is_empty(), "{error}");
        }
        let key = make_key().expect("a key");
        let broken = Identity { key: text(), ..authority };
        assert!(certify(&broken, Uuid::from_u128(1), &subject("a"), &key, NOW).is_err());
        assert_eq!(digest_of_certificates_key(b"x"), None);
    }
}

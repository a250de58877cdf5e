//! What a node shows others, and by what it knows them: the cluster's authority, certificates, and digests of keys.
//!
//! What it promises: a node keeps its key for as long as it belongs to the cluster, and others know it by that key (its digest
//! is in their tables), not only by a certificate of the authority: whoever else has the authority's key, such as a node
//! that was removed, cannot pass for a member. Certificates come and go: each node makes its own.
//! What it never does: TLS older than 1.3, tickets of sessions.

use super::known::{Guests, Hosts, Known, Shown};
use super::token::hex;
use crate::daemon::expiry;
use braid_api::{ErrorDetail, Kind};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SerialNumber,
};
use ring::digest::{SHA256, digest};
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
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

/// A day, in seconds.
const DAY_S: i64 = 86_400;
/// For how long a node's certificate is good.
pub const CERTIFICATE_S: i64 = 365 * DAY_S;
/// For how long the authority's is: longer than anything that it is used for.
const AUTHORITY_S: i64 = 50 * 365 * DAY_S;
/// Certificates are good from so long before they were made, as clocks differ.
const EARLY_S: i64 = DAY_S;

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

/// Whose a certificate is: what does not change when it is renewed.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The node.
    pub uuid: Uuid,
    /// Its name.
    pub name: &'a str,
    /// Hosts that it is reached by.
    pub hosts: Vec<String>,
}

fn failed(error: &dyn std::fmt::Display) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, format!("a certificate cannot be made: {error}"))
}

fn damaged(what: &str, error: &dyn std::fmt::Display) -> ErrorDetail {
    ErrorDetail::new(Kind::Damaged, format!("{what} of this node cannot be used: {error}"))
        .remedy("restore nodes.json from a backup; or move it away, and join the cluster again under a new invitation")
}

/// What both kinds of certificates have in common.
fn params(
    names: Vec<String>,
    common_name: &str,
    now_unix_s: i64,
    good_s: i64,
) -> Result<CertificateParams, ErrorDetail> {
    let mut params = CertificateParams::new(names).map_err(|error| failed(&error))?;
    let from = u64::try_from(now_unix_s - EARLY_S).unwrap_or(0);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(u64::try_from(now_unix_s + good_s).unwrap_or(0));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Braid");
    params.distinguished_name.push(DnType::CommonName, common_name);
    let mut serial = [0; 16];
    getrandom::fill(&mut serial).map_err(|error| failed(&error))?;
    // A positive number whose length does not vary.
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

/// A new key.
///
/// # Errors
/// There are no random numbers.
pub fn make_key() -> Result<KeyPair, ErrorDetail> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|error| failed(&error))
}

/// The digest of a key that others know a node by.
pub fn digest_of_key(key: &KeyPair) -> [u8; 32] {
    sha256(&key.subject_public_key_info())
}

/// The same of a certificate's key; none where it cannot be read.
pub fn digest_of_certificates_key(certificate: &[u8]) -> Option<[u8; 32]> {
    let certificate = Certificate::from_der(certificate).ok()?;
    Some(sha256(&certificate.tbs_certificate.subject_public_key_info.to_der().ok()?))
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
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
    // Names that no client would ask for are left out: the UUID is what nodes ask for.
    let mut names = vec![subject.uuid.to_string(), subject.name.to_owned()];
    names.extend(subject.hosts.iter().cloned());
    names.retain(|name| ServerName::try_from(name.as_str()).is_ok());
    names.sort();
    names.dedup();
    let mut params = params(names, subject.name, now_unix_s, CERTIFICATE_S)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    // Of the authority only its name and its key matter here, and both are known.
    let issuer = Issuer::new(authority_params(cluster, now_unix_s)?, authority_key);
    let certificate = params.signed_by(key, &issuer).map_err(|error| failed(&error))?;
    Ok(certificate.pem())
}

/// The digest of a certificate, by which an invitation names the authority.
///
/// # Errors
/// It is no PEM.
pub fn digest_of(certificate: &str) -> Result<[u8; 32], ErrorDetail> {
    Ok(sha256(&parse(certificate)?))
}

fn parse(certificate: &str) -> Result<CertificateDer<'static>, ErrorDetail> {
    CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| damaged("a certificate", &error))
}

/// Whether a certificate's key is this one.
pub fn fits(identity: &Identity) -> bool {
    let Ok(key) = KeyPair::from_pem(&identity.key) else { return false };
    parse(&identity.certificate).is_ok_and(|found| digest_of_certificates_key(&found) == Some(digest_of_key(&key)))
}

/// A certificate and the authority's, made ready for connections.
#[derive(Clone)]
pub struct Credentials {
    /// For those who ask this node's API. Who has no certificate is let in to ask to become a node.
    pub server: Arc<ServerConfig>,
    /// For those who use the data of this node's replicas.
    pub data: Arc<ServerConfig>,
    /// For connections to other nodes, which are asked for by their UUIDs.
    pub client: Arc<ClientConfig>,
    /// From when the certificate is good, and when it ends, in Unix time.
    pub good_unix_s: (i64, i64),
}

impl Credentials {
    /// Makes them ready.
    ///
    /// # Errors
    /// [`Kind::Damaged`]: something cannot be read, or does not belong together.
    pub fn new(
        authority: &Identity,
        own: &Identity,
        known: &Arc<Known>,
        shown: &Arc<Shown>,
    ) -> Result<Credentials, ErrorDetail> {
        let root = parse(&authority.certificate)?;
        let certificate = parse(&own.certificate)?;
        let good_unix_s = expiry::of_certificate(&certificate)
            .ok_or_else(|| damaged("the certificate", &"it does not say for how long it is good"))?;
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).map_err(|error| damaged("the key", &error))?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).map_err(|error| damaged("the authority's certificate", &error))?;
        let roots = Arc::new(roots);
        let provider = braid_tls::provider();
        let certified = CertifiedKey::from_der(vec![certificate, root], key, &provider)
            .map_err(|error| damaged("the certificate", &error))?;
        shown.set(certified);
        let guests = || WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let unusable = |error: VerifierBuilderError| damaged("the authority's certificate", &error);
        let server = |verifier: Arc<dyn ClientCertVerifier>| -> Result<Arc<ServerConfig>, ErrorDetail> {
            let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&TLS13])
                .map_err(|error| failed(&error))?
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(Arc::clone(shown) as _);
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
            Ok(Arc::new(server))
        };
        // At the API each request is judged, so that whoever is refused hears why.
        let api = server(guests().allow_unauthenticated().build().map_err(unusable)?)?;
        let inner = guests().build().map_err(unusable)?;
        let data = server(Arc::new(Guests { inner, known: Arc::clone(known) }))?;
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let inner = inner.build().map_err(|error| damaged("the authority's certificate", &error))?;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Hosts { inner, known: Arc::clone(known) }))
            .with_client_cert_resolver(Arc::clone(shown) as _);
        client.resumption = Resumption::disabled();
        Ok(Credentials { server: api, data, client: Arc::new(client), good_unix_s })
    }

    /// Whether the certificate is to be renewed: two thirds of its life are over, or it is not good yet, as the clock was
    /// wrong when it was made.
    pub fn is_due(&self, now_unix_s: i64) -> bool {
        let (from, to) = self.good_unix_s;
        now_unix_s < from || now_unix_s - from >= (to - from) / 3 * 2
    }
}

/// A digest for people and tables.
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
    fn what_is_made_fits_together_and_is_renewed_in_time() {
        let authority = make_authority(Uuid::from_u128(1), NOW).expect("an authority");
        let own = node(&authority, NOW);
        assert!(fits(&authority) && fits(&own));
        assert!(!fits(&Identity { key: authority.key.clone(), ..own.clone() }));
        let ready = Credentials::new(&authority, &own, &Arc::default(), &Arc::default()).expect("it fits");
        assert_eq!(ready.good_unix_s, (NOW - EARLY_S, NOW + CERTIFICATE_S));
        let life = CERTIFICATE_S + EARLY_S;
        for (at, due) in [
            (NOW, false),
            (NOW - EARLY_S, false),
            (NOW - EARLY_S - 1, true),
            (NOW - EARLY_S + life / 3 * 2 - 1, false),
            (NOW - EARLY_S + life / 3 * 2, true),
            (NOW + 10 * CERTIFICATE_S, true),
        ] {
            assert_eq!(ready.is_due(at), due, "{}", at - NOW);
        }
        let key = KeyPair::from_pem(&own.key).expect("a key");
        let found = digest_of_certificates_key(&parse(&own.certificate).expect("a certificate"));
        assert_eq!(found, Some(digest_of_key(&key)), "a key is known by its certificate");
    }

    #[test]
    fn damaged_parts_are_named() {
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

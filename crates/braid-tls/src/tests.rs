use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory with a certificate authority, which is removed when this is dropped.
struct Folder {
    path: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("braid-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a new folder");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let folder = Folder { path, authority };
        folder.write("ca.pem", &folder.authority.pem());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        path
    }

    /// Issues a certificate for `name`, and writes it and its key to files with the prefix `files`.
    fn issue(&self, files: &str, name: &str, purpose: ExtendedKeyUsagePurpose) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a right name");
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        (
            self.write(&format!("{files}-cert.pem"), &certificate.pem()),
            self.write(&format!("{files}-key.pem"), &key.serialize_pem()),
        )
    }

    fn server_files(&self) -> ServerFiles {
        let (certificate, key) = self.issue("server", "localhost", ExtendedKeyUsagePurpose::ServerAuth);
        ServerFiles { certificate, key, client_authorities: None, client_certificates: ClientCertificates::None }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Performs a handshake in memory. Returns the first error of either side.
fn handshake(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, name: &str) -> Result<(), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).expect("a right name");
    let mut client = ClientConnection::new(Arc::clone(client), name)?;
    let mut server = ServerConnection::new(Arc::clone(server))?;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory");
        }
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            server.read_tls(&mut unread).expect("memory");
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory");
        }
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            client.read_tls(&mut unread).expect("memory");
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking(), "ten rounds are enough");
    Ok(())
}

fn client_files(folder: &Folder) -> ClientFiles {
    ClientFiles { authorities: Some(folder.path("ca.pem")), identity: None }
}

#[test]
fn client_accepts_only_its_authority_and_the_right_name() {
    let folder = Folder::new();
    let server = server(&folder.server_files()).expect("right files");
    let one = client(&client_files(&folder)).expect("right files");
    handshake(&server, &one, "localhost").expect("all is right");
    handshake(&server, &one, "elsewhere").expect_err("another name");
    let stranger = Folder::new();
    let other = client(&client_files(&stranger)).expect("right files");
    handshake(&server, &other, "localhost").expect_err("another authority");
}

#[test]
fn client_certificates_are_verified_as_configured() {
    let folder = Folder::new();
    let stranger = Folder::new();
    let identity = |from: &Folder| Some(from.issue("client", "a client", ExtendedKeyUsagePurpose::ClientAuth));
    let with = |identity| client(&ClientFiles { identity, ..client_files(&folder) }).expect("right files");
    let (anonymous, known, unknown) = (with(None), with(identity(&folder)), with(identity(&stranger)));
    // For each setting, whether a client is accepted without a certificate, with a valid one, and with one of another
    // authority.
    for (wanted, admitted) in [
        (ClientCertificates::None, [true, true, true]),
        (ClientCertificates::Optional, [true, true, false]),
        (ClientCertificates::Required, [false, true, false]),
    ] {
        let files = ServerFiles {
            client_authorities: Some(folder.path("ca.pem")),
            client_certificates: wanted,
            ..folder.server_files()
        };
        let server = server(&files).expect("right files");
        let found = [&anonymous, &known, &unknown].map(|client| handshake(&server, client, "localhost").is_ok());
        assert_eq!(found, admitted, "{wanted:?}");
    }
    let files = ServerFiles { client_certificates: ClientCertificates::Required, ..folder.server_files() };
    let error = server(&files).expect_err("no authority is named");
    assert!(error.remedy.contains("tls_ca"), "{error}");
}

#[test]
fn errors_name_the_file_with_reason_and_remedy() {
    let folder = Folder::new();
    let right = folder.server_files();
    let (other, _) = folder.issue("other", "localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let text = folder.write("text", "not what is wanted");
    let broken = folder.write("broken", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
    let secret = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let secret = folder.write("secret", secret);
    let certificate = |certificate: PathBuf| ServerFiles { certificate, ..right.clone() };
    let key = |key: PathBuf| ServerFiles { key, ..right.clone() };
    let cases = [
        (certificate(folder.path("absent")), Kind::NotFound, "absent", "there is no file"),
        (certificate(folder.path.clone()), Kind::InvalidArgument, "braid-tls", "not a file"),
        (certificate(text.clone()), Kind::InvalidArgument, "text", "no certificate"),
        (certificate(broken), Kind::InvalidArgument, "broken", "not PEM"),
        (certificate(other), Kind::InvalidArgument, "other-cert.pem", "does not match the certificate"),
        (key(folder.path("absent")), Kind::NotFound, "absent", "there is no file"),
        (key(text), Kind::InvalidArgument, "text", "no private key"),
        (key(secret), Kind::InvalidArgument, "secret", "password"),
        (key(right.certificate.clone()), Kind::InvalidArgument, "server-cert.pem", "no private key"),
    ];
    for (files, kind, name, why) in cases {
        let error = server(&files).expect_err(why);
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(name) && error.message.contains(why), "{error}");
        assert!(!error.remedy.is_empty(), "{error}");
    }
    let error = client(&ClientFiles { authorities: Some(folder.path("text")), identity: None }).expect_err("not PEM");
    assert!(error.message.contains("no certificate"), "{error}");
}

#[test]
fn renewed_files_are_used_for_new_connections() {
    let folder = Folder::new();
    let tls = ServerTls::load(folder.server_files()).expect("right files");
    let first = tls.current();
    assert_eq!(tls.refresh(false), Ok(false), "nothing has changed");
    assert!(Arc::ptr_eq(&first, &tls.current()));
    // Only the key is replaced, as in the middle of a renewal.
    let other = KeyPair::generate().expect("a key");
    std::fs::remove_file(folder.path("server-key.pem")).expect("it is there");
    folder.write("server-key.pem", &other.serialize_pem());
    tls.refresh(false).expect_err("the key is not the certificate's");
    assert!(Arc::ptr_eq(&first, &tls.current()), "the old configuration stays in use");
    assert_eq!(tls.refresh(false), Ok(false), "the error is reported once");
    folder.server_files();
    assert_eq!(tls.refresh(false), Ok(true));
    assert!(!Arc::ptr_eq(&first, &tls.current()));
    let client = client(&client_files(&folder)).expect("right files");
    handshake(&tls.current(), &client, "localhost").expect("the new one is right");
    assert_eq!(tls.refresh(true), Ok(true), "when asked for");
}

#[test]
fn fastest_cipher_of_the_newest_version_is_preferred() {
    let suites = provider().cipher_suites.clone();
    assert_eq!(suites[0].suite(), CipherSuite::TLS13_AES_128_GCM_SHA256);
    assert_eq!(suites.len(), ring::default_provider().cipher_suites.len());
    assert!(suites.is_sorted_by_key(|suite| suite.version().version == ProtocolVersion::TLSv1_2));
}

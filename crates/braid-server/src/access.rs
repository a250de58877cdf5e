//! Authorization of network clients of the API: tokens from files, and client certificates.
//!
//! Guarantees: tokens are compared in constant time, and only their keyed digests stay in memory. A changed token file
//! is reloaded within seconds; while it is absent or invalid, its tokens authenticate no client.
//! Never: nothing here applies to the Unix socket, whose file mode decides who may connect.

use braid_api::limits::{API_TOKEN_BYTES_MAX, API_TOKEN_BYTES_MIN, API_TOKENS_MAX};
use braid_api::{ErrorDetail, Kind};
use hyper::Method;
use hyper::header::{AUTHORIZATION, HeaderMap, ORIGIN};
use ring::{hmac, rand};
use rustix::fs::OFlags;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Maximum length of a token file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The rights of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessRole {
    /// May read everything and change nothing.
    Read,
    /// May do everything.
    Full,
}

/// What a network connection has shown about its client.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The client has shown a certificate that one of the client authorities has signed.
    pub certified: bool,
    /// The SHA-256 digest of that certificate's key.
    pub key_sha256: Option<[u8; 32]>,
}

/// What a network request says before its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path, without the query.
    pub path: &'a str,
    /// Its headers.
    pub headers: &'a HeaderMap,
}

/// The tokens that authenticate clients.
pub struct Access {
    key: hmac::Key,
    files: Vec<RwLock<TokenFile>>,
}

struct TokenFile {
    path: PathBuf,
    role: AccessRole,
    seen: FileVersion,
    /// Keyed digests of its tokens.
    tags: Vec<hmac::Tag>,
}

/// Identifies one version of a file: differs once the file is replaced or rewritten.
type FileVersion = Option<(u64, u64, u64, i64, i64, u32)>;

fn file_version(found: &Metadata) -> FileVersion {
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec(), found.mode()))
}

impl Access {
    /// Reads the token files: `full` holds the tokens with all rights, `read` those with read access.
    ///
    /// # Errors
    /// A file cannot be read, other users may read it, or a line of it is not a token.
    pub fn load(full: Option<&Path>, read: Option<&Path>) -> Result<Access, ErrorDetail> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())
            .map_err(|_| ErrorDetail::new(Kind::Internal, "the operating system provides no random numbers"))?;
        let mut files = Vec::new();
        for (path, role) in [(full, AccessRole::Full), (read, AccessRole::Read)] {
            let Some(path) = path else { continue };
            let (seen, tags) = load(path, &key)?;
            files.push(RwLock::new(TokenFile { path: path.to_owned(), role, seen, tags }));
        }
        Ok(Access { key, files })
    }

    /// Reloads the files that have changed. Returns one result for each: its path if its new tokens are in force, the
    /// error if it authenticates no client any more. Blocks on file I/O.
    pub fn refresh(&self) -> Vec<Result<PathBuf, ErrorDetail>> {
        let mut results = Vec::new();
        for file in &self.files {
            let (path, seen) = {
                let file = file.read().unwrap_or_else(PoisonError::into_inner);
                (file.path.clone(), file.seen)
            };
            let now = std::fs::metadata(&path).ok().and_then(|found| file_version(&found));
            if now == seen {
                continue;
            }
            let loaded = load(&path, &self.key);
            let mut file = file.write().unwrap_or_else(PoisonError::into_inner);
            match loaded {
                Ok((seen, tags)) => {
                    (file.seen, file.tags) = (seen, tags);
                    results.push(Ok(path));
                }
                Err(error) => {
                    file.seen = now;
                    file.tags.clear();
                    results.push(Err(error));
                }
            }
        }
        results
    }

    /// Checks that the client may make this request.
    ///
    /// # Errors
    /// [`Kind::Unauthenticated`]: the request shows no known token; or it shows no token, and the connection no
    /// certificate. [`Kind::Forbidden`]: its token may only read, or a web page requests a change with the certificate
    /// of its user.
    pub fn authorize(&self, method: &Method, headers: &HeaderMap, caller: Caller) -> Result<(), ErrorDetail> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let role = match bearer(headers) {
            Some(token) => self.role_of(token),
            None if caller.certified => {
                refuse_browser_changes(method, headers)?;
                Some(AccessRole::Full)
            }
            None => None,
        };
        match role {
            None => Err(ErrorDetail::new(
                Kind::Unauthenticated,
                "the request has no token or certificate that the daemon accepts",
            )
            .remedy("name your token with --token-file or BRAID_TOKEN_FILE (over HTTP: Authorization: Bearer TOKEN)")),
            Some(AccessRole::Read) if !is_read => {
                Err(ErrorDetail::new(Kind::Forbidden, "this token may read everything and change nothing")
                    .remedy("use a token of the daemon's api.token_file"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Returns the highest role of a token; `None`: the token is not known. All known tokens are compared, so that the
    /// time does not tell whether, or where, one matches.
    fn role_of(&self, token: &[u8]) -> Option<AccessRole> {
        if token.len() > API_TOKEN_BYTES_MAX {
            return None;
        }
        let mut best = None;
        for file in &self.files {
            let file = file.read().unwrap_or_else(PoisonError::into_inner);
            for tag in &file.tags {
                let same = hmac::verify(&self.key, token, tag.as_ref()).is_ok();
                best = best.max(same.then_some(file.role));
            }
        }
        best
    }
}

/// Refuses a change with an `Origin` header, which browsers send: a browser presents its user's certificate for the
/// requests of any web page.
///
/// # Errors
/// [`Kind::Forbidden`].
pub fn refuse_browser_changes(method: &Method, headers: &HeaderMap) -> Result<(), ErrorDetail> {
    if matches!(*method, Method::GET | Method::HEAD) || !headers.contains_key(ORIGIN) {
        return Ok(());
    }
    Err(ErrorDetail::new(Kind::Forbidden, "a web page may not make changes with a client certificate")
        .remedy("use a token, or a client other than a browser"))
}

/// Returns the bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn load(path: &Path, key: &hmac::Key) -> Result<(FileVersion, Vec<hmac::Tag>), ErrorDetail> {
    let (text, metadata) = read(path)?;
    let mut tags = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let token = line.trim();
        if token.is_empty() || token.starts_with('#') {
            continue;
        }
        check(token).map_err(|why| {
            invalid_file(path, &format!("line {}: {why}", number + 1)).remedy("make one with: openssl rand -hex 32")
        })?;
        tags.push(hmac::sign(key, token.as_bytes()));
    }
    if tags.is_empty() {
        return Err(invalid_file(path, "there is no token in it").remedy("make one with: openssl rand -hex 32 > FILE"));
    }
    if tags.len() > API_TOKENS_MAX {
        return Err(invalid_file(path, &format!("there are more than {API_TOKENS_MAX} tokens in it"))
            .remedy("remove the unused ones"));
    }
    Ok((file_version(&metadata), tags))
}

/// Checks that a token is long enough not to be guessed, and of characters that a header can hold.
fn check(token: &str) -> Result<(), String> {
    if token.len() < API_TOKEN_BYTES_MIN {
        return Err(format!("a token has at least {API_TOKEN_BYTES_MIN} characters, so that it cannot be guessed"));
    }
    if token.len() > API_TOKEN_BYTES_MAX {
        return Err(format!("a token has at most {API_TOKEN_BYTES_MAX} characters"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a token consists of letters, digits and signs, without spaces".to_owned());
    }
    Ok(())
}

fn invalid_file(path: &Path, why: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("the token file {}: {why}", path.display()))
        .with("path", path.display())
}

/// Reads a file that only its owner may access.
fn read(path: &Path) -> Result<(String, Metadata), ErrorDetail> {
    let failed = |error: std::io::Error| {
        let (kind, remedy) = match error.kind() {
            ErrorKind::NotFound => (Kind::NotFound, "make it: openssl rand -hex 32 > FILE; chmod 0600 FILE"),
            ErrorKind::PermissionDenied => (Kind::PermissionDenied, "let the daemon's user own it (chown)"),
            _ => (Kind::Internal, "name another file"),
        };
        ErrorDetail::new(kind, format!("the token file {} cannot be read: {error}", path.display()))
            .with("path", path.display())
            .remedy(remedy)
    };
    // Opening a pipe without this flag would wait for a writer.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(invalid_file(path, "it is not a file").remedy("name a file with a token on each line"));
    }
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(invalid_file(path, &format!("its mode is {mode:04o}, so others can read or change it"))
            .remedy(format!("chmod 0600 {}", path.display())));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(invalid_file(path, "it is longer than the maximum of 64 KiB").remedy("is it another file?"));
    }
    Ok((text, metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const FULL: &str = "0123456789abcdef0123456789abcdef";
    const NEXT: &str = "fedcba9876543210fedcba9876543210";
    const READ: &str = "read-read-read-read-read-read-read";

    /// A folder with the two token files, which is removed on drop.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Files {
            let folder = std::env::temp_dir().join(format!("braid-access-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a folder can be made");
            let files = Files(folder);
            files.write("full", &format!("# now\n{FULL}\n\n"), 0o600);
            files.write("read", READ, 0o400);
            files
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        /// Replaces a file atomically, as an administrator should.
        fn write(&self, name: &str, text: &str, mode: u32) {
            let new = self.path("new");
            std::fs::write(&new, text).expect("a file can be written");
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).expect("it is ours");
            std::fs::rename(&new, self.path(name)).expect("it is ours");
        }

        fn load(&self) -> Result<Access, ErrorDetail> {
            Access::load(Some(&self.path("full")), Some(&self.path("read")))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn authorize(access: &Access, method: &str, token: Option<&str>, certified: bool) -> Option<Kind> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().expect("a header"));
        }
        let method = method.parse().expect("a method");
        access.authorize(&method, &headers, Caller { certified, key_sha256: None }).err().map(|error| error.kind)
    }

    #[test]
    fn the_token_determines_the_rights() {
        let files = Files::new("decide");
        let access = files.load().expect("they are right");
        for method in ["GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS"] {
            let change = !matches!(method, "GET" | "HEAD");
            assert_eq!(authorize(&access, method, Some(FULL), false), None, "{method}");
            assert_eq!(authorize(&access, method, None, true), None, "{method}");
            assert_eq!(authorize(&access, method, Some(READ), false), change.then_some(Kind::Forbidden), "{method}");
            for wrong in ["", "x", &FULL[1..], &format!("{FULL}x"), NEXT, "# now", &"x".repeat(9999)] {
                assert_eq!(authorize(&access, method, Some(wrong), false), Some(Kind::Unauthenticated), "{wrong}");
            }
            assert_eq!(authorize(&access, method, None, false), Some(Kind::Unauthenticated), "{method}");
        }
        // A valid certificate does not make up for a wrong token: a client that sends a token means it.
        assert_eq!(authorize(&access, "GET", Some("x"), true), Some(Kind::Unauthenticated));
        assert_eq!(authorize(&access, "POST", Some(READ), true), Some(Kind::Forbidden));
    }

    #[test]
    fn other_schemes_do_not_authenticate() {
        let files = Files::new("schemes");
        let access = files.load().expect("they are right");
        for value in
            ["Basic YTpi", "Bearer", &format!("bearer{FULL}"), &format!("Token {FULL}"), "\u{e9}\u{e9}\u{e9}\u{e9}"]
        {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, hyper::header::HeaderValue::from_bytes(value.as_bytes()).expect("a header"));
            assert!(
                access.authorize(&Method::GET, &headers, Caller { certified: false, key_sha256: None }).is_err(),
                "{value}"
            );
        }
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("bEARER   {FULL} ").parse().expect("a header"));
        assert!(access.authorize(&Method::GET, &headers, Caller { certified: false, key_sha256: None }).is_ok());
    }

    #[test]
    fn a_page_in_a_browser_cannot_use_a_certificate() {
        let files = Files::new("browser");
        let access = files.load().expect("they are right");
        let mut headers = HeaderMap::new();
        headers.insert(ORIGIN, "https://elsewhere.example".parse().expect("a header"));
        let caller = Caller { certified: true, key_sha256: None };
        assert!(access.authorize(&Method::GET, &headers, caller).is_ok());
        assert_eq!(access.authorize(&Method::POST, &headers, caller).expect_err("refused").kind, Kind::Forbidden);
        headers.insert(AUTHORIZATION, format!("Bearer {FULL}").parse().expect("a header"));
        assert!(access.authorize(&Method::POST, &headers, caller).is_ok());
    }

    #[test]
    fn changed_files_are_reloaded() {
        let files = Files::new("change");
        let access = files.load().expect("they are right");
        assert!(access.refresh().is_empty());
        files.write("full", &format!("{FULL}\n{NEXT}\n"), 0o600);
        assert_eq!(access.refresh(), vec![Ok(files.path("full"))]);
        assert!(
            authorize(&access, "POST", Some(FULL), false).is_none()
                && authorize(&access, "POST", Some(NEXT), false).is_none()
        );
        files.write("full", NEXT, 0o600);
        assert!(access.refresh()[0].is_ok());
        assert_eq!(authorize(&access, "POST", Some(FULL), false), Some(Kind::Unauthenticated));
        // A file that others can read, that is empty, or that is gone authenticates no client; the other file stays in
        // force. Each fault is reported once.
        for (text, mode) in [(NEXT, 0o644), ("", 0o600), ("short", 0o600)] {
            files.write("full", text, mode);
            assert!(access.refresh()[0].is_err(), "{text}");
            assert!(access.refresh().is_empty());
            assert_eq!(authorize(&access, "GET", Some(NEXT), false), Some(Kind::Unauthenticated));
            assert_eq!(authorize(&access, "GET", Some(READ), false), None);
        }
        std::fs::remove_file(files.path("full")).expect("it is ours");
        assert_eq!(access.refresh()[0].as_ref().map_err(|error| error.kind), Err(Kind::NotFound));
        files.write("full", NEXT, 0o600);
        assert!(access.refresh()[0].is_ok());
        assert_eq!(authorize(&access, "POST", Some(NEXT), false), None);
    }

    #[test]
    fn errors_of_token_files_have_a_reason_and_a_remedy() {
        let files = Files::new("wrong");
        let long = "x".repeat(API_TOKEN_BYTES_MAX + 1);
        let many = format!("{FULL}\n").repeat(API_TOKENS_MAX + 1);
        let huge = format!("#{}", " ".repeat(FILE_BYTES_MAX as usize));
        let cases = [
            ("", 0o600, "no token"),
            ("# only this\n", 0o600, "no token"),
            ("short", 0o600, "line 1: a token has at least"),
            (&format!("{FULL}\n{}", &FULL[..31]), 0o600, "line 2"),
            (&format!("{FULL} {FULL}"), 0o600, "without spaces"),
            (&long, 0o600, "at most"),
            (&many, 0o600, "more than"),
            (&huge, 0o600, "longer than"),
            (FULL, 0o640, "0640"),
            (FULL, 0o604, "0604"),
            (FULL, 0o620, "0620"),
        ];
        for (text, mode, reason) in cases {
            files.write("full", text, mode);
            let error = files.load().err().unwrap_or_else(|| panic!("{reason}"));
            assert!(error.message.contains(reason) && !error.remedy.is_empty(), "{reason}: {error}");
            assert!(!error.to_string().contains(FULL), "an error shows a token: {error}");
        }
        let error = Access::load(Some(&files.0), None).err().expect("a folder is no file");
        assert!(error.message.contains("not a file"), "{error}");
    }
}

//! `braid.toml`, which sets the flags of `braid serve` in a file.
//!
//! What it is: a table of keys, each with a valid example, which drives parsing, errors and help.
//! What it guarantees: nothing in the file is ignored. An unknown key, an invalid value and text that is not TOML are errors that name
//! the file, the line, the key, the reason and a valid example.
//! What it never does: decide what takes precedence over the file. [`crate::paths`] does for the paths, and the program
//! `braid` for everything else.

use crate::environment::config_file;
use crate::listen::{ListenAddress, listen_address};
use braid_api::{ErrorDetail, ExportTls, Kind};
use braid_geometry::units::parse_size;
use braid_ring::DriverKind;
use clap::ValueEnum;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use tracing_subscriber::filter::LevelFilter;

/// Maximum size of a configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of shards of a daemon.
pub const SHARDS_MAX: u16 = braid_ring::SHARDS_MAX;
/// Maximum number of shards that the daemon starts if neither an option nor the file sets the number.
pub const SHARDS_DEFAULT_MAX: usize = 8;
/// Default memory of each shard for data in flight, in bytes.
pub const BUFFERS_BYTES_DEFAULT: u64 = 64 << 20;
/// Fewer open files than this cause a warning: each disk, client and address needs one.
pub const OPEN_FILES_FEW: u64 = 4096;

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people
    Text,
    /// A line of JSON
    Json,
}

/// The content of the configuration file. A field is `None` if the file does not set it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The socket of the daemon's API.
    pub socket: Option<PathBuf>,
    /// The directory of the daemon's state.
    pub state: Option<PathBuf>,
    /// The number of shards.
    pub shards: Option<u16>,
    /// The I/O driver for disks.
    pub driver: Option<DriverKind>,
    /// The memory for data in flight on each shard, in bytes.
    pub buffers_bytes: Option<u64>,
    /// The format of the log.
    pub log_format: Option<LogFormat>,
    /// The most verbose level of messages that are logged.
    pub log_level: Option<LevelFilter>,
    /// NBD exports over TLS.
    pub nbd: NbdConfig,
    /// The API on the network.
    pub api: ApiConfig,
}

/// The configuration of NBD exports over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdConfig {
    /// The certificate of the server.
    pub cert: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// The authority of clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether exports on TCP use TLS by default.
    pub tls: Option<ExportTls>,
}

/// The configuration of the API on the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiConfig {
    /// The address to listen on.
    pub listen: Option<ListenAddress>,
    /// The certificate of the API.
    pub cert: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// The authority of clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// The file with tokens that permit all requests.
    pub token_file: Option<PathBuf>,
    /// The file with tokens that permit only requests that change nothing.
    pub read_token_file: Option<PathBuf>,
}

/// A key of the file.
struct Key {
    name: &'static str,
    /// A valid line with this key.
    example: &'static str,
    /// Sets the value in the configuration, or returns why it is invalid.
    set: fn(&mut Config, &DeValue<'_>) -> Result<(), String>,
}

impl Key {
    const fn new(
        name: &'static str,
        example: &'static str,
        set: fn(&mut Config, &DeValue<'_>) -> Result<(), String>,
    ) -> Key {
        Key { name, example, set }
    }
}

const KEYS: [Key; 17] = [
    Key::new("socket", r#"socket = "/run/braid/braid.sock""#, |config, value| {
        config.socket = Some(path(value)?);
        Ok(())
    }),
    Key::new("state", r#"state = "/var/lib/braid""#, |config, value| {
        config.state = Some(path(value)?);
        Ok(())
    }),
    Key::new("shards", "shards = 4", |config, value| {
        config.shards = Some(shards(value)?);
        Ok(())
    }),
    Key::new("driver", r#"driver = "io_uring""#, |config, value| {
        config.driver = Some(text(value)?.parse()?);
        Ok(())
    }),
    Key::new("buffers", r#"buffers = "64M""#, |config, value| {
        config.buffers_bytes = Some(parse_size(text(value)?).map_err(|error| error.to_string())?);
        Ok(())
    }),
    Key::new("log_format", r#"log_format = "json""#, |config, value| {
        let format = LogFormat::from_str(text(value)?, false).map_err(|_| "it is text or json".to_owned())?;
        config.log_format = Some(format);
        Ok(())
    }),
    Key::new("log_level", r#"log_level = "info""#, |config, value| {
        let level = text(value)?.parse().map_err(|_| "it is error, warn, info, debug or trace".to_owned())?;
        config.log_level = Some(level);
        Ok(())
    }),
    Key::new("api.listen", r#"api.listen = "192.0.2.7:10870""#, |config, value| {
        config.api.listen = Some(listen_address(text(value)?)?);
        Ok(())
    }),
    Key::new("api.cert", r#"api.cert = "/etc/braid/api.crt""#, |config, value| {
        config.api.cert = Some(path(value)?);
        Ok(())
    }),
    Key::new("api.key", r#"api.key = "/etc/braid/api.key""#, |config, value| {
        config.api.key = Some(path(value)?);
        Ok(())
    }),
    Key::new("api.client_ca", r#"api.client_ca = "/etc/braid/clients.crt""#, |config, value| {
        config.api.client_ca = Some(path(value)?);
        Ok(())
    }),
    Key::new("api.token_file", r#"api.token_file = "/etc/braid/api.tokens""#, |config, value| {
        config.api.token_file = Some(path(value)?);
        Ok(())
    }),
    Key::new("api.read_token_file", r#"api.read_token_file = "/etc/braid/api.read-tokens""#, |config, value| {
        config.api.read_token_file = Some(path(value)?);
        Ok(())
    }),
    Key::new("nbd.cert", r#"nbd.cert = "/etc/braid/nbd.crt""#, |config, value| {
        config.nbd.cert = Some(path(value)?);
        Ok(())
    }),
    Key::new("nbd.key", r#"nbd.key = "/etc/braid/nbd.key""#, |config, value| {
        config.nbd.key = Some(path(value)?);
        Ok(())
    }),
    Key::new("nbd.client_ca", r#"nbd.client_ca = "/etc/braid/nbd-clients.crt""#, |config, value| {
        config.nbd.client_ca = Some(path(value)?);
        Ok(())
    }),
    Key::new("nbd.tls", r#"nbd.tls = "required""#, |config, value| {
        config.nbd.tls = Some(ExportTls::parse(text(value)?)?);
        Ok(())
    }),
];

/// The tables of the file. Their keys are named `TABLE.KEY`.
const TABLES: [&str; 2] = ["api", "nbd"];

fn text<'a>(value: &'a DeValue<'_>) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("it must be a quoted string, not of the type {}", value.type_str()))
}

fn path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let path = PathBuf::from(text(value)?);
    // The daemon's working directory depends on how it is started.
    if path.is_absolute() { Ok(path) } else { Err(format!("the path {} is not absolute", path.display())) }
}

fn shards(value: &DeValue<'_>) -> Result<u16, String> {
    let requirement = || format!("it must be a whole number from 1 to {SHARDS_MAX}");
    let Some(number) = value.as_integer() else {
        return Err(format!("{}, not of the type {}", requirement(), value.type_str()));
    };
    let read = u16::from_str_radix(number.as_str(), number.radix()).ok();
    read.filter(|shards| (1..=SHARDS_MAX).contains(shards)).ok_or_else(requirement)
}

impl Config {
    /// Reads the file that the command line names, else the file that `BRAID_CONFIG` names, else the default file of this user, which
    /// may be missing.
    ///
    /// # Errors
    /// A named file does not exist; the file cannot be read; its content is invalid.
    pub fn load(named: Option<&Path>) -> Result<Config, ErrorDetail> {
        if let Some(path) = named {
            return Config::read(path, Some("--config"));
        }
        match config_file() {
            (path, true) => Config::read(&path, Some("BRAID_CONFIG")),
            (path, false) => Config::read(&path, None),
        }
    }

    /// Reads `path`, which may be missing unless `named_by` says which setting names it.
    fn read(path: &Path, named_by: Option<&str>) -> Result<Config, ErrorDetail> {
        let failed = |error: &std::io::Error| {
            let (kind, remedy) = match error.kind() {
                ErrorKind::PermissionDenied => (Kind::PermissionDenied, "let the daemon's user read it (chmod, chown)"),
                _ => (Kind::Internal, "name another file with --config or BRAID_CONFIG"),
            };
            let message = format!("the configuration {} cannot be read: {error}", path.display());
            ErrorDetail::new(kind, message).with("path", path.display()).remedy(remedy)
        };
        let file = match (File::open(path), named_by) {
            (Ok(file), _) => file,
            (Err(error), None) if error.kind() == ErrorKind::NotFound => return Ok(Config::default()),
            (Err(error), Some(named_by)) if error.kind() == ErrorKind::NotFound => {
                let message = format!("the configuration {}, which {named_by} names, does not exist", path.display());
                return Err(ErrorDetail::new(Kind::NotFound, message)
                    .with("path", path.display())
                    .remedy("create it, or name another file; /dev/null means no configuration"));
            }
            (Err(error), _) => return Err(failed(&error)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let message = format!("the configuration {} is longer than {FILE_BYTES_MAX} bytes", path.display());
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("path", path.display())
                .remedy("is it another file? name the right one with --config or BRAID_CONFIG"));
        }
        Config::parse(&bytes, path)
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Config, ErrorDetail> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = line_of(bytes, error.valid_up_to());
            invalid(path, line, "", "it is not UTF-8").remedy("write it in UTF-8")
        })?;
        let table = DeTable::parse(text).map_err(|error| {
            let line = line_of(bytes, error.span().map_or(0, |span| span.start));
            let written = text.lines().nth(line - 1).unwrap_or_default();
            let name = written.split('=').next().unwrap_or_default().trim();
            let example = KEYS.iter().find(|key| key.name == name).map_or(KEYS[0].example, |key| key.example);
            invalid(path, line, name, &format!("this is not TOML: {}", error.message()))
                .remedy(format!("a valid line: {example}"))
        })?;
        let mut config = Config::default();
        for (name, value) in table.get_ref() {
            let line = line_of(bytes, name.span().start);
            let name = name.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Table(inner) if TABLES.contains(&name) => {
                    for (key, value) in inner {
                        let line = line_of(bytes, key.span().start);
                        let name = format!("{name}.{}", key.get_ref());
                        config.set(path, line, &name, value.get_ref())?;
                    }
                }
                value => config.set(path, line, name, value)?,
            }
        }
        Ok(config)
    }

    fn set(&mut self, path: &Path, line: usize, name: &str, value: &DeValue<'_>) -> Result<(), ErrorDetail> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(unknown_key(path, line, name));
        };
        (key.set)(self, value)
            .map_err(|why| invalid(path, line, name, &why).remedy(format!("a valid line: {}", key.example)))
    }
}

fn unknown_key(path: &Path, line: usize, name: &str) -> ErrorDetail {
    let is_similar = |key: &&Key| key.name.replace('_', "") == name.to_lowercase().replace(['_', '-'], "");
    let remedy = match KEYS.iter().find(is_similar) {
        Some(key) => format!("a valid line: {}", key.example),
        None => format!("the keys are {}; a valid line: {}", KEYS.map(|key| key.name).join(", "), KEYS[0].example),
    };
    invalid(path, line, name, "there is no such key").remedy(remedy)
}

fn invalid(path: &Path, line: usize, key: &str, why: &str) -> ErrorDetail {
    let location = format!("{}, line {line}", path.display());
    let message = if key.is_empty() { format!("{location}: {why}") } else { format!("{location}: {key}: {why}") };
    let detail = ErrorDetail::new(Kind::InvalidArgument, message).with("path", path.display()).with("line", line);
    if key.is_empty() { detail } else { detail.with("key", key) }
}

/// Returns the line number, from 1, of the byte at `at`.
fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ErrorDetail> {
        Config::parse(text.as_bytes(), Path::new("/etc/braid/braid.toml"))
    }

    #[test]
    fn every_key_accepts_its_example() {
        let all = KEYS.map(|key| key.example).join("\n");
        let config = parse(&all).expect("examples are right");
        let expected = Config {
            socket: Some("/run/braid/braid.sock".into()),
            state: Some("/var/lib/braid".into()),
            shards: Some(4),
            driver: Some(DriverKind::Uring),
            buffers_bytes: Some(64 << 20),
            log_format: Some(LogFormat::Json),
            log_level: Some(LevelFilter::INFO),
            nbd: NbdConfig {
                cert: Some("/etc/braid/nbd.crt".into()),
                key: Some("/etc/braid/nbd.key".into()),
                client_ca: Some("/etc/braid/nbd-clients.crt".into()),
                tls: Some(ExportTls::Required),
            },
            api: ApiConfig {
                listen: Some(listen_address("192.0.2.7:10870").expect("it is one")),
                cert: Some("/etc/braid/api.crt".into()),
                key: Some("/etc/braid/api.key".into()),
                client_ca: Some("/etc/braid/clients.crt".into()),
                token_file: Some("/etc/braid/api.tokens".into()),
                read_token_file: Some("/etc/braid/api.read-tokens".into()),
            },
        };
        assert_eq!(config, expected);
        let table = "[api]\nlisten = \"::1\"\n";
        assert_eq!(parse(table).expect("a table is right, too").api.listen, listen_address("::1").ok());
        for key in KEYS {
            assert!(key.example.starts_with(&format!("{} = ", key.name)), "{}", key.example);
            assert_ne!(parse(key.example), Ok(Config::default()), "{}", key.name);
        }
        assert_eq!(parse(""), Ok(Config::default()));
        assert_eq!(parse("# nothing\n\n"), Ok(Config::default()));
    }

    /// The example in docs/reference/configuration.md is valid and contains every key.
    #[test]
    fn docs_configuration_shows_every_key() {
        let document = include_str!("../../../docs/reference/configuration.md");
        let example = document.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let example = example.expect("docs/reference/configuration.md has an example");
        parse(example).expect("it is right");
        // The packaged file is the same, with every key commented out.
        let packaged = include_str!("../../../packaging/braid.toml");
        assert_eq!(parse(packaged).expect("it is right"), Config::default());
        let off = |line: &str| if line.starts_with("# ") { line.to_owned() } else { format!("#{line}") };
        let expected: Vec<String> = example.lines().map(off).collect();
        let (_, shown) = packaged.split_once("\n\n").expect("an introduction, then the keys");
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
        for key in KEYS {
            assert!(example.lines().any(|line| line.starts_with(&format!("{} = ", key.name))), "{}", key.name);
        }
    }

    #[test]
    fn errors_name_line_key_and_a_valid_example() {
        // The text, and the line, the key and a part of the reason that the error must contain.
        let cases = [
            ("sharts = 4", 1, "sharts", "no such key"),
            ("# a\n\nlog-level = \"info\"", 3, "log-level", "no such key"),
            ("[log]\nlevel = \"info\"", 1, "log", "no such key"),
            ("shards = \"4\"", 1, "shards", "whole number from 1 to 256, not of the type string"),
            ("shards = 0", 1, "shards", "from 1 to 256"),
            ("shards = 257", 1, "shards", "from 1 to 256"),
            ("shards = -1", 1, "shards", "from 1 to 256"),
            ("shards = 1.5", 1, "shards", "type float"),
            ("shards = 99999999999999999999", 1, "shards", "from 1 to 256"),
            ("socket = 5", 1, "socket", "type integer"),
            ("socket = \"braid.sock\"", 1, "socket", "not absolute"),
            ("state = [\"/a\"]", 1, "state", "type array"),
            ("[api]\nlisten = \"https://x\"", 2, "api.listen", "a number up to 65535"),
            ("[api]\n\nport = 5", 3, "api.port", "no such key"),
            ("api = 5", 1, "api", "no such key"),
            ("api.key = \"api.key\"", 1, "api.key", "not absolute"),
            ("driver = \"iouring\"", 1, "driver", "io_uring, libaio and threads"),
            ("buffers = \"64Q\"", 1, "buffers", "64Q"),
            ("buffers = 64", 1, "buffers", "type integer"),
            ("log_format = \"xml\"", 1, "log_format", "text or json"),
            ("log_level = \"loud\"", 1, "log_level", "trace"),
            ("shards = 4\ndriver = io_uring", 2, "driver", "not TOML"),
            ("shards = 4\nshards = 5", 2, "shards", "not TOML"),
            ("socket = \"/a", 1, "socket", "not TOML"),
            ("shards", 1, "shards", "not TOML"),
        ];
        for (text, line, key, reason) in cases {
            let error = parse(text).expect_err(text);
            assert_eq!(error.kind, Kind::InvalidArgument, "{text}");
            let head = format!("/etc/braid/braid.toml, line {line}: {key}: ");
            assert!(error.message.starts_with(&head) && error.message.contains(reason), "{text:?}: {error}");
            assert!(error.remedy.contains("a valid line: "), "{text:?}: {error}");
            let (_, example) = error.remedy.split_once("a valid line: ").expect("just seen");
            parse(example).expect("the right line is right");
        }
        let error = Config::parse(b"shards = 4\n\xff", Path::new("x")).expect_err("no UTF-8");
        assert!(error.message.contains("line 2"), "{error}");
    }
}

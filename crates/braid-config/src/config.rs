//! `braid.toml`: what `braid serve` takes as flags, kept in a file.
//!
//! What it is: one table of keys, each with a right example, from which reading, errors and help come.
//! What it promises: nothing in the file is ignored. A key that is not known, a value that cannot be right and text
//! that is no TOML are errors that name file, line, key, reason and a right example.
//! What it never does: it does not decide what wins over the file; `places` and `daemon` do.

use crate::listen::{ListenAddress, listen_address};
use crate::places;
use braid_api::{ErrorDetail, ExportTls, Kind};
use braid_geometry::units::parse_size;
use braid_ring::DriverKind;
use clap::ValueEnum;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use tracing_subscriber::filter::LevelFilter;

/// Longest file that is believed to be a configuration, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Most shards of a daemon.
pub const SHARDS_MAX: u16 = braid_ring::SHARDS_MAX;

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people
    Text,
    /// A line of JSON
    Json,
}

/// What the file says; none where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The socket of the daemon's API.
    pub socket: Option<PathBuf>,
    /// The folder of the daemon's state.
    pub state: Option<PathBuf>,
    /// Number of shards.
    pub shards: Option<u16>,
    /// How disks are read and written.
    pub driver: Option<DriverKind>,
    /// Memory for data in flight on each shard, in bytes.
    pub buffers_bytes: Option<u64>,
    /// How the log is written.
    pub log_format: Option<LogFormat>,
    /// How much is logged.
    pub log_level: Option<LevelFilter>,
    /// Exports over TLS.
    pub nbd: NbdConfig,
    /// The API on the network.
    pub api: ApiConfig,
}

/// What the file says of exports over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdConfig {
    /// Their certificate.
    pub cert: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// The authority of clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether exports on TCP use TLS unless told otherwise.
    pub tls: Option<ExportTls>,
}

/// What the file says of the API on the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiConfig {
    /// Where it listens.
    pub listen: Option<ListenAddress>,
    /// Its certificate.
    pub cert: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// The authority of clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Tokens of those who may do everything.
    pub token_file: Option<PathBuf>,
    /// Tokens of those who may look.
    pub read_token_file: Option<PathBuf>,
}

/// One key of the file.
struct Key {
    name: &'static str,
    /// A right line.
    right: &'static str,
    /// Takes the value in, or says why it cannot be right.
    take: fn(&mut Config, &DeValue<'_>) -> Result<(), String>,
}

impl Key {
    const fn new(
        name: &'static str,
        right: &'static str,
        take: fn(&mut Config, &DeValue<'_>) -> Result<(), String>,
    ) -> Key {
        Key { name, right, take }
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

/// Tables of the file: their keys are known as `TABLE.KEY`.
const TABLES: [&str; 2] = ["api", "nbd"];

fn text<'a>(value: &'a DeValue<'_>) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("it has to be a text in quotes, not of the type {}", value.type_str()))
}

fn path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let path = PathBuf::from(text(value)?);
    // The daemon's working folder is an accident of who starts it.
    if path.is_absolute() { Ok(path) } else { Err(format!("the path {} is not absolute", path.display())) }
}

fn shards(value: &DeValue<'_>) -> Result<u16, String> {
    let wanted = || format!("it has to be a whole number from 1 to {SHARDS_MAX}");
    let Some(number) = value.as_integer() else {
        return Err(format!("{}, not of the type {}", wanted(), value.type_str()));
    };
    let read = u16::from_str_radix(number.as_str(), number.radix()).ok();
    read.filter(|shards| (1..=SHARDS_MAX).contains(shards)).ok_or_else(wanted)
}

impl Config {
    /// Reads the file that is named on the command line, else the one that `BRAID_CONFIG` names, else the one at this
    /// user's place, which may be absent.
    ///
    /// # Errors
    /// A file that was named is not there; the file cannot be read; something in it is wrong.
    pub fn load(named: Option<&Path>) -> Result<Config, ErrorDetail> {
        if let Some(path) = named {
            return Config::read(path, Some("--config"));
        }
        match places::config_file() {
            (path, true) => Config::read(&path, Some("BRAID_CONFIG")),
            (path, false) => Config::read(&path, None),
        }
    }

    /// Reads `path`, which may be absent unless somebody named it.
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
                let message = format!("there is no configuration {}, which {named_by} names", path.display());
                return Err(ErrorDetail::new(Kind::NotFound, message)
                    .with("path", path.display())
                    .remedy("make it, or name another file; /dev/null stands for none"));
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
            wrong(path, line, "", "it is not UTF-8").remedy("write it in UTF-8")
        })?;
        let table = DeTable::parse(text).map_err(|error| {
            let line = line_of(bytes, error.span().map_or(0, |span| span.start));
            let written = text.lines().nth(line - 1).unwrap_or_default();
            let name = written.split('=').next().unwrap_or_default().trim();
            let right = KEYS.iter().find(|key| key.name == name).map_or(KEYS[0].right, |key| key.right);
            wrong(path, line, name, &format!("this is no TOML: {}", error.message()))
                .remedy(format!("a right line: {right}"))
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
                        config.take(path, line, &name, value.get_ref())?;
                    }
                }
                value => config.take(path, line, name, value)?,
            }
        }
        Ok(config)
    }

    fn take(&mut self, path: &Path, line: usize, name: &str, value: &DeValue<'_>) -> Result<(), ErrorDetail> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(unknown(path, line, name));
        };
        (key.take)(self, value)
            .map_err(|why| wrong(path, line, name, &why).remedy(format!("a right line: {}", key.right)))
    }
}

fn unknown(path: &Path, line: usize, name: &str) -> ErrorDetail {
    let alike = |key: &&Key| key.name.replace('_', "") == name.to_lowercase().replace(['_', '-'], "");
    let remedy = match KEYS.iter().find(alike) {
        Some(key) => format!("a right line: {}", key.right),
        None => format!("the keys are {}; a right line: {}", KEYS.map(|key| key.name).join(", "), KEYS[0].right),
    };
    wrong(path, line, name, "there is no such key").remedy(remedy)
}

fn wrong(path: &Path, line: usize, key: &str, why: &str) -> ErrorDetail {
    let place = format!("{}, line {line}", path.display());
    let message = if key.is_empty() { format!("{place}: {why}") } else { format!("{place}: {key}: {why}") };
    let detail = ErrorDetail::new(Kind::InvalidArgument, message).with("path", path.display()).with("line", line);
    if key.is_empty() { detail } else { detail.with("key", key) }
}

/// The line, from 1, that the byte at `at` is on.
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
    fn every_key_takes_its_example() {
        let all = KEYS.map(|key| key.right).join("\n");
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
            assert!(key.right.starts_with(&format!("{} = ", key.name)), "{}", key.right);
            assert_ne!(parse(key.right), Ok(Config::default()), "{}", key.name);
        }
        assert_eq!(parse(""), Ok(Config::default()));
        assert_eq!(parse("# nothing\n\n"), Ok(Config::default()));
    }

    /// The complete example of the document is right, and complete.
    #[test]
    fn docs_operations_shows_every_key() {
        let document = include_str!("../../../docs/operations.md");
        let example = document.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let example = example.expect("docs/operations.md has an example");
        parse(example).expect("it is right");
        // The file of the package is the same, with every key switched off.
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
    fn what_is_wrong_is_named_with_line_key_and_a_right_example() {
        // The text, and the line, the key and the words of the reason that the answer has to contain.
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
            ("shards = 4\ndriver = io_uring", 2, "driver", "no TOML"),
            ("shards = 4\nshards = 5", 2, "shards", "no TOML"),
            ("socket = \"/a", 1, "socket", "no TOML"),
            ("shards", 1, "shards", "no TOML"),
        ];
        for (text, line, key, reason) in cases {
            let error = parse(text).expect_err(text);
            assert_eq!(error.kind, Kind::InvalidArgument, "{text}");
            let head = format!("/etc/braid/braid.toml, line {line}: {key}: ");
            assert!(error.message.starts_with(&head) && error.message.contains(reason), "{text:?}: {error}");
            assert!(error.remedy.contains("a right line: "), "{text:?}: {error}");
            let (_, right) = error.remedy.split_once("a right line: ").expect("just seen");
            parse(right).expect("the right line is right");
        }
        let error = Config::parse(b"shards = 4\n\xff", Path::new("x")).expect_err("no UTF-8");
        assert!(error.message.contains("line 2"), "{error}");
    }
}

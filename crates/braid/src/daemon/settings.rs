//! The arguments of `braid serve`, and the settings that they make with the environment and the configuration file.

use braid_api::ErrorDetail;
use braid_api::address::Address;
use braid_config::paths::DaemonPaths;
use braid_config::{BUFFERS_BYTES_DEFAULT, Config, LogFormat, SHARDS_MAX};
use braid_exports::{Encryption, NbdArgs};
use braid_ring::DriverKind;
use braid_server::{ApiArgs, ApiSettings};
use clap::Args;
use std::path::PathBuf;
use tracing_subscriber::filter::LevelFilter;

/// Arguments of `braid serve`. The configuration provides those that are absent.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// The configuration [default: BRAID_CONFIG, else /etc/braid/braid.toml for root and
    /// ~/.config/braid/braid.toml for others, where it exists]
    ///
    /// A file of TOML with a key for each option below (`log_level = "debug"`; see docs/reference/configuration.md). Options win
    /// over variables of the environment, and those over the file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the API's socket is [default: BRAID_SOCKET, else /run/braid/braid.sock for root and a folder of the
    /// user's for others]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The folder of the daemon's state [default: BRAID_STATE, else /var/lib/braid for root and a folder of the
    /// user's for others]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Number of shards, each with a thread of its own [default: one for each processor, at most 8]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: Option<u16>,
    /// The I/O interface for disks [default: the best that this machine supports]
    #[arg(long, value_name = "DRIVER", value_parser = driver)]
    driver: Option<DriverKind>,
    /// Memory for data in flight, for each shard [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    buffers: Option<u64>,
    /// Offer the replicas of this node here, in the clear; for tests: nodes have an address of their own for that
    #[arg(long, value_name = "ADDRESS", hide = true)]
    replica_listen: Option<String>,
    /// How the log is written, on standard error [default: text]
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// How much is logged: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<LevelFilter>,
    /// Upgrade the running daemon to this program: in its own process, with its own options, while its sockets and files stay open
    ///
    /// It is tried before anything stops: a program that would not start with the configuration and state of that daemon is refused.
    #[arg(long, conflicts_with_all = ["state", "shards", "driver", "buffers", "log_format", "log_level"])]
    pub upgrade: bool,
    /// Print one JSON document instead of text
    #[arg(long, requires = "upgrade")]
    pub json: bool,
    /// Only say whether it would start: configuration and state are read, and nothing is touched
    #[arg(long, hide = true)]
    pub check: bool,
    #[command(flatten)]
    nbd: NbdArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// The combination of command line, environment and configuration.
pub struct Settings {
    /// The paths of the socket and the state folder.
    pub places: DaemonPaths,
    /// Number of shards, unless it follows from the processors.
    pub shards: Option<u16>,
    /// The I/O interface for disks, unless the best one is chosen.
    pub driver: Option<DriverKind>,
    /// Memory for data in flight, for each shard.
    pub buffers_bytes: u64,
    /// How the log is written.
    pub log_format: LogFormat,
    /// How much is logged.
    pub log_level: LevelFilter,
    /// The API on the network, if it is to be there.
    pub api: Option<ApiSettings>,
    /// The TLS settings of exports.
    pub encryption: Encryption,
    /// The address at which replicas are offered in the clear.
    pub replica_listen: Option<Address>,
}

impl Settings {
    /// Combines the command line with the environment and the configuration file.
    ///
    /// # Errors
    /// The file cannot be read, or a value is not valid.
    pub fn of(args: ServeArgs) -> Result<Settings, ErrorDetail> {
        let config = Config::load(args.config.as_deref())?;
        Ok(Settings {
            api: ApiSettings::of(args.api, &config)?,
            encryption: Encryption::of(args.nbd, &config)?,
            replica_listen: args.replica_listen.as_deref().map(Address::parse).transpose()?,
            places: DaemonPaths::find(args.socket.as_deref(), args.state.as_deref(), &config),
            shards: args.shards.or(config.shards),
            driver: args.driver.or(config.driver),
            buffers_bytes: args.buffers.or(config.buffers_bytes).unwrap_or(BUFFERS_BYTES_DEFAULT),
            log_format: args.log_format.or(config.log_format).unwrap_or(LogFormat::Text),
            log_level: args.log_level.or(config.log_level).unwrap_or(LevelFilter::INFO),
        })
    }
}

fn driver(name: &str) -> Result<DriverKind, String> {
    let known = || DriverKind::ALL.map(DriverKind::name).join(", ");
    DriverKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| format!("it is one of {}", known()))
}

fn size(text: &str) -> Result<u64, String> {
    braid_geometry::units::parse_size(text).map_err(|error| error.to_string())
}

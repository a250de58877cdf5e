//! `braid serve`: the shards, and beside them the control plane with its API.
//!
//! Order of a start: the state folder is locked (so that there is one daemon for it), the socket is taken, the
//! shards start, the API answers, arrays are found and started, the service manager is told. Order of an end: the
//! API refuses changes, exports fall silent, arrays drain and are marked clean, the shards end, the sockets go; all of
//! that within limits of time, as a disk may hang. What the kernel still holds then is named. A daemon that is killed instead leaves nothing that the next start does not cope with.

pub mod api;
mod control;
mod describe;
pub mod encryption;
mod events;
mod expiry;
mod follow;
mod held;
mod http;
mod listen;
mod metrics;
mod nodes;
mod notify;
mod panics;

pub mod state;
mod upgrade;

use anyhow::Context;
use braid_api::{ErrorDetail, Kind};
use braid_config::places::Places;
use braid_config::{Config, LogFormat, SHARDS_MAX};
use braid_fuse::FuseFrontend;
use braid_host::aside;
use braid_nbd::{EventQueue, ExportTable};
use braid_terminal::failure;

use api::{ApiArgs, ApiSettings};
use braid_api::address::Address;
use braid_nbd::server::{NbdFrontend, ServerConfig};
use braid_ring::kept::InheritedFds;
use braid_ring::{DriverKind, Frontend, Ring, RingConfig};
use braid_ublk::UblkFrontend;
use clap::Args;
use control::Control;
use encryption::{Encryption, NbdArgs};
use panics::Panics;
use state::StateFolder;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;
use upgrade::Handover;

/// Most shards that the daemon starts by itself.
const SHARDS_DEFAULT_MAX: usize = 8;
/// Memory for data in flight of each shard, in bytes, unless told otherwise.
const BUFFERS_BYTES_DEFAULT: u64 = 64 << 20;
/// Threads of the control plane.
const CONTROL_THREADS: usize = 2;
/// Threads that may open disks, and so may hang in one.
const BLOCKING_THREADS_MAX: usize = 128;
/// Longest that the end waits for answers of the API that are under way.
const API_STOPPING_MAX: Duration = Duration::from_secs(2);
/// Longest that the end waits for the shards when nothing is in flight on disks: for clients to take their answers.
const SHARDS_STOPPING_MAX: Duration = Duration::from_secs(5);
/// Longest that the end waits for processes that look at disks of others.
const LOOKING_MAX: Duration = Duration::from_millis(500);
/// A thread that the kernel has held for so long at the end is worth a word.
const HELD_MAX: Duration = Duration::from_secs(1);
/// Fewer open files than this are worth a warning: each disk, client and address is one.
const OPEN_FILES_FEW: u64 = 4096;

/// Arguments of `braid serve`. What is absent is taken from the configuration.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// The configuration [default: BRAID_CONFIG, else /etc/braid/braid.toml for root and
    /// ~/.config/braid/braid.toml for others, where it exists]
    ///
    /// A file of TOML with a key for each option below (`log_level = "debug"`; see docs/operations.md). Options win
    /// over variables of the environment, and those over the file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the API's socket is [default: BRAID_SOCKET, else /run/braid/braid.sock for root and a folder of the
    /// user's for others]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The folder of the daemon's state [default: BRAID_STATE, else /var/lib/braid for root and a folder of the
    /// user's for others]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Number of shards, each with a thread of its own [default: one for each processor, at most 8]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: Option<u16>,
    /// How disks are read and written [default: the best that works here]
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
    /// Have the daemon that runs become this program: in its own process, with its own options, while its sockets and files stay
    ///
    /// It is tried before anything stops: a program that would not start with the configuration and state of that daemon is refused.
    #[arg(long, conflicts_with_all = ["state", "shards", "driver", "buffers", "log_format", "log_level"])]
    upgrade: bool,
    /// Print one JSON document instead of text
    #[arg(long, requires = "upgrade")]
    json: bool,
    /// Only say whether it would start: configuration and state are read, and nothing is touched
    #[arg(long, hide = true)]
    check: bool,
    #[command(flatten)]
    nbd: NbdArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// What the command line, the environment and the configuration say together.
struct Settings {
    places: Places,
    shards: Option<u16>,
    driver: Option<DriverKind>,
    buffers_bytes: u64,
    log_format: LogFormat,
    log_level: LevelFilter,
    api: Option<ApiSettings>,
    encryption: Encryption,
    replica_listen: Option<Address>,
}

impl Settings {
    fn of(args: ServeArgs) -> Result<Settings, ErrorDetail> {
        let config = Config::load(args.config.as_deref())?;
        Ok(Settings {
            api: ApiSettings::of(args.api, &config)?,
            encryption: Encryption::of(args.nbd, &config)?,
            replica_listen: args.replica_listen.as_deref().map(Address::parse).transpose()?,
            places: Places::find(args.socket.as_deref(), args.state.as_deref(), &config),
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

/// Runs the daemon until it is told to end.
pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    if args.upgrade {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("the runtime of the command cannot start")?;
        return runtime.block_on(upgrade::ask::run(args.socket.as_deref(), args.json));
    }
    let started = Instant::now();
    if args.check {
        check(&Settings::of(args)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Of the program that an upgrade has made of this process, the kernel knows the number of a descriptor only.
    let _ = rustix::thread::set_name(c"braid");
    // Before anything else is opened: these have numbers that are told, not found.
    let kept = braid_ring::kept::take();
    let settings = Settings::of(args)?;
    log(&settings);
    let format = settings.log_format;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("control")
        .enable_all()
        .build()
        .context("the control plane cannot start")?;
    let result = runtime.block_on(serve(settings, started, kept));
    // A thread that hangs in a broken disk must not be waited for here. Where the kernel holds it, the process stays all the same.
    runtime.shutdown_timeout(Duration::from_millis(100));
    let result = match result {
        Ok(End::Over(status)) => {
            say_what_is_held("the daemon has ended");
            Ok(status)
        }
        Ok(End::Upgrade(handover)) => {
            say_what_is_held("the daemon has stopped for an upgrade");
            // It returns only where it could not be done.
            Err(anyhow::Error::from(handover.replace()).context("the daemon cannot be started again"))
        }
        Err(error) => {
            say_what_is_held("the daemon has ended");
            Err(error)
        }
    };
    // People read the error itself, as of any command; those who read a log of JSON find it there.
    if let (Err(error), LogFormat::Json) = (&result, format) {
        tracing::error!("the daemon ends: {}", failure::detail(error).message);
    }
    result
}

/// Names what the kernel keeps of this process, and nothing here can end.
fn say_what_is_held(what: &str) {
    for (process, paths) in aside::end(LOOKING_MAX) {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        tracing::warn!(
            "process {process}, which looked at {} for the daemon, is there until that answers: the kernel holds it. It has nothing \
             else open, and ends by itself then",
            paths.join(", ")
        );
    }
    for held in held::threads(HELD_MAX) {
        tracing::error!(
            "{what}, and its process stays, with what it has open, until the kernel lets go of {held}: look for a disk or a file \
             system that does not answer (dmesg, braid disk list); a FUSE mount whose server hangs is given up by umount --force"
        );
    }
}

/// How the daemon ends.
enum End {
    Over(ExitCode),
    Upgrade(Handover),
}

/// Says whether a daemon would start with these settings, as far as can be said without touching anything.
fn check(settings: &Settings) -> Result<(), ErrorDetail> {
    StateFolder::read(&settings.places.state)?;
    nodes::check(&settings.places.state)?;
    if let Some(api) = &settings.api {
        api.check()?;
    }
    upgrade::trial();
    Ok(())
}

fn log(settings: &Settings) {
    let log =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(settings.log_level).with_target(false);
    // A second logger in one process would be refused; there is none.
    let _ = match settings.log_format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

async fn serve(settings: Settings, started: Instant, mut kept: InheritedFds) -> anyhow::Result<End> {
    // Taken before anything else, so that a signal during the start is not lost.
    let mut panics = Panics::watch();
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be caught")?;
    outlive_hangups()?;
    let places = &settings.places;
    raise_limits();
    let folder = StateFolder::open(&places.state)?;
    // Read before the socket is taken: what cannot be understood ends the start with nothing touched.
    folder.load()?;
    let socket = std::path::absolute(&places.socket)
        .with_context(|| format!("the path {} has no absolute form", places.socket.display()))?;
    Address::Unix(socket.clone()).absolute()?;
    if let Some(folder) = socket.parent() {
        make_socket_folder(folder)?;
    }
    let left_as = format!("socket:{}", socket.display());
    let left = kept.remove(&left_as).and_then(|mut left| listen::resume_unix(&socket, left.pop()?));
    let (listener, socket_path) = match left {
        Some(left) => left,
        None => listen::bind_unix(&socket)?,
    };
    let listener = tokio::net::UnixListener::from_std(listener).context("the API's socket cannot be watched")?;
    let listener = Arc::new(listener);
    let network = match &settings.api {
        Some(api) => Some(api.open(&mut kept).await?),
        None => None,
    };

    let clients = Arc::new(EventQueue::new());
    let ring = start_ring(&settings, &clients)?;
    #[cfg(debug_assertions)]
    panics::planted::arm(ring.handle());
    let control = Control::new(
        ring.handle(),
        folder,
        socket.clone(),
        braid_config::places::shared_memory(),
        clients,
        started,
        settings.encryption.clone(),
        kept,
        upgrade::Before::read(),
    )?;
    control.upgrades().note(left_as, Arc::downgrade(&listener) as _);
    if let Some(address) = &settings.replica_listen {
        control.listen_for_replicas(address, None).await?;
    }
    let app = http::router(Arc::clone(&control));
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(api::listen::over_socket(listener, app.clone(), control.stopping()));
    tracing::info!("braid {} listens on {}", env!("CARGO_PKG_VERSION"), socket.display());
    if let Some(network) = network {
        let address = network.listener.local_addr().context("the API's address cannot be found out")?;
        control.on_network(address, Arc::clone(&network.refusals));
        serving.spawn(api::keep_fresh(Arc::clone(&control), Arc::clone(&network.tls), Arc::clone(&network.access)));
        let door = network.door();
        if let Some(api) = &settings.api {
            control.upgrades().note(api.left_as(), Arc::downgrade(&network.listener) as _);
        }
        serving.spawn(api::listen::over_network(network.listener, door, app.clone(), control.stopping()));
        tracing::info!("the API is on the network, with TLS: https://{address}");
    }

    control.nodes().begin(app, &control);
    tokio::spawn(encryption::keep_fresh(Arc::clone(&control), settings.encryption.clone()));
    let watch = tokio::spawn(Arc::clone(&control).watch());
    let start = {
        let control = Arc::clone(&control);
        tokio::spawn(async move {
            control.start().await;
            control.begin_all_replicated();
            control.end_upgrade();
            notify::tell(notify::READY);
            tokio::spawn(Arc::clone(&control).forget_deleted());
            tokio::spawn(Arc::clone(&control).look_for_unserved());
            control.clear_half_made().await;
        })
    };
    let mut handover = None;
    let reason = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        candidate = control.upgrades().ordered() => {
            handover = Some(Handover::begin(control.upgrades(), candidate));
            "an upgrade"
        }
        ended = serving.join_next() => {
            return Err(ErrorDetail::new(Kind::Internal, format!("the API ended by itself: {ended:?}")).into());
        }
        error = panics.of_a_shard() => {
            // Stopping the others would wait for what they want of the one that is gone.
            std::mem::forget(ring);
            return Err(error.into());
        }
    };
    tracing::info!("{reason}: the daemon ends");
    match handover {
        Some(_) => notify::tell_reloading(),
        None => {
            // One that was asked for in the same moment comes to nothing.
            control.upgrades().set_closed(false);
            notify::tell(notify::STOPPING);
        }
    }
    control.begin_stop();
    let mut left = tokio::select! {
        left = control.stop(start) => left,
        error = panics.of_a_shard() => vec![error.message],
        _ = interrupt.recv() => vec!["SIGINT came again, so nothing more was waited for".to_owned()],
    };
    let _ = tokio::time::timeout(API_STOPPING_MAX, watch).await;
    let ended = async { while serving.join_next().await.is_some() {} };
    if tokio::time::timeout(API_STOPPING_MAX, ended).await.is_err() {
        serving.abort_all();
    }
    end_ring(ring, &left).await?;
    // Somebody wants it to end, after all: everything has.
    let is_to_end = std::future::poll_fn(|cx| Poll::Ready(terminate.poll_recv(cx).is_ready())).await;
    if handover.is_some() && is_to_end {
        left.extend(control.end_files().await);
    }
    if let Some(mut handover) = handover.filter(|_| !is_to_end) {
        for what in &left {
            tracing::error!("{what}");
        }
        handover.add_files(control.hand_over_files());
        // It is the next one's.
        std::mem::forget(socket_path);
        return Ok(End::Upgrade(handover));
    }
    drop(socket_path);
    if left.is_empty() {
        tracing::info!("the daemon has ended");
        return Ok(End::Over(ExitCode::SUCCESS));
    }
    for what in &left {
        tracing::error!("{what}");
    }
    tracing::error!("the daemon ends without that; no harm is done to what was acknowledged");
    Ok(End::Over(ExitCode::FAILURE))
}

/// A terminal that is closed, or somebody who wants files to be read anew, sends SIGHUP: neither is a reason to cut off clients.
fn outlive_hangups() -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("signals cannot be caught")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tracing::info!(
                "SIGHUP: certificates and tokens are read anew by themselves; what else is configured holds until a restart"
            );
        }
    });
    Ok(())
}

/// Ends the shards. Where something is left they would wait for it, so that they end with the process instead.
async fn end_ring(ring: Ring, left: &[String]) -> anyhow::Result<()> {
    if !left.is_empty() {
        std::mem::forget(ring);
        return Ok(());
    }
    let ending = tokio::task::spawn_blocking(move || ring.stop());
    match tokio::time::timeout(SHARDS_STOPPING_MAX, ending).await {
        Ok(ended) => ended.context("the shards did not end well"),
        Err(_) => {
            tracing::warn!("clients have not taken their answers; the daemon ends without waiting for them");
            Ok(())
        }
    }
}

/// Makes the folder of the API's socket. One that belongs to somebody else, who could put another socket in place of
/// ours, is refused.
fn make_socket_folder(folder: &Path) -> Result<(), ErrorDetail> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let failed =
        |error: std::io::Error| braid_advice::errors::os_error(&error, "the socket's folder cannot be made", folder);
    if !folder.exists() {
        // Root's is for the members of the group, too; the socket's own mode decides.
        let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        return std::fs::DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(failed);
    }
    let owner = std::fs::metadata(folder).map_err(failed)?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() && !rustix::process::geteuid().is_root() {
        return Err(ErrorDetail::new(
            Kind::PermissionDenied,
            format!("the folder {} of the socket belongs to another user", folder.display()),
        )
        .with("path", folder.display())
        .remedy("choose a folder of your own with --socket or BRAID_SOCKET"));
    }
    Ok(())
}

fn start_ring(settings: &Settings, clients: &Arc<EventQueue>) -> anyhow::Result<Ring> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let config = RingConfig {
        shards: settings.shards.unwrap_or(processors.min(SHARDS_DEFAULT_MAX) as u16),
        driver: settings.driver,
        arena_bytes: usize::try_from(settings.buffers_bytes).unwrap_or(usize::MAX),
        ..RingConfig::default()
    };
    let ring = Ring::start(&config, |_| {
        // Each listener brings a table of its own; what comes without one sees nothing.
        let nothing = Arc::new(ExportTable::new());
        let nbd = NbdFrontend::new(nothing, Arc::clone(clients), ServerConfig::default());
        vec![
            Box::new(nbd) as Box<dyn Frontend>,
            Box::new(FuseFrontend::new()),
            Box::new(UblkFrontend::new()),
            #[cfg(debug_assertions)]
            Box::new(panics::planted::Bomb),
        ]
    })
    .map_err(|error| braid_advice::errors::of_ring(&error, ""))?;
    let handle = ring.handle();
    for shard in 0..handle.shards() {
        let driver = handle.driver(braid_engine::ShardId(shard));
        for (kind, why) in &driver.skipped {
            tracing::warn!("shard {shard}: {kind} is not used: {why}");
        }
        if let Some(why) = &driver.unregistered_reason {
            tracing::warn!("shard {shard}: buffers are not registered: {why}");
        }
    }
    Ok(ring)
}

/// Raises the limit of open files to what is permitted, and says so where that is little.
fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now }) {
        tracing::warn!("the limit of open files stays at {:?}: {error}", now.current);
    }
    if let Some(files) = getrlimit(Resource::Nofile).current.filter(|files| *files < OPEN_FILES_FEW) {
        tracing::warn!(
            "only {files} files may be open: each disk, each client and each address is one; \
             raise the limit with LimitNOFILE= in the unit, or ulimit -Hn elsewhere"
        );
    }
}

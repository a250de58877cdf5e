//! `braid serve`: the shards, and beside them the control plane with its API.
//!
//! Order of the start: lock the state folder (so that it has one daemon), bind the socket, start the shards, serve the
//! API, find and start arrays, notify the service manager. Order of the stop: the API refuses changes, exports stop,
//! arrays drain and are marked clean, the shards end, the sockets are removed; each step within a time limit, as a disk
//! may hang. Threads that the kernel still holds then are reported. A killed daemon leaves nothing that the next start
//! does not recover from.

mod settings;
mod upgrade_command;

pub use settings::ServeArgs;

use anyhow::Context;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Kind};
use braid_config::{LogFormat, OPEN_FILES_FEW, SHARDS_DEFAULT_MAX};
use braid_daemon::panics::Panics;
use braid_daemon::upgrade::{self, Handover};
use braid_daemon::{Daemon, DaemonParts, encryption, peers, stuck_threads};
use braid_export::ExportTable;
use braid_exports::{listen, notify};
use braid_fuse::FuseFrontend;
use braid_host::probe_process;
use braid_inventory::state::StateFolder;
use braid_nbd::EventQueue;
use braid_nbd::server::{NbdFrontend, ServerConfig};
use braid_ring::kept::InheritedFds;
use braid_ring::{Frontend, Ring, RingConfig};
use braid_server::{Api, ApiReports};
use braid_tasks as tasks;
use braid_terminal::{failure, output};
use braid_ublk::UblkFrontend;
use settings::Settings;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Threads of the control plane.
const DAEMON_THREADS: usize = 2;
/// Maximum threads that may open disks, and so may hang in one.
const BLOCKING_THREADS_MAX: usize = 128;
/// Maximum time in which the stop waits for API requests in progress.
const API_STOPPING_MAX: Duration = Duration::from_secs(2);
/// Maximum time in which the stop waits for the shards when nothing is in flight on disks: for clients to take their
/// replies.
const SHARDS_STOPPING_MAX: Duration = Duration::from_secs(5);
/// Maximum time in which the stop waits for processes that examine disks.
const EXAMINATION_MAX: Duration = Duration::from_millis(500);
/// A thread that the kernel has held for this long at the end is reported.
const STUCK_MAX: Duration = Duration::from_secs(1);

/// Runs the daemon until it has to end.
pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    if args.upgrade {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("the runtime of the command cannot start")?;
        return runtime.block_on(upgrade_command::run(args.socket.as_deref(), args.json));
    }
    let started = Instant::now();
    if args.check {
        check(&Settings::of(args)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // After an upgrade the kernel would name this process after the number of a descriptor.
    let _ = rustix::thread::set_name(c"braid");
    // Before anything else is opened: inherited descriptors have fixed numbers.
    let inherited = braid_ring::kept::take();
    let settings = Settings::of(args)?;
    start_log(&settings);
    let format = settings.log_format;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(DAEMON_THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("control")
        .enable_all()
        .build()
        .context("the control plane cannot start")?;
    let result = runtime.block_on(serve(settings, started, inherited));
    // A thread that hangs in a broken disk must not be waited for here. If the kernel holds it, the process stays all
    // the same.
    runtime.shutdown_timeout(Duration::from_millis(100));
    let result = match result {
        Ok(DaemonEnd::Over(status)) => {
            report_stuck("the daemon has ended");
            Ok(status)
        }
        Ok(DaemonEnd::Upgrade(handover)) => {
            report_stuck("the daemon has stopped for an upgrade");
            // Returns only on failure.
            Err(anyhow::Error::from(handover.replace()).context("the daemon cannot be started again"))
        }
        Err(error) => {
            report_stuck("the daemon has ended");
            Err(error)
        }
    };
    // Users see the error itself, as with any command; readers of a JSON log find it there.
    if let (Err(error), LogFormat::Json) = (&result, format) {
        tracing::error!("the daemon ends: {}", failure::detail(error).message);
    }
    result
}

/// Reports processes and threads that the kernel holds, and that nothing here can end.
fn report_stuck(what: &str) {
    for (process, paths) in probe_process::shut_down(EXAMINATION_MAX) {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        tracing::warn!(
            "process {process}, which looked at {} for the daemon, stays until the disk answers: the kernel holds it. It has nothing \
             else open, and ends by itself then",
            paths.join(", ")
        );
    }
    for thread in stuck_threads::find(STUCK_MAX) {
        tracing::error!(
            "{what}, and its process stays, with what it has open, until the kernel lets go of {thread}: look for a disk or a file \
             system that does not answer (dmesg, braid disk list); a FUSE mount whose server hangs is given up by umount --force"
        );
    }
}

/// How the daemon ends.
enum DaemonEnd {
    /// The process ends.
    Over(ExitCode),
    /// The process becomes another program.
    Upgrade(Handover),
}

/// Checks that a daemon would start with these settings, as far as possible without any change.
fn check(settings: &Settings) -> Result<(), ErrorDetail> {
    StateFolder::read(&settings.places.state)?;
    braid_cluster::check(&settings.places.state)?;
    if let Some(api) = &settings.api {
        api.check()?;
    }
    output::json(&upgrade::trial());
    Ok(())
}

/// Starts the log.
fn start_log(settings: &Settings) {
    let log =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(settings.log_level).with_target(false);
    // Fails only if there is a logger already; there is none.
    let _ = match settings.log_format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

/// Starts the daemon, serves until a signal, an upgrade or a panic ends it, and stops it.
async fn serve(settings: Settings, started: Instant, mut inherited: InheritedFds) -> anyhow::Result<DaemonEnd> {
    // Registered before anything else, so that a signal during the start is not lost.
    let mut panics = Panics::watch();
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be caught")?;
    ignore_hangups()?;
    let places = &settings.places;
    raise_limits();
    let folder = StateFolder::open(&places.state)?;
    // Read before the socket is bound: an invalid state ends the start without any change.
    folder.load()?;
    let socket = std::path::absolute(&places.socket)
        .with_context(|| format!("the path {} has no absolute form", places.socket.display()))?;
    Address::Unix(socket.clone()).absolute()?;
    if let Some(folder) = socket.parent() {
        make_socket_folder(folder)?;
    }
    let socket_name = format!("socket:{}", socket.display());
    let inherited_socket =
        inherited.remove(&socket_name).and_then(|mut left| listen::resume_unix(&socket, left.pop()?));
    let (listener, socket_path) = match inherited_socket {
        Some(socket) => socket,
        None => listen::bind_unix(&socket)?,
    };
    let listener = tokio::net::UnixListener::from_std(listener).context("the API's socket cannot be watched")?;
    let listener = Arc::new(listener);
    let network = match &settings.api {
        Some(api) => {
            let socket = inherited.remove(&api.inherited_name()).and_then(|mut sockets| sockets.pop());
            Some(api.open(socket).await?)
        }
        None => None,
    };

    let clients = Arc::new(EventQueue::new());
    let ring = start_ring(&settings, &clients)?;
    #[cfg(debug_assertions)]
    braid_daemon::panics::injection::inject_on_signal(ring.handle());
    let daemon = Daemon::new(DaemonParts {
        ring: ring.handle(),
        state: folder,
        socket: socket.clone(),
        shared_memory: braid_config::paths::shared_memory_dir(),
        clients,
        started,
        encryption: settings.encryption.clone(),
        inherited,
        previous: upgrade::PreviousDaemon::read(),
    })?;
    daemon.exports.sockets.register(socket_name, Arc::downgrade(&listener) as _);
    if let Some(address) = &settings.replica_listen {
        daemon.replication.listen_for_replicas(address, None).await?;
    }
    let server = Api::new(Arc::clone(&daemon) as _);
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(server.over_socket(listener, daemon.inventory.stopping()));
    tracing::info!("braid {} listens on {}", env!("CARGO_PKG_VERSION"), socket.display());
    if let Some(network) = network {
        let address = network.listener.local_addr().context("the API's address cannot be found out")?;
        daemon.on_network(address, Arc::clone(&network.refusals));
        let (tls, access) = (Arc::clone(&network.tls), Arc::clone(&network.access));
        let reports: Arc<dyn ApiReports> = Arc::<Daemon>::clone(&daemon);
        serving.spawn(braid_server::reload_files(reports, tls, access, daemon.inventory.stopping()));
        let admission = network.admission();
        if let Some(api) = &settings.api {
            daemon.exports.sockets.register(api.inherited_name(), Arc::downgrade(&network.listener) as _);
        }
        serving.spawn(server.over_network(network.listener, admission, daemon.inventory.stopping()));
        tracing::info!("the API is on the network, with TLS: https://{address}");
    }

    daemon.nodes.start(peers::services(server, &daemon));
    tasks::spawn(encryption::reload_files(Arc::clone(&daemon), settings.encryption.clone()));
    let watch = tasks::spawn(Arc::clone(&daemon).watch());
    let start = {
        let daemon = Arc::clone(&daemon);
        tasks::spawn(async move {
            daemon.arrays.start().await;
            daemon.replication.begin_all_replicated();
            daemon.end_upgrade();
            notify::notify_state(notify::READY);
            tasks::spawn(Arc::clone(&daemon.replication).watch_deleted());
            tasks::spawn(Arc::clone(&daemon.replication).watch_unserved());
            Arc::clone(&daemon.replication).clear_incomplete().await;
        })
    };
    let mut handover = None;
    let reason = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        candidate = daemon.upgrades.ordered() => {
            handover = Some(Handover::begin(&daemon.upgrades, candidate));
            "an upgrade"
        }
        ended = serving.join_next() => {
            return Err(ErrorDetail::new(Kind::Internal, format!("the API ended by itself: {ended:?}")).into());
        }
        error = panics.of_a_shard() => {
            // Stopping the other shards would wait for their requests to the one that has panicked.
            std::mem::forget(ring);
            return Err(error.into());
        }
    };
    tracing::info!("{reason}: the daemon ends");
    match handover {
        Some(_) => notify::notify_reloading(),
        None => {
            // An upgrade that was requested at the same moment is dropped.
            daemon.upgrades.set_closed(false);
            notify::notify_state(notify::STOPPING);
        }
    }
    daemon.inventory.begin_stop();
    let mut left = tokio::select! {
        left = daemon.stop(start) => left,
        error = panics.of_a_shard() => vec![error.message],
        _ = interrupt.recv() => vec!["SIGINT was received again, so the daemon did not wait any longer".to_owned()],
    };
    let _ = tokio::time::timeout(API_STOPPING_MAX, watch).await;
    let ended = async { while serving.join_next().await.is_some() {} };
    if tokio::time::timeout(API_STOPPING_MAX, ended).await.is_err() {
        serving.abort_all();
    }
    end_ring(ring, &left).await?;
    // A SIGTERM came during the upgrade: everything has stopped, so the daemon ends.
    let is_to_end = std::future::poll_fn(|cx| Poll::Ready(terminate.poll_recv(cx).is_ready())).await;
    if handover.is_some() && is_to_end {
        left.extend(daemon.exports.end_files().await);
    }
    if let Some(mut handover) = handover.filter(|_| !is_to_end) {
        for what in &left {
            tracing::error!("{what}");
        }
        handover.add_files(daemon.exports.hand_over_files());
        // The socket belongs to the next daemon.
        std::mem::forget(socket_path);
        return Ok(DaemonEnd::Upgrade(handover));
    }
    drop(socket_path);
    if left.is_empty() {
        tracing::info!("the daemon has ended");
        return Ok(DaemonEnd::Over(ExitCode::SUCCESS));
    }
    for what in &left {
        tracing::error!("{what}");
    }
    tracing::error!("the daemon ends all the same; acknowledged writes are not affected");
    Ok(DaemonEnd::Over(ExitCode::FAILURE))
}

/// Keeps SIGHUP, which a closed terminal or a request to reload files sends, from ending the daemon and cutting off its
/// clients.
fn ignore_hangups() -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("signals cannot be caught")?;
    tasks::spawn(async move {
        while hangup.recv().await.is_some() {
            tracing::info!(
                "SIGHUP: certificates and tokens are read anew by themselves; what else is configured holds until a restart"
            );
        }
    });
    Ok(())
}

/// Ends the shards. If something has not stopped they would wait for it, and so they end with the process instead.
async fn end_ring(ring: Ring, left: &[String]) -> anyhow::Result<()> {
    if !left.is_empty() {
        std::mem::forget(ring);
        return Ok(());
    }
    let ending = tasks::blocking(move || ring.stop());
    match tokio::time::timeout(SHARDS_STOPPING_MAX, ending).await {
        Ok(ended) => ended.context("the shards did not end well"),
        Err(_) => {
            tracing::warn!("clients have not received their replies; the daemon ends without waiting for them");
            Ok(())
        }
    }
}

/// Creates the folder of the API's socket. A folder of another user, who could replace the socket, is refused.
fn make_socket_folder(folder: &Path) -> Result<(), ErrorDetail> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let failed =
        |error: std::io::Error| braid_advice::errors::os_error(&error, "the socket's folder cannot be made", folder);
    if !folder.exists() {
        // Root's folder is accessible to the members of the group, too; the mode of the socket decides.
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

/// Starts the shards with all frontends, and logs what they cannot use.
fn start_ring(settings: &Settings, clients: &Arc<EventQueue>) -> anyhow::Result<Ring> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let config = RingConfig {
        shards: settings.shards.unwrap_or(processors.min(SHARDS_DEFAULT_MAX) as u16),
        driver: settings.driver,
        arena_bytes: usize::try_from(settings.buffers_bytes).unwrap_or(usize::MAX),
        ..RingConfig::default()
    };
    let ring = Ring::start(&config, |_| {
        // Each listener brings a table of its own; a connection without one sees no export.
        let empty_table = Arc::new(ExportTable::new());
        let nbd = NbdFrontend::new(empty_table, Arc::clone(clients), ServerConfig::default());
        vec![
            Box::new(nbd) as Box<dyn Frontend>,
            Box::new(FuseFrontend::new()),
            Box::new(UblkFrontend::new()),
            #[cfg(debug_assertions)]
            Box::new(braid_daemon::panics::injection::PanicFrontend),
        ]
    })
    .map_err(|error| braid_advice::errors::ring_error(&error, ""))?;
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

/// Raises the limit of open files to the permitted maximum, and warns if that is low.
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

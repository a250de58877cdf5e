//! Exports: letting clients use arrays, and taking that away again.

use super::files;
use super::pools::Source;
use super::tables::{ExportEntry, Listener, Serving, Tables};
use super::{Control, counted, random_uuid, view};
use crate::daemon::listen::{self, Door, NBD_FRONTEND, Socket};
use crate::daemon::state::SavedExport;
use braid_advice::{self as advice, ArrayCase, Case, Names};
use braid_api::address::Address;
use braid_api::limits::{EXPORT_CONNECTIONS_MAX, EXPORT_NETWORKS_MAX, EXPORTS_MAX, LISTENERS_MAX};
use braid_api::names;
use braid_api::{AddExport, ErrorDetail, Export, ExportTls, Kind, RenameExport, SetExport};
use braid_engine::{DeviceId, ShardId};
use braid_format::pool::OwnerKind;
use braid_nbd::server::ExportsChanged;
use braid_nbd::{ExportError, ExportInfo, ExportLimits, ExportTable, Network};
use braid_ring::Rates;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use uuid::Uuid;

/// Nobody else changes what is listened on.
pub(super) type Listens<'a> = tokio::sync::MutexGuard<'a, ()>;

impl Control {
    /// Lets clients use an array.
    ///
    /// # Errors
    /// The name or the address is taken, the array is not active, or it would be open to others.
    pub async fn add_export(self: &Arc<Self>, ask: AddExport) -> Result<Export, ErrorDetail> {
        self.is_open()?;
        let address = Address::parse(&ask.nbd)?;
        if matches!(&address, Address::Unix(path) if !path.is_absolute()) {
            return Err(ErrorDetail::new(Kind::InvalidArgument, format!("the path of {address} is not absolute"))
                .remedy("write it from the root, for example unix:/run/braid/fast.sock"));
        }
        let address = match address.absolute()? {
            Address::Fuse(path) => Address::Fuse(files::canonical(path).await?),
            address => address,
        };
        let is_file = matches!(address, Address::Fuse(_));
        let is_tcp = matches!(address, Address::Tcp { .. });
        if matches!(address, Address::Ublk { .. }) {
            refuse_of_network(&ask)?;
        }
        let tls = self.encryption.of_export(ask.tls, is_tcp)?;
        let no_limit = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
        let (allow, connections_max) = (networks(&ask.allow, is_tcp)?, connections(ask.connections_max)?);
        let listening = self.listening.lock().await;
        let volume = self.volume_to_export(&ask.array).await;
        let prepared = match &volume {
            Ok(Some(_)) => None,
            _ => self.volume_to_prepare(&ask.array).await,
        };
        let volume = if prepared.is_some() { None } else { volume? };
        if let Some(volume) = &volume {
            self.refuse_closing_pool(volume.pool)?;
            if !volume.is_snapshot {
                self.read().refuse_export_of_held(volume.uuid, &volume.name, ask.read_only)?;
            }
            if !volume.is_snapshot && !ask.read_only && !ask.force {
                self.refuse_last_on(&volume.name)?;
            }
        }
        let (name, uuid, of, pool) = {
            let tables = self.read();
            let (uuid, of, pool) = match (&volume, &prepared) {
                (Some(volume), _) => (volume.uuid, volume.name.clone(), Some(volume.pool)),
                (None, Some((uuid, name))) => (*uuid, name.clone(), None),
                (None, None) => self.array_to_export(&tables, &ask.array)?,
            };
            let name = ask.name.unwrap_or_else(|| of.clone());
            check_export_name(&name)?;
            if let Some(other) = tables.exports.get(&name) {
                return Err(
                    taken(&name, other).remedy("give this one a name of its own with --name, or remove that one")
                );
            }
            let nbd = address.to_string();
            if let Some(other) = tables.exports.values().find(|other| is_file && other.saved.nbd == nbd) {
                let message = format!("{nbd} is the file of export {}", other.saved.name);
                return Err(ErrorDetail::new(Kind::InUse, message)
                    .with("export", &other.saved.name)
                    .remedy("choose another path: each file is of one export"));
            }
            if tables.exports.len() >= EXPORTS_MAX {
                return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {EXPORTS_MAX} exports already"))
                    .remedy("remove one first"));
            }
            (name, uuid, of, pool)
        };
        let address = self.whole_block_address(address, &name)?;
        let saved = SavedExport {
            name,
            uuid: random_uuid()?,
            array: uuid,
            array_name: of,
            of_nodes: pool.is_none() && (prepared.is_some() || self.read().replicated.contains_key(&uuid)),
            pool,
            nbd: address.to_string(),
            // Nobody writes to a snapshot, or to an array of Linux md.
            read_only: ask.read_only
                || volume.as_ref().is_some_and(|volume| volume.is_snapshot)
                || self.read().imported.contains_key(&uuid),
            insecure: ask.insecure,
            tls,
            allow,
            connections_max,
            iops_max: no_limit(ask.iops_max),
            bandwidth_bytes_max: no_limit(ask.bandwidth_bytes_max),
        };
        let listened = match self.listen(&saved).await {
            Ok(Serving::Waiting) => self.refuse_taken(&address).await.map(|()| Serving::Waiting),
            listened => listened,
        };
        let serving = match listened {
            Ok(serving) => serving,
            Err(error) => {
                self.forget_file(saved.uuid);
                self.release(&listening, &saved).await;
                return Err(error);
            }
        };
        let (name, saved) = (saved.name.clone(), saved.clone());
        self.write().exports.insert(name.clone(), ExportEntry { saved: saved.clone(), serving });
        if let Err(error) = self.save() {
            self.silence(&name);
            self.forget_file(saved.uuid);
            self.abandon_block(&saved);
            self.write().exports.remove(&name);
            self.release(&listening, &saved).await;
            return Err(error);
        }
        let array = &saved.array_name;
        let what = word_of(&saved);
        let message = match self.read().is_standby(&saved) {
            true => format!(
                "export {name} of volume {array} at {address} is prepared on this node, which does not serve the volume"
            ),
            false => format!("{what} {array} is exported as {name} at {address}"),
        };
        self.events().info("export_added", message, &[("export", &name), (what, array)]);
        self.export(&name)
    }

    /// Gives an export another name. Order: clients can ask for the new name; the state file says so; the old one is
    /// gone. Whenever the daemon dies in between, the next start has the export under one of the two.
    ///
    /// # Errors
    /// The name is taken or cannot be one; clients are connected and `force` is not set (what a client has open
    /// bears its name as long as it lives); the state file cannot be written, and then the old name stays.
    pub async fn rename_export(self: &Arc<Self>, export: &str, ask: &RenameExport) -> Result<Export, ErrorDetail> {
        self.is_open()?;
        let new = ask.name.as_str();
        check_export_name(new)?;
        let _one_at_a_time = self.listening.lock().await;
        let (old, offer) = {
            let tables = self.read();
            let entry = tables.export(export)?;
            let old = entry.saved.name.clone();
            if old == new {
                return Ok(view::show_export(&tables, entry));
            }
            if let Some(other) = tables.exports.get(new) {
                return Err(taken(new, other).remedy("choose another name, or rename that one first"));
            }
            if let Serving::Listening(open) = &entry.serving
                && open.connections() > 0
                && !ask.force
            {
                let clients = counted(open.connections() as usize, "client", "clients");
                return Err(ErrorDetail::new(Kind::InUse, format!("export {old} is used by {clients}"))
                    .with("export", &old)
                    .remedy("disconnect them first, or add --force (they are disconnected)"));
            }
            let table = match &entry.serving {
                Serving::Listening(open) => tables.listener_of(&entry.saved).map(|table| {
                    // The limits as they are now, not as they were when it was offered.
                    let size_bytes = open.size_bytes();
                    let limits = limits_of(&entry.saved);
                    (table, ExportInfo { limits, size_bytes, ..open.info().clone() })
                }),
                _ => None,
            };
            (old, table)
        };
        let offered = match offer {
            Some((table, info)) => {
                let offered = table.add(ExportInfo { name: new.to_owned(), ..info });
                Some((table, offered.map_err(|error| not_offered(&error, new))?))
            }
            None => None,
        };
        let serving = offered.as_ref().map(|(_, export)| Serving::Listening(Arc::clone(export)));
        let before = self.write().rename_export(&old, new, serving);
        if let Err(error) = self.save() {
            self.write().rename_export(new, &old, before);
            if let Some((table, _)) = offered {
                table.remove(new);
                self.tell_exports_changed();
            }
            return Err(error);
        }
        if let Some((table, renamed)) = offered {
            table.remove(&old);
            self.tell_exports_changed();
            let saved = self.read().export(new)?.saved.clone();
            self.move_file(&saved, &renamed).await?;
        }
        self.events().info(
            "export_renamed",
            format!("export {old} is now called {new}"),
            &[("export", new), ("old_name", &old)],
        );
        self.export(new)
    }

    /// Changes what an export's clients may take. Those who may stay are not disturbed.
    ///
    /// # Errors
    /// A value cannot be right; the state file cannot be written, and then nothing changes.
    pub async fn set_export(self: &Arc<Self>, export: &str, ask: SetExport) -> Result<Export, ErrorDetail> {
        self.is_open()?;
        let _one_at_a_time = self.listening.lock().await;
        let (name, before) = {
            let tables = self.read();
            let saved = &tables.export(export)?.saved;
            (saved.name.clone(), saved.clone())
        };
        let is_tcp = matches!(Address::parse(&before.nbd)?, Address::Tcp { .. });
        let mut after = before.clone();
        if let Some(allow) = &ask.allow {
            after.allow = networks(allow, is_tcp)?;
        }
        if ask.connections_max.is_some() {
            after.connections_max = connections(ask.connections_max)?;
        }
        for (asked, limit) in
            [(ask.iops_max, &mut after.iops_max), (ask.bandwidth_bytes_max, &mut after.bandwidth_bytes_max)]
        {
            if let Some(asked) = asked {
                *limit = Some(asked).filter(|asked| *asked > 0);
            }
        }
        let limits = limits_of(&after);
        self.write().set_saved(&name, after);
        if let Err(error) = self.save() {
            self.write().set_saved(&name, before);
            return Err(error);
        }
        if let Some(Serving::Listening(open)) = self.read().exports.get(&name).map(|entry| &entry.serving) {
            open.set_limits(limits);
        }
        self.tell_exports_changed();
        self.events().info("export_set", format!("the limits of export {name} were set"), &[("export", &name)]);
        self.export(&name)
    }

    /// Takes an export away; its clients are disconnected.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; it is a file or a block device that is in use.
    pub async fn remove_export(self: &Arc<Self>, name: &str) -> Result<Export, ErrorDetail> {
        self.is_open()?;
        let listening = self.listening.lock().await;
        let (name, saved, shown) = {
            let tables = self.read();
            let entry = tables.export(name)?;
            (entry.saved.name.clone(), entry.saved.clone(), view::show_export(&tables, entry))
        };
        self.end_kernel_client(&saved).await?;
        self.unmount_file(&saved).await?;
        self.forget_file(saved.uuid);
        self.end_blocks(&listening, |saved| saved.name == name).await?;
        self.silence(&name);
        let removed = self.write().exports.remove(&name);
        if let Some(removed) = removed {
            self.release(&listening, &removed.saved).await;
        }
        self.save_or_warn();
        self.events().info("export_removed", format!("export {name} was removed"), &[("export", &name)]);
        Ok(shown)
    }

    /// Restores the exports of an array that has just become active.
    pub(super) async fn restore_exports(self: &Arc<Self>, array: Uuid) {
        let _one_at_a_time = self.listening.lock().await;
        let names = self.read().exports_of(array);
        for name in names {
            let saved = match self.read().exports.get(&name) {
                Some(entry) if !matches!(entry.serving, Serving::Listening(_)) => entry.saved.clone(),
                _ => continue,
            };
            let serving = match self.listen(&saved).await {
                Ok(serving) => serving,
                Err(error) => {
                    let message = format!("export {name} does not listen: {}", error.message);
                    self.events().error("export_failed", message, &[("export", &name)]);
                    Serving::Failed(error)
                }
            };
            if let Some(entry) = self.write().exports.get_mut(&name) {
                entry.serving = serving;
            }
        }
    }

    /// Tries again what could not be listened on: whoever had the address may have gone.
    pub(super) async fn retry_exports(self: &Arc<Self>) {
        let failed: Vec<String> = {
            let tables = self.read();
            let failed = tables.exports.values().filter(|entry| matches!(entry.serving, Serving::Failed(_)));
            failed.map(|entry| entry.saved.name.clone()).collect()
        };
        for name in failed {
            let _one_at_a_time = self.listening.lock().await;
            // Meanwhile it may have been removed or renamed, or its array stopped.
            let saved = match self.read().exports.get(&name) {
                Some(entry) if matches!(entry.serving, Serving::Failed(_)) => entry.saved.clone(),
                _ => continue,
            };
            if let Ok(serving) = self.listen(&saved).await {
                if let Some(entry) = self.write().exports.get_mut(&name) {
                    entry.serving = serving;
                }
                let message = format!("export {name} listens now");
                self.events().info("export_restored", message, &[("export", &name)]);
            }
        }
    }

    /// What all exports of a device hold, which counts one more now.
    fn siblings_of(&self, device: DeviceId) -> Arc<AtomicU64> {
        let mut tables = self.write();
        tables.siblings.retain(|_, siblings| siblings.strong_count() > 0);
        let siblings = tables.siblings.get(&device).and_then(Weak::upgrade).unwrap_or_default();
        tables.siblings.insert(device, Arc::downgrade(&siblings));
        siblings.fetch_add(1, Ordering::SeqCst);
        siblings
    }

    /// Offers an export at its address, which is taken now unless others listen there already.
    async fn listen(self: &Arc<Self>, saved: &SavedExport) -> Result<Serving, ErrorDetail> {
        // An array may still become active while the daemon ends; clients would only be cut off again.
        if self.is_open().is_err() {
            return Ok(Serving::Waiting);
        }
        let address = Address::parse(&saved.nbd)?;
        let tls = self.encryption.tls_of(saved.tls)?;
        if saved.tls != ExportTls::Required && !saved.insecure {
            listen::refuse_open(&address).await?;
        }
        let source = match saved.pool {
            Some(pool) => self.serve_volume(pool, saved.array).await?,
            None => self.array_source(saved.array),
        };
        let Some(source) = source else { return Ok(Serving::Waiting) };
        if saved.pool.is_none() {
            self.refuse_under_label(saved.array, source.device).await?;
        }
        let siblings = self.siblings_of(source.device);
        let (info, known) = {
            let tables = self.read();
            let block_bytes = source.block_bytes;
            let info = ExportInfo {
                read_only: saved.read_only || source.read_only,
                block_bytes_min: block_bytes,
                block_bytes_preferred: block_bytes.max(4096),
                description: source.description,
                tls: match saved.tls {
                    ExportTls::Off => braid_nbd::ExportTls::Off,
                    ExportTls::Optional => braid_nbd::ExportTls::Optional,
                    ExportTls::Required => braid_nbd::ExportTls::Required,
                },
                limits: limits_of(saved),
                uuid: Some(*saved.uuid.as_bytes()),
                allocation: source.allocation,
                differences: source.differences,
                shared_throttle: source.throttle,
                siblings,
                ..ExportInfo::new(saved.name.clone(), source.device, source.size_bytes)
            };
            let is_listener = !matches!(address, Address::Ublk { .. });
            if is_listener && !tables.listeners.contains_key(&address) && tables.listeners.len() >= LISTENERS_MAX {
                return Err(ErrorDetail::new(
                    Kind::LimitReached,
                    format!("{LISTENERS_MAX} addresses are listened on already"),
                )
                .remedy("let several exports share an address"));
            }
            (info, tables.listeners.get(&address).map(|listener| Arc::clone(&listener.table)))
        };
        if matches!(address, Address::Ublk { .. }) {
            return self.serve_block(saved, address, info).await;
        }
        let offer = |table: &ExportTable| table.add(info).map_err(|error| not_offered(&error, &saved.name));
        if let Some(table) = known {
            return Ok(Serving::Listening(offer(&table)?));
        }
        if let Address::Fuse(path) = &address {
            let table = Arc::new(ExportTable::new());
            let export = offer(&table)?;
            self.serve_file(saved, path, &export).await?;
            let task = tokio::spawn(std::future::ready(())).abort_handle();
            self.write().listeners.insert(address, Listener { table, task });
            return Ok(Serving::Listening(export));
        }
        let socket = self.socket_at(&address).await?;
        let table = Arc::new(ExportTable::new());
        let export = offer(&table)?;
        // Exports that come to this address later may want TLS, too.
        let tls = tls.or(self.encryption.tls_of(ExportTls::Off)?);
        let door = Door { table: Arc::clone(&table), tls, events: Arc::clone(&self.clients) };
        let task = tokio::spawn(listen::accept(socket, door, self.ring.clone()));
        let listener = Listener { table, task: task.abort_handle() };
        self.write().listeners.insert(address, listener);
        Ok(Serving::Listening(export))
    }

    /// Takes an address: what the daemon before has left there goes on, and so does this one's in the next.
    pub(in crate::daemon::control) async fn socket_at(&self, address: &Address) -> Result<Arc<Socket>, ErrorDetail> {
        let name = address.to_string();
        let left = self.upgrades.take(&name).and_then(|left| listen::resume(address, left));
        let socket = match left {
            Some(socket) => socket,
            None => listen::bind(address).await?,
        };
        let socket = Arc::new(socket);
        self.upgrades.note(name, Arc::downgrade(&socket) as _);
        Ok(socket)
    }

    /// The volume or snapshot that is to be exported; none where the text names an array.
    async fn volume_to_export(&self, text: &str) -> Result<Option<VolumeToExport>, ErrorDetail> {
        let is_array = || self.read().array(text).is_ok();
        if !text.contains('/') && (!names::is_uuid(text) || is_array()) {
            return Ok(None);
        }
        let kind = if text.contains('@') { OwnerKind::Snapshot } else { OwnerKind::Volume };
        let found = match self.find_owner(text, kind).await {
            // A UUID may be that of either.
            Err(error) if error.kind == Kind::NotFound && names::is_uuid(text) => {
                (self.find_owner(text, OwnerKind::Snapshot).await?, OwnerKind::Snapshot)
            }
            found => (found?, kind),
        };
        let ((pool, uuid, name), kind) = found;
        Ok(Some(VolumeToExport { pool, uuid, name, is_snapshot: kind == OwnerKind::Snapshot }))
    }

    /// The array that is to be exported.
    fn array_to_export(&self, tables: &Tables, array: &str) -> Result<(Uuid, String, Option<Uuid>), ErrorDetail> {
        let entry = tables.array(array)?;
        let what = if tables.replicated.contains_key(&entry.uuid) { "volume" } else { "array" };
        // Whoever stops or deletes it has silenced its exports already, or will once this lock is free: a new one
        // would outlive the array, on a device that the next array gets.
        if let Some(doing) = tables.ending(entry.uuid) {
            return Err(ErrorDetail::new(Kind::InUse, format!("{what} {} is being {doing}", entry.name))
                .with(what, &entry.name)
                .remedy("wait until that is done"));
        }
        if let Some((pool, number)) = tables.pool_on(entry.uuid) {
            let message = format!(
                "{what} {} is member {number} of pool {}{}: its clients would write over the pool",
                entry.name,
                pool.name,
                pool.idle_word()
            );
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with(what, &entry.name)
                .with("pool", &pool.name)
                .remedy("export a volume of the pool (braid volume create, then braid export add POOL/VOLUME)"));
        }
        if entry.active().is_none() {
            return Err(ErrorDetail::new(Kind::Inactive, format!("array {} is not active", entry.name))
                .with("array", &entry.name)
                .remedy(advice::remedy(Case::Array(ArrayCase::Ready), Names::of(&entry.name))));
        }
        Ok((entry.uuid, entry.name.clone(), None))
    }

    /// An array as it is to be exported; none while it is not active.
    fn array_source(&self, array: Uuid) -> Option<Source> {
        let tables = self.read();
        let entry = tables.arrays.get(&array)?;
        let active = entry.active()?;
        Some(Source {
            device: active.device,
            size_bytes: active.size_bytes,
            block_bytes: active.request_bytes,
            read_only: active.imported().is_some(),
            description: format!("Braid array {}", entry.name),
            // Where no disk knows anything, and the array neither, nobody need ask.
            allocation: (active.keeping().is_some()
                || active.open_disks().iter().any(|disk| disk.disk.reports_holes()))
            .then(|| Arc::new(self.ring.known_zeros(active.device)) as _),
            differences: None,
            throttle: None,
        })
    }

    /// An export is gone: what it was of is served no more, if it was the last of a volume or snapshot.
    async fn release(self: &Arc<Self>, listening: &Listens<'_>, saved: &SavedExport) {
        if let Some(pool) = saved.pool {
            self.release_volume(listening, pool, saved.array).await;
        }
    }

    /// Ends what clients see of an export. It stays listed, waiting.
    pub(super) fn silence(&self, name: &str) {
        let mut tables = self.write();
        let Some(entry) = tables.exports.get_mut(name) else { return };
        entry.serving = Serving::Waiting;
        let uuid = entry.saved.uuid;
        let Ok(address) = Address::parse(&entry.saved.nbd) else { return };
        if matches!(address, Address::Ublk { .. }) {
            let saved = entry.saved.clone();
            drop(tables);
            return self.put_block_aside(&saved);
        }
        let Some(listener) = tables.listeners.get(&address) else { return };
        listener.table.remove(name);
        if listener.table.list().is_empty()
            && let Some(listener) = tables.listeners.remove(&address)
        {
            listener.task.abort();
        }
        drop(tables);
        if matches!(address, Address::Fuse(_)) {
            self.park_file(uuid);
        }
        self.tell_exports_changed();
    }

    /// Has the shards look for connections whose export is gone.
    pub(super) fn tell_exports_changed(&self) {
        for shard in 0..self.ring.shards() {
            self.ring.post(ShardId(shard), NBD_FRONTEND, Box::new(ExportsChanged));
        }
    }

    /// Silences all exports of an array.
    pub(super) async fn silence_exports(&self, array: Uuid) {
        let _one_at_a_time = self.listening.lock().await;
        let names = self.read().exports_of(array);
        for name in names {
            self.silence(&name);
        }
    }

    /// Forgets all exports of an array, which are silent already.
    pub(super) async fn remove_exports_of(&self, array: Uuid) {
        let listening = self.listening.lock().await;
        self.remove_exports_now(&listening, array);
    }

    /// The same for those who have the lock already.
    pub(super) fn remove_exports_now(&self, _listening: &Listens<'_>, array: Uuid) {
        let names = self.read().exports_of(array);
        for name in names {
            self.silence(&name);
            let removed = self.write().exports.remove(&name);
            if let Some(removed) = &removed {
                self.forget_file(removed.saved.uuid);
                self.abandon_block(&removed.saved);
            }
            let (what, of) = removed.map_or(("array", String::new()), |e| (word_of(&e.saved), e.saved.array_name));
            self.events().info(
                "export_removed",
                format!("export {name} was removed with {what} {of}"),
                &[("export", &name)],
            );
        }
    }
}

/// Refuses what only means something for clients that connect.
fn refuse_of_network(ask: &AddExport) -> Result<(), ErrorDetail> {
    let asked = [
        (ask.tls.is_some_and(|tls| tls != ExportTls::Off), "TLS"),
        (!ask.allow.is_empty(), "networks to be allowed"),
        (ask.connections_max.is_some(), "connections"),
        (ask.insecure, "listening where others reach it"),
    ];
    match asked.iter().find(|(asked, _)| *asked) {
        Some((_, what)) => {
            let message = format!("a block device of this machine knows nothing of {what}");
            Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy("leave that out: who may open it is decided by the mode and owner of its file"))
        }
        None => Ok(()),
    }
}

/// A volume or snapshot that is to be exported.
struct VolumeToExport {
    pool: Uuid,
    uuid: Uuid,
    name: String,
    is_snapshot: bool,
}

/// Refuses what cannot be the name of an export.
fn check_export_name(name: &str) -> Result<(), ErrorDetail> {
    names::check_export_name(name).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{name:?} cannot be a name: {error}")).with("name", name)
    })
}

/// Networks, as they are kept.
fn networks(allow: &[String], is_tcp: bool) -> Result<Vec<String>, ErrorDetail> {
    let refused = |message: String, remedy: &str| ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy);
    if !is_tcp && !allow.is_empty() {
        return Err(refused(
            "clients on a Unix socket have no address to be allowed".to_owned(),
            "leave --allow out: the socket's mode and group decide who may connect",
        ));
    }
    if allow.len() > EXPORT_NETWORKS_MAX {
        return Err(refused(format!("more than {EXPORT_NETWORKS_MAX} networks are named"), "name larger ones"));
    }
    let network = |text: &String| text.parse().map(|network: Network| network.to_string());
    allow
        .iter()
        .map(network)
        .collect::<Result<_, _>>()
        .map_err(|error| refused(error.to_string(), "write ADDRESS/BITS"))
}

/// Most connections, as they are kept.
fn connections(asked: Option<u32>) -> Result<Option<u32>, ErrorDetail> {
    match asked {
        Some(most) if !(1..=EXPORT_CONNECTIONS_MAX as u32).contains(&most) => {
            let message = format!("{most} connections are not from 1 to {EXPORT_CONNECTIONS_MAX}");
            Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("export it a second time, for more clients"))
        }
        asked => Ok(asked),
    }
}

/// What clients of a saved export may take.
fn limits_of(saved: &SavedExport) -> ExportLimits {
    ExportLimits {
        connections_max: saved.connections_max.unwrap_or(EXPORT_CONNECTIONS_MAX as u32),
        // What cannot be read admits nobody: it is refused before it is saved.
        allow: saved.allow.iter().map(|text| text.parse().unwrap_or(Network::NOWHERE)).collect(),
        rates: Rates { iops: saved.iops_max, bandwidth_bytes: saved.bandwidth_bytes_max },
    }
}

/// What an export is of.
fn word_of(saved: &SavedExport) -> &'static str {
    if saved.pool.is_some() || saved.of_nodes { "volume" } else { "array" }
}

/// The name is another export's.
fn taken(name: &str, other: &ExportEntry) -> ErrorDetail {
    let (what, of) = (word_of(&other.saved), &other.saved.array_name);
    let message = format!("there is an export {name} already, of {what} {of}");
    ErrorDetail::new(Kind::Exists, message).with("export", name)
}

fn not_offered(error: &ExportError, export: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, error.to_string()).with("export", export)
}

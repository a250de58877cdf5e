//! Exports: adds, changes, renames and removes them, and starts and stops serving them.

use crate::listen::{self, ListenerContext, Socket};
use crate::provider::{ExportSource, ListeningGuard};
use crate::view::show_export;
use crate::{ExportManager, files};
use braid_advice::{self as advice, ArrayCase, Case, ObjectNames};
use braid_api::address::Address;
use braid_api::limits::{EXPORT_CONNECTIONS_MAX, EXPORT_NETWORKS_MAX, EXPORTS_MAX, LISTENERS_MAX};
use braid_api::{AddExport, ErrorDetail, Export, ExportTls, Kind, RenameExport, SetExport, names};
use braid_engine::{DeviceId, ShardId};
use braid_export::{ExportError, ExportInfo, ExportLimits, ExportTable, Network};
use braid_format::pool::OwnerKind;
use braid_inventory::state::SavedExport;
use braid_inventory::{ExportCondition, ExportEntry, Listener, NBD_FRONTEND, Tables, counted, random_uuid};
use braid_nbd::server::ExportsChanged;
use braid_ring::Rates;
use braid_tasks as tasks;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use uuid::Uuid;

impl ExportManager {
    /// Adds an export of an array, volume or snapshot.
    ///
    /// # Errors
    /// The name or the address is taken, the array is not active, or other hosts could reach it without TLS.
    pub async fn add_export(self: &Arc<Self>, request: AddExport) -> Result<Export, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let address = Address::parse(&request.nbd)?;
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
            refuse_network_options(&request)?;
        }
        let tls = self.encryption.of_export(request.tls, is_tcp)?;
        let no_limit = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
        let (allow, connections_max) = (networks(&request.allow, is_tcp)?, connections(request.connections_max)?);
        let listening = self.listening_lock.lock().await;
        let volume = self.volume_to_export(&request.array).await;
        let prepared = match &volume {
            Ok(Some(_)) => None,
            _ => self.volume_to_prepare(&request.array).await,
        };
        let volume = if prepared.is_some() { None } else { volume? };
        if let Some(volume) = &volume {
            self.inventory.refuse_closing_pool(volume.pool)?;
            if !volume.is_snapshot {
                self.inventory.read().refuse_export_of_held(volume.uuid, &volume.name, request.read_only)?;
            }
            if !volume.is_snapshot && !request.read_only && !request.force {
                self.inventory.refuse_last_member_on(&volume.name)?;
            }
        }
        let (name, uuid, of, pool) = {
            let tables = self.inventory.read();
            let (uuid, of, pool) = match (&volume, &prepared) {
                (Some(volume), _) => (volume.uuid, volume.name.clone(), Some(volume.pool)),
                (None, Some((uuid, name))) => (*uuid, name.clone(), None),
                (None, None) => self.array_to_export(&tables, &request.array)?,
            };
            let name = request.name.unwrap_or_else(|| of.clone());
            check_export_name(&name)?;
            if let Some(other) = tables.exports.get(&name) {
                return Err(
                    name_taken(&name, other).remedy("give this one a name of its own with --name, or remove that one")
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
        let address = self.complete_block_address(address, &name)?;
        let saved = SavedExport {
            name,
            uuid: random_uuid()?,
            array: uuid,
            array_name: of,
            replicated: pool.is_none() && (prepared.is_some() || self.inventory.read().replicated.contains_key(&uuid)),
            pool,
            nbd: address.to_string(),
            // Snapshots and arrays of Linux md are read-only.
            read_only: request.read_only
                || volume.as_ref().is_some_and(|volume| volume.is_snapshot)
                || self.inventory.read().imported.contains_key(&uuid),
            insecure: request.insecure,
            tls,
            allow,
            connections_max,
            iops_max: no_limit(request.iops_max),
            bandwidth_bytes_max: no_limit(request.bandwidth_bytes_max),
        };
        let listened = match self.listen(&saved).await {
            Ok(ExportCondition::Waiting) => {
                self.refuse_unavailable_address(&address).await.map(|()| ExportCondition::Waiting)
            }
            listened => listened,
        };
        let serving = match listened {
            Ok(serving) => serving,
            Err(error) => {
                self.drop_file(saved.uuid);
                self.release(&listening, &saved).await;
                return Err(error);
            }
        };
        let (name, saved) = (saved.name.clone(), saved.clone());
        self.inventory.write().exports.insert(name.clone(), ExportEntry { saved: saved.clone(), serving });
        if let Err(error) = self.inventory.save() {
            self.stop_export(&name);
            self.drop_file(saved.uuid);
            self.abandon_block(&saved);
            self.inventory.write().exports.remove(&name);
            self.release(&listening, &saved).await;
            return Err(error);
        }
        let array = &saved.array_name;
        let what = object_kind(&saved);
        let message = match self.inventory.read().is_standby(&saved) {
            true => format!(
                "export {name} of volume {array} at {address} is prepared on this node, which does not serve the volume"
            ),
            false => format!("{what} {array} is exported as {name} at {address}"),
        };
        self.inventory.events().info("export_added", message, &[("export", &name), (what, array)]);
        self.export(&name)
    }

    /// Renames an export, in this order: the listener offers it under the new name, too; the state file is written with
    /// the new name; the listener withdraws the old name, and its clients are disconnected. If the daemon dies in
    /// between, the next start has the export under one of the two names.
    ///
    /// # Errors
    /// The name is taken or invalid; clients are connected and `force` is not set (they would have to reconnect under
    /// the new name); the state file cannot be written, and then the old name stays.
    pub async fn rename_export(self: &Arc<Self>, export: &str, request: &RenameExport) -> Result<Export, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let new = request.name.as_str();
        check_export_name(new)?;
        let _one_at_a_time = self.listening_lock.lock().await;
        let (old, offer) = {
            let tables = self.inventory.read();
            let entry = tables.export(export)?;
            let old = entry.saved.name.clone();
            if old == new {
                return Ok(show_export(&tables, entry));
            }
            if let Some(other) = tables.exports.get(new) {
                return Err(name_taken(new, other).remedy("choose another name, or rename that one first"));
            }
            if let ExportCondition::Listening(open) = &entry.serving
                && open.connections() > 0
                && !request.force
            {
                let clients = counted(open.connections() as usize, "client", "clients");
                return Err(ErrorDetail::new(Kind::InUse, format!("export {old} is used by {clients}"))
                    .with("export", &old)
                    .remedy("disconnect them first, or add --force (they are disconnected)"));
            }
            let table = match &entry.serving {
                ExportCondition::Listening(open) => tables.listener_of(&entry.saved).map(|table| {
                    // `info` has the limits and the size at the time when the export began to listen.
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
        let serving = offered.as_ref().map(|(_, export)| ExportCondition::Listening(Arc::clone(export)));
        let before = self.inventory.write().rename_export(&old, new, serving);
        if let Err(error) = self.inventory.save() {
            self.inventory.write().rename_export(new, &old, before);
            if let Some((table, _)) = offered {
                table.remove(new);
                self.tell_exports_changed();
            }
            return Err(error);
        }
        if let Some((table, renamed)) = offered {
            table.remove(&old);
            self.tell_exports_changed();
            let saved = self.inventory.read().export(new)?.saved.clone();
            self.serve_renamed_file(&saved, &renamed).await?;
        }
        self.inventory.events().info(
            "export_renamed",
            format!("export {old} is now called {new}"),
            &[("export", new), ("old_name", &old)],
        );
        self.export(new)
    }

    /// Changes the limits of an export: those that `request` sets. Clients stay connected, except those whose address
    /// the new allow list excludes.
    ///
    /// # Errors
    /// A value is invalid; the state file cannot be written, and then nothing changes.
    pub async fn set_export(self: &Arc<Self>, export: &str, request: SetExport) -> Result<Export, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let _one_at_a_time = self.listening_lock.lock().await;
        let (name, before) = {
            let tables = self.inventory.read();
            let saved = &tables.export(export)?.saved;
            (saved.name.clone(), saved.clone())
        };
        let is_tcp = matches!(Address::parse(&before.nbd)?, Address::Tcp { .. });
        let mut after = before.clone();
        if let Some(allow) = &request.allow {
            after.allow = networks(allow, is_tcp)?;
        }
        if request.connections_max.is_some() {
            after.connections_max = connections(request.connections_max)?;
        }
        for (requested, limit) in
            [(request.iops_max, &mut after.iops_max), (request.bandwidth_bytes_max, &mut after.bandwidth_bytes_max)]
        {
            if let Some(requested) = requested {
                *limit = Some(requested).filter(|requested| *requested > 0);
            }
        }
        let limits = limits_of(&after);
        self.inventory.write().set_saved(&name, after);
        if let Err(error) = self.inventory.save() {
            self.inventory.write().set_saved(&name, before);
            return Err(error);
        }
        if let Some(ExportCondition::Listening(open)) =
            self.inventory.read().exports.get(&name).map(|entry| &entry.serving)
        {
            open.set_limits(limits);
        }
        self.tell_exports_changed();
        self.inventory.events().info(
            "export_set",
            format!("the limits of export {name} were set"),
            &[("export", &name)],
        );
        self.export(&name)
    }

    /// Removes an export; its clients are disconnected.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; the export is a file or a block device that is in use.
    pub async fn remove_export(self: &Arc<Self>, name: &str) -> Result<Export, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let listening = self.listening_lock.lock().await;
        let (name, saved, shown) = {
            let tables = self.inventory.read();
            let entry = tables.export(name)?;
            (entry.saved.name.clone(), entry.saved.clone(), show_export(&tables, entry))
        };
        self.disconnect_kernel_client(&saved).await?;
        self.unmount_file(&saved).await?;
        self.drop_file(saved.uuid);
        self.remove_blocks(&listening, |saved| saved.name == name).await?;
        self.stop_export(&name);
        let removed = self.inventory.write().exports.remove(&name);
        if let Some(removed) = removed {
            self.release(&listening, &removed.saved).await;
        }
        self.inventory.save_or_warn();
        self.inventory.events().info("export_removed", format!("export {name} was removed"), &[("export", &name)]);
        Ok(shown)
    }

    /// Serves the exports of an array, volume or snapshot that has just become active; `array`: its UUID. An export
    /// that cannot be served is listed as failed, and [`ExportManager::retry_exports`] tries it again.
    pub async fn restore_exports(self: &Arc<Self>, array: Uuid) {
        let _one_at_a_time = self.listening_lock.lock().await;
        let names = self.inventory.read().exports_of(array);
        for name in names {
            let saved = match self.inventory.read().exports.get(&name) {
                Some(entry) if !matches!(entry.serving, ExportCondition::Listening(_)) => entry.saved.clone(),
                _ => continue,
            };
            let serving = match self.listen(&saved).await {
                Ok(serving) => serving,
                Err(error) => {
                    let message = format!("export {name} does not listen: {}", error.message);
                    self.inventory.events().error("export_failed", message, &[("export", &name)]);
                    ExportCondition::Failed(error)
                }
            };
            if let Some(entry) = self.inventory.write().exports.get_mut(&name) {
                entry.serving = serving;
            }
        }
    }

    /// Tries the failed exports again: the address may be free now. Called periodically.
    pub async fn retry_exports(self: &Arc<Self>) {
        let failed: Vec<String> = {
            let tables = self.inventory.read();
            let failed = tables.exports.values().filter(|entry| matches!(entry.serving, ExportCondition::Failed(_)));
            failed.map(|entry| entry.saved.name.clone()).collect()
        };
        for name in failed {
            let _one_at_a_time = self.listening_lock.lock().await;
            // Meanwhile the export may have been removed or renamed, or its array stopped.
            let saved = match self.inventory.read().exports.get(&name) {
                Some(entry) if matches!(entry.serving, ExportCondition::Failed(_)) => entry.saved.clone(),
                _ => continue,
            };
            if let Ok(serving) = self.listen(&saved).await {
                if let Some(entry) = self.inventory.write().exports.get_mut(&name) {
                    entry.serving = serving;
                }
                let message = format!("export {name} listens now");
                self.inventory.events().info("export_restored", message, &[("export", &name)]);
            }
        }
    }

    /// Increments the counter that all exports of a device share, and returns it: see
    /// [`ExportInfo::device_export_count`].
    fn siblings_of(&self, device: DeviceId) -> Arc<AtomicU64> {
        let mut tables = self.inventory.write();
        tables.siblings.retain(|_, siblings| siblings.strong_count() > 0);
        let siblings = tables.siblings.get(&device).and_then(Weak::upgrade).unwrap_or_default();
        tables.siblings.insert(device, Arc::downgrade(&siblings));
        siblings.fetch_add(1, Ordering::SeqCst);
        siblings
    }

    /// Offers an export at its address, and binds the address unless other exports listen there already. Returns
    /// [`ExportCondition::Waiting`] while the exported object does not serve.
    async fn listen(self: &Arc<Self>, saved: &SavedExport) -> Result<ExportCondition, ErrorDetail> {
        // An array may still become active while the daemon stops: clients that connect now would only be disconnected.
        if self.inventory.refuse_while_stopping_or_upgrading().is_err() {
            return Ok(ExportCondition::Waiting);
        }
        let address = Address::parse(&saved.nbd)?;
        let tls = self.encryption.tls_of(saved.tls)?;
        if saved.tls != ExportTls::Required && !saved.insecure {
            listen::refuse_public_address(&address).await?;
        }
        let source = match saved.pool {
            Some(pool) => self.provider().serve_volume(pool, saved.array).await?,
            None => self.array_source(saved.array),
        };
        let Some(source) = source else { return Ok(ExportCondition::Waiting) };
        if saved.pool.is_none() {
            self.provider().refuse_export_under_label(saved.array, source.device).await?;
        }
        let siblings = self.siblings_of(source.device);
        let (info, known) = {
            let tables = self.inventory.read();
            let block_bytes = source.block_bytes;
            let info = ExportInfo {
                read_only: saved.read_only || source.read_only,
                block_bytes_min: block_bytes,
                block_bytes_preferred: block_bytes.max(4096),
                description: source.description,
                tls: match saved.tls {
                    ExportTls::Off => braid_export::ExportTls::Off,
                    ExportTls::Optional => braid_export::ExportTls::Optional,
                    ExportTls::Required => braid_export::ExportTls::Required,
                },
                limits: limits_of(saved),
                uuid: Some(*saved.uuid.as_bytes()),
                allocation: source.allocation,
                differences: source.differences,
                shared_throttle: source.throttle,
                device_export_count: siblings,
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
            return Ok(ExportCondition::Listening(offer(&table)?));
        }
        if let Address::Fuse(path) = &address {
            let table = Arc::new(ExportTable::new());
            let export = offer(&table)?;
            self.serve_file(saved, path, &export).await?;
            let task = tasks::spawn(std::future::ready(())).abort_handle();
            self.inventory.write().listeners.insert(address, Listener { table, task });
            return Ok(ExportCondition::Listening(export));
        }
        let socket = self.socket_at(&address).await?;
        let table = Arc::new(ExportTable::new());
        let export = offer(&table)?;
        // An export that is added at this address later may use TLS: the listener gets the certificate in any case.
        let tls = tls.or(self.encryption.tls_of(ExportTls::Off)?);
        let context = ListenerContext { table: Arc::clone(&table), tls, events: Arc::clone(&self.clients) };
        let task = tasks::spawn(listen::accept(socket, context, self.ring.clone()));
        let listener = Listener { table, task: task.abort_handle() };
        self.inventory.write().listeners.insert(address, listener);
        Ok(ExportCondition::Listening(export))
    }

    /// Binds an address, or resumes the socket that the previous daemon handed over, and registers the socket for the
    /// handover to the next one.
    ///
    /// # Errors
    /// The address is in use, or is no address of this machine.
    pub async fn socket_at(&self, address: &Address) -> Result<Arc<Socket>, ErrorDetail> {
        let name = address.to_string();
        let inherited = self.sockets.claim(&name).and_then(|fd| listen::resume(address, fd));
        let socket = match inherited {
            Some(socket) => socket,
            None => listen::bind(address).await?,
        };
        let socket = Arc::new(socket);
        self.sockets.register(name, Arc::downgrade(&socket) as _);
        Ok(socket)
    }

    /// Returns the volume or snapshot that is to be exported; none if the text names an array.
    async fn volume_to_export(&self, text: &str) -> Result<Option<VolumeToExport>, ErrorDetail> {
        let is_array = || self.inventory.read().array(text).is_ok();
        if !text.contains('/') && (!names::is_uuid(text) || is_array()) {
            return Ok(None);
        }
        let kind = if text.contains('@') { OwnerKind::Snapshot } else { OwnerKind::Volume };
        let found = match self.provider().find_owner(text, kind).await {
            // A UUID may be that of a volume or of a snapshot.
            Err(error) if error.kind == Kind::NotFound && names::is_uuid(text) => {
                (self.provider().find_owner(text, OwnerKind::Snapshot).await?, OwnerKind::Snapshot)
            }
            found => (found?, kind),
        };
        let ((pool, uuid, name), kind) = found;
        Ok(Some(VolumeToExport { pool, uuid, name, is_snapshot: kind == OwnerKind::Snapshot }))
    }

    /// Returns the array that is to be exported.
    fn array_to_export(&self, tables: &Tables, array: &str) -> Result<(Uuid, String, Option<Uuid>), ErrorDetail> {
        let entry = tables.array(array)?;
        let what = if tables.replicated.contains_key(&entry.uuid) { "volume" } else { "array" };
        // The command that stops or deletes the array has stopped its exports already, or waits for `listening_lock` to
        // do so. An export that is added now could outlive the array, and serve the next array that gets its device
        // number.
        if let Some(doing) = tables.ending(entry.uuid) {
            return Err(ErrorDetail::new(Kind::InUse, format!("{what} {} is being {doing}", entry.name))
                .with(what, &entry.name)
                .remedy("wait until that is done"));
        }
        if let Some((pool, number)) = tables.pool_on(entry.uuid) {
            let message = format!(
                "{what} {} is member {number} of pool {}{}: its clients would overwrite the pool",
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
                .remedy(advice::remedy(Case::Array(ArrayCase::Ready), ObjectNames::of(&entry.name))));
        }
        Ok((entry.uuid, entry.name.clone(), None))
    }

    /// Returns the data source of an array's export; none while the array is not active.
    fn array_source(&self, array: Uuid) -> Option<ExportSource> {
        let tables = self.inventory.read();
        let entry = tables.arrays.get(&array)?;
        let active = entry.active()?;
        Some(ExportSource {
            device: active.device,
            size_bytes: active.size_bytes,
            block_bytes: active.request_bytes,
            read_only: active.imported().is_some(),
            description: format!("Braid array {}", entry.name),
            // A map of known zeros helps only if the array, or one of its disks, knows of unallocated ranges.
            allocation: (active.reconciler().is_some()
                || active.open_disks().iter().any(|disk| disk.disk.reports_holes()))
            .then(|| Arc::new(self.ring.known_zeros(active.device)) as _),
            differences: None,
            throttle: None,
        })
    }

    /// Stops serving the volume or snapshot of a removed export, if this was its last export.
    async fn release(self: &Arc<Self>, listening: &ListeningGuard<'_>, saved: &SavedExport) {
        if let Some(pool) = saved.pool {
            self.provider().release_volume(listening, pool, saved.array).await;
        }
    }

    /// Stops serving an export. It stays listed, as waiting: the users of its file or block device wait, other clients
    /// are disconnected. Does nothing if there is no such export.
    pub fn stop_export(&self, name: &str) {
        let mut tables = self.inventory.write();
        let Some(entry) = tables.exports.get_mut(name) else { return };
        entry.serving = ExportCondition::Waiting;
        let uuid = entry.saved.uuid;
        let Ok(address) = Address::parse(&entry.saved.nbd) else { return };
        if matches!(address, Address::Ublk { .. }) {
            let saved = entry.saved.clone();
            drop(tables);
            return self.quiesce_block(&saved);
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
            self.detach_file(uuid);
        }
        self.tell_exports_changed();
    }

    /// Stops serving an export, as [`ExportManager::stop_export`], and lists it as failed with this error. It is tried
    /// again later.
    pub fn fail_export(&self, name: &str, error: ErrorDetail) {
        self.stop_export(name);
        let message = format!("export {name} does not serve: {}", error.message);
        self.inventory.events().error("export_failed", message, &[("export", name)]);
        if let Some(entry) = self.inventory.write().exports.get_mut(name) {
            entry.serving = ExportCondition::Failed(error);
        }
    }

    /// Notifies all shards that exports, limits or admission have changed. Each shard then ends the connections whose
    /// export was removed or that are no longer allowed.
    pub fn tell_exports_changed(&self) {
        for shard in 0..self.ring.shards() {
            self.ring.post(ShardId(shard), NBD_FRONTEND, Box::new(ExportsChanged));
        }
    }

    /// Stops serving all exports of an array, volume or snapshot; `array`: its UUID. They stay listed, as waiting.
    pub async fn stop_exports_of(&self, array: Uuid) {
        let _one_at_a_time = self.listening_lock.lock().await;
        let names = self.inventory.read().exports_of(array);
        for name in names {
            self.stop_export(&name);
        }
    }

    /// Removes all exports of an array, volume or snapshot that is gone; `array`: its UUID. Users of their files and
    /// block devices get errors from now on. The caller saves the state file.
    pub async fn remove_exports_of(&self, array: Uuid) {
        let listening = self.listening_lock.lock().await;
        self.remove_exports_now(&listening, array);
    }

    /// Does the same as [`ExportManager::remove_exports_of`] for callers that hold the lock already.
    pub fn remove_exports_now(&self, _listening: &ListeningGuard<'_>, array: Uuid) {
        let names = self.inventory.read().exports_of(array);
        for name in names {
            self.stop_export(&name);
            let removed = self.inventory.write().exports.remove(&name);
            if let Some(removed) = &removed {
                self.drop_file(removed.saved.uuid);
                self.abandon_block(&removed.saved);
            }
            let (what, of) = removed.map_or(("array", String::new()), |e| (object_kind(&e.saved), e.saved.array_name));
            self.inventory.events().info(
                "export_removed",
                format!("export {name} was removed with {what} {of}"),
                &[("export", &name)],
            );
        }
    }
}

/// Refuses options that only apply to network clients.
fn refuse_network_options(request: &AddExport) -> Result<(), ErrorDetail> {
    let requested = [
        (request.tls.is_some_and(|tls| tls != ExportTls::Off), "TLS"),
        (!request.allow.is_empty(), "networks to be allowed"),
        (request.connections_max.is_some(), "connections"),
        (request.insecure, "listening where others reach it"),
    ];
    match requested.iter().find(|(requested, _)| *requested) {
        Some((_, what)) => {
            let message = format!("a block device of this machine does not support {what}");
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

/// Refuses an invalid export name.
fn check_export_name(name: &str) -> Result<(), ErrorDetail> {
    names::check_export_name(name).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{name:?} cannot be a name: {error}")).with("name", name)
    })
}

/// Validates networks, and returns them in the form in which they are saved.
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

/// Validates the maximum of connections.
fn connections(requested: Option<u32>) -> Result<Option<u32>, ErrorDetail> {
    match requested {
        Some(most) if !(1..=EXPORT_CONNECTIONS_MAX as u32).contains(&most) => {
            let message = format!("{most} connections are not from 1 to {EXPORT_CONNECTIONS_MAX}");
            Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("export it a second time, for more clients"))
        }
        requested => Ok(requested),
    }
}

/// Returns the limits of a saved export.
fn limits_of(saved: &SavedExport) -> ExportLimits {
    ExportLimits {
        connections_max: saved.connections_max.unwrap_or(EXPORT_CONNECTIONS_MAX as u32),
        // `networks` has validated the saved text. Should it not parse nevertheless, it must not admit every client, as
        // an empty list does.
        allow: saved.allow.iter().map(|text| text.parse().unwrap_or(Network::NOWHERE)).collect(),
        rates: Rates { iops: saved.iops_max, bandwidth_bytes: saved.bandwidth_bytes_max },
    }
}

/// Returns the kind of object that an export is of.
fn object_kind(saved: &SavedExport) -> &'static str {
    if saved.pool.is_some() || saved.replicated { "volume" } else { "array" }
}

/// Returns the error for a name that belongs to another export.
fn name_taken(name: &str, other: &ExportEntry) -> ErrorDetail {
    let (what, of) = (object_kind(&other.saved), &other.saved.array_name);
    let message = format!("there is an export {name} already, of {what} {of}");
    ErrorDetail::new(Kind::Exists, message).with("export", name)
}

/// Returns the error for an export that its listener refuses.
fn not_offered(error: &ExportError, export: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, error.to_string()).with("export", export)
}

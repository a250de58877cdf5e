//! `pool check`: reads the tables on the members while the pool serves, and checks the pool's tables in memory for
//! consistency.
//!
//! Two kinds of faults are told apart: what is damaged on a disk *now*, and what the pool could not validate when it
//! was opened (*unknown*). Damaged records that the pool knows can be rewritten. Damaged records that are unknown can
//! be given up. Unknown records that can be read now were only misread: the pool reads them again when it is opened the
//! next time, and they cannot be given up before that.

use crate::PoolManager;
use crate::errors::of_admin;
use crate::names::name_in_pool;
use braid_api::{CheckPool, ErrorDetail, Kind, PoolChecked, PoolDamage};
use braid_engine::pool::{AdminError, Audit, BLOCK_BYTES, Damaged, EXTENT_BYTES, Pool, PoolTables, RecordId, Walk};
use braid_engine::{DeviceId, DeviceIo, PoolNext};
use braid_host::pool_tables::{ANY_BLOCK, DamagedEntry, MemberReader, is_damaged, read_tables};
use braid_inventory::{MemberBacking, MemberPart, PoolHandle};
use braid_ring::RingDevices;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Records in one step at the pool's home.
const STEP_RECORDS: u32 = 2_000;

/// Maximum number of damaged records that are reported.
const DAMAGE_MAX: usize = 1000;

/// Records that are being written may look damaged: maximum number of checks, and the pause between two.
const LOOKS: u32 = 5;

const PAUSE: Duration = Duration::from_millis(100);

/// Maximum duration of a checkpoint.
const CHECKPOINT_MAX: Duration = Duration::from_secs(60);

/// A member's device.
struct Device(RingDevices, DeviceId);

impl MemberReader for Device {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        self.0.read(self.1, offset, len).await.map_err(|error| error.to_string())
    }
}

/// What the pool could not validate when it was opened, and the names of the volumes and snapshots that may have had
/// data there.
struct Unknown {
    /// In ascending order of their identifiers.
    damaged: Vec<Damaged>,
    hints: Vec<(Option<String>, Option<String>)>,
    in_doubt: Vec<String>,
    /// No volume has blocks from this number on.
    blocks: u64,
}

impl Unknown {
    /// Returns the index in `damaged` of what is bad on a member; [`None`] if the pool knows it.
    fn find(&self, member: u8, what: DamagedEntry) -> Option<usize> {
        let (DamagedEntry::Record(index) | DamagedEntry::Addresses(index)) = what else { return None };
        self.damaged.binary_search_by_key(&RecordId { member, index }, |damaged| damaged.id).ok()
    }
}

impl PoolManager {
    /// Reads all tables of a pool that serves, and checks the tables in memory.
    ///
    /// # Errors
    /// The pool does not serve, or is being changed; a member cannot be read. With `give_up`: a volume or snapshot in
    /// doubt is exported, or an unknown record can be read now.
    pub async fn check_pool(self: &Arc<Self>, name: &str, ask: CheckPool) -> Result<PoolChecked, ErrorDetail> {
        // No other command removes a member meanwhile.
        let claim = self.claim_pool(name, "checked").await?;
        let pool = self.serving_pool(&claim.uuid.to_string())?;
        if ask.give_up {
            self.refuse_misread(&pool).await?;
        }
        let members_given_up = if ask.give_up { self.accept_member_loss(&pool).await? } else { Vec::new() };
        let unknown = self.unknown(&pool).await?;
        let given_up = if ask.give_up { self.give_up_damage(&pool, &unknown).await? } else { 0 };
        let mut unknown = if given_up > 0 { self.unknown(&pool).await? } else { unknown };
        if !members_given_up.is_empty() {
            // The two copies of the checkpoint block list the members that the pool runs without: two checkpoints
            // rewrite both.
            self.checkpoints(&pool).await?;
        }
        let lost = self.abandoned_members(&pool);
        if lost != 0 {
            unknown.in_doubt.extend(self.in_doubt_without(&pool, lost).await?);
            unknown.in_doubt.sort_unstable();
            unknown.in_doubt.dedup();
        }
        let absent = self.missing_pool_members(&pool);
        let mut in_doubt_missing = if absent == 0 { Vec::new() } else { self.in_doubt_without(&pool, absent).await? };
        in_doubt_missing.sort_unstable();
        let parts = self.parts_of(&pool);
        let mut found = self.examine_disks(&parts).await?;
        let mut repaired = 0;
        let of_known = |(number, what): &&(u8, DamagedEntry)| unknown.find(*number, *what).is_none();
        let known: Vec<(u8, DamagedEntry)> = found.iter().filter(of_known).copied().collect();
        if ask.repair && !known.is_empty() {
            self.write_again(&pool, &known).await?;
            let before = found.len();
            found = self.still_bad(&parts, found).await?;
            repaired = (before - found.len()) as u64;
        }
        let misread = self.misread(&parts, &unknown, &found).await?;
        let damage = damage_of(&found, &unknown, &misread);
        let (audit, owners) = self.audit(&pool).await?;
        Ok(PoolChecked {
            pool: pool.name.clone(),
            free_records: audit.extents[0],
            whole_records: audit.extents[1],
            packed_records: audit.extents[2],
            zero_records: audit.zeros,
            owners,
            damaged: found.len() as u64,
            damage,
            unknown: unknown.damaged.len() as u64,
            misread: misread.len() as u64,
            in_doubt: unknown.in_doubt,
            members_missing: numbers(absent),
            in_doubt_missing,
            problems_found: audit.problems_found,
            problems: audit.problems,
            repaired,
            given_up,
            members_lost: numbers(lost),
            members_given_up,
        })
    }

    async fn unknown(&self, pool: &PoolHandle) -> Result<Unknown, ErrorDetail> {
        self.call(pool, |pool| (PoolNext::Done, unknown(pool))).await
    }

    /// Returns a bit mask of the members that are missing and may return: their tables are not read.
    fn missing_pool_members(&self, pool: &PoolHandle) -> u128 {
        let tables = self.inventory.read();
        let label = tables.pools.get(&pool.uuid).and_then(|entry| entry.label.as_ref());
        label.map_or(0, |label| label.missing() & !label.abandoned())
    }

    /// Refuses to give up anything while some unknown record can be read now: it would be overwritten, and the next
    /// start would have it again.
    async fn refuse_misread(&self, pool: &PoolHandle) -> Result<(), ErrorDetail> {
        let unknown = self.unknown(pool).await?;
        if unknown.damaged.is_empty() {
            return Ok(());
        }
        let parts = self.parts_of(pool);
        let found = self.examine_disks(&parts).await?;
        match self.misread(&parts, &unknown, &found).await?.len() {
            0 => Ok(()),
            misread => Err(PoolChecked::refuse_give_up(&pool.name, misread as u64)),
        }
    }

    /// Returns the indices in [`Unknown::damaged`] of the records that are valid on the members now: the pool misread
    /// them when it was opened. `found`: all entries that are damaged on the members now.
    async fn misread(
        &self,
        parts: &[MemberPart],
        unknown: &Unknown,
        found: &[(u8, DamagedEntry)],
    ) -> Result<Vec<usize>, ErrorDetail> {
        let bad: BTreeSet<usize> = found.iter().filter_map(|(number, what)| unknown.find(*number, *what)).collect();
        let mut misread = Vec::new();
        for (at, damaged) in unknown.damaged.iter().enumerate() {
            if bad.contains(&at) {
                continue;
            }
            let Some(part) = parts.iter().find(|part| part.label.member == damaged.id.member) else { continue };
            // The checksums of addresses are short, and may match by chance. So an entry counts as readable only if
            // each of its addresses is one that a volume can have; a start rejects others, too.
            if damaged.bytes.is_none() {
                let device = Device(self.ring.devices(), part.device);
                let what = DamagedEntry::Addresses(damaged.id.index);
                let still = is_damaged(&device, &part.label, what, unknown.blocks).await;
                if still.map_err(|error| unreadable(part, error))? {
                    continue;
                }
            }
            misread.push(at);
        }
        Ok(misread)
    }

    /// Gives up the unknown records, durably: their space becomes free, and their data is lost. Returns their number.
    async fn give_up_damage(&self, pool: &PoolHandle, unknown: &Unknown) -> Result<u64, ErrorDetail> {
        if unknown.damaged.is_empty() {
            return Ok(0);
        }
        let _one_at_a_time = pool.work.lock().await;
        let accepted = self.call(pool, |pool| match pool.accept_damage() {
            Err(AdminError::LogFull) => (PoolNext::AfterCommit, Ok(())),
            result => (PoolNext::Commit, result),
        });
        accepted.await?.map_err(|error| match error {
            AdminError::InUse => ErrorDetail::new(
                Kind::InUse,
                format!(
                    "volumes or snapshots of pool {} are exported that may have had something in what is damaged",
                    pool.name
                ),
            )
            .with("pool", &pool.name)
            .remedy(format!("remove the exports of {} first (braid export list)", unknown.in_doubt.join(", "))),
            error => of_admin(error, pool, &pool.name),
        })?;
        let lost = unknown.damaged.len();
        if let Some(served) = self.inventory.read().pools.get(&pool.uuid).and_then(|entry| entry.served()) {
            served.damaged.store(0, Ordering::Relaxed);
        }
        let message = format!(
            "{} of the tables of pool {} without valid contents was given up: it may have been of {}",
            braid_inventory::counted(lost, "record", "records"),
            pool.name,
            unknown.in_doubt.join(", ")
        );
        self.inventory.events().warning("pool_damage_given_up", message, &[("pool", &pool.name)]);
        // The tables are written when the checkpoints have completed.
        self.checkpoints(pool).await?;
        Ok(lost as u64)
    }

    /// Returns the entries that are damaged on the members. An entry counts only if repeated checks ([`LOOKS`]) find it
    /// damaged each time.
    async fn examine_disks(&self, parts: &[MemberPart]) -> Result<Vec<(u8, DamagedEntry)>, ErrorDetail> {
        let mut found = Vec::new();
        for part in parts {
            let device = Device(self.ring.devices(), part.device);
            let tables = read_tables(&device, &part.label, |_, _| {}).await.map_err(|error| unreadable(part, error))?;
            found.extend(tables.damaged.into_iter().map(|what| (part.label.member, what)));
        }
        for _ in 0..LOOKS {
            if found.is_empty() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            found = self.still_bad(parts, found).await?;
        }
        Ok(found)
    }

    async fn still_bad(
        &self,
        parts: &[MemberPart],
        found: Vec<(u8, DamagedEntry)>,
    ) -> Result<Vec<(u8, DamagedEntry)>, ErrorDetail> {
        let mut still = Vec::new();
        for (number, what) in found {
            let Some(part) = parts.iter().find(|part| part.label.member == number) else { continue };
            let device = Device(self.ring.devices(), part.device);
            if is_damaged(&device, &part.label, what, ANY_BLOCK).await.map_err(|error| unreadable(part, error))? {
                still.push((number, what));
            }
        }
        Ok(still)
    }

    /// Rewrites the records that the pool knows into its tables.
    async fn write_again(&self, pool: &PoolHandle, known: &[(u8, DamagedEntry)]) -> Result<(), ErrorDetail> {
        let record = |(member, what): &(u8, DamagedEntry)| match what {
            DamagedEntry::Record(index) | DamagedEntry::Addresses(index) => {
                Some(RecordId { member: *member, index: *index })
            }
            DamagedEntry::Owner(_) | DamagedEntry::Checkpoint(_) => None,
        };
        let owners = known.iter().filter(|(_, what)| matches!(what, DamagedEntry::Owner(_))).map(|(member, _)| *member);
        let owners: BTreeSet<u8> = owners.collect();
        let (records, owners): (Vec<_>, Vec<_>) =
            (known.iter().filter_map(record).collect(), owners.into_iter().collect());
        self.call(pool, move |pool| (PoolNext::Done, pool.rewrite_records(&records, &owners))).await?;
        self.checkpoints(pool).await
    }

    /// Waits for two checkpoints, so that both copies of the checkpoint block are written.
    ///
    /// # Errors
    /// A member's device fails, or a checkpoint takes longer than [`CHECKPOINT_MAX`]. [`Kind::NoSpace`]: a member's
    /// file system is full, and the tables are written when it has space.
    async fn checkpoints(&self, pool: &PoolHandle) -> Result<(), ErrorDetail> {
        for _ in 0..2 {
            let number = self.call(pool, |pool| (PoolNext::Done, pool.request_checkpoint())).await?;
            let written = self.wait_for_checkpoint(pool, number, CHECKPOINT_MAX).await;
            written.map_err(|error| match error.kind {
                Kind::NoSpace => without_space(&pool.name),
                Kind::DiskError => error.remedy("look at its disks and at the kernel's log (dmesg), then check again"),
                _ => error,
            })?;
        }
        Ok(())
    }

    /// Checks the tables in memory, in slices.
    async fn audit(&self, pool: &PoolHandle) -> Result<(Audit, u64), ErrorDetail> {
        let mut audit = Audit::new();
        loop {
            let mut taken = Some(audit);
            let step = move |pool: &mut Pool| {
                let stepped = taken.take().map(|mut audit| {
                    let ended = audit.step(pool, STEP_RECORDS);
                    (audit, ended)
                });
                (PoolNext::Done, stepped)
            };
            let (next, ended) = self.call(pool, step).await?.expect("a call that does not ask for more is made once");
            audit = next;
            if ended {
                break;
            }
        }
        let owners = |pool: &mut Pool| {
            let ends =
                pool.state().owners.iter().map(|owner| owner.size_bytes.div_ceil(EXTENT_BYTES)).collect::<Vec<_>>();
            (PoolNext::Done, ends)
        };
        let ends = self.call(pool, owners).await?;
        let end = ends.iter().copied().max().unwrap_or(0);
        let (mut start, mut len, mut tries) = (0, end, 0);
        while start < end {
            let walk = Walk::new(start..(start + len).min(end), Vec::new());
            let Some(mut walk) = self.walk(pool, walk, len > 1, &mut 0).await? else {
                len = (len / 2).max(1);
                continue;
            };
            let twice = tokio::task::block_in_place(|| walk.defined_twice());
            // A block that moved during the walk was seen in both of its locations.
            tries += 1;
            if twice > 0 && tries < LOOKS {
                continue;
            }
            if twice > 0 {
                let (first, last) = (start * 64, (start + len).min(end) * 64 - 1);
                audit.found(format!("owners have {twice} of their blocks {first} to {last} in two places"));
            }
            (start, tries) = (start + len, 0);
        }
        Ok((audit, ends.len() as u64))
    }
}

/// Returns the report lines for `found`, and for unknown records that can be read now.
fn damage_of(found: &[(u8, DamagedEntry)], unknown: &Unknown, misread: &[usize]) -> Vec<PoolDamage> {
    let bad = found.iter().map(|(number, what)| (*number, *what, unknown.find(*number, *what), false));
    let well = misread.iter().map(|at| {
        let Damaged { id, bytes, .. } = &unknown.damaged[*at];
        let what = if bytes.is_some() { DamagedEntry::Record(id.index) } else { DamagedEntry::Addresses(id.index) };
        (id.member, what, Some(*at), true)
    });
    let told = bad.chain(well).take(DAMAGE_MAX).map(|(member, what, at, reads)| {
        let (word, index) = what.api_name();
        let (name, hint) = at.map(|at| unknown.hints[at].clone()).unwrap_or_default();
        PoolDamage { member, what: word.to_owned(), index, known: at.is_none(), reads, name, hint }
    });
    told.collect()
}

/// Returns the members in a bit mask.
fn numbers(members: u128) -> Vec<u8> {
    (0..128).filter(|number| members >> number & 1 == 1).collect()
}

fn unknown(pool: &Pool) -> Unknown {
    let damaged = pool.damaged();
    let state = pool.state();
    let name = |id| state.owners.get(id).filter(|owner| !owner.name.is_empty()).map(|owner| name_in_pool(state, owner));
    let hints = damaged.iter().map(|damaged| {
        let hint = damaged.bytes.map(|bytes| hint(state, &bytes));
        (damaged.owner.and_then(name), hint)
    });
    let hints = hints.collect();
    let in_doubt = pool.owners_in_doubt().filter_map(name).collect();
    let most = state.owners.iter().map(|owner| owner.size_bytes).max().unwrap_or(0);
    Unknown { damaged, hints, in_doubt, blocks: most.div_ceil(BLOCK_BYTES) }
}

/// Describes the bytes of a damaged record.
fn hint(state: &PoolTables, bytes: &[u8; 32]) -> String {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (kind, owner, logical) = (bytes[0], word(4), u64::from(word(8)));
    let whose = state.owners.get(owner).filter(|owner| !owner.name.is_empty());
    let whose = whose.map_or(format!("owner {owner}"), |owner| name_in_pool(state, owner));
    match kind {
        0 => "a free one".to_owned(),
        1 => format!("blocks {} to {} of {whose}", logical * 64, logical * 64 + 63),
        2 => format!("scattered blocks of {whose}"),
        3 => format!("zeros of {whose}, from block {} on", logical * 64),
        _ => "nothing that makes sense".to_owned(),
    }
}

/// Returns the error for a check that finds no space below for its writes.
fn without_space(pool: &str) -> ErrorDetail {
    let message = format!(
        "there is no space below pool {pool} for its tables, and what is to be written there waits for some; no disk has failed by that"
    );
    ErrorDetail::new(Kind::NoSpace, message)
        .with("pool", pool)
        .remedy(format!("make room on the file system that `braid pool show {pool}` names (df -h), then check again"))
}

fn unreadable(part: &MemberPart, error: String) -> ErrorDetail {
    let what = match &part.backing {
        MemberBacking::Disk(disk) => disk.name.clone(),
        MemberBacking::Array(uuid) => format!("array {uuid}"),
    };
    ErrorDetail::new(Kind::DiskError, format!("the tables on {what} cannot be read: {error}"))
        .with("member", what)
        .remedy("look at the disk and at the kernel's log (dmesg)")
}

/// Describes the number of damaged records.
pub(crate) fn describe_damage(pool: &str, damaged: u32) -> String {
    let records = braid_inventory::counted(damaged as usize, "record", "records");
    format!(
        "{records} of the tables of pool {pool} are not valid: volumes and snapshots that may have had something there are read-only, and what of them is not on record elsewhere cannot be read"
    )
}

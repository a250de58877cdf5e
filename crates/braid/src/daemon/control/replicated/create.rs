//! Making volumes that are kept on several nodes, attaching them to this node, letting go of them, and deleting them.

use super::super::create::check_name;
use super::super::pools::check_block;
use super::super::replicas::seating_of;
use super::super::{Control, random_uuid};
use super::half_made::Unmade;
use super::saved::{SavedReplicated, SavedVoter};
use super::serve::Attached;
use super::view::not_served_here;
use braid_advice::{self as advice, Case, Names, VolumeCase};
use braid_api::limits::{REPLICAS_MAX, VOLUME_BLOCK_BYTES, VOLUME_SECTOR_BYTES};
use braid_api::{
    CreateReplica, CreateReplicated, ErrorDetail, Kind, PoolState, Replica, ReplicaList, ReplicaSeating,
    ReplicatedVolume, Volume,
};
use braid_engine::replica::VoterId;
use braid_format::{BLOCK_BYTES, DiskLayout};
use braid_geometry::{CHUNK_BYTES_DEFAULT, Level};
use hyper::Method;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Longest that whoever attaches a volume waits for it to be served.
const SERVING_MAX: Duration = Duration::from_secs(20);
/// Longest that a node may take to make a replica, or to remove one.
const MAKING_MAX: Duration = Duration::from_secs(20);

impl Control {
    /// Makes a volume that is kept on several nodes, and serves it.
    ///
    /// Order: what is to be made is noted on this node; then the replicas are; then the array above them; then it is noted that all
    /// of it is there. What is interrupted is removed at the next start.
    ///
    /// # Errors
    /// The reason, with nothing left behind, or what is left named.
    pub async fn create_replicated(self: &Arc<Self>, ask: CreateReplicated) -> Result<ReplicatedVolume, ErrorDetail> {
        self.is_open()?;
        if let Some(snapshot) = &ask.snapshot {
            return self.clone_replicated(snapshot, &ask).await;
        }
        check_name(&ask.name)?;
        let _name = self.claim_name(&ask.name)?;
        self.name_of_no_replicated(&ask.name)?;
        let level = level_of(&ask)?;
        let block_bytes = block_of(&ask, level)?;
        let voters = self.voters_for(&ask).await?;
        let least = least_of(&ask, level, voters.iter().filter(|voter| voter.pool.is_some()).count())?;
        let size_bytes = whole_size(&ask, least)?;
        let (voters, mut seating) = SavedReplicated::numbered(voters);
        seating.further = least as u8 - 1;
        let volume = SavedReplicated {
            uuid: random_uuid()?,
            name: ask.name.clone(),
            size_bytes,
            block_bytes,
            voters,
            seating,
            attached: true,
            controller: random_uuid()?,
            epoch: 0,
            making: true,
            from: None,
            left: Vec::new(),
        };
        self.make_replicated(volume).await
    }

    /// Makes all of a volume. The caller has its name claimed.
    pub(super) async fn make_replicated(
        self: &Arc<Self>,
        volume: SavedReplicated,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let (uuid, name) = (volume.uuid, volume.name.clone());
        self.write().replicated.insert(uuid, volume.clone());
        if let Err(error) = self.save() {
            self.write().replicated.remove(&uuid);
            return Err(error);
        }
        let made = match self.make_replicas(&volume).await {
            Ok(()) => self.serve_new(uuid).await.and_then(|()| self.note_made(uuid)),
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            self.end_replicated(uuid).await;
            return Err(match self.unmake(&volume).await {
                Unmade::Removed => error,
                Unmade::Taken => ErrorDetail {
                    message: format!("{}; and another node has opened the volume since", error.message),
                    remedy: format!("braid volume attach {}, or delete it where it is served", name),
                    ..error
                },
                Unmade::Left(left) => ErrorDetail {
                    message: format!("{}; replicas on {} could not be removed again", error.message, left.join(", ")),
                    remedy: format!("{}; then braid volume delete {} --force", error.remedy, name),
                    ..error
                },
            });
        }
        let message = format!("volume {} was created, with replicas on {}", name, replicas_of(&volume));
        self.events().info("volume_created", message, &[("volume", &name)]);
        self.replicated_volume(&name)
    }

    /// Ends serving a volume on this node: whoever attaches it next need not wait.
    ///
    /// # Errors
    /// It is exported and `force` is not set, or this node does not serve it.
    pub async fn detach_replicated(self: &Arc<Self>, name: &str, force: bool) -> Result<ReplicatedVolume, ErrorDetail> {
        self.is_open()?;
        let _one_at_a_time = self.replicated.changing.lock().await;
        let volume = self.find_replicated(name)?;
        self.refuse_being_made(&volume)?;
        // An export that is prepared here has no clients.
        if !self.replicated.all().contains_key(&volume.uuid) && !volume.attached {
            return Err(not_served_here(Kind::Inactive, &volume.name, ""));
        }
        self.refuse_replicated_exported(&volume, force, "their clients are cut off, and they wait")?;
        self.refuse_exported_above(&volume, force)?;
        self.end_replicated(volume.uuid).await;
        self.note_attached(volume.uuid, false);
        self.events().info(
            "volume_detached",
            format!("volume {name} is served by this node no more"),
            &[("volume", name)],
        );
        self.replicated_volume(&volume.uuid.to_string())
    }

    /// Deletes a volume with all of its replicas: what it has is lost.
    ///
    /// # Errors
    /// It is exported, or a node does not answer, and `force` is not set.
    pub async fn delete_replicated(self: &Arc<Self>, name: &str, force: bool) -> Result<ReplicatedVolume, ErrorDetail> {
        self.is_open()?;
        let _one_at_a_time = self.replicated.changing.lock().await;
        let volume = self.find_replicated(name)?;
        self.refuse_being_made(&volume)?;
        self.refuse_replicated_exported(&volume, force, "they are removed")?;
        if !force {
            self.refuse_pool_above(&volume, "deleted")?;
        }
        let shown = self.replicated_volume(&volume.uuid.to_string())?;
        self.refuse_used(&volume, force).await?;
        {
            let listening = self.listening.lock().await;
            self.end_devices(&listening, |saved| saved.array == volume.uuid).await?;
        }
        self.end_replicated(volume.uuid).await;
        let left = self.remove_replicas(&volume).await;
        if !left.is_empty() && !force {
            self.note_attached(volume.uuid, false);
            let message = format!("volume {}: replicas on {} could not be removed", volume.name, left.join(", "));
            return Err(ErrorDetail::new(Kind::Unreachable, message).with("volume", &volume.name).remedy(
                "try again when those nodes answer; --force forgets the volume here, and they keep what they have",
            ));
        }
        self.remove_exports_of(volume.uuid).await;
        self.forget_carried(volume.uuid, None).await;
        self.write().replicated.remove(&volume.uuid);
        self.save_or_warn();
        self.events().info(
            "volume_deleted",
            format!("volume {} was deleted", volume.name),
            &[("volume", &volume.name)],
        );
        Ok(shown)
    }

    /// It is there for good: until this is noted a start would remove it.
    fn note_made(&self, uuid: Uuid) -> Result<(), ErrorDetail> {
        if let Some(volume) = self.write().replicated.get_mut(&uuid) {
            volume.making = false;
        }
        self.save().inspect_err(|_| {
            if let Some(volume) = self.write().replicated.get_mut(&uuid) {
                volume.making = true;
            }
        })
    }

    /// Refuses to delete what another node serves, what has snapshots or readers on its nodes, and, without force, what cannot be seen
    /// wholly. Before anything is removed: a volume without most of its voters is lost.
    async fn refuse_used(&self, volume: &SavedReplicated, force: bool) -> Result<(), ErrorDetail> {
        let in_use = |why: String, remedy: &str| {
            Err(ErrorDetail::new(Kind::InUse, why).with("volume", &volume.name).remedy(remedy))
        };
        let own = volume.controller.to_string();
        for (number, voter) in volume.seated() {
            let name = volume.voter_name(number);
            let replica = match self.replica_of(volume, number).await {
                Ok(replica) => replica,
                Err(error) if error.kind == Kind::NotFound || force => continue,
                Err(error) => {
                    return Err(error.remedy(
                        "delete it when all of its nodes answer; --force leaves what they have, and forgets the volume here",
                    ));
                }
            };
            let controller = replica.register.and_then(|register| register.controller);
            if replica.connections > 0 && controller.is_some_and(|controller| controller != own) {
                let why = format!("volume {} is served by another node, which uses replica {name}", volume.name);
                let remedy = format!("delete it there; or attach it here first: braid volume attach {}", volume.name);
                return in_use(why, &remedy);
            }
            let Some(data) = replica.data else { continue };
            self.refuse_snapshots(volume, u16::from(number)).await?;
            let path = format!("/v1/volumes/{}", data.replace('/', "%2F"));
            let answer = self.nodes().call(&voter.node, Method::GET, &path, None).await;
            let Some(data) = answer.ok().and_then(|answer| serde_json::from_value::<Volume>(answer).ok()) else {
                continue;
            };
            if data.snapshots > 0 || !data.exports.is_empty() {
                let why = format!("replica {name} has snapshots, or is exported, on its node");
                return in_use(why, "remove these there first: braid snapshot list, braid export list");
            }
        }
        Ok(())
    }

    /// The voters that were asked for, each on a node that is known and no two on the same.
    async fn voters_for(&self, ask: &CreateReplicated) -> Result<Vec<SavedVoter>, ErrorDetail> {
        let invalid = |what: String| ErrorDetail::new(Kind::InvalidArgument, what).with("volume", &ask.name);
        if ask.replicas.is_empty() == (ask.count == 0) {
            return Err(invalid("either the replicas are named, or how many there are to be".to_owned())
                .remedy("for example --replicas node1/tank,node2/tank, or --replicas 2"));
        }
        let mut voters = Vec::new();
        for replica in &ask.replicas {
            let Some((node, pool)) = replica.split_once('/') else {
                return Err(invalid(format!("replica {replica:?} is not written NODE/POOL")));
            };
            voters.push(SavedVoter::of(node.to_owned(), Some(pool.to_owned())));
        }
        let members = self.nodes().members();
        if ask.count > 0 {
            voters = self.places_for(ask).await?;
        }
        voters.extend(ask.witnesses.iter().map(|node| SavedVoter::of(node.clone(), None)));
        let replicas = voters.iter().filter(|voter| voter.pool.is_some()).count();
        if replicas == 0 || voters.len() > REPLICAS_MAX {
            return Err(invalid(format!(
                "a volume has 1 to {REPLICAS_MAX} replicas and witnesses, one replica at least; these are {replicas} and {}",
                voters.len() - replicas
            ))
            .remedy("name fewer"));
        }
        if replicas == 1 && voters.len() > 1 {
            return Err(invalid(
                "a witness is of no use to one replica: nothing could be opened without it".to_owned(),
            )
            .remedy("leave --witness out, or have two replicas"));
        }
        let mut seen = BTreeSet::new();
        for voter in &voters {
            if members.iter().all(|member| member.name != voter.node) {
                return Err(ErrorDetail::new(Kind::NotFound, format!("there is no node {}", voter.node))
                    .with("node", &voter.node)
                    .remedy("braid node list shows them"));
            }
            if !seen.insert(&voter.node) {
                return Err(invalid(format!(
                    "node {} is named twice: it would vote twice, and take two with it",
                    voter.node
                ))
                .remedy("name each node once"));
            }
        }
        Ok(voters)
    }

    /// The nodes and pools with the most free space, one pool of each node.
    async fn places_for(&self, ask: &CreateReplicated) -> Result<Vec<SavedVoter>, ErrorDetail> {
        let mut places: Vec<(u64, SavedVoter)> = Vec::new();
        for member in self.nodes().members() {
            if ask.witnesses.contains(&member.name) {
                continue;
            }
            let Ok(answer) = self.nodes().call(&member.name, Method::GET, "/v1/pools", None).await else { continue };
            let Ok(list) = serde_json::from_value::<braid_api::PoolList>(answer) else { continue };
            let best =
                list.pools.iter().filter(|pool| pool.state == PoolState::Active).max_by_key(|pool| pool.free_bytes);
            if let Some(pool) = best {
                places.push((pool.free_bytes, SavedVoter::of(member.name, Some(pool.name.clone()))));
            }
        }
        let there = places.len();
        places.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.node.cmp(&b.1.node)));
        places.truncate(usize::from(ask.count));
        if places.len() < usize::from(ask.count) {
            let message = format!("{} replicas are wanted, and {there} nodes that answer have a pool", ask.count);
            return Err(ErrorDetail::new(Kind::Incomplete, message)
                .with("volume", &ask.name)
                .remedy("braid node list shows the nodes, braid pool create makes pools"));
        }
        Ok(places.into_iter().map(|(_, voter)| voter).collect())
    }

    async fn make_replicas(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        for number in volume.voters.keys() {
            self.make_one(volume, *number, volume.seating.replicas).await?;
        }
        Ok(())
    }

    /// Makes a replica or witness where the volume's list says. `in_sync`: by the vote that it begins with.
    pub(super) async fn make_one(&self, volume: &SavedReplicated, number: u8, in_sync: u16) -> Result<(), ErrorDetail> {
        let (head_bytes, tail_bytes) = around(volume.replica_bytes());
        let Some(voter) = volume.voters.get(&number) else { return Ok(()) };
        let is_replica = voter.pool.is_some();
        let only = |bytes: u64| if is_replica { bytes } else { 0 };
        let body = CreateReplica {
            volume: volume.uuid.to_string(),
            name: volume.name.clone(),
            voter: number,
            seating: volume.seating,
            in_sync,
            lineage: 0,
            pool: voter.pool.clone(),
            size_bytes: only(volume.replica_bytes()),
            head_bytes: only(head_bytes),
            tail_bytes: only(tail_bytes),
            places: volume.places(),
            volume_bytes: volume.size_bytes,
            block_bytes: volume.block_bytes,
            snapshot: volume.from.filter(|_| is_replica && volume.making).map(|from| from.to_string()),
        };
        let body = serde_json::to_value(&body).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        let name = volume.voter_name(number);
        let made = self.nodes().call_within(MAKING_MAX, &voter.node, Method::POST, "/v1/replicas", Some(body)).await;
        made.map(drop).map_err(|error| ErrorDetail { message: format!("replica {name}: {}", error.message), ..error })
    }

    /// Removes the replicas of a volume; gives the nodes where that did not succeed.
    pub(super) async fn remove_replicas(&self, volume: &SavedReplicated) -> Vec<String> {
        let mut left = Vec::new();
        let path = format!("/v1/replicas/{}?force=true", volume.uuid);
        let seating = volume.seating().all();
        // What was left out by force may have what nobody else has, and be served: its own node deletes it.
        let outside: Vec<u8> = volume.outside().map(|(number, _)| number).collect();
        for (number, voter) in volume.voters.iter().filter(|(number, _)| !outside.contains(number)) {
            match self.nodes().call_within(MAKING_MAX, &voter.node, Method::DELETE, &path, None).await {
                Ok(_) => {}
                Err(error) if error.kind == Kind::NotFound => {}
                // One that votes no more keeps nobody from anything.
                Err(error) if !seating.has(VoterId(*number)) => {
                    tracing::warn!("volume {}, which {} was a voter of: {}", volume.name, voter.node, error.message);
                }
                Err(error) => {
                    tracing::warn!("volume {}: {}", volume.name, error.message);
                    left.push(voter.node.clone());
                }
            }
        }
        left
    }

    async fn serve_new(self: &Arc<Self>, uuid: Uuid) -> Result<(), ErrorDetail> {
        let attached = self.begin_replicated(uuid, true);
        self.served(uuid, &attached).await.map(drop)
    }

    /// Waits until a volume is served.
    pub(super) async fn served(
        self: &Arc<Self>,
        uuid: Uuid,
        attached: &Attached,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let until = tokio::time::Instant::now() + SERVING_MAX;
        loop {
            let serves = self.read().arrays.get(&uuid).is_some_and(|entry| entry.active().is_some());
            if serves && !attached.has_ended() {
                attached.carries(until).await;
                return self.replicated_volume(&uuid.to_string());
            }
            let over = tokio::time::Instant::now() >= until;
            if attached.has_ended() || over {
                let volume = self.replicated_volume(&uuid.to_string())?;
                let mut message = format!("volume {} is not served", volume.name);
                if over {
                    message.push_str(&format!(" after {} s", SERVING_MAX.as_secs()));
                }
                if let Some(why) = attached.trouble().as_ref().or(volume.attention.first()) {
                    message.push_str(&format!(": {why}"));
                }
                return Err(ErrorDetail::new(Kind::Incomplete, message)
                    .with("volume", &volume.name)
                    .remedy(advice::remedy(Case::ReplicatedVolume(VolumeCase::NotAttached), Names::of(&volume.name))));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A volume that this node does not know, by what other nodes keep of it.
    pub(super) async fn find_elsewhere(&self, name: &str) -> Result<SavedReplicated, ErrorDetail> {
        let (mut silent, mut found) = (Vec::new(), None::<Replica>);
        for member in self.nodes().members() {
            let answer = match self.nodes().call(&member.name, Method::GET, "/v1/replicas", None).await {
                Ok(answer) => answer,
                Err(_) => {
                    silent.push(member.name);
                    continue;
                }
            };
            let Ok(list) = serde_json::from_value::<ReplicaList>(answer) else { continue };
            let named = list.replicas.into_iter().filter(|replica| replica.name == name || replica.volume == name);
            // The one that was told last where the others are.
            found = found.into_iter().chain(named).max_by_key(|replica| replica.version);
        }
        if let Some(replica) = found {
            return described(&replica);
        }
        let unknown =
            ErrorDetail::new(Kind::NotFound, format!("no node that answers has a replica of a volume {name}"));
        let unknown = unknown.with("volume", name);
        Err(match silent.is_empty() {
            true => unknown.remedy("braid replica list shows what there is"),
            false => unknown.remedy(format!("these nodes did not answer: {}", silent.join(", "))),
        })
    }

    /// Whoever makes it has its name.
    pub(super) fn refuse_being_made(&self, volume: &SavedReplicated) -> Result<(), ErrorDetail> {
        if !self.read().claimed_names.contains(&volume.name) {
            return Ok(());
        }
        Err(ErrorDetail::new(Kind::InUse, format!("volume {} is being made", volume.name))
            .with("volume", &volume.name)
            .remedy("wait until that is done"))
    }

    fn refuse_exported_above(&self, volume: &SavedReplicated, force: bool) -> Result<(), ErrorDetail> {
        if force { Ok(()) } else { self.refuse_exported_carried(volume.uuid, &volume.name) }
    }

    /// Refuses what a pool that stands on the volume would not outlive, or would not see.
    pub(super) fn refuse_pool_above(&self, volume: &SavedReplicated, done: &str) -> Result<(), ErrorDetail> {
        let Some((_, pool)) = self.read().pool_carried(volume.uuid) else { return Ok(()) };
        Err(ErrorDetail::new(
            Kind::InUse,
            format!("pool {pool} stands on volume {}, which so cannot be {done}", volume.name),
        )
        .with("volume", &volume.name)
        .with("pool", &pool)
        .remedy(format!("braid pool delete {pool} where the volume is served, if nothing of it is needed any more")))
    }

    fn refuse_replicated_exported(
        &self,
        volume: &SavedReplicated,
        force: bool,
        forced: &str,
    ) -> Result<(), ErrorDetail> {
        let exports = self.read().exports_of(volume.uuid);
        if exports.is_empty() || force {
            return Ok(());
        }
        Err(ErrorDetail::new(Kind::InUse, format!("volume {} is exported as {}", volume.name, exports.join(", ")))
            .with("volume", &volume.name)
            .with("export", &exports[0])
            .remedy(format!("braid export remove {} first, or add --force ({forced})", exports[0])))
    }
}

/// What a replica says of the whole volume.
pub(super) fn described(replica: &Replica) -> Result<SavedReplicated, ErrorDetail> {
    let unknown = || {
        ErrorDetail::new(
            Kind::Damaged,
            format!("what is kept of volume {} does not say where its replicas are", replica.name),
        )
    };
    let voters = SavedVoter::of_places(&replica.places);
    let vote = replica.register.as_ref().map(|register| register.vote.seating);
    // A list that nobody has voted for yet: whoever it names is asked.
    let seating = vote.filter(|seating| seating.version == replica.version).unwrap_or_else(|| ReplicaSeating {
        version: replica.version,
        voters: voters.keys().fold(0, |bits, number| bits | 1 << number),
        before: 0,
        replicas: voters
            .iter()
            .filter(|(_, voter)| voter.pool.is_some())
            .fold(0, |bits, (number, _)| bits | 1 << number),
        further: vote.map_or(0, |vote| vote.further),
    });
    if voters.is_empty() || seating_of(&seating).all().iter().any(|voter| !voters.contains_key(&voter.0)) {
        return Err(unknown());
    }
    Ok(SavedReplicated {
        uuid: replica.volume.parse().map_err(|_| unknown())?,
        name: replica.name.clone(),
        size_bytes: replica.volume_bytes,
        block_bytes: replica.block_bytes,
        voters,
        seating,
        attached: false,
        controller: Uuid::nil(),
        epoch: 0,
        making: false,
        from: None,
        left: Vec::new(),
    })
}

fn replicas_of(volume: &SavedReplicated) -> String {
    let names: Vec<String> = volume.voters.keys().map(|number| volume.voter_name(*number)).collect();
    names.join(", ")
}

/// The level that is asked for.
fn level_of(ask: &CreateReplicated) -> Result<Level, ErrorDetail> {
    let Some(text) = &ask.level else { return Ok(Level::Raid1) };
    match text.parse() {
        Ok(level @ (Level::Raid1 | Level::Raid5 | Level::Raid6)) => Ok(level),
        _ => Err(ErrorDetail::new(Kind::InvalidArgument, format!("volumes of several nodes cannot be {text:?}"))
            .with("volume", &ask.name)
            .remedy("use raid1 (copies), raid5 or raid6")),
    }
}

/// Its logical block, in bytes.
fn block_of(ask: &CreateReplicated, level: Level) -> Result<u32, ErrorDetail> {
    let block_bytes = ask.block_bytes.unwrap_or(braid_api::block_bytes_usual());
    if check_block(&ask.name, block_bytes)? && level.parity() > 0 {
        let message = format!("volume {}: {level} keeps parity of blocks of {VOLUME_BLOCK_BYTES} bytes", ask.name);
        return Err(ErrorDetail::new(Kind::InvalidArgument, message).with("volume", &ask.name).remedy(format!(
            "keep copies (--level raid1), or make a pool on it: its volumes may have blocks of {VOLUME_SECTOR_BYTES} bytes"
        )));
    }
    Ok(block_bytes)
}

/// How many replicas it takes to have everything.
fn least_of(ask: &CreateReplicated, level: Level, replicas: usize) -> Result<usize, ErrorDetail> {
    let parities = usize::from(level.parity());
    if parities == 0 {
        return Ok(1);
    }
    // With two of them a parity is a copy.
    match replicas.checked_sub(parities).filter(|least| *least > 1) {
        Some(least) => Ok(least),
        None => Err(ErrorDetail::new(
            Kind::InvalidArgument,
            format!("{level} takes {} replicas at least, and these are {replicas}", parities + 2),
        )
        .with("volume", &ask.name)
        .remedy("name more, or keep copies: --level raid1")),
    }
}

/// Its size: with parity as much more as makes each replica whole chunks.
fn whole_size(ask: &CreateReplicated, least: usize) -> Result<u64, ErrorDetail> {
    let unit = if least == 1 { 1 } else { least as u64 * CHUNK_BYTES_DEFAULT };
    let size = ask.size_bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
    let each = size / least as u64;
    let (head, tail) = around(each);
    let whole = each.checked_add(head + tail);
    let fits = whole.and_then(|whole| DiskLayout::for_device(whole).ok());
    let fits = fits.is_some_and(|places| places.data.bytes == each);
    if ask.size_bytes > 0 && ask.size_bytes.is_multiple_of(BLOCK_BYTES) && fits {
        return Ok(size);
    }
    let message = format!("volume {}: {} bytes are no size of a volume", ask.name, ask.size_bytes);
    Err(ErrorDetail::new(Kind::InvalidArgument, message)
        .with("volume", &ask.name)
        .remedy("sizes are multiples of 4096 bytes, at least 4096"))
}

/// What the array above needs in front of and behind a replica's data: its labels, its bitmap.
pub(super) fn around(size_bytes: u64) -> (u64, u64) {
    let tail = BLOCK_BYTES;
    // Small ones have less in front; which they are the whole size says.
    let small = size_bytes.saturating_add(braid_format::DATA_START_SMALL_BYTES + tail);
    let head = DiskLayout::for_device(small).map_or(braid_format::DATA_START_BYTES, |places| places.data.start);
    (head, tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_replica_are_its_volume_and_nothing_else() {
        for size in [4096, 1 << 20, 16 << 20, (63 << 20) + 4096, 64 << 20, 1 << 30, 1 << 40]
            .into_iter()
            .flat_map(|at: u64| (0..40).map(move |step: u64| at + (step << 18)))
        {
            let (head, tail) = around(size);
            let places = DiskLayout::for_device(head + size + tail).expect("it fits");
            assert_eq!((places.data.start, places.data.bytes, places.copy_start), (head, size, head + size), "{size}");
        }
    }
}

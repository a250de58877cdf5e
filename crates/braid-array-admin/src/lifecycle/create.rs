//! Creating an array.

use braid_engine::{LeafId, MetaIo};
use braid_format::bitmap::region_bytes_for;
use braid_format::{
    ArrayPart, ArrayState, DiskLayout, Features, Lineage, MemberEntry, MemberId, MemberPart, MemberState, Name,
    RetiredMarks, StartPolicy, Uuid, foreign, zone_table,
};
use braid_geometry::{Geometry, Spec};

use super::array::Array;
use super::bitmap::{check_room, write_empty};
use super::erase::{erase_targets, wipe};
use super::error::LifecycleError;
use super::join::try_join_all;
use super::journal;
use super::lineage::{LineageIds, SERVES};
use super::member_table::is_redundant;
use super::write::{LabelCopy, Target, write_block, write_labels};

/// What to create. The random values come from the caller.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The array's name. The caller ensures that no other array has it.
    pub name: Name,
    /// Level, layout, chunk, copies, zones.
    pub spec: Spec,
    /// The disks, in slot order.
    pub leaves: Vec<LeafId>,
    /// The array's new identity.
    pub uuid: Uuid,
    /// A new identity for each disk.
    pub member_ids: Vec<MemberId>,
    /// Spares, each with its new identity. Only at a redundant level.
    pub spares: Vec<(LeafId, MemberId)>,
    /// The disk of the journal, with its new identity: at a level with parity, if the members are not to hold the
    /// journal.
    pub journal: Option<(LeafId, MemberId)>,
    /// Slots that are read only if no other member can answer. Only at a redundant level.
    pub write_mostly: Vec<u16>,
    /// Whether it may start with members missing.
    pub start_policy: StartPolicy,
    /// A random id for its first lineage.
    pub lineage: u64,
    /// A random id of this run: the array is started at once.
    pub session: u64,
    /// The time in seconds since 1970.
    pub created_unix_s: u64,
    /// Overwrite what is on the disks.
    pub force: bool,
}

/// Creates an array and starts it.
///
/// 1. Inspect every disk; refuse one that is in use, unless forced. Nothing has been written so far.
/// 2. If forced: zero existing signatures and older labels, durably.
/// 3. Write the label as *forming* to all members, both copies. Once all are durable:
/// 4. Write an empty write-intent bitmap to all members of a redundant array, and with parity the first head of the
///    journal. Once all are durable:
/// 5. Write the label as *active* to all members, both copies. Once all are durable, the array exists.
///
/// # Errors
/// A refusal before anything was written, or [`LifecycleError::CreateFailed`] with a disk's error.
pub async fn create<M: MetaIo>(io: &M, request: &CreateRequest) -> Result<Array, LifecycleError> {
    let (geometry, mut label, mut targets) = plan(io, request)?;
    // Refuse what the label cannot hold before the first write.
    for target in &targets {
        braid_format::Label { array: label.clone(), member: target.part.clone() }.encode()?;
    }
    let leaves: Vec<LeafId> = targets.iter().map(|target| target.leaf).collect();
    let found = try_join_all(leaves.iter().map(|leaf| inspect(io, *leaf, request.force))).await?;
    if request.force {
        try_join_all(leaves.iter().zip(&found).map(|(leaf, found)| clear(io, *leaf, found.as_ref()))).await?;
    }
    let undo = Undo { io, label: label.clone(), targets: targets.clone() };
    if let Err(error) = write_labels(io, &mut targets, &label).await {
        return Err(undo.forming(error).await);
    }
    if label.region_bytes > 0
        && let Err(error) = write_empty(io, &label, &targets[..request.leaves.len() + request.spares.len()]).await
    {
        return Err(undo.forming(error).await);
    }
    let members: Vec<&Target> = targets.iter().take(request.leaves.len()).collect();
    let run = LineageIds::new(request.session.rotate_left(17) ^ request.lineage).next();
    let disk = request.journal.and_then(|(leaf, _)| targets.iter().find(|target| target.leaf == leaf));
    if let Err(error) = journal::write_first(io, &label, &members, disk, run).await {
        return Err(undo.forming(error).await);
    }
    label.sequence += 1;
    label.state = ArrayState::Active;
    if let Err(error) = write_labels(io, &mut targets, &label).await {
        return Err(undo.active(error).await);
    }
    let mut array = Array::new(label, geometry, targets, request.session.rotate_left(32) ^ request.lineage);
    array.was_clean = true;
    match array.agree_on_gains(io).await {
        Ok(not_promoted) if not_promoted.is_empty() => Ok(array),
        Ok(not_promoted) => {
            let Some((_, error)) = not_promoted.into_iter().next() else { return Ok(array) };
            Err(undo.active(error).await)
        }
        Err(error) => Err(undo.active(error).await),
    }
}

/// Computes the disks' layouts, the geometry and the label; writes nothing.
fn plan<M: MetaIo>(io: &M, request: &CreateRequest) -> Result<(Geometry, ArrayPart, Vec<Target>), LifecycleError> {
    let spec = request.spec;
    let redundant = is_redundant(spec.level);
    let leaves: Vec<LeafId> = request
        .leaves
        .iter()
        .chain(request.spares.iter().chain(&request.journal).map(|(leaf, _)| leaf))
        .copied()
        .collect();
    let ids: Vec<MemberId> = request
        .member_ids
        .iter()
        .chain(request.spares.iter().chain(&request.journal).map(|(_, id)| id))
        .copied()
        .collect();
    if let Some((_, leaf)) = leaves.iter().enumerate().find(|(i, leaf)| leaves[..*i].contains(leaf)) {
        return Err(LifecycleError::Twice { leaf: *leaf });
    }
    let same_id = ids.iter().enumerate().any(|(i, id)| ids[..i].contains(id));
    if request.member_ids.len() != request.leaves.len() || same_id {
        return Err(LifecycleError::Identities { given: ids.len(), disks: leaves.len() });
    }
    let is_journal = |leaf: LeafId| request.journal.is_some_and(|(journal, _)| journal == leaf);
    let layout = |leaf: &LeafId| {
        let places_for = if is_journal(*leaf) { DiskLayout::for_journal } else { DiskLayout::for_device };
        places_for(io.size_bytes(*leaf)).map_err(|source| LifecycleError::Size { leaf: *leaf, source })
    };
    let places = leaves.iter().map(layout).collect::<Result<Vec<DiskLayout>, _>>()?;
    let sizes: Vec<u64> = places.iter().map(|p| p.data.bytes).collect();
    let slots = request.leaves.len();
    let geometry = Geometry::plan(spec, &sizes[..slots])?;
    let array_bytes = geometry.size_bytes();
    let region_bytes = if redundant { region_bytes_for(array_bytes) } else { 0 };
    let with_data = slots + request.spares.len();
    check_extras(request, &geometry, &sizes[slots..with_data])?;
    if redundant {
        leaves[..with_data]
            .iter()
            .zip(&places)
            .try_for_each(|(leaf, places)| check_room(*leaf, places, array_bytes, region_bytes))?;
    }
    let entry = |(role, (id, data_bytes)): (usize, (&MemberId, &u64))| MemberEntry {
        id: Some(*id),
        data_bytes: *data_bytes,
        state: match role {
            _ if role < slots => MemberState::InSync,
            _ if role < with_data => MemberState::Spare,
            _ => MemberState::Journal,
        },
        write_mostly: request.write_mostly.iter().any(|wm| usize::from(*wm) == role),
    };
    let label = ArrayPart {
        features: Features::default(),
        uuid: request.uuid,
        sequence: 1,
        name: request.name.clone(),
        state: ArrayState::Forming,
        spec,
        clean: false,
        start_policy: request.start_policy,
        region_bytes,
        array_bytes,
        created_unix_s: request.created_unix_s,
        lineage: Lineage { id: request.lineage, ancestors: Vec::new() },
        // A new array serves without a start of its own: its first session serves from the first label on.
        session: request.session | SERVES,
        previous_session: 0,
        epoch: 0,
        controller: Uuid::nil(),
        jobs: Vec::new(),
        members: ids.iter().zip(&sizes).enumerate().map(entry).collect(),
        zones: zone_table(&geometry),
        reserved: [0; 2],
    };
    let target = |(role, (leaf, places)): (usize, (&LeafId, DiskLayout))| Target {
        leaf: *leaf,
        part: MemberPart {
            id: ids[role],
            slot: role as u16,
            layout: places,
            retired: RetiredMarks::default(),
            reserved: [0; 4],
        },
        doubtful: LabelCopy::Start,
    };
    let targets: Vec<Target> = leaves.iter().zip(places).enumerate().map(target).collect();
    for target in &targets {
        // Requests sized for the members' log ring must fit into that of the disk.
        let others = if is_journal(target.leaf) { &targets[..slots] } else { &[] };
        journal::check_room(target.leaf, &target.part.layout, &label, others)?;
    }
    Ok((geometry, label, targets))
}

/// Checks the spares and the write-mostly slots.
fn check_extras(request: &CreateRequest, geometry: &Geometry, spare_sizes: &[u64]) -> Result<(), LifecycleError> {
    let slots = geometry.member_data_bytes().len() as u16;
    let extra = request.write_mostly.iter().copied().chain((!request.spares.is_empty()).then_some(slots)).max();
    if request.journal.is_some() && request.spec.level.parity() == 0 {
        let reason = format!("{} has no journal that a disk could hold; raid5 and raid6 have", request.spec.level);
        return Err(LifecycleError::Slot { slot: slots, reason });
    }
    if let Some(role) = extra
        && !is_redundant(request.spec.level)
    {
        let reason = format!("{} has neither spares nor members that are read last", request.spec.level);
        return Err(LifecycleError::Slot { slot: role, reason });
    }
    if let Some(role) = request.write_mostly.iter().find(|role| **role >= slots) {
        return Err(LifecycleError::Slot { slot: *role, reason: format!("there are only {slots} members") });
    }
    let end = |role: u16| geometry.zones().iter().filter(|z| z.members.contains(&role)).map(|z| z.member_end()).max();
    let needed_bytes = (0..slots).filter_map(end).min().unwrap_or(0);
    match request.spares.iter().zip(spare_sizes).find(|(_, size)| **size < needed_bytes) {
        Some(((leaf, _), data_bytes)) => {
            let what = "the smallest member".to_owned();
            Err(LifecycleError::TooSmall { leaf: *leaf, what, data_bytes: *data_bytes, needed_bytes })
        }
        None => Ok(()),
    }
}

/// Identifies what is on a disk; refuses a disk in use unless forced.
pub(super) async fn inspect<M: MetaIo>(
    io: &M,
    leaf: LeafId,
    force: bool,
) -> Result<Option<foreign::Signatures>, LifecycleError> {
    let size_bytes = io.size_bytes(leaf);
    let mut pieces = Vec::new();
    for range in foreign::ranges(size_bytes) {
        let piece = io.read(leaf, range.start, range.bytes as usize).await;
        let action = "read what is on the disk";
        let piece = piece.map_err(|source| LifecycleError::Io { leaf, action, offset: range.start, source })?;
        pieces.push((range.start, piece));
    }
    match foreign::identify_pieces(size_bytes, &pieces) {
        Some(found) if !force => Err(LifecycleError::NotEmpty { leaf, found: found.to_string() }),
        found => Ok(found),
    }
}

/// Zeroes the signatures that were found, and older Braid labels wherever they are.
pub(super) async fn clear<M: MetaIo>(
    io: &M,
    leaf: LeafId,
    found: Option<&foreign::Signatures>,
) -> Result<(), LifecycleError> {
    wipe(io, leaf).await?;
    let signatures = found.into_iter().flat_map(|found| &found.signatures);
    for range in signatures.filter(|s| s.class != foreign::SignatureClass::Braid).flat_map(|s| &s.ranges) {
        let (from, to) = (range.start / 4096 * 4096, (range.start + range.bytes).next_multiple_of(4096));
        let action = "read what is on the disk";
        let block = io.read(leaf, from, (to - from) as usize).await;
        let mut block = block.map_err(|source| LifecycleError::Io { leaf, action, offset: from, source })?;
        let at = (range.start - from) as usize;
        block[at..at + range.bytes as usize].fill(0);
        write_block(io, leaf, from, block, true).await?;
    }
    Ok(())
}

/// Undoes a create that failed on a disk's error. Best effort: every step leaves a state that a start understands.
struct Undo<'a, M> {
    io: &'a M,
    label: ArrayPart,
    targets: Vec<Target>,
}

impl<M: MetaIo> Undo<'_, M> {
    /// No member is *active* yet: erase what was written.
    async fn forming(self, error: LifecycleError) -> LifecycleError {
        let undone = erase_targets(self.io, &self.targets).await.is_ok();
        LifecycleError::CreateFailed { undone, source: Box::new(error) }
    }

    /// Some members may be *active*: write *deleting* first, as a delete does. If that fails on a member, the labels
    /// stay, and the next start finishes the deletion.
    async fn active(mut self, error: LifecycleError) -> LifecycleError {
        let deleting = ArrayPart { sequence: 3, state: ArrayState::Deleting, ..self.label };
        let announced = write_labels(self.io, &mut self.targets, &deleting).await.is_ok();
        let undone = announced && erase_targets(self.io, &self.targets).await.is_ok();
        LifecycleError::CreateFailed { undone, source: Box::new(error) }
    }
}

//! Growing: adds the space of members that have become larger, and further disks. No data moves.
//!
//! | step | on the disks, when it is done |
//! |---|---|
//! | 1: label n + 1 | the second copy of the label is at the new end of every enlarged disk; further disks are named, bear the label, and hold nothing yet |
//! | 2: zeros | the old locations of the second copies are zeroed |
//! | 3: redundant arrays | the part of the smaller array's last region beyond its end is zeroed on all members, and the further bitmap blocks are empty; further disks have an empty bitmap, and the newest head of the journal |
//! | 4: label n + 2 | larger data areas, the zones, the size; further disks are members |
//!
//! Each step is durable before the next begins, and the new space is used after the last. Until a label n + 2 is
//! written the array is the smaller one. From then on every member that it needs bears at least n + 1 and has the space
//! that n + 2 records, and the next start completes n + 2. Before that, a start removes the further disks again. Every
//! label is written to old members first, and to further disks last.
//!
//! In label n + 1 the further disks of a redundant array are spares at the end of the member table, and a job of the
//! kind *grow* has the number of the first as its target, so that they are not used as spares. In label n + 2 they have
//! the numbers behind the old members, and spares follow. The further disks hold no data until n + 2 is on all members.
//! Their bitmap and their head of the journal are durable before the first copy of n + 2 is written. So a start that
//! finds n + 2 on some members counts a further disk that bears n + 1 as in sync.
//!
//! A copy of a label moves by being written at its new location before the label at the start of the disk records that
//! location: until then the copy at the old location is the valid one.

use braid_engine::{LEAF_BYTES_MAX, LeafId, MetaIo};
use braid_format::{
    ArrayPart, BLOCK_BYTES, DiskLayout, Header, Job, JobKind, JobState, Label, MEMBERS_MAX, MemberEntry, MemberId,
    MemberState, ZoneSpan, copy_offset, zone_table,
};
use braid_geometry::units::format_size;
use braid_geometry::{Geometry, GeometryError, Spec};

use super::array::Array;
use super::bitmap::{check_room, largest_bytes, write_empty, write_further};
use super::erase::wipe;
use super::error::LifecycleError;
use super::join::{join_all, try_join_all};
use super::journal;
use super::losses::Losses;
use super::member_table::{forget_joining, is_redundant, joining_from, joins};
use super::write::{LabelCopy, Target, erase_block, flush, number_of, write_labels};

/// What to add to an array, besides the space that its members have gained.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GrowRequest {
    /// Disks that become members, each with its new identity: random. At a redundant level at least as many as a zone
    /// needs.
    pub new_disks: Vec<(LeafId, MemberId)>,
    /// Overwrite what is on them; let a mirror grow although its new zones have fewer copies than the old ones.
    pub force: bool,
}

/// The result of a growth.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The array's size before, in bytes.
    pub before_bytes: u64,
    /// Where every byte is afterwards.
    pub geometry: Geometry,
}

impl Growth {
    /// Returns the array's size afterwards, in bytes.
    pub fn after_bytes(&self) -> u64 {
        self.geometry.size_bytes()
    }
}

/// Plans an array with data areas of these sizes, by slot (slots that are not named keep theirs), and with further
/// members whose data areas have the sizes `further`. Writes nothing. `force` as in [`GrowRequest`].
///
/// # Errors
/// [`LifecycleError::NoGrowth`] if nothing is gained or the growth is impossible, with a remedy.
pub fn plan_growth(
    label: &ArrayPart,
    data_bytes: &[(u16, u64)],
    further: &[u64],
    force: bool,
) -> Result<Growth, LifecycleError> {
    let before = label.geometry()?;
    let mut sizes = before.member_data_bytes().to_vec();
    for (role, bytes) in data_bytes {
        // Higher numbers are spares.
        if let Some(size) = sizes.get_mut(usize::from(*role)) {
            *size = *bytes;
        }
    }
    sizes.extend_from_slice(further);
    let geometry = match before.grown(&sizes) {
        Ok(geometry) => geometry,
        Err(error @ GeometryError::NoGrowth { single_zone, .. }) => {
            let remedy = what_would_help(&label.spec, single_zone, !further.is_empty());
            return Err(LifecycleError::NoGrowth { leaf: None, reason: error.to_string(), remedy });
        }
        Err(error) => return Err(error.into()),
    };
    let is_idle = |role: &u16| geometry.zones().iter().all(|zone| !zone.members.contains(role));
    if let Some(idle) = (0u16..).zip(&sizes).skip(before.member_data_bytes().len()).find(|(role, _)| is_idle(role)) {
        let needed = label.spec.min_members();
        return Err(LifecycleError::NoGrowth {
            leaf: None,
            reason: format!(
                "the further disk with {} of room for data would hold nothing: a zone needs {needed} members with new free space at the same offset",
                format_size(*idle.1)
            ),
            remedy: what_would_help(&label.spec, false, true),
        });
    }
    let copies = |of: &Geometry| of.zones().iter().map(|zone| of.spec().copies_over(zone.members.len())).min();
    if let (Some(now), Some(then)) = (copies(&before), copies(&geometry))
        && then < now
        && !force
    {
        return Err(LifecycleError::NoGrowth {
            leaf: None,
            reason: format!(
                "what is new would have {then} copies, where everything has {now} or more: the array would survive the loss of any {} members, not of any {}",
                then - 1,
                now - 1
            ),
            remedy: "make more of its disks larger, name more further ones, or take it as it is with --force"
                .to_owned(),
        });
    }
    Ok(Growth { before_bytes: before.size_bytes(), geometry })
}

/// Returns the remedy where nothing would be gained.
fn what_would_help(spec: &Spec, single_zone: bool, has_further: bool) -> String {
    let needed = spec.min_members();
    if single_zone {
        return "make all of its disks larger".to_owned();
    }
    match (is_redundant(spec.level), has_further) {
        (false, _) => "make a disk of it larger, or name a new one".to_owned(),
        (true, false) => format!(
            "make two or more of its disks larger (a zone of {} needs {needed}), or name {needed} or more further disks",
            spec.level
        ),
        (true, true) => {
            let wider = if spec.level.parity() > 0 {
                "; its rows do not become wider: for that create another array and copy the content there"
            } else {
                ""
            };
            format!(
                "name {needed} or more further disks, or make disks of it larger as well; a single one can take the place of a smaller member (array replace) or be a spare (array spare){wider}"
            )
        }
    }
}

impl Array {
    /// Adds the space that members have gained, and further disks. Writes to the array may continue meanwhile; when
    /// this returns, the larger array may be served.
    ///
    /// # Errors
    /// A refusal before anything was written, or a disk's error. Then the array keeps its size: a redundant array has
    /// dropped the member that failed; any other has given up the further disks, as far as its own disks can be
    /// written.
    pub async fn grow<M: MetaIo>(&mut self, io: &M, request: &GrowRequest) -> Result<Growth, LifecycleError> {
        if self.is_redundant() {
            self.complete(io).await?;
        } else {
            self.forget_newcomers();
            self.catch_up(io).await?;
        }
        self.check_may_grow(request)?;
        let (growth, places) = self.plan(io, request)?;
        let mut newcomers = Vec::new();
        for (leaf, id) in &request.new_disks {
            let target = self.new_member(io, *leaf, *id, 0, "a further member".to_owned(), request.force).await?;
            newcomers.push(target);
        }
        for (target, number) in newcomers.iter_mut().zip(self.label.members.len() as u16..) {
            target.part.slot = number;
        }
        let grown = self.add_space(io, newcomers, &places, &growth).await;
        // After losses beyond tolerance the array has failed, and nothing more is written.
        if matches!(&grown, Err(error) if !matches!(error, LifecycleError::BeyondTolerance { .. })) {
            self.undo_growth(io).await;
        }
        grown.map(|()| growth)
    }

    fn check_may_grow(&self, request: &GrowRequest) -> Result<(), LifecycleError> {
        let no = |leaf: Option<LeafId>, reason: &str, remedy: &str| {
            Err(LifecycleError::NoGrowth { leaf, reason: reason.to_owned(), remedy: remedy.to_owned() })
        };
        if self.is_redundant() {
            if let Some(successor) = self.successors().next() {
                let reason = format!("member {} is being replaced", successor.role);
                return no(None, &reason, "wait until that job has ended, or cancel it");
            }
            if !self.is_whole() {
                return no(
                    None,
                    "not all of its members are in sync: who is missing would lack what is new",
                    "bring its members back first, or replace them",
                );
            }
        }
        if self.label.members.len() + request.new_disks.len() > MEMBERS_MAX {
            let reason = format!("an array has at most {MEMBERS_MAX} members, spares included");
            return no(None, &reason, "make its disks larger");
        }
        match request.new_disks.iter().enumerate().find(|(i, new)| request.new_disks[..*i].iter().any(|o| o.0 == new.0))
        {
            Some((_, (leaf, _))) => Err(LifecycleError::Twice { leaf: *leaf }),
            None => Ok(()),
        }
    }

    /// Plans the growth and the future layouts of the present members' disks. Writes nothing.
    fn plan<M: MetaIo>(
        &self,
        io: &M,
        request: &GrowRequest,
    ) -> Result<(Growth, Vec<(u16, DiskLayout)>), LifecycleError> {
        let mut places = Vec::with_capacity(self.targets.len());
        for target in &self.targets {
            let own = &target.part.layout;
            let moved = own.grown_to(io.size_bytes(target.leaf)).unwrap_or(*own);
            places.push((target.part.slot, moved));
        }
        let sizes: Vec<(u16, u64)> = places.iter().map(|(role, places)| (*role, places.room_bytes())).collect();
        let further = request.new_disks.iter().map(|(leaf, _)| {
            let places = DiskLayout::for_device(io.size_bytes(*leaf));
            places.map_err(|source| LifecycleError::Size { leaf: *leaf, source })
        });
        let further = further.collect::<Result<Vec<DiskLayout>, _>>()?;
        let further_bytes: Vec<u64> = further.iter().map(|places| places.data.bytes).collect();
        let growth = plan_growth(&self.label, &sizes, &further_bytes, request.force).map_err(|error| match error {
            LifecycleError::Geometry(GeometryError::MemberTooSmall { member, data_bytes, needed_bytes }) => {
                let leaf = member.checked_sub(usize::from(self.slots())).and_then(|k| request.new_disks.get(k));
                match leaf.map(|new| new.0).or_else(|| self.leaf(member as u16)) {
                    Some(leaf) => {
                        let what = if member < usize::from(self.slots()) { "what it holds" } else { "one chunk" };
                        LifecycleError::TooSmall { leaf, what: what.to_owned(), data_bytes, needed_bytes }
                    }
                    None => error,
                }
            }
            error => error,
        })?;
        for ((leaf, _), places) in request.new_disks.iter().zip(&further) {
            check_room(*leaf, places, growth.after_bytes(), self.label.region_bytes)?;
        }
        let mut next = self.label.clone();
        let entry = |(number, bytes): (usize, &u64)| MemberEntry {
            // Any id will do to check whether the label fits.
            id: Some(MemberId::from_random(number as u64 + 1)),
            data_bytes: *bytes,
            state: MemberState::Spare,
            write_mostly: false,
        };
        next.members.extend(further_bytes.iter().enumerate().map(entry));
        let next = self.grown_label(&next, &growth, &sizes);
        for target in &self.targets {
            self.check_bitmap(target, growth.after_bytes())?;
            let role = target.part.slot;
            let room = places.iter().find(|(of, _)| *of == role).map(|(_, places)| *places);
            let mut target = target.clone();
            let number = usize::from(number_of(&next, target.part.id).unwrap_or(role));
            target.part.layout =
                room.and_then(|room| room.with_data(next.members[number].data_bytes)).unwrap_or(target.part.layout);
            // Refuses what the label cannot hold before the first write.
            target.label(&next).encode().map_err(|error| zones_full(&next.zones, error))?;
        }
        Ok((growth, places))
    }

    fn check_bitmap(&self, target: &Target, after_bytes: u64) -> Result<(), LifecycleError> {
        let (places, region_bytes) = (&target.part.layout, self.label.region_bytes);
        let most = largest_bytes(places, region_bytes);
        if region_bytes == 0 || after_bytes <= most {
            return Ok(());
        }
        let region = format_size(u64::from(region_bytes));
        Err(LifecycleError::NoGrowth {
            leaf: Some(target.leaf),
            reason: format!(
                "it would have {}, and its regions of {region} were chosen when it was created: this disk has room for the bitmap of {} of them",
                format_size(after_bytes),
                format_size(most)
            ),
            remedy: format!(
                "let it grow to {} at most, or copy it to a new array, which has larger regions",
                format_size(most)
            ),
        })
    }

    /// Builds the label of the larger array, except for its sequence number, from a label that names the further
    /// members last. `data_bytes` is indexed by the numbers in that label.
    fn grown_label(&self, named: &ArrayPart, growth: &Growth, data_bytes: &[(u16, u64)]) -> ArrayPart {
        let mut next = named.clone();
        next.zones = zone_table(&growth.geometry);
        next.array_bytes = growth.after_bytes();
        next.jobs.retain(|job| job.kind != JobKind::Grow);
        for (number, data_bytes) in data_bytes {
            if let Some(entry) = next.members.get_mut(usize::from(*number)) {
                entry.data_bytes = *data_bytes;
            }
        }
        let (before, after) = (usize::from(self.slots()), growth.geometry.member_data_bytes().len());
        if after == before {
            return next;
        }
        // Spares make room for further members.
        let mut spares: Vec<MemberEntry> = next.members.drain(before..).collect();
        let further = spares.split_off(spares.len() - (after - before));
        next.members.extend(further.into_iter().map(|entry| MemberEntry { state: MemberState::InSync, ..entry }));
        next.members.extend(spares.into_iter().filter(|entry| entry.state != MemberState::Empty));
        next
    }

    /// Executes all four steps.
    async fn add_space<M: MetaIo>(
        &mut self,
        io: &M,
        newcomers: Vec<Target>,
        places: &[(u16, DiskLayout)],
        growth: &Growth,
    ) -> Result<(), LifecycleError> {
        let old = self.targets.len();
        let mut next = self.next();
        let first = next.members.len() as u16;
        if self.is_redundant() && !newcomers.is_empty() {
            next.jobs.push(Job {
                kind: JobKind::Grow,
                state: JobState::Running,
                target: Some(first),
                source: None,
                number: next.sequence,
                position_bytes: 0,
                end_bytes: growth.after_bytes(),
                rate_bytes_per_s: 0,
            });
        }
        let further = newcomers.len();
        let entries = newcomers.iter().map(|target| MemberEntry {
            id: Some(target.part.id),
            data_bytes: target.part.layout.data.bytes,
            state: MemberState::Spare,
            write_mostly: false,
        });
        next.members.extend(entries);
        self.targets.extend(newcomers);
        let mut vacated = Vec::new();
        for target in &mut self.targets {
            let Some((_, moved)) = places.iter().find(|(role, _)| *role == target.part.slot) else { continue };
            let own = &mut target.part.layout;
            if moved.copy_start > own.data.end().unwrap_or(own.copy_start) {
                // An earlier growth that failed may have moved the copy from the end of the data area to
                // `own.copy_start` already: then both locations are cleared.
                vacated.push((target.leaf, own.data.end().unwrap_or(own.copy_start), moved.copy_start));
                vacated.push((target.leaf, own.copy_start, moved.copy_start));
            }
            if moved.copy_start != own.copy_start {
                *own = *moved;
                target.doubtful = LabelCopy::End;
            }
        }
        self.put(io, next, old).await?;
        vacated.dedup();
        for (leaf, at, copy) in vacated {
            if at != copy {
                let erased = erase_block(io, leaf, at).await;
                self.drop_on_error(io, leaf, erased).await?;
            }
        }
        if self.is_redundant() {
            self.prepare(io, growth, first).await?;
            let present = self.targets.iter().filter(|target| joins(&self.label, target.part.slot)).count();
            if !self.is_whole() || present < further {
                let (reason, remedy) = match self.is_whole() {
                    false => ("a member was lost meanwhile", "bring it back first"),
                    true => ("a further disk failed", "look at that disk, and name another one"),
                };
                let (reason, remedy) = (reason.to_owned(), remedy.to_owned());
                return Err(LifecycleError::NoGrowth { leaf: None, reason, remedy });
            }
        }
        let room: Vec<(u16, u64)> = self.targets.iter().map(|t| (t.part.slot, t.part.layout.room_bytes())).collect();
        let mut next = self.grown_label(&self.label, growth, &room);
        next.sequence = self.label.sequence + 1;
        for target in &mut self.targets {
            let places = &mut target.part.layout;
            *places = places.with_data(places.room_bytes()).unwrap_or(*places);
        }
        self.growing = Some(growth.geometry.clone());
        let recorded = self.put(io, next, old).await;
        // If too few members are left, some may have recorded either size. The array fails, and `growing` stays set: a
        // later drop must be tolerated by both geometries.
        if !matches!(recorded, Err(LifecycleError::BeyondTolerance { .. })) {
            self.growing = None;
        }
        recorded?;
        self.geometry = growth.geometry.clone();
        Ok(())
    }

    /// Writes a label, to the old members first.
    async fn put<M: MetaIo>(&mut self, io: &M, next: ArrayPart, old: usize) -> Result<(), LifecycleError> {
        if self.is_redundant() {
            return self.record(io, next, Losses::default()).await.map(drop);
        }
        for target in &self.targets {
            Label { array: next.clone(), member: target.part.clone() }.encode()?;
        }
        self.written = next.clone();
        let (members, newcomers) = self.targets.split_at_mut(old);
        write_labels(io, members, &next).await?;
        write_labels(io, newcomers, &next).await?;
        self.label = next;
        Ok(())
    }

    /// Prepares the rest of the smaller array's last region and the further bitmap blocks. No other writer touches
    /// these.
    async fn prepare<M: MetaIo>(&mut self, io: &M, growth: &Growth, first: u16) -> Result<(), LifecycleError> {
        let region_bytes = u64::from(self.label.region_bytes.max(1));
        let end = growth.before_bytes.next_multiple_of(region_bytes).min(growth.after_bytes());
        let mut zeros: Vec<(u16, u64, u64)> = Vec::new();
        let mut at = growth.before_bytes;
        // With parity, whole stripes: each belongs to the region in which it begins, and the parity of zeros is zeros.
        while let Some(stripe) = growth.geometry.stripe_of(at).filter(|_| at < end) {
            let pieces = (0..stripe.chunk_bytes).step_by(LEAF_BYTES_MAX as usize);
            zeros.extend(pieces.flat_map(|from| {
                let len = (stripe.chunk_bytes - from).min(LEAF_BYTES_MAX);
                stripe.members.iter().map(move |member| (*member, stripe.member_offset + from, len))
            }));
            at = stripe.array_start + stripe.data_chunks() as u64 * stripe.chunk_bytes;
        }
        while at < end {
            let mut len = (end - at).min(LEAF_BYTES_MAX);
            growth.geometry.copies(at, &mut |piece| len = len.min(piece.len));
            growth.geometry.copies(at, &mut |piece| zeros.push((piece.member, piece.member_offset, len)));
            at += len;
        }
        // The current number of a slot of the larger array.
        let roles = self.slots();
        let number = |role: u16| if role < roles { role } else { first + (role - roles) };
        for (role, member_offset, len) in zeros {
            let Some(target) = self.targets.iter().find(|target| target.part.slot == number(role)) else { continue };
            let (leaf, offset) = (target.leaf, target.part.layout.data.start + member_offset);
            let zeroed = io.write(leaf, offset, vec![0; len as usize], false).await;
            let zeroed =
                zeroed.map_err(|source| LifecycleError::Io { leaf, action: "zero what is new", offset, source });
            self.drop_on_error(io, leaf, zeroed).await?;
        }
        let members: Vec<Target> =
            self.targets.iter().filter(|target| target.part.slot < self.slots()).cloned().collect();
        for target in members {
            let mut done = write_further(io, &self.label, &target, growth.after_bytes()).await;
            if done.is_ok() {
                done = flush(io, target.leaf).await;
            }
            self.drop_on_error(io, target.leaf, done).await?;
        }
        let larger = ArrayPart { array_bytes: growth.after_bytes(), ..self.label.clone() };
        let newcomers: Vec<Target> = self.targets.iter().filter(|t| joins(&self.label, t.part.slot)).cloned().collect();
        for target in newcomers {
            let leaf = target.leaf;
            let ready = async {
                write_empty(io, &larger, std::slice::from_ref(&target)).await?;
                journal::erase_heads(io, &self.label, &target).await?;
                journal::give_newest(io, self, &target).await?;
                flush(io, leaf).await
            };
            let ready = ready.await;
            self.drop_on_error(io, leaf, ready).await?;
        }
        Ok(())
    }

    /// Drops the member of a redundant array whose I/O failed.
    async fn drop_on_error<M: MetaIo>(
        &mut self,
        io: &M,
        leaf: LeafId,
        result: Result<(), LifecycleError>,
    ) -> Result<(), LifecycleError> {
        let role = self.targets.iter().find(|target| target.leaf == leaf).map(|target| target.part.slot);
        if let (Err(_), Some(role), true) = (&result, role, self.is_redundant()) {
            self.drop_members(io, &[role]).await?;
        }
        result
    }

    /// Undoes a failed growth: the labels record the smaller array again, and the labels of the further disks are
    /// erased. If a member cannot be written, the next change or the next start does this. In any case the further
    /// disks are no longer in `targets` when this returns, because their numbers are reused.
    async fn undo_growth<M: MetaIo>(&mut self, io: &M) {
        if self.is_redundant() {
            if self.complete(io).await.is_err() || joining_from(&self.label).is_none() {
                return;
            }
            let (newcomers, members) =
                std::mem::take(&mut self.targets).into_iter().partition(|t| joins(&self.label, t.part.slot));
            self.targets = members;
            // Erased while the labels of the array still name these disks: after the next label, no start would find
            // them to erase their labels.
            let newcomers: Vec<Target> = newcomers;
            drop(join_all(newcomers.iter().map(|target| wipe(io, target.leaf))).await);
            // If this change fails, the array has failed; the next start removes the disks from the member table.
            let _ = self.change(io, forget_joining).await;
            return;
        }
        let roles = self.slots();
        let is_new = |target: &Target| target.part.slot >= roles;
        let newcomers: Vec<Target> = self.targets.iter().filter(|t| is_new(t)).cloned().collect();
        self.targets.retain(|target| !is_new(target));
        if self.catch_up(io).await.is_ok()
            && self.change(io, |label| label.members.truncate(usize::from(roles))).await.is_ok()
        {
            drop(join_all(newcomers.iter().map(|target| wipe(io, target.leaf))).await);
        }
    }

    /// Removes the disks of an earlier failed growth from the member table, if `undo_growth` could not write the label
    /// without them.
    fn forget_newcomers(&mut self) {
        let roles = self.slots();
        self.label.members.truncate(usize::from(roles));
    }

    /// Zeroes the copies of labels that an interrupted growth has left: at the end of the data area below the copy, and
    /// at the end of a disk whose label did not move. Nothing depends on it; errors are ignored.
    pub(super) async fn clear_old_copies<M: MetaIo>(&self, io: &M) {
        let clear = |target: &Target| {
            let (leaf, id, places) = (target.leaf, target.part.id, target.part.layout);
            let last = copy_offset(io.size_bytes(leaf)).filter(|last| *last > places.copy_start);
            let below = places.data.end().filter(|end| *end < places.copy_start);
            async move {
                for at in below.into_iter().chain(last) {
                    let block = io.read(leaf, at, BLOCK_BYTES as usize).await.unwrap_or_default();
                    // The first sector of a torn label still identifies its member.
                    let header =
                        Label::decode(&block).map(|label| label.header()).ok().or_else(|| Header::decode(&block));
                    if header.is_some_and(|header| (header.uuid, header.id) == (self.uuid(), id)) {
                        let _ = erase_block(io, leaf, at).await;
                    }
                }
                Ok::<(), LifecycleError>(())
            }
        };
        let _ = try_join_all(self.targets.iter().map(clear)).await;
    }
}

/// Reports that a label cannot hold that many zones.
fn zones_full(zones: &[ZoneSpan], error: braid_format::LabelError) -> LifecycleError {
    match &error {
        braid_format::LabelError::Field { field: "zone_count", reason } => LifecycleError::NoGrowth {
            leaf: None,
            reason: format!("it would have {} zones: {reason}", zones.len()),
            remedy: "make all of its disks larger at once, so that the last zone becomes higher".to_owned(),
        },
        _ => error.into(),
    }
}

//! Growing: an array takes up members that have become larger, and, without redundancy, further disks. No byte moves.
//!
//! | step | on the disks, when it is done |
//! |---|---|
//! | 1: label n + 1 | the copy of the label of every disk that has become larger is at its end now; further disks are named, bear the label, and hold nothing yet |
//! | 2: zeros | no label is left where the copies were |
//! | 3: redundant arrays | what the larger array has beyond the smaller in the last region is zeros on all members, and the further blocks of the bitmap are empty |
//! | 4: label n + 2 | larger data areas, the zones, the size; further disks are members |
//!
//! Each is durable before the next begins, and the new room is used when the last is. Until some label n + 2 is written the
//! array is the smaller one; from then on every member that it needs bears n + 1 at least, has room for what n + 2 says, and
//! the next start completes it. Before that, a start leaves the further disks out again. In every label old members come
//! first, further disks last.
//!
//! A copy moves by being written in its new place before the label at the start of the disk says so: until then the copy in
//! the old place is the one that counts.

use braid_format::{
    ArrayPart, BLOCK_BYTES, Header, Label, MEMBERS_MAX, MemberEntry, MemberId, MemberState, Places, ZoneSpan,
    copy_offset, zone_table,
};
use braid_geometry::units::format_size;
use braid_geometry::{Geometry, GeometryError};

use super::array::Array;
use super::bitmap::{largest_bytes, write_further};
use super::erase::wipe;
use super::error::LifecycleError;
use super::join::{join_all, try_join_all};
use super::planted::{Planted, planted};
use super::record::Losses;
use super::redundant::is_redundant;
use super::write::{LabelCopy, Target, erase_block, flush, write_labels};
use crate::io::LEAF_BYTES_MAX;
use crate::{LeafId, MetaIo};

/// What an array is to take up, beside what its members have gained.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GrowRequest {
    /// Disks that become members, each with the identity that it gets: random. Only at levels without redundancy.
    pub newcomers: Vec<(LeafId, MemberId)>,
    /// Overwrite what is on them; let a mirror grow although its new zones have fewer copies than the old ones.
    pub force: bool,
}

/// What growing gives.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The array's size before, in bytes.
    pub before_bytes: u64,
    /// Where every byte lives afterwards.
    pub geometry: Geometry,
}

impl Growth {
    /// The array's size afterwards, in bytes.
    pub fn after_bytes(&self) -> u64 {
        self.geometry.size_bytes()
    }
}

/// What an array would be with data areas of these sizes, by role, those of further members last; roles that are not named
/// keep theirs. Touches nothing. `force` as in [`GrowRequest`].
///
/// # Errors
/// [`LifecycleError::NoGrowth`] where that gives nothing or is not possible, with what would help.
pub fn plan_growth(label: &ArrayPart, data_bytes: &[(u16, u64)], force: bool) -> Result<Growth, LifecycleError> {
    let before = label.geometry()?;
    let mut sizes = before.members().to_vec();
    for (role, bytes) in data_bytes {
        let (role, known) = (usize::from(*role), sizes.len());
        match sizes.get_mut(role) {
            Some(size) => *size = *bytes,
            None if role == known && !is_redundant(label.spec.level) => sizes.push(*bytes),
            // A spare.
            None => {}
        }
    }
    let geometry = match before.grown(&sizes) {
        Ok(geometry) => geometry,
        Err(error @ GeometryError::NoGrowth { single_zone, .. }) => {
            let remedy = match (is_redundant(label.spec.level), single_zone) {
                (false, false) => "make a disk of it larger, or name a new one",
                (_, true) => "make all of its disks larger",
                (true, false) if label.spec.level.parity() > 0 => {
                    "make two or more of its disks larger, at raid6 three: as many as a zone needs"
                }
                (true, false) => "make two or more of its disks larger, as many as each byte has copies",
            };
            return Err(LifecycleError::NoGrowth { leaf: None, reason: error.to_string(), remedy: remedy.to_owned() });
        }
        Err(error) => return Err(error.into()),
    };
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
            remedy: "make more of its disks larger, or take it as it is with --force".to_owned(),
        });
    }
    Ok(Growth { before_bytes: before.size_bytes(), geometry })
}

impl Array {
    /// Takes up what members have gained, and further disks. Writes to the array may go on meanwhile; when this returns the
    /// larger array may be served.
    ///
    /// # Errors
    /// What was refused, before anything was written; or a disk's error. Then the array is as it was: a redundant one has
    /// dropped the member that failed, any other has given up the further disks, as far as its own can be written.
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
        for (leaf, id) in &request.newcomers {
            let target = self.new_member(io, *leaf, *id, 0, "a further member".to_owned(), request.force).await?;
            newcomers.push(target);
        }
        for (target, role) in newcomers.iter_mut().zip(self.roles()..) {
            target.part.role = role;
        }
        let grown = self.take_up(io, newcomers, &places, &growth).await;
        if grown.is_err() && !self.is_redundant() {
            self.take_back(io).await;
        }
        grown.map(|()| growth)
    }

    fn check_may_grow(&self, request: &GrowRequest) -> Result<(), LifecycleError> {
        let no = |leaf: Option<LeafId>, reason: &str, remedy: &str| {
            Err(LifecycleError::NoGrowth { leaf, reason: reason.to_owned(), remedy: remedy.to_owned() })
        };
        if self.is_redundant() {
            if let Some((leaf, _)) = request.newcomers.first() {
                return no(
                    Some(*leaf),
                    "a further disk gives an array with redundancy no room without moving what it holds",
                    "make its disks larger; as a spare a further disk takes over when one fails",
                );
            }
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
        if usize::from(self.roles()) + request.newcomers.len() > MEMBERS_MAX {
            let reason = format!("an array has at most {MEMBERS_MAX} members");
            return no(None, &reason, "make its disks larger");
        }
        match request.newcomers.iter().enumerate().find(|(i, new)| request.newcomers[..*i].iter().any(|o| o.0 == new.0))
        {
            Some((_, (leaf, _))) => Err(LifecycleError::Twice { leaf: *leaf }),
            None => Ok(()),
        }
    }

    /// What comes of it, and where everything is then on the disks that are members now. Touches nothing.
    fn plan<M: MetaIo>(&self, io: &M, request: &GrowRequest) -> Result<(Growth, Vec<(u16, Places)>), LifecycleError> {
        let mut places = Vec::with_capacity(self.targets.len());
        for target in &self.targets {
            let own = &target.part.places;
            let moved = own.on_larger(io.size_bytes(target.leaf)).unwrap_or(*own);
            places.push((target.part.role, moved));
        }
        let mut sizes: Vec<(u16, u64)> = places.iter().map(|(role, places)| (*role, places.room_bytes())).collect();
        for ((leaf, _), role) in request.newcomers.iter().zip(self.roles()..) {
            let leaf = *leaf;
            let places = Places::for_device(io.size_bytes(leaf));
            let places = places.map_err(|source| LifecycleError::Size { leaf, source })?;
            sizes.push((role, places.data.bytes));
        }
        let growth = plan_growth(&self.label, &sizes, request.force).map_err(|error| match error {
            LifecycleError::Geometry(GeometryError::MemberTooSmall { member, data_bytes, needed_bytes }) => {
                let leaf = member.checked_sub(usize::from(self.roles())).and_then(|k| request.newcomers.get(k));
                match leaf.map(|new| new.0).or_else(|| self.leaf(member as u16)) {
                    Some(leaf) => {
                        let what = if member < usize::from(self.roles()) { "what it holds" } else { "one chunk" };
                        LifecycleError::TooSmall { leaf, what: what.to_owned(), data_bytes, needed_bytes }
                    }
                    None => error,
                }
            }
            error => error,
        })?;
        let next = self.grown_label(&growth, &sizes);
        for target in &self.targets {
            self.check_bitmap(target, growth.after_bytes())?;
            let role = usize::from(target.part.role);
            let area = |(_, places): &(u16, Places)| places.with_data(next.members[role].data_bytes);
            let area = places.iter().find(|(of, _)| usize::from(*of) == role).and_then(area);
            let mut part = target.part.clone();
            part.places = area.unwrap_or(part.places);
            // Refuses before the first write what the label cannot hold.
            Label { array: next.clone(), member: part }.encode().map_err(|error| zones_full(&next.zones, error))?;
        }
        Ok((growth, places))
    }

    fn check_bitmap(&self, target: &Target, after_bytes: u64) -> Result<(), LifecycleError> {
        let (places, region_bytes) = (&target.part.places, self.label.region_bytes);
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

    /// The label of the larger array, without its number; further members are there.
    fn grown_label(&self, growth: &Growth, data_bytes: &[(u16, u64)]) -> ArrayPart {
        let mut next = self.label.clone();
        next.zones = zone_table(&growth.geometry);
        next.array_bytes = growth.after_bytes();
        for (role, data_bytes) in data_bytes {
            match next.members.get_mut(usize::from(*role)) {
                Some(entry) => entry.data_bytes = *data_bytes,
                None => next.members.push(MemberEntry {
                    // Any will do to see whether the label can hold it.
                    id: Some(MemberId::from_random(u64::from(*role) + 1)),
                    data_bytes: *data_bytes,
                    state: MemberState::Spare,
                    write_mostly: false,
                }),
            }
        }
        next
    }

    /// All four steps.
    async fn take_up<M: MetaIo>(
        &mut self,
        io: &M,
        newcomers: Vec<Target>,
        places: &[(u16, Places)],
        growth: &Growth,
    ) -> Result<(), LifecycleError> {
        let old = self.targets.len();
        let mut next = self.next();
        let entries = newcomers.iter().map(|target| MemberEntry {
            id: Some(target.part.id),
            data_bytes: target.part.places.data.bytes,
            state: MemberState::Spare,
            write_mostly: false,
        });
        next.members.extend(entries);
        self.targets.extend(newcomers);
        let mut vacated = Vec::new();
        for target in &mut self.targets {
            let Some((_, moved)) = places.iter().find(|(role, _)| *role == target.part.role) else { continue };
            let own = &mut target.part.places;
            if moved.copy_start > own.data.end().unwrap_or(own.copy_start) {
                // Both are one place, unless this was begun before.
                vacated.push((target.leaf, own.data.end().unwrap_or(own.copy_start), moved.copy_start));
                vacated.push((target.leaf, own.copy_start, moved.copy_start));
            }
            if moved.copy_start != own.copy_start {
                *own = *moved;
                target.doubtful = if planted(Planted::CopyMovedFirst) { LabelCopy::Start } else { LabelCopy::End };
            }
        }
        if !planted(Planted::GrownBeforeNewcomers) {
            self.put(io, next.clone(), old).await?;
        } else {
            self.label = ArrayPart { sequence: self.label.sequence, ..next };
        }
        vacated.dedup();
        for (leaf, at, copy) in vacated {
            if at != copy && !planted(Planted::OldCopyLeft) {
                let erased = erase_block(io, leaf, at).await;
                self.unless_failed(io, leaf, erased).await?;
            }
        }
        if self.is_redundant() {
            self.prepare(io, growth).await?;
            if !self.is_whole() {
                let reason = "a member was lost meanwhile".to_owned();
                return Err(LifecycleError::NoGrowth { leaf: None, reason, remedy: "bring it back first".to_owned() });
            }
        }
        let room: Vec<(u16, u64)> = self.targets.iter().map(|t| (t.part.role, t.part.places.room_bytes())).collect();
        let mut next = self.grown_label(growth, &room);
        next.sequence = self.label.sequence + 1;
        let seats = growth.geometry.members().len();
        for (role, entry) in next.members.iter_mut().take(seats).enumerate() {
            entry.state = if role < usize::from(self.roles()) { entry.state } else { MemberState::InSync };
        }
        for target in &mut self.targets {
            let places = &mut target.part.places;
            *places = places.with_data(places.room_bytes()).unwrap_or(*places);
        }
        self.growing = Some(growth.geometry.clone());
        let recorded = self.put(io, next, old).await;
        // Where too few members are left to say either, the array is frozen: who may be left out is judged by both.
        if !matches!(recorded, Err(LifecycleError::Beyond { .. })) {
            self.growing = None;
        }
        recorded?;
        self.geometry = growth.geometry.clone();
        Ok(())
    }

    /// Writes a label: on those first that were members before.
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

    /// What the larger array has in the last region of the smaller one, and the further blocks of the bitmap: nobody else
    /// writes there.
    async fn prepare<M: MetaIo>(&mut self, io: &M, growth: &Growth) -> Result<(), LifecycleError> {
        let region_bytes = u64::from(self.label.region_bytes.max(1));
        let end = growth.before_bytes.next_multiple_of(region_bytes).min(growth.after_bytes());
        let mut zeros: Vec<(u16, u64, u64)> = Vec::new();
        let mut at = growth.before_bytes;
        // With parity, whole stripes: each belongs to the region in which it begins, and zeros have zeros for parity.
        while let Some(stripe) = growth.geometry.stripe_of(at).filter(|_| at < end) {
            let pieces = (0..stripe.chunk_bytes).step_by(LEAF_BYTES_MAX as usize);
            zeros.extend(pieces.flat_map(|from| {
                let len = (stripe.chunk_bytes - from).min(LEAF_BYTES_MAX);
                stripe.members.iter().map(move |member| (*member, stripe.member_offset + from, len))
            }));
            at = stripe.array_start + stripe.data_chunks() as u64 * stripe.chunk_bytes;
        }
        if planted(Planted::GrownTailNotZeroed) {
            zeros.clear();
        }
        while at < end && !planted(Planted::GrownTailNotZeroed) {
            let mut len = (end - at).min(LEAF_BYTES_MAX);
            growth.geometry.copies(at, &mut |piece| len = len.min(piece.len));
            growth.geometry.copies(at, &mut |piece| zeros.push((piece.member, piece.member_offset, len)));
            at += len;
        }
        for (role, member_offset, len) in zeros {
            let Some(target) = self.targets.iter().find(|target| target.part.role == role) else { continue };
            let (leaf, offset) = (target.leaf, target.part.places.data.start + member_offset);
            let zeroed = io.write(leaf, offset, vec![0; len as usize], false).await;
            let zeroed =
                zeroed.map_err(|source| LifecycleError::Io { leaf, action: "zero what is new", offset, source });
            self.unless_failed(io, leaf, zeroed).await?;
        }
        let members: Vec<Target> =
            self.targets.iter().filter(|target| target.part.role < self.roles()).cloned().collect();
        for target in members {
            let mut done = Ok(());
            if !planted(Planted::GrownBitmapNotWritten) {
                done = write_further(io, &self.label, &target, growth.after_bytes()).await;
            }
            if done.is_ok() {
                done = flush(io, target.leaf).await;
            }
            self.unless_failed(io, target.leaf, done).await?;
        }
        Ok(())
    }

    /// A member of a redundant array that fails meanwhile is dropped.
    async fn unless_failed<M: MetaIo>(
        &mut self,
        io: &M,
        leaf: LeafId,
        result: Result<(), LifecycleError>,
    ) -> Result<(), LifecycleError> {
        let role = self.targets.iter().find(|target| target.leaf == leaf).map(|target| target.part.role);
        if let (Err(_), Some(role), true) = (&result, role, self.is_redundant()) {
            self.drop_members(io, &[role]).await?;
        }
        result
    }

    /// A growth that failed on the way is undone where there is no redundancy: labels say the smaller array again, and the
    /// further disks bear none. As far as the members can be written; else the next change and the next start do it. Whatever
    /// comes of it, the further disks are nobody's when this returns: their numbers are given to others.
    async fn take_back<M: MetaIo>(&mut self, io: &M) {
        let roles = self.roles();
        let is_new = |target: &Target| target.part.role >= roles;
        let newcomers: Vec<Target> = self.targets.iter().filter(|t| is_new(t)).cloned().collect();
        self.targets.retain(|target| !is_new(target));
        if self.catch_up(io).await.is_ok()
            && self.change(io, |label| label.members.truncate(usize::from(roles))).await.is_ok()
        {
            drop(join_all(newcomers.iter().map(|target| wipe(io, target.leaf))).await);
        }
    }

    /// Disks of a growth that failed before, and that could not be taken off the table then.
    fn forget_newcomers(&mut self) {
        let roles = self.roles();
        self.label.members.truncate(usize::from(roles));
    }

    /// Zeroes copies of labels that a growth has left behind which was interrupted: where the data area ends below the copy,
    /// and at the end of a disk whose label stayed where it was. Nothing depends on it; what fails is left.
    pub(super) async fn clear_old_copies<M: MetaIo>(&self, io: &M) {
        let clear = |target: &Target| {
            let (leaf, id, places) = (target.leaf, target.part.id, target.part.places);
            let last = copy_offset(io.size_bytes(leaf)).filter(|last| *last > places.copy_start);
            let below = places.data.end().filter(|end| *end < places.copy_start);
            async move {
                for at in below.into_iter().chain(last) {
                    let block = io.read(leaf, at, BLOCK_BYTES as usize).await.unwrap_or_default();
                    // One that was torn says in its first sector whose it was going to be.
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

/// More zones than a label holds.
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

//! Parts of jobs on stripes, and the content of the disks.

use braid_engine::*;
use braid_parity::Parity;

use super::rig::{BLOCK, REQUESTS_BYTES, Random, Rig};

impl Rig {
    /// Rebuilds a member that holds something else, stripe by stripe, while requests continue.
    pub fn rebuild(&mut self, member: usize) {
        self.fill(member);
        self.promote(member);
        self.settle();
    }

    /// Rebuilds a member as [`Rig::rebuild`] does, without making it in sync.
    pub fn fill(&mut self, member: usize) {
        self.hanging = None;
        let mut noise = Random(member as u64 + 1);
        let data = self.data_bytes(member);
        self.disks[member][..data as usize].fill_with(|| noise.below(256) as u8);
        self.roles[member] = MemberRole::Rebuilding;
        self.publish();
        let to = MemberSet::NONE.with(member);
        for row in 0..self.rows() {
            let (data, cells) = self.cells_of_stripe(row);
            self.sync(row, SyncKind::Rebuild { to, avoid: MemberSet::NONE, data, cells });
            if row % 3 == 0 {
                self.requests(1);
            }
        }
        self.settle();
    }

    /// Copies everything of a member to a further disk, then drops the member: the disk does not have its slot yet.
    pub fn replace(&mut self, role: usize) {
        self.begin_replacing(role);
        self.drop_member(role);
        self.settle();
    }

    /// Copies everything of a member to a further disk, which then serves beside it. Returns its index.
    pub fn begin_replacing(&mut self, role: usize) -> usize {
        let member = self.roles.len();
        self.disks.push(self.disks[role].clone());
        self.roles.push(MemberRole::Rebuilding);
        self.successors.push(Successor { role: role as u16, member: member as u16 });
        self.rebuild(member);
        member
    }

    /// Lets the only successor take the slot of its failed member.
    pub fn give_slot(&mut self) {
        let Successor { role, member } = self.successors.pop().expect("a successor");
        self.taken_over = Some((role.into(), member.into()));
        self.publish();
    }

    pub fn rows_of_stripe(&self) -> u64 {
        let chunk = self.shape.chunk_blocks * BLOCK;
        chunk / u64::from(braid_format::journal::stripe_bytes(chunk as u32))
    }

    pub fn rows(&self) -> u64 {
        self.geometry.stripes() * self.rows_of_stripe()
    }

    pub fn cells_of_stripe(&self, row: u64) -> (u16, u16) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        (stripe.data_chunks() as u16, stripe.members.len() as u16)
    }

    /// Runs a part of a job on a whole stripe to its end. Returns which of its blocks differed.
    pub fn sync(&mut self, row: u64, kind: SyncKind) -> u64 {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let (data, height) = (stripe.data_chunks() as u64, stripe.chunk_bytes / self.rows_of_stripe());
        let offset = stripe.array_start + row % self.rows_of_stripe() * height * data;
        let buf = Buf { addr: REQUESTS_BYTES - (1 << 20), region: Buf::UNREGISTERED };
        let shard = self.random.below(self.shards.len() as u64) as usize;
        let request = SyncRequest { device: DeviceId(0), offset, len: height * data, kind, buf, tag: row };
        let (of, sink) = &mut self.shards[shard];
        of.submit_sync(&request, sink).expect("a part that is sound");
        loop {
            if let Some(done) = self.shards[shard].0.pop_sync_done() {
                assert_eq!((done.tag, done.result), (row, Ok(())));
                return done.compared.differing;
            }
            assert!(self.step(), "a part of a job was never answered");
        }
    }

    /// Begins to compare a stripe with its parity, on the first shard.
    pub fn begin_verify(&mut self, row: u64) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let (data, height) = (stripe.data_chunks() as u64, stripe.chunk_bytes / self.rows_of_stripe());
        let offset = stripe.array_start + row % self.rows_of_stripe() * height * data;
        let buf = Buf { addr: REQUESTS_BYTES - (1 << 20), region: Buf::UNREGISTERED };
        let kind = SyncKind::VerifyStripe { data: data as u16, cells: stripe.members.len() as u16 };
        let request = SyncRequest { device: DeviceId(0), offset, len: height * data, kind, buf, tag: row };
        let (shard, sink) = &mut self.shards[0];
        shard.submit_sync(&request, sink).expect("a part that is sound");
    }

    /// Returns whether that has ended since.
    pub fn verified(&mut self) -> bool {
        self.shards[0].0.pop_sync_done().is_some_and(|done| done.result == Ok(()) && done.compared.differing == 0)
    }

    /// Changes a byte of a block of a cell of a stripe, as bit rot would. Cells are data first, then P, then Q.
    pub fn rot(&mut self, row: u64, cell: u16, block: u64) {
        let (member, at) = self.place_of(row, cell, block);
        self.disks[member][at + 77] ^= 0x5a;
    }

    /// Returns a block of a cell as it is on its disk.
    pub fn block_of(&self, row: u64, cell: u16, block: u64) -> Vec<u8> {
        let (member, at) = self.place_of(row, cell, block);
        self.disks[member][at..at + BLOCK as usize].to_vec()
    }

    fn place_of(&self, row: u64, cell: u16, block: u64) -> (usize, usize) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let member = match usize::from(cell).checked_sub(stripe.data_chunks()) {
            None => stripe.data(usize::from(cell)),
            Some(0) => stripe.p(),
            Some(_) => stripe.q().expect("a second parity"),
        };
        let height = stripe.chunk_bytes / self.rows_of_stripe();
        let at = stripe.member_offset + row % self.rows_of_stripe() * height + block * BLOCK;
        (usize::from(member), at as usize)
    }

    /// Checks that every stripe of every written region agrees with its parity, as far as its cells are present.
    pub fn check_parity(&self) {
        let mut rows = 0;
        for number in 0..self.geometry.stripes() {
            let stripe = self.geometry.stripe(number).expect("a stripe");
            let region = self.regions.region_of(stripe.array_start);
            let in_sync = |member: &usize| self.roles[*member] == MemberRole::InSync;
            let holder = |role: u16| self.holders(usize::from(role)).find(in_sync);
            let here = stripe.members.iter().all(|member| holder(*member).is_some());
            if !here || !self.regions.written.has(region) {
                continue;
            }
            let cell = |role: u16| {
                let disk = &self.disks[holder(role).expect("it was just found")];
                &disk[stripe.member_offset as usize..][..stripe.chunk_bytes as usize]
            };
            let data: Vec<&[u8]> = (0..stripe.data_chunks()).map(|index| cell(stripe.data(index))).collect();
            let (mut p, mut q) = (vec![0; cell(stripe.p()).len()], vec![0; cell(stripe.p()).len()]);
            Parity::best().pq(&mut p, &mut q, &data);
            assert!(p == cell(stripe.p()), "P of stripe {number}, {}", self.run);
            if let Some(member) = stripe.q() {
                assert!(q == cell(member), "Q of stripe {number}, {}", self.run);
            }
            rows += 1;
        }
        assert!(rows > 0 || self.roles.contains(&MemberRole::Failed), "no stripe was checked");
    }
}

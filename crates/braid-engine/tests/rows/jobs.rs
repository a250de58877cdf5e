//! Parts of jobs on rows, and what stands on the disks.

use braid_engine::*;
use braid_parity::Parity;

use super::rig::{BLOCK, REQUESTS_BYTES, Random, Rig};

impl Rig {
    /// A member that holds something else is filled row by row, while requests go on.
    pub fn refill(&mut self, member: usize) {
        self.fill(member);
        self.promote(member);
        self.settle();
    }

    /// The same, and it is not in sync yet.
    pub fn fill(&mut self, member: usize) {
        self.hanging = None;
        let mut noise = Random(member as u64 + 1);
        let data = self.data_bytes(member);
        self.disks[member][..data as usize].fill_with(|| noise.below(256) as u8);
        self.roles[member] = Role::Filling;
        self.publish();
        let to = Roles::NONE.with(member);
        for row in 0..self.rows() {
            let (data, cells) = self.cells_of_row(row);
            self.sync(row, SyncKind::Restore { to, avoid: Roles::NONE, data, cells });
            if row % 3 == 0 {
                self.requests(1);
            }
        }
        self.settle();
    }

    /// A further disk gets all that a member has, which then is out: its seat is not given to the disk yet.
    pub fn replace(&mut self, role: usize) {
        self.begin_replacing(role);
        self.leave_out(role);
        self.settle();
    }

    /// A further disk gets all that a member has, and serves beside it: its number.
    pub fn begin_replacing(&mut self, role: usize) -> usize {
        let member = self.roles.len();
        self.disks.push(self.disks[role].clone());
        self.roles.push(Role::Filling);
        self.successors.push(Successor { role: role as u16, member: member as u16 });
        self.refill(member);
        member
    }

    /// The only successor takes the place of its member, which is out.
    pub fn seat(&mut self) {
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

    pub fn cells_of_row(&self, row: u64) -> (u16, u16) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        (stripe.data_chunks() as u16, stripe.members.len() as u16)
    }

    /// A part of a job on a whole row, to its end: which of its blocks differed.
    pub fn sync(&mut self, row: u64, kind: SyncKind) -> u64 {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let (data, height) = (stripe.data_chunks() as u64, stripe.chunk_bytes / self.rows_of_stripe());
        let offset = stripe.array_start + row % self.rows_of_stripe() * height * data;
        let buf = Buf { addr: REQUESTS_BYTES - (1 << 20), region: Buf::UNREGISTERED };
        let shard = self.random.below(self.shards.len() as u64) as usize;
        let request = SyncRequest { device: DeviceId(0), offset, len: height * data, kind, buf, tag: row };
        let (of, sink) = &mut self.shards[shard];
        of.sync(&request, sink).expect("a part that is sound");
        loop {
            if let Some(done) = self.shards[shard].0.pop_sync_done() {
                assert_eq!((done.tag, done.result), (row, Ok(())));
                return done.compared.differing;
            }
            assert!(self.step(), "a part of a job was never answered");
        }
    }

    /// Begins to compare a row with its parity, on the first shard.
    pub fn begin_verify(&mut self, row: u64) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let (data, height) = (stripe.data_chunks() as u64, stripe.chunk_bytes / self.rows_of_stripe());
        let offset = stripe.array_start + row % self.rows_of_stripe() * height * data;
        let buf = Buf { addr: REQUESTS_BYTES - (1 << 20), region: Buf::UNREGISTERED };
        let kind = SyncKind::Verify { data: data as u16, cells: stripe.members.len() as u16 };
        let request = SyncRequest { device: DeviceId(0), offset, len: height * data, kind, buf, tag: row };
        let (shard, sink) = &mut self.shards[0];
        shard.sync(&request, sink).expect("a part that is sound");
    }

    /// Whether that has ended since.
    pub fn verified(&mut self) -> bool {
        self.shards[0].0.pop_sync_done().is_some_and(|done| done.result == Ok(()) && done.compared.differing == 0)
    }

    /// Changes a byte of a block of a cell of a row, as rot would. Cells are data first, then P, then Q.
    pub fn rot(&mut self, row: u64, cell: u16, block: u64) {
        let (member, at) = self.place_of(row, cell, block);
        self.disks[member][at + 77] ^= 0x5a;
    }

    /// A block of a cell as it stands on its disk.
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

    /// Every row of every region that was written agrees with its parity, as far as its cells are here.
    pub fn check_parity(&self) {
        let mut rows = 0;
        for number in 0..self.geometry.stripes() {
            let stripe = self.geometry.stripe(number).expect("a stripe");
            let region = self.regions.region_of(stripe.array_start);
            let in_sync = |member: &usize| self.roles[*member] == Role::InSync;
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
        assert!(rows > 0 || self.roles.contains(&Role::Out), "no row was looked at");
    }
}

//! Repairs read errors: only the blocks that a member cannot read are rewritten from another member. Copies may differ
//! unnoticed: to rewrite readable blocks as well could replace the right copy by a wrong one.

use braid_engine::{COMPARE_BLOCK_BYTES, ErrorKind, Fault, LeafId, MemberSet, Op, SyncKind, SyncPart};

use super::{Reconciler, ReconcilerEvent, ReconcilerIo};

/// Maximum number of read errors waiting for repair; further ones are found again.
const REREADS_MAX: usize = 64;
/// Bytes of one read that probes whether blocks can be read.
const PROBE_BYTES: u64 = 64 << 10;

impl Reconciler {
    /// Queues the read errors of these members during a copy for repair, as if a user's read had met them.
    pub(super) fn reread_later(&mut self, failed: MemberSet, offset: u64, len: u64) {
        if failed.is_empty() || self.reread.len() >= REREADS_MAX {
            return;
        }
        let of = |(role, leaf): (u16, LeafId)| Fault {
            device: self.options.device,
            version: 0,
            role,
            leaf,
            op: Op::Read,
            kind: ErrorKind::Io,
            errno: 0,
            offset,
            len,
        };
        let some: Vec<Fault> =
            self.serving().into_iter().filter(|(role, _)| failed.has(usize::from(*role))).map(of).collect();
        self.reread.extend(some);
    }

    /// Rewrites what a member cannot read from another member. If that fails, the next read reports it again.
    pub(super) async fn repair<I: ReconcilerIo>(&self, io: &I, trouble: &Fault) {
        let mut at = trouble.offset & !(COMPARE_BLOCK_BYTES - 1);
        let end = (trouble.offset + trouble.len).next_multiple_of(COMPARE_BLOCK_BYTES);
        let end = end.min(self.array.geometry().size_bytes());
        let Some(role) = self.faulty_member(trouble) else { return };
        if self.has_parity() {
            return self.repair_stripes(io, trouble, role).await;
        }
        let Some(data_start) = self.members().get(usize::from(role)).map(|member| member.start) else { return };
        while at < end {
            let (mut len, mut place, mut sources) = ((end - at).min(PROBE_BYTES), None, Vec::new());
            self.copies(at, &mut |piece| {
                len = len.min(piece.len);
                if piece.member == role {
                    place = Some(data_start + piece.member_offset);
                } else if self.in_sync().has(usize::from(piece.member)) {
                    sources.push(piece.member);
                }
            });
            let region = self.regions.region_of(at);
            let counts = self.regions.written.has(region) && !self.regions.unequal.has(region);
            if let Some(place) = place.filter(|_| counts)
                && !can_read(io, trouble.leaf, place, len).await
            {
                for skip in (0..len).step_by(COMPARE_BLOCK_BYTES as usize) {
                    let some = (len - skip).min(COMPARE_BLOCK_BYTES);
                    if !can_read(io, trouble.leaf, place + skip, some).await {
                        self.rewrite(io, role, at + skip, some, &sources).await;
                    }
                }
            }
            at += len;
        }
    }

    /// Copies a block to a member, from the first source that can read it.
    async fn rewrite<I: ReconcilerIo>(&self, io: &I, role: u16, offset: u64, len: u64, sources: &[u16]) {
        let (device, to) = (self.options.device, MemberSet::NONE.with(usize::from(role)));
        for from in sources {
            let part = SyncPart { device, offset, len, kind: SyncKind::Copy { from: *from, to } };
            if io.sync(part).await.is_ok() {
                return io.report(device, ReconcilerEvent::Repaired(role, offset, len));
            }
        }
    }
}

/// Whether a disk can read these bytes, which need not be whole blocks.
async fn can_read<I: ReconcilerIo>(io: &I, leaf: LeafId, offset: u64, len: u64) -> bool {
    let len = len.next_multiple_of(COMPARE_BLOCK_BYTES);
    io.read(leaf, offset, len as usize).await.is_ok()
}

//! Builds batches: the entries requested since the previous one, in memory of their own, with checksums.

use braid_format::journal::{ENTRIES_MAX, EntryKind, JournalBatchHeader, JournalEntry, encode_batch, payload_crc};

use crate::io::{Buf, DeviceId, LeafSink};
use crate::layout::DeviceLayout;
use crate::parity::LOGGED_BLOCKS_MAX;
use crate::shard::Shard;
use crate::shard::journal_state::{BLOCK, Batch, InJournal, JournalIo, JournalIoKind, LogRequest};
use crate::shard::scratch::Scratch;

/// Maximum number of batches of one array in flight.
pub(super) const BATCHES_MAX: usize = 4;
/// Blocks of the ring that are reserved for batches without entries: these free space.
const RESERVE_BLOCKS: u64 = 8;

impl Shard {
    /// Sends groups of requests back to their slots if they can never fit. A group is all requests of one step. A step
    /// may mark more stripes than one batch could hold as data. While no stripe may be marked, such a group never fits:
    /// its slot is notified that nothing was logged, and logs its stripes one by one, or in smaller pieces.
    fn journal_send_back(&mut self, device: DeviceId) {
        let Some(journal) = self.journals.of(device).filter(|journal| journal.may_not_mark()) else { return };
        let most = LOGGED_BLOCKS_MAX.min(journal.node.ring_blocks_min / 3);
        let (mut first, mut sent_back) = (0, Vec::new());
        while let Some(group) = journal.group(first) {
            let requests = journal.queue.range(first..first + group);
            let blocks: u64 = requests.clone().map(|request| u64::from(request.entry.payload_blocks())).sum();
            if blocks > most && requests.into_iter().any(|request| request.mark) {
                sent_back.extend(journal.queue.drain(first..first + group));
            } else {
                first += group;
            }
        }
        let nothing = InJournal { sequence: 0, alone: false };
        sent_back.iter().for_each(|request| self.reply_logged(request, Ok(nothing)));
    }

    /// Builds a batch and writes it. Returns false if there is nothing to write, or no room.
    pub(super) fn journal_batch(&mut self, device: DeviceId, layout: &DeviceLayout, sink: &mut impl LeafSink) -> bool {
        self.journal_send_back(device);
        let free = self.journals.ios.iter().position(Option::is_none);
        let Some(journal) = self.journals.of(device) else { return false };
        let (Some(at), true) = (free, journal.batches_in_flight < BATCHES_MAX) else { return false };
        if journal.queue.is_empty() && !journal.tail_is_new {
            return false;
        }
        let (mut blocks, mut count) = (1u64, 0);
        let mut entries = [JournalEntry::NONE; ENTRIES_MAX];
        while let Some(group) = journal.group(count).filter(|group| count + group <= ENTRIES_MAX) {
            let mut needed = blocks;
            let mut fits = true;
            for (request, entry) in journal.queue.range(count..count + group).zip(&mut entries[count..]) {
                *entry = journal.entry(request);
                needed += u64::from(entry.payload_blocks());
                fits &= journal.accepts(entry);
            }
            if needed > LOGGED_BLOCKS_MAX + 1 && count > 0 {
                break;
            }
            if !fits || needed > LOGGED_BLOCKS_MAX + 1 || journal.room(needed, RESERVE_BLOCKS).is_none() {
                journal.wants_room = true;
                break;
            }
            for entry in &entries[count..count + group] {
                journal.stripes.count(entry.stripe, entry.kind, true);
            }
            (count, blocks) = (count + group, needed);
        }
        if count == 0 && !journal.tail_is_new {
            return false;
        }
        let begin = journal.room(blocks, if count == 0 { 0 } else { RESERVE_BLOCKS });
        // Disks of one array may hang: half of the memory is left to other arrays.
        let may_take =
            |scratch: &&mut Scratch| journal.pages == 0 || journal.pages + blocks as u32 <= scratch.limit() / 2;
        let memory = self.journal_scratch.as_mut().filter(may_take).and_then(|scratch| scratch.take(blocks as u32));
        let (Some(begin), Some(memory)) = (begin, memory) else {
            for entry in &entries[..count] {
                journal.stripes.count(entry.stripe, entry.kind, false);
            }
            return false;
        };
        let scratch = self.journal_scratch.as_ref().expect("memory was just taken from it");
        let mut payload = 1;
        for entry in &entries[..count] {
            let request = journal.queue.pop_front().expect("it was counted");
            gather(entry, &request, scratch.page(memory.first).add(payload * BLOCK), sink);
            payload += u64::from(entry.payload_blocks());
            journal.entries.push_back((entry.stripe, entry.kind));
            journal.waiters.push_back(request);
        }
        let first = scratch.page(memory.first);
        let (ring, sequence) = (journal.ring(), journal.next);
        let mut header = JournalBatchHeader {
            run: journal.node.run,
            sequence,
            tail: journal.tail,
            position: begin % ring,
            blocks: blocks as u32,
            entries: count as u16,
            payload_crc: 0,
        };
        let array = journal.node.array;
        seal(&array, &mut header, &entries[..count], first, sink);
        let (pending, entries, waiters) = (count as u32, count as u32, count as u32);
        let tail = journal.tail;
        journal.batches.push_back(Batch { sequence, begin, tail, pending, entries, waiters, durable: false });
        journal.head = begin + blocks;
        journal.next += 1;
        journal.batches_in_flight += 1;
        journal.pages += blocks as u32;
        journal.tail_is_new = false;
        let run = journal.node.run;
        let going = JournalIo {
            device,
            run,
            what: JournalIoKind::Batch(sequence),
            memory: Some(memory),
            lent: false,
            held: false,
        };
        self.journals.ios[at] = Some(going);
        self.journal_submit(at, layout, sink);
        true
    }
}

/// Copies the payload of an entry into its batch.
fn gather(entry: &JournalEntry, request: &LogRequest, mut to: Buf, sink: &mut impl LeafSink) {
    if entry.kind == EntryKind::Mark {
        return;
    }
    let len = u64::from(entry.blocks) * BLOCK;
    let data = (0..u64::from(entry.cells)).map(|cell| request.data.add(cell * request.stride));
    let parity = (0..u64::from(entry.parities)).map(|parity| request.parity.add(parity * len));
    for from in data.chain(parity) {
        sink.compute(&[from], &[to], len, &mut |from, to| to[0].copy_from_slice(from[0]));
        to = to.add(len);
    }
}

/// Adds the header and the checksums to a batch.
fn seal(
    array: &braid_format::Uuid,
    header: &mut JournalBatchHeader,
    entries: &[JournalEntry],
    first: Buf,
    sink: &mut impl LeafSink,
) {
    let payload = u64::from(header.blocks - 1) * BLOCK;
    if payload > 0 {
        let crc = &mut header.payload_crc;
        sink.compute(&[first.add(BLOCK)], &[], payload, &mut |payload, _| {
            *crc = payload_crc(0, payload[0]);
        });
    }
    sink.compute(&[], &[first], BLOCK, &mut |_, header_block| {
        let block: &mut [u8; 4096] = (&mut *header_block[0]).try_into().expect("a block");
        encode_batch(array, header, entries, block);
    });
}

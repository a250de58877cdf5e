//! Memory that messages come into: one after another into the same piece, as long as there is room for the longest.
//!
//! The kernel wants room for the longest WRITE whenever it is asked for a message, and mostly fills little of it. So a piece holds many
//! messages, and lives until the last of them is done with.

use braid_engine::Buf;
use braid_ring::Cx;

use crate::wire::DATA_BYTES_MAX;

/// Bytes of a piece.
const LANDING_BYTES: usize = 2 * DATA_BYTES_MAX as usize;
/// Where the data of a message begins is a multiple of this, which every disk can read from.
const STEP_BYTES: u32 = 4096;

struct Landing {
    buf: Buf,
    /// Messages that have it, and the lane that the next one comes by.
    users: u32,
}

/// All pieces of a shard.
#[derive(Default)]
pub(super) struct Landings(Vec<Option<Landing>>);

impl Landings {
    fn take(&mut self, cx: &mut Cx<'_>) -> Option<u16> {
        let buf = cx.alloc(LANDING_BYTES)?;
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(Landing { buf, users: 1 });
        Some(at as u16)
    }

    fn share(&mut self, landing: u16) {
        self.of(landing).users += 1;
    }

    fn of(&mut self, landing: u16) -> &mut Landing {
        self.0[usize::from(landing)].as_mut().expect("somebody has it")
    }

    /// One user less.
    pub(super) fn give_back(&mut self, cx: &mut Cx<'_>, landing: u16) {
        let it = self.of(landing);
        it.users -= 1;
        if it.users == 0 {
            cx.free(it.buf, LANDING_BYTES);
            self.0[usize::from(landing)] = None;
        }
    }
}

/// Where one message at a time comes in.
#[derive(Default)]
pub(super) struct Lane {
    landing: Option<u16>,
    used: u32,
}

impl Lane {
    /// Room for the data of the next message; none while the shard has no memory.
    pub(super) fn room(&mut self, cx: &mut Cx<'_>, landings: &mut Landings) -> Option<Buf> {
        if let Some(landing) = self.landing {
            if landings.of(landing).users == 1 {
                self.used = 0;
            } else if self.used > LANDING_BYTES as u32 - DATA_BYTES_MAX {
                self.rest(cx, landings);
            }
        }
        let landing = match self.landing {
            Some(landing) => landing,
            None => {
                let taken = landings.take(cx)?;
                self.used = 0;
                *self.landing.insert(taken)
            }
        };
        Some(landings.of(landing).buf.add(u64::from(self.used)))
    }

    /// So many bytes of the room were used by a message that is kept: its landing.
    pub(super) fn keep(&mut self, landings: &mut Landings, bytes: u32) -> u16 {
        let landing = self.landing.expect("there was room");
        landings.share(landing);
        self.used += bytes.next_multiple_of(STEP_BYTES);
        landing
    }

    /// Nothing more comes for now.
    pub(super) fn rest(&mut self, cx: &mut Cx<'_>, landings: &mut Landings) {
        if let Some(landing) = self.landing.take() {
            landings.give_back(cx, landing);
        }
    }
}

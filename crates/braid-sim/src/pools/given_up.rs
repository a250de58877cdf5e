//! Members that are away and given up for ever: the labels lack them, with or without a crash before the pool knows; and they are refused when
//! they come nevertheless.

use braid_engine::pool::PoolDevice;

use super::world::{Check, World};

/// A member that was given up.
#[derive(Clone)]
pub(super) struct Forsaken {
    device: PoolDevice,
    /// In which life.
    life: u32,
}

impl World {
    /// Some of those without whom the pool has gone on may be given up: the labels lack them from now on.
    pub(super) fn give_up_some(&mut self) -> u128 {
        if !self.gives_up {
            return 0;
        }
        let mut members = 0;
        for number in self.away.iter().filter(|(_, away)| away.gone_on).map(|(number, _)| *number).collect::<Vec<_>>() {
            if !self.rng.chance(500_000) {
                continue;
            }
            let at = self.devices.iter().position(|device| device.number == number).expect("a member that is away");
            let device = self.devices.remove(at);
            self.away.remove(&number);
            self.closed.remove(&usize::from(number));
            self.forsaken.push(Forsaken { device, life: self.life });
            self.count("members given up");
            self.note(|| format!("member {number} is given up"), u64::from(number));
            members |= 1 << number;
        }
        self.given_up |= members;
        // Who was placed there alone is placed anywhere.
        for known in self.known.values_mut().filter(|known| known.home & members != 0) {
            known.home = u128::MAX;
        }
        members
    }

    /// The pool is open, and nobody is served: it learns whom somebody has given up.
    pub(super) fn accept_losses(&mut self) -> Check {
        let members = self.give_up_some();
        if members == 0 {
            return Ok(());
        }
        let accepted = self.pool().accept_loss(members).map_err(|error| format!("a loss is not accepted: {error}"));
        accepted.and_then(|()| self.pool().recount())
    }

    /// One of them comes nevertheless, and nobody looks at labels.
    pub(super) fn one_comes_nevertheless(&mut self) -> Check {
        // Until the pool was opened once more its starts may say that it is away.
        let old = |forsaken: &&Forsaken| forsaken.life + 1 < self.life;
        let Some(device) = self.forsaken.iter().find(old).map(|forsaken| forsaken.device) else { return Ok(()) };
        if !self.rng.chance(800_000) {
            return Ok(());
        }
        self.devices.push(device);
        self.devices.sort_by_key(|device| device.number);
        let opened = self.try_open(u64::MAX, None);
        self.devices.retain(|other| other.number != device.number);
        if opened.is_ok() {
            return Err(format!("member {} is taken back, which was given up", device.number));
        }
        self.count("members refused that were given up");
        Ok(())
    }
}

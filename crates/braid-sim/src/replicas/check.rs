//! Linearizability of the history of one block: whether there is one order in which each request takes effect at one
//! moment between its begin and its end.
//!
//! All values are different, so that the write that each read has seen is known. A write and its reads then make a
//! *zone*, from the first end of one of them to the last begin. By the theorem of Gibbons and Korach ("Testing Shared
//! Memories", SIAM J. Comput. 26, 1997) there is an order exactly when no read ends before its write begins, no two
//! forward zones overlap, and no backward zone lies within a forward one.

use std::collections::BTreeMap;

/// A write or a read that the order must contain. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The value that was written or read.
    pub value: u64,
    /// Whether it is a write.
    pub write: bool,
    /// When it began. The initial value's write begins before everything.
    pub begun: i64,
    /// When it ended; `i64::MAX`: never, so it may have happened or not.
    pub ended: i64,
}

/// All requests for one value.
#[derive(Clone, Copy)]
struct Zone {
    value: u64,
    /// When the value's write began; `None`: no write is known.
    written: Option<i64>,
    /// The earliest end of a request for the value.
    first: i64,
    /// The latest begin of a request for the value.
    last: i64,
    reads: usize,
}

/// Returns a violation of linearizability; `None`: an order exists. A read of a value that was never written is a
/// violation.
pub fn disorder(accesses: &[Access]) -> Option<String> {
    let mut zones = BTreeMap::new();
    for access in accesses {
        let new = Zone { value: access.value, written: None, first: i64::MAX, last: i64::MIN, reads: 0 };
        let zone = zones.entry(access.value).or_insert(new);
        (zone.first, zone.last) = (zone.first.min(access.ended), zone.last.max(access.begun));
        match access.write {
            true => zone.written = Some(access.begun),
            false => zone.reads += 1,
        }
    }
    for access in accesses.iter().filter(|access| !access.write) {
        match zones[&access.value].written {
            None => return Some(format!("{} was read, which was not there", access.value)),
            Some(begun) if access.ended < begun => return Some(format!("{} was read before its time", access.value)),
            Some(_) => {}
        }
    }
    // A write that never ended and that no read has seen need not have happened.
    let zones: Vec<Zone> = zones.into_values().filter(|zone| zone.reads > 0 || zone.first < i64::MAX).collect();
    let mut forward: Vec<Zone> = zones.iter().copied().filter(|zone| zone.first < zone.last).collect();
    forward.sort_by_key(|zone| (zone.first, zone.last));
    for pair in forward.windows(2) {
        if pair[1].first < pair[0].last {
            return Some(format!("{} and {} were each seen after the other", pair[0].value, pair[1].value));
        }
    }
    for zone in zones.iter().filter(|zone| zone.first >= zone.last) {
        // Forward zones do not overlap: only the last one that begins before this zone can contain it.
        let at = forward.partition_point(|other| other.first < zone.last);
        let around = forward[..at].last().filter(|other| zone.first < other.last);
        if let Some(other) = around {
            return Some(format!("{} was gone although nothing had come after it but {}", other.value, zone.value));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Returns whether an order exists, by trying every order: checks [`disorder`].
    fn fits(rest: &mut Vec<Access>, state: u64) -> bool {
        if rest.iter().all(|access| access.ended == i64::MAX) {
            return true;
        }
        let first_end = rest.iter().map(|access| access.ended).min().unwrap();
        for k in 0..rest.len() {
            let next = rest[k];
            if next.begun > first_end || !next.write && next.value != state {
                continue;
            }
            rest.remove(k);
            let good = fits(rest, next.value);
            rest.insert(k, next);
            if good {
                return true;
            }
        }
        false
    }

    #[test]
    fn it_agrees_with_trying_every_order() {
        let mut rng = Rng::new(1);
        let mut seen = [0, 0];
        for _ in 0..30_000 {
            let mut accesses = vec![Access { value: 0, write: true, begun: -2, ended: -1 }];
            // All moments differ: the order of two requests at the same moment would be undefined.
            let mut moments: Vec<i64> = (0..12).collect();
            rng.shuffle(&mut moments);
            let writes = rng.between(1, 3);
            for k in 0..6 {
                let (one, other) = (moments[2 * k], moments[2 * k + 1]);
                let (begun, mut ended) = (one.min(other), one.max(other));
                let write = (k as u64) < writes;
                if write && rng.chance(200_000) {
                    ended = i64::MAX;
                }
                let value = if write { k as u64 + 1 } else { rng.below(writes + 1) };
                accesses.push(Access { value, write, begun, ended });
            }
            let (said, tried) = (disorder(&accesses), fits(&mut accesses.clone(), u64::MAX));
            assert_eq!(said.is_none(), tried, "{said:?}: {accesses:?}");
            seen[usize::from(tried)] += 1;
        }
        assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
    }

    #[test]
    fn a_read_of_an_unwritten_value_is_a_violation() {
        let read = Access { value: 7, write: false, begun: 1, ended: 2 };
        assert!(disorder(&[read]).is_some());
    }
}

//! Members that are here, one behind the other: their *seats*. Numbers have holes, as one that was removed leaves its own behind, and one
//! that is absent is not written to.

use super::units::MEMBERS_MAX;

const NONE: u8 = u8::MAX;

/// Which seat a member has, and who has a seat.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    members: Vec<u8>,
    seats: [u8; MEMBERS_MAX],
}

impl Seats {
    /// Of these members, by their numbers.
    pub fn new(members: impl IntoIterator<Item = u8>) -> Seats {
        let mut seats = Seats { members: Vec::new(), seats: [NONE; MEMBERS_MAX] };
        members.into_iter().for_each(|member| seats.add(member));
        seats
    }

    /// One more, who is not here yet.
    pub fn add(&mut self, member: u8) {
        debug_assert!(self.find(member).is_none(), "member {member} has a seat");
        self.seats[usize::from(member)] = self.members.len() as u8;
        self.members.push(member);
    }

    /// One goes, and those behind move up.
    pub fn remove(&mut self, member: u8) {
        self.members.retain(|other| *other != member);
        self.seats = [NONE; MEMBERS_MAX];
        for (seat, member) in (0..).zip(&self.members) {
            self.seats[usize::from(*member)] = seat;
        }
    }

    /// Who has this seat.
    pub fn member(&self, seat: usize) -> u8 {
        self.members[seat]
    }

    /// The seat of a member; none where it is not here.
    pub fn find(&self, member: u8) -> Option<usize> {
        let seat = self.seats.get(usize::from(member)).copied().unwrap_or(NONE);
        (seat != NONE).then_some(usize::from(seat))
    }

    /// The seat of a member that is here.
    ///
    /// # Panics
    /// When it is not: nothing is ever said of what stands there.
    pub fn of(&self, member: u8) -> usize {
        self.find(member).expect("a member that is here")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_holes_and_seats_have_none() {
        let mut seats = Seats::new([0, 3, 127]);
        assert_eq!((seats.member(1), seats.of(127)), (3, 2));
        assert_eq!((seats.find(1), seats.find(128), seats.find(255)), (None, None, None));
        seats.add(1);
        assert_eq!((seats.of(1), seats.member(3)), (3, 1));
        seats.remove(3);
        assert_eq!((seats.find(3), seats.of(0), seats.of(127), seats.of(1), seats.member(2)), (None, 0, 1, 2, 1));
    }
}

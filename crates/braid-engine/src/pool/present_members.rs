//! The present members in a dense order. A member's position in it is its *ordinal*. Member numbers have gaps: a
//! removed member leaves its number unused, and a missing member is not written to.

use super::units::MEMBERS_MAX;

const NONE: u8 = u8::MAX;

/// Maps member numbers to ordinals, and back.
#[derive(Clone, Debug)]
pub(super) struct PresentMembers {
    members: Vec<u8>,
    ordinals: [u8; MEMBERS_MAX],
}

impl PresentMembers {
    /// Returns the members with these numbers, in this order.
    pub fn new(members: impl IntoIterator<Item = u8>) -> PresentMembers {
        let mut present = PresentMembers { members: Vec::new(), ordinals: [NONE; MEMBERS_MAX] };
        members.into_iter().for_each(|member| present.add(member));
        present
    }

    /// Adds a member that is not present yet.
    pub fn add(&mut self, member: u8) {
        debug_assert!(self.find(member).is_none(), "member {member} is present already");
        self.ordinals[usize::from(member)] = self.members.len() as u8;
        self.members.push(member);
    }

    /// Removes a member; those after it move up.
    pub fn remove(&mut self, member: u8) {
        self.members.retain(|other| *other != member);
        self.ordinals = [NONE; MEMBERS_MAX];
        for (ordinal, member) in (0..).zip(&self.members) {
            self.ordinals[usize::from(*member)] = ordinal;
        }
    }

    /// Returns the member with this ordinal.
    pub fn member(&self, ordinal: usize) -> u8 {
        self.members[ordinal]
    }

    /// Returns the ordinal of a member; `None` if it is not present.
    pub fn find(&self, member: u8) -> Option<usize> {
        let ordinal = self.ordinals.get(usize::from(member)).copied().unwrap_or(NONE);
        (ordinal != NONE).then_some(usize::from(ordinal))
    }

    /// Returns the ordinal of a present member.
    ///
    /// # Panics
    /// If it is not present: no change refers to a member that is not.
    pub fn of(&self, member: u8) -> usize {
        self.find(member).expect("a present member")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_gaps_and_ordinals_have_none() {
        let mut present = PresentMembers::new([0, 3, 127]);
        assert_eq!((present.member(1), present.of(127)), (3, 2));
        assert_eq!((present.find(1), present.find(128), present.find(255)), (None, None, None));
        present.add(1);
        assert_eq!((present.of(1), present.member(3)), (3, 1));
        present.remove(3);
        assert_eq!(
            (present.find(3), present.of(0), present.of(127), present.of(1), present.member(2)),
            (None, 0, 1, 2, 1)
        );
    }
}

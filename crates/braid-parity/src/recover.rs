//! What was lost, from what is left.

use std::fmt;

use crate::Parity;
use crate::field::{inverse, multiply, negative_power, power};
use crate::parity::check_lengths;
use crate::simd::Rule;

/// What a block is to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Data with the coefficient g^i.
    Data(usize),
    /// The XOR of the data.
    P,
    /// The sum of the data with its coefficients.
    Q,
}

/// More is lost than the parity that is left can give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrecoverable {
    /// How many blocks of data are lost.
    pub data_lost: usize,
    /// How many blocks of parity are left.
    pub parity_left: usize,
}

impl fmt::Display for Unrecoverable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unrecoverable { data_lost, parity_left } = self;
        write!(f, "{data_lost} blocks of data are lost, and {parity_left} of parity are left")
    }
}

impl std::error::Error for Unrecoverable {}

impl Parity {
    /// Computes the lost blocks of a row from the others.
    ///
    /// `data` holds the row's data in the order of the coefficients, empty where a block is lost. `p` and `q` are empty where
    /// they are lost, or where there is none (raid5 has no Q). `lost` names in any order all data that is lost and P and Q
    /// where they are to be computed, each with the place for it; a place can be empty where the block is not wanted.
    ///
    /// # Errors
    /// More blocks of data are lost than parities are left. Nothing was written then.
    ///
    /// # Panics
    /// When blocks differ in length, there are more than [`crate::DATA_MAX`], or a role in `lost` is named twice, does not
    /// exist, or is not empty in `data`, `p` or `q`.
    pub fn recover(
        self,
        data: &[&[u8]],
        p: &[u8],
        q: &[u8],
        lost: &mut [(Role, &mut [u8])],
    ) -> Result<(), Unrecoverable> {
        check(data, p, q, lost);
        let combine = self.kernels.combine;
        match lost {
            [] => {}
            [(Role::P, out)] => (self.kernels.xor)(out, false, &[], data),
            [(Role::Q, out)] => combine(Rule::Encode, &mut [], out, &[], &[], data),
            [(Role::P, out_p), (Role::Q, out_q)] | [(Role::Q, out_q), (Role::P, out_p)] => {
                combine(Rule::Encode, out_p, out_q, &[], &[], data);
            }
            [(Role::Data(_), out)] if !p.is_empty() => (self.kernels.xor)(out, false, p, data),
            [(Role::Data(x), out)] if !q.is_empty() => {
                combine(Rule::DataAndP { factor: negative_power(*x) }, out, &mut [], &[], q, data);
            }
            [(Role::Data(x), out), (Role::P, out_p)] | [(Role::P, out_p), (Role::Data(x), out)] if !q.is_empty() => {
                combine(Rule::DataAndP { factor: negative_power(*x) }, out, out_p, &[], q, data);
            }
            [(Role::Data(x), out), (Role::Q, out_q)] | [(Role::Q, out_q), (Role::Data(x), out)] if !p.is_empty() => {
                combine(Rule::DataAndQ { factor: power(*x) }, out, out_q, p, &[], data);
            }
            [(Role::Data(x), out_x), (Role::Data(y), out_y)] if !p.is_empty() && !q.is_empty() => {
                // P and Q without the data that is left are Dx + Dy and g^x Dx + g^y Dy: two equations for two.
                let determinant = inverse(power(*x) ^ power(*y));
                let rule = Rule::TwoData { of_p: multiply(power(*y), determinant), of_q: determinant };
                combine(rule, out_x, out_y, p, q, data);
            }
            _ => {
                let data_lost = lost.iter().filter(|(role, _)| matches!(role, Role::Data(_))).count();
                return Err(Unrecoverable { data_lost, parity_left: [p, q].iter().filter(|b| !b.is_empty()).count() });
            }
        }
        Ok(())
    }
}

#[track_caller]
fn check(data: &[&[u8]], p: &[u8], q: &[u8], lost: &[(Role, &mut [u8])]) {
    let given = data.iter().chain([&p, &q]).map(|block| block.len());
    let len = given.chain(lost.iter().map(|(_, out)| out.len())).max().unwrap_or(0);
    check_lengths(len, data);
    check_lengths(len, &[p, q]);
    for (index, (role, out)) in lost.iter().enumerate() {
        check_lengths(len, &[out]);
        let left = match role {
            Role::Data(i) => data[*i],
            Role::P => p,
            Role::Q => q,
        };
        assert!(left.is_empty(), "{role:?} is named as lost and given");
        assert!(lost[..index].iter().all(|(before, _)| before != role), "{role:?} is named twice");
    }
}

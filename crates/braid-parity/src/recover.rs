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
    /// Computes blocks of a row that are lost from those that are left.
    ///
    /// `data` holds the row's data in the order of the coefficients, empty where a block is lost. `p` and `q` are empty where
    /// they are lost, or where there is none (raid5 has no Q). `wanted` names, in any order, what is to be computed and where
    /// it goes: lost data, and P and Q where they are not given. What is lost and not wanted need not be named.
    ///
    /// # Errors
    /// More blocks of data are lost than parities are left. Nothing was written then.
    ///
    /// # Panics
    /// When blocks differ in length, there are more than [`crate::DATA_MAX`], or a role in `wanted` is named twice, does not
    /// exist, or is not lost.
    pub fn recover(
        self,
        data: &[&[u8]],
        p: &[u8],
        q: &[u8],
        wanted: &mut [(Role, &mut [u8])],
    ) -> Result<(), Unrecoverable> {
        if check(data, p, q, wanted) == 0 {
            return Ok(());
        }
        let (mut lost, mut data_lost) = ([0; 2], 0);
        for (i, _) in data.iter().enumerate().filter(|(_, block)| block.is_empty()) {
            if data_lost < lost.len() {
                lost[data_lost] = i;
            }
            data_lost += 1;
        }
        let parity_left = usize::from(!p.is_empty()) + usize::from(!q.is_empty());
        if data_lost > parity_left {
            return Err(Unrecoverable { data_lost, parity_left });
        }
        let [x, y] = lost;
        let (mut out_x, mut out_y, mut out_p, mut out_q): Places = Default::default();
        for (role, out) in wanted {
            match role {
                Role::P => out_p = out,
                Role::Q => out_q = out,
                Role::Data(i) if *i == x => out_x = out,
                Role::Data(_) => out_y = out,
            }
        }
        let (xor, combine) = (self.kernels.xor, self.kernels.combine);
        match data_lost {
            0 if out_q.is_empty() => xor(out_p, false, &[], data),
            0 => combine(Rule::Encode, out_p, out_q, &[], &[], data),
            1 if p.is_empty() => {
                combine(Rule::DataAndP { factor: negative_power(x) }, out_x, out_p, &[], q, data);
            }
            1 if out_q.is_empty() => xor(out_x, false, p, data),
            1 => combine(Rule::DataAndQ { factor: power(x) }, out_x, out_q, p, &[], data),
            _ => {
                // P and Q without the data that is left are Dx + Dy and g^x Dx + g^y Dy: two equations for two.
                let determinant = inverse(power(x) ^ power(y));
                let rule = Rule::TwoData { of_p: multiply(power(y), determinant), of_q: determinant };
                combine(rule, out_x, out_y, p, q, data);
            }
        }
        Ok(())
    }
}

/// Where two blocks of data, P and Q go, empty where they are not wanted.
type Places<'a> = (&'a mut [u8], &'a mut [u8], &'a mut [u8], &'a mut [u8]);

/// The length of the row.
#[track_caller]
fn check(data: &[&[u8]], p: &[u8], q: &[u8], wanted: &[(Role, &mut [u8])]) -> usize {
    let given = data.iter().chain([&p, &q]).map(|block| block.len());
    let len = given.chain(wanted.iter().map(|(_, out)| out.len())).max().unwrap_or(0);
    check_lengths(len, data);
    check_lengths(len, &[p, q]);
    for (index, (role, out)) in wanted.iter().enumerate() {
        let left = match role {
            Role::Data(i) => data[*i],
            Role::P => p,
            Role::Q => q,
        };
        assert!(left.is_empty(), "{role:?} is wanted and given");
        assert!(out.len() == len, "the place of {role:?} has {} bytes, the row {len}", out.len());
        assert!(wanted[..index].iter().all(|(before, _)| before != role), "{role:?} is named twice");
    }
    len
}

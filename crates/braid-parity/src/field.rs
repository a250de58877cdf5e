//! Arithmetic in GF(2^8) with the polynomial 0x11d, byte by byte, with tables that are computed at compile time.

/// The polynomial without its highest term, which is added if doubling overflows.
pub const POLYNOMIAL: u8 = 0x1d;

/// g^i for i below 510. The values repeat from 255 on, so that the sum of two logarithms needs no reduction.
const POWERS: [u8; 510] = {
    let mut powers = [0; 510];
    let mut value: u8 = 1;
    let mut i = 0;
    while i < 510 {
        powers[i] = value;
        value = double(value);
        i += 1;
    }
    powers
};

/// The logarithm i of g^i. The entry of 0 is undefined: 0 is not a power of g.
const LOGARITHMS: [u8; 256] = {
    let mut logarithms = [0; 256];
    let mut i = 0;
    while i < 255 {
        logarithms[POWERS[i] as usize] = i as u8;
        i += 1;
    }
    logarithms
};

/// The products of each factor with 0 to 15 and with 0, 16, … 240. Two look-ups and an XOR multiply any byte.
pub static NIBBLES: [[u8; 32]; 256] = {
    let mut tables = [[0; 32]; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            tables[factor][nibble] = multiply(factor as u8, nibble as u8);
            tables[factor][16 + nibble] = multiply(factor as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        factor += 1;
    }
    tables
};

const fn double(value: u8) -> u8 {
    (value << 1) ^ if value & 0x80 != 0 { POLYNOMIAL } else { 0 }
}

/// Returns the product of two elements.
pub const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[a as usize] as usize + LOGARITHMS[b as usize] as usize]
}

/// Returns g^i, for any i.
pub const fn power(i: usize) -> u8 {
    POWERS[i % 255]
}

/// Returns g^-i, for i up to 255.
pub const fn negative_power(i: usize) -> u8 {
    POWERS[255 - i]
}

/// Returns 1 / `value`. `value` must not be 0.
pub const fn inverse(value: u8) -> u8 {
    POWERS[255 - LOGARITHMS[value as usize] as usize]
}

/// Returns the i below 255 for which `value` is g^i. `value` must not be 0.
pub const fn logarithm(value: u8) -> u8 {
    LOGARITHMS[value as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the product by definition: polynomials over GF(2), multiplied and reduced bit by bit.
    fn by_definition(a: u8, b: u8) -> u8 {
        let mut product = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0u16, |sum, bit| sum ^ (u16::from(a) << bit));
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn all_products_match_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                let expected = by_definition(a, b);
                assert_eq!(multiply(a, b), expected, "{a} {b}");
                let table = NIBBLES[usize::from(a)];
                let looked_up = table[usize::from(b & 15)] ^ table[16 + usize::from(b >> 4)];
                assert_eq!(looked_up, expected, "{a} {b}");
            }
        }
    }

    #[test]
    fn two_generates_all_nonzero_elements() {
        let mut value = 1;
        for i in 0..255 {
            assert_eq!((power(i), logarithm(value)), (value, i as u8));
            assert_eq!(by_definition(value, inverse(value)), 1);
            assert_eq!(by_definition(value, negative_power(i)), 1);
            value = by_definition(value, 2);
            assert!(value != 1 || i == 254, "the order is 255");
        }
        assert_eq!(power(255), 1);
        assert_eq!(negative_power(255), 1);
    }
}

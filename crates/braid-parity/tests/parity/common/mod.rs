//! Shared test code: a slow model that follows the definition byte by byte, and a generator of random numbers.

/// A splitmix64 sequence: the same numbers in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `end - 1`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns `count` blocks of `len` random bytes.
    pub fn blocks(&mut self, count: usize, len: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.bytes(len)).collect()
    }
}

/// Returns the product of two polynomials over GF(2), reduced by 0x11d bit by bit.
pub fn times(a: u8, b: u8) -> u8 {
    let mut product = 0u32;
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= u32::from(a) << bit;
        }
    }
    for bit in (8..16).rev() {
        if product >> bit & 1 == 1 {
            product ^= 0x11d << (bit - 8);
        }
    }
    product as u8
}

/// Returns 2 to the power of i, by i multiplications.
pub fn power(i: usize) -> u8 {
    (0..i).fold(1, |value, _| times(value, 2))
}

/// Returns P and Q by definition. Empty blocks count as zeros.
pub fn naive_pq(data: &[impl AsRef<[u8]>], len: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for (i, block) in data.iter().enumerate() {
        let factor = power(i);
        for (at, byte) in block.as_ref().iter().enumerate() {
            p[at] ^= byte;
            q[at] ^= times(factor, *byte);
        }
    }
    (p, q)
}

/// Returns blocks as slices.
pub fn slices(blocks: &[Vec<u8>]) -> Vec<&[u8]> {
    blocks.iter().map(Vec::as_slice).collect()
}

/// Returns lengths around the boundaries of the loops: all small ones, and some around multiples of columns and pages.
pub fn lengths() -> impl Iterator<Item = usize> {
    (0..=300).chain([383, 384, 385, 511, 512, 513, 1000, 4095, 4096, 4097, 65_536 + 77])
}

//! Compares each implementation with the definition, for many lengths, alignments and numbers of blocks, and checks that no byte
//! beyond a block is written.

use crate::common::{Numbers, lengths, naive_pq, power, slices, times};
use braid_parity::{DATA_MAX, Parity, StripeDamage};

const GUARD: u8 = 0xa5;

/// A buffer of `len` bytes at `shift` bytes from an aligned address, between guard bytes.
struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    fn new(content: &[u8], shift: usize) -> Guarded {
        let mut bytes = vec![GUARD; content.len() + 256];
        let start = 64 + (64 - bytes.as_ptr() as usize % 64) % 64 + shift;
        bytes[start..start + content.len()].copy_from_slice(content);
        Guarded { bytes, start, len: content.len() }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Returns the content, after a check of the guard bytes.
    fn checked(&self) -> &[u8] {
        let (before, after) = (&self.bytes[..self.start], &self.bytes[self.start + self.len..]);
        assert!(before.iter().chain(after).all(|byte| *byte == GUARD), "written beyond the block");
        self.get()
    }
}

fn for_each_implementation(check: impl Fn(Parity)) {
    let mut names = Vec::new();
    for parity in Parity::available() {
        check(parity);
        names.push(parity.name());
    }
    // Print the tested implementations, so that a run without vector instructions can be told from one with them.
    println!("compared: {}", names.join(", "));
    assert_eq!(names.last(), Some(&"portable"));
    assert_eq!(Parity::best().name(), names[0]);
}

#[test]
fn p_and_q_match_the_definition() {
    for_each_implementation(|parity| {
        let mut numbers = Numbers(1);
        for len in lengths() {
            let count = 1 + numbers.below(9);
            let mut data = numbers.blocks(count, len);
            if numbers.below(3) == 0 {
                let empty_index = numbers.below(count);
                data[empty_index].clear();
            }
            let (p, q) = naive_pq(&data, len);
            let data: Vec<Guarded> = data.iter().map(|block| Guarded::new(block, numbers.below(64))).collect();
            let data: Vec<&[u8]> = data.iter().map(Guarded::get).collect();
            let output = |numbers: &mut Numbers| Guarded::new(&numbers.bytes(len), numbers.below(64));
            let (mut out_p, mut out_q) = (output(&mut numbers), output(&mut numbers));
            parity.pq(out_p.get_mut(), out_q.get_mut(), &data);
            assert!(out_p.checked() == p && out_q.checked() == q, "{parity:?}: {count} blocks of {len}");

            let (mut alone_p, mut alone_q, mut xored) =
                (output(&mut numbers), output(&mut numbers), output(&mut numbers));
            parity.pq(alone_p.get_mut(), &mut [], &data);
            parity.pq(&mut [], alone_q.get_mut(), &data);
            parity.xor(xored.get_mut(), &data);
            assert!(alone_p.checked() == p && alone_q.checked() == q && xored.checked() == p, "{parity:?}: {len}");

            let before = xored.get().to_vec();
            parity.xor_into(xored.get_mut(), &data);
            assert!(xored.checked().iter().zip(before).all(|(byte, before)| *byte == before ^ before), "{parity:?}");
            let mut accumulated = output(&mut numbers);
            let expected: Vec<u8> = accumulated.get().iter().zip(&p).map(|(byte, p)| byte ^ p).collect();
            parity.xor_into(accumulated.get_mut(), &data);
            assert!(accumulated.checked() == expected, "{parity:?}: {len}");
        }
    });
}

#[test]
fn updates_match_the_definition() {
    for_each_implementation(|parity| {
        let mut numbers = Numbers(2);
        for len in lengths() {
            let index = numbers.below(DATA_MAX);
            let (old, new, p, q) = (numbers.bytes(len), numbers.bytes(len), numbers.bytes(len), numbers.bytes(len));
            let factor = power(index);
            let expected_p: Vec<u8> = (0..len).map(|i| p[i] ^ old[i] ^ new[i]).collect();
            let expected_q: Vec<u8> = (0..len).map(|i| q[i] ^ times(factor, old[i] ^ new[i])).collect();
            let [old, new] = [old, new].map(|block| Guarded::new(&block, numbers.below(64)));
            let guarded = |numbers: &mut Numbers, block: &[u8]| Guarded::new(block, numbers.below(64));

            let (mut both_p, mut both_q) = (guarded(&mut numbers, &p), guarded(&mut numbers, &q));
            parity.update(both_p.get_mut(), both_q.get_mut(), index, old.get(), new.get());
            assert!(both_p.checked() == expected_p && both_q.checked() == expected_q, "{parity:?}: {index} of {len}");

            let (mut only_p, mut only_q) = (guarded(&mut numbers, &p), guarded(&mut numbers, &q));
            parity.update(only_p.get_mut(), &mut [], index, old.get(), new.get());
            parity.update(&mut [], only_q.get_mut(), index, old.get(), new.get());
            assert!(only_p.checked() == expected_p && only_q.checked() == expected_q, "{parity:?}: {index} of {len}");

            // An update from zeros to `old` and one from `old` to `new` equal an update from zeros to `new`.
            let (mut steps_p, mut steps_q) = (guarded(&mut numbers, &p), guarded(&mut numbers, &q));
            let (mut once_p, mut once_q) = (guarded(&mut numbers, &p), guarded(&mut numbers, &q));
            parity.update(steps_p.get_mut(), steps_q.get_mut(), index, &[], old.get());
            parity.update(steps_p.get_mut(), steps_q.get_mut(), index, old.get(), new.get());
            parity.update(once_p.get_mut(), once_q.get_mut(), index, new.get(), &[]);
            assert!(steps_p.checked() == once_p.checked() && steps_q.checked() == once_q.checked(), "{parity:?}");
        }
    });
}

#[test]
fn stripes_of_any_width() {
    for_each_implementation(|parity| {
        let mut numbers = Numbers(3);
        for width in (0..=40).chain([63, 64, 65, 126, 127, 254, DATA_MAX]) {
            // Wide stripes are processed in tiles: these lengths are a part of a tile, and several tiles and a part.
            let len = [200, 4096, 9000][width % 3] + numbers.below(200);
            let data = numbers.blocks(width, len);
            let (p, q) = naive_pq(&data, len);
            let (mut out_p, mut out_q) = (numbers.bytes(len), numbers.bytes(len));
            parity.pq(&mut out_p, &mut out_q, &slices(&data));
            assert!(out_p == p && out_q == q, "{parity:?}: {width} blocks of {len}");
            assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::None, "{parity:?}: {width} blocks of {len}");
            let mut accumulated = numbers.bytes(len);
            let expected: Vec<u8> = accumulated.iter().zip(&p).map(|(byte, p)| byte ^ p).collect();
            parity.xor_into(&mut accumulated, &slices(&data));
            assert!(accumulated == expected, "{parity:?}: {width} blocks of {len}");
        }
    });
}

#[test]
fn parity_of_a_single_block_is_the_block() {
    for_each_implementation(|parity| {
        let data = Numbers(4).bytes(777);
        let (mut p, mut q) = (vec![1; 777], vec![2; 777]);
        parity.pq(&mut p, &mut q, &[&data]);
        assert!(p == data && q == data);
    });
}

#[test]
fn blocks_of_different_lengths_panic() {
    let check_panics = |call: &dyn Fn(Parity)| {
        for parity in Parity::available() {
            let call = std::panic::AssertUnwindSafe(|| call(parity));
            assert!(std::panic::catch_unwind(call).is_err(), "{parity:?}");
        }
    };
    let (short, long) = ([0u8; 64], [0u8; 65]);
    check_panics(&|parity| parity.xor(&mut [0; 64], &[&short, &long]));
    check_panics(&|parity| parity.xor_into(&mut [0; 65], &[&long, &short]));
    check_panics(&|parity| parity.xor(&mut [], &[&short]));
    check_panics(&|parity| parity.pq(&mut [0; 64], &mut [0; 65], &[&long]));
    check_panics(&|parity| parity.pq(&mut [0; 64], &mut [0; 64], &[&long]));
    check_panics(&|parity| parity.pq(&mut [0; 64], &mut [0; 64], &vec![&short[..]; DATA_MAX + 1]));
    check_panics(&|parity| parity.update(&mut [0; 64], &mut [0; 64], 0, &short, &long));
    check_panics(&|parity| parity.update(&mut [0; 64], &mut [0; 64], DATA_MAX, &short, &short));
    check_panics(&|parity| assert_eq!(parity.recover(&[&long, &[]], &short, &[], &mut []), Ok(())));
    check_panics(&|parity| assert!(!parity.agrees(&short, &[&long])));
    check_panics(&|parity| assert_eq!(parity.check(&short, &long, &[&short]), StripeDamage::None));
}

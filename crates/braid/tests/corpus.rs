//! Runs every fuzz entry over its corpus and over random mutations of it, without a fuzzer or another toolchain.
//!
//! The seed of the mutations is printed, and `BRAID_FUZZ_SEED=N` replays it; `BRAID_FUZZ_ROUNDS=N` sets the number of
//! inputs for each entry. `make fuzz` looks further, guided by coverage.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

#[path = "../../../fuzz/src/entries.rs"]
mod entries;

fn corpus(entry: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(entry);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.filter_map(|file| Some(file.ok()?.path())).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.into_iter().map(|path| (path.clone(), fs::read(path).expect("a file of the corpus can be read"))).collect()
}

#[test]
fn the_kept_corpus_is_survived() {
    for (name, entry) in entries::ALL {
        for (path, data) in corpus(name) {
            assert!(catch_unwind(AssertUnwindSafe(|| entry(&data))).is_ok(), "{name} fails on {}", path.display());
        }
    }
}

/// Returns the number in an environment variable, or else `otherwise`.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Returns a number of the kind that breaks things.
    fn interesting(&mut self) -> u64 {
        let near = [
            0,
            1,
            0x7f,
            0x80,
            0xff,
            0x1ff,
            0x200,
            0xfff,
            0x1000,
            0x7fff,
            0xffff,
            0x10000,
            1 << 25,
            i32::MAX as u64,
            u32::MAX as u64,
            1 << 32,
            i64::MAX as u64,
            u64::MAX,
        ];
        near[self.below(near.len())].wrapping_add(self.next() % 3).wrapping_sub(1)
    }
}

/// Changes `data` in one of the usual ways; `other` is another file of the corpus.
fn mutate(random: &mut Random, data: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(data.len());
    let len = (1 + random.below(16)).min(data.len() - at);
    match random.below(9) {
        0 if !data.is_empty() => data[at] ^= 1 << random.below(8),
        1 if !data.is_empty() => data[at] = random.next() as u8,
        2 => drop(data.drain(at..at + len)),
        3 => {
            let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            data.splice(at..at, bytes);
        }
        4 => {
            let copied = data[at..at + len].to_vec();
            let to = random.below(data.len());
            data.splice(to..to, copied);
        }
        5 => {
            let number = random.interesting();
            let width = 1 << random.below(4);
            let bytes = if random.below(2) == 0 {
                number.to_le_bytes()[..width].to_vec()
            } else {
                number.to_be_bytes()[8 - width..].to_vec()
            };
            for (byte, new) in data[at..].iter_mut().zip(bytes) {
                *byte = new;
            }
        }
        6 => data.truncate(at),
        7 if !other.is_empty() => {
            let from = random.below(other.len());
            data.truncate(at);
            data.extend(&other[from..]);
        }
        _ => {
            // A word that parsers of text know.
            let words = [
                "(",
                ")",
                ",",
                "\\",
                "file:",
                "mem:",
                "null:",
                "throttled(",
                "faulty(",
                "size=",
                "G",
                "KiB",
                ".",
                "\"",
                "{",
                "}",
                "null",
                "-1",
                "@",
                "*",
                "1e9",
                "\0",
                "é",
            ];
            let word = words[random.below(words.len())].bytes();
            data.splice(at..at, word);
        }
    }
}

#[test]
fn mutations_of_the_corpus_are_survived() {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is after 1970").as_nanos() as u64;
    let seed = number("BRAID_FUZZ_SEED", now % 1_000_000_000);
    let rounds = number("BRAID_FUZZ_ROUNDS", 20_000);
    println!("mutations: seed {seed}, {rounds} inputs for each of {} entries", entries::ALL.len());
    for (name, entry) in entries::ALL {
        let corpus = corpus(name);
        let mut random = Random(seed);
        let rounds = if entries::SLOW.contains(name) { rounds / 40 } else { rounds };
        for round in 0..rounds {
            let mut data = corpus[random.below(corpus.len())].1.clone();
            let other = random.below(corpus.len());
            for _ in 0..=random.below(6) {
                mutate(&mut random, &mut data, &corpus[other].1);
            }
            if catch_unwind(AssertUnwindSafe(|| entry(&data))).is_err() {
                let kept = std::env::temp_dir().join(format!("braid-{name}-{seed}-{round}"));
                fs::write(&kept, &data).expect("the input can be kept");
                panic!("{name} fails (BRAID_FUZZ_SEED={seed}, input {round}, kept as {})", kept.display());
            }
        }
    }
}

#[test]
fn every_entry_has_seeds_that_it_accepts() {
    for (name, _) in entries::ALL {
        let accepted = corpus(name).iter().filter(|(_, data)| accepts(name, data)).count();
        assert!(accepted > 0, "no file of {name}'s corpus is accepted: it exercises refusals only");
    }
}

/// Returns whether these bytes are a complete, valid structure of a pool.
fn is_of_pool(data: &[u8]) -> bool {
    use braid_format::fuzz::{POOL_INDEX, POOL_MEMBER};
    use braid_format::pool::{Checkpoint, LogEntry, Owner, Record, batch_entries, validate_batch};
    data.first_chunk().is_some_and(|bytes| Record::decode(bytes, POOL_MEMBER, POOL_INDEX).is_ok())
        || data.first_chunk().is_some_and(|bytes| Owner::decode(bytes, POOL_INDEX).is_ok())
        || data.first_chunk().is_some_and(|bytes| Checkpoint::decode(bytes).is_ok())
        || LogEntry::decode_bytes(data).is_ok()
        || validate_batch(data).is_ok_and(|header| batch_entries(data, &header).all(|entry| entry.is_ok()))
}

/// Otherwise no mutation would get past the checksums.
#[test]
fn what_was_changed_in_a_pool_is_accepted_under_right_checksums() {
    let kept = corpus("pool");
    for (name, at) in [
        ("record2", 8),
        ("owner", 16),
        ("entry-record", 8),
        // Of the record in it, and of the owner.
        ("entry-slot", 26),
        ("entry-owner", 80),
        ("batch", 16),
        ("batch", 136),
        ("batch-of-two", 128 + 24 + 2),
        ("start", 16),
    ] {
        let found = kept.iter().find(|(path, _)| path.ends_with(name)).unwrap_or_else(|| panic!("{name} is gone"));
        let mut data = found.1.clone();
        assert!(is_of_pool(&data), "{name}");
        data[at] ^= 4;
        assert!(!is_of_pool(&data), "{name} is accepted under a wrong checksum");
        let sealed = entries::POOL_SEALS.iter().any(|seal| {
            let mut data = data.clone();
            seal(&mut data).is_some() && is_of_pool(&data)
        });
        assert!(sealed, "{name}, changed at byte {at}");
    }
}

/// Returns whether an input gets past the entry's first check.
fn accepts(entry: &str, data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    match entry {
        "label" => {
            let mut sealed = data.to_vec();
            if sealed.len() >= 4096 {
                entries::seal(&mut sealed[..4096]);
            }
            sealed.get(..4096).is_some_and(|bytes| braid_format::Label::decode(bytes).is_ok())
        }
        "journal" => {
            let array = braid_format::Uuid::from_bytes(*b"braid-fuzz-array");
            data.first_chunk().is_some_and(|block| braid_format::journal::decode_batch(&array, block).is_some())
        }
        "pool_label" => braid_format::pool::PoolLabel::decode(data).is_ok(),
        "pool" => is_of_pool(data),
        "register" => {
            use braid_format::register::StoredRegister;
            data.first_chunk().is_some_and(|block| StoredRegister::decode(block).is_ok())
        }
        "pool_use" => braid_sim::hostile::pool::openings(data) == 2,
        "array_use" => braid_sim::hostile::array::starts(data) == 2,
        "md" => braid_format::md::Superblock::decode(data, 2, 4096, u64::MAX).is_ok(),
        "sizes" => braid_geometry::units::parse_size(&text).is_ok(),
        "disk_names" => braid_ring::spec::DiskSpec::parse(&text).is_ok(),
        "api_bodies" => {
            data.first() == Some(&0) && serde_json::from_slice::<braid_api::CreateArray>(&data[1..]).is_ok()
        }
        // A request's magic follows the eight bytes of terms.
        "nbd_transmission" => data.get(8..12) == Some(&[0x25, 0x60, 0x95, 0x13]),
        // The client's flags, and GO for an export that exists.
        "nbd_handshake" => data.windows(8).any(|w| w == b"IHAVEOPT") && data.windows(4).any(|w| w == b"data"),
        // A cipher and keys, and content for several records.
        "tls_records" => data.len() > 8 + 64,
        // A whole conversation with the server: its reply is longer than its greeting of 18 bytes.
        "nbd_server" => braid_nbd::fuzz::converse(data, usize::MAX).len() > 18,
        // A message of the kernel with a request that is supported.
        "fuse_ask" => {
            let message = data.get(2..).unwrap_or_default();
            let (head, rest) = message.split_at(message.len().min(braid_fuse::wire::HEAD_BYTES));
            let parsed = braid_fuse::ask::read(head, rest, message.len()).map(|message| message.ask);
            parsed.is_ok_and(|ask| !matches!(ask, braid_fuse::ask::Ask::Refuse(_)))
        }
        // A reply's magic after the byte of options, or the server's greeting.
        "nbd_client" => data.get(1..5).is_some_and(|w| w == [0x67, 0x44, 0x66, 0x98] || w == *b"NBDM"),
        other => panic!("{other} has no rule here: add one"),
    }
}

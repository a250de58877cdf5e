//! Arrays with parity in the simulator: seeds beside the ordinary run, as the levels are not served yet.

use braid_sim::arrays::Kind;
use braid_sim::runs::{Options, twice};

/// Seeds of one kind, each twice; nothing is found, and what is to be survived has happened.
fn seeds(kind: Kind, first: u64, count: u64) {
    let options = Options { kinds: vec![kind], ..Options::default() };
    let mut crashes = 0;
    for seed in first..first + count {
        let outcome = twice(seed, &options);
        assert!(outcome.violation.is_none(), "seed {seed} of {}: {:?}", kind.name(), outcome.violation);
        crashes += outcome.counters.sum("crashes");
    }
    assert!(crashes > count, "{crashes} crashes in {count} seeds of {}", kind.name());
}

#[test]
fn raid5() {
    seeds(Kind::Raid5, 0, 40);
}

#[test]
fn raid6() {
    seeds(Kind::Raid6, 0, 25);
}

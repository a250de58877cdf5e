//! Looks whether a simulator notices each of its planted bugs.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Tries each bug of the table with the seed that is known to meet it, then with all up to its limit; tells what was said of it, and whether all were
/// noticed. `notices` plants the bug for its thread and runs one seed.
pub fn hunt<B: Copy + Debug + Sync>(
    table: &[(B, u64, u64)],
    notices: impl Fn(B, u64) -> Option<String> + Sync,
) -> bool {
    let (next, good) = (AtomicUsize::new(0), AtomicBool::new(true));
    let work = || {
        while let Some((bug, limit, known)) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = format!("{bug:?}");
            let mut seeds = std::iter::once(*known).chain(0..*limit);
            match seeds.find_map(|seed| Some((seed, notices(*bug, seed)?))) {
                Some((seed, said)) => {
                    let said: String = said.lines().next().unwrap_or("").chars().take(100).collect();
                    println!("{name:26} seed {seed:4} of {limit:4}: {said}");
                }
                None => {
                    println!("{name:26} NOT FOUND in {limit} seeds");
                    good.store(false, Ordering::Relaxed);
                }
            }
        }
    };
    // A bug that is found by a panic is found.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    good.into_inner()
}

//! The tables while they are read.
//!
//! The lock lets no reader in behind a writer that waits. So a thread that reads and asks once more would wait for a writer that waits for
//! it, for ever, and everybody for both; but only when a writer comes just in between. Builds for tests therefore find it at any time.

use super::tables::Tables;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::RwLockReadGuard;

thread_local! {
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// This thread reads, and asks for the tables no second time meanwhile.
struct Once(PhantomData<*const ()>);

impl Once {
    fn new() -> Once {
        if cfg!(debug_assertions) {
            READS.set(true);
        }
        Once(PhantomData)
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            READS.set(false);
        }
    }
}

/// The tables, to look at.
pub struct ReadTables<'a> {
    tables: RwLockReadGuard<'a, Tables>,
    _once: Once,
}

impl<'a> ReadTables<'a> {
    pub(super) fn new(tables: RwLockReadGuard<'a, Tables>) -> ReadTables<'a> {
        ReadTables { tables, _once: Once::new() }
    }
}

impl Deref for ReadTables<'_> {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        &self.tables
    }
}

/// Before the tables are asked for.
///
/// # Panics
/// In a build for tests, where this thread reads them already.
pub(super) fn asked_once() {
    if cfg!(debug_assertions) {
        assert!(!READS.get(), "the tables are asked for by who reads them: a writer between the two would stop both");
    }
}

//! Bugs planted in the engine, one at a time: each must be found by the oracle.

use braid_engine::lifecycle;

/// One planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// On the data path.
    Data(braid_engine::Planted),
    /// In the life of arrays on their disks.
    Labels(lifecycle::Planted),
}

impl Plant {
    /// All of them.
    pub fn all() -> Vec<Plant> {
        use braid_engine::Planted as D;
        use lifecycle::Planted as L;
        let data = [
            D::FlushSkipsMember,
            D::FlushTooEarly,
            D::FuaIgnored,
            D::ZeroesNotFlushed,
            D::MirrorTooEarly,
            D::NoRangeLock,
            D::RangeGivenBackEarly,
            D::BitAfterData,
            D::BitNotDurable,
            D::FreedTooEarly,
            D::LateForgotten,
            D::ReadErrorSwallowed,
            D::WriteErrorSwallowed,
            D::FlushErrorSwallowed,
            D::GapForgotten,
        ];
        let labels = [
            L::BothCopiesAtOnce,
            L::NotDurable,
            L::ActiveTooEarly,
            L::EraseUnannounced,
            L::StartWithoutFlush,
            L::NewestNotWritten,
            L::RaisedWhileBehind,
            L::GoodCopyFirst,
            L::WrongRole,
            L::ErasesTooMuch,
            L::FormingServed,
        ];
        data.map(Plant::Data).into_iter().chain(labels.map(Plant::Labels)).collect()
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Plant::Data(bug) => format!("{bug:?}"),
            Plant::Labels(bug) => format!("{bug:?}"),
        }
    }

    /// Runs `f` with this bug in the engine, on this thread.
    pub fn during<T>(self, f: impl FnOnce() -> T) -> T {
        struct Pull;
        impl Drop for Pull {
            fn drop(&mut self) {
                braid_engine::plant(None);
                lifecycle::plant(None);
            }
        }
        let _pull = Pull;
        match self {
            Plant::Data(bug) => braid_engine::plant(Some(bug)),
            Plant::Labels(bug) => lifecycle::plant(Some(bug)),
        }
        f()
    }
}

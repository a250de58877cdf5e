//! Disks as the machine knows them: which there are, what is on them, who uses them.

pub mod aside;
pub mod examine;
mod examine_pool;
pub mod host;
pub mod open;
pub mod pool_dump;
mod pool_dump_ring;
pub mod pool_tables;
pub mod probe;

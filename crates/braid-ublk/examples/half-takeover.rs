//! Begins to take over a block device and exits part-way, as a daemon that is killed there does: for scenarios in the test guest.
//!
//! ```text
//! half-takeover NUMBER begun | mapped | torn | served
//! ```
//!
//! The device has a depth of 1. `begun`: only begins. `mapped`: also maps queue 0. `torn`: serves queue 0 alone. `served`: serves
//! all queues.

#![allow(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;
use std::{io, thread};

use braid_ublk::Control;
use braid_ublk::abi::{self, IoCommand, IoOp};
use zerocopy::IntoBytes;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let id: u32 = words.next().ok_or("which device?")?.parse()?;
    let how_far = words.next().unwrap_or_default();
    let control = Control::open()?;
    let info = control.info(id)?.ok_or("there is no such device")?;
    if info.queue_depth != 1 {
        return Err("its depth is not 1".into());
    }
    while !control.start_recovery(id)? {
        thread::sleep(Duration::from_millis(10));
    }
    let queues = match how_far.as_str() {
        "begun" => return Ok(()),
        "mapped" => 0,
        "torn" => 1,
        "served" => info.nr_hw_queues,
        _ => return Err("begun, mapped, torn or served?".into()),
    };
    let file = File::options().read(true).write(true).open(format!("/dev/ublkc{id}"))?;
    if queues == 0 {
        let (offset, bytes) = abi::descriptors_place(0, info.queue_depth, rustix::param::page_size());
        let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, &file, offset) }?;
    }
    let code = IoOp::Fetch.code(control.features().is_encoded());
    // One command makes a queue of depth 1 served; it waits in the kernel until this process exits.
    let serve = |q_id: u16| {
        let mut bytes = [0; braid_ring::COMMAND_BYTES_MAX];
        bytes[..size_of::<IoCommand>()].copy_from_slice(IoCommand { q_id, ..IoCommand::default() }.as_bytes());
        let file = file.try_clone()?;
        // SAFETY: the command names no memory.
        let wait = move || unsafe { braid_ring::command(file.as_fd(), code, &bytes, Duration::from_secs(3600)) };
        Ok::<_, io::Error>(thread::spawn(wait))
    };
    let serving = (0..queues).map(serve).collect::<Result<Vec<_>, _>>()?;
    thread::sleep(Duration::from_millis(500));
    match serving.into_iter().find(|thread| thread.is_finished()) {
        Some(refused) => Err(format!("a queue is refused: {:?}", refused.join()).into()),
        None => Ok(()),
    }
}

//! What the kernel's ring costs by itself: the measure that other costs are compared with.

#![allow(unsafe_code)]

use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::error::RingError;

/// Sends `count` no-operations through a ring like the shards', `depth` at a time: pushes a batch, enters the kernel
/// once, takes all the answers. Nothing else is done, so that whoever measures this thread's time around the call
/// knows what one costs. `depth` is at least 1.
///
/// # Errors
/// When there is no io_uring here.
pub fn nop_bench(depth: u32, count: u64) -> Result<(), RingError> {
    let failed = |e| RingError::os(e, "measuring io_uring's no-operation");
    let depth = depth.max(1);
    let best =
        IoUring::<squeue::Entry, cqueue::Entry>::builder().setup_single_issuer().setup_defer_taskrun().build(depth);
    let mut ring = best.or_else(|_| IoUring::builder().build(depth)).map_err(failed)?;
    // Where this fails the number of the ring is looked up at each call: dearer, and what a shard would pay there, too.
    let _ = ring.submitter().register_ring_fd();
    let mut left = count;
    while left > 0 {
        let batch = left.min(u64::from(depth)) as u32;
        {
            let mut queue = ring.submission();
            for tag in 0..batch {
                let entry = opcode::Nop::new().build().user_data(u64::from(tag));
                // SAFETY: a no-operation uses no memory; the queue holds `depth` entries and was empty.
                unsafe { queue.push(&entry) }.expect("a batch fits the queue");
            }
        }
        ring.submit_and_wait(batch as usize).map_err(failed)?;
        let mut answered = 0;
        while answered < batch {
            answered += ring.completion().count() as u32;
            if answered < batch {
                ring.submit_and_wait(1).map_err(failed)?;
            }
        }
        left -= u64::from(batch);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_are_answered() {
        // Returns only when every batch was answered; also counts that are no multiple of the depth.
        for (depth, count) in [(1, 3), (128, 1000), (7, 7), (0, 2)] {
            super::nop_bench(depth, count).expect("these machines have io_uring");
        }
    }
}

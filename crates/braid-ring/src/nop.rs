//! Measures the cost of io_uring itself, the baseline to which the cost of the shards is compared.

#![allow(unsafe_code)]

use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::error::RingError;

/// Sends `count` no-operations through a ring like those of the shards, `depth` at a time: pushes a batch, enters the
/// kernel once, and reaps the completions. Does nothing else, so that this thread's CPU time of the call is the cost of
/// the no-operations. `depth` is at least 1.
///
/// # Errors
/// When io_uring is not available.
pub fn nop_bench(depth: u32, count: u64) -> Result<(), RingError> {
    let failed = |e| RingError::os(e, "measuring io_uring's no-operation");
    let depth = depth.max(1);
    let best =
        IoUring::<squeue::Entry, cqueue::Entry>::builder().setup_single_issuer().setup_defer_taskrun().build(depth);
    let mut ring = best.or_else(|_| IoUring::builder().build(depth)).map_err(failed)?;
    // If this fails, each call looks up the ring's descriptor. That is slower, but so it is for a shard on such a
    // kernel.
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
        let mut completed = 0;
        while completed < batch {
            completed += ring.completion().count() as u32;
            if completed < batch {
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
    fn all_complete() {
        // Returns only when every batch has completed. Includes counts that are no multiple of the depth.
        for (depth, count) in [(1, 3), (128, 1000), (7, 7), (0, 2)] {
            super::nop_bench(depth, count).expect("these machines have io_uring");
        }
    }
}

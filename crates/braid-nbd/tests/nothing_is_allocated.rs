//! Once connections are established, a million requests allocate nothing on the server's heap, neither in plaintext nor
//! over TLS 1.3.
//!
//! The client runs in the same process, so its allocations would count: it makes none either.
#![allow(clippy::unwrap_used, unsafe_code)]

mod bed;
mod pki;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bed::*;
use braid_nbd::client::{Client, ClientConfig, Replies};
use braid_nbd::codec::command;
use braid_nbd::server::ServerConfig;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed unchanged to the system's allocator; counting touches none of the caller's memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[derive(Default)]
struct Count(u64);

impl Replies for Count {
    fn done(&mut self, _: u16, result: Result<(), u32>) {
        assert_eq!(result, Ok(()));
        self.0 += 1;
    }
}

/// Sends all kinds of requests, mostly of 4 KiB.
fn run(client: &mut Client, long: &Arc<[u8]>, random: &mut Random, requests: u64) {
    let (mut count, mut queued) = (Count::default(), 0);
    while count.0 < requests {
        while queued < requests && client.free() > 0 {
            let offset = random.below(8192) * 4096;
            let slot = match random.below(200) {
                0 => client.queue(command::FLUSH, 0, 0, 0),
                1 => client.queue(command::TRIM, 0, offset, 4096),
                2 => client.queue(command::WRITE_ZEROES, 0, offset, 4096),
                3 => client.queue(command::BLOCK_STATUS, 0, offset, 4096),
                4 => client.queue(command::CACHE, 0, offset, 4096),
                5 => client.queue_read(0, 300 << 10),
                6 => client.queue_write_shared(0, long, 0, long.len() as u32, 0),
                7..100 => client.queue_write(offset, &long[..4096], 0),
                _ => client.queue_read(offset, 4096),
            };
            slot.unwrap();
            queued += 1;
        }
        client.exchange(true, &mut count).unwrap();
    }
}

/// The parts run one after the other, since all allocations of the process count.
#[test]
fn a_million_requests() {
    in_the_clear();
    over_tls();
}

fn over_tls() {
    let pki = pki::Pki::new();
    let mut bed = Bed::new(1, ServerConfig::default());
    bed.tls = Some(pki.server(false));
    bed.export("m", "mem:64M");
    let bed = Arc::new(bed);
    let at = bed.listen_tcp();
    let uri = format!("nbds://localhost:{}/m", at.port()).parse().unwrap();
    let tls = pki.client(None, &[&rustls::version::TLS13]);
    let long: Arc<[u8]> = vec![7; 300 << 10].into();
    let mut client = Client::connect_with(&uri, ClientConfig::default(), Some(tls)).unwrap();
    let mut random = Random(6);
    run(&mut client, &long, &mut random, 20_000);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run(&mut client, &long, &mut random, 200_000);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "allocations during 200,000 requests over TLS");
}

fn in_the_clear() {
    let bed = Bed::new(1, ServerConfig::default());
    bed.export("m", "mem:64M");
    let long: Arc<[u8]> = vec![7; 300 << 10].into();
    let mut client = bed.client("m", ClientConfig::default());
    let mut random = Random(5);
    run(&mut client, &long, &mut random, 20_000);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run(&mut client, &long, &mut random, 1_000_000);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "allocations during a million requests");
    drop(client);
    bed.stop();
}

//! Request latencies in virtual time: each request is counted in the expected bucket, and in no other.

use std::sync::Arc;

use crate::common::{Client, bytes};
use braid_engine::ErrorKind;
use braid_export::{Export, ExportLimits, RequestClass};
use braid_nbd::memory::DiskBehaviour;
use braid_nbd::server::{Arrival, ServerConfig};
use braid_ring::Rates;
use braid_ring::stats::{BUCKETS, bucket_floor_ns};

const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// READ, WRITE (with its payload), FLUSH, TRIM, WRITE_ZEROES, CACHE of the first 512 bytes; simple headers.
const READ: &str = "25609513 0000 0000 'a cookie' 0000000000000000 00000200";
const WRITE: &str = "25609513 0000 0001 'a cookie' 0000000000000000 00000200";
const FLUSH: &str = "25609513 0000 0003 'a cookie' 0000000000000000 00000000";
const TRIM: &str = "25609513 0000 0004 'a cookie' 0000000000000000 00000200";
const CACHE: &str = "25609513 0000 0005 'a cookie' 0000000000000000 00000200";
const ZERO: &str = "25609513 0000 0006 'a cookie' 0000000000000000 00000200";
/// A READ beyond the end, an unaligned WRITE (with a payload of 1 byte), an unknown command.
const FAR_READ: &str = "25609513 0000 0000 'a cookie' 0000010000000000 00000200";
const ODD_WRITE: &str = "25609513 0000 0001 'a cookie' 0000000000000000 00000001 ff";
const UNKNOWN: &str = "25609513 0000 0063 'a cookie' 0000000000000000 00000000";

fn export(client: &Client) -> Arc<Export> {
    client.table.find("a").unwrap()
}

/// Sends without checking the reply.
fn send(client: &mut Client, socket: usize, text: &str) {
    client.host.client_sends(socket, &bytes(text));
    client.run();
}

fn write(client: &mut Client, socket: usize) {
    send(client, socket, WRITE);
    client.host.client_sends(socket, &[7; 512]);
    client.run();
}

fn pass(client: &mut Client, ns: u64) {
    client.host.now_ns += ns;
    client.run();
}

/// Completes the oldest disk requests.
fn answer(client: &mut Client, count: usize) {
    for _ in 0..count {
        client.host.finish_io(Ok(()), false).unwrap();
    }
    client.run();
}

/// Checks the histograms against the latencies of all requests, in nanoseconds: the count of every bucket, and the
/// request counters.
#[track_caller]
fn expect(export: &Export, expected: [&[u64]; 3]) {
    for (class, expected) in RequestClass::ALL.into_iter().zip(expected) {
        let found = export.latency(class);
        for bucket in 0..BUCKETS {
            let last = bucket + 1 == BUCKETS;
            let bounds = bucket_floor_ns(bucket)..if last { u64::MAX } else { bucket_floor_ns(bucket + 1) };
            let here = expected.iter().filter(|ns| bounds.contains(ns)).count() as u64;
            assert_eq!(found.counts[bucket], here, "{class:?}, {bounds:?} ns: {expected:?}");
        }
    }
    let stats = export.stats();
    assert_eq!([stats.reads, stats.writes, stats.others], expected.map(|of| of.len() as u64));
}

#[test]
fn each_request_is_in_its_bucket() {
    let mut client = Client::simple("a");
    let (socket, export) = (client.socket, export(&client));
    expect(&export, [&[], &[], &[]]);
    client.host.behaviour = DiskBehaviour::Held;
    send(&mut client, socket, READ);
    pass(&mut client, 150 * US);
    expect(&export, [&[], &[], &[]]);
    answer(&mut client, 1);
    expect(&export, [&[150 * US], &[], &[]]);
    write(&mut client, socket);
    pass(&mut client, 3 * MS);
    answer(&mut client, 1);
    for other in [FLUSH, TRIM, ZERO] {
        send(&mut client, socket, other);
        pass(&mut client, 40 * MS);
        answer(&mut client, 1);
    }
    expect(&export, [&[150 * US], &[3 * MS], &[40 * MS; 3]]);
    // Requests without disk I/O are answered at once. Refusals count in their command's class.
    for at_once in [CACHE, FAR_READ, ODD_WRITE, UNKNOWN] {
        send(&mut client, socket, at_once);
    }
    expect(&export, [&[150 * US, 0], &[3 * MS, 0], &[40 * MS, 40 * MS, 40 * MS, 0, 0]]);
    assert_eq!(export.stats().errors, 3);
    // Failed requests count too, even after half an hour.
    send(&mut client, socket, READ);
    pass(&mut client, 1800 * 1000 * MS);
    client.host.finish_io(Err(ErrorKind::Io), false).unwrap();
    client.run();
    expect(&export, [&[150 * US, 0, 1800 * 1000 * MS], &[3 * MS, 0], &[40 * MS, 40 * MS, 40 * MS, 0, 0]]);
}

/// Replies that are sent together arrived at different times, of different classes, on several connections of two
/// shards.
#[test]
fn replies_of_one_batch_are_counted_separately() {
    let mut client = Client::simple("a");
    let export = export(&client);
    let first = client.socket;
    let second = client.reconnect();
    client.choose("a", false);
    let mut other = Client::connect();
    let arrival = Arrival::plain("other shard", client.table.clone());
    other.socket = other.host.socket();
    let third = other.socket;
    other.server.connect(&mut other.host, third, arrival);
    other.run();
    other.choose("a", false);
    client.host.behaviour = DiskBehaviour::Held;
    other.host.behaviour = DiskBehaviour::Held;

    let (mut reads, mut writes, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
    // Arrival times, relative to the first.
    let mut now = 0;
    for step in 0..60u64 {
        let socket = if step % 3 == 0 { second } else { first };
        match step % 5 {
            0..2 => {
                send(&mut client, socket, READ);
                send(&mut other, third, READ);
                reads.extend([now; 2]);
            }
            2..4 => {
                write(&mut client, socket);
                writes.push(now);
            }
            _ => {
                send(&mut client, socket, FLUSH);
                send(&mut other, third, FLUSH);
                flushes.extend([now; 2]);
            }
        }
        // First many of one bucket, then others.
        let step = if step < 40 { 10 } else { step * MS };
        pass(&mut client, step);
        pass(&mut other, step);
        now += step;
    }
    expect(&export, [&[], &[], &[]]);
    let (all, of_other) = (client.host.held_io(), other.host.held_io());
    assert_eq!((all, of_other), (60, 36));
    answer(&mut client, all);
    answer(&mut other, of_other);
    let took = |came: &[u64]| came.iter().map(|came| now - came).collect::<Vec<u64>>();
    expect(&export, [&took(&reads), &took(&writes), &took(&flushes)]);
    assert!(took(&reads).iter().any(|ns| *ns > 900 * MS) && took(&reads).iter().any(|ns| *ns < 300 * MS));
}

/// A slow payload counts, and so does a reply that the client does not take; the wait for the limits does not.
#[test]
fn latency_spans_header_to_socket() {
    let mut client = Client::simple("a");
    let (socket, export) = (client.socket, export(&client));
    send(&mut client, socket, WRITE);
    pass(&mut client, 5 * MS);
    client.host.client_sends(socket, &[7; 512]);
    client.run();
    expect(&export, [&[], &[5 * MS], &[]]);
    // The first reply is handed to the socket at once; the second waits until it is sent.
    client.host.client_takes(socket, 0);
    send(&mut client, socket, READ);
    send(&mut client, socket, READ);
    expect(&export, [&[0], &[5 * MS], &[]]);
    pass(&mut client, 70 * MS);
    client.host.client_takes(socket, usize::MAX);
    client.run();
    expect(&export, [&[0, 70 * MS], &[5 * MS], &[]]);
    // One request per second: the second waits for the limit, and is then answered at once.
    let rates = Rates { iops: Some(1), bandwidth_bytes: None };
    export.set_limits(ExportLimits { rates, ..ExportLimits::default() });
    client.server.exports_changed(&mut client.host);
    client.host.take_output(socket);
    send(&mut client, socket, &READ.repeat(2));
    assert_eq!(client.host.take_output(socket).len(), 16 + 512);
    pass(&mut client, 2000 * MS);
    assert_eq!(client.host.take_output(socket).len(), 16 + 512);
    expect(&export, [&[0, 70 * MS, 0, 0], &[5 * MS], &[]]);
}

/// A READ that waits for memory is timed from when it has it.
#[test]
fn the_wait_for_memory_is_not_counted() {
    // Room for the connection and, above the reserve, one READ of 512 KiB.
    let mut client = Client::with(ServerConfig::default(), 1 << 20);
    client.choose("a", false);
    let (socket, export) = (client.socket, export(&client));
    client.host.behaviour = DiskBehaviour::Held;
    let long = "25609513 0000 0000 'a cookie' 0000000000000000 00080000";
    send(&mut client, socket, &long.repeat(2));
    assert_eq!(client.host.held_io(), 1);
    pass(&mut client, 20 * MS);
    answer(&mut client, 1);
    assert_eq!(client.host.held_io(), 1, "the second has its turn");
    pass(&mut client, 3 * MS);
    answer(&mut client, 1);
    expect(&export, [&[20 * MS, 3 * MS], &[], &[]]);
}

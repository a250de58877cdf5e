//! Load generator for NBD servers: `load URI read|write BLOCK DEPTH SECONDS [PID] [random|sequential]`. Given the
//! server's process id, it also reports the server's CPU time per I/O.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_nbd::client::{Client, ClientConfig, Replies};

struct Count(u64);

impl Replies for Count {
    fn done(&mut self, _: u16, result: Result<(), u32>) {
        assert_eq!(result, Ok(()), "an I/O failed");
        self.0 += 1;
    }
}

/// Returns the CPU time of a process, user and system, in seconds.
fn cpu(pid: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [uri, operation, block, depth, seconds, rest @ ..] = &arguments[..] else {
        return Err("usage: load URI read|write BLOCK DEPTH SECONDS [PID] [random|sequential]".into());
    };
    let (block, depth): (u32, usize) = (block.parse()?, depth.parse()?);
    let limit = Duration::from_secs_f64(seconds.parse()?);
    let pid = rest.first().map(String::as_str).unwrap_or_default();
    let sequential = rest.get(1).is_some_and(|order| order == "sequential");
    let config = ClientConfig { depth, structured: false, ..ClientConfig::default() };
    let mut client = Client::connect(&uri.parse()?, config)?;
    let blocks = client.size_bytes() / u64::from(block);
    let data: Arc<[u8]> = vec![0x5a; block as usize].into();
    let (mut count, mut state, mut at) = (Count(0), 1u64, 0);
    let (start, before) = (Instant::now(), cpu(pid));
    while start.elapsed() < limit {
        while client.free() > 0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            at = if sequential { (at + 1) % blocks } else { (state >> 20) % blocks };
            let offset = at * u64::from(block);
            match operation.as_str() {
                "read" => client.queue_read(offset, block),
                _ if block < 32768 => client.queue_write(offset, &data, 0),
                _ => client.queue_write_shared(offset, &data, 0, block, 0),
            };
        }
        client.exchange(true, &mut count)?;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let rate = count.0 as f64 / elapsed;
    print!("{operation} {block} x {depth}: {rate:.0} IOPS, {:.0} MB/s", rate * f64::from(block) / 1e6);
    if let (Some(before), Some(after)) = (before, cpu(pid)) {
        print!(", server {:.2} us/IO", (after - before) * 1e6 / count.0 as f64);
    }
    println!();
    client.disconnect()?;
    Ok(())
}

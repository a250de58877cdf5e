//! A proxy in a network namespace. It does to connections what the kernel has no means for here: delays, resets in the middle of
//! requests, silence, and ends of which one side hears nothing.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How often a connection on which nothing comes looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Default)]
struct State {
    ends: AtomicBool,
    delay_ms: AtomicU64,
    /// A connection that has carried so many bytes is reset; 0: none is.
    reset_after_bytes: AtomicU64,
    resets: AtomicU64,
    silent: AtomicBool,
    /// Counted up: connections that were there before end for whoever has made them, and the other side hears nothing.
    abandoned: AtomicU64,
    kept: Mutex<Vec<TcpStream>>,
}

/// Ends with this value.
pub struct Proxy {
    state: Arc<State>,
}

impl Proxy {
    /// In this namespace, from this address to that one.
    pub fn start(namespace: &str, listen: &str, to: &str) -> Proxy {
        let state = Arc::new(State::default());
        let (ready, begun) = mpsc::channel();
        let (own, listen, to) = (Arc::clone(&state), listen.to_owned(), to.to_owned());
        let namespace = format!("/run/netns/{namespace}");
        thread::spawn(move || {
            // Of this thread alone, and of those that it begins.
            let file = std::fs::File::open(&namespace).expect("the namespace is there");
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
            let listener = TcpListener::bind(&listen).expect("the address is the namespace's");
            listener.set_nonblocking(true).expect("a listener can be asked");
            ready.send(()).expect("somebody waits");
            while !own.ends.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((near, _)) => carry(&own, near, &to),
                    Err(_) => thread::sleep(LOOK_EVERY),
                }
            }
        });
        begun.recv().expect("it listens");
        Proxy { state }
    }

    /// Whatever passes takes so much longer, each way.
    pub fn delay(&self, ms: u64) {
        self.state.delay_ms.store(ms, Ordering::Release);
    }

    /// Connections are reset that have carried so many bytes; 0: no more.
    pub fn reset_after(&self, bytes: u64) {
        self.state.reset_after_bytes.store(bytes, Ordering::Release);
    }

    /// How many were.
    pub fn resets(&self) -> u64 {
        self.state.resets.load(Ordering::Acquire)
    }

    /// Nothing passes, and nothing ends; or it goes on.
    pub fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Release);
    }

    /// Connections that are there end for those who have made them; the other side is told nothing.
    pub fn abandon(&self) {
        self.state.abandoned.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Release);
    }
}

/// Carries a connection both ways.
fn carry(state: &Arc<State>, near: TcpStream, to: &str) {
    // Where nobody listens it ends, as it would without a proxy.
    let Ok(far) = TcpStream::connect(to) else { return };
    let since = state.abandoned.load(Ordering::Acquire);
    let (over, carried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for stream in [&near, &far] {
        // Accepted from a listener that is asked, it may be asked, too.
        stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK_EVERY))).expect("it is a socket");
        stream.set_write_timeout(Some(Duration::from_secs(5))).expect("it is a socket");
        stream.set_nodelay(true).expect("it is a socket");
    }
    for is_up in [true, false] {
        let (near, far) = (near.try_clone().expect("one more"), far.try_clone().expect("one more"));
        let (state, over, carried) = (Arc::clone(state), Arc::clone(&over), Arc::clone(&carried));
        thread::spawn(move || {
            let (mut from, mut into) = if is_up { (&near, &far) } else { (&far, &near) };
            let mut buffer = vec![0; 16 << 10];
            while !over.load(Ordering::Acquire) && !state.ends.load(Ordering::Acquire) {
                if state.abandoned.load(Ordering::Acquire) != since {
                    state.kept.lock().expect("nobody panics").extend(far.try_clone());
                    break;
                }
                if state.silent.load(Ordering::Acquire) {
                    thread::sleep(LOOK_EVERY);
                    continue;
                }
                let read = match from.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(read) => read,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                    Err(_) => break,
                };
                thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::Acquire)));
                let limit = state.reset_after_bytes.load(Ordering::Acquire);
                let before = carried.fetch_add(read as u64, Ordering::AcqRel);
                if limit > 0 && before + read as u64 > limit {
                    // Half of what came passes. What is closed like this is reset.
                    let _ = into.write_all(&buffer[..read / 2]);
                    let _ =
                        (set_socket_linger(&near, Some(Duration::ZERO)), set_socket_linger(&far, Some(Duration::ZERO)));
                    if !over.swap(true, Ordering::AcqRel) {
                        state.resets.fetch_add(1, Ordering::AcqRel);
                    }
                    break;
                }
                if into.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            over.store(true, Ordering::Release);
        });
    }
}

//! A proxy in a network namespace that injects faults which the kernel has no means for here: delays, resets in the
//! middle of requests, silence, and connections that close on one side only.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Interval at which an idle connection checks whether it has to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Default)]
struct ProxyState {
    ends: AtomicBool,
    delay_ms: AtomicU64,
    /// Number of bytes after which a connection is reset; 0: never.
    reset_after_bytes: AtomicU64,
    resets: AtomicU64,
    silent: AtomicBool,
    /// Generation of connections: when it increases, existing connections close towards their clients, and the server sees no close.
    abandoned: AtomicU64,
    kept: Mutex<Vec<TcpStream>>,
}

/// Stops when dropped.
pub struct Proxy {
    state: Arc<ProxyState>,
}

impl Proxy {
    /// Starts a proxy in this namespace, from address `listen` to address `to`.
    pub fn start(namespace: &str, listen: &str, to: &str) -> Proxy {
        let state = Arc::new(ProxyState::default());
        let (ready, begun) = mpsc::channel();
        let (own, listen, to) = (Arc::clone(&state), listen.to_owned(), to.to_owned());
        let namespace = format!("/run/netns/{namespace}");
        thread::spawn(move || {
            // Changes the namespace of this thread alone, and of the threads that it spawns.
            let file = std::fs::File::open(&namespace).expect("the namespace is there");
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
            let listener = TcpListener::bind(&listen).expect("the address is the namespace's");
            listener.set_nonblocking(true).expect("a listener can be non-blocking");
            ready.send(()).expect("`start` waits");
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

    /// Delays data by this many milliseconds, each way.
    pub fn delay(&self, ms: u64) {
        self.state.delay_ms.store(ms, Ordering::Release);
    }

    /// Resets connections that have carried this many bytes; 0: no more.
    pub fn reset_after(&self, bytes: u64) {
        self.state.reset_after_bytes.store(bytes, Ordering::Release);
    }

    /// Returns the number of connections that were reset.
    pub fn resets(&self) -> u64 {
        self.state.resets.load(Ordering::Acquire)
    }

    /// Stops all data without closing a connection, or lets data pass again.
    pub fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Release);
    }

    /// Closes the existing connections towards their clients; the server sees no close.
    pub fn abandon(&self) {
        self.state.abandoned.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Release);
    }
}

/// Forwards a connection both ways.
fn carry(state: &Arc<ProxyState>, near: TcpStream, to: &str) {
    // If the server does not listen, the connection closes, as it would without a proxy.
    let Ok(far) = TcpStream::connect(to) else { return };
    let since = state.abandoned.load(Ordering::Acquire);
    let (over, carried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for stream in [&near, &far] {
        // A socket accepted from a non-blocking listener may be non-blocking, too.
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
                    state.kept.lock().expect("no holder panics").extend(far.try_clone());
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
                    // Half of the data pass. A close with linger 0 sends a reset.
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

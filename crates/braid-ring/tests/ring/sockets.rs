//! Streams through a shard's driver, on all three drivers: echo, whole frames, ends of streams, and closing.

use std::any::Any;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::Random;
use braid_engine::{Buf, Completion, ShardId};
use braid_ring::{Cx, DriverKind, Frontend, RecvMode, Ring, RingConfig, SendPiece, SocketId};

const FRAME: usize = 64 << 10;

/// A message from a test.
enum Say {
    /// Echo what arrives on this socket, with this mode.
    Echo(OwnedFd, RecvMode),
    /// Receive once. The socket is shut down or closed by the next `End`.
    Listen(OwnedFd),
    End {
        close: bool,
    },
}

struct Stream {
    socket: SocketId,
    buf: Buf,
    mode: RecvMode,
    echo: bool,
}

/// Echoes, and reports the end of each receive (bytes or -errno).
struct Echo {
    streams: HashMap<u64, Stream>,
    next: u64,
    ends: Sender<i32>,
}

const RECV: u64 = 0;
const SEND: u64 = 1;

impl Echo {
    fn receive(&self, cx: &mut Cx<'_>, id: u64) {
        let s = &self.streams[&id];
        assert!(cx.recv(s.socket, s.buf, FRAME as u32, s.mode, id << 1 | RECV));
    }
}

impl Frontend for Echo {
    fn io_done(&mut self, _: &mut Cx<'_>, _: &Completion) {}

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let (fd, mode, echo) = match *message.downcast::<Say>().unwrap() {
            Say::Echo(fd, mode) => (fd, mode, true),
            Say::Listen(fd) => (fd, RecvMode::Some, false),
            Say::End { close } => {
                let socket = self.streams[&self.next].socket;
                if close {
                    cx.close(socket)
                } else {
                    cx.shutdown(socket)
                }
                return;
            }
        };
        self.next += 1;
        let (socket, buf) = (cx.add_socket(fd).expect("room for a socket"), cx.alloc(FRAME).expect("room for a frame"));
        self.streams.insert(self.next, Stream { socket, buf, mode, echo });
        self.receive(cx, self.next);
    }

    fn net_done(&mut self, cx: &mut Cx<'_>, token: u64, result: i32) {
        let (id, kind) = (token >> 1, token & 1);
        if kind == SEND {
            assert!(result > 0, "the peer reads: {result}");
            return self.receive(cx, id);
        }
        let stream = &self.streams[&id];
        if result > 0 && stream.echo {
            // In three pieces, which the send gathers.
            let (len, third) = (result as u32, result as u32 / 3);
            let piece = |from: u32, to: u32| SendPiece { buf: stream.buf.add(u64::from(from)), len: to - from };
            let pieces = [piece(0, third), piece(third, 2 * third), piece(2 * third, len)];
            assert!(cx.send(stream.socket, &pieces, id << 1 | SEND));
            return;
        }
        let _ = self.ends.send(result);
        let stream = self.streams.remove(&id).unwrap();
        cx.close(stream.socket);
        cx.free(stream.buf, FRAME);
        assert!(!cx.recv(stream.socket, stream.buf, 1, RecvMode::Some, 0), "a closed socket takes nothing");
    }
}

fn start(driver: DriverKind) -> (Ring, Receiver<i32>) {
    let (ends, receiver) = channel();
    let config = RingConfig { driver: Some(driver), ..RingConfig::default() };
    let echo =
        move |_| vec![Box::new(Echo { streams: HashMap::new(), next: 0, ends: ends.clone() }) as Box<dyn Frontend>];
    (Ring::start(&config, echo).expect("a ring"), receiver)
}

fn post(ring: &Ring, say: Say) {
    ring.handle().post(ShardId(0), 0, Box::new(say));
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Sends `total` random bytes in random pieces from one thread, and compares the echo on this one.
fn echoed(mut writer: impl Write + Send + 'static, mut reader: impl Read, total: u64) {
    let data = Random(total).bytes(total);
    let sent = data.clone();
    let thread = std::thread::spawn(move || {
        let (mut random, mut at) = (Random(1), 0);
        while at < sent.len() {
            let n = (1 + random.below(200_000) as usize).min(sent.len() - at);
            writer.write_all(&sent[at..at + n]).unwrap();
            at += n;
        }
        writer
    });
    let mut got = vec![0; total as usize];
    reader.read_exact(&mut got).unwrap();
    assert!(got == data);
    drop(thread.join().unwrap());
}

fn streams_are_kept(driver: DriverKind) {
    let (ring, ends) = start(driver);
    let (ours, theirs) = UnixStream::pair().unwrap();
    // Like accepted sockets of an async runtime.
    theirs.set_nonblocking(true).unwrap();
    post(&ring, Say::Echo(theirs.into(), RecvMode::Some));
    echoed(ours.try_clone().unwrap(), &ours, 12 << 20);
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(ends.recv_timeout(Duration::from_secs(10)), Ok(0), "the end of the stream");
    assert_eq!((&ours).read(&mut [0; 8]).unwrap(), 0, "the shard closed its side");

    let (ours, theirs) = tcp_pair();
    post(&ring, Say::Echo(theirs.into(), RecvMode::All));
    echoed(ours.try_clone().unwrap(), &ours, (40 * FRAME) as u64);
    // Half a frame, then the end of the stream: the receive ends short, and the bytes are echoed.
    (&ours).write_all(&[7; 1000]).unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    (&ours).read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [7; 1000]);
    assert_eq!(ends.recv_timeout(Duration::from_secs(10)), Ok(0));
    ring.stop();
}

fn receives_end_when_the_socket_does(driver: DriverKind) {
    let (ring, ends) = start(driver);
    for close in [false, true] {
        for tcp in [false, true] {
            let (unix, tcps) = (UnixStream::pair().unwrap(), tcp_pair());
            let (ours, theirs): (OwnedFd, OwnedFd) =
                if tcp { (tcps.0.into(), tcps.1.into()) } else { (unix.0.into(), unix.1.into()) };
            post(&ring, Say::Listen(theirs));
            std::thread::sleep(Duration::from_millis(30));
            post(&ring, Say::End { close });
            let end = ends.recv_timeout(Duration::from_secs(10)).expect("the receive ends");
            assert!(end <= 0, "close {close}, tcp {tcp}: {end}");
            let mut ours = std::fs::File::from(ours);
            assert_eq!(ours.read(&mut [0; 8]).unwrap_or(0), 0);
        }
    }
    // A peer that disconnects during a receive.
    let (ours, theirs) = UnixStream::pair().unwrap();
    post(&ring, Say::Listen(theirs.into()));
    drop(ours);
    assert_eq!(ends.recv_timeout(Duration::from_secs(10)), Ok(0));
    // A receive that is in flight when the ring stops.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    post(&ring, Say::Listen(theirs.into()));
    std::thread::sleep(Duration::from_millis(30));
    ring.stop();
    assert!(ends.recv_timeout(Duration::from_secs(1)).is_ok_and(|end| end <= 0), "reported before the shard ended");
    assert_eq!(ours.read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn uring_streams() {
    streams_are_kept(DriverKind::Uring);
    receives_end_when_the_socket_does(DriverKind::Uring);
}

#[test]
fn libaio_streams() {
    streams_are_kept(DriverKind::Libaio);
    receives_end_when_the_socket_does(DriverKind::Libaio);
}

#[test]
fn threads_streams() {
    streams_are_kept(DriverKind::Threads);
    receives_end_when_the_socket_does(DriverKind::Threads);
}

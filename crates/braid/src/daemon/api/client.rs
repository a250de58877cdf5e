//! One client's stream, of whatever kind, with the place that it takes.
//!
//! When we end a connection while the client is still sending, say because its request is too long, the kernel would throw
//! away our answer with the bytes that nobody has read: the client would see a reset, and never why. So we stop sending, and then
//! read on for a while what it sends, for nothing.

use braid_api::limits::API_BODY_BYTES_MAX;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

/// Longest time in which a client has to take our last answer and end its side.
const LINGER_MAX: Duration = Duration::from_secs(2);
/// Most bytes of it that are read for nothing meanwhile.
const LINGER_BYTES_MAX: usize = 4 * API_BODY_BYTES_MAX;
/// Bytes read at a time, for nothing.
const LINGER_READ_BYTES: usize = 8 << 10;

/// A client's stream, with its place. One on which nothing moves for too long is ended, so that clients which hang do
/// not keep their places from others for ever. Who follows events gets a sign of life every 15 s.
pub struct Client<S> {
    stream: S,
    _place: OwnedSemaphorePermit,
    idle_max: Duration,
    idle: Pin<Box<Sleep>>,
    ending: Option<Ending>,
}

/// How far the end of a connection has come.
struct Ending {
    /// We send no more.
    is_silent: bool,
    /// Bytes that may still be read for nothing.
    left_bytes: usize,
}

impl<S> Client<S> {
    /// A stream that is ended when nothing has moved on it for `idle_max`.
    pub fn new(stream: S, place: OwnedSemaphorePermit, idle_max: Duration) -> Client<S> {
        Client { stream, _place: place, idle_max, idle: Box::pin(tokio::time::sleep(idle_max)), ending: None }
    }

    /// Passes a result on; one that is pending for too long becomes an error.
    fn watch<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.idle.as_mut().reset(Instant::now() + self.idle_max);
            return result;
        }
        self.idle.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Client<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(cx, into);
        self.watch(cx, result)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Ends our side, and reads until the client has ended its own, or has had enough of bytes.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Client { stream, ending, .. } = self;
        let ending = ending.get_or_insert(Ending { is_silent: false, left_bytes: LINGER_BYTES_MAX });
        if !ending.is_silent {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            ending.is_silent = true;
        }
        let mut bytes = [0; LINGER_READ_BYTES];
        while ending.left_bytes > 0 {
            let mut into = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut into)) {
                Ok(()) if !into.filled().is_empty() => {
                    ending.left_bytes = ending.left_bytes.saturating_sub(into.filled().len());
                }
                // What it did wrong now does not matter any more.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Client<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, result)
    }

    // Neither is a sign of life: what they wait for is bytes that the peer takes, and those were written first.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ending.is_none() {
            // From here on nothing that the client does gives it more time.
            self.idle.as_mut().reset(Instant::now() + LINGER_MAX);
        }
        match self.poll_end(cx) {
            Poll::Pending => self.idle.as_mut().poll(cx).map(Ok),
            ended => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::sync::Semaphore;

    fn client(idle_max: Duration) -> (Client<UnixStream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets can be made");
        let places = Arc::new(Semaphore::new(1));
        let place = places.try_acquire_owned().expect("there is one");
        (Client::new(ours, place, idle_max), theirs)
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_is_ended() {
        let (mut client, theirs) = client(Duration::from_millis(20));
        let error = client.read_u8().await.expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_ended() {
        let (mut client, theirs) = client(Duration::from_millis(20));
        let error = client.write_all(&vec![0; 64 << 20]).await.expect_err("nothing is taken");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }

    #[tokio::test]
    async fn who_is_still_sending_when_we_end_reads_the_answer() {
        let (mut client, mut theirs) = client(Duration::from_secs(3600));
        let sending = tokio::spawn(async move {
            theirs.write_all(&vec![0; LINGER_BYTES_MAX / 2]).await.expect("it is all taken");
            let mut answer = Vec::new();
            theirs.read_to_end(&mut answer).await.expect("no reset");
            answer
        });
        client.read_u8().await.expect("it comes");
        client.write_all(b"too long").await.expect("it is taken");
        client.shutdown().await.expect("it ends");
        drop(client);
        assert_eq!(sending.await.expect("it ends"), b"too long");
    }

    #[tokio::test]
    async fn who_does_not_end_its_side_is_ended() {
        let (mut client, theirs) = client(Duration::from_secs(3600));
        let begun = Instant::now();
        client.shutdown().await.expect("it ends");
        assert!(begun.elapsed() >= LINGER_MAX);
        drop(theirs);
    }

    #[tokio::test]
    async fn who_sends_for_ever_is_ended() {
        let (mut client, mut theirs) = client(Duration::from_secs(3600));
        let sending = tokio::spawn(async move { while theirs.write_all(&[0; 4096]).await.is_ok() {} });
        client.shutdown().await.expect("it ends");
        assert_eq!(client.ending.as_ref().map(|ending| ending.left_bytes), Some(0), "it was the time, not the bytes");
        drop(client);
        sending.await.expect("it ends");
    }

    #[tokio::test]
    async fn a_client_that_goes_on_stays() {
        let (mut client, mut theirs) = client(Duration::from_secs(3600));
        for byte in 0..10 {
            theirs.write_u8(byte).await.expect("it takes it");
            assert_eq!(client.read_u8().await.expect("it comes"), byte);
        }
    }
}

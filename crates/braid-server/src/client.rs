//! The stream of one client, of any transport, with its connection permit.
//!
//! If the server closes a connection while the client is still sending (because its request is too long, for example),
//! the kernel discards the reply together with the unread bytes: the client sees a reset instead of the reason. So the
//! server shuts down its sending side first, and then reads and discards for a while what the client sends.

use braid_api::limits::API_BODY_BYTES_MAX;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

/// Maximum time from the start of a shutdown until the client has taken the last reply and ended its side.
const LINGER_MAX: Duration = Duration::from_secs(2);
/// Maximum bytes that are read and discarded meanwhile.
const LINGER_BYTES_MAX: usize = 4 * API_BODY_BYTES_MAX;
/// Bytes discarded by one read.
const LINGER_READ_BYTES: usize = 8 << 10;

/// The stream of a client, with its connection permit. A stream without progress for too long is ended, so that hanging
/// clients do not hold their permits for ever. A follower of the events gets a keep-alive every 15 s.
pub struct Client<S> {
    stream: S,
    _permit: OwnedSemaphorePermit,
    idle_max: Duration,
    idle: Pin<Box<Sleep>>,
    closing: Option<Closing>,
}

/// Progress of closing a connection.
struct Closing {
    /// The server's side is shut down.
    is_shut_down: bool,
    /// Bytes that may still be read and discarded.
    left_bytes: usize,
}

impl<S> Client<S> {
    /// Wraps a stream that is ended after `idle_max` without progress.
    pub fn new(stream: S, permit: OwnedSemaphorePermit, idle_max: Duration) -> Client<S> {
        Client { stream, _permit: permit, idle_max, idle: Box::pin(tokio::time::sleep(idle_max)), closing: None }
    }

    /// Passes a result on; returns an error if it has been pending for too long.
    fn check_idle<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
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
        self.check_idle(cx, result)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Shuts down the server's side, and reads until the client has ended its own, or until the limit of bytes is
    /// reached.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Client { stream, closing, .. } = self;
        let closing = closing.get_or_insert(Closing { is_shut_down: false, left_bytes: LINGER_BYTES_MAX });
        if !closing.is_shut_down {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            closing.is_shut_down = true;
        }
        let mut bytes = [0; LINGER_READ_BYTES];
        while closing.left_bytes > 0 {
            let mut into = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut into)) {
                Ok(()) if !into.filled().is_empty() => {
                    closing.left_bytes = closing.left_bytes.saturating_sub(into.filled().len());
                }
                // Errors of the client do not matter any more.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Client<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_idle(cx, result)
    }

    // Neither a flush nor a shutdown is progress that extends the idle limit: both wait for the peer to take bytes that
    // were written before.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            // From here on no action of the client extends the limit.
            self.idle.as_mut().reset(Instant::now() + LINGER_MAX);
        }
        match self.poll_close(cx) {
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
        let permits = Arc::new(Semaphore::new(1));
        let permit = permits.try_acquire_owned().expect("there is one");
        (Client::new(ours, permit, idle_max), theirs)
    }

    #[tokio::test]
    async fn an_idle_client_is_disconnected() {
        let (mut client, theirs) = client(Duration::from_millis(20));
        let error = client.read_u8().await.expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (mut client, theirs) = client(Duration::from_millis(20));
        let error = client.write_all(&vec![0; 64 << 20]).await.expect_err("nothing is taken");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }

    #[tokio::test]
    async fn a_client_that_is_still_sending_receives_the_reply() {
        let (mut client, mut theirs) = client(Duration::from_secs(3600));
        let sending = tokio::spawn(async move {
            theirs.write_all(&vec![0; LINGER_BYTES_MAX / 2]).await.expect("it is all taken");
            let mut reply = Vec::new();
            theirs.read_to_end(&mut reply).await.expect("no reset");
            reply
        });
        client.read_u8().await.expect("it comes");
        client.write_all(b"too long").await.expect("it is taken");
        client.shutdown().await.expect("it ends");
        drop(client);
        assert_eq!(sending.await.expect("it ends"), b"too long");
    }

    #[tokio::test]
    async fn a_client_that_does_not_close_is_disconnected() {
        let (mut client, theirs) = client(Duration::from_secs(3600));
        let begun = Instant::now();
        client.shutdown().await.expect("it ends");
        assert!(begun.elapsed() >= LINGER_MAX);
        drop(theirs);
    }

    #[tokio::test]
    async fn a_client_that_sends_for_ever_is_disconnected() {
        let (mut client, mut theirs) = client(Duration::from_secs(3600));
        let sending = tokio::spawn(async move { while theirs.write_all(&[0; 4096]).await.is_ok() {} });
        client.shutdown().await.expect("it ends");
        assert_eq!(
            client.closing.as_ref().map(|closing| closing.left_bytes),
            Some(0),
            "it was the time, not the bytes"
        );
        drop(client);
        sending.await.expect("it ends");
    }

    #[tokio::test]
    async fn an_active_client_stays_connected() {
        let (mut client, mut theirs) = client(Duration::from_secs(3600));
        for byte in 0..10 {
            theirs.write_u8(byte).await.expect("it takes it");
            assert_eq!(client.read_u8().await.expect("it comes"), byte);
        }
    }
}

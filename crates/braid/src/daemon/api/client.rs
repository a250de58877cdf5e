//! One client's stream, of whatever kind, with the place that it takes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

/// A client's stream, with its place. One on which nothing moves for too long is ended, so that clients which hang do
/// not keep their places from others for ever. Who follows events gets a sign of life every 15 s.
pub struct Client<S> {
    stream: S,
    _place: OwnedSemaphorePermit,
    idle_max: Duration,
    idle: Pin<Box<Sleep>>,
}

impl<S> Client<S> {
    /// A stream that is ended when nothing has moved on it for `idle_max`.
    pub fn new(stream: S, place: OwnedSemaphorePermit, idle_max: Duration) -> Client<S> {
        Client { stream, _place: place, idle_max, idle: Box::pin(tokio::time::sleep(idle_max)) }
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Client<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, result)
    }

    // Neither is a sign of life: what they wait for is bytes that the peer takes, and those were written first.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
    async fn a_client_that_goes_on_stays() {
        let (mut client, mut theirs) = client(Duration::from_secs(3600));
        for byte in 0..10 {
            theirs.write_u8(byte).await.expect("it takes it");
            assert_eq!(client.read_u8().await.expect("it comes"), byte);
        }
    }
}

//! A listener of the API that takes a bounded number of clients: further ones wait in the kernel.

use braid_api::limits::API_CLIENTS_MAX;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream, unix};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// A client on whose connection nothing moves for so long is gone: longer than any change takes to be answered.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// The listener.
pub struct Bounded {
    listener: UnixListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    /// Takes at most [`API_CLIENTS_MAX`] clients at a time.
    pub fn new(listener: UnixListener) -> Bounded {
        Bounded { listener, places: Arc::new(Semaphore::new(API_CLIENTS_MAX)) }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Client;
    type Addr = unix::SocketAddr;

    async fn accept(&mut self) -> (Client, unix::SocketAddr) {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
            match self.listener.accept().await {
                Ok((stream, address)) => return (Client::new(stream, place, IDLE_MAX), address),
                Err(error) => {
                    // Out of descriptors or memory: waiting lets others finish; accepting at once would only spin.
                    tracing::error!("a client of the API could not be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<unix::SocketAddr> {
        self.listener.local_addr()
    }
}

/// A client's stream, with its place. One on which nothing moves for too long is ended, so that clients which hang do
/// not keep their places from others for ever. Who follows events gets a sign of life every 15 s.
pub struct Client {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
    idle_max: Duration,
    idle: Pin<Box<Sleep>>,
}

impl Client {
    fn new(stream: UnixStream, place: OwnedSemaphorePermit, idle_max: Duration) -> Client {
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

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(cx, into);
        self.watch(cx, result)
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, result)
    }

    // A socket has nothing of its own to flush, and its end does not wait: neither is a sign of life.
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn client(idle_max: Duration) -> (Client, UnixStream) {
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

//! A listener of the API that takes a bounded number of clients: further ones wait in the kernel.

use braid_api::limits::API_CLIENTS_MAX;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream, unix};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
                Ok((stream, address)) => return (Client { stream, _place: place }, address),
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

/// A client's stream, with its place.
pub struct Client {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

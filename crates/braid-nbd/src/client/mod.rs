//! A lean client: many requests in flight on one connection, few system calls.
//!
//! [`negotiate`] and [`pipeline`] are sans-I/O; [`Client`] drives them over a socket and blocks in `poll`. Requests are
//! queued in one buffer and written together; one read takes many replies. Requests have a fixed table of slots. The
//! slot's index is the cookie on the wire, so a reply finds its request without a map.

mod coverage;
pub mod endpoint;
pub mod negotiate;
pub mod pipeline;
pub mod remote;
mod secure;
mod stream;

pub use endpoint::{Address, Endpoint, TlsOptions};
pub use negotiate::{Negotiated, NegotiationOptions};
pub use pipeline::{Pipeline, Replies};
pub use stream::{Client, ClientConfig};

/// Errors of the client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Socket(#[from] std::io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The connection made no progress within the time limit.
    #[error("the server did not answer within {0} ms")]
    TimedOut(u64),
    /// The TLS handshake failed, or the server violated the protocol.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The server refused an option of the handshake.
    #[error("the server refused the export (error {code:#x}){}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// Type of the reply, one of [`crate::codec::option_reply`].
        code: u32,
        /// The server's text.
        text: String,
    },
    /// The server violated the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(&'static str),
    /// A request failed with this error number.
    #[error("the server answered with error {0}")]
    Request(u32),
    /// An address is invalid.
    #[error(
        "{0:?} is not an NBD address: {1}; example: nbd://localhost:10809/disk or nbd+unix:///disk?socket=/run/nbd.sock"
    )]
    Address(String, &'static str),
    /// No slot is free for a request, or it is longer than 32 MiB.
    #[error("too many requests in flight, or one that is too long")]
    Full,
}

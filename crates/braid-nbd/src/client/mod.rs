//! A lean client: many requests in flight on one connection, few system calls.
//!
//! [`negotiate`] and [`pipeline`] are sans-I/O; [`Client`] drives them over a blocking socket. Requests are queued
//! into one buffer and written together; one read brings many replies. A fixed table of slots: the slot's index is
//! the cookie on the wire, so that a reply finds its request without a map.

mod coverage;
pub mod endpoint;
pub mod negotiate;
pub mod pipeline;
pub mod remote;
mod secure;
mod stream;

pub use endpoint::{Address, Endpoint, TlsWishes};
pub use negotiate::{Negotiated, Wishes};
pub use pipeline::{Pipeline, Replies};
pub use stream::{Client, ClientConfig};

/// Why something did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Socket(#[from] std::io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// Nothing came for too long.
    #[error("the server did not answer within {0} ms")]
    TimedOut(u64),
    /// TLS could not be agreed on, or was broken.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The server refused an option of the handshake.
    #[error("the server refused the export (error {code:#x}){}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// Type of its reply, one of [`crate::codec::option_reply`].
        code: u32,
        /// Its own words.
        text: String,
    },
    /// The server does not keep to the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(&'static str),
    /// A request failed.
    #[error("the server answered with error {0}")]
    Request(u32),
    /// An address that cannot be understood.
    #[error(
        "{0:?} names no NBD server: {1}; for example nbd://localhost:10809/disk or nbd+unix:///disk?socket=/run/nbd.sock"
    )]
    Address(String, &'static str),
    /// No slot is free for a request, or it is longer than 32 MiB.
    #[error("too many requests in flight, or one that is too long")]
    Full,
}

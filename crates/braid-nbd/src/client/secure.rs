//! TLS of the client, between the socket and the pipeline.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;

use super::ClientError;
use crate::tls::{Opened, RECORD_DATA_MAX, SEAL_BYTES_MAX, Tls, copy, whole_record};

/// Size of each record buffer in bytes: the maximum received or sent in one system call.
const BUFFER_BYTES: usize = 256 << 10;

/// The TLS state of a connection.
pub(super) struct Secure {
    tls: Tls<UnbufferedClientConnection>,
    inbox: Box<[u8]>,
    from: usize,
    to: usize,
    /// Decrypted data that did not fit its destination.
    plain: Vec<u8>,
    plain_at: usize,
    /// Encrypted records to be sent: bytes `sent..sealed`.
    outbox: Box<[u8]>,
    sent: usize,
    sealed: usize,
    scratch: Vec<u8>,
}

impl Secure {
    /// Begins TLS. `host` is the name that the certificate must have.
    ///
    /// # Errors
    /// `host` is not a valid name for a certificate.
    pub fn new(config: Arc<ClientConfig>, host: &str) -> Result<Secure, ClientError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| ClientError::Tls(format!("{host:?} is not a valid certificate name")))?;
        let tls = Tls::client(config, name).map_err(|error| ClientError::Tls(error.to_string()))?;
        let mut secure = Secure {
            tls,
            inbox: vec![0; BUFFER_BYTES].into(),
            from: 0,
            to: 0,
            plain: Vec::with_capacity(RECORD_DATA_MAX),
            plain_at: 0,
            outbox: vec![0; BUFFER_BYTES].into(),
            sent: 0,
            sealed: 0,
            scratch: Vec::with_capacity(RECORD_DATA_MAX),
        };
        // The client sends the first message of the handshake.
        secure.open(&mut [])?;
        Ok(secure)
    }

    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Returns whether received data waits, decrypted or in a complete record.
    pub fn has_data(&self) -> bool {
        self.plain_at < self.plain.len() || whole_record(&self.inbox[self.from..self.to])
    }

    /// Decrypts received data to the front of `into`. Returns how many bytes.
    ///
    /// # Errors
    /// The server violated TLS, failed verification, or closed the connection.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, ClientError> {
        let mut n = 0;
        loop {
            if self.plain_at < self.plain.len() {
                let left = &self.plain[self.plain_at..];
                let take = left.len().min(into.len() - n);
                into[n..n + take].copy_from_slice(&left[..take]);
                self.plain_at += take;
                n += take;
                if self.plain_at < self.plain.len() {
                    return Ok(n);
                }
            }
            self.plain.clear();
            self.plain_at = 0;
            if n == into.len() && n > 0 {
                return Ok(n);
            }
            let plain = &mut self.plain;
            let (took, got) = self.tls.open(&mut self.inbox[self.from..self.to], |data| {
                let fits = data.len().min(into.len() - n);
                copy(&data[..fits], &mut into[n..n + fits]);
                n += fits;
                plain.extend_from_slice(&data[fits..]);
            });
            self.from += took;
            match got.map_err(ClientError::Tls)? {
                Opened::Data => {}
                Opened::NeedInput => return Ok(n),
                Opened::Closed if n > 0 => return Ok(n),
                Opened::Closed => return Err(ClientError::Closed),
            }
        }
    }

    /// Returns the buffer space for received records.
    pub fn room(&mut self) -> &mut [u8] {
        self.inbox.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        &mut self.inbox[self.to..]
    }

    /// Marks `n` bytes of [`Secure::room`] as received.
    pub fn received(&mut self, n: usize) {
        self.to += n;
    }

    /// Returns records to be sent.
    pub fn unsent(&mut self) -> &[u8] {
        if self.sent == self.sealed {
            let n = self.tls.wire.len().min(BUFFER_BYTES);
            self.outbox[..n].copy_from_slice(&self.tls.wire[..n]);
            self.tls.wire.drain(..n);
            (self.sent, self.sealed) = (0, n);
        }
        &self.outbox[self.sent..self.sealed]
    }

    /// Marks `n` bytes of [`Secure::unsent`] as sent.
    pub fn was_sent(&mut self, n: usize) {
        self.sent += n;
    }

    /// Encrypts data as far as there is room for its records. Returns how many bytes it took. Data that does not fill a
    /// record waits for more, or for [`Secure::flush`].
    ///
    /// # Errors
    /// The connection is unusable.
    pub fn seal(&mut self, data: &[u8]) -> Result<usize, ClientError> {
        let mut took = 0;
        while took < data.len() && self.has_room() {
            let rest = &data[took..];
            if self.scratch.is_empty() && rest.len() >= RECORD_DATA_MAX {
                self.seal_record(Some(&rest[..RECORD_DATA_MAX]))?;
                took += RECORD_DATA_MAX;
                continue;
            }
            let take = rest.len().min(RECORD_DATA_MAX - self.scratch.len());
            self.scratch.extend_from_slice(&rest[..take]);
            took += take;
            if self.scratch.len() == RECORD_DATA_MAX {
                self.seal_record(None)?;
            }
        }
        Ok(took)
    }

    /// Encrypts gathered data that does not fill a record.
    ///
    /// # Errors
    /// As [`Secure::seal`].
    pub fn flush(&mut self) -> Result<(), ClientError> {
        if !self.scratch.is_empty() && self.has_room() {
            self.seal_record(None)?;
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        BUFFER_BYTES - self.sealed >= SEAL_BYTES_MAX
    }

    /// Encrypts `data`, or the gathered data.
    fn seal_record(&mut self, data: Option<&[u8]>) -> Result<(), ClientError> {
        let out = &mut self.outbox[self.sealed..];
        let sealed = self.tls.seal(data.unwrap_or(&self.scratch), out);
        self.sealed += sealed.map_err(ClientError::Tls)?;
        if data.is_none() {
            self.scratch.clear();
        }
        Ok(())
    }

    /// Queues a close_notify alert. No data may be sealed after it.
    pub fn queue_close_notify(&mut self) {
        self.tls.queue_close_notify();
    }

    /// Returns whether gathered data is not encrypted yet.
    pub fn has_unsealed(&self) -> bool {
        !self.scratch.is_empty()
    }
}

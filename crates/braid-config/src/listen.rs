//! Addresses that the API listens on.

use std::net::{IpAddr, SocketAddr};

/// The port of the API where none is named.
pub const API_PORT: u16 = 10870;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// A name, or a number without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// Reads an address to listen on: a number or a name, with a port or without.
///
/// # Errors
/// The reason, with right ones.
pub fn listen_address(text: &str) -> Result<ListenAddress, String> {
    let right = "right ones: 192.0.2.7, 0.0.0.0:10870, [::]:10870, localhost";
    if let Ok(number) = text.parse::<IpAddr>() {
        return Ok(ListenAddress { host: number.to_string(), port: API_PORT });
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(ListenAddress { host: address.ip().to_string(), port: address.port() });
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, API_PORT),
        Some((host, port)) => (host, port.parse().map_err(|_| format!("the port is a number up to 65535; {right}"))?),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || !host.chars().all(fits) {
        return Err(format!("the host is neither a number nor a name; {right}"));
    }
    Ok(ListenAddress { host: host.to_owned(), port })
}

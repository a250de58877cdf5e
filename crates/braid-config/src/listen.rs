//! Listen addresses of the API.

use std::net::{IpAddr, SocketAddr};

/// The default port of the API.
pub const API_PORT: u16 = 10870;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The host name, or the IP address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Parses an address to listen on: an IP address or a host name, with an optional port.
///
/// # Errors
/// The reason why the address is invalid, with valid examples.
pub fn listen_address(text: &str) -> Result<ListenAddress, String> {
    let examples = "valid ones: 192.0.2.7, 0.0.0.0:10870, [::]:10870, localhost";
    if let Ok(number) = text.parse::<IpAddr>() {
        return Ok(ListenAddress { host: number.to_string(), port: API_PORT });
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(ListenAddress { host: address.ip().to_string(), port: address.port() });
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, API_PORT),
        Some((host, port)) => {
            (host, port.parse().map_err(|_| format!("the port is a number up to 65535; {examples}"))?)
        }
    };
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || !host.chars().all(is_valid) {
        return Err(format!("the host is neither an IP address nor a host name; {examples}"));
    }
    Ok(ListenAddress { host: host.to_owned(), port })
}

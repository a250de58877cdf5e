//! IP networks in CIDR notation, for allow lists: `10.0.0.0/8`, `fd00::/8`, `192.0.2.7`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses with a common prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Network {
    /// The first address: all bits after the prefix are 0.
    first: IpAddr,
    /// Prefix length in bits.
    prefix: u8,
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a network: {why}; examples: 10.0.0.0/8, fd00::/8, 192.0.2.7")]
pub struct NetworkError {
    text: String,
    why: &'static str,
}

impl Network {
    /// A network that contains no client's address.
    pub const NOWHERE: Network = Network { first: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix: 128 };

    /// Returns whether the network contains an address. An IPv4-mapped IPv6 address (`::ffff:a.b.c.d`) counts as the
    /// IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => (address.to_bits() & mask4(self.prefix)) == first.to_bits(),
            (IpAddr::V6(first), IpAddr::V6(address)) => (address.to_bits() & mask6(self.prefix)) == first.to_bits(),
            _ => false,
        }
    }
}

fn mask4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = |why| NetworkError { text: text.to_owned(), why };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong("its address is neither IPv4 nor IPv6"))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(prefix) if !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
                prefix.parse().ok().filter(|prefix| *prefix <= bits).ok_or_else(|| wrong("its prefix is too long"))?
            }
            Some(_) => return Err(wrong("its prefix is not a number")),
        };
        let (address, prefix) = match (address, address.to_canonical()) {
            // The network is entirely IPv4-mapped, and clients are compared by their IPv4 address.
            (IpAddr::V6(_), IpAddr::V4(inner)) if prefix >= 96 => (IpAddr::V4(inner), prefix - 96),
            (address, _) => (address, prefix),
        };
        let first = match address {
            IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask4(prefix))),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask6(prefix))),
        };
        if first != address {
            // 10.0.0.7/8 is ambiguous: it may mean 10.0.0.7 or all of 10.0.0.0/8.
            return Err(wrong("its address has bits set after its prefix"));
        }
        Ok(Network { first, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(network: &str, shown: &str, inside: &[&str], outside: &[&str]) {
        let parsed: Network = network.parse().expect(network);
        assert_eq!(parsed.to_string(), shown);
        assert_eq!(shown.parse(), Ok(parsed), "what is shown is read back");
        for (addresses, expected) in [(inside, true), (outside, false)] {
            for address in addresses {
                assert_eq!(parsed.contains(address.parse().expect("an address")), expected, "{network} {address}");
            }
        }
    }

    #[test]
    fn addresses_are_in_their_networks() {
        check(
            "10.0.0.0/8",
            "10.0.0.0/8",
            &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"],
            &["11.0.0.0", "::", "9.255.255.255"],
        );
        check("127.0.0.1", "127.0.0.1/32", &["127.0.0.1", "::ffff:127.0.0.1"], &["127.0.0.2", "::1"]);
        check("0.0.0.0/0", "0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::1"]);
        check("fd00::/8", "fd00::/8", &["fd00::", "fdff:ffff::1"], &["fe00::", "10.0.0.1", "fc00::1"]);
        check("::/0", "::/0", &["::1", "ffff::"], &["10.0.0.1"]);
        check("::1", "::1/128", &["::1"], &["::2", "127.0.0.1"]);
        check("::ffff:10.0.0.0/104", "10.0.0.0/8", &["10.9.9.9"], &["11.0.0.0"]);
    }

    #[test]
    fn invalid_networks_are_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.7/8",
            "::/129",
            "fd00::1/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "host",
            "10.0.0/8",
            "1.2.3.4/8/8",
        ] {
            let error = text.parse::<Network>().expect_err(text);
            assert!(error.to_string().contains("10.0.0.0/8"), "{error}");
        }
    }
}

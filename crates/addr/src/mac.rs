//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// A 48-bit MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// The text is not six two-digit hexadecimal octets joined by `:`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid MAC address {0:?}: six hexadecimal octets joined by ':' are wanted, as in 0a:58:0a:80:00:0b"
)]
pub struct MacError(String);

// === impl Mac ===

impl Mac {
    /// The MAC of the host end of every pod's veth in Calico, so that a pod's gateway never changes
    /// its MAC.
    pub const GATEWAY: Mac = Mac([0xee; 6]);

    /// The octets, in wire order.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Whether the group bit is set; such an address can never be an interface's own.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The IPv6 link-local address that the kernel derives from this MAC (RFC 4291 appendix A).
    pub fn link_local(self) -> std::net::Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let word = |hi: u8, lo: u8| u16::from_be_bytes([hi, lo]);
        std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let bad = || MacError(text.chars().take(40).collect());
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *octet = u8::from_str_radix(part.ok_or_else(bad)?, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(octets)) }
    }
}

impl serde::Serialize for Mac {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Mac {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_a_round_trip() {
        let mac: Mac = "66:93:7f:54:D5:53".parse().unwrap();
        assert_eq!(mac.to_string(), "66:93:7f:54:d5:53");
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in ["", "66:93:7f:54:d5", "66:93:7f:54:d5:53:00", "6:93:7f:54:d5:533", "66:93:7f:54:d5:+3"] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_gateway_has_calicos_link_local_address() {
        // calico-cni.md section 3.2
        assert_eq!(Mac::GATEWAY.link_local().to_string(), "fe80::ecee:eeff:feee:eeee");
    }
}

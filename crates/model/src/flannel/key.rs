//! The last part of a lease's key: `10.5.29.0-24`, with IPv6 `10.5.43.0-24&fd00:10:5:30::-64`, without IPv4 `0.0.0.0-0&fd00:10:5:30::-64`
//! (flannel.md section 3.1). Peers read only the end of a key, so whatever stands before it does not matter (section 3.1b).

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Longest IPv4 prefix that peers can read: five bits. /32 is refused.
const V4_LEN_MAX: u8 = 31;
/// Longest IPv6 prefix that peers can read: seven bits.
const V6_LEN_MAX: u8 = 127;

/// The subnets of a lease: at least one, for a key that came from a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SubnetKey {
    /// The IPv4 subnet.
    pub v4: Option<Ipv4Net>,
    /// The IPv6 subnet.
    pub v6: Option<Ipv6Net>,
}

/// The text is no key of a lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not end in a subnet as in 10.5.29.0-24 or 10.5.29.0-24&fd00:10:5:30::-64")]
pub struct SubnetKeyError(String);

// === impl SubnetKey ===

impl SubnetKey {
    /// Whether it names no subnet at all.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// The subnets, IPv4 first.
    pub fn subnets(&self) -> impl Iterator<Item = IpNet> + use<> {
        self.v4.map(IpNet::V4).into_iter().chain(self.v6.map(IpNet::V6))
    }

    /// Whether an address lies in subnets of both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let v4 =
            self.v4.zip(other.v4).is_some_and(|(a, b)| a.contains(&b.network()) || b.contains(&a.network()));
        let v6 =
            self.v6.zip(other.v6).is_some_and(|(a, b)| a.contains(&b.network()) || b.contains(&a.network()));
        v4 || v6
    }

    /// Whether each subnet starts at a multiple of its size, as every one of a daemon does. Others
    /// cannot be routed.
    pub fn is_canonical(&self) -> bool {
        self.v4.is_none_or(|net| net.addr() == net.network())
            && self.v6.is_none_or(|net| net.addr() == net.network())
    }

    /// Decodes the end of a key as peers do; none if they find no subnet there.
    fn at_end(text: &str) -> Option<Self> {
        if let Some((head, tail)) = text.rsplit_once('&')
            && let Some((address, length)) = v6_text(tail)
            && let Some(v4) = v4_at_end(head)
        {
            let address: Ipv6Addr = address.parse().ok()?;
            let v6 =
                Ipv6Net::new(address, length.parse().ok().filter(|length| *length <= V6_LEN_MAX)?).ok()?;
            let v4 = v4?;
            let nothing = v4.addr() == Ipv4Addr::UNSPECIFIED && v4.prefix_len() == 0;
            return Some(Self { v4: (!nothing).then_some(v4), v6: Some(v6) });
        }
        // Peers would take this for a lease of everything; no daemon can have been configured with
        // it.
        let v4 = v4_at_end(text)??;
        (v4.prefix_len() > 0).then_some(Self { v4: Some(v4), v6: None })
    }
}

/// `fd00::` and `64` of `fd00::-64`.
fn v6_text(text: &str) -> Option<(&str, &str)> {
    let (address, length) = text.rsplit_once('-')?;
    let spelled = |b: u8| b.is_ascii_digit() || matches!(b, b'a'..=b'f' | b':');
    let fits = !address.is_empty() && address.bytes().all(spelled) && is_digits(length);
    fits.then_some((address, length))
}

/// The subnet at the end of `text`. The outer none: there is no text of this form; the inner: there
/// is, but it is no subnet.
fn v4_at_end(text: &str) -> Option<Option<Ipv4Net>> {
    let (before, length) = text.rsplit_once('-').filter(|(_, length)| is_digits(length))?;
    let start = before.bytes().rposition(|b| !(b.is_ascii_digit() || b == b'.')).map_or(0, |at| at + 1);
    let mut quad = before.get(start..)?;
    // Four numbers, however many precede them.
    if let Some((at, _)) = quad.rmatch_indices('.').nth(3) {
        quad = &quad[at + 1..];
    }
    let address = quad.parse::<Ipv4Addr>().ok();
    let length = length.parse().ok().filter(|length| *length <= V4_LEN_MAX);
    Some(address.zip(length).and_then(|(address, length)| Ipv4Net::new(address, length).ok()))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

impl fmt::Display for SubnetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nothing = (Ipv4Addr::UNSPECIFIED, 0);
        let (address, length) = self.v4.map_or(nothing, |net| (net.addr(), net.prefix_len()));
        write!(f, "{address}-{length}")?;
        match self.v6 {
            Some(net) => write!(f, "&{}-{}", net.addr(), net.prefix_len()),
            None => Ok(()),
        }
    }
}

impl FromStr for SubnetKey {
    type Err = SubnetKeyError;

    fn from_str(text: &str) -> Result<Self, SubnetKeyError> {
        Self::at_end(text).ok_or_else(|| SubnetKeyError(text.chars().take(120).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<String> {
        text.parse::<SubnetKey>().ok().map(|key| key.to_string())
    }

    #[test]
    fn keys_of_all_three_forms_read_as_they_are_written() {
        // flannel.md sections 3.1, 3.2.
        for text in ["10.5.29.0-24", "10.5.43.0-24&fd00:10:5:30::-64", "0.0.0.0-0&fd6a:60:0:9::-64"] {
            assert_eq!(parse(text).as_deref(), Some(text));
        }
        let v6_only: SubnetKey = "0.0.0.0-0&fd6a:60:0:9::-64".parse().unwrap();
        assert_eq!((v6_only.v4, v6_only.subnets().count()), (None, 1));
    }

    #[test]
    fn only_the_end_of_a_key_is_read() {
        // flannel.md section 3.1b: anchored at the end only.
        for text in
            ["/coreos.com/network/subnets/10.5.1.0-24", "x10.5.1.0-24", "9.10.5.1.0-24", "a&10.5.1.0-24"]
        {
            assert_eq!(parse(text).as_deref(), Some("10.5.1.0-24"), "{text}");
        }
        for text in ["10.5.1.0-24x", "10.5.1.0-24&", "10.5.1.0-24&zz::-64", "10.5.1.0-24/", ""] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn lengths_fit_five_and_seven_bits_and_addresses_are_addresses() {
        assert_eq!(parse("10.5.1.0-31").as_deref(), Some("10.5.1.0-31"));
        assert_eq!(parse("10.5.1.0-24&fd00::-127").as_deref(), Some("10.5.1.0-24&fd00::-127"));
        let refused = [
            "10.5.1.0-32",
            "10.5.1.0-256",
            "10.5.1.0-99999999999",
            "10.5.1.0-24&fd00::-128",
            "10.5.256.0-24",
            "110.5.1.0.-24",
            "10.5.1-24",
            "10.5.1.0-",
            "10.5.1.0-+4",
            "10.5.1.0-24&1-64",
            "10.5.1.0-24&FD00::-64",
            "x-24&fd00::-64",
            "0.0.0.0-0",
        ];
        for text in refused {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("10.5.1.0-24&fd00:0:0::1-64").as_deref(), Some("10.5.1.0-24&fd00::1-64"));
        assert!(!"10.5.1.7-24".parse::<SubnetKey>().unwrap().is_canonical());
    }

    #[test]
    fn subnets_overlap_whatever_their_lengths_are() {
        let key = |text: &str| text.parse::<SubnetKey>().unwrap();
        assert!(key("10.5.1.0-24").overlaps(&key("10.5.0.0-16")));
        assert!(key("10.5.1.7-24").overlaps(&key("10.5.1.0-25")));
        assert!(key("10.5.1.0-24&fd00::-64").overlaps(&key("10.5.1.0-24")));
        assert!(key("10.5.1.0-24&fd00::-64").overlaps(&key("10.5.2.0-24&fd00::-48")));
        assert!(!key("10.5.1.0-24&fd00::-64").overlaps(&key("10.5.2.0-24&fd00:0:0:1::-64")));
        assert!(!key("10.5.1.0-24").overlaps(&key("0.0.0.0-0&fd00::-64")));
    }
}

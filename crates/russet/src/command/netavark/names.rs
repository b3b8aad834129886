//! The files of aardvark-dns, one for each network. Pure.
//!
//! The first line has the addresses at which the network's server listens, and the servers that it asks, if the network names some; each further line a
//! container: `ID IPv4,.. IPv6,.. NAME,..`. A line that the server cannot read ends it, with the names of all networks.

use std::net::{IpAddr, Ipv4Addr};

/// A container's line.
#[derive(Debug)]
pub struct Entry<'a> {
    pub container: &'a str,
    pub addresses: &'a [IpAddr],
    pub names: Vec<&'a str>,
}

/// Where the addresses of servers are from: a part of the link-local range without the addresses that clouds and cluster DNS caches use.
pub const RANGE: &str = "169.254.64.0/18";
const RANGE_FIRST: u32 = 0xa9fe_4000;
const RANGE_COUNT: u32 = 1 << 14;

// === impl Entry ===

impl Entry<'_> {
    /// Whether there is anything to ask for: names that the format can hold.
    pub fn is_empty(&self) -> bool {
        self.usable().next().is_none()
    }

    fn usable(&self) -> impl Iterator<Item = &str> {
        let is_usable = |name: &&str| {
            !name.is_empty() && !name.contains(|c: char| c == ',' || c.is_whitespace() || c.is_control())
        };
        self.names.iter().copied().filter(is_usable)
    }

    fn line(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for name in self.usable() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let v4 = self.addresses.iter().filter(|address| address.is_ipv4());
        let v6 = self.addresses.iter().filter(|address| address.is_ipv6());
        format!("{} {} {} {}", self.container, with_commas(v4), with_commas(v6), names.join(","))
    }
}

fn with_commas<'a>(addresses: impl Iterator<Item = &'a IpAddr>) -> String {
    addresses.map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// An address for the server of a network: the same one each time, unless it is taken.
pub fn choose(network: &str, taken: &[Ipv4Addr]) -> Option<Ipv4Addr> {
    let hash = ring::digest::digest(&ring::digest::SHA256, network.as_bytes());
    let start = hash.as_ref().iter().take(4).fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
    let all =
        (0..RANGE_COUNT).map(|step| Ipv4Addr::from(RANGE_FIRST + start.wrapping_add(step) % RANGE_COUNT));
    let is_free = |address: &Ipv4Addr| !matches!(address.octets()[3], 0 | 255) && !taken.contains(address);
    all.into_iter().find(is_free)
}

/// The address in a file at which Russet made the server listen.
pub fn listens_at(text: &str) -> Option<Ipv4Addr> {
    let addresses = text.lines().next()?.split(' ').next()?;
    let is_ours =
        |address: &Ipv4Addr| (RANGE_FIRST..RANGE_FIRST + RANGE_COUNT).contains(&u32::from(*address));
    addresses.split(',').filter_map(|address| address.parse().ok()).find(is_ours)
}

/// The file with this container's line in the place of its old one.
pub fn with(found: Option<&str>, listen: Ipv4Addr, servers: &[IpAddr], entry: &Entry<'_>) -> String {
    let mut text = listen.to_string();
    if !servers.is_empty() {
        text += &format!(" {}", with_commas(servers.iter()));
    }
    text.push('\n');
    for line in others(found.unwrap_or_default(), entry.container) {
        text += &format!("{line}\n");
    }
    text + &entry.line() + "\n"
}

/// The file without this container's line; None if no container is left.
pub fn without(found: &str, container: &str) -> Option<String> {
    let mut text = found.lines().next()?.to_owned() + "\n";
    let mut is_empty = true;
    for line in others(found, container) {
        text += &format!("{line}\n");
        is_empty = false;
    }
    (!is_empty).then_some(text)
}

/// The lines of other containers.
fn others<'a>(text: &'a str, container: &str) -> impl Iterator<Item = &'a str> {
    let is_other = move |line: &&str| !line.is_empty() && line.split(' ').next() != Some(container);
    text.lines().skip(1).filter(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(container: &'a str, addresses: &'a [IpAddr], names: &[&'a str]) -> Entry<'a> {
        Entry { container, addresses, names: names.to_vec() }
    }

    #[test]
    fn a_file_has_the_servers_address_and_a_line_for_each_container() {
        let listen = Ipv4Addr::new(169, 254, 70, 1);
        let (four, six) = ("10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
        let both = [four, six];
        let first = with(None, listen, &[], &entry("aa", &both, &["db", "db", "aa"]));
        assert_eq!(first, "169.254.70.1\naa 10.1.0.2 fd00::2 db,aa\n");
        let second =
            with(Some(&first), listen, &["9.9.9.9".parse().unwrap()], &entry("bb", &[four], &["web"]));
        assert_eq!(second, "169.254.70.1 9.9.9.9\naa 10.1.0.2 fd00::2 db,aa\nbb 10.1.0.2  web\n");
        let again = with(Some(&second), listen, &[], &entry("aa", &[six], &["db"]));
        assert_eq!(again, "169.254.70.1\nbb 10.1.0.2  web\naa  fd00::2 db\n");
        assert_eq!(without(&again, "b"), Some(again.clone()), "only a whole ID");
        assert_eq!(without(&again, "bb").unwrap(), "169.254.70.1\naa  fd00::2 db\n");
        assert_eq!(without("169.254.70.1\naa  fd00::2 db\n", "aa"), None);
        assert_eq!(listens_at(&again), Some(listen));
    }

    #[test]
    fn names_that_would_break_the_file_are_left_out() {
        let address = ["10.1.0.2".parse().unwrap()];
        let hostile = entry("aa", &address, &["", "a b", "a,b", "a\nbb 10.0.0.1  x", "good"]);
        assert_eq!(hostile.line(), "aa 10.1.0.2  good");
        assert!(entry("aa", &address, &["a b"]).is_empty());
    }

    #[test]
    fn each_network_has_an_address_of_its_own() {
        let first = choose("blue", &[]).unwrap();
        assert_eq!(choose("blue", &[]), Some(first));
        let next = choose("blue", &[first]).unwrap();
        assert_ne!(next, first);
        for address in [first, next, choose("red", &[]).unwrap()] {
            assert_eq!(listens_at(&format!("{address}\n")), Some(address));
        }
        let all: Vec<Ipv4Addr> = (RANGE_FIRST..RANGE_FIRST + RANGE_COUNT).map(Ipv4Addr::from).collect();
        assert_eq!(choose("blue", &all), None);
        assert_eq!(listens_at("10.88.0.1\n"), None, "the gateway of a bridge");
    }
}

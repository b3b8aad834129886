//! Checks the address ranges of a file: valid prefixes, and overlaps.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use russet_addr::{Family, IpNet};
use serde_json::{Map, Value};

use super::Document;
use super::json::join;
use super::keys::kind_of;

/// Every range so far.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<Range>);

/// The addresses from `first` to `last`.
#[derive(Debug, Clone)]
struct Range {
    first: IpAddr,
    last: IpAddr,
    net: IpNet,
    at: String,
    file: PathBuf,
}

/// host-local assigns neither the network's address nor the broadcast address nor the gateway's.
const PREFIX_MAX: [u8; 2] = [30, 126];

// === impl Ranges ===

impl Ranges {
    /// Adds a range; returns the one that it overlaps.
    fn add(&mut self, range: Range) -> Option<Range> {
        let overlaps = |it: &&Range| {
            it.first.is_ipv4() == range.first.is_ipv4() && it.first <= range.last && range.first <= it.last
        };
        let other = self.0.iter().find(overlaps).cloned();
        self.0.push(range);
        other
    }
}

impl Range {
    fn seen_from(&self, file: &Path) -> String {
        let name = if self.file == file { String::new() } else { format!(" of {}", self.file.display()) };
        format!("{} of {}{name}", self.net, self.at)
    }
}

// === impl Document ===

impl Document {
    pub(super) fn ranges(&mut self, at: &str, kind: &str, ipam: &Map<String, Value>, ranges: &mut Ranges) {
        match kind {
            "host-local" => {
                if ipam.contains_key("subnet") {
                    self.range(at, ipam, ranges);
                }
                self.sets(&join(at, "ranges"), ipam.get("ranges"), ranges);
                if !["subnet", "ranges"].iter().any(|key| ipam.contains_key(*key)) {
                    self.warn(
                        at,
                        "no 'ranges' and no 'subnet': there are addresses only if a runtime sends ranges",
                    );
                }
            }
            "static" => self.addresses(&join(at, "addresses"), ipam.get("addresses")),
            _ => {}
        }
        if matches!(kind, "host-local" | "static") {
            self.routes(&join(at, "routes"), ipam.get("routes"));
        }
    }

    /// A list of lists.
    fn sets(&mut self, at: &str, sets: Option<&Value>, ranges: &mut Ranges) {
        for (index, set) in sets.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let at = format!("{at}[{index}]");
            let Some(set) = set.as_array() else {
                self.fail(&at, "'ranges' is a list of lists: [[{\"subnet\": \"...\"}]]; a pod gets one address of each inner list");
                continue;
            };
            let mut family = None;
            for (index, range) in set.iter().enumerate() {
                let at = format!("{at}[{index}]");
                match range {
                    Value::Object(range) => {
                        let found = self.range(&at, range, ranges);
                        if family.is_some() && found.is_some() && found != family {
                            self.fail(&at, "IPv4 and IPv6 in one inner list: a pod would get one or the other; give each a list of its own");
                        }
                        family = family.or(found);
                    }
                    other => self.fail(&at, format!("an object is wanted, this is {}", kind_of(other))),
                }
            }
        }
    }

    fn range(&mut self, at: &str, range: &Map<String, Value>, ranges: &mut Ranges) -> Option<Family> {
        let subnet_at = join(at, "subnet");
        let Some(text) = self.text(range, "subnet", &subnet_at) else {
            self.fail(at, "no 'subnet'");
            return None;
        };
        let Ok(net) = text.parse::<IpNet>() else {
            self.fail(&subnet_at, format!("{text:?} is no subnet: one like 10.1.0.0/24 is wanted"));
            return None;
        };
        if net.trunc() != net {
            self.fail(&subnet_at, format!("{net} has bits set behind the prefix: is {} meant?", net.trunc()));
        }
        let [v4, v6] = PREFIX_MAX;
        if net.prefix_len() > if net.addr().is_ipv4() { v4 } else { v6 } {
            self.fail(&subnet_at, format!("{net} is too small to allocate from"));
        }
        let net = net.trunc();
        let first = self.inside(range, "rangeStart", at, net).unwrap_or(net.network());
        let last = self.inside(range, "rangeEnd", at, net).unwrap_or(net.broadcast());
        self.inside(range, "gateway", at, net);
        if first > last {
            self.fail(&join(at, "rangeStart"), format!("{first} is behind rangeEnd, {last}"));
            return Some(Family::of_net(&net));
        }
        let range = Range { first, last, net, at: subnet_at.clone(), file: self.file.clone() };
        if let Some(other) = ranges.add(range) {
            let other = other.seen_from(&self.file);
            self.fail(&subnet_at, format!("{net} overlaps {other}: two pods could get one address"));
        }
        Some(Family::of_net(&net))
    }

    fn text<'v>(&mut self, object: &'v Map<String, Value>, key: &str, at: &str) -> Option<&'v str> {
        let value = object.get(key).filter(|value| !value.is_null())?;
        if !value.is_string() {
            self.fail(at, format!("text is wanted, this is {}", kind_of(value)));
        }
        value.as_str().filter(|text| !text.is_empty())
    }

    /// An address of the subnet.
    fn inside(&mut self, range: &Map<String, Value>, key: &str, at: &str, net: IpNet) -> Option<IpAddr> {
        let at = join(at, key);
        let text = self.text(range, key, &at)?;
        match text.parse::<IpAddr>() {
            Err(_) => self.fail(&at, format!("{text:?} is no IP address")),
            Ok(address) if !net.contains(&address) => self.fail(&at, format!("{address} is not in {net}")),
            Ok(address) => return Some(address),
        }
        None
    }

    fn addresses(&mut self, at: &str, addresses: Option<&Value>) {
        for (index, entry) in addresses.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let at = format!("{at}[{index}]");
            let Some(entry) = entry.as_object() else {
                self.fail(&at, format!("an object is wanted, this is {}", kind_of(entry)));
                continue;
            };
            let address_at = join(&at, "address");
            match self.text(entry, "address", &address_at) {
                None => self.fail(&at, "no 'address'"),
                Some(text) if text.parse::<IpNet>().is_err() => {
                    self.fail(&address_at, format!("{text:?} is no address with a prefix, as 10.1.0.5/24"));
                }
                Some(_) => {}
            }
            self.address(entry, "gateway", &at);
        }
    }

    fn routes(&mut self, at: &str, routes: Option<&Value>) {
        for (index, route) in routes.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let at = format!("{at}[{index}]");
            let Some(route) = route.as_object() else {
                self.fail(&at, format!("an object is wanted, this is {}", kind_of(route)));
                continue;
            };
            let dst_at = join(&at, "dst");
            match self.text(route, "dst", &dst_at) {
                None => self.fail(&at, "no 'dst'"),
                Some(text) if text.parse::<IpNet>().is_err() => {
                    self.fail(&dst_at, format!("{text:?} is no subnet: one like 0.0.0.0/0 is wanted"));
                }
                Some(_) => {}
            }
            self.address(route, "gw", &at);
        }
    }

    fn address(&mut self, object: &Map<String, Value>, key: &str, at: &str) {
        let at = join(at, key);
        if let Some(text) = self.text(object, key, &at)
            && text.parse::<IpAddr>().is_err()
        {
            self.fail(&at, format!("{text:?} is no IP address"));
        }
    }
}

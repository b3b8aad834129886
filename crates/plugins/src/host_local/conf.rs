//! The configuration of `host-local`: `ipam`, and what a request adds to it (cni-runtime.md section
//! 5.1). Pure, except for reading the `resolv.conf` that `ipam.resolvConf` names.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use russet_addr::Family;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult, Dns, NetworkConfig, Route, Version};
use serde_json::{Map, Value};

use super::range::{Range, RangeSet};
use crate::requested;

/// The validated configuration of a request that allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// The container gets one address of each set.
    pub sets: Vec<RangeSet>,
    /// Copied to the result.
    pub routes: Vec<Route>,
    /// Addresses that the container must get, all of them or none.
    pub requested: Vec<IpAddr>,
    /// `resolvConf`.
    pub resolv_conf: Option<PathBuf>,
}

/// The Go plugin's directory of networks.
const DATA_DIR: &str = "var/lib/cni/networks";

/// The largest `resolv.conf` that is read; the resolver itself uses three servers and six domains.
const RESOLV_CONF_MAX_BYTES: u64 = 64 * 1024;

/// The directory of the request's network, which is all that DEL needs. Default files lie below
/// `root`.
pub fn directory(config: &NetworkConfig, root: &Path) -> Result<PathBuf, CniError> {
    let dir = match ipam(config)?.get("dataDir") {
        None | Some(Value::Null) => root.join(DATA_DIR),
        Some(value) => match value.as_str() {
            Some("") => root.join(DATA_DIR),
            Some(dir) if Path::new(dir).is_absolute() => dir.into(),
            _ => return Err(invalid("ipam.dataDir is no absolute path", value)),
        },
    };
    Ok(dir.join(config.name.as_str()))
}

// === impl Conf ===

impl Conf {
    /// Reads the configuration of `request`.
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let config = &request.config;
        let ipam = ipam(config)?;
        let resolv_conf = match ipam.get("resolvConf") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_str().ok_or_else(|| invalid("ipam.resolvConf is no path", value))?),
        };
        Ok(Self {
            sets: sets(config, ipam)?,
            routes: routes(ipam)?,
            requested: requested::addresses(request)?,
            resolv_conf: resolv_conf.filter(|path| !path.is_empty()).map(PathBuf::from),
        })
    }

    /// The contents of `resolvConf`.
    pub fn dns(&self) -> Result<Dns, CniError> {
        let Some(path) = &self.resolv_conf else { return Ok(Dns::default()) };
        let read = || {
            use std::io::Read as _;
            let mut text = String::new();
            std::fs::File::open(path)?.take(RESOLV_CONF_MAX_BYTES).read_to_string(&mut text)?;
            Ok(text)
        };
        let failed = |error: std::io::Error| {
            CniError::io(format!("ipam.resolvConf {} cannot be read", path.display()), error)
        };
        Ok(parse_resolv_conf(&read().map_err(failed)?))
    }
}

fn ipam(config: &NetworkConfig) -> Result<&Map<String, Value>, CniError> {
    config.ipam.as_ref().ok_or_else(|| invalid("the key \"ipam\" is missing", "it configures host-local"))
}

/// The range sets: those of the runtime, then the single range of old configurations, then the
/// list.
fn sets(config: &NetworkConfig, ipam: &Map<String, Value>) -> Result<Vec<RangeSet>, CniError> {
    let mut sets = Vec::new();
    if let Some(given) = config.runtime_config.get("ipRanges") {
        sets.extend(list("runtimeConfig.ipRanges", given)?);
    }
    if ipam.get("subnet").is_some_and(|subnet| !subnet.is_null() && subnet != "") {
        let range = Range::read(ipam).and_then(|range| RangeSet::new(vec![range]));
        sets.push(range.map_err(|why| invalid("invalid range in ipam", why))?);
    }
    if let Some(given) = ipam.get("ranges") {
        sets.extend(list("ipam.ranges", given)?);
    }
    if sets.is_empty() {
        return Err(invalid("no IP ranges specified", "give ipam.ranges: [[{\"subnet\": \"10.1.2.0/24\"}]]"));
    }
    for (index, set) in sets.iter().enumerate() {
        let earlier = sets.iter().take(index).enumerate();
        if let Some((other, one)) = earlier.into_iter().find(|(_, other)| other.overlaps(set)) {
            let (one, two) = (one.shown(), set.shown());
            return Err(invalid(
                &format!("range set {other} overlaps with {index}"),
                format!("{one} and {two}"),
            ));
        }
    }
    let doubled =
        Family::BOTH.iter().any(|family| sets.iter().filter(|set| set.family() == *family).count() > 1);
    if doubled && matches!(config.cni_version, Version::V0_1_0 | Version::V0_2_0) {
        let msg =
            format!("CNI version {} does not support more than 1 address per family", config.cni_version);
        return Err(invalid(&msg, "use cniVersion 0.3.0 or newer"));
    }
    Ok(sets)
}

fn list(path: &str, value: &Value) -> Result<Vec<RangeSet>, CniError> {
    let wrong = |index: usize, why: String| invalid(&format!("invalid range set {index} in {path}"), why);
    let shape = |value: &Value| format!("a list of lists of ranges is wanted, found {value}");
    let outer = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(outer) => outer,
        other => return Err(invalid(path, shape(other))),
    };
    let set = |(index, value): (usize, &Value)| {
        let ranges = value.as_array().ok_or_else(|| wrong(index, shape(value)))?;
        let range = |value: &Value| match value {
            Value::Object(object) => Range::read(object),
            other => Err(format!("an object is wanted, found {other}")),
        };
        let ranges: Result<Vec<Range>, String> = ranges.iter().map(range).collect();
        ranges.and_then(RangeSet::new).map_err(|why| wrong(index, why))
    };
    outer.iter().enumerate().map(set).collect()
}

fn routes(ipam: &Map<String, Value>) -> Result<Vec<Route>, CniError> {
    let Some(routes) = ipam.get("routes") else { return Ok(Vec::new()) };
    let wrapped = Value::Object(Map::from_iter([("routes".to_owned(), routes.clone())]));
    let read = CniResult::from_value(&wrapped, Version::LATEST);
    read.map(|result| result.routes).map_err(|error| invalid("invalid ipam.routes", error))
}

fn parse_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace();
        let key = words.next().unwrap_or_default();
        let mut words = words.map(str::to_owned);
        match key {
            "nameserver" => dns.nameservers.extend(words.next()),
            "domain" => dns.domain = words.next().unwrap_or(dns.domain),
            "search" => dns.search.extend(words),
            "options" => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

fn invalid(msg: &str, details: impl ToString) -> CniError {
    CniError::invalid_config(format!("host-local: {msg}"), details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolv_conf_becomes_dns() {
        // cni-runtime.md section 5.1: `resolvConf` path fills `dns`
        let text = "# c\n; c\nnameserver 192.0.2.3 x\nnameserver 192.0.2.4\ndomain example.org\nsearch a b\nsearch c\noptions ndots:5\nnameserver\nsortlist x\n";
        let dns = parse_resolv_conf(text);
        assert_eq!(dns.nameservers, ["192.0.2.3", "192.0.2.4"]);
        assert_eq!((dns.domain.as_str(), dns.options), ("example.org", vec!["ndots:5".to_owned()]));
        assert_eq!(dns.search, ["a", "b", "c"]);
    }
}

//! The three wire shapes of a result, read and written.

use russet_addr::{Family, IpNet};
use serde_json::{Map, Value};

use super::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
use crate::field::{self, Object};
use crate::version::Shape;
use crate::{FieldError, Version};

// === impl CniResult ===

impl CniResult {
    /// Decodes a plugin's stdout. A document without a version has that of the configuration;
    /// `null` is `{}`.
    pub fn decode(bytes: &[u8], config_version: Version) -> Result<Self, ResultError> {
        Self::from_value(&serde_json::from_slice(bytes)?, config_version)
    }

    /// [`decode`](Self::decode), from a parsed document such as `prevResult`.
    pub fn from_value(value: &Value, config_version: Version) -> Result<Self, ResultError> {
        let object = match value {
            Value::Null => return Ok(Self::empty(config_version)),
            Value::Object(object) => object,
            _ => return Err(ResultError::NotAnObject),
        };
        let version = match field::text(object, "cniVersion")? {
            "" => config_version,
            label => label.parse()?,
        };
        let mut result = Self::empty(version);
        match version.shape() {
            Shape::A => result.read_families(object)?,
            Shape::B | Shape::C => {
                result.interfaces = field::objects(object, "interfaces", Interface::read)?;
                result.ips = field::objects(object, "ips", |ip| IpConfig::read(ip, "address"))?;
                result.routes = field::objects(object, "routes", Route::read)?;
            }
        }
        if let Some(dns) = field::object(object, "dns")? {
            result.dns = Dns::read(dns).map_err(|error| error.within("dns"))?;
        }
        Ok(result)
    }

    fn read_families(&mut self, object: &Object) -> Result<(), FieldError> {
        for key in ["ip4", "ip6"] {
            let Some(family) = field::object(object, key)? else { continue };
            let read = || Ok((IpConfig::read(family, "ip")?, field::objects(family, "routes", Route::read)?));
            let (ip, routes) = read().map_err(|error: FieldError| error.within(key))?;
            self.ips.push(IpConfig { interface: None, ..ip });
            self.routes.extend(routes);
        }
        Ok(())
    }

    /// The document in the form of its version.
    pub fn encode(&self) -> Vec<u8> {
        self.to_value().to_string().into_bytes()
    }

    /// The document as a value, for a request's `prevResult`.
    pub fn to_value(&self) -> Value {
        let mut object = Map::new();
        object.insert("cniVersion".into(), self.cni_version.as_str().into());
        let shape = self.cni_version.shape();
        if shape == Shape::A {
            self.write_families(&mut object);
        } else {
            put_array(
                &mut object,
                "interfaces",
                self.interfaces.iter().map(|interface| interface.write(shape)),
            );
            put_array(&mut object, "ips", self.ips.iter().map(|ip| self.write_ip(ip, shape)));
            put_array(&mut object, "routes", self.routes.iter().map(Route::write));
        }
        if shape != Shape::C || !self.dns.is_empty() {
            object.insert("dns".into(), self.dns.write());
        }
        Value::Object(object)
    }

    fn write_families(&self, object: &mut Object) {
        for (key, family) in [("ip4", Family::V4), ("ip6", Family::V6)] {
            let Some(ip) = self.ips.iter().find(|ip| Family::of_net(&ip.address) == family) else { continue };
            let routes = self.routes.iter().filter(|route| Family::of_net(&route.dst) == family);
            let mut member = Map::new();
            member.insert("ip".into(), ip.address.to_string().into());
            put_some(&mut member, "gateway", ip.gateway.map(|gateway| gateway.to_string()));
            put_array(&mut member, "routes", routes.map(Route::write));
            object.insert(key.into(), Value::Object(member));
        }
    }

    /// An invalid index is omitted: printed, it would crash containerd.
    fn write_ip(&self, ip: &IpConfig, shape: Shape) -> Value {
        let mut object = Map::new();
        if shape == Shape::B {
            let version = if Family::of_net(&ip.address) == Family::V4 { "4" } else { "6" };
            object.insert("version".into(), version.into());
        }
        put_some(&mut object, "interface", ip.interface.filter(|_| self.interface_of(ip).is_some()));
        object.insert("address".into(), ip.address.to_string().into());
        put_some(&mut object, "gateway", ip.gateway.map(|gateway| gateway.to_string()));
        Value::Object(object)
    }
}

// === impl Interface ===

impl Interface {
    fn read(object: &Object) -> Result<Self, FieldError> {
        let text = |key| field::text(object, key).map(str::to_owned);
        Ok(Self {
            name: text("name")?,
            mac: text("mac")?,
            sandbox: text("sandbox")?,
            mtu: nonzero(object, "mtu")?,
            socket_path: text("socketPath")?,
            pci_id: text("pciID")?,
        })
    }

    fn write(&self, shape: Shape) -> Value {
        let mut object = Map::new();
        object.insert("name".into(), self.name.as_str().into());
        put_text(&mut object, "mac", &self.mac);
        if shape == Shape::C {
            put_some(&mut object, "mtu", self.mtu);
        }
        put_text(&mut object, "sandbox", &self.sandbox);
        if shape == Shape::C {
            put_text(&mut object, "socketPath", &self.socket_path);
            put_text(&mut object, "pciID", &self.pci_id);
        }
        Value::Object(object)
    }
}

// === impl IpConfig ===

impl IpConfig {
    /// `key` is where the form has the address; old plugins write an `interface` of -1 for none.
    fn read(object: &Object, key: &str) -> Result<Self, FieldError> {
        let missing = || FieldError::new(key, "it is missing");
        let unset = object.get("interface").and_then(Value::as_i64) == Some(-1);
        Ok(Self {
            address: net(object, key)?.ok_or_else(missing)?,
            gateway: field::parsed(object, "gateway", "an IP address")?,
            interface: if unset { None } else { field::number(object, "interface")? },
        })
    }
}

// === impl Route ===

impl Route {
    pub(crate) fn read(object: &Object) -> Result<Self, FieldError> {
        let missing = || FieldError::new("dst", "it is missing");
        Ok(Self {
            dst: net(object, "dst")?.ok_or_else(missing)?,
            gw: field::parsed(object, "gw", "an IP address")?,
            mtu: nonzero(object, "mtu")?,
            advmss: nonzero(object, "advmss")?,
            priority: nonzero(object, "priority")?,
            table: field::number(object, "table")?,
            scope: field::number(object, "scope")?,
        })
    }

    fn write(&self) -> Value {
        let mut object = Map::new();
        object.insert("dst".into(), self.dst.to_string().into());
        put_some(&mut object, "gw", self.gw.map(|gw| gw.to_string()));
        put_some(&mut object, "mtu", self.mtu);
        put_some(&mut object, "advmss", self.advmss);
        put_some(&mut object, "priority", self.priority);
        put_some(&mut object, "table", self.table);
        put_some(&mut object, "scope", self.scope);
        Value::Object(object)
    }
}

// === impl Dns ===

impl Dns {
    pub(crate) fn read(object: &Object) -> Result<Self, FieldError> {
        Ok(Self {
            nameservers: field::texts(object, "nameservers")?,
            domain: field::text(object, "domain")?.to_owned(),
            search: field::texts(object, "search")?,
            options: field::texts(object, "options")?,
        })
    }

    fn write(&self) -> Value {
        let mut object = Map::new();
        let texts = |list: &[String]| list.iter().map(|text| Value::from(text.as_str())).collect::<Vec<_>>();
        put_array(&mut object, "nameservers", texts(&self.nameservers));
        put_text(&mut object, "domain", &self.domain);
        put_array(&mut object, "search", texts(&self.search));
        put_array(&mut object, "options", texts(&self.options));
        Value::Object(object)
    }
}

/// A prefix; an address without a length is refused, in both families.
fn net(object: &Object, key: &str) -> Result<Option<IpNet>, FieldError> {
    field::parsed(object, key, "an address with a prefix length")
}

fn nonzero(object: &Object, key: &str) -> Result<Option<u32>, FieldError> {
    Ok(field::number(object, key)?.filter(|number| *number != 0))
}

fn put_text(object: &mut Object, key: &str, text: &str) {
    put_some(object, key, (!text.is_empty()).then_some(text));
}

fn put_some(object: &mut Object, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object.insert(key.into(), value.into());
    }
}

fn put_array(object: &mut Object, key: &str, items: impl IntoIterator<Item = Value>) {
    let items: Vec<Value> = items.into_iter().collect();
    if !items.is_empty() {
        object.insert(key.into(), Value::Array(items));
    }
}

#[cfg(test)]
mod tests;

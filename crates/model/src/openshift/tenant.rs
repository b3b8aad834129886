//! Tenants: the network ID of a namespace, and the namespaces of a network ID.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::{Namespace, NetId, addresses, envelope, one_name, open};
use crate::json::{DecodeError, Extra, Fields, Object, encode};

/// The tenant of a namespace, named after it (cni-runtime.md section 4.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetNamespace {
    /// The namespace.
    pub netname: Namespace,
    /// Its network ID; several namespaces may share one.
    pub netid: NetId,
    /// Source addresses of its packets to the outside. Kept, not programmed.
    pub egress_ips: Vec<Ipv4Addr>,
    /// Members that we do not know.
    pub extra: Extra,
}

/// The users of a network ID: the record that prevents two nodes from assigning one ID to two
/// namespaces. It names every namespace with the ID, and possibly one more between two steps of a
/// change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetIdUsers {
    /// The ID.
    pub netid: NetId,
    /// The namespaces.
    pub users: BTreeSet<Namespace>,
}

const KIND: &str = "NetNamespace";
/// Limit of namespaces with one ID, which bounds the record.
const USERS_MAX: usize = 10_000;

// === impl NetNamespace ===

impl NetNamespace {
    /// The tenant of a namespace without optional members.
    pub fn new(netname: Namespace, netid: NetId) -> Self {
        Self { netname, netid, egress_ips: Vec::new(), extra: Extra::new() }
    }

    /// Reads what a store holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut fields, named) = open("NetNamespace", KIND, bytes)?;
        let said = fields.string("netname")?;
        let name = one_name(&fields, "netname", named, said)?;
        let netname = Namespace::new(name).map_err(|error| fields.error("netname", error.to_string()))?;
        let netid = netid(&mut fields)?;
        if netid.is_reserved() {
            return Err(fields.error("netid", format!("{netid} is reserved")));
        }
        let egress_ips = addresses(&mut fields, "egressIPs")?;
        Ok(Self { netname, netid, egress_ips, extra: fields.rest() })
    }

    /// The bytes for the store.
    pub fn encode(&self) -> Vec<u8> {
        let name = self.netname.as_str();
        let object = envelope(KIND, name).put("netname", name).put("netid", self.netid.number());
        encode(&object.put_list("egressIPs", &self.egress_ips).finish(&self.extra))
    }
}

// === impl NetIdUsers ===

impl NetIdUsers {
    /// Reads what a store holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::parse("network ID", bytes)?;
        let netid = netid(&mut fields)?;
        let names = fields.strings("users")?;
        if names.is_empty() || names.len() > USERS_MAX {
            return Err(fields.error("users", format!("there are 1 to {USERS_MAX}")));
        }
        let user =
            |name: String| Namespace::new(name).map_err(|error| fields.error("users", error.to_string()));
        Ok(Self { netid, users: names.into_iter().map(user).collect::<Result<_, _>>()? })
    }

    /// The bytes for the store.
    pub fn encode(&self) -> Vec<u8> {
        let users: Vec<&Namespace> = self.users.iter().collect();
        encode(
            &Object::default()
                .put("netid", self.netid.number())
                .put_list("users", &users)
                .finish(&Extra::new()),
        )
    }
}

fn netid(fields: &mut Fields) -> Result<NetId, DecodeError> {
    match fields.unsigned("netid")? {
        Some(number) => NetId::try_from(number).map_err(|error| fields.error("netid", error.to_string())),
        None => Err(fields.error("netid", "it is missing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_netnamespace_of_openshift_is_read_and_written() {
        // cni-runtime.md section 4.4
        let text = r#"{"kind":"NetNamespace","apiVersion":"network.openshift.io/v1","metadata":{"name":"p1"},"netname":"p1","netid":7798868,"egressIPs":["192.0.2.9"]}"#;
        let tenant = NetNamespace::decode(text.as_bytes()).unwrap();
        assert_eq!((tenant.netname.as_str(), tenant.netid.number()), ("p1", 7_798_868));
        assert_eq!(String::from_utf8(tenant.encode()).unwrap(), text);
        assert!(
            NetNamespace::decode(br#"{"netname":"p1","netid":0,"x":1}"#).unwrap().extra.contains_key("x")
        );
    }

    #[test]
    fn what_is_no_tenant_is_refused_and_the_error_says_where() {
        for (text, wanted) in [
            (r#"{"netid":10}"#, "NetNamespace at netname: it is missing"),
            (r#"{"netname":"a"}"#, "NetNamespace at netid: it is missing"),
            (r#"{"netname":"a","netid":16777216}"#, "16777216"),
            (r#"{"netname":"a","netid":-1}"#, "an unsigned integer is wanted"),
            (r#"{"netname":"a","netid":1.5}"#, "an unsigned integer is wanted"),
            (r#"{"netname":"a","netid":9}"#, "9 is reserved"),
            (r#"{"netname":"a/b","netid":10}"#, "invalid namespace"),
            (r#"{"metadata":{"name":"b"},"netname":"a","netid":10}"#, "is not the resource's name"),
            (r#"{"kind":"HostSubnet","netname":"a","netid":10}"#, "NetNamespace is wanted"),
            (r#"{"netname":"a","netid":10,"egressIPs":["x"]}"#, "egressIPs[0]"),
            ("[]", "an object is wanted"),
        ] {
            let error = NetNamespace::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_record_of_users_names_at_least_one() {
        let users = NetIdUsers::decode(br#"{"netid":10,"users":["b","a","a"]}"#).unwrap();
        assert_eq!(users.encode(), br#"{"netid":10,"users":["a","b"]}"#);
        assert!(NetIdUsers::decode(br#"{"netid":10,"users":[]}"#).is_err());
        assert!(NetIdUsers::decode(br#"{"netid":10,"users":["A"]}"#).is_err());
    }
}

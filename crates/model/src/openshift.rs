//! OpenShift's networking resources in Russet's store (cni-runtime.md section 4.4): tenants, the
//! subnets of nodes, the cluster's network.
//!
//! The JSON is that of `network.openshift.io/v1`, so that the output of `oc get -o json` can be
//! stored unchanged; the keys are Russet's own. Written by `russet netnamespace` and a node's server
//! (crate `openshift`), whose follower reads it.

mod cluster;
mod names;
mod subnet;
mod tenant;

pub use cluster::{ClusterNetwork, IsolationMode, PodNetwork, VXLAN_PORT};
pub use names::{Namespace, NetId, NetIdError};
pub use subnet::HostSubnet;
pub use tenant::{NetIdUsers, NetNamespace};

use russet_addr::NodeName;

use crate::json::{DecodeError, Fields, Object};
use crate::key::{Key, Prefix};

/// The annotation that requests a change of a NetNamespace in the Kubernetes API, where one writer assigns
/// IDs: `global`, `isolate`, or [`JOIN`] and a namespace (kubernetes.md section 6.1).
pub const CHANGE_ANNOTATION: &str = "pod.network.openshift.io/multitenant.change-network";
/// What precedes the namespace whose ID is requested.
pub const JOIN: &str = "join:";

const ROOT: &str = "/russet/openshift/v1/";
const NETNAMESPACES: &str = "netnamespaces/";
const NETIDS: &str = "netids/";
const HOSTSUBNETS: &str = "hostsubnets/";
const CLUSTERNETWORKS: &str = "clusternetworks/";
const SUBNETS: &str = "subnets/";
const EGRESSNETWORKPOLICIES: &str = "egressnetworkpolicies/";
/// Of all three kinds.
const API_VERSION: &str = "network.openshift.io/v1";

/// What a key below [`everything`] names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenshiftKey {
    /// The tenant of a namespace.
    NetNamespace(Namespace),
    /// The users of a network ID.
    NetId(NetId),
    /// The subnet of a node.
    HostSubnet(NodeName),
    /// The network of the cluster with this name, `default` always.
    ClusterNetwork(String),
    /// The EgressNetworkPolicy of this name in a namespace (kubernetes.md section 6.2).
    EgressNetworkPolicy(Namespace, String),
}

/// The key of a namespace's tenant.
pub fn netnamespace_key(namespace: &Namespace) -> Key {
    Key::from_stored(format!("{ROOT}{NETNAMESPACES}{namespace}"))
}

/// The key of a network ID's record.
pub fn netid_key(id: NetId) -> Key {
    Key::from_stored(format!("{ROOT}{NETIDS}{id}"))
}

/// The key of a node's subnet.
pub fn hostsubnet_key(host: &NodeName) -> Key {
    Key::from_stored(format!("{ROOT}{HOSTSUBNETS}{host}"))
}

/// The key of the claim of a subnet: the record that prevents two nodes from claiming the same one.
pub fn subnet_key(subnet: ipnet::Ipv4Net) -> Key {
    Key::from_stored(format!("{ROOT}{SUBNETS}{}-{}", subnet.network(), subnet.prefix_len()))
}

/// The key of the cluster's network; OpenShift uses only the name `default`.
pub fn clusternetwork_key() -> Key {
    Key::from_stored(format!("{ROOT}{CLUSTERNETWORKS}{}", ClusterNetwork::DEFAULT))
}

/// The key of an EgressNetworkPolicy, which Russet only reads.
pub fn egressnetworkpolicy_key(namespace: &Namespace, name: &str) -> Key {
    Key::from_stored(format!("{ROOT}{EGRESSNETWORKPOLICIES}{namespace}/{name}"))
}

/// All tenants.
pub fn netnamespaces() -> Prefix {
    Prefix::from_stored(format!("{ROOT}{NETNAMESPACES}"))
}

/// The records of all network IDs.
pub fn netids() -> Prefix {
    Prefix::from_stored(format!("{ROOT}{NETIDS}"))
}

/// All nodes' subnets.
pub fn hostsubnets() -> Prefix {
    Prefix::from_stored(format!("{ROOT}{HOSTSUBNETS}"))
}

/// All of these records, for one watch.
pub fn everything() -> Prefix {
    Prefix::from_stored(ROOT)
}

/// What a key of the store names, if it is one of these.
pub fn parse_key(key: &Key) -> Option<OpenshiftKey> {
    let path = key.as_str().strip_prefix(ROOT)?;
    if let Some(name) = path.strip_prefix(NETNAMESPACES) {
        return Namespace::new(name).ok().map(OpenshiftKey::NetNamespace);
    }
    if let Some(id) = path.strip_prefix(NETIDS) {
        return id.parse().ok().filter(|parsed: &NetId| parsed.to_string() == id).map(OpenshiftKey::NetId);
    }
    if let Some(name) = path.strip_prefix(HOSTSUBNETS) {
        return NodeName::new(name).ok().map(OpenshiftKey::HostSubnet);
    }
    if let Some(names) = path.strip_prefix(EGRESSNETWORKPOLICIES) {
        let (namespace, name) = names.split_once('/')?;
        let namespace = Namespace::new(namespace).ok()?;
        let is_name = !name.is_empty() && !name.contains('/');
        return is_name.then(|| OpenshiftKey::EgressNetworkPolicy(namespace, name.to_owned()));
    }
    let name = path.strip_prefix(CLUSTERNETWORKS)?;
    (!name.is_empty() && !name.contains('/')).then(|| OpenshiftKey::ClusterNetwork(name.to_owned()))
}

/// Opens the envelope of a resource and checks its kind, if it has one, and its name.
fn open(what: &'static str, kind: &str, bytes: &[u8]) -> Result<(Fields, Option<String>), DecodeError> {
    let mut fields = Fields::parse(what, bytes)?;
    for (member, wanted) in [("kind", kind), ("apiVersion", API_VERSION)] {
        if let Some(found) = fields.string(member)?.filter(|found| found != wanted) {
            return Err(fields.error(member, format!("{wanted} is wanted, not {found:?}")));
        }
    }
    let name = match fields.object("metadata")? {
        Some(mut metadata) => metadata.string("name")?,
        None => None,
    };
    Ok((fields, name))
}

/// The beginning of a resource that is written.
fn envelope(kind: &str, name: &str) -> Object {
    let metadata = Object::default().put("name", name).finish(&crate::Extra::new());
    Object::default().put("kind", kind).put("apiVersion", API_VERSION).put("metadata", metadata)
}

/// The name that a resource may have twice: if there are both, they must be equal.
fn one_name(
    fields: &Fields,
    member: &str,
    named: Option<String>,
    said: Option<String>,
) -> Result<String, DecodeError> {
    match (named, said) {
        (Some(named), Some(said)) if named != said => {
            Err(fields.error(member, format!("{said:?} is not the resource's name, {named:?}")))
        }
        (Some(name), _) | (None, Some(name)) => Ok(name),
        (None, None) => Err(fields.error(member, "it is missing")),
    }
}

/// A required member with its own type.
fn required<T>(fields: &mut Fields, member: &str) -> Result<T, DecodeError>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    match fields.text(member)? {
        Some(value) => Ok(value),
        None => Err(fields.error(member, "it is missing")),
    }
}

/// Addresses in a list of texts.
fn addresses(fields: &mut Fields, member: &str) -> Result<Vec<std::net::Ipv4Addr>, DecodeError> {
    let texts = fields.strings(member)?;
    let one = |(index, text): (usize, String)| {
        text.parse()
            .map_err(|_| fields.error(&format!("{member}[{index}]"), format!("{text:?} is no IPv4 address")))
    };
    texts.into_iter().enumerate().map(one).collect()
}

/// A network without host bits.
fn network(fields: &mut Fields, member: &str) -> Result<Option<ipnet::Ipv4Net>, DecodeError> {
    let Some(net) = fields.text::<ipnet::Ipv4Net>(member)? else { return Ok(None) };
    match net.trunc() == net {
        true => Ok(Some(net)),
        false => Err(fields.error(member, format!("{net} has host bits, {} is meant", net.trunc()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back_and_hostile_ones_name_nothing() {
        let namespace = Namespace::new("myproject").unwrap();
        let id = NetId::new(7_798_868).unwrap();
        let node = NodeName::new("node1.example.com").unwrap();
        for (key, wanted) in [
            (netid_key(id), OpenshiftKey::NetId(id)),
            (hostsubnet_key(&node), OpenshiftKey::HostSubnet(node)),
            (clusternetwork_key(), OpenshiftKey::ClusterNetwork("default".to_owned())),
            (
                egressnetworkpolicy_key(&namespace, "no-internet"),
                OpenshiftKey::EgressNetworkPolicy(namespace.clone(), "no-internet".to_owned()),
            ),
            (netnamespace_key(&namespace), OpenshiftKey::NetNamespace(namespace)),
        ] {
            assert_eq!(parse_key(&key), Some(wanted), "{key}");
        }
        let policies = ["egressnetworkpolicies/a", "egressnetworkpolicies/a/", "egressnetworkpolicies/a/b/c"];
        for hostile in
            ["netnamespaces/a/b", "netnamespaces/", "netids/010", "netids/-1", "netids/16777216", "x"]
                .into_iter()
                .chain(policies)
        {
            assert_eq!(parse_key(&Key::from_stored(format!("{ROOT}{hostile}"))), None, "{hostile}");
        }
    }
}

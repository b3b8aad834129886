//! Settings of Calico's node agent (calico-cni.md section 4.4): the few that decide how nodes reach
//! each other. One for the cluster, `default`, and one for each node that differs, `node.<name>`.
//! Read by the agent in Calico's place.

use russet_addr::NodeName;
use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Object};
use crate::resource::{Resource, Spec, SpecMembers};

/// Felix's settings with their envelope.
pub type FelixConfiguration = Resource<FelixConfigurationSpec>;

/// The settings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FelixConfigurationSpec {
    /// VXLAN network identifier of all nodes.
    pub vxlan_vni: Option<u64>,
    /// UDP port of all nodes.
    pub vxlan_port: Option<u64>,
    /// MTU of the IPv4 device in bytes; 0 and nothing: computed.
    pub vxlan_mtu: Option<u64>,
    /// MTU of the IPv6 device likewise.
    pub vxlan_mtu_v6: Option<u64>,
    /// Whether pods may send VXLAN packets; not unless it is said.
    pub allow_vxlan_packets_from_workloads: Option<bool>,
    /// Whether pods may send IP in IP; not unless it is said.
    pub allow_ipip_packets_from_workloads: Option<bool>,
    /// Addresses and prefixes of machines that are no nodes and may send tunnel packets, as they are written.
    pub external_nodes_list: Option<Vec<String>>,
    /// Members that are of no use here.
    pub extra: Extra,
}

// === impl FelixConfigurationSpec ===

impl FelixConfigurationSpec {
    /// The name of the settings of the whole cluster.
    pub const CLUSTER: &'static str = "default";

    /// The name of one node's settings.
    pub fn name_for(node: &NodeName) -> String {
        format!("node.{node}")
    }

    /// These settings, with missing values taken from `others`.
    #[must_use]
    pub fn or(&self, others: &Self) -> Self {
        Self {
            vxlan_vni: self.vxlan_vni.or(others.vxlan_vni),
            vxlan_port: self.vxlan_port.or(others.vxlan_port),
            vxlan_mtu: self.vxlan_mtu.or(others.vxlan_mtu),
            vxlan_mtu_v6: self.vxlan_mtu_v6.or(others.vxlan_mtu_v6),
            allow_vxlan_packets_from_workloads: self
                .allow_vxlan_packets_from_workloads
                .or(others.allow_vxlan_packets_from_workloads),
            allow_ipip_packets_from_workloads: self
                .allow_ipip_packets_from_workloads
                .or(others.allow_ipip_packets_from_workloads),
            external_nodes_list: self.external_nodes_list.clone().or(others.external_nodes_list.clone()),
            extra: Extra::default(),
        }
    }
}

impl Spec for FelixConfigurationSpec {
    const KIND: ResourceKind = ResourceKind::FelixConfiguration;
    const WHAT: &'static str = "Felix configuration";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        Ok(Self {
            vxlan_vni: fields.unsigned("vxlanVNI")?,
            vxlan_port: fields.unsigned("vxlanPort")?,
            vxlan_mtu: fields.unsigned("vxlanMTU")?,
            vxlan_mtu_v6: fields.unsigned("vxlanMTUV6")?,
            allow_vxlan_packets_from_workloads: fields.boolean("allowVXLANPacketsFromWorkloads")?,
            allow_ipip_packets_from_workloads: fields.boolean("allowIPIPPacketsFromWorkloads")?,
            external_nodes_list: external_nodes(&mut fields)?,
            extra: fields.rest(),
        })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_some("vxlanVNI", self.vxlan_vni)
            .put_some("vxlanPort", self.vxlan_port)
            .put_some("vxlanMTU", self.vxlan_mtu)
            .put_some("vxlanMTUV6", self.vxlan_mtu_v6)
            .put_some("allowVXLANPacketsFromWorkloads", self.allow_vxlan_packets_from_workloads)
            .put_some("allowIPIPPacketsFromWorkloads", self.allow_ipip_packets_from_workloads)
            .put_some("externalNodesList", self.external_nodes_list.clone())
            .finish(&self.extra)
    }
}

fn external_nodes(fields: &mut crate::json::Fields) -> Result<Option<Vec<String>>, DecodeError> {
    const NAME: &str = "externalNodesList";
    let Some(items) = fields.array(NAME)? else { return Ok(None) };
    let text = |item: Value| match item {
        Value::String(text) => Ok(text),
        _ => Err(fields.error(NAME, "an item is no text")),
    };
    items.into_iter().map(text).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_settings_go_before_the_clusters() {
        let text = r#"{"kind":"FelixConfiguration","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},"spec":{"bpfLogLevel":"","vxlanPort":4790,"vxlanVNI":4097}}"#;
        let cluster = FelixConfiguration::decode(text.as_bytes()).unwrap().spec;
        let node = FelixConfigurationSpec { vxlan_vni: Some(5), ..Default::default() };
        let both = node.or(&cluster);
        assert_eq!((both.vxlan_vni, both.vxlan_port, both.vxlan_mtu), (Some(5), Some(4790), None));
    }

    #[test]
    fn who_else_may_send_tunnel_packets_is_read_and_written_as_it_was() {
        let spec = r#""allowVXLANPacketsFromWorkloads":true,"allowIPIPPacketsFromWorkloads":false,"externalNodesList":["192.0.2.7","2001:db8::/64"]"#;
        let text = format!(
            r#"{{"kind":"FelixConfiguration","apiVersion":"projectcalico.org/v3","metadata":{{"name":"default"}},"spec":{{{spec}}}}}"#
        );
        let cluster = FelixConfiguration::decode(text.as_bytes()).unwrap();
        assert_eq!(cluster.spec.external_nodes_list.as_ref().unwrap(), &["192.0.2.7", "2001:db8::/64"]);
        let written = String::from_utf8(cluster.encode()).unwrap();
        assert_eq!(FelixConfiguration::decode(written.as_bytes()).unwrap().spec, cluster.spec, "{written}");
        let node =
            FelixConfigurationSpec { allow_ipip_packets_from_workloads: Some(true), ..Default::default() };
        let both = node.or(&cluster.spec);
        assert_eq!(
            (both.allow_vxlan_packets_from_workloads, both.allow_ipip_packets_from_workloads),
            (Some(true), Some(true))
        );
        let wrong = text.replace(r#""192.0.2.7""#, "7");
        assert!(FelixConfiguration::decode(wrong.as_bytes()).is_err());
    }
}

//! `host-local` with the node's pod prefixes instead of ranges in the configuration, and its routes
//! (calico-cni.md section 2.5.1). Pure: computes a configuration from a configuration and prefixes.

use russet_addr::{Family, IpNet};
use russet_cni_spec::CniError;
use serde_json::{Map, Value};

/// The prefixes of a node's pods, at most one of each family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodCidrs {
    v4: Option<IpNet>,
    v6: Option<IpNet>,
}

/// The placeholder for the node's IPv4 prefix, in any case of letters.
const V4: &str = "usePodCidr";
/// The same for IPv6.
const V6: &str = "usePodCidrIPv6";

// === impl PodCidrs ===

impl PodCidrs {
    /// Parses the prefixes that Kubernetes assigned to the node.
    pub fn from_node(node: &str, texts: &[&str]) -> Result<Self, CniError> {
        let mut cidrs = Self::default();
        for text in texts {
            let wrong = |reason: String| {
                CniError::invalid_config(format!("node {node} has the pod prefix {text:?}"), reason)
            };
            let net: IpNet = text.parse().map_err(|_| wrong("which is no prefix".to_owned()))?;
            let family = Family::of_net(&net);
            let slot = match family {
                Family::V4 => &mut cidrs.v4,
                Family::V6 => &mut cidrs.v6,
            };
            if slot.replace(net).is_some() {
                return Err(wrong(format!("which is its second {family} prefix")));
            }
        }
        Ok(cidrs)
    }

    /// Prefixes that contain every address, for DEL, which needs no range and therefore no API
    /// server.
    pub fn catch_all() -> Self {
        let [v4, v6] = Family::BOTH.map(|family| Some(family.default_net()));
        Self { v4, v6 }
    }

    /// Replaces the placeholders by the prefixes.
    pub fn fill(&self, ipam: &mut Map<String, Value>) -> Result<(), CniError> {
        each(ipam, &mut |text| match self.substitute(text) {
            None => Ok(()),
            Some((_, Some(net))) => {
                *text = net.to_string();
                Ok(())
            }
            Some((name, None)) => {
                let details = "see podCIDRs in `kubectl get node -o yaml`; the controller manager gives them out with --allocate-node-cidrs";
                Err(CniError::invalid_config(format!("{name}: the node has no such pod prefix"), details))
            }
        })
    }

    fn substitute(&self, text: &str) -> Option<(&'static str, Option<IpNet>)> {
        if text.eq_ignore_ascii_case(V4) {
            Some((V4, self.v4))
        } else if text.eq_ignore_ascii_case(V6) {
            Some((V6, self.v6))
        } else {
            None
        }
    }
}

/// Whether a configuration contains a placeholder.
pub fn wanted(ipam: &Map<String, Value>) -> bool {
    let mut wanted = false;
    let none = PodCidrs::default();
    let looked = each(&mut ipam.clone(), &mut |text| {
        wanted |= none.substitute(text).is_some();
        Ok(())
    });
    looked.is_ok() && wanted
}

/// The destinations of `ipam.routes`, preceded by the default routes if `with_defaults`. `None`
/// without such routes: the pod then gets the default routes only.
pub fn routes(ipam: &Map<String, Value>, with_defaults: bool) -> Result<Option<Vec<IpNet>>, CniError> {
    let listed = ipam.get("routes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if listed.is_empty() {
        return Ok(None);
    }
    let defaults = Family::BOTH.map(Family::default_net);
    let mut nets: Vec<IpNet> = if with_defaults { defaults.to_vec() } else { Vec::new() };
    for route in listed {
        let dst = route.get("dst").and_then(Value::as_str).unwrap_or_default();
        let net = dst.parse().map_err(|error| {
            CniError::invalid_config(format!("ipam.routes: {dst:?} is no destination"), error)
        })?;
        nets.push(net);
    }
    Ok(Some(nets))
}

/// Calls `visit` for every text that may be a placeholder.
fn each(
    ipam: &mut Map<String, Value>,
    visit: &mut impl FnMut(&mut String) -> Result<(), CniError>,
) -> Result<(), CniError> {
    let mut at = |holder: &mut Map<String, Value>, member: &str| match holder.get_mut(member) {
        Some(Value::String(text)) => visit(text),
        _ => Ok(()),
    };
    at(ipam, "subnet")?;
    let sets = ipam.get_mut("ranges").and_then(Value::as_array_mut).into_iter().flatten();
    for range in sets.filter_map(Value::as_array_mut).flatten().filter_map(Value::as_object_mut) {
        at(range, "subnet")?;
    }
    let routes = ipam.get_mut("routes").and_then(Value::as_array_mut).into_iter().flatten();
    routes.filter_map(Value::as_object_mut).try_for_each(|route| at(route, "dst"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn oracle_30_the_nodes_prefix_becomes_the_subnet() {
        let cidrs = PodCidrs::from_node("n", &["10.10.0.0/24"]).unwrap();
        let mut ipam = object(json!({"type": "host-local", "subnet": "usePodCidr"}));
        assert!(wanted(&ipam));
        cidrs.fill(&mut ipam).unwrap();
        assert_eq!(ipam["subnet"], "10.10.0.0/24");
        assert!(!wanted(&ipam));
    }

    #[test]
    fn oracle_31_ranges_of_both_families_and_routes_are_filled() {
        let cidrs = PodCidrs::from_node("n", &["fd00:10::/80", "10.10.0.0/24"]).unwrap();
        let mut ipam = object(json!({
            "ranges": [[{"subnet": "USEPODCIDR"}], [{"subnet": "usepodcidripv6", "gateway": "fd00:10::1"}]],
            "routes": [{"dst": "usePodCidr"}, {"dst": "10.0.0.0/8"}],
        }));
        cidrs.fill(&mut ipam).unwrap();
        let wanted = json!({
            "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "fd00:10::/80", "gateway": "fd00:10::1"}]],
            "routes": [{"dst": "10.10.0.0/24"}, {"dst": "10.0.0.0/8"}],
        });
        assert_eq!(Value::Object(ipam), wanted);
    }

    #[test]
    fn a_node_without_a_prefix_of_the_family_is_an_error() {
        let cidrs = PodCidrs::from_node("n", &["10.10.0.0/24"]).unwrap();
        let error = cidrs.fill(&mut object(json!({"subnet": "usePodCidrIPv6"}))).unwrap_err();
        assert!(error.msg.contains("usePodCidrIPv6"), "{error}");
        assert!(PodCidrs::from_node("n", &["10.10.0.0/24", "10.11.0.0/24"]).is_err());
        assert!(PodCidrs::from_node("n", &["rubbish"]).is_err());
    }

    #[test]
    fn del_uses_prefixes_that_contain_every_address() {
        // calico-cni.md section 3.6
        let mut ipam = object(json!({"subnet": "usePodCidr", "ranges": [[{"subnet": "usePodCidrIPv6"}]]}));
        PodCidrs::catch_all().fill(&mut ipam).unwrap();
        assert_eq!(Value::Object(ipam), json!({"subnet": "0.0.0.0/0", "ranges": [[{"subnet": "::/0"}]]}));
    }

    #[test]
    fn oracle_32_routes_replace_the_defaults() {
        let ipam = object(json!({"routes": [{"dst": "10.9.0.0/16", "gw": "1.2.3.4"}]}));
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(routes(&ipam, false).unwrap().unwrap(), [net("10.9.0.0/16")]);
        assert_eq!(routes(&object(json!({})), true).unwrap(), None);
        assert!(routes(&object(json!({"routes": [{"dst": "x"}]})), false).is_err());
    }

    #[test]
    fn oracle_33_routes_stand_beside_the_defaults_where_both_are_wanted() {
        let ipam = object(json!({"routes": [{"dst": "10.9.0.0/16"}]}));
        let texts: Vec<String> =
            routes(&ipam, true).unwrap().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["0.0.0.0/0", "::/0", "10.9.0.0/16"]);
    }
}

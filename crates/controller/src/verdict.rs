//! Whether an address of a gone node belongs to anything: the allocator's entry and the cluster's
//! pods in, a verdict out. Pure (kubernetes.md section 3.2, G2 and G9; K85, K88, K89).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use russet_addr::BlockCidr;
use russet_ipam::audit::Owner as Kind;
use russet_kube::Pod;
use russet_model::{Attribute, Block, HandleId};

/// An allocated address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    pub address: IpAddr,
    pub block: BlockCidr,
    /// With the sequence number it names this allocation, and no later one of the same address.
    pub handle: Option<HandleId>,
    pub sequence_number: u64,
    /// The node that allocated it, by its own word.
    pub node: Option<String>,
    pub owner: Owner,
}

/// For what it was allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Pod(PodName),
    /// A tunnel of the node.
    Tunnel,
    /// Something that is not known here; it is reported, and never freed.
    Unknown(&'static str),
}

/// A pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

/// What becomes of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing has it; with the reason.
    Free(&'static str),
    /// Something has it.
    Kept(String),
    /// It is not known whether something has it.
    Unknown(&'static str),
}

/// The pods of the cluster, as far as addresses matter.
#[derive(Debug, Default)]
pub struct Pods {
    by_address: HashMap<IpAddr, PodName>,
    /// The node of each, which is empty before a pod is scheduled.
    nodes: HashMap<PodName, String>,
    /// Addresses that nodes' objects name.
    of_nodes: BTreeSet<IpAddr>,
}

/// Where a pod's addresses are: those of Calico's plugin and ours, and of Amazon's.
const ANNOTATIONS: [&str; 3] =
    ["cni.projectcalico.org/podIP", "cni.projectcalico.org/podIPs", "vpc.amazonaws.com/pod-ips"];

/// The allocations of a block, without reservations and addresses in cooldown.
pub fn allocations(block: &Block) -> Vec<Allocation> {
    let one = |ordinal: usize| {
        let attribute = block.attribute(ordinal)?;
        let owner = Owner::of(attribute)?;
        let handle = attribute.handle_id.as_deref().map(HandleId::sanitized);
        Some(Allocation {
            address: block.cidr.address(ordinal)?,
            block: block.cidr,
            handle: handle.and_then(|handle| HandleId::new(handle).ok()),
            sequence_number: block.sequence_number_of(ordinal),
            node: attribute.get("node").map(str::to_owned),
            owner,
        })
    };
    (0..block.cidr.size()).filter_map(one).collect()
}

/// Every address that a pod reports, in its status or in an annotation: kubelet and the plugins
/// write at different times, and either may lack a family (calico#5044).
fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let status = pod.status.pod_ips.iter().map(|ip| ip.ip.as_str()).chain([pod.status.pod_ip.as_str()]);
    let annotations = ANNOTATIONS.iter().filter_map(|name| pod.metadata.annotations.get(*name));
    let annotated = annotations.flat_map(|text| text.split(','));
    let texts = status.chain(annotated).map(|text| text.trim().split('/').next().unwrap_or_default());
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// The verdict about an allocation of a node without an object. A pod that reports the address keeps
/// it, whatever node the allocation names and whether the pod has finished: its sandbox may live.
pub fn verdict(allocation: &Allocation, pods: &Pods) -> Verdict {
    if let Some(pod) = pods.by_address.get(&allocation.address) {
        return Verdict::Kept(format!("pod {pod} reports it"));
    }
    if pods.of_nodes.contains(&allocation.address) {
        return Verdict::Kept("a node's object names it".to_owned());
    }
    if allocation.handle.is_none() {
        return Verdict::Unknown("it has no valid handle");
    }
    match &allocation.owner {
        Owner::Unknown(why) => Verdict::Unknown(why),
        Owner::Tunnel => Verdict::Free("tunnel"),
        Owner::Pod(pod) => match pods.nodes.get(pod) {
            None => Verdict::Free("pod-gone"),
            Some(node) if Some(node) != allocation.node.as_ref() => Verdict::Free("pod-elsewhere"),
            Some(_) => Verdict::Kept(format!("pod {pod} exists")),
        },
    }
}

// === impl Owner ===

impl Owner {
    /// None for what has no active owner.
    fn of(attribute: &Attribute) -> Option<Self> {
        Some(match Kind::of(attribute) {
            Kind::None => return None,
            Kind::Tunnel => Self::Tunnel,
            Kind::Elsewhere => Self::Unknown("it is a service's, a virtual machine's or of an unknown type"),
            Kind::Pod => match (attribute.get("namespace"), attribute.get("pod")) {
                (Some(namespace), Some(name)) if !namespace.is_empty() && !name.is_empty() => {
                    Self::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
                }
                _ => Self::Unknown("it names no pod"),
            },
        })
    }
}

// === impl Pods ===

impl Pods {
    /// No pods yet; `of_nodes` are addresses that nodes' objects name.
    pub fn beside(of_nodes: BTreeSet<IpAddr>) -> Self {
        Self { of_nodes, ..Self::default() }
    }

    pub fn add(&mut self, pod: &Pod) {
        let meta = &pod.metadata;
        let name = PodName { namespace: meta.namespace.clone(), name: meta.name.clone() };
        for address in addresses(pod) {
            self.by_address.insert(address, name.clone());
        }
        self.nodes.insert(name, pod.spec.node_name.clone());
    }
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn block(secondary: serde_json::Value) -> Block {
        let value = json!({ "cidr": "10.1.0.16/29", "affinity": "host:gone",
            "allocations": [0, null, null, null, null, null, null, null], "unallocated": [1, 2, 3, 4, 5, 6, 7],
            "attributes": [{ "handle_id": "net.aaaa", "secondary": secondary }],
            "sequenceNumber": 8, "sequenceNumberForAllocation": { "0": 7 }, "deleted": false });
        Block::decode(value.to_string().as_bytes()).unwrap()
    }

    fn of_pod() -> serde_json::Value {
        json!({ "namespace": "shop", "pod": "web-0", "node": "gone" })
    }

    fn pod(change: serde_json::Value) -> Pod {
        let mut pod =
            json!({ "metadata": { "namespace": "shop", "name": "other" }, "spec": { "nodeName": "gone" } });
        for (pointer, value) in change.as_object().unwrap() {
            pod[pointer.split('.').next().unwrap()][pointer.split('.').nth(1).unwrap()] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn judged(secondary: serde_json::Value, pods: &[Pod]) -> Verdict {
        let mut known = Pods::default();
        pods.iter().for_each(|pod| known.add(pod));
        let [allocation] = &allocations(&block(secondary))[..] else { panic!("one address is allocated") };
        assert_eq!(allocation.sequence_number, 7);
        verdict(allocation, &known)
    }

    #[test]
    fn only_an_address_that_nothing_has_is_free() {
        assert_eq!(judged(of_pod(), &[]), Verdict::Free("pod-gone"));
        assert_eq!(judged(of_pod(), &[pod(json!({}))]), Verdict::Free("pod-gone"));
        let same_name = json!({ "metadata.name": "web-0" });
        assert!(
            matches!(judged(of_pod(), &[pod(same_name)]), Verdict::Kept(_)),
            "it may get its address yet"
        );
        let elsewhere = json!({ "metadata.name": "web-0", "spec.nodeName": "n1" });
        assert_eq!(judged(of_pod(), &[pod(elsewhere)]), Verdict::Free("pod-elsewhere"));
        let tunnel = json!({ "type": "vxlanTunnelAddress", "node": "gone" });
        let named = Pods::beside(BTreeSet::from(["10.1.0.16".parse().unwrap()]));
        let allocation = allocations(&block(tunnel.clone())).remove(0);
        assert!(matches!(verdict(&allocation, &named), Verdict::Kept(_)), "another node has it");
        assert_eq!(judged(tunnel, &[]), Verdict::Free("tunnel"));
    }

    #[test]
    fn a_pod_that_reports_the_address_keeps_it() {
        // kubernetes.md K89
        let annotated = |name: &str, value: &str| json!({ "metadata.annotations": { name: value } });
        for (why, change) in [
            (
                "running elsewhere, with a wrong node in the allocation",
                json!({ "status.podIP": "10.1.0.16", "spec.nodeName": "n1" }),
            ),
            ("finished", json!({ "status.phase": "Succeeded", "status.podIPs": [{ "ip": "10.1.0.16" }] })),
            ("annotated, and status has the other family", {
                let mut change = annotated("cni.projectcalico.org/podIPs", "fd00::1/128,10.1.0.16/32");
                change["status.podIPs"] = json!([{ "ip": "fd00::1" }]);
                change
            }),
            ("annotated only", annotated("cni.projectcalico.org/podIP", "10.1.0.16/32")),
        ] {
            assert!(matches!(judged(of_pod(), &[pod(change)]), Verdict::Kept(_)), "{why}");
        }
    }

    #[test]
    fn what_is_not_known_is_reported_and_kept() {
        // kubernetes.md K88
        for secondary in [
            json!({ "type": "loadBalancer", "node": "gone" }),
            json!({ "type": "somethingNew", "namespace": "shop", "pod": "web-0", "node": "gone" }),
            json!({ "node": "gone" }),
            json!({ "vmName": "vm", "namespace": "shop", "pod": "web-0", "node": "gone" }),
        ] {
            assert!(matches!(judged(secondary.clone(), &[]), Verdict::Unknown(_)), "{secondary}");
        }
    }
}

//! IPPool (calico-ipam.md section 1.8, K7; the rules are libcalico-go's).

use russet_addr::{Family, IpNet};
use russet_model::{AddressUse, AssignmentMode, EncapMode, IpPool, IpPoolSpec};

use super::fields::Field;
use super::fields::Shape::{Any, Flag, List, Number, Object, Text};
use super::{Definition, Problems, TableContext};

/// The block sizes that Calico accepts.
const BLOCK_SIZES_V4: std::ops::RangeInclusive<u8> = 20..=32;
const BLOCK_SIZES_V6: std::ops::RangeInclusive<u8> = 116..=128;
/// The default node selector of Calico's pools.
const ALL: &str = "all()";

impl Definition for IpPoolSpec {
    const WORDS: &'static [&'static str] = &["ipp", "ipps", "pool", "pools"];
    const FIELDS: &'static [Field] = &[
        Field("cidr", Text),
        Field("vxlanMode", Text),
        Field("ipipMode", Text),
        Field("natOutgoing", Flag),
        Field("disabled", Flag),
        Field("disableBGPExport", Flag),
        Field("blockSize", Number),
        Field("nodeSelector", Text),
        Field("namespaceSelector", Text),
        Field("allowedUses", List(&Text)),
        Field("assignmentMode", Text),
    ];
    const STATUS: &'static [Field] = &[Field(
        "conditions",
        List(&Object(&[
            Field("type", Text),
            Field("status", Text),
            Field("reason", Text),
            Field("message", Text),
            Field("lastTransitionTime", Any),
            Field("observedGeneration", Number),
        ])),
    )];

    fn heading(wide: bool) -> &'static [&'static str] {
        match wide {
            false => &["NAME", "CIDR", "SELECTOR"],
            true => &[
                "NAME",
                "CIDR",
                "BLOCKSIZE",
                "NAT",
                "IPIPMODE",
                "VXLANMODE",
                "DISABLED",
                "DISABLEBGPEXPORT",
                "SELECTOR",
            ],
        }
    }

    fn row(pool: &IpPool, wide: bool, _seen: &TableContext) -> Vec<String> {
        let (name, spec) = (pool.metadata.name.clone(), &pool.spec);
        let selector = spec.node_selector.clone().filter(|text| !text.is_empty()).unwrap_or(ALL.to_owned());
        if !wide {
            return vec![name, spec.cidr.to_string(), selector];
        }
        vec![
            name,
            spec.cidr.to_string(),
            spec.block_prefix_len().to_string(),
            spec.nat_outgoing.to_string(),
            spec.ipip_mode.as_str().to_owned(),
            spec.vxlan_mode.as_str().to_owned(),
            spec.disabled.to_string(),
            spec.disable_bgp_export.to_string(),
            selector,
        ]
    }

    fn check(pool: &mut IpPool, problems: &mut Problems) {
        let spec = &mut pool.spec;
        fill(spec);
        blocks(spec, problems);
        let (cidr, family) = (spec.cidr, spec.family());
        let link_local: IpNet = link_local(family);
        let apart = !link_local.contains(&cidr) && !cidr.contains(&link_local);
        problems.unless(apart, "spec.cidr", &format!("it overlaps with the link-local range {link_local}"));
        let (ipip, vxlan) = (spec.ipip_mode != EncapMode::Never, spec.vxlan_mode != EncapMode::Never);
        problems.unless(!(ipip && vxlan), "spec.vxlanMode", "VXLAN and IPIP cannot both be enabled");
        problems.unless(!(ipip && family == Family::V6), "spec.ipipMode", "IPIP carries no IPv6");
        uses(spec, ipip || vxlan, problems);
        problems.selector(spec.node_selector.as_deref().unwrap_or_default(), "spec.nodeSelector");
        problems.selector(spec.namespace_selector.as_deref().unwrap_or_default(), "spec.namespaceSelector");
        let known = !matches!(spec.assignment_mode, AssignmentMode::Other(_));
        problems.unless(known, "spec.assignmentMode", "Automatic or Manual is wanted");
    }

    fn check_change(old: &IpPool, new: &mut IpPool, problems: &mut Problems) {
        let (before, after) = (&old.spec, &new.spec);
        problems.unless(
            before.cidr == after.cidr,
            "spec.cidr",
            &format!("it cannot change from {}: make another pool, and delete this one when its addresses are gone", before.cidr),
        );
        problems.unless(
            before.block_prefix_len() == after.block_prefix_len(),
            "spec.blockSize",
            &format!(
                "it cannot change from {}: the blocks that are there have that size",
                before.block_prefix_len()
            ),
        );
        let was_for_services = before.allows(AddressUse::LoadBalancer);
        let stays = !was_for_services || after.allows(AddressUse::LoadBalancer);
        problems.unless(
            stays,
            "spec.allowedUses",
            "it cannot change from LoadBalancer to Workload or Tunnel",
        );
    }
}

/// Sets the defaults that Calico's API sets when it stores a pool.
fn fill(spec: &mut IpPoolSpec) {
    spec.block_size.get_or_insert(match spec.family() {
        Family::V4 => 26,
        Family::V6 => 122,
    });
    if spec.node_selector.as_deref().unwrap_or_default().is_empty() {
        spec.node_selector = Some(ALL.to_owned());
    }
    if spec.allowed_uses.is_empty() {
        spec.allowed_uses =
            [AddressUse::Workload, AddressUse::Tunnel].map(|wanted| wanted.as_str().to_owned()).into();
    }
    if spec.assignment_mode == AssignmentMode::Unset {
        spec.assignment_mode = AssignmentMode::Automatic;
    }
}

fn blocks(spec: &IpPoolSpec, problems: &mut Problems) {
    let size = spec.block_prefix_len();
    let sizes = match spec.family() {
        Family::V4 => BLOCK_SIZES_V4,
        Family::V6 => BLOCK_SIZES_V6,
    };
    let range = format!("{} to {} is wanted, not {size}", sizes.start(), sizes.end());
    problems.unless(sizes.contains(&size), "spec.blockSize", &range);
    let fits = spec.disabled || spec.cidr.prefix_len() <= size;
    problems.unless(fits, "spec.cidr", &format!("it is smaller than one block of /{size}"));
}

fn uses(spec: &IpPoolSpec, encapsulated: bool, problems: &mut Problems) {
    let known = [AddressUse::Workload, AddressUse::Tunnel, AddressUse::LoadBalancer].map(AddressUse::as_str);
    for allowed in spec.allowed_uses.iter().filter(|allowed| !known.contains(&allowed.as_str())) {
        problems.add("spec.allowedUses", &format!("{allowed:.60?} is none of {}", known.join(", ")));
    }
    if spec.allows(AddressUse::LoadBalancer) {
        problems.unless(
            spec.allowed_uses.len() == 1,
            "spec.allowedUses",
            "LoadBalancer goes with no other use",
        );
        problems.unless(
            !encapsulated,
            "spec.vxlanMode",
            "a pool for LoadBalancer has neither IPIP nor VXLAN",
        );
    }
}

const fn link_local(family: Family) -> IpNet {
    use russet_addr::{Ipv4Net, Ipv6Net};
    use std::net::{Ipv4Addr, Ipv6Addr};
    match family {
        Family::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
        Family::V6 => IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pool(spec: Value) -> IpPool {
        IpPool::decode(
            json!({ "kind": "IPPool", "metadata": { "name": "p" }, "spec": spec }).to_string().as_bytes(),
        )
        .unwrap()
    }

    fn problems(spec: Value) -> String {
        let mut problems = Problems::default();
        IpPoolSpec::check(&mut pool(spec), &mut problems);
        problems.to_string()
    }

    #[test]
    fn defaults_are_those_of_calico() {
        let mut pool = pool(json!({ "cidr": "10.0.0.0/16" }));
        let mut problems = Problems::default();
        IpPoolSpec::check(&mut pool, &mut problems);
        assert!(problems.is_empty(), "{problems}");
        assert_eq!(
            pool.to_value()["spec"],
            json!({ "cidr": "10.0.0.0/16", "vxlanMode": "Never", "ipipMode": "Never", "blockSize": 26, "nodeSelector": "all()",
                "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic" })
        );
        assert_eq!(IpPoolSpec::row(&pool, false, &TableContext::elsewhere()), ["p", "10.0.0.0/16", "all()"]);
        assert_eq!(
            IpPoolSpec::row(&pool, true, &TableContext::elsewhere()).len(),
            IpPoolSpec::heading(true).len()
        );
    }

    #[test]
    fn what_calicos_api_refuses_is_refused() {
        for (spec, problem) in [
            (json!({ "cidr": "10.0.0.0/8", "blockSize": 19 }), "20 to 32"),
            (json!({ "cidr": "fd00::/64", "blockSize": 115 }), "116 to 128"),
            (json!({ "cidr": "10.0.0.0/27" }), "smaller than one block of /26"),
            (json!({ "cidr": "169.254.7.0/24" }), "link-local range 169.254.0.0/16"),
            (json!({ "cidr": "fe80::/64" }), "link-local range fe80::/10"),
            (json!({ "cidr": "10.0.0.0/16", "ipipMode": "Always", "vxlanMode": "Always" }), "cannot both"),
            (json!({ "cidr": "fd00::/64", "ipipMode": "Always" }), "IPIP carries no IPv6"),
            (json!({ "cidr": "10.0.0.0/16", "allowedUses": ["Workloads"] }), "\"Workloads\" is none of"),
            (json!({ "cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer", "Workload"] }), "no other use"),
            (
                json!({ "cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"], "vxlanMode": "Always" }),
                "neither",
            ),
            (
                json!({ "cidr": "10.0.0.0/16", "nodeSelector": "zone = a" }),
                "spec.nodeSelector: invalid selector",
            ),
            (json!({ "cidr": "10.0.0.0/16", "nodeSelector": "global()" }), "means nothing here"),
            (json!({ "cidr": "10.0.0.0/16", "assignmentMode": "Never" }), "Automatic or Manual"),
        ] {
            let found = problems(spec.clone());
            assert!(found.contains(problem), "{spec}: {found}");
        }
        assert_eq!(problems(json!({ "cidr": "10.0.0.0/27", "disabled": true })), "");
    }

    #[test]
    fn a_change_that_would_strand_blocks_is_refused() {
        let change = |old: Value, new: Value| {
            let mut problems = Problems::default();
            IpPoolSpec::check_change(&pool(old), &mut pool(new), &mut problems);
            problems.to_string()
        };
        let old = json!({ "cidr": "10.0.0.0/16" });
        assert!(change(old.clone(), json!({ "cidr": "10.0.0.0/15" })).contains("spec.cidr"));
        assert!(
            change(old.clone(), json!({ "cidr": "10.0.0.0/16", "blockSize": 28 })).contains("spec.blockSize")
        );
        // The explicit default and an absent size are equal.
        assert_eq!(
            change(old.clone(), json!({ "cidr": "10.0.0.0/16", "blockSize": 26, "disabled": true })),
            ""
        );
        let services = json!({ "cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"] });
        assert!(change(services, old).contains("spec.allowedUses"));
    }
}

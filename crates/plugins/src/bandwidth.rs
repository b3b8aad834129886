//! `bandwidth`: limits a pod's traffic (cni-runtime.md section 5, docs/plugins.md). Chained after
//! the plugin that made the interface.

use russet_addr::IfName;
use russet_attach::{Limit, Owner, Shape};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Interface, RuntimeConfig, Version};
use russet_wiring::{LocalNode, Target, failure};
use serde_json::{Map, Value};

/// The plugin's name.
pub const NAME: &str = "bandwidth";

/// The prefix of the names of `ifb` devices.
const DEVICE_PREFIX: &str = "bwp";
/// The kernel's limit for link names.
const DEVICE_CHARS: usize = 15;
/// Members of the configuration itself, which take precedence over `runtimeConfig`.
const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
const BITS: u64 = 8;

pub async fn run(node: &LocalNode, request: &Request) -> Result<Option<CniResult>, CniError> {
    if matches!(request.config.cni_version, Version::V0_1_0 | Version::V0_2_0) {
        let details = format!("config is {}, the plugin works from 0.3.0 on", request.config.cni_version);
        return Err(CniError::incompatible_version("incompatible CNI versions", details));
    }
    match &request.env.call {
        Call::Add(target) => add(node, request, &Target::from_request(request, target)?).await.map(Some),
        Call::Check(target) => {
            check(node, request, &Target::from_request(request, target)?).await.map(|()| None)
        }
        Call::Del(target) => {
            let device = device(&Target::from_request(request, target)?)?;
            node.wiring.unshape(device).await.map(|()| None)
        }
        Call::Gc => {
            let valid = request.config.required_attachments()?;
            let network = request.config.name.clone();
            let valid = valid.iter().map(Owner::new).collect();
            node.wiring.collect_shapes(network, valid).await.map(|()| None)
        }
        Call::Status => limits(request).map(|_| None),
    }
}

async fn add(node: &LocalNode, request: &Request, target: &Target) -> Result<CniResult, CniError> {
    let mut result = previous(request)?;
    let Some(shape) = shape(request, target)? else { return Ok(result) };
    let device = shape.device.clone();
    let mac = node.wiring.shape(shape, target.open_netns()?).await?;
    if let Some(mac) = mac {
        result.interfaces.push(Interface {
            name: device.to_string(),
            mac: mac.to_string(),
            ..Interface::default()
        });
    }
    Ok(result)
}

async fn check(node: &LocalNode, request: &Request, target: &Target) -> Result<(), CniError> {
    previous(request)?;
    let Some(shape) = shape(request, target)? else { return Ok(()) };
    let found = node.wiring.check_shape(shape, target.open_netns()?).await?;
    if found.is_empty() {
        return Ok(());
    }
    Err(CniError::new(failure::WIRING, "bandwidth: the limits are not as they were set", found.join("; ")))
}

/// The previous result. Without one the plugin cannot work, because it makes no interface of its
/// own.
fn previous(request: &Request) -> Result<CniResult, CniError> {
    let previous = request.config.prev_result()?;
    previous.ok_or_else(|| {
        CniError::internal("bandwidth: must be called as chained plugin", "prevResult is missing")
    })
}

/// `None` if nothing is limited.
fn shape(request: &Request, target: &Target) -> Result<Option<Shape>, CniError> {
    let (ingress, egress) = limits(request)?;
    if ingress.is_none() && egress.is_none() {
        return Ok(None);
    }
    let owner = Owner::new(&target.id);
    Ok(Some(Shape { owner, ifname: target.id.ifname.clone(), device: device(target)?, ingress, egress }))
}

/// The limits of traffic to the pod and from it.
fn limits(request: &Request) -> Result<(Option<Limit>, Option<Limit>), CniError> {
    let settings = &request.config.settings;
    for key in ["unshapedSubnets", "shapedSubnets"] {
        if settings.get(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
            let details = "all of a pod's traffic is limited, whatever it is for";
            return Err(CniError::unsupported_field(format!("bandwidth: {key}"), details));
        }
    }
    let own: Map<String, Value> =
        settings.iter().filter(|(key, _)| KEYS.contains(&key.as_str())).map(owned).collect();
    let given = if own.is_empty() {
        request.config.runtime_config.bandwidth()?
    } else {
        RuntimeConfig::new(Map::from_iter([("bandwidth".to_owned(), Value::Object(own))])).bandwidth()?
    };
    let Some(given) = given else { return Ok((None, None)) };
    let ingress = limit("ingress", given.ingress_rate, given.ingress_burst)?;
    Ok((ingress, limit("egress", given.egress_rate, given.egress_burst)?))
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// Converts bits to bytes; `None` means unlimited.
fn limit(which: &str, rate: u64, burst: u64) -> Result<Option<Limit>, CniError> {
    let wrong = |msg: &str| {
        let details = format!("{which}Rate is {rate}, {which}Burst is {burst}");
        Err(CniError::invalid_config(format!("bandwidth: {msg}"), details))
    };
    match (rate, burst) {
        (0, 0) => return Ok(None),
        (_, 0) => return wrong("if rate is set, burst must also be set"),
        (0, _) => return wrong("if burst is set, rate must also be set"),
        _ => {}
    }
    match u32::try_from(burst / BITS) {
        Err(_) | Ok(u32::MAX) => wrong("burst cannot be more than 4GB"),
        Ok(burst_bytes) if burst_bytes > 0 && rate >= BITS => {
            Ok(Some(Limit { rate_bytes: rate / BITS, burst_bytes }))
        }
        Ok(_) => wrong("a limit of less than a byte lets nothing through"),
    }
}

/// The name that the Go plugin would choose, so that each removes what the other created.
fn device(target: &Target) -> Result<IfName, CniError> {
    let input = format!("{}{}", target.id.network, target.id.container);
    let digest = ring::digest::digest(&ring::digest::SHA512, input.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let name: String = DEVICE_PREFIX.chars().chain(hex.chars()).take(DEVICE_CHARS).collect();
    IfName::new(name).map_err(|error| CniError::internal("the name of the ifb cannot be", error))
}

#[cfg(test)]
mod tests;

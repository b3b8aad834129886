//! Addresses and a MAC that a runtime asks for by name, wherever it may say so: `CNI_ARGS` (podman's `--ip` and `--mac-address`), `args.cni`, and the
//! capabilities `ips` and `mac`.

use std::net::IpAddr;

use russet_addr::Mac;
use russet_cni_spec::CniError;
use russet_cni_spec::plugin::Request;
use serde_json::Value;

/// Keys of `CNI_ARGS` that are read here.
pub const ARGS: [&str; 2] = ["MAC", "IP"];

/// The addresses that the container is to have, without duplicates: `IP` of `CNI_ARGS`,
/// `args.cni.ips` and the capability `ips`, whose prefix lengths are ignored.
pub fn addresses(request: &Request) -> Result<Vec<IpAddr>, CniError> {
    let config = &request.config;
    let mut texts: Vec<String> = Vec::new();
    texts.extend(request.env.args.get("IP").filter(|text| !text.is_empty()).map(str::to_owned));
    let listed = config.args.get("cni").and_then(|cni| cni.get("ips")).filter(|ips| !ips.is_null());
    if let Some(listed) = listed {
        let list =
            listed.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let invalid = || CniError::invalid_config("args.cni.ips is no list of addresses", listed);
        texts.extend(list.ok_or_else(invalid)?.into_iter().map(str::to_owned));
    }
    let parse = |text: &String| {
        let address = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
        address
            .map_err(|_| CniError::environment("cannot understand ip", format!("{text:?} is no IP address")))
    };
    let mut all = texts.iter().map(parse).collect::<Result<Vec<IpAddr>, _>>()?;
    all.extend(config.runtime_config.ips()?.iter().map(|net| net.addr()));
    let mut requested: Vec<IpAddr> = Vec::new();
    for address in all.into_iter().map(|address| address.to_canonical()) {
        if !requested.contains(&address) {
            requested.push(address);
        }
    }
    Ok(requested)
}

/// The requested MAC. The runtime's capability `mac` takes precedence over `args.cni.mac`, which
/// takes precedence over `CNI_ARGS`.
pub fn mac(request: &Request) -> Result<Option<Mac>, CniError> {
    if let Some(mac) = request.config.runtime_config.mac()? {
        return Ok(Some(mac));
    }
    let listed = request.config.args.get("cni").and_then(|cni| cni.get("mac")).and_then(Value::as_str);
    let text = listed.filter(|text| !text.is_empty()).or_else(|| request.env.args.get("MAC"));
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let wrong = |error| CniError::environment(format!("MAC {text:?} cannot be used"), error);
    text.parse().map(Some).map_err(wrong)
}

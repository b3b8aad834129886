//! `calico-ipam`: allocates addresses from Calico's blocks for any main plugin (calico-ipam.md
//! section 4). The main plugin `calico` calls [`assign`], [`release`] and [`give_back`] directly,
//! without a process between.

mod assign;
mod check;
mod gc;
mod host_lock;
mod pools;
mod release;
mod subject;

use std::net::IpAddr;

use russet_addr::{Family, host_net};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, IpConfig, Route};
use russet_wiring::RequestLog;

use crate::conf::CalicoConf;
use crate::datastore::CalicoHost;

pub(crate) use assign::{Allocation, BUDGET, assign, give_back, within};
pub use host_lock::HostLocks;
pub(crate) use release::release;
pub(crate) use subject::{IpamRequest, Subject, Wanted};

/// The plugin's name.
pub const NAME: &str = "calico-ipam";

pub async fn run(
    host: &CalicoHost,
    request: &Request,
    log: &RequestLog,
) -> Result<Option<CniResult>, CniError> {
    let conf = CalicoConf::read(request)?;
    log.set_level(conf.log.level);
    for remark in conf.remarks() {
        log.warn(remark);
    }
    let done = match &request.env.call {
        Call::Add(target) => add(host, &conf, request, target, log).await.map(Some),
        Call::Del(target) => {
            let subject = Subject::from_request(request, target)?;
            let datastore = host.datastore(&conf).await?;
            release(host, &datastore, &conf, &subject, log).await.map(|()| None)
        }
        Call::Check(target) => check::check(host, &conf, request, target).await.map(|()| None),
        Call::Gc => gc::gc(host, &conf, request, log).await.map(|()| None),
        Call::Status => check::status(host, &conf).await.map(|()| None),
    };
    if let Err(error) = &done {
        log.error(error);
    }
    conf.log.save(log).await;
    done
}

async fn add(
    host: &CalicoHost,
    conf: &CalicoConf,
    request: &Request,
    target: &russet_cni_spec::Target,
    log: &RequestLog,
) -> Result<CniResult, CniError> {
    request.env.args.check_known(&["IP"])?;
    let wanted = Wanted::from_conf(conf, requested_address(request)?)?;
    let subject = Subject::from_request(request, target)?;
    let datastore = host.datastore(conf).await?;
    let node = datastore.node_name(conf, &host.root).await?;
    let request = IpamRequest { node, subject, wanted, budget: BUDGET };
    let allocation = assign(host, &datastore, conf, &request, log).await?;
    Ok(result(conf, &allocation))
}

/// `IP=` of `CNI_ARGS`.
pub(crate) fn requested_address(request: &Request) -> Result<Option<IpAddr>, CniError> {
    let Some(text) = request.env.args.get("IP").filter(|text| !text.is_empty()) else { return Ok(None) };
    let wrong =
        |_| CniError::environment(format!("CNI_ARGS: IP={text:?} is no address"), "as in IP=10.1.0.7");
    text.parse().map(Some).map_err(wrong)
}

/// The result for another main plugin: the addresses as allocated, and for each a route to that
/// address alone. The routes make Go's `calico` install the host's routes (calico-cni.md section
/// 2.5 step 8). Go's `calico-ipam` returns them with the block's prefix length; main plugins that
/// install routes in the container, such as `bridge`, would fail with that, because the kernel
/// refuses such a destination.
fn result(conf: &CalicoConf, allocation: &Allocation) -> CniResult {
    let mut result = CniResult::empty(conf.result_version);
    result.ips = allocation.addresses.iter().copied().map(IpConfig::new).collect();
    result.routes = allocation.addresses.iter().map(|net| Route::new(host_net(net.addr()), None)).collect();
    result
}

/// A list of addresses, as Calico's plugins print it.
fn shown(addresses: &[russet_addr::IpNet], family: Family) -> String {
    let of_family = addresses.iter().filter(|net| Family::of_net(net) == family);
    format!("[{}]", of_family.map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests;

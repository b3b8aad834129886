//! `host-local`: allocates addresses from ranges in the configuration, and records them in files
//! that the Go plugin of that name reads and writes, too (cni-runtime.md section 5.1,
//! docs/plugins.md). Main plugins of ours call [`run`] directly, without a process between.
//!
//! A request takes the directory's lock once and decides under it. An ADD allocates all of its
//! addresses or none; an ADD for an interface that holds addresses already is refused, as by the Go
//! plugin, and allocates nothing.

mod conf;
mod disk;
mod range;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use russet_addr::{EndpointId, IpNet};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, IpConfig, Target};
use russet_sync::BlockingPool;
use russet_wiring::stages::{Stage, during};
use russet_wiring::{failure, threads};

use conf::Conf;
pub use disk::{HeldAddress, Holder, NetworkDir};

/// The plugin's name.
pub const NAME: &str = "host-local";

/// Each request may block on the directory's lock.
static BLOCKING_POOL: LazyLock<BlockingPool> = threads::pool();

/// Keys of `CNI_ARGS` that are accepted; `MAC` is for the main plugin.
const ARGS: [&str; 2] = ["IP", "MAC"];

/// Executes one request; default files lie below `root`.
pub async fn run(root: &Path, request: &Request) -> Result<Option<CniResult>, CniError> {
    let (root, request) = (root.to_owned(), request.clone());
    // It works on files and may wait for the lock, so it runs away from the thread that serves
    // requests.
    let stage = if matches!(request.env.call, Call::Del(_)) { Stage::Release } else { Stage::Address };
    let adds = matches!(request.env.call, Call::Add(_));
    during(stage, threads::run(&BLOCKING_POOL, adds, move || execute(&root, &request))).await
}

fn execute(root: &Path, request: &Request) -> Result<Option<CniResult>, CniError> {
    let dir = conf::directory(&request.config, root)?;
    match &request.env.call {
        Call::Add(target) => add(request, target, dir).map(Some),
        // DEL needs no ranges: a configuration that was broken later must not prevent a pod from
        // being deleted.
        Call::Del(target) => del(target, dir).map(|()| None),
        Call::Check(target) => check(request, target, dir).map(|()| None),
        Call::Gc => gc(request, dir).map(|()| None),
        Call::Status => Conf::read(request).and_then(|_| NetworkDir::open(dir)).map(|_| None),
    }
}

fn add(request: &Request, target: &Target, dir: PathBuf) -> Result<CniResult, CniError> {
    request.env.args.check_known(&ARGS)?;
    let conf = Conf::read(request)?;
    let dns = conf.dns()?;
    let store = NetworkDir::open(dir)?;
    let chosen = choose(&conf, &store.held()?, |set| store.last(set), target)?;
    for (index, (address, _)) in chosen.iter().enumerate() {
        if let Err(mut error) = store.reserve(address.addr(), index, target) {
            for (address, _) in chosen.iter().take(index) {
                if let Err(also) = store.unreserve(address.addr()) {
                    error = error.with_detail(format_args!("{address} is held until DEL: {also}"));
                }
            }
            return Err(error);
        }
    }
    let mut result = CniResult::empty(request.config.cni_version);
    result.ips = (chosen.into_iter())
        .map(|(address, gateway)| IpConfig { gateway: Some(gateway), ..IpConfig::new(address) })
        .collect();
    (result.routes, result.dns) = (conf.routes, dns);
    Ok(result)
}

/// Chooses an address of each range set, with its gateway. Pure.
fn choose(
    conf: &Conf,
    held: &[HeldAddress],
    last: impl Fn(usize) -> Option<IpAddr>,
    target: &Target,
) -> Result<Vec<(IpNet, IpAddr)>, CniError> {
    let own = HeldAddress::of_target(held, target);
    let taken = HeldAddress::taken(held);
    let mut requested = conf.requested.clone();
    let mut chosen = Vec::new();
    for (index, set) in conf.sets.iter().enumerate() {
        let refused = |msg: String, details: &str| {
            Err(CniError::new(
                failure::NO_ADDRESS,
                format!("failed to allocate for range {index}: {msg}"),
                details,
            ))
        };
        if let Some(held) = own.iter().find(|held| set.range_of(held.address).is_some()) {
            let msg = format!(
                "{} has been allocated to {}, duplicate allocation is not allowed",
                held.address, target.id.container
            );
            return refused(msg, "DEL frees it");
        }
        let requested_here =
            requested.iter().position(|it| set.range_of(*it).is_some()).map(|at| requested.remove(at));
        let found = match requested_here {
            None => set.next_free(last(index), &taken),
            Some(address) => match set.range_of(address) {
                Some(range) if range.gateway == address => {
                    return refused(format!("requested ip {address} is subnet's gateway"), "");
                }
                Some(range) if !taken.contains(&address) => Some((address, range)),
                _ => {
                    let msg = format!(
                        "requested IP address {address} is not available in range set {}",
                        set.shown()
                    );
                    return refused(msg, "another container holds it");
                }
            },
        };
        let Some((address, range)) = found else {
            return refused(format!("no IP addresses available in range set: {}", set.shown()), "");
        };
        let net = IpNet::new(address, range.subnet.prefix_len());
        chosen.push((
            net.map_err(|error| CniError::internal("a prefix length is impossible", error))?,
            range.gateway,
        ));
    }
    if requested.is_empty() {
        return Ok(chosen);
    }
    let left: Vec<String> = requested.iter().map(ToString::to_string).collect();
    let msg = format!("failed to allocate all requested IPs: {}", left.join(" "));
    Err(CniError::new(failure::NO_ADDRESS, msg, "each must be of another range set"))
}

fn del(target: &Target, dir: PathBuf) -> Result<(), CniError> {
    let Some(store) = NetworkDir::open_existing(dir)? else { return Ok(()) };
    let held = store.held()?;
    store.release(HeldAddress::of_target(&held, target))
}

/// Checks that the container holds an address, as the Go plugin does, and also that it still holds
/// those of the previous result.
fn check(request: &Request, target: &Target, dir: PathBuf) -> Result<(), CniError> {
    let conf = Conf::read(request)?;
    let held = match NetworkDir::open_existing(dir)? {
        Some(store) => store.held()?,
        None => Vec::new(),
    };
    let own = HeldAddress::of_target(&held, target);
    let lost = |what: String| Err(CniError::new(failure::NO_ADDRESS, format!("host-local: {what}"), ""));
    if own.is_empty() {
        return lost(format!("failed to find address added by container {}", target.id.container));
    }
    let previous = request.config.prev_result()?.map(|result| result.ips).unwrap_or_default();
    let of_us = previous.iter().map(|ip| ip.address.addr().to_canonical());
    let mut of_us = of_us.filter(|ip| conf.sets.iter().any(|set| set.range_of(*ip).is_some()));
    match of_us.find(|ip| !own.iter().any(|held| held.address == *ip)) {
        Some(ip) => lost(format!("{ip} is no longer held by container {}", target.id.container)),
        None => Ok(()),
    }
}

/// Releases addresses of containers that are not in the request's list, and those of empty files.
fn gc(request: &Request, dir: PathBuf) -> Result<(), CniError> {
    let valid = request.config.required_attachments()?;
    let Some(store) = NetworkDir::open_existing(dir)? else { return Ok(()) };
    let held = store.held()?;
    store.release(held.iter().filter(|held| is_stale(&held.holder, &valid)))
}

fn is_stale(holder: &Holder, valid: &[EndpointId]) -> bool {
    match holder {
        Holder::None => true,
        Holder::Container(id) => !valid.iter().any(|it| it.container.as_str() == id),
        Holder::Interface(id, ifname) => {
            !valid.iter().any(|it| it.container.as_str() == id && it.ifname.as_str() == ifname)
        }
    }
}

#[cfg(test)]
mod tests;

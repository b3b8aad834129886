//! `openshift-sdn`: OpenShift's thin plugin (cni-runtime.md section 4.2, docs/openshift.md). It
//! makes the pod's interface. The pod's address and the way of packets out of the node are decided
//! by a server on the node, OpenShift's or our agent's, which the plugin asks over a socket.
//!
//! Beyond what OpenShift's plugin does, it gives up in time, sends only `CNI_*` variables of the
//! runtime's environment, reports the real MAC and the routes, undoes its steps after a failure,
//! deletes pods while the server is down ([`deferred`]), and supports CHECK, GC and STATUS.

mod conf;
mod deferred;
mod reply;
mod server;

use std::path::Path;
use std::time::{Duration, Instant};

use russet_attach::sdn::{self, Interface as PodInterface, SdnError};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Interface, IpConfig, Route, Version, code};
use russet_linux::NetNs;
use russet_wiring::{Target, failure};

use conf::Conf;
use deferred::SavedDels;
use server::{RequestFailure, Server};

/// The plugin's name.
pub const NAME: &str = "openshift-sdn";

/// Runtimes give up after one to four minutes; CRI-O gives DEL one.
const WORK_DEADLINE: Duration = Duration::from_secs(50);
/// The time limit of the undo at the server after a failed ADD; the runtime's own DEL follows.
const UNDO_DEADLINE: Duration = Duration::from_secs(5);

/// The plugin on one node.
struct Plugin {
    server: Server,
    deferred: SavedDels,
}

/// Executes one request; files and the socket lie below `root`.
pub async fn run(root: &Path, request: &Request) -> Result<Option<CniResult>, CniError> {
    let (root, request) = (root.to_owned(), request.clone());
    // One HTTP exchange and a few netlink messages, usually in a process of its own: asynchronous
    // code would gain nothing.
    let done = tokio::task::spawn_blocking(move || Plugin::new(&root).execute(&request)).await;
    done.unwrap_or_else(|error| Err(CniError::internal("openshift-sdn: the request was interrupted", error)))
}

// === impl Plugin ===

impl Plugin {
    fn new(root: &Path) -> Self {
        Self { server: Server::below(root), deferred: SavedDels::below(root) }
    }

    fn execute(&self, request: &Request) -> Result<Option<CniResult>, CniError> {
        match &request.env.call {
            Call::Add(target) => self.add(request, &Target::from_request(request, target)?).map(Some),
            Call::Del(target) => self.del(request, &Target::from_request(request, target)?).map(|()| None),
            Call::Check(target) => {
                self.check(request, &Target::from_request(request, target)?).map(|()| None)
            }
            Call::Gc => self.server.relay(request).map(|()| None),
            Call::Status => self.status(request).map(|()| None),
        }
    }

    fn add(&self, request: &Request, target: &Target) -> Result<CniResult, CniError> {
        let end = Instant::now() + WORK_DEADLINE;
        let conf = Conf::read(&self.server.config_file())?;
        let netns = target.open_netns()?;
        // First, because it concerns an earlier interface with the same names.
        self.deferred.send_own(&self.server, target, end)?;
        let made = PodInterface::create(netns, target.id.ifname.clone(), conf.mtu);
        let mut interface = made.map_err(wiring)?;
        let added = self.server.add(request, interface.host_name(), end);
        let (reply, undo_there) = match added {
            Ok(reply) => (Ok(reply), true),
            Err(request_failure) => (Err(request_failure.into_error()), false),
        };
        match reply.and_then(|body| settle(request, target, &conf, &mut interface, &body)) {
            Ok(result) => {
                self.deferred.send_some(&self.server);
                Ok(result)
            }
            Err(error) => Err(self.undo(request, &mut interface, undo_there, error)),
        }
    }

    /// Undoes a failed ADD on this node, and at the server if it answers.
    fn undo(
        &self,
        request: &Request,
        interface: &mut PodInterface,
        there: bool,
        mut error: CniError,
    ) -> CniError {
        let mut left = interface.undo();
        if there {
            let released = self.server.del(request, Instant::now() + UNDO_DEADLINE);
            left.extend(released.err().map(|also| format!("the server still has it: {}", also.into_error())));
        }
        if !left.is_empty() {
            error.details = format!("{}; DEL has to clean up: {}", error.details, left.join("; "));
        }
        error
    }

    /// DEL: the server first, so that it stops answering for the pod. If it is down, the request is
    /// saved for later, and the pod is deleted all the same.
    fn del(&self, request: &Request, target: &Target) -> Result<(), CniError> {
        let released = self.server.del(request, Instant::now() + WORK_DEADLINE);
        let server_down = match released {
            Ok(()) => false,
            Err(RequestFailure::NoListener(_)) => true,
            Err(other) => return Err(other.into_error()),
        };
        if let Some(netns) = target.netns_if_any() {
            self.remove(&netns, target)?;
        }
        if server_down {
            return self.deferred.save(target, &self.server.del_body(request));
        }
        self.deferred.forget(target)?;
        self.deferred.send_some(&self.server);
        Ok(())
    }

    fn remove(&self, netns: &NetNs, target: &Target) -> Result<(), CniError> {
        match sdn::remove(netns, &target.id.ifname) {
            // The path belongs to another process by now, so the pod is gone.
            Ok(()) | Err(SdnError::OwnNamespace(_)) => Ok(()),
            Err(error) => Err(wiring(error)),
        }
    }

    fn check(&self, request: &Request, target: &Target) -> Result<(), CniError> {
        let conf = Conf::read(&self.server.config_file())?;
        let previous = request.config.prev_result()?.ok_or_else(|| {
            CniError::invalid_config("CHECK needs the prevResult of ADD", "the key \"prevResult\" is missing")
        })?;
        let of_pod: Vec<IpConfig> = (previous.ips.iter())
            .filter(|ip| previous.interface_of(ip).is_none_or(|it| it.name == target.id.ifname.as_str()))
            .cloned()
            .collect();
        let settings = reply::settings(&CniResult { ips: of_pod, ..previous }, &conf)?;
        let netns = target.open_netns()?;
        let differences = sdn::compare(&netns, &target.id.ifname, &settings, conf.mtu).map_err(wiring)?;
        if !differences.is_empty() {
            let msg = format!("{} is not as ADD made it", target.id.ifname);
            return Err(CniError::new(failure::WIRING, msg, differences.join("; ")));
        }
        self.server.relay(request)
    }

    /// Error 50 without a server; otherwise the status of our agent's server.
    fn status(&self, request: &Request) -> Result<(), CniError> {
        let not_available = |error: CniError| CniError { code: code::NOT_AVAILABLE, ..error };
        Conf::read(&self.server.config_file()).map_err(not_available)?;
        self.server.relay(request)
    }
}

/// Configures the interface as the server answered, and builds the result.
fn settle(
    request: &Request,
    target: &Target,
    conf: &Conf,
    interface: &mut PodInterface,
    body: &[u8],
) -> Result<CniResult, CniError> {
    let reply = reply::decode(body, request.config.cni_version)?;
    let settings = reply::settings(&reply, conf)?;
    let settled = interface.settle(&settings).map_err(wiring)?;
    let mut result = CniResult::empty(request.config.cni_version);
    result.interfaces.push(Interface {
        name: target.id.ifname.to_string(),
        mac: settled.mac.to_string(),
        sandbox: target.netns_path().to_owned(),
        mtu: Some(settled.mtu),
        ..Interface::default()
    });
    let gateway = settings.gateway.map(Into::into);
    result.ips.push(IpConfig { gateway, interface: Some(0), ..IpConfig::new(settings.address.into()) });
    // Before 1.1.0, a route in a result had no MTU.
    let mtu = settings.route_mtu.filter(|_| request.config.cni_version == Version::V1_1_0);
    let route = |(dst, via): &(russet_addr::Ipv4Net, Option<std::net::Ipv4Addr>)| Route {
        mtu,
        ..Route::new((*dst).into(), via.map(Into::into))
    };
    result.routes = settled.routes.iter().map(route).collect();
    result.dns = reply.dns;
    Ok(result)
}

fn wiring(error: SdnError) -> CniError {
    let msg = "the pod's interface could not be set up";
    match error {
        SdnError::Exists(_) => CniError::new(failure::WIRING, error.to_string(), "DEL removes it"),
        SdnError::OwnNamespace(_) => CniError::invalid_netns(error.to_string(), ""),
        SdnError::Vanished(_) => CniError::try_again_later(msg, error),
        _ => CniError::new(failure::WIRING, msg, error),
    }
}

#[cfg(test)]
mod tests;

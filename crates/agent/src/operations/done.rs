//! The one log line at level info for each ADD or DEL: which pod, which addresses, how long it
//! took.

use std::net::IpAddr;
use std::time::Duration;

use russet_cni_spec::{Call, CniResult, Request, Target};
use russet_journal::EndpointTable;

/// The interface that every container has; runtimes attach it before each pod's network.
const LOOPBACK: &str = "lo";

/// The subject of a request, read before it is carried out: a DEL's addresses are unknown
/// afterwards.
pub(super) struct RequestSubject {
    verb: &'static str,
    target: Option<Target>,
    pod: String,
    network: String,
    held: Vec<IpAddr>,
}

// === impl RequestSubject ===

impl RequestSubject {
    pub(super) fn new(request: &Request, endpoints: &EndpointTable) -> Self {
        let (verb, target) = match &request.env.call {
            Call::Add(target) => ("ADD", Some(target)),
            Call::Del(target) => ("DEL", Some(target)),
            Call::Check(_) | Call::Gc | Call::Status => ("", None),
        };
        let held = target.filter(|_| verb == "DEL").and_then(|target| endpoints.get(&target.id));
        let pod = request.env.args.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name));
        Self {
            verb,
            target: target.cloned(),
            pod: pod.unwrap_or_else(|| "-".to_owned()),
            network: request.config.name.to_string(),
            held: held.and_then(|it| it.wired).map(|wired| wired.addresses()).unwrap_or_default(),
        }
    }

    /// Logs that the request is done.
    pub(super) fn done(&self, result: Option<&CniResult>, took: Duration) {
        let Some(target) = &self.target else { return };
        let (container, ifname) = (target.id.container.as_str(), target.id.ifname.as_str());
        let Self { verb, pod, network, .. } = self;
        let addresses = self.addresses(result);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if ifname == LOOPBACK {
            tracing::debug!(verb, pod, addresses, ms, network, container, ifname, "request done");
        } else {
            tracing::info!(verb, pod, addresses, ms, network, container, ifname, "request done");
        }
    }

    fn addresses(&self, result: Option<&CniResult>) -> String {
        let given = result.map(|result| result.ips.iter().map(|ip| ip.address.addr()).collect());
        let addresses: Vec<IpAddr> = given.unwrap_or_else(|| self.held.clone());
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join(",") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adds_addresses_are_the_results_and_a_dels_those_that_were_held() {
        let held = vec!["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        let subject =
            RequestSubject { verb: "DEL", target: None, pod: "-".into(), network: "n".into(), held };
        assert_eq!(subject.addresses(None), "10.1.0.5,fd00::5");
        let text = br#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.9/32"}]}"#;
        let result = CniResult::decode(text, russet_cni_spec::Version::V1_0_0).unwrap();
        assert_eq!(subject.addresses(Some(&result)), "10.1.0.9");
        assert_eq!(RequestSubject { held: Vec::new(), ..subject }.addresses(None), "-");
    }
}

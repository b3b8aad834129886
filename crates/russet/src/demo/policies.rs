//! `russet demo --policy`: who reaches whom before there is a policy, after a deny-all, and after an
//! allow. The policies are applied as `russet apply -f` does it, the pods send real packets, and the
//! evaluator says from the datastore what should arrive.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::{IfName, NodeName};
use russet_model::WorkloadEndpointSpec;
use russet_verdict::evaluator;
use russet_verdict::explain::Probe;
use russet_verdict::ir::Protocol;
use russet_verdict::snapshot::Snapshot;
use serde::Serialize;
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::lab::{OUTSIDE_SERVICES, POD_NAMESPACE};
use super::matrix::Prober;
use super::report::PodReport;
use super::{DemoError, Interrupt};
use crate::output;

/// What happened to one stage after the other.
#[derive(Debug, Serialize)]
pub struct PolicyReport {
    pub stages: Vec<StageReport>,
}

/// Who reaches whom under the policies of one stage.
#[derive(Debug, Serialize)]
pub struct StageReport {
    /// `before`, `deny-all` or `allow`.
    pub name: &'static str,
    /// For people.
    #[serde(skip)]
    title: &'static str,
    pub pairs: Vec<Pair>,
}

/// One direction of one pair on one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// The pod that sends the request.
    pub from: String,
    /// The pod that would reply, or `outside`.
    pub to: String,
    /// `4` or `6`.
    pub family: u8,
    /// What the policies say.
    pub expected: bool,
    /// Whether a reply came.
    pub reached: bool,
    #[serde(skip)]
    source: Option<IpAddr>,
    #[serde(skip)]
    target: Option<IpAddr>,
}

/// A stage, and the documents that begin it.
struct Stage {
    name: &'static str,
    title: &'static str,
    documents: Option<&'static str>,
}

/// More pods are refused: each receives a request of each other at once, and the buffer of a socket
/// with its default size holds somewhat more than twice as many packets.
pub const PODS_MAX: usize = 64;
/// How long replies of one round are awaited. What the policies allow is answered within a
/// millisecond, and what they deny never.
const ROUND: Duration = Duration::from_millis(500);
/// How long agents have until packets pass as the policies say; usually it takes some milliseconds.
const STAGE_DEADLINE: Duration = Duration::from_secs(30);
/// The profile of the pods, without which Calico's rules deny an endpoint.
const PROFILE: &str = "projectcalico-default-allow";
/// The pods' interface.
const IFNAME: &str = "eth0";
/// The pods' roles, in turn.
const ROLES: [&str; 2] = ["client", "server"];

const STAGES: [Stage; 3] = [
    Stage { name: "before", title: "Without a policy", documents: None },
    Stage {
        name: "deny-all",
        title: "After a deny-all (NetworkPolicy demo/deny-all: every pod, both directions, no rule)",
        documents: Some(DENY_ALL),
    },
    Stage {
        name: "allow",
        title: "After an allow (NetworkPolicies demo/clients-out and demo/servers-in: clients reach servers)",
        documents: Some(ALLOW),
    },
];
const DENY_ALL: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all, namespace: demo}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
";
const ALLOW: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: clients-out, namespace: demo}
spec:
  podSelector: {matchLabels: {role: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {role: server}}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: servers-in, namespace: demo}
spec:
  podSelector: {matchLabels: {role: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: client}}}]
";

/// Goes through all stages.
pub fn show(
    fleet: &Fleet,
    pods: &[PodReport],
    interrupt: &Interrupt,
    say: impl Fn(&str),
) -> Result<PolicyReport, DemoError> {
    // The workload endpoints have the labels, which no plugin writes.
    let endpoints: Result<Vec<Value>, DemoError> =
        pods.iter().enumerate().map(|(index, pod)| endpoint(pod, role(index))).collect();
    fleet.apply("endpoints.json", &Value::Array(endpoints?).to_string())?;
    let mut probers = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        probers.push(Prober::open(pod, index as u16)?);
    }
    let mut stages = Vec::new();
    for Stage { name, title, documents } in STAGES {
        say(&format!("policies: {name}"));
        if let Some(documents) = documents {
            fleet.apply(&format!("{name}.yaml"), documents)?;
        }
        let mut pairs = pairs(pods, &fleet.datastore.policies()?);
        settle(&mut pairs, STAGE_DEADLINE, |pairs| round(&mut probers, pairs, interrupt))?;
        stages.push(StageReport { name, title, pairs });
    }
    Ok(PolicyReport { stages })
}

const fn role(index: usize) -> &'static str {
    ROLES[index % ROLES.len()]
}

/// The workload endpoint of a pod.
fn endpoint(pod: &PodReport, role: &str) -> Result<Value, DemoError> {
    let failed =
        |error: &dyn std::fmt::Display| DemoError::Refused(format!("name pod {}: {error}", pod.name));
    let node: NodeName = NodeName::new(pod.node.as_str()).map_err(|error| failed(&error))?;
    let ifname = IfName::new(IFNAME).map_err(|error| failed(&error))?;
    let name = WorkloadEndpointSpec::k8s_name(&node, &pod.name, &ifname).map_err(|error| failed(&error))?;
    let networks: Vec<String> = pod.ips.iter().map(|ip| russet_addr::host_net(*ip).to_string()).collect();
    Ok(json!({ "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": { "name": name, "namespace": POD_NAMESPACE, "labels": { "role": role } },
        "spec": { "orchestrator": "k8s", "node": pod.node, "pod": pod.name, "endpoint": IFNAME,
            "ipNetworks": networks, "profiles": [PROFILE] } }))
}

/// Every ordered pair of pods, and the outside host from each pod, on both families.
fn pairs(pods: &[PodReport], snapshot: &Snapshot) -> Vec<Pair> {
    let ping = Probe { protocol: Protocol::ICMP, port: 0 };
    let mut pairs = Vec::new();
    for from in pods {
        let others = pods.iter().filter(|to| to.name != from.name);
        let targets = others.map(|to| (to.name.as_str(), to.ips.as_slice()));
        for (to, addresses) in targets.chain([("outside", OUTSIDE_SERVICES.as_slice())]) {
            for (source, target) in from.ips.iter().flat_map(|ip| addresses.iter().map(move |to| (*ip, *to)))
            {
                // None for addresses of two families.
                let Some(flow) = ping.flow(source, target) else { continue };
                pairs.push(Pair {
                    from: from.name.clone(),
                    to: to.to_owned(),
                    family: if source.is_ipv4() { 4 } else { 6 },
                    expected: evaluator::ask(snapshot, &flow).allowed(),
                    reached: false,
                    source: Some(source),
                    target: Some(target),
                });
            }
        }
    }
    pairs
}

/// Repeats rounds until all pairs are as expected, or until the deadline.
fn settle(
    pairs: &mut [Pair],
    deadline: Duration,
    mut round: impl FnMut(&mut [Pair]) -> Result<(), DemoError>,
) -> Result<(), DemoError> {
    let end = Instant::now() + deadline;
    loop {
        round(pairs)?;
        if pairs.iter().all(Pair::is_as_expected) || Instant::now() >= end {
            return Ok(());
        }
    }
}

/// All pairs at once: a request of each, and then the replies.
fn round(probers: &mut [Prober<'_>], pairs: &mut [Pair], interrupt: &Interrupt) -> Result<(), DemoError> {
    interrupt.check()?;
    let end = Instant::now() + ROUND;
    let mut asked = Vec::new();
    for (index, pair) in pairs.iter_mut().enumerate() {
        pair.reached = false;
        let (Some(source), Some(target)) = (pair.source, pair.target) else { continue };
        let at = probers.iter().position(|prober| prober.pod.ips.contains(&source));
        let Some(at) = at else { continue };
        // What cannot even be sent does not arrive.
        if let Some(pinger) = probers[at].of(source)
            && let Ok(sequence) = pinger.request_from(target)
        {
            asked.push((at, source, (target, sequence), index));
        }
    }
    for (at, prober) in probers.iter_mut().enumerate() {
        for source in prober.pod.ips.clone() {
            let Some(pinger) = prober.of(source) else { continue };
            let own = |it: &&(usize, IpAddr, (IpAddr, u16), usize)| (it.0, it.1) == (at, source);
            let mut left = asked.iter().filter(own).count();
            let failed = |source| DemoError::io("receive replies to pings", source);
            while left > 0
                && let Some(reply) = pinger.reply(end).map_err(failed)?
            {
                // Replies of an earlier round have another number.
                let found = asked.iter().filter(own).find(|it| it.2 == reply);
                if let Some((.., index)) = found {
                    left -= usize::from(!std::mem::replace(&mut pairs[*index].reached, true));
                }
            }
        }
    }
    Ok(())
}

// === impl Pair ===

impl Pair {
    fn is_as_expected(&self) -> bool {
        self.expected == self.reached
    }
}

// === impl StageReport ===

impl StageReport {
    fn text(&self, pods: &[PodReport]) -> String {
        let mut targets: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        targets.push("outside");
        let row = |pod: &PodReport| {
            std::iter::once(pod.name.clone())
                .chain(targets.iter().map(|to| self.cell(&pod.name, to)))
                .collect()
        };
        let heading: Vec<&str> = std::iter::once("").chain(targets.iter().copied()).collect();
        let table = output::table(&heading, &pods.iter().map(row).collect::<Vec<_>>());
        let reached = self.pairs.iter().filter(|pair| pair.reached).count();
        let mut text = format!("\n{}\n{table}{reached} of {} pairs", self.title, self.pairs.len());
        let differing: Vec<&Pair> = self.pairs.iter().filter(|pair| !pair.is_as_expected()).collect();
        if differing.is_empty() {
            text.push_str(", as the policies say\n");
        } else {
            text.push_str(&format!(", and {} are not as the policies say:\n", differing.len()));
        }
        for Pair { from, to, family, expected, .. } in differing {
            let (policies, packets) =
                if *expected { ("allow", "none arrives") } else { ("deny", "they arrive") };
            text.push_str(&format!(
                "DIFFERS: {from} to {to} over IPv{family}: the policies {policies} packets, and {packets}\n"
            ));
        }
        text
    }

    /// What the families of a pair have in common, or the one that arrives.
    fn cell(&self, from: &str, to: &str) -> String {
        let both: Vec<&Pair> = self.pairs.iter().filter(|it| it.from == from && it.to == to).collect();
        let reached: Vec<u8> = both.iter().filter(|pair| pair.reached).map(|pair| pair.family).collect();
        let word = match reached.as_slice() {
            _ if both.is_empty() => "-".to_owned(),
            [] => "no".to_owned(),
            all if all.len() == both.len() => "yes".to_owned(),
            some => some.iter().map(|family| format!("v{family}")).collect::<Vec<_>>().join(","),
        };
        if both.iter().all(|pair| pair.is_as_expected()) { word } else { word + "(!)" }
    }
}

// === impl PolicyReport ===

impl PolicyReport {
    /// How many pairs are not as the policies say.
    pub fn differences(&self) -> usize {
        self.stages.iter().flat_map(|stage| &stage.pairs).filter(|pair| !pair.is_as_expected()).count()
    }

    /// The report for people: row asks, column answers.
    pub fn text(&self, pods: &[PodReport]) -> String {
        let roles = pods.iter().enumerate().map(|(index, pod)| format!("{} {}", pod.name, role(index)));
        let roles = roles.collect::<Vec<_>>().join(", ");
        let stages: String = self.stages.iter().map(|stage| stage.text(pods)).collect();
        format!("\nWho reaches whom (row asks, column answers). Roles: {roles}\n{stages}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodReport {
        PodReport { name: name.into(), node: "n1".into(), netns: String::new(), ips: Vec::new(), add_us: 1 }
    }

    fn pair(from: &str, to: &str, family: u8, expected: bool) -> Pair {
        let (from, to) = (from.to_owned(), to.to_owned());
        Pair { from, to, family, expected, reached: false, source: None, target: None }
    }

    #[test]
    fn a_stage_settles_when_packets_pass_as_expected_and_a_difference_is_named() {
        let mut all = [pair("a", "b", 4, true), pair("a", "b", 6, true), pair("b", "a", 4, false)];
        let mut rounds = 0;
        let pass = |count: usize| {
            move |all: &mut [Pair]| {
                all.iter_mut().take(count).for_each(|pair| pair.reached = true);
                Ok(())
            }
        };
        settle(&mut all, STAGE_DEADLINE, |all| {
            rounds += 1;
            pass(rounds)(all)
        })
        .unwrap();
        assert_eq!(rounds, 2, "it ends with the first round that is as expected");
        let report = |pairs: &[Pair]| {
            let stages = vec![StageReport { name: "allow", title: "After", pairs: pairs.to_vec() }];
            PolicyReport { stages }
        };
        let pods = [pod("a"), pod("b")];
        assert_eq!(report(&all).differences(), 0);
        let text = report(&all).text(&pods);
        assert!(text.contains("2 of 3 pairs, as the policies say") && !text.contains("(!)"), "{text}");

        settle(&mut all, Duration::ZERO, pass(3)).unwrap();
        all[1].reached = false;
        let text = report(&all).text(&pods);
        assert_eq!(report(&all).differences(), 2);
        for line in [
            "2 of 3 pairs, and 2 are not as the policies say:",
            "DIFFERS: a to b over IPv6: the policies allow packets, and none arrives",
            "DIFFERS: b to a over IPv4: the policies deny packets, and they arrive",
            "v4(!)",
            "yes(!)",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}

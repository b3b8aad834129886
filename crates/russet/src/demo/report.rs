//! The demo's results, for people and for programs.

use serde::Serialize;

use super::faults::FaultsReport;
use super::policies::PolicyReport;
use crate::output;

/// The demo's result; `schema` grows when a member changes its meaning.
#[derive(Debug, Serialize)]
pub struct Report {
    pub schema: u32,
    /// How the nodes forwarded the packets.
    pub mode: &'static str,
    pub nodes: Vec<NodeReport>,
    pub pods: Vec<PodReport>,
    pub pings: Vec<Ping>,
    pub blocks: Vec<BlockReport>,
    /// With `--kubernetes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<ClusterReport>,
    /// With `--policy`: who reaches whom under policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyReport>,
    /// With `--break`: what became of each fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultsReport>,
    /// The demo's total time.
    pub elapsed_ms: u64,
}

/// The cluster, and how long its steps took.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterReport {
    /// The API server's version.
    pub version: String,
    /// Where its programs are.
    pub programs: String,
    /// From the start of etcd until the API server is ready.
    pub apiserver_ready_ms: u64,
    /// From the manifest until all nodes are Ready.
    pub nodes_ready_ms: u64,
    /// From the Deployment until all of its pods are available.
    pub pods_running_ms: u64,
}

#[derive(Debug, Serialize)]
pub struct NodeReport {
    pub name: String,
    /// Its namespace's path.
    pub netns: String,
    /// The agent's process.
    pub agent_pid: u32,
    /// Its addresses on the underlay.
    pub ips: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct PodReport {
    pub name: String,
    pub node: String,
    /// Its namespace's path.
    pub netns: String,
    /// Its addresses.
    pub ips: Vec<std::net::IpAddr>,
    /// How long its ADD took, measured by the runtime.
    pub add_us: u64,
}

/// One direction of one pair on one family.
#[derive(Debug, Serialize)]
pub struct Ping {
    /// The pod that sends the request.
    pub from: String,
    /// The pod that replies, or `outside`.
    pub to: String,
    /// `4` or `6`.
    pub family: u8,
    /// Whether a reply came.
    pub ok: bool,
    /// The round-trip time.
    pub rtt_us: Option<u64>,
    /// Why no reply came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct BlockReport {
    /// Its prefix.
    pub cidr: String,
    /// The node that it belongs to.
    pub node: Option<String>,
    /// Addresses in use.
    pub used: usize,
    /// Addresses in all.
    pub size: usize,
}

// === impl Report ===

impl Report {
    /// How many pings had no answer.
    pub fn failures(&self) -> usize {
        self.pings.iter().filter(|ping| !ping.ok).count()
    }

    /// How many faults and policies did not come out as they should.
    pub fn problems(&self) -> usize {
        self.policy.as_ref().map_or(0, PolicyReport::differences)
            + self.faults.as_ref().map_or(0, FaultsReport::failures)
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        text.push_str(&self.pods_table());
        if let Some(faults) = &self.faults {
            text.push_str(&faults.text());
            text.push_str(&self.verdict());
            return text;
        }
        if let Some(policy) = &self.policy {
            // The matrices of policies say more than the times of a ping.
            text.push_str(&policy.text(&self.pods));
            text.push_str(&self.verdict());
            return text;
        }
        text.push('\n');
        text.push_str(&self.blocks_table());
        for family in [4, 6] {
            if self.pings.iter().any(|ping| ping.family == family) {
                text.push_str(&format!("\nIPv{family} round-trip times in us (row asks, column answers)\n"));
                text.push_str(&self.matrix(family));
            }
        }
        text.push_str(&self.verdict());
        if let Some(cluster) = &self.kubernetes {
            text.push_str(&cluster.text());
        }
        text
    }

    fn pods_table(&self) -> String {
        let row = |pod: &PodReport| {
            let ips: Vec<String> = pod.ips.iter().map(ToString::to_string).collect();
            vec![
                pod.name.clone(),
                pod.node.clone(),
                ips.join(", "),
                format!("{:.1} ms", pod.add_us as f64 / 1000.0),
            ]
        };
        output::table(&["POD", "NODE", "ADDRESSES", "ADD"], &self.pods.iter().map(row).collect::<Vec<_>>())
    }

    fn blocks_table(&self) -> String {
        let row = |block: &BlockReport| {
            let node = block.node.clone().unwrap_or_else(|| "-".to_owned());
            vec![block.cidr.clone(), node, format!("{} of {}", block.used, block.size)]
        };
        output::table(&["BLOCK", "NODE", "IN USE"], &self.blocks.iter().map(row).collect::<Vec<_>>())
    }

    fn matrix(&self, family: u8) -> String {
        let mut targets: Vec<&str> = self.pods.iter().map(|pod| pod.name.as_str()).collect();
        targets.push("outside");
        let cell = |from: &str, to: &str| {
            let ping = self.pings.iter().find(|p| p.family == family && p.from == from && p.to == to);
            match ping {
                None => "-".to_owned(),
                Some(Ping { rtt_us: Some(rtt), .. }) => rtt.to_string(),
                Some(_) => "LOST".to_owned(),
            }
        };
        let row = |pod: &PodReport| {
            let cells = targets.iter().map(|to| cell(&pod.name, to));
            std::iter::once(pod.name.clone()).chain(cells).collect()
        };
        let heading: Vec<&str> = std::iter::once("").chain(targets.iter().copied()).collect();
        output::table(&heading, &self.pods.iter().map(row).collect::<Vec<_>>())
    }

    fn verdict(&self) -> String {
        let seconds = self.elapsed_ms as f64 / 1000.0;
        let (all, failed) = (self.pings.len(), self.failures());
        let mut text = format!("\n{} of {all} pings answered; {seconds:.1} s in all.\n", all - failed);
        for ping in self.pings.iter().filter(|ping| !ping.ok) {
            let why = ping.error.as_deref().unwrap_or("no answer");
            text.push_str(&format!("LOST: {} to {} over IPv{}: {why}\n", ping.from, ping.to, ping.family));
        }
        text
    }
}

// === impl ClusterReport ===

impl ClusterReport {
    fn text(&self) -> String {
        let seconds = |ms: u64| format!("{:6.1} s", ms as f64 / 1000.0);
        format!(
            "\nKubernetes {} of {}:\n{}  etcd started -> API server ready\n{}  manifest applied -> all nodes Ready\n{}  Deployment applied -> all pods Running\n",
            self.version,
            self.programs,
            seconds(self.apiserver_ready_ms),
            seconds(self.nodes_ready_ms),
            seconds(self.pods_running_ms),
        )
    }
}
